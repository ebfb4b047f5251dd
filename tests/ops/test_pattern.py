# SPDX-License-Identifier: Apache-2.0
"""Tensors made by a rule of positions, and bytes read as another type: C agrees with numpy and onnx's reference."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from checks import check_by_reference, check_model
from onnx import TensorProto, helper, numpy_helper
from onnx_models import Net, optimized, random_feeds, reference_outputs

from mcugen.core.errors import McugenError


def test_triangles():
    net = Net()
    feeds = {"near": np.array(1), "far": np.array(-(2**62))}
    for name in feeds:
        net.input(name, dtype=np.int64)
    for dtype in (np.float32, np.float64, np.int8, np.int32, np.int64, bool):
        tag = np.dtype(dtype).name
        x = net.input(f"x_{tag}", 2, 4, 5, dtype=dtype)
        for upper in (0, 1):
            for k in ("", "near", "far", net.const(-2, np.int64)):
                y = net.op("Trilu", x, k, upper=upper, out=f"y_{tag}_{upper}_{k}")
                net.output(y, dtype=dtype)
    check_by_reference(net, feeds)


def test_one_hot_vectors():
    net = Net()
    whole = np.array([[1, -1, 7], [-4, 4, 0]])
    feeds = {}
    for dtype in (np.int64, np.int32, np.uint8, np.uint64, np.float32):
        tag = np.dtype(dtype).name
        feeds[net.input(f"x_{tag}", 2, 3, dtype=dtype)] = (
            np.abs(whole).astype(dtype) if tag[0] == "u" else whole.astype(dtype)
        )
        values = net.input(f"values_{tag}", 2, dtype=np.int32)
        for axis in (-1, 0, 1):
            depth = net.const(4, np.int64)
            net.output(net.op("OneHot", f"x_{tag}", depth, values, axis=axis, out=f"y_{tag}_{axis}"), dtype=np.int32)
    check_by_reference(net, feeds)


def test_ranges_of_declared_length():
    net = Net()
    feeds = {}
    for dtype, start, delta in (
        (np.float32, 0.5, -0.25),
        (np.float64, 1 / 3, 1 / 7),
        (np.int16, 5, 3),
        (np.int32, 7, -4),
        (np.int64, 2**62, 2**60),
    ):
        tag = np.dtype(dtype).name
        values = {
            f"start_{tag}": start,
            f"limit_{tag}": start + 7 * delta if tag != "int64" else 2**63 - 1,
            f"delta_{tag}": delta,
        }
        for name, value in values.items():
            feeds[net.input(name, dtype=dtype)] = dtype(value)
        net.output(net.op("Range", *values, out=f"y_{tag}"), dtype=dtype, shape=(2 if tag == "int64" else 7,))
    model = net.plain_model()
    expected = {
        f"y_{n[6:]}": feeds[n] + np.arange(2 if n[6:] == "int64" else 7).astype(v.dtype) * feeds[f"delta_{n[6:]}"]
        for n, v in feeds.items()
        if n[:5] == "start"
    }
    check_model(model, feeds, expected)


def test_identity_matrices_and_constants_of_a_shape():
    net = Net()
    net.input("x", 3, 4)
    net.output(net.op("EyeLike", "x", k=1, out="eye"))
    net.output(net.op("EyeLike", "x", k=-5, dtype=TensorProto.INT8, out="none"), dtype=np.int8)
    net.output(net.op("EyeLike", "x", dtype=TensorProto.FLOAT16, out="halves"), dtype=np.float16)
    net.input("shape", 2, dtype=np.int64)
    value = numpy_helper.from_array(np.array([-3], np.int16))
    net.output(net.op("ConstantOfShape", "shape", value=value, out="filled"), dtype=np.int16, shape=(2, 3))
    model = net.model()
    model.graph.output[-1].CopyFrom(helper.make_tensor_value_info("filled", TensorProto.INT16, (2, 3)))
    feeds = random_feeds(model) | {"shape": np.array([2, 3])}
    expected = reference_outputs(model, feeds)
    check_model(model, feeds, expected)


def test_bytes_read_as_another_type():
    net = Net(26)
    for source, target in (
        (np.float32, np.int32),
        (np.int64, np.float64),
        (np.float16, np.uint16),
        (np.int8, np.uint8),
        (np.uint8, ml_dtypes.float8_e5m2),
        (ml_dtypes.float8_e4m3fn, np.int8),
    ):
        x = net.input(f"x_{np.dtype(source).name}", 2, 3, dtype=source)
        to = helper.np_dtype_to_tensor_dtype(np.dtype(target))
        net.output(net.op("BitCast", x, to=to, out=f"y_{np.dtype(target).name}"), dtype=target)
    check_by_reference(net, {})


@pytest.mark.parametrize(
    ("op_type", "constants", "attributes"),
    [
        ("BitCast", [], {"to": TensorProto.INT8}),
        ("BitCast", [], {"to": TensorProto.STRING}),
        ("BitCast", [], {"to": 12345}),
        ("EyeLike", [], {"dtype": TensorProto.STRING}),
        ("Trilu", [np.array([1, 2])], {}),
        ("OneHot", [np.array(3), np.zeros(3)], {}),
        ("OneHot", [np.array(-3), np.zeros(2)], {}),
        ("OneHot", [np.array(3), np.zeros(2)], {"axis": 4}),
        ("OneHot", [np.array([], np.int64), np.zeros(2)], {}),
        ("OneHot", [np.array(np.nan), np.zeros(2)], {}),
    ],
)
def test_what_cannot_be_right_is_refused(op_type: str, constants: list[np.ndarray], attributes: dict[str, int]):
    net = Net(26)
    net.input("x", 2, 3)
    net.op(op_type, "x", *(net.const(c, c.dtype.type) for c in constants), out="y", **attributes)
    net.output("y", shape=[2, 3])
    with pytest.raises(McugenError) as error:
        optimized(net.plain_model())
    assert error.value.exit_code in (2, 3, 4), error.value


@pytest.mark.parametrize("ends", [(np.nan, 3, 1), (0, np.inf, 1), (0, 3, 0), ([], 3, 1)])
def test_ranges_without_a_length_are_refused(ends: tuple[object, ...]):
    net = Net(20)
    net.output(net.op("Range", *(net.const(end) for end in ends), out="y"))
    with pytest.raises(McugenError, match="finite numbers, and delta not 0"):
        optimized(net.plain_model())
