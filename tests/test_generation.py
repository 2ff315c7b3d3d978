"""Decoding a token at a time says the same as one forward, whatever the cache, the padding or the search."""

import pytest
import torch
from models import VARIANTS, B, D, H, V, tiny_config, tiny_language_model
from transformers import DynamicCache, EncoderDecoderCache, StaticCache


GENERATING = ("encoder-decoder", "decoder")
# ALiBi in a sliding cache does not notice if all keys are misplaced alike; buckets do.
CASES = {**VARIANTS, "window-relative": {**VARIANTS["relative"], "attention_window": 3}}
S, T, NEW = 8, 9, 6  # source, target and generated length: all longer than the windows of CASES
SOURCE_LENGTHS, TARGET_LENGTHS = (S, 5), (T, 6)  # of the two rows of a padded batch

each_shape = pytest.mark.parametrize("shape", GENERATING)
each_variant = pytest.mark.parametrize("variant", CASES)


def talkative_model(shape, **overrides):
    """A model whose text varies: untrained and with tied embeddings, it would say the last word again and again."""
    model = tiny_language_model(shape, **{"tie_word_embeddings": False, "eos_token_id": None, **overrides})
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(2.0 if weight.dim() > 1 else 1.0)
    return model


def words(*shape):
    """Random tokens, none of them special."""
    return torch.randint(5, V, shape)


def pad_rows(tokens, lengths, side):
    """Keeps the first `lengths` tokens of each row and pads them on one side: tokens and mask [B, longest]."""
    mask = torch.arange(tokens.shape[1]) < torch.tensor(lengths)[:, None]
    mask = mask.flip(1) if side == "left" else mask
    padded = torch.zeros_like(tokens)
    padded[mask] = torch.cat([row[:length] for row, length in zip(tokens, lengths)])
    return padded, mask.long()


def make_source(shape, lengths=None):
    """What the encoder reads, padded on the right; nothing for a decoder."""
    if shape == "decoder":
        return {}
    tokens = words(B, S)
    if lengths is None:
        return {"input_ids": tokens}
    tokens, mask = pad_rows(tokens, lengths, "right")
    return {"input_ids": tokens, "attention_mask": mask}


def decode(model, tokens, source, mask=None, positions=None, **kwargs):
    """One forward of the decoder, with or without an encoder before it."""
    prefix = "decoder_" if source else ""
    target = {f"{prefix}input_ids": tokens, f"{prefix}attention_mask": mask, f"{prefix}position_ids": positions}
    return model(**source, **target, **kwargs)


def rows_alone(inputs):
    """Each row of a batch by itself, without its padding."""
    masks = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).bool()
    return [{"input_ids": row[mask][None]} for row, mask in zip(inputs["input_ids"], masks)]


def make_prompt(shape):
    """A padded batch to generate from: on the left for a decoder, on the right for an encoder."""
    if shape == "encoder-decoder":
        return make_source(shape, SOURCE_LENGTHS)
    tokens, mask = pad_rows(words(B, T), TARGET_LENGTHS, "left")
    return {"input_ids": tokens, "attention_mask": mask}


def write(model, prompt, **options):
    options = {"do_sample": False, "max_new_tokens": NEW, "output_logits": True, "output_scores": True, **options}
    return model.generate(**prompt, **options, return_dict_in_generate=True)


def assert_same_text(actual, expected):
    """The same tokens, and the same numbers behind them."""
    assert actual.sequences[:, -NEW:].tolist() == expected.sequences[:, -NEW:].tolist()
    if actual.get("sequences_scores") is not None:  # of beams, whose logits may come in another order
        torch.testing.assert_close(actual.sequences_scores, expected.sequences_scores, rtol=1e-4, atol=1e-4)
    else:
        torch.testing.assert_close(torch.stack(actual.logits), torch.stack(expected.logits), rtol=1e-4, atol=1e-4)


