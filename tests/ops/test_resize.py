# SPDX-License-Identifier: Apache-2.0
"""Resize: onnxruntime, numpy and C agree for every mode, along any axes."""

from __future__ import annotations

import numpy as np
import pytest
from checks import SPREAD, Cases
from onnx_models import (
    Net,
    assert_close,
    check_everywhere,
    imported,
    onnxruntime_outputs,
    operators,
    optimized,
    random_feeds,
)

from mcugen.errors import UnsupportedError
from mcugen.hir.interpreter import interpret

TRANSFORMS = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric"]
ROUNDINGS = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
SHAPE = (2, 3, 5, 7)
SIZES = [(10, 14), (3, 4), (7, 5), (1, 1), (5, 13), (8, 7)]


def _sizes(*sizes: int) -> tuple[None, None, np.ndarray]:
    return None, None, np.asarray(sizes, np.int64)


def _scales(*scales: float) -> tuple[None, np.ndarray]:
    return None, np.asarray(scales, np.float32)


def test_nearest():
    cases = Cases()
    for transform in TRANSFORMS:
        mode = {"mode": "nearest", "coordinate_transformation_mode": transform}
        for size in SIZES:
            for rounding in ROUNDINGS:
                cases.add("Resize", SHAPE, *_sizes(2, 3, *size), nearest_mode=rounding, **mode)
        cases.add("Resize", SHAPE, *_scales(1, 1, 2, 2), **mode)
        cases.add("Resize", SHAPE, *_scales(1, 1, 0.6, 1.7), **mode)
        cases.add("Resize", (1, 2, 9), *_scales(1, 1, 2.5), **mode)
    cases.check_float()


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("by_scale", [False, True])
def test_neighbours_are_those_of_onnxruntime(transform: str, by_scale: bool):
    """Positions at whole numbers and halves depend on how they are rounded; only numpy is run."""
    factors = [0.3, 0.6, 0.7, 1.3, 1.7, 2, 2.5, 3.3, 4] if by_scale else [1, 2, 3, 5, 8, 16, 18, 19, 64]
    for size in (1, 2, 3, 5, 7, 10, 13, 28, 57, 100):
        cases = Cases()
        for factor in factors:
            for rounding in ROUNDINGS:
                out = int(np.float32(factor) * np.float32(size)) if by_scale else factor
                if out not in (0, size):  # onnxruntime copies what keeps its size, whatever the scale
                    operands = _scales(factor) if by_scale else _sizes(factor)
                    attributes = {"nearest_mode": rounding, "coordinate_transformation_mode": transform}
                    cases.add("Resize", (size,), *operands, mode="nearest", **attributes)
        model = cases.net.model()
        feeds = random_feeds(model)
        assert_close(interpret(imported(model), feeds), onnxruntime_outputs(model, feeds))


def test_nearest_along_any_axes_and_of_any_type():
    cases = Cases()
    cases.add("Resize", (2, 3, 4), *_sizes(3, 5, 7), mode="nearest")
    cases.add("Resize", (5,), *_sizes(3), mode="nearest")
    cases.add("Resize", (1, 4, 5, 3), *_scales(1, 2, 2, 1), mode="nearest")
    cases.add("Resize", (1, 300, 2), *_sizes(1, 301, 2), mode="nearest")
    cases.add("Resize", SHAPE, *_sizes(4, 9), mode="nearest", axes=[3, 1])
    cases.add("Resize", SHAPE, *_scales(1, 1, 2, 3), mode="nearest", dtype=np.int8)
    cases.add("Resize", SHAPE, *_scales(1, 1, 2, 3), mode="nearest", dtype=np.uint8)
    cases.check_float()


def test_linear():
    cases = Cases()
    for transform in TRANSFORMS:
        mode = {"mode": "linear", "coordinate_transformation_mode": transform}
        for size in SIZES:
            cases.add("Resize", SHAPE, *_sizes(2, 3, *size), **mode)
        cases.add("Resize", SHAPE, *_scales(1, 1, 2, 2), **mode)
        cases.add("Resize", SHAPE, *_scales(1, 1, 0.6, 1.7), **mode)
    mode = {"mode": "linear"}
    cases.add("Resize", (1, 1, 1, 6), *_scales(1, 1, 3, 2), **mode)
    cases.add("Resize", (4, 6), *_sizes(9, 5), **mode)
    cases.add("Resize", SHAPE, *_sizes(4, 9), axes=[2, 3], **mode)
    cases.add("Resize", (1, 4, 5, 3), *_sizes(1, 7, 6, 3), **mode)
    cases.add("Resize", (1, 2, 3, 4, 5), *_sizes(1, 2, 5, 3, 8), **mode)
    cases.check_float()


