# SPDX-License-Identifier: Apache-2.0
"""What kernels know of a layer: made once, and again when the node is no longer the same."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import numpy as np
from onnx_models import Net, optimized

from mcugen.hir.graph import Node
from mcugen.hir.types import DType
from mcugen.kernels.common.conv_shape import ConvShape
from mcugen.kernels.common.specs import ConvSpec
from mcugen.lir.spec import spec_of
from mcugen.numerics.sums import folded_bias, largest_sums, requantizer
from mcugen.ops.matmul import Dense


def float_layer() -> Node:
    net = Net()
    net.output(net.op("MatMul", net.input("x", 2, 8), net.const(np.ones((8, 4)))))
    (node,) = optimized(net.model()).nodes
    return node


def int8_layer() -> Node:
    net = Net(13)
    x = net.dequantize(net.input("x", 1, 3, 5, 7, dtype=np.int8), 0.5, np.int8(3))
    codes = np.random.default_rng(0).integers(-127, 128, (4, 3, 3, 3), np.int8)
    y = net.op("Conv", x, net.dequantize(net.const(codes, np.int8), 0.25), pads=[1, 1, 1, 1])
    net.output(net.quantize(y, 2.0, np.int8(-5), np.int8, out="y"), dtype=np.int8)
    return next(n for n in optimized(net.model()).nodes if n.op.mnemonic == "conv")


def test_a_spec_is_kept_while_the_node_is_the_same():
    node = float_layer()
    spec = spec_of(node)
    assert isinstance(spec, ConvSpec) and spec_of(node) is spec
    assert (spec.shape.out_width, spec.shape.in_channels, spec.shape.out_channels) == (2, 8, 4), "rows are pixels"
    node.op = Dense((0.0, 6.0))
    clamped = spec_of(node)
    assert clamped is not spec and clamped.clamp == (0.0, 6.0) and spec_of(node) is clamped
    node.output.type = replace(node.output.type, dtype=DType.FLOAT64)
    assert spec_of(node).y.dtype is DType.FLOAT64
    weights = node.input(1)
    assert weights.data is not None
    weights.data = 2 * weights.data
    assert spec_of(node).weights[0, 0] == 2


def test_a_spec_keeps_no_node_alive():
    node = float_layer()
    spec, gone = spec_of(node), weakref.ref(node)
    del node
    gc.collect()
    assert gone() is None and spec.channels == 4


def test_what_follows_from_constants_is_what_numerics_say():
    node = int8_layer()
    spec, (weights, bias) = spec_of(node), (node.input(i).data for i in (1, 2))
    assert weights is not None and bias is not None
    sums = largest_sums(node.sig.input(0), weights, bias)
    assert np.array_equal(spec.largest_sums, sums) and spec.largest_sums is spec.largest_sums
    assert np.array_equal(spec.folded_bias, folded_bias(node.sig, weights, bias))
    expected = requantizer(node.sig, sums)
    assert np.array_equal(spec.requantizer.multiplier, expected.multiplier) and spec.is_int8
    assert (spec.requantizer.shift, spec.limits, spec.is_clamped) == (expected.shift, (-128, 127), False)


def test_one_window_is_a_fully_connected_layer():
    """A convolution whose window is all of a line, as one step of a convolution over time is."""
    assert _shape(1, 5, (1, 5)) == ConvShape.of_rows(1, 5 * 4, 6) == _shape(5, 1, (5, 1))
    assert _shape(1, 6, (1, 5)).out_width == 2, "a second window"
    assert _shape(3, 5, (3, 5)).kernel_height == 3, "images are left to their own kernels"
    assert _shape(1, 5, (1, 3), dilations=[1, 2]).in_width == 5, "what lies between the taps is left out"
    assert _shape(1, 4, (1, 5), pads=[0, 1, 0, 0]).in_width == 4, "padding is not in memory"
    assert _shape(1, 5, (1, 5), group=2).groups == 2, "channels of a group do not lie together"


def _shape(height: int, width: int, kernel: tuple[int, int], **how: object) -> ConvShape:
    """Of the spec of a convolution of 4 to 6 channels."""
    net = Net(13)
    x = net.dequantize(net.input("x", 1, 4, height, width, dtype=np.int8), 0.5, np.int8(3))
    inputs = 4 // int(str(how.get("group", 1)))
    codes = np.random.default_rng(0).integers(-127, 128, (6, inputs, *kernel), np.int8)
    y = net.op("Conv", x, net.dequantize(net.const(codes, np.int8), 0.25), **how)
    net.output(net.quantize(y, 2.0, np.int8(-5), np.int8, out="y"), dtype=np.int8)
    spec = spec_of(next(n for n in optimized(net.model()).nodes if n.op.mnemonic == "conv"))
    assert isinstance(spec, ConvSpec)
    return spec.shape
