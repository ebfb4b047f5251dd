# SPDX-License-Identifier: Apache-2.0
"""Resize: onnxruntime, numpy and C agree for every mode, along any axes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from checks import SPREAD, Cases, check_c
from onnx_models import (
    Net,
    assert_close,
    check_everywhere,
    imported,
    numpy_outputs,
    onnxruntime_outputs,
    operators,
    optimized,
    outputs_in_c,
    random_feeds,
    reference_outputs,
)
from shared_models import roomy

from mcugen.core.board import load_board
from mcugen.core.errors import McugenError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
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
        cases.add("Resize", SHAPE, *_scales(1, 1, 0.6, 2 if transform == "align_corners" else 1.7), **mode)
        cases.add("Resize", (1, 2, 9), *_scales(1, 1, 3 if transform == "align_corners" else 2.5), **mode)
    cases.check_float()


@pytest.mark.spread(6)
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("by_scale", [False, True])
def test_neighbours_are_those_of_onnxruntime(transform: str, by_scale: bool):
    """Positions at whole numbers and halves depend on how they are rounded; only numpy is run.

    Where a scale makes a fractional length, align_corners is ONNX's: onnxruntime rounds the length first.
    """
    factors = [0.3, 0.6, 0.7, 1.3, 1.7, 2, 2.5, 3.3, 4] if by_scale else [1, 2, 3, 5, 8, 16, 18, 19, 64]
    for size in (1, 2, 3, 5, 7, 10, 13, 28, 57, 100):
        cases = Cases()
        for factor in factors:
            for rounding in ROUNDINGS:
                out = int(np.float32(factor) * np.float32(size)) if by_scale else factor
                if transform == "align_corners" and abs(factor * size - round(factor * size)) > 1e-6 and by_scale:
                    continue
                if out not in (0, size):  # onnxruntime copies what keeps its size, whatever the scale
                    operands = _scales(factor) if by_scale else _sizes(factor)
                    attributes = {"nearest_mode": rounding, "coordinate_transformation_mode": transform}
                    cases.add("Resize", (size,), *operands, mode="nearest", **attributes)
        model = cases.net.model()
        feeds = random_feeds(model)
        assert_close(interpret(imported(model), feeds), onnxruntime_outputs(model, feeds))


@pytest.mark.parametrize("size", [1, 2, 5, 10, 28])
def test_opset_11_has_a_transformation_of_its_own_for_nearest_neighbours(size: int):
    """tf_half_pixel_for_nn, which converters of TensorFlow wrote until opset 13 struck it."""
    net = Net(11)
    for factor in (2, 3, 4, 0.6, 1.7):
        if int(factor * size) in (0, size):
            continue
        for rounding in ROUNDINGS:
            names = [net.const([]), net.const([1, 1, factor, 2])]  # regions could not be left out yet
            attributes = {"nearest_mode": rounding, "coordinate_transformation_mode": "tf_half_pixel_for_nn"}
            x = net.input(f"x_{factor}_{rounding}", 1, 1, size, 3)
            net.output(net.op("Resize", x, *names, mode="nearest", **attributes))
    model = net.plain_model()
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
        cases.add("Resize", SHAPE, *_scales(1, 1, 0.6, 2 if transform == "align_corners" else 1.7), **mode)
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


def _pixels() -> Cases:
    """Weights of few bits, channels last: along two axes, one axis, and none that moves."""
    cases = Cases()
    same, other, saturating = ((0.05, 3), (0.05, 3)), ((0.05, -128), (0.071, 9)), ((0.05, 127), (0.011, -128))
    for number, (x, y) in enumerate((same, other, saturating)):
        for shape, scales, transform in (
            ((1, 5, 7, 4), (1, 2, 2, 1), "half_pixel"),
            ((2, 6, 5, 12), (1, 4, 2, 1), "pytorch_half_pixel"),
            ((1, 3, 4, 20), (1, 2, 4, 1), "asymmetric"),
            ((1, 1, 9, 8), (1, 1, 2, 1), "half_pixel"),
            ((1, 4, 6, 36), (1, 8, 1, 1), "asymmetric"),
        ):
            mode = {"mode": "linear", "coordinate_transformation_mode": transform}
            cases.add_int8("Resize", shape, x, y, *_scales(*scales), **mode)
        corners = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
        cases.add_int8("Resize", (1, 5, 3, 4 + 4 * number), x, y, *_sizes(1, 9, 5, 4 + 4 * number), **corners)
    return cases


def test_linear_by_weights_of_few_bits():
    cases = _pixels()
    compiled = compile_model(cases.net.model())
    assert {i.kernel for i in compiled.program.instrs} == {"resize_linear_s8_lanes"}
    cases.check_int8(share=0.1)


def _any_weights() -> Cases:
    """Weights of many bits, and channels that fill no vector."""
    cases = Cases()
    for x, y in (((0.05, -128), (0.071, 9)), ((0.05, 127), (0.011, -128)), ((0.05, 3), (0.05, 3))):
        for shape, sizes in (
            ((1, 5, 7, 5), (1, 11, 10, 5)),
            ((2, 6, 7, 1), (2, 11, 7, 1)),
            ((1, 3, 4, 18), (1, 3, 7, 18)),
        ):
            cases.add_int8("Resize", shape, x, y, *_sizes(*sizes), mode="linear")
    return cases


def _rows() -> Cases:
    """Few channels and many, to both ends, where a neighbour counts for all, along one axis or two, up and down."""
    cases = Cases()
    mode = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
    for number, (x, y) in enumerate((((0.05, -128), (0.071, 127)), ((0.05, 127), (0.011, -128)))):
        for channels in (1, 2, 3, 4, 5, 8, 11):
            cases.add_int8("Resize", (1, 4, 5, channels), x, y, *_sizes(1, 11, 13 - 10 * number, channels), **mode)
            cases.add_int8("Resize", (1, 1, 5, channels), x, y, *_sizes(1, 1, 12, channels), **mode)
        cases.add_int8("Resize", (1, 1, 300, 2), x, y, *_sizes(1, 1, 310, 2), **mode)
        cases.add_int8("Resize", (2, 3, 1, 4, 1), x, y, *_sizes(2, 7, 1, 9, 1), **mode)
    return cases


@pytest.mark.spread(4)
@pytest.mark.qemu
@pytest.mark.parametrize("board", ["nrf52840", "corstone300", "rp2040"])
@pytest.mark.parametrize("write", [_pixels, _any_weights, _rows])
def test_linear_on_targets(write: Callable[[], Cases], board: str):
    model = write().net.model()
    feeds = random_feeds(model)
    (found,) = compile_model(model, roomy(board)).simulate([feeds], measure=False).outputs
    for name, wanted in numpy_outputs(model, feeds).items():
        np.testing.assert_array_equal(found[name].reshape(wanted.shape), wanted, err_msg=name)


@pytest.mark.qemu
@pytest.mark.parametrize(
    ("board", "channels", "bound"),
    [
        ("nrf52840", 1, 37),
        ("nrf52840", 3, 21),
        ("nrf52840", 4, 22),
        ("nrf52840", 21, 17),
        ("corstone300", 1, 9),
        ("corstone300", 4, 8),
    ],
)
def test_instructions_of_linear_interpolation(board: str, channels: int, bound: int):
    """Each output, where the weights have many bits; with the bits of numpy where the output lies over the input."""
    cases = Cases()
    cases.add_int8("Resize", (1, 9, 9, channels), (0.05, 3), (0.071, 9), *_sizes(1, 31, 33, channels), mode="linear")
    model = cases.net.model()
    feeds = random_feeds(model)
    run = compile_model(model, roomy(board)).simulate([feeds])
    for name, wanted in numpy_outputs(model, feeds).items():
        np.testing.assert_array_equal(run.outputs[0][name].reshape(wanted.shape), wanted)
    assert run.instructions is not None and run.instructions / (31 * 33 * channels) < bound


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


def _check_reference(net: Net, *, relative: float = 1e-5, steps: int = 0) -> None:
    """ONNX's reference ≈ numpy ≈ C; integers may differ by `steps`."""
    model = net.model()
    feeds = random_feeds(model)
    expected = reference_outputs(model, feeds)
    compiled = compile_model(model)
    found = interpret(compiled.graph, feeds)
    for name, array in expected.items():
        if steps and array.dtype.kind != "f":
            assert np.abs(found[name].astype(int) - array.astype(int)).max() <= steps, name
            expected[name] = found[name]
    assert_close(found, expected, relative)
    check_c(compiled, feeds, found, relative)


