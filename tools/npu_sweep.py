# SPDX-License-Identifier: Apache-2.0
"""Compares programs with and without the NPU: every model of ../shared, quantized, on boards with an Ethos-U.

Float models are quantized by 32 samples, as in zoo.py. Cycles are estimates for the board's memories, as the program
search compares them; no program is simulated. Models that are too large for a board get the memory that they need.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Annotated

import numpy as np
import onnx
import typer
from benchmark.subjects import roomy
from markers import between_markers, markdown_table, rewrite_passage
from onnx import helper, numpy_helper
from rich.console import Console
from zoo import FOLDERS, SHARED, is_quantized, model_options, quantized, row_key

from mcugen.api.compilation import Compilation
from mcugen.core.board import load_board
from mcugen.core.cache import Store, cache_folder, code_digest
from mcugen.core.errors import DoesNotFitError, McugenError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.driver.tasks import Quantizing
from mcugen.search.budget import likely_code_bytes, placed_stall_cycles

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "reference" / "figures" / "npu.md"
BOARDS = ("corstone300", "alif_e7", "ra8p1")
SOURCES = (*FOLDERS, SHARED / "tflite")
RESULTS = Store(cache_folder() / "npu_sweep")
"""Rows by the code, the model and the board: an interrupted run goes on."""
QUANTIZING_BOARD = "corstone300"
"""Float models are quantized once, for this board."""
MAX_REASONS = 3
"""Number of reasons that a row lists."""


@dataclass(frozen=True)
class Row:
    """A model on a board, by the CPU alone and with the NPU; `failure` is the reason if it does not compile.

    Attributes:
        cpu_cycles: Estimated cycles of the CPU alone, with stall cycles.
        mixed_cycles: Estimated cycles with the NPU, in cycles of the CPU.
        segments: Number of invocations of the NPU.
        offloaded: Number of layers that the NPU computes.
        layers: Number of layers.
        cpu_arena: Bytes of the arena of the CPU alone.
        mixed_arena: Bytes of the arena with the NPU.
        cpu_flash: Bytes of weights and likely code of the CPU alone.
        mixed_flash: Bytes of weights, commands and likely code with the NPU.
        reasons: Why layers stay on the CPU.
    """

    model: str
    board: str
    cpu_cycles: int = 0
    mixed_cycles: int = 0
    segments: int = 0
    offloaded: int = 0
    layers: int = 0
    cpu_arena: int = 0
    mixed_arena: int = 0
    cpu_flash: int = 0
    mixed_flash: int = 0
    reasons: str = ""
    failure: str = ""

    @property
    def is_slower(self) -> bool:
        """Return whether the program with the NPU takes more cycles than the one without."""
        return self.mixed_cycles > self.cpu_cycles

    def cells(self) -> list[str]:
        """Return the cells of the table."""
        if self.failure:
            return [self.model, self.board, *[""] * (len(HEADINGS) - 3), self.failure]
        pairs = (
            (self.cpu_arena, self.mixed_arena),
            (self.cpu_flash, self.mixed_flash),
        )
        return [
            *(self.model, self.board, f"{self.cpu_cycles:,}", f"{self.mixed_cycles:,}"),
            f"{self.cpu_cycles / self.mixed_cycles:.1f}",
            *(str(self.segments), f"{self.offloaded} of {self.layers}"),
            *(f"{cpu:,} → {mixed:,}" for cpu, mixed in pairs),
            self.reasons,
        ]


TINY: Mapping[str, tuple[str, str, float, float]] = {
    "ResNet8": ("resnet8_cifar10_int8.tflite", "202 k, 142 k", 12, 0.640),
    "DS-CNN": ("ds_cnn_kws_int8.tflite", "90 k, 58 k", 1, 0.108),
    "VWW": ("mobilenet_v1_025_vww_int8.tflite", "221 k, 161 k", 6, 0.364),
    "autoencoder": ("autoencoder_ad_int8.tflite", "201 k, 201 k", 0.226, 0.132),
}
"""MLPerf Tiny networks: the file; Vela's estimate of all cycles for a U55 of 128 and 256 units (Vela 5.2, its own
configuration of the system at 500 MHz); milliseconds on an RA8P1 by CPU and NPU, which Renesas measured with RUHMI."""

PEER_HEADINGS = (
    *("network", "board", "CPU cycles", "with NPU", "ratio", "ms", "arena", "flash", "NPU cycles"),
    *("Vela's estimate, U55-128, U55-256", "RUHMI, ms: CPU, NPU", "RUHMI's ratio"),
)

GATES = {"LSTM": 4, "GRU": 3}
HIDDEN_SIZES, NUM_STEPS, NUM_INPUTS = (32, 128, 256), 20, 64
"""Sizes of the recurrent layers of the table of recurrent layers."""

RECURRENT_HEADINGS = ("layer", "units", "board", "CPU cycles", "with NPU", "ratio", "invocations", "arena")

HEADINGS = (
    *("model", "board", "CPU cycles", "with NPU", "ratio", "segments", "layers on the NPU"),
    *("arena", "flash", "on the CPU (layers)"),
)


def main(
    models: Annotated[str, typer.Option(help="parts of model names, by commas; all if empty")] = "",
    boards: Annotated[str, typer.Option(help="board names, by commas")] = ",".join(BOARDS),
    simulate: Annotated[bool, typer.Option("--simulate", help="the MLPerf Tiny networks alone, under QEMU")] = False,
    recurrent: Annotated[bool, typer.Option("--recurrent", help="recurrent layers of random weights alone")] = False,
    write_docs: Annotated[bool, typer.Option("--write-docs", help="write docs/reference/figures/npu.md")] = False,
) -> None:
    """Estimate cycles, arena and flash of each model with and without the NPU; fail if a program gets slower."""
    if simulate:
        table = markdown_table([PEER_HEADINGS, *(peer_row(*key) for key in product(TINY, boards.split(",")))])
        print(table)
        if write_docs:
            rewrite_passage(DOCUMENT, "npu-peers", table)
        return
    if recurrent:
        cases = product(GATES, HIDDEN_SIZES, boards.split(","))
        table = markdown_table([RECURRENT_HEADINGS, *(recurrent_row(*case) for case in cases)])
        print(table)
        if write_docs:
            rewrite_passage(DOCUMENT, "npu-recurrent", table)
        return
    rows = list[Row]()
    console = Console(width=None if sys.stdout.isatty() else 200)
    for path in model_paths(models.split(",")):
        for board in boards.split(","):
            rows.append(_cached_row(path, board))
            console.print(" | ".join(rows[-1].cells()), markup=False)
    if write_docs:
        rewrite_passage(DOCUMENT, "npu-sweep", merged_table([row.cells() for row in rows]))
    slower = [f"{row.model} on {row.board}" for row in rows if row.is_slower or row.failure]
    if slower:
        raise SystemExit(f"slower with the NPU, or not compiled: {', '.join(slower)}")


@cache
def recurrent_model(kind: str, hidden: int) -> onnx.ModelProto:
    """Return an int8 recurrent layer of random weights.

    Args:
        kind: Name of the ONNX operator.
        hidden: Number of units.
    """
    random, rows = np.random.default_rng(hidden), GATES[kind] * hidden
    shapes = {"w": (1, rows, NUM_INPUTS), "r": (1, rows, hidden), "b": (1, 2 * rows)}
    arrays = {name: random.normal(0, shape[-1] ** -0.5, shape).astype(np.float32) for name, shape in shapes.items()}
    node = helper.make_node(kind, ["x", *arrays], ["y"], hidden_size=hidden)
    x, y = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (("x", (NUM_STEPS, 1, NUM_INPUTS)), ("y", (NUM_STEPS, 1, 1, hidden)))
    )
    constants = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    model = helper.make_model(
        helper.make_graph([node], kind, [x], [y], constants), opset_imports=[helper.make_opsetid("", 21)], ir_version=10
    )
    samples = random.standard_normal((32, NUM_STEPS, 1, NUM_INPUTS)).astype(np.float32)
    return Compilation(model, quantizing=Quantizing(calibration={"x": samples}, precision="int8")).quantized.proto


def recurrent_row(kind: str, hidden: int, board: str) -> list[str]:
    """Estimate a recurrent layer without and with the NPU, and return its row of the table."""
    alone, mixed = (_compiled(recurrent_model(kind, hidden), board, CompileOptions(npu=npu)) for npu in ("off", "auto"))
    figures = mixed.report.accelerator
    assert figures is not None
    cycles = cycles_of(alone), cycles_of(mixed)
    runs = " + ".join(str(segment.runs) for segment in figures.segments)
    arena = f"{alone.program.arena_size:,} → {mixed.program.arena_size:,}"
    return [kind, str(hidden), board, *(f"{n:,}" for n in cycles), f"{cycles[0] / cycles[1]:.1f}", runs, arena]


def peer_row(network: str, board: str) -> list[str]:
    """Simulate an MLPerf Tiny network without and with the NPU, and return its row of the table."""
    file, vela, *ruhmi = TINY[network]
    key = row_key(code_digest(), (SHARED / "tflite" / file).read_bytes(), Path(__file__).read_bytes(), board, "peer")
    known = RESULTS.read(key)
    if known is not None:
        return list(json.loads(known))
    reports = [
        Compilation(SHARED / "tflite" / file, load_board(board), CompileOptions(npu=npu)).report()
        for npu in ("off", "auto")
    ]
    alone, mixed = (report.cycles_estimate for report in reports)
    used = reports[1].accelerator
    assert alone is not None and mixed is not None and used is not None
    compared = [f"{ruhmi[0]:g}, {ruhmi[1]:g}", f"{ruhmi[0] / ruhmi[1]:.1f}"] if board == "ra8p1" else ["", ""]
    row = [
        *(network, board, f"{alone:,}", f"{mixed:,}", f"{alone / mixed:.1f}"),
        f"{reports[1].milliseconds_estimate:.3f}",
        " → ".join(f"{report.ram.arena:,}" for report in reports),
        " → ".join(f"{report.flash.total:,}" for report in reports),
        f"{sum(segment.accelerator_cycles_estimate for segment in used.segments):,}",
        *(vela, *compared),
    ]
    RESULTS.write(key, json.dumps(row).encode())
    return row


def merged_table(rows: Sequence[Sequence[str]]) -> str:
    """Return the document's table with these rows in place of those of the same model and board."""
    lines = between_markers(DOCUMENT.read_text(), "npu-sweep").splitlines()[2:]
    known = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    merged = {tuple(cells[:2]): list(cells) for cells in (*known, *rows)}
    return markdown_table([HEADINGS, *(merged[key] for key in sorted(merged))])


