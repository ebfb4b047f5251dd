# SPDX-License-Identifier: Apache-2.0
"""Operators that choose elements by indices: onnxruntime, numpy and C agree; computed indices stay in bounds."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from checks import check_model
from onnx_models import (
    Feeds,
    Net,
    assert_close,
    c_outputs,
    check_everywhere,
    numpy_outputs,
    onnxruntime_outputs,
    operators,
    optimized,
    random_feeds,
    reference_outputs,
)

from mcugen.core.errors import McugenError
from mcugen.driver.compiler import compile_model
from mcugen.hir.interpreter import interpret
from mcugen.hir.types import DType

SIZES = (2, 3, 4, 5)
DTYPES = (np.float32, np.float64, np.int8, np.uint8, np.int16, np.int32, np.int64, np.uint64, bool)


def with_indices(net: Net, feeds: dict[str, np.ndarray], values: object, dtype: type = np.int64) -> str:
    """An input that holds indices."""
    array = np.asarray(values, dtype)
    name = net.input(f"index{len(feeds)}", *array.shape, dtype=dtype)
    feeds[name] = array
    return name


def run(net: Net, feeds: Feeds, expected: Feeds | None = None) -> None:
    """The net with the missing feeds at random."""
    model = net.model()
    check_model(model, random_feeds(model) | dict(feeds), expected)


def test_indices_of_every_form():
    net, feeds = Net(), {}
    net.input("x", *SIZES)
    for axis in range(4):
        for number, values in enumerate((1, [1, -1, 0, 0], [[0, -2], [1, 1]])):
            for dtype in (np.int32, np.int64):
                name = with_indices(net, feeds, values, dtype)
                net.output(net.op("Gather", "x", name, axis=axis, out=f"run{axis}_{number}_{dtype.__name__}"))
            constant = net.const(values, np.int64)
            net.output(net.op("Gather", "x", constant, axis=axis, out=f"constant{axis}_{number}"))
    run(net, feeds)


def test_every_element_type_is_taken():
    net, feeds = Net(), {}
    few = with_indices(net, feeds, [1, -1, 0])
    places = with_indices(net, feeds, [[1, 2], [-1, 0]])
    elements = with_indices(net, feeds, [[0, -1, 1], [1, 1, 0]], np.int32)
    lengths = with_indices(net, feeds, [1, 3])
    for dtype in DTYPES:
        tag = np.dtype(dtype).name
        x = net.input(f"x_{tag}", 2, 3, 4, dtype=dtype)
        net.output(net.op("Gather", x, few, axis=1, out=f"gather_{tag}"), dtype=dtype)
        net.output(net.op("Gather", x, few, axis=2, out=f"last_{tag}"), dtype=dtype)
        net.output(net.op("GatherND", x, places, out=f"nd_{tag}"), dtype=dtype)
        flat = net.op("Reshape", x, net.const([2, 12], np.int64), out=f"flat_{tag}")
        net.output(net.op("GatherElements", flat, elements, axis=1, out=f"elements_{tag}"), dtype=dtype)
        reverse = {"batch_axis": 0, "time_axis": 1}
        net.output(net.op("ReverseSequence", x, lengths, out=f"reversed_{tag}", **reverse), dtype=dtype)
    model = net.model()
    feeds = random_feeds(model) | feeds
    expected = reference_outputs(model, feeds)
    run(net, feeds, expected)


def test_nd_and_elements_of_every_shape():
    net, feeds = Net(), {}
    net.input("x", *SIZES)
    random = np.random.default_rng(0)
    for batch in (0, 1, 2):
        for depth in (1, 2):
            limits = SIZES[batch : batch + depth]
            shape = (*SIZES[:batch], 3, 2, depth)
            values = random.integers([-n for n in limits], limits, shape)
            name = with_indices(net, feeds, values)
            net.output(net.op("GatherND", "x", name, batch_dims=batch, out=f"nd{batch}{depth}"))
            net.output(net.op("GatherND", "x", net.const(values, np.int64), batch_dims=batch, out=f"fix{batch}{depth}"))
    for axis, shape in ((0, (5, 3, 4, 5)), (1, (2, 7, 3, 1)), (-1, (1, 3, 2, 8)), (2, SIZES)):
        values = random.integers(-SIZES[axis], SIZES[axis], shape)
        name = with_indices(net, feeds, values, np.int32)
        net.output(net.op("GatherElements", "x", name, axis=axis, out=f"elements{axis}"))
        net.output(net.op("GatherElements", "x", net.const(values, np.int64), axis=axis, out=f"constant{axis}"))
    run(net, feeds)


def test_computed_indices_stay_in_bounds():
    """The sanitizers watch; numpy says which elements are taken instead."""
    net, feeds = Net(), {}
    net.input("x", 3, 4)
    extremes = [-(2**63), 2**63 - 1, -5, 4, 100, -1]
    name = with_indices(net, feeds, extremes)
    net.output(net.op("Gather", "x", name, axis=1, out="gather"))
    pairs = with_indices(net, feeds, np.reshape(extremes, (3, 2)))
    net.output(net.op("GatherND", "x", pairs, out="nd"))
    rows = with_indices(net, feeds, np.reshape(extremes, (3, 2)))
    net.output(net.op("GatherElements", "x", rows, axis=1, out="elements"))
    lengths = with_indices(net, feeds, [-3, 2**40, 2, 0])
    net.output(net.op("ReverseSequence", "x", lengths, out="reversed"))
    model = net.model()
    feeds = random_feeds(model) | feeds
    found = c_outputs(model, feeds)
    x = feeds["x"]
    np.testing.assert_array_equal(found["gather"], x[:, [0, 3, 0, 3, 3, 3]])
    assert {n: a.tobytes() for n, a in found.items()} == {
        n: a.tobytes() for n, a in numpy_outputs(model, feeds).items()
    }


def test_slices_whose_place_is_computed():
    net, feeds = Net(), {}
    net.input("x", 4, 5, 6)
    cases = [
        ([1], [3], [2], [1], (4, 5, 2)),
        ([-2, 4], [100, -100], [0, 2], [1, -2], (2, 5, 3)),
        ([1, 0], [3, 3], None, None, (2, 3, 6)),
        ([5], [-7], [-1], [-1], (4, 5, 6)),
        ([0, 4, 1], [4, 0, 5], [0, 1, 2], [3, -2, 2], (2, 2, 2)),
    ]
    for number, (*rows, shape) in enumerate(cases):
        for dtype in (np.int32, np.int64):
            names = [with_indices(net, feeds, row, dtype) if row else "" for row in rows]
            y = net.op("Slice", "x", *names, out=f"slice{number}_{dtype.__name__}")
            net.output(y, shape=shape)
    model = net.plain_model()
    check_model(model, random_feeds(model) | feeds)


def test_computed_slices_stay_in_bounds():
    net, feeds = Net(), {}
    net.input("x", 4, 5)
    for number, (start, axis, step) in enumerate(
        ((2**63 - 1, 1, 2**62), (-(2**63), 9, -(2**63)), (3, -7, 2), (4, 0, 0))
    ):
        names = [with_indices(net, feeds, [v]) for v in (start, 0, axis, step)]
        net.output(net.op("Slice", "x", *names, out=f"slice{number}"), shape=(3, 4))
    model = net.plain_model()
    feeds = random_feeds(model) | feeds
    found = c_outputs(model, feeds)
    assert {n: a.tobytes() for n, a in found.items()} == {
        n: a.tobytes() for n, a in numpy_outputs(model, feeds).items()
    }


def test_compress_by_a_constant():
    net = Net()
    net.input("x", 3, 4)
    for number, (condition, axis) in enumerate(
        (([1, 0, 1], 0), ([0, 1, 1, 1], -1), ([0, 1], 1), ([1, 0, 0, 1, 1], None))
    ):
        axes = {} if axis is None else {"axis": axis}
        net.output(net.op("Compress", "x", net.const(condition, bool), out=f"y{number}", **axes))
    run(net, {})


def test_evenly_stepping_constant_indices_are_a_slice():
    net = Net()
    net.input("x", *SIZES)
    net.output(net.op("Gather", "x", net.const([0, 2, 4], np.int64), axis=3, out="even"))
    assert operators(optimized(net.model())) == ["slice"]
    net.output(net.op("Gather", "x", net.const([0, 2, 3], np.int64), axis=3, out="uneven"))
    graph = optimized(net.model())
    assert operators(graph) == ["slice", "gather"]
    assert graph.nodes[1].input(1).type.dtype is DType.UINT8


def test_tables_of_embeddings_lie_in_flash_and_stay_quantized():
    net, random = Net(), np.random.default_rng(0)
    net.input("words", 7, dtype=np.int64)
    codes = net.const(random.integers(-128, 128, (300, 8)), np.int8)
    net.output(net.op("Gather", net.dequantize(codes, 0.1, 3), "words", out="y"))
    net.output(net.op("Gather", net.const(random.standard_normal((50, 4))), "words", out="z"))
    model = net.model()
    feeds = {"words": np.array([0, 49, 3, 3, -1, 17, 48])}
    check_everywhere(model, feeds)
    compiled = compile_model(model)
    assert 2400 + 800 <= compiled.program.weights_size < 3300


def test_quantized_tensors_stay_integer():
    net, feeds = Net(), {}
    net.input("x", 3, 4, dtype=np.int8)
    name = with_indices(net, feeds, [2, 0, -1])
    taken = net.fake(net.op("Gather", net.dequantize("x", 0.1, 5), name), 0.1, 5)
    places = with_indices(net, feeds, [[0, 1, 2, 0]])
    chosen = net.op("GatherElements", taken, places, axis=0)
    net.output(net.quantize(chosen, 0.1, 5, out="y"), dtype=np.int8)
    model = net.model()
    assert operators(optimized(model)) == ["gather", "gather_elements"]
    run(net, feeds)


def test_halves_are_taken_as_they_are():
    net, feeds = Net(), {}
    net.input("x", 3, 4, dtype=np.float16)
    name = with_indices(net, feeds, [2, 0])
    net.output(net.op("Gather", "x", name, out="y"), dtype=np.float16)
    net.output(net.op("Transpose", "x", out="t"), dtype=np.float16)
    model = net.model()
    assert operators(optimized(model)) == ["gather", "transpose"]
    run(net, feeds)


def test_features_of_the_last_axis():
    net = Net()
    x, y = (
        net.input("x", 2, 5),
        net.op("ArrayFeatureExtractor", "x", net.const([[0, 3, 1]], np.int64), domain="ai.onnx.ml"),
    )
    net.output(y, shape=(2, 3))
    model = net.plain_model()
    model.opset_import[-1].CopyFrom(onnx.helper.make_opsetid("ai.onnx.ml", 3))
    feeds = random_feeds(model)
    np.testing.assert_array_equal(c_outputs(model, feeds)[y], feeds[x][:, [0, 3, 1]])


@pytest.mark.parametrize(
    ("op_type", "shape", "indices", "attributes"),
    [
        ("Gather", (2, 3), [3], {"axis": 1}),
        ("Gather", (2, 3), [-4, 0], {"axis": 1}),
        ("Gather", (2, 3), [0], {"axis": 2}),
        ("GatherND", (2, 3), [[0, 3]], {}),
        ("GatherND", (2, 3), [[0, 0, 0]], {}),
        ("GatherND", (2, 3), [[0]], {"batch_dims": -1}),
        ("GatherND", (2, 3), [[0]], {"batch_dims": 5}),
        ("GatherElements", (2, 3), [[0, 5]], {}),
        ("GatherElements", (2, 3), [[0, 0, 0, 0]], {}),
        ("GatherElements", (2, 3), [0], {}),
        ("ReverseSequence", (2, 3), [1, 1], {}),
        ("ReverseSequence", (2, 3), [1, 1, 1], {"batch_axis": 2, "time_axis": 0}),
    ],
)
def test_what_cannot_be_right_is_refused(
    op_type: str, shape: tuple[int, ...], indices: object, attributes: dict[str, int]
):
    net = Net()
    net.input("x", *shape)
    net.op(op_type, "x", net.const(indices, np.int64), out="y", **attributes)
    net.output("y", shape=[1])
    with pytest.raises(McugenError) as error:
        optimized(net.plain_model())
    assert error.value.exit_code in (3, 4), error.value


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16])
def test_tables_are_quantized_before_they_are_read(dtype: type) -> None:
    """The bits are those of ONNX Runtime; a table whose elements are read as reals, too, stays real."""
    for is_shared in (False, True):
        net = Net(21)
        table = net.const(np.random.default_rng(0).standard_normal((20, 6)) * 3)
        gathered = net.op("Gather", table, net.input("i", 3, dtype=np.int64))
        net.output(net.quantize(gathered, 0.017, 0 if dtype is np.int16 else 9, dtype), dtype=dtype)
        if is_shared:
            net.output(net.op("Tanh", gathered, out="real"))
        model = net.model()
        graph = optimized(model)
        kept = {v.type.dtype.value for v in graph.values() if v.data is not None and v.type.count == 120}
        assert kept == ({"float32"} if is_shared else {"int16" if dtype is np.int16 else "int8"})
        feeds = {"i": np.array([0, 19, -3])}
        assert_close(interpret(graph, feeds), onnxruntime_outputs(model, feeds), 1e-6)
