"""Encoders of pictures: patches, their head, and everything that saves, loads, trains and judges models."""

import re

import numpy as np
import pytest
import torch
import transformers
from models import B, D, tiny_config
from PIL import Image
from torch.nn import functional as F
from torch.testing import assert_close

import glassformer
from glassformer import (
    Encoder,
    GlassformerConfig,
    GlassformerForImageClassification,
    GlassformerModel,
    PatchEmbedding,
)
from glassformer.analysis import explain
from glassformer.analysis.checks import CHECKS, check_folder
from glassformer.hub_card.card import write_card
from glassformer.hub_card.files import contents
from glassformer.training.inference import load_trained


# C channels, W height and width of a picture, P of a patch, N patches
C, W, P = 2, 12, 4
N = (W // P) ** 2
SIZES = {"image_size": W, "patch_size": P, "num_channels": C, "position_encoding": "learned", "num_labels": 3}


def picture_config(**options) -> GlassformerConfig:
    return tiny_config("encoder", **SIZES | options)


def picture_model(**options) -> GlassformerForImageClassification:
    torch.manual_seed(0)
    return GlassformerForImageClassification(picture_config(**options)).eval()


def pictures(batch: int = B, size: int = W, channels: int = C) -> torch.Tensor:
    return torch.randn(batch, channels, size, size, generator=torch.Generator().manual_seed(1))


# Patches


def test_patches_are_a_convolution_that_never_overlaps():
    embed, x = PatchEmbedding(D, W, P, C), pictures()
    kernel = embed.projection.weight.view(D, C, P, P)
    expected = F.conv2d(x, kernel, embed.projection.bias, stride=P).flatten(2).transpose(1, 2)
    found = embed(x)
    assert found.shape == (B, 1 + N, D)
    assert_close(found[:, 1:], expected)
    assert_close(found[:, 0], embed.class_token[0].expand(B, D))


def test_a_pixel_is_seen_by_its_own_patch_alone():
    embed, x = PatchEmbedding(D, W, P, C), pictures()
    changed = x.clone()
    changed[0, 1, 5, 11] += 1.0  # second row of patches, third of three
    assert (embed(x) != embed(changed)).any(-1).nonzero().tolist() == [[0, 1 + 5]]


def test_the_class_is_read_off_the_first_place():
    model, x = picture_model(), pictures()
    with torch.no_grad():
        hidden = model.model(pixel_values=x).last_hidden_state
        assert hidden.shape == (B, 1 + N, D)
        assert_close(model(x).logits, model.classifier(hidden[:, 0]))


@pytest.mark.parametrize("position_encoding", ["learned", "sinusoidal", "rope", "alibi", "relative"])
def test_where_a_patch_is_matters_to_every_encoding_of_positions(position_encoding):
    model, x = picture_model(position_encoding=position_encoding), pictures()
    with torch.no_grad():
        logits = model(x).logits
        assert not torch.allclose(model(x.roll(P, dims=-1)).logits, logits, atol=1e-4)
        assert_close(torch.cat([model(each[None]).logits for each in x]), logits)


def test_without_positions_the_order_of_patches_is_lost():
    model, x = picture_model(position_encoding="none"), pictures()
    with torch.no_grad():
        assert_close(model(x.roll(P, dims=-1)).logits, model(x).logits)


# The model


def test_nothing_is_kept_that_pictures_do_not_need():
    model = picture_model()
    names = [name for name, _ in model.named_parameters()]
    assert not any("embed_tokens" in name for name in names)
    assert model.config.max_position_embeddings == len(model.model.encoder.positions.weight) == 1 + N
    assert model.get_input_embeddings() is model.model.encoder.embed_patches.projection
    model.set_input_embeddings(another := torch.nn.Linear(C * P * P, D))
    assert model.model.encoder.embed_patches.projection is another
    assert model.main_input_name == model.model.main_input_name == model.model.encoder.main_input_name == "pixel_values"
    assert GlassformerModel(tiny_config("encoder")).main_input_name == "input_ids"
    modules = dict(model.model.named_modules())
    for plan in (model.config.base_model_tp_plan, model.config.base_model_fsdp_plan):
        assert all(path.replace("*", "0") in modules for path in plan)


def test_every_parameter_gets_a_gradient_with_and_without_checkpoints():
    found = []
    for checkpoints in (False, True):
        model = picture_model(dropout=0.0).train()
        if checkpoints:
            model.gradient_checkpointing_enable()
        model(pictures(), labels=torch.tensor([0, 2])).loss.backward()
        found.append({name: parameter.grad for name, parameter in model.named_parameters()})
    assert all(gradient is not None for gradient in found[0].values())
    assert {name for name, gradient in found[0].items() if not gradient.any() and "k_proj.bias" not in name} == set()
    assert_close(found[1], found[0])


def test_kernels_agree():
    model, x = picture_model(), pictures()
    found = {}
    for kernel in ("eager", "sdpa"):
        model.set_attn_implementation(kernel)
        with torch.no_grad():
            found[kernel] = model(x, output_hidden_states=True)
    assert_close(found["sdpa"].logits, found["eager"].logits)
    assert len(found["eager"].hidden_states) == 3
    model.set_attn_implementation("eager")
    assert model(x, output_attentions=True).attentions[0].shape == (B, model.config.num_heads, 1 + N, 1 + N)


def test_several_labels_and_numbers_can_be_learnt():
    several = picture_model(problem_type="multi_label_classification")
    assert several(pictures(), labels=torch.ones(B, 3)).loss > 0
    number = picture_model(num_labels=1, problem_type="regression")
    assert number(pictures(), labels=torch.ones(B)).loss > 0


def test_a_saved_model_comes_back_bit_for_bit(tmp_path):
    model, x = picture_model(), pictures()
    model.save_pretrained(tmp_path)
    again, report = transformers.AutoModelForImageClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert type(again) is GlassformerForImageClassification and not report["missing_keys"] and not report["unexpected_keys"]
    assert (again.config.num_patches, again.config.pooling) == (N, "first")
    with torch.no_grad():
        assert torch.equal(again(x).logits, model(x).logits)
    half = GlassformerForImageClassification.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert half(x).logits.dtype == torch.bfloat16  # of pictures in float32


def test_what_is_missing_from_a_file_begins_as_in_a_new_model(tmp_path):
    bare = picture_model().model
    bare.save_pretrained(tmp_path, state_dict={n: w for n, w in bare.state_dict().items() if "embed_patches" not in n})
    again, report = GlassformerForImageClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert "model.encoder.embed_patches.class_token" in report["missing_keys"]
    embed = again.model.encoder.embed_patches
    assert 0.5 < embed.class_token.std() * D**0.5 < 2 and embed.projection.weight.std() > 0.1
    assert_close(again.model.encoder.positions.weight, bare.encoder.positions.weight)


def test_eight_bits_are_near():
    model, x = picture_model(), pictures()
    with torch.no_grad():
        expected = model(x).logits
        assert (glassformer.quantize_int8(model)(x).logits - expected).std() < 0.1 * expected.std()


# At work


def bright_halves(count: int) -> list[dict]:
    """Noise, brighter above (class 0) or below (class 1)."""
    rng, rows = torch.Generator().manual_seed(2), []
    for label in range(count):
        picture = torch.randn(C, W, W, generator=rng)
        picture[:, slice(0, W // 2) if label % 2 == 0 else slice(W // 2, W)] += 1.0
        rows.append({"pixel_values": picture, "labels": label % 2})
    return rows


def test_trainer_teaches_it(tmp_path):
    options = transformers.TrainingArguments(
        output_dir=tmp_path, per_device_train_batch_size=16, max_steps=40, learning_rate=3e-3, report_to=[], use_cpu=True,
        save_strategy="no", disable_tqdm=True, logging_strategy="no", seed=0,
    )  # fmt: skip
    rows = bright_halves(96)
    trainer = transformers.Trainer(
        picture_model(num_labels=2, dropout=0.0), options, train_dataset=rows[:64], eval_dataset=rows[64:],
        compute_metrics=lambda told: {"accuracy": (told.predictions.argmax(-1) == told.label_ids).mean()},
    )  # fmt: skip
    trainer.train()
    assert trainer.evaluate()["eval_accuracy"] > 0.9


@pytest.fixture
def folder(tmp_path):
    """A model with its image processor."""
    model = picture_model(num_channels=3, id2label={0: "lamp", 1: "pane", 2: "prism"})
    model.save_pretrained(tmp_path / "seer")
    transformers.ViTImageProcessorPil(size={"height": W, "width": W}).save_pretrained(tmp_path / "seer")
    return tmp_path / "seer"


def test_a_pipeline_classifies_pictures(folder):
    rng = np.random.default_rng(0)
    picture = Image.fromarray(rng.integers(0, 256, (30, 20, 3), dtype=np.uint8))
    classify = transformers.pipeline("image-classification", model=str(folder))
    found = classify(picture, top_k=3)
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    with torch.no_grad():
        scores = classify.model(**processor(picture, return_tensors="pt")).logits[0].softmax(-1)
    assert [each["label"] for each in found] == [["lamp", "pane", "prism"][index] for index in scores.argsort(descending=True)]
    assert found[0]["score"] == pytest.approx(float(scores.max()), rel=1e-4)
    assert classify([picture, picture], batch_size=2)[1][0]["label"] == found[0]["label"]


def test_checks_know_pictures(folder):
    here = [name for name in CHECKS if "fresh process" not in name]  # another process takes seconds
    verdicts = {verdict.name: verdict for verdict in check_folder(folder, here)}
    assert [verdict for verdict in verdicts.values() if verdict.passed is False] == []
    assert verdicts["no leak from padding"].reason == "pictures have no padding"
    assert all(verdicts[name].passed for name in ("no pickle", "eager equals sdpa", "half precision"))


def test_what_is_for_text_says_so(folder):
    for load in (load_trained, explain.load):
        with refused("holds a model that reads pictures, and this is for text"):
            load(folder)


@pytest.mark.parametrize("head", ["GlassformerForImageClassification", "GlassformerModel"])
def test_a_card_tells_of_pictures(head, folder):
    getattr(glassformer, head).from_pretrained(folder).save_pretrained(folder)
    text = write_card(folder).read_text()
    task = "image-classification" if "For" in head else "image-feature-extraction"
    assert f"pipeline_tag: {task}" in text and f'pipeline("{task}", model="seer")("picture.png")' in text
    assert "AutoImageProcessor" in text and "AutoTokenizer" not in text and "vocabulary" not in text
    assert "12 x 12 pixels of 3 channels" in text and "tokens" not in text
    assert "preprocessor_config.json" in contents(folder).upload


# What is refused


def refused(*words: str):
    return pytest.raises(ValueError, match=".*".join(re.escape(word) for word in words))


@pytest.mark.parametrize(
    ("options", "words"),
    {
        "decoder": ({"num_decoder_layers": 1}, ("image_size=12 is for an encoder by itself", "num_decoder_layers=0")),
        "uncovered": ({"patch_size": 5}, ("image_size=12 is not divisible by patch_size=5 (remainder 2)",)),
        "nothing": ({"image_size": 0}, ("image_size=0 must be positive",)),
        "no-patch": ({"patch_size": 0}, ("patch_size=0 must be positive",)),
        "no-channel": ({"num_channels": 0}, ("num_channels=0 must be positive",)),
        "two-sides": ({"image_size": [12, 12]}, ("image_size=[12, 12] is of type list",)),
    }.values(),
)
def test_sizes_that_do_not_fit_are_told_at_construction(options, words):
    with refused(*words):
        picture_config(**options)


@pytest.mark.parametrize(
    "head",
    ["ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"],
)
def test_heads_for_text_refuse_a_config_for_pictures(head):
    with refused(f"Glassformer{head} reads text, but image_size=12", "leave image_size out"):
        getattr(glassformer, f"Glassformer{head}")(picture_config())


def test_the_head_for_pictures_refuses_a_config_for_text():
    with refused("reads pictures, but image_size=None", "set image_size"):
        GlassformerForImageClassification(tiny_config("encoder"))
    with refused("needs the shape encoder"):
        GlassformerForImageClassification(tiny_config("decoder"))


def test_pictures_of_another_kind_are_refused():
    model = picture_model()
    with refused("[2, 2, 16, 16], but this model reads [B, 2, 12, 12]", "12 x 12 pixels"):
        model(pictures(size=16))
    with refused("[2, 3, 12, 12], but this model reads [B, 2, 12, 12]", "2 channels"):
        model(pictures(channels=3))
    with refused("has the shape [2, 12, 12]"):
        model(pictures()[0])
    with refused("must be floats, not torch.uint8", "image processor"):
        model(torch.zeros(B, C, W, W, dtype=torch.uint8))
    with refused("is empty: pass at least one picture"):
        model(pictures()[:0])
    with refused("Got no pixel_values"):
        model()
    with refused("pixel_values of type ndarray"):
        model(pictures().numpy())


def test_text_for_pictures_and_pictures_for_text_are_refused():
    ids = torch.ones(B, 3, dtype=torch.long)
    for reader in (picture_model().model, Encoder(picture_config())):
        with refused("Got input_ids, but this model reads pictures (image_size=12)", "pass pixel_values"):
            reader(input_ids=ids)
        with refused("Got inputs_embeds, but this model reads pictures"):
            reader(inputs_embeds=torch.zeros(B, 3, D), pixel_values=pictures())
    for shape in ("encoder", "decoder", "encoder-decoder"):
        with refused("Got pixel_values, but this model reads text: pass input_ids"):
            GlassformerModel(tiny_config(shape))(ids, decoder_input_ids=ids, pixel_values=pictures())
