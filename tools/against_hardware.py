# SPDX-License-Identifier: Apache-2.0
"""Estimates of cycles beside what others measured on boards: tables of docs/reference/figures/performance.md.

Programs of others, built here from their sources and priced by our model of time, which tells how right it is, in two
tables; and our own code beside the marks of MLPerf Tiny. --sources names a folder with checkouts of the repositories
that hardware/tigris.py, hardware/tflm.py and hardware/onnc.py name; programs whose sources are not there are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from benchmark.subjects import MODELS as FOLDER
from hardware import onnc, tflm, tigris
from hardware.measured import MARKS, MODELS, PROGRAMS, SUBMISSIONS, TARGETS, Measured
from hardware.networks import write_network
from markers import rewrite_passage
from measure_costs import random_inputs
from rich.console import Console

from mcugen.core.board import Board, load_board
from mcugen.core.options import CompileOptions, Places
from mcugen.driver.compiler import compile_model
from mcugen.simulation import Setup, simulate
from mcugen.simulation.cycles import Cycles

NEAR, NEARER = 0.15, 0.07
"""How far estimates may be off: all of them, and half of them."""

FAR = 0.25
"""The same of code that others submitted to MLPerf Tiny, whose builds are known less well."""

SHAPES = {
    **{"ds_cnn": ((490,), (12,)), "ad": ((640,), (640,)), "ts": ((512,), (10,))},
    **{"ic": ((3072,), (10,)), "vww": ((27648,), (2,))},
}
"""Inputs and outputs of the networks, as bytes."""

Progress = Console(stderr=True)


@dataclass(frozen=True)
class Row:
    """A measurement of others on a board, and our estimate for the same program."""

    measured: Measured
    cycles: Cycles

    @property
    def miss(self) -> float | None:
        """Return the relative error of the estimate, positive if it is too high; None without an estimate."""
        return None if self.cycles.total is None else self.cycles.total / self.measured.cycles - 1


def estimate(measured: Measured, sources: Path, folder: Path) -> Cycles:
    """Return the estimated cycles of a measured program, which is built from its sources in `folder`."""
    board, shapes = load_board(measured.kit), SHAPES[measured.network]
    if measured.interpreter == "TFLM":
        library, bundle = tflm.tflm_archive(board, sources, folder), tflm.tflm_bundle(measured.network, sources, shapes)
    elif measured.interpreter == "ONNC":
        library, bundle = onnc.onnc_archive(measured.network, board, sources, folder), onnc.onnc_bundle(shapes)
    else:
        library = tigris.tigris_archive(board, sources, folder)
        plan = tigris.compile_plan(write_network(measured.network, folder), sources)
        bundle = tigris.tigris_bundle(plan, measured.kernels, shapes)
    sample = {"x": np.ones(shapes[0], np.int8)}
    run = simulate(bundle, board, [sample], cycles=True, setup=Setup(library=library, timeout=600))
    assert run.cycles is not None
    return run.cycles


def estimate_all(programs: Sequence[Measured], sources: Path | None, folder: Path) -> Iterator[Row]:
    """Yield an estimate for each program whose sources are there; print the programs that are left out."""
    for measured in programs:
        folders = {"TFLM": tflm.FOLDERS, "ONNC": onnc.FOLDERS}.get(measured.interpreter, tigris.FOLDERS)
        missing = [name for name in folders if sources is None or not (sources / name).is_dir()]
        what = f"{measured.kit}: {measured.network}, {measured.program}"
        if missing or sources is None:
            Progress.print(f"{what}: left out, since --sources has no {', '.join(missing)}")
        elif measured.interpreter == "TFLM" and not tflm.has_public_model(measured.network):
            Progress.print(f"{what}: left out, since its model is not public")
        elif measured.interpreter == "ONNC" and not onnc.is_comparable(measured.network):
            Progress.print(f"{what}: left out, since its first run is not like others")
        else:
            Progress.print(what)
            yield Row(measured, estimate(measured, sources.resolve(), folder.resolve()))


def program_table(rows: Sequence[Row], near: float = NEAR, nearer: float = NEARER) -> Iterator[str]:
    """Yield the lines of a Markdown table, and how many estimates are off by at most `near` and `nearer`."""
    yield "| board | network | program | measured | estimate | of that waiting | off by |"
    yield "|---|---|---|---:|---:|---:|---:|"
    for row in rows:
        told = (row.measured.kit, row.measured.network, row.measured.program, f"{row.measured.cycles:,}")
        if row.cycles.total is None or row.miss is None:
            yield f"| {' | '.join(told)} | - | - | {row.cycles.note} |"
            continue
        waits = sum(wait.cycles for wait in row.cycles.waits)
        mark = "" if abs(row.miss) <= near else " (miss)"
        yield f"| {' | '.join(told)} | {row.cycles.total:,} | {waits:,} | {row.miss:+.1%}{mark} |"
    misses = [abs(row.miss) for row in rows if row.miss is not None]
    counts = [sum(miss <= bound for miss in misses) for bound in (near, nearer)]
    yield ""
    yield f"Within {near:.0%}: {counts[0]} of {len(rows)}; within {nearer:.0%}: {counts[1]}."


def mcugen_cycles(board: Board, model: str, options: CompileOptions) -> int | None:
    """Return the estimated cycles of one inference of mcugen's code; None without an estimate."""
    compiled = compile_model(FOLDER / f"{model}.onnx", board, options)
    cycles = compiled.simulate([random_inputs(compiled)], cycles=True).cycles
    return cycles.total if cycles else None


