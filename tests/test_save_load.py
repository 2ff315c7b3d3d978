"""What is saved comes back: weights, ties, tables that are not saved, sizes, and the zero row of the pad token."""

import copy
import inspect
import json
import pickle

import pytest
import torch
from models import LANGUAGE_MODELS, SHAPES, VARIANTS, B, S, T, V, tiny_config, tiny_language_model
from processes import run_python
from safetensors.torch import load_file, save_file

import glassformer


CLASSIFIERS = ["GlassformerForSequenceClassification", "GlassformerForTokenClassification", "GlassformerForQuestionAnswering"]
HEADS = [
    *[("GlassformerModel", shape) for shape in SHAPES],
    *[(name, shape) for shape, name in LANGUAGE_MODELS.items()],
    *[(name, shape) for name in CLASSIFIERS for shape in ("encoder", "decoder")],
]
# The three matrices of an encoder-decoder, and which of them are one.
TYING = {
    "three-way": {"embedding_tying": "three-way"},
    "target-output": {"embedding_tying": "target-output"},
    "source-target": {"embedding_tying": "source-target"},
    "untied": {"tie_word_embeddings": False},
}
TIED_PAIRS = {
    "three-way": {"source=target", "target=output", "source=output"},
    "target-output": {"target=output"},
    "source-target": {"source=target"},
    "untied": set(),
}
# Of the VARIANTS those that differ in their weights or tables.
STORED_DIFFERENTLY = ["paper", "default", "modern", "learned", "alibi", "relative", "mixed"]

each_head = pytest.mark.parametrize("head, shape", HEADS, ids=[f"{name[11:]}-{shape}" for name, shape in HEADS])
each_language_model = pytest.mark.parametrize("shape", SHAPES)
each_tying = pytest.mark.parametrize("tying", TYING)


def build(head: str, shape: str, **overrides):
    return scramble(getattr(glassformer, head)(tiny_config(shape, **overrides)).eval())


def scramble(model):
    """No weight keeps a value that it would also get without being loaded, such as the ones of a norm."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.3)
        for module in model.modules():
            if getattr(module, "padding_idx", None) is not None:
                module.weight[module.padding_idx] = 0
    return model


def example(config, vocab_size: int = V) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    inputs = {"input_ids": torch.randint(5, vocab_size, (B, S), generator=draw)}
    if config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.randint(5, vocab_size, (B, T), generator=draw)
    return inputs


@torch.no_grad()
def outputs(model, **inputs) -> list[torch.Tensor]:
    """Logits, start and end logits, or hidden states."""
    results = model(**(inputs or example(model.config)), use_cache=False)
    return [value for value in results.values() if isinstance(value, torch.Tensor)]


def assert_same_outputs(model, other, **tolerance):
    torch.testing.assert_close(outputs(model), outputs(other), **(tolerance or {"rtol": 0, "atol": 0}))


def tied_pairs(model) -> set[str]:
    tables = {
        "source": model.model.encoder.embed_tokens.weight,
        "target": model.model.decoder.embed_tokens.weight,
        "output": model.lm_head.weight,
    }
    pairs = [("source", "target"), ("target", "output"), ("source", "output")]
    return {f"{a}={b}" for a, b in pairs if tables[a].data_ptr() == tables[b].data_ptr()}


def load(model_class, folder, missing: set[str] = frozenset(), unexpected: set[str] = frozenset(), **kwargs):
    """The loaded model, which has to report exactly these keys."""
    model, report = model_class.from_pretrained(folder, output_loading_info=True, **kwargs)
    assert report["missing_keys"] == missing and report["unexpected_keys"] == unexpected
    assert not report["mismatched_keys"] and not report["error_msgs"]
    return model


# Every model, every choice


@each_head
@pytest.mark.parametrize("variant", STORED_DIFFERENTLY)
def test_a_saved_model_comes_back_bit_for_bit(head, shape, variant, tmp_path):
    model = build(head, shape, **VARIANTS[variant])
    model.save_pretrained(tmp_path)
    assert [file.name for file in tmp_path.iterdir() if file.suffix in (".safetensors", ".bin")] == ["model.safetensors"]
    loaded = load(type(model), tmp_path)
    assert not loaded.training
    assert_same_outputs(loaded, model)


@pytest.mark.parametrize("variant", STORED_DIFFERENTLY)
def test_a_state_dict_fills_another_model(variant):
    model = scramble(tiny_language_model(**VARIANTS[variant]))
    other = scramble(tiny_language_model(**VARIANTS[variant]))
    assert not torch.equal(outputs(model)[0], outputs(other)[0])
    other.load_state_dict(model.state_dict())
    assert_same_outputs(other, model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("num_heads", [4, 12], ids=["4heads", "12heads"])
@pytest.mark.parametrize("encoding", ["rope", "alibi"])
def test_tables_that_are_not_saved_are_made_again(encoding, num_heads, dtype, tmp_path):
    model = build("GlassformerModel", "encoder-decoder", position_encoding=encoding, num_heads=num_heads)
    model.save_pretrained(tmp_path)
    tables = dict(model.named_buffers())
    assert tables and not set(tables) & set(load_file(tmp_path / "model.safetensors"))
    loaded = dict(load(type(model), tmp_path, dtype=dtype).named_buffers())
    assert loaded.keys() == tables.keys()
    for name, table in tables.items():
        torch.testing.assert_close(loaded[name], table.to(loaded[name].dtype), rtol=0, atol=0)


# Ties


def test_tied_weights_are_one_tensor_in_a_new_process(tmp_path):
    for tying, choice in TYING.items():
        model = scramble(tiny_language_model(**choice))
        assert tied_pairs(model) == TIED_PAIRS[tying]
        model.save_pretrained(tmp_path / tying)
        stored = load_file(tmp_path / tying / "model.safetensors")
        assert sum("embed_tokens" in name or "lm_head" in name for name in stored) == {0: 3, 1: 2, 3: 1}[len(TIED_PAIRS[tying])]
        torch.save({"inputs": example(model.config), "logits": outputs(model)[0]}, tmp_path / tying / "expected.pt")
    found = run_python(
        inspect.getsource(tied_pairs)
        + """