def _resize(
    net: Net, shape: tuple[int, ...], *operands: np.ndarray | None, dtype: type = np.float32, **attributes: object
):
    number = len(net.inputs)
    names = ["" if a is None else net.const(a, a.dtype.type) for a in operands]
    x = net.input(f"x{number}", *shape, dtype=dtype)
    net.output(net.op("Resize", x, *names, out=f"y{number}", **attributes), dtype=dtype)


def test_cubic_and_antialiasing():
    net = Net(22)
    for transform in TRANSFORMS:
        mode = {"mode": "cubic", "coordinate_transformation_mode": transform}
        _resize(net, SHAPE, *_sizes(2, 3, 9, 4), **mode)
        _resize(net, SHAPE, *_scales(1, 1, 0.6, 2), exclude_outside=1, cubic_coeff_a=-0.5, **mode)
    for mode in ("linear", "cubic"):
        for outside in (0, 1):
            attributes = {"mode": mode, "antialias": 1, "exclude_outside": outside}
            _resize(net, (1, 2, 13, 9), *_sizes(1, 2, 5, 4), **attributes)
            _resize(net, (1, 9, 8, 2), *_scales(0.4, 1.5), axes=[2, 1], **attributes)
    _resize(net, (2, 3, 4, 5, 6), *_sizes(2, 3, 6, 3, 8), mode="cubic")
    _resize(net, (7,), *_sizes(3), mode="cubic")
    _check_reference(net)


