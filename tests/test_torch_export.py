"""Programs of torch, as they are and compiled, compute what the model computes, in any batch and length, where torch is alone."""

import shutil

import pytest
import torch
from exported import SHALLOW, check_answers, check_tokens, exporter, prompts, some_slow, trace_another, writer
from models import tiny_config, tiny_language_model
from processes import run_python
from test_cli import call

import glassformer
import glassformer.exchange.runtime
import glassformer.exchange.torch_export
from glassformer.exchange.runtime import ExportedModel
from glassformer.exchange.torch_export import export_torch
from glassformer.pruning import prune_heads


needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")


@pytest.fixture
def export(tmp_path):
    return exporter(export_torch, tmp_path)


@pytest.mark.parametrize("shape, variant", [*some_slow("decoder", "default"), *some_slow("encoder-decoder")])
def test_tokens_are_those_of_generate(export, shape, variant):
    model = writer(shape, variant)
    folder, differences = export(model)
    assert all(difference < 1e-4 for difference in differences.values())
    check_tokens(model, folder, shape)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("shape, variant", [("decoder", "modern"), ("encoder-decoder", "default")])
def test_compiled_tokens_are_those_of_generate(export, shape, variant):
    model = writer(shape, variant)
    folder, differences = export(model, compiled=True)
    assert differences and all(name.endswith(".compiled.pt2") and far < 1e-4 for name, far in differences.items())
    check_tokens(model, folder, shape)


@pytest.mark.slow
@pytest.mark.parametrize("head", ["GlassformerForQuestionAnswering", "GlassformerForSequenceClassification"])
def test_answers_about_a_text_are_those_of_the_model(export, head):
    model = getattr(glassformer, head)(tiny_config("encoder", **SHALLOW["encoder"])).eval()
    folder, _ = export(model)
    check_answers(model, folder)


@pytest.mark.slow
def test_a_model_with_pruned_heads_goes_too(export):
    model = tiny_language_model("decoder", **SHALLOW["decoder"])
    prune_heads(model, {("decoder", 0): [1, 3]})
    folder, _ = export(model)
    assert ExportedModel(folder).inputs["model"]["past.0.key"] == ["batch", 2, "past", 6]
    check_tokens(model, folder, "decoder")


WITH_TORCH_ALONE = """
import importlib.util, json, sys

sys.modules |= dict.fromkeys(("glassformer", "transformers", "onnxruntime"))  # None: as if they were not installed
import torch

kind, folder, loop, ids, mask = sys.argv[1], sys.argv[2], sys.argv[3], *map(json.loads, sys.argv[4:])
ids, mask = torch.tensor(ids), torch.tensor(mask)

# By hand: what comes out as `present` goes in as `past`
path = f"{folder}/model{kind}"
program = torch._inductor.aoti_load_package(path) if "compiled" in kind else torch.export.load(path).module()
sizes = list(json.load(open(f"{folder}/inputs.json")).values())[0]
past = [[torch.zeros(len(ids), sizes[name][1], 0, sizes[name][3])] * 2 for name in sizes if name.endswith(".key")]
past = [tuple(pair) for pair in past]
written, new, positions = ids, ids, (mask.cumsum(1) - 1).clamp(min=0)
past_positions = positions[:, :0]
visible = torch.ones(ids.shape[1], ids.shape[1]).tril().bool() & mask[:, None]
for _ in range(7):
    outputs = program(
        input_ids=new, position_ids=positions, past_position_ids=past_positions, attention_mask=visible, past=past
    )
    past = [(outputs[f"present.{i}.key"], outputs[f"present.{i}.value"]) for i in range(len(past))]
    new = outputs["logits"][:, -1].argmax(-1, keepdim=True)
    written, past_positions = torch.cat((written, new), 1), torch.cat((past_positions, positions), 1)
    positions = positions[:, -1:] + 1
    visible = torch.nn.functional.pad(visible[:, -1:], (0, 1), value=True)

# By the loop, which is a file that can be copied
spec = importlib.util.spec_from_file_location("loop", loop)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
looped = module.ExportedModel(folder).generate(ids.numpy(), mask.numpy(), 7)
assert sys.modules["transformers"] is sys.modules["glassformer"] is None
print(json.dumps([written.tolist(), looped.tolist()]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", [".pt2", pytest.param(".compiled.pt2", marks=needs_compiler)])
def test_a_program_runs_where_there_is_torch_alone(export, tmp_path, kind):
    model = tiny_language_model("decoder", **SHALLOW["decoder"], tie_word_embeddings=False)
    folder, _ = export(model, compiled="compiled" in kind)
    ids, mask = prompts("decoder")
    model.generation_config.eos_token_id = None
    model.generation_config.save_pretrained(folder)
    expected = model.generate(ids, attention_mask=mask, max_new_tokens=7).tolist()
    arguments = [kind, folder, glassformer.exchange.runtime.__file__, ids.tolist(), str(mask.tolist()).lower()]
    printed = run_python(WITH_TORCH_ALONE, tmp_path, list(map(str, arguments)))
    assert printed.splitlines()[-1] == str([expected, expected])


def test_a_program_that_is_not_the_model_is_noticed_and_leaves_no_trace(export, tmp_path, monkeypatch):
    trace_another(glassformer.exchange.torch_export, monkeypatch)
    with pytest.raises(RuntimeError, match=r"model.pt2 differs from torch by .* nothing was written"):
        export(tiny_language_model("encoder", **SHALLOW["encoder"]))
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_what_cannot_be_exported_is_refused_in_a_sentence(tmp_path, monkeypatch, capsys):
    def said(*arguments) -> str:
        assert call("export", *arguments) == 1
        assert not (tmp_path / "new").exists()
        return capsys.readouterr().err

    assert "holds no model: give a folder" in said(tmp_path / "nothing", "--to", "torch", tmp_path / "new")
    assert "--compile is for programs of torch" in said(tmp_path, "--to", "onnx", "--compile", tmp_path / "new")
    assert "--int8 is for ONNX graphs" in said(tmp_path, "--to", "torch", "--int8", tmp_path / "new")
    monkeypatch.setattr(torch._inductor.config.cpp, "cxx", ("no-such-compiler",))
    assert "needs a C++ compiler: install g++" in said(tmp_path, "--to", "torch", "--compile", tmp_path / "new")
