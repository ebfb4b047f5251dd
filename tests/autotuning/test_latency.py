# SPDX-License-Identifier: Apache-2.0
"""`--max-latency` and `--max-cycles`: fast enough as it ran, and no more than that costs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from command_line import mcugen
from onnx_models import Net

from mcugen.api.compilation import Compilation
from mcugen.autotuning.latency import meet_deadline
from mcugen.autotuning.simulated import SimulatedCostModel, SimulatedSearch
from mcugen.core.board import load_board
from mcugen.core.errors import DoesNotFitError, UsageError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.reporting.figures import Report
from mcugen.search.budget import use_of
from mcugen.search.metrics import AccuracyLevel
from mcugen.search.objective import Deadline, Objective
from mcugen.search.trace import SearchTrace

BOARD = "nrf52840"


def convolutions(*channels: int) -> onnx.ModelProto:
    """Of int8, from one number of channels to the next, each with kernels that trade flash for time."""
    net = Net()
    random = np.random.default_rng(0)
    x = net.dequantize(net.input("x", 1, channels[0], 8, 8, dtype=np.int8), 0.05)
    for before, after in pairwise(channels):
        weights = net.dequantize(net.const(random.integers(-127, 128, (after, before, 3, 3)), np.int8), 0.002)
        x = net.fake(net.op("Relu", net.op("Conv", x, weights, pads=[1, 1, 1, 1])), 0.05)
    net.output(net.quantize(net.op("GlobalAveragePool", x), 0.05, out="y"), dtype=np.int8)
    return net.model()


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    """Four of them."""
    return convolutions(8, 16, 24, 32, 8)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two, as each step of the search runs in the simulator."""
    file = tmp_path_factory.mktemp("latency") / "net.onnx"
    onnx.save(convolutions(8, 16, 8), file)
    return file


class Bench:
    """Compiles a model, and times it by its estimate of instructions, 1.3 cycles each, and some beside."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model, self.runs, self.trace = model, 0, SearchTrace()

    def make(self, options: CompileOptions) -> CompiledModel:
        return compile_model(self.model, BOARD, options)

    def run(self, compiled: CompiledModel) -> Report:
        self.runs += 1
        return replace(compiled.report, cycles_estimate=self.cycles(compiled))

    def cycles(self, compiled: CompiledModel) -> int:
        return int(1.3 * (compiled.program.instructions_estimate or 0)) + 5_000

    def within(self, cycles: int, **options: object) -> CompiledModel:
        asked = CompileOptions(max_cycles=cycles, **options)  # type: ignore[arg-type]
        deadline = Deadline.of(asked, load_board(BOARD))
        assert deadline is not None
        objective = replace(Objective.of(asked), deadline=deadline)
        self.trace = SearchTrace()
        search = SimulatedSearch(deadline.text, objective, self.make, SimulatedCostModel(self.run), self.trace)
        return meet_deadline(deadline, asked, search)


@pytest.fixture(scope="module")
def bench(model: onnx.ModelProto) -> Bench:
    return Bench(model)


def ends(bench: Bench) -> Iterator[int]:
    """Cycles of the smallest and of the fastest program."""
    return (bench.cycles(bench.make(CompileOptions(optimize=goal))) for goal in ("flash", "speed"))


def test_a_deadline_that_holds_changes_nothing(bench: Bench) -> None:
    small, _ = ends(bench)
    found, free = bench.within(small, optimize="flash"), bench.make(CompileOptions(optimize="flash"))
    assert found.report.deadline is not None and found.report.deadline.step == "as asked"
    assert found.program.weights_size == free.program.weights_size
    assert bench.cycles(found) == small


@pytest.mark.spread(2)
@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_what_is_fast_enough_takes_no_more_flash_than_that_needs(bench: Bench, share: float) -> None:
    small, fast = ends(bench)
    limit = int(fast + share * (small - fast))
    found, fastest = bench.within(limit, optimize="flash"), bench.make(CompileOptions(optimize="speed"))
    assert fast < bench.cycles(found) <= limit
    flash, most = (use_of(each.program, each.board, each.options).flash for each in (found, fastest))
    assert flash < most
    figures = found.report.deadline
    assert figures is not None
    assert (figures.max_cycles, figures.asked_cycles_estimate) == (limit, small)
    assert figures.cycles_estimate == bench.cycles(found)
    assert json.loads(json.dumps(found.report.to_json()))["deadline"]["step"] == figures.step
    (chosen,) = [entry for entry in bench.trace.entries if entry.is_chosen]
    assert chosen.candidate == figures.step and chosen.metrics.cycles == figures.cycles_estimate
    assert chosen.metrics.level is AccuracyLevel.SIMULATED and len(bench.trace.entries) > 2
    assert all(entry.verdict.startswith("Rejected: ") for entry in bench.trace.entries if entry is not chosen)


def test_what_is_impossible_is_refused_with_the_fastest(bench: Bench) -> None:
    _, fast = ends(bench)
    with pytest.raises(DoesNotFitError, match=rf"the least is {fast:,} cycles"):
        bench.within(fast - 1)
    assert bench.cycles(bench.within(fast, optimize="ram")) <= fast


@pytest.mark.qemu
def test_the_command_keeps_a_deadline_as_it_runs(path: Path, tmp_path: Path) -> None:
    """Of the board's clock, by cycles in the simulator; the report agrees, and refuses what takes longer."""
    small = Compilation(path, BOARD, CompileOptions(optimize="flash")).report()
    assert small.cycles_estimate is not None and small.milliseconds_estimate is not None
    limit = 0.9 * small.milliseconds_estimate
    options = (path, "--board", BOARD, "--optimize", "flash", "--max-latency", f"{limit:.3f}ms", "-q", "--json", "-")
    compiled = mcugen("compile", *options, "-o", tmp_path / "net")
    assert compiled.code == 0, compiled.err
    told = json.loads(compiled.out)["deadline"]
    assert told["asked_cycles_estimate"] == small.cycles_estimate > told["max_cycles"] >= told["cycles_estimate"]
    reported = json.loads(mcugen("report", *options).out)
    assert reported["cycles_estimate"] == told["cycles_estimate"]
    assert reported["deadline"] == told
    refused = mcugen("compile", path, "--board", BOARD, "--max-latency", "50us", "-o", tmp_path / "none")
    assert refused.code == 5
    assert "--max-latency 0.05ms" in refused.err and "the least is" in refused.err
    assert any(f"'{layer.name}'" in refused.err for layer in small.layers), refused.err
    assert "--integer-io" not in refused.err, "a smaller arena takes as long"
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--max-latency", "20"), "time with its unit"),
        (("--max-latency", "0ms"), "positive time"),
        (("--max-latency", "1e9s"), "time with its unit"),
        (("--max-cycles", "-1"), "positive number of cycles"),
        (("--max-cycles", "9" * 5000), "positive number of cycles"),
        (("--max-cycles", "10", "--max-latency", "1ms"), "one deadline"),
        (("--max-latency", "0.000000001us"), "at least a cycle"),
    ],
)
def test_a_deadline_is_read_or_refused(path: Path, tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    done = mcugen("compile", path, "--board", BOARD, "-o", tmp_path / "net", *options)
    assert done.code == 2
    assert said in " ".join(done.err.split())


def test_where_time_is_unknown_a_deadline_is_refused(path: Path) -> None:
    with pytest.raises(UsageError, match="needs a timing model"):
        _ = Compilation(path, "host", CompileOptions(max_cycles=1_000_000)).compiled
