# SPDX-License-Identifier: Apache-2.0
"""The interpreters of expressions agree: numpy, C, Helium's forms, bounds, headers."""

from __future__ import annotations

import ctypes
import itertools
import subprocess
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mcugen.expressions import functions as fn
from mcugen.expressions.c import Binding, c_text
from mcugen.expressions.cost import is_short, operations
from mcugen.expressions.intervals import bounds
from mcugen.expressions.mve import helium_text
from mcugen.expressions.nodes import (
    Argument,
    Constant,
    Convert,
    Entry,
    Expression,
    Parameter,
    Shared,
    Table,
    UnaryExpression,
    both,
    call,
    differ,
    either,
    select,
)
from mcugen.expressions.parts import headers, parameters
from mcugen.expressions.values import evaluate
from mcugen.hir.operator import Signature
from mcugen.hir.types import Array, DType, QuantParams, TensorType
from mcugen.kernels.portable.elementwise import Scalars
from mcugen.numerics.curves import CURVE_INPUTS, Line, interpolation
from mcugen.ops.conversion import Cast, Dequantize, Quantize
from mcugen.ops.elementwise import Elementwise, Interpolate, Linear, Lookup, _argument
from mcugen.ops.lines import FixedAffine, FixedPRelu
from mcugen.ops.pointwise import BINARY_FUNCTIONS, UNARY_FUNCTIONS, Binary, Clamp, Where

RUNTIME = Path(__file__).resolve().parents[2] / "runtime_c"
STRICT = ("-std=c99", "-O1", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Werror")
TYPES = [t for t in DType if (t.is_float or t.is_integer) and t.value not in ("int2", "uint2", "int4", "uint4")]
ATTRIBUTES = (0.7, 1.3)

X, Y = Argument("x", DType.FLOAT32), Argument("y", DType.FLOAT32)
CODE = Argument("q", DType.INT16, exact=True)


def rows() -> Iterator[tuple[str, DType, Expression]]:
    """Every function of every type that it takes, of x and y."""
    for dtype, (name, row) in itertools.product(TYPES, (UNARY_FUNCTIONS | BINARY_FUNCTIONS).items()):
        unsigned = dtype.is_integer and not dtype.limits[0]
        if not row.takes(dtype) or (unsigned and name == "PRelu"):  # which is imported as what it is, the identity
            continue
        variables: list[Expression] = [Argument("x", dtype), Argument("y", dtype)][
            : 1 if name in UNARY_FUNCTIONS else 2
        ]
        constants = [Constant(v, dtype) for v in ATTRIBUTES[: len(signature(row.build).parameters) - len(variables)]]
        yield name, dtype, row.build(*variables, *constants)


def numbers(random: np.random.Generator, dtype: DType) -> Array:
    """Random ones, then every pair of extremes (by the other operand's order)."""
    if dtype.is_float:
        extremes = [0.0, -0.0, 1.0, -1.5, 2.5, 89.0, -104.0, 3e38, 1e-40, np.inf, -np.inf, np.nan]
        return np.concatenate([random.standard_normal(300) * 3, extremes]).astype(dtype.numpy)
    low, high = dtype.limits
    extremes = [0, 1, 2, low, low + 1, high, high - 1, max(low, -1)]
    some = random.integers(max(low, -100), 100, 300)
    return np.concatenate([some.astype(dtype.numpy), np.array(extremes * 2, dtype.numpy)])


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """All rows in two files of C: one includes math.h, the other has those rows that do not ask for it."""
    folder = tmp_path_factory.mktemp("expressions")
    texts = {True: "#include <math.h>\n", False: ""}
    for name, dtype, expression in rows():
        result = DType.BOOL if (UNARY_FUNCTIONS | BINARY_FUNCTIONS)[name].tests else dtype
        texts["math.h" in headers(expression)] += (
            f"void {name}_{dtype.tag}(const {dtype.c} *a, const {dtype.c} *b, {result.c} *to, int n);\n"
            f"void {name}_{dtype.tag}(const {dtype.c} *a, const {dtype.c} *b, {result.c} *to, int n)\n{{\n"
            f"    for (int i = 0; i < n; ++i) {{\n        const {dtype.c} x = a[i], y = b[i];\n        (void)y;\n"
            f"        to[i] = {c_text(expression)};\n    }}\n}}\n"
        )
    for number, text in enumerate(texts.values()):
        (folder / f"{number}.c").write_text('#include "functions.h"\n' + text)
    sources = [str(folder / f"{number}.c") for number in range(2)]
    command = [
        "gcc",
        *STRICT,
        "-shared",
        "-fPIC",
        f"-I{RUNTIME}",
        f"-I{RUNTIME / 'include'}",
        *sources,
        "-o",
        str(folder / "all.so"),
        "-lm",
    ]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(folder / "all.so"))


