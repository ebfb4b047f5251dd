# SPDX-License-Identifier: Apache-2.0
"""int16 activations, mixed with int8: operators without weights compute in integers alone, on every CPU alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import onnx
import pytest
from checks import check_c, with_reals
from onnx_models import Feeds, Net, assert_close, numpy_outputs, onnxruntime_outputs, operators, optimized, random_feeds

from mcugen.core.board import load_board
from mcugen.driver.compiler import compile_model
from mcugen.expressions.nodes import Argument, Table
from mcugen.expressions.values import evaluate
from mcugen.hir.interpreter import interpret
from mcugen.hir.types import DType
from mcugen.kernels.portable.elementwise import Scalars
from mcugen.numerics.curves import CURVE_INPUTS, TANH_TABLE, Line, interpolation
from mcugen.numerics.softmax import fixed_log2
from mcugen.ops.pointwise import UNARY_FUNCTIONS

Coded = tuple[type, float, int]
"""Element type, scale, zero point."""

MIXES = [(np.int16, np.int16), (np.int16, np.int8), (np.int8, np.int16)]
MIX_IDS = ["int16", "int16 to int8", "int8 to int16"]


def coded(dtype: type, span: float, zero: int = 0) -> Coded:
    """Codes of the reals up to about `span`; int16 has zero point 0."""
    return dtype, span / (32767 if dtype is np.int16 else 127), 0 if dtype is np.int16 else zero


class Layers:
    """A model of independent quantized layers; layer i gives y{i} from x{i}_0, x{i}_1, …"""

    def __init__(self) -> None:
        self.net = Net(opset=21)
        self.codes: list[Coded] = []

    def add(self, y: Coded, build: Callable[..., str], *inputs: tuple[Sequence[int], Coded]) -> None:
        """`build` writes the float layer on the dequantized inputs, given by shape and codes."""
        index = len(self.codes)
        reals = []
        for number, (shape, (dtype, scale, zero)) in enumerate(inputs):
            q = self.net.input(f"x{index}_{number}", *shape, dtype=dtype)
            reals.append(self.net.dequantize(q, scale, zero, dtype))
        real = self.net.op("Identity", build(self.net, *reals), out=f"real{index}")
        self.net.output(self.net.quantize(real, y[1], y[2], y[0], out=f"y{index}"), dtype=y[0])
        self.codes.append(y)

    def check(self, slack: float = 0.02, feeds: Feeds | None = None) -> onnx.ModelProto:
        """All integers; right but for the rounding and `slack` codes; within one code of onnxruntime; C = numpy."""
        model = self.net.model()
        feeds = random_feeds(model) | dict(feeds or {})
        compiled = compile_model(model)
        assert "quantize" not in " ".join(operators(compiled.graph))
        found = interpret(compiled.graph, feeds)
        expected = onnxruntime_outputs(with_reals(model, len(self.codes)), feeds)
        for index, (dtype, scale, zero) in enumerate(self.codes):
            q, limits = found[f"y{index}"].astype(np.int64), np.iinfo(dtype)
            assert found[f"y{index}"].dtype == dtype
            exact = np.clip(expected[f"real{index}"].astype(np.float64) / scale + zero, limits.min, limits.max)
            assert np.abs(q - exact).max() <= 0.5 + slack, f"layer {index}: {np.abs(q - exact).max()}"
            assert np.abs(q - expected[f"y{index}"]).max() <= 1, f"layer {index}"
        check_c(compiled, feeds, found)
        return model


def every_mix(span: float = 4.0) -> list[tuple[Coded, Coded, Coded]]:
    """Two inputs and an output of int16 and int8, but all int8."""
    types = (np.int16, np.int8)
    mixes = [(a, b, y) for a in types for b in types for y in types][:-1]
    return [(coded(a, span, 7), coded(b, span * 0.61, -20), coded(y, span * 1.37, 11)) for a, b, y in mixes]


# --------------------------------------------------------------------------------------------- two operands


def op(op_type: str, **attributes: object) -> Callable[..., str]:
    return lambda net, *inputs: net.op(op_type, *inputs, **attributes)


@pytest.mark.parametrize("function", ["Add", "Sub", "Mul", "Max", "Min", "PRelu"])
def test_two_tensors(function: str):
    layers = Layers()
    for a, b, y in every_mix():
        layers.add(y, op(function), ((40, 25), a), ((40, 25) if function != "PRelu" else (25,), b))
    layers.check()


def test_extreme_codes_do_not_overflow():
    layers = Layers()
    a = coded(np.int16, 1.0)
    extremes = np.array([-32768, -32767, -1, 0, 1, 32767], np.int16)
    feeds = {}
    for index, (function, span) in enumerate((f, s) for f in ("Add", "Sub", "Mul", "Max") for s in (1.0, 2.0, 1e-3)):
        layers.add(coded(np.int16, span), op(function), ((6, 1), a), ((6,), a))
        feeds |= {f"x{index}_0": extremes[:, None], f"x{index}_1": extremes}
    layers.check(feeds=feeds)


def test_a_clamp_joins_the_sum():
    layers = Layers()
    for a, b, y in every_mix():
        layers.add(y, lambda net, *x: net.op("Relu", net.op("Add", *x)), ((40, 25), a), ((25,), b))
        layers.add(
            y,
            lambda net, *x: net.op("Clip", net.op("Mul", *x), net.const(-1.0), net.const(2.0)),
            ((40, 25), a),
            ((1,), b),
        )
    layers.check()


@pytest.mark.parametrize("function", ["Add", "Sub", "Mul", "Max", "Min", "PRelu"])
def test_constant_vectors(function: str):
    layers = Layers()
    random = np.random.default_rng(1)
    for a, (dtype, scale, zero), y in every_mix():
        codes = random.integers(-100, 100, 25) * (200 if dtype is np.int16 else 1)

        def build(net: Net, x: str, d: type = dtype, s: float = scale, z: int = zero, c: np.ndarray = codes) -> str:
            return net.op(function, x, net.dequantize(net.const(c, d), s, z, d))

        layers.add(y, build, ((40, 25), a))
    layers.check()


def test_selection_by_a_condition():
    layers = Layers()
    for a, b, y in every_mix():
        choices = layers.net.input(f"c{len(layers.codes)}", 40, 1, dtype=np.bool_)
        layers.add(y, lambda net, *x, c=choices: net.op("Where", c, *x), ((40, 25), a), ((25,), b))
        layers.add(y, lambda net, x, c=choices: net.op("Where", c, x, net.const(-1e9)), ((40, 25), a))
    layers.check()


# --------------------------------------------------------------------------------------------- one operand

STEEP = ("Ceil", "Floor", "Round", "Sign", "Log", "Sqrt", "Reciprocal", "Acos", "Acosh", "Asin", "Atanh", "Tan")
"""Functions that jump, or are nearly vertical at some code: no table of lines follows them."""
SMOOTH = sorted(
    name
    for name, row in UNARY_FUNCTIONS.items()
    if row.floats
    and not row.tests
    and name not in (*STEEP, "Shrink", "ThresholdedRelu")
    and onnx.defs.has(name, 21, "")
)
CODE = Argument("q", DType.INT16, exact=True)
EVERY = np.arange(-32768, 32768).astype(np.int16)


def most_of(function: str, span: float) -> float:
    """The largest magnitude of a function within +-span."""
    net = Net(opset=21)
    net.output(net.op(function, net.input("x", 1001), out="y"))
    return float(
        np.abs(onnxruntime_outputs(net.model(), {"x": np.linspace(-span, span, 1001, dtype=np.float32)})["y"]).max()
    )


@pytest.mark.spread(6)
@pytest.mark.parametrize("y", [np.int16, np.int8])
@pytest.mark.parametrize("span", [1.0, 6.0])
def test_every_code_of_every_smooth_function(span: float, y: type):
    """Before the last rounding, tables are within half a code of 16 bits, or a sixteenth of 8."""
    layers, feeds = Layers(), {}
    for index, function in enumerate(SMOOTH):
        layers.add(coded(y, most_of(function, span), 3), op(function), ((65536,), coded(np.int16, span)))
        feeds[f"x{index}_0"] = EVERY
    layers.check(0.6 if y is np.int16 else 0.08, feeds)


@pytest.mark.parametrize("function", STEEP)
def test_functions_that_jump_stay_float(function: str):
    net = Net(opset=21)
    real = net.dequantize(net.input("x", 65536, dtype=np.int16), 1e-4, 0, np.int16)
    net.output(net.quantize(net.op(function, real), 1e-4, 0, np.int16, out="y"), dtype=np.int16)
    assert "quantize" in " ".join(operators(optimized(net.model())))


STRAIGHT: dict[str, Callable[..., str]] = {
    "requantize": op("Identity"),
    "relu": op("Relu"),
    "relu6": lambda net, x: net.op("Clip", x, net.const(0.0), net.const(1.7)),
    "hard_sigmoid": op("HardSigmoid", alpha=0.3),
    "scale and shift": lambda net, x: net.op("Add", net.op("Mul", x, net.const(-0.7)), net.const(0.3)),
    "saturating": lambda net, x: net.op("Mul", x, net.const(9.0)),
}


@pytest.mark.parametrize(("x", "y"), MIXES, ids=MIX_IDS)
def test_straight_functions_need_no_table(x: type, y: type):
    layers, feeds = Layers(), {}
    for index, build in enumerate(STRAIGHT.values()):
        layers.add(coded(y, 1.9, -5), build, ((65536,), coded(x, 3.1)))
        feeds[f"x{index}_0"] = EVERY if x is np.int16 else (EVERY >> 8).astype(np.int8)
    model = layers.check(0.02, feeds)
    wanted = {"linear"} if x is np.int16 else {"lookup"}
    assert set(operators(optimized(model))) == wanted


@pytest.mark.parametrize("y", [np.int16, np.int8])
def test_a_chain_of_functions_is_one_table(y: type):
    layers = Layers()

    def chain(net: Net, x: str) -> str:
        return net.op("Mul", net.op("Tanh", net.op("Softplus", x)), net.const([[0.8]]))

    layers.add(coded(y, 1.0), chain, ((65536, 1), coded(np.int16, 8.0)))
    model = layers.check(0.6 if y is np.int16 else 0.08, {"x0_0": EVERY[:, None]})
    assert operators(optimized(model)) == ["interpolate"]


def test_kinks_lie_between_segments_or_are_cut_by_the_clamp():
    """A function that is straight but for its ends, and one that bends at code 0, are exact."""
    reals = CURVE_INPUTS * (4.0 / 32767)
    for wanted in (np.where(reals < 0, 0.01 * reals, reals), np.clip(np.sinh(reals), -3.0, 3.0)):
        found = interpolation(wanted / 4.0 * 32767, DType.INT16)
        assert found is not None
        segments, table = found
        expression = segments.expression(CODE, Table("t", DType.of(table)), Scalars())
        difference = evaluate(expression, {"q": CURVE_INPUTS[:-1], "t": table}) - np.rint(wanted / 4.0 * 32767)[:-1]
        assert np.abs(difference).max() <= 1


@pytest.mark.parametrize("dtype", [DType.INT16, DType.INT8])
@pytest.mark.parametrize("reach", [1.5, 2.0, 4.0, 8.0])
def test_curves_are_not_clamped_where_that_changes_nothing(reach: float, dtype: DType):
    """Saturating ones are, with the same codes as with a clamp that is always there."""
    real = 1 / (1 + np.exp(-CURVE_INPUTS * (reach / 32768)))
    found = interpolation(real * (dtype.limits[1] + 1), dtype)
    assert found is not None
    segments, table = found
    values = {"q": CURVE_INPUTS[:-1], "t": table}
    codes, always = (
        evaluate(each.expression(CODE, Table("t", DType.of(table)), Scalars()), values)
        for each in (segments, replace(segments, within=False))
    )
    np.testing.assert_array_equal(codes, always)
    assert segments.within == ((reach, dtype) not in {(1.5, DType.INT16), (8.0, DType.INT8)})


@pytest.mark.parametrize("slope", [1e-6, 0.3, -0.49999, 0.5, 1.0, -77.7, 1e5])
@pytest.mark.parametrize("constant", [-40000.3, 0.2, 123.4])
def test_lines(slope: float, constant: float):
    exact = slope * CURVE_INPUTS[:-1] + constant
    line = Line.of(slope, constant, -32768, 32767)
    found = evaluate(line.expression(CODE, Scalars()), {"q": CURVE_INPUTS[:-1]})
    assert np.abs(found - np.clip(exact, -32768, 32767)).max() < 0.5001


def squashed(*sizes: int) -> Layers:
    """Sigmoid and tanh of arguments whose scale is a power of two, some of which reach beyond the shared table."""
    layers = Layers()
    for function, scale in product(("Sigmoid", "Tanh"), (2.0**-14, 2.0**-12, 2.0**-10)):
        for y in ((np.int16, 2.0**-15, 0), (np.int16, 2.0**-14, 0), (np.int8, 1 / 120, 5)):
            layers.add(y, op(function), (sizes, (np.int16, scale, 0)))
    return layers


def test_all_codes_of_the_shared_table_in_c():
    """The generated C gives numpy's bits for each argument; one table serves all functions and scales."""
    layers = squashed(256, 256)
    model = layers.net.model()
    feeds = {f"x{i}_0": CURVE_INPUTS[:-1].astype(np.int16).reshape(256, 256) for i in range(len(layers.codes))}
    compiled = compile_model(model)
    of_int16 = [v for n in compiled.graph.nodes for i, v in enumerate(n.inputs) if i in getattr(n.op, "tables", ())]
    assert of_int16 and all(v is not None and v.data is TANH_TABLE for v in of_int16)
    check_c(compiled, feeds, interpret(compiled.graph, feeds))


