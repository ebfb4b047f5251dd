# SPDX-License-Identifier: Apache-2.0
"""Compares mcugen with other compilers: the same models, compiler flags and simulated CPUs for each.

float32 models run side by side with those of emx-onnx-cgen, a peer that also writes C, built and measured by
the same harness. int8 models are set against recorded figures of TensorFlow Lite Micro with CMSIS-NN and of the
kernel study.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from benchmark.measure import Job, compile_seconds, run_jobs
from benchmark.recorded import Study, Tflm
from benchmark.results import Results, tool_versions
from benchmark.subjects import FLOAT_MODELS, INT8_MODELS, MODELS, ROOT, chosen
from benchmark.tables import to_markdown, to_rich
from markers import rewrite_passage
from rich.console import Console

from mcugen.core.errors import McugenError, UsageError

FLOAT_BOARDS = "nrf52840,rt1060,corstone300"
INT8_BOARDS = "rp2040,stm32f103,nrf52840,rt1060,nrf5340,corstone300"
GOALS = "balanced,speed,flash"


def main(
    models: Annotated[str, typer.Option(help="parts of model names, by commas; all if empty")] = "",
    boards: Annotated[str, typer.Option(help="board names, by commas; one a CPU if empty")] = "",
    goals: Annotated[str, typer.Option(help="of --optimize, for int8 models, by commas; float32: the first")] = GOALS,
    float_: Annotated[bool, typer.Option("--float", help="float32 models only")] = False,
    int8: Annotated[bool, typer.Option("--int8", help="int8 models only")] = False,
    opt: Annotated[
        str, typer.Option(help="flags for float32 code of both, behind the board's")
    ] = "-O3 -ffp-contract=fast",
    int8_opt: Annotated[str, typer.Option(help="flags for int8 code, TFLM's being recorded")] = "-O2",
    jobs: Annotated[int, typer.Option(min=1, help="how many models are measured at a time")] = os.cpu_count() or 1,
    json_: Annotated[Path, typer.Option("--json", help="results for programs")] = ROOT / "build/bench.json",
    write_docs: Annotated[Path | None, typer.Option(help="document whose tables to rewrite")] = None,
) -> None:
    """Compare mcugen with emx-onnx-cgen (float32), and with recorded figures of TFLM and the kernel study (int8)."""
    console = _console()
    both = float_ == int8
    float_models = chosen(FLOAT_MODELS, models) if both or float_ else []
    int8_models = chosen(INT8_MODELS, models) if both or int8 else []
    if not float_models and not int8_models:
        raise UsageError("--models must name a model", repr(models), "parts of names, such as resnet8,kws")

    wanted = tuple(_split(goals))
    float_jobs = _jobs(float_models, boards or FLOAT_BOARDS, wanted[:1], opt, beside_emx=True)
    int8_jobs = _jobs(int8_models, boards or INT8_BOARDS, wanted, int8_opt, beside_emx=False)
    with console.status("measuring") as status:
        results = Results(
            command=shlex.join(["tools/bench.py", *sys.argv[1:]]),
            tools=tool_versions(),
            flags=opt,
            int8_flags=int8_opt,
            float_rows=run_jobs(float_jobs, jobs, status.update),
            int8_rows=run_jobs(int8_jobs, jobs, status.update),
            seconds={path.stem: compile_seconds(path) for path in float_models},
            tflm=Tflm.load(),
            study=Study.load(),
        )
    _publish(results, console, json_, write_docs)


def _console() -> Console:
    """Return a console that is wide enough for the tables if the output is a log file."""
    console = Console(width=None if sys.stdout.isatty() else 260)
    if not MODELS.is_dir():
        console.print(f"{MODELS} is absent: only the project's own models are compared.")
    return console


def _publish(results: Results, console: Console, json_: Path, write_docs: Path | None) -> None:
    for table in results.tables():
        console.print(to_rich(table))
    console.print(results.how(), markup=False, highlight=False)
    json_.parent.mkdir(parents=True, exist_ok=True)
    json_.write_text(json.dumps(results.to_json(), indent=1) + "\n")
    if write_docs:
        content = "\n".join([results.how(), *map(to_markdown, results.tables())])
        rewrite_passage(write_docs, "bench", content)


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _jobs(models: Sequence[Path], boards: str, goals: tuple[str, ...], flags: str, *, beside_emx: bool) -> list[Job]:
    return [Job(path, board, goals, flags, beside_emx) for path in models for board in _split(boards)]


if __name__ == "__main__":
    try:
        typer.run(main)
    except McugenError as problem:
        sys.exit(f"error: {problem}")
