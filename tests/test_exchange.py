"""Native models become ours and ours become native: equal answers, and every weight as it was after the round trip."""

import pytest
import torch
from native_models import NATIVES, batch_for, native_model, outputs_of
from torch.testing import assert_close

import glassformer


every_native = pytest.mark.parametrize("name", NATIVES)
writers = pytest.mark.parametrize("name", [name for name, native in NATIVES.items() if native.writes])

# Of a native config, what has no meaning for a trained model.
FORGOTTEN = {
    "architectures", "dtype", "_name_or_path", "transformers_version", "forced_eos_token_id", "normalize_before",
    "normalize_embedding", "add_final_layer_norm",
}  # fmt: skip
# Parameters that nothing is computed with, where they are not tied to one that is.
DEAD = {"cls.predictions.bias", "lm_head.bias", "model.shared.weight"}


def same_weights(one, other) -> None:
    one, other = one.state_dict(), other.state_dict()
    assert one.keys() == other.keys()
    assert {name for name in one if one[name].dtype != other[name].dtype or not torch.equal(one[name], other[name])} <= DEAD


def told(config) -> dict:
    return {name: value for name, value in config.to_dict().items() if name not in FORGOTTEN}


@every_native
def test_a_native_model_answers_the_same_as_ours_and_comes_back_unchanged(name):
    native = native_model(name)
    ours = glassformer.from_hf(native)
    assert type(ours).__name__.startswith("Glassformer") and not ours.training
    for side in ("right", "left"):
        # RoBERTa's positions leave out padding on the left, and BERT's classifier looks at it.
        if side == "left" and ("roberta" in name or name in ("bert-sequences", "distilbert-sequences")):
            continue
        batch = batch_for(native, side)
        for actual, expected in zip(outputs_of(ours, batch), outputs_of(native, batch), strict=True):
            assert expected.std() > 0.05  # or nothing would be compared
            assert_close(actual, expected, rtol=0, atol=1e-5)

    back = glassformer.to_hf(ours, to=native.config.model_type)
    assert type(back) is type(native)
    same_weights(native, back)
    assert told(back.config) == told(native.config)
    tied = [len({weight.data_ptr() for weight in model.state_dict().values()}) for model in (native, back)]
    assert tied[0] == tied[1]


@writers
def test_both_write_the_same_tokens(name):
    native = native_model(name)
    ours = glassformer.from_hf(native)
    batch = batch_for(native, "left")
    batch.pop("decoder_input_ids", None)
    # Random models like to repeat themselves: where they must not, every token is a choice.
    for search in ({}, {"num_beams": 3}, {"min_new_tokens": 6, "no_repeat_ngram_size": 1}):
        settings = {"do_sample": False, "max_new_tokens": 9, **search}
        expected = native.generate(**batch, **settings)
        assert torch.equal(ours.generate(**batch, **settings), expected)
    assert len(expected.unique()) > 6