def test_numpy_and_c_agree(library: ctypes.CDLL):
    random, count = np.random.default_rng(5), 0
    for name, dtype, expression in rows():
        x, y = (random.permutation(numbers(random, dtype)) for _ in range(2))
        if name == "Pow" and dtype.is_float:
            x = np.abs(x)
        wanted = evaluate(expression, {"x": x, "y": y})
        result = np.empty(len(x), bool if (UNARY_FUNCTIONS | BINARY_FUNCTIONS)[name].tests else dtype.numpy)
        pointers = (array.ctypes.data_as(ctypes.c_void_p) for array in (x, y, result))
        getattr(library, f"{name}_{dtype.tag}")(*pointers, len(x))
        wanted = wanted.astype(result.dtype)
        if result.dtype.kind == "f":
            near = 2e-6 if dtype is DType.FLOAT32 else 1e-12  # of terms of about 1, which may cancel
            with np.errstate(all="ignore"):
                np.testing.assert_allclose(result, wanted, near, near, err_msg=f"{name} {dtype.value}")
        else:
            np.testing.assert_array_equal(result, wanted, err_msg=f"{name} {dtype.value}")
        count += 1
    assert count > 250


def test_headers_are_asked_for_where_they_are_needed():
    assert headers(call(fn.EXP, X)) == {"mcugen.h"}
    assert headers(1 + call(fn.EXP, Argument("x", DType.FLOAT64))) == {"math.h"}
    assert headers(X / (1 + call(fn.ABS, X))) == {"math.h"}
    assert headers(X * 2 + Y) == set()


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (X - (Y - 1), "x - (y - 1.0f)"),
        (X - Y - 1, "x - y - 1.0f"),
        (X / (Y * X), "x / (y * x)"),
        (-UnaryExpression("-", X), "-(-x)"),
        (-Constant(-2.0, DType.FLOAT32), "-(-2.0f)"),
        (select(X < 0, 0, select(X > 1, 1, X)), "(x < 0.0f ? 0.0f : (x > 1.0f ? 1.0f : x))"),
        (select(X < 0, select(Y < 0, X, Y), Y), "(x < 0.0f ? (y < 0.0f ? x : y) : y)"),
        (X * select(X < Y, X, Y), "x * (x < y ? x : y)"),
        (differ(X < 0, Y < 0), "(x < 0.0f) != (y < 0.0f)"),
        (both(either(X < Y, X < 0), Y < 0), "(x < y || x < 0.0f) && y < 0.0f"),
        (UnaryExpression("!", X < 0), "!(x < 0.0f)"),
        ((CODE >> 3) + 1, "(q >> 3) + 1"),
        ((CODE + 1) >> 3, "mcugen_shift_right(q + 1, 3)"),
        ((CODE & 7) ^ 4, "(q & 7) ^ 4"),
        (differ(CODE & 7, 0), "(q & 7) != 0"),
        (call(fn.CLAMP, Shared(CODE + 1), -1, CODE + 1), "mcugen_clamp((q + 1), -1, q + 1)"),
        (Argument("i", DType.INT8) + 1, "(int8_t)mcugen_signed((uint32_t)i + (uint32_t)1)"),
        (-Argument("i", DType.INT64), "mcugen_signed_long(0u - (uint64_t)i)"),
        (Convert(DType.BOOL, X + 1), "(x + 1.0f != 0)"),
    ],
)
def test_c_has_the_parentheses_that_it_needs(expression: Expression, text: str):
    assert c_text(expression) == text


