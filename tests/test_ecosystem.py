"""What others build on a model: PEFT, Trainer, accelerate, and the pipelines, transformers' own and those that we bring back."""

import copy

import pytest
import torch
import transformers
from accelerate import Accelerator
from models import D, tiny_config
from peft import LoraConfig, PeftModel, get_peft_model
from processes import run_in_children
from tokenizer import WORDS, word_tokenizer
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BartForQuestionAnswering,
    BertConfig,
    BertForQuestionAnswering,
    DataCollatorForLanguageModeling,
    DataCollatorForSeq2Seq,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    GenerationConfig,
    MarianConfig,
    MarianMTModel,
    T5Config,
    T5ForConditionalGeneration,
    T5ForQuestionAnswering,
    Trainer,
    TrainingArguments,
    pipeline,
)
from transformers.modeling_outputs import QuestionAnsweringModelOutput

import glassformer


VOCABULARY = len(word_tokenizer())
ALPHA, OMEGA = word_tokenizer().convert_tokens_to_ids(["alpha", "omega"])
TEXTS = ["the lamp shines", "a pane of glass breaks", "light", "one window is behind the lamp and two"]


def build(head: str, shape: str, **overrides):
    model_class = getattr(glassformer, f"Glassformer{head}")
    return model_class(tiny_config(shape, **{"vocab_size": VOCABULARY, "dropout": 0.0, **overrides})).eval()


def scramble(model):
    """Matrices large enough for the output to depend on the input."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2 and weight.requires_grad:
                weight.add_(torch.randn_like(weight), alpha=0.8)
    return model.eval()


# PEFT

ADAPTED = {
    "Model-encoder-decoder": "FEATURE_EXTRACTION",
    "Model-encoder": "FEATURE_EXTRACTION",
    "Model-decoder": "FEATURE_EXTRACTION",
    "ForConditionalGeneration-encoder-decoder": "SEQ_2_SEQ_LM",
    "ForCausalLM-decoder": "CAUSAL_LM",
    "ForMaskedLM-encoder": None,  # PEFT has no name for this task
    "ForSequenceClassification-encoder": "SEQ_CLS",
    "ForSequenceClassification-decoder": "SEQ_CLS",
    "ForTokenClassification-encoder": "TOKEN_CLS",
    "ForQuestionAnswering-encoder": "QUESTION_ANS",
}
EVERY_HEAD_TAKES_LORA = f"""
import glassformer
from peft import LoraConfig, get_peft_model

for name, task in {ADAPTED!r}.items():
    head, shape = name.split("-", 1)
    layers = dict(num_encoder_layers=int("encoder" in shape), num_decoder_layers=int("decoder" in shape))
    config = glassformer.GlassformerConfig(vocab_size=11, d_model=8, num_heads=2, d_ff=8, **layers)
    model = get_peft_model(getattr(glassformer, "Glassformer" + head)(config), LoraConfig(task_type=task))
    assert model.get_nb_trainable_parameters()[0] > 0, name
