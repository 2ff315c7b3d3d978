# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Start here: the Transformer of "Attention Is All You Need" (https://arxiv.org/abs/1706.03762) and what is put on top of it.

Read downwards: a head adds logits and a loss (this file); `GlassformerModel` joins encoder and decoder (this file); a stack
embeds, makes the masks and runs its layers (`encoder.py`, `decoder.py`); a layer is residual connections; attention is the
formula (`attention.py`).
"""

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache, StaticCache
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPast,
    CausalLMOutputWithPast,
    ImageClassifierOutput,
    MaskedLMOutput,
    QuestionAnsweringModelOutput,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.modeling_utils import slice_logits_to_keep
from transformers.processing_utils import Unpack
from transformers.utils.generic import TransformersKwargs, can_return_tuple

from .checks import IGNORED, check_modality
from .decoder import Decoder
from .decoding import StepwiseGeneration, steps_of
from .dropout import Dropout
from .embeddings import OutputProjection, make_output_transform, make_pre_classifier, softcap
from .encoder import Encoder
from .losses import chunked_cross_entropy, classification_loss, cross_entropy, shift_left, shift_right, span_loss
from .masking import visible_keys
from .packed_linear import is_plain
from .phrases import PhraseVotes
from .pretrained import GlassformerPreTrainedModel


# B batch, T target length, S source length, D model width, V vocabulary


class GlassformerModel(GlassformerPreTrainedModel):
    """The bare model: an encoder, a decoder, or an encoder whose output a decoder attends to, as the config says."""

    _auto_class = "AutoModel"  # its code is saved beside its weights

    def __init__(self, config):
        super().__init__(config)
        self.encoder = Encoder(config) if config.num_encoder_layers else None
        self.decoder = Decoder(config) if config.num_decoder_layers else None
        self._tied_weights_keys = {}
        if config.is_encoder_decoder and config.embedding_tying != "target-output":
            self._tied_weights_keys["encoder.embed_tokens.weight"] = "decoder.embed_tokens.weight"
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        decoder_position_ids: Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        token_type_ids: Tensor | None = None,
        pixel_values: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput | BaseModelOutputWithPast | Seq2SeqModelOutput:
        """Ids [B, S] (and [B, T] for the decoder of an encoder-decoder) -> last_hidden_state [B, S or T, D].

        Masks are True for tokens and False for padding. An encoder that is given ids and no mask hides pad tokens.
        Token types are an encoder's, and ignored by one that has none. An encoder of pictures takes `pixel_values` [B, C, H, W]
        and nothing else, and S is then 1 + the number of patches.
        """
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training
        if self.encoder is None:
            check_modality(self.config.image_size, pixel_values, {})
            outputs = self.decoder(
                input_ids, attention_mask, position_ids,
                past_key_values=past_key_values, inputs_embeds=inputs_embeds, use_cache=use_cache, **kwargs,
            )  # fmt: skip
            return BaseModelOutputWithPast(
                last_hidden_state=outputs.last_hidden_state,
                past_key_values=outputs.past_key_values,
                hidden_states=outputs.hidden_states,
                attentions=outputs.attentions,
            )

        attention_mask = self.token_mask(input_ids, attention_mask)
        if encoder_outputs is None:
            if self.decoder is not None and input_ids is None and inputs_embeds is None:
                raise ValueError("The encoder got no input: pass input_ids, inputs_embeds or encoder_outputs.")
            encoder_outputs = self.encoder(
                input_ids, attention_mask, position_ids,
                inputs_embeds=inputs_embeds, token_type_ids=token_type_ids, pixel_values=pixel_values, **kwargs,
            )  # fmt: skip
        if self.decoder is None:
            return encoder_outputs
        if isinstance(encoder_outputs, (tuple, list)):
            names = ("last_hidden_state", "hidden_states", "attentions")
            encoder_outputs = BaseModelOutput(**dict(zip(names, encoder_outputs)))

        if attention_mask is not None and attention_mask.dim() > 2:
            batch = encoder_outputs.last_hidden_state.shape[0]
            attention_mask = visible_keys(attention_mask, batch)  # who sees whom within the source is the encoder's affair
        if decoder_input_ids is None and decoder_inputs_embeds is None:
            raise ValueError("The decoder got no input: pass decoder_input_ids (or labels, to a model with a head).")
        outputs = self.decoder(
            decoder_input_ids, decoder_attention_mask, decoder_position_ids,
            encoder_hidden_states=encoder_outputs.last_hidden_state, encoder_attention_mask=attention_mask,
            past_key_values=past_key_values, inputs_embeds=decoder_inputs_embeds, use_cache=use_cache, **kwargs,
        )  # fmt: skip
        return Seq2SeqModelOutput(
            last_hidden_state=outputs.last_hidden_state,
            past_key_values=outputs.past_key_values,
            decoder_hidden_states=outputs.hidden_states,
            decoder_attentions=outputs.attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
        )

    def get_input_embeddings(self) -> nn.Module:
        """The table of tokens or, where pictures are read, the projection of patches."""
        stack = self.encoder or self.decoder
        return stack.embed_tokens if self.config.image_size is None else stack.embed_patches.projection

    def set_input_embeddings(self, embeddings: nn.Module) -> None:
        if self.config.image_size is not None:
            self.encoder.embed_patches.projection = embeddings
            return
        (self.encoder or self.decoder).embed_tokens = embeddings
        if self.config.is_encoder_decoder and self._tied_weights_keys and self.config.tie_word_embeddings:
            self.decoder.embed_tokens = embeddings


# Heads that write text


class LanguageModelHead(GlassformerPreTrainedModel):
    """What the three heads that predict tokens share: logits from hidden states, and their loss."""

    reads = "text"
    _tp_plan = {"lm_head": "colwise_gather_output"}

    def __init__(self, config):
        super().__init__(config)
        self.model = GlassformerModel(config)
        tied = config.tie_word_embeddings and config.embedding_tying != "source-target"
        self.output_transform = make_output_transform(config)
        zero_row = config.padding_idx if tied else None
        self.lm_head = OutputProjection(config.d_model, config.vocab_size, zero_row, config.output_bias)
        self._tied_weights_keys = {}
        if config.embedding_tying != "source-target":
            stack = "decoder" if config.num_decoder_layers else "encoder"
            self._tied_weights_keys["lm_head.weight"] = f"model.{stack}.embed_tokens.weight"
        self.post_init()

    def set_output_embeddings(self, embeddings: nn.Linear) -> None:
        """Takes over a resized matrix, but not its class."""
        self.lm_head.weight, self.lm_head.bias = embeddings.weight, embeddings.bias
        self.lm_head.out_features = embeddings.out_features

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., D] -> [..., V]"""
        return self.project(self.output_transform(hidden))

    def project(self, x: Tensor) -> Tensor:
        return softcap(self.lm_head(x), self.config.logit_softcap)

    def output_matrix(self) -> Tensor | None:
        """What `project` multiplies with, where it does nothing else (an adapter or a softcap would)."""
        head = self.lm_head
        whole = type(head) is OutputProjection and head.bias is None and not head.is_shard
        return head.matrix() if whole and is_plain(head) and self.config.logit_softcap is None else None

    def logits_and_loss(
        self,
        hidden: Tensor,
        labels: Tensor | None,
        return_logits: bool,
        logits_to_keep: int | Tensor,
        num_items_in_batch: Tensor | int | None,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Logits [B, T, V] and loss. `return_logits=False` saves memory: then the loss is all that is computed."""
        smoothing = self.config.label_smoothing if self.training else 0.0
        if not return_logits:
            if labels is None:
                raise ValueError("return_logits=False leaves nothing to return without labels: pass labels too.")
            x, size, weight = self.output_transform(hidden), self.config.vocab_size, self.output_matrix()
            return None, chunked_cross_entropy(x, self.project, labels, size, smoothing, num_items_in_batch, weight)
        if labels is None:
            return self.logits(slice_logits_to_keep(hidden, logits_to_keep)), None
        logits = self.logits(hidden)
        loss = cross_entropy(logits, labels, smoothing, num_items_in_batch)
        keep_all = isinstance(logits_to_keep, int) and logits_to_keep == 0
        return logits if keep_all else slice_logits_to_keep(logits, logits_to_keep), loss


class GlassformerForConditionalGeneration(LanguageModelHead, StepwiseGeneration, GenerationMixin):
    """Encoder-decoder that writes a target for a source: translation, summaries, anything from text to text."""

    _auto_class = "AutoModelForSeq2SeqLM"  # its code is saved beside its weights
    shapes = ("encoder-decoder",)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        decoder_position_ids: Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        return_logits: bool = True,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqLMOutput:
        """With `labels` [B, T] and no decoder input, the decoder reads the labels shifted right (teacher forcing)."""
        if decoder_input_ids is not None and (steps := steps_of(past_key_values)) is not None:  # inside `generate`
            return Seq2SeqLMOutput(logits=steps(decoder_input_ids), past_key_values=past_key_values)
        if labels is not None and decoder_input_ids is None and decoder_inputs_embeds is None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        outputs = self.model(
            input_ids, attention_mask,
            decoder_input_ids=decoder_input_ids, decoder_attention_mask=decoder_attention_mask,
            decoder_position_ids=decoder_position_ids, encoder_outputs=encoder_outputs, past_key_values=past_key_values,
            inputs_embeds=inputs_embeds, decoder_inputs_embeds=decoder_inputs_embeds, use_cache=use_cache, **kwargs,
        )  # fmt: skip
        logits, loss = self.logits_and_loss(outputs.last_hidden_state, labels, return_logits, logits_to_keep, num_items_in_batch)
        return Seq2SeqLMOutput(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            decoder_hidden_states=outputs.decoder_hidden_states,
            decoder_attentions=outputs.decoder_attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
            encoder_hidden_states=outputs.encoder_hidden_states,
            encoder_attentions=outputs.encoder_attentions,
        )

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        return shift_right(labels, self.config.decoder_start_token_id, self.config.pad_token_id)

    def _prepare_cache_for_generation(self, generation_config, model_kwargs, *args, **kwargs) -> None:
        """The source is seen whole, whatever window the target has: its cache must not slide."""
        given = model_kwargs.get("past_key_values")
        super()._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)
        cache = model_kwargs.get("past_key_values")
        if self.config.attention_window is None or cache is given or not isinstance(cache, EncoderDecoderCache):
            return
        memory_cache: Cache = DynamicCache()
        if isinstance(cache.self_attention_cache, StaticCache):
            unwindowed = self.config_class.from_dict(self.config.to_dict() | {"attention_window": None})
            length = model_kwargs["encoder_outputs"][0].shape[1]
            memory_cache = StaticCache(config=unwindowed, max_cache_len=length)
        model_kwargs["past_key_values"] = EncoderDecoderCache(cache.self_attention_cache, memory_cache)


class GlassformerForCausalLM(LanguageModelHead, StepwiseGeneration, GenerationMixin):
    """Decoder that continues a text."""

    _auto_class = "AutoModelForCausalLM"  # its code is saved beside its weights
    shapes = ("decoder",)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        return_logits: bool = True,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> CausalLMOutputWithPast:
        """`labels` are the input ids, with -100 where nothing is to be learnt.

        A caller that has shifted them already passes `shift_labels` (no named argument: Trainer takes those for its labels).
        """
        if input_ids is not None and (steps := steps_of(past_key_values)) is not None:  # inside `generate`
            return CausalLMOutputWithPast(logits=steps(input_ids), past_key_values=past_key_values)
        shift_labels = kwargs.pop("shift_labels", None)
        outputs = self.model(
            input_ids, attention_mask, position_ids,
            past_key_values=past_key_values, inputs_embeds=inputs_embeds, use_cache=use_cache, **kwargs,
        )  # fmt: skip
        if shift_labels is None and labels is not None:
            shift_labels = shift_left(labels)
            if attention_mask is not None and attention_mask.shape == labels.shape:  # padding on the left predicts nothing
                shift_labels = shift_labels.masked_fill(~attention_mask.bool(), IGNORED)
        logits, loss = self.logits_and_loss(
            outputs.last_hidden_state, shift_labels, return_logits, logits_to_keep, num_items_in_batch
        )
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class GlassformerForMaskedLM(LanguageModelHead):
    """Encoder that restores words that were hidden from it."""

    _auto_class = "AutoModelForMaskedLM"  # its code is saved beside its weights
    shapes = ("encoder",)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        return_logits: bool = True,
        num_items_in_batch: Tensor | int | None = None,
        token_type_ids: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MaskedLMOutput:
        """`labels` [B, S] hold the original token where one was hidden and -100 elsewhere."""
        outputs = self.model(
            input_ids, attention_mask, position_ids, inputs_embeds=inputs_embeds, token_type_ids=token_type_ids, **kwargs
        )
        logits, loss = self.logits_and_loss(outputs.last_hidden_state, labels, return_logits, 0, num_items_in_batch)
        return MaskedLMOutput(loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions)


# Heads that judge


class ClassifierHead(GlassformerPreTrainedModel):
    """A bare model and a linear layer on its output, perhaps after a dense one."""

    shapes: tuple[str, ...] = ("encoder", "decoder")
    reads = "text"

    def __init__(self, config):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = GlassformerModel(config)
        self.dropout = Dropout(config.dropout)
        self.pre_classifier = make_pre_classifier(config)
        self.classifier = nn.Linear(config.d_model, config.num_labels, bias=config.classifier_bias)
        self.post_init()

    def judge(
        self,
        hidden: Tensor,
        tokens: Tensor | None,
        labels: Tensor | None,
        num_items_in_batch: Tensor | int | None,
        votes: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Logits [B, num_labels] for each whole sequence of hidden states [B, S, D], `votes` added, and their loss."""
        pooled = pool(hidden, tokens, self.config.pooling)
        logits = self.classifier(self.dropout(self.pre_classifier(pooled)))
        logits = logits if votes is None else logits + votes
        if labels is None:
            return logits, None
        smoothing = self.config.label_smoothing if self.training else 0.0
        return logits, classification_loss(logits, labels, self.config.problem_type, smoothing, num_items_in_batch)


class GlassformerForSequenceClassification(ClassifierHead):
    """One answer for a whole text: a class, several labels, or a number."""

    _auto_class = "AutoModelForSequenceClassification"  # its code is saved beside its weights

    def __init__(self, config):
        super().__init__(config)
        sizes = config.phrase_buckets, config.num_labels, config.phrase_size
        self.phrases = PhraseVotes(*sizes, config.token_dropout) if config.phrase_size else None

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        token_type_ids: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> SequenceClassifierOutput:
        """Ids [B, S] -> logits [B, num_labels]; what `labels` are is said by the config's `problem_type`, or by their dtype."""
        outputs = self.model(
            input_ids, attention_mask, position_ids, inputs_embeds=inputs_embeds, token_type_ids=token_type_ids, **kwargs
        )
        tokens = self.token_mask(input_ids, attention_mask)
        votes = None if self.phrases is None else self.count_votes(input_ids, tokens)
        logits, loss = self.judge(outputs.last_hidden_state, tokens, labels, num_items_in_batch, votes)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )

    def count_votes(self, input_ids: Tensor | None, tokens: Tensor | None) -> Tensor:
        """What phrases add to the logits: [B, num_labels]"""
        if input_ids is None:
            raise ValueError(
                f"phrase_size={self.config.phrase_size} looks up the ids of phrases, which inputs_embeds do not tell: pass "
                f"input_ids."
            )
        return self.phrases(input_ids, tokens)


