# SPDX-License-Identifier: Apache-2.0
"""Traits: optional properties of operators. A pass asks `isinstance(node.op, Trait)`.

An operator has a trait by inheriting it. Where the property depends on types or attributes, the methods can still
return None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Self

from mcugen.core.errors import ModelError
from mcugen.hir.operator import Channels, Division, IntegerForm, Operator, Permutation, Portion, RowForm, Run, Signature
from mcugen.hir.types import Array, Shape

if TYPE_CHECKING:
    from mcugen.hir.graph import Graph, Node, Value


class Quantizable:
    """An operator that has an integer form."""

    real_inputs: ClassVar[frozenset[int]] = frozenset()
    """Indices of constant inputs that the integer form reads as real numbers."""

    def integer(self, graph: Graph, sig: Signature, inputs: Sequence[Value | None]) -> IntegerForm | None:
        """Return the operator that computes this node on quantized tensors directly, or None if there is none.

        Without an integer form the node stays in float.

        Args:
            graph: Graph to which the form may add constants.
            sig: Types that the integer operator would read and write. Tensors are quantized wherever the model
                quantizes or dequantizes them; the output always is.
            inputs: Values that the integer operator would read.

        Returns:
            The operator and its inputs, which may include new constants.
        """
        raise NotImplementedError


class Weighted:
    """An operator that multiplies its input by constant weights."""

    weight_axes: ClassVar[Mapping[int, int]] = {}
    """Constant inputs that are quantized symmetrically, with one scale for each index of the given axis."""
    bias_input: ClassVar[int | None] = None
    """Index of the constant input that is added to the accumulators, in the accumulators' scale."""
    takes_groups: ClassVar[bool] = False
    """Whether groups of input channels may have their own scales; the weights then have shape [outputs, inputs]."""

    def unfolded(self, sig: Signature, x: Array) -> Array | None:
        """Return the real input as a matrix product's left operand of shape [groups, rows, depth] (im2col).

        The output sums are rows · wᵀ + bias for weights of shape [groups, outputs of a group, depth]. Return None if
        the operator is not such a product.
        """
        return None

    def of_unfolded(self, sig: Signature, rows: Array, *constants: Array) -> Array:
        """Return what `evaluate` returns, bit by bit, for the real input whose im2col matrix is `rows`.

        `constants` are the other inputs.
        """
        raise NotImplementedError


class Interpolating:
    """An operator whose results lie between neighbouring elements of its only input: both can share one scale."""


class Clampable:
    """An operator that can clamp its real-valued result at no cost."""

    clamp: tuple[float, float] | None
    """Lower and upper limit of the result; None if it is not clamped."""

    def with_clamp(self, low: float, high: float) -> Self | None:
        """Return the operator with its result clamped to [low, high]; None if it cannot do that."""
        raise NotImplementedError

    def without_clamp(self) -> Self | None:
        """Return the operator without its clamp; None if it has none, or if Operator.bounds does not consider it."""
        return None


class Paddable:
    """An operator with a window that may extend beyond its input."""

    def padded(self, x: Value, before: Shape, after: Shape) -> Self | None:
        """Return the operator that adds the zeros around `x` by its own padding; None if it cannot.

        `before` and `after` are the numbers of zeros on each axis of `x`.
        """
        raise NotImplementedError


class Permutable:
    """An operator that commutes with transpositions."""

    @property
    def wants_channels_last(self) -> bool:
        """Return whether this is the channels-first form of a spatial operator."""
        return False

    def permuted(self, sig: Signature, perm: Permutation) -> tuple[Operator, tuple[Permutation | None, ...]] | None:
        """Return the operator whose output is this operator's output transposed by `perm`.

        Returns:
            The operator, and for each input the permutation to apply to it (None: leave the input unchanged). None if
            the operator does not commute with transpositions.
        """
        raise NotImplementedError

    def carried(self, sig: Signature, perm: Permutation) -> Permutation | None:
        """Return the output's permutation if the inputs are transposed by `perm`; None if there is none."""
        return perm


class Channelwise:
    """An operator that computes each channel separately, or sums over all channels with constant weights."""

    def channels(self, sig: Signature) -> Channels | None:
        """Return how output channels depend on input channels; None if they do not separate for these types."""
        raise NotImplementedError


class Rowwise:
    """An operator that can compute its output row by row."""

    def by_rows(self, sig: Signature) -> RowForm | None:
        """Return how to compute one row of the output; None if that is impossible."""
        raise NotImplementedError

    def by_narrow_rows(self, sig: Signature) -> RowForm | None:
        """Return how to compute one row from rows without padding columns, if that differs from `by_rows`."""
        return self.by_rows(sig)


