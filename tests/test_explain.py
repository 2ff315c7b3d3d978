"""What the page of `glassformer explain` holds: the weights that were captured, what happens without a head, and no more."""

import base64
import json
import re
import zlib
from dataclasses import asdict
from html.parser import HTMLParser

import pytest
import torch
from models import tiny_config
from test_capture import FAMILIES
from test_capture import build as build_family
from test_head_mask import OUTPUTS
from tokenizer import SPECIALS, WORDS, word_tokenizer
from tokenizers import Tokenizer, decoders, models
from torch.testing import assert_close
from transformers import BartConfig, BartForSequenceClassification, PreTrainedTokenizerFast

import glassformer
from glassformer import cli
from glassformer.analysis import AttentionVisualizer
from glassformer.analysis.explain import LONGEST, describe, load, render
from glassformer.analysis.heads import entropy_of
from glassformer.analysis.predictions import Question, ask, namer


TEXT, TARGET = "the lamp shines through the window", "a light behind glass"


def unpack(packed) -> torch.Tensor:
    data = bytearray(zlib.decompress(base64.b64decode(packed["data"])))
    return torch.frombuffer(data, dtype=getattr(torch, packed["type"])).view(packed["shape"])


def weights_of(packed) -> torch.Tensor:
    return (unpack(packed) / 255.0) ** 2


def visualizer_of(family: str) -> AttentionVisualizer:
    """With weights so large that heads matter; a model that writes does not stop before it must."""
    model = build_family(family)
    with torch.no_grad():
        for matrix in (parameter for parameter in model.parameters() if parameter.dim() == 2):
            matrix.normal_(std=0.3)
    if model.can_generate():
        model.generation_config.eos_token_id = None
    return AttentionVisualizer(model, word_tokenizer())


def make(head: str, shape: str = "encoder", **options):
    torch.manual_seed(0)
    return getattr(glassformer, head)(tiny_config(shape, vocab_size=len(word_tokenizer()), **options)).eval()


def data_in(html: str) -> dict:
    return json.loads(re.search(r'id="data">(.*?)</script>', html, re.DOTALL)[1])


# Attention


@pytest.mark.parametrize("family", FAMILIES)
def test_the_page_has_the_weights_that_were_captured(family):
    visualizer = visualizer_of(family)
    two_stacks = visualizer.model.config.is_encoder_decoder
    page = describe(visualizer, TEXT, TARGET if two_stacks else None, max_new_tokens=1)
    if visualizer.model.can_generate() and not two_stacks:  # the end mark of the text is not read
        inputs = {"input_ids": torch.tensor([visualizer.tokenizer(TEXT).input_ids[:-1]])}
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        found = visualizer.capture_inputs(inputs)
    else:
        found = visualizer.capture(TEXT, TARGET if two_stacks else None)
    assert [stack.kind for stack in page.stacks] == found.kinds
    for stack in page.stacks:
        assert (stack.queries, stack.keys) == found.labels(stack.kind)
        assert [layer.number for layer in stack.layers] == found.layers(stack.kind)
        for layer in stack.layers:
            captured = found.weights(stack.kind, layer.number)
            assert_close(weights_of(layer.weights).sqrt(), captured.sqrt(), atol=0.5 / 255 + 1e-4, rtol=0)
            seen = torch.arange(1, captured.shape[1] + 1) if stack.kind == "decoder" else torch.tensor(captured.shape[2])
            share = unpack(layer.entropy) / 255.0
            assert_close(share * seen.clamp(min=2).log(), entropy_of(captured), atol=0.01, rtol=0)
        assert (stack.rollout is None) == (stack.kind == "cross")


def test_rollout_on_the_page_is_the_product_of_the_layers():
    visualizer = visualizer_of("bert")
    [stack] = describe(visualizer, TEXT).stacks
    found, total = visualizer.capture(TEXT), torch.eye(len(stack.queries))
    for layer in found.layers("encoder"):
        total = (found.weights("encoder", layer).mean(0) / 2 + torch.eye(len(total)) / 2) @ total
    assert_close(weights_of(stack.rollout).sqrt(), total.sqrt(), atol=0.5 / 255 + 1e-4, rtol=0)


