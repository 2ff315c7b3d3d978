"""Weights of other people's models under the names that ours have for them.

Each function returns a dictionary {name of our parameter: tensor}. The tensors are computed from the reference's own parameters
and keep their graph, so that a gradient that goes through our model arrives at the parameters of the reference, whatever
was split, transposed, scaled or added on the way.
"""

from collections.abc import Callable, Iterable

from torch import Tensor, nn


# D model width, H heads, K width of one head

Weights = dict[str, Tensor]

BERT_LAYER = {
    "self_attn.q_proj": "attention.self.query",
    "self_attn.k_proj": "attention.self.key",
    "self_attn.v_proj": "attention.self.value",
    "self_attn.out_proj": "attention.output.dense",
    "self_attn_norm": "attention.output.LayerNorm",
    "feed_forward.up_proj": "intermediate.dense",
    "feed_forward.down_proj": "output.dense",
    "feed_forward_norm": "output.LayerNorm",
}
BART_ENCODER_LAYER = {
    "self_attn": "self_attn",  # the projections have the same names as ours
    "self_attn_norm": "self_attn_layer_norm",
    "feed_forward.up_proj": "fc1",
    "feed_forward.down_proj": "fc2",
    "feed_forward_norm": "final_layer_norm",
}
BART_DECODER_LAYER = BART_ENCODER_LAYER | {"cross_attn": "encoder_attn", "cross_attn_norm": "encoder_attn_layer_norm"}
LLAMA_LAYER = {
    "self_attn.q_proj": "self_attn.q_proj",
    "self_attn.k_proj": "self_attn.k_proj",
    "self_attn.v_proj": "self_attn.v_proj",
    "self_attn.out_proj": "self_attn.o_proj",
    "self_attn_norm": "input_layernorm",
    "feed_forward": "mlp",
    "feed_forward_norm": "post_attention_layernorm",
}
QWEN3_LAYER = LLAMA_LAYER | {"self_attn.q_norm": "self_attn.q_norm", "self_attn.k_norm": "self_attn.k_norm"}
GPT_NEOX_LAYER = {
    "self_attn.out_proj": "attention.dense",
    "self_attn_norm": "input_layernorm",
    "feed_forward.up_proj": "mlp.dense_h_to_4h",
    "feed_forward.down_proj": "mlp.dense_4h_to_h",
    "feed_forward_norm": "post_attention_layernorm",
}
BLOOM_LAYER = GPT_NEOX_LAYER | {"self_attn.out_proj": "self_attention.dense"}


# torch.nn


def torch_attention_weights(attention: nn.MultiheadAttention) -> Weights:
    fused = {"weight": attention.in_proj_weight, "bias": attention.in_proj_bias}
    return split_query_key_value(fused) | renamed(attention, {"out_proj": "out_proj"})


def torch_transformer_weights(encoder: nn.TransformerEncoder, decoder: nn.TransformerDecoder) -> Weights:
    weights = in_layers("encoder.layers", encoder.layers, torch_layer_weights)
    weights |= in_layers("decoder.layers", decoder.layers, torch_layer_weights)
    for name, stack in {"encoder": encoder, "decoder": decoder}.items():
        if stack.norm is not None:
            weights |= renamed(stack, {f"{name}.norm": "norm"})
    return weights


def torch_layer_weights(layer: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer) -> Weights:
    weights = under("self_attn", torch_attention_weights(layer.self_attn))
    norms = {"self_attn_norm": "norm1", "feed_forward_norm": "norm2"}
    if isinstance(layer, nn.TransformerDecoderLayer):
        weights |= under("cross_attn", torch_attention_weights(layer.multihead_attn))
        norms = {"self_attn_norm": "norm1", "cross_attn_norm": "norm2", "feed_forward_norm": "norm3"}
    return weights | renamed(layer, norms | {"feed_forward.up_proj": "linear1", "feed_forward.down_proj": "linear2"})


# transformers: encoders


def bert_weights(bert: nn.Module) -> Weights:
    """`BertModel` without the pooler; all tokens are of type 0, whose embedding joins those of the positions."""
    embeddings = bert.embeddings
    position_table = embeddings.position_embeddings.weight + embeddings.token_type_embeddings.weight[0]
    return {
        **renamed(embeddings, {"encoder.embed_tokens": "word_embeddings", "encoder.embedding_norm": "LayerNorm"}),
        "encoder.positions.weight": position_table,
        **in_layers("encoder.layers", bert.encoder.layer, lambda layer: renamed(layer, BERT_LAYER)),
    }


