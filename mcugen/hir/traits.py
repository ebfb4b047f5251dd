# SPDX-License-Identifier: Apache-2.0
"""What an operator may declare of itself besides what all do: a pass asks `isinstance(node.op, Trait)`.

An operator has a trait by inheriting it; where it depends on types or attributes, its methods may still answer None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Self

from mcugen.hir.operator import (
    Channels,
    Division,
    IntegerForm,
    Operator,
    Permutation,
    Portion,
    RowForm,
    Run,
    Signature,
)
from mcugen.hir.types import Array, Shape

if TYPE_CHECKING:
    from mcugen.hir.graph import Graph, Node, Value


class Quantizable:
    """Has an integer form."""

    real_inputs: ClassVar[frozenset[int]] = frozenset()
    """Constant inputs that the integer form takes as real numbers."""

    def integer(self, graph: Graph, sig: Signature, inputs: Sequence[Value | None]) -> IntegerForm | None:
        """How to compute this on quantized tensors directly, or None (then it stays a float island).

        `sig` and `inputs` are what the integer operator would read and write: quantized wherever the model
        (de)quantizes; the output always is. The form may name other inputs, e.g. constants added to `graph`.
        """
        raise NotImplementedError


class Weighted:
    """Multiplies its input with constant weights."""

    weight_axes: ClassVar[Mapping[int, int]] = {}
    """Constant inputs that are quantized symmetrically, one scale for each index of the axis given."""
    bias_input: ClassVar[int | None] = None
    """The constant input that is added to the accumulators, in their unit."""
    takes_groups: ClassVar[bool] = False
    """Whether groups of inputs may have scales of their own; weights are [outputs, inputs] then."""

    def unfolded(self, sig: Signature, x: Array) -> Array | None:
        """The real input as [groups, rows, depth].

        Its sums are rows · wᵀ + bias for weights as [groups, outputs of a group, depth]. None: it is no such product.
        """
        return None

    def of_unfolded(self, sig: Signature, rows: Array, *constants: Array) -> Array:
        """What `evaluate` gives for the real input with these rows, to the bit; `constants` are the other inputs."""
        raise NotImplementedError


class Interpolating:
    """Results lie between neighbouring elements of the only input, whose scale they may share: none is requantized."""


class Clampable:
    """Can clamp its real-valued result for nothing."""

    clamp: tuple[float, float] | None
    """What it is clamped to."""

    def with_clamp(self, low: float, high: float) -> Self | None:
        """The operator with its result clamped to [low, high]; None: not this one."""
        raise NotImplementedError

    def without_clamp(self) -> Self | None:
        """The operator without its clamp; None: it has none that `bounds` knows of."""
        return None


class Paddable:
    """Has a window that may reach beyond its input."""

    def padded(self, x: Value, before: Shape, after: Shape) -> Self | None:
        """The operator whose window takes in what zeros around its input `x` add to each axis; None: not these."""
        raise NotImplementedError


class Permutable:
    """Lets transpositions pass."""

    @property
    def wants_channels_last(self) -> bool:
        """Whether this is the channels-first form of an operator with space."""
        return False

    def permuted(self, sig: Signature, perm: Permutation) -> tuple[Operator, tuple[Permutation | None, ...]] | None:
        """The operator whose output is this one's transposed by `perm`.

        With it come the permutations that its inputs must undergo (None: leave that input as it is).
        None: transpositions do not pass through this operator.
        """
        raise NotImplementedError

    def carried(self, sig: Signature, perm: Permutation) -> Permutation | None:
        """How the output is to be transposed, so that it is made of inputs transposed by `perm`; None: in no way."""
        return perm


class Channelwise:
    """Works channel by channel, or sums over all of them with constant weights."""

    def channels(self, sig: Signature) -> Channels | None:
        """How; None: not with these types."""
        raise NotImplementedError


class Rowwise:
    """Computes row by row."""

    def by_rows(self, sig: Signature) -> RowForm | None:
        """How to compute one row of the output, or None: there is no such thing."""
        raise NotImplementedError

    def by_narrow_rows(self, sig: Signature) -> RowForm | None:
        """The same of rows without columns at their sides, where that is another way."""
        return self.by_rows(sig)


class Columnwise:
    """Computes some columns of an image (channels last) from some columns of its first input."""

    def some_columns(self, sig: Signature, start: int, stop: int) -> tuple[Operator, int, int] | None:
        """How those from `start` to before `stop`, and the columns that are read: the first, and the end."""
        raise NotImplementedError


class Divisible:
    """Can be computed in portions, each for itself, that are not just rows of equal windows."""

    def divisions(self, sig: Signature, inputs: Sequence[Value | None]) -> Sequence[Division]:
        """The ways, the preferred ones first."""
        raise NotImplementedError

    def has_channels_alone(self, sig: Signature, inputs: Sequence[Value | None]) -> bool:
        """Whether some output channels (last axis), with their weights and biases (axis 0), are a layer of their own,
        which computes the same, for any number of pixels or rows.
        """
        return False


class Simplifiable:
    """May equal something that is cheaper."""

    def simplify(self, node: Node, graph: Graph) -> Value | None:
        """A value that already equals the only output of `node` (or is cheaper to compute), else None."""
        raise NotImplementedError


class Expressible:
    """Is one node of ONNX."""

    prefers_source: ClassVar[bool] = False
    """Whether the model's own nodes say it better, where they give a name to the result."""

    def onnx_form(self, sig: Signature) -> tuple[str, Mapping[str, object], Sequence[Array]] | None:
        """ONNX operator, attributes and further constant inputs that compute the same on reals, a clamp aside.

        None: there is no single ONNX node of these inputs; the model's own nodes say it.
        """
        raise NotImplementedError


