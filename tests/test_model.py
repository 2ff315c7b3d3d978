"""What must hold of every model, whatever its shape and choices."""

import math

import pytest
import torch
from models import SHAPES, VARIANTS, B, D, S, T, V, tiny_config, tiny_language_model
from torch.testing import assert_close

import glassformer
from glassformer import (
    GlassformerForCausalLM,
    GlassformerForConditionalGeneration,
    GlassformerForQuestionAnswering,
    GlassformerForSequenceClassification,
    GlassformerForTokenClassification,
    GlassformerModel,
)


all_variants = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
all_shapes = pytest.mark.parametrize("shape", SHAPES)


def ids(batch: int = B, length: int = S) -> torch.Tensor:
    return torch.randint(5, V, (batch, length))


@all_variants
def test_the_future_cannot_influence_the_past(variant):
    source, target = ids(), ids(length=T)
    changed = target.clone()
    changed[:, 3] = (changed[:, 3] - 4) % (V - 5) + 5
    for model, inputs in (
        (tiny_language_model("encoder-decoder", **variant), lambda t: {"input_ids": source, "decoder_input_ids": t}),
        (tiny_language_model("decoder", **variant), lambda t: {"input_ids": t}),
    ):
        before, after = model(**inputs(target)).logits, model(**inputs(changed)).logits
        assert_close(after[:, :3], before[:, :3])
        assert (after[:, 3] - before[:, 3]).abs().max() > 1e-4


@all_variants
def test_padding_changes_nothing(variant):
    """Neither what stands at padded places nor how many there are."""
    source, target, mask = ids(), ids(length=T), torch.ones(B, S)
    padded = torch.nn.functional.pad(source, (0, 3), value=9)
    mask = torch.nn.functional.pad(mask, (0, 3))
    model = tiny_language_model("encoder", **variant)
    assert_close(model(padded, attention_mask=mask).logits[:, :S], model(source).logits)
    model = tiny_language_model("encoder-decoder", **variant)
    plain = model(source, decoder_input_ids=target).logits
    assert_close(model(padded, attention_mask=mask, decoder_input_ids=target).logits, plain)
    # Ids without a mask: pad tokens are hidden all the same.
    padded[:, S:] = 0
    assert_close(model(padded, decoder_input_ids=target).logits, plain)


@all_variants
def test_left_padding_changes_nothing(variant):
    prompt, model = ids(), tiny_language_model("decoder", **variant)
    mask = torch.nn.functional.pad(torch.ones(B, S), (4, 0))
    padded = torch.nn.functional.pad(prompt, (4, 0), value=9)
    positions = (mask.cumsum(-1) - 1).clamp(min=0).long()
    shifted = model(padded, attention_mask=mask, position_ids=positions).logits[:, 4:]
    assert_close(shifted, model(prompt).logits, atol=1e-5, rtol=1e-4)


@all_variants
@all_shapes
def test_batched_equals_one_by_one(variant, shape):
    model, source = tiny_language_model(shape, **variant), ids(3)
    inputs = {"decoder_input_ids": ids(3, T)} if shape == "encoder-decoder" else {}
    together = model(source, **inputs).logits
    for row in range(3):
        alone = model(source[row : row + 1], **{name: value[row : row + 1] for name, value in inputs.items()}).logits
        assert_close(together[row : row + 1], alone, atol=1e-5, rtol=1e-4)


@all_variants
@all_shapes
def test_every_parameter_gets_a_gradient(variant, shape):
    model = tiny_language_model(shape, **variant).train()
    source = ids()
    model(source, labels=source.clone()).loss.backward()
    without = {name for name, parameter in model.named_parameters() if parameter.grad is None or not parameter.grad.any()}
    # A bias of all keys moves all scores of a query alike: softmax does not notice, and its gradient is rounding noise.
    assert {name for name in without if "k_proj.bias" not in name} == set()
    assert all(parameter.grad is not None for parameter in model.parameters())


HEADS = {
    "sequence": (GlassformerForSequenceClassification, ("encoder", "decoder"), lambda: {"labels": torch.tensor([0, 2])}),
    "token": (GlassformerForTokenClassification, ("encoder", "decoder"), lambda: {"labels": torch.randint(3, (B, S))}),
    "question": (
        GlassformerForQuestionAnswering,
        ("encoder", "decoder"),
        lambda: {"start_positions": torch.tensor([1, 2]), "end_positions": torch.tensor([3, 4])},
    ),
}


@pytest.mark.parametrize("head", HEADS)
def test_classifiers_train_every_parameter(head):
    model_class, shapes, labels = HEADS[head]
    for shape in shapes:
        model = model_class(tiny_config(shape, num_labels=3))
        loss = model(ids(), **labels()).loss
        loss.backward()
        assert loss.isfinite() and loss > 0
        moot = ("k_proj.bias", "qa_outputs.bias")  # added to all scores alike, which a softmax does not see
        assert all(p.grad is not None and p.grad.any() for n, p in model.named_parameters() if not n.endswith(moot))


