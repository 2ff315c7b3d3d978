"""Every test starts from the same seed and never reaches for the Hub."""

import logging
import os


os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch
from models import VARIANTS


# Files with long tests go first, so that no worker is left with one at the end.
LONG = ("test_distributed.py", "test_interruption.py", "test_training.py", "test_packaging.py", "test_hub.py", "test_push.py")


def is_possible(shape: str | None = None, variant: object = None, **others: object) -> bool:
    if variant in ("neighbours", VARIANTS["neighbours"]):
        return shape in ("encoder", "encoder-decoder")
    return shape == "encoder" or variant not in ("mixed", VARIANTS["mixed"])


def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if is_possible(**getattr(getattr(item, "callspec", None), "params", {}))]
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def messages():
    """`caplog` listens at the root. The command line keeps our messages to itself, but not for longer than a test."""
    logger = logging.getLogger("glassformer")
    handlers, logger.propagate = logger.handlers, True
    yield
    logger.handlers = handlers