class Partial:
    """Need not compute all of its outputs."""

    def keeping(self, wanted: Sequence[bool]) -> Operator | None:
        """The operator with only those outputs, in order; None: it always computes all."""
        raise NotImplementedError

    def computed(self, wanted: Sequence[bool]) -> Sequence[bool]:
        """Which outputs it has at least, if those are wanted."""
        return wanted


class Stepwise:
    """Computes something step by step, and keeps of some outputs what each step gave."""

    def last_part(self, node: Node, output: Value) -> tuple[int, int] | None:
        """Where in an output of all steps the last one's part begins (row-major), and its size, if a state is it."""
        raise NotImplementedError

    def last_state(self, node: Node, graph: Graph, output: Value) -> Value:
        """The state in the end that is the last part of such an output."""
        raise NotImplementedError


class Widenable:
    """Keeps weights in flash in fewer bits than it computes with."""

    def widened_bytes(self, sig: Signature) -> int:
        """What they would take as the numbers that are computed with, which is faster; 0: it must keep them so."""
        raise NotImplementedError

    def widens_by_parts(self, sig: Signature, features: frozenset[str]) -> bool:
        """Whether a CPU with these features can widen them a part at a time, in little more time."""
        raise NotImplementedError


class Windowed:
    """Reads windows that may overlap."""

    def reads(self, sig: Signature) -> int:
        """Elements under all windows, padding included, where an operator has no multiply-accumulates."""
        raise NotImplementedError


class Cell:
    """Becomes several nodes in integers, between which it keeps tensors of its own.

    `matrices` are the constant inputs that hold weights.
    """

    matrices: ClassVar[tuple[int, ...]] = ()

    def internals(self, sig: Signature, *arrays: Array) -> Mapping[str, Array]:
        """The tensors within the computation that are quantized too, by role (its state, say)."""
        raise NotImplementedError

    def abreast(
        self, sig: Signature, samples: Sequence[Sequence[Array]]
    ) -> Iterator[tuple[tuple[Array, ...], Mapping[str, Array]]]:
        """Results and internals of each sample, computed side by side as far as can be, since that takes less time."""
        raise NotImplementedError

    def can_expand(self, node: Node) -> bool:
        """Whether there is such a form of this node."""
        raise NotImplementedError

    def alike(self, node: Node) -> list[Value]:
        """The outputs that share one scale."""
        raise NotImplementedError


class Saturating:
    """Flattens near the ends of its range, which hides errors: outputs are judged by what it reads."""

    @property
    def saturates(self) -> bool:
        """Whether this one does."""
        return True


