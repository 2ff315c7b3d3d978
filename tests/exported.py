"""What the tests of exported graphs share: small models, prompts, and whether a folder writes what `generate` writes."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from models import VARIANTS, V, tiny_language_model

from glassformer.exchange.runtime import ExportedModel


SHALLOW = {
    "encoder-decoder": {"num_encoder_layers": 1, "num_decoder_layers": 1},
    "encoder": {"num_encoder_layers": 1},
    "decoder": {"num_decoder_layers": 2},
}


def some_slow(shape: str, *fast: str):
    """Every variant, but all except the named ones only in the slow run: tracing takes seconds."""
    return [pytest.param(shape, name, marks=() if name in fast else pytest.mark.slow, id=f"{shape}-{name}") for name in VARIANTS]


def exporter(write: Callable, folder: Path) -> Callable:
    """Save a model and write its graphs with one of our functions -> where they are, and how far they are from the model."""

    def export(model, **options) -> tuple[Path, dict[str, float]]:
        model.save_pretrained(folder / "model")
        return folder / "graphs", write(folder / "model", folder / "graphs", **options)

    return export


def writer(shape: str, variant: str) -> Any:
    return tiny_language_model(shape, **{**VARIANTS[variant], **SHALLOW[shape]}, tie_word_embeddings=False)


def trace_another(module: Any, monkeypatch) -> None:
    """Let a module of ours trace another model than it was asked for."""
    traced = module.trace

    def trace(graph):
        another = copy.deepcopy(graph)
        with torch.no_grad():
            another.model.lm_head.weight.mul_(1.5)
        return traced(another)

    monkeypatch.setattr(module, "trace", trace)


def prompts(shape: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Three rows, of which one has padding: after a source, before what is to be continued."""
    ids, mask = torch.randint(5, V, (3, 6)), torch.ones(3, 6, dtype=torch.bool)
    mask[1, slice(-2, None) if shape == "encoder-decoder" else slice(2)] = False
    return ids.masked_fill(~mask, 0), mask


def end_early(model, folder: Path, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Let the first row end before the others, in the model and in its export -> what the model writes."""
    likely = model.generate(ids, attention_mask=mask, max_new_tokens=7, eos_token_id=None)
    model.generation_config.eos_token_id = int(likely[0, -4])
    model.generation_config.save_pretrained(folder)
    return model.generate(ids, attention_mask=mask, max_new_tokens=7)


def check_tokens(model, folder: Path, shape: str) -> None:
    """Greedy and beam search are those of the model, token by token, also for a prompt of one token."""
    ids, mask = prompts(shape)
    expected = end_early(model, folder, ids, mask)
    exported = ExportedModel(folder)
    assert exported.generate(ids.numpy(), mask.numpy(), max_new_tokens=7).tolist() == expected.tolist()
    for width in (2, 3):
        expected = model.generate(ids, attention_mask=mask, max_new_tokens=7, num_beams=width)
        assert exported.generate(ids.numpy(), mask.numpy(), max_new_tokens=7, num_beams=width).tolist() == expected.tolist()
    expected = model.generate(ids[:1, :1], attention_mask=mask[:1, :1], max_new_tokens=3)
    assert exported.generate(ids[:1, :1].numpy(), mask[:1, :1].numpy(), max_new_tokens=3).tolist() == expected.tolist()


def check_answers(model, folder: Path) -> None:
    """What is said about a text is what the model says, wherever there is no padding."""
    ids, mask = prompts("encoder-decoder")
    with torch.no_grad():
        expected = model(ids, attention_mask=mask)
    for name, found in ExportedModel(folder).run("model", {"input_ids": ids.numpy(), "attention_mask": mask.numpy()}).items():
        kept = mask.numpy() if found.shape[:2] == mask.shape else ...
        np.testing.assert_allclose(found[kept], expected[name].numpy()[kept], atol=1e-4)
