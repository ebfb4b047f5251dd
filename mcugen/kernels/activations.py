# SPDX-License-Identifier: Apache-2.0
"""Kernels of quantized activations without weights that are worth a form of their own."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mcugen.hir.graph import Node
from mcugen.hir.operator import Signature
from mcugen.hir.types import Array, DType, TensorType
from mcugen.lir.builder import Builder
from mcugen.lir.program import Access, Buffer, Param
from mcugen.lir.traversal import Traversal, nested, overlap
from mcugen.numerics.fixedpoint import Requantizer


def dense_int8(sig: Signature) -> bool:
    """Whether all tensors are int8 and of one shape: bytes that all are walked alike."""
    types = [t for t in (*sig.inputs, sig.output) if t is not None]
    return all(t.dtype is DType.INT8 and t.shape == sig.output.shape for t in types)


def emit_sum(
    node: Node, builder: Builder, factors: tuple[int, int], offset: int, shift: int, limits: tuple[int, int]
) -> None:
    """y = clamp((x0 · m0 + x1 · m1 + offset) >> shift) of int8 tensors of one shape, m below 2^23, sums below 2^31."""
    low, high = limits
    is_clamped = limits != DType.INT8.limits
    params: dict[str, Param] = {"count": node.output.type.count, "m0": factors[0], "m1": factors[1], "offset": offset}
    params |= {"shift": shift} | ({"low": low, "high": high} if is_clamped else {})
    operands = [
        ("x0", Access.IN, builder.buffer(node.input(0))),
        ("x1", Access.IN, builder.buffer(node.input(1))),
        ("y", Access.OUT, builder.buffer(node.output)),
    ]
    order = Traversal.forward(node.output.type.count)
    builder.emit(
        node,
        "add_s8",
        operands,
        params,
        baked=("shift",),
        code={"clamped": is_clamped},
        overlaps=[each for i in (0, 1) for each in overlap(node.input(i).type, node.output.type, order, into=f"x{i}")],
        variant="clamped" if is_clamped else "",
    )


def emit_average(
    node: Node,
    builder: Builder,
    requantize: Requantizer,
    params: Mapping[str, Param],
    code: Mapping[str, object],
    variant: str = "",
) -> None:
    """The mean of the elements under a window: exact sums, then one rounding.

    `params` are the window's geometry, the divisor is the number of taps that count: always the same, or an index into
    the multipliers.
    """
    x, y = node.input(0).type, node.output.type
    requantize = requantize.for_high_word()
    operands: list[tuple[str, Access, Buffer]] = [("x", Access.IN, builder.buffer(node.input(0)))]
    more: dict[str, Param] = {"x_zero": x.q.zero_point, "y_zero": y.q.zero_point, "offset": requantize.offset}
    if code["divisor"] == "fixed":
        more["multiplier"] = int(requantize.multiplier[0])
    else:
        table = builder.const(f"{node.output.name}.multiplier", requantize.multiplier.astype(np.int32))
        operands.append(("multiplier", Access.IN, table))
    operands.append(("y", Access.OUT, builder.buffer(node.output)))
    area = int(params["k_h"]) * int(params["k_w"])
    flags = {**average_code(requantize, area, x.dtype, y.dtype), "few": area < 2**8}
    if builder.any_size:  # what follows from a size must not change the code
        flags |= {"ties": True, "few": False, "scaled": False, "bounded": False}
    parts = [variant] * bool(variant) + ["even"] * bool(flags["ties"])
    parts += ["many"] * (not flags["few"] and x.dtype is DType.INT8)
    parts += [f"to_{y.dtype.tag}"] * (x.dtype is not y.dtype)
    kernel, near = f"average_pool_{x.dtype.tag}", overlap(x, y, pooling(params))
    builder.emit(
        node, kernel, operands, {**params, **more}, code={**code, **flags}, overlaps=near, variant="_".join(parts)
    )


def pooling(params: Mapping[str, Param]) -> Traversal:
    """Pixel by pixel, four channels at a time; `params` are the window's geometry."""
    size = {name: int(value) for name, value in params.items() if isinstance(value, int)}
    image, channels = size["in_h"] * size["in_w"], size["channels"]
    rows, columns = (
        first_taps(size[f"out_{axis}"], size[f"stride_{axis}"], size[f"pad_{axis}"], size.get(f"dilation_{axis}", 1))
        for axis in "hw"
    )
    pixels = nested(np.arange(size["batch"]) * image, rows * size["in_w"], columns)
    return Traversal.pixels(pixels * channels, channels, block=4)


def first_taps(out: int, stride: int, pad: int, dilation: int) -> Array:
    """By output position along an axis: where the first tap of its window lies that is inside the input."""
    start = np.arange(out) * stride - pad
    return np.where(start < 0, start % dilation, start)


def average_code(requantize: Requantizer, area: int, x: DType, y: DType) -> dict[str, object]:
    """What a template must know to round sums of up to `area` elements to means: see templates/kernels/average.j2."""
    low, high = y.limits
    largest, up = area * 2 ** (8 * x.nbytes), 32 - requantize.shift
    most = largest * int(requantize.multiplier.max()) + abs(requantize.offset)
    return {
        **{"y_t": y.c, "low": low, "high": high, "shift": requantize.shift, "up": up},
        "ties": may_tie(requantize, largest),
        "scaled": up >= 0 and largest << up < 2**31,
        "bounded": most >> requantize.shift < 2**31,
    }


def may_tie(requantize: Requantizer, largest: int) -> bool:
    """Whether a sum of at most that magnitude can lie just between two results: what it takes is factors of 2."""
    twos = max(int(m & -m).bit_length() - 1 for m in requantize.multiplier)
    return twos + largest.bit_length() - 1 >= requantize.shift - 1


def emit_row_sums(node: Node, builder: Builder) -> None:
    """Sums that lie where they lay, with the codes of one row more, by channel."""
    x, sums = node.input(0), builder.buffer(node.output)
    channels = x.type.shape[-1]
    operands = [("x", Access.IN, builder.buffer(x)), ("acc", Access.INOUT, sums)]
    params: dict[str, Param] = {"columns": x.type.count // channels, "channels": channels}
    builder.emit(node, "accumulate_rows_s8", operands, params)


def emit_mean_of_sums(node: Node, builder: Builder, requantize: Requantizer, count: int, x: TensorType) -> None:
    """As emit_average, of the sums of `count` codes of x."""
    y, requantize = node.output.type, requantize.for_high_word()
    operands = [
        ("acc", Access.IN, builder.buffer(node.input(0))),
        ("y", Access.OUT, builder.buffer(node.output)),
    ]
    params: dict[str, Param] = {"channels": y.shape[-1], "count": count, "x_zero": x.q.zero_point}
    params |= {"y_zero": y.q.zero_point, "multiplier": int(requantize.multiplier[0]), "offset": requantize.offset}
    builder.emit(node, "average_of_sums_s8", operands, params, code=average_code(requantize, count, x.dtype, y.dtype))
