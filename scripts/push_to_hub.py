"""Upload a model with its code and its card to the Hub:

    python scripts/push_to_hub.py FOLDER REPO [--private] [--revision BRANCH] [--dry-run] [--yes]

The same as `glassformer push FOLDER REPO`.
"""

from glassformer.cli import main


if __name__ == "__main__":
    main("push")
