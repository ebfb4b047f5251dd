# SPDX-License-Identifier: Apache-2.0
"""Folding of what is known at compile time: shape arithmetic vanishes, hostile sizes are refused at once."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper
from onnx_models import (
    Net,
    assert_close,
    imported,
    numpy_outputs,
    onnxruntime_outputs,
    operators,
    random_feeds,
)

from mcugen.core.errors import McugenError
from mcugen.driver.compiler import compile_model

SECONDS = 5.0
KILOBYTES = 1 << 20
"""Far above what a refusal takes, far below what 2^40 elements would."""


def ints(net: Net, values: object) -> str:
    return net.const(values, np.int64)


def check(net: Net, expected: list[str]) -> None:
    model = net.model()
    assert operators(imported(model)) == expected
    feeds = random_feeds(model)
    assert_close(numpy_outputs(model, feeds), onnxruntime_outputs(model, feeds))


def test_flatten_as_pytorch_writes_it():
    """x.view(x.size(0), -1)"""
    net = Net()
    x = net.input("x", 2, 3, 4)
    batch = net.op("Gather", net.op("Shape", x), ints(net, 0))
    shape = net.op("Concat", net.op("Unsqueeze", batch, ints(net, [0])), ints(net, [-1]), axis=0)
    net.output(net.op("Reshape", x, shape))
    check(net, ["reshape"])


@pytest.mark.parametrize("index", [2**62, -(2**63), 2, -3])
def test_elements_far_outside_of_an_axis_are_refused_at_once(index: int):
    net = Net()
    far = net.op("GatherElements", net.const([5.0, 7.0]), ints(net, [index]))
    net.output(net.op("Add", net.input("x", 1), far))
    started = time.process_time()
    with pytest.raises(McugenError, match="indices must lie within the axis"):
        imported(net.plain_model())
    assert time.process_time() - started < SECONDS


def test_zeros_as_pytorch_writes_them():
    """x + torch.zeros(x.size(0), 4)"""
    net = Net()
    x = net.input("x", 2, 4)
    batch = net.op("Unsqueeze", net.op("Gather", net.op("Shape", x), ints(net, 0)), ints(net, [0]))
    zeros = net.op("ConstantOfShape", net.op("Concat", batch, ints(net, [4]), axis=0))
    net.output(net.op("Add", x, zeros))
    check(net, ["add"])


def test_expand_as_pytorch_writes_it():
    """y.expand(x.size(0), -1): Where(shape == -1, ones, shape)"""
    net = Net()
    x, y = net.input("x", 3, 4), net.input("y", 1, 4)
    batch = net.op("Unsqueeze", net.op("Gather", net.op("Shape", x), ints(net, 0)), ints(net, [0]))
    shape = net.op("Concat", batch, ints(net, [-1]), axis=0)
    ones = net.op("ConstantOfShape", net.op("Shape", shape), value=tensor([1]))
    minus = net.op("Mul", ones, ints(net, -1))
    wanted = net.op("Where", net.op("Equal", shape, minus), ones, shape)
    net.output(net.op("Add", net.op("Expand", y, wanted), x))
    check(net, ["reshape", "expand", "add"])


def tensor(values: list[int]) -> TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64))


def test_slice_to_half_the_size():
    net = Net()
    x = net.input("x", 2, 8)
    size = net.op("Unsqueeze", net.op("Gather", net.op("Shape", x), ints(net, 1)), ints(net, [0]))
    half = net.op("Div", net.op("Cast", size, to=7), ints(net, 2))
    net.output(net.op("Slice", x, ints(net, [0]), half, ints(net, [1])))
    check(net, ["slice"])


def test_part_of_a_shape():
    net = Net()
    x = net.input("x", 2, 3, 4, 5)
    net.output(net.op("Reshape", x, net.op("Concat", net.op("Shape", x, end=-2), ints(net, [-1]), axis=0)))
    check(net, ["reshape"])


def test_size_and_constant_nodes():
    net = Net()
    x = net.input("x", 2, 3)
    count = net.op("Reshape", net.op("Size", x), net.op("Constant", value_ints=[1]))
    net.output(net.op("Reshape", x, count))
    check(net, ["reshape"])


def test_arithmetic_of_weights():
    net = Net()
    weights = net.op("Transpose", net.op("Exp", net.const(np.arange(6.0).reshape(2, 3) / 6)), perm=[1, 0])
    net.output(net.op("MatMul", net.input("x", 4, 3), weights))
    check(net, ["matmul"])


def test_random_numbers_are_not_constants():
    net = Net()
    noise = net.op("RandomNormalLike", net.const([1.0, 2.0]))
    net.output(net.op("Add", net.input("x", 2), noise))
    with pytest.raises(McugenError) as error:
        imported(net.model())
    assert error.value.exit_code == 4


# ----------------------------------------------------------------------------------------- hostile sizes


def constant_of_shape(net: Net) -> str:
    return net.op("ConstantOfShape", ints(net, [2**20, 2**20]))


def computed_constant_of_shape(net: Net) -> str:
    size = ints(net, [2])
    for _ in range(40):
        size = net.op("Add", size, size)
    return net.op("ConstantOfShape", size)


def expand(net: Net) -> str:
    return net.op("Expand", net.const([[1.0]]), ints(net, [2**20, 2**20]))


def expand_input(net: Net) -> str:
    return net.op("Expand", "x", ints(net, [2**20, 2**20, 3]))


def tile(net: Net) -> str:
    return net.op("Tile", net.const([[1.0]]), ints(net, [2**20, 2**20]))


def tile_input(net: Net) -> str:
    return net.op("Tile", "x", ints(net, [2**40]))


def pad(net: Net) -> str:
    return net.op("Pad", net.const([1.0]), ints(net, [0, 2**40]))


def pad_input(net: Net) -> str:
    return net.op("Pad", "x", ints(net, [0, 2**40]))


def counting(net: Net) -> str:
    return net.op("Cast", net.op("Range", ints(net, 0), ints(net, 2**40), ints(net, 1)), to=1)


def doubling(net: Net) -> str:
    x = net.const([1.0, 2.0])
    for _ in range(40):
        x = net.op("Concat", x, x, axis=0)
    return x


def outer_products(net: Net) -> str:
    x = net.const(np.ones((2**11, 1)))
    wide = net.op("MatMul", x, net.op("Transpose", x))
    return net.op("Mul", net.op("Reshape", wide, ints(net, [-1, 1])), net.op("Reshape", wide, ints(net, [1, -1])))


def one_hot(net: Net) -> str:
    return net.op("OneHot", ints(net, [0]), ints(net, 2**40), net.const([0.0, 1.0]))


def random_normal(net: Net) -> str:
    return net.op("RandomNormal", shape=[2**20, 2**20])


def resize(net: Net) -> str:
    sizes = ints(net, [1, 1, 2**20, 2**20])
    return net.op("Resize", net.const(np.ones((1, 1, 2, 2))), "", "", sizes, mode="nearest")


@pytest.mark.parametrize(
    "build",
    [
        constant_of_shape,
        computed_constant_of_shape,
        expand,
        expand_input,
        tile,
        tile_input,
        pad,
        pad_input,
        counting,
        doubling,
        outer_products,
        one_hot,
        random_normal,
        resize,
    ],
)
def test_tensors_of_a_billion_elements_are_refused_at_once(build: Callable[[Net], str]):
    net = Net()
    net.input("x", 3)
    big = build(net)
    net.op("Add", "x", net.op("Slice", big, ints(net, [0]), ints(net, [1])), out="y")
    net.output("y", shape=[3])
    start, before = time.process_time(), peak_kilobytes()
    with pytest.raises(McugenError) as error:
        compile_model(net.plain_model())
    assert error.value.exit_code in (3, 4, 5)
    assert time.process_time() - start < SECONDS
    assert peak_kilobytes() - before < KILOBYTES


def peak_kilobytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_nodes_that_the_reference_cannot_compute_are_refused():
    """Gather beyond the end of a constant."""
    net = Net()
    found = net.op("Gather", net.const([1.0, 2.0]), ints(net, [5]))
    net.output(net.op("Add", net.input("x", 1), found))
    with pytest.raises(McugenError) as error:
        imported(net.model())
    assert error.value.exit_code in (3, 4)
