"""A saved folder is all that anybody needs: it carries its code, and every Auto class finds its head in it."""

import ast
import json
import sys
from pathlib import Path

import pytest
import torch
import transformers
from models import SHAPES, B, S, T, V, tiny_config
from processes import run_python

import glassformer


HEADS = {
    "AutoModel": "GlassformerModel",
    "AutoModelForSeq2SeqLM": "GlassformerForConditionalGeneration",
    "AutoModelForCausalLM": "GlassformerForCausalLM",
    "AutoModelForMaskedLM": "GlassformerForMaskedLM",
    "AutoModelForSequenceClassification": "GlassformerForSequenceClassification",
    "AutoModelForTokenClassification": "GlassformerForTokenClassification",
    "AutoModelForQuestionAnswering": "GlassformerForQuestionAnswering",
    "AutoModelForImageClassification": "GlassformerForImageClassification",
}
OPTIONS = {  # a different way to tell positions in each, two of which live in tables that are not saved
    "encoder-decoder": {"position_encoding": "rope", "attention_window": 3},
    "encoder": {"position_encoding": "alibi", "num_labels": 3},
    "decoder": {"position_encoding": "relative", "num_labels": 3, "norm": "rmsnorm"},
    "pictures": {"position_encoding": "learned", "num_labels": 3, "image_size": 12, "patch_size": 4, "num_channels": 2},
}
# Of each shape, the one that can be read as any other.
GENERAL = {
    "encoder-decoder": "AutoModelForSeq2SeqLM",
    "encoder": "AutoModelForMaskedLM",
    "decoder": "AutoModelForCausalLM",
    "pictures": "AutoModel",
}


def fits(shape: str, head) -> bool:
    if shape == "pictures":
        return head.reads in (None, "pictures")
    return head.reads in (None, "text") and shape in head.shapes


FITTING = [(shape, auto) for auto, name in HEADS.items() for shape in OPTIONS if fits(shape, getattr(glassformer, name))]
each_fitting = pytest.mark.parametrize("shape, auto_class", FITTING, ids=[f"{shape}-{auto}" for shape, auto in FITTING])

WITHOUT_THE_PACKAGE = """
import json, pathlib, sys, torch
sys.modules["glassformer"] = None  # importing it now fails
import transformers

def load(auto_class, folder):
    model, report = getattr(transformers, auto_class).from_pretrained(folder, trust_remote_code=True, output_loading_info=True)
    return model, sorted(report["missing_keys"]), sorted(report["unexpected_keys"])

def run(model, inputs):
    with torch.no_grad():
        results = model(**inputs, use_cache=False)
    return [value for value in results.values() if torch.is_tensor(value)]

found = {}
for folder in sorted(pathlib.Path("saved").iterdir()):
    shape, _, auto_class = folder.name.partition("=")
    inputs = torch.load(folder / "inputs.pt")
    model, missing, unexpected = load(auto_class, folder)
    model.save_pretrained("again/" + folder.name)
    again, _, _ = load(auto_class, "again/" + folder.name)
    found[folder.name] = {
        "class": type(model).__name__, "module": type(model).__module__, "missing": missing, "unexpected": unexpected,
        "outputs": run(model, inputs), "again": run(again, inputs),
    }
    if model.can_generate():
        found[folder.name]["tied"] = model.lm_head.weight is model.model.decoder.embed_tokens.weight
        ids = inputs["input_ids"]
        found[folder.name]["generated"] = model.generate(ids, max_new_tokens=4, num_beams=2)

# One model of each shape, read by every Auto class that fits the shape.
for shape, auto_classes in json.loads(sys.argv[1]).items():
    for auto_class in auto_classes:
        folder = pathlib.Path("saved") / f"{shape}={auto_classes[0]}"
        model, missing, unexpected = load(auto_class, folder)
        found[shape, auto_class] = {
            "class": type(model).__name__, "missing": missing, "unexpected": unexpected,
            "hidden": run(model.base_model, torch.load(folder / "inputs.pt"))[0],
        }

try:
    transformers.AutoModel.from_pretrained(folder, trust_remote_code=False)
except ValueError as error:
    found["untrusted"] = str(error)
torch.save(found, "found.pt")
"""
ONCE_MORE = """
import pathlib, sys, torch
sys.modules["glassformer"] = None
import transformers

found = {}
for name in sys.argv[1:]:
    folder = pathlib.Path("again") / name
    auto_class = getattr(transformers, folder.name.partition("=")[2])
    model = auto_class.from_pretrained(folder, trust_remote_code=True)
    with torch.no_grad():
        results = model(**torch.load(pathlib.Path("saved") / folder.name / "inputs.pt"), use_cache=False)
    found[folder.name] = [value for value in results.values() if torch.is_tensor(value)]
torch.save(found, "found_again.pt")
"""


