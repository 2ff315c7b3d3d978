# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""Whether a saved model is what it seems: a list of checks of a folder, each with a verdict and a sentence that says why.

Each check is a function of a `Subject`. It returns what it found, raises `Failed` with the reason, or `NotApplicable`.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

import glassformer


PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
CLOSE = 1e-4  # logits that kernels or caches compute in another order
LENGTH, EXAMPLES = 12, 2


class Failed(Exception):
    """The model does not do what it should; the message says in which way."""


class NotApplicable(Exception):
    """There is nothing to check in a model of this kind."""


@dataclass(frozen=True)
class Verdict:
    name: str
    passed: bool | None  # None: not applicable
    reason: str


@dataclass
class Subject:
    """A folder, and what is loaded from it when it is first asked for."""

    folder: Path

    @cached_property
    def config(self) -> Any:
        return AutoConfig.from_pretrained(self.folder)

    @cached_property
    def model_class(self) -> Any:
        name = (self.config.architectures or [""])[0]
        found = getattr(glassformer, name, None) or getattr(transformers, name, None)
        if found is None:
            raise Failed(f"config.json names the architecture {name!r}, which neither transformers nor glassformer has.")
        return found

    @cached_property
    def model(self) -> PreTrainedModel:
        return self.model_class.from_pretrained(self.folder, dtype=torch.float32).eval()

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        if not any((self.folder / file).exists() for file in ("tokenizer.json", "tokenizer_config.json")):
            raise NotApplicable("the folder has no tokenizer")
        return AutoTokenizer.from_pretrained(self.folder)

    @property
    def has_two_stacks(self) -> bool:
        return bool(self.config.is_encoder_decoder)

    @property
    def writes(self) -> bool:
        return self.model.can_generate()

    @property
    def reads_pictures(self) -> bool:
        return self.model.main_input_name == "pixel_values"

    @cached_property
    def ids(self) -> Tensor:
        """Random tokens that are nothing special: [EXAMPLES, LENGTH]; or random pictures."""
        if self.reads_pictures:
            size = self.config.image_size
            return torch.randn(EXAMPLES, self.config.num_channels, size, size, generator=torch.Generator().manual_seed(0))
        special = {value for name, value in self.config.to_dict().items() if name.endswith("token_id") and isinstance(value, int)}
        words = [token for token in range(self.config.vocab_size) if token not in special][-1000:]
        rng = torch.Generator().manual_seed(0)
        return torch.tensor(words)[torch.randint(len(words), (EXAMPLES, LENGTH), generator=rng)]

    @torch.no_grad()
    def logits(self, ids: Tensor, mask: Tensor | None = None, target: Tensor | None = None, model: Any = None) -> Tensor:
        """Of the source for one stack, of the target for two."""
        if self.reads_pictures:
            return first_output((model or self.model)(pixel_values=ids))
        options: dict[str, Any] = {"attention_mask": torch.ones_like(ids) if mask is None else mask}
        if self.has_two_stacks:
            options["decoder_input_ids"] = self.ids[: len(ids), :6] if target is None else target
        return first_output((model or self.model)(input_ids=ids, **options))


def first_output(outputs: Any) -> Tensor:
    for name in ("logits", "start_logits", "last_hidden_state"):
        if (found := getattr(outputs, name, None)) is not None:
            return found
    raise NotApplicable("the model puts out no logits")


def close(one: Tensor, other: Tensor, what: str) -> str:
    difference = float((one.float() - other.float()).abs().max())
    scale = max(1.0, float(other.float().abs().max()))
    if not difference <= CLOSE * scale:
        raise Failed(f"{what} differ by {difference:.2g}.")
    return f"differ by {difference:.1g} at most"


# Files


def no_pickle_inside(subject: Subject) -> str:
    found = sorted(path.name for path in subject.folder.rglob("*") if path.suffix in PICKLES)
    if found:
        raise Failed(f"{found[0]} may hold code that is run when it is loaded: save as safetensors.")
    if not list(subject.folder.glob("*.safetensors")):
        raise Failed("There are no weights in safetensors.")
    return "weights are safetensors"