def test_linear_int8():
    cases = Cases()
    for zeros, transform in zip([(-128, 127), (127, -128), (3, -7), (-1, 0), (0, 99)], TRANSFORMS, strict=True):
        x, y = (0.05, zeros[0]), (0.05 + SPREAD, zeros[1])
        mode = {"mode": "linear", "coordinate_transformation_mode": transform}
        for size in SIZES:
            cases.add_int8("Resize", (1, 9, 5, 7), x, y, *_sizes(1, 9, *size), **mode)
        cases.add_int8("Resize", (1, 8, 15, 17), x, y, *_sizes(1, 8, 41, 37), **mode)
        cases.add_int8("Resize", (30, 40), (0.02, zeros[0]), (0.005, zeros[1]), *_sizes(7, 90), **mode)
        cases.add_int8("Resize", (1, 7, 30), x, y, *_sizes(1, 7, 11), **mode)
    cases.check_int8()


def test_nearest_keeps_quantization():
    cases = Cases()
    for quant in ((0.1, -128), (0.1, 127)):
        cases.add_int8("Resize", SHAPE, quant, quant, *_scales(1, 1, 2, 2), mode="nearest")
    cases.add_int8("Resize", SHAPE, (0.1, 5), (0.1 + SPREAD, 6), *_scales(1, 1, 2, 2), mode="nearest")
    cases.check_int8()


def test_halves_round_up():
    cases = Cases()
    cases.add_int8("Resize", (1, 4, 8, 8), (0.1, 5), (0.1, 5), *_scales(1, 1, 2, 2), mode="linear")
    cases.check_int8(share=0.1)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resize_works_on_pixels(mode: str):
    net = Net()
    weights = [net.const(np.random.default_rng(0).standard_normal((4, d, 3, 3))) for d in (3, 4)]
    x = net.op("Conv", net.input("x", 1, 3, 6, 6), weights[0])
    x = net.op("Resize", x, "", net.const([1, 1, 2, 2]), mode=mode)
    net.output(net.op("Conv", x, weights[1], out="y"))
    assert operators(optimized(net.model())) == ["transpose", "conv", f"resize_{mode}", "conv", "transpose"]
    check_everywhere(net.model())


@pytest.mark.parametrize(
    ("op_type", "opset", "mode"),
    [
        ("Upsample", 9, "nearest"),
        ("Resize", 10, "nearest"),
        ("Resize", 11, "nearest"),
        ("Resize", 11, "linear"),
    ],
)
def test_old_opsets(op_type: str, opset: int, mode: str):
    net = Net(opset)
    inputs = [net.input("x", 1, 2, 4, 5), net.const([1, 1, 2, 3])]
    if opset == 11:
        inputs.insert(1, net.const([]))
    net.output(net.op(op_type, *inputs, mode=mode, out="y"))
    check_everywhere(net.model())


def test_same_size_is_nothing():
    cases = Cases()
    for mode in ("nearest", "linear"):
        cases.add("Resize", SHAPE, *_sizes(*SHAPE), mode=mode)
    assert operators(optimized(cases.net.model())) == []


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"mode": "cubic"}, "mode must be one of nearest, linear"),
        ({"mode": "linear", "antialias": 1}, "antialias must be 0"),
        ({"coordinate_transformation_mode": "tf_crop_and_resize"}, "coordinate_transformation_mode must be"),
        ({"keep_aspect_ratio_policy": "not_larger"}, "keep_aspect_ratio_policy must be 'stretch'"),
    ],
)
def test_refusals(attributes: dict[str, object], message: str):
    cases = Cases()
    cases.add("Resize", (1, 1, 4, 4), *_sizes(1, 1, 6, 6), **attributes)
    with pytest.raises(UnsupportedError, match=message):
        imported(cases.net.model())