def test_c_of_a_whole_statement_needs_no_parentheses():
    assert c_text(select(X < 0, 0, X), Binding.SELECT) == "x < 0.0f ? 0.0f : x"


def test_parameters_are_told_apart_by_name():
    k0, k1 = Parameter("k0", 0.5, DType.FLOAT32), Parameter("k1", 0.5, DType.FLOAT32)
    assert {p.name for p in parameters(X * k0 + k1)} == {"k0", "k1"}


def test_short_are_few_operations_without_long_functions():
    assert operations(Shared(X + 1) * Shared(X + 1)) == 3
    assert is_short([call(fn.MAX, X * 2 + Y, 0)])
    assert not is_short([call(fn.TANH, X)])
    assert not is_short([X * X + X] * 20)


# --------------------------------------------------------------------------------------- quantized operators


def quantized(dtype: DType, scale: float, zero: int) -> TensorType:
    return TensorType((64,), dtype, QuantParams((scale,), zero))


Case = tuple[Elementwise, Signature, tuple[Array, ...]]


def cases() -> Iterator[Case]:
    """Operators of codes with their types and constant inputs (of tables and channels)."""
    s8, wide, other = quantized(DType.INT8, 0.02, 5), quantized(DType.INT16, 3e-4, 0), quantized(DType.INT8, 0.05, -7)
    natural = quantized(DType.INT16, 2.0**-15, 0)
    for function, (x, y, out) in itertools.product(
        ("Add", "Sub", "Mul", "Max", "Min", "PRelu"), ((s8, other, s8), (wide, s8, wide), (wide, natural, s8))
    ):
        for clamp in (None, (0.0, 0.9)):
            yield Binary(function, clamp), Signature((x, y), (out,)), ()
    random = np.random.default_rng(1)
    for out in (s8, wide):
        line = Line.requantization(quantized(DType.INT16, 1.1e-4, 0), out)
        yield Linear("line", line), Signature((wide,), (out,)), ()
        found = interpolation(np.tanh(CURVE_INPUTS / 5000) / out.q.scale[0] + out.q.zero_point, out.dtype)
        assert found is not None
        types = wide, TensorType(found[1].shape, DType.of(found[1]))
        yield Interpolate("tanh", found[0]), Signature(types, (out,)), (found[1],)
        bool_, types = TensorType((64,), DType.BOOL), (wide, s8)
        yield Where(), Signature((bool_, *types), (out,)), ()
    table = random.integers(-128, 128, 256).astype(np.int8)
    yield Lookup("any"), Signature((s8, TensorType((256,), DType.INT8)), (s8,)), (table,)
    factors, starts = (random.integers(-(2**20), 2**20, 64).astype(np.int32) for _ in range(2))
    int32 = TensorType((64,), DType.INT32)
    yield FixedAffine(14), Signature((s8, int32, int32), (s8,)), (factors, starts)
    yield FixedPRelu(16, 1 << 15), Signature((s8, int32), (s8,)), (factors,)


CASES = list(cases())
IDS = [f"{op.name} {sig.input(0).dtype.value} {sig.output.dtype.value}" for op, sig, _ in CASES]


