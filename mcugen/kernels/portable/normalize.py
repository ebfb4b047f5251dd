# SPDX-License-Identifier: Apache-2.0
"""Kernels of normalizations: loops over rows, whose elements share mean and variance, around loops within a row."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from mcugen.hir.graph import Node
from mcugen.hir.types import DType, Shape, TensorType
from mcugen.kernels.common.strided_loops import Nests
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Call, Kernel, Options, Params, Real, Trained, reads, writes
from mcugen.lir.program import Overlap, Wide, real_param
from mcugen.lir.traversal import Traversal, overlap
from mcugen.numerics.normalize import FixedNormalize, span

# ------------------------------------------------------------------------------------------------- loops


@dataclass(frozen=True)
class NormalizeLoops:
    """The loop nest of a normalization, as kernel parameters and C index expressions.

    A row is a set of elements that share mean and variance.

    Attributes:
        nests: Kernel parameters: sizes and strides of the loops.
        k: Number of nested loops over rows.
        r: Number of nested loops over the elements of a row.
        index: C index expressions by operand role and nest: "k" for loops over rows, "r" for loops within a row.
    """

    nests: Nests
    k: int
    r: int
    index: Mapping[tuple[str, str], str]


@dataclass(frozen=True)
class NormalizedRows:
    """A normalization of rows: sets of elements that share mean and variance.

    Attributes:
        x: Type of the input.
        y: Type of the output.
        shape: Shape of x and y; an axis may be split into several, such as channels into groups.
        axes: Axes of `shape` whose elements form a row.
        centered: Whether the mean is subtracted (layer norm), or not (RMS norm).
        strides: For each operand role, the stride of each axis of `shape`, in elements; 0 if the operand is repeated.
    """

    x: TensorType
    y: TensorType
    shape: Shape
    axes: tuple[int, ...]
    centered: bool
    strides: Mapping[str, Sequence[int]]

    @property
    def count(self) -> int:
        """Return the number of elements of a row: elements that share mean and variance."""
        return math.prod(self.shape[a] for a in self.axes)

    @property
    def is_forward(self) -> bool:
        """Return whether the elements of each row, which share mean and variance, are contiguous in memory.

        The kernel then processes all elements in memory order.
        """
        is_reduced = [axis in self.axes for axis, size in enumerate(self.shape) if size != 1]
        return is_reduced == sorted(is_reduced)

    @property
    def inplace(self) -> list[tuple[str, str]]:
        """Return [("y", "x")] if the output y may begin at the address of the input x; else an empty list.

        The list is empty if x and y differ in type. It is also empty for rows that are contiguous in memory, for which
        `overlaps` allows more.
        """
        return [("y", "x")] if self.x.dtype is self.y.dtype and not self.is_forward else []

    def overlaps(self) -> list[Overlap]:
        """Return how far the output y may overlap the input x in memory, for the memory planner.

        The list is empty if rows (elements that share mean and variance) are not contiguous in memory.
        """
        return overlap(self.x, self.y, Traversal.forward(self.x.count)) if self.is_forward else []

    @property
    def formula(self) -> str:
        """Return the formula of the normalization as one line of text, for a comment in the generated code."""
        text = "(x - mean) / sqrt(variance + epsilon)" if self.centered else "x / sqrt(mean(x * x) + epsilon)"
        return text + (" * scale" if "scale" in self.strides else "") + (" + bias" if "bias" in self.strides else "")

    def loops(self) -> NormalizeLoops:
        """Return the loop nest of the normalization, with as few loops as possible.

        It has loops over rows (elements that share mean and variance) around loops over the elements of a row. Sizes,
        and strides other than 1, are kernel parameters.
        """
        kept, reduced = self._walks()
        index: dict[tuple[str, str], str] = {}

        def nest(letter: str, counter: str, walks: list[_Walk]) -> dict[str, int]:
            members = {f"{letter}{number}_size": size for number, (size, _) in enumerate(walks)}
            for place, role in enumerate(self.strides):
                terms = []
                for number, stride in ((n, strides[place]) for n, (_, strides) in enumerate(walks) if strides[place]):
                    name = f"{letter}{number}_{role}"
                    members |= {name: stride} if stride > 1 else {}
                    terms.append(f"{counter}{number}" + (f" * p->{name}" if stride > 1 else ""))
                index[role, letter] = " + ".join(terms)
            return members

        return NormalizeLoops(Nests(k=nest("k", "i", kept), r=nest("r", "j", reduced)), len(kept), len(reduced), index)

    def _walks(self) -> tuple[list[_Walk], list[_Walk]]:
        """Return (size, stride of each operand) of the kept and of the reduced dimensions, neighbours merged."""
        merged: list[tuple[int, tuple[int, ...], bool]] = []
        for axis, size in enumerate(self.shape):
            steps, inner = tuple(row[axis] for row in self.strides.values()), axis in self.axes
            if size == 1:
                continue
            if merged and merged[-1][2] == inner and merged[-1][1] == tuple(size * s for s in steps):
                size *= merged.pop()[0]
            merged.append((size, steps, inner))
        return [m[:2] for m in merged if not m[2]], [m[:2] for m in merged if m[2]]


_Walk = tuple[int, tuple[int, ...]]


# ------------------------------------------------------------------------------------------------- reals


class Statistics(Params):
    """Kernel parameters of mean and variance of float rows (elements that share them): reciprocal size, and epsilon."""

    inverse_row_size: Annotated[Real, "1 / elements of a row"]
    epsilon: Annotated[Real, "added to the variance"]


class NormalizeOptions(Options):
    """Template options of a float normalization: formula, types, and loops over the operands.

    Elements of a row share mean and variance. An index is a C expression of loop counters, empty if it is always 0.
    """

    what: Annotated[str, "the formula"]
    t: Annotated[str, "C type of the elements"]
    f: Annotated[str, "suffix of the functions of math.h for the type"]
    centered: Annotated[bool, "whether the mean is subtracted"]
    scale: Annotated[bool, "whether there is a scale"]
    bias: Annotated[bool, "whether there is a bias"]
    k: Annotated[int, "loops over rows"]
    r: Annotated[int, "loops within a row"]
    x_k: Annotated[str, "index of a row in x"]
    x_r: Annotated[str, "index of an element in a row of x"]
    scale_k: Annotated[str, "index of a row in scale"] = ""
    scale_r: Annotated[str, "index of an element in a row of scale"] = ""
    bias_k: Annotated[str, "index of a row in bias"] = ""
    bias_r: Annotated[str, "index of an element in a row of bias"] = ""


NORMALIZE = Kernel(
    "normalize",
    what="normalizes rows: (x - mean) / sqrt(variance + epsilon), or x / sqrt(mean square + epsilon), in floats",
    operands=(
        reads("x", "input"),
        reads("scale", "factors of normalized elements", optional=True),
        reads("bias", "added to scaled elements", optional=True),
        writes("y", "output"),
    ),
    params=(Statistics, Nests),
    options=(NormalizeOptions,),
)
"""Kernel of normalizations of floats."""


def call_normalize(
    node: Node, builder: Builder, rows: NormalizedRows, epsilon: float, inputs: Mapping[str, int]
) -> None:
    """Emit a normalization of floats.

    Args:
        node: Node to lower.
        builder: Builder that receives the instruction.
        rows: Types, axes and strides of the normalization.
        epsilon: Number that is added to the variance.
        inputs: Indices of the node's inputs, by operand role.
    """
    dtype, loops = rows.x.dtype, rows.loops()
    options = NormalizeOptions(
        what=rows.formula,
        t=dtype.c,
        f="" if dtype is DType.FLOAT64 else "f",
        centered=rows.centered,
        scale="scale" in inputs,
        bias="bias" in inputs,
        k=loops.k,
        r=loops.r,
        **{f"{role}_{letter}": text for (role, letter), text in loops.index.items()},
    )
    statistics = Statistics(inverse_row_size=real_param(1.0 / rows.count, dtype), epsilon=real_param(epsilon, dtype))
    operands = {role: builder.buffer(node.input(i)) for role, i in inputs.items()}
    call = Call(
        NORMALIZE,
        operands | {"y": builder.buffer(node.output)},
        [statistics, loops.nests],
        [options],
        inplace=rows.inplace,
        overlaps=rows.overlaps(),
        variant=dtype.tag,
    )
    builder.call(node, call)


# ------------------------------------------------------------------------------------------------- codes


class FixedPoint(Params):
    """Kernel parameters of the normalization of quantized values in integers (mcugen.numerics.normalize).

    Elements of a row share mean and variance. A deviation is an element less the mean, times the number of elements of
    a row.
    """

    row_size: Annotated[int, "elements of a row"]
    x_zero_point: Annotated[Trained, "zero point of x"]
    deviation_scale: Annotated[Trained, "power of two by which deviations are multiplied to fill 32 bits"]
    variance_shift: Annotated[Trained, "left shift of the sum of squared deviations of a row"]
    epsilon: Annotated[Wide, "added to the shifted sum of squared deviations"]
    root_shift: Annotated[Trained, "left shift of a normalized element in addition to that of the inverse square root"]
    fraction_bits: Annotated[Trained, "fraction bits of a result before it is rounded"]


class FixedOptions(Options):
    """Template options of a normalization of quantized values in integers: formula, types, and loops over x.

    Elements of a row share mean and variance. An index is a C expression, empty if it is always 0; gain and bias are
    the factor and summand of each normalized element.
    """

    what: Annotated[str, "the formula"]
    x_t: Annotated[str, "C type of x"]
    y_t: Annotated[str, "C type of y"]
    centered: Annotated[bool, "whether the mean is subtracted"]
    wide: Annotated[bool, "whether sums of squares exceed 32 bits"]
    k: Annotated[int, "loops over rows"]
    r: Annotated[int, "loops within a row"]
    x_k: Annotated[str, "index of a row in x"]
    x_r: Annotated[str, "index of an element in a row of x"]
    gain_k: Annotated[str, "index of a row in gain and bias"]
    gain_r: Annotated[str, "index of an element in a row of gain and bias"]


NORMALIZE_INT = Kernel(
    "normalize_int",
    what="normalizes rows in integers: exact statistics, three factors of 31 bits; four elements at a time with Helium",
    operands=(
        reads("x", "input", DType.INT8, DType.INT16),
        reads("gain", "factors of normalized elements", DType.INT32, holds=(1,)),
        reads("bias", "added to scaled elements, with the zero point and one half", DType.INT32, holds=(2,)),
        writes("y", "output", DType.INT8, DType.INT16),
    ),
    params=(FixedPoint, Nests),
    options=(FixedOptions,),
)
"""Kernel of normalizations of quantized values."""


def call_normalize_codes(node: Node, builder: Builder, rows: NormalizedRows, fixed: FixedNormalize) -> None:
    """Emit a normalization of quantized values, which is computed in integers.

    Args:
        node: Node to lower.
        builder: Builder that receives the instruction.
        rows: Types, axes and strides of the normalization.
        fixed: The formula in integers, with factor (gain) and bias of each element.
    """
    x, y, name, loops = rows.x, rows.y, node.output.name, rows.loops()
    params = FixedPoint(
        row_size=fixed.count,
        x_zero_point=x.q.zero_point,
        deviation_scale=1 << fixed.lift,
        variance_shift=fixed.fraction,
        epsilon=Wide(fixed.epsilon),
        root_shift=fixed.shift,
        fraction_bits=fixed.bits,
    )
    options = FixedOptions(
        what=rows.formula,
        x_t=x.dtype.c,
        y_t=y.dtype.c,
        centered=rows.centered,
        wide=fixed.count * span(x) ** 2 >= 2**31,
        k=loops.k,
        r=loops.r,
        **{f"{role}_{letter}": text for (role, letter), text in loops.index.items()},
    )
    operands = {
        "x": builder.buffer(node.input(0)),
        "gain": builder.const(f"{name}.gain", fixed.gain.astype(np.int32)),
        "bias": builder.const(f"{name}.bias", fixed.bias.astype(np.int32)),
        "y": builder.buffer(node.output),
    }
    call = Call(
        NORMALIZE_INT,
        operands,
        [params, loops.nests],
        [options],
        inplace=rows.inplace,
        overlaps=rows.overlaps(),
        variant=x.dtype.tag if x.dtype is y.dtype else f"{x.dtype.tag}_{y.dtype.tag}",
    )
    builder.call(node, call)