import json, pathlib, torch
from glassformer import GlassformerForConditionalGeneration

found = {}
for folder in pathlib.Path().glob("*/model.safetensors"):
    folder = folder.parent
    model = GlassformerForConditionalGeneration.from_pretrained(folder)
    expected = torch.load(folder / "expected.pt")
    equal = torch.equal(model(**expected["inputs"]).logits, expected["logits"])
    copies = {id(weight) for weight in model.parameters()}
    found[folder.name] = [sorted(tied_pairs(model)), equal, len(copies) == len(list(model.parameters()))]
print(json.dumps(found))
""",
        tmp_path,
    )
    assert json.loads(found) == {tying: [sorted(pairs), True, True] for tying, pairs in TIED_PAIRS.items()}


@each_tying
@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_a_copy_has_its_own_weights_and_the_same_ties(how, tying):
    model = scramble(tiny_language_model(position_encoding="rope", **TYING[tying]))
    before = outputs(model)
    copied = copy.deepcopy(model) if how == "deepcopy" else pickle.loads(pickle.dumps(model))
    assert tied_pairs(copied) == TIED_PAIRS[tying]
    assert_same_outputs(copied, model)
    scramble(copied)
    assert not torch.equal(outputs(copied)[0], before[0])
    torch.testing.assert_close(outputs(model), before, rtol=0, atol=0)


# Between head and bare model


PAIRS = [
    *[(name, shape, tying) for shape, name in LANGUAGE_MODELS.items() for tying in TYING],
    *[(name, shape, "three-way") for name, shape in HEADS if name in CLASSIFIERS],
]


@pytest.mark.parametrize("head, shape, tying", PAIRS, ids=[f"{name[11:]}-{shape}-{tying}" for name, shape, tying in PAIRS])
def test_between_head_and_bare_model_only_the_head_is_lost(head, shape, tying, tmp_path):
    model = build(head, shape, **TYING[tying])
    own = {name for name in model.state_dict() if not name.startswith("model.")}
    if tying in ("three-way", "target-output"):
        own -= {"lm_head.weight"}  # a table that the bare model has
    model.save_pretrained(tmp_path / "head")
    bare = load(glassformer.GlassformerModel, tmp_path / "head", unexpected=own)
    assert_same_outputs(bare, model.model)

    bare.save_pretrained(tmp_path / "bare")
    again = load(type(model), tmp_path / "bare", missing=own)
    assert_same_outputs(again.model, model.model)
    fresh = {name: weight for name, weight in again.state_dict().items() if name in own}
    assert all(weight.isfinite().all() and weight.any() == name.endswith("weight") for name, weight in fresh.items())
    if not own:
        assert_same_outputs(again, model)


# Files, dtypes, devices


@each_tying
def test_shards_come_back_as_one_model(tying, tmp_path):
    model = scramble(tiny_language_model(**TYING[tying]))
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 3
    loaded = load(type(model), tmp_path)
    assert tied_pairs(loaded) == TIED_PAIRS[tying]
    assert_same_outputs(loaded, model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("variant", ["default", "modern", "alibi", "relative"])
def test_casting_a_model_is_loading_it_in_that_dtype(variant, dtype, tmp_path):
    model = scramble(tiny_language_model(**VARIANTS[variant]))
    model.save_pretrained(tmp_path)
    loaded = load(type(model), tmp_path, dtype=dtype)
    assert {weight.dtype for weight in loaded.parameters()} == {dtype} == {loaded.dtype}
    assert outputs(loaded)[0].dtype == dtype
    assert_same_outputs(loaded, model.to(dtype))


def test_a_model_is_loaded_in_the_dtype_in_which_it_was_saved(tmp_path):
    model = scramble(tiny_language_model()).to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"
    loaded = load(type(model), tmp_path)
    assert loaded.dtype == torch.bfloat16
    assert_same_outputs(loaded, model)


@pytest.mark.parametrize("variant", ["default", "modern", "alibi", "relative"])
def test_a_device_map_changes_nothing(variant, tmp_path):
    model = scramble(tiny_language_model(**VARIANTS[variant]))
    model.save_pretrained(tmp_path)
    some = sum(4 * weight.numel() for weight in model.parameters()) // 2
    placements = {
        "cpu": {"device_map": "cpu"},
        "auto": {"device_map": "auto"},
        "some on disk": {"device_map": "auto", "max_memory": {"cpu": some}},
        "all on disk": {"device_map": {"": "disk"}},
    }
    for name, placement in placements.items():
        loaded = load(type(model), tmp_path, offload_folder=tmp_path / "offload", **placement)
        on_disk = {weight.device.type for weight in loaded.parameters()}
        assert ("meta" in on_disk) == ("disk" in name), name
        assert_same_outputs(loaded, model)


# Another vocabulary


@pytest.mark.parametrize("size", [V + 6, V - 6], ids=["up", "down"])
@each_tying
def test_all_three_tables_follow_a_resize(tying, size, tmp_path):
    model = scramble(tiny_language_model(**TYING[tying]))
    old = {name: weight.clone() for name, weight in model.state_dict().items() if "embed_tokens" in name or "lm_head" in name}
    model.resize_token_embeddings(size)
    tables = {name: weight for name, weight in model.state_dict().items() if name in old}
    assert {name: len(table) for name, table in tables.items()} == dict.fromkeys(old, size)
    kept = min(size, V)
    for name, table in tables.items():
        torch.testing.assert_close(table[:kept], old[name][:kept], rtol=0, atol=0)
    assert tied_pairs(model) == TIED_PAIRS[tying]
    assert model.config.vocab_size == model.lm_head.out_features == size

    last = torch.full((B, T), size - 1)
    logits = outputs(model, input_ids=last, decoder_input_ids=last)[0]
    assert logits.shape == (B, T, size) and logits.isfinite().all()
    with pytest.raises(ValueError, match=f"vocabulary has {size} tokens"):
        model(last + 1, decoder_input_ids=last)

    model.save_pretrained(tmp_path)
    loaded = load(type(model), tmp_path)
    assert torch.equal(outputs(loaded, input_ids=last, decoder_input_ids=last)[0], logits)


@each_tying
@pytest.mark.parametrize("around_the_mean", [True, False], ids=["mean", "random"])
def test_new_rows_begin_in_every_table_as_asked(tying, around_the_mean):
    model = tiny_language_model(**TYING[tying])
    model.resize_token_embeddings(V + 6, mean_resizing=around_the_mean)
    for name, table in model.state_dict().items():
        if "embed_tokens" in name or "lm_head" in name:
            assert (table[V:].std(0).mean() < 1e-3) == around_the_mean, name


@each_head
def test_every_model_can_be_resized(head, shape):
    for choice in TYING.values():
        model = build(head, shape, **choice)
        model.resize_token_embeddings(V + 6)
        inputs = example(model.config, vocab_size=V + 6)
        inputs = {name: ids.index_fill(1, torch.tensor(0), V + 5) for name, ids in inputs.items()}
        assert all(output.isfinite().all() for output in outputs(model, **inputs))
        assert model.config.vocab_size == V + 6
        stacks = [stack for stack in (model.base_model.encoder, model.base_model.decoder) if stack is not None]
        assert {len(stack.embed_tokens.weight) for stack in stacks} == {V + 6}
        assert {stack.embed_tokens.num_embeddings for stack in stacks} == {V + 6}


# The pad token


def pad_rows(model) -> list[torch.Tensor]:
    stacks = [stack for stack in (model.model.encoder, model.model.decoder) if stack is not None]
    return [stack.embed_tokens.weight[model.config.pad_token_id] for stack in stacks]


def train(model, steps: int, **options) -> None:
    """Pad tokens are read, and their logits are in every softmax."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    inputs = example(model.config)
    inputs["input_ids"][:, -2:] = model.config.pad_token_id
    labels = inputs.get("decoder_input_ids", inputs["input_ids"])
    for _ in range(steps):
        optimizer.zero_grad()
        model(**inputs, labels=labels, **options).loss.backward()
        optimizer.step()