def intervals(random: np.random.Generator, sig: Signature, constants: tuple[Array, ...]) -> list[tuple[Array, Array]]:
    ends = []
    for tensor in sig.inputs[: len(sig.inputs) - len(constants)]:
        assert tensor is not None
        low, high = (0, 1) if tensor.dtype is DType.BOOL else tensor.dtype.limits
        pair = random.integers(low, high, (2, *tensor.shape), endpoint=True).astype(tensor.dtype.numpy)
        ends.append((pair.min(0), pair.max(0)))
    return [*ends, *((c, c) for c in constants)]


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_values_lie_within_their_bounds(case: Case):
    op, sig, constants = case
    random = np.random.default_rng(2)
    ends = intervals(random, sig, constants)
    (found,) = op.bounds(sig, *ends)
    if isinstance(op, Interpolate):  # between two entries it may do anything, as far as bounds know
        assert found is None
        return
    assert found is not None
    values = []
    for _ in range(200):
        arrays = [
            low if low is high else random.integers(low, high, endpoint=True).astype(low.dtype) for low, high in ends
        ]
        values.append(op.evaluate(sig, *arrays)[0])
    corners = [op.evaluate(sig, *arrays)[0] for arrays in itertools.product(*ends)]
    least, most = np.minimum.reduce([*values, *corners]), np.maximum.reduce([*values, *corners])
    assert (found[0] <= least).all() and (most <= found[1]).all()
    if op.name in ("add", "sub", "mul", "max", "min", "linear", "affine"):  # no operand stands in it twice
        np.testing.assert_array_equal(found, (np.minimum.reduce(corners), np.maximum.reduce(corners)))


def test_bounds_of_a_table_are_those_of_the_entries_between():
    random = np.random.default_rng(3)
    table = random.integers(-1000, 1000, 77)
    expression = Entry(Table("t", DType.INT16), CODE)
    first, last = np.sort(random.integers(0, 77, (2, 500)), axis=0)
    found = bounds(expression, {"t": (table, table), "q": (first, last)})
    assert found is not None
    wanted = [(table[a : b + 1].min(), table[a : b + 1].max()) for a, b in zip(first, last, strict=True)]
    np.testing.assert_array_equal(np.transpose(found), wanted)
    assert bounds(expression, {"t": (table, table), "q": (first, last + 77)}) is None


def test_bounds_of_a_table_by_bytes_know_that_codes_have_a_sign():
    """From -3 to 2 are six entries, of which those of negative codes stand at the end."""
    table = np.random.default_rng(1).integers(-128, 128, 256).astype(np.int8)
    expression = Entry(Table("t", DType.INT8), Convert(DType.UINT8, CODE))
    first, last = np.array([-128, -3, 5, -7, 127]), np.array([127, 2, 9, -7, 127])
    low, high = bounds(expression, {"t": (table, table), "q": (first, last)}) or ((), ())
    codes = [np.arange(a, b + 1).astype(np.int8).view(np.uint8) for a, b in zip(first, last, strict=True)]
    assert [*low] == [table[each].min() for each in codes]
    assert [*high] == [table[each].max() for each in codes]


def test_of_unknown_reals_nothing_is_known():
    assert bounds(call(fn.TANH, X), {}) is None
    assert bounds(X + 1, {}) is None
    known = bounds(call(fn.TANH, X), {"x": (np.float32(-1), np.float32(2))})
    assert known is not None and known == (np.tanh(np.float32(-1)), np.tanh(np.float32(2)))


MONOTONE = [f for f in vars(fn).values() if isinstance(f, fn.Function) and f.is_monotone and f.result is None]


@pytest.mark.parametrize("function", MONOTONE, ids=lambda f: f.symbol)
def test_monotone_functions_are(function: fn.Function):
    count = len(signature(function.reference).parameters) if not isinstance(function.reference, np.ufunc) else 1
    x = np.linspace(-20, 20, 4001)
    with np.errstate(all="ignore"):
        for position in range(count):
            others = [np.full_like(x, v) for v in (-1.5, 2.5)[: count - 1]]
            y = function.reference(*others[:position], x, *others[position:])
            steps = np.diff(y[np.isfinite(y)])
            assert (steps >= 0).all() or (steps <= 0).all()