# ---------------------------------------------------------------------------------------- pools, reductions


@pytest.mark.parametrize(("x", "y"), MIXES, ids=MIX_IDS)
def test_average_pools(x: type, y: type):
    layers = Layers()
    for attributes in ({}, {"pads": [1, 0, 1, 1]}, {"pads": [1, 1, 1, 1], "count_include_pad": 1, "strides": [2, 1]}):
        pool = op("AveragePool", kernel_shape=[3, 2], **attributes)
        layers.add(coded(y, 2.0, 9), pool, ((1, 5, 9, 8), coded(x, 3.3, -4)))
    layers.add(coded(y, 2.0, 9), op("GlobalAveragePool"), ((1, 5, 9, 8), coded(x, 3.3, -4)))
    layers.check()


@pytest.mark.parametrize(("x", "y"), MIXES, ids=MIX_IDS)
def test_largest_sums_of_a_pool_do_not_overflow(x: type, y: type):
    layers = Layers()
    layers.add(coded(y, 2.0), op("AveragePool", kernel_shape=[150, 150]), ((1, 1, 150, 151), coded(x, 2.0)))
    feeds = {"x0_0": np.full((1, 1, 150, 151), np.iinfo(x).min, x)}
    layers.check(1.0, feeds)  # onnxruntime adds up floats


