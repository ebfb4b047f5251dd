# SPDX-License-Identifier: Apache-2.0
"""Multiplications by and additions of constants per channel, such as a standardization, outside weighted layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from mcugen.expressions.nodes import Expression
from mcugen.hir.graph import Graph, Value, constant_data
from mcugen.hir.operator import IntegerForm, Signature
from mcugen.hir.traits import Clampable
from mcugen.hir.types import Array
from mcugen.kernels.portable.elementwise import Scalars
from mcugen.numerics.fixedpoint import Range
from mcugen.ops.elementwise import Elementwise
from mcugen.ops.lines import affine_form
from mcugen.ops.pointwise import clamped


class Affine(Clampable, Elementwise):
    """y = x multiplied by and added to constants that broadcast to x, in the order of `steps`; then clamped.

    The order of `steps` decides the precision in float: (x − mean) · scale keeps digits of x close to a large mean,
    which x · scale + shift loses.

    Attributes:
        steps: "Mul" or "Add" for each constant, which are the inputs from 1 on.
        clamp: Limits of the result; None for no clamp.
    """

    mnemonic: ClassVar[str] = "affine"
    real_inputs: ClassVar[frozenset[int]] = frozenset({1, 2, 3})
    steps: tuple[str, ...] = ("Mul", "Add")
    clamp: Range | None = None

    def expression(self, sig: Signature, args: Sequence[Expression], scalar: Scalars) -> Expression:
        """Return the result of one element: x with the constants of all steps applied in order, then clamped."""
        y, *constants = args
        for step, constant in zip(self.steps, constants, strict=True):
            y = y + constant if step == "Add" else y * constant
        return clamped(y, self.clamp, scalar)

    def line(self, constants: Sequence[Array]) -> tuple[Array, Array]:
        """Return scale and shift of the function x · scale + shift that all steps (products and sums) amount to.

        Args:
            constants: The constant operand of each step.

        Returns:
            Scale and shift in float64, which broadcast to x.
        """
        scale, shift = np.ones(()), np.zeros(())
        for step, constant in zip(self.steps, constants, strict=True):
            number = constant.astype(np.float64)
            scale, shift = (scale, shift + number) if step == "Add" else (scale * number, shift * number)
        return scale, shift

    def integer(self, graph: Graph, sig: Signature, inputs: Sequence[Value | None]) -> IntegerForm | None:
        """Return the integer operator for quantized x with its inputs: one multiplier and one offset for each channel.

        Both are computed in float64 and rounded once. Return None if an operand is not constant, or if the scales of
        the channels differ too much for one common shift.
        """
        constants = constant_data(inputs[1:])
        if len(constants) < len(self.steps):
            return None
        scale, shift = np.broadcast_arrays(*self.line(constants))
        return affine_form(self, graph, sig, inputs[0], scale, shift, self.clamp)