@pytest.mark.parametrize("head", ["GlassformerForQuestionAnswering", "GlassformerForSequenceClassification"])
def test_two_texts_are_read_as_the_tokenizer_joins_them(head):
    reader = AttentionVisualizer(make(head, num_token_types=2), word_tokenizer())
    reader.tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]  # as BERT's has them
    page = describe(reader, "the lamp", pair=TARGET)
    joined = reader.tokenizer("the lamp", TARGET, return_tensors="pt")
    assert joined["token_type_ids"].any()
    assert page.stacks[0].queries == reader.tokenizer.convert_ids_to_tokens(joined["input_ids"][0])
    assert page.text == f"the lamp\n{TARGET}"
    with torch.no_grad():
        expected = reader.model(**joined)
    scores = expected.start_logits if head.endswith("QuestionAnswering") else expected.logits
    assert_close(unpack(page.predictions.probabilities)[0, 0], scores[0].softmax(-1).sort(descending=True).values[:5])


def test_long_texts_are_cropped_with_a_note_and_predicted_as_a_whole():
    long = " ".join(WORDS * 8)
    reader = AttentionVisualizer(make("GlassformerForSequenceClassification", max_position_embeddings=300), word_tokenizer())
    page, count = describe(reader, long), len(reader.tokenizer(long).input_ids)
    assert page.notes == [f"The first {LONGEST} of {count} tokens of the text are shown."]
    assert page.stacks[0].queries == reader.capture(long).labels("encoder")[0][:LONGEST]
    assert page.stacks[0].layers[0].weights["shape"][1:] == [LONGEST, LONGEST]
    with torch.no_grad():
        expected = reader.model(**reader.read(long)).logits.softmax(-1)
    assert_close(unpack(page.predictions.probabilities)[0], expected.sort(descending=True).values)

    writer = AttentionVisualizer(make("GlassformerForCausalLM", "decoder", max_position_embeddings=300), word_tokenizer())
    page = describe(writer, long, max_new_tokens=3)
    assert page.notes == [f"The last {LONGEST} of {count - 1 + 2} tokens of the text are shown."]
    assert [step.place for step in page.steps] == [LONGEST - 3, LONGEST - 2, LONGEST - 1]
    assert page.stacks[0].queries[-2:] == [step.chosen for step in page.steps[:2]]


@pytest.mark.parametrize("shape", ["encoder-decoder", "decoder", "encoder"])
def test_a_single_token_is_a_text_too(shape):
    head = {"encoder-decoder": "ForConditionalGeneration", "decoder": "ForCausalLM", "encoder": "ForMaskedLM"}[shape]
    page = describe(AttentionVisualizer(make(f"Glassformer{head}", shape), word_tokenizer(adds_specials=False)), "lamp", None, 3)
    assert page.stacks[0].queries[0] == "lamp" and page.predictions is not None
    json.dumps(asdict(page), allow_nan=False)


def test_a_broken_model_is_told_from_an_odd_one():
    model = make("GlassformerForSequenceClassification")
    with torch.no_grad():
        model.model.encoder.layers[0].self_attn.out_proj.weight.fill_(torch.nan)
    with pytest.raises(ValueError, match="is not a number: its weights are broken"):
        describe(AttentionVisualizer(model, word_tokenizer()), TEXT)


# Predictions, and what if


def without_head(model, family: str):
    """The last head of layer 1 gone for good: its part of the matrix that joins the heads is zero."""
    path, kind, heads = OUTPUTS[family]
    heads, matrix = heads or model.config.num_heads, model.get_submodule(path).weight
    with torch.no_grad():
        (matrix.unflatten(0, (heads, -1))[-1] if family == "gpt2" else matrix.unflatten(1, (heads, -1))[:, -1]).zero_()
    return kind, heads - 1


def probabilities_of(model, question) -> torch.Tensor:
    with torch.no_grad():
        logits = model(**question.inputs).logits
    return (logits[0, question.places] if question.places else logits).softmax(-1)


