"""Bad input is answered by one ValueError, on one line, that names the cause and the cure."""

import functools
import re
from contextlib import contextmanager

import pytest
import torch
from models import SHAPES, B, D, H, K, S, T, V, tiny_config, tiny_language_model
from transformers import AutoModel, AutoModelForCausalLM, BertConfig

import glassformer
from glassformer import (
    GlassformerForCausalLM,
    GlassformerForSequenceClassification,
    GlassformerModel,
    MultiHeadAttention,
    combine_masks,
    scaled_dot_product_attention,
)


# The shapes of config that each class can be built from.
ACCEPTS = {
    "GlassformerModel": ["encoder-decoder", "encoder", "decoder"],
    "GlassformerForConditionalGeneration": ["encoder-decoder"],
    "GlassformerForMaskedLM": ["encoder"],
    "GlassformerForCausalLM": ["decoder"],
    "GlassformerForSequenceClassification": ["encoder", "decoder"],
    "GlassformerForTokenClassification": ["encoder", "decoder"],
    "GlassformerForQuestionAnswering": ["encoder", "decoder"],
}
STACKS = {"Encoder": ["encoder-decoder", "encoder"], "Decoder": ["encoder-decoder", "decoder"]}
MODELS = [(name, shape) for name, shapes in ACCEPTS.items() for shape in shapes]
WITH_TARGET = [(name, shape) for name, shape in MODELS if shape == "encoder-decoder"]


@contextmanager
def refused(*words):
    """Expects one line that has all the words; `input_ids` is not found in `decoder_input_ids`."""
    with pytest.raises(ValueError) as caught:
        yield
    message = str(caught.value)
    assert type(caught.value) is ValueError and "\n" not in message
    for word in words:
        assert re.search(rf"(?<!\w){re.escape(str(word))}", message, re.IGNORECASE), f"{word!r} is not in {message!r}"


@functools.cache
def model_of(name, shape):
    return getattr(glassformer, name)(tiny_config(shape)).eval()


def ids(batch, length):
    return torch.randint(5, V, (batch, length))


def mask(*shape):
    return torch.ones(shape, dtype=torch.bool)


def call(model, **changes):
    """Runs the model on good input, except for what is changed; None leaves an argument out."""
    inputs = {"input_ids": ids(B, S)}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids(B, T)
    return model(**{name: value for name, value in (inputs | changes).items() if value is not None})


# What a model is given


def input_mistakes(prefix, n):
    """Name of a mistake -> changed arguments and words of the message, for the stack whose arguments have this prefix."""
    tokens, embeds, padding = f"{prefix}input_ids", f"{prefix}inputs_embeds", f"{prefix}attention_mask"
    vocabulary = ["vocabulary", f"{V} tokens", "tokenizer", "resize_token_embeddings"]
    return {
        "id-beyond-the-vocabulary": ({tokens: ids(B, n).index_fill(1, torch.tensor(2), V)}, [f"to {V}", *vocabulary]),
        "negative-id": ({tokens: ids(B, n).index_fill(1, torch.tensor(2), -1)}, ["from -1", *vocabulary]),
        "float-ids": ({tokens: ids(B, n).float()}, ["integers", "torch.float32", ".long()"]),
        "one-dimensional-ids": ({tokens: ids(B, n)[0]}, [tokens, "[batch, length]", f"[{n}]"]),
        "no-token": ({tokens: ids(B, 0)}, [tokens, f"[{B}, 0]", "empty", "at least one"]),
        "no-sequence": ({tokens: ids(0, n)}, [tokens, f"[0, {n}]", "empty", "at least one"]),
        "no-embedding": ({tokens: None, embeds: torch.ones(B, 0, D)}, [embeds, "empty", "at least one"]),
        "ids-and-embeddings": ({embeds: torch.ones(B, n, D)}, ["both", tokens, embeds, "exactly one"]),
        "nothing": ({tokens: None}, [tokens, "pass"]),
        "embeddings-too-wide": ({tokens: None, embeds: torch.ones(B, n, D + 1)}, [embeds, f"length, {D}]", f"{D + 1}]"]),
        "embeddings-of-ids": ({tokens: None, embeds: torch.ones(B, n)}, [embeds, f"length, {D}]", f"[{B}, {n}]"]),
        "mask-too-short": ({padding: mask(B, n - 1)}, [padding, f"[{B}, {n - 1}]", f"pass [{B}, {n}]"]),
        "mask-too-long": ({padding: mask(B, n + 1)}, [padding, f"[{B}, {n + 1}]", f"pass [{B}, {n}]"]),
        "mask-of-another-batch": ({padding: mask(B + 1, n)}, [padding, f"[{B + 1}, {n}]", f"pass [{B}, {n}]"]),
        "one-dimensional-mask": ({padding: mask(n)}, [padding, f"[{n}]", f"[{B}, {n}]"]),
        "five-dimensional-mask": ({padding: mask(B, 1, 1, n, n)}, [padding, f"[{B}, 1, 1, {n}, {n}]", f"[{B}, {n}]"]),
        "query-mask-too-short": ({padding: mask(B, n, n - 1)}, [padding, f"[{B}, {n}, {n - 1}]"]),
        "mask-of-other-heads": ({padding: mask(B, H - 1, n, n)}, [padding, f"[{B}, {H - 1}, {n}, {n}]"]),
    }


