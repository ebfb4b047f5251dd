# SPDX-License-Identifier: Apache-2.0
"""Pools by CMSIS-NN: the largest elements are ours, averages differ where a tie is rounded."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from cmsis_checks import check_library
from test_fast_activations import Layers, Quant

from mcugen.core.options import CMSIS_NN, CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.hir.interpreter import interpret

QUANT = (0.02, 3)


class Pools(Layers):
    """Integer layers of images, channels last."""

    def add(self, function: str, shape: tuple[int, ...], x: Quant = QUANT, y: Quant = QUANT, **window: object) -> None:
        """A pool of an int8 image of that shape."""
        self.inputs, self.outputs = self.inputs + 1, self.outputs + 1
        rank, net = len(shape), self.net
        image = net.input(f"x{self.inputs}", *shape, dtype=np.int8)
        turned = net.op("Transpose", image, perm=[0, rank - 1, *range(1, rank - 1)])
        pooled = net.quantize(net.op(function, net.dequantize(turned, *x), **window), *y)
        net.output(net.op("Transpose", pooled, perm=[0, *range(2, rank), 1], out=f"y{self.outputs}"), dtype=np.int8)


def windows(function: str) -> onnx.ModelProto:
    """Inside and beyond the edge, strides, one axis, several images; channels of all remainders."""
    pools = Pools()
    window = {"kernel_shape": [3, 2], "strides": [2, 1]}
    for channels in (1, 4, 7, 16, 37):
        for more in ({}, {"pads": [1, 0, 1, 1]}, {"pads": [2, 1, 0, 1], "ceil_mode": 1}):
            pools.add(function, (2, 5, 4, channels), **window, **more)
    pools.add(function, (1, 9, 5), kernel_shape=[4], strides=[2], pads=[1, 2])
    return pools.net.model()


@pytest.mark.qemu
def test_largest_elements() -> None:
    model = windows("MaxPool")
    check_library(model, {"cmsis_max_pool_s8": len(model.graph.output)})


@pytest.mark.qemu
def test_averages() -> None:
    model = windows("AveragePool")
    check_library(model, {"cmsis_avgpool_s8": len(model.graph.output)})


@pytest.mark.qemu
def test_means_of_images() -> None:
    """Of few elements, which tie often, and of more than 16 bits hold."""
    pools = Pools()
    for height, width, channels, zero in ((2, 1, 37, 3), (4, 2, 64, -128), (17, 16, 5, 127), (3, 3, 2, 0)):
        pools.add("GlobalAveragePool", (2, height, width, channels), (0.02, zero), (0.02, zero))
    check_library(pools.net.model(), {"cmsis_avgpool_s8": pools.outputs})


def test_ties_go_away_from_zero() -> None:
    """Of codes: ours go to the even distance from the zero point."""
    pools = Pools()
    pools.add("GlobalAveragePool", (1, 1, 2, 4), (0.02, 0), (0.02, 0))
    compiled = compile_model(pools.net.model(), "host", CompileOptions(family=CMSIS_NN))
    feeds = {"x1": np.array([[[[0, 2, 0, -2], [1, 3, -1, -3]]]], np.int8)}
    (found,) = compiled.interpret(feeds).values()
    (own,) = interpret(compiled.graph, feeds).values()
    assert found.reshape(-1).tolist() == [1, 3, -1, -3]
    assert own.reshape(-1).tolist() == [0, 2, 0, -2]


def test_what_does_not_fit() -> None:
    """Another scale for averages, padding that counts, dilations, means of what is no image."""
    pools, image = Pools(), (1, 7, 5, 4)
    pools.add("AveragePool", image, y=(0.019, 3), kernel_shape=[3, 2])
    pools.add("GlobalAveragePool", image, y=(0.02, 4))
    pools.add("AveragePool", image, kernel_shape=[3, 2], pads=[1, 1, 1, 1], count_include_pad=1)
    pools.add("AveragePool", image, kernel_shape=[2, 2], dilations=[2, 3])
    pools.add("MaxPool", image, kernel_shape=[2, 2], dilations=[2, 3])
    pools.output(pools.net.op("ReduceMean", pools.input(3, 8), pools.net.const([1], np.int64)), QUANT)
    compiled = compile_model(pools.net.model(), "host", CompileOptions(family=CMSIS_NN))
    assert not [i for i in compiled.program.instrs if i.library]
