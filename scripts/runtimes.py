"""One model in every runtime that it can be exported to: are the answers the same, and how fast do they come?

    python scripts/runtimes.py FOLDER [--rows 256] [--batch 32] [--rounds 5]

FOLDER holds a translator that fits BART (`glassformer export FOLDER` says so), trained on a built-in corpus. All runtimes answer
the same rows, greedily, in turns and in a new order each round, each in a process of its own with a thread for each core. Prints
a table in Markdown.
"""

import contextlib
import multiprocessing
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from transformers import AutoModelForSeq2SeqLM

import glassformer
from glassformer.exchange.convert import export_folder
from glassformer.exchange.onnx import export_onnx
from glassformer.exchange.runtime import ExportedModel
from glassformer.exchange.torch_export import export_torch
from glassformer.training.data import load_split
from glassformer.training.inference import Trained, load_trained


Ids = list[list[int]]
Answer = Callable[[Ids], Ids]  # sources -> what is written, without special tokens


def main(
    folder: Annotated[Path, typer.Argument(help="A trained translator.")],
    rows: Annotated[int, typer.Option(help="Test rows to answer.")] = 256,
    batch: Annotated[int, typer.Option(help="Rows at a time.")] = 32,
    rounds: Annotated[int, typer.Option(help="Turns of every runtime.")] = 5,
) -> None:
    sources = read(load_trained(folder), rows)
    batches = [sources[first : first + batch] for first in range(0, len(sources), batch)]
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as processes:
        workers = {}
        for name in export(folder, Path(place)):
            process = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), begin, (name, folder, Path(place)))
            workers[name] = processes.enter_context(process)
        answers = {name: worker.submit(answer_all, batches).result()[0] for name, worker in workers.items()}
        seconds: dict[str, list[float]] = {name: [] for name in workers}
        for _ in range(rounds):
            for name in random.sample(list(workers), len(workers)):
                seconds[name].append(workers[name].submit(answer_all, batches).result()[1])
    first = next(iter(answers))
    print("| runtime | rows a second | same answers |\n| --- | ---: | ---: |")
    for name, taken in seconds.items():
        same = sum(one == other for one, other in zip(answers[name], answers[first]))
        print(f"| {name} | {len(sources) / statistics.median(taken):.0f} | {same / len(sources):.1%} |")


def read(trained: Trained, count: int) -> Ids:
    """Sources of the test rows, as tokens."""
    rows = load_split(trained.recipe.data, trained.objective.roles, None, "test", trained.recipe.seed)
    rows = rows.select(range(min(count, len(rows))))
    return trained.objective.encode({name: list(rows[name]) for name in rows.column_names})["input_ids"]


def export(folder: Path, place: Path) -> list[str]:
    """Writes the model for every runtime that is installed -> their names."""
    export_folder(folder, "bart", place / "bart")
    names = ["glassformer", "glassformer, 8 bits", "transformers' BART"]
    if find_spec("ctranslate2"):
        from ctranslate2.converters import TransformersConverter

        for bits in ("float32", "int8"):
            TransformersConverter(str(place / "bart")).convert(str(place / f"ctranslate2-{bits}"), quantization=bits)
        names += ["CTranslate2", "CTranslate2, 8 bits"]
    if find_spec("onnxruntime") and find_spec("onnxscript"):
        export_onnx(folder, place / "onnx-float32")
        export_onnx(folder, place / "onnx-int8", int8=True)
        names += ["ONNX Runtime", "ONNX Runtime, 8 bits"]
    export_torch(folder, place / "torch")
    names.append("torch.export")
    if shutil.which("g++"):
        export_torch(folder, place / "compiled", compiled=True)
        names.append("torch.export, compiled")
    return names


# In the process of a runtime


def begin(name: str, folder: Path, place: Path) -> None:
    global answer
    answer = start(name, folder, place)


def answer_all(batches: list[Ids]) -> tuple[Ids, float]:
    """What is written, and how many seconds it took."""
    start = time.perf_counter()
    written = [row for sources in batches for row in answer(sources)]
    return written, time.perf_counter() - start


def start(name: str, folder: Path, place: Path) -> Answer:
    runtime, _, rounded = name.partition(", ")
    bits = "int8" if rounded == "8 bits" else "float32"
    if runtime == "CTranslate2":
        return of_ctranslate2(place / f"ctranslate2-{bits}", folder)
    trained = load_trained(folder)
    limit = trained.model.generation_config.max_new_tokens
    if runtime == "glassformer":
        return of_torch(glassformer.quantize_int8(trained.model) if bits == "int8" else trained.model, limit)
    if runtime == "transformers' BART":
        return of_torch(AutoModelForSeq2SeqLM.from_pretrained(place / "bart").eval(), limit)
    graphs = {"torch.export": "torch", "torch.export, compiled": "compiled"}.get(name, f"onnx-{bits}")
    return of_graphs(place / graphs, trained.model.config, limit)


def of_torch(model: Any, limit: int) -> Answer:
    @torch.inference_mode()
    def answer(sources: Ids) -> Ids:
        ids, mask = padded(sources, model.config.pad_token_id)
        written = model.generate(ids, attention_mask=mask, max_new_tokens=limit, num_beams=1, do_sample=False)
        return [without_specials(row, model.config) for row in written.tolist()]

    return answer


def of_ctranslate2(converted: Path, folder: Path) -> Answer:
    import ctranslate2

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # threads of torch that have worked here would make those of CTranslate2 sleep
    trained = load_trained(folder)
    tokenizer, limit = trained.objective.tokenizer, trained.model.generation_config.max_new_tokens
    translator = ctranslate2.Translator(str(converted), intra_threads=threads)

    def answer(sources: Ids) -> Ids:
        tokens = [tokenizer.convert_ids_to_tokens(ids) for ids in sources]
        results = translator.translate_batch(tokens, beam_size=1, max_decoding_length=limit)
        return [tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in results]

    return answer


def of_graphs(folder: Path, config: Any, limit: int) -> Answer:
    model = ExportedModel(folder)

    def answer(sources: Ids) -> Ids:
        ids, mask = padded(sources, config.pad_token_id)
        written = model.generate(ids.numpy(), mask.numpy(), limit)
        return [without_specials(row, config) for row in written.tolist()]

    return answer


def padded(sources: Ids, pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in sources], batch_first=True, padding_value=pad)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones(len(row), dtype=torch.long) for row in sources], batch_first=True)
    return ids, mask


def without_specials(row: list[int], config: Any) -> list[int]:
    """What stands between the start token and the end."""
    row = row[1:]
    return row[: row.index(config.eos_token_id)] if config.eos_token_id in row else row


if __name__ == "__main__":
    typer.run(main)