def weight_axes(op: Operator) -> Mapping[int, int]:
    """The constant inputs that hold weights, each with its axis of scales; empty for operators without any."""
    return op.weight_axes if isinstance(op, Weighted) else {}


def takes_groups(op: Operator) -> bool:
    """Whether groups of inputs may have scales of their own."""
    return isinstance(op, Weighted) and op.takes_groups


def bias_input(op: Operator) -> int | None:
    """The constant input that is added to the accumulators; None: there is none."""
    return op.bias_input if isinstance(op, Weighted) else None


def onnx_form(op: Operator, sig: Signature) -> tuple[str, Mapping[str, object], Sequence[Array]] | None:
    """See Expressible; None where the model's own nodes must say it."""
    return op.onnx_form(sig) if isinstance(op, Expressible) else None


def prefers_source(op: Operator) -> bool:
    """See Expressible."""
    return isinstance(op, Expressible) and op.prefers_source


def permuted(op: Operator, sig: Signature, perm: Permutation) -> tuple[Operator, tuple[Permutation | None, ...]] | None:
    """See Permutable; None where transpositions do not pass."""
    return op.permuted(sig, perm) if isinstance(op, Permutable) else None


def carried(op: Operator, sig: Signature, perm: Permutation) -> Permutation | None:
    """See Permutable; None where transpositions do not pass."""
    return op.carried(sig, perm) if isinstance(op, Permutable) else None


def row_form(op: Operator, sig: Signature, *, narrow: bool = False) -> RowForm | None:
    """See Rowwise; None where there is no such thing as a row."""
    if not isinstance(op, Rowwise):
        return None
    return op.by_narrow_rows(sig) if narrow else op.by_rows(sig)


def divisions(op: Operator, sig: Signature, inputs: Sequence[Value | None]) -> Sequence[Division]:
    """See Divisible; of any other operator by rows, if it computes each for itself."""
    if isinstance(op, Divisible):
        return op.divisions(sig, inputs)
    form = None if op.moves_data else row_form(op, sig)
    return () if form is None or len(sig.outputs) > 1 else each_for_itself(form, sig)


def each_for_itself(form: RowForm, sig: Signature) -> Sequence[Division]:
    """The division by rows of what needs of its inputs the same rows as it makes; () if it needs others."""
    windows = [window for window in form.windows if window is not None]
    if form.finish or not windows or any(w.before or w.goes_on or any(w.sides) or w.span != w.stride for w in windows):
        return ()
    shapes = [(sig.output.shape, form.axis)]
    shapes += [(sig.input(i).shape, w.axis) for i, w in enumerate(form.windows) if w is not None]
    if any(math.prod(shape[:axis]) != 1 for shape, axis in shapes):
        return ()
    if form.op.infer(*sig.inputs)[0].shape != sig.output.shape:  # it makes one row, and not any number of them
        return ()

    def portion(start: int, stop: int) -> Portion:
        reads = tuple(
            None if w is None else run_along(sig.input(i).shape, w.axis, start * w.stride, stop * w.stride)
            for i, w in enumerate(form.windows)
        )
        makes = run_along(sig.output.shape, form.axis, start * form.rows, stop * form.rows)
        return Portion(form.op, reads, makes)

    return (Division(sig.output.shape[form.axis] // form.rows, portion),)


def run_along(shape: Shape, axis: int, start: int, stop: int) -> Run:
    """Some entries of the outermost axis that is longer than 1, or of one before it."""
    return Run(start * math.prod(shape[axis + 1 :]), (*shape[:axis], stop - start, *shape[axis + 1 :]))


def clamp_of(op: Operator) -> tuple[float, float] | None:
    """What the result is clamped to."""
    return op.clamp if isinstance(op, Clampable) else None


def readers_behind(value: Value, moves: Callable[[Node], bool]) -> list[Node]:
    """The nodes that read a value, wherever those that only move data have moved it."""
    found: dict[Node, None] = {}
    stack = list(value.users)
    while stack:
        node = stack.pop()
        if node in found:
            continue
        found[node] = None
        if moves(node):
            stack += [user for v in node.outputs for user in v.users]
    return [n for n in found if not moves(n)]
