"""ONNX: the graphs compute what torch computes, in any batch and length, and write what `generate` writes."""

import copy

import numpy as np
import pytest
import torch
from models import VARIANTS, V, tiny_config, tiny_language_model

import glassformer
import glassformer.exchange.onnx
from glassformer.exchange.onnx import OnnxModel, export_onnx


for package in ("onnx", "onnxruntime", "onnxscript"):
    pytest.importorskip(package, reason="needs glassformer[onnx]")

SHALLOW = {
    "encoder-decoder": {"num_encoder_layers": 1, "num_decoder_layers": 1},
    "encoder": {"num_encoder_layers": 1},
    "decoder": {"num_decoder_layers": 2},
}


@pytest.fixture
def export(tmp_path):
    def export(model, **options):
        model.save_pretrained(tmp_path / "model")
        return tmp_path / "onnx", export_onnx(tmp_path / "model", tmp_path / "onnx", **options)

    return export


def prompts(shape: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Three rows, of which one has padding: after a source, before what is to be continued."""
    ids, mask = torch.randint(5, V, (3, 6)), torch.ones(3, 6, dtype=torch.bool)
    mask[1, slice(-2, None) if shape == "encoder-decoder" else slice(2)] = False
    return ids.masked_fill(~mask, 0), mask


def some_slow(shape: str, *fast: str):
    """Every variant, but all except the named ones only in the slow run: tracing takes seconds."""
    return [pytest.param(shape, name, marks=() if name in fast else pytest.mark.slow, id=f"{shape}-{name}") for name in VARIANTS]


@pytest.mark.parametrize("shape, variant", [*some_slow("decoder", "default"), *some_slow("encoder-decoder")])
def test_tokens_are_those_of_generate(export, shape, variant):
    model = tiny_language_model(shape, **{**VARIANTS[variant], **SHALLOW[shape]}, tie_word_embeddings=False)
    folder, differences = export(model)
    assert all(difference < 1e-4 for difference in differences.values())
    ids, mask = prompts(shape)
    likely = model.generate(ids, attention_mask=mask, max_new_tokens=7, eos_token_id=None)
    model.generation_config.eos_token_id = int(likely[0, -4])  # the first row ends early
    model.generation_config.save_pretrained(folder)
    expected = model.generate(ids, attention_mask=mask, max_new_tokens=7)
    written = OnnxModel(folder).generate(ids.numpy(), mask.numpy(), max_new_tokens=7)
    assert written.tolist() == expected.tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    "head, shape",
    [
        ("GlassformerForQuestionAnswering", "encoder"),
        ("GlassformerForMaskedLM", "encoder"),
        ("GlassformerForTokenClassification", "encoder"),
        ("GlassformerForSequenceClassification", "encoder"),
        ("GlassformerForSequenceClassification", "decoder"),
    ],
)
def test_answers_about_a_text_are_those_of_torch(export, head, shape):
    model = getattr(glassformer, head)(tiny_config(shape, **SHALLOW[shape])).eval()
    folder, _ = export(model)
    ids, mask = prompts("encoder-decoder")
    with torch.no_grad():
        expected = model(ids, attention_mask=mask)
    for name, found in OnnxModel(folder).run("model", {"input_ids": ids.numpy(), "attention_mask": mask.numpy()}).items():
        kept = mask.numpy() if found.shape[:2] == mask.shape else ...
        np.testing.assert_allclose(found[kept], expected[name].numpy()[kept], atol=1e-4)


@pytest.mark.slow
def test_answers_about_pictures_are_those_of_torch(export):
    sizes = {"image_size": 12, "patch_size": 4, "position_encoding": "learned"}
    model = glassformer.GlassformerForImageClassification(tiny_config("encoder", **sizes, **SHALLOW["encoder"])).eval()
    folder, _ = export(model)
    pictures = torch.randn(5, 3, 12, 12)
    with torch.no_grad():
        expected = model(pictures).logits
    found = OnnxModel(folder).run("model", {"pixel_values": pictures.numpy()})["logits"]
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["encoder", "decoder", "encoder-decoder"])
def test_eight_bits_are_smaller_and_near(tmp_path, shape):
    model = tiny_language_model(shape, d_model=128, d_ff=512, **SHALLOW[shape])
    model.save_pretrained(tmp_path / "model")
    exact = export_onnx(tmp_path / "model", tmp_path / "exact")
    rounded = export_onnx(tmp_path / "model", tmp_path / "int8", int8=True)
    for name in exact:
        assert exact[name] < 1e-4 < rounded[name] < 0.5
        sizes = [(tmp_path / folder / name).stat().st_size for folder in ("int8", "exact")]
        assert sizes[0] < 0.5 * sizes[1]


@pytest.mark.slow
def test_a_graph_that_is_not_the_model_is_noticed_and_leaves_no_trace(export, tmp_path, monkeypatch):
    traced = glassformer.exchange.onnx.trace

    def trace_another(graph):
        another = copy.deepcopy(graph)
        with torch.no_grad():
            another.model.lm_head.weight.mul_(1.5)
        return traced(another)

    monkeypatch.setattr(glassformer.exchange.onnx, "trace", trace_another)
    with pytest.raises(RuntimeError, match=r"model.onnx differs from torch by .* nothing was written"):
        export(tiny_language_model("encoder", **SHALLOW["encoder"]))
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_what_cannot_be_exported_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no model: give a folder"):
        export_onnx(tmp_path / "nothing", tmp_path / "new")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(FileExistsError, match="exists already: give a new folder"):
        export_onnx(tmp_path / "nothing", tmp_path / "full")
    glassformer.GlassformerModel(tiny_config("encoder")).save_pretrained(tmp_path / "bare")
    with pytest.raises(ValueError, match="holds a GlassformerModel, which is none of"):
        export_onnx(tmp_path / "bare", tmp_path / "new")
    with pytest.raises(FileNotFoundError, match="holds no ONNX graphs"):
        OnnxModel(tmp_path / "bare")
    assert not (tmp_path / "new").exists()
