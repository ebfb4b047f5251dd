# SPDX-License-Identifier: Apache-2.0
"""The trace of the program search: complete, without effect on the result, and the plan that each program has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_models import Net
from shared_models import MODELS

from mcugen.core.errors import DoesNotFitError
from mcugen.core.options import CompileOptions
from mcugen.driver.compilation_trace import CompilationTrace
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.search.budget import use_of
from mcugen.search.cost_model import ProgramCostModel
from mcugen.search.metrics import AccuracyLevel, Metrics, Use
from mcugen.search.objective import TOLERANCES, Budget, Objective
from mcugen.search.plan import BuiltProgram
from mcugen.search.trace import SearchTrace, TraceEntry, excess_of

DS_CNN = MODELS / "ds_cnn_kws_int8_qdq.onnx"
RESNET8 = MODELS / "resnet8_cifar10_int8_qdq.onnx"


def traced(model: object, board: str, **options: Any) -> tuple[CompiledModel, SearchTrace]:
    trace = CompilationTrace(search=SearchTrace())
    compiled = compile_model(model, board, CompileOptions("net", **options), trace)  # type: ignore[arg-type]
    assert trace.search is not None
    return compiled, trace.search


def chosen_of(trace: SearchTrace) -> TraceEntry:
    (chosen,) = [entry for entry in trace.entries if entry.is_chosen]
    return chosen


def attention() -> onnx.ModelProto:
    """Scores of four heads, larger than everything else."""
    net = Net()
    q, k, v = (net.input(name, 1, 4, 48, 8) for name in "qkv")
    scores = net.op("Softmax", net.op("MatMul", q, net.op("Transpose", k, perm=[0, 1, 3, 2])), axis=-1)
    net.output(net.op("MatMul", scores, v))
    return net.model()


def coarse_weights() -> onnx.ModelProto:
    """A convolution whose weights have few different values."""
    net = Net(21)
    x = net.fake(net.input("x", 1, 32, 12, 12), 0.05, 3)
    values = np.random.default_rng(0).normal(0, 4, (32, 32, 3, 3)).round().astype(np.int8)
    weights = net.dequantize(net.const(values, np.int8), 0.01)
    net.output(net.fake(net.op("Conv", x, weights, pads=[1, 1, 1, 1]), 0.3, -5))
    return net.model()


def test_each_tolerance_is_documented() -> None:
    rows = list(TOLERANCES.rows())
    assert len({row.name for row in rows}) == len(rows) > 20
    for row in rows:
        assert row.unit and row.meaning.endswith(".") and row.evidence, row.name
        assert row.value == getattr(TOLERANCES, row.name)


def test_an_objective_accepts_only_clear_gains() -> None:
    objective = Objective.of(CompileOptions(optimize="speed", max_ram=20_000))
    assert (objective.goal, objective.budget) == ("speed", Budget(ram=20_000))
    fast, close, slow = (Metrics(time, None, 0.0, Use(0, 0)) for time in (96.0, 97.0, 100.0))
    assert objective.is_clearly_faster(fast, slow) and not objective.is_clearly_faster(close, slow)


def test_candidates_are_compared_by_excess_then_by_cycles_with_stalls() -> None:
    """Instructions alone would choose the first: its core stalls, or waits for flash, more than it saves."""
    objective = Objective.of(CompileOptions(optimize="speed", max_ram=100))
    stalling = Metrics(80.0, 130.0, 0.0, Use(100, 0))
    waiting = Metrics(80.0, None, 50.0, Use(100, 0))
    steady = Metrics(100.0, 120.0, 0.0, Use(100, 0))
    large = Metrics(10.0, 20.0, 0.0, Use(101, 0))
    assert min((stalling, waiting, steady, large), key=objective.order) is steady


@pytest.mark.shared
def test_the_fastest_candidate_that_fits_is_chosen_among_all_that_were_tried() -> None:
    """By one measure of time: here the fastest one has more instructions than others that fit."""
    trace = traced(RESNET8, "nrf52840", optimize="speed", max_ram=40_000)[1]
    chosen = chosen_of(trace)
    fitting = [entry for entry in trace.entries if not excess_of(entry.metrics.use, Budget(ram=40_000))]
    assert len(fitting) > 8 and chosen.transformation == "line-buffer fusion"
    assert chosen.metrics.time == min(entry.metrics.time for entry in fitting)
    assert chosen.metrics.instructions > min(entry.metrics.instructions for entry in fitting)


def test_metrics_have_levels_of_accuracy_and_are_measured_once() -> None:
    compiled, built_programs = compile_model(DS_CNN, "nrf52840", CompileOptions("net")), list[object]()

    def measure_code(program: object) -> int:
        built_programs.append(program)
        return 1000

    costs = ProgramCostModel(compiled.board, compiled.options, measure_code)
    program = costs.with_copies(BuiltProgram(compiled.program))
    estimate, placed = costs.evaluate(program), costs.evaluate(program, AccuracyLevel.PLACED)
    assert estimate.level is AccuracyLevel.ESTIMATED and estimate.code_bytes is None and not built_programs
    assert placed.instructions == estimate.instructions and placed.cycles and estimate.cycles
    measured = [costs.evaluate(BuiltProgram(replace(compiled.program), copies=program.copies), AccuracyLevel.BUILT)] * 2
    measured.append(costs.evaluate(program, AccuracyLevel.BUILT))
    assert len(built_programs) == 1
    for metrics in measured:
        assert metrics.level is AccuracyLevel.BUILT and metrics.code_bytes == 1000
        assert metrics.flash == compiled.program.weights_size + 1000 < estimate.flash
        assert costs.with_errors(program, metrics).errors.flash == 0.0
    bound = costs.with_errors(program, estimate).errors.flash
    assert bound is not None and 0 < bound < 1


CASES = {
    "budget": (DS_CNN, "nrf52840", {"max_ram": 6000}),
    "goal": (RESNET8, "rp2040", {"optimize": "speed"}),
    "slowdown": (RESNET8, "nrf52840", {}),
    "cores": (DS_CNN, "rp2040", {"cores": 2}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_trace_has_no_effect_and_is_complete(case: str) -> None:
    model, board, options = CASES[case]
    compiled, trace = traced(model, board, **options)
    plain = compile_model(model, board, CompileOptions("net", **options))  # type: ignore[arg-type]
    assert compiled.bundle.files == plain.bundle.files
    assert [entry.number for entry in trace.entries] == [*range(1, len(trace.entries) + 1)]
    chosen = chosen_of(trace)
    assert chosen.verdict.startswith("Chosen: ") and chosen.verdict.endswith(".")
    for entry in trace.entries:
        assert entry is chosen or entry.verdict.startswith("Rejected: "), entry
    assert chosen.metrics.ram == use_of(compiled.program, compiled.board, compiled.options).ram
    kernels = {kernel for _, kernel in chosen.plan.kernels}
    assert kernels <= {instr.kernel for instr in compiled.program.instrs}
    assert traced(model, board, **options)[1].to_json() == trace.to_json()


def test_a_trace_tells_why_nothing_fits() -> None:
    trace = CompilationTrace(search=SearchTrace())
    with pytest.raises(DoesNotFitError):
        compile_model(DS_CNN, "nrf52840", CompileOptions(max_ram=1000), trace)
    assert trace.search is not None and len(trace.search.entries) > 4
    assert not any(entry.is_chosen for entry in trace.search.entries)
    assert all(entry.verdict.startswith("Rejected: ") for entry in trace.search.entries)
    assert any("bytes of RAM exceed the limit of 1,000" in entry.verdict for entry in trace.search.entries)


def test_plans_describe_programs() -> None:
    by_rows = chosen_of(traced(DS_CNN, "nrf52840", optimize="ram")[1]).plan
    assert by_rows.row_groups and all(len(group) > 1 for group in by_rows.row_groups)
    assert "line-buffered groups: 1" in by_rows.decisions()
    shared = chosen_of(traced(DS_CNN, "rp2040", cores=2)[1]).plan
    assert shared.shared_layers and not shared.is_pipelined
    copied = chosen_of(traced(RESNET8, "rp2040", optimize="speed")[1]).plan
    assert dict(copied.copied_weights).keys() == {"sram"}
    compressed = chosen_of(traced(coarse_weights(), "nrf52840", optimize="flash")[1]).plan
    assert compressed.goal == "flash" and compressed.compressed_weights
    heads = chosen_of(traced(attention(), "nrf52840", optimize="ram")[1]).plan
    assert len(heads.changes.split_heads) == 1 and "heads split: 1" in heads.decisions()


def test_tiles_of_channels_are_recorded() -> None:
    entries = traced(RESNET8, "rp2040", optimize="speed")[1].entries
    (tiled,) = [entry for entry in entries if entry.transformation == "output-channel tiling"]
    assert tiled.plan.changes.channel_tiles and "tiles do not improve enough" in tiled.verdict


def test_the_limit_on_the_slowdown_is_told() -> None:
    _, trace = traced(RESNET8, "nrf52840")
    searches = list(dict.fromkeys(entry.search for entry in trace.entries))
    assert searches[:2] == ["balanced", "speed, to limit the slowdown"]
    assert "1.25 times the cycles of `speed`" in chosen_of(trace).verdict


def test_an_excess_names_the_memories() -> None:
    assert excess_of(Use(100, 50), Budget(ram=100, flash=50)) == ""
    assert excess_of(Use(101, 50), Budget(ram=100)) == "101 bytes of RAM exceed the limit of 100"
    lacking = excess_of(Use(3000, 9000, 1000, 2000), Budget())
    assert lacking == "3,000 bytes of RAM exceed the limit of 2,000 and 9,000 bytes of flash exceed the limit of 7,000"