@pytest.mark.parametrize("family", OUTPUTS)
def test_the_page_says_what_happens_without_a_head(family):
    visualizer = visualizer_of(family)
    model, question = visualizer.model, ask(visualizer, TEXT, None, 6)
    page = describe(visualizer, TEXT, max_new_tokens=6)
    layers = [(stack.kind, layer) for stack in page.stacks for layer in stack.layers]
    rows = [(kind, layer.number, head) for kind, layer in layers for head in range(len(layer.heads))]
    names = page.predictions.names
    top, probabilities, chosen = (unpack(getattr(page.predictions, name)) for name in ("top", "probabilities", "chosen"))
    assert len(rows) + 1 == len(top) == len(page.predictions.texts)
    looked_at = probabilities_of(model, question).argmax(-1)
    assert [step.chosen for step in page.steps] == [question.name(int(choice)) for choice in looked_at]

    def compare(row: int) -> None:
        expected = probabilities_of(model, question)
        best = expected.topk(top.shape[-1])
        assert_close(probabilities[row], best.values, atol=1e-5, rtol=1e-4)
        assert [[names[i] for i in step] for step in top[row]] == [[question.name(int(i)) for i in step] for step in best.indices]
        assert_close(chosen[row], expected.gather(-1, looked_at[:, None])[:, 0], atol=1e-5, rtol=1e-4)
        if question.prompt:
            start = 1 if model.config.is_encoder_decoder else question.prompt["input_ids"].shape[1]
            written = model.generate(**question.prompt, max_new_tokens=6, do_sample=False)[0, start:]
            text = visualizer.tokenizer.decode(written, skip_special_tokens=True)
            assert (page.predictions.texts[row] if row == 0 else page.predictions.texts[row] or page.predictions.texts[0]) == text

    compare(0)
    kind, head = without_head(model, family)
    row = 1 + rows.index((kind, 1, head))
    assert not torch.allclose(chosen[row], chosen[0], atol=1e-4, rtol=1e-3)
    compare(row)


def test_a_head_that_changes_a_word_changes_the_text():
    visualizer = AttentionVisualizer(make("GlassformerForConditionalGeneration", "encoder-decoder"), word_tokenizer())
    page = describe(visualizer, TEXT, max_new_tokens=8)
    first = unpack(page.predictions.top)[..., 0]  # [R, N]
    changed = (first != first[0]).any(1)
    assert 0 < changed.sum() < len(changed) - 1
    assert [text is not None for text in page.predictions.texts[1:]] == changed[1:].tolist()
    assert all(text != page.predictions.texts[0] for text in page.predictions.texts[1:] if text is not None)


def test_the_tokens_of_a_given_target_are_looked_at_one_by_one():
    visualizer = AttentionVisualizer(make("GlassformerForConditionalGeneration", "encoder-decoder"), word_tokenizer())
    page = describe(visualizer, TEXT, TARGET)
    assert [(step.place, step.chosen) for step in page.steps] == list(enumerate([*TARGET.split(), "</s>"]))
    ids = visualizer.tokenizer(TARGET, return_tensors="pt").input_ids[:, 1:]
    with torch.no_grad():
        logits = visualizer.model(**visualizer.read(TEXT), labels=ids).logits
    expected = logits[0].softmax(-1).gather(-1, ids[0, :, None])[:, 0]
    assert_close(unpack(page.predictions.chosen)[0], expected)
    assert page.is_given and page.predictions.texts[1:] == [None] * (len(page.predictions.texts) - 1)
    assert [step.chosen for step in describe(visualizer, TEXT, "").steps] == ["</s>"]
    visualizer.model.config.decoder_start_token_id = None
    with pytest.raises(ValueError, match="no decoder_start_token_id"):
        describe(visualizer, TEXT, TARGET)


MULTI_LABEL = {"problem_type": "multi_label_classification", "num_labels": 7}
HEADS = {
    "masks": ("GlassformerForMaskedLM", {}, "the <mask> shines", 1),
    "every token without a mask": ("GlassformerForMaskedLM", {}, "the lamp shines", 3),
    "tags": ("GlassformerForTokenClassification", {"num_labels": 3}, "the lamp shines", 3),
    "span": ("GlassformerForQuestionAnswering", {}, "the lamp shines", 2),
    "classes": ("GlassformerForSequenceClassification", {"num_labels": 3}, "the lamp", 1),
    "value": ("GlassformerForSequenceClassification", {"num_labels": 1}, "the lamp", 1),
    "labels": ("GlassformerForSequenceClassification", MULTI_LABEL, "lamp", 1),
    "none": ("GlassformerModel", {}, "the lamp", 0),
}


