import os
import subprocess
import sys


def run_python(code: str, folder, *options: str) -> str:
    """What a fresh interpreter prints, started in a folder of its own, without the Hub and with empty caches."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf_home"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *options, "-c", code], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