def test_cubic_as_in_onnxruntime():
    cases = Cases()
    for transform in TRANSFORMS:
        mode = {"mode": "cubic", "coordinate_transformation_mode": transform}
        cases.add("Resize", SHAPE, *_sizes(2, 3, 9, 4), **mode)
        cases.add("Resize", SHAPE, *_scales(1, 1, 3, 2), cubic_coeff_a=-0.5, **mode)
    cases.check_float(1e-4)


def test_integers_and_float64():
    net = Net(22)
    for mode in ("linear", "cubic"):
        _resize(net, (1, 2, 6, 5), *_sizes(1, 2, 4, 9), mode=mode, dtype=np.uint8)
        _resize(net, (1, 2, 6, 5), *_sizes(1, 2, 9, 4), mode=mode, dtype=np.int16)
        _resize(net, (1, 2, 6, 5), *_sizes(1, 2, 9, 4), mode=mode, dtype=np.float64)
    for dtype in (np.int32, np.uint16, np.float64):
        _resize(net, (1, 2, 6, 5), *_sizes(1, 2, 9, 4), mode="nearest", dtype=dtype)
    _check_reference(net, steps=1)


def _roi(*bounds: float) -> np.ndarray:
    return np.asarray(bounds, np.float32)


def test_regions_of_interest():
    """What lies outside the tensor has the extrapolation value."""
    net = Net(22)
    crop = {"coordinate_transformation_mode": "tf_crop_and_resize"}
    inner, outer = _roi(0, 0, 0.1, 0.3, 1, 1, 0.7, 0.9), _roi(0, 0, 0.4, 0.6, 1, 1, 1.2, 1.7)
    for mode in ("nearest", "linear", "cubic"):
        _resize(net, SHAPE, inner, None, _sizes(2, 3, 4, 6)[2], mode=mode, **crop)
        _resize(net, SHAPE, outer, None, _sizes(2, 3, 4, 6)[2], mode=mode, extrapolation_value=10.0, **crop)
        _resize(net, SHAPE, _roi(0.9, 0.2, 0.1, 0.7), None, _sizes(3, 5)[2], mode=mode, axes=[3, 2], **crop)
    _resize(net, (1, 4), _roi(0, 3, 1, 4), None, _sizes(1, 3)[2], extrapolation_value=-1.0, **crop)
    _check_reference(net)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_aspect_ratio_may_be_kept(policy: str):
    net = Net(22)
    keep = {"keep_aspect_ratio_policy": policy}
    _resize(net, (1, 2, 6, 5), *_sizes(9, 12), axes=[2, 3], mode="linear", **keep)
    _resize(net, (1, 2, 6, 5), *_sizes(3, 4), axes=[3, 2], mode="nearest", **keep)
    _resize(net, (1, 2, 6, 5), *_sizes(3, 4), axes=[2, 3], mode="cubic", **keep)
    _check_reference(net)


