# SPDX-License-Identifier: Apache-2.0
"""Measures every model of ../shared/zoo and ../shared/models, as given and quantized, on one board for each CPU.

Float models are quantized by 32 samples: the three recorded ones, spread by noise. What counts as plain C are layers
with multiply-accumulates whose kernel needs nothing of the CPU, where the CPU has something to offer. Of float models,
what emx-onnx-cgen makes stands beside, built with the flags that serve it best and run in the same way; RAM is with the
stack for both.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import benchmark.reasons
import numpy as np
import onnx
import typer
from benchmark.emx import EMX, emx_bundle
from benchmark.measure import figures_of
from benchmark.reasons import excess_reasons
from benchmark.subjects import FLOAT_TOLERANCE, largest_error, load_subject, roomy
from markers import replace_between_markers
from rich.console import Console
from rich.table import Table

from mcugen.api.compilation import Compilation
from mcugen.codegen.identifiers import identifier
from mcugen.core.board import load_board
from mcugen.core.cache import Store, cache_folder, code_digest
from mcugen.core.errors import McugenError
from mcugen.core.options import CompileOptions
from mcugen.distributed.sharing import Workers
from mcugen.driver.tasks import Quantizing
from mcugen.frontend.onnx.load import load_model
from mcugen.reporting.kernels import declared_kernels
from mcugen.simulation import simulate

SHARED = Path(__file__).resolve().parents[2] / "shared"
FOLDERS = (SHARED / "zoo", SHARED / "models")
REASONS = benchmark.reasons.__file__
KEPT = Store(cache_folder() / "zoo")
"""Rows by what they follow from: a run that ended early goes on where it was."""
DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "reference" / "figures" / "zoo.md"
BOARDS = ("rp2040", "nrf52840", "nrf5340", "corstone300", "rv32imc")
SAMPLES, NOISE = 32, 0.1

SIZES: Mapping[str, Mapping[str, int]] = {
    "silero_vad_16k": {"batch": 1, "sequence": 576},
    "st_yamnet_256": {"unk__120": 1},
    "st_mobilenet_v2_035_128": {"unk__608": 1},
    "pt_mlp_dynbatch_dynamo": {"batch": 1},
    "pt_mlp_dynbatch_legacy": {"batch": 1},
}
BOUND: Mapping[str, Mapping[str, object]] = {"silero_vad_16k": {"sr": np.asarray(16000)}}

STATES: Mapping[str, Mapping[str, str]] = {
    "gtcrn_stream": {f"{name}_out": name for name in ("conv_cache", "tra_cache", "inter_cache")}
}
"""What a model keeps from call to call, by what it gives: it never leaves the arena."""


@dataclass(frozen=True)
class Row:
    """The costs of a model on a board; `failure` is the reason if there are none.

    `plain` is the share of instructions in portable kernels, `besides` that of layers without multiply-accumulates.
    """

    model: str
    precision: str
    board: str
    macs: int = 0
    instructions: int = 0
    arena: int = 0
    least_arena: int = 0
    plain: float = 0.0
    besides: float = 0.0
    slowest: str = ""
    ram: int = 0
    """The arena of `balanced`, and the stack."""
    peer: tuple[int, int] | None = None
    """Instructions and RAM of emx-onnx-cgen's code, where it compiles the model and is right."""
    why: str = ""
    """Sentences on what takes more than it should, of integers."""
    failure: str = ""

    def cells(self) -> list[str]:
        """Return the cells of the table."""
        if self.failure:
            return [self.model, self.precision, self.board, *[""] * (len(HEADINGS) - 4), self.failure]
        ratio = f"{self.instructions / self.macs:.2f}" if self.macs else ""
        sizes = [f"{number:,}" for number in (self.instructions, self.arena, self.least_arena)]
        named = [self.model, self.precision, self.board]
        peer = [
            f"{mine / number:.2f}" for mine, number in zip((self.instructions, self.ram), self.peer or (), strict=False)
        ]
        shares = [f"{share:.0%}" for share in (self.besides, self.plain)]
        return [*named, sizes[0], ratio, shares[0], *sizes[1:], shares[1], *(peer or ["", ""]), self.slowest]


HEADINGS = (
    *("model", "precision", "board", "instructions", "a MAC", "without products", "arena", "arena, `ram`"),
    *("plain C", "instructions, of emx's", "RAM, of emx's", "slowest layer of more than 3 %: instructions a MAC"),
)
WHY = ("model", "precision", "board", "why")


