# SPDX-License-Identifier: Apache-2.0
"""Operators that only on-device training uses: gradient steps, and products with int8 weights that change."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from mcugen.core.errors import ModelError
from mcugen.hir.graph import Node
from mcugen.hir.operator import Operator, Signature
from mcugen.hir.types import Array, DType, TensorType, required
from mcugen.kernels.portable.learning import (
    CODED_PRODUCT,
    DESCEND,
    DESCEND_CODES,
    CodedStep,
    DescentOptions,
    ProductLoops,
)
from mcugen.kernels.portable.weighted import DenseSizes
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Call
from mcugen.numerics.sums import exact_product, real_product

MAX_TRAINED_WEIGHT = 127
"""Largest magnitude of int8 weights that are trained on the device; -128 is not used."""


class Descend(Operator):
    """A gradient descent step y = w − a·b, whose gradient a·b, a matrix product, is never stored as a whole.

    w is [C, …], a is [C, P], and b is [P, product of the other axes of w], all float32; elements whose step is NaN or
    infinite keep their value. Or w is int8, and a fourth input is a dither (float32 [1], a random number from 0 to 1)
    for stochastic rounding: y = clamp(⌊w − a·b + dither⌋).
    """

    mnemonic: ClassVar[str] = "descend"

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: that of w."""
        w, a, b = required(inputs[:3])
        if a.shape[0] != w.shape[0] or a.shape[1] != b.shape[0] or w.count != w.shape[0] * b.shape[1]:
            shapes = f"{w.shape}, {a.shape} by {b.shape}"
            raise ModelError("descend: shapes must agree", shapes, "report this as a bug of mcugen")
        return (w,)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute w − a·b from the operands w, a and b, and round int8 weights by the fourth operand, the dither.

        A dither is a random number from 0 to 1 that is added before rounding down (stochastic rounding). Weights that
        would become NaN or infinite stay.
        """
        w, a, b, *dither = arrays
        with np.errstate(all="ignore"):
            moved = w.astype(np.float32) - real_product(a, b).reshape(w.shape)
            moved = np.clip(np.floor(moved + dither[0]), -MAX_TRAINED_WEIGHT, MAX_TRAINED_WEIGHT) if dither else moved
            return (np.where(np.isfinite(moved), moved, w).astype(w.dtype),)

    def macs(self, sig: Signature) -> int:
        """Return the multiply-accumulates: elements of the weights w · columns of the factor a."""
        return sig.output.count * sig.input(1).shape[1]

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a kernel that updates w in place."""
        operands = builder.operands(node, "w", "a", "b", "dither")
        (rows, depth), channels = node.input(1).type.shape, node.input(2).type.shape[1]
        dtype = node.output.type.dtype
        options = DescentOptions(codes=dtype is DType.INT8)
        params = [DenseSizes(rows=rows, depth=depth, out_channels=channels)]
        builder.call(node, Call(DESCEND, operands, params, [options], inplace=[("y", "w")], variant=dtype.tag))


STEP_BITS = 20
"""Number of fraction bits of a gradient step on int8 weights: steps are multiples of 2^-20 of a weight's unit."""

MAX_CODE_STEP = 2**30
"""Limit of the magnitude of a gradient step on int8 weights, in units of 2^-STEP_BITS of a weight's unit, so that
weight plus step fits in 32 bits."""


class DescendCodes(Operator):
    """A gradient step on int8 weights in integers: y = clamp(⌊w − gain · a·(b − zero)ᵀ · 2^-20 + fraction · 2^-20⌋).

    The gradient a·(b − zero)ᵀ is a product that is never stored as a whole; zero is the zero point of b. The inputs are
    w (int8 [C, …]), a (int16 [C, P]), b (int8 [product of the other axes of w, P]), gain (float32 [C, 1], finite: the
    step per unit of the product, for each channel) and fraction (one random int32 from 0 to 2^20, for stochastic
    rounding). The sums fit in 32 bits, and each sum times its gain is rounded once.
    """

    mnemonic: ClassVar[str] = "descend_codes"

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: that of w."""
        w, a, b = required(inputs[:3])
        if a.shape[0] != w.shape[0] or a.shape[1] != b.shape[1] or w.count != w.shape[0] * b.shape[0]:
            shapes = f"{w.shape}, {a.shape} by {b.shape}"
            raise ModelError("descend_codes: shapes must agree", shapes, "report this as a bug of mcugen")
        return (w,)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute new int8 weights w − gain · a·(b − zero)ᵀ · 2^-20, by exact integer sums and stochastic rounding.

        The operand `fraction`, a random number, is added before the weights are rounded down.
        """
        w, a, b, gain, fraction = arrays
        sums = exact_product(a, b.T.astype(np.int64) - sig.input(2).q.zero_point)
        steps = np.rint(np.clip(sums.astype(np.float32) * gain.reshape(-1, 1), -MAX_CODE_STEP, MAX_CODE_STEP)).astype(
            np.int64
        )
        moved = (w.reshape(sums.shape).astype(np.int64) << STEP_BITS) - steps + fraction.reshape(-1)[0] >> STEP_BITS
        return (np.clip(moved, -MAX_TRAINED_WEIGHT, MAX_TRAINED_WEIGHT).astype(np.int8).reshape(w.shape),)

    def macs(self, sig: Signature) -> int:
        """Return the multiply-accumulates: elements of the weights w · columns of the factor a."""
        return sig.output.count * sig.input(1).shape[1]

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a kernel that updates w in place."""
        operands = builder.operands(node, "w", "a", "b", "gain", "fraction")
        (rows, depth), channels = node.input(1).type.shape, node.input(2).type.shape[0]
        params = [
            DenseSizes(rows=rows, depth=depth, out_channels=channels),
            CodedStep(b_zero_point=node.input(2).type.q.zero_point),
        ]
        builder.call(node, Call(DESCEND_CODES, operands, params, inplace=[("y", "w")]))


class CodedProduct(Operator):
    """y[m, n] = Σ_k x[m, k] · w[k, n] in float32, where w are trainable int8 weights without a scale."""

    mnemonic: ClassVar[str] = "coded_product"

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: float32, with as many rows as x and as many columns as the weights."""
        x, w = required(inputs)
        if x.shape[1] != w.shape[0]:
            raise ModelError("coded_product: the depths must agree", f"{x.shape} by {w.shape}", "repair the model")
        return (TensorType((x.shape[0], w.shape[1]), DType.FLOAT32),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the matrix product x · w in float32."""
        x, w = arrays
        return (real_product(x, w.astype(np.float32)),)

    def macs(self, sig: Signature) -> int:
        """Return the multiply-accumulates: output elements · length of a row of x."""
        return sig.output.count * sig.input(0).shape[1]

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a kernel that reads the int8 weights directly."""
        operands = builder.operands(node, "x", "w")
        (rows, depth), channels = node.input(0).type.shape, node.input(1).type.shape[1]
        params = [DenseSizes(rows=rows, depth=depth, out_channels=channels)]
        loops = ProductLoops(has_row_blocks=rows >= 4, has_tail_rows=rows % 4 != 0)
        variant = f"{'4' if loops.has_row_blocks else ''}{'1' if loops.has_tail_rows else ''}"
        builder.call(node, Call(CODED_PRODUCT, operands, params, [loops], variant=variant))
