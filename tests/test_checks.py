"""The doctor's checks: sound models pass, and each planted bug is found by the check that is for it."""

import pytest
import torch
from models import tiny_config, tiny_language_model
from safetensors.torch import load_file, save_file
from test_capture import build as build_family
from tokenizer import word_tokenizer

from glassformer import GlassformerForSequenceClassification
from glassformer.analysis import checks
from glassformer.analysis.checks import CHECKS, Subject, check_folder
from glassformer.attention import MultiHeadAttention


FAST = [name for name in CHECKS if name != "loads in a fresh process"]
SOUND = {
    "encoder-decoder": tiny_language_model,
    "decoder": lambda **options: tiny_language_model("decoder", **options),
    "encoder": lambda **options: GlassformerForSequenceClassification(tiny_config("encoder", **options)),
}


@pytest.fixture
def folder(tmp_path):
    """Save a model, with a tokenizer that fits."""

    def save(model):
        model.save_pretrained(tmp_path / "model")
        word_tokenizer().save_pretrained(tmp_path / "model")
        return tmp_path / "model"

    return save


def make(shape: str = "decoder", **options):
    torch.manual_seed(0)
    return SOUND[shape](**{"vocab_size": len(word_tokenizer()), "max_position_embeddings": 64, **options})


def verdicts(path, names=None) -> dict[str, tuple[bool | None, str]]:
    return {verdict.name: (verdict.passed, verdict.reason) for verdict in check_folder(path, names)}


@pytest.mark.parametrize("shape", SOUND)
def test_a_sound_model_passes_everything(folder, shape):
    found = verdicts(folder(make(shape)), None if shape == "decoder" else FAST)
    assert {name: reason for name, (passed, reason) in found.items() if passed is False} == {}
    skipped = {name for name, (passed, _) in found.items() if passed is None}
    assert skipped <= ({"tied weights", "no leak from the future", "cached equals uncached"} if shape == "encoder" else set())


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "t5", "bart", "marian"])
def test_models_of_transformers_pass_what_applies_to_them(tmp_path, family):
    model = build_family(family)
    model.save_pretrained(tmp_path)
    found = verdicts(tmp_path, FAST)
    assert {name: reason for name, (passed, reason) in found.items() if passed is False} == {}
    assert found["code for remote loading"][0] is None and found["eager equals sdpa"][0] is True


def with_attention(monkeypatch, change):
    """Every attention of our models goes through `change(module, original, query, key, value, mask, bias)`."""
    original = MultiHeadAttention.attend

    def attend(self, q, k, v, mask, bias, **kwargs):
        return change(self, lambda *args: original(self, *args, **kwargs), q, k, v, mask, bias)

    monkeypatch.setattr(MultiHeadAttention, "attend", attend)


def test_a_causal_mask_that_is_off_by_one(folder, monkeypatch):
    path = folder(make())

    def one_too_many(module, attend, q, k, v, mask, bias):
        length = q.shape[2]
        if length == 1:
            return attend(q, k, v, mask, bias)
        seen = torch.ones(length, k.shape[2], dtype=torch.bool).tril(1 + k.shape[2] - length)
        return attend(q, k, v, seen[None, None], bias)

    with_attention(monkeypatch, one_too_many)
    found = verdicts(path, ["no leak from the future", "no leak from padding"])
    assert found["no leak from the future"][0] is False and "later tokens differ" in found["no leak from the future"][1]


def test_a_padding_mask_that_is_not_applied(folder, monkeypatch):
    path = folder(make("encoder"))
    with_attention(monkeypatch, lambda module, attend, q, k, v, mask, bias: attend(q, k, v, None, bias))
    assert verdicts(path, ["no leak from padding"])["no leak from padding"][0] is False


def test_a_softmax_without_its_scale_in_one_kernel(folder, monkeypatch):
    path = folder(make())

    def unscaled(module, attend, q, k, v, mask, bias):
        return attend(q * module.d_k**0.5 if module.implementation == "sdpa" else q, k, v, mask, bias)

    with_attention(monkeypatch, unscaled)
    assert verdicts(path, ["eager equals sdpa"])["eager equals sdpa"][0] is False


def test_a_cache_that_forgets(folder, monkeypatch):
    path = folder(make())
    model = Subject(path).model
    original = type(model).generate

    def forgetful(self, ids, use_cache=True, **options):
        written = original(self, ids, use_cache=use_cache, **options)
        return written if use_cache else written.roll(1, dims=1)

    monkeypatch.setattr(type(model), "generate", forgetful)
    assert verdicts(path, ["cached equals uncached"])["cached equals uncached"] == (
        False,
        "With a cache, greedy search writes other tokens than without.",
    )


def test_weights_that_are_no_longer_tied(folder, monkeypatch):
    path = folder(make())
    original = checks.Subject.model.func

    def untied(self):
        model = original(self)
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
        return model

    monkeypatch.setattr(checks.Subject, "model", property(untied))
    assert verdicts(path, ["tied weights"])["tied weights"][0] is False


def test_weights_that_overflow(folder):
    path = folder(make())
    weights = load_file(path / "model.safetensors")
    name = next(name for name in weights if name.endswith("down_proj.weight"))
    weights[name] = weights[name] * 1e8
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    assert verdicts(path, ["half precision"])["half precision"][0] is False


def test_files_that_should_not_or_should_be_there(folder):
    path = folder(make())
    (path / "modeling_glassformer.py").rename(path / "elsewhere.py")
    (path / "optimizer.pt").write_bytes(b"")
    found = verdicts(path, ["no pickle", "code for remote loading"])
    assert found["no pickle"] == (False, "optimizer.pt may hold code that is run when it is loaded: save as safetensors.")
    assert found["code for remote loading"][0] is False and "modeling_glassformer.py" in found["code for remote loading"][1]


def test_a_tokenizer_that_does_not_fit(folder):
    small = folder(make(vocab_size=12))
    assert "embeddings" in verdicts(small, ["tokenizer and config agree"])["tokenizer and config agree"][1]
    other = folder(make(eos_token_id=9))
    assert verdicts(other, ["tokenizer and config agree"])["tokenizer and config agree"] == (
        False,
        "eos_token_id is 2 in the tokenizer and 9 in the config.",
    )


def test_a_folder_that_is_none(tmp_path):
    with pytest.raises(ValueError, match=r"holds no config\.json: give the folder of a saved model"):
        check_folder(tmp_path)
