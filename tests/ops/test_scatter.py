# SPDX-License-Identifier: Apache-2.0
"""Operators that write updates where indices tell: onnxruntime or onnx's reference, numpy and C agree."""

from __future__ import annotations

import numpy as np
import pytest
from checks import check_by_reference, check_model
from onnx_models import Net, c_outputs, numpy_outputs, operators, optimized, random_feeds, reference_outputs

from mcugen.core.errors import McugenError

REDUCTIONS = ("none", "add", "mul", "max", "min")


def test_reductions_of_every_type():
    """Every element type, duplicates among the indices, integers that wrap."""
    net = Net(18)
    net.input("rows", 2, 3, dtype=np.int64)
    net.input("places", 4, 1, dtype=np.int64)
    feeds = {"rows": np.array([[0, -1, 2], [2, 2, -3]]), "places": np.array([[1], [-1], [1], [0]])}
    for dtype in (np.float32, np.float64, np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64, np.uint64, bool):
        tag = np.dtype(dtype).name
        x = net.input(f"x_{tag}", 3, 4, dtype=dtype)
        few = net.input(f"few_{tag}", 2, 3, dtype=dtype)
        many = net.input(f"many_{tag}", 4, 4, dtype=dtype)
        for reduction in REDUCTIONS:
            how = {"reduction": reduction}
            y = net.op("ScatterElements", x, "rows", few, axis=0, out=f"elements_{reduction}_{tag}", **how)
            net.output(y, net.op("ScatterND", x, "places", many, out=f"nd_{reduction}_{tag}", **how), dtype=dtype)
    model = net.model()
    feeds = random_feeds(model) | feeds
    for name in [n for n in feeds if n.endswith("64")]:
        if feeds[name].dtype.kind in "iu":
            feeds[name] = feeds[name].astype(np.int64).view(np.uint64).astype(feeds[name].dtype) * 2**40
    with np.errstate(all="ignore"):
        expected = reference_outputs(model, feeds)
    check_model(model, feeds, expected)


def test_places_of_every_shape():
    net, random = Net(18), np.random.default_rng(1)
    sizes = (3, 4, 5)
    net.input("x", *sizes)
    feeds = {}
    for axis, shape in ((0, (6, 4, 5)), (1, (2, 3, 5)), (2, (3, 4, 1)), (-1, (1, 2, 4)), (1, (3, 4, 5))):
        tag = f"{axis}_{'x'.join(map(str, shape))}"
        updates = net.input(f"u{tag}", *shape)
        index = net.input(f"i{tag}", *shape, dtype=np.int32)
        feeds[index] = random.integers(-sizes[axis], sizes[axis], shape).astype(np.int32)
        net.output(net.op("ScatterElements", "x", index, updates, axis=axis, reduction="add", out=f"y{tag}"))
    for depth in (1, 2, 3):
        limits = sizes[:depth]
        values = random.integers([-n for n in limits], limits, (2, 2, depth))
        updates = net.input(f"v{depth}", 2, 2, *sizes[depth:])
        net.output(net.op("ScatterND", "x", net.const(values, np.int64), updates, reduction="mul", out=f"nd{depth}"))
    model = net.model()
    check_model(model, random_feeds(model) | feeds)


BOX = np.stack(np.meshgrid([0, 1], np.arange(3), [1, 2], indexing="ij"), -1)
"""x[0:2, 0:3, 1:3]"""
KNOWN = {
    "all of the first axis": (np.arange(4)[:, None], True),
    "some of it": ([[1], [2]], True),
    "from the end": ([[-2], [-1]], True),
    "a box in the middle": (BOX, True),
    "backwards": ([[2], [1]], False),
    "with a hole": ([[0], [2]], False),
    "twice": ([[1], [1]], False),
    "next to nothing": ([[[1, 2, 3]]], False),
}


@pytest.mark.parametrize("case", KNOWN)
def test_known_places_that_are_a_box_are_parts_joined(case: str):
    index, joins = KNOWN[case]
    index = np.array(index, np.int64)
    net = Net(18)
    net.input("x", 4, 3, 5)
    updates = net.input("u", *index.shape[:-1], *(4, 3, 5)[index.shape[-1] :])
    net.output(net.op("ScatterND", "x", net.const(index, np.int64), updates, out="y"))
    net.output(net.op("ScatterND", "x", net.const(index, np.int64), updates, reduction="add", out="sum"))
    model = net.model()
    assert operators(optimized(model)).count("scatter_nd") == 2 - joins
    check_model(model, random_feeds(model))