@pytest.mark.parametrize("pooling", ["mean", "max", "first", "last"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_pooling_sees_tokens_only_wherever_the_padding_is(pooling, side):
    model = GlassformerForSequenceClassification(tiny_config("encoder", pooling=pooling, position_encoding="none")).eval()
    source = ids()
    pad = (3, 0) if side == "left" else (0, 3)
    mask = torch.nn.functional.pad(torch.ones(B, S), pad)
    padded = torch.nn.functional.pad(source, pad, value=9)
    assert_close(model(padded, attention_mask=mask).logits, model(source).logits)
    hidden = model.model(source).last_hidden_state
    pooled = {"mean": hidden.mean(1), "max": hidden.amax(1), "first": hidden[:, 0], "last": hidden[:, -1]}[pooling]
    assert_close(model(source).logits, model.classifier(pooled))


def test_a_decoder_classifies_by_its_last_token():
    model = GlassformerForSequenceClassification(tiny_config("decoder", num_labels=4)).eval()
    source = ids()
    padded = torch.nn.functional.pad(source, (0, 2))
    assert_close(model(padded).logits, model(source).logits)
    assert_close(model(source).logits, model.classifier(model.model(source).last_hidden_state[:, -1]))


def test_regression_and_several_labels():
    source = ids()
    model = GlassformerForSequenceClassification(tiny_config("encoder", num_labels=1)).eval()
    out = model(source, labels=torch.tensor([0.5, -1.0]))
    assert_close(out.loss, ((out.logits[:, 0] - torch.tensor([0.5, -1.0])) ** 2).mean())
    model = GlassformerForSequenceClassification(tiny_config("encoder", num_labels=3)).eval()
    labels = torch.tensor([[1.0, 0, 1], [0, 0, 1]])
    out = model(source, labels=labels)
    assert_close(out.loss, torch.nn.functional.binary_cross_entropy_with_logits(out.logits, labels))


def test_the_source_reaches_the_target():
    model, target = tiny_language_model(), ids(length=T)
    one, other = model(ids(), decoder_input_ids=target).logits, model(ids(), decoder_input_ids=target).logits
    assert (one - other).abs().amax(-1).min() > 1e-5  # at every position


def test_encoding_once_and_decoding_step_by_step_is_the_same_as_both_at_once():
    model, source, target = tiny_language_model(), ids(), ids(length=T)
    whole = model(source, decoder_input_ids=target).logits
    encoded, cache, steps = model.get_encoder()(source), None, []
    for t in range(T):
        out = model(encoder_outputs=encoded, decoder_input_ids=target[:, t : t + 1], past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        steps.append(out.logits)
    assert_close(torch.cat(steps, 1), whole, atol=1e-5, rtol=1e-4)
    as_tuple = model(encoder_outputs=(encoded.last_hidden_state,), decoder_input_ids=target).logits
    assert_close(as_tuple, whole)


@all_shapes
def test_embeddings_may_be_given_instead_of_ids(shape):
    model, source = tiny_language_model(shape), ids()
    inputs = {"decoder_input_ids": ids(length=T)} if shape == "encoder-decoder" else {}
    embeds = model.get_input_embeddings()(source)
    assert_close(model(inputs_embeds=embeds, **inputs).logits, model(source, **inputs).logits)


def test_stacks_may_differ_in_depth():
    model = GlassformerModel(tiny_config(num_encoder_layers=4, num_decoder_layers=1))
    assert len(model.encoder.layers) == 4 and len(model.decoder.layers) == 1
    assert model(ids(), decoder_input_ids=ids(length=T)).last_hidden_state.shape == (B, T, D)


def test_each_shape_returns_the_outputs_that_fit():
    out = GlassformerModel(tiny_config())(ids(), decoder_input_ids=ids(length=T))
    assert type(out).__name__ == "Seq2SeqModelOutput" and out.encoder_last_hidden_state.shape == (B, S, D)
    out = GlassformerModel(tiny_config("encoder"))(ids())
    assert type(out).__name__ == "BaseModelOutput"
    decoder = GlassformerModel(tiny_config("decoder"))
    out = decoder.eval()(ids())
    assert type(out).__name__ == "BaseModelOutputWithPast" and out.past_key_values.get_seq_length() == S
    assert decoder.train()(ids()).past_key_values is None  # nothing will be generated from a training batch


def test_training_and_evaluation_differ_by_dropout_alone():
    source = ids()
    for dropout in (0.0, 0.3):
        model = tiny_language_model("encoder", dropout=dropout)
        evaluated = model(source).logits
        assert torch.equal(model(source).logits, evaluated)
        trained = model.train()(source).logits
        assert torch.allclose(trained, evaluated, atol=1e-6) == (dropout == 0.0)


def test_layer_drop_trains_and_is_off_in_evaluation():
    plain, dropping = tiny_language_model("decoder"), tiny_language_model("decoder", layer_drop=0.5, dropout=0.0)
    dropping.load_state_dict(plain.state_dict())
    source = ids()
    assert_close(dropping(source).logits, plain(source).logits)
    assert not torch.allclose(dropping.train()(source).logits, plain(source).logits)


def test_softcap_squeezes_the_logits():
    plain, capped = tiny_language_model("decoder"), tiny_language_model("decoder", logit_softcap=0.5)
    capped.load_state_dict(plain.state_dict())
    source = ids()
    assert_close(capped(source).logits, 0.5 * torch.tanh(plain(source).logits / 0.5))


def test_a_window_hides_what_is_far_in_one_layer():
    model = tiny_language_model("encoder", attention_window=2, num_encoder_layers=1)
    source = ids()
    changed = source.clone()
    changed[:, 0] = (changed[:, 0] - 4) % (V - 5) + 5
    difference = (model(source).logits - model(changed).logits).abs().amax((0, 2))
    assert (difference[:2] > 1e-4).all() and (difference[2:] < 1e-6).all()


def test_packed_sequences_do_not_see_each_other():
    """Positions that start again start a new document."""
    model, first, second = tiny_language_model("decoder", position_encoding="rope"), ids(1, 4), ids(1, 3)
    packed = model(torch.cat((first, second), 1), position_ids=torch.tensor([[0, 1, 2, 3, 0, 1, 2]]), use_cache=False).logits
    assert_close(packed, torch.cat((model(first).logits, model(second).logits), 1), atol=1e-5, rtol=1e-4)


def test_initialisation_is_the_papers():
    model = GlassformerForConditionalGeneration(glassformer.GlassformerConfig.from_preset("small"))
    state = model.state_dict()
    for name, tensor in state.items():
        if name.endswith("embed_tokens.weight"):
            assert tensor[1:].std() == pytest.approx(256**-0.5, rel=0.02) and (tensor[0] == 0).all()
        elif name.endswith("norm.weight"):
            assert (tensor == 1).all()
        elif name.endswith("bias"):
            assert (tensor == 0).all()
        elif "proj.weight" in name:
            bound = (6 / sum(tensor.shape)) ** 0.5
            assert 0.98 * bound < tensor.abs().max() <= bound, name
    untied = GlassformerForCausalLM(tiny_config("decoder", d_model=128, vocab_size=1000, tie_word_embeddings=False))
    source = torch.randint(5, 1000, (8, 30))
    assert untied.eval()(source, labels=source).loss.item() == pytest.approx(math.log(1000), abs=0.05)


@pytest.mark.parametrize("shape", ["encoder", "decoder", "encoder-decoder"])
def test_initialisation_may_be_as_narrow_as_berts(shape):
    model = tiny_language_model(shape, d_model=128, d_ff=256, position_encoding="learned", initializer_range=0.02)
    for name, tensor in model.state_dict().items():
        if tensor.dim() == 2:
            assert tensor[tensor != 0].std() == pytest.approx(0.02, rel=0.1), name
        else:
            assert (tensor == ("norm.weight" in name)).all(), name


@pytest.mark.parametrize("tying, groups", [
    ("three-way", [{"source", "target", "output"}]),
    ("target-output", [{"target", "output"}, {"source"}]),
    ("source-target", [{"source", "target"}, {"output"}]),
    (None, [{"source"}, {"target"}, {"output"}]),
])  # fmt: skip
def test_ties_make_one_tensor(tying, groups):
    options = {"tie_word_embeddings": False} if tying is None else {"embedding_tying": tying}
    model = tiny_language_model(**options)
    matrices = {
        "source": model.model.encoder.embed_tokens.weight,
        "target": model.model.decoder.embed_tokens.weight,
        "output": model.lm_head.weight,
    }
    same = {name: frozenset(other for other in matrices if matrices[other] is matrices[name]) for name in matrices}
    assert set(same.values()) == {frozenset(group) for group in groups}


@pytest.mark.parametrize("tying", ["three-way", "target-output", "source-target"])
def test_the_pad_row_stays_zero_while_tied_weights_train(tying):
    model = tiny_language_model(embedding_tying=tying).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    for _ in range(3):
        source = ids()
        source[:, -2:] = 0
        model(source, labels=source).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert (model.model.encoder.embed_tokens.weight[0] == 0).all()
    assert (model.model.decoder.embed_tokens.weight[0] == 0).all()


def test_blocking_the_pad_row_changes_no_other_gradient():
    model, source = tiny_language_model("decoder", dropout=0.0), ids()
    model.lm_head.zero_row, row = None, model.lm_head.zero_row
    model(source, labels=source).loss.backward()
    free = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    model.lm_head.zero_row = row
    model(source, labels=source).loss.backward()
    for name, parameter in model.named_parameters():
        if "embed_tokens" in name:
            assert free[name][0].any() and not parameter.grad[0].any()
            assert_close(parameter.grad[1:], free[name][1:])
        else:
            assert_close(parameter.grad, free[name], msg=name)


def test_a_mask_between_source_tokens_stays_in_the_encoder():
    """Cross-attention sees every source token that somebody in the source sees."""
    model, source, target = tiny_language_model(), ids(), ids(length=T)
    among_source = torch.ones(B, S, S, dtype=torch.bool).tril()
    among_source[:, :, S - 2 :] = False  # two tokens that nobody sees are padding
    encoded = model.get_encoder()(source, among_source)
    padding = torch.arange(S).expand(B, S) < S - 2
    expected = model(encoder_outputs=encoded, attention_mask=padding, decoder_input_ids=target).logits
    assert_close(model(source, attention_mask=among_source, decoder_input_ids=target).logits, expected)
    additive = torch.where(among_source, 0.0, torch.finfo(torch.float32).min)[:, None]
    assert_close(model(source, attention_mask=additive, decoder_input_ids=target).logits, expected)


def test_a_mask_of_who_sees_whom_is_combined_with_the_stacks_own():
    """Three dimensions add a restriction; four, as in transformers, replace every other."""
    target = ids()
    everything = torch.ones(B, S, S, dtype=torch.bool)
    for implementation in ("eager", "sdpa"):
        for window in (None, 3):
            model = tiny_language_model("decoder", attn_implementation=implementation, attention_window=window)
            assert_close(model(target, attention_mask=everything).logits, model(target).logits)
            replaced = model(target, attention_mask=everything[:, None], use_cache=False).logits
            assert not torch.allclose(replaced, model(target).logits, atol=1e-3)
            blocked = everything.clone()
            blocked[:, 3, :3] = False
            changed = target.clone()
            changed[:, 0] = (changed[:, 0] - 4) % (V - 5) + 5
            options = {"attn_implementation": implementation, "attention_window": window, "num_decoder_layers": 1}
            alone = tiny_language_model("decoder", **options)
            same = alone(target, attention_mask=blocked).logits, alone(changed, attention_mask=blocked).logits
            assert_close(same[0][:, 3], same[1][:, 3])
            assert not torch.allclose(same[0][:, 2], same[1][:, 2])


@pytest.mark.parametrize("position_encoding", ["alibi", "relative", "rope", "sinusoidal"])
def test_given_positions_mean_the_same_with_and_without_a_cache(position_encoding):
    """They turn and shift vectors; a bias on the scores goes by places in the sequence, which a cache knows too."""
    model, source = tiny_language_model("decoder", position_encoding=position_encoding), ids()
    # The mask says that this is one text; without it, transformers takes a jump for the start of another.
    inputs = {"position_ids": torch.arange(S)[None] * 3, "attention_mask": torch.ones(B, S)}
    cached, plain = (model(source, **inputs, use_cache=use_cache).logits for use_cache in (True, False))
    assert_close(cached, plain)
    unchanged = torch.allclose(plain, model(source).logits, atol=1e-4)
    assert unchanged == (position_encoding in ("alibi", "relative"))


def test_an_encoder_by_itself_hides_padding_too():
    model, source = tiny_language_model(), ids()
    padded = torch.nn.functional.pad(source, (0, 3))
    assert_close(model.get_encoder()(padded).last_hidden_state[:, :S], model.get_encoder()(source).last_hidden_state)


def test_an_encoder_looks_both_ways():
    model, source = tiny_language_model("encoder"), ids()
    changed = source.clone()
    changed[:, 3] = (changed[:, 3] - 4) % (V - 5) + 5
    assert ((model(source).logits - model(changed).logits).abs().amax((0, 2)) > 1e-5).all()


def test_one_token_is_a_sequence():
    for shape in SHAPES:
        target = {"decoder_input_ids": ids(1, 1)} if shape == "encoder-decoder" else {}
        logits = tiny_language_model(shape)(ids(1, 1), **target).logits
        assert logits.shape == (1, 1, V) and logits.isfinite().all()


def test_a_model_works_with_functional_gradients():
    model, source = tiny_language_model("decoder").train(), ids()
    parameters = dict(model.named_parameters())

    def loss(parameters):
        return torch.func.functional_call(model, parameters, (source,), {"labels": source, "use_cache": False}).loss

    model.config.dropout = 0.0
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    gradients = torch.func.grad(loss)(parameters)
    model(source, labels=source).loss.backward()
    for name, parameter in model.named_parameters():
        assert_close(gradients[name], parameter.grad, msg=name)
