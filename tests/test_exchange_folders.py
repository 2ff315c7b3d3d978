"""From folder to folder: what travels along, what is refused, that nothing is left half done, and who can load the result."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from models import tiny_config, tiny_language_model
from native_models import batch_for, native_model, outputs_of
from processes import run_python
from safetensors.torch import load_file, save_file
from test_cli import call
from test_exchange import same_weights
from tokenizer import word_tokenizer
from tokenizers import Tokenizer, models

import glassformer
from glassformer.exchange.convert import export_folder, import_folder, to_native, to_ours
from glassformer.exchange.families import FAMILIES


# Of small random models of these families, most start otherwise than CTranslate2 would
pytestmark = pytest.mark.filterwarnings("ignore:CTranslate2")


@pytest.fixture
def said(capsys):
    """Call a command -> the sentence that it ends with; it must end badly and leave no new file behind."""

    def said(folder: Path, *arguments) -> str:
        before = sorted(folder.rglob("*"))
        assert call(*arguments) == 1
        assert sorted(folder.rglob("*")) == before
        error = capsys.readouterr().err.strip().splitlines()[-1]
        assert error.startswith("glassformer: ") and "Traceback" not in error
        return error

    return said


def save(model, folder: Path, **options) -> Path:
    model.save_pretrained(folder, **options)
    return folder


# What travels


@pytest.mark.parametrize("name", ["gpt2", "bert-sequences", "marian", "t5-v1.1"])
def test_there_and_back_on_the_command_line(name, tmp_path, capsys):
    native = native_model(name)
    if native.can_generate():
        native.generation_config.update(num_beams=3, max_new_tokens=7, length_penalty=0.6)
    theirs = save(native, tmp_path / "theirs", max_shard_size="4KB")
    assert len(list(theirs.glob("*.safetensors"))) > 1
    word_tokenizer().save_pretrained(theirs)

    assert call("import", theirs, tmp_path / "ours") == 0
    assert call("export", tmp_path / "ours", "--to", native.config.model_type, tmp_path / "back") == 0
    assert f"{tmp_path / 'back'}: {type(native).__name__}" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "ours", "theirs"]

    ours = transformers.AutoModel.from_pretrained(tmp_path / "ours")
    assert type(ours).__name__ == "GlassformerModel"
    back = type(native).from_pretrained(tmp_path / "back")
    same_weights(native, back)
    for folder in ("ours", "back"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / folder)
        assert tokenizer("the lamp breaks").input_ids == word_tokenizer()("the lamp breaks").input_ids
    if native.can_generate():
        for folder in ("ours", "back"):
            settings = transformers.GenerationConfig.from_pretrained(tmp_path / folder)
            assert (settings.num_beams, settings.max_new_tokens, settings.length_penalty) == (3, 7, 0.6)
    else:
        assert back.config.id2label == native.config.id2label
    assert not list((tmp_path / "back").glob("*.py")) and "auto_map" not in back.config.to_dict()


def test_pictures_go_there_and_back_with_their_image_processor(tmp_path, capsys):
    native = native_model("vit", num_channels=3, id2label={0: "lamp", 1: "pane", 2: "prism"})
    theirs = save(native, tmp_path / "theirs")
    processor = transformers.ViTImageProcessorPil(size={"height": 12, "width": 12}, image_mean=[0.1, 0.2, 0.3])
    processor.save_pretrained(theirs)
    told = json.loads((theirs / "preprocessor_config.json").read_text())
    told.pop("image_processor_type")  # as in older folders, where the model's own is meant
    (theirs / "preprocessor_config.json").write_text(json.dumps(told))

    assert call("import", theirs, tmp_path / "ours", "--head", "image-classification") == 0
    assert call("export", tmp_path / "ours", "--to", "vit", tmp_path / "back") == 0
    assert f"{tmp_path / 'back'}: ViTForImageClassification" in capsys.readouterr().out
    same_weights(native, transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "back"))
    for folder in ("ours", "back"):
        classify = transformers.pipeline("image-classification", model=str(tmp_path / folder))
        assert classify.model.config.id2label == native.config.id2label
        assert classify.image_processor.to_dict() == processor.to_dict()
    assert not list((tmp_path / "back").glob("*.py"))

    (theirs / "preprocessor_config.json").write_text("{")
    assert call("import", theirs, tmp_path / "again") == 1
    assert "The image processor of" in capsys.readouterr().err and not (tmp_path / "again").exists()


def test_the_second_tokenizer_of_a_pair_travels_too(tmp_path):
    folder = save(glassformer.from_hf(native_model("marian")), tmp_path / "ours")
    word_tokenizer().save_pretrained(folder)
    word_tokenizer().save_pretrained(folder / "target_tokenizer")
    export_folder(folder, "marian", tmp_path / "native")
    assert (tmp_path / "native" / "target_tokenizer" / "tokenizer.json").exists()


def test_another_head_can_be_asked_for(tmp_path):
    theirs = save(native_model("gpt2"), tmp_path / "theirs")
    model = import_folder(theirs, tmp_path / "ours", head="model")
    assert type(model).__name__ == "GlassformerModel"


PLAIN_LOADING = """
import json, sys
from pathlib import Path