class Columnwise:
    """An operator that computes some columns of an image (channels last) from some columns of its first input."""

    def some_columns(self, sig: Signature, start: int, stop: int) -> tuple[Operator, int, int] | None:
        """Return how to compute only the output columns `start` to before `stop`.

        Returns:
            The operator, the first input column that it reads, and the column behind the last one; None if that is
            impossible.
        """
        raise NotImplementedError


class Divisible:
    """An operator that can be computed in independent tiles other than rows of equal windows."""

    def divisions(self, sig: Signature, inputs: Sequence[Value | None]) -> Sequence[Division]:
        """Return the possible divisions, in order of preference."""
        raise NotImplementedError

    def has_channels_alone(self, sig: Signature, inputs: Sequence[Value | None]) -> bool:
        """Return whether a range of output channels is itself a layer that computes the same values.

        The layer has the weights and biases (axis 0) of these channels (last axis of the output). This must hold for
        any number of pixels or rows.
        """
        return False


class Simplifiable:
    """An operator that may be equal to a value that is cheaper to compute."""

    def simplify(self, node: Node, graph: Graph) -> Value | None:
        """Return a value that equals the only output of `node` and is cheaper to compute; None if there is none."""
        raise NotImplementedError


class Expressible:
    """An operator that can be written as one ONNX node."""

    prefers_source: ClassVar[bool] = False
    """Whether exports use the model's own nodes instead, if these name the result."""

    def onnx_form(self, sig: Signature) -> tuple[str, Mapping[str, object], Sequence[Array]] | None:
        """Return ONNX operator, attributes and further constant inputs that compute the same real values.

        A clamp is left out. Return None if no single ONNX node is equal; exports then use the model's own nodes.
        """
        raise NotImplementedError


class Partial:
    """An operator that can omit some of its outputs."""

    def keeping(self, needed: Sequence[bool]) -> Operator | None:
        """Return the operator with only the needed outputs, in order; None if it always computes all outputs."""
        raise NotImplementedError

    def computed(self, needed: Sequence[bool]) -> Sequence[bool]:
        """Return which outputs the operator computes at least, if those in `needed` are needed."""
        return needed


class Stepwise:
    """An operator that iterates over time steps and stacks the results of all steps in some outputs."""

    def last_part(self, node: Node, output: Value) -> tuple[int, int] | None:
        """Return offset (row-major) and size of the last step in `output`, if that part is a state; else None."""
        raise NotImplementedError

    def last_state(self, node: Node, graph: Graph, output: Value) -> Value:
        """Return the final state that equals the last step of `output`."""
        raise NotImplementedError


class Widenable:
    """An operator whose weights may be stored with fewer bits than kernels compute with."""

    def widened_bytes(self, sig: Signature) -> int:
        """Return the bytes of the weights if they are stored in the wider type of the computation, which is faster.

        The result is 0 if they must stay narrow.
        """
        raise NotImplementedError

    def widens_by_parts(self, sig: Signature, features: frozenset[str]) -> bool:
        """Return whether a CPU with these features can widen the weights block by block in little more time."""
        raise NotImplementedError


class Windowed:
    """An operator without multiply-accumulates that reads overlapping windows, such as a pool."""

    def reads(self, sig: Signature) -> int:
        """Return the number of elements under all windows, padding included."""
        raise NotImplementedError


class Cell:
    """A recurrent operator whose integer form consists of several nodes with internal quantized tensors between them.

    `matrices` are the indices of the constant inputs that hold weights.
    """

    matrices: ClassVar[tuple[int, ...]] = ()

    def internals(self, sig: Signature, *arrays: Array) -> Mapping[str, Array]:
        """Return the internal tensors that need quantization parameters (for example the state), by role."""
        raise NotImplementedError

    def abreast(
        self, sig: Signature, samples: Sequence[Sequence[Array]]
    ) -> Iterator[tuple[tuple[Array, ...], Mapping[str, Array]]]:
        """Yield, for each sample, the results and the internal tensors by role.

        Samples are computed together where that is faster.
        """
        raise NotImplementedError

    def can_expand(self, node: Node) -> bool:
        """Return whether this node can be written as integer nodes."""
        raise NotImplementedError

    def alike(self, node: Node) -> list[Value]:
        """Return the outputs that must share one scale, since they hold the same state."""
        raise NotImplementedError


