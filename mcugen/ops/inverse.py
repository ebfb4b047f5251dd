# SPDX-License-Identifier: Apache-2.0
"""Inverse matrices (com.microsoft Inverse)."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from mcugen.core.errors import ModelError
from mcugen.hir.graph import Node
from mcugen.hir.operator import Operator, Signature
from mcugen.hir.types import Array, TensorType, required
from mcugen.kernels.portable.inverse import INVERSE, InverseOptions, InverseParams
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Call


class Inverse(Operator):
    """y[…, n, n] = x[…, n, n]⁻¹, by Gauss-Jordan elimination with partial pivoting."""

    mnemonic: ClassVar[str] = "inverse"

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: that of x."""
        (x,) = required(inputs)
        if x.rank < 2 or x.shape[-1] != x.shape[-2]:
            raise ModelError("inverse: matrices must be square", f"{x.shape}", "repair the model")
        return (TensorType(x.shape, x.dtype),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the inverses by numpy.linalg.inv; NaN for singular matrices, which C code may handle otherwise."""
        x = arrays[0]
        y = np.full_like(x, np.nan)
        for index in np.ndindex(x.shape[:-2]):
            try:
                y[index] = np.linalg.inv(x[index])
            except np.linalg.LinAlgError:
                continue
        return (y,)

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a kernel that eliminates each matrix in a copy, together with the unit matrix."""
        x = node.input(0).type
        size = x.shape[-1]
        call = Call(
            INVERSE,
            {**builder.operands(node, "x"), "m": builder.scratch(f"{node.output.name}.matrix", x.dtype, size * size)},
            [InverseParams(batch=math.prod(x.shape[:-2]), n=size)],
            [InverseOptions(t=x.dtype.c)],
            variant=x.dtype.tag,
        )
        builder.call(node, call)