class Absent:
    def find_spec(self, name, *rest):
        if name.partition(".")[0] == "glassformer":
            raise ImportError(name)

sys.meta_path.insert(0, Absent())
import torch, transformers
from safetensors.torch import load_file, save_file

for folder, auto_class in json.loads(sys.argv[1]).items():
    folder = Path(folder)
    model = getattr(transformers, auto_class).from_pretrained(folder)
    assert not type(model).__module__.startswith("transformers_modules")
    with torch.no_grad():
        save_file({"logits": model(**load_file(folder / "batch")).logits.contiguous()}, folder / "answer")
"""


def test_an_export_loads_where_our_code_is_absent(tmp_path):
    expected, classes = {}, {}
    for name in ("gpt2", "bert", "marian", "t5"):
        model, folder = glassformer.from_hf(native_model(name)), tmp_path / name
        export_folder(save(model, tmp_path / f"{name}-ours"), name, folder)
        batch = batch_for(native_model(name))
        save_file(batch, folder / "batch")
        expected[folder] = outputs_of(model, batch)[0]
        classes[str(folder)] = {"bert": "AutoModelForMaskedLM", "gpt2": "AutoModelForCausalLM"}.get(name, "AutoModelForSeq2SeqLM")
    run_python(PLAIN_LOADING, tmp_path, [json.dumps(classes)])
    for folder, logits in expected.items():
        answer, batch = load_file(folder / "answer")["logits"], load_file(folder / "batch")
        if "decoder_input_ids" not in batch:
            answer = answer[batch["attention_mask"].bool()]
        torch.testing.assert_close(answer, logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("convert", ["import", "export"])
def test_every_tensor_is_let_go_when_it_has_been_converted(convert):
    native = native_model("gpt2")
    ours = glassformer.from_hf(native)
    source = native if convert == "import" else ours
    result = to_ours(native, release=True) if convert == "import" else to_native(ours, FAMILIES["gpt2"], release=True)
    assert all(weight.is_meta for weight in source.parameters())
    assert not any(weight.is_meta for weight in result.parameters())


PEAK = """
import sys, threading, time
from pathlib import Path
from glassformer.exchange import convert

def private() -> int:
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon")) * 1024

def watch() -> None:
    while not done.is_set():
        peaks.append(private())
        time.sleep(0.002)

before, peaks, done = private(), [], threading.Event()
watcher = threading.Thread(target=watch)
watcher.start()
if sys.argv[1] == "import":
    convert.import_folder(*sys.argv[2:])
else:
    convert.export_folder(sys.argv[2], "llama", sys.argv[3])
done.set()
watcher.join()
print(max(peaks) - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux, which tells how much memory is used")
def test_there_is_never_more_in_memory_than_the_model_and_a_shard(tmp_path):
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 5, "vocab_size": 4000}
    model, shard = native_model("llama", **sizes), 16 * 2**20
    whole = sum(weight.nbytes for weight in model.parameters())
    save(model, tmp_path / "theirs", max_shard_size=shard)
    assert whole > 5 * shard
    for command, source, target in (("import", "theirs", "ours"), ("export", "ours", "back")):
        peak = int(run_python(PEAK, tmp_path, [command, str(tmp_path / source), str(tmp_path / target)]).splitlines()[-1])
        assert 0.9 * whole < peak < whole + shard
    same_weights(model, type(model).from_pretrained(tmp_path / "back"))