@pytest.mark.parametrize(("x", "y"), MIXES, ids=MIX_IDS)
def test_reductions(x: type, y: type):
    layers = Layers()
    for function in ("Mean", "Sum", "Max", "Min"):
        for axes in ([1], [0, 2], [0, 1, 2]):

            def reduce(net: Net, real: str, f: str = function, a: list[int] = axes) -> str:
                return net.op(f"Reduce{f}", real, net.const(a, np.int64))

            layers.add(coded(y, 2.9, -9), reduce, ((7, 20, 6), coded(x, 3.3, -4)))
    layers.check()


# ------------------------------------------------------------------------------------------ softmax, resize


@pytest.mark.parametrize(("x", "y"), MIXES, ids=MIX_IDS)
def test_softmax(x: type, y: type):
    """Probabilities are hardest to round: few are wrong by one code, of 16 bits too."""
    layers = Layers()
    codes = (np.int16, 1 / 32768, 0) if y is np.int16 else (np.int8, 1 / 256, -128)
    for shape, axis, span in (((40, 10), 1, 9.0), ((5, 300), 1, 4.0), ((2, 7, 5), 1, 20.0), ((2, 4000), 1, 60.0)):
        layers.add(codes, op("Softmax", axis=axis), (shape, coded(x, span, 5)))
    layers.check(0.3 if y is np.int16 else 0.01)


