"""A tokenizer for the tests: one token a word, ids 0 to 4 for the special tokens."""

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast


SPECIALS = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>"}
WORDS = [
    "a", "the", "lamp", "glass", "window", "light", "pane", "behind", "shines", "through", "breaks", "who", "what", "where",
    "alpha", "omega", "in", "on", "and", "is", "of", "one", "two",
]  # fmt: skip


def word_tokenizer(adds_specials: bool = True, **options) -> PreTrainedTokenizerFast:
    """With special tokens, `<s> text </s>` and `<s> question </s> context </s>`; without, the words alone."""
    words = [*SPECIALS.values(), *WORDS]
    backend = Tokenizer(models.WordLevel({word: token_id for token_id, word in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    if adds_specials:
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1", special_tokens=[("<s>", 1), ("</s>", 2)]
        )
    names = ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, **{"model_input_names": names, "model_max_length": 64, **SPECIALS, **options}
    )
