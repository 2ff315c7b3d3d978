"""GGUF: what transformers and llama.cpp read from the file is the model, and its tokenizer."""

import math

import pytest
import torch
from models import tiny_config
from test_cli import call
from tokenizer import word_tokenizer
from transformers import AutoTokenizer, LlamaForCausalLM

import glassformer
from glassformer.exchange.gguf import export_gguf
from glassformer.training.tokenization import train_tokenizer


pytest.importorskip("gguf", reason="needs glassformer[gguf]")

TEXTS = ["the lamp breaks, and the lamp's light is 42 years old!", "Größe über alles: ein Licht\nneu"]
ASKED = ["the lamp breaks", "  Größe 4242's\n\nlamp…日本 ", "light</s>old"]
PLAIN = {"norm": "rmsnorm", "position_encoding": "rope", "num_kv_heads": 2, "activation": "silu", "gated_feed_forward": True,
         "attention_bias": False, "feed_forward_bias": False, "scale_embedding": False, "tie_word_embeddings": False}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    """Make the folder of a language model in the layout of Llama, with a tokenizer of bytes."""

    def folder(tokenizer=None, **overrides):
        tokenizer = tokenizer or train_tokenizer(TEXTS * 5, "byte_bpe", 300, adds="both")
        config = tiny_config("decoder", vocab_size=len(tokenizer) + 2, **{**PLAIN, **overrides})
        model = glassformer.GlassformerForCausalLM(config).eval()
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(3)  # logits that differ
        model.save_pretrained(tmp_path / "model")
        tokenizer.save_pretrained(tmp_path / "model")
        return tmp_path / "model", model, tokenizer

    return folder


@pytest.mark.parametrize("overrides", [{}, {"tie_word_embeddings": True, "attention_bias": True, "head_width": 10}], ids=str)
def test_transformers_reads_the_same_model_from_it(folder, tmp_path, overrides):
    ours, model, tokenizer = folder(**overrides)
    assert call("export", ours, "--to", "gguf", tmp_path / "out") == 0
    back = LlamaForCausalLM.from_pretrained(tmp_path / "out", gguf_file="model.gguf").eval()
    ids = torch.randint(model.config.vocab_size, (2, 11))
    with torch.no_grad():
        torch.testing.assert_close(back(ids).logits, model(ids).logits, rtol=0, atol=1e-5)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "out", gguf_file="model.gguf")
    for text in ASKED:
        assert theirs(text, add_special_tokens=False).input_ids == tokenizer(text, add_special_tokens=False).input_ids
        assert theirs.decode(theirs(text, add_special_tokens=False).input_ids) == text


@pytest.mark.slow
def test_llama_cpp_reads_the_same_model_and_tokenizer_from_it(folder, tmp_path):
    xllamacpp = pytest.importorskip("xllamacpp", reason="needs llama.cpp: pip install xllamacpp")
    ours, model, tokenizer = folder()
    export_gguf(ours, tmp_path / "out")
    settings = xllamacpp.CommonParams()
    settings.model.path = str(tmp_path / "out" / "model.gguf")
    settings.n_ctx, settings.n_parallel, settings.warmup = 64, 1, False
    server = xllamacpp.Server(settings)
    for text in ASKED[:2]:
        asked = {"prompt": text, "max_tokens": 1, "temperature": 0, "logprobs": 50, "ignore_eos": False}
        answer = server.handle_completions(asked)
        ids = tokenizer(text).input_ids[:-1]  # <s> at the beginning, no </s> at the end
        assert answer["usage"]["prompt_tokens"] == len(ids)
        with torch.no_grad():
            expected = model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
        [found] = answer["choices"][0]["logprobs"]["content"]
        assert len(found["top_logprobs"]) == 50
        for token in found["top_logprobs"]:
            assert math.isclose(token["logprob"], expected[token["id"]], abs_tol=2e-2)


def test_what_cannot_be_written_is_refused_in_a_sentence(folder, tmp_path, capsys):
    def said() -> str:
        assert call("export", tmp_path / "model", "--to", "gguf", tmp_path / "out") == 1
        assert [path.name for path in tmp_path.iterdir()] == ["model"]
        return capsys.readouterr().err

    folder(tokenizer=word_tokenizer())
    assert "cannot cut texts as the tokenizer" in said()
    folder(position_encoding="learned")
    assert "does not fit llama: position_encoding=learned" in said()
    folder(rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0})
    assert "Rotary positions of type linear" in said()
    (tmp_path / "model" / "tokenizer.json").unlink()
    assert "has no tokenizer.json" in said()
