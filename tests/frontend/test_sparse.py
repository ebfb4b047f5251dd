# SPDX-License-Identifier: Apache-2.0
"""Sparse tensors of a model: as ONNX Runtime reads them, or refused."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import Net, assert_close, check_everywhere, imported, numpy_outputs, onnxruntime_outputs, random_feeds

from mcugen.core.errors import DoesNotFitError, ModelError
from mcugen.core.limits import MAX_ELEMENTS

RANDOM = np.random.default_rng(3)


def sparse(name: str, array: np.ndarray, by_axes: bool) -> onnx.SparseTensorProto:
    places = np.flatnonzero(array)
    indices = np.stack(np.unravel_index(places, array.shape), 1) if by_axes else places
    values = numpy_helper.from_array(array.ravel()[places], name)
    return helper.make_sparse_tensor(values, numpy_helper.from_array(indices.astype(np.int64)), array.shape)


def weights(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return (RANDOM.integers(-9, 10, shape) * (RANDOM.random(shape) < 0.3)).astype(dtype)


def of_parts(values: np.ndarray, indices: object, dims: Sequence[int], dtype: type = np.int64) -> onnx.ModelProto:
    """y = x + w, where w is sparse."""
    net = Net()
    net.output(net.op("Add", net.input("x", 1), "w", out="y"), shape=[None])
    model = net.plain_model()
    parts = numpy_helper.from_array(values, "w"), numpy_helper.from_array(np.asarray(indices, dtype))
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(*parts, dims))
    return model


@pytest.mark.parametrize("by_axes", [False, True])
def test_initializers_are_as_onnxruntime_reads_them(by_axes: bool):
    net = Net()
    x = net.input("x", 1, 3, 8, 8)
    image = net.op("Conv", x, "kernel", pads=[1, 1, 1, 1])
    flat = net.op("Reshape", image, net.const([1, 256], np.int64))
    net.output(net.op("Gemm", flat, "matrix", "bias", out="y"), shape=[1, 5])
    model = net.plain_model()
    arrays = {"kernel": weights(4, 3, 3, 3), "matrix": weights(256, 5), "bias": weights(5)}
    model.graph.sparse_initializer.extend(sparse(name, array, by_axes) for name, array in arrays.items())
    check_everywhere(model)


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.int32, np.int64])
def test_every_element_type(dtype: type):
    net = Net()
    net.output(net.op("Mul", net.input("x", 6, 7, dtype=dtype), "w", out="y"), dtype=dtype, shape=[6, 7])
    model, array = net.plain_model(), weights(6, 7, dtype=dtype)
    model.graph.sparse_initializer.append(sparse("w", array, True))
    feeds = random_feeds(model)
    assert_close(numpy_outputs(model, feeds), {"y": feeds["x"] * array})


def test_constants_and_those_of_branches():
    branches = []
    for name in ("then_branch", "else_branch"):
        body = Net()
        value = sparse("", weights(4), False)
        body.nodes.append(helper.make_node("Constant", [], [f"{name}.w"], sparse_value=value))
        body.output(body.op("Add", "x", f"{name}.w", out=f"{name}.sum"), shape=[4])
        branches.append(body.graph(name))
    net = Net()
    x, chosen = net.input("x", 4), net.input("chosen", 1, dtype=np.bool_)
    net.output(net.op("If", chosen, out="y", then_branch=branches[0], else_branch=branches[1]), shape=[4])
    assert x == "x"
    model = net.plain_model()
    for which in (True, False):
        feeds = random_feeds(model) | {"chosen": np.asarray([which])}
        assert_close(numpy_outputs(model, feeds), onnxruntime_outputs(model, feeds))


def test_nothing_but_zeros_and_no_elements():
    none = np.zeros(0, np.float32)
    for indices, dims in ((np.zeros(0), [3]), (np.zeros((0, 1)), [3])):
        found = numpy_outputs(of_parts(none, indices, dims), {"x": np.ones(1, np.float32)})
        np.testing.assert_array_equal(found["y"], np.ones(3))


@pytest.mark.parametrize(
    ("indices", "dims", "dtype", "found"),
    [
        ([0, 3], [3], np.int64, "an index outside"),
        ([-1, 2], [3], np.int64, "an index outside"),
        ([[0, 0], [0, 2]], [2, 2], np.int64, "an index outside"),
        ([2, 0], [3], np.int64, "do not ascend"),
        ([1, 1], [3], np.int64, "do not ascend"),
        ([[1, 0], [0, 1]], [2, 2], np.int64, "do not ascend"),
        ([0, 1, 2], [3], np.int64, r"\[3\] for 2 values"),
        ([[0], [1]], [2, 2], np.int64, r"\[2, 1\] for 2 values"),
        ([0, 1], [3], np.int32, "indices of int32"),
        ([0, 1], [-3], np.int64, r"shape of \[-3\]"),
    ],
)
def test_indices_that_are_not_as_onnx_has_them_are_refused(indices: object, dims: list[int], dtype: type, found: str):
    with pytest.raises(ModelError, match=rf"the sparse tensor 'w' must be as ONNX has it.*{found}"):
        imported(of_parts(np.ones(2, np.float32), indices, dims, dtype))


@pytest.mark.parametrize("dims", [[MAX_ELEMENTS + 1], [1 << 40, 1 << 40], [2, 1 << 62]])
def test_more_elements_than_any_board_has_are_refused(dims: list[int]):
    with pytest.raises(DoesNotFitError, match="a tensor must have at most"):
        imported(of_parts(np.ones(1, np.float32), [0], dims))


def test_many_large_ones_are_refused():
    model = of_parts(np.ones(1, np.float64), [0], [MAX_ELEMENTS])
    one = model.graph.sparse_initializer[0]
    for number in range(8):
        model.graph.sparse_initializer.add().CopyFrom(one)
        model.graph.sparse_initializer[-1].values.name = f"w{number}"
    with pytest.raises(DoesNotFitError, match="sparse tensors must have at most"):
        imported(model)


def test_values_must_be_readable():
    model = of_parts(np.ones(1, np.float32), [0], [3])
    model.graph.sparse_initializer[0].values.data_type = TensorProto.UNDEFINED
    with pytest.raises(ModelError, match="'w' must be readable"):
        imported(model)
