# SPDX-License-Identifier: Apache-2.0
"""Measures mcugen and its peer on a board: figures, or a note why there are none."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmark.emx import EMX_OPTIONS, emx_bundle, emx_program, run
from benchmark.figures import NONE, Figures, LayerFigures, Outcome, Row
from benchmark.recorded import Tflm
from benchmark.subjects import FLOAT_TOLERANCE, INT_TOLERANCE, ROOT, Subject, largest_error, load_subject, roomy
from mcugen.codegen.bundle import Bundle
from mcugen.codegen.identifiers import identifier
from mcugen.core.board import Board, load_board
from mcugen.core.errors import DoesNotFitError, McugenError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.hir.graph import Node
from mcugen.hir.layer_names import name_nodes
from mcugen.simulation import Execution, Setup, simulate

WORK = ROOT / "build" / "bench"
TIMED_BOARD = "corstone300"  # large enough for every model: the command line refuses boards that are not


@dataclass(frozen=True)
class Job:
    """A model on a board, for each of the goals; `flags` follow the board's compiler flags."""

    path: Path
    board: str
    goals: tuple[str, ...]
    flags: str
    beside_emx: bool

    def rows(self) -> list[Row]:
        """Measure the job, and return a row for each goal. emx-onnx-cgen has no goals and is measured once."""
        subject = load_subject(self.path)
        known = load_board(self.board)
        board = replace(known, cflags=(*known.cflags, *shlex.split(self.flags)))
        peer = guarded(partial(measure_emx, subject, board), "emx") if self.beside_emx else measure_tflm(subject, board)
        return [self._row(subject, board, goal, peer) for goal in self.goals]

    def _row(self, subject: Subject, board: Board, goal: str, peer: Outcome) -> Row:
        ours = guarded(partial(measure_mcugen, subject, board, goal), "mcugen")
        macs = sum(layer.macs for layer in ours.layers)
        return Row(subject.name, board.name, board.cpu, ours, peer, goal, macs, board.clock_hz)


def run_jobs(jobs: list[Job], workers: int, progress: Callable[[str], None]) -> list[Row]:
    """Measure all jobs in parallel processes, and return the rows in the order of the jobs."""
    rows: list[Row] = []
    with ProcessPoolExecutor(workers) as pool:
        for job, found in zip(jobs, pool.map(Job.rows, jobs), strict=True):
            progress(f"{job.path.stem} on {job.board}")
            rows += found
    return rows


def measure_mcugen(subject: Subject, board: Board, goal: str, match: str = "") -> Outcome:
    """Measure mcugen's code. A board that is too small is given more memory, with a note.

    Args:
        subject: The model and a sample.
        board: The board.
        goal: The goal of the optimization.
        match: Name of the reference implementation whose bits the outputs must have; "" for none.
    """
    note, options = "", CompileOptions(optimize=goal, match=match)
    try:
        compiled = compile_model(subject.path, board, options)
    except DoesNotFitError:
        note = f"too large for {board.name}"
        compiled = compile_model(subject.path, roomy(board), options)
    outcome, run = _outcome(subject, board, compiled.bundle, f"mcugen-{goal}{match}", note)
    return replace(outcome, layers=layers_of(compiled, run))


def measure_emx(subject: Subject, board: Board) -> Outcome:
    """Measure emx-onnx-cgen's code for the same model."""
    bundle = emx_bundle(subject.path, identifier(subject.name), _folder(subject, board, "emx"))
    return _outcome(subject, board, bundle, "emx", "")[0]


def measure_tflm(subject: Subject, board: Board) -> Outcome:
    """Return the recorded figures for the int8 model on the board's CPU, if there are any."""
    figures = Tflm.load().figures(subject.name, board.cpu)
    return Outcome(figures) if figures else NONE


