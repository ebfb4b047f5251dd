# SPDX-License-Identifier: Apache-2.0
"""Kernels of quantized activations without weights that are worth a form of their own."""

from __future__ import annotations

from mcugen.hir.graph import Node
from mcugen.hir.operator import Signature
from mcugen.hir.types import DType
from mcugen.lir.builder import Builder
from mcugen.lir.program import Access, Param


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
    builder.emit(
        node,
        "add_s8",
        operands,
        params,
        baked=("shift",),
        code={"clamped": is_clamped},
        inplace=[("y", "x0"), ("y", "x1")],
        variant="clamped" if is_clamped else "",
    )