@pytest.mark.parametrize("head", HEADS)
def test_every_head_has_predictions_of_its_kind(head):
    name, options, text, steps = HEADS[head]
    visualizer = AttentionVisualizer(make(name, **options), word_tokenizer())
    page = describe(visualizer, text)
    assert len(page.steps) == steps and (page.predictions is None) == (head == "none")
    assert page.task == ("masks" if "mask" in head else head)
    if page.predictions is None:
        return
    probabilities = unpack(page.predictions.probabilities)[0]
    with torch.no_grad():
        outputs = visualizer.model(**visualizer.read(text))
    if head == "span":
        expected = torch.stack((outputs.start_logits, outputs.end_logits), 1)[0].softmax(-1)
        tokens = enumerate(["<s>", *text.split(), "</s>"])
        assert set(page.predictions.names) == {f"{token} (token {place})" for place, token in tokens}
    else:
        places = [2] if head == "masks" else [1, 2, 3] if steps == 3 else 0
        logits = outputs.logits[0, places] if outputs.logits.dim() == 3 else outputs.logits
        expected = logits if head == "value" else logits.sigmoid() if head == "labels" else logits.softmax(-1)
    assert_close(probabilities, expected.sort(descending=True).values[:, :5])
    assert json.dumps(asdict(page))


