# SPDX-License-Identifier: Apache-2.0
"""The trace of the program search: complete, without effect on the result, and the plan that each program has."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx_models import Net
from shared_models import MODELS

from mcugen import CompileOptions, compile_model
from mcugen.core.errors import DoesNotFitError
from mcugen.driver.compilation_trace import CompilationTrace
from mcugen.driver.compiled import CompiledModel
from mcugen.search.budget import use_of
from mcugen.search.objective import TOLERANCES, Budget, Objective, Use
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
    assert objective.is_clearly_faster(96.0, 100.0) and not objective.is_clearly_faster(97.0, 100.0)


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
