# SPDX-License-Identifier: Apache-2.0
"""LSTMs by CMSIS-NN: to the last bit what its kernel's reference says, and near what our own kernels give."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from cmsis_checks import check_library
from onnx_models import Net, optimized
from test_quantized_recurrent import made, sqnr, written
from test_recurrent import Layer, recurrence

from mcugen.core.options import CMSIS_NN, CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.hir.interpreter import interpret, run
from mcugen.hir.types import DType
from mcugen.kernels.cmsis_nn.lstm import evaluate
from mcugen.quantization.scheme import Scheme

BY_LAYER, BY_ROW = Scheme(DType.INT8, per_channel=False), Scheme(DType.INT8)


def integer(layer: Layer, model: onnx.ModelProto, scheme: Scheme = BY_LAYER) -> onnx.ModelProto:
    found = written(model, layer.feeds(0), scheme)
    assert found is not None
    return found


@pytest.mark.qemu
@pytest.mark.parametrize("layout", [0, 1], ids=["steps first", "batches first"])
def test_whole_layers(layout: int) -> None:
    """Y, the last hidden states and the last cells, of sizes that fill no vector."""
    layer, model = made(Layer("LSTM", {}), layout=layout, steps=5, batch=3, depth=19, hidden=7)
    check_library(integer(layer, model), {"cmsis_lstm_s8": 1})


def test_one_sequence_and_few_results() -> None:
    layer, _ = made(Layer("LSTM", {}, results=("Y_h",)), steps=6, batch=1, bias=False)
    net = Net(21)
    layer.add_to(net, 0)
    check_library(integer(layer, net.model()), {"cmsis_lstm_s8": 1}, boards=())


def long_layer(seed: int) -> tuple[Layer, onnx.ModelProto]:
    """50 steps, in integers."""
    random, hidden, depth = np.random.default_rng(seed), 16, 8
    shapes = {"X": (50, 1, depth), "W": (1, 4 * hidden, depth), "R": (1, 4 * hidden, hidden), "B": (1, 8 * hidden)}
    tensors = {k: (random.standard_normal(s) * (1 if k == "X" else 0.25)).astype(np.float32) for k, s in shapes.items()}
    layer, net = Layer("LSTM", tensors, results=("Y",)), Net(21)
    layer.add_to(net, 0)
    return layer, integer(layer, net.model())


@pytest.mark.parametrize("seed", range(3))
def test_a_long_layer_stays_near_ours(seed: int) -> None:
    """Its states feed themselves: what differs by a rounding must not grow."""
    layer, model = long_layer(seed)
    compiled = compile_model(model, "host", CompileOptions(family=CMSIS_NN))
    assert "cmsis_lstm_s8" in {i.kernel for i in compiled.program.instrs}
    feeds, real = layer.feeds(0), {"Y0": recurrence(layer)["Y"]}
    ours, theirs = interpret(compiled.graph, feeds), compiled.interpret(feeds)
    code = np.diff(np.unique(ours["Y0"])).min()
    assert 0 < np.abs(ours["Y0"] - theirs["Y0"]).max() <= 1.01 * code
    assert abs(sqnr(real, ours) - sqnr(real, theirs)) < 0.5


def test_each_step_is_within_one_code_of_ours() -> None:
    """From our states."""
    layer, model = long_layer(0)
    graph, seen = optimized(model), {}
    interpret(graph, layer.feeds(0), lambda node, arrays: seen.update({node: arrays}))
    (node,) = (n for n in graph.nodes if n.op.bodies)
    h, c, x = seen[node]
    node.op = replace(node.op, steps=1)
    for step in range(len(x)):
        ours = run(node.op.bodies[0], [np.asarray(step), h, c, x[step]])
        theirs = evaluate(node, [h, c, x[step : step + 1]])
        assert np.abs(ours[0].astype(int) - theirs[0]).max() <= 1
        assert np.abs(ours[1].astype(int) - theirs[1]).max() <= 5
        h, c = ours[:2]


@pytest.mark.parametrize("other", ["by row", "int16", "backwards", "first states", "other cell", "large sums"])
def test_what_the_library_cannot_do_stays_ours(other: str) -> None:
    kind = "GRU" if other == "other cell" else "LSTM"
    first = "fed" if other == "first states" else ""
    layer, model = made(Layer(kind, {}), "reverse" if other == "backwards" else "forward", first=first)
    if other == "large sums":
        grown = {k: v * 40 if k == "X" else v for k, v in layer.tensors.items()}
        layer = Layer("LSTM", grown)
    scheme = {"by row": BY_ROW, "int16": Scheme(DType.INT16, per_channel=False)}.get(other, BY_LAYER)
    compiled = compile_model(integer(layer, model, scheme), "host", CompileOptions(family=CMSIS_NN))
    kernels = {i.kernel for i in compiled.program.instrs}
    assert "cmsis_lstm_s8" not in kernels
