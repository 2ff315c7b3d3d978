"""Checkpoints are complete or absent, and nothing in them can execute code."""

import contextlib
import errno
import json
import os
import pickle
import resource

import pytest
import torch
from recipes import tiny_recipe

from glassformer.training import checkpoints
from glassformer.training.checkpoints import (
    MANIFEST,
    CheckpointError,
    CheckpointFolder,
    checksum,
    compare,
    find_damage,
    open_run,
    write_whole,
)
from glassformer.training.loop import train


FILES = {"model.safetensors": b"weights", "loop.json": b"{}"}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GLASSFORMER_CACHE", str(tmp_path / "cache"))


def fill(path):
    for name, content in FILES.items():
        (path / name).write_bytes(content)


def names(folder):
    return [path.name for path in folder.all()]


def test_the_newest_are_kept_and_the_best_beside_them(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=2)
    for step in (1, 2, 3, 4):
        folder.save("step", step, fill, best_step=1)
    assert names(folder) == ["step-00000001", "step-00000003", "step-00000004"]


def test_pauses_and_best_ones_take_nobodys_place(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=2)
    folder.save("step", 2, fill, None)
    folder.save("best", 3, fill, best_step=3)
    folder.save("step", 4, fill, best_step=3)
    folder.save("pause", 5, fill, best_step=3)
    assert names(folder) == ["step-00000002", "best-00000003", "step-00000004", "pause-00000005"]
    folder.save("best", 7, fill, best_step=7)
    folder.save("step", 8, fill, best_step=7)
    assert names(folder) == ["step-00000004", "best-00000007", "step-00000008"]


@pytest.mark.parametrize("name", [*FILES, MANIFEST])
@pytest.mark.parametrize("damage", ["changed", "cut", "missing", "empty"])
def test_damage_is_recognised_and_the_checkpoint_before_is_used(name, damage, tmp_path, caplog):
    folder = CheckpointFolder(tmp_path, keep=3)
    first = folder.save("step", 1, fill, None)
    file = folder.save("step", 2, fill, None) / name
    content = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes({"changed": b"#" + content[1:], "cut": content[:-1], "empty": b""}[damage])
    assert folder.newest() == first
    assert "step-00000002 is damaged" in caplog.text and name in caplog.text


def test_without_a_whole_checkpoint_there_is_none(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=3)
    assert folder.newest() is None
    (folder.save("step", 1, fill, None) / MANIFEST).unlink()
    assert folder.newest() is None


class PowerCut(BaseException):
    """What no `except` in the code under test is to soften."""


@pytest.mark.parametrize("call", range(12))
def test_whatever_moment_the_power_fails_a_whole_checkpoint_is_found(call, tmp_path, monkeypatch):
    """Every system call of a save is tried as the last one: the newest whole checkpoint is the old or the new one."""
    folder = CheckpointFolder(tmp_path, keep=1)
    old = folder.save("step", 1, fill, None)
    calls = []

    def failing(original):
        def wrapper(*args, **kwargs):
            calls.append(original)
            if len(calls) == call + 1:
                raise PowerCut
            return original(*args, **kwargs)

        return wrapper

    with monkeypatch.context() as patch:
        for owner, name in ((os, "fsync"), (os, "rename"), (checkpoints.shutil, "rmtree"), (checkpoints, "checksum")):
            patch.setattr(owner, name, failing(getattr(owner, name)))
        with contextlib.suppress(PowerCut):
            folder.save("step", 2, fill, None)
    found = CheckpointFolder(tmp_path, keep=1)
    found.clean()
    newest = found.newest()
    assert newest in (old, tmp_path / "step-00000002") and find_damage(newest) is None
    found.save("step", 2, fill, None)
    assert names(found) == ["step-00000002"] and not list(tmp_path.glob(".*"))


