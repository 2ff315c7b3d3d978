# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""The way between a glassformer and a native model of transformers, in both directions, along the tables of `families/`.

`from_hf` and `to_hf` go from model to model; `import_folder` and `export_folder` from folder to folder, where each tensor is let
go as soon as it has been converted, so that there are never two models in memory.
"""

import copy
import warnings
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from accelerate import init_empty_weights
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoConfig, PreTrainedModel
from transformers.core_model_loading import ConversionOps, WeightConverter, WeightRenaming, WeightTransform
from transformers.initialization import no_init_weights

import glassformer

from .families import FAMILIES
from .family import HEADS, Family, several
from .fit import CLASSIFIERS, choice, describe_fits, fits, stands_in_the_way, stands_in_their_way
from .folders import copy_readers, new_folder, reason_of


# From model to model


def from_hf(source: PreTrainedModel | str | Path, head: str | None = None) -> Any:
    """A native model, or the folder or Hub name of one, as a glassformer that computes the same.

    The same, that is, from the same `attention_mask`: without one, an encoder of ours hides pad tokens, most others do not.
    `head` asks for another head than the folder was saved with: "model", "causal-lm", "seq2seq-lm", "masked-lm",
    "sequence-classification", "token-classification", "question-answering" or "image-classification".
    """
    if not isinstance(source, PreTrainedModel):
        return to_ours(load_native(source, head), release=True)
    if head is not None:
        raise ValueError("A model in memory has a head already: name one for a folder only.")
    return to_ours(source, release=False)


def to_hf(model: Any, to: str | None = None) -> PreTrainedModel:
    """A glassformer as a native model that computes the same.

    `to` names the architecture ("gpt2", "llama", ...); without it, the first that fits is taken.
    """
    if getattr(model.config, "model_type", None) != "glassformer":
        raise ValueError(f"A {type(model).__name__} is no glassformer: from_hf makes one of it.")
    return to_native(model, choose_family(model.config, type(model).__name__, to), release=False)


def to_ours(native: Any, release: bool) -> Any:
    """`release` lets go of each of their tensors as soon as ours is made."""
    family = family_of(native.config)
    head = our_head(family, type(native).__name__)
    refuse_theirs(native.config, family, head)
    config = our_config(native.config, family, head, family.look(native))
    model = empty(getattr(glassformer, head), config)
    moves = find_moves(family, head, model, native)
    idle = tuple(inside(native) + name for name in (*family.made, *family.unused)) + family.unused
    refuse_homeless(native, {name for move in moves for name in move.theirs}, idle)
    refuse_untied(native, model, moves)
    wanted = set(model.state_dict()) - set(model.all_tied_weights_keys)
    found: set[str] = set()
    transforms = []
    for move in moves:  # of several tensors of theirs that are one of ours, the first
        if wanted & set(move.ours) - found:
            transforms.append(move.towards_ours())
            found |= set(move.ours)
    carry(native, model, transforms, release)
    return finish(model, native)


def to_native(model: Any, family: Family, release: bool) -> PreTrainedModel:
    head = type(model).__name__
    their_head = family.heads[head]
    native = empty(getattr(transformers, their_head.theirs), their_config(model.config, family, head), **their_head.arguments)
    moves = find_moves(family, head, model, native)
    refuse_homeless(model, {name for move in moves for name in move.ours})
    untie(native, model, moves)
    transforms = [move.towards_theirs() for move in moves if not set(move.theirs) <= set(native.all_tied_weights_keys)]
    carry(model, native, transforms, release)
    for name, make in family.made.items():
        module = native.get_submodule(inside(native) + name)
        if module.weight.is_meta:
            place(native, f"{inside(native)}{name}.weight", make(module).to(model.dtype))
    return finish(native, model)


# Choosing and refusing


def family_of(theirs: Any) -> Family:
    if theirs.model_type not in FAMILIES:
        raise ValueError(f"There is no way from {theirs.model_type!r} to glassformer: give one of {', '.join(FAMILIES)}.")
    return FAMILIES[theirs.model_type]


def our_head(family: Family, theirs: str) -> str:
    for ours, head in family.heads.items():
        if head.theirs == theirs:
            return ours
    names = [f"{name} ({family.heads[ours].theirs})" for name, ours in HEADS.items() if ours in family.heads]
    raise ValueError(f"A {theirs} has a head that we do not have: choose another with `head`, one of {', '.join(names)}.")


def choose_family(config: Any, head: str, to: str | None) -> Family:
    if to is None:
        best = fits(config, head)[0]
        if best.reasons:
            raise ValueError("This model fits no native architecture: `glassformer export FOLDER` tells what stands in the way.")
        return best.family
    if to not in FAMILIES:
        raise ValueError(f"There is no architecture {to!r}: choose one of {', '.join(FAMILIES)}.")
    if reasons := stands_in_the_way(config, FAMILIES[to], head):
        raise ValueError(f"This model does not fit {to}: {'; '.join(reasons)}.")
    return FAMILIES[to]


def refuse_theirs(theirs: Any, family: Family, head: str) -> None:
    if reasons := stands_in_their_way(theirs, family, head):
        raise ValueError(f"This {family.name} does not fit glassformer: {'; '.join(reasons)}.")


# Configs


def our_config(theirs: Any, family: Family, head: str, seen: dict[str, Any]) -> Any:
    """`seen` is what their weights tell."""
    values: dict[str, Any] = {"num_encoder_layers": 0, "num_decoder_layers": 0, "unk_token_id": None, "dropout": 0.0}
    values |= family.fixed | family.heads[head].fixed
    for ours, names in (family.fields_with(head) | family.training).items():
        values[ours] = getattr(theirs, several(names)[0], None)
    values |= family.read(theirs) | seen | labels(theirs, head)
    if values.get("head_width") == values["d_model"] // values["num_heads"]:
        values["head_width"] = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about choices that others have made
        return glassformer.GlassformerConfig(**values)


def their_config(config: Any, family: Family, head: str) -> Any:
    fields = (family.fields_with(head) | family.training).items()
    values = {name: choice(config, ours) for ours, names in fields for name in several(names)}
    return AutoConfig.for_model(family.name, **values | family.their_fixed | family.write(config) | labels(config, head))


def labels(config: Any, head: str) -> dict[str, Any]:
    """Names of classes, and what kind of question they answer."""
    return {name: getattr(config, name) for name in ("id2label", "label2id", "problem_type") if head in CLASSIFIERS}


# Weights

ENDS = (".weight", ".bias", "")  # modules have a weight and perhaps a bias; the name of a single tensor is complete as it is


class Move(NamedTuple):
    """Tensors of theirs that become tensors of ours, all by their full names."""

    ours: list[str]
    theirs: list[str]
    operations: list[ConversionOps]

    def towards_ours(self) -> WeightTransform:
        if not self.operations:
            return WeightRenaming(self.theirs[0], self.ours[0])
        return WeightConverter(list(self.theirs), list(self.ours), self.operations)

    def towards_theirs(self) -> WeightTransform:
        return self.towards_ours().reverse_transform()


def find_moves(family: Family, head: str, model: Any, native: Any) -> list[Move]:
    """The table of a family, written out for the weights that these two models have."""
    ours, theirs = model.state_dict(), native.state_dict()
    counts = {"encoder": model.config.num_encoder_layers, "decoder": model.config.num_decoder_layers}
    table = [(inside(model), inside(native), pair) for pair in family.weights]
    table += [("", "", pair) for pair in family.heads[head].weights]
    moves = []
    for our_prefix, their_prefix, (our_names, their_name, *operations) in table:
        our_names = several(our_names)
        layers = range(counts[our_names[0].partition(".")[0]]) if "*" in our_names[0] else [0]
        for layer in layers:
            for end in ENDS:
                names = [f"{our_prefix}{name}{end}".replace("*", str(layer)) for name in our_names]
                name = f"{their_prefix}{their_name}{end}".replace("*", str(layer))
                if names[0] in ours and name in theirs:
                    possible = [each for each in operations if last_dimension(each) < ours[names[0]].dim()]
                    moves.append(Move(names, [name], possible))
    return moves


def last_dimension(operation: ConversionOps) -> int:
    """A bias goes without the operations on a dimension that it does not have."""
    return getattr(operation, "dim1", getattr(operation, "dim", 0))


def inside(model: Any) -> str:
    """The prefix of the bare model's weights: empty, if this is one."""
    return f"{model.base_model_prefix}." if hasattr(model, model.base_model_prefix) else ""