class Saturating:
    """An operator that is flat near the ends of its range and so hides errors: accuracy is measured at its input."""

    @property
    def saturates(self) -> bool:
        """Return whether this instance is flat near the ends of its range."""
        return True


def weight_axes(op: Operator) -> Mapping[int, int]:
    """Return the indices of constant inputs that hold weights, each with the axis of its scales.

    The result is empty for operators without weights.
    """
    return op.weight_axes if isinstance(op, Weighted) else {}


def takes_groups(op: Operator) -> bool:
    """Return whether groups of an operator's input channels may have their own weight scales."""
    return isinstance(op, Weighted) and op.takes_groups


def bias_input(op: Operator) -> int | None:
    """Return the index of the constant input that is added to the accumulators; None if the operator has none."""
    return op.bias_input if isinstance(op, Weighted) else None


def onnx_form(op: Operator, sig: Signature) -> tuple[str, Mapping[str, object], Sequence[Array]] | None:
    """Return `Expressible.onnx_form`, or None for operators without the trait."""
    return op.onnx_form(sig) if isinstance(op, Expressible) else None


def prefers_source(op: Operator) -> bool:
    """Return `Expressible.prefers_source`, or False for operators without the trait."""
    return isinstance(op, Expressible) and op.prefers_source


def permuted(op: Operator, sig: Signature, perm: Permutation) -> tuple[Operator, tuple[Permutation | None, ...]] | None:
    """Return `Permutable.permuted`, or None for operators without the trait."""
    return op.permuted(sig, perm) if isinstance(op, Permutable) else None


def carried(op: Operator, sig: Signature, perm: Permutation) -> Permutation | None:
    """Return `Permutable.carried`, or None for operators without the trait."""
    return op.carried(sig, perm) if isinstance(op, Permutable) else None


def row_form(op: Operator, sig: Signature, *, is_narrow: bool = False) -> RowForm | None:
    """Return `Rowwise.by_rows`, or None for operators without the trait.

    With `is_narrow`, the rows have no padding columns.
    """
    if not isinstance(op, Rowwise):
        return None
    return op.by_narrow_rows(sig) if is_narrow else op.by_rows(sig)


def divisions(op: Operator, sig: Signature, inputs: Sequence[Value | None]) -> Sequence[Division]:
    """Return `Divisible.divisions`; for other operators the division by rows, if each output row is independent."""
    if isinstance(op, Divisible):
        return op.divisions(sig, inputs)
    form = None if op.moves_data else row_form(op, sig)
    return () if form is None or len(sig.outputs) > 1 else each_for_itself(form, sig)


def _makes_any_rows(form: RowForm, sig: Signature) -> bool:
    """Return whether the form's operator makes all rows from whole inputs; others make a fixed number of rows."""
    try:
        return form.op.infer(*sig.inputs)[0].shape == sig.output.shape
    except ModelError:  # a reshape names the shape of its result
        return False


def each_for_itself(form: RowForm, sig: Signature) -> Sequence[Division]:
    """Return the division by rows, if each output row needs only the same rows of the inputs; else an empty tuple."""
    windows = [window for window in form.windows if window is not None]
    if form.finish or not windows or any(w.before or w.goes_on or any(w.sides) or w.span != w.stride for w in windows):
        return ()
    shapes = [(sig.output.shape, form.axis)]
    shapes += [(sig.input(i).shape, w.axis) for i, w in enumerate(form.windows) if w is not None]
    if any(math.prod(shape[:axis]) != 1 for shape, axis in shapes):
        return ()
    if not _makes_any_rows(form, sig):
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
    """Return the run of a tensor of this shape with the entries `start` to before `stop` along `axis`.

    All axes before `axis` must have length 1.
    """
    return Run(start * math.prod(shape[axis + 1 :]), (*shape[:axis], stop - start, *shape[axis + 1 :]))


def clamp_of(op: Operator) -> tuple[float, float] | None:
    """Return the limits that an operator clamps its result to; None if it does not clamp."""
    return op.clamp if isinstance(op, Clampable) else None


def readers_behind(value: Value, moves: Callable[[Node], bool] = lambda node: node.op.moves_data) -> list[Node]:
    """Return the nodes that compute with a value, directly or behind nodes that only move data (`moves`).

    Each node is listed once, in the order in which a walk along the uses meets it.
    """
    visited: dict[Node, None] = {}
    stack = value.users[::-1]
    while stack:
        node = stack.pop()
        if node in visited:
            continue
        visited[node] = None
        if moves(node):
            stack += [user for v in reversed(node.outputs) for user in reversed(v.users)]
    return [n for n in visited if not moves(n)]
