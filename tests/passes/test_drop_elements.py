# SPDX-License-Identifier: Apache-2.0
"""Elements that no output depends on are not computed, and the others keep their bits."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from onnx_models import Net
from random_graphs import Growth, random_model

from mcugen.api.compilation import Compilation
from mcugen.backends.cpu.pipeline import PIPELINE
from mcugen.core.board import load_board
from mcugen.core.options import CompileOptions
from mcugen.driver.tasks import Quantizing
from mcugen.driver.variants import Variants
from mcugen.hir.crop import Box
from mcugen.hir.graph import Graph, Node
from mcugen.hir.interpreter import interpret, run
from mcugen.hir.operator import Signature
from mcugen.hir.traits import Croppable
from mcugen.hir.types import Array
from mcugen.hir.verify import verify_graph
from mcugen.passes.crop import crop_type, drop_elements


def imported(model, name: str = "net") -> Graph:
    """Return the graph of a model in front of the pass."""
    graph = Variants(model, name, CompileOptions(), load_board("host")).graph({})
    for pass_, _ in PIPELINE[: [p for p, _ in PIPELINE].index(drop_elements)]:
        pass_(graph)
    return graph


def random_box(random: Random, shape: tuple[int, ...]) -> Box:
    """Return a part of a tensor: along each axis all indices, an interval, a last index, or every other index."""

    def progression(size: int) -> range:
        start = random.randint(0, size - 1)
        interval = range(start, random.randint(start + 1, size), random.choice((1, 1, 1, 2, 3)))
        return random.choice((range(size), interval, range(size - 1, size)))

    return tuple(map(progression, shape))


def assert_crop_is_exact(node: Node, arrays: list[Array], results: list[Array], wanted: Box, *, exact: bool) -> None:
    """Compare a part of a node's output with the output of the operator for that part."""
    crop = node.op.cropped(node, wanted)
    if crop is None:
        return
    assert all(set(w) <= set(got) for w, got in zip(wanted, crop.writes, strict=True))
    parts, types, number = [], [], 0
    for index, (value, box) in enumerate(zip(node.inputs, crop.reads, strict=True)):
        if value is None or box is None:
            number += value is not None
            types += [None] if value is None else []
            continue
        assert all(not axis or (axis[0] >= 0 and axis[-1] < n) for axis, n in zip(box, value.type.shape, strict=True))
        parts.append(crop.constants.get(index, arrays[number][np.ix_(*box)] if box else arrays[number]))
        types.append(crop_type(value.type, box))
        number += 1
    type_ = crop_type(node.output.type, crop.writes)
    (inferred,) = crop.op.infer(*types)
    assert inferred.shape == type_.shape, node
    (found,) = crop.op.evaluate(Signature(tuple(types), (type_,)), *parts)
    expected = results[0][np.ix_(*crop.writes)]
    if exact:
        np.testing.assert_array_equal(found, expected, err_msg=str(node))
    else:
        np.testing.assert_allclose(found, expected, 1e-4, 1e-5, err_msg=str(node))


def check_crops(graph: Graph, seed: int, boxes: int = 2) -> set[str]:
    """Try random parts of each node's output, and return the names of the operators that were tried."""
    random, numbers, tried = Random(seed), np.random.default_rng(seed), set()

    def observe(node: Node, arrays: list[Array]) -> None:
        value = node.outputs[0]
        if not isinstance(node.op, Croppable) or len(node.outputs) > 1 or not value.type.count:
            return
        tried.add(node.op.name)
        with np.errstate(all="ignore"):
            results = [np.asarray(r).reshape(value.type.shape) for r in node.op.evaluate(node.sig, *arrays)]
        for _ in range(boxes):
            exact = value.type.quant is not None or not value.type.dtype.is_float
            assert_crop_is_exact(node, arrays, results, random_box(random, value.type.shape), exact=exact)

    run(graph, [_sample(v.type, numbers) for v in graph.inputs], observe)
    return tried


def _sample(type_, numbers: np.random.Generator) -> Array:
    return (numbers.standard_normal(type_.shape) * (1 if type_.dtype.is_float else 40)).astype(type_.dtype.numpy)


numbers = np.random.default_rng(1)


def weights(net: Net, *shape: int) -> str:
    """Add normally distributed constants to a model."""
    return net.const((numbers.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32))


def one(op_type: str, shape: tuple[int, ...], *constants: tuple[int, ...] | np.ndarray, **attributes: object):
    """Return the model of one operator, whose constants are given by shape (floats) or as arrays.

    The name "int8 …" of an operator stands for its form on quantized tensors.
    """
    net, op_type = Net(18), op_type.removeprefix("int8 ") if (is_int8 := op_type.startswith("int8 ")) else op_type
    operands = [weights(net, *c) if isinstance(c, tuple) else net.const(c, c.dtype.type) for c in constants]
    x = net.input("x", *shape)
    y = net.op(op_type, net.fake(x, 0.05, 3) if is_int8 else x, *operands, **attributes)
    net.output(net.fake(y, 0.03, -4) if is_int8 else y)
    return net.model()