def model_paths(names: Sequence[str]) -> list[Path]:
    """Return the files of the models whose names contain one of `names`."""
    paths = (path for folder in SOURCES for suffix in ("onnx", "tflite") for path in sorted(folder.glob(f"*.{suffix}")))
    return [path for path in paths if any(name in path.name for name in names)]


def _cached_row(path: Path, board: str) -> Row:
    key = row_key(code_digest(), path.read_bytes(), Path(__file__).read_bytes(), board)
    known = RESULTS.read(key)
    if known is not None:
        return Row(**json.loads(known))
    row = measured_row(path, board)
    RESULTS.write(key, json.dumps(asdict(row)).encode())
    return row


def measured_row(path: Path, board: str) -> Row:
    """Compile a model without and with the NPU, and return the estimates of both programs.

    Any failure becomes a row, so that the other rows are still measured.
    """
    row = Row(path.name, board)
    try:
        model, options = _int8_model(path)
        alone, mixed = (_compiled(model, board, replace(options, npu=npu)) for npu in ("off", "auto"))
    except Exception as error:
        kind = "" if isinstance(error, McugenError) else f"{type(error).__name__}: "
        return replace(row, failure=(kind + str(error).splitlines()[0]).replace("|", "/"))
    figures = mixed.report.accelerator
    assert figures is not None
    on_cpu = [placement for placement in figures.placements if placement.runs_on == "CPU"]
    return replace(
        row,
        cpu_cycles=cycles_of(alone),
        mixed_cycles=cycles_of(mixed),
        segments=len(figures.segments),
        offloaded=len(figures.placements) - len(on_cpu),
        layers=len(figures.placements),
        cpu_arena=alone.program.arena_size,
        mixed_arena=mixed.program.arena_size,
        cpu_flash=_flash_of(alone),
        mixed_flash=_flash_of(mixed),
        reasons=_reasons(Counter((p.operator, _kind_of(p.reason)) for p in on_cpu)),
    )