def _outcome(subject: Subject, board: Board, bundle: Bundle, compiler: str, note: str) -> tuple[Outcome, Execution]:
    folder = _folder(subject, board, compiler)
    run = simulate(bundle, board, [subject.sample], per_layer=True, cycles=True, setup=Setup(workdir=folder))
    error = largest_error(run.outputs[0], subject.reference)
    integer = all(array.dtype.kind != "f" for array in subject.reference.values())
    if error > (INT_TOLERANCE if integer else FLOAT_TOLERANCE):
        note = f"{compiler} WRONG: {error:.3g} off; {note}".removesuffix("; ")
    return Outcome(figures_of(bundle, run, error), note), run


def figures_of(bundle: Bundle, run: Execution, error: float) -> Figures:
    """Return the figures of a measured run."""
    assert run.instructions is not None and run.stack is not None and run.sizes is not None
    return Figures(
        instructions=run.instructions,
        code=run.sizes.code,
        weights=run.sizes.weights,
        arena=bundle.arena_size,
        static=run.sizes.static_ram,
        stack=run.stack,
        error=error,
        cycles=run.cycles.without_waits if run.cycles else None,
    )


def layers_of(compiled: CompiledModel, run: Execution) -> tuple[LayerFigures, ...]:
    """Return the layers of a measured run, with the shapes of the nodes that they compute."""
    layers = compiled.report.layers
    unknown = (None,) * len(layers)
    cycles = (run.cycles.layers_without_waits if run.cycles else None) or unknown
    units = (run.cycles.layer_units if run.cycles else None) or unknown
    nodes = {name: node for node, name in name_nodes(compiled.graph).items()}
    each = zip(layers, run.layer_instructions or (), cycles, units, strict=True)
    return tuple(
        LayerFigures(
            **_shapes(nodes.get(layer.name)),
            name=layer.name,
            op=layer.op,
            kernel=layer.kernel,
            macs=layer.macs,
            instructions=retired,
            cycles=estimate,
            units=dict(parts or {}),
        )
        for layer, retired, estimate, parts in each
    )


def _shapes(node: Node | None) -> dict[str, Any]:
    """Return the fields of a layer that give its sizes; empty for a block of several nodes."""
    if node is None:
        return {"shape": (), "elements": 0, "channels": 0}
    values = [v for v in (*node.outputs, *node.inputs) if v is not None and not v.is_constant]
    shape = node.outputs[0].type.shape
    return {"shape": shape, "elements": max(v.type.count for v in values), "channels": shape[-1] if shape else 0}


def guarded(measure: Callable[[], Outcome], compiler: str) -> Outcome:
    """Return the outcome of a measurement; a failure becomes an outcome, so that the benchmark goes on."""
    try:
        return measure()
    except McugenError as error:
        return Outcome(None, f"{compiler}: {_first_line(str(error))}")
    except Exception as error:  # a bug in a compiler; the other rows are still wanted
        return Outcome(None, f"{compiler}: {type(error).__name__}: {_first_line(str(error))}")


def _first_line(text: str) -> str:
    """Return an error's rule without value and hint; for a list of errors, that of the first one."""
    lines = text.strip().splitlines() or [""]
    is_list = len(lines) > 1 and lines[0].endswith(":")
    return (lines[1].strip(" -") if is_list else lines[0]).split(". found:")[0]


def _folder(subject: Subject, board: Board, compiler: str) -> Path:
    return WORK / subject.name / board.name / compiler


def compile_seconds(path: Path) -> Mapping[str, float | None]:
    """Return the wall time of both command lines with the start of the process; None if one fails."""
    folder = WORK / path.stem / "timed"
    folder.mkdir(parents=True, exist_ok=True)
    mcugen = Path(sys.executable).with_name("mcugen")
    return {
        "mcugen": _seconds(
            lambda: [str(mcugen), "compile", str(path), "--board", TIMED_BOARD, "-o", str(folder / "mcugen")]
        ),
        "emx": _seconds(lambda: [emx_program(), "compile", str(path), str(folder / "emx.c"), *EMX_OPTIONS]),
    }


def _seconds(command: Callable[[], list[str]]) -> float | None:
    try:
        arguments = command()
        start = time.perf_counter()
        run(arguments)
    except McugenError:
        return None
    return time.perf_counter() - start