def example(shape: str) -> dict[str, torch.Tensor]:
    if shape == "pictures":
        return {"pixel_values": torch.randn(B, 2, 12, 12)}
    inputs = {"input_ids": torch.randint(5, V, (B, S))}
    if shape == "encoder-decoder":
        inputs["decoder_input_ids"] = torch.randint(5, V, (B, T))
    return inputs


@pytest.fixture(scope="module")
def models():
    torch.manual_seed(0)
    build = {(shape, auto): getattr(glassformer, HEADS[auto]) for shape, auto in FITTING}
    configs = {shape: tiny_config(shape if shape in SHAPES else "encoder", **options) for shape, options in OPTIONS.items()}
    return {key: head(configs[key[0]]).eval() for key, head in build.items()}


@pytest.fixture(scope="module")
def hub(models, tmp_path_factory):
    """A folder with `saved/<shape>=<Auto class>`."""
    folder = tmp_path_factory.mktemp("hub")
    for (shape, auto_class), model in models.items():
        target = folder / "saved" / f"{shape}={auto_class}"
        model.save_pretrained(target)
        torch.save(example(shape), target / "inputs.pt")
    return folder


@pytest.fixture(scope="module")
def found(hub):
    """What a process that has no glassformer made of these folders."""
    readers = {shape: [auto, *(other for s, other in FITTING if s == shape)] for shape, auto in GENERAL.items()}
    run_python(WITHOUT_THE_PACKAGE, hub, arguments=[json.dumps(readers)])
    return torch.load(hub / "found.pt")


@torch.no_grad()
def run(model, inputs) -> list[torch.Tensor]:
    return [value for value in model(**inputs, use_cache=False).values() if isinstance(value, torch.Tensor)]


def inputs_of(hub: Path, shape: str, auto_class: str) -> dict[str, torch.Tensor]:
    return torch.load(hub / "saved" / f"{shape}={auto_class}" / "inputs.pt")


# What is in the folder


@each_fitting
def test_the_folder_holds_the_code_that_the_model_reaches_and_nothing_else(hub, shape, auto_class):
    folder = hub / "saved" / f"{shape}={auto_class}"
    needed = {"config.json", "model.safetensors", "inputs.pt"}
    if auto_class in ("AutoModelForSeq2SeqLM", "AutoModelForCausalLM"):
        needed.add("generation_config.json")
    waiting = ["modeling_glassformer", "configuration_glassformer"]
    while waiting:
        file = f"{waiting.pop()}.py"
        if file not in needed:
            needed.add(file)
            waiting += relative_imports(folder / file)
    assert {file.name for file in folder.iterdir()} == needed


def test_code_in_the_folder_needs_only_torch_and_transformers(hub):
    required = {"huggingface_hub", "numpy", "safetensors"}  # which transformers cannot be installed without
    allowed = {"torch", "transformers", *required} | sys.stdlib_module_names
    imported = {path.name: absolute_imports(path) for path in (hub / "saved" / "encoder=AutoModel").glob("*.py")}
    assert "torch" in imported["modeling_glassformer.py"]
    assert {file: names - allowed for file, names in imported.items() if names - allowed} == {}


def relative_imports(path: Path) -> list[str]:
    imports = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom) and node.level]
    assert all(node.level == 1 and node.module and "." not in node.module for node in imports)
    return [node.module for node in imports]


