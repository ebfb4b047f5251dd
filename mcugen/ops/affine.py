# SPDX-License-Identifier: Apache-2.0
"""x · scale + shift with constants by channel: a batch normalization that no layer with weights takes in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from mcugen.expressions.nodes import Expression
from mcugen.hir.graph import Graph, Value
from mcugen.hir.operator import IntegerForm, Signature
from mcugen.hir.traits import Clampable
from mcugen.kernels.elementwise import Scalars
from mcugen.numerics.fixedpoint import Range
from mcugen.ops.elementwise import Elementwise
from mcugen.ops.lines import affine_form
from mcugen.ops.pointwise import clamped


@dataclass(frozen=True)
class Affine(Clampable, Elementwise):
    """y = x · scale + shift of reals, clamped; scale and shift are constants that broadcast to x."""

    mnemonic: ClassVar[str] = "affine"
    real_inputs: ClassVar[frozenset[int]] = frozenset({1, 2})
    clamp: Range | None = None

    def expression(self, sig: Signature, args: Sequence[Expression], scalar: Scalars) -> Expression:
        """Product, then sum."""
        x, scale, shift = args
        return clamped(x * scale + shift, self.clamp, scalar)

    def with_clamp(self, low: float, high: float) -> Self | None:
        """After the sum."""
        return None if self.clamp else replace(self, clamp=(low, high))

    def integer(self, graph: Graph, sig: Signature, inputs: Sequence[Value | None]) -> IntegerForm | None:
        """One factor and one sum by channel, of int8 in 32 bits."""
        scale, shift = (v.data if v is not None else None for v in inputs[1:])
        if scale is None or shift is None:
            return None
        return affine_form(self, graph, sig, inputs[0], scale, shift, self.clamp)