def test_models_in_memory_share_nothing():
    native = native_model("llama-tied")
    ours = glassformer.from_hf(native)
    back = glassformer.to_hf(ours)
    places = [{weight.data_ptr() for weight in model.parameters()} for model in (native, ours, back)]
    assert not places[0] & places[1] and not places[1] & places[2]


def test_the_dtype_stays():
    native = native_model("bert").to(torch.bfloat16)
    ours = glassformer.from_hf(native)
    assert ours.dtype == ours.config.dtype == torch.bfloat16
    same_weights(glassformer.to_hf(ours), native)


# What is refused


def test_an_export_that_does_not_fit_is_refused_with_every_reason(tmp_path, said):
    folder = save(tiny_language_model("decoder", qk_norm=True, num_kv_heads=2), tmp_path / "ours")
    error = said(tmp_path, "export", folder, "--to", "gpt2", tmp_path / "out")
    for reason in (
        "qk_norm=True, needs False", "num_kv_heads=2, needs 4", "position_encoding=sinusoidal, needs learned",
        "scale_embedding=True, needs False",
    ):  # fmt: skip
        assert reason in error
    assert "d_model" not in error and "dropout" not in error
    assert "shape=decoder, needs encoder" in said(tmp_path, "export", folder, "--to", "bert", tmp_path / "out")


def test_without_a_target_export_says_what_fits(tmp_path, capsys):
    folder = save(glassformer.from_hf(native_model("llama")), tmp_path / "ours")
    assert call("export", folder) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["llama", "fits", "LlamaForCausalLM"]
    assert {line.split()[0] for line in lines if not line.startswith(" ")} == set(FAMILIES)
    start = next(i for i, line in enumerate(lines) if line.startswith("qwen3"))
    assert lines[start].split(maxsplit=2) == ["qwen3", "no", "qk_norm=False, needs True"]


IMPORTS = {
    "inverse-layer": ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True, needs False"),
    "two-widths": ("bart", {"decoder_ffn_dim": 56}, "encoder_ffn_dim=40 and decoder_ffn_dim=56 differ, but d_ff is one"),
    "two-kinds-of-layers": (
        "qwen2", {"use_sliding_window": True, "max_window_layers": 1},
        "layer_types are full_attention and sliding_attention, needs one of them",
    ),
    "decoder-bert": ("bert", {"is_decoder": True}, "is_decoder=True, needs False"),
    "activation-of-a-head": ("roberta", {"hidden_act": "relu"}, "hidden_act=relu, needs gelu in RobertaForMaskedLM"),
    "two-activations": (
        "modernbert", {"classifier_activation": "relu"},
        "hidden_activation=gelu and classifier_activation=relu differ, but activation is one",
    ),
    "window-of-one": ("modernbert", {"local_attention": 1}, "local_attention=1, needs 2 or more"),
    "two-vocabularies": (
        "marian", {"decoder_vocab_size": 40, "share_encoder_decoder_embeddings": False},
        "vocab_size=31 and decoder_vocab_size=40 differ",
    ),
    "oblong": ("vit", {"image_size": [12, 8]}, "image_size=[12, 8], needs a square"),
    "oblong-patches": ("vit", {"patch_size": [4, 3]}, "patch_size=[4, 3], needs a square"),
    "uncovered": ("vit", {"patch_size": 5}, "image_size=12 is not divisible by patch_size=5"),
    "half-shared": ("marian", {"tie_word_embeddings": False}, "share_encoder_decoder_embeddings=True with tie_word"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "options", "reason"), IMPORTS.values(), ids=IMPORTS)
