"""Estimates before a run: held against what torch really keeps, allocates and computes; and the files to launch a run with."""

import contextlib
import re
import runpy
import weakref
from pathlib import Path

import pytest
import torch
import yaml
from models import SHAPES, tiny_config, tiny_language_model
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import FlopCounterMode

import glassformer
from glassformer import GlassformerConfig, losses
from glassformer.training import estimate
from glassformer.training.estimate import Activations, estimate_memory, parameter_count, training_flops


ROOT = Path(__file__).parent.parent
B, S, T, V = 6, 40, 56, 300  # activations outweigh the weights
SIZES = {"vocab_size": V, "d_model": 48, "d_ff": 120}
MODERN = {"norm": "rmsnorm", "gated_feed_forward": True, "activation": "silu", "position_encoding": "rope", "num_kv_heads": 2}
VARIANTS = {
    "default": {},
    "post-norm": {"norm_position": "post"},
    "without-dropout": {"dropout": 0.0},
    "modern": MODERN,
    "gated": {"gated_feed_forward": True, "activation_dropout": 0.1},
    "eager": {"attn_implementation": "eager"},
    "eager-dropout": {"attn_implementation": "eager", "attention_dropout": 0.1},
    "attention-dropout": {"attention_dropout": 0.1},
    "alibi": {"position_encoding": "alibi"},
    "relative": {"position_encoding": "relative", "norm": "rmsnorm", "qk_norm": True},
    "learned": {"position_encoding": "learned", "embedding_norm": True, "activation": "gelu_new"},
    "ngrams": {"ngram_size": 4, "ngram_buckets": 500},
    "convolution": {"conv_size": 5, "activation": "gelu"},
}


def language_model(shape: str, **overrides):
    return tiny_language_model(shape, **{**SIZES, **overrides}).train()


def padded_batch(model) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """What the bare model reads, and labels for the model with a head."""
    source, target = torch.randint(5, V, (B, S)), torch.randint(5, V, (B, T))
    inputs = {"input_ids": source, "attention_mask": torch.ones(B, S, dtype=torch.long)}
    inputs["attention_mask"][0, -3:] = 0
    if not model.config.is_encoder_decoder:
        return inputs, source
    inputs |= {"decoder_input_ids": target, "decoder_attention_mask": torch.ones(B, T, dtype=torch.long)}
    inputs["decoder_attention_mask"][0, -3:] = 0
    return inputs, target


def lengths(shape: str) -> tuple[int, int | None]:
    return S, T if shape == "encoder-decoder" else None


# Parameters


def test_parameters_of_the_papers_base_model_by_hand():
    width, inner, words = 512, 2048, 37000
    attention, norm = 4 * (width**2 + width), 2 * width
    feed_forward = 2 * width * inner + inner + width
    encoder = 6 * (attention + feed_forward + 2 * norm)
    decoder = 6 * (2 * attention + feed_forward + 3 * norm)
    config = GlassformerConfig.from_preset("paper-base")
    assert parameter_count(config, glassformer.GlassformerForConditionalGeneration) == words * width + encoder + decoder


def test_the_smallest_gpt2_has_its_published_number_of_parameters():
    config = GlassformerConfig.from_preset("gpt2-small")
    assert parameter_count(config, glassformer.GlassformerForCausalLM) == 124_439_808


# Memory