LSTM = ((1, 32, 5), (1, 32, 8), (1, 64))
OPERATORS = {
    "conv": one("Conv", (1, 4, 30), (6, 4, 3), (6,), dilations=[3], pads=[6, 0], strides=[2]),
    "conv 2d": one("Conv", (1, 4, 12, 11), (6, 4, 3, 2), (6,), dilations=[2, 1], pads=[1, 0, 2, 1], strides=[1, 3]),
    "depthwise": one("Conv", (1, 4, 12, 11), (4, 1, 3, 3), group=4, pads=[1, 1, 1, 1]),
    "direct_conv": one("Conv", (1, 2, 5, 6, 4), (3, 2, 2, 3, 2), pads=[0, 1, 0, 1, 1, 1]),
    "max_pool": one("MaxPool", (1, 3, 11, 12), kernel_shape=[3, 2], pads=[1, 0, 1, 1], strides=[2, 3]),
    "average_pool": one("AveragePool", (1, 3, 11, 12), kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 1]),
    "padded average": one("AveragePool", (1, 3, 9, 9), kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=1),
    "ceil average": one("AveragePool", (1, 3, 9, 8), kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    "direct_lp_pool": one("LpPool", (1, 3, 9, 8), kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4),
    "dense": one("Gemm", (7, 5), (5, 4), (4,)),
    "lstm": one("LSTM", (9, 2, 5), *LSTM, hidden_size=8),
    "gather": one("Gather", (4, 9, 3), np.array([[7, 1, 3], [1, 5, -2]]), axis=1),
    "cumsum": one("CumSum", (4, 9, 3), np.array(1), exclusive=1),
    "softmax": one("Softmax", (2, 5, 6), axis=1),
    "normalize": one("LayerNormalization", (2, 5, 6), (6,), (6,)),
    "group norm": one("GroupNormalization", (1, 4, 6), (4,), (4,), num_groups=2),
    "reduce": one("ReduceMean", (2, 5, 6), np.array([1])),
    "arg": one("ArgMax", (2, 5, 6), axis=2),
    "pad": one("Pad", (2, 5, 6), np.array([0, 2, 3, 1, 0, 2])),
    "extend": one("Pad", (2, 5, 6), np.array([0, 2, 0, 0, 1, 0]), mode="reflect"),
    "tile": one("Tile", (2, 5, 6), np.array([2, 3, 1])),
    "expand": one("Expand", (2, 1, 6), np.array([2, 4, 6])),
    "reverse": one("Slice", (2, 9, 6), np.array([7]), np.array([0]), np.array([1]), np.array([-2])),
    "shuffle": one("DepthToSpace", (1, 8, 3, 4), blocksize=2),
    "add": one("Add", (2, 5, 6), (5, 1)),
    "int8 average": one("int8 AveragePool", (1, 3, 11, 12), kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 1]),
    "int8 ceil average": one("int8 AveragePool", (1, 3, 9, 8), kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    "int8 max": one("int8 MaxPool", (1, 3, 9, 8), kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4),
    "int8 softmax": one("int8 Softmax", (2, 5, 6), axis=1),
    "int8 normalize": one("int8 LayerNormalization", (2, 5, 6), (6,), (6,)),
    "int8 mean": one("int8 ReduceMean", (2, 5, 6), np.array([1])),
    "int8 tanh": one("int8 Tanh", (2, 5, 6)),
    "batch norm": one("BatchNormalization", (1, 4, 9), (4,), (4,), (4,), np.ones(4, np.float32)),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_parts_of_each_operator_are_computed_alone(name: str):
    """Before the passes, when images have channels first, and behind them."""
    assert check_crops(Variants(OPERATORS[name], "net", CompileOptions(), load_board("host")).graph({}), 1, boxes=8)
    assert check_crops(imported(OPERATORS[name]), 2, boxes=8)


@pytest.mark.parametrize("name", ["conv", "conv 2d", "depthwise"])
def test_parts_of_quantized_layers_have_the_same_bits(name: str):
    shape = [d.dim_value for d in OPERATORS[name].graph.input[0].type.tensor_type.shape.dim]
    samples = {"x": numbers.standard_normal((4, *shape[1:])).astype(np.float32)}
    graph = imported(Compilation(OPERATORS[name], quantizing=Quantizing(calibration=samples)).quantized.loaded.proto)
    assert any(node.output.type.quant for node in graph.nodes)
    assert check_crops(graph, 3, boxes=8)


@pytest.mark.parametrize("seed", range(40))
def test_parts_of_random_graphs_have_the_same_bits(seed: int):
    graph = imported(random_model(seed).model)
    check_crops(graph, seed)


class Cropped(Growth):
    """A random model of whose outputs the caller sees parts only."""

    def _output(self, tensor, index: int) -> None:
        name, box = tensor.name, random_box(self.random, tensor.shape)
        rows = [(r[0], r[-1] + 1, axis, r.step) for axis, r in enumerate(box)]
        operands = [self.net.const(list(row), np.int64) for row in zip(*rows, strict=True)]
        self.net.output(self.net.op("Slice", name, *operands, out=f"y{index}"))


@pytest.mark.parametrize("seed", range(40))
def test_random_graphs_with_parts_as_outputs_compute_the_same(seed: int):
    model = Cropped(seed).grown().model
    graph = imported(model)
    smaller = graph.copy()
    drop_elements(smaller)
    verify_graph(smaller)
    numbers = np.random.default_rng(seed)
    sample = {v.name: _sample(v.type, numbers) for v in graph.inputs}
    found = interpret(smaller, sample)
    for name, array in interpret(graph, sample).items():
        np.testing.assert_allclose(found[name], array, 1e-4, 1e-5)