def test_an_import_that_does_not_fit_is_refused_with_the_reason(name, options, reason, tmp_path, said):
    native = native_model(name, **options)
    with pytest.raises(ValueError, match=f"This {name} does not fit glassformer"):
        glassformer.from_hf(native)
    assert reason in said(tmp_path, "import", save(native, tmp_path / "theirs"), tmp_path / "out")


def test_a_head_that_we_do_not_have_is_refused(tmp_path, said):
    config = native_model("gpt2").config
    theirs = save(transformers.GPT2DoubleHeadsModel(config), tmp_path / "theirs")
    error = said(tmp_path, "import", theirs, tmp_path / "out")
    assert "GPT2DoubleHeadsModel" in error and "causal-lm (GPT2LMHeadModel)" in error
    assert "has no head 'poetry'" in said(tmp_path, "import", theirs, tmp_path / "out", "--head", "poetry")
    bare = save(native_model("bert-bare"), tmp_path / "bare")
    error = said(tmp_path, "import", bare, tmp_path / "out", "--head", "masked-lm")
    assert "has no weights for cls.predictions." in error and "choose the head that it was saved with" in error
    with pytest.raises(ValueError, match="has a head already"):
        glassformer.from_hf(native_model("gpt2"), head="model")


def test_a_vit_that_hides_patches_is_refused_or_read_without_that(tmp_path, said):
    config = native_model("vit").config
    with pytest.raises(ValueError, match=r"there is no place for: embeddings\.mask_token"):
        glassformer.from_hf(transformers.ViTModel(config, use_mask_token=True))
    painter = transformers.ViTForMaskedImageModeling(config)
    error = said(tmp_path, "import", save(painter, tmp_path / "theirs"), tmp_path / "out")
    assert "ViTForMaskedImageModeling" in error and "model (ViTModel), image-classification" in error
    ours, batch = glassformer.from_hf(tmp_path / "theirs", head="model"), batch_for(painter)
    torch.testing.assert_close(outputs_of(ours, batch), outputs_of(painter.vit.eval(), batch), rtol=0, atol=1e-5)


def test_a_square_may_be_told_by_two_numbers():
    config = glassformer.from_hf(native_model("vit-bare", image_size=[12, 12], patch_size=[4, 4])).config
    assert (config.image_size, config.patch_size) == (12, 4)


def test_the_pooler_of_a_bare_vit_is_left_behind():
    native = transformers.ViTModel(native_model("vit-bare").config).eval()
    ours, batch = glassformer.from_hf(native), batch_for(native)
    torch.testing.assert_close(outputs_of(ours, batch), outputs_of(native, batch), rtol=0, atol=1e-5)


def test_what_reads_text_does_not_fit_what_reads_pictures_nor_the_other_way_round():
    pictures, text = (glassformer.from_hf(native_model(name)) for name in ("vit-bare", "bert-bare"))
    with pytest.raises(ValueError, match="does not fit bert: image_size=12, needs None"):
        glassformer.to_hf(pictures, to="bert")
    with pytest.raises(ValueError, match=r"does not fit vit: .*image_size=None, needs the size of pictures"):
        glassformer.to_hf(text, to="vit")


def test_weights_that_cannot_be_read_are_refused(tmp_path, said):
    theirs = save(native_model("gpt2"), tmp_path / "theirs")
    (theirs / "model.safetensors").write_bytes(b"nothing")
    assert "The weights of" in said(tmp_path, "import", theirs, tmp_path / "out")
    (theirs / "model.safetensors").unlink()
    assert "cannot be read" in said(tmp_path, "import", theirs, tmp_path / "out")
    ours = glassformer.from_hf(native_model("gpt2"))
    (save(ours, tmp_path / "ours") / "model.safetensors").unlink()
    assert "cannot be read" in said(tmp_path, "export", tmp_path / "ours", "--to", "gpt2", tmp_path / "out")
    with pytest.raises(ValueError, match="not in eight bits"):
        glassformer.to_hf(glassformer.quantize_int8(ours), to="gpt2")
    with pytest.raises(ValueError, match="is no glassformer"):
        glassformer.to_hf(native_model("gpt2"), to="gpt2")