@each_language_model
@each_tying
@pytest.mark.parametrize("pad_token_id", [0, 5])
def test_the_pad_row_is_zero_from_the_start(shape, tying, pad_token_id):
    model = tiny_language_model(shape, pad_token_id=pad_token_id, **TYING[tying])
    for row in pad_rows(model):
        assert row.eq(0).all()
    for stack in (model.model.encoder, model.model.decoder):
        assert stack is None or stack.embed_tokens.weight.eq(0).all(1).sum() == 1


@each_language_model
@each_tying
def test_the_pad_row_is_zero_where_embeddings_are_missing_from_the_file(shape, tying, tmp_path):
    model = scramble(tiny_language_model(shape, **TYING[tying]))
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    kept = {name: weight for name, weight in load_file(file).items() if "embed_tokens" not in name and "lm_head" not in name}
    save_file(kept, file, metadata={"format": "pt"})
    loaded, report = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert any("embed_tokens" in name for name in report["missing_keys"])
    for row in pad_rows(loaded):
        assert row.eq(0).all()
    assert outputs(loaded)[0].isfinite().all()


@each_tying
def test_a_pad_row_that_was_trained_elsewhere_is_loaded_as_it_is(tying, tmp_path):
    model = tiny_language_model(**TYING[tying])
    with torch.no_grad():
        for row in pad_rows(model):
            row.fill_(0.5)
    model.save_pretrained(tmp_path)
    for row in pad_rows(load(type(model), tmp_path)):
        assert row.eq(0.5).all()


