# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""What was captured, in the interactive views of bertviz (https://github.com/jessevig/bertviz): in a notebook, or as a page."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from .visualizer import Capture


# H heads, T queries, S keys

VIEWS = {"head": "head_view", "model": "model_view"}


def view_arguments(capture: Capture, kinds: Sequence[str] | None = None, words: bool = False) -> dict[str, Any]:
    """Arguments of bertviz' `head_view` and `model_view`, as in `head_view(**view_arguments(capture))`.

    Args:
        kinds: which attention to show, all if None. bertviz has one menu of layers for all of them: choose some if they differ.
        words: join pieces of words.
    """
    kinds = capture.kinds if kinds is None else list(kinds)
    if not kinds or (unknown := set(kinds) - set(capture.kinds)):
        raise ValueError(f"There is no {', '.join(unknown) if kinds else 'attention'} to show: {capture.kinds} was captured.")
    if len(groups := same_layers(capture, kinds)) > 1:
        raise ValueError(f"bertviz shows the same layers of all stacks, but these differ: choose the kinds {groups[0]}, say.")
    maps = {kind: attention_list(capture, kind, words) for kind in kinds}
    arguments: dict[str, Any] = {"include_layers": capture.layers(kinds[0]), "prettify_tokens": False}  # labels are pretty
    if capture.target is None:
        [kind] = kinds
        return arguments | {"attention": maps[kind], "tokens": capture.labels(kind, words)[0]}
    arguments |= {f"{kind}_attention": weights for kind, weights in maps.items()}
    for kind in kinds:
        queries, keys = ("decoder", "encoder") if kind == "cross" else (kind, kind)
        arguments |= zip((f"{queries}_tokens", f"{keys}_tokens"), capture.labels(kind, words))
    return arguments


def attention_list(capture: Capture, kind: str, words: bool) -> list[Tensor]:
    """[1, H, T, S] of each layer, by its number; layers that were not captured have no queries and no keys."""
    maps = {layer: capture.weights(kind, layer, words)[None] for layer in capture.layers(kind)}
    heads = {weights.shape[1] for weights in maps.values()}
    if len(heads) > 1:
        raise ValueError(f"The layers have {sorted(heads)} heads, but bertviz needs as many in all of them: capture one layer.")
    nothing = next(iter(maps.values()))[:, :, :0, :0]
    return [maps.get(layer, nothing) for layer in range(max(maps) + 1)]


def same_layers(capture: Capture, kinds: Sequence[str]) -> list[list[str]]:
    """Kinds of attention, together where they have the same layers."""
    groups: dict[tuple[int, ...], list[str]] = {}
    for kind in kinds:
        groups.setdefault(tuple(capture.layers(kind)), []).append(kind)
    return list(groups.values())


def write_view(capture: Capture, save_path: str | Path, view: str = "head", words: bool = False, **options: Any) -> Path:
    """A page with bertviz' view of the heads of a layer ("head") or of all layers ("model"); `options` are bertviz' own.

    The page fetches the libraries that draw it (d3, jQuery, RequireJS) from the web when it is opened.
    """
    if view not in VIEWS:
        raise ValueError(f"There is no view {view!r}: choose from {', '.join(VIEWS)}.")
    try:
        import bertviz
    except ImportError:
        raise ImportError('The views of bertviz need the package bertviz: pip install "glassformer[lens]".') from None
    draw = getattr(bertviz, VIEWS[view])
    parts = ["<!doctype html>", "<meta charset='utf-8'>", "<title>Attention</title>"]
    for kinds in same_layers(capture, capture.kinds):
        drawn = draw(**view_arguments(capture, kinds, words), html_action="return", **options)
        parts += [f"<h3>{' and '.join(kinds)} attention</h3>", escape_labels(drawn.data)]
    path = Path(save_path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(parts), encoding="utf-8")
    return path


def escape_labels(html: str) -> str:
    """No tag begins within the data, where a token may be `</script>`. It is one line, which a comment repeats: that one goes."""
    data = r"(?m)^( *const params = .*?)(; // HACK: .*)?$"
    return re.sub(data, lambda line: line[1].replace("<", r"\u003c") + (";" if line[2] else ""), html)
