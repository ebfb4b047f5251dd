# SPDX-License-Identifier: Apache-2.0
"""Base class of operators and the value types of their interface to passes. The operators themselves live in ops/."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from mcugen.core.frozen import FrozenByPosition
from mcugen.hir.types import Array, Bounds, Shape, TensorType

if TYPE_CHECKING:
    from mcugen.hir.graph import Graph, Value

Permutation = tuple[int, ...]
"""Order of axes of a transposition: entry i is the input axis that becomes output axis i."""
IntegerForm = tuple["Operator", Sequence["Value | None"]]
"""An integer operator and its inputs, which replace a float operator between Dequantize and Quantize nodes."""


@dataclass(frozen=True)
class Signature:
    """The types of an operator's inputs and outputs.

    Attributes:
        inputs: Type of each input; None for an absent optional one.
        outputs: Type of each output.
    """

    inputs: tuple[TensorType | None, ...]
    outputs: tuple[TensorType, ...]

    def input(self, index: int) -> TensorType:
        """Return the type of input `index`, which must be present."""
        tensor_type = self.inputs[index]
        assert tensor_type is not None
        return tensor_type

    @property
    def output(self) -> TensorType:
        """Return the type of the operator's only output."""
        (tensor_type,) = self.outputs
        return tensor_type


@dataclass(frozen=True)
class Channels:
    """The dependence of an operator's output channels on its input channels, by which channel pruning removes channels.

    Channels are indices of the last axis. Weights and biases have their channels on the axis that
    `Weighted.weight_axes` gives.

    Attributes:
        sources: For each input, an array with the index of the only input channel that each output channel depends on,
            or −1 if it depends on none. None if an output channel may depend on several channels of the input.
        narrowed: Returns the operator for a given number of output channels, after unneeded channels were removed.
        sums: Whether each output channel is a sum over all channels of input 0, weighted by the last axis of input 1.
        leaves: Whether some of these sums have fewer terms, because a window extends beyond the input.
    """

    sources: Sequence[Array | None]
    narrowed: Callable[[int], Operator]
    sums: bool = False
    leaves: bool = False


@dataclass(frozen=True)
class RowWindow:
    """The rows of an input that one step of row-by-row computation (line-buffer fusion) reads.

    Step r reads `span` rows along `axis`, from row r · stride − before on.

    Attributes:
        axis: Axis that counts the rows.
        span: Number of rows in the window.
        stride: Number of rows between the windows of successive steps.
        before: Number of rows above the input that the first window includes.
        fill: Value of rows and columns outside the input.
        sides: Number of columns of `fill` to add before and after each row, along the axis after `axis`.
        goes_on: Whether the windows of some steps lie completely after the last row of the input.
        repeats: Whether rows outside the input repeat the first or last row instead of holding `fill`.
    """

    axis: int = 1
    span: int = 1
    stride: int = 1
    before: int = 0
    fill: float = 0
    sides: tuple[int, int] = (0, 0)
    goes_on: bool = False
    repeats: bool = False

    @property
    def leaves(self) -> bool:
        """Return whether some window can extend beyond the input, so that it includes rows or columns of padding."""
        return self.span > 1 or self.before > 0 or self.goes_on or any(self.sides)


@dataclass(frozen=True)
class RowForm:
    """A description of how an operator computes its output row by row, for line-buffer fusion.

    Each step computes `rows` output rows from windows of input rows. Line-buffer fusion computes several layers
    together in such steps.

    Attributes:
        op: Operator that is applied to the rows in the windows.
        windows: The window of each input, whose stride is the distance between two steps; None if the input is read as
            a whole.
        axis: Axis that counts the output's rows.
        finish: Operator that computes the output from sums over all rows. If given, `op` adds one row of its first
            input to the sums in its second input (int32, initially 0).
        rows: Number of output rows per step.
        extends: Whether `op` accepts any number of input rows and returns proportionally more output rows.
    """

    op: Operator
    windows: tuple[RowWindow | None, ...]
    axis: int = 1
    finish: Operator | None = None
    rows: int = 1
    extends: bool = False


