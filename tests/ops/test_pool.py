# SPDX-License-Identifier: Apache-2.0
"""Pooling: onnxruntime, numpy and C agree over paddings, strides, dilations and rounding of sizes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from checks import SPREAD, Cases, check_by_reference, check_model
from onnx.reference import ReferenceEvaluator
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

from mcugen.core.errors import ModelError, UnsupportedError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.hir.interpreter import interpret

SHAPES = [(1, 3, 7, 9), (2, 6, 8, 5)]
WINDOWS = [
    {"kernel_shape": [2, 2], "strides": [2, 2]},
    {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]},
    {"kernel_shape": [3, 3], "pads": [2, 1, 0, 2]},
    {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
    {"kernel_shape": [2, 4], "strides": [3, 2], "auto_pad": "SAME_LOWER"},
    {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
    {"kernel_shape": [2, 3], "strides": [3, 3], "pads": [1, 1, 1, 1], "ceil_mode": 1},
    {"kernel_shape": [3, 2], "dilations": [2, 3], "strides": [1, 2]},
    {"kernel_shape": [2, 2], "dilations": [3, 2], "pads": [1, 1, 1, 1]},
]
WINDOWS_1D = [
    {"kernel_shape": [3], "strides": [2], "pads": [1, 1]},
    {"kernel_shape": [4], "strides": [3], "ceil_mode": 1},
    {"kernel_shape": [2], "dilations": [3], "pads": [1, 1]},
]
ZEROS = [(-128, 127), (127, -128), (3, -7)]
"""Zero points of input and output."""
PADDED = [w for w in WINDOWS + WINDOWS_1D if "pads" in w or "auto_pad" in w]


def _cases() -> list[tuple[tuple[int, ...], dict[str, object]]]:
    plane = [(shape, window) for shape in SHAPES for window in WINDOWS]
    return plane + [((2, 5, 11), window) for window in WINDOWS_1D]


def test_max_pool():
    cases = Cases()
    for shape, window in _cases():
        cases.add("MaxPool", shape, **window)
    cases.add("MaxPool", (1, 5, 6, 6), dtype=np.int8, **WINDOWS[2])
    cases.add("MaxPool", (1, 5, 6, 6), dtype=np.uint8, **WINDOWS[7])
    cases.check_float()


def test_average_pool():
    cases = Cases()
    for shape, window in _cases():
        cases.add("AveragePool", shape, **window)
    cases.check_float()


def test_average_pool_may_count_padding():
    cases = Cases()
    for window in PADDED:
        cases.add("AveragePool", (2, 5, 9, 8)[: 2 + len(window["kernel_shape"])], count_include_pad=1, **window)
    cases.check_float()


def test_global_pool():
    cases = Cases()
    for op_type in ("GlobalAveragePool", "GlobalMaxPool"):
        cases.add(op_type, (2, 5, 7, 3))
        cases.add(op_type, (1, 3, 11))
        cases.add(op_type, (1, 2, 3, 2, 3))
    cases.check_float()


def test_max_pool_int8():
    cases = Cases()
    for number, (shape, window) in enumerate(_cases()):
        zeros = ZEROS[number % 3]
        x = (0.05, zeros[0])
        y = x if number % 2 else (0.05 + SPREAD, zeros[1])
        cases.add_int8("MaxPool", shape, x, y, **window)
    cases.check_int8()


def test_average_pool_int8():
    cases = Cases()
    for number, (shape, window) in enumerate(_cases()):
        zeros = ZEROS[number % 3]
        cases.add_int8("AveragePool", shape, (0.05, zeros[0]), (0.05 - SPREAD, zeros[1]), **window)
    for number, window in enumerate(PADDED):
        shape, zeros = (2, 5, 9, 8)[: 2 + len(window["kernel_shape"])], ZEROS[number % 3]
        quants = (0.02, zeros[0]), (0.02 - SPREAD, zeros[1])
        cases.add_int8("AveragePool", shape, *quants, count_include_pad=1, **window)
    for zeros in ZEROS:
        cases.add_int8("GlobalAveragePool", (2, 5, 7, 7), (0.05, zeros[0]), (SPREAD, zeros[1]))
        cases.add_int8("GlobalMaxPool", (2, 5, 7, 7), (0.05, zeros[0]), (SPREAD, zeros[1]))
    cases.check_int8()


def test_ties_round_up():
    cases = Cases()
    cases.add_int8("AveragePool", (1, 4, 8, 8), (0.1, 5), (0.1, 5), kernel_shape=[2, 2], strides=[2, 2])
    cases.check_int8(share=0.25)


def test_pool_works_on_pixels():
    """Between convolutions no transposition is left; an average over everything is a reduction."""
    net = Net()
    x = net.input("x", 1, 3, 12, 12)
    for channels, depth in ((4, 3), (5, 4)):
        weights = net.const(np.random.default_rng(0).standard_normal((channels, depth, 3, 3)))
        x = net.op("MaxPool", net.op("Conv", x, weights), kernel_shape=[2, 2])
    x = net.op("AveragePool", x, kernel_shape=[6, 6])
    net.output(net.op("Flatten", x, out="y"))
    assert operators(optimized(net.model())) == [
        *("transpose", "conv", "max_pool", "conv", "max_pool"),
        *("reduce_mean", "reshape"),
    ]
    check_everywhere(net.model())


def _import(op_type: str, shape: tuple[int, ...], **attributes: object) -> None:
    cases = Cases()
    cases.add(op_type, shape, **attributes)
    imported(cases.net.model())


def test_refusals():
    with pytest.raises(UnsupportedError, match="every window must meet the input"):
        _import("AveragePool", (1, 1, 4), kernel_shape=[2], pads=[2, 0])


WINDOWS_3D = [
    {"kernel_shape": [2, 3, 2], "strides": [2, 1, 2], "pads": [1, 0, 1, 0, 2, 0]},
    {"kernel_shape": [2, 2, 3], "dilations": [2, 1, 2], "ceil_mode": 1, "strides": [2, 2, 1]},
    {"kernel_shape": [3, 2, 2], "auto_pad": "SAME_UPPER", "strides": [2, 2, 2]},
]


def test_three_axes():
    cases = Cases(22)
    for window in WINDOWS_3D:
        cases.add("MaxPool", (2, 3, 5, 6, 7), **window)
        cases.add("AveragePool", (2, 3, 5, 6, 7), **window)
        if "dilations" not in window:  # onnxruntime's LpPool does not know them
            cases.add("LpPool", (2, 3, 5, 6, 7), p=2, **window)
    for window in WINDOWS_3D[::2]:
        cases.add("AveragePool", (1, 2, 5, 6, 7), count_include_pad=1, **window)
    cases.add("MaxPool", (1, 2, 4, 4, 6), dtype=np.int8, **WINDOWS_3D[1])
    cases.add("MaxPool", (1, 2, 4, 4, 4), dtype=np.uint8, **WINDOWS_3D[0])
    cases.check_float()


def test_norms_and_float64():
    cases = Cases(17)
    for p in (1, 2, 3):
        cases.add("LpPool", (2, 3, 7, 6), p=p, kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1])
        cases.add("LpPool", (2, 3, 9), p=p, kernel_shape=[3])
        cases.add("GlobalLpPool", (2, 3, 4, 5), p=p)
    cases.add("GlobalLpPool", (2, 3, 2, 3, 2))
    cases.add("MaxPool", (1, 3, 6, 5), dtype=np.float64, kernel_shape=[2, 3], pads=[0, 1, 1, 1])
    cases.check_float(1e-5)


def test_averages_in_float64():
    net = Net(22)
    for number, (op_type, window) in enumerate(
        [("AveragePool", WINDOWS[1]), ("AveragePool", WINDOWS[2]), ("GlobalAveragePool", {}), ("GlobalMaxPool", {})]
    ):
        x = net.input(f"x{number}", 1, 2, 6, 5, dtype=np.float64)
        net.output(net.op(op_type, x, out=f"y{number}", **window), dtype=np.float64)
    check_by_reference(net, relative=1e-12)


def test_indices_and_unpooling():
    """Positions by rows or columns; what was taken goes back, also into a larger tensor."""
    net = Net(22)
    for number, (shape, window) in enumerate(
        [
            ((2, 3, 6, 7), {"kernel_shape": [2, 3], "strides": [2, 2], "pads": [0, 1, 0, 1]}),
            ((1, 2, 9), {"kernel_shape": [3], "strides": [2]}),
            ((1, 2, 4, 5, 4), {"kernel_shape": [2, 2, 2], "strides": [2, 1, 2], "dilations": [1, 2, 1]}),
        ]
    ):
        for order in (0, 1):
            x = net.input(f"x{number}{order}", *shape)
            names = [f"y{number}{order}", f"i{number}{order}"]
            values, indices = net.ops("MaxPool", x, outs=names, storage_order=order, **window)
            net.output(values)
            net.output(indices, dtype=np.int64)
    for dtype in (np.float32, np.float64):
        x = net.input(f"p{dtype.__name__}", 2, 2, 4, 6, dtype=dtype)
        values, indices = net.ops("MaxPool", x, outs=[f"m{dtype.__name__}", f"n{dtype.__name__}"], **WINDOWS[0])
        net.output(net.op("MaxUnpool", values, indices, out=f"u{dtype.__name__}", **WINDOWS[0]), dtype=dtype)
    model = net.model()
    feeds = random_feeds(model)
    found = onnxruntime_outputs(_without_outputs(model, "ufloat64"), feeds)
    found["ufloat64"] = np.asarray(ReferenceEvaluator(model).run(["ufloat64"], dict(feeds))[0])
    check_model(model, feeds, found)


def _without_outputs(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """What onnxruntime has no kernel for."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    kept = [o for o in copy.graph.output if o.name != name]
    del copy.graph.output[:]
    copy.graph.output.extend(kept)
    nodes = [n for n in copy.graph.node if name not in n.output]
    del copy.graph.node[:]
    copy.graph.node.extend(nodes)
    return copy