def test_weights_that_are_not_all_there_are_refused_and_not_made_up(tmp_path, said):
    def with_config(folder: Path, **changes) -> Path:
        told = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**told, **changes}))
        return folder

    native = native_model("gpt2")
    theirs, ours = save(native, tmp_path / "theirs"), save(glassformer.from_hf(native), tmp_path / "ours")
    out = tmp_path / "new" / "out"
    error = said(tmp_path, "import", with_config(theirs, n_layer=3), out)
    assert "has no weights for transformer.h.2.attn.c_attn.bias, " in error and "and 9 more: " in error
    with_config(ours, num_decoder_layers=3)
    for to in ("gpt2", "torch"):
        assert "has no weights for model.decoder.layers.2." in said(tmp_path, "export", ours, "--to", to, out)
    error = said(tmp_path, "import", with_config(theirs, n_layer=2, n_positions=41), out)
    assert "transformer.wpe.weight" in error and "is [40, 24], but [41, 24] by its config.json" in error


CONFIGS = {
    "rope-type": ("llama", {"rope_parameters": {"rope_type": "spiral", "rope_theta": 1e4}}, "rope_type='spiral' is unknown"),
    "rope-factor": ("llama", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "cannot be read: Missing required"),
    "activation": ("gpt2", {"activation_function": "wow"}, "activation='wow' is unknown"),
    "heads": ("gpt2", {"n_head": 5}, "d_model=24 is not divisible by num_heads=5"),
    "type": ("gpt2", {"n_head": "4"}, "cannot be read: Validation error for field"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "changes", "reason"), CONFIGS.values(), ids=CONFIGS)
def test_a_config_that_makes_no_model_is_refused(name, changes, reason, tmp_path, said):
    theirs = save(native_model(name), tmp_path / "theirs")
    told = json.loads((theirs / "config.json").read_text())
    (theirs / "config.json").write_text(json.dumps({**told, **changes}))
    assert reason in said(tmp_path, "import", theirs, tmp_path / "out")


@pytest.mark.parametrize(("told", "reason"), [("{", "not a valid JSON file"), ("{}", "Unrecognized model")])
def test_a_config_that_is_none_is_refused(told, reason, tmp_path, said):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "config.json").write_text(told)
    for command in ("import", "export"):
        error = said(tmp_path, command, tmp_path / "folder", *(["--to", "gpt2"] if command == "export" else []), tmp_path / "out")
        assert "The config of" in error and reason in error


def test_two_matrices_that_should_be_one_are_refused():
    native = native_model("gpt2")
    native.lm_head.weight = torch.nn.Parameter(torch.randn_like(native.lm_head.weight))
    with pytest.raises(ValueError, match=r"lm_head\.weight and transformer\.wte\.weight are one matrix by the config, but two"):
        glassformer.from_hf(native)


def test_weights_without_a_place_are_refused():
    native = native_model("gpt2")
    native.transformer.h[0].extra = torch.nn.Linear(2, 2)
    with pytest.raises(
        ValueError, match=r"there is no place for: transformer\.h\.0\.extra\.bias, transformer\.h\.0\.extra\.weight"
    ):
        glassformer.from_hf(native)


def test_other_architectures_and_other_folders_are_refused(tmp_path, said):
    ours = save(tiny_language_model(), tmp_path / "ours")
    opt = transformers.OPTConfig(hidden_size=8, num_attention_heads=2, ffn_dim=8, num_hidden_layers=1, word_embed_proj_dim=8)
    opt.save_pretrained(tmp_path / "opt")
    out = tmp_path / "out"
    assert "no way from 'opt'" in said(tmp_path, "import", tmp_path / "opt", out)
    assert "holds a glassformer already" in said(tmp_path, "import", ours, out)
    assert "is no model that transformers knows" in said(tmp_path, "import", tmp_path / "nothing", out)
    assert "There is no architecture 'gpt5'" in said(tmp_path, "export", ours, "--to", "gpt5", out)
    assert "`glassformer import` makes" in said(tmp_path, "export", tmp_path / "opt", "--to", "gpt2", out)
    assert "holds no model" in said(tmp_path, "export", tmp_path / "nothing", "--to", "gpt2", out)
    assert "There is no folder to write to" in said(tmp_path, "export", ours, "--to", "gpt2")
    assert "name an architecture with --to" in said(tmp_path, "export", ours, out)
    tiny_config().save_pretrained(tmp_path / "headless")
    assert "does not say which head" in said(tmp_path, "export", tmp_path / "headless")
    with pytest.raises(ValueError, match="fits no native architecture"):
        glassformer.to_hf(tiny_language_model(logit_softcap=3.0))


