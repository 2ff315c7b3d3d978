"""Small native models of transformers, every family with the variants that its config has."""

import copy
from typing import Any, NamedTuple

import torch
import transformers
from models import B, D, H, S, T, V
from torch import Tensor, nn


class Native(NamedTuple):
    """A class of transformers and how its config differs from the small one of its family."""

    model_class: str
    options: dict[str, Any] = {}

    @property
    def writes(self) -> bool:
        return self.model_class.endswith(("LMHeadModel", "CausalLM", "ConditionalGeneration", "MTModel"))


IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SIZES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": D, "n_head": H, "n_layer": 2, "n_positions": 40},
    "llama": {
        "hidden_size": D, "num_attention_heads": H, "num_key_value_heads": 2, "num_hidden_layers": 2, "intermediate_size": 40,
        "max_position_embeddings": 40,
    },
}  # fmt: skip
SIZES |= {name: SIZES["llama"] | {"rms_norm_eps": 1e-4} for name in ("mistral", "qwen2")}
SIZES["gemma"] = SIZES["qwen3"] = SIZES["llama"] | {"head_dim": 10}
SIZES["gpt_neox"] = {
    "hidden_size": D, "num_attention_heads": H, "num_hidden_layers": 2, "intermediate_size": 40, "max_position_embeddings": 40,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 4 / 6},
}  # fmt: skip
SIZES["bert"] = {
    "hidden_size": D, "num_attention_heads": H, "num_hidden_layers": 2, "intermediate_size": 40, "max_position_embeddings": 11,
}  # fmt: skip
SIZES["vit"] = {
    "hidden_size": D, "num_attention_heads": H, "num_hidden_layers": 2, "intermediate_size": 40, "image_size": 12,
    "patch_size": 4, "num_channels": 2,
}  # fmt: skip
SIZES["roberta"] = SIZES["bert"] | {"pad_token_id": 1, "bos_token_id": 0}
SIZES["distilbert"] = {"dim": D, "n_heads": H, "n_layers": 2, "hidden_dim": 40, "max_position_embeddings": 11}
SIZES["modernbert"] = {
    "hidden_size": D, "num_attention_heads": H, "num_hidden_layers": 4, "intermediate_size": 40, "max_position_embeddings": 40,
    "local_attention": 4, "cls_token_id": 1, "sep_token_id": 2,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 300.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
    },
}  # fmt: skip
SIZES["bart"] = {
    "d_model": D, "encoder_attention_heads": H, "decoder_attention_heads": H, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40,
    "encoder_layers": 2, "decoder_layers": 3, "max_position_embeddings": 40, "decoder_start_token_id": 2,
    "forced_eos_token_id": 2,
}  # fmt: skip
SIZES["mbart"] = SIZES["pegasus"] = SIZES["marian"] = SIZES["bart"]
SIZES["t5"] = {
    "d_model": D, "d_kv": 5, "num_heads": H, "d_ff": 40, "num_layers": 3, "num_decoder_layers": 2,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 6, "decoder_start_token_id": 0,
}  # fmt: skip

ROPE = {"rope_type": "default", "rope_theta": 70.0}
LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 16, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}  # fmt: skip
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 16}
# What is not used, as it is by default.
DEFAULT_LOCAL = {"local_attention": 128, "rope_parameters": {"full_attention": ROPE}}
DEFAULT_GLOBAL = {"rope_parameters": {"sliding_attention": ROPE}}
LAYERED_YARN = {"full_attention": YARN_ROPE, "sliding_attention": ROPE}

