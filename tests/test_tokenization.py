"""Trained tokenizers: every kind gives texts back, knows where its tokens stand, and is the same after saving and retraining."""

import random
import re
import warnings

import pytest
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from glassformer import GlassformerConfig
from glassformer.training.tokenization import ADDS, KINDS, special_ids, train_tokenizer


SYLLABLES = ["ba", "be", "lo", "mi", "na", "ré", "so", "tu", "glas", "Ton", "für", "ñu"]
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>", "<mask>"]
TEXT = "  Tonlomi, glas\n\nfür  (baba) ré-ñu! "


def make_texts(count: int = 300) -> list[str]:
    rng = random.Random(0)
    words = ["".join(rng.choices(SYLLABLES, k=rng.randint(1, 4))) for _ in range(100)] + SYLLABLES
    return [TEXT, TEXT, *(" ".join(rng.choices(words, k=9)) for _ in range(count))]


def train(kind: str, vocab_size: int = 400, texts: list[str] | None = None, **options):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The texts support")
        return train_tokenizer(texts or make_texts(), kind, vocab_size, **options)


@pytest.fixture(scope="module")
def tokenizers():
    return {kind: train(kind, num_sentinels=3) for kind in KINDS}


every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
def test_ids_begin_with_the_special_tokens(tokenizers, kind):
    tokenizer = tokenizers[kind]
    first = [*SPECIAL, "<extra_id_0>", "<extra_id_1>", "<extra_id_2>"]
    assert tokenizer.convert_ids_to_tokens(range(8)) == first
    assert sorted(tokenizer.get_vocab().values()) == list(range(len(tokenizer)))
    assert sorted(tokenizer.all_special_ids) == list(range(8))


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_pieces_give_back_the_text_up_to_white_space(tokenizers, kind):
    for text in [TEXT, "so", *make_texts(20)]:
        ids = tokenizers[kind](text)["input_ids"]
        assert tokenizers[kind].decode(ids, skip_special_tokens=True) == " ".join(text.split())


def test_lines_are_given_back_up_to_other_white_space(tokenizers):
    for text in ["glas\nfür\n\nbaba ré-ñu!", " Ton! \n glas \n"]:
        expected = "\n".join(" ".join(line.split()) for line in text.split("\n"))
        ids = tokenizers["bpe_lines"](text)["input_ids"]
        assert tokenizers["bpe_lines"].decode(ids, skip_special_tokens=True) == expected
        assert sum("\n" in token for token in tokenizers["bpe_lines"].convert_ids_to_tokens(ids)) == text.count("\n")


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_no_piece_joins_a_word_and_punctuation(kind):
    tokenizer = train(kind, 60, ["glas, glas. (glas) ton: ton, ton."] * 50)
    joined = [token for token in tokenizer.get_vocab() if token not in SPECIAL and re.search(r"\w[,.:()]|[,.:()]\w", token)]
    assert joined == []