class GlassformerForImageClassification(ClassifierHead):
    """One answer for a picture: a class, several labels, or a number."""

    _auto_class = "AutoModelForImageClassification"  # its code is saved beside its weights
    shapes = ("encoder",)
    reads = "pictures"
    main_input_name = "pixel_values"

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> ImageClassifierOutput:
        """Pictures [B, C, H, W] -> logits [B, num_labels]; for `labels`, see `GlassformerForSequenceClassification`."""
        outputs = self.model(pixel_values=pixel_values, **kwargs)
        logits, loss = self.judge(outputs.last_hidden_state, None, labels, num_items_in_batch)
        return ImageClassifierOutput(loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions)


def pool(hidden: Tensor, tokens: Tensor | None, how: str) -> Tensor:
    """One vector a sequence, from its tokens alone and wherever the padding is: [B, S, D] -> [B, D]."""
    if tokens is not None and tokens.dim() != 2:
        raise ValueError(
            f"attention_mask has the shape {list(tokens.shape)}, which does not tell what to pool: pass {list(hidden.shape[:2])}."
        )
    if tokens is None:
        tokens = torch.ones(hidden.shape[:2], device=hidden.device)
    tokens = tokens.to(hidden.device).bool()
    if how == "mean":
        weights = tokens.to(hidden.dtype)[..., None]
        return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1)
    if how == "max":  # of each feature, as convolutional networks for text do
        highest = hidden.masked_fill(~tokens[..., None], -torch.inf).amax(1)
        return highest.masked_fill(~tokens.any(1, keepdim=True), 0.0)
    places = torch.arange(hidden.shape[1], device=hidden.device)
    place = (places * tokens).argmax(1) if how == "last" else tokens.int().argmax(1)
    return hidden[torch.arange(hidden.shape[0], device=hidden.device), place]


