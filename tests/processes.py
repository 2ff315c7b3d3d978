"""Fresh interpreters for tests that must not see what this one has loaded."""

import json
import os
import subprocess
import sys
from pathlib import Path


def run_python(code: str, folder: Path, arguments: list[str] = (), **variables: str) -> str:
    """What a fresh interpreter prints, started in a folder of its own, with empty caches and, unless told, without the Hub."""
    usual = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf_home"), "OMP_NUM_THREADS": "1"}
    environment = {**os.environ, **usual, **variables}
    done = subprocess.run([sys.executable, "-c", code, *arguments], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def run_in_children(codes: dict[str, str], folder: Path) -> dict[str, str]:
    """Run each piece of code as if in a fresh interpreter -> "done" or a traceback. Only torch and the like are loaded once."""
    code = """
import json, os, sys, traceback
import accelerate, huggingface_hub, torch, torch._dynamo, torch.distributed.tensor

assert not any(name.partition(".")[0] in ("glassformer", "peft", "transformers") for name in sys.modules)
for name, code in json.loads(sys.argv[1]).items():
    if (child := os.fork()) == 0:
        with open(name, "w") as file:
            try:
                exec(code, {})
                file.write("done")
            except BaseException:
                traceback.print_exc(file=file)
        os._exit(0)
    os.waitpid(child, 0)
"""
    run_python(code, folder, arguments=[json.dumps(codes)])
    return {name: (folder / name).read_text() for name in codes}