def refuse_homeless(source: Any, known: set[str], idle: tuple[str, ...] = ()) -> None:
    if left := sorted(name for name in source.state_dict() if name not in known and not name.startswith(idle)):
        raise ValueError(f"This {type(source).__name__} has weights that there is no place for: {', '.join(left)}.")


def refuse_untied(native: Any, model: Any, moves: list[Move]) -> None:
    """Their config may say that two matrices are one and their weights that they are not: transformers then leaves them two."""
    weights = native.state_dict()
    of_ours = {name: (move.theirs[0], weights[move.theirs[0]].data_ptr()) for move in reversed(moves) for name in move.ours}
    for name, other in model.all_tied_weights_keys.items():
        (one, place), (another, other_place) = of_ours[name], of_ours[other]
        if place != other_place:
            raise ValueError(
                f"{one} and {another} are one matrix by the config, but two in the weights: set tie_word_embeddings to "
                f"false in config.json."
            )


def untie(native: Any, model: Any, moves: list[Move]) -> None:
    """What is one matrix in their class by default, but two in ours, stays two."""
    weights = model.state_dict()
    of_theirs = {name: weights[move.ours[0]].data_ptr() for move in moves for name in move.theirs}
    for name, other in list(native.all_tied_weights_keys.items()):
        if of_theirs.get(name) != of_theirs.get(other):
            del native.all_tied_weights_keys[name]


