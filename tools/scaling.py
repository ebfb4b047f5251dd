# SPDX-License-Identifier: Apache-2.0
"""How exploring gets faster with workers of a Dask cluster: one and two here, more on paper (docs/how-to/cluster.md).

What counts is seconds of CPU, which do not depend on what else the computer does: with several workers, those of the
busiest one. On paper, each worker takes the next task as it is free; what all need first (quantizing) is done before.
"""

from __future__ import annotations

import heapq
import os
import resource
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from markers import rewrite_passage

from mcugen.core.cache import Store
from mcugen.core.options import CompileOptions
from mcugen.distributed.sharing import Workers
from mcugen.driver.tasks import Judging, Quantizing
from mcugen.explore.measure import measure_combination
from mcugen.explore.point import Point
from mcugen.explore.prepare import ExplorationSubject, prepare_model
from mcugen.explore.search import combinations

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
DOCUMENT = ROOT / "docs" / "how-to" / "cluster.md"
BOARDS = (
    *("stm32f446", "stm32h743", "stm32u575", "stm32g0b1", "rp2040", "rp2350"),
    *("nrf52840", "nrf54l15", "rt1060", "esp32c3", "samd21", "alif_e7"),
)
ON_PAPER = (4, 8, 16, 32)


@dataclass(frozen=True)
class Spent:
    """CPU seconds of a task and of its process so far, with the process id."""

    task: float
    process: float
    pid: int


def spent() -> float:
    """Return the CPU seconds of this process and of its finished children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def timed(asked: ExplorationSubject, store: Store, point: Point) -> Spent:
    """Measure a point as a worker does; return its CPU seconds."""
    before = spent()
    measure_combination(asked, point, False, store)
    return Spent(spent() - before, spent(), os.getpid())


def busiest(found: Sequence[Spent]) -> float:
    """Return the seconds of the busiest process, imports included."""
    return max(totals(found).values())


def totals(found: Sequence[Spent]) -> Mapping[int, float]:
    """Return the seconds of each process."""
    return {pid: max(each.process for each in found if each.pid == pid) for pid in {each.pid for each in found}}


def on_paper(tasks: Sequence[float], start: float, workers: int) -> float:
    """Return the seconds until the last task is done, in order; a worker first needs `start` seconds."""
    free = [start] * workers
    for seconds in tasks:
        heapq.heapreplace(free, free[0] + seconds)
    return max(free)


def rows(one: Sequence[Spent], two: Sequence[Spent]) -> list[list[str]]:
    """Return rows by number of workers: seconds of the busiest worker, and the speed-up over one worker."""
    alone, tasks = busiest(one), [each.task for each in one]
    start = alone - sum(tasks)
    found = [("1", alone), ("2", busiest(two))]
    found += [(f"{count}, on paper", on_paper(tasks, start, count)) for count in (2, *ON_PAPER)]
    return [[what, f"{seconds:.1f}", f"{alone / seconds:.2f}"] for what, seconds in found]


def main(
    write_docs: Annotated[bool, typer.Option("--write-docs", help="the table, in docs/how-to/cluster.md")] = False,
) -> None:
    """Estimate the keyword model in int8 on 12 boards for 3 goals (36 tasks), with one worker and with two."""
    data = SHARED / "data" / "kws_calib.npz"
    quantizing = {"int8": Quantizing("int8", calibration=data)}
    asked = ExplorationSubject(SHARED / "models" / "ds_cnn_kws_f32.onnx", CompileOptions(), quantizing, Judging())
    points = combinations(BOARDS, ["int8"], ["balanced", "speed", "ram"])
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        prepare_model(asked, points[0], store)
        one, two = (
            [found for _, found in Workers(count, "local").run_tasks(partial(timed, asked, store), points)]
            for count in (1, 2)
        )
    table = [["workers", "seconds of the busiest", "times as fast"], ["---", "---:", "---:"], *rows(one, two)]
    text = "\n".join(f"| {' | '.join(cells)} |" for cells in table)
    print(text)
    if write_docs:
        rewrite_passage(DOCUMENT, "scaling", text)


if __name__ == "__main__":
    import scaling  # workers find functions by their module's name

    typer.run(scaling.main)