@pytest.mark.parametrize("mistake", input_mistakes("", S))
@pytest.mark.parametrize(("name", "shape"), MODELS)
def test_a_wrong_source_is_refused(name, shape, mistake):
    changes, words = input_mistakes("", S)[mistake]
    with refused(*words):
        call(model_of(name, shape), **changes)


@pytest.mark.parametrize("mistake", input_mistakes("decoder_", T))
@pytest.mark.parametrize(("name", "shape"), WITH_TARGET)
def test_a_wrong_target_is_refused(name, shape, mistake):
    changes, words = input_mistakes("decoder_", T)[mistake]
    with refused(*words):
        call(model_of(name, shape), **changes)


@pytest.mark.parametrize(("name", "shape"), MODELS)
def test_good_input_is_not_refused(name, shape):
    prefix, n = ("decoder_", T) if shape == "encoder-decoder" else ("", S)
    call(model_of(name, shape), **{f"{prefix}attention_mask": mask(B, n)})
    call(model_of(name, shape), **{f"{prefix}input_ids": None, f"{prefix}inputs_embeds": torch.ones(B, n, D)})


@pytest.mark.parametrize("shape", ["encoder-decoder", "decoder"])
def test_with_a_cache_the_mask_covers_the_cached_tokens(shape):
    model = tiny_language_model(shape)
    prefix, n = ("decoder_", T) if shape == "encoder-decoder" else ("", S)
    cache = call(model, use_cache=True).past_key_values
    for length in (1, n):
        with refused(f"{prefix}attention_mask", f"[{B}, {length}]", f"pass [{B}, {n + 1}]", "cached"):
            step = {f"{prefix}input_ids": ids(B, 1), f"{prefix}attention_mask": mask(B, length)}
            call(model, **step, past_key_values=cache)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("shape", ["encoder", "decoder"])
def test_a_classifier_takes_no_mask_for_single_queries(shape, batch):
    # Which tokens would be pooled?
    model = model_of("GlassformerForSequenceClassification", shape)
    with refused("attention_mask", f"[{batch}, {S}, {S}]", f"[{batch}, {S}]"):
        model(ids(batch, S), attention_mask=mask(batch, S, S))


def states(batch, length, width=D):
    """The output of an encoder, in the place of its input."""
    return {"input_ids": None, "encoder_outputs": (torch.ones(batch, length, width),)}