# transformers: decoders


def gpt2_weights(gpt2: nn.Module) -> Weights:
    """`GPT2LMHeadModel`, whose linear layers are stored [in, out] and whose output layer is the embedding."""
    return {
        **renamed(
            gpt2.transformer,
            {"model.decoder.embed_tokens": "wte", "model.decoder.positions": "wpe", "model.decoder.norm": "ln_f"},
        ),
        **in_layers("model.decoder.layers", gpt2.transformer.h, gpt2_layer_weights),
    }


def gpt2_layer_weights(block: nn.Module) -> Weights:
    return {
        **under("self_attn", split_query_key_value(transposed(block.attn.c_attn))),
        **under("self_attn.out_proj", transposed(block.attn.c_proj)),
        **under("feed_forward.up_proj", transposed(block.mlp.c_fc)),
        **under("feed_forward.down_proj", transposed(block.mlp.c_proj)),
        **renamed(block, {"self_attn_norm": "ln_1", "feed_forward_norm": "ln_2"}),
    }


def llama_weights(llama: nn.Module, layer_names: dict[str, str] = LLAMA_LAYER) -> Weights:
    """`LlamaForCausalLM` and its relatives."""
    return {
        **renamed(
            llama, {"model.decoder.embed_tokens": "model.embed_tokens", "model.decoder.norm": "model.norm", "lm_head": "lm_head"}
        ),
        **in_layers("model.decoder.layers", llama.model.layers, lambda layer: renamed(layer, layer_names)),
    }


def qwen3_weights(qwen3: nn.Module) -> Weights:
    """`Qwen3ForCausalLM`: a Llama that normalises queries and keys."""
    return llama_weights(qwen3, QWEN3_LAYER)


def gpt_neox_weights(neox: nn.Module) -> Weights:
    """`GPTNeoXForCausalLM`."""

    def layer_weights(layer: nn.Module) -> Weights:
        fused = heads_last(layer.attention.query_key_value, layer.attention.head_size)
        return under("self_attn", split_query_key_value(fused)) | renamed(layer, GPT_NEOX_LAYER)

    names = {"model.decoder.embed_tokens": "gpt_neox.embed_in", "model.decoder.norm": "gpt_neox.final_layer_norm"}
    return {
        **renamed(neox, names | {"lm_head": "lm_head"}),
        **in_layers("model.decoder.layers", neox.gpt_neox.layers, layer_weights),
    }


def bloom_weights(bloom: nn.Module) -> Weights:
    """`BloomForCausalLM`, whose output layer is the embedding."""

    def layer_weights(layer: nn.Module) -> Weights:
        fused = heads_last(layer.self_attention.query_key_value, layer.self_attention.head_dim)
        return under("self_attn", split_query_key_value(fused)) | renamed(layer, BLOOM_LAYER)

    names = {"embed_tokens": "word_embeddings", "embedding_norm": "word_embeddings_layernorm", "norm": "ln_f"}
    return {
        **under("model.decoder", renamed(bloom.transformer, names)),
        **in_layers("model.decoder.layers", bloom.transformer.h, layer_weights),
    }


# transformers: encoder-decoders, each with one matrix for source embedding, target embedding and output


def bart_weights(bart: nn.Module) -> Weights:
    """`BartForConditionalGeneration`; its position 0 is row 2 of the table."""
    weights = marian_weights(bart)
    for stack in ("encoder", "decoder"):
        weights |= renamed(bart.model, {f"model.{stack}.embedding_norm": f"{stack}.layernorm_embedding"})
        weights[f"model.{stack}.positions.weight"] = bart.model.get_submodule(stack).embed_positions.weight[2:]
    return weights


def marian_weights(marian: nn.Module) -> Weights:
    """`MarianMTModel`, with its sinusoids as a table of positions."""
    encoder, decoder = marian.model.encoder, marian.model.decoder
    return {
        "model.encoder.embed_tokens.weight": marian.model.shared.weight,
        "model.encoder.positions.weight": encoder.embed_positions.weight,
        "model.decoder.positions.weight": decoder.embed_positions.weight,
        **in_layers("model.encoder.layers", encoder.layers, lambda layer: renamed(layer, BART_ENCODER_LAYER)),
        **in_layers("model.decoder.layers", decoder.layers, lambda layer: renamed(layer, BART_DECODER_LAYER)),
    }