def empty(model_class: Any, config: Any, **arguments: Any) -> Any:
    """A model whose parameters take no memory yet."""
    with no_init_weights(), init_empty_weights(include_buffers=False):
        return model_class(config, **arguments)


@torch.no_grad()
def carry(source: Any, target: Any, transforms: list[WeightTransform], release: bool) -> None:
    """Every transform takes tensors out of the source and puts what it makes of them into the target."""
    weights = source.state_dict()
    uses = Counter(name for transform in transforms for name in transform.source_patterns)
    for name in weights.keys() - uses.keys() if release else ():  # second names of tied weights, and what is left behind
        place(source, name, weights.pop(name).to("meta"))
    for transform in transforms:
        first = transform.target_patterns[0]
        for name in transform.source_patterns:
            transform.add_tensor(first, name, name, weights[name])
            uses[name] -= 1
            if release and not uses[name]:
                place(source, name, weights.pop(name).to("meta"))
        for name, tensor in transform.convert(first, config=target.config).items():
            place(target, name, (tensor[0] if isinstance(tensor, list) else tensor).clone(memory_format=torch.contiguous_format))


def place(model: nn.Module, name: str, tensor: Tensor) -> None:
    module_name, _, leaf = name.rpartition(".")
    module = model.get_submodule(module_name)
    if leaf in module._buffers:
        setattr(module, leaf, tensor)
    else:
        setattr(module, leaf, nn.Parameter(tensor, requires_grad=getattr(module, leaf).requires_grad))


def finish(target: Any, source: Any) -> Any:
    target.tie_weights(recompute_mapping=False)
    if missing := [name for name, weight in target.named_parameters() if weight.is_meta]:
        raise ValueError(f"There is nothing to make {', '.join(missing)} from: give a whole model, not in eight bits.")
    target.config.dtype = source.dtype
    if target.can_generate() and source.can_generate():
        target.generation_config = copy.deepcopy(source.generation_config)
    return target.train(source.training)