def of_arguments(op: Elementwise, sig: Signature, form: str) -> Any:
    """The scalar or the vector form of an operator, if it has that."""
    args = [_argument(f"x{i}", sig.input(i), i in op.tables) for i in range(len(sig.inputs))]
    return op.vector(sig, args, Scalars()) if form == "vector" else op.expression(sig, args, Scalars())


def test_helium_computes_the_same():
    reals = TensorType((64,), DType.FLOAT32)
    more: list[Case] = [(Dequantize(), Signature((t,), (reals,)), ()) for t in (CASES[0][1].input(0),)]
    compared = set()
    random = np.random.default_rng(4)
    for op, sig, constants in [*CASES, *more]:
        vector = of_arguments(op, sig, "vector")
        if vector is None:
            continue
        arrays = [pair[0] for pair in intervals(random, sig, constants)]
        found = evaluate(vector, {f"x{i}": a for i, a in enumerate(arrays)})
        np.testing.assert_array_equal(found.astype(sig.output.dtype.numpy), op.evaluate(sig, *arrays)[0])
        assert helium_text(vector).startswith("v")
        compared.add(op.name)
    assert compared >= {"add", "sub", "mul", "interpolate", "lookup", "dequantize"}


def test_helium_folds_only_natural_indices_into_addresses():
    table = Table("t", DType.INT16)
    assert "(t + 1)" in helium_text(Entry(table, ((CODE + 32768) >> 5) + 1))
    assert "(t + " not in helium_text(Entry(table, CODE + 128))


@pytest.mark.parametrize("dtype", [DType.INT8, DType.INT16], ids=lambda t: t.value)
def test_conversions_are_those_of_onnx(dtype: DType):
    reals, codes = TensorType((9,), DType.FLOAT32), TensorType((9,), dtype, QuantParams((0.5,), -4))
    x = np.array([0.0, -0.25, 0.25, 0.75, 1e9, -1e9, np.inf, -np.inf, np.nan], np.float32)
    sig, back = Signature((reals,), (codes,)), Signature((codes,), (reals,))
    q = evaluate(of_arguments(Quantize(), sig, "scalar"), {"x0": x})
    low, high = dtype.limits
    np.testing.assert_array_equal(q, [-4, -4, -4, -2, high, low, high, low, low])
    np.testing.assert_array_equal(q, Quantize().evaluate(sig, x)[0])
    real = evaluate(of_arguments(Dequantize(), back, "scalar"), {"x0": q})
    np.testing.assert_array_equal(real, (q.astype(np.float32) + 4) * np.float32(0.5))
    np.testing.assert_array_equal(real, Dequantize().evaluate(back, q)[0])


def test_constants_are_dequantized_by_channel():
    """Which only numpy does: no kernel meets them."""
    weights = TensorType((2, 2), DType.INT8, QuantParams((0.5, 0.25), 0, axis=0))
    sig = Signature((weights,), (TensorType((2, 2), DType.FLOAT32),))
    (found,) = Dequantize().evaluate(sig, np.array([[1, 2], [3, 4]], np.int8))
    np.testing.assert_array_equal(found, [[0.5, 1], [0.75, 1]])


def test_clamps_keep_nan():
    reals = TensorType((3,), DType.FLOAT32)
    (y,) = Clamp(0.0, 1.0).evaluate(Signature((reals,), (reals,)), np.array([np.nan, -2, 3], np.float32))
    np.testing.assert_array_equal(y, [np.nan, 0, 1])
    (whole,) = Cast(DType.INT4).evaluate(
        Signature((reals,), (TensorType((3,), DType.INT4),)), np.array([np.nan, 9, -2.7], np.float32)
    )
    np.testing.assert_array_equal(whole, [0, -7, -2])
