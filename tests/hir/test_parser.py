# SPDX-License-Identifier: Apache-2.0
"""What the printer writes is read again: the same text, the same numbers; what cannot be read names its line."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx_models import imported, optimized
from random_graphs import random_model
from shared_models import MODELS
from test_bodies import branching, summing
from test_printer import quantized_net

from mcugen.core.errors import UsageError
from mcugen.hir.graph import ComputedSize, Graph
from mcugen.hir.interpreter import interpret
from mcugen.hir.parser import parse_graph
from mcugen.hir.printer import print_graph
from mcugen.hir.types import DType, Layout, QuantParams, Rounding, TensorType
from mcugen.hir.verify import verify_graph
from mcugen.hir.words import MnemonicTable
from mcugen.ops.pointwise import Binary, Unary


def assert_read_again(graph: Graph) -> Graph:
    text = print_graph(graph)
    again = parse_graph(text)
    verify_graph(again)
    assert print_graph(again) == text
    return again


@pytest.mark.parametrize("seed", range(12))
def test_random_models(seed: int):
    model = random_model(seed).model
    assert_read_again(imported(model))
    assert_read_again(optimized(model))


@pytest.mark.shared
@pytest.mark.parametrize("name", ["resnet8_cifar10_int8_qdq", "pt_bilstm_dynamo", "streaming_wakeword_f32"])
def test_shared_models(name: str):
    model = onnx.load(MODELS / f"{name}.onnx")
    assert_read_again(imported(model))
    assert_read_again(optimized(model))


def test_small_graphs_compute_the_same():
    for graph in (summing(), branching()):
        again = assert_read_again(graph)
        random = np.random.default_rng(0)
        given = {v.name: random.standard_normal(v.type.shape).astype(v.type.dtype.numpy) for v in graph.inputs}
        for name, array in interpret(graph, given).items():
            np.testing.assert_array_equal(interpret(again, given)[name], array)


def test_every_type_and_number():
    graph = Graph('a "b"\n')
    x = graph.add_input("x y", TensorType((2,), DType.INT8, QuantParams((0.1, float(np.float32(0.1))), 0, 0)))
    y = graph.add_input("y", TensorType((), DType.FLOAT32, layout=Layout.NONE))
    graph.add_input("z", TensorType((1, 2, 3, 4), DType.INT4, QuantParams((0.5,), -8), Layout.CHANNELS_LAST))
    numbers = [np.inf, -np.inf, np.nan, 1e-45, 0.1, -0.0]
    constants = [graph.constant("f", np.array(numbers, np.float32)), graph.constant("d", np.array(0.1))]
    constants += [graph.constant("b", np.array([True, False])), graph.constant("i", np.array([-(2**63)], np.int64))]
    constants.append(graph.constant("h", np.array([0.1], np.float16)))
    for number, value in enumerate([x, y, *constants]):
        graph.add_output(f"out {number}", value)
    graph.shapes_vary, graph.assumed = True, {"N": 3}
    graph.sizes = {"N": ComputedSize(7, y)}
    again = parse_graph(print_graph(graph))
    assert print_graph(again) == print_graph(graph)
    for old, new in zip(graph.outputs, again.outputs, strict=True):
        assert old.type == new.type
        assert old.data is None or old.data.tobytes() == new.data.tobytes()
    assert (again.shapes_vary, again.assumed) == (True, {"N": 3})
    assert again.sizes == {"N": ComputedSize(7, again.outputs[1])}


def test_large_constants_are_told_by_a_digest_until_they_change():
    graph = Graph("g")
    x = graph.add_input("x", TensorType((5, 5)))
    c = graph.constant("c", np.arange(25, dtype=np.float32).reshape(5, 5))
    graph.add_output("y", graph.add(Binary("Add"), [x, c], names=["y"]).output)
    again = assert_read_again(graph)
    (node,) = again.nodes
    line = print_graph(again).splitlines()[2]
    assert line.startswith("  const %c : 5x5 float32 = #")
    other = again.constant("d", node.input(1).data * 2)
    node.set_input(1, other)
    assert line.partition("#")[2] not in print_graph(again)
    written = "graph g {\n  const %c : 5x5 int8 = ...\n  output c = %c\n}\n"
    assert print_graph(parse_graph(written)) == written


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("%y = expp(%x) : 2 float32", "line 3 of a graph's text must have an operator that exists: not expp"),
        ("%y = exp(%z) : 2 float32", "line 3 .* a value that is known: not %z"),
        ("%x = exp(%x) : 2 float32", "line 3 .* names of their own"),
        ("%y = exp(%x) {low=3} : 2 float32", "line 3 .* attributes of exp"),
        ("%y = exp(%x) : 2 real", "line 3 .* an element type: not real"),
        ("%y = branch(%x) {then=@0, otherwise=@1} : 2 float32", "line 3 .* 1 bodies"),
        ("const %c : 2 float32 = [1.0]", "line 3 .* 2 numbers"),
        ("%y = conv(%x) {window=Path(1)} : 2 float32", "line 3 .* nothing is called Path"),
    ],
)
def test_what_cannot_be_read_names_its_line(line: str, wanted: str):
    with pytest.raises(UsageError, match=wanted):
        parse_graph(f"graph g {{\n  input %x : 2 float32\n  {line}\n}}\n")


def test_names_of_operators_tell_them_apart():
    words = MnemonicTable()
    assert words.of(Unary("Exp")) == ("exp", {"function": "Exp"})
    assert words.made("exp", {}) == Unary("Exp")
    assert words.made("exp", {"function": "Neg"}) is None
    assert len(list(words)) > 100


def test_the_rounding_of_a_tensor_is_read_again():
    text = "graph g {\n  input %x : 2 int8(0.5, 3, tflite)\n  output x = %x\n}\n"
    graph = parse_graph(text)
    assert graph.inputs[0].type.q.rounding is Rounding.TFLITE
    assert print_graph(graph) == text


def test_a_dump_is_read_again():
    assert_read_again(optimized(quantized_net().model()))
