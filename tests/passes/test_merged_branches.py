# SPDX-License-Identifier: Apache-2.0
"""Branches of one tensor that are added: one layer, wherever that takes no more weights."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_models import Net, apply, check_everywhere, operators, optimized

from mcugen.hir.parser import parse_graph
from mcugen.passes.branches import merge_branches
from mcugen.passes.composite_operators import recognize_affine
from mcugen.passes.fuse import fold_affine

RANDOM = np.random.default_rng(4)


def conv(net: Net, x: str, *shape: int, bias: bool = True, **attributes: object) -> str:
    constants = [net.const(RANDOM.normal(size=shape))] + [net.const(RANDOM.normal(size=shape[0]))] * bias
    return net.op("Conv", x, *constants, **attributes)


def normalized(net: Net, x: str, channels: int) -> str:
    numbers = [net.const(RANDOM.uniform(0.5, 1.5, channels)) for _ in range(4)]
    return net.op("BatchNormalization", x, *numbers)


def rep_vgg(stride: int = 1) -> Net:
    """A block as it is trained: 3x3, 1x1 and a batch normalization, each normalized, then ReLU."""
    net = Net()
    x = net.input("x", 1, 6, 7, 7)
    strides = [stride, stride]
    total = net.op(
        "Add",
        normalized(net, conv(net, x, 6, 6, 3, 3, bias=False, pads=[1] * 4, strides=strides), 6),
        normalized(net, conv(net, x, 6, 6, 1, 1, bias=False, strides=strides), 6),
    )
    net.output(net.op("Relu", net.op("Add", total, normalized(net, x, 6)) if stride == 1 else total))
    return net


@pytest.mark.parametrize("stride", [1, 2])
def test_a_block_of_rep_vgg_is_one_convolution(stride: int):
    model = rep_vgg(stride).model()
    assert operators(optimized(model)) == ["transpose", "conv", "transpose"]
    check_everywhere(model)


def merged(net: Net) -> list[str]:
    return operators(apply(net.model(), fold_affine, recognize_affine, merge_branches))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (((6, 1, 3, 3), {"group": 6, "pads": [1] * 4}), ((6, 1, 1, 1), {"group": 6})),
        (((6, 2, 3, 3), {"group": 3, "pads": [1] * 4}), ((6, 1, 3, 3), {"group": 6, "pads": [1] * 4})),
        (((4, 6, 3, 1), {"pads": [1, 0, 1, 0]}), ((4, 3, 1, 1), {"group": 2})),
        (((4, 6, 5, 3), {"pads": [2, 1, 2, 1]}), ((4, 6, 3, 1), {"pads": [2, 0, 2, 0], "dilations": [2, 1]})),
        (((4, 6, 3, 3), {"pads": [2] * 4, "dilations": [2, 2]}), ((4, 6, 1, 1), {})),
        (((4, 6, 2, 2), {"pads": [1, 1, 0, 0]}), ((4, 6, 1, 1), {})),
    ],
    ids=["depthwise", "depthwise into groups", "groups", "dilated into dense", "dense into dilated", "uneven pads"],
)
def test_kernels_find_their_places(first: tuple, second: tuple):
    net = Net()
    x = net.input("x", 1, 6, 8, 8)
    net.output(net.op("Add", *(conv(net, x, *shape, **attributes) for shape, attributes in (second, first))))
    assert merged(net) == ["conv"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (((6, 1, 3, 3), {"group": 6, "pads": [1] * 4}), ((6, 6, 1, 1), {})),
        (((6, 1, 3, 1), {"group": 6, "pads": [1, 0] * 2}), ((6, 1, 1, 3), {"group": 6, "pads": [0, 1] * 2})),
        (((4, 6, 3, 3), {"pads": [1] * 4}), ((4, 6, 3, 3), {"pads": [2] * 4, "dilations": [2, 2]})),
        (
            ((4, 6, 3, 3), {"pads": [0, 0, 1, 1], "strides": [2, 2]}),
            ((4, 6, 2, 2), {"pads": [1, 1, 0, 0], "strides": [2, 2]}),
        ),
        (((6, 3, 1, 1), {"group": 2}), ((6, 2, 1, 1), {"group": 3})),
    ],
    ids=["more weights", "rows and columns", "farther places", "place before the kernel", "groups that do not nest"],
)
def test_what_one_layer_would_not_do(first: tuple, second: tuple):
    net = Net()
    x = net.input("x", 1, 6, 8, 8)
    net.output(net.op("Add", *(conv(net, x, *shape, **attributes) for shape, attributes in (first, second))))
    assert merged(net).count("conv") == 2


def test_others_read_a_branch():
    net = Net()
    x = net.input("x", 1, 6, 8, 8)
    a, b = conv(net, x, 6, 6, 1, 1), conv(net, x, 6, 6, 1, 1)
    net.output(net.op("Add", a, b), net.op("Sigmoid", a))
    assert merged(net).count("conv") == 2


@pytest.mark.parametrize("computed", [("scale",), ("shift",), ("scale", "shift")], ids="+".join)
@pytest.mark.parametrize("order", [("l", "c"), ("c", "l")], ids=["line first", "line last"])
def test_a_line_with_computed_numbers_stays(order: tuple[str, str], computed: tuple[str, ...]):
    """Whatever pass makes such a line: it is none of the layers that have one sum."""
    numbers = [
        f"input %{name} : 2x1x1 float32" if name in computed else f"const %{name} : 2x1x1 float32 = [2.0, 4.0]"
        for name in ("scale", "shift")
    ]
    window = "window=Window((1, 1), (0, 0), (0, 0), (1, 1))"
    lines = [
        "graph net {",
        "input %x : 1x2x3x3 float32",
        *numbers,
        "const %p : 2x2x1x1 float32 = [0.5, 0.25, -0.5, -0.25]",
        f"%c = conv(%x, %p) {{{window}}} : 1x2x3x3 float32 NCHW  # Conv",
        "%l = affine(%x, %scale, %shift) : 1x2x3x3 float32  # Line",
        f"%y = add(%{order[0]}, %{order[1]}) : 1x2x3x3 float32  # Add",
        "output y = %y",
        "}",
    ]
    graph = parse_graph("\n  ".join(lines[:-1]) + "\n}\n")
    assert not merge_branches(graph)
    assert operators(graph) == ["conv", "affine", "add"]


def test_of_two_tensors():
    net = Net()
    x = net.input("x", 1, 6, 8, 8)
    net.output(net.op("Add", conv(net, x, 6, 6, 1, 1), conv(net, net.op("Abs", x), 6, 6, 1, 1)))
    assert merged(net).count("conv") == 2


def test_an_activation_between():
    net = Net()
    x = net.input("x", 1, 6, 8, 8)
    net.output(net.op("Add", net.op("Relu", conv(net, x, 6, 6, 1, 1)), conv(net, x, 6, 6, 1, 1)))
    assert operators(optimized(net.model())).count("conv") == 2


def test_a_line_along_another_axis_stays():
    net = Net()
    x = net.input("x", 1, 6, 6, 6)
    line = net.op("Add", net.op("Mul", x, net.const(RANDOM.normal(size=(6, 1)))), net.const(RANDOM.normal(size=(6, 1))))
    net.output(net.op("Add", conv(net, x, 6, 6, 1, 1), line))
    assert "affine" in merged(net)
