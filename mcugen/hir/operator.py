# SPDX-License-Identifier: Apache-2.0
"""What the passes may ask of an operator: the one interface between them and the operator families in ops/."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from mcugen.hir.types import Array, Bounds, Shape, TensorType

if TYPE_CHECKING:
    from mcugen.hir.graph import Graph, Value

Permutation = tuple[int, ...]
IntegerForm = tuple["Operator", Sequence["Value | None"]]


@dataclass(frozen=True)
class Signature:
    """The types an operator is applied to. An absent optional input is None."""

    inputs: tuple[TensorType | None, ...]
    outputs: tuple[TensorType, ...]

    def input(self, index: int) -> TensorType:
        """The type of an input that is present."""
        found = self.inputs[index]
        assert found is not None
        return found

    @property
    def output(self) -> TensorType:
        """The type of the only output."""
        (found,) = self.outputs
        return found


@dataclass(frozen=True)
class Channels:
    """Of which channels (indices of the last axis) the output's channels are made, and the operator for fewer.

    `sources` has by input an entry for each output channel: the one channel of that input which it depends on, −1 if
    on none; None: the input is read as a whole, or not channel by channel. Constants with an axis in
    `Operator.weight_axes` have their channels there.
    """

    sources: Sequence[Array | None]
    narrowed: Callable[[int], Operator]
    """The operator for a number of output channels, whose inputs are as narrow."""
    sums: bool = False
    """Whether each output channel is a sum over all channels of input 0, weighed by the last axis of input 1."""
    leaves: bool = False
    """Whether some of these sums lack elements, where a window leaves the input."""


@dataclass(frozen=True)
class RowWindow:
    """The rows of an input that step r of the output reads: `span` of them from r · stride − before, along `axis`.

    Rows outside of the input hold `fill` throughout, and so do the columns that are added to each row at both `sides`,
    on the axis after.
    """

    axis: int = 1
    span: int = 1
    stride: int = 1
    before: int = 0
    fill: float = 0
    sides: tuple[int, int] = (0, 0)
    goes_on: bool = False
    """Whether there are steps whose only row lies behind the last one."""
    repeats: bool = False
    """Whether rows outside are those at the ends, again, instead of `fill`."""

    @property
    def leaves(self) -> bool:
        """Whether it may reach outside of the input."""
        return self.span > 1 or self.before > 0 or self.goes_on or any(self.sides)


@dataclass(frozen=True)
class RowForm:
    """How an operator computes the next `rows` rows of its output: `op`, applied to the rows in its windows.

    `windows` are by input, None where all of it is read; their stride is that from one such step to the next. With
    `finish`, `op` adds one row of its first input to sums (its second, int32, 0 at first), and `finish` makes the
    output of the sums of all rows.
    """

    op: Operator
    windows: tuple[RowWindow | None, ...]
    axis: int = 1
    finish: Operator | None = None
    rows: int = 1
    extends: bool = False
    """Whether `op` makes more rows of more rows: it says nothing of their number."""


@dataclass(frozen=True)
class Run:
    """Elements of a tensor that lie side by side: those from number `at` on, as a tensor of `shape`.

    With a `pitch` this is so along the last axis alone, whose beginnings are so many elements apart: some channels of
    pixels.
    """

    at: int
    shape: Shape
    pitch: int | None = None

    @property
    def count(self) -> int:
        """How many there are."""
        return math.prod(self.shape)

    @property
    def elements(self) -> slice | Array:
        """Their numbers in the tensor."""
        if self.pitch is None:
            return slice(self.at, self.at + self.count)
        rows = np.arange(self.count // self.shape[-1]) * self.pitch
        numbers: Array = (self.at + rows[:, None] + np.arange(self.shape[-1])).reshape(-1)
        return numbers

    @property
    def end(self) -> int:
        """Behind the last of them."""
        between = 0 if self.pitch is None else (self.count // self.shape[-1] - 1) * (self.pitch - self.shape[-1])
        return self.at + self.count + between


@dataclass(frozen=True)
class Portion:
    """How to compute a run of an output's elements, `makes`: `op`, of the runs of its inputs that it `reads`.

    None among these: all of that input.
    """

    op: Operator
    reads: tuple[Run | None, ...]
    makes: Run


@dataclass(frozen=True)
class Division:
    """A way to divide an output into portions with the same elements: `length` units, of which each takes some.

    `portion(start, stop)` computes the units from `start` to before `stop`.
    """

    length: int
    portion: Callable[[int, int], Portion]


def row_axis(shape: Sequence[int]) -> int | None:
    """The axis that counts rows, if there are any: the first one of length above 1, but not the last axis."""
    return next((axis for axis, size in enumerate(shape[:-1]) if size > 1), None)


AT_ONCE = (4, 3, 2, 5, 7, 1)
"""Rows of a matrix that are computed at once, the first that divides their number: kernels take several by one reading,
or packing, of weights.
"""


def each_row(op: Operator, sig: Signature, by_rows: Sequence[bool], at_once: Sequence[int] = AT_ONCE) -> RowForm | None:
    """The form of what takes each row for itself, of the inputs that are read `by_rows`; several rows of a matrix."""
    shape = sig.output.shape
    axis = row_axis(shape)
    if axis is None:
        return None
    many = at_once if axis == len(shape) - 2 else (1,)
    rows = next(n for n in many if shape[axis] % n == 0)
    window = RowWindow(axis, span=rows, stride=rows)
    return RowForm(op, tuple(window if by_row else None for by_row in by_rows), axis, rows=rows)


@dataclass(frozen=True)
class Operator:
    """An operator with its attributes; immutable, compared by value. Subclasses live in ops/.

    A new operator needs only `infer`, `evaluate` and `lower` (see lir/lower.py); what else a pass may ask of it are
    traits, which it declares by inheriting them (mcugen.hir.traits).
    """

    mnemonic: ClassVar[str] = ""
    """Name in dumps and reports; families of many functions override `name` instead."""
    moves_data: ClassVar[bool] = False
    """Copies elements without looking at them: works on every element type, keeps quantization parameters."""

    @property
    def name(self) -> str:
        """Name in dumps, reports and kernel names."""
        return self.mnemonic

    @classmethod
    def spelled(cls) -> Mapping[str, Mapping[str, object]]:
        """The names that operators of this class have, and the fields that each tells: for dumps to be read again."""
        return {cls.mnemonic: {}} if cls.mnemonic else {}

    @property
    def bodies(self) -> tuple[Graph, ...]:
        """Graphs that the operator runs. Passes, checks and dumps descend into them; their signatures stay."""
        return ()

    @property
    def repeats(self) -> tuple[int, ...]:
        """How often each of its bodies runs, at most."""
        return (1,) * len(self.bodies)

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Types of the outputs; raises ModelError when the inputs cannot be right."""
        raise NotImplementedError

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """The numpy reference: for integer types, the specification to the last bit."""
        raise NotImplementedError

    def bounds(self, sig: Signature, *inputs: Bounds | None) -> Sequence[Bounds | None]:
        """What the elements of each output lie between, by the bounds of the inputs; None: nothing is known.

        Inputs are as in `evaluate`; both bounds of a constant are one array.
        """
        ends = [bounds for bounds in inputs if bounds is not None]
        if not self.rises or not ends or len(ends) < len(inputs):
            return (None,) * len(sig.outputs)
        lows, highs = (self.evaluate(sig, *arrays) for arrays in zip(*ends, strict=True))
        return tuple(zip(lows, highs, strict=True))

    @property
    def rises(self) -> bool:
        """Whether no output falls where inputs rise."""
        return self.moves_data

    def macs(self, sig: Signature) -> int:
        """Multiply-accumulates of one inference, padding included."""
        return 0