def static_cache(model, length):
    cache = StaticCache(config=model.config, max_cache_len=length)
    if not model.config.is_encoder_decoder:
        return cache
    return EncoderDecoderCache(cache, StaticCache(config=tiny_config(), max_cache_len=S))


# One forward at a time


@each_shape
@each_variant
@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize(
    ("sizes", "padded", "kernel"),
    [([1] * T, False, "sdpa"), ([1] * T, True, "eager"), ([2, 4, 1, 2], True, "sdpa"), ([2, 4, 1, 2], False, "eager")],
    ids=["one-by-one-sdpa", "one-by-one-padded-eager", "chunks-padded-sdpa", "chunks-eager"],
)
@torch.no_grad()
def test_decoding_with_a_cache_equals_one_forward_over_each_row_alone(shape, variant, kind, sizes, padded, kernel):
    model = talkative_model(shape, **CASES[variant], attn_implementation=kernel)
    source = make_source(shape, SOURCE_LENGTHS if padded else None)
    tokens, mask, positions = words(B, T), None, None
    if padded:
        tokens, mask = pad_rows(tokens, TARGET_LENGTHS, "left")
        positions = (mask.cumsum(1) - 1).masked_fill(mask == 0, 0)  # as generate counts them

    cache, logits, seen = static_cache(model, T + 2) if kind == "static" else None, [], 0
    for size in sizes:
        new = slice(seen, seen + size)
        seen += size
        known = {"mask": mask[:, :seen], "positions": positions[:, new]} if padded else {}
        outputs = decode(model, tokens[:, new], source, **known, past_key_values=cache, use_cache=True)
        cache = outputs.past_key_values
        logits.append(outputs.logits)

    logits = torch.cat(logits, dim=1)
    sources = rows_alone(source) if source else [{}] * B
    for row, length in enumerate(TARGET_LENGTHS if padded else (T,) * B):
        alone = decode(model, tokens[row : row + 1, T - length :], sources[row], use_cache=False)
        assert alone.past_key_values is None
        torch.testing.assert_close(logits[row, T - length :], alone.logits[0], rtol=1e-4, atol=1e-4)


@each_shape
@pytest.mark.parametrize("keep", [1, 3, torch.tensor([0, 2, 7])], ids=["one", "three", "tensor"])
@torch.no_grad()
def test_logits_to_keep_gives_those_logits_and_no_others(shape, keep):
    model, source, tokens = talkative_model(shape), make_source(shape), words(B, T)
    everything = decode(model, tokens, source).logits
    kept = decode(model, tokens, source, logits_to_keep=keep).logits
    torch.testing.assert_close(kept, everything[:, -keep:] if isinstance(keep, int) else everything[:, keep])


# The text that generate writes


@each_shape
@each_variant
@torch.no_grad()
def test_greedy_search_equals_an_argmax_loop_over_each_row_alone(shape, variant):
    model, prompt = talkative_model(shape, **CASES[variant]), make_prompt(shape)
    written = write(model, prompt).sequences[:, -NEW:]
    for row, alone in zip(written, rows_alone(prompt)):
        source, tokens = ({}, alone["input_ids"]) if shape == "decoder" else (alone, torch.ones(1, 1, dtype=torch.long))
        for _ in range(NEW):
            best = decode(model, tokens, source, use_cache=False).logits[:, -1:].argmax(-1)
            tokens = torch.cat((tokens, best), dim=1)
        assert row.tolist() == tokens[0, -NEW:].tolist()


@each_shape
@each_variant
@pytest.mark.parametrize("num_beams", [1, 4], ids=["greedy", "beams"])
@pytest.mark.parametrize("options", [{"use_cache": False}, {"cache_implementation": "static"}], ids=["no-cache", "static-cache"])
def test_the_cache_does_not_change_the_text(shape, variant, num_beams, options):
    model, prompt = talkative_model(shape, **CASES[variant]), make_prompt(shape)
    expected = write(model, prompt, num_beams=num_beams)
    assert_same_text(write(model, prompt, num_beams=num_beams, **options), expected)