def test_a_full_disk_leaves_the_checkpoint_before_and_says_so(tmp_path):
    """The operating system itself refuses to write more than this."""
    folder = CheckpointFolder(tmp_path, keep=3)
    first = folder.save("step", 1, fill, None)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    weights = {"weight": torch.zeros(100_000)}
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
        with pytest.raises(CheckpointError, match=r"step-00000002 could not be written.*make room.*step-00000001 is whole"):
            folder.save("step", 2, lambda path: checkpoints.write_tensors(path / "model.safetensors", weights), None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(folder) == [first.name] and not list(tmp_path.glob(".*"))


def test_a_full_disk_in_the_middle_of_training_loses_only_the_steps_since_the_checkpoint(tmp_path, monkeypatch):
    original, written = checkpoints.sync, []

    def full(path):
        written.append(path.name)
        if written.count("loop.json") == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        original(path)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "sync", full)
        with pytest.raises(CheckpointError, match="No space left on device"):
            train(tiny_recipe(tmp_path / "run"))
    before = json.loads((tmp_path / "run/checkpoints/step-00000002/loop.json").read_text())
    assert before["step"] == 2 and find_damage(tmp_path / "run/checkpoints/step-00000002") is None
    assert (train(tiny_recipe(tmp_path / "run")) / "run.json").exists()


class Malice:
    def __reduce__(self):
        return os.system, ("touch harm-done",)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "average.safetensors", "loop.json"])
def test_a_malicious_file_is_refused_and_not_executed(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = tiny_recipe(tmp_path / "run", {"training.ema": 0.5})
    with monkeypatch.context() as patch:
        patch.setattr("glassformer.training.loop.finish", lambda *args: None)
        train(recipe)
    checkpoint = tmp_path / "run" / "checkpoints" / "step-00000006"
    (checkpoint / name).write_bytes(pickle.dumps(Malice()))
    sums = json.loads((checkpoint / MANIFEST).read_text())  # as a thoughtful attacker would
    (checkpoint / MANIFEST).write_text(json.dumps({**sums, name: checksum(checkpoint / name)}))
    with pytest.raises(Exception):  # noqa: B017  (each library has its own way to refuse)
        train(recipe)
    assert not (tmp_path / "harm-done").exists()
    pickle.loads(pickle.dumps(Malice()))  # the trap itself works
    assert (tmp_path / "harm-done").exists()


def test_nothing_in_a_run_is_a_pickle(tmp_path):
    folder = train(tiny_recipe(tmp_path / "run", {"training.ema": 0.5, "logging.tensorboard": True}))
    assert list(folder.glob("tensorboard/**/events.*"))
    suffixes = {path.suffix for path in folder.rglob("*") if path.is_file()}
    assert not suffixes & {".pt", ".pth", ".bin", ".pkl", ".ckpt"}
    for path in (path for path in folder.rglob("*") if path.is_file() and path.stat().st_size):
        assert path.read_bytes()[:2] not in (b"\x80\x02", b"\x80\x04", b"\x80\x05", b"PK"), path


# The folder of a run


def test_only_one_process_trains_in_a_folder(tmp_path):
    with (
        open_run(tiny_recipe(tmp_path), is_main=True),
        pytest.raises(CheckpointError, match="Another process is training in"),
        open_run(tiny_recipe(tmp_path), is_main=True),
    ):
        pass


def test_a_folder_that_holds_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(CheckpointError, match=r"holds thesis.tex, which is no training run: set output"):
        train(tiny_recipe(tmp_path))
    assert (tmp_path / "thesis.tex").exists()


@pytest.mark.parametrize("place", ["/proc/glassformer", "file/run"])
def test_a_folder_that_cannot_be_written_is_named(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=f"{place} cannot be written to .*: set output to another folder"):
        train(tiny_recipe(place))


def test_differences_are_listed_but_not_those_that_do_not_matter():
    before = {"seed": 1, "logging": {"every": 1}, "model": {"d_model": 8, "num_heads": 2}}
    now = {"seed": 2, "logging": {"every": 5}, "model": {"d_model": 8, "dropout": 0.1}}
    assert compare(before, now) == [
        "seed was 1 and is now 2", "model.num_heads was 2 and is now None", "model.dropout was None and is now 0.1",
    ]  # fmt: skip


def test_a_write_that_fails_leaves_nothing(tmp_path):
    def fails(path):
        fill(path)
        raise ValueError("in the middle")

    with pytest.raises(ValueError, match="in the middle"):
        write_whole(tmp_path / "folder", fails)
    assert not list(tmp_path.iterdir())