NATIVES: dict[str, Native] = {
    "gpt2": Native("GPT2LMHeadModel"),
    "gpt2-untied": Native("GPT2LMHeadModel", {"tie_word_embeddings": False, "n_inner": 40, "activation_function": "relu"}),
    "gpt2-unscaled": Native("GPT2LMHeadModel", {"scale_attn_weights": False, "layer_norm_epsilon": 1e-3}),
    "gpt2-bare": Native("GPT2Model"),
    "gpt2-sequences": Native("GPT2ForSequenceClassification", {"num_labels": 3}),
    "gpt2-tokens": Native("GPT2ForTokenClassification", {"num_labels": 3}),
    "gpt2-answers": Native("GPT2ForQuestionAnswering"),
    "llama": Native("LlamaForCausalLM"),
    "llama-tied": Native("LlamaForCausalLM", {"tie_word_embeddings": True, "num_key_value_heads": 4, "hidden_act": "gelu"}),
    "llama-biases": Native("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1}),
    "llama-wide-heads": Native("LlamaForCausalLM", {"head_dim": 10, "rope_parameters": ROPE}),
    "llama-3-rope": Native("LlamaForCausalLM", {"rope_parameters": LLAMA3_ROPE}),
    "llama-yarn": Native("LlamaForCausalLM", {"rope_parameters": YARN_ROPE}),
    "llama-bare": Native("LlamaModel"),
    "llama-sequences": Native("LlamaForSequenceClassification", {"num_labels": 3}),
    "llama-tokens": Native("LlamaForTokenClassification", {"num_labels": 3}),
    "llama-answers": Native("LlamaForQuestionAnswering"),
    "mistral": Native("MistralForCausalLM", {"sliding_window": 3}),
    "mistral-no-window": Native("MistralForCausalLM", {"sliding_window": None, "head_dim": 10}),
    "qwen2": Native("Qwen2ForCausalLM", {"tie_word_embeddings": True}),
    "qwen2-window": Native("Qwen2ForCausalLM", {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 0}),
    "qwen3": Native("Qwen3ForCausalLM"),
    "qwen3-biases": Native("Qwen3ForCausalLM", {"attention_bias": True, "tie_word_embeddings": True}),
    "gemma": Native("GemmaForCausalLM"),
    "gemma-untied": Native("GemmaForCausalLM", {"tie_word_embeddings": False, "attention_bias": True, "head_dim": 6}),
    "gemma-sequences": Native("GemmaForSequenceClassification", {"num_labels": 3}),
    "gpt_neox": Native("GPTNeoXForCausalLM"),
    "gpt_neox-one-by-one": Native("GPTNeoXForCausalLM", {"use_parallel_residual": False, "tie_word_embeddings": True}),
    "gpt_neox-no-bias": Native("GPTNeoXForCausalLM", {"attention_bias": False, "hidden_act": "gelu_new"}),
    "gpt_neox-bare": Native("GPTNeoXModel"),
    "gpt_neox-sequences": Native("GPTNeoXForSequenceClassification", {"num_labels": 3}),
    "gpt_neox-tokens": Native("GPTNeoXForTokenClassification", {"num_labels": 3}),
    "gpt_neox-answers": Native("GPTNeoXForQuestionAnswering"),
    "bert": Native("BertForMaskedLM", {"layer_norm_eps": 1e-3}),
    "bert-untied": Native("BertForMaskedLM", {"tie_word_embeddings": False, "hidden_act": "relu", "type_vocab_size": 3}),
    "bert-bare": Native("BertModel"),
    "bert-sequences": Native("BertForSequenceClassification", {"num_labels": 3}),
    "bert-tokens": Native("BertForTokenClassification", {"num_labels": 3}),
    "bert-answers": Native("BertForQuestionAnswering"),
    "roberta": Native("RobertaForMaskedLM", {"type_vocab_size": 1}),
    "roberta-bare": Native("RobertaModel", {"hidden_act": "relu"}),
    "roberta-sequences": Native("RobertaForSequenceClassification", {"num_labels": 3}),
    "roberta-tokens": Native("RobertaForTokenClassification", {"num_labels": 3}),
    "roberta-answers": Native("RobertaForQuestionAnswering"),
    "distilbert": Native("DistilBertForMaskedLM"),
    "distilbert-bare": Native("DistilBertModel"),
    "distilbert-sequences": Native("DistilBertForSequenceClassification", {"num_labels": 3, "activation": "relu"}),
    "distilbert-tokens": Native("DistilBertForTokenClassification", {"num_labels": 3}),
    "distilbert-answers": Native("DistilBertForQuestionAnswering"),
    "vit": Native("ViTForImageClassification", {"num_labels": 3}),
    "vit-no-bias": Native("ViTForImageClassification", {"qkv_bias": False, "hidden_act": "relu", "layer_norm_eps": 1e-3}),
    "vit-wide-heads": Native("ViTForImageClassification", {"head_dim": 10, "patch_size": 6, "num_channels": 1}),
    "vit-bare": Native("ViTModel"),
    "modernbert": Native("ModernBertForMaskedLM"),
    "modernbert-biases": Native(
        "ModernBertForMaskedLM",
        {
            "norm_bias": True, "attention_bias": True, "mlp_bias": True, "classifier_bias": True, "decoder_bias": False,
            "tie_word_embeddings": False, "norm_eps": 1e-3, "hidden_activation": "relu", "classifier_activation": "relu",
        },
    ),
    "modernbert-every-second": Native(
        "ModernBertForMaskedLM", {"layer_types": ["full_attention", "sliding_attention"] * 2, "local_attention": 6}
    ),
    "modernbert-all-full": Native("ModernBertForMaskedLM", {"layer_types": ["full_attention"] * 4} | DEFAULT_LOCAL),
    "modernbert-all-local": Native("ModernBertForMaskedLM", {"layer_types": ["sliding_attention"] * 4} | DEFAULT_GLOBAL),
    "modernbert-yarn": Native("ModernBertForMaskedLM", {"rope_parameters": LAYERED_YARN}),
    "modernbert-bare": Native("ModernBertModel"),
    "modernbert-sequences": Native("ModernBertForSequenceClassification", {"num_labels": 3, "classifier_activation": "silu"}),
    "modernbert-sequences-mean": Native(
        "ModernBertForSequenceClassification", {"num_labels": 3, "classifier_pooling": "mean", "classifier_bias": True}
    ),
    "modernbert-tokens": Native("ModernBertForTokenClassification", {"num_labels": 3, "norm_bias": True}),
    "modernbert-answers": Native("ModernBertForQuestionAnswering"),
    "bart": Native("BartForConditionalGeneration"),
    "bart-untied": Native("BartForConditionalGeneration", {"tie_word_embeddings": False, "scale_embedding": True}),
    "bart-bare": Native("BartModel", {"activation_function": "relu"}),
    "mbart": Native("MBartForConditionalGeneration", {"scale_embedding": True}),
    "pegasus": Native("PegasusForConditionalGeneration", {"scale_embedding": True, "activation_function": "relu"}),
    "marian": Native("MarianMTModel", {"scale_embedding": True, "activation_function": "silu"}),
    "marian-two-tables": Native("MarianMTModel", {"share_encoder_decoder_embeddings": False}),
    "marian-untied": Native("MarianMTModel", {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False}),
    "t5": Native("T5ForConditionalGeneration"),
    "t5-v1.1": Native("T5ForConditionalGeneration", {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "t5-gated-silu": Native("T5ForConditionalGeneration", {"feed_forward_proj": "gated-silu", "d_kv": 6}),
    "t5-bare": Native("T5Model"),
}  # fmt: skip


def native_model(name: str, **options) -> Any:
    """In evaluation mode, every weight random: ones and zeros of a new model would hide what is swapped or forgotten."""
    model_class = getattr(transformers, NATIVES[name].model_class)
    config_class = model_class.config_class
    tokens = {} if config_class.model_type == "vit" else {"vocab_size": V, **IDS}
    sizes = tokens | SIZES[config_class.model_type]
    sizes = copy.deepcopy({**sizes, **NATIVES[name].options, **options})  # configs keep what they are given, and add to it
    model = model_class(config_class(**sizes)).eval()
    if "bare" in name and hasattr(model, "pooler"):
        model.pooler = None  # a head, of which our bare model has none
    if name == "t5-v1.1":  # as after loading a checkpoint that has two matrices
        model.lm_head.weight = nn.Parameter(torch.empty_like(model.lm_head.weight))
        del model.all_tied_weights_keys["lm_head.weight"]
    if hasattr(model, "final_logits_bias") and name != "bart-untied":
        model.final_logits_bias.normal_(std=0.3)
    return randomised(model)


def randomised(model: nn.Module) -> Any:
    generator = torch.Generator().manual_seed(3)
    for path, parameter in model.named_parameters():
        is_norm = parameter.dim() == 1 and path.endswith("weight")
        if parameter.requires_grad:
            nn.init.normal_(parameter, mean=float(is_norm), std=0.3, generator=generator)
    return model


def batch_for(model: Any, padding_side: str = "right") -> dict[str, Tensor]:
    """Ids for this model, the last example with padding; or pictures."""
    generator = torch.Generator().manual_seed(4)
    if size := getattr(model.config, "image_size", None):
        return {"pixel_values": torch.randn(B, model.config.num_channels, size, size, generator=generator)}
    ids = torch.randint(3, V, (B, S), generator=generator)
    mask = torch.ones(B, S, dtype=torch.long)
    hidden = slice(None, 2) if padding_side == "left" else slice(S - 2, None)
    mask[-1, hidden], ids[-1, hidden] = 0, model.config.pad_token_id or 0
    batch = {"input_ids": ids, "attention_mask": mask}
    reads_types = getattr(model.config, "shape", "encoder") != "decoder"
    if reads_types and (types := getattr(model.config, "type_vocab_size", 0)) > 1:
        batch["token_type_ids"] = torch.randint(types, (B, S), generator=generator)
    if model.config.is_encoder_decoder:
        batch["decoder_input_ids"] = torch.randint(3, V, (B, T), generator=generator)
    return batch


def outputs_of(model: Any, batch: dict[str, Tensor]) -> list[Tensor]:
    """What a model answers, at the positions that are no padding."""
    with torch.no_grad():
        outputs = model(**batch)
    found = [outputs[name] for name in ("logits", "start_logits", "end_logits", "last_hidden_state") if name in outputs][:2]
    if "attention_mask" not in batch:
        return found
    tokens = batch["attention_mask"].bool()
    return [each[tokens] if each.shape[:2] == tokens.shape else each for each in found]