def test_characters_give_back_the_text(tokenizers):
    tokenizer = tokenizers["char"]
    ids = tokenizer(TEXT)["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == ["<s>", *TEXT, "</s>"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == TEXT


def test_the_vocabulary_of_characters_is_that_of_the_corpus(tokenizers):
    assert set(tokenizers["char"].get_vocab()) - set(tokenizers["char"].all_special_tokens) == set("".join(make_texts()))


@pytest.mark.parametrize("text", [TEXT, "\t日本 👩‍👧\r\n\n \x00 ", "e\u0301 İ ▁ Ġ", "<s > < pad>"])
def test_bytes_give_back_any_text(tokenizers, text):
    ids = tokenizers["byte_bpe"](text)["input_ids"]
    assert 3 not in ids
    assert tokenizers["byte_bpe"].decode(ids, skip_special_tokens=True) == text


@pytest.mark.parametrize("kind", ["wordpiece", "word"])
def test_words_come_back_with_spaces_between_words_and_punctuation(kind):
    tokenizer = (
        train(kind, 30, ["do not, no (so): do so not no"] * 3)
        if kind == "wordpiece"
        else train(kind, 13, ["do not, no (so):"] * 3)
    )
    ids = tokenizer("no,  do (not):so")["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "no , do ( not ) : so"


@every_kind
def test_special_tokens_are_never_cut_and_never_shown(tokenizers, kind):
    tokenizer = tokenizers[kind]
    ids = tokenizer("glas<mask>so <extra_id_1> ba", add_special_tokens=False)["input_ids"]
    assert [i for i in ids if i < 8] == [4, 6]
    shown = tokenizer.decode([0, 1, 3, *ids, 5, 2], skip_special_tokens=True)
    assert "".join(shown.split()) == "glassoba"


def test_the_mask_among_bytes_stands_for_a_word_and_its_space(tokenizers):
    hidden, shown = (tokenizers["byte_bpe"](text)["input_ids"] for text in ("ba <mask> lo", "ba lo"))
    assert [token_id for token_id in hidden if token_id != 4] == shown


@every_kind
def test_offsets_say_where_each_token_stands(tokenizers, kind):
    tokenizer = tokenizers[kind]
    encoded = tokenizer(TEXT, return_offsets_mapping=True, add_special_tokens=False)
    covered = set()
    for token_id, (start, end) in zip(encoded["input_ids"], encoded["offset_mapping"]):
        covered |= set(range(start, end))
        if kind == "byte_bpe":  # part of a character has the place of the whole
            piece = tokenizer.decode([token_id])
            assert "\ufffd" in piece or TEXT[start:end] == (piece.lstrip(" ") or piece[:0])
        else:
            piece = tokenizer.convert_ids_to_tokens(token_id).removeprefix("▁").removeprefix("##")
            assert piece in ("", "<unk>", TEXT[start:end])
    assert covered >= {i for i, character in enumerate(TEXT) if not character.isspace()}


@every_kind
def test_tokens_of_given_words_know_their_word(tokenizers, kind):
    words = ["Tonlomi", "für", "baba", "ré"]
    encoded = tokenizers[kind](words, is_split_into_words=True, return_offsets_mapping=True)
    parts = {}
    for word, (start, end) in zip(encoded.word_ids(), encoded["offset_mapping"]):
        if word is not None:
            parts.setdefault(word, set()).update(range(start, end))
    assert parts == {number: set(range(len(word))) for number, word in enumerate(words)}


@every_kind
def test_tokens_of_a_word_share_its_number(tokenizers, kind):
    encoded = tokenizers[kind]("baba für glas", add_special_tokens=False)
    numbers = encoded.word_ids()
    assert numbers == sorted(numbers)
    words = len("baba für glas") if kind == "char" else 3
    assert sorted(set(numbers)) == list(range(words))


@every_kind
def test_a_question_and_its_context_are_told_apart(tokenizers, kind):
    encoded = tokenizers[kind]("so ba", "glas so", return_offsets_mapping=True)
    sequences = encoded.sequence_ids()
    assert [number for i, number in enumerate(sequences) if i == 0 or number != sequences[i - 1]] == [None, 0, None, 1, None]
    in_context = [span for span, number in zip(encoded["offset_mapping"], sequences) if number == 1]
    assert in_context[0][0] == 0
    assert in_context[-1][1] == len("glas so")


@pytest.mark.parametrize("adds", ADDS)
@pytest.mark.parametrize("kind", ["word", "byte_bpe"])
def test_encoding_adds_what_was_asked_for(kind, adds):
    tokenizer = train(kind, adds=adds)
    a, b = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("so ba", "glas"))
    start, end = ([1] if adds in ("both", "bos") else []), ([2] if adds in ("both", "eos") else [])
    assert tokenizer("so ba")["input_ids"] == start + a + end
    assert tokenizer("so ba", "glas")["input_ids"] == start + a + end + b + end


@every_kind
def test_auto_tokenizer_loads_the_same_tokenizer(tmp_path, kind):
    tokenizer = train(kind, num_sentinels=2, max_length=20, lowercase=True, adds="eos")
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()
    for name in ("model_max_length", "model_input_names", "padding_side", "clean_up_tokenization_spaces", "all_special_tokens"):
        assert getattr(loaded, name) == getattr(tokenizer, name), name
    batch = [TEXT, "so"], ["glas ba", "tu"]
    encoded = loaded(*batch, truncation=True, padding=True)
    assert encoded == tokenizer(*batch, truncation=True, padding=True)
    assert loaded.batch_decode(encoded["input_ids"]) == tokenizer.batch_decode(encoded["input_ids"])
    assert special_ids(loaded) == special_ids(tokenizer)


def test_batches_have_ids_and_mask_padded_on_the_right_and_cut_at_the_maximum():
    tokenizer = train("word", max_length=6)
    encoded = tokenizer(["so", "so ba tu so ba tu so"], truncation=True, padding=True)
    assert set(encoded) == {"input_ids", "attention_mask"}
    assert encoded["attention_mask"] == [[1, 1, 1, 0, 0, 0], [1] * 6]
    assert encoded["input_ids"][0][3:] == [0, 0, 0]
    assert encoded["input_ids"][1][-1] == 2
    assert tokenizer.clean_up_tokenization_spaces is False


@pytest.mark.parametrize("room", [10, 50, 1000])
@every_kind
def test_the_same_texts_give_the_same_tokenizer(kind, room):
    """Rare characters and pairs of equal frequency are what trainers settle at random when left to themselves."""
    texts = [*make_texts(30), "ABCDEFGHIJKL MNOPQRSTUVW", "abcdefghijkl mnopqrstuvw", "0123 4567 89"]
    vocab_size = room + (261 if kind == "byte_bpe" else 120)
    assert len({train(kind, vocab_size, texts).backend_tokenizer.to_str() for _ in range(4)}) == 1


@every_kind
def test_lowercase_texts_and_others_are_the_same(kind):
    tokenizer = train(kind, lowercase=True)
    assert tokenizer("BABA Ton")["input_ids"] == tokenizer("baba ton")["input_ids"]
    assert tokenizer.decode(tokenizer("BaBa")["input_ids"], skip_special_tokens=True) == "baba"


def test_rare_words_are_unknown_and_rare_characters_are_not():
    texts = ["so so ba ba", "ñu"]
    assert train("word", texts=texts)("ñu")["input_ids"] == [1, 3, 2]
    assert train("word", texts=texts, min_frequency=1)("ñu")["input_ids"] == [1, 7, 2]
    for kind in set(KINDS) - {"word"}:
        assert 3 not in train(kind, texts=texts)("ñu")["input_ids"], kind


@every_kind
def test_the_smallest_size_in_the_message_works_and_one_less_does_not(kind):
    characters = set("".join(make_texts()))
    words = set(" ".join(make_texts()).split()) | set(",!()-")
    within = {character for word in words for character in re.split(r"\W", word)[0][1:]}
    smallest = 5 + {
        "bpe_lines": len(characters - {" "} | {"▁"}),
        "byte_bpe": 256,
        "char": len(characters),
        "word": 1,
        "wordpiece": len(characters - {" ", "\n"}) + len(within),
    }.get(kind, len(characters - {" ", "\n"} | {"▁"}))
    with pytest.raises(ValueError, match=rf"leaves no room for 5 special tokens and .*: pass at least {smallest}\."):
        train_tokenizer(make_texts(), kind, smallest - 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(train_tokenizer(make_texts(), kind, smallest)) == smallest


@every_kind
def test_texts_that_support_fewer_tokens_give_fewer_with_a_warning(kind):
    with pytest.warns(UserWarning, match="The texts support") as warned:
        tokenizer = train_tokenizer(make_texts(), kind, 5000)
    assert str(warned[0].message) == (
        f"The texts support {len(tokenizer)} tokens, not vocab_size=5000: the smaller vocabulary is used."
    )
    assert warned[0].filename == __file__


@pytest.mark.parametrize("texts", [[], ["", "  \n"]], ids=["none", "blank"])
@every_kind
def test_a_corpus_without_text_is_refused(kind, texts):
    with pytest.raises(ValueError, match="There is nothing to train a tokenizer on"):
        train_tokenizer(texts, kind, 300)


@pytest.mark.parametrize(
    "texts, options, message",
    [
        (["so"], {"kind": "bpee"}, "kind='bpee' is unknown: did you mean 'bpe'?"),
        (["so"], {"adds": "start"}, "adds='start' is unknown: choose one of both, eos, bos, none."),
        ("so", {}, "texts is one string: pass a list of strings."),
        (["so", None], {}, "One of the texts is of type NoneType: pass strings."),
        (["so ba"], {"kind": "word"}, "No word occurs 2 times: pass more texts, or a lower min_frequency."),
    ],
)
def test_wrong_arguments_are_refused_in_one_sentence(texts, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        train_tokenizer(texts, **{"kind": "bpe", "vocab_size": 50, **options})


def test_texts_may_come_one_by_one():
    assert train("bpe", texts=None).get_vocab() == train("bpe", texts=(text for text in make_texts())).get_vocab()


def test_a_config_takes_its_ids_from_the_tokenizer(tokenizers):
    ids = special_ids(tokenizers["byte_bpe"])
    assert ids == {
        "vocab_size": 400, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "unk_token_id": 3, "mask_token_id": 4,
    }  # fmt: skip
    assert GlassformerConfig(**ids).mask_token_id == 4


def test_special_ids_of_a_tokenizer_with_fewer_and_scattered_tokens():
    backend = Tokenizer(models.WordLevel({"<pad>": 0, "[UNK]": 4, "so": 9}, unk_token="[UNK]"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", unk_token="[UNK]")
    assert special_ids(tokenizer) == {
        "vocab_size": 10, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None, "unk_token_id": 4, "mask_token_id": None,
    }  # fmt: skip