def bytes_saved_for_backward(model, inputs: dict[str, torch.Tensor]) -> int:
    """Storages that autograd keeps, each once, apart from the parameters."""
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    saved = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            saved[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = model(**inputs)
    del outputs
    return sum(storage.nbytes() for storage in saved.values())


@pytest.mark.parametrize(
    ("shape", "variant", "checkpointed"),
    [
        *(("encoder-decoder", variant, False) for variant in VARIANTS),
        *(("encoder-decoder", variant, True) for variant in ("default", "modern", "eager", "alibi")),
        *((shape, "default", checkpointed) for shape in ("encoder", "decoder") for checkpointed in (False, True)),
    ],
)
def test_what_the_layers_keep_is_what_torch_saves(shape, variant, checkpointed):
    model = language_model(shape, **VARIANTS[variant]).model
    if checkpointed:
        model.gradient_checkpointing_enable()
    measured = bytes_saved_for_backward(model, padded_batch(model)[0])
    estimated = Activations(model.config, B, item=4, on_cpu=True).kept(*lengths(shape), checkpointed)
    assert estimated == pytest.approx(measured, rel=0.05)


class LivingBytes(TorchDispatchMode):
    """Counts the bytes of all tensors that are alive, and the most that ever were."""

    def __init__(self):
        super().__init__()
        self.living, self.now, self.peak = {}, 0, 0

    def watch(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.living:
            self.living[storage._cdata] = storage.nbytes()
            weakref.finalize(storage, self.forget, storage._cdata)
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)

    def forget(self, key: int) -> None:
        self.now -= self.living.pop(key)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in tree_iter(result):
            if isinstance(tensor, torch.Tensor):
                self.watch(tensor)
        return result


def peak_of_an_update(model, autocast, **inputs) -> int:
    """The second of two, when gradients and the optimiser's state are there already."""
    optimizer = torch.optim.AdamW(model.parameters())

    def update() -> None:
        with autocast:
            outputs = model(**inputs)
        outputs.loss.backward()
        optimizer.step()

    update()
    with LivingBytes() as memory:
        for parameter in model.parameters():
            for tensor in (parameter, parameter.grad, *optimizer.state[parameter].values()):
                memory.watch(tensor)
        update()
    return memory.peak


WAYS = {
    "default": {},
    "logits": {"return_logits": True},
    "checkpointed": {"gradient_checkpointing": True},
    "checkpointed-logits": {"gradient_checkpointing": True, "return_logits": True},
    "bf16": {"precision": "bf16"},
    "bf16-checkpointed": {"precision": "bf16", "gradient_checkpointing": True},
}


@pytest.mark.parametrize(
    ("shape", "variant", "way"),
    [
        *(("encoder-decoder", "default", way) for way in WAYS),
        *((shape, "default", way) for shape in ("encoder", "decoder") for way in ("default", "checkpointed")),
        *(("decoder", "modern", way) for way in ("default", "checkpointed-logits", "bf16")),
        *(("encoder", "eager", way) for way in ("default", "bf16")),
        *(("encoder", variant, "default") for variant in ("ngrams", "convolution")),
    ],
)
def test_the_total_is_the_peak_of_a_real_update(shape, variant, way):
    model, options = language_model(shape, **VARIANTS[variant]), WAYS[way]
    if options.get("gradient_checkpointing"):
        model.gradient_checkpointing_enable()
    autocast = torch.autocast("cpu", torch.bfloat16) if "precision" in options else contextlib.nullcontext()
    inputs, labels = padded_batch(model)
    measured = peak_of_an_update(model, autocast, **inputs, labels=labels, return_logits=options.get("return_logits", False))
    memory = estimate_memory(model.config, type(model), B, *lengths(shape), **options)
    assert memory["total"] == pytest.approx(measured, rel=0.1)
    assert memory["total"] == sum(memory[part] for part in ("weights", "gradients", "optimizer", "activations"))


def test_a_large_vocabulary_costs_a_chunk_of_logits_or_all_of_them(monkeypatch):
    monkeypatch.setattr(losses, "LOGITS_AT_ONCE", 1_000_000)
    model = language_model("decoder", vocab_size=2000)
    ids = torch.randint(5, V, (32, S))  # 1280 positions, which is more than a chunk
    for return_logits in (True, False):
        measured = peak_of_an_update(model, contextlib.nullcontext(), input_ids=ids, labels=ids, return_logits=return_logits)
        memory = estimate_memory(model.config, type(model), 32, S, return_logits=return_logits)
        assert memory["total"] == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize("name", estimate.OPTIMIZER_VALUES)
def test_the_optimisers_state_is_that_of_a_real_one(name):
    from glassformer.training import recipe
    from glassformer.training.optimization import make_optimizers

    if name in ("lamb", "sophia"):
        pytest.importorskip("pytorch_optimizer")
    model = tiny_language_model(attn_implementation="eager")  # Sophia differentiates twice, which kernels cannot
    optimizers = make_optimizers(model, recipe.Optimizer(name=name), recipe.Schedule())
    ids = torch.randint(5, 31, (2, 7))
    loss = model(ids, labels=ids).loss
    gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=name == "sophia")
    for parameter, gradient in zip(model.parameters(), gradients):
        parameter.grad = gradient
    for optimizer in optimizers:
        optimizer.step()
    state = [value for optimizer in optimizers for values in optimizer.state.values() for value in values.values()]
    measured = sum(value.nbytes for value in state if isinstance(value, torch.Tensor) and value.dim())  # counters aside
    assert estimate_memory(model.config, type(model), 2, 7, optimizer=name)["optimizer"] == measured


def test_activations_grow_with_the_batch_and_nothing_else_does():
    config, head = tiny_config("decoder"), glassformer.GlassformerForCausalLM
    one, three = (estimate_memory(config, head, batch, 9, return_logits=True) for batch in (1, 3))
    assert three.pop("activations") == 3 * one.pop("activations")
    one.pop("total"), three.pop("total")
    assert one == three


def test_only_a_cpu_writes_the_scores_of_short_sequences_out():
    config, head = tiny_config("encoder"), glassformer.GlassformerForMaskedLM
    cpu, gpu = (estimate_memory(config, head, 2, 9, device=device)["activations"] for device in ("cpu", "cuda"))
    pairs = 2 * 9 * 9
    weights, mask, row_sums, numbers = 2 * 4 * config.num_heads * pairs, pairs, 2 * config.num_heads * 9 * 4, 4 * pairs
    assert cpu - gpu == config.num_encoder_layers * (weights + mask - row_sums - numbers)