def test_tensor_scatter():
    net = Net(24)
    feeds = {}
    for number, (shape, axis, count, first) in enumerate(
        (
            ((2, 3, 5, 4), -2, 2, [1, 3]),
            ((3, 4, 2), 1, 4, [0, 0, 0]),
            ((2, 3, 6), 2, 3, [3, 0]),
            ((2, 5, 3), 1, 2, None),
        )
    ):
        x = net.input(f"x{number}", *shape)
        updates = net.input(f"u{number}", *shape[: axis % len(shape)], count, *shape[axis % len(shape) + 1 :])
        index = "" if first is None else net.input(f"i{number}", shape[0], dtype=np.int64)
        if first is not None:
            feeds[index] = np.asarray(first)
        for mode in ("linear", "circular"):
            net.output(net.op("TensorScatter", x, updates, index, axis=axis, mode=mode, out=f"{mode}{number}"))
    around = net.input("around", 2, dtype=np.int64)
    feeds[around] = np.array([4, 13])
    net.output(net.op("TensorScatter", "x3", "u3", around, axis=1, mode="circular", out="around_the_end"))
    check_by_reference(net, feeds)


def test_computed_indices_stay_in_bounds():
    net = Net(24)
    net.input("x", 3, 4)
    net.input("updates", 3, 2)
    extremes = np.array([[-(2**63), 2**63 - 1], [-5, 4], [100, -1]])
    net.input("index", 3, 2, dtype=np.int64)
    net.input("first", 3, dtype=np.int64)
    net.output(net.op("ScatterElements", "x", "index", "updates", axis=1, out="elements"))
    net.output(net.op("ScatterND", "x", "index", net.input("values", 3), reduction="add", out="nd"))
    net.output(net.op("TensorScatter", "x", "updates", "first", axis=1, out="linear"))
    net.output(net.op("TensorScatter", "x", "updates", "first", axis=1, mode="circular", out="circular"))
    model = net.model()
    feeds = random_feeds(model) | {"index": extremes, "first": np.array([-(2**63), 2**63 - 1, 3])}
    found = c_outputs(model, feeds)
    assert {n: a.tobytes() for n, a in found.items()} == {
        n: a.tobytes() for n, a in numpy_outputs(model, feeds).items()
    }


def test_writing_in_place_spares_the_copy_only_where_it_may():
    """The tensor is read again after the first scatter, and is also the update of the second."""
    net = Net(18)
    net.input("x", 3, 4)
    net.input("index", 3, 4, dtype=np.int64)
    y = net.op("Relu", "x")
    first = net.op("ScatterElements", y, "index", "x", axis=1, out="first")
    second = net.op("ScatterElements", y, "index", y, axis=1, reduction="add", out="second")
    net.output(net.op("Add", first, second, out="y"))
    model = net.model()
    check_model(model, random_feeds(model) | {"index": np.arange(12).reshape(3, 4)[:, ::-1] % 4})


def test_nothing_to_write():
    net = Net(18)
    net.input("x", 3, 4)
    empty = [net.const(np.zeros((0, 4)), np.int64), net.const(np.zeros((0, 4)))]
    net.output(net.op("ScatterElements", "x", *empty, out="y"))
    assert operators(optimized(net.model())) == []


@pytest.mark.parametrize(
    ("op_type", "index", "updates", "attributes"),
    [
        ("ScatterElements", [[3]], [[1.0]], {}),
        ("ScatterElements", [[0]], [[1.0, 2.0]], {}),
        ("ScatterElements", [0], [1.0], {}),
        ("ScatterElements", [[0]], [[1.0]], {"axis": 5}),
        ("ScatterElements", [[0]], [[1.0]], {"reduction": "sub"}),
        ("ScatterND", [[0, 9]], [1.0], {}),
        ("ScatterND", [[0, 0, 0]], [1.0], {}),
        ("ScatterND", [[0]], [1.0], {}),
        ("TensorScatter", [[[0]]], [1], {}),
    ],
)
def test_what_cannot_be_right_is_refused(op_type: str, index: object, updates: object, attributes: dict[str, object]):
    net = Net(24)
    net.input("x", 2, 3)
    net.op(op_type, "x", net.const(index, np.int64), net.const(updates), out="y", **attributes)
    net.output("y", shape=[2, 3])
    with pytest.raises(McugenError) as error:
        optimized(net.plain_model())
    assert error.value.exit_code in (3, 4), error.value