MISFITS = {
    "more-targets": ({"decoder_input_ids": ids(B + 1, T)}, [f"decoder_input_ids has {B + 1}", f"encoder's output has {B}"]),
    "fewer-sources": ({"input_ids": ids(1, S)}, [f"decoder_input_ids has {B}", "encoder's output has 1"]),
    "states-of-another-batch": (states(B + 1, S), [f"decoder_input_ids has {B}", f"encoder's output has {B + 1}"]),
    "mask-shorter-than-states": (
        states(B, S) | {"attention_mask": mask(B, S - 1)},
        ["attention_mask", f"[{B}, {S - 1}]", f"pass [{B}, {S}]"],
    ),
    "states-too-wide": (states(B, S, D + 1), ["encoder", D, f"{D + 1}]"]),
    "empty-states": (states(B, 0), ["encoder", "empty"]),
    "no-states": ({"input_ids": None, "encoder_outputs": ()}, ["encoder", "input_ids", "encoder_outputs"]),
}


@pytest.mark.parametrize(("changes", "words"), MISFITS.values(), ids=MISFITS)
@pytest.mark.parametrize(("name", "shape"), WITH_TARGET)
def test_source_and_target_must_fit(name, shape, changes, words):
    with refused(*words):
        call(model_of(name, shape), **changes)


# Positions


@pytest.fixture(params=SHAPES)
def six_positions(request):
    """A language model that has learned six positions."""
    return tiny_language_model(request.param, position_encoding="learned", max_position_embeddings=6)


LONGER = ["6 positions were learned", "0 to 5", "shorten", "max_position_embeddings"]


def test_a_source_longer_than_the_learned_positions_is_refused(six_positions):
    with refused("Position 8", *LONGER):
        call(six_positions, input_ids=ids(B, 9))
    call(six_positions, input_ids=ids(B, 6))


def test_a_target_longer_than_the_learned_positions_is_refused():
    model = tiny_language_model(position_encoding="learned", max_position_embeddings=6)
    with refused("Position 8", *LONGER):
        call(model, input_ids=ids(B, 6), decoder_input_ids=ids(B, 9))


@pytest.mark.parametrize("position", [6, -1], ids=["beyond", "negative"])
def test_a_given_position_that_was_not_learned_is_refused(six_positions, position):
    name = "decoder_position_ids" if six_positions.config.is_encoder_decoder else "position_ids"
    lengths = {"input_ids": ids(B, 3)} | ({"decoder_input_ids": ids(B, 3)} if name.startswith("decoder") else {})
    with refused(f"Position {position}", "0 to 5"):
        call(six_positions, **lengths, **{name: torch.tensor([[0, 1, position]])})


@pytest.mark.parametrize("shape", ["encoder-decoder", "decoder"])
def test_a_cache_does_not_hide_that_the_positions_are_used_up(shape):
    model = tiny_language_model(shape, position_encoding="learned", max_position_embeddings=6)
    name = "decoder_input_ids" if shape == "encoder-decoder" else "input_ids"
    source = {"input_ids": ids(B, 4)} if shape == "encoder-decoder" else {}
    cache = call(model, **source, **{name: ids(B, 6)}, use_cache=True).past_key_values
    with refused("Position 6", *LONGER):
        call(model, **source, **{name: ids(B, 1)}, past_key_values=cache)


# Labels


@pytest.mark.parametrize("shape", SHAPES)
def test_without_labels_and_logits_nothing_is_left_to_return(shape):
    with refused("return_logits=False", "pass labels"):
        call(tiny_language_model(shape), return_logits=False)


def test_labels_alone_need_a_start_token():
    model = tiny_language_model(bos_token_id=None)
    with refused("decoder_start_token_id is None", "config", "decoder_input_ids"):
        call(model, decoder_input_ids=None, labels=ids(B, T))
    assert call(model, labels=ids(B, T)).loss > 0