def mcugen_table(kits: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a Markdown table: our estimate, the best submitted result and our target."""
    yield "| board | " + " | ".join(MODELS) + " |"
    yield "|---|" + "---|" * len(MODELS)
    for kit in kits:
        cells = []
        for model, mark, target in zip(MODELS.values(), MARKS[kit], TARGETS[kit], strict=True):
            Progress.print(f"{kit}: {model}")
            cycles = mcugen_cycles(load_board(kit), model, CompileOptions(optimize="speed"))
            own = "-" if cycles is None else f"{cycles / 1e6:.3g}"
            cells.append(f"**{own}** / {mark:g} / {target:g}")
        yield f"| {kit} | " + " | ".join(cells) + " |"


def placement_lines() -> Iterator[str]:
    """Yield the estimates of the autoencoder on a board with slow flash, with weights in flash and in RAM."""
    board, told = load_board("pico2"), []
    for place in ("flash", "sram"):
        Progress.print(f"pico2: {MODELS['AD']}, weights in {place}")
        cycles = mcugen_cycles(board, MODELS["AD"], CompileOptions(place=Places(weights=place)))
        told.append(f"{(cycles or 0) / 1e6:.3g} with its weights in {place}")
    yield f"The autoencoder on a pico2, `balanced`: {', '.join(told)}."


def main(
    sources: Annotated[
        Path | None, typer.Option(envvar="MCUGEN_HARDWARE_SOURCES", help="checkouts of the measured programs")
    ] = None,
    kit: Annotated[list[str] | None, typer.Option(help="only these development kits")] = None,
    network: Annotated[list[str] | None, typer.Option(help="only these networks of the programs")] = None,
    marks: Annotated[bool, typer.Option(help="our own code beside the marks too")] = True,
    write_docs: Annotated[Path | None, typer.Option(help="the document whose tables to rewrite")] = None,
    folder: Annotated[Path, typer.Option(help="where programs are built")] = Path("build/hardware"),
) -> None:
    """Print the tables, and write them to the document on request."""
    tables = {}
    for name, programs, near, nearer in (("hardware", PROGRAMS, NEAR, NEARER), ("submissions", SUBMISSIONS, FAR, NEAR)):
        wanted = [m for m in programs if (not kit or m.kit in kit) and (not network or m.network in network)]
        rows = list(estimate_all(wanted, sources, folder))
        if rows:
            tables[name] = "\n".join(program_table(rows, near, nearer))
    if marks:
        kits = [name for name in MARKS if not kit or name in kit]
        tables["marks"] = "\n".join([*mcugen_table(kits), "", *placement_lines()])
    for table in tables.values():
        print(table, end="\n\n")
    if write_docs:
        for name, table in tables.items():
            rewrite_passage(write_docs, name, table)


if __name__ == "__main__":
    typer.run(main)