def test_a_folder_with_something_in_it_is_not_touched(tmp_path, said, monkeypatch):
    theirs = save(native_model("gpt2"), tmp_path / "theirs")
    full, empty = tmp_path / "full", tmp_path / "empty"
    full.mkdir(), empty.mkdir(), (full / "note").write_text("mine")
    assert "not empty" in said(tmp_path, "import", theirs, full)
    assert "not empty" in said(tmp_path, "import", theirs, full / "note")
    assert "cannot be written" in said(tmp_path, "import", theirs, full / "note" / "out")
    monkeypatch.chdir(empty)
    assert "is the folder that you are in" in said(tmp_path, "import", theirs, ".")
    monkeypatch.chdir(tmp_path)
    assert call("import", theirs, empty) == 0 and (empty / "config.json").exists()


def test_a_tokenizer_that_cannot_be_loaded_is_named(tmp_path, said):
    theirs = save(native_model("gpt2"), tmp_path / "theirs")
    (theirs / "tokenizer_config.json").write_text("{")
    assert "The tokenizer of" in said(tmp_path, "import", theirs, tmp_path / "out")


def test_what_fails_half_way_leaves_nothing(tmp_path, monkeypatch):
    theirs = save(native_model("gpt2"), tmp_path / "theirs")

    def fail(*args, **kwargs):
        raise RuntimeError("The disk is full.")

    monkeypatch.setattr("glassformer.exchange.convert.copy_readers", fail)
    with pytest.raises(RuntimeError, match="disk"):
        import_folder(theirs, tmp_path / "ours")
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


# Others that read native folders


@pytest.mark.parametrize("name", ["bert", "modernbert", "llama-bare"])
def test_sentence_transformers_embeds_the_same(name, tmp_path):
    library = pytest.importorskip("sentence_transformers", reason="needs pip install sentence-transformers")
    ours, tokenizer = glassformer.from_hf(native_model(name)), word_tokenizer()
    tokenizer.save_pretrained(save(ours, tmp_path / "ours"))
    export_folder(tmp_path / "ours", name.partition("-")[0], tmp_path / "native")
    texts = ["the lamp breaks", "a window and the light of glass"]
    found = library.SentenceTransformer(str(tmp_path / "native"), device="cpu").encode(texts, convert_to_tensor=True)
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = ours.base_model(batch["input_ids"], batch["attention_mask"]).last_hidden_state
    mean = torch.stack([row[mask.bool()].mean(0) for row, mask in zip(hidden, batch["attention_mask"])])
    assert mean.std() > 0.05
    torch.testing.assert_close(found, mean, rtol=0, atol=1e-5)


