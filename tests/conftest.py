"""Every test starts from the same seed and never reaches for the Hub."""

import os


os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)
