# SPDX-License-Identifier: Apache-2.0
"""The dump of a graph: stable, complete, harmless."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx_models import Net, imported, optimized

from mcugen.hir.graph import Graph
from mcugen.hir.printer import print_graph
from mcugen.hir.types import TensorType
from mcugen.ops.movement import Pad
from mcugen.ops.pointwise import Unary

Golden = Callable[[str, str], None]


def quantized_net() -> Net:
    """int8 conv, relu, sum, flatten and dense; a float function of it."""
    net = Net()
    x = net.dequantize(net.input("x", 1, 2, 4, 4, dtype=np.int8), 0.5, -3)
    codes = net.const(np.arange(18 * 4).reshape(4, 2, 3, 3) % 7 - 3, np.int8, "conv.weight")
    scales, zeros = (
        net.const(np.arange(1, 5) / 8, name="conv.scale"),
        net.const([0] * 4, np.int8, "conv.zero"),
    )
    weights = net.op("DequantizeLinear", codes, scales, zeros, axis=0)
    conv = net.fake(net.op("Relu", net.op("Conv", x, weights)), 1.0, -128)
    added = net.fake(net.op("Add", conv, conv), 2.0, -128)
    flat = net.fake(net.op("Flatten", added), 2.0, -128)
    matrix = net.dequantize(net.const(np.arange(48).reshape(16, 3) % 5 - 2, np.int8, "fc.weight"), 0.25)
    net.output(net.op("Softsign", net.fake(net.op("MatMul", flat, matrix), 8.0), out="scores"))
    return net


def test_golden_dump_after_the_pipeline(golden: Golden):
    golden("quantized.hir", print_graph(optimized(quantized_net().model())))


def test_golden_dump_after_import(golden: Golden):
    golden("quantized_imported.hir", print_graph(imported(quantized_net().model())))


def test_absent_inputs_scalars_and_constants():
    graph = Graph("small")
    x = graph.add_input("x", TensorType((2, 2)))
    scalar = graph.constant("k", np.array([1.5], np.float32))
    row = graph.constant("row", np.ones((1, 2), np.float32))
    node = graph.add(Unary("Exp"), [x], ["first", "second"], names=["y"])
    node.inputs = (*node.inputs, None, scalar, row)
    graph.add_output("out", node.output)
    assert print_graph(graph).splitlines() == [
        "graph small {",
        "  input %x : 2x2 float32",
        "  const %k : 1 float32 = [1.5]",
        "  const %row : 1x2 float32 = [1.0, 1.0]",
        "  %y = exp(%x, -, %k, %row) : 2x2 float32  # first, second",
        "  output out = %y",
        "}",
    ]


def test_attributes_are_shown():
    graph = Graph("small")
    node = graph.add(Pad((1,), (2,), 0.5), [graph.add_input("x", TensorType((3,)))], names=["y"])
    assert "%y = pad(%x) {before=(1,), after=(2,), value=0.5} : 6 float32" in print_graph(graph)
    assert node.origin == ()


def test_strange_names_are_quoted_on_one_line():
    graph = Graph("a\nb")
    graph.add_input('x" }\n', TensorType((1,)))
    graph.add(Unary("Exp"), [graph.inputs[0]], ["o\n#"], names=["ü"])
    graph.add_output("", graph.nodes[0].output)
    text = print_graph(graph)
    assert len(text.splitlines()) == 5
    assert text.isascii()
