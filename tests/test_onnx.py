"""ONNX: the graphs compute what torch computes, in any batch and length, and write what `generate` writes."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from exported import SHALLOW, check_answers, check_tokens, exporter, prompts, some_slow, trace_another, writer
from models import V, tiny_config, tiny_language_model

import glassformer
import glassformer.exchange.onnx
from glassformer.exchange.onnx import export_onnx
from glassformer.exchange.runtime import ExportedModel, share_threads


for package in ("onnx", "onnxruntime", "onnxscript"):
    pytest.importorskip(package, reason="needs glassformer[onnx]")

import onnx  # noqa: E402


@pytest.fixture
def export(tmp_path):
    return exporter(export_onnx, tmp_path)


@pytest.mark.parametrize("shape, variant", [*some_slow("decoder", "default"), *some_slow("encoder-decoder")])
def test_tokens_are_those_of_generate(export, shape, variant):
    model = writer(shape, variant)
    folder, differences = export(model)
    assert all(difference < 1e-4 for difference in differences.values())
    check_tokens(model, folder, shape)


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
    check_answers(model, folder)


def test_votes_of_phrases_are_those_of_torch(export):
    sizes = {"phrase_size": 2, "phrase_buckets": V, "num_labels": 3}
    model = glassformer.GlassformerForSequenceClassification(tiny_config("encoder", **sizes, **SHALLOW["encoder"])).eval()
    torch.nn.init.normal_(model.phrases.weight[1:])
    model.phrases.owners[1:] = torch.arange(V)  # every word has a row
    folder, _ = export(model)
    check_answers(model, folder)


@pytest.mark.slow
def test_answers_about_pictures_are_those_of_torch(export):
    sizes = {"image_size": 12, "patch_size": 4, "position_encoding": "learned"}
    model = glassformer.GlassformerForImageClassification(tiny_config("encoder", **sizes, **SHALLOW["encoder"])).eval()
    folder, _ = export(model)
    pictures = torch.randn(5, 3, 12, 12)
    with torch.no_grad():
        expected = model(pictures).logits
    found = ExportedModel(folder).run("model", {"pixel_values": pictures.numpy()})["logits"]
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["encoder", "decoder", "encoder-decoder"])
def test_eight_bits_are_smaller_and_near(tmp_path, shape):
    model = tiny_language_model(shape, d_model=128, d_ff=512, **SHALLOW[shape])
    model.save_pretrained(tmp_path / "model")
    exact = export_onnx(tmp_path / "model", tmp_path / "exact")
    rounded = export_onnx(tmp_path / "model", tmp_path / "int8", int8=True)
    for name in exact.keys() - {"ranking.onnx"}:
        assert exact[name] < 1e-4 < rounded[name] < 0.5
        sizes = [(tmp_path / folder / name).stat().st_size for folder in ("int8", "exact")]
        assert sizes[0] < 0.5 * sizes[1]
        operations = [node.op_type for node in onnx.load(tmp_path / "int8" / name).graph.node]
        # Attention alone is left in float32: the output layer is rounded too, though it shares its weights.
        assert "Attention" in operations and "MatMul" not in operations


def test_beams_say_what_they_need(export, monkeypatch):
    folder, _ = export(tiny_language_model("decoder", **SHALLOW["decoder"]))
    ids, mask = (x.numpy() for x in prompts("decoder"))
    with pytest.raises(ValueError, match="num_beams=0 must be at least 1"):
        ExportedModel(folder).generate(ids, mask, max_new_tokens=3, num_beams=0)
    monkeypatch.setitem(sys.modules, "glassformer.beams", None)
    assert ExportedModel(folder, threads=1).generate(ids, mask, max_new_tokens=3).shape == (3, 9)
    with pytest.raises(ImportError, match="pip install glassformer, or num_beams=1"):
        ExportedModel(folder).generate(ids, mask, max_new_tokens=3, num_beams=2)


SHARING = """
import sys
import numpy as np
from glassformer.exchange.runtime import ExportedModel, share_threads

def write():
    ids = np.arange(5, 11).reshape(1, 6)
    return ExportedModel(sys.argv[1], threads=1).generate(ids, np.ones_like(ids), 5).tolist()

alone = write()
share_threads(2)
share_threads(threads=2)
assert write() == alone  # ONNX Runtime would refuse a session with threads of its own
try:
    share_threads(3)
except ValueError as error:
    print(error)
"""


def test_graphs_share_threads_and_write_the_same(export):
    folder, _ = export(tiny_language_model("decoder", **SHALLOW["decoder"]))
    done = subprocess.run([sys.executable, "-c", SHARING, folder], capture_output=True, text=True)  # for it is for good
    assert done.stdout == "The graphs of this process share threads already, 2: 3 needs another process.\n", done.stderr
    assert not done.stderr  # ONNX Runtime warns of threads that a session cannot have


def test_a_folder_without_a_graph_that_ranks_is_told(export):
    folder, _ = export(tiny_language_model("decoder", **SHALLOW["decoder"]))
    inputs = json.loads((folder / "inputs.json").read_text())
    (folder / "inputs.json").write_text(json.dumps({name: value for name, value in inputs.items() if name != "ranking.onnx"}))
    ids, mask = (x.numpy() for x in prompts("decoder"))
    with pytest.raises(FileNotFoundError, match="no graph that ranks beams: export the model again, or num_beams=1"):
        ExportedModel(folder).generate(ids, mask, max_new_tokens=3, num_beams=2)


def test_less_than_no_threads_are_refused():
    with pytest.raises(ValueError, match="threads=-1 must be at least 0"):
        share_threads(-1)


@pytest.mark.parametrize("variant, inside", [("default", True), ("modern", False)])  # whose heads are rotated
def test_the_past_is_inside_of_attention_where_heads_are_left_alone(export, variant, inside):
    folder, _ = export(writer("decoder", variant))
    attentions = [node for node in onnx.load(folder / "model.onnx").graph.node if node.op_type == "Attention"]
    assert attentions and all((len(node.input) == 6 and len(node.output) == 3) == inside for node in attentions)


@pytest.mark.slow
def test_a_graph_that_is_not_the_model_is_noticed_and_leaves_no_trace(export, tmp_path, monkeypatch):
    trace_another(glassformer.exchange.onnx, monkeypatch)
    with pytest.raises(RuntimeError, match=r"model.onnx differs from torch by .* nothing was written"):
        export(tiny_language_model("encoder", **SHALLOW["encoder"]))
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_what_cannot_be_exported_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no model: give a folder"):
        export_onnx(tmp_path / "nothing", tmp_path / "new")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(FileExistsError, match="exists and is not empty: name another folder"):
        export_onnx(tmp_path / "nothing", tmp_path / "full")
    glassformer.GlassformerModel(tiny_config("encoder")).save_pretrained(tmp_path / "bare")
    with pytest.raises(ValueError, match="holds a GlassformerModel, which is none of"):
        export_onnx(tmp_path / "bare", tmp_path / "new")
    with pytest.raises(FileNotFoundError, match="holds no graphs: give a folder that was exported"):
        ExportedModel(tmp_path / "bare")
    assert not (tmp_path / "new").exists()