@dataclass(frozen=True)
class ElementRun:
    """The elements of a tensor that a shard reads or writes: one contiguous range, or equally spaced short ranges.

    With a `pitch`, only the last axis is contiguous: for example some channels of every pixel.

    Attributes:
        at: Row-major index of the first element in the whole tensor.
        shape: Shape of the selected elements, seen as a tensor.
        pitch: Distance in elements between the starts of consecutive rows of the last axis; None if all elements are
            contiguous.
    """

    at: int
    shape: Shape
    pitch: int | None = None

    @property
    def count(self) -> int:
        """Return the number of elements that the shard (part of a layer) reads from, or writes to, the tensor."""
        return math.prod(self.shape)

    @property
    def elements(self) -> slice | Array:
        """Return the row-major indices, in the whole tensor, of the elements that a shard (part of a layer) accesses.

        The indices are a slice if the elements are contiguous, else an index array.
        """
        if self.pitch is None:
            return slice(self.at, self.at + self.count)
        rows = np.arange(self.count // self.shape[-1]) * self.pitch
        numbers: Array = (self.at + rows[:, None] + np.arange(self.shape[-1])).reshape(-1)
        return numbers

    @property
    def end(self) -> int:
        """Return one more than the largest row-major index of the elements that a shard (part of a layer) accesses."""
        between = 0 if self.pitch is None else (self.count // self.shape[-1] - 1) * (self.pitch - self.shape[-1])
        return self.at + self.count + between


@dataclass(frozen=True)
class Shard:
    """One part of a layer's output that can be computed independently, and the operator that computes it.

    Attributes:
        op: Operator that computes the part.
        reads: For each input, the elements that the operator reads, as a tensor of its own; None for the whole input.
        writes: The elements of the layer's output that the operator computes.
    """

    op: Operator
    reads: tuple[ElementRun | None, ...]
    writes: ElementRun


@dataclass(frozen=True)
class Partition:
    """A way to partition the output of an operator into independent shards.

    Attributes:
        length: Number of units, such as rows or groups of channels, that the output consists of.
        shard: Function of `start` and `stop` that returns the shard with the units from `start` to before `stop`.
    """

    length: int
    shard: Callable[[int, int], Shard]


def row_axis(shape: Sequence[int]) -> int | None:
    """Return the axis that counts rows: the first axis longer than 1, except the last axis; None if there is none."""
    return next((axis for axis, size in enumerate(shape[:-1]) if size > 1), None)


ROWS_AT_ONCE = (4, 3, 2, 5, 7, 1)
"""Numbers of matrix rows that one step of row-by-row computation may process, in order of preference.

The first one that divides the number of rows is used. Kernels read or pack the weights once for all rows of a step.
"""


def each_row(
    op: Operator, sig: Signature, by_rows: Sequence[bool], at_once: Sequence[int] = ROWS_AT_ONCE
) -> RowForm | None:
    """Describe the row-by-row computation of an operator whose output rows each depend on the same row of the inputs.

    Args:
        op: Operator that computes the rows.
        sig: Types of the whole tensors.
        by_rows: For each input, whether it is read row by row; else it is read as a whole.
        at_once: Numbers of rows that one step may compute, in order of preference; the first one that divides the
            number of rows is used. Ignored if a row has several axes: a step then computes one row.

    Returns:
        The description, or None if the output has no rows: only its last axis is longer than 1.
    """
    shape = sig.output.shape
    axis = row_axis(shape)
    if axis is None:
        return None
    many = at_once if axis == len(shape) - 2 else (1,)
    rows = next(n for n in many if shape[axis] % n == 0)
    window = RowWindow(axis, span=rows, stride=rows)
    return RowForm(op, tuple(window if by_row else None for by_row in by_rows), axis, rows=rows)


class Operator(FrozenByPosition):
    """An operator with its attributes: immutable and compared by value. Subclasses live in ops/.

    A new operator must define `infer`, `evaluate` and a lowering (see lir/lower.py). Further properties that passes use
    are traits (mcugen.hir.traits), which an operator declares by inheriting them.

    Attributes:
        mnemonic: Name in dumps and reports. Families of many functions override `name` instead.
        moves_data: Whether elements are copied unchanged: every element type is accepted, quantization parameters stay.
    """

    mnemonic: ClassVar[str] = ""
    moves_data: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """Return the name used in dumps, reports and kernel names."""
        return self.mnemonic

    @classmethod
    def spelled(cls) -> Mapping[str, Mapping[str, object]]:
        """Return the names (mnemonics) of the operators of this class in graph dumps.

        Each name comes with the attribute values that it implies: "reduce_max" implies the attribute function="max".
        """
        return {cls.mnemonic: {}} if cls.mnemonic else {}

    @property
    def bodies(self) -> tuple[Graph, ...]:
        """Return the graphs that the operator contains and runs, such as the body of a loop.

        Passes, checks and dumps visit them; their inputs' and outputs' types must not change.
        """
        return ()

    @property
    def repeats(self) -> tuple[int, ...]:
        """Return, for each graph in `bodies`, the most times that one evaluation of the operator runs the graph."""
        return (1,) * len(self.bodies)

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the types of the outputs, inferred from the types of the inputs (None: an absent optional input).

        Raises:
            ModelError: The inputs are invalid for this operator.
        """
        raise NotImplementedError

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the outputs by numpy. For integer types this is the bit-exact specification of every kernel."""
        raise NotImplementedError

    def bounds(self, sig: Signature, *inputs: Bounds | None) -> Sequence[Bounds | None]:
        """Return lower and upper bounds of the elements of each output; None for an output without known bounds.

        Args:
            sig: Types of inputs and outputs.
            inputs: Bounds of each input, in the order of `evaluate`; None if unknown. For a constant, the same array is
                the lower and the upper bound.
        """
        ends = [bounds for bounds in inputs if bounds is not None]
        if not self.rises or not ends or len(ends) < len(inputs):
            return (None,) * len(sig.outputs)
        lows, highs = (self.evaluate(sig, *arrays) for arrays in zip(*ends, strict=True))
        return tuple(zip(lows, highs, strict=True))

    @property
    def rises(self) -> bool:
        """Return whether the operator is monotone: every output is non-decreasing in every input."""
        return self.moves_data

    def macs(self, sig: Signature) -> int:
        """Return the number of multiply-accumulates of one inference; those with padding elements count too."""
        return 0


class FunctionFamily(Operator):
    """Base of operators that compute one of several functions, such as reductions; their name contains the function.

    Attributes:
        spelling: Format string of the operator's name, which is then converted to lower case.
        functions: The possible functions.
        function: The function of this operator.
    """

    spelling: ClassVar[str] = "{}"
    functions: ClassVar[Collection[str]] = ()
    function: str = field(default="", repr=False)

    @property
    def name(self) -> str:
        """Return the name of the operator: `spelling` with its function, in lower case."""
        return self.spelling.format(self.function).lower()

    @classmethod
    def spelled(cls) -> Mapping[str, Mapping[str, object]]:
        """Return the name (mnemonic) of each function of the family in graph dumps, with the attribute that it implies.

        For example, "reduce_max" implies that the attribute `function` is "max".
        """
        return {cls.spelling.format(function).lower(): {"function": function} for function in cls.functions}
