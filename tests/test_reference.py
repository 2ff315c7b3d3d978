"""The same weights in our model and in somebody else's: equal outputs, equal gradients.

The references are `torch.nn` and transformers, small and random. Our model runs on tensors that are made from the reference's
parameters (`reference_weights.py`), so the gradients of both runs are gradients of the same parameters, and all are compared.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import pytest
import torch
import transformers
from models import B, D, H, K, S, T, V, tiny_config
from reference_weights import (
    Weights,
    bart_weights,
    bert_weights,
    bloom_weights,
    gpt2_weights,
    gpt_neox_weights,
    llama_weights,
    marian_weights,
    qwen3_weights,
    t5_weights,
    torch_attention_weights,
    torch_transformer_weights,
)
from torch import Tensor, nn
from torch.func import functional_call
from torch.testing import assert_close

from glassformer import (
    GlassformerForCausalLM,
    GlassformerForConditionalGeneration,
    GlassformerModel,
    MultiHeadAttention,
    RMSNorm,
    SinusoidalPositionEncoding,
    causal_mask,
    combine_masks,
)


TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
D_FF = 40  # of `tiny_config`

both_dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=["float32", "float64"])
both_kernels = pytest.mark.parametrize("kernel", ["eager", "sdpa"])
both_sides = pytest.mark.parametrize("padding_side", ["left", "right"])


# torch.nn


@both_dtypes
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
@pytest.mark.parametrize("padded", [True, False], ids=["padded", "unpadded"])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize("inputs", ["self", "cross", "separate-values"])
def test_multi_head_attention_is_that_of_torch(inputs, causal, padded, bias, dtype):
    reference = randomised(nn.MultiheadAttention(D, H, bias=bias, batch_first=True), dtype)
    ours = MultiHeadAttention(D, H, bias=bias).to(dtype)
    query, memory, values = (torch.randn(B, length, D, dtype=dtype, requires_grad=True) for length in (T, S, S))
    given = {"self": (query,), "cross": (query, memory), "separate-values": (query, memory, values)}[inputs]
    key, value = given[1 % len(given)], given[-1]
    # Ours is True where torch's is False.
    may_attend = causal_mask(T, key.shape[1]) if causal else None
    is_token = padding_mask(key.shape[1]) if padded else None

    expected, expected_weights = reference(
        query,
        key,
        value,
        key_padding_mask=None if is_token is None else ~is_token,
        attn_mask=None if may_attend is None else ~may_attend,
        average_attn_weights=False,
    )
    mask = combine_masks(may_attend, padding=is_token)
    weights = torch_attention_weights(reference)
    assert_complete(weights, ours)
    actual, actual_weights = functional_call(ours, weights, given, {"mask": mask})

    assert_same("output", actual, expected)
    assert_same("attention weights", actual_weights, expected_weights)
    probe, weights_probe = torch.randn_like(expected), torch.randn_like(expected_weights)
    assert_same_gradients(
        (actual * probe).sum() + (actual_weights * weights_probe).sum(),
        (expected * probe).sum() + (expected_weights * weights_probe).sum(),
        trainable(reference) | {f"input {index}": tensor for index, tensor in enumerate(given)},
    )


@both_dtypes
@both_kernels
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_encoder_decoder_is_that_of_torch(norm_position, activation, kernel, dtype):
    """Layers only: both are fed embedded tokens without positions."""
    layer = {
        "d_model": D, "nhead": H, "dim_feedforward": D_FF, "dropout": 0.0, "activation": activation, "layer_norm_eps": 1e-5,
        "batch_first": True, "norm_first": norm_position == "pre",
    }  # fmt: skip
    norms = [nn.LayerNorm(D, eps=1e-5) if norm_position == "pre" else None for _ in range(2)]
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(**layer), 2, norms[0], enable_nested_tensor=False)
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**layer), 3, norms[1])
    reference = randomised(nn.ModuleDict({"encoder": encoder, "decoder": decoder}), dtype)
    ours = our_model(
        GlassformerModel, "encoder-decoder", dtype, kernel,
        norm_position=norm_position, activation=activation, norm_eps=1e-5, position_encoding="none",
    )  # fmt: skip
    source, target = (torch.randn(B, length, D, dtype=dtype, requires_grad=True) for length in (S, T))
    source_mask, target_mask = padding_mask(S), padding_mask(T)

    memory = encoder(source, src_key_padding_mask=~source_mask)
    hidden = decoder(
        target,
        memory,
        tgt_mask=~causal_mask(T),
        tgt_key_padding_mask=~target_mask,
        memory_key_padding_mask=~source_mask,
    )
    weights = torch_transformer_weights(encoder, decoder)
    assert_complete(weights, ours, unused={"encoder.embed_tokens.weight"})
    outputs = functional_call(
        ours,
        weights,
        kwargs={
            "inputs_embeds": source,
            "attention_mask": source_mask,
            "decoder_inputs_embeds": target,
            "decoder_attention_mask": target_mask,
        },
    )

    assert_same("memory", outputs.encoder_last_hidden_state[source_mask], memory[source_mask])
    actual, expected = outputs.last_hidden_state[target_mask], hidden[target_mask]
    assert_same("hidden states", actual, expected)
    probe = torch.randn_like(expected)
    assert_same_gradients(
        (actual * probe).sum(),
        (expected * probe).sum(),
        trainable(reference) | {"source": source, "target": target},
    )


@both_dtypes
def test_rms_norm_is_that_of_torch(dtype):
    """On which the float64 comparisons with transformers' models rely: see `their_model`."""
    reference = randomised(nn.RMSNorm(D, eps=1e-3), dtype)
    x = torch.randn(B, T, D, dtype=dtype, requires_grad=True)
    expected = reference(x)
    actual = functional_call(RMSNorm(D, eps=1e-3), {"weight": reference.weight}, x)
    assert_same("output", actual, expected)
    probe = torch.randn_like(expected)
    assert_same_gradients((actual * probe).sum(), (expected * probe).sum(), trainable(reference) | {"x": x})


