"""The doctor: nothing is found where nothing is wrong, and each planted bug has its finding."""

import contextlib
import json

import pytest
import torch
from recipes import TEXTS, keep_caches_in, task_recipe, tiny_recipe, write_rows
from test_checks import with_attention

from glassformer.analysis import doctor
from glassformer.analysis.doctor import examine_recipe, examine_run
from glassformer.training import objectives
from glassformer.training.loop import Diverged, train


pytestmark = pytest.mark.filterwarnings("ignore:The texts support")


@pytest.fixture(autouse=True)
def caches(tmp_path, monkeypatch):
    keep_caches_in(tmp_path / "caches", monkeypatch)


def recipe_for(folder, task: str = "causal_lm", **overrides):
    """Rows of unlike length, so that there is padding."""
    longer = {"batching": {"examples": 8}, "evaluation.metrics": ["loss"], **overrides}
    return task_recipe(folder, task, longer)


def found(recipe) -> set[str]:
    return {finding.name for finding in examine_recipe(recipe).findings}


@pytest.mark.parametrize("task", ["seq2seq", "causal_lm", "masked_lm", "sequence_classification"])
def test_a_sound_recipe_has_nothing(tmp_path, task):
    report = examine_recipe(recipe_for(tmp_path, task))
    assert [str(finding) for finding in report.findings] == []
    text = str(report)
    assert all(title in text for title in ("Shapes of one batch", "memory of an update", "FLOPs"))
    assert "Gradients of one batch" in text and "Nothing is wrong" in text
    assert not (tmp_path / "run").exists()


def test_labels_that_are_not_shifted(tmp_path, monkeypatch):
    from glassformer import modeling_glassformer

    monkeypatch.setattr(modeling_glassformer, "shift_left", lambda labels: labels)
    assert "labels not shifted" in found(recipe_for(tmp_path))


def test_padding_that_is_counted_in_the_loss(tmp_path, monkeypatch):
    original = objectives.Seq2Seq.collate

    def collate(self, features):
        tensors = original(self, features)
        return {**tensors, "labels": tensors["labels"].masked_fill(tensors["labels"] == -100, self.pad_id)}

    monkeypatch.setattr(objectives.Seq2Seq, "collate", collate)
    assert "padding in the loss" in found(recipe_for(tmp_path, "seq2seq"))


def test_a_causal_mask_that_is_off_by_one(tmp_path, monkeypatch):
    def one_too_many(module, attend, q, k, v, mask, bias):
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(1)
        return attend(q, k, v, seen[None, None], bias)

    with_attention(monkeypatch, one_too_many)
    assert "no leak from the future" in found(recipe_for(tmp_path))


def test_a_padding_mask_that_is_not_applied(tmp_path, monkeypatch):
    with_attention(monkeypatch, lambda module, attend, q, k, v, mask, bias: attend(q, k, v, None, bias))
    assert "no leak from padding" in found(recipe_for(tmp_path, "sequence_classification"))


def test_a_softmax_without_its_scale(tmp_path, monkeypatch):
    def unscaled(module, attend, q, k, v, mask, bias):
        return attend(q * module.d_k**0.5 if module.implementation == "sdpa" else q, k, v, mask, bias)

    with_attention(monkeypatch, unscaled)
    assert "eager equals sdpa" in found(recipe_for(tmp_path))


def test_rows_that_training_and_validation_share_and_unknown_words(tmp_path):
    rows = [{"text": f"{text} word{n}"} for n in range(30) for text in TEXTS]
    files = {split: str(write_rows(tmp_path / f"{split}.jsonl", rows)) for split in ("train", "validation")}
    recipe = tiny_recipe(
        tmp_path / "run",
        {
            "data": {"files": files}, "objective": {"name": "causal_lm"}, "model.num_encoder_layers": 0,
            "tokenizer": {"kind": "word", "vocab_size": 12}, "evaluation.metrics": ["loss"],
        },
    )  # fmt: skip
    recipe.data.max_length = 6
    report = examine_recipe(recipe)
    assert {"shared rows", "unknown tokens", "cut rows"} <= {finding.name for finding in report.findings}
    [line] = [line.split() for line in str(report).splitlines() if line.startswith("validation")]
    assert line[:3] == ["validation", "240", "100.0%"] and line[3] == "100.0%"


def test_rows_without_tokens(tmp_path):
    rows = [{"text": text} for text in [*TEXTS * 8, " ", ""]]
    recipe = recipe_for(tmp_path, "causal_lm")
    recipe.data.source = str(write_rows(tmp_path / "blanks.jsonl", rows))
    assert "2 of 66 train rows" in str(examine_recipe(recipe))


def test_a_part_that_is_not_trained(tmp_path, monkeypatch):
    original = doctor.build_model

    def frozen(task):
        model = original(task)
        model.requires_grad_(False)
        model.model.decoder.norm.weight.requires_grad_(True)
        return model

    monkeypatch.setattr(doctor, "build_model", frozen)
    assert "one batch is not learnt" in found(recipe_for(tmp_path))


def test_weights_that_are_no_longer_tied(tmp_path, monkeypatch):
    original = doctor.build_model

    def untied(task):
        model = original(task)
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
        return model

    monkeypatch.setattr(doctor, "build_model", untied)
    assert "untied weights" in found(recipe_for(tmp_path))


# Runs


def test_a_learning_rate_a_hundred_times_too_high(tmp_path):
    recipe = tiny_recipe(
        tmp_path / "run",
        {
            "optimizer": {"lr": 1.0, "clip_norm": None, "weight_decay": 0.0}, "schedule": {"name": "constant", "warmup_steps": 0},
            "training.steps": 40, "logging.every": 2, "evaluation.every": 40, "checkpoints.every": 40,
        },
    )  # fmt: skip
    with contextlib.suppress(Diverged):
        train(recipe)
    names = {finding.name for finding in examine_run(tmp_path / "run").findings}
    assert names & {"diverged", "diverging", "exploding gradients", "flat", "oscillating"}


def test_a_run_that_went_well_has_no_findings_about_its_curves(tmp_path):
    folder = train(tiny_recipe(tmp_path / "run", {"training.steps": 40, "logging.every": 2, "optimizer.lr": 5e-3}))
    assert not {finding.name for finding in examine_run(folder).findings} & {"diverged", "diverging", "spike", "overfit"}


def test_heads_without_queries_are_dead(tmp_path):
    from glassformer import GlassformerForConditionalGeneration

    folder = train(tiny_recipe(tmp_path / "run"))
    model = GlassformerForConditionalGeneration.from_pretrained(folder)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "q_proj" in name:
                parameter.zero_()
    model.save_pretrained(folder)
    assert "dead heads" in {finding.name for finding in examine_run(folder).findings}


def test_an_unfinished_run_is_judged_by_its_log(tmp_path):
    (tmp_path / "log.jsonl").write_text(
        "".join(json.dumps({"step": n, "loss": 9.0, "gradient_norm": 1.0}) + "\n" for n in range(20))
    )
    assert {finding.name for finding in examine_run(tmp_path).findings} == {"flat"}