def main(
    models: Annotated[str, typer.Option(help="parts of model names, by commas; all if empty")] = "",
    boards: Annotated[str, typer.Option(help="board names, by commas")] = ",".join(BOARDS),
    precisions: Annotated[str, typer.Option(help="given, int8, or both by commas")] = "given,int8",
    jobs: Annotated[int, typer.Option(min=1, help="how many are measured at a time")] = os.cpu_count() or 1,
    cluster: Annotated[
        str, typer.Option(help="a Dask scheduler whose workers do it, or local: docs/how-to/cluster.md")
    ] = "",
    write_docs: Annotated[
        bool, typer.Option("--write-docs", help="what was measured, in docs/reference/figures/zoo.md")
    ] = False,
) -> None:
    """Measure instructions, arenas and the share of portable C of models that nobody tuned for."""
    console = Console(width=None if sys.stdout.isatty() else 200)
    wanted = list(_wanted(models.split(","), boards.split(","), precisions.split(",")))
    found: dict[Task, list[Row]] = {}
    with console.status("measuring") as status:
        for task, rows_of_task in Workers(jobs, cluster).run_tasks(partial(_measured_of, _files(wanted)), wanted):
            found[task] = rows_of_task
            status.update(f"{len(found)} of {len(wanted)}: {task.name}")
            if write_docs:
                _write(rows_of_task)
    rows = [row for task in wanted for row in found[task]]
    table = Table(*HEADINGS)
    for row in rows:
        table.add_row(*row.cells())
    console.print(table)
    for row in rows:
        if row.why:
            console.print(f"{row.model}, {row.precision}, {row.board}: {row.why}", markup=False)


def _write(rows: Sequence[Row]) -> None:
    """Write rows to the document as they come, so that an interrupted run keeps its results."""
    text = DOCUMENT.read_text()
    text = replace_between_markers(text, "zoo", merge_rows(text, [row.cells() for row in rows], HEADINGS))
    told = [[row.model, row.precision, row.board, row.why] for row in rows]
    DOCUMENT.write_text(replace_between_markers(text, "why", merge_rows(text, told, WHY)))


def merge_rows(text: str, rows: Sequence[Sequence[str]], headings: Sequence[str]) -> str:
    """Return the document's table with these rows in place of those of the same model, precision and board.

    Empty rows are left out.
    """
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    known = {tuple(cells[:3]): cells for cells in lines if len(cells) == len(headings)}
    known |= {tuple(cells[:3]): list(cells) for cells in rows}
    kept = sorted(cells for key, cells in known.items() if key[2] in BOARDS and any(cells[3:]))
    return "\n".join(f"| {' | '.join(line)} |" for line in (headings, ["---"] * len(headings), *kept))


@dataclass(frozen=True)
class Task:
    """A model by the name of its file, a precision, and the boards: the unit of measurement."""

    name: str
    precision: str
    boards: tuple[str, ...]


def _paths() -> list[Path]:
    return sorted(path for folder in FOLDERS for path in folder.glob("*.onnx"))


def _wanted(names: Sequence[str], boards: Sequence[str], precisions: Sequence[str]) -> Iterator[Task]:
    for path in _paths():
        if any(name in path.stem for name in names):
            kinds = ["given"] if is_quantized(path) else ["given", "int8"]
            yield from (Task(path.stem, kind, tuple(boards)) for kind in kinds if kind in precisions)


def _files(tasks: Sequence[Task]) -> Mapping[str, Sequence[Path]]:
    """Return the bytes of models and their samples by model, which are sent to the workers of a cluster."""
    names = {task.name for task in tasks}
    return {path.stem: (path, path.with_suffix(".io.npz")) for path in _paths() if path.stem in names}


def _measured_of(files: Mapping[str, Sequence[Path]], task: Task) -> list[Row]:
    """Measure a task on a worker, unless its cache has the rows for the same code and model."""
    path, *_ = files[task.name]
    sources: list[str | bytes] = [
        code_digest(),
        *(file.read_bytes() for file in (*files[task.name], Path(__file__), Path(REASONS))),
    ]
    keys = {board: row_key(*sources, task.precision, board) for board in task.boards}
    rows = {board: Row(**kept) for board, key in keys.items() if (kept := _read(key))}
    left = [board for board in task.boards if board not in rows]
    for row in _measured(path, task.precision, left):
        rows[row.board] = row
        if not row.failure:
            KEPT.write(keys[row.board], json.dumps(asdict(row)).encode())
    return [rows[board] for board in task.boards]


def row_key(*causes: str | bytes) -> str:
    """Return the hash of the inputs of a result, its key in the cache."""
    parts = [cause if isinstance(cause, bytes) else cause.encode() for cause in causes]
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def _read(key: str) -> dict[str, Any] | None:
    kept = KEPT.read(key)
    return json.loads(kept) if kept is not None else None


def is_quantized(path: Path) -> bool:
    """Return whether a model is already quantized."""
    model, _ = load_model(path)
    return any(node.op_type in ("QuantizeLinear", "DequantizeLinear") for node in model.graph.node)


def spread_samples(path: Path) -> dict[str, np.ndarray]:
    """Return SAMPLES samples by input name: the recorded ones, repeated with noise."""
    recorded, random = np.load(path.with_suffix(".io.npz")), np.random.default_rng(0)
    bound = BOUND.get(path.stem, {})
    found = {}
    for index, name in enumerate(map(str, recorded["input_names"])):
        given = [recorded[f"in{number % 3}_{index}"] for number in range(SAMPLES)]
        if name not in bound:
            found[name] = np.stack([_noisy(array, random) for array in given])
    return found