def test_indices_outside_are_ignored():
    net = Net(22)
    x, indices = net.input("x", 1, 1, 2), net.input("i", 1, 1, 2, dtype=np.int64)
    net.output(net.op("MaxUnpool", x, indices, out="y", kernel_shape=[2], strides=[2]))
    model = net.model()
    at = np.asarray([[[-1, 2**40]]])
    check_model(model, {"x": np.ones((1, 1, 2), np.float32), "i": at}, {"y": np.zeros((1, 1, 4), np.float32)})


def test_local_response_normalization():
    cases = Cases()
    for size in (1, 3, 5):
        cases.add("LRN", (2, 4, 3, 5), size=size, alpha=0.3, beta=0.6, bias=2.0)
    cases.add("LRN", (1, 7, 3, 2), size=3)
    cases.check_float()


def test_local_response_normalization_over_an_even_number_of_channels():
    """ONNX: from floor((size - 1) / 2) channels before to ceil((size - 1) / 2) behind."""
    net = Net()
    net.output(net.op("LRN", net.input("x", 1, 5, 3), out="y", size=4, alpha=0.8, beta=0.5, bias=1.5))
    model = net.model()
    feeds = random_feeds(model)
    x = feeds["x"]
    sums = np.stack([(x[:, max(c - 1, 0) : c + 3] ** 2).sum(1) for c in range(5)], 1)
    check_model(model, feeds, {"y": x / (1.5 + 0.8 / 4 * sums) ** np.float32(0.5)})