def test_scores_of_eight_heads_at_512_positions():
    assert estimate.attention_values(32, 8, 512) == 67_108_864


def test_wrong_names_and_lengths_are_told_in_one_sentence():
    config, head = tiny_config("decoder"), glassformer.GlassformerForCausalLM
    with pytest.raises(ValueError, match=r"no precision 'bf1': did you mean bf16\?"):
        estimate_memory(config, head, 2, 9, precision="bf1")
    with pytest.raises(ValueError, match="no optimizer 'sgd': choose one of adamw, "):
        estimate_memory(config, head, 2, 9, optimizer="sgd")
    with pytest.raises(ValueError, match="shape decoder reads one sequence: leave target_length out"):
        training_flops(config, head, 2, 9, 5)


# Arithmetic and time


@pytest.mark.parametrize("shape", SHAPES)
def test_flops_are_those_that_torch_counts(shape):
    model = language_model(shape, attn_implementation="eager")  # torch does not count a CPU's fused kernel
    inputs, labels = padded_batch(model)
    with FlopCounterMode(display=False) as counter:
        model(**inputs, labels=labels).loss.backward()
    flops = training_flops(model.config, type(model), B, *lengths(shape))
    assert flops == pytest.approx(counter.get_total_flops(), rel=0.02)
    assert training_flops(model.config, type(model), 3 * B, *lengths(shape)) == 3 * flops


def test_short_sequences_cost_six_flops_a_parameter_and_token():
    config, head = GlassformerConfig.from_preset("gpt2-small"), glassformer.GlassformerForCausalLM
    multiplied = parameter_count(config, head) - config.max_position_embeddings * config.d_model
    assert training_flops(config, head, 10, 8) == pytest.approx(6 * multiplied * 10 * 8, rel=0.01)


def test_the_rate_is_two_flops_for_each_multiplication(monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr(estimate.time, "perf_counter", lambda: next(clock))  # every look at it is a second later
    assert estimate.matmul_rate(seconds=0.3) == 2 * 1024**3


def test_time_is_work_over_rate_and_efficiency():
    assert estimate.estimate_seconds(6e12, 1e12) == 12
    assert estimate.estimate_seconds(6e12, 1e12, efficiency=0.25) == 24


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (estimate.readable_count, 65_000_000, "65.0 M"),
        (estimate.readable_count, 999_960, "1.0 M"),
        (estimate.readable_count, 12, "12"),
        (estimate.readable_bytes, 0, "0 B"),
        (estimate.readable_bytes, 1_234_567, "1.2 MB"),
        (estimate.readable_bytes, 80e9, "80.0 GB"),
        (estimate.readable_time, 0.25, "0.2 s"),
        (estimate.readable_time, 59.99, "1.0 min"),
        (estimate.readable_time, 5400, "1.5 h"),
        (estimate.readable_time, 864_000, "10.0 days"),
    ],
)
def test_numbers_are_written_for_people(function, value, text):
    assert function(value) == text


# Files to launch with, and the page about them

LAUNCH_FILES = sorted((ROOT / "configuration" / "accelerate").glob("*.yaml"))
SCALE = ROOT / "docs" / "scale.md"


def launch_file(name: str) -> dict:
    return yaml.safe_load((ROOT / "configuration" / "accelerate" / name).read_text())


@pytest.mark.parametrize("path", LAUNCH_FILES, ids=lambda path: path.stem)
def test_accelerate_reads_every_launch_file(path):
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import launch_command_parser

    config = load_config_from_file(str(path))  # refuses keys that it does not know
    assert config.num_processes % config.num_machines == 0
    known = {action.dest for action in launch_command_parser()._actions}
    assert set(config.fsdp_config) | set(config.deepspeed_config) <= known
    assert ("not run by our tests" in path.read_text().lower()) != config.use_cpu


def test_the_launch_files_for_fsdp2_differ_in_the_machine_alone():
    gpu, cpu = launch_file("fsdp2.yaml"), launch_file("fsdp2-cpu.yaml")
    assert {key for key in gpu if gpu[key] != cpu[key]} == {"use_cpu", "num_processes", "mixed_precision"}
    assert gpu.keys() == cpu.keys()
    layers = set(gpu["fsdp_config"]["fsdp_transformer_layer_cls_to_wrap"].split(","))
    assert layers == {type(module).__name__ for module in tiny_language_model().modules() if type(module).__name__ in layers}


def test_the_page_about_scale_names_every_launch_file_and_no_other():
    named = set(re.findall(r"([\w-]+\.yaml)", SCALE.read_text()))
    assert named == {path.name for path in LAUNCH_FILES}


def test_the_table_of_the_page_about_scale_is_what_the_script_prints(capsys):
    runpy.run_path(str(ROOT / "scripts" / "scale_table.py"), run_name="__main__")
    table = SCALE.read_text().split("<!-- table: scale -->\n")[1].split("<!-- /table -->")[0]
    assert table == capsys.readouterr().out