@pytest.mark.parametrize("return_logits", [True, False], ids=["logits", "loss-only"])
@pytest.mark.parametrize("label", [V, -1], ids=["beyond-the-vocabulary", "negative"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_label_outside_the_vocabulary_is_refused(shape, label, return_logits):
    n = T if shape == "encoder-decoder" else S
    with refused("labels", label, "vocabulary", V):
        call(tiny_language_model(shape), labels=torch.full((B, n), label), return_logits=return_logits)


@pytest.mark.parametrize("shape", SHAPES)
def test_labels_of_another_length_are_refused(shape):
    n = T if shape == "encoder-decoder" else S
    with refused("labels", n, n + 1):
        call(tiny_language_model(shape), labels=ids(B, n + 1))


# Configs and files


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", [*ACCEPTS, *STACKS])
def test_a_class_is_built_from_the_shapes_it_needs_only(name, shape):
    wanted = (ACCEPTS | STACKS)[name]
    build = functools.partial(getattr(glassformer, name), tiny_config(shape))
    if shape in wanted:
        assert build().config.shape == shape
        return
    layers = [f"{key}={value}" for key, value in SHAPES[shape].items()]
    with refused(f"{name} needs the shape {' or '.join(wanted)}", *layers, f"make the shape {shape}:"):
        build()


@pytest.mark.parametrize("shape", ["encoder", "decoder"])
def test_who_needs_both_stacks_is_not_told_to_drop_one(shape):
    with pytest.raises(ValueError) as caught:
        glassformer.GlassformerForConditionalGeneration(tiny_config(shape))
    assert "to 0" not in str(caught.value)


@pytest.mark.parametrize("name", [*ACCEPTS, *STACKS])
def test_the_config_of_another_model_is_refused(name):
    with refused(name, "GlassformerConfig", "BertConfig"):
        getattr(glassformer, name)(BertConfig())


@pytest.mark.parametrize("name", ACCEPTS)
def test_the_folder_of_another_model_is_refused(name, tmp_path):
    BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1).save_pretrained(tmp_path)
    with refused("'bert'", "'glassformer'", "AutoModel"):
        getattr(glassformer, name).from_pretrained(tmp_path)


@pytest.fixture
def folder(tmp_path):
    tiny_language_model("decoder", num_decoder_layers=1).save_pretrained(tmp_path)
    return tmp_path


LOADERS = [GlassformerForCausalLM, GlassformerModel, GlassformerForSequenceClassification, AutoModel, AutoModelForCausalLM]
DAMAGES = {
    "cut-in-the-middle": lambda weights: weights[: len(weights) // 2],
    "cut-by-one-byte": lambda weights: weights[:-1],
    "cut-in-the-header": lambda weights: weights[:100],
    "empty": lambda weights: b"",
    "overwritten-length": lambda weights: b"\xff" * 8 + weights[8:],
    "overwritten-header": lambda weights: weights[:8] + b"\xff" * 64 + weights[72:],
    "something-else": lambda weights: b"<html>404 Not Found</html>" * 40,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_weights_are_named(folder, damage):
    weights = folder / "model.safetensors"
    weights.write_bytes(damage(weights.read_bytes()))
    for loader in LOADERS:
        with refused(folder, "damaged", "cut off", ".safetensors", "again"):
            loader.from_pretrained(folder)


@pytest.mark.parametrize("loader", LOADERS, ids=lambda loader: loader.__name__)
def test_missing_weights_are_named(folder, loader):
    (folder / "model.safetensors").unlink()
    with pytest.raises(OSError, match=r"model\.safetensors"):  # as for every model of transformers
        loader.from_pretrained(folder)


# Building blocks


def heads(*shape):
    return torch.randn(shape)


Q, KV = heads(B, H, T, K), heads(B, H, S, K)


@pytest.mark.parametrize(
    ("query", "key", "value", "words"),
    [
        (Q, heads(H, S, K), KV, [[B, H, T, K], [H, S, K], "[B, H, length, K]"]),
        (heads(K), heads(K), heads(K), [[K], "[B, H, length, K]"]),
        (Q, heads(B, H, S, K + 1), KV, [[B, H, S, K + 1], "same width", f"{K} is not {K + 1}"]),
        (Q, KV, heads(B, H, S + 1, K), [[B, H, S + 1, K], "same length", f"{S} is not {S + 1}"]),
        (Q, heads(B, 1, S, K), heads(B, 1, S, K), [[B, 1, S, K], "agree in batch and heads"]),
        (Q, heads(B + 1, H, S, K), heads(B + 1, H, S, K), [[B + 1, H, S, K], "agree in batch and heads"]),
    ],
    ids=["ranks", "vectors", "width", "length", "heads", "batch"],
)
def test_attention_refuses_tensors_that_do_not_fit(query, key, value, words):
    with refused(*words):
        scaled_dot_product_attention(query, key, value)


BOOLEAN = ["boolean", "True = may attend", "mask.bool()"]
WRONG_MASKS = {
    "transposed": (mask(S, T), [(S, T), f"[T, S]=[{T}, {S}]", f"[B, S]=[{B}, {S}]"]),
    "too-long": (mask(B, S + 1), [(B, S + 1), f"[B, S]=[{B}, {S}]"]),
    "another-batch": (mask(B + 1, T, S), [(B + 1, T, S), f"{B} sequences"]),
    "other-heads": (mask(B, H - 1, T, S), [(B, H - 1, T, S), f"{H} heads"]),
    "one-dimensional": (mask(S), [(S,), f"[T, S]=[{T}, {S}]"]),
    "five-dimensional": (mask(1, B, H, T, S), [(1, B, H, T, S), f"[T, S]=[{T}, {S}]"]),
    "integers": (mask(T, S).long(), ["torch.int64", *BOOLEAN]),
    "floats": (mask(T, S).float(), ["torch.float32", *BOOLEAN]),
}


@pytest.mark.parametrize(("wrong", "words"), WRONG_MASKS.values(), ids=WRONG_MASKS)
def test_attention_refuses_masks_that_do_not_fit(wrong, words):
    with refused(*words):
        scaled_dot_product_attention(Q, KV, KV, wrong)
    with refused(*words):
        MultiHeadAttention(D, H)(heads(B, T, D), heads(B, S, D), mask=wrong)


def test_attention_refuses_a_bias_that_does_not_fit():
    with refused("bias", f"{S + 1}]", f"[{B}, {H}, {T}, {S}]"):
        scaled_dot_product_attention(Q, KV, KV, bias=torch.zeros(H, T, S + 1))


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ([heads(T, D)], ["query", f"[batch, length, {D}]", [T, D]]),
        ([heads(B, T, D + 1)], ["query", f"[batch, length, {D}]", [B, T, D + 1]]),
        ([heads(B, T, D), heads(B, S, D + 1)], ["key", f"[batch, length, {D}]", [B, S, D + 1]]),
        ([heads(B, T, D), heads(B + 1, S, D)], [f"key has {B + 1} sequences", f"query has {B}"]),
        ([heads(B, T, D), heads(B, S, D), heads(B, S + 1, D)], [f"key has {S} positions", f"value has {S + 1}"]),
        ([heads(B, T, D), None, heads(B, S, D)], ["key", T, "value", S]),
    ],
    ids=["rank", "query-width", "key-width", "batch", "value-length", "value-unlike-query"],
)
def test_multi_head_attention_refuses_tensors_that_do_not_fit(inputs, words):
    with refused(*words):
        MultiHeadAttention(D, H)(*inputs)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ((511, 8), ["d_model=511", "num_heads=8"]),
        ((24, 4, 3), ["num_kv_heads=3", "num_heads=4"]),
        ((24, 0), ["num_heads=0"]),
        ((24, 4, 0), ["num_kv_heads=0"]),
    ],
    ids=["heads", "key-value-heads", "no-heads", "no-key-value-heads"],
)
def test_multi_head_attention_refuses_sizes_that_do_not_fit(sizes, words):
    with refused(*words):
        MultiHeadAttention(*sizes)


