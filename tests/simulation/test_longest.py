# SPDX-License-Identifier: Apache-2.0
"""The most instructions that any input takes, computed from the code: no run takes more, whatever its input."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
import pytest
from model_variants import branching, floats, quantized
from onnx_models import Net
from shared_models import roomy
from test_flipped_constants import forest

from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.measurement.extremes import extreme_inputs
from mcugen.reporting.timing import max_loop_rounds
from mcugen.simulation.longest import Paths, paths

pytestmark = pytest.mark.qemu

Sample = Mapping[str, np.ndarray]


def nonzero() -> onnx.ModelProto:
    net = Net()
    net.output(net.op("NonZero", net.input("x", 4, 9)), dtype=np.int64, shape=[2, "n"])
    return net.model()


def compress() -> onnx.ModelProto:
    net = Net()
    kept = net.op("Greater", net.input("x", 12), net.const(0.5))
    net.output(net.op("Compress", net.input("v", 12, 7), kept, axis=0), shape=["n", 7])
    return net.model()


def suppressed() -> onnx.ModelProto:
    net = Net()
    limits = net.const([6], np.int64), net.const([0.4]), net.const([0.1])
    net.output(net.op("NonMaxSuppression", net.input("b", 1, 14, 4), net.input("s", 1, 2, 14), *limits), dtype=np.int64)
    return net.model()


def tables() -> onnx.ModelProto:
    """Trees of one comparison."""
    model = forest(np.random.default_rng(1), 4)
    (modes,) = (a for a in model.graph.node[0].attribute if a.name == "nodes_modes")
    modes.strings[:] = [b"LEAF" if mode == b"LEAF" else b"BRANCH_LEQ" for mode in modes.strings]
    return model


def straight() -> onnx.ModelProto:
    """Integers, of which no value decides on anything."""
    net = Net()
    x = net.input("x", 3, 8, dtype=np.int32)
    net.output(net.op("Mul", net.op("Add", x, x), net.const(np.arange(8), np.int32)), dtype=np.int32)
    return net.model()


MODELS: Mapping[str, tuple[Callable[[], onnx.ModelProto], CompileOptions]] = {
    "trees as code": (lambda: forest(np.random.default_rng(0), 1), CompileOptions("net", optimize="speed")),
    "trees as tables": (tables, CompileOptions("net", optimize="flash")),
    "NonZero": (nonzero, CompileOptions("net")),
    "Compress": (compress, CompileOptions("net")),
    "boxes": (suppressed, CompileOptions("net")),
    "codes": (lambda: quantized().model(), CompileOptions("net", integer_io=True)),
    "floats": (lambda: floats().model(), CompileOptions("net")),
}
BOARDS = ("nrf52840", "rp2040", "esp32c3", "corstone300")
LOOPS_OF_LIBRARIES = {("floats", "rp2040"), ("floats", "esp32c3"), ("boxes", "rp2040")}
QUICK = {("trees as code", "nrf52840"), ("codes", "rp2040")}
CASES = [
    pytest.param(kind, board, marks=() if (kind, board) in QUICK else pytest.mark.slow)
    for kind in MODELS
    for board in BOARDS
    if (kind, board) not in LOOPS_OF_LIBRARIES
]


def samples_of(compiled: CompiledModel) -> list[Sample]:
    kinds = zip(*(extreme_inputs(e) for e in compiled.program.inputs), strict=True)
    return [{e.name: x for e, x in zip(compiled.program.inputs, kind, strict=True)} for kind in kinds]


def changed(sample: Sample, draw: np.random.Generator) -> Sample:
    """Some elements take the places of others, or are drawn anew."""
    found = {}
    for name, array in sample.items():
        other = array.copy().reshape(-1)
        at = draw.random(other.size) < 0.3
        other[at] = draw.permutation(other)[at] if draw.random() < 0.5 else np.asarray(draw.uniform(-4, 4, at.sum()))
        found[name] = other.reshape(array.shape)
    return found


def found(compiled: CompiledModel, samples: list[Sample]) -> Paths:
    rounds, why = max_loop_rounds(compiled.program)
    return paths(compiled.bundle, compiled.board, samples, None if why else rounds)


@pytest.mark.parametrize(("kind", "board"), CASES)
def test_no_run_exceeds_the_bound(kind: str, board: str):
    """Of inputs that the bound was found by, of random ones, and of those that are bred to take more."""
    make, options = MODELS[kind]
    compiled = compile_model(make(), roomy(board), options)
    samples, draw = samples_of(compiled), np.random.default_rng(0)
    known = found(compiled, samples)
    bound = known.longest.instructions
    assert bound is not None, known.longest.reason
    worst, most = samples[int(np.argmax(known.counts))], max(known.counts)
    for _ in range(1 if (kind, board) in QUICK else 4):
        bred = [changed(worst, draw) for _ in range(3)]
        counts = found(compiled, bred).counts
        if max(counts) > most:
            worst, most = bred[int(np.argmax(counts))], max(counts)
    assert most <= bound


@pytest.mark.parametrize("board", [pytest.param(b, marks=() if b == "nrf52840" else pytest.mark.slow) for b in BOARDS])
def test_where_no_data_decides_the_bound_is_the_count(board: str):
    compiled = compile_model(straight(), board, CompileOptions("net"))
    known = found(compiled, samples_of(compiled))
    assert {known.longest.instructions} == set(known.counts)


@pytest.mark.parametrize("kind", MODELS)
def test_the_most_iterations_of_every_kernel_are_known(kind: str):
    make, options = MODELS[kind]
    rounds, reason = max_loop_rounds(compile_model(make(), "host", options).program)
    assert rounds >= 0 and reason == ""


def test_what_loops_by_data_has_no_bound():
    def reason(model: onnx.ModelProto) -> str:
        return max_loop_rounds(compile_model(model, "host", CompileOptions("net")).program)[1]

    net = Net()
    net.output(net.ops("TopK", net.input("x", 9), net.const([3], np.int64), outs=["v", "i"])[0])
    assert "as far as sorting needs" in reason(net.model())
    assert "one of two branches runs" in reason(branching().model())


@pytest.mark.slow
def test_a_loop_that_goes_by_data_is_seen():
    """If a kernel did not declare it, runs tell."""
    compiled = compile_model(forest(np.random.default_rng(1), 4), roomy("nrf52840"), CompileOptions(optimize="flash"))
    told = paths(compiled.bundle, compiled.board, samples_of(compiled), 0).longest
    assert told.instructions is None
    assert "goes by data" in told.reason


@pytest.mark.slow
def test_loops_of_libraries_are_named():
    compiled = compile_model(floats().model(), roomy("rp2040"), CompileOptions("net"))
    assert "of a library has a loop" in found(compiled, samples_of(compiled)[:1]).longest.reason
