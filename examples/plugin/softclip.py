# SPDX-License-Identifier: Apache-2.0
"""SoftClip of domain `example`: y = limit · x / √(limit² + x²), a smooth limiter along the last axis' own limits.

Inputs: x of shape [..., C] and limit of shape [C] (constant), float32. Output: as x.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np

from mcugen.hir.graph import Node, Value
from mcugen.hir.operator import Operator, Signature
from mcugen.hir.types import Array, DType, TensorType
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Call, Kernel, Params, reads, writes
from mcugen.ops.onnx_node import OnnxNode, Refusal, onnx_operator


class Sizes(Params):
    """The parameter struct of the C function; the meaning of each member becomes its comment."""

    rows: Annotated[int, "rows of x"]
    channels: Annotated[int, "elements of a row"]


SOFT_CLIP = Kernel(
    "soft_clip",
    what="a smooth limiter, channel by channel",
    operands=(
        reads("x", "input, channels last", DType.FLOAT32),
        reads("limit", "of each channel", DType.FLOAT32),
        writes("y", "output, which may be x", DType.FLOAT32),
    ),
    params=(Sizes,),
)


class SoftClip(Operator):
    """y[..., c] = limit[c] · x[..., c] / √(limit[c]² + x[..., c]²)."""

    mnemonic: ClassVar[str] = "soft_clip"

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Shape rule: the output is like x."""
        x = inputs[0]
        assert x is not None
        return (TensorType(x.shape),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """The numpy reference."""
        x, limit = arrays
        return (limit * x / np.sqrt(limit * limit + x * x),)

    def lower(self, node: Node, builder: Builder) -> None:
        """One call of kernels/soft_clip.c.j2; the output may take the place of x."""
        x, limit = node.input(0), node.input(1)
        operands = {"x": builder.buffer(x), "limit": builder.buffer(limit), "y": builder.buffer(node.output)}
        sizes = Sizes(rows=x.type.count // limit.type.count, channels=limit.type.count)
        builder.call(node, Call(SOFT_CLIP, operands, [sizes], inplace=[("y", "x")]))


@onnx_operator("SoftClip", domain="example", types=(DType.FLOAT32,), kernels=(SOFT_CLIP.name,), limits="constant limit")
def import_soft_clip(node: OnnxNode) -> list[Value]:
    """ONNX node → HIR; what cannot be compiled is refused with rule, found, remedy."""
    x, limit = node.input(0), node.const(1, "the limit")
    node.require_dtype(x, DType.FLOAT32)
    if limit.shape != x.type.shape[-1:]:
        raise Refusal("SoftClip: there must be a limit for each channel", f"{limit.shape}", "repair the model")
    return [node.emit(SoftClip(), x, node.input(1))]