@pytest.mark.parametrize(("x", "y"), [*MIXES, (np.int8, np.int8)], ids=[*MIX_IDS, "int8"])
def test_log_softmax(x: type, y: type):
    layers = Layers()
    for shape, axis, span in (((40, 10), 1, 9.0), ((5, 300), 1, 4.0), ((2, 7, 5), 1, 20.0), ((2, 4000), 1, 60.0)):
        layers.add(coded(y, 1.9 * span, 101), op("LogSoftmax", axis=axis), (shape, coded(x, span, 5)))
    layers.add(coded(y, 0.1), op("LogSoftmax"), ((3, 1), coded(x, 1.0)))
    layers.check(0.05)


def test_binary_logarithm():
    v = np.concatenate([np.arange(1, 5000), 2 ** np.arange(32), 2 ** np.arange(1, 33) - 1])
    exact = np.log2(v.astype(np.float64)) * 2**20
    found = fixed_log2(v)
    assert np.abs(found - exact).max() <= 1.01
    assert (found[v == 2**13] == 13 << 20).all()


@pytest.mark.parametrize(("x", "y"), MIXES, ids=MIX_IDS)
def test_resize(x: type, y: type):
    layers = Layers()
    for mode in ("linear", "nearest"):
        for sizes in ([1, 3, 9, 8], [1, 3, 5, 11]):

            def resize(net: Net, real: str, m: str = mode, s: list[int] = sizes) -> str:
                return net.op("Resize", real, "", "", net.const(s, np.int64), mode=m)

            layers.add(coded(y, 2.9, -9), resize, ((1, 3, 5, 4), coded(x, 2.7, -4)))
    layers.check(0.05)