def code_is_there(subject: Subject) -> str:
    auto_map = getattr(subject.config, "auto_map", None)
    if not auto_map:
        raise NotApplicable("an architecture of transformers needs none")
    files = {f"{value.rpartition('--')[2].split('.')[0]}.py" for value in auto_map.values()}
    if missing := [file for file in sorted(files) if not (subject.folder / file).exists()]:
        raise Failed(f"config.json points to {missing[0]}, which is not there: save the model again.")
    return ", ".join(sorted(files))


def tokenizer_agrees(subject: Subject) -> str:
    tokenizer, config = subject.tokenizer, subject.config
    highest = max(tokenizer.get_vocab().values())
    if highest >= config.vocab_size:
        raise Failed(f"The tokenizer has the id {highest}, the model no more than {config.vocab_size} embeddings.")
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        theirs, ours = getattr(tokenizer, name), getattr(config, name, None)
        if theirs is not None and ours is not None and theirs not in (ours if isinstance(ours, list) else [ours]):
            raise Failed(f"{name} is {theirs} in the tokenizer and {ours} in the config.")
    longest = getattr(config, "max_position_embeddings", None)
    if longest is not None and longest < tokenizer.model_max_length < 10**9:
        raise Failed(f"The tokenizer cuts at {tokenizer.model_max_length} tokens, the model is made for {longest}.")
    return f"{len(tokenizer)} tokens, {config.vocab_size} embeddings"


# Loading

SCRIPT = """
import sys, torch, glassformer
from glassformer.analysis.checks import Subject
from safetensors.torch import save_file
from pathlib import Path
subject = Subject(Path(sys.argv[1]))
save_file({"logits": subject.logits(subject.ids).contiguous()}, sys.argv[2])
"""


def loads_in_a_fresh_process(subject: Subject) -> str:
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/logits.safetensors"
        done = subprocess.run([sys.executable, "-c", SCRIPT, str(subject.folder), file], capture_output=True, text=True)
        if done.returncode:
            raise Failed(f"It cannot be loaded there: {done.stderr.strip().splitlines()[-1]}")
        return "logits " + close(load_file(file)["logits"], subject.logits(subject.ids), "Logits here and there")


def tied_weights_are_tied(subject: Any) -> str:
    head = subject.model.get_output_embeddings()
    if head is None or not getattr(subject.config, "tie_word_embeddings", False):
        raise NotApplicable("nothing is tied")
    if head.weight.data_ptr() != subject.model.get_input_embeddings().weight.data_ptr():
        raise Failed("config.tie_word_embeddings is set, but input and output embeddings are two matrices.")
    return "input and output embeddings are one matrix"


def buffers_are_rebuilt(subject: Subject) -> str:
    """What is not saved with the weights is what a new model has."""
    saved = subject.model.state_dict().keys()
    fresh = dict(subject.model_class(subject.config).named_buffers())
    others = {name: value for name, value in subject.model.named_buffers() if name not in saved}
    for name, value in others.items():
        if name in fresh and not torch.equal(value, fresh[name]):
            raise Failed(f"The buffer {name} is not what a new model computes.")
    return f"{len(others)} buffers"


# Computing


def kernels_agree(subject: Subject) -> str:
    model, before = subject.model, subject.model.config._attn_implementation
    found = {}
    try:
        for name in ("eager", "sdpa"):
            try:
                model.set_attn_implementation(name)
            except (ValueError, ImportError) as error:
                raise NotApplicable(f"it cannot run on {name}") from error
            found[name] = subject.logits(subject.ids)
    finally:
        model.set_attn_implementation(before)
    return "eager and sdpa " + close(found["sdpa"], found["eager"], "Logits of eager and sdpa")


def padding_is_not_seen(subject: Subject) -> str:
    """A text alone, and with padding that holds other tokens."""
    if subject.reads_pictures:
        raise NotApplicable("pictures have no padding")
    alone = subject.logits(subject.ids[:1, : LENGTH - 4])
    mask = torch.ones(1, LENGTH, dtype=torch.long)
    mask[:, -4:] = 0
    padded = subject.logits(subject.ids[:1], mask)
    if alone.dim() == 3 and not subject.has_two_stacks:
        padded = padded[:, : LENGTH - 4]
    return "with and without padding " + close(padded, alone, "Logits with and without padding")