def test_fractional_lengths_with_aligned_corners():
    net = Net(22)
    for mode in ("linear", "cubic"):
        _resize(net, (1, 1, 5, 4), *_scales(1, 1, 1.5, 0.6), mode=mode, coordinate_transformation_mode="align_corners")
    _check_reference(net)


@pytest.mark.parametrize(
    ("attributes", "operands", "message"),
    [
        ({"mode": "spline"}, _sizes(1, 1, 6, 6), "mode must be one of nearest, linear, cubic"),
        ({"coordinate_transformation_mode": "tf"}, _sizes(1, 1, 6, 6), "coordinate_transformation_mode must be"),
        ({"keep_aspect_ratio_policy": "any"}, _sizes(1, 1, 6, 6), "keep_aspect_ratio_policy must be known"),
        ({"axes": [4]}, _sizes(6), "the axis must be one of the tensor's"),
        ({"axes": [2]}, _sizes(2**40), "sizes must be positive"),
        ({"axes": [2]}, _sizes(-1), "sizes must be positive"),
        ({"axes": [2]}, _scales(np.nan), "scales must be positive numbers"),
        ({"axes": [2]}, _scales(np.inf), "scales must be positive numbers"),
        ({"axes": [2]}, _sizes(2, 3), "sizes must be as many as axes"),
        (
            {"coordinate_transformation_mode": "tf_crop_and_resize"},
            (np.zeros(3, np.float32), None, _sizes(1, 1, 6, 6)[2]),
            "roi must bound each axis",
        ),
    ],
)
def test_refusals(attributes: dict[str, object], operands: tuple[np.ndarray | None, ...], message: str):
    net = Net(20)
    names = ["" if a is None else net.const(a, a.dtype.type) for a in operands]
    net.op("Resize", net.input("x", 1, 1, 4, 4), *names, out="y", **attributes)
    net.output("y", shape=(1, 1, 1, 1))
    with pytest.raises(McugenError, match=message):
        imported(net.plain_model())


@pytest.mark.parametrize("factors", [(0.5, 1), (0.5, 2), (0.25, 1), (2, 1), (1, 0.5)])
@pytest.mark.parametrize("dtype", [np.int8, np.int16])
def test_rows_for_two_cores(factors: tuple[float, float], dtype: type):
    """Rows that are made of whole rows each, as halves are, are not computed several at a time by one row's weights."""
    net = Net(20)
    x = net.dequantize(net.input("x", 1, 40, 40, 16, dtype=dtype), 0.02, 0, dtype)
    y = net.op("Resize", x, "", net.const(np.array([1, *factors, 1], np.float32)), mode="linear")
    net.output(net.quantize(y, 0.02, 0, dtype, out="y"), dtype=dtype)
    model = compile_model(net.model(), "rp2350", CompileOptions(cores=2))
    feeds = random_feeds(net.model())
    found = outputs_in_c(replace(model, board=load_board("host")), feeds)
    assert_close(found, interpret(optimized(net.model()), feeds))