@each_language_model
@each_tying
@pytest.mark.parametrize("options", [{}, {"return_logits": False}], ids=["logits", "chunks"])
def test_the_pad_row_stays_zero_in_training(shape, tying, options):
    model = tiny_language_model(shape, label_smoothing=0.1, **TYING[tying]).train()
    train(model, 1, **options)
    for stack in (model.model.encoder, model.model.decoder):
        gradient = None if stack is None else stack.embed_tokens.weight.grad
        assert gradient is None or (gradient.any() and not gradient[0].any())
    train(model, 4, **options)
    for row in pad_rows(model):
        assert row.eq(0).all()


@each_language_model
@each_tying
def test_the_pad_row_stays_zero_in_training_after_a_resize_and_a_reload(shape, tying, tmp_path):
    model = tiny_language_model(shape, **TYING[tying])
    model.resize_token_embeddings(V + 6)
    model.save_pretrained(tmp_path)
    for trained in (model.train(), load(type(model), tmp_path).train()):
        train(trained, 3)
        for row in pad_rows(trained):
            assert row.eq(0).all()


@pytest.mark.filterwarnings("ignore:pad_token_id and eos_token_id are the same")
@pytest.mark.parametrize("pad_token_id", [None, 2], ids=["none", "eos"])
def test_no_row_is_held_at_zero_without_a_token_only_for_padding(pad_token_id, tmp_path):
    model = tiny_language_model("decoder", pad_token_id=pad_token_id)
    assert model.model.decoder.embed_tokens.weight.abs().sum(1).gt(0).all()
    model.train()
    loss = model(torch.tensor([[5, 2, 6]]), labels=torch.tensor([[5, 2, 6]])).loss
    loss.backward()
    assert model.lm_head.weight.grad.abs().sum(1).gt(0).all()
    model.save_pretrained(tmp_path)
    assert_same_outputs(load(type(model), tmp_path), model.eval())