@each_shape
@each_variant
def test_beams_over_a_padded_batch_equal_beams_over_each_row_alone(shape, variant):
    model, prompt = talkative_model(shape, **CASES[variant]), make_prompt(shape)
    together = write(model, prompt, num_beams=4)
    for row, alone in enumerate(rows_alone(prompt)):
        by_itself = write(model, alone, num_beams=4)
        assert together.sequences[row, -NEW:].tolist() == by_itself.sequences[0, -NEW:].tolist()
        torch.testing.assert_close(together.sequences_scores[row], by_itself.sequences_scores[0], rtol=1e-4, atol=1e-4)


@each_shape
@torch.no_grad()
def test_as_many_beams_as_words_find_the_best_pair_of_words(shape):
    model, prompt = talkative_model(shape), rows_alone(make_prompt(shape))[0]
    found = write(model, prompt, num_beams=V, max_new_tokens=2)

    source, start = ({}, prompt["input_ids"]) if shape == "decoder" else (prompt, torch.ones(1, 1, dtype=torch.long))
    pairs = torch.cartesian_prod(torch.arange(V), torch.arange(V))
    source = {name: ids.expand(len(pairs), -1) for name, ids in source.items()}
    logits = decode(model, torch.cat((start.expand(len(pairs), -1), pairs), dim=1), source).logits[:, -3:-1]
    scores = logits.log_softmax(-1).gather(-1, pairs[..., None]).sum((1, 2))
    assert found.sequences[0, -2:].tolist() == pairs[scores.argmax()].tolist()
    torch.testing.assert_close(found.sequences_scores[0], scores.max() / 2)  # a mean over the two words


@pytest.mark.parametrize("implementation", [None, "static"], ids=["dynamic", "static"])
def test_the_window_cuts_the_cache_of_the_target_but_not_of_the_source(implementation):
    model = talkative_model("encoder-decoder", attention_window=3)
    prompt = make_source("encoder-decoder")
    cache = write(model, prompt, cache_implementation=implementation).past_key_values
    kind = StaticCache if implementation else DynamicCache
    assert isinstance(cache.self_attention_cache, kind)
    assert isinstance(cache.cross_attention_cache, kind)
    assert all(layer.is_sliding and layer.keys.shape[2] <= 3 for layer in cache.self_attention_cache.layers)
    assert all(not layer.is_sliding and layer.keys.shape[2] == S for layer in cache.cross_attention_cache.layers)


@each_shape
@pytest.mark.parametrize("window", [2, T + NEW + 1], ids=["one-back", "longer-than-the-text"])
@pytest.mark.parametrize("implementation", [None, "static"], ids=["dynamic", "static"])
def test_a_cache_serves_the_narrowest_and_the_widest_window(shape, window, implementation):
    model, prompt = talkative_model(shape, attention_window=window), make_prompt(shape)
    expected = write(model, prompt, use_cache=False)
    assert_same_text(write(model, prompt, cache_implementation=implementation), expected)


def test_generate_uses_the_cache_that_it_is_given():
    model = talkative_model("encoder-decoder", attention_window=3)
    prompt, cache = make_source("encoder-decoder"), EncoderDecoderCache(DynamicCache(config=tiny_config()), DynamicCache())
    expected = write(model, prompt)
    written = write(model, prompt, past_key_values=cache)
    assert written.past_key_values is cache
    assert_same_text(written, expected)


