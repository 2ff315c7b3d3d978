"""Measure our models and those of other libraries in turns:

    python scripts/benchmark.py [train|generate|memory|scaling|start|data|all] [--quick]

The same as `glassformer benchmark`. Contestants that are not installed are left out: pip install 'glassformer[benchmark]'.
"""

from glassformer.cli import main


if __name__ == "__main__":
    main("benchmark")