class GlassformerForTokenClassification(ClassifierHead):
    """One class for each token."""

    _auto_class = "AutoModelForTokenClassification"  # its code is saved beside its weights

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        token_type_ids: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> TokenClassifierOutput:
        """Ids [B, S] -> logits [B, S, num_labels]; `labels` [B, S] are -100 where nothing is asked."""
        outputs = self.model(
            input_ids, attention_mask, position_ids, inputs_embeds=inputs_embeds, token_type_ids=token_type_ids, **kwargs
        )
        logits = self.classifier(self.dropout(self.pre_classifier(outputs.last_hidden_state)))
        loss = None
        if labels is not None:
            smoothing = self.config.label_smoothing if self.training else 0.0
            loss = cross_entropy(logits, labels, smoothing, num_items_in_batch)
        return TokenClassifierOutput(loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions)


class GlassformerForQuestionAnswering(GlassformerPreTrainedModel):
    """Where in the text the answer starts and ends."""

    _auto_class = "AutoModelForQuestionAnswering"  # its code is saved beside its weights

    shapes = ("encoder", "decoder")
    reads = "text"

    def __init__(self, config):
        super().__init__(config)
        self.model = GlassformerModel(config)
        self.dropout = Dropout(config.dropout)
        self.pre_classifier = make_pre_classifier(config)
        self.qa_outputs = nn.Linear(config.d_model, 2)  # the name by which PEFT knows what to train beside its adapters
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        token_type_ids: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> QuestionAnsweringModelOutput:
        """Ids [B, S] -> start and end logits, each [B, S]; positions are [B]."""
        outputs = self.model(
            input_ids, attention_mask, position_ids, inputs_embeds=inputs_embeds, token_type_ids=token_type_ids, **kwargs
        )
        hidden = self.pre_classifier(outputs.last_hidden_state)
        start_logits, end_logits = self.qa_outputs(self.dropout(hidden)).unbind(-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            tokens = self.token_mask(input_ids, attention_mask)
            loss = span_loss(start_logits, end_logits, start_positions, end_positions, tokens, num_items_in_batch)
        return QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=start_logits,
            end_logits=end_logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


__all__ = [
    "GlassformerForCausalLM",
    "GlassformerForConditionalGeneration",
    "GlassformerForImageClassification",
    "GlassformerForMaskedLM",
    "GlassformerForQuestionAnswering",
    "GlassformerForSequenceClassification",
    "GlassformerForTokenClassification",
    "GlassformerModel",
    "GlassformerPreTrainedModel",
]