@each_shape
@each_variant
@pytest.mark.parametrize("cache", [None, "static"], ids=["dynamic", "static"])
def test_generation_continues_from_a_returned_cache(shape, variant, cache):
    model, prompt = talkative_model(shape, **CASES[variant]), make_prompt(shape)
    whole = write(model, prompt, cache_implementation=cache, max_cache_len=T + NEW)
    first = write(model, prompt, cache_implementation=cache, max_cache_len=T + NEW, max_new_tokens=2)
    if shape == "decoder":
        prompt = {"input_ids": first.sequences, "attention_mask": torch.cat((prompt["attention_mask"], torch.ones(B, 2)), dim=1)}
    else:
        # The mask tells generate that the ids are all there are, not only those that are new to the cache.
        mask = torch.ones_like(first.sequences)
        prompt = {**prompt, "decoder_input_ids": first.sequences, "decoder_attention_mask": mask}
    rest = write(model, prompt, past_key_values=first.past_key_values, max_new_tokens=NEW - 2)
    assert rest.sequences.tolist() == whole.sequences.tolist()
    torch.testing.assert_close(torch.stack(rest.logits), torch.stack(whole.logits[2:]), rtol=1e-4, atol=1e-4)


@each_shape
@each_variant
@pytest.mark.parametrize("helper", ["assistant", "prompt-lookup"])
def test_assisted_decoding_writes_what_greedy_search_writes(shape, variant, helper):
    # Tied embeddings make a model repeat itself: then looking back at the prompt finds the next words.
    model = talkative_model(shape, **CASES[variant], tie_word_embeddings=helper == "prompt-lookup")
    options = {"prompt_lookup_num_tokens": 3}
    if helper == "assistant":  # the model without its last layer, which does little: often right, not always
        last = model.model.decoder.layers[-1]
        with torch.no_grad():
            for name, weight in last.named_parameters():
                weight.mul_(0.1 if "out_proj" in name or "down_proj" in name else 1.0)
        assistant = talkative_model(shape, **CASES[variant], num_decoder_layers=2)
        assistant.load_state_dict(model.state_dict(), strict=False)
        assistant.generation_config.update(num_assistant_tokens=4, assistant_confidence_threshold=0.0)
        options = {"assistant_model": assistant}

    prompt, length = rows_alone(make_prompt(shape))[0], 3 * NEW
    expected = model.generate(**prompt, do_sample=False, max_new_tokens=length)
    checked = []  # tokens in each forward
    model.register_forward_hook(lambda *call: checked.append(call[-1].logits.shape[1]))
    written = model.generate(**prompt, do_sample=False, max_new_tokens=length, **options)
    assert written.tolist() == expected.tolist()
    assert len(checked) < length  # some guesses were right


@each_shape
def test_text_ends_at_the_end_token_and_is_padded_after_it(shape):
    model, prompt = talkative_model(shape), make_prompt(shape)
    text = write(model, prompt).sequences[:, -NEW:]
    end = int(text[0, 2])
    written = write(model, prompt, eos_token_id=end).sequences[:, -NEW:]
    for row, full in zip(written.tolist(), text.tolist()):
        length = full.index(end) + 1 if end in full else len(full)
        assert row == full[:length] + [0] * (len(row) - length)
    assert written[0].tolist().count(end) == 1


@each_shape
@pytest.mark.parametrize("count", [1, 5])
def test_max_new_tokens_is_the_number_of_new_tokens(shape, count):
    model, prompt = talkative_model(shape), make_prompt(shape)
    given = T if shape == "decoder" else 1  # a decoder repeats its prompt, an encoder-decoder its start token
    assert write(model, prompt, max_new_tokens=count).sequences.shape == (B, given + count)


@each_shape
@pytest.mark.parametrize("variant", [name for name in CASES if name != "neighbours"])  # n-grams need ids
def test_embeddings_in_place_of_ids_give_the_same_text(shape, variant):
    model, prompt = talkative_model(shape, **CASES[variant]), make_prompt(shape)
    embeds = model.get_input_embeddings()(prompt["input_ids"])
    written = write(model, {"inputs_embeds": embeds, "attention_mask": prompt["attention_mask"]})
    assert_same_text(written, write(model, prompt))