def t5_weights(t5: nn.Module) -> Weights:
    """`T5ForConditionalGeneration`; its first layers keep the position bias of all."""
    weights = {"model.encoder.embed_tokens.weight": t5.shared.weight}
    for name, stack in {"encoder": t5.encoder, "decoder": t5.decoder}.items():
        first_attention = stack.block[0].layer[0].SelfAttention
        weights |= {
            f"model.{name}.position_bias.table.weight": first_attention.relative_attention_bias.weight,
            f"model.{name}.norm.weight": stack.final_layer_norm.weight,
            **in_layers(f"model.{name}.layers", stack.block, t5_layer_weights),
        }
    if t5.config.scale_decoder_outputs:  # between the last norm and the output layer, by which our norm is scaled
        weights["model.decoder.norm.weight"] = weights["model.decoder.norm.weight"] * t5.config.d_model**-0.5
    return weights


def t5_layer_weights(block: nn.Module) -> Weights:
    weights = t5_attention_weights("self_attn", block.layer[0], "SelfAttention")
    if len(block.layer) == 3:
        weights |= t5_attention_weights("cross_attn", block.layer[1], "EncDecAttention")
    feed_forward = block.layer[-1]
    names = {"down_proj": "wo", "up_proj": "wi"}
    if hasattr(feed_forward.DenseReluDense, "wi_0"):
        names = {"down_proj": "wo", "gate_proj": "wi_0", "up_proj": "wi_1"}
    weights |= renamed(feed_forward, {f"feed_forward.{ours}": f"DenseReluDense.{theirs}" for ours, theirs in names.items()})
    return weights | renamed(feed_forward, {"feed_forward_norm": "layer_norm"})


def t5_attention_weights(ours: str, sublayer: nn.Module, theirs: str) -> Weights:
    names = {f"{ours}.{proj}_proj": f"{theirs}.{proj[0]}" for proj in ("q", "k", "v", "out")}
    weights = renamed(sublayer, names | {f"{ours}_norm": "layer_norm"})
    d_k = sublayer.get_submodule(theirs).key_value_proj_dim
    weights[f"{ours}.q_proj.weight"] = weights[f"{ours}.q_proj.weight"] * d_k**0.5  # T5 does not divide the scores by this
    return weights


# Tools


def renamed(module: nn.Module, names: dict[str, str]) -> Weights:
    """The parameters of submodules, given as {our name: their name}."""
    return {
        f"{ours}.{parameter}": tensor
        for ours, theirs in names.items()
        for parameter, tensor in module.get_submodule(theirs).named_parameters()
    }


def under(prefix: str, weights: Weights) -> Weights:
    return {f"{prefix}.{name}": tensor for name, tensor in weights.items()}


def in_layers(prefix: str, layers: Iterable[nn.Module], layer_weights: Callable[[nn.Module], Weights]) -> Weights:
    weights: Weights = {}
    for index, layer in enumerate(layers):
        weights |= under(f"{prefix}.{index}", layer_weights(layer))
    return weights


def split_query_key_value(fused: dict[str, Tensor | None]) -> Weights:
    """Weight [3D, D] and bias [3D], the latter perhaps None -> those of three projections."""
    weights: Weights = {}
    for parameter, tensor in fused.items():
        if tensor is not None:
            weights |= {f"{name}.{parameter}": part for name, part in zip(("q_proj", "k_proj", "v_proj"), tensor.chunk(3))}
    return weights


def transposed(conv: nn.Module) -> Weights:
    """GPT-2's `Conv1D`, a linear layer whose weight is [in, out]."""
    return {"weight": conv.weight.T, "bias": conv.bias}


def heads_last(linear: nn.Linear, d_k: int) -> Weights:
    """Rows in the order (head, query or key or value, K) -> in the order (query or key or value, head, K)."""
    return {
        parameter: tensor.unflatten(0, (-1, 3, d_k)).transpose(0, 1).flatten(0, 2)
        for parameter, tensor in linear.named_parameters()
    }