def last_is_padding() -> transformers.PreTrainedTokenizerFast:
    """As Marian's tokenizers are: the last token is padding, from which decoding starts."""
    words = ["</s>", "<unk>", "the", "lamp", "glass", "window", "light", "pane", "<pad>"]
    backend = Tokenizer(models.WordLevel({word: token for token, word in enumerate(words)}, unk_token="<unk>"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")


# The start and the end of what is written, where not as in `word_tokenizer`
CT2_OPTIONS = {
    "marian": {"pad_token_id": 8, "decoder_start_token_id": 8, "eos_token_id": 0, "bos_token_id": None},
    "pegasus": {"decoder_start_token_id": 0},
}
IDS = [[5, 6, 7, 4], [4, 3, 7]]


@pytest.fixture
def converted(tmp_path):
    """Bring a native model through ours and an export to CTranslate2 -> ours, the tokenizer, and what CTranslate2 has."""
    ctranslate2 = pytest.importorskip("ctranslate2", reason="needs pip install 'glassformer[benchmark]'")

    def converted(name: str):
        tokenizer = last_is_padding() if name == "marian" else word_tokenizer()
        native = native_model(name, vocab_size=len(tokenizer), **CT2_OPTIONS.get(name, {}))
        native.generation_config.forced_eos_token_id = None
        if name == "marian":  # the start is a zero vector, and is never written
            with torch.no_grad():
                native.model.shared.weight[8], native.final_logits_bias[0, 8] = 0.0, -1e9
        ours = glassformer.from_hf(native)
        tokenizer.save_pretrained(save(ours, tmp_path / "ours"))
        export_folder(tmp_path / "ours", name, tmp_path / "native")
        ctranslate2.converters.TransformersConverter(str(tmp_path / "native")).convert(str(tmp_path / "ct2"))
        kind = ctranslate2.Translator if native.config.is_encoder_decoder else ctranslate2.Generator
        return ours, tokenizer, kind(str(tmp_path / "ct2"))

    return converted


@pytest.mark.filterwarnings("error:CTranslate2")
@pytest.mark.parametrize("name", ["bart", "marian", "pegasus"])
def test_ctranslate2_translates_the_same(name, converted):
    ours, tokenizer, translator = converted(name)
    tokens = [tokenizer.convert_ids_to_tokens(ids) for ids in IDS]
    for beams in (1, 3):
        results = translator.translate_batch(tokens, max_decoding_length=8, beam_size=beams, length_penalty=1)
        for ids, result in zip(IDS, results):
            _, *written = ours.generate(torch.tensor([ids]), num_beams=beams, max_new_tokens=8, do_sample=False)[0].tolist()
            expected = [token for token in written if token != ours.config.eos_token_id]
            assert tokenizer.convert_tokens_to_ids(result.hypotheses[0]) == expected
    start, end = ours.config.decoder_start_token_id, ours.config.eos_token_id
    for ids, target, score in zip(IDS, IDS[::-1], translator.score_batch(tokens, tokens[::-1])):
        with torch.no_grad():
            logits = ours(torch.tensor([ids]), decoder_input_ids=torch.tensor([[start, *target]])).logits
        check_scores(logits, [*target, end], score.log_probs)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_ctranslate2_continues_the_same(name, converted):
    ours, tokenizer, generator = converted(name)
    tokens = [tokenizer.convert_ids_to_tokens(ids) for ids in IDS]
    for beams in (1, 3):
        settings = {"max_length": 8, "beam_size": beams, "length_penalty": 1, "include_prompt_in_result": False}
        for ids, result in zip(IDS, generator.generate_batch(tokens, **settings)):
            written = ours.generate(torch.tensor([ids]), num_beams=beams, max_new_tokens=8, do_sample=False)[0].tolist()
            assert result.sequences_ids[0] == [token for token in written[len(ids) :] if token != ours.config.eos_token_id]
    for ids, score in zip(IDS, generator.score_batch(tokens)):
        with torch.no_grad():
            check_scores(ours(torch.tensor([ids])).logits[:, :-1], ids[1:], score.log_probs)


def check_scores(logits: torch.Tensor, targets: list[int], found: list[float]) -> None:
    """How likely each token is: random models often write one token again and again, which would hide much."""
    expected = logits[0].log_softmax(-1)[range(len(targets)), targets]
    torch.testing.assert_close(torch.tensor(found), expected, rtol=0, atol=1e-4)


def test_an_export_that_others_would_use_wrongly_says_so(tmp_path):
    for name, options, words in (
        ("marian", {}, "drops the last token of a Marian and starts from a vector of zeros"),
        ("marian", {"decoder_start_token_id": 30}, "starts from a vector of zeros"),
        ("pegasus", {}, "this one starts from token 2: for use there, train a model with decoder_start_token_id=0"),
        ("t5", {"num_layers": 1}, "pass it use_cache=False"),
    ):
        folder = tmp_path / f"{name}{len(options)}"
        save(glassformer.from_hf(native_model(name, **options)), folder / "ours")
        with pytest.warns(UserWarning, match=words):
            export_folder(folder / "ours", name, folder / "native")