# transformers: encoders


@both_dtypes
@both_kernels
@both_sides
def test_an_encoder_can_be_bert(padding_side, kernel, dtype):
    reference = their_model(
        transformers.BertModel, dtype,
        vocab_size=V, hidden_size=D, num_attention_heads=H, intermediate_size=D_FF, num_hidden_layers=2,
        max_position_embeddings=11, hidden_act="gelu", layer_norm_eps=1e-12,
    )  # fmt: skip
    reference.pooler = None  # a head, of which our bare model has none
    ours = our_model(
        GlassformerModel, "encoder", dtype, kernel,
        norm_position="post", norm_eps=1e-12, embedding_norm=True, position_encoding="learned", max_position_embeddings=11,
        activation="gelu", scale_embedding=False,
    )  # fmt: skip
    assert_same_model(reference, ours, bert_weights(reference), source_batch(side=padding_side))


# transformers: decoders


@both_dtypes
@both_kernels
@both_sides
def test_a_decoder_can_be_gpt2(padding_side, kernel, dtype):
    reference = their_model(
        transformers.GPT2LMHeadModel, dtype,
        vocab_size=V, n_embd=D, n_head=H, n_inner=D_FF, n_layer=3, n_positions=11, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    ours = our_model(
        GlassformerForCausalLM, "decoder", dtype, kernel,
        norm_eps=1e-5, position_encoding="learned", max_position_embeddings=11, activation="gelu_new", scale_embedding=False,
        pad_token_id=None,
    )  # fmt: skip
    batch = source_batch(side=padding_side)
    if dtype == torch.float32:  # transformers' loss of a causal model calls logits.float()
        batch |= language_model_labels(batch)
    assert_same_model(reference, ours, gpt2_weights(reference), batch)


LLAMA = {
    "vocab_size": V, "hidden_size": D, "num_attention_heads": H, "num_key_value_heads": 2, "intermediate_size": D_FF,
    "num_hidden_layers": 3, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
}  # fmt: skip
ROPE = {"rope_type": "default", "rope_theta": 500.0}
LONG_ROPE = {"rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 16}


class Relative(NamedTuple):
    """Where a model differs from Llama, and the options that make ours do the same."""

    model_class: type = transformers.LlamaForCausalLM
    rope: dict = ROPE
    their_options: dict = {}
    our_options: dict = {}
    weights: Callable[[nn.Module], Weights] = llama_weights


LLAMA_FAMILY = {
    "llama": Relative(),
    "llama-3-rope": Relative(rope={"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, **LONG_ROPE}),
    "yarn-rope": Relative(rope={"rope_type": "yarn", **LONG_ROPE}),
    "mistral": Relative(transformers.MistralForCausalLM, ROPE, {"sliding_window": 3}, {"attention_window": 3}),
    "qwen3": Relative(transformers.Qwen3ForCausalLM, ROPE, {"head_dim": K}, {"qk_norm": True}, qwen3_weights),
}


@both_dtypes
@both_kernels
@both_sides
@pytest.mark.parametrize("relative", LLAMA_FAMILY)
def test_a_decoder_can_be_a_llama(relative, padding_side, kernel, dtype):
    model_class, rope, their_options, our_options, weights_of = LLAMA_FAMILY[relative]
    reference = their_model(
        # Attention maps come from "eager", whose softmax is in float32.
        model_class, dtype, "eager" if dtype == torch.float32 else "sdpa", **LLAMA, rope_parameters=dict(rope), **their_options
    )  # fmt: skip
    ours = our_model(
        GlassformerForCausalLM, "decoder", dtype, kernel,
        norm="rmsnorm", norm_eps=1e-5, num_kv_heads=2, position_encoding="rope", rope_parameters=dict(rope), activation="silu",
        gated_feed_forward=True, attention_bias=False, feed_forward_bias=False, scale_embedding=False, tie_word_embeddings=False,
        pad_token_id=None, **our_options,
    )  # fmt: skip
    weights, batch = weights_of(reference), source_batch(side=padding_side)
    if dtype == torch.float32:  # transformers' loss of a causal model calls logits.float()
        batch |= language_model_labels(batch)
    assert_same_model(reference, ours, weights, batch)


@both_dtypes
@both_kernels
@both_sides
def test_a_decoder_can_be_gpt_neox(padding_side, kernel, dtype):
    """Heads that are rotated in part: four of their six numbers."""
    rope = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 4 / K}
    reference = their_model(
        # Not "eager", whose softmax is in float32.
        transformers.GPTNeoXForCausalLM, dtype, "sdpa",
        vocab_size=V, hidden_size=D, num_attention_heads=H, intermediate_size=D_FF, num_hidden_layers=3, hidden_act="gelu",
        use_parallel_residual=False, rope_parameters=dict(rope),
    )  # fmt: skip
    ours = our_model(
        GlassformerForCausalLM, "decoder", dtype, kernel,
        norm_eps=1e-5, position_encoding="rope", rope_parameters=dict(rope), activation="gelu", scale_embedding=False,
        tie_word_embeddings=False, pad_token_id=None,
    )  # fmt: skip
    weights, batch = gpt_neox_weights(reference), source_batch(side=padding_side)
    if dtype == torch.float32:  # transformers' loss of a causal model calls logits.float()
        batch |= language_model_labels(batch)
    assert_same_model(reference, ours, weights, batch)


# float32 alone: the softmax of this model is in float32.
@both_kernels
@both_sides
@pytest.mark.parametrize("num_heads", [H, 3], ids=["power-of-two-heads", "three-heads"])
def test_a_decoder_can_be_bloom(num_heads, padding_side, kernel):
    """ALiBi, which Bloom measures from the first token and we from the query: the softmax is the same."""
    reference = their_model(
        transformers.BloomForCausalLM, torch.float32, vocab_size=V, hidden_size=D, n_head=num_heads, n_layer=3
    )
    ours = our_model(
        GlassformerForCausalLM, "decoder", torch.float32, kernel,
        num_heads=num_heads, d_ff=4 * D, norm_eps=1e-5, position_encoding="alibi", embedding_norm=True,
        activation="gelu_pytorch_tanh", scale_embedding=False, pad_token_id=None,
    )  # fmt: skip
    batch = source_batch(side=padding_side)
    assert_same_model(reference, ours, bloom_weights(reference), batch | language_model_labels(batch))


# transformers: encoder-decoders, with labels that the decoder is fed shifted to the right


@both_dtypes
@both_kernels
def test_an_encoder_decoder_can_be_bart(kernel, dtype):
    special_ids = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}
    reference = their_model(transformers.BartForConditionalGeneration, dtype, **seq2seq_sizes(), **special_ids)
    ours = our_model(
        GlassformerForConditionalGeneration, "encoder-decoder", dtype, kernel,
        norm_position="post", norm_eps=1e-5, embedding_norm=True, position_encoding="learned", max_position_embeddings=11,
        activation="gelu", scale_embedding=False, **special_ids,
    )  # fmt: skip
    assert_same_model(reference, ours, bart_weights(reference), translation_batch(pad=1))


@both_dtypes
@both_kernels
def test_an_encoder_decoder_can_be_marian(kernel, dtype):
    # Marian itself starts with the pad token, whose embedding it then never trains; we train the start token.
    special_ids = {"pad_token_id": V - 1, "bos_token_id": 1, "eos_token_id": 0, "decoder_start_token_id": 1}
    reference = their_model(
        transformers.MarianMTModel, dtype,
        **seq2seq_sizes(), **special_ids, activation_function="silu", scale_embedding=True, forced_eos_token_id=None,
    )  # fmt: skip
    ours = our_model(
        GlassformerForConditionalGeneration, "encoder-decoder", dtype, kernel,
        norm_position="post", norm_eps=1e-5, position_encoding="learned", max_position_embeddings=11, activation="silu",
        scale_embedding=True, **special_ids,
    )  # fmt: skip
    assert_same_model(reference, ours, marian_weights(reference), translation_batch(pad=V - 1))


def test_sinusoids_are_those_of_marian_in_another_order():
    """Marian puts all sines before all cosines, we let them take turns."""
    config = transformers.MarianConfig(**seq2seq_sizes(), pad_token_id=0, decoder_start_token_id=0)
    theirs = transformers.MarianModel(config).encoder.embed_positions.weight[None, :11]
    ours = SinusoidalPositionEncoding(D)(torch.zeros(1, 11, D))
    assert_same("positions", torch.cat((ours[..., 0::2], ours[..., 1::2]), dim=-1), theirs)


@both_dtypes
@both_kernels
@pytest.mark.parametrize("version", ["t5", "t5-v1.1"])
def test_an_encoder_decoder_can_be_t5(version, kernel, dtype):
    """Sequences long enough to fill every bucket of distances."""
    theirs, activation = {
        "t5": ({"feed_forward_proj": "relu"}, {"activation": "relu"}),
        "t5-v1.1": (
            {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
            {"activation": "gelu_new", "gated_feed_forward": True},
        ),
    }[version]
    distances = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 16}
    special_ids = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    reference = their_model(
        transformers.T5ForConditionalGeneration, dtype,
        vocab_size=V, d_model=D, d_kv=K, d_ff=D_FF, num_layers=2, num_decoder_layers=3, num_heads=H, **theirs, **distances,
        **special_ids,
    )  # fmt: skip
    for name, parameter in reference.named_parameters():
        if name.endswith(".q.weight"):  # T5 does not divide the scores, it begins with small queries
            nn.init.normal_(parameter, std=(D * K) ** -0.5)
    ours = our_model(
        GlassformerForConditionalGeneration, "encoder-decoder", dtype, kernel,
        norm="rmsnorm", norm_eps=1e-6, position_encoding="relative", attention_bias=False, feed_forward_bias=False,
        scale_embedding=False, bos_token_id=None, **activation, **distances, **special_ids,
    )  # fmt: skip
    assert_same_model(
        reference, ours, t5_weights(reference), translation_batch(source_length=23, target_length=19),
        # Our last norm contains the factor that T5 puts after it.
        ignore={"decoder_hidden_states 3"} if version == "t5" else set(),
    )  # fmt: skip


# Models


def randomised(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Weights large enough for a mistake to show: models begin with small ones, and with biases and norms that do nothing."""
    for name, parameter in trainable(model).items():
        is_scale = "weight" in name and parameter.dim() == 1
        std = 0.05 if parameter.dim() == 1 else parameter.shape[-1] ** -0.5
        nn.init.normal_(parameter, mean=float(is_scale), std=std)
    return model.to(dtype).eval()


def their_model(model_class: type, dtype: torch.dtype, kernel: str = "eager", **config):
    """In float64, with torch's RMSNorm for their own, which rounds to float32 and is the same otherwise."""
    model = model_class(model_class.config_class(**config, attn_implementation=kernel))
    if dtype == torch.float64:
        for name, module in list(model.named_modules()):
            if hasattr(module, "variance_epsilon"):
                model.set_submodule(name, nn.RMSNorm(module.weight.shape, eps=module.variance_epsilon))
    return randomised(model, dtype)


def our_model(model_class: type, shape: str, dtype: torch.dtype, kernel: str, **config):
    model = model_class(tiny_config(shape, **config, attn_implementation=kernel)).to(dtype).eval()
    if hasattr(model, "lm_head"):
        model.lm_head.zero_row = None  # transformers trains the pad token through a tied output, which we prevent
    return model


def seq2seq_sizes() -> dict[str, int]:
    """Of BART and Marian, the depths as in `models.SHAPES`."""
    return {
        "vocab_size": V, "d_model": D, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": H,
        "decoder_attention_heads": H, "encoder_ffn_dim": D_FF, "decoder_ffn_dim": D_FF, "max_position_embeddings": 11,
    }  # fmt: skip


# Batches


def padding_mask(length: int, side: str = "right") -> Tensor:
    """True for tokens; every example but the first is padded, each more than the one before it."""
    lengths = length - 2 * torch.arange(B)
    mask = torch.arange(length) < lengths[:, None]
    return mask if side == "right" else mask.flip(1)


def source_batch(length: int = S, side: str = "right", pad: int = 0) -> dict[str, Tensor]:
    mask = padding_mask(length, side)
    return {"input_ids": torch.randint(5, V - 1, (B, length)).masked_fill(~mask, pad), "attention_mask": mask.long()}


def language_model_labels(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Every token that another token comes before: what padding on the left predicts is nobody's concern."""
    is_token = batch["attention_mask"].bool()
    return {"labels": batch["input_ids"].masked_fill(~(is_token & is_token.roll(1, dims=1)), -100)}


def translation_batch(source_length: int = S, target_length: int = T, pad: int = 0) -> dict[str, Tensor]:
    is_token = padding_mask(target_length)
    return {
        **source_batch(source_length, pad=pad),
        "labels": torch.randint(5, V - 1, is_token.shape).masked_fill(~is_token, -100),
        "decoder_attention_mask": is_token.long(),
    }


# Comparisons


def trainable(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def assert_same(name: str, actual: Tensor, expected: Tensor) -> None:
    tolerance = TOLERANCE[expected.dtype]
    assert_close(actual, expected, rtol=tolerance, atol=tolerance, msg=lambda message: f"{name}: {message}")


def assert_same_gradients(actual: Tensor, expected: Tensor, variables: dict[str, Tensor]) -> None:
    """Gradients of two numbers for the same variables, in units of the largest element, from which rounding errors come."""
    ours = dict(zip(variables, torch.autograd.grad(actual, variables.values())))
    theirs = dict(zip(variables, torch.autograd.grad(expected, variables.values())))
    for name in variables:
        # A bias of the keys moves all scores of a query alike, which softmax does not see: its gradient is rounding error.
        is_key_bias = name.endswith(("k_proj.bias", "key.bias"))
        unit = theirs[name.replace("bias", "weight") if is_key_bias else name].abs().max()
        assert unit > 0.01, f"{name} hardly matters: its gradient is no evidence"
        assert_same(f"gradient of {name}", ours[name] / unit, theirs[name] / unit)


def assert_complete(weights: Weights, ours: nn.Module, unused: Iterable[str] = ()) -> None:
    """Nothing of our model is left as it was, and nothing is given that it does not have."""
    parameters, buffers = dict(ours.named_parameters()), dict(ours.named_buffers())
    assert weights.keys() - buffers.keys() == parameters.keys() - set(unused)
    for name, tensor in weights.items():
        assert tensor.shape == (parameters | buffers)[name].shape, name


def assert_same_model(
    reference: nn.Module, ours: nn.Module, weights: Weights, batch: dict[str, Tensor], ignore: Iterable[str] = ()
) -> None:
    """Outputs at all positions that are not padding, and the gradients of all of the reference's parameters.

    Compared are the loss if there are labels, logits, the hidden states of every layer and, from the textbook kernel, which
    forms them, attention maps.
    """
    assert_complete(weights, ours)
    with_maps = ours.config._attn_implementation == reference.config._attn_implementation == "eager"
    batch = {**batch, "output_hidden_states": True, "output_attentions": with_maps}
    expected = at_tokens(reference(**batch), batch)
    actual = at_tokens(functional_call(ours, weights, kwargs=batch), batch)
    assert actual.keys() == expected.keys()
    for name in expected.keys() - set(ignore):
        assert_same(name, actual[name], expected[name])

    name = "logits" if "logits" in expected else "last_hidden_state"
    probe = torch.randn_like(expected[name])
    scalars = [(outputs[name] * probe).sum() + outputs.get("loss", 0.0) for outputs in (actual, expected)]
    assert_same_gradients(*scalars, trainable(reference))


def at_tokens(outputs, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Every tensor in the outputs, without the positions of padding: [tokens, ...]."""
    source = batch["attention_mask"].bool()
    target = batch.get("decoder_attention_mask", source).bool()
    tensors = {}
    for name, value in outputs.items():
        if name == "loss":
            tensors[name] = value
        elif name != "past_key_values":
            mask = source if name.startswith("encoder") else target
            for index, tensor in enumerate(value if isinstance(value, tuple) else [value]):
                # Attention maps are [B, H, T, S]: queries change places with heads.
                rows = tensor.transpose(1, 2) if "attentions" in name else tensor
                tensors[f"{name} {index}" if isinstance(value, tuple) else name] = rows[mask]
    return tensors
