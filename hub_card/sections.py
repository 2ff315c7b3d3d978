# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""The sections of a card, each a text made from facts; empty where there is nothing to tell."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import glassformer

from .again import recipe_text, training_command
from .facts import Facts


HELD_BY_TRANSFORMERS = (
    "text-generation", "fill-mask", "text-classification", "token-classification", "feature-extraction", "image-classification",
    "image-feature-extraction",
)  # fmt: skip
ANSWER_TO = ("source", "text", "tokens", "question")  # the columns that a model is asked with
SHOWN = 5  # sample predictions
LONGEST = 300  # characters of a sample
KINDS = {
    "GlassformerModel": "reads text and gives a vector for each token",
    "GlassformerForConditionalGeneration": "reads a text and writes another",
    "GlassformerForCausalLM": "continues texts",
    "GlassformerForMaskedLM": "fills in hidden words",
    "GlassformerForSequenceClassification": "classifies texts",
    "GlassformerForTokenClassification": "labels words",
    "GlassformerForQuestionAnswering": "finds answers in texts",
    "GlassformerForImageClassification": "classifies pictures",
}


def about(facts: Facts) -> str:
    description = facts.recipe.get("description")
    bare = facts.head == "GlassformerModel" and facts.reads_pictures
    kind = "reads pictures and gives a vector for each patch" if bare else KINDS[facts.head]
    article = "an" if facts.shape[0] in "aeiou" else "a"
    lines = [
        f"# {facts.name}",
        *([f"{sentence(description)}"] if description else []),
        f"A Transformer that {kind}: {article} {facts.shape} with {sum(facts.parameters.values()):,} parameters"
        f"{' trained ' + origin(facts) if facts.run else ''}, in the code of glassformer, a readable implementation of "
        f'["Attention Is All You Need"](https://arxiv.org/abs/1706.03762) that is at home in transformers.',
    ]
    return "\n\n".join(lines)


def sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


def origin(facts: Facts) -> str:
    first = facts.recipe.get("pretraining") or facts.recipe.get("model", {}).get("path")
    return f"from a model that `{Path(first).name}` has made" if first else "from scratch"


def usage(facts: Facts, repo: str) -> str:
    """With the package and without it."""
    lines = ["## Use", "Where glassformer is not installed, the code comes along with the weights; read it before you trust it:"]
    lines.append(code(load_lines(facts, repo, ", trust_remote_code=True")))
    if facts.task in HELD_BY_TRANSFORMERS:
        lines += ["The same with a pipeline:", code(pipeline_lines(facts, repo, ", trust_remote_code=True"))]
    installed = load_lines(facts, repo) if facts.writes_another_vocabulary else pipeline_lines(facts, repo)
    lines += ["Where it is installed, no code from here is run:", code(["import glassformer", *installed])]
    return "\n\n".join(lines)


def load_lines(facts: Facts, repo: str, trust: str = "") -> list[str]:
    reader, name = ("AutoImageProcessor", "processor") if facts.reads_pictures else ("AutoTokenizer", "tokenizer")
    lines = [
        f"from transformers import {facts.auto_class}, {reader}",
        f'{name} = {reader}.from_pretrained("{repo}"{trust})',
        f'model = {facts.auto_class}.from_pretrained("{repo}"{trust})',
    ]
    if facts.writes_another_vocabulary:
        lines.append(f'writer = AutoTokenizer.from_pretrained("{repo}", subfolder="target_tokenizer"{trust})  # for its answers')
    return lines


def pipeline_lines(facts: Facts, repo: str, trust: str = "") -> list[str]:
    special = {"question-answering": 'question="...", context="..."', "fill-mask": f'"... {facts.mask_token} ..."'}
    text = '"picture.png"' if facts.reads_pictures else special.get(facts.task, '"..."')
    call = f'pipeline("{facts.task}", model="{repo}"{trust})({text})'
    return ["from transformers import pipeline", f"print({call})"]


def code(lines: list[str], language: str = "python") -> str:
    return "\n".join([f"```{language}", *lines, "```"])