def future_is_not_seen(subject: Subject) -> str:
    """Other tokens at the end change nothing before them; nor do gradients reach them."""
    if not subject.writes:
        raise NotApplicable("the model sees both sides")
    ids, cut = subject.ids[:1], LENGTH // 2
    changed = ids.clone()
    changed[:, cut:] = ids[:, cut:].flip(1)
    if subject.has_two_stacks:
        one, other = (subject.logits(ids, target=target)[:, :cut] for target in (ids, changed))
    else:
        one, other = (subject.logits(each)[:, :cut] for each in (ids, changed))
    reason = "other tokens later " + close(one, other, "Logits before and after a change of later tokens")
    return f"{reason}, gradients {gradients_look_back(subject, ids, cut)}"


def gradients_look_back(subject: Subject, ids: Tensor, cut: int) -> str:
    embedding = subject.model.get_input_embeddings()(ids).detach().requires_grad_()
    if subject.has_two_stacks:
        logits = subject.model(input_ids=ids, decoder_inputs_embeds=embedding).logits
    else:
        logits = subject.model(inputs_embeds=embedding).logits
    [gradient] = torch.autograd.grad(logits[:, cut - 1].square().sum(), embedding)
    if gradient[:, cut:].abs().max() > 0:
        raise Failed(f"The logits of position {cut - 1} depend on the embeddings of later positions.")
    return "none"


def cache_changes_nothing(subject: Subject) -> str:
    if not subject.writes:
        raise NotApplicable("the model does not write")
    options = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
    mask = torch.ones_like(subject.ids)
    if not subject.has_two_stacks:  # where prompts of unequal length are padded on the left
        mask[1, :3] = 0
    for name, beams in (("greedy", 1), ("beam", 3)):
        one, other = (
            subject.model.generate(subject.ids, attention_mask=mask, num_beams=beams, use_cache=cached, **options)
            for cached in (True, False)
        )
        if one.shape != other.shape or not torch.equal(one, other):
            raise Failed(f"With a cache, {name} search writes other tokens than without.")
    return "greedy and beam search write the same tokens"


def half_precision_is_finite(subject: Subject) -> str:
    finite = []
    for dtype in (torch.bfloat16, torch.float16):
        model = subject.model_class.from_pretrained(subject.folder, dtype=dtype).eval()
        if not subject.logits(subject.ids, model=model).isfinite().all():
            raise Failed(f"In {dtype} the logits are no numbers.")
        finite.append(str(dtype).removeprefix("torch."))
    return " and ".join(finite)


CHECKS: dict[str, Callable[[Subject], str]] = {
    "no pickle": no_pickle_inside,
    "code for remote loading": code_is_there,
    "tokenizer and config agree": tokenizer_agrees,
    "loads in a fresh process": loads_in_a_fresh_process,
    "tied weights": tied_weights_are_tied,
    "buffers rebuilt": buffers_are_rebuilt,
    "eager equals sdpa": kernels_agree,
    "no leak from padding": padding_is_not_seen,
    "no leak from the future": future_is_not_seen,
    "cached equals uncached": cache_changes_nothing,
    "half precision": half_precision_is_finite,
}


def check_folder(folder: str | Path, names: list[str] | None = None) -> list[Verdict]:
    """All checks, or these; a check that cannot be carried out has failed."""
    if not (Path(folder) / "config.json").exists():
        raise ValueError(f"{folder} holds no config.json: give the folder of a saved model.")
    subject, verdicts = Subject(Path(folder)), []
    for name in names or CHECKS:
        try:
            verdicts.append(Verdict(name, True, CHECKS[name](subject)))
        except NotApplicable as reason:
            verdicts.append(Verdict(name, None, str(reason)))
        except Failed as reason:
            verdicts.append(Verdict(name, False, str(reason)))
        except Exception as error:  # whatever a broken model does
            verdicts.append(Verdict(name, False, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"))
    return verdicts