@pytest.mark.parametrize(
    ("masks", "padding", "words"),
    [
        ([mask(T, S), mask(S, T)], None, [(T, S), (S, T), "must agree", "`padding=`"]),
        ([mask(T, S), mask(B, S)], None, [(T, S), (B, S), "must agree", "`padding=`"]),
        ([mask(T, S), mask(T, S).float()], None, ["torch.float32", *BOOLEAN]),
        ([mask(T, S)], mask(B, S).long(), ["torch.int64", *BOOLEAN]),
        ([mask(T, S)], mask(B, S + 1), [(T, S), (B, S + 1)]),
        ([mask(T, S)], mask(S), [(S,), "[B, S]"]),
        ([mask(T, S), mask(B, T, S + 1)], None, [(T, S), (B, T, S + 1)]),
        ([mask(B, T, S), mask(B + 1, 1, T, S)], None, [(B, T, S), (B + 1, 1, T, S)]),
    ],
    ids=[
        "transposed", "undeclared-padding", "floats", "integer-padding", "padding-too-long", "one-dimensional-padding",
        "other-keys", "other-batch",
    ],
)  # fmt: skip
def test_masks_that_do_not_combine_are_refused(masks, padding, words):
    with refused(*words):
        combine_masks(*masks, padding=padding)