def architecture(facts: Facts) -> str:
    config = facts.config
    heads, kv_heads = config["num_heads"], config["num_kv_heads"]
    activation = f"{config['activation']}{', gated' if config['gated_feed_forward'] else ''}"
    rows = {
        "layers": f"{config['num_encoder_layers']} of the encoder, {config['num_decoder_layers']} of the decoder",
        "width (d_model)": config["d_model"],
        "heads": heads if kv_heads == heads else f"{heads}, {kv_heads} of keys and values",
        "feed-forward (d_ff)": f"{config['d_ff']}, {activation}",
        "norms": f"{config['norm']}, {config['norm_position']}",
        "positions": config["position_encoding"],
        "attention window": config.get("attention_window"),
        "layers that see everything": (config.get("layer_types") or []).count("full_attention") or None,
        "pictures": f"{picture_size(config)}, in patches of {config['patch_size']}" if facts.reads_pictures else None,
        "vocabulary": None if facts.reads_pictures else f"{config['vocab_size']:,}",
    }
    counted = {f"parameters: {part}": f"{count:,}" for part, count in facts.parameters.items()}
    counted["**parameters**"] = f"**{sum(facts.parameters.values()):,}**"
    return f"## Architecture\n\n{table(('', facts.shape), {**rows, **counted})}"


def picture_size(config: dict[str, Any]) -> str:
    size, channels = config["image_size"], config["num_channels"]
    return f"{size} x {size} pixels of {channels} channel{'s' if channels > 1 else ''}"


def table(head: Iterable[str], rows: dict[str, Any]) -> str:
    """Two columns; rows without a value are left out."""
    lines = [f"| {' | '.join(head)} |", "| --- | --- |"]
    return "\n".join([*lines, *(f"| {name} | {cell(value)} |" for name, value in rows.items() if value not in (None, ""))])


def cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ⏎ ")


def training(facts: Facts) -> str:
    if not facts.run:
        return ""
    run, recipe = facts.run, facts.recipe
    optimizer, schedule, batching = recipe["optimizer"], recipe["schedule"], recipe["batching"]
    batch = f"{batching['tokens']:,} tokens" if batching["tokens"] else f"{batching['examples']} examples"
    steps = batching["accumulation"] * run["processes"]
    counts = [f"{split} {count:,}" for split, count in run.get("rows", {}).items()]
    rows = {
        "data": data_name(facts),
        "rows": ", ".join(counts),
        "part of rows and updates (scale)": recipe["scale"] if recipe["scale"] != 1 else None,
        "tokenizer": f"{recipe['tokenizer']['kind']}, trained on the data" if not recipe["tokenizer"]["path"] else "taken over",
        "objective": run["objective"],
        "updates": f"{run['updates']:,}, of {batch}{f' x {steps}' if steps > 1 else ''}",
        "tokens seen": f"{run['tokens']:,}",
        "time": f"{run['seconds']:,.1f} seconds in {run['processes']} process{'es' if run['processes'] > 1 else ''}",
        "optimiser": f"{optimizer['name']}, learning rate {optimizer['lr'] or 'as the schedule says'}, "
        f"weight decay {optimizer['weight_decay']}",
        "schedule": f"{schedule['name']}, {schedule['warmup_steps']} updates of warm-up",
        "dropout, label smoothing": f"{facts.config['dropout']}, {facts.config['label_smoothing']}",
        "weights": f"{recipe['checkpoints']['final']}: {', '.join(run['weights_from'])}",
        "seed": run["seed"],
        "versions": ", ".join(f"{name} {run['versions'][name]}" for name in ("glassformer", "torch", "transformers", "python")),
    }
    text = recipe_text(recipe)
    whole = f"\n\n<details><summary>The recipe</summary>\n\n{code([text.rstrip()], 'yaml')}\n\n</details>" if text else ""
    curves = "\n\n![learning curves](curves.png)" if (facts.folder / "curves.png").exists() else ""
    return f"## Training\n\n{table(('', ''), rows)}\n\nThe command: `{training_command(recipe)}`.{whole}{curves}"


def data_name(facts: Facts) -> str:
    """Never a path of the machine that it was trained on."""
    if facts.datasets:
        return ", ".join(f"[{name}](https://huggingface.co/datasets/{name})" for name in facts.datasets)
    if facts.is_generated:
        return f"generated by glassformer (`{facts.source}`)"
    files = facts.recipe["data"].get("files") or {"": facts.source}
    names = {Path(one).name for several in files.values() for one in ([several] if isinstance(several, str) else several)}
    return f"local files: {', '.join(f'`{name}`' for name in sorted(names))}"