def test_a_kernel_larger_than_the_input_is_an_error():
    net = Net()
    net.op("MaxPool", net.input("x", 1, 1, 4), out="y", kernel_shape=[5])
    net.output("y", shape=(1, 1, 0))
    with pytest.raises(ModelError, match="the kernel must fit the input"):
        imported(net.model())


def means_of_many() -> onnx.ModelProto:
    """Means of 256 codes and more: of all pixels, with and without ties, to 8 and 16 bits, and of windows of rows."""
    net = Net(21)

    def mean(number: int, shape: tuple[int, ...], scale: float, dtype: type = np.int8, **window: object) -> None:
        x = net.dequantize(net.input(f"x{number}", 1, *shape, dtype=np.int8), 0.05, -3)
        y = net.op("AveragePool", x, **window) if window else net.op("GlobalAveragePool", x)
        zero = 7 if dtype is np.int8 else 0
        net.output(net.quantize(y, scale, zero, dtype, out=f"y{number}"), dtype=dtype)

    mean(0, (37, 16, 16), 0.05)
    mean(1, (5, 19, 17), 0.02)
    mean(2, (21, 16, 16), 0.0001, np.int16)
    mean(3, (24, 21, 33), 0.013, kernel_shape=[17, 31], strides=[2, 1])
    return net.model()


@pytest.mark.parametrize("board", ["host", "rp2040", "sam3x8e", "nrf52840", "corstone300", "esp32c3"])
@pytest.mark.parametrize("goal", ["balanced", "flash"])
def test_means_of_many_codes(board: str, goal: str) -> None:
    """More than sums of 16 bits hold, the same everywhere."""
    model = means_of_many()
    compiled = compile_model(model, board, CompileOptions(optimize=goal))
    for seed, change in enumerate((0, 1, -1)):
        feeds = random_feeds(model, seed)
        if change:  # the largest sums that there are
            feeds = {name: np.full_like(array, 127 if change > 0 else -128) for name, array in feeds.items()}
        found = compiled.simulate([feeds], measure=False).outputs[0]
        assert_close(found, interpret(compiled.graph, feeds))


@pytest.mark.parametrize(("board", "most"), [("nrf52840", 1.5), ("corstone300", 0.9)])
def test_a_mean_of_many_pixels_takes_few_instructions(board: str, most: float) -> None:
    """Of each code: squeeze-excite has such means of its first maps, and so have networks that end early."""
    net = Net(17)
    x = net.dequantize(net.input("x", 1, 16, 16, 96, dtype=np.int8), 0.05, -3)
    y = net.op("GlobalAveragePool", net.op("Transpose", x, perm=[0, 3, 1, 2]))
    net.output(net.quantize(y, 0.02, 7, out="y"), dtype=np.int8)
    run = compile_model(net.model(), board).simulate([random_feeds(net.model())])
    assert run.instructions is not None and run.instructions < most * 96 * 256