# ------------------------------------------------------------------------------------------------ movements

MOVEMENTS: dict[str, Callable[..., str]] = {
    "transpose": op("Transpose", perm=[0, 2, 3, 1]),
    "reshape": lambda net, x: net.op("Reshape", x, net.const([2, -1], np.int64)),
    "slice": lambda net, x: net.op(
        "Slice", x, net.const([1], np.int64), net.const([3], np.int64), net.const([2], np.int64)
    ),
    "gather": lambda net, x: net.op("Gather", x, net.const([3, 0, 1], np.int64), axis=3),
    "pad": lambda net, x: net.op("Pad", x, net.const([0, 0, 1, 0, 0, 1, 0, 2], np.int64)),
    "pad with a value": lambda net, x: net.op("Pad", x, net.const([0, 0, 1, 0, 0, 1, 0, 2], np.int64), net.const(1.0)),
    "expand": lambda net, x: net.op("Expand", x, net.const([2, 4, 6, 4], np.int64)),
    "max_pool": op("MaxPool", kernel_shape=[2, 3]),
}


@pytest.mark.parametrize(("x", "y"), MIXES, ids=MIX_IDS)
def test_data_moves_as_codes(x: type, y: type):
    layers = Layers()
    for move in MOVEMENTS.values():
        layers.add(coded(y, 2.9, -9), move, ((1, 4, 6, 4), coded(x, 2.7, -4)))
        layers.add(coded(x, 2.7, -4), move, ((1, 4, 6, 4), coded(x, 2.7, -4)))
    layers.check()


def test_tensors_of_several_types_are_joined():
    layers = Layers()
    for a, b, y in every_mix():
        layers.add(y, op("Concat", axis=1), ((3, 50), a), ((3, 60), b))
    layers.add((np.int16, 0.01, 0), op("Concat", axis=1), ((3, 5), (np.int8, 0.01, 0)), ((3, 5), (np.int16, 0.01, 0)))
    layers.check()


# ----------------------------------------------------------------------------------------------- on each CPU


def one_of_each() -> Layers:
    layers = Layers()
    for x, y in MIXES:
        a, b, c = coded(x, 3.3, 7), coded(x, 2.1, -9), coded(y, 2.5, 20)
        for function in ("Add", "Mul", "Max", "PRelu"):
            layers.add(c, op(function), ((4, 30), a), ((4, 30), b))
        for build in (op("Sigmoid"), op("Relu"), op("Softmax", axis=1), op("LogSoftmax", axis=1)):
            layers.add(c, build, ((4, 30), a))
        image = ((1, 5, 6, 4), a)
        layers.add(c, op("AveragePool", kernel_shape=[2, 2], pads=[0, 1, 0, 1]), image)
        layers.add(c, op("MaxPool", kernel_shape=[2, 2]), image)
        layers.add(c, lambda net, real: net.op("ReduceMean", real, net.const([2, 3], np.int64)), image)
        layers.add(
            c, lambda net, real: net.op("Resize", real, "", "", net.const([1, 5, 9, 7], np.int64), mode="linear"), image
        )
    return layers


@pytest.mark.spread(4)
@pytest.mark.qemu
@pytest.mark.parametrize("board", ["rp2040", "stm32f103", "nrf52840", "rt1060", "corstone300"])
def test_the_shared_table_gives_the_same_bits_on_every_cpu(board: str):
    model = squashed(11, 30).net.model()
    feeds = random_feeds(model)
    outputs = compile_model(model, load_board(board)).simulate([feeds], measure=False).outputs[0]
    assert_close(outputs, numpy_outputs(model, feeds))


@pytest.mark.spread(4)
@pytest.mark.qemu
@pytest.mark.parametrize("board", ["rp2040", "stm32f103", "nrf52840", "rt1060", "corstone300"])
def test_the_same_bits_on_every_cpu(board: str):
    model = one_of_each().net.model()
    feeds = random_feeds(model)
    outputs = compile_model(model, load_board(board)).simulate([feeds], measure=False).outputs[0]
    assert_close(outputs, numpy_outputs(model, feeds))