@pytest.mark.parametrize("cache", [None, "static"], ids=["dynamic", "static"])
@each_variant
def test_a_prompt_read_in_chunks_gives_the_same_text(variant, cache):
    model, prompt = talkative_model("decoder", **CASES[variant]), make_prompt("decoder")
    written = write(model, prompt, prefill_chunk_size=4, cache_implementation=cache)
    assert_same_text(written, write(model, prompt))


# Sampling


@each_shape
@pytest.mark.parametrize("options", [{"temperature": 1.5}, {"top_k": 7}, {"top_p": 0.9}], ids=lambda options: next(iter(options)))
def test_sampling_depends_on_the_seed_alone(shape, options):
    model, prompt = talkative_model(shape), make_prompt(shape)

    def sample(seed):
        torch.manual_seed(seed)
        return write(model, prompt, do_sample=True, **options).sequences.tolist()

    assert sample(1) == sample(1)
    assert sample(1) != sample(2)


@each_shape
@pytest.mark.parametrize(
    "options", [{"temperature": 1e-6}, {"top_k": 1}, {"top_p": 1e-6}], ids=lambda options: next(iter(options))
)
def test_sampling_without_any_choice_is_greedy_search(shape, options):
    model, prompt = talkative_model(shape), make_prompt(shape)
    assert_same_text(write(model, prompt, do_sample=True, **options), write(model, prompt))


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_a_temperature_that_is_not_positive_is_refused(temperature):
    model, prompt = talkative_model("decoder"), make_prompt("decoder")
    with pytest.raises(ValueError, match="temperature"):
        write(model, prompt, do_sample=True, temperature=temperature)


# What else comes out of generate


def test_generate_returns_attention_maps_and_hidden_states_of_a_decoder():
    model, prompt = talkative_model("decoder", attn_implementation="eager"), make_prompt("decoder")
    written = write(model, prompt, output_attentions=True, output_hidden_states=True)
    assert len(written.attentions) == len(written.hidden_states) == NEW
    for step, (maps, states) in enumerate(zip(written.attentions, written.hidden_states)):
        queries = T if step == 0 else 1
        assert [tuple(weights.shape) for weights in maps] == [(B, H, queries, T + step)] * 3
        assert [tuple(state.shape) for state in states] == [(B, queries, D)] * 4


def test_generate_returns_attention_maps_and_hidden_states_of_an_encoder_decoder():
    model, prompt = talkative_model("encoder-decoder", attn_implementation="eager"), make_prompt("encoder-decoder")
    written = write(model, prompt, output_attentions=True, output_hidden_states=True)
    assert [tuple(weights.shape) for weights in written.encoder_attentions] == [(B, H, S, S)] * 2
    assert [tuple(state.shape) for state in written.encoder_hidden_states] == [(B, S, D)] * 3
    assert len(written.decoder_attentions) == len(written.cross_attentions) == len(written.decoder_hidden_states) == NEW
    for step in range(NEW):
        assert [tuple(weights.shape) for weights in written.decoder_attentions[step]] == [(B, H, 1, step + 1)] * 3
        assert [tuple(weights.shape) for weights in written.cross_attentions[step]] == [(B, H, 1, S)] * 3
        assert [tuple(state.shape) for state in written.decoder_hidden_states[step]] == [(B, 1, D)] * 4


@each_shape
def test_the_generation_config_is_saved_with_the_model(shape, tmp_path):
    model, prompt = talkative_model(shape), make_prompt(shape)
    model.generation_config.update(num_beams=3, max_new_tokens=4, length_penalty=0.6)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert loaded.generation_config.num_beams == 3
    assert loaded.generation_config.to_dict() == model.generation_config.to_dict()
    assert loaded.generate(**prompt).tolist() == model.generate(**prompt).tolist()
    assert loaded.generate(**prompt).shape[1] == 4 + (T if shape == "decoder" else 1)
