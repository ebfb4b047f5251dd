# SPDX-License-Identifier: Apache-2.0
"""GridSample and DeformConv: references, numpy and C agree; positions beyond all bounds do no harm."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from checks import check_model
from onnx_models import Net, c_outputs, imported, onnxruntime_outputs, random_feeds, reference_outputs

from mcugen.core.errors import McugenError

PADDINGS = ("zeros", "border", "reflection")


@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (1, 2, 3, 4, 5)], ids=["plane", "volume"])
def test_grid_sample(shape: tuple[int, ...]):
    rank = len(shape) - 2
    modes = ("nearest", "linear", "cubic") if rank == 2 else ("nearest", "linear")
    net = Net(20)
    for number, (mode, padding, align) in enumerate(itertools.product(modes, PADDINGS, (0, 1))):
        if (mode, padding) == ("cubic", "border") or (rank == 3 and number % 3 == 2):
            continue  # onnxruntime does not clamp the position, as ONNX does
        x, grid = net.input(f"x{number}", *shape), net.input(f"g{number}", shape[0], *(3, 4, 2)[:rank], rank)
        attributes = {"mode": mode, "padding_mode": padding, "align_corners": align}
        net.output(net.op("GridSample", x, grid, out=f"y{number}", **attributes))
    model = net.model()
    check_model(model, random_feeds(model, spread=0.9), relative=1e-4)


def test_what_onnxruntime_has_not():
    """Cubic volumes, float64, lines, tensors of one element."""
    net = Net(22)
    specs = [
        ((1, 2, 3, 4, 5), "cubic", np.float32),
        ((1, 2, 5, 4), "linear", np.float64),
        ((1, 2, 6), "cubic", np.float32),
    ]
    for number, ((shape, mode, dtype), padding) in enumerate(itertools.product(specs, PADDINGS)):
        rank = len(shape) - 2
        x = net.input(f"x{number}", *shape, dtype=dtype)
        grid = net.input(f"g{number}", 1, *(3, 2, 2)[:rank], rank, dtype=dtype)
        net.output(net.op("GridSample", x, grid, out=f"y{number}", mode=mode, padding_mode=padding), dtype=dtype)
    model = net.model()
    feeds = random_feeds(model, spread=0.8)
    check_model(model, feeds, reference_outputs(model, feeds), 1e-4)


def test_positions_beyond_all_bounds():
    """Infinities and NaN read something inside, or zeros."""
    net = Net(20)
    for number, (mode, padding) in enumerate(itertools.product(("nearest", "linear", "cubic"), PADDINGS)):
        align = number % 2
        x, grid = net.input(f"x{number}", 1, 1, 1, 3), net.input(f"g{number}", 1, 1, 6, 2)
        attributes = {"mode": mode, "padding_mode": padding, "align_corners": align}
        net.output(net.op("GridSample", x, grid, out=f"y{number}", **attributes))
    model = net.model()
    far = np.asarray([[np.inf, 0], [-np.inf, 1e30], [np.nan, np.nan], [-1e30, 0.5], [2.0**31, -(2.0**31)], [0, 0]])
    feeds = {
        name: far.astype(np.float32).reshape(1, 1, 6, 2) if name.startswith("g") else np.ones((1, 1, 1, 3), np.float32)
        for name in (i.name for i in model.graph.input)
    }
    for array in c_outputs(model, feeds).values():  # onnx's reference crashes on these
        assert np.isfinite(array).all()
        assert (np.abs(array) <= 1.5).all()


DEFORM: list[tuple[tuple[int, ...], tuple[int, ...], int, dict[str, Any]]] = [
    ((2, 4, 5, 6), (6, 2, 2, 3), 2, {"group": 2, "offset_group": 2, "pads": [1, 0, 0, 1], "strides": [2, 1]}),
    ((1, 3, 6, 5), (2, 3, 3, 2), 1, {"dilations": [2, 1], "pads": [1, 1, 1, 1]}),
    ((1, 2, 4, 4), (2, 1, 2, 2), 1, {"group": 2}),
]


def _deform(net: Net, dtype: type = np.float32) -> None:
    for number, (shape, weights, groups, attributes) in enumerate(DEFORM):
        pads, strides = attributes.get("pads", [0] * 4), attributes.get("strides", [1, 1])
        dilations = attributes.get("dilations", [1, 1])
        out = [
            (shape[2 + a] + pads[a] + pads[2 + a] - dilations[a] * (weights[2 + a] - 1) - 1) // strides[a] + 1
            for a in (0, 1)
        ]
        taps = groups * weights[2] * weights[3]
        x = net.input(f"x{number}", *shape, dtype=dtype)
        w = net.input(f"w{number}", *weights, dtype=dtype)
        offset = net.input(f"o{number}", shape[0], 2 * taps, *out, dtype=dtype)
        bias = net.input(f"b{number}", weights[0], dtype=dtype) if number != 1 else ""
        mask = [net.input(f"m{number}", shape[0], taps, *out, dtype=dtype)] if number < 2 else []
        net.output(net.op("DeformConv", x, w, offset, bias, *mask, out=f"y{number}", **attributes), dtype=dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_deformable_convolution(dtype: type):
    net = Net(22)
    _deform(net, dtype)
    model = net.model()
    feeds = random_feeds(model)
    expected = {name: array.astype(dtype) for name, array in reference_outputs(model, feeds).items()}
    check_model(model, feeds, expected, 1e-4)


@pytest.mark.parametrize(
    ("op_type", "shapes", "attributes"),
    [
        ("GridSample", ((1, 2, 3, 4), (1, 2, 2, 3)), {}),
        ("GridSample", ((1, 2, 3, 4), (2, 2, 2, 2)), {}),
        ("GridSample", ((1, 2), (1, 2)), {}),
        ("GridSample", ((1, 2, 3, 4), (1, 2, 2, 2)), {"mode": "none"}),
        ("GridSample", ((1, 2, 3, 4), (1, 2, 2, 2)), {"padding_mode": "none"}),
        ("DeformConv", ((1, 2, 3), (1, 2, 2), (1, 4, 2)), {}),
        ("DeformConv", ((1, 2, 3, 3), (1, 2, 2, 2), (1, 8, 2, 3)), {}),
        ("DeformConv", ((1, 2, 3, 3), (1, 2, 2, 2), (1, 8, 2, 2)), {"offset_group": 0}),
        ("DeformConv", ((1, 2, 3, 3), (1, 2, 2, 2), (1, 8, 2, 2)), {"group": 2}),
        ("DeformConv", ((1, 2, 3, 3), (1, 2, 2, 2), (1, 8, 2, 2), (2,)), {}),
        ("DeformConv", ((1, 2, 3, 3), (1, 2, 2, 2), (1, 8, 2, 2), (1,), (1, 3, 2, 2)), {}),
    ],
)
def test_what_cannot_be_right(op_type: str, shapes: tuple[tuple[int, ...], ...], attributes: dict[str, Any]):
    net = Net(22)
    net.op(op_type, *(net.input(f"x{i}", *shape) for i, shape in enumerate(shapes)), out="y", **attributes)
    net.output("y", shape=(1, 1, 1, 1))
    with pytest.raises(McugenError) as error:
        imported(net.plain_model())
    assert error.value.exit_code in (3, 4)


def test_old_names_of_modes():
    for mode in ("bilinear", "bicubic"):
        net = Net(16)
        x, grid = net.input("x", 1, 1, 3, 4), net.input("g", 1, 2, 2, 2)
        net.output(net.op("GridSample", x, grid, out="y", mode=mode))
        model = net.model()
        feeds = random_feeds(model, spread=0.5)
        check_model(model, feeds, onnxruntime_outputs(model, feeds), 1e-4)


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize(("batch", "space"), [(1, (4, 6)), (2, (3, 2)), (1, (2, 3, 4))])
def test_affine_grids(batch: int, space: tuple[int, ...], align: int) -> None:
    """A batch of one, too, of which ONNX's function loses the axis."""
    net, rank = Net(20), len(space)
    theta, size = net.input("theta", batch, rank, rank + 1), net.const([batch, 2, *space], np.int64)
    net.output(net.op("AffineGrid", theta, size, align_corners=align, out="y"))
    model = net.model()
    check_model(model, random_feeds(model))


def test_matrices_of_another_rank_are_no_affine_grid() -> None:
    net = Net(20)
    theta, size = net.input("theta", 1, 2, 3), net.const([1, 2, 3, 4, 5], np.int64)
    net.output(net.op("AffineGrid", theta, size, out="y"))
    with pytest.raises(McugenError, match="a matrix for each image"):
        imported(net.model())