# Compilation


@pytest.mark.parametrize("shape", SHAPES)
def test_checks_of_values_are_left_out_of_a_compiled_graph(shape):
    # A branch on a value would break the graph, which fullgraph does not allow.
    layers = {name: min(count, 1) for name, count in SHAPES[shape].items()}
    model = tiny_language_model(shape, **layers, position_encoding="learned")
    prefix, n = ("decoder_", T) if shape == "encoder-decoder" else ("", S)
    inputs = {"input_ids": ids(B, S), f"{prefix}input_ids": ids(B, n), f"{prefix}attention_mask": mask(B, n)}
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(**inputs).logits, model(**inputs).logits)


def test_token_types_that_do_not_fit_are_refused():
    model = tiny_language_model("encoder", num_token_types=2)
    call(model, input_ids=ids(B, S), token_type_ids=torch.ones(B, S, dtype=torch.long))
    with refused("token_type_ids", [B, S + 1], [B, S]):
        call(model, input_ids=ids(B, S), token_type_ids=torch.zeros(B, S + 1, dtype=torch.long))
    with refused("Token types go from 0 to 2", "there are 2"):
        call(model, input_ids=ids(B, S), token_type_ids=torch.arange(S).clamp(max=2).expand(B, S))


@pytest.mark.parametrize("shape", SHAPES)
def test_positions_of_another_length_or_batch_are_refused(shape):
    model = tiny_language_model(shape)
    for rows, length in ((B, S + 1), (B + 1, S)):
        with refused("Position ids", [rows, length], f"{B} sequences of {S} tokens"):
            model.model(ids(B, S), position_ids=torch.zeros(rows, length, dtype=torch.long), **decoder_ids(shape))


def decoder_ids(shape: str) -> dict:
    return {"decoder_input_ids": ids(B, T)} if shape == "encoder-decoder" else {}


def test_ids_that_are_no_tensor_are_refused():
    with refused("input_ids", "tensor", "list", "torch.tensor"):
        tiny_language_model("encoder").model([[5, 6, 7]], attention_mask=torch.ones(1, 3))


@pytest.mark.parametrize("name", ["GlassformerForSequenceClassification", "GlassformerForTokenClassification"])
def test_a_class_that_does_not_exist_is_refused(name):
    model = getattr(glassformer, name)(tiny_config("encoder", num_labels=3)).eval()
    shape = (B,) if "Sequence" in name else (B, S)
    with refused("Labels", "7", "classes", "3"):
        model(ids(B, S), labels=torch.full(shape, 7))


def test_labels_that_are_no_list_of_classes_are_refused():
    model = tiny_language_model("decoder")
    with refused("Labels", "integers", "long"):
        model(ids(B, S), labels=ids(B, S).float())
    with refused("Labels", "[batch, length]"):
        tiny_language_model()(ids(B, S), labels=ids(1, S)[0])
    with refused("attention_mask", "tensor", "list"):
        model(ids(1, 3), attention_mask=[[1, 1, 1]])
    with refused("Labels", [B, 2], [B, 3]):
        config = tiny_config("encoder", num_labels=3, problem_type="multi_label_classification")
        glassformer.GlassformerForSequenceClassification(config)(ids(B, S), labels=torch.zeros(B, 2))