def test_choices_tell_tokens_with_a_space_in_front_from_those_without():
    def names(words: list[str], decoder) -> list[str]:
        backend = Tokenizer(models.WordLevel({word: token for token, word in enumerate(["<unk>", *words])}, unk_token="<unk>"))
        backend.decoder = decoder
        name = namer(PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>"))
        return [name(token) for token in range(len(words) + 2)]

    assert names(["Ġthe", "the", "Ġ", "Ċ"], decoders.ByteLevel()) == ["<unk>", "·the", "the", "·", "·", "[5]"]
    assert names(["▁the", "the", "s"], decoders.Metaspace()) == ["<unk>", "·the", "the", "s", "[4]"]


def test_the_decoder_of_a_classifier_reads_the_text_itself():
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    config = BartConfig(vocab_size=50, encoder_ffn_dim=16, decoder_ffn_dim=16, num_labels=3, decoder_start_token_id=2, **sizes)
    visualizer = AttentionVisualizer(BartForSequenceClassification(config).eval(), word_tokenizer())
    page = describe(visualizer, TEXT)
    assert [stack.kind for stack in page.stacks] == ["encoder", "decoder", "cross"] and len(page.steps) == 1
    with torch.no_grad():
        expected = visualizer.model(**visualizer.tokenizer(TEXT, return_tensors="pt")).logits.softmax(-1)
    assert_close(unpack(page.predictions.probabilities)[0], expected.sort(descending=True).values)


# The file


class Tags(HTMLParser):
    """The names of all elements, and what they would load."""

    def __init__(self, html: str):
        super().__init__()
        self.names, self.addresses = set(), []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.names.add(tag)
        self.addresses += [value for name, value in attributes if name in ("src", "href", "action", "data", "srcset", "poster")]


def test_texts_stay_texts_and_nothing_is_loaded_from_elsewhere():
    text = "the </script> <b> lamp <!-- <script> &amp; \u2028 __DATA__"
    visualizer = AttentionVisualizer(make("GlassformerForSequenceClassification"), word_tokenizer())
    html = render(describe(visualizer, text))
    assert data_in(html)["text"] == text
    tags = Tags(html)
    assert not tags.names & {"b", "iframe", "img", "object", "embed"} and tags.addresses == ["data:,"]
    assert "http:" not in html and "https:" not in html and "//cdn" not in html and "@import" not in html and "url(" not in html
    assert "default-src 'none'" in html


def test_the_page_of_64_tokens_6_layers_and_8_heads_is_below_three_megabytes(monkeypatch):
    """Three kinds of attention, weights and predictions at random, which cannot be compressed as those of a trained model can."""
    sizes = {"num_encoder_layers": 6, "num_decoder_layers": 6, "num_heads": 8, "d_model": 32}
    model = make("GlassformerForConditionalGeneration", "encoder-decoder", **sizes)
    words = [WORDS[number * 7 % len(WORDS)] for number in range(62)]
    monkeypatch.setattr(Question, "answer", lambda self, model: torch.rand(64, model.config.vocab_size))
    html = render(describe(AttentionVisualizer(model, word_tokenizer()), " ".join(words), " ".join(["a", *words])))
    page = data_in(html)
    assert [(len(stack["queries"]), len(stack["keys"]), len(stack["layers"])) for stack in page["stacks"]] == [(64, 64, 6)] * 3
    assert page["predictions"]["top"]["shape"] == [1 + 3 * 6 * 8, 64, 5]
    assert len(html.encode()) < 3_000_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "lamps"
    make("GlassformerForSequenceClassification").save_pretrained(path)
    word_tokenizer().save_pretrained(path)
    return path


def call(monkeypatch, capsys, *arguments) -> tuple[int, str]:
    monkeypatch.setattr("sys.argv", ["glassformer", "explain", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code or 0, "".join(capsys.readouterr())


def test_the_command_writes_a_page_and_python_the_same(folder, tmp_path, monkeypatch, capsys):
    code, said = call(monkeypatch, capsys, folder, TEXT, "-o", tmp_path / "page.html")
    assert code == 0 and "page.html" in said
    html = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert data_in(html)["title"] == "lamps" and html.startswith("<!DOCTYPE html>")
    written = load(folder).explain(TEXT, tmp_path / "again.html")
    assert written.read_text(encoding="utf-8") == html
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.html", "page.html"]


def test_bad_input_gets_a_sentence_and_leaves_nothing_behind(folder, tmp_path, monkeypatch, capsys):
    page, bare, empty = tmp_path / "page.html", tmp_path / "bare", tmp_path / "empty"
    make("GlassformerModel").save_pretrained(bare)
    empty.mkdir()
    before = sorted(tmp_path.rglob("*"))
    for words, arguments in {
        "The text is empty": (folder, " ", "-o", page),
        "reads no target: leave it out": (folder, TEXT, "--target", TARGET, "-o", page),
        "There is no folder .*nowhere to write": (folder, TEXT, "-o", tmp_path / "nowhere" / "page.html"),
        r"end its name with \.html": (folder, TEXT, "-o", tmp_path / "page.png"),
        "holds no tokenizer: save": (bare, TEXT, "-o", page),
        "holds no config.json": (empty, TEXT, "-o", page),
        "There is no folder .*missing": (tmp_path / "missing", TEXT, "-o", page),
        "has 102 tokens, the model is made for 64: shorten it": (folder, "lamp " * 100, "-o", page),
    }.items():
        code, said = call(monkeypatch, capsys, *arguments)
        assert code == 1 and re.search(words, said), said
        assert said.count("\n") == 1 and "Traceback" not in said
    assert sorted(tmp_path.rglob("*")) == before


def test_a_target_with_a_tokenizer_of_its_own_is_read_with_it(tmp_path):
    make("GlassformerForConditionalGeneration", "encoder-decoder").save_pretrained(tmp_path)
    word_tokenizer().save_pretrained(tmp_path)
    backend = json.loads(word_tokenizer().backend_tokenizer.to_str())
    words = backend["model"]["vocab"].items()
    backend["model"]["vocab"] = {word.upper() if word in WORDS else word: token for word, token in words}
    other = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(backend)), **SPECIALS)
    other.save_pretrained(tmp_path / "target_tokenizer")
    page = describe(load(tmp_path), TEXT, TARGET.upper())
    assert page.stacks[2].queries == ["<s>", *TARGET.upper().split()] and page.stacks[2].keys[1:-1] == TEXT.split()
    assert set(page.predictions.names) <= {*(word.upper() for word in WORDS), *SPECIALS.values()}