"""


@pytest.fixture(scope="module")
def lora_results(tmp_path_factory):
    orders = {"peft first": "import peft, glassformer", "peft last": "import glassformer, peft"}
    return run_in_children({name: code + EVERY_HEAD_TAKES_LORA for name, code in orders.items()}, tmp_path_factory.mktemp("peft"))


@pytest.mark.parametrize("order", ["peft first", "peft last"])
def test_lora_needs_no_target_modules_in_either_order_of_imports(lora_results, order):
    assert lora_results[order] == "done"


@torch.no_grad()
def outputs(model) -> list[torch.Tensor]:
    ids = torch.tensor([[5, 6, 7, 8], [9, 8, 6, 0]])
    inputs = {"input_ids": ids, "attention_mask": ids != 0}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids[:, :3]
    return [value for value in model(**inputs).values() if isinstance(value, torch.Tensor)]


@pytest.mark.parametrize("name", ADAPTED)
def test_lora_trains_adapters_alone_and_they_can_be_saved(name, tmp_path):
    model = build(*name.split("-", 1))
    before = copy.deepcopy(model)
    adapted = get_peft_model(model, LoraConfig(task_type=ADAPTED[name]))
    attentions = [module for name, module in adapted.named_modules() if name.endswith(("self_attn", "cross_attn"))]
    assert all(hasattr(m.q_proj, "lora_A") and hasattr(m.v_proj, "lora_A") for m in attentions)
    torch.testing.assert_close(outputs(adapted), outputs(before), rtol=0, atol=0)  # LoRA begins as nothing

    ids = torch.tensor([[5, 6, 7, 8]])
    optimizer = torch.optim.SGD([weight for weight in adapted.parameters() if weight.requires_grad], lr=1.0)
    for _ in range(2):
        results = adapted(input_ids=ids, **({"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}))
        results[next(iter(results))].square().mean().backward()
        optimizer.step()
    assert not torch.equal(outputs(adapted)[0], outputs(before)[0])
    frozen = {
        key.replace(".base_layer", "").replace(".original_module", ""): weight for key, weight in model.state_dict().items()
    }
    for key, weight in before.state_dict().items():
        assert torch.equal(frozen[key], weight), key

    adapted.save_pretrained(tmp_path)
    own = [weight for key, weight in before.named_parameters() if not key.startswith(("model.", "encoder.", "decoder."))]
    if name.startswith(("ForSequence", "ForToken", "ForQuestion")):
        for weight in own:  # a fresh head has to travel with the adapters
            weight.data.normal_()
    loaded = PeftModel.from_pretrained(before, tmp_path).eval()
    torch.testing.assert_close(outputs(loaded), outputs(adapted), rtol=0, atol=0)
    torch.testing.assert_close(outputs(loaded.merge_and_unload()), outputs(adapted))


def test_an_adapter_saved_by_the_model_brings_its_base_along(tmp_path):
    build("ForCausalLM", "decoder").save_pretrained(tmp_path / "base")
    model = glassformer.GlassformerForCausalLM.from_pretrained(tmp_path / "base")
    model.add_adapter(LoraConfig(init_lora_weights=False))
    model.save_pretrained(tmp_path / "adapter")
    assert not list((tmp_path / "adapter").glob("model*.safetensors"))
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "adapter")
    assert type(loaded) is glassformer.GlassformerForCausalLM
    torch.testing.assert_close(outputs(loaded), outputs(model), rtol=0, atol=0)


# Trainer

# Head -> shape, what a text with these ids is labelled with, collator
TOKENIZER = word_tokenizer()
PAD, PAD_LABELS = DataCollatorWithPadding(TOKENIZER), DataCollatorForTokenClassification(TOKENIZER)
NEXT_TOKEN = DataCollatorForLanguageModeling(TOKENIZER, mlm=False)
TRAINED = {
    "ForConditionalGeneration": ("encoder-decoder", lambda ids: {"labels": ids[::-1]}, None),
    "ForCausalLM": ("decoder", lambda ids: {}, NEXT_TOKEN),
    "ForMaskedLM": ("encoder", lambda ids: {"labels": ids}, PAD_LABELS),
    "ForSequenceClassification": ("encoder", lambda ids: {"labels": ids[1] % 2}, PAD),
    "ForTokenClassification": ("encoder", lambda ids: {"labels": [token % 2 for token in ids]}, PAD_LABELS),
    "ForQuestionAnswering": ("encoder", lambda ids: {"start_positions": 1, "end_positions": len(ids) - 2}, PAD),
}


def texts(count: int) -> list[list[int]]:
    draw = torch.Generator().manual_seed(3)
    lengths = torch.randint(1, 9, (count,), generator=draw)
    return [[1, *torch.randint(5, VOCABULARY, (int(length),), generator=draw).tolist(), 2] for length in lengths]


def make_trainer(head: str, folder, model=None, count: int = 18, **arguments) -> Trainer:
    shape, features, collator = TRAINED[head]
    model = build(head, shape) if model is None else model
    data = [{"input_ids": ids, "attention_mask": [1] * len(ids), **features(ids)} for ids in texts(count)]
    settings = {"use_cpu": True, "report_to": "none", "save_strategy": "no", "logging_steps": 1, "disable_tqdm": True}
    return Trainer(
        model,
        TrainingArguments(folder, **{**settings, **arguments}),
        data_collator=collator or DataCollatorForSeq2Seq(TOKENIZER, model=model),
        train_dataset=data,
    )


def losses(trainer: Trainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize("head", ["ForConditionalGeneration", "ForCausalLM", "ForSequenceClassification"])
def test_trainer_brings_the_loss_down_and_saves_a_model(head, tmp_path):
    trainer = make_trainer(
        head, tmp_path, count=8, max_steps=25, learning_rate=1e-2, lr_scheduler_type="constant", per_device_train_batch_size=8
    )
    trainer.train()
    assert losses(trainer)[-1] < losses(trainer)[0] / 2
    trainer.save_model(tmp_path / "saved")
    loaded = type(trainer.model).from_pretrained(tmp_path / "saved")
    torch.testing.assert_close(outputs(loaded), outputs(trainer.model.eval()), rtol=0, atol=0)


@pytest.mark.parametrize("head", TRAINED)
def test_accumulated_gradients_are_those_of_the_big_batch(head, tmp_path):
    """Texts have different lengths: a mean of the means of small batches would be another number."""
    arguments = {
        "num_train_epochs": 1,
        "optim": "sgd",
        "learning_rate": 0.5,
        "max_grad_norm": 0.0,
        "lr_scheduler_type": "constant",
    }
    model = build(head, TRAINED[head][0])
    runs = []
    for size, steps in ((6, 1), (2, 3)):
        trainer = make_trainer(
            head, tmp_path, copy.deepcopy(model), per_device_train_batch_size=size, gradient_accumulation_steps=steps, **arguments
        )
        trainer.train()
        runs.append((losses(trainer), dict(trainer.model.named_parameters())))
    (big_losses, big_weights), (small_losses, small_weights) = runs
    assert len(big_losses) == 3 and big_losses[0] != big_losses[1]
    torch.testing.assert_close(small_losses, big_losses, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(small_weights, big_weights, rtol=1e-4, atol=1e-5)
    assert not torch.equal(big_weights["model." + next(iter(model.model.state_dict()))], next(iter(model.model.parameters())))


@pytest.mark.parametrize("head", ["ForConditionalGeneration", "ForCausalLM", "ForMaskedLM"])
def test_the_loss_that_trainer_logs_is_the_mean_over_valid_labels(head, tmp_path):
    trainer = make_trainer(head, tmp_path, count=6, max_steps=1, per_device_train_batch_size=6, gradient_accumulation_steps=1)
    with torch.no_grad():
        expected = trainer.model(**trainer.data_collator(list(trainer.train_dataset))).loss
    trainer.train()
    assert losses(trainer) == pytest.approx([expected.item()], rel=1e-4)


@pytest.mark.parametrize("head", ["ForConditionalGeneration", "ForCausalLM"])
def test_trainer_smooths_the_labels_at_the_right_places(head, tmp_path):
    smoothing, model = 0.2, scramble(build(head, TRAINED[head][0]))
    trainer = make_trainer(head, tmp_path, model, label_smoothing_factor=smoothing)
    batch = trainer.data_collator([trainer.train_dataset[index] for index in range(4)])
    with torch.no_grad():
        found = trainer.compute_loss(model, dict(batch))
        log_p, labels = model(**batch).logits.log_softmax(-1), batch["labels"]
        if head == "ForCausalLM":
            log_p, labels = log_p[:, :-1], labels[:, 1:]
        log_p, labels = log_p[labels != -100], labels[labels != -100]
        expected = -(1 - smoothing) * log_p[torch.arange(len(labels)), labels] - smoothing * log_p.mean(-1)
        torch.testing.assert_close(found, expected.mean())
        model.config.label_smoothing = smoothing  # our own smoothing is the same
        torch.testing.assert_close(model.train()(**batch).loss, found)


# Accelerate


def test_accelerate_trains_a_step_like_plain_torch():
    model = build("ForCausalLM", "decoder")
    plain = copy.deepcopy(model)
    batch = {"input_ids": torch.randint(5, VOCABULARY, (3, 6))}
    batch["labels"] = batch["input_ids"]
    loader = torch.utils.data.DataLoader([{key: value[i] for key, value in batch.items()} for i in range(3)], batch_size=3)
    accelerator = Accelerator(cpu=True)
    prepared, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5), loader)
    for inputs in loader:
        accelerator.backward(prepared(**inputs).loss)
        optimizer.step()
    plain(**batch).loss.backward()
    torch.optim.SGD(plain.parameters(), lr=0.5).step()
    after = dict(accelerator.unwrap_model(prepared).named_parameters())
    torch.testing.assert_close(after, dict(plain.named_parameters()))
    assert plain.model.decoder.layers[0].self_attn.q_proj.weight.grad.any()


# transformers' pipelines


def saved_pipeline(task: str, model, folder, **tokenizer_options):
    """The pipeline that a folder with model and tokenizer gives."""
    scramble(model).save_pretrained(folder)
    tokenizer = word_tokenizer(**tokenizer_options)
    tokenizer.save_pretrained(folder)
    run = pipeline(task, model=str(folder), device="cpu")
    assert type(run.model) is type(model)
    return run, tokenizer


@pytest.mark.parametrize("shape", ["encoder", "decoder"])
def test_text_classification(shape, tmp_path):
    model = build("ForSequenceClassification", shape, num_labels=3)
    classify, tokenizer = saved_pipeline("text-classification", model, tmp_path)
    results = classify(TEXTS, top_k=None)
    with torch.no_grad():
        expected = model(**tokenizer(TEXTS, padding=True, return_tensors="pt")).logits.softmax(-1)
    for result, row in zip(results, expected):
        scores = {entry["label"]: entry["score"] for entry in result}
        assert scores == pytest.approx({f"LABEL_{index}": score for index, score in enumerate(row.tolist())}, abs=1e-5)
    batched = classify(TEXTS, batch_size=4)
    assert [entry["label"] for entry in batched] == [result[0]["label"] for result in results]


def test_text_generation(tmp_path):
    model = build("ForCausalLM", "decoder")
    generate, tokenizer = saved_pipeline("text-generation", model, tmp_path, adds_specials=False, padding_side="left")
    options = {"max_new_tokens": 5, "do_sample": False}
    results = generate(TEXTS, return_full_text=False, **options)
    for text, result in zip(TEXTS, results):
        ids = tokenizer(text, return_tensors="pt")
        written = model.generate(**ids, **options)[0, ids["input_ids"].shape[1] :]
        assert result == [{"generated_text": tokenizer.decode(written, skip_special_tokens=True)}]
        assert generate(text, **options)[0]["generated_text"] == text + result[0]["generated_text"]
    assert len({result[0]["generated_text"] for result in results}) > 1
    assert generate(TEXTS, return_full_text=False, batch_size=4, **options) == results


def test_fill_mask(tmp_path):
    model = build("ForMaskedLM", "encoder")
    fill, tokenizer = saved_pipeline("fill-mask", model, tmp_path)
    text = "the lamp <mask> behind glass"
    results = fill(text, top_k=3)
    ids = tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        scores, tokens = model(**ids).logits[0, 3].softmax(-1).topk(3)
    assert [result["token"] for result in results] == tokens.tolist()
    assert [result["score"] for result in results] == pytest.approx(scores.tolist(), rel=1e-4)
    assert [result["token_str"] for result in results] == tokenizer.convert_ids_to_tokens(tokens)


def test_token_classification(tmp_path):
    model = build("ForTokenClassification", "encoder", num_labels=3)
    tag, tokenizer = saved_pipeline("token-classification", model, tmp_path)
    results = tag(TEXTS[1], ignore_labels=[])
    with torch.no_grad():
        expected = model(**tokenizer(TEXTS[1], return_tensors="pt")).logits[0, 1:-1].argmax(-1)
    assert [result["entity"] for result in results] == [f"LABEL_{label}" for label in expected]
    assert [TEXTS[1][result["start"] : result["end"]] for result in results] == TEXTS[1].split()
    batched = tag(TEXTS, ignore_labels=[], batch_size=4)[1]
    assert [(entry["word"], entry["entity"]) for entry in batched] == [(entry["word"], entry["entity"]) for entry in results]


@pytest.mark.parametrize("shape", ["encoder", "decoder"])
def test_feature_extraction(shape, tmp_path):
    model = build("Model", shape)
    extract, tokenizer = saved_pipeline("feature-extraction", model, tmp_path)
    found = extract(TEXTS[0], return_tensors=True)
    with torch.no_grad():
        expected = model(**tokenizer(TEXTS[0], return_tensors="pt")).last_hidden_state
    assert found.shape == (1, 5, D)
    torch.testing.assert_close(found, expected)


# The pipelines that transformers dropped: text to text

IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0}
SIZES = {
    "vocab_size": VOCABULARY, "d_model": D, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 64,
}  # fmt: skip
T5_SIZES = {"vocab_size": VOCABULARY, "d_model": D, "d_kv": 6, "d_ff": 32, "num_heads": 4, "num_layers": 1}
WRITERS = {
    "glassformer": lambda: build("ForConditionalGeneration", "encoder-decoder"),
    "marian": lambda: MarianMTModel(MarianConfig(**SIZES, **IDS, forced_eos_token_id=None)),
    "bart": lambda: BartForConditionalGeneration(BartConfig(**SIZES, **IDS, forced_eos_token_id=None)),
    "t5": lambda: T5ForConditionalGeneration(T5Config(**T5_SIZES, **IDS)),
}
OUTPUT_NAMES = {
    "translation": "translation_text", "summarization": "summary_text", "text2text-generation": "generated_text",
}  # fmt: skip
each_writer = pytest.mark.parametrize("writer", WRITERS)


@each_writer
@pytest.mark.parametrize("task", OUTPUT_NAMES)
def test_text_to_text_is_what_generate_writes(task, writer, tmp_path):
    model = WRITERS[writer]()
    write, tokenizer = saved_pipeline(task, model, tmp_path)
    expected = []
    for text in TEXTS:
        written = model.generate(**tokenizer(text, return_tensors="pt"), max_new_tokens=6)
        expected.append({OUTPUT_NAMES[task]: tokenizer.decode(written[0], skip_special_tokens=True)})
        assert write(text, max_new_tokens=6) == expected[-1:]
    assert len({tuple(result.values()) for result in expected}) > 1
    assert write(TEXTS, max_new_tokens=6) == expected
    assert write(TEXTS, max_new_tokens=6, batch_size=3) == expected
    assert list(write((text for text in TEXTS), max_new_tokens=6)) == [[result] for result in expected]


@each_writer
def test_several_sequences_come_as_a_list_for_each_text(writer):
    write = pipeline("translation", model=scramble(WRITERS[writer]()), tokenizer=word_tokenizer())
    options = {"max_new_tokens": 4, "num_beams": 4, "num_return_sequences": 3}
    single = [write(text, **options) for text in TEXTS]
    assert all(len(results) == 3 and all(set(result) == {"translation_text"} for result in results) for results in single)
    assert any(len({result["translation_text"] for result in results}) == 3 for results in single)
    assert write(TEXTS, **options) == single
    assert write(TEXTS, batch_size=4, **options) == single


def test_options_of_a_pipeline_can_be_given_early_or_late():
    model, tokenizer = scramble(build("ForConditionalGeneration", "encoder-decoder")), word_tokenizer(model_max_length=4)
    late, early = (pipeline("summarization", model=model, tokenizer=tokenizer, **given) for given in ({}, {"max_new_tokens": 5}))
    assert late(TEXTS, max_new_tokens=5) == late(TEXTS, generation_config=GenerationConfig(max_new_tokens=5)) == early(TEXTS)
    assert early("lamp shines", prefix="the ") == early("the lamp shines")
    assert early("a pane of glass", truncation=True) == early("a pane") != early("a pane of glass")


@pytest.mark.parametrize("given", [5, None, {"text": "light"}, ["light", 5]], ids=str)
def test_text_to_text_refuses_what_is_not_text(given):
    write = pipeline("translation", model=build("ForConditionalGeneration", "encoder-decoder"), tokenizer=word_tokenizer())
    with pytest.raises(ValueError, match=r"The translation pipeline reads text, not (int|NoneType|dict): pass a string"):
        write(given)


@pytest.mark.parametrize("given", ["", "  ", ["light", ""]], ids=repr)
def test_text_to_text_refuses_a_text_without_tokens(given):
    tokenizer = word_tokenizer(adds_specials=False)
    write = pipeline("translation", model=build("ForConditionalGeneration", "encoder-decoder"), tokenizer=tokenizer)
    with pytest.raises(ValueError, match="has no tokens: pass a text that is not empty"):
        write(given)


# The pipelines that transformers dropped: question answering


def planted_reader():
    """A model without a will of its own: answers begin at "alpha" and end at "omega"; without these, <s> says "no answer"."""
    model = build("ForQuestionAnswering", "encoder", position_encoding="none")
    [head] = [module for name, module in model.named_children() if isinstance(module, torch.nn.Linear)]
    with torch.no_grad():
        for layer in model.model.encoder.layers:
            for last in (layer.self_attn.out_proj, layer.feed_forward.down_proj):
                last.weight.zero_()
                last.bias.zero_()
        table = model.model.encoder.embed_tokens.weight.zero_()
        table[:, 0] = 1
        for dimension, token in enumerate([1, ALPHA, OMEGA], start=1):
            table[token] = torch.eye(D)[dimension]
        head.weight.zero_()
        head.weight[:, 1], head.weight[0, 2], head.weight[1, 3] = 1.0, 3.0, 3.0
    return model


def patched(model):
    """A model of transformers, made to say the same."""

    def forward(input_ids, **kwargs):
        no_answer = 5.0 * (input_ids == 1)
        start, end = no_answer + 15.0 * (input_ids == ALPHA), no_answer + 15.0 * (input_ids == OMEGA)
        return QuestionAnsweringModelOutput(start_logits=start, end_logits=end)

    model.forward = forward
    return model


def small_bert():
    sizes = {"hidden_size": D, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 32}
    return BertForQuestionAnswering(BertConfig(vocab_size=VOCABULARY, max_position_embeddings=64, **sizes))


def small_bart():
    return BartForQuestionAnswering(BartConfig(**SIZES, **IDS))


READERS = {"glassformer": planted_reader, "bert": lambda: patched(small_bert()), "bart": lambda: patched(small_bart())}
each_reader = pytest.mark.parametrize("reader", READERS)


def answering(model, **options):
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if model.config.model_type == "bert" else [])]
    return pipeline("question-answering", model=model.eval(), tokenizer=word_tokenizer(model_input_names=names), **options)


def question(before: int, after: int, answer: str = "alpha omega") -> dict[str, str]:
    filler = [word for word in WORDS if word not in ("alpha", "omega")] * 5
    return {"question": "where is alpha", "context": " ".join([*filler[:before], *answer.split(), *filler[:after]])}


def assert_is_answer(result, asked, answer: str = "alpha omega"):
    start = asked["context"].index(answer)
    assert set(result) == {"score", "start", "end", "answer"}
    assert (result["answer"], result["start"], result["end"]) == (answer, start, start + len(answer))
    assert 0.9 < result["score"] <= 1


def assert_same_answer(result, expected):
    assert result == {**expected, "score": pytest.approx(expected["score"], rel=1e-4)}


@each_reader
def test_an_answer_is_cut_out_of_the_context(reader):
    answer = answering(READERS[reader]())
    asked = question(3, 4)
    for result in (answer(**asked), answer(asked), *answer([asked, asked])):
        assert_is_answer(result, asked)


@each_reader
@pytest.mark.parametrize("options", [{}, {"max_seq_len": 20, "doc_stride": 5}], ids=["default", "small windows"])
def test_an_answer_is_found_wherever_it_is_in_a_long_context(reader, options):
    """100 words, windows of 64 or 20 tokens: the answer is at times cut by the end of one window, and whole in the next."""
    answer = answering(READERS[reader](), **options)
    asked = [question(place, 98 - place) for place in range(0, 99, 3)]
    results = answer(asked, batch_size=8)
    for one, result in zip(asked, results, strict=True):
        assert_is_answer(result, one)
    assert_same_answer(results[7], answer(asked[7]))


@each_reader
def test_an_answer_has_a_longest_length(reader):
    answer = answering(READERS[reader]())
    asked = question(2, 2, answer="alpha a lamp in the light omega")
    assert_is_answer(answer(asked), asked, "alpha a lamp in the light omega")
    assert len(answer(asked, max_answer_len=6)["answer"].split()) <= 6


@each_reader
def test_several_answers_come_best_first(reader):
    answer = answering(READERS[reader]())
    results = answer(**question(3, 4), top_k=4)
    assert results[0]["answer"] == "alpha omega"
    scores = [result["score"] for result in results]
    assert len(results) == 4 and scores == sorted(scores, reverse=True)
    assert len({(result["start"], result["end"]) for result in results}) == 4


@each_reader
def test_no_answer_is_an_answer_if_allowed(reader):
    answer = answering(READERS[reader]())
    asked = question(30, 70, answer="glass")
    asked["question"] = "who breaks the pane"
    nothing = answer(asked, handle_impossible_answer=True)
    assert (nothing["answer"], nothing["start"], nothing["end"]) == ("", 0, 0)
    forced = answer(asked)
    assert forced["answer"] and forced["score"] < nothing["score"]
    asked = question(3, 4)
    assert_is_answer(answer(asked, handle_impossible_answer=True), asked)


UNPLANTED = {
    "glassformer": lambda: build("ForQuestionAnswering", "encoder"),
    "glassformer decoder": lambda: build("ForQuestionAnswering", "decoder"),
    "bert": small_bert,
    "bart": small_bart,
    "t5": lambda: T5ForQuestionAnswering(T5Config(**T5_SIZES, **IDS)),
}


@pytest.mark.parametrize("reader", UNPLANTED)
def test_a_batch_of_questions_is_answered_like_each_alone(reader):
    answer = answering(scramble(UNPLANTED[reader]()))
    asked = [question(place, 40) for place in range(5)]
    alone = [answer(one) for one in asked]
    for together, one, result in zip(answer(asked, batch_size=4), asked, alone, strict=True):
        assert one["context"][result["start"] : result["end"]] == result["answer"] != ""
        assert_same_answer(together, result)


@pytest.mark.parametrize("missing", ["question", "context"])
@pytest.mark.parametrize("given", ["", "  ", None, 5, ["light"]], ids=repr)
def test_a_question_needs_two_texts(missing, given):
    answer = answering(planted_reader())
    with pytest.raises(ValueError, match=f"The {missing} is .*: pass a text that is not empty"):
        answer({**question(1, 1), missing: given})


def test_a_question_must_leave_room_for_the_context():
    answer = answering(planted_reader())
    with pytest.raises(ValueError, match="The question fills all 6 tokens of a window: shorten it, or raise max_seq_len"):
        answer(**question(1, 1), max_seq_len=6)


def test_a_slow_tokenizer_cannot_point_at_characters(monkeypatch):
    answer = answering(planted_reader())
    monkeypatch.setattr(type(answer.tokenizer), "is_fast", False)
    with pytest.raises(ValueError, match="a slow tokenizer does not count: load a fast one"):
        answer(**question(1, 1))
