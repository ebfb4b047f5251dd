# SPDX-License-Identifier: Apache-2.0
"""Our estimates of cycles beside what others measured on boards: rewrites tables of docs/performance.md.

Two tables: programs of others, built here from their sources and priced by our model of time, which tells how right it
is; and our own code beside the marks of MLPerf Tiny. Without the sources (--sources: a folder with checkouts of
raws-labs/tigris, raws-labs/tigris-runtime and ARM-software/CMSIS-NN at 6d9d61d8, by the last part of their names) the
first table is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from benchmark.subjects import MODELS as FOLDER
from hardware.measured import MARKS, MODELS, PROGRAMS, TARGETS, Measured
from hardware.networks import write_network
from hardware.tigris import FOLDERS, compile_plan, tigris_bundle, tigris_library
from markers import replace_between_markers
from measure_costs import random_inputs
from rich.console import Console

from mcugen.board import Board, load_board
from mcugen.compiler import compile_model
from mcugen.options import CompileOptions
from mcugen.simulate import Setup, simulate
from mcugen.simulate.cycles import Cycles

NEAR, NEARER = 0.15, 0.07
"""How far estimates may be off: all of them, and half of them."""

SHAPES = {"ds_cnn": ((490,), (12,)), "ad": ((640,), (640,)), "ts": ((512,), (10,))}
"""Inputs and outputs of the networks, as bytes."""

Progress = Console(stderr=True)


@dataclass(frozen=True)
class Row:
    """An estimate and what was measured."""

    measured: Measured
    cycles: Cycles

    @property
    def miss(self) -> float | None:
        """How much the estimate is above (or below) what was measured, as a share of that."""
        return None if self.cycles.total is None else self.cycles.total / self.measured.cycles - 1


def estimate(measured: Measured, sources: Path, folder: Path) -> Cycles:
    """Of a program, built from its sources in `folder`."""
    board = load_board(measured.kit)
    library = tigris_library(board, sources, folder)
    plan = compile_plan(write_network(measured.network, folder), sources)
    bundle = tigris_bundle(plan, measured.kernels, SHAPES[measured.network])
    sample = {"x": np.ones(SHAPES[measured.network][0], np.int8)}
    run = simulate(bundle, board, [sample], cycles=True, setup=Setup(library=library, timeout=600))
    assert run.cycles is not None
    return run.cycles


def program_table(rows: Sequence[Row]) -> Iterator[str]:
    """Lines of a table in Markdown."""
    yield "| board | network | kernels | measured | estimate | of that waiting | off by |"
    yield "|---|---|---|---:|---:|---:|---:|"
    for row in rows:
        told = (row.measured.kit, row.measured.network, row.measured.kernels, f"{row.measured.cycles:,}")
        if row.cycles.total is None or row.miss is None:
            yield f"| {' | '.join(told)} | - | - | {row.cycles.note} |"
            continue
        waits = sum(wait.cycles for wait in row.cycles.waits)
        mark = "" if abs(row.miss) <= NEAR else " (miss)"
        yield f"| {' | '.join(told)} | {row.cycles.total:,} | {waits:,} | {row.miss:+.1%}{mark} |"
    misses = [abs(row.miss) for row in rows if row.miss is not None]
    near, nearer = (sum(miss <= bound for miss in misses) for bound in (NEAR, NEARER))
    yield ""
    yield f"Within {NEAR:.0%}: {near} of {len(rows)}; within {NEARER:.0%}: {nearer}."


def own_cycles(board: Board, model: str) -> int | None:
    """Our code for speed, with the weights where the board has them."""
    compiled = compile_model(FOLDER / f"{model}.onnx", board, CompileOptions(optimize="speed"))
    cycles = compiled.simulate([random_inputs(compiled)], cycles=True).cycles
    return cycles.total if cycles else None


def own_table(kits: Sequence[str]) -> Iterator[str]:
    """Lines of a table in Markdown: our estimate, the best that was submitted, our aim."""
    yield "| board | " + " | ".join(MODELS) + " |"
    yield "|---|" + "---|" * len(MODELS)
    for kit in kits:
        cells = []
        for model, mark, target in zip(MODELS.values(), MARKS[kit], TARGETS[kit], strict=True):
            Progress.print(f"{kit}: {model}")
            cycles = own_cycles(load_board(kit), model)
            own = "-" if cycles is None else f"{cycles / 1e6:.3g}"
            cells.append(f"**{own}** / {mark:g} / {target:g}")
        yield f"| {kit} | " + " | ".join(cells) + " |"


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
    """Prints the tables."""
    tables = {}
    wanted = [
        m for m in PROGRAMS if (not kit or m.kit in kit) and (not network or m.network in network)
    ]
    missing = [name for name in FOLDERS if sources is None or not (sources / name).is_dir()]
    if missing:
        Progress.print(f"left out: programs of others, since --sources has no {', '.join(missing)}")
    else:
        assert sources is not None
        rows = []
        for measured in wanted:
            Progress.print(f"{measured.kit}: {measured.network}, {measured.kernels}")
            rows.append(Row(measured, estimate(measured, sources.resolve(), folder.resolve())))
        tables["hardware"] = "\n".join(program_table(rows))
    if marks:
        tables["marks"] = "\n".join(own_table([name for name in MARKS if not kit or name in kit]))
    for table in tables.values():
        print(table, end="\n\n")
    if write_docs:
        text = write_docs.read_text()
        for name, table in tables.items():
            text = replace_between_markers(text, name, table)
        write_docs.write_text(text)


if __name__ == "__main__":
    typer.run(main)
