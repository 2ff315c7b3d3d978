"""Real training processes that start in no time, to be killed: python nursery.py JOBS.json

What takes long to import is imported once; each process is then forked off, as if freshly started. A job is a recipe and the
signals to send, each after so many seconds or, given as "after N", once N checkpoints were seen; then it runs to its end.
"""

import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path

import torch

from glassformer.training.loop import Interrupted, train
from glassformer.training.recipe import load_recipe


def start(recipe: str, log: Path) -> int:
    """A process of its own for one attempt -> its number."""
    if child := os.fork():
        return child
    with log.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    code = 0
    try:
        train(load_recipe(recipe))
    except Interrupted as stop:
        print(stop, flush=True)
        code = stop.exit_code
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    os._exit(code)


def wait(child: int, seconds: float, moment) -> int | None:
    """Until `moment()` comes, the time is up or the process has ended -> its exit code then."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not moment():
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    return None


def run(job: dict) -> dict:
    """Send the job's signals, one to each attempt, then let it finish."""
    recipe, codes, begun = job["recipe"], [], time.monotonic()
    output = load_recipe(recipe).folder
    log = Path(recipe).with_suffix(".txt")
    for name, when in job["signals"]:
        child, before, new = start(recipe, log), set(output.glob("checkpoints/*-*")), set()

        def seen(when=when, before=before, new=new):
            new |= set(output.glob("checkpoints/*-*")) - before  # old ones may be gone by then
            return isinstance(when, str) and len(new) >= int(when.split()[1])

        code = wait(child, when if isinstance(when, float) else 60, seen)
        if code is None:
            os.kill(child, getattr(signal, name))
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        codes.append(code)
    code = os.waitstatus_to_exitcode(os.waitpid(start(recipe, log), 0)[1])
    return {"codes": [*codes, code], "seconds": time.monotonic() - begun, "output": log.read_text()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps([run(job) for job in json.loads(Path(sys.argv[1]).read_text())]))
