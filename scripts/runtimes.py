"""One model in every runtime that it can be exported to: are the answers the same, and how fast do they come?

    python scripts/runtimes.py FOLDER [--rows 256] [--batch 32] [--rounds 5]

FOLDER holds a translator that fits BART (`glassformer export FOLDER` says so), trained on a built-in corpus. All runtimes answer
the same rows, greedily, in turns and in a new order each round; with a thread for each core. Prints a table in Markdown.
"""

import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from transformers import AutoModelForSeq2SeqLM

import glassformer
from glassformer.exchange.convert import export_folder
from glassformer.exchange.runtime import ExportedModel
from glassformer.exchange.torch_export import export_torch
from glassformer.training.data import load_split
from glassformer.training.inference import Trained, load_trained


Answer = Callable[[list[list[int]]], list[list[int]]]  # ids of sources -> ids of what is written, without special ones


def main(
    folder: Annotated[Path, typer.Argument(help="A trained translator.")],
    rows: Annotated[int, typer.Option(help="Test rows to answer.")] = 256,
    batch: Annotated[int, typer.Option(help="Rows at a time.")] = 32,
    rounds: Annotated[int, typer.Option(help="Turns of every runtime.")] = 5,
) -> None:
    trained = load_trained(folder)
    sources = read(trained, rows)
    batches = [sources[first : first + batch] for first in range(0, len(sources), batch)]
    with tempfile.TemporaryDirectory() as place:
        runtimes = prepare(folder, trained, Path(place))
        answers = {name: [row for several in batches for row in answer(several)] for name, answer in runtimes.items()}
        seconds: dict[str, list[float]] = {name: [] for name in runtimes}
        for _ in range(rounds):
            for name in random.sample(list(runtimes), len(runtimes)):
                start = time.perf_counter()
                for several in batches:
                    runtimes[name](several)
                seconds[name].append(time.perf_counter() - start)
    first = next(iter(runtimes))
    print("| runtime | rows a second | same answers |\n| --- | ---: | ---: |")
    for name, taken in seconds.items():
        same = sum(one == other for one, other in zip(answers[name], answers[first]))
        print(f"| {name} | {len(sources) / statistics.median(taken):.0f} | {same / len(sources):.1%} |")


def read(trained: Trained, count: int) -> list[list[int]]:
    """Sources of the test rows, as tokens."""
    rows = load_split(trained.recipe.data, trained.objective.roles, None, "test", trained.recipe.seed)
    rows = rows.select(range(min(count, len(rows))))
    return trained.objective.encode({name: list(rows[name]) for name in rows.column_names})["input_ids"]


def prepare(folder: Path, trained: Trained, place: Path) -> dict[str, Answer]:
    """Every runtime that is installed, by name."""
    model, config = trained.model, trained.model.config
    limit = model.generation_config.max_new_tokens
    export_folder(folder, "bart", place / "bart")
    runtimes = {
        "glassformer": of_torch(model, limit),
        "glassformer, 8 bits": of_torch(glassformer.quantize_int8(load_trained(folder).model), limit),
        "transformers' BART": of_torch(AutoModelForSeq2SeqLM.from_pretrained(place / "bart").eval(), limit),
    }
    for name, bits in {"": "float32", ", 8 bits": "int8"}.items():
        runtimes |= of_ctranslate2(place, trained.objective.tokenizer, name, bits, limit)
        runtimes |= of_onnx(folder, place, config, name, bits, limit)
    export_torch(folder, place / "torch")
    runtimes["torch.export"] = of_graphs(place / "torch", config, limit)
    if shutil.which("g++"):
        export_torch(folder, place / "compiled", compiled=True)
        runtimes["torch.export, compiled"] = of_graphs(place / "compiled", config, limit)
    return runtimes


def of_torch(model: Any, limit: int) -> Answer:
    @torch.inference_mode()
    def answer(sources: list[list[int]]) -> list[list[int]]:
        ids, mask = padded(sources, model.config.pad_token_id)
        written = model.generate(ids, attention_mask=mask, max_new_tokens=limit, num_beams=1, do_sample=False)
        return [without_specials(row, model.config) for row in written.tolist()]

    return answer


def of_ctranslate2(place: Path, tokenizer: Any, name: str, bits: str, limit: int) -> dict[str, Answer]:
    try:
        import ctranslate2
    except ImportError:
        return {}
    converted = str(place / f"ct2-{bits}")
    ctranslate2.converters.TransformersConverter(str(place / "bart")).convert(converted, quantization=bits)
    translator = ctranslate2.Translator(converted, intra_threads=torch.get_num_threads())

    def answer(sources: list[list[int]]) -> list[list[int]]:
        tokens = [tokenizer.convert_ids_to_tokens(ids) for ids in sources]
        results = translator.translate_batch(tokens, beam_size=1, max_decoding_length=limit)
        return [tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in results]

    return {f"CTranslate2{name}": answer}


def of_onnx(folder: Path, place: Path, config: Any, name: str, bits: str, limit: int) -> dict[str, Answer]:
    from glassformer.exchange.onnx import check_packages, export_onnx

    try:
        check_packages()
    except ImportError:
        return {}
    export_onnx(folder, place / f"onnx-{bits}", int8=bits == "int8")
    return {f"ONNX Runtime{name}": of_graphs(place / f"onnx-{bits}", config, limit)}


def of_graphs(folder: Path, config: Any, limit: int) -> Answer:
    model = ExportedModel(folder)

    def answer(sources: list[list[int]]) -> list[list[int]]:
        ids, mask = padded(sources, config.pad_token_id)
        written = model.generate(ids.numpy(), mask.numpy(), limit)
        return [without_specials(row, config) for row in written.tolist()]

    return answer


def padded(sources: list[list[int]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in sources], batch_first=True, padding_value=pad)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones(len(row), dtype=torch.long) for row in sources], batch_first=True)
    return ids, mask


def without_specials(row: list[int], config: Any) -> list[int]:
    """What stands between the start token and the end."""
    row = row[1:]
    return row[: row.index(config.eos_token_id)] if config.eos_token_id in row else row


if __name__ == "__main__":
    typer.run(main)
