# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Accelerate, told what it does not find out by itself: which devices, and how a model is spread over them."""

import contextlib
import ctypes
import logging
import os
from collections.abc import Iterator

import torch
from accelerate import Accelerator, PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin, ProjectConfiguration, parse_flag_from_env
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.optim import Optimizer
from transformers import PreTrainedModel

from .logs import tracker_names
from .products import use_onednn_products
from .recipe import Recipe, RecipeError


logger = logging.getLogger("glassformer")

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4  # of glibc's mallopt

BY_ACCELERATE = {"float32": "no", "bf16": "bf16", "fp16": "fp16", None: None}  # its names of precisions


def make_accelerator(recipe: Recipe) -> Accelerator:
    """As `accelerate launch` has configured it; without a launch, one process on the best device there is."""
    AcceleratorState._reset_state()  # of an earlier run in this process, which may have had another precision
    places = ProjectConfiguration(project_dir=str(recipe.folder), logging_dir=str(recipe.folder / "tensorboard"))
    try:
        accelerator = Accelerator(
            mixed_precision=BY_ACCELERATE[choose_precision(recipe.training.precision)],
            log_with=tracker_names(recipe.logging) or None,
            project_config=places,
            cpu=chosen_device().type == "cpu" or None,
        )
    except (ValueError, ImportError) as error:
        raise RecipeError(f"training.precision={recipe.training.precision} does not work here: {error}") from None
    if os.environ.get("ACCELERATE_USE_FSDP") == "true" and accelerator.device.type == "cpu" and accelerator.num_processes > 1:
        shard_on_cpu(accelerator)
    if accelerator.device.type == "cpu":
        set_up_cpu()
    if not accelerator.is_main_process:
        logger.setLevel(logging.ERROR)  # one voice is enough
    if accelerator.distributed_type == DistributedType.DEEPSPEED and recipe.batching.accumulation > 1:
        raise RecipeError("DeepSpeed accumulates by itself: set batching.accumulation=1 and raise batching.tokens.")
    return accelerator


def choose_precision(precision: str | None) -> str | None:
    """`auto` made definite, for the device that a run is going to use."""
    if precision != "auto":
        return precision
    return "bf16" if has_fast_bfloat16(chosen_device()) else "float32"


def has_fast_bfloat16(device: torch.device) -> bool:
    """Whether it computes in bfloat16 by itself: to emulate it takes many times as long as float32."""
    if device.type == "cpu":
        return torch.cpu._is_avx512_bf16_supported()
    return device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False)


def set_up_cpu() -> None:
    """What this process can do for every model that it trains on a CPU."""
    keep_memory()
    use_onednn_products()


def keep_memory() -> None:
    """Freed memory stays with the process. By default glibc returns large blocks at once, and every step of a training run
    on a CPU asks the system for them anew, page by page: a tenth of its time."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "gnu_get_libc_version"):
        for option, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 2**31 - 1), (M_TOP_PAD, 2**28)):
            libc.mallopt(option, value)


def chosen_device() -> torch.device:
    """Where Accelerate puts a run: on a CPU if there is nothing else, or if the environment says so."""
    gpu = None if parse_flag_from_env("ACCELERATE_USE_CPU") else torch.accelerator.current_accelerator(check_available=True)
    return gpu or torch.device("cpu")


def shard_on_cpu(accelerator: Accelerator) -> None:
    """accelerate falls back to replicas on a CPU, without a word; FSDP2 itself works there, and our tests use it."""
    accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin()
    accelerator.state.distributed_type = DistributedType.FSDP
    PartialState._shared_state["distributed_type"] = DistributedType.FSDP


def leave() -> None:
    """Say goodbye to the other processes, at the end of a command."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def spread(accelerator: Accelerator, model: PreTrainedModel, optimizers: list[Optimizer]) -> list:
    """`accelerator.prepare` for a model and its optimisers -> both, ready for this process' part."""
    if accelerator.distributed_type != DistributedType.FSDP:
        return list(accelerator.prepare(model, *optimizers))
    plugin = accelerator.state.fsdp_plugin
    layers = {type(module).__name__ for module in model.modules()}
    plugin.transformer_cls_names_to_wrap = [name for name in model._no_split_modules if name in layers]
    if accelerator.mixed_precision != "no":  # the loss is a sum over many labels: it stays in float32
        half = torch.bfloat16 if accelerator.mixed_precision == "bf16" else torch.float16
        plugin.mixed_precision_policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32)
    with one_unit_for_embeddings(model):
        return list(accelerator.prepare(model, *optimizers))


@contextlib.contextmanager
def one_unit_for_embeddings(model: PreTrainedModel) -> Iterator[None]:
    """accelerate shards embeddings apart from the rest, which tied ones do not allow: it is not shown any."""
    model.get_input_embeddings = model.get_output_embeddings = lambda: None
    try:
        yield
    finally:
        del model.get_input_embeddings, model.get_output_embeddings


def reshard(model: PreTrainedModel) -> None:
    """After a forward pass without a backward pass, FSDP2 still holds whole weights: each process goes back to its part."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