def _noisy(array: np.ndarray, random: np.random.Generator) -> np.ndarray:
    if array.dtype.kind != "f":
        return array
    return (array + random.normal(0, NOISE * array.std(), array.shape)).astype(array.dtype)


def model_options(path: Path) -> CompileOptions:
    """Return the options for sizes, inputs and states that a model leaves open."""
    sizes, bound = SIZES.get(path.stem, {}), BOUND.get(path.stem, {})
    return CompileOptions(dims=sizes, bound=bound, states=STATES.get(path.stem, {}))  # type: ignore[arg-type]


def quantized(path: Path, board: str) -> onnx.ModelProto:
    """Return a float model quantized by its spread samples, with fixed sizes."""
    quantizing = Quantizing(calibration=spread_samples(path))
    return Compilation(path, roomy(load_board(board)), model_options(path), quantizing).quantized.proto


def _measured(path: Path, precision: str, boards: Sequence[str]) -> list[Row]:
    """Measure a model on some boards, quantized for each of them.

    A failure, also a bug of a compiler, becomes a row, so that the other rows are still measured.
    """
    return [_measured_on(Row(path.stem, precision, board), path) for board in boards]


def _measured_on(row: Row, path: Path) -> Row:
    """Return a row with the costs of a model on the row's board."""
    options = model_options(path)
    model: Path | onnx.ModelProto = path
    try:
        if row.precision == "int8":
            model = quantized(path, row.board)
            options = replace(options, dims={}, bound={})
    except Exception as error:
        return replace(row, failure=_reason(error))
    found = _on_board(row, model, options)
    return replace(found, peer=_peer(path, row.board)) if model is path and found.instructions else found


def _on_board(row: Row, model: Path | onnx.ModelProto, options: CompileOptions) -> Row:
    target = roomy(load_board(row.board))
    try:
        made = Compilation(model, target, options)
        report = made.report()
        least = Compilation(model, target, replace(options, optimize="ram")).compiled
    except Exception as error:
        return replace(row, failure=_reason(error))
    found = report.to_json()
    layers, total, macs = found["layers"], report.instructions or 0, found["model"]["macs"]  # type: ignore[index]
    assert isinstance(layers, list)
    needs = {kernel.name: kernel.needs for kernel in declared_kernels()}
    plain = sum(layer["instructions"] or 0 for layer in layers if layer["macs"] and not needs.get(layer["kernel"]))
    besides = sum(layer["instructions"] or 0 for layer in layers if not layer["macs"])
    slow = [layer for layer in layers if layer["macs"] and (layer["instructions"] or 0) > 0.03 * total]
    worst = max(slow, key=lambda layer: layer["instructions"] / layer["macs"], default=None)
    return replace(
        row,
        macs=macs,
        instructions=total,
        arena=made.compiled.program.arena_size,
        least_arena=least.program.arena_size,
        plain=plain / total if total else 0.0,
        besides=besides / total if total else 0.0,
        slowest=f"{worst['kernel']} {worst['instructions'] / worst['macs']:.2f}" if worst else "",
        ram=made.compiled.program.arena_size + (report.ram.stack or 0),
        why=excess_reasons(made.compiled, report.layers) if row.precision == "int8" else "",
    )


def _peer(path: Path, board: str) -> tuple[int, int] | None:
    """Return the instructions and RAM of emx-onnx-cgen's code, from the cache if possible.

    The result is None if emx-onnx-cgen refuses the model, the model is quantized, or outputs are wrong.
    """
    if is_quantized(path) or find_spec(EMX.replace("-", "_")) is None:
        return None
    key = row_key(version(EMX), path.read_bytes(), board)
    kept = _read(key)
    found = _peer_now(path, board) if kept is None else (kept["instructions"], kept["ram"])
    if found:
        KEPT.write(key, json.dumps(dict(zip(("instructions", "ram"), found, strict=True))).encode())
    return found


def _peer_now(path: Path, board: str) -> tuple[int, int] | None:
    try:
        with tempfile.TemporaryDirectory() as folder:
            subject = load_subject(path)
            bundle = emx_bundle(path, identifier(subject.name), Path(folder))
            target = roomy(load_board(board))
            fast = replace(target, cflags=(*target.cflags, "-O3", "-ffp-contract=fast"))
            run = simulate(bundle, fast, [subject.sample])
            error = largest_error(run.outputs[0], subject.reference)
            figures = figures_of(bundle, run, error)
    except Exception:  # of what kind is its own affair
        return None
    return (figures.instructions, figures.ram) if error <= FLOAT_TOLERANCE else None


def _reason(error: Exception) -> str:
    """Return the first line of an error as the text of a cell."""
    kind = "" if isinstance(error, McugenError) else f"{type(error).__name__}: "
    return (kind + (str(error).splitlines() or [""])[0])[:100].replace("|", "/")


if __name__ == "__main__":
    import zoo  # workers find functions by their module's name

    typer.run(zoo.main)