def absolute_imports(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = [node.module for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    names += [name.name for node in nodes if isinstance(node, ast.Import) for name in node.names]
    return {name.partition(".")[0] for name in names}


@each_fitting
def test_the_auto_map_names_every_head(hub, shape, auto_class):
    config = json.loads((hub / "saved" / f"{shape}={auto_class}" / "config.json").read_text())
    expected = {auto: f"modeling_glassformer.{name}" for auto, name in HEADS.items()}
    assert config["auto_map"] == {"AutoConfig": "configuration_glassformer.GlassformerConfig", **expected}
    assert config["architectures"] == [HEADS[auto_class]]
    public = {name for name in glassformer.__all__ if name.startswith("GlassformerFor")}
    assert public | {"GlassformerModel"} == set(HEADS.values())


# Where the package is absent


@each_fitting
def test_the_folder_loads_without_the_package(hub, models, found, shape, auto_class):
    result = found[f"{shape}={auto_class}"]
    assert result["class"] == HEADS[auto_class]
    assert result["module"].startswith("transformers_modules.")
    assert result["missing"] == result["unexpected"] == []
    expected = run(models[shape, auto_class], inputs_of(hub, shape, auto_class))
    torch.testing.assert_close(result["outputs"], expected, rtol=0, atol=0)


@each_fitting
def test_one_checkpoint_serves_every_head_of_its_shape(hub, models, found, shape, auto_class):
    saved = GENERAL[shape]
    result = found[shape, auto_class]
    assert result["class"] == HEADS[auto_class]
    assert not any(name.startswith("model.") for name in result["missing"])
    assert bool(result["missing"]) == ("Classification" in auto_class or "QuestionAnswering" in auto_class)
    assert result["unexpected"] == []
    expected = run(models[shape, saved].base_model, inputs_of(hub, shape, saved))[0]
    torch.testing.assert_close(result["hidden"], expected, rtol=0, atol=0)


@each_fitting
def test_what_is_saved_from_there_loads_again(hub, found, shape, auto_class):
    name = f"{shape}={auto_class}"
    torch.testing.assert_close(found[name]["again"], found[name]["outputs"], rtol=0, atol=0)
    saved, again = (
        {file.name: file.read_bytes() for file in (hub / kind / name).iterdir() if file.suffix in (".py", ".json")}
        for kind in ("saved", "again")
    )
    assert saved == again


def test_a_third_process_reads_what_the_second_saved(hub, found):
    names = [f"{shape}={auto_class}" for shape, auto_class in GENERAL.items()]
    run_python(ONCE_MORE, hub, arguments=names)
    once_more = torch.load(hub / "found_again.pt")
    assert list(once_more) == names
    for name, outputs in once_more.items():
        torch.testing.assert_close(outputs, found[name]["outputs"], rtol=0, atol=0)


@pytest.mark.parametrize("shape", ["encoder-decoder", "decoder"])
def test_generation_works_from_remote_code(hub, models, found, shape):
    auto_class = GENERAL[shape]
    result = found[f"{shape}={auto_class}"]
    ids = inputs_of(hub, shape, auto_class)["input_ids"]
    assert result["tied"]
    assert torch.equal(result["generated"], models[shape, auto_class].generate(ids, max_new_tokens=4, num_beams=2))


def test_code_is_not_run_without_consent(found):
    assert "trust_remote_code=True" in found["untrusted"]


# Where it is present


@each_fitting
@pytest.mark.parametrize("kind", ["saved", "again"])
def test_with_the_package_no_trust_is_needed(hub, models, found, shape, auto_class, kind):
    model = getattr(transformers, auto_class).from_pretrained(hub / kind / f"{shape}={auto_class}")
    assert type(model) is getattr(glassformer, HEADS[auto_class])
    inputs = inputs_of(hub, shape, auto_class)
    torch.testing.assert_close(run(model, inputs), run(models[shape, auto_class], inputs), rtol=0, atol=0)


def test_the_package_wins_over_the_code_in_the_folder(hub):
    model = transformers.AutoModel.from_pretrained(hub / "saved" / "encoder=AutoModel", trust_remote_code=True)
    assert type(model) is glassformer.GlassformerModel