def results(facts: Facts) -> str:
    if not facts.results:
        return ""
    rows = [
        f"| {split} | {name} | {readable(value)} |"
        for split, values in facts.results.items()
        for name, value in values.items()
        if isinstance(value, (int, float))
    ]
    signatures = {cell(v): None for values in facts.results.values() for v in values.values() if isinstance(v, str)}
    protocol = facts.recipe.get("reference", {}).get("protocol")
    generation = facts.generation
    notes = [
        *([f"Protocol: {protocol}"] if protocol else []),
        *([f"Generation: {', '.join(f'`{key}={value}`' for key, value in generation.items())}."] if generation else []),
        *([f"Signatures: {', '.join(f'`{text}`' for text in signatures)}."] if signatures else []),
        *([how_measured(facts)] if facts.run else []),
    ]
    lines = ["| split | metric | value |", "| --- | --- | --- |", *rows]
    return "\n\n".join(["## Results", "\n".join(lines), *notes])


def how_measured(facts: Facts) -> str:
    """On which rows and when, and how to do it again."""
    part, last = facts.recipe["scale"], list(facts.results)[-1]
    rows, again = ("All rows", "again") if part == 1 else (f"The first rows (a part of {part})", "on all rows")
    return (
        f"{rows} of a split, measured once, with seed {facts.run['seed']}, at the end of `{training_command(facts.recipe)}`; "
        f"{again} with `glassformer evaluate FOLDER --split {last}`."
    )


def readable(value: float) -> str:
    return f"{value:.4f}" if not math.isfinite(value) or abs(value) < 10 else f"{value:.2f}"


def samples(facts: Facts, show_rows: bool) -> str:
    """Answers to rows of the test data, and where the model looks."""
    parts = []
    shown = [(asked(row), row["prediction"]) for row in facts.samples if len(asked(row)) <= LONGEST][:SHOWN]
    if shown and show_rows:
        rows = [f"| {cell(text)} | {cell(as_text(answer))} |" for text, answer in shown]
        parts += ["## Samples", "\n".join(["| asked | answered |", "| --- | --- |", *rows])]
    if (facts.folder / "attention.png").exists():
        parts += ["## Where it looks", "![attention](attention.png)"]
    return "\n\n".join(parts)


def as_text(answer: Any) -> str:
    """Tags of words are a list."""
    return " ".join(map(str, answer)) if isinstance(answer, list) else str(answer)


def question(row: dict[str, Any]) -> str:
    """The text that a model reads first."""
    text = next(row[key] for key in ANSWER_TO if key in row)
    return " ".join(text) if isinstance(text, list) else text


def asked(row: dict[str, Any]) -> str:
    """All that a model reads."""
    return " / ".join([question(row), *(row[key] for key in ("text_pair", "context") if row.get(key))])


def limits(facts: Facts) -> str:
    texts = f"is made for texts of at most {facts.config['max_position_embeddings']:,} tokens"
    lines = ["## Limits", f"- It {f'reads pictures of {picture_size(facts.config)}' if facts.reads_pictures else texts}."]
    if facts.run:
        longest = facts.recipe["data"]["max_length"] or facts.config["max_position_embeddings"]
        lines[1] = f"- It was trained on texts of at most {longest:,} tokens; what it makes of longer ones was not measured."
        lines += [
            f"- It was trained {origin(facts)} on the data named below and knows nothing else.",
            "- Its figures are those of one run on one set of rows; on other data they will differ.",
        ]
    lines.append("- Bias, safety and use in other domains have not been measured.")
    return lines[0] + "\n\n" + "\n".join(lines[1:])


def citation(facts: Facts) -> str:
    version = facts.run["versions"]["glassformer"] if facts.run else glassformer.__version__
    entries = [
        "@software{glassformer,",
        "  title = {glassformer: a Transformer that you can see through},",
        "  author = {{The glassformer authors}},",
        f"  version = {{{version}}},",
        "  year = {2026}",
        "}",
        "@inproceedings{vaswani2017attention,",
        "  title = {Attention Is All You Need},",
        "  author = {Vaswani, Ashish and Shazeer, Noam and Parmar, Niki and Uszkoreit, Jakob and Jones, Llion and "
        "Gomez, Aidan N. and Kaiser, {\\L}ukasz and Polosukhin, Illia},",
        "  booktitle = {Advances in Neural Information Processing Systems},",
        "  year = {2017}",
        "}",
    ]
    return f"## Citation\n\n{code(entries, 'bibtex')}"
