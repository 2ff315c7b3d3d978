"""The first thing that a newcomer runs, from beginning to end."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


SCRIPTS = Path(__file__).parent.parent / "scripts"


@pytest.mark.slow
def test_the_quickstart_translates_dates_of_days_it_has_never_seen(tmp_path):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    command = [sys.executable, str(SCRIPTS / "quickstart.py"), str(tmp_path / "dates")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    run = json.loads((tmp_path / "dates" / "run.json").read_text())
    assert run["metrics"]["test"]["exact_match"] >= 0.99
    assert run["waiting"] < 0.02  # for data
    assert "Montag, den 3. Oktober 1988        -> 1988-10-03" in done.stdout
    for name in ("attention.png", "curves.png"):
        assert (tmp_path / "dates" / name).read_bytes()[:4] == b"\x89PNG"