# From folder to folder


def load_native(source: str | Path, head: str | None = None) -> PreTrainedModel:
    """Their model; refused before its weights are read, if it does not fit."""
    config = load_config(source)
    if config.model_type == "glassformer":
        raise ValueError(f"{source} holds a glassformer already: there is nothing to import.")
    family = family_of(config)
    ours = HEADS.get(head or "", "")
    if head is None:
        ours = our_head(family, config.architectures[0]) if config.architectures else family.main_head
    elif ours not in family.heads:
        names = [name for name, known in HEADS.items() if known in family.heads]
        raise ValueError(f"{family.name} has no head {head!r}: choose one of {', '.join(names)}.")
    refuse_theirs(config, family, ours)
    our_config(config, family, ours, seen={})  # which refuses values that nobody knows, such as another kind of RoPE
    return load_weights(getattr(transformers, family.heads[ours].theirs), source, family.unused)


def load_config(source: str | Path) -> Any:
    try:
        return AutoConfig.from_pretrained(source)
    except Exception as error:  # of any kind, for there is much that may be wrong in a file
        if isinstance(error, OSError) and not Path(source, "config.json").exists():
            raise OSError(f"{source} is no model that transformers knows: give a folder or a name on the Hub.") from error
        raise ValueError(f"The config of {source} cannot be read: {reason_of(error)}.") from error


def load_weights(model_class: Any, source: str | Path, unused: tuple[str, ...] = ()) -> Any:
    """The model of a folder or Hub name that has all its weights; transformers would make up those that are not there."""
    try:
        model, found = model_class.from_pretrained(source, output_loading_info=True, ignore_mismatched_sizes=True)
    except (OSError, SafetensorError) as error:
        raise OSError(f"The weights of {source} cannot be read: {reason_of(error)}.") from error
    if mismatched := sorted(found["mismatched_keys"]):
        name, size, expected = mismatched[0]
        raise ValueError(f"{name} of {source} is {list(size)}, but {list(expected)} by its config.json: mend that.")
    if missing := sorted(name for name in found["missing_keys"] if not name.startswith(unused)):
        named = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        raise ValueError(f"{source} has no weights for {named}: choose the head that it was saved with, or mend its config.json.")
    return model


def import_folder(source: str | Path, out: str | Path, head: str | None = None) -> Any:
    """A native folder or Hub name becomes a folder of ours, tokenizer or image processor and generation settings included."""
    with new_folder(Path(out)) as folder:
        model = from_hf(source, head)
        model.save_pretrained(folder)
        copy_readers(source, folder)
    return model


def export_folder(folder: str | Path, to: str, out: str | Path) -> PreTrainedModel:
    """A folder of ours becomes a native one, tokenizer or image processor and generation settings included."""
    config = load_our_config(folder)
    head = config.architectures[0]
    family = choose_family(config, head, to)
    with new_folder(Path(out)) as draft:
        model = load_weights(getattr(glassformer, head), folder)
        native = to_native(model, family, release=True)
        native.save_pretrained(draft)
        copy_readers(folder, draft)
    if caution := family.caution(native):
        warnings.warn(caution, stacklevel=2)
    return native


def describe_folder(folder: str | Path) -> str:
    """Which native architectures a folder of ours fits."""
    config = load_our_config(folder)
    return describe_fits(config, config.architectures[0])


def load_our_config(folder: str | Path) -> Any:
    if not (Path(folder) / "config.json").exists():
        raise FileNotFoundError(f"{folder} holds no model: give a folder that training has made.")
    config = load_config(folder)
    if config.model_type != "glassformer":
        raise ValueError(f"{folder} holds a {config.model_type}: `glassformer import` makes a glassformer of it.")
    if not config.architectures:
        raise ValueError(f"{folder} does not say which head its model has: save it with save_pretrained.")
    return config
