# SPDX-License-Identifier: Apache-2.0
"""Bits of the interpreter: TOSA graphs, compiled by Vela, give the results of TOSA's reference model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import pytest
from ethos_u_streams import TosaGraph, compile_network, reference_outputs

from mcugen.backends.npu.ethos_u.command_stream import decode
from mcugen.backends.npu.ethos_u.command_stream.operations import ElementwiseMode, KernelOperation, PoolingMode

Build = Callable[[TosaGraph, np.random.Generator], None]
NPUS = ["u55-128", "u65-256", "u85-256"]
I8, I16, I32, I48 = np.int8, np.int16, np.int32, np.int64


def convolution(
    graph: TosaGraph,
    rng: np.random.Generator,
    *,
    size: tuple[int, int] = (9, 10),
    kernel: tuple[int, int] = (3, 3),
    stride: tuple[int, int] = (1, 1),
    dilation: tuple[int, int] = (1, 1),
    pad: tuple[int, int, int, int] = (1, 1, 1, 1),
    channels: tuple[int, int] = (8, 16),
    element: type = I8,
    depthwise: bool = False,
    rounding: str = "SINGLE_ROUND",
) -> None:
    """Append a convolution with a scale for each channel; depthwise, `channels` are inputs and multiplier."""
    is_8_bit, (inputs, outputs) = element is I8, channels
    accumulator = I32 if is_8_bit else I48
    height, width = (
        (n + before + after - (k - 1) * d - 1) // s + 1
        for n, k, s, d, before, after in zip(size, kernel, stride, dilation, pad[::2], pad[1::2], strict=True)
    )
    results = inputs * outputs if depthwise else outputs
    shape = (*kernel, inputs, outputs) if depthwise else (outputs, *kernel, inputs)
    operands = [
        graph.input((1, *size, inputs), element),
        graph.const(rng.integers(-127, 128, shape)),
        graph.const(rng.integers(-5000, 5000, results), accumulator),
        graph.const([3 if is_8_bit else 0], element),
        graph.const([0]),
    ]
    arguments = (list(pad), list(stride), list(dilation), False, graph.types[accumulator])
    sums = graph.op(
        "DEPTHWISE_CONV2D" if depthwise else "CONV2D", operands, (1, height, width, results), accumulator, *arguments
    )
    multipliers = rng.integers(1 << 30, (1 << 31) - 1, results) if is_8_bit else rng.integers(1 << 14, 1 << 15, results)
    shifts = rng.integers(38, 41, results) if is_8_bit else rng.integers(20, 24, results)
    zeros = (0, -4 if is_8_bit else 0)
    graph.rescale(sums, (accumulator, element), (multipliers, shifts), zeros, rounding=rounding)


def transposed_convolution(graph: TosaGraph, rng: np.random.Generator, *, kernel: int) -> None:
    x = graph.input((1, 5, 6, 8))
    weights = graph.const(rng.integers(-127, 128, (12, kernel, kernel, 8)))
    operands = [x, weights, graph.const(rng.integers(-99, 99, 12), I32), graph.const([3]), graph.const([0])]
    shape = (1, 8 + kernel, 10 + kernel, 12)
    sums = graph.op("TRANSPOSE_CONV2D", operands, shape, I32, [0, 0, 0, 0], [2, 2], False, graph.types[I32])
    graph.rescale(sums, (I32, I8), (1500000000, 39), (0, 1))


def pooling(
    graph: TosaGraph,
    rng: np.random.Generator,
    *,
    name: str = "AVG_POOL2D",
    kernel: tuple[int, int] = (2, 2),
    stride: tuple[int, int] = (2, 2),
    pad: tuple[int, int, int, int] = (0, 0, 0, 0),
    size: tuple[int, int] = (8, 8),
    element: type = I8,
) -> None:
    height, width = (
        (n + before + after - k) // s + 1
        for n, k, s, before, after in zip(size, kernel, stride, pad[::2], pad[1::2], strict=True)
    )
    x, shape = graph.input((1, *size, 20), element), (1, height, width, 20)
    if name == "MAX_POOL2D":
        graph.op(
            name, [x], shape, element, list(kernel), list(stride), list(pad), graph.tosa.NanPropagationMode.PROPAGATE
        )
        return
    zero = [5 if element is I8 else 0]
    operands = [x, graph.const(zero, element), graph.const(zero, element)]
    graph.op(name, operands, shape, element, list(kernel), list(stride), list(pad), graph.types[I32])


def binary(
    graph: TosaGraph,
    rng: np.random.Generator,
    *,
    name: str = "ADD",
    scales: tuple[tuple[int, int], ...] = ((1 << 30, 11), (1600000000, 12), (1500000000, 50)),
    other: tuple[int, ...] = (1, 5, 6, 20),
    first: tuple[int, ...] = (1, 5, 6, 20),
    element: type = I8,
) -> None:
    zeros = (3, -4, 7) if element is I8 else (0, 0, 0)
    x, y = graph.input(first, element), graph.input(other, element)
    shape = tuple(np.maximum(first, other))
    operands = [
        graph.rescale(v, (element, I32), scale, (zero, 0))
        for v, scale, zero in zip((x, y), scales, zeros, strict=False)
    ]
    arguments = [graph.tosa.NanPropagationMode.PROPAGATE] if name in ("MAXIMUM", "MINIMUM") else []
    operands += [graph.const([0])] if name == "MUL" else []
    result = graph.op(name, operands, shape, I32, *arguments)
    graph.rescale(result, (I32, element), scales[2], (0, zeros[2]))


def unary(graph: TosaGraph, rng: np.random.Generator, *, name: str) -> None:
    x = graph.rescale(graph.input((1, 5, 6, 20)), (I8, I32), (1 << 30, 26), (3, 0))
    graph.rescale(graph.op(name, [x], (1, 5, 6, 20), I32), (I32, I8), (1500000000, 37), (0, 1))


def words(graph: TosaGraph, rng: np.random.Generator, *, name: str, arguments: tuple[object, ...] = ()) -> None:
    """Append an operator on int32 words: any first operand, a second one of 0 to 7 for shifts, not 0 for divisions."""
    shape = (1, 5, 6, 20)
    first = graph.rescale(graph.input(shape), (I8, I32), (1 << 30, 20))
    second = graph.rescale(graph.input(shape), (I8, I32), (1 << 30, 30))
    if name.endswith("SHIFT"):
        second = graph.op("BITWISE_AND", [second, graph.const(np.full(shape, 7), I32)], shape, I32)
    if name == "INTDIV":
        second = graph.op("BITWISE_OR", [second, graph.const(np.full(shape, 1), I32)], shape, I32)
    graph.op(name, [first, second], shape, I32, *arguments)


def leading_zeros(graph: TosaGraph, rng: np.random.Generator) -> None:
    x = graph.rescale(graph.input((1, 5, 6, 20)), (I8, I32), (1 << 30, 20))
    graph.op("CLZ", [x], (1, 5, 6, 20), I32)


def bits(graph: TosaGraph, rng: np.random.Generator, *, name: str, element: type = I8) -> None:
    operands = [graph.input((1, 5, 6, 20), element) for _ in range(1 if name == "BITWISE_NOT" else 2)]
    graph.op(name, operands, (1, 5, 6, 20), element)


def table(graph: TosaGraph, rng: np.random.Generator, *, element: type = I8, result: type = I16) -> None:
    x = graph.input((1, 5, 6, 20), element)
    if element is I8:
        graph.op("TABLE", [x, graph.const(rng.integers(-128, 128, 256))], (1, 5, 6, 20), I8)
        return
    entries = graph.const(rng.integers(-16384, 16384, 513), I16)
    words = graph.op("TABLE", [x, entries], (1, 5, 6, 20), I32)
    if result is I16:
        graph.rescale(words, (I32, I16), (1 << 30, 37))


def dense(graph: TosaGraph, rng: np.random.Generator, *, rows: int, inputs: int) -> None:
    operands = [graph.input((rows, 1, 1, inputs)), graph.const(rng.integers(-127, 128, (24, 1, 1, inputs)))]
    operands += [graph.const(rng.integers(-99, 99, 24), I32), graph.const([3]), graph.const([0])]
    arguments = ([0, 0, 0, 0], [1, 1], [1, 1], False, graph.types[I32])
    sums = graph.op("CONV2D", operands, (rows, 1, 1, 24), I32, *arguments)
    graph.rescale(sums, (I32, I8), (1500000000, 39), (0, 1))


def matmul(graph: TosaGraph, rng: np.random.Generator, *, sizes: tuple[int, int, int, int], element: type = I8) -> None:
    batch, height, depth, width = sizes
    x, y = graph.input((batch, height, depth), element), graph.input((batch, depth, width), element)
    zero, accumulator = (2, I32) if element is I8 else (0, I48)
    operands = [x, y, graph.const([zero], element), graph.const([-zero], element)]
    sums = graph.op("MATMUL", operands, (batch, height, width), accumulator)
    graph.rescale(sums, (accumulator, element), (1500000000, 41) if element is I8 else (22000, 33), (0, zero))


def sum_along(graph: TosaGraph, rng: np.random.Generator, *, axis: int) -> None:
    x = graph.rescale(graph.input((1, 5, 6, 20)), (I8, I32), (1 << 30, 30), (3, 0))
    shape = [1, 5, 6, 20]
    shape[axis] = 1
    graph.rescale(graph.op("REDUCE_SUM", [x], shape, I32, axis), (I32, I8), (1500000000, 35), (0, 1))


def resize(
    graph: TosaGraph,
    rng: np.random.Generator,
    *,
    mode: str,
    scale: tuple[int, int] = (2, 1),
    offset: int = 0,
    border: int = 0,
) -> None:
    height, width = (((n - 1) * scale[0] - offset + border) // scale[1] + 1 for n in (5, 6))
    operands = [
        graph.input((1, 5, 6, 20)),
        graph.shape([*scale, *scale]),
        graph.shape([offset] * 2),
        graph.shape([border] * 2),
    ]
    element = I8 if mode == "NEAREST" else I32
    result = graph.op("RESIZE", operands, (1, height, width, 20), element, getattr(graph.tosa.ResizeMode, mode))
    if element is I32:
        graph.rescale(result, (I32, I8), (1 << 30, 30 + 2 * (scale[0].bit_length() - 1)))


def transpose(graph: TosaGraph, rng: np.random.Generator, *, order: tuple[int, ...], element: type = I8) -> None:
    shape = (1, 5, 6, 20)
    graph.op("TRANSPOSE", [graph.input(shape, element)], [shape[axis] for axis in order], element, list(order))


def reverse(graph: TosaGraph, rng: np.random.Generator, *, axis: int) -> None:
    graph.op("REVERSE", [graph.input((1, 5, 6, 20))], (1, 5, 6, 20), I8, axis)


def rescale(graph: TosaGraph, rng: np.random.Generator, *, types: tuple[type, type], shift: int) -> None:
    zeros = (3 if types[0] is I8 else 0, -5 if types[1] is I8 else 0)
    graph.rescale(graph.input((1, 5, 6, 20), types[0]), types, (1800000000, shift), zeros)


def attention(graph: TosaGraph, rng: np.random.Generator) -> None:
    """Append a head of attention whose exponential is a table, and the projection behind it."""
    q, k, v = (graph.input((1, 12, 16)) for _ in range(3))
    keys = graph.op("TRANSPOSE", [k], (1, 16, 12), I8, [0, 2, 1])
    zero = [graph.const([0]), graph.const([0])]
    scores = graph.rescale(graph.op("MATMUL", [q, keys, *zero], (1, 12, 12), I32), (I32, I8), (1500000000, 38))
    exponentials = graph.op("TABLE", [scores, graph.const(np.arange(256) // 4)], (1, 12, 12), I8)
    mixed = graph.op("MATMUL", [exponentials, v, *zero], (1, 12, 16), I32)
    heads = graph.rescale(mixed, (I32, I8), (1500000000, 41))
    shaped = graph.op("RESHAPE", [heads, graph.shape([1, 12, 1, 16])], (1, 12, 1, 16), I8)
    operands = [
        shaped,
        graph.const(rng.integers(-127, 128, (24, 1, 1, 16))),
        graph.const(rng.integers(-99, 99, 24), I32),
    ]
    arguments = ([0, 0, 0, 0], [1, 1], [1, 1], False, graph.types[I32])
    sums = graph.op("CONV2D", [*operands, *zero], (1, 12, 1, 24), I32, *arguments)
    graph.rescale(sums, (I32, I8), (1500000000, 39))


EQUAL = ((1 << 30, 11), (1 << 30, 11), (1500000000, 50))
UNIT = ((1 << 30, 30),) * 3
CASES: Mapping[str, Build] = {
    "conv": convolution,
    "conv-1x1": partial(convolution, kernel=(1, 1), pad=(0, 0, 0, 0), channels=(33, 17)),
    "conv-stride-2": partial(convolution, stride=(2, 2), size=(9, 11)),
    "conv-stride-2-same": partial(convolution, stride=(2, 2), size=(10, 12), pad=(0, 1, 0, 1)),
    "conv-stride-3": partial(convolution, stride=(3, 3), kernel=(4, 4), size=(11, 14)),
    "conv-dilation-2": partial(convolution, dilation=(2, 2), pad=(2, 2, 2, 2)),
    "conv-5x3": partial(convolution, kernel=(5, 3), pad=(2, 2, 1, 1), channels=(3, 40)),
    "conv-9x10": partial(convolution, kernel=(9, 10), pad=(4, 4, 4, 5), size=(12, 13), channels=(5, 9)),
    "conv-deep": partial(convolution, channels=(80, 50), size=(4, 5)),
    "conv-double-rounding": partial(convolution, rounding="DOUBLE_ROUND"),
    "conv-int16": partial(convolution, element=I16),
    "conv-int16-1x1": partial(convolution, kernel=(1, 1), pad=(0, 0, 0, 0), channels=(33, 17), element=I16),
    "depthwise": partial(convolution, depthwise=True, channels=(20, 1)),
    "depthwise-stride-2": partial(convolution, depthwise=True, channels=(40, 1), stride=(2, 2), size=(9, 11)),
    "depthwise-5x5": partial(convolution, depthwise=True, channels=(33, 1), kernel=(5, 5), pad=(2, 2, 2, 2)),
    "depthwise-multiplier": partial(convolution, depthwise=True, channels=(6, 2)),
    "depthwise-int16": partial(convolution, depthwise=True, channels=(20, 1), element=I16),
    "transposed-3x3": partial(transposed_convolution, kernel=3),
    "transposed-4x4": partial(transposed_convolution, kernel=4),
    "max": partial(pooling, name="MAX_POOL2D"),
    "max-padded": partial(pooling, name="MAX_POOL2D", kernel=(3, 3), stride=(1, 1), pad=(1, 1, 1, 1)),
    "max-int16": partial(pooling, name="MAX_POOL2D", element=I16),
    "average": pooling,
    "average-padded": partial(pooling, kernel=(3, 5), stride=(1, 1), pad=(1, 1, 2, 2)),
    "average-8x8": partial(pooling, kernel=(8, 8), stride=(1, 1)),
    "average-12x12": partial(pooling, kernel=(12, 12), stride=(1, 1), size=(12, 12)),
    "average-int16": partial(pooling, element=I16),
    "average-int16-padded": partial(pooling, kernel=(3, 3), stride=(1, 1), pad=(1, 1, 1, 1), element=I16),
    "add": binary,
    "add-equal-scales": partial(binary, scales=EQUAL),
    "add-other-scales": partial(binary, scales=((1234567890, 11), (1600000000, 13), (1500000000, 50))),
    "add-broadcast": partial(binary, other=(1, 1, 6, 1)),
    "add-one-value": partial(binary, other=(1, 1, 1, 1)),
    "add-int16": partial(binary, element=I16, scales=((1 << 30, 16), (1600000000, 17), (1500000000, 45))),
    "sub": partial(binary, name="SUB"),
    "sub-second-larger": partial(binary, name="SUB", scales=((1600000000, 12), (1 << 30, 11), (1500000000, 50))),
    "sub-broadcast-first": partial(binary, name="SUB", first=(1, 1, 1, 20)),
    "mul": partial(binary, name="MUL", scales=(*UNIT[:2], (1500000000, 37))),
    "mul-broadcast": partial(binary, name="MUL", other=(1, 5, 1, 20), scales=(*UNIT[:2], (1500000000, 37))),
    "mul-int16": partial(binary, name="MUL", element=I16, scales=(*UNIT[:2], (1500000000, 45))),
    "minimum": partial(binary, name="MINIMUM", scales=UNIT),
    "maximum-broadcast": partial(binary, name="MAXIMUM", other=(1, 1, 6, 20), scales=UNIT),
    "maximum-int16": partial(binary, name="MAXIMUM", element=I16, scales=UNIT),
    "abs": partial(unary, name="ABS"),
    "leading-zeros": leading_zeros,
    "logical-shift": partial(words, name="LOGICAL_RIGHT_SHIFT"),
    "left-shift": partial(words, name="LOGICAL_LEFT_SHIFT"),
    "right-shift": partial(words, name="ARITHMETIC_RIGHT_SHIFT", arguments=(False,)),
    "right-shift-rounded": partial(words, name="ARITHMETIC_RIGHT_SHIFT", arguments=(True,)),
    "division": partial(words, name="INTDIV"),
    **{name.lower(): partial(bits, name=f"BITWISE_{name}") for name in ("AND", "OR", "XOR", "NOT")},
    "and-int16": partial(bits, name="BITWISE_AND", element=I16),
    "table": table,
    "table-int16": partial(table, element=I16),
    "table-int16-to-int32": partial(table, element=I16, result=I32),
    "dense": partial(dense, rows=3, inputs=40),
    "dense-one-row": partial(dense, rows=1, inputs=300),
    "matmul": partial(matmul, sizes=(2, 5, 24, 7)),
    "matmul-large": partial(matmul, sizes=(1, 16, 64, 48)),
    "matmul-int16": partial(matmul, sizes=(2, 5, 24, 7), element=I16),
    "sum-rows": partial(sum_along, axis=1),
    "sum-columns": partial(sum_along, axis=2),
    "sum-channels": partial(sum_along, axis=3),
    "nearest": partial(resize, mode="NEAREST"),
    "nearest-centred": partial(resize, mode="NEAREST", scale=(4, 2), offset=-1, border=1),
    "bilinear": partial(resize, mode="BILINEAR"),
    "bilinear-4": partial(resize, mode="BILINEAR", scale=(4, 1)),
    "bilinear-centred": partial(resize, mode="BILINEAR", scale=(4, 2), offset=-1, border=1),
    **{
        f"transpose-{''.join(map(str, order))}": partial(transpose, order=order)
        for order in ((0, 2, 1, 3), (0, 1, 3, 2), (0, 3, 2, 1), (0, 2, 3, 1), (0, 3, 1, 2))
    },
    "transpose-int16": partial(transpose, order=(0, 3, 1, 2), element=I16),
    **{f"reverse-{axis}": partial(reverse, axis=axis) for axis in (1, 2, 3)},
    "rescale": partial(rescale, types=(I8, I8), shift=31),
    "rescale-int16": partial(rescale, types=(I16, I16), shift=31),
    "rescale-16-to-8": partial(rescale, types=(I16, I8), shift=38),
    "rescale-8-to-16": partial(rescale, types=(I8, I16), shift=24),
    "attention": attention,
}
"""TOSA graphs by name."""
REFUSED = {"bilinear", "bilinear-4", "bilinear-centred", "matmul-int16", "reverse-3", "division", "logical-shift"}
REFUSED |= {"left-shift", "right-shift", "right-shift-rounded", "and", "or", "xor", "not", "and-int16"}
"""The graphs that Vela compiles for Ethos-U85 only."""


@pytest.mark.parametrize("npu", NPUS)
@pytest.mark.parametrize("case", CASES)
def test_the_stream_computes_what_tosa_defines(case: str, npu: str) -> None:
    if case in REFUSED and not npu.startswith("u85"):
        pytest.skip("Vela compiles it for Ethos-U85 only")
    rng = np.random.default_rng(5)
    graph = TosaGraph()
    CASES[case](graph, rng)
    data, inputs = graph.finish(), graph.random_inputs(rng)
    expected = reference_outputs(data, inputs)
    compiled = compile_network(data, "TOSA", npu)
    for computed, wanted in zip(compiled.execute(inputs, expected), expected, strict=True):
        np.testing.assert_array_equal(computed, wanted)


@pytest.mark.parametrize(
    "npu", ["u55-32", "u55-64", "u55-256", "u65-512", "u85-128", "u85-512", "u85-1024", "u85-2048"]
)
@pytest.mark.parametrize(
    "case", ["conv", "conv-9x10", "conv-deep", "conv-int16", "depthwise-stride-2", "depthwise-int16", "dense"]
)
def test_weights_are_read_in_the_order_of_each_size_of_npu(case: str, npu: str) -> None:
    rng = np.random.default_rng(6)
    graph = TosaGraph()
    CASES[case](graph, rng)
    data, inputs = graph.finish(), graph.random_inputs(rng)
    expected = reference_outputs(data, inputs)
    for is_dedicated in (False, True):
        compiled = compile_network(data, "TOSA", npu, is_dedicated=is_dedicated)
        np.testing.assert_array_equal(compiled.execute(inputs, expected)[0], expected[0])


def test_the_cases_reach_all_kinds_of_operations() -> None:
    """The matrix above would prove little if Vela replaced operations by others."""
    found = set()
    for case in CASES.values():
        graph = TosaGraph()
        case(graph, np.random.default_rng(7))
        stream = decode(compile_network(graph.finish(), "TOSA", "u85-256").payload)
        for operation in stream.operations:
            if isinstance(operation, KernelOperation):
                found.add(getattr(operation, "mode", operation.kind))
    elementwise = {ElementwiseMode[name] for name in ("ADD", "SUB", "MUL", "MIN", "MAX", "ABS")}
    poolings = {PoolingMode[name] for name in ("MAX", "AVERAGE", "REDUCE_SUM", "SUM", "NONE")}
    assert found >= elementwise | poolings | {"convolution"}