def _int8_model(path: Path) -> tuple[Path | onnx.ModelProto, CompileOptions]:
    if path.suffix == ".tflite":
        return path, CompileOptions()
    options = model_options(path)
    if is_quantized(path):
        return path, options
    key = row_key(path.read_bytes(), Path(__file__).read_bytes(), "quantized")
    known = RESULTS.read(key)
    if known is None:
        known = quantized(path, QUANTIZING_BOARD).SerializeToString()
        RESULTS.write(key, known)
    return onnx.load_from_string(known), replace(options, dims={}, bound={})


def _compiled(model: Path | onnx.ModelProto, board: str, options: CompileOptions) -> CompiledModel:
    target = load_board(board)
    try:
        return compile_model(model, target, options)
    except DoesNotFitError:
        return compile_model(model, roomy(target), options)


def cycles_of(compiled: CompiledModel) -> int:
    """Return the estimated cycles of one call, with the stall cycles of the memories that data are placed in."""
    program, places = compiled.program, compiled.options.place
    return round((program.cycles_estimate or 0) + sum(placed_stall_cycles(program, compiled.board, places)))


def _flash_of(compiled: CompiledModel) -> int:
    return compiled.report.flash.weights + likely_code_bytes(compiled.program, compiled.board)


def _kind_of(reason: str) -> str:
    """Return a reason without its numbers."""
    return "faster there" if reason.startswith("CPU:") else reason


def _reasons(counts: Mapping[tuple[str, str], int]) -> str:
    listed = [f"{count} {operator}: {reason}" for (operator, reason), count in Counter(counts).most_common(MAX_REASONS)]
    others = sum(counts.values()) - sum(count for _, count in Counter(counts).most_common(MAX_REASONS))
    return "; ".join([*listed, *([f"{others} others"] if others else [])]).replace("|", "/")


if __name__ == "__main__":
    typer.run(main)
