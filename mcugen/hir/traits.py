# SPDX-License-Identifier: Apache-2.0
"""Traits: optional properties of operators. A pass asks `isinstance(node.op, Trait)`.

An operator has a trait by inheriting it. Where the property depends on types or attributes, the methods can still
return None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Self

from mcugen.core.errors import ModelError
from mcugen.core.frozen import Frozen
from mcugen.hir.crop import Box, Crop, whole
from mcugen.hir.operator import (
    Channels,
    ElementRun,
    IntegerForm,
    Operator,
    Partition,
    Permutation,
    RowForm,
    Shard,
    Signature,
)
from mcugen.hir.types import Array, Shape

if TYPE_CHECKING:
    from mcugen.hir.graph import Graph, Node, Value


class Quantizable:
    """An operator that may have an integer form, which computes on quantized tensors.

    Attributes:
        real_inputs: Indices of constant inputs that stay real numbers when the operator is converted to its integer
            form.
    """

    real_inputs: ClassVar[frozenset[int]] = frozenset()

    def integer(self, graph: Graph, sig: Signature, inputs: Sequence[Value | None]) -> IntegerForm | None:
        """Return the operator that computes this node on quantized tensors directly (its integer form), or None.

        Without an integer form the node stays in float.

        Args:
            graph: Graph to which the form may add constants.
            sig: Types that the integer operator would read and write. The output type is always quantized. An input
                type is quantized if the input comes from a Dequantize node, else it is real.
            inputs: Values that the integer operator would read.

        Returns:
            The operator and its inputs, which may include new constants.
        """
        raise NotImplementedError


class Weighted:
    """An operator that multiplies its input by constant weights.

    Attributes:
        weight_axes: Axis of per-channel weight scales, by the index of the constant input that holds the weights.
        bias_input: Index of the bias input, a constant that is added to the accumulators in their scale; None without a
            bias input.
        takes_groups: Whether groups of input channels may have separate weight scales; weights then have shape
            [outputs, inputs].
    """

    weight_axes: ClassVar[Mapping[int, int]] = {}
    bias_input: ClassVar[int | None] = None
    takes_groups: ClassVar[bool] = False

    def unfolded(self, sig: Signature, x: Array) -> Array | None:
        """Return the im2col matrix [groups, rows, depth] of a real input x; None if the operator has no such form.

        `groups` are the channel groups of a grouped convolution, `rows` the output positions. For weights of shape
        [groups, outputs of a group, depth], the output sums are matrix · wᵀ + bias.
        """
        return None

    def of_unfolded(self, sig: Signature, rows: Array, *constants: Array) -> Array:
        """Compute the operator's output from the im2col matrix `rows` that `unfolded` returned for its real input.

        The result equals that of `evaluate`, bit by bit. `constants` are the other inputs.
        """
        raise NotImplementedError


class Interpolating:
    """An operator whose results lie between input elements, such as a resize.

    Its input and output can therefore share one quantization scale.
    """


class Clampable(Frozen):
    """An operator that can clamp its real-valued result at no additional cost.

    Attributes:
        clamp: Lower and upper limit of the result; None if it is not clamped.
    """

    clamp: tuple[float, float] | None

    def with_clamp(self, low: float, high: float) -> Self | None:
        """Return the operator with its result clamped to [low, high]; None if it cannot apply such a clamp."""
        return None if self.clamp else replace(self, clamp=(low, high))

    def without_clamp(self) -> Self | None:
        """Return the operator without its clamp, for a pass that removes clamps without effect.

        Return None if the operator has no clamp, or if its `bounds` do not tell whether the clamp has an effect.
        """
        return None


class Paddable:
    """An operator with a sliding window and zero padding of its own, which can absorb a preceding Pad."""

    def padded(self, x: Value, before: Shape, after: Shape) -> Self | None:
        """Return the operator with additional zero padding around its input x; None if it cannot pad so much.

        `before` and `after` are the numbers of zeros added on each axis of `x`.
        """
        raise NotImplementedError


class Permutable:
    """An operator that commutes with transpositions, so that layout passes can move a transposition across it."""

    @property
    def wants_channels_last(self) -> bool:
        """Return whether the operator is channels first but has faster kernels for channels-last tensors."""
        return False

    def permuted(self, sig: Signature, perm: Permutation) -> tuple[Operator, tuple[Permutation | None, ...]] | None:
        """Return the operator that computes this operator's output transposed by `perm`, and each input's permutation.

        Layout passes use it to move a transposition from the output to the inputs.

        Returns:
            The operator, and for each input the permutation to apply to it (None: leave the input unchanged). None if
            the operator does not commute with this transposition.
        """
        raise NotImplementedError

    def carried(self, sig: Signature, perm: Permutation) -> Permutation | None:
        """Return the permutation by which the output is transposed if every input is transposed by `perm`.

        Layout passes use it to move a transposition from the inputs to the output. The result is None if the operator
        does not commute with this transposition.
        """
        return perm


class Channelwise:
    """An operator whose output channels each depend on one input channel, or on all by constant weights."""

    def channels(self, sig: Signature) -> Channels | None:
        """Return on which input channels each output channel depends, so that channel pruning can remove channels.

        The result is None if channels of these types cannot be removed one by one.
        """
        raise NotImplementedError


class Croppable:
    """An operator that can compute only some elements of its only output, for dead-element elimination and streams."""

    def cropped(self, node: Node, region: Box) -> Crop | None:
        """Return how to compute the output's elements in a box, with the same bits as those of the whole output.

        The crop may compute more than the wanted elements. It says which elements of each input are needed.

        Args:
            node: The node, whose inputs are whole.
            region: The wanted elements of the output, at least one.

        Returns:
            The crop; None if the operator always computes the whole output.
        """
        raise NotImplementedError


class Rowwise:
    """An operator that can compute its output row by row, from windows of input rows, for line-buffer fusion."""

    def by_rows(self, sig: Signature) -> RowForm | None:
        """Return how each step computes the next output rows from windows of input rows (for line-buffer fusion).

        Return None if the output cannot be computed row by row for these types.
        """
        raise NotImplementedError

    def by_narrow_rows(self, sig: Signature) -> RowForm | None:
        """Return how to compute the output row by row if rows have no padding columns (for line-buffer fusion).

        The kernel itself then pads the rows. Return None if the output cannot be computed in this way. By default, the
        result is that of `by_rows`.
        """
        return self.by_rows(sig)


class Columnwise:
    """An operator that computes some columns of an image (channels last) from some columns of its first input."""

    def some_columns(self, sig: Signature, start: int, stop: int) -> tuple[Operator, int, int] | None:
        """Return the operator that computes only the output columns `start` to before `stop`, for spatial tiling.

        Returns:
            The operator, the first input column that it reads, and the column after the last one that it reads. None if
            the operator cannot compute these columns alone.
        """
        raise NotImplementedError


class Partitionable:
    """An operator that defines how its output can be split into independent shards, which several cores compute.

    Operators without this trait can only be split by rows.
    """

    def partitions(self, sig: Signature, inputs: Sequence[Value | None]) -> Sequence[Partition]:
        """Return the ways to split the output into shards for several cores, the preferred one first; empty if none."""
        raise NotImplementedError

    def has_channels_alone(self, sig: Signature, inputs: Sequence[Value | None]) -> bool:
        """Return whether a layer cut down to some of its output channels computes these channels exactly.

        If so, output-channel tiling can divide the layer. The narrower layer has only the weights and biases of the
        chosen channels. Channels are counted by axis 0 of weights and biases, and by the last axis of the output. The
        result must hold for any number of pixels or rows.
        """
        return False


class SelfTimed:
    """An operator that knows its own time, since no kernel of the CPU computes it."""

    def cycles(self, sig: Signature) -> float:
        """Return the estimated time of one run in cycles of the CPU's clock."""
        raise NotImplementedError


class Simplifiable:
    """An operator that can sometimes be replaced by a cheaper value, such as a reshape to the same shape."""

    def simplify(self, node: Node, graph: Graph) -> Value | None:
        """Return a value that always equals the only output of `node` and is cheaper to compute; None if there is none.

        The method may add nodes to `graph` to compute the value.
        """
        raise NotImplementedError


class Expressible:
    """An operator that can be exported as one ONNX node.

    Attributes:
        prefers_source: Whether ONNX export prefers to copy the nodes of the imported model that compute the result, if
            there are any, to writing the node from `onnx_form`.
    """

    prefers_source: ClassVar[bool] = False

    def onnx_form(self, sig: Signature) -> tuple[str, Mapping[str, object], Sequence[Array]] | None:
        """Return the one ONNX node that computes the same real values as this operator, without its clamp.

        Return None if no single ONNX node does; exports then copy the imported model's own nodes.

        Args:
            sig: Types of inputs and outputs.

        Returns:
            The ONNX operator's name, its attributes by name, and its constant inputs beyond those of this operator.
        """
        raise NotImplementedError


class Partial:
    """An operator with several outputs that can omit those that are not needed."""

    def keeping(self, needed: Sequence[bool]) -> Operator | None:
        """Return the operator with only the outputs that are marked in `needed`, in order.

        Return None if the operator always computes all outputs.
        """
        raise NotImplementedError

    def computed(self, needed: Sequence[bool]) -> Sequence[bool]:
        """Return, for each output, whether the operator computes it if the outputs marked in `needed` are needed.

        An operator may compute outputs that are not needed, because others depend on them.
        """
        return needed


class Stepwise:
    """An operator that iterates over time steps, such as a loop or an LSTM, and stacks the results of all steps."""

    def last_part(self, node: Node, output: Value) -> tuple[int, int] | None:
        """Return the row-major offset and the size, in elements, of the last time step within a stacked `output`.

        Return None if that time step does not equal a final state that the operator also outputs.
        """
        raise NotImplementedError

    def last_state(self, node: Node, graph: Graph, output: Value) -> Value:
        """Return the final state that equals the last time step of a stacked `output`.

        If the node lacks that output, it is added to the node first.
        """
        raise NotImplementedError


class Widenable:
    """An operator whose weights may be stored with fewer bits (such as 4) than its kernels compute with."""

    def widened_bytes(self, node: Node) -> int:
        """Return the bytes of the weights if they are stored in the wider type that kernels compute with.

        The result is 0 if the weights cannot be stored in the wider type.
        """
        raise NotImplementedError

    def widens_by_parts(self, sig: Signature, features: frozenset[str]) -> bool:
        """Return whether a CPU with these features can unpack weights to the wider type by blocks at little cost."""
        return False


class Windowed:
    """An operator without multiply-accumulates that reads overlapping windows, such as a pool."""

    def reads(self, sig: Signature) -> int:
        """Return the number of elements that all windows of one inference read; padding elements count too."""
        raise NotImplementedError


class Cell:
    """A recurrent operator whose integer form consists of several nodes with internal quantized tensors between them.

    Attributes:
        matrices: Indices of the constant inputs that hold weights.
    """

    matrices: ClassVar[tuple[int, ...]] = ()

    def internals(self, sig: Signature, *arrays: Array) -> Mapping[str, Array]:
        """Compute a recurrent layer's internal tensors that need quantization parameters, such as the hidden state.

        Args:
            sig: Types of inputs and outputs.
            arrays: The real inputs.

        Returns:
            Each internal tensor by its role, a name that the operator chooses.
        """
        raise NotImplementedError

    def evaluate_batch(
        self, sig: Signature, samples: Sequence[Sequence[Array]]
    ) -> Iterator[tuple[tuple[Array, ...], Mapping[str, Array]]]:
        """Evaluate a recurrent layer for several samples, and yield each sample's outputs and internal tensors.

        The internal tensors, such as the hidden state, are given by role, a name that the operator chooses. Samples are
        computed together where that is faster.
        """
        raise NotImplementedError

    def can_expand(self, node: Node) -> bool:
        """Return whether several nodes with integer operators can replace this node of a recurrent operator."""
        raise NotImplementedError

    def outputs_of_one_scale(self, node: Node) -> list[Value]:
        """Return the outputs that quantization must give one common scale, because they hold the same state."""
        raise NotImplementedError


class Saturating:
    """An operator, such as a sigmoid, that is flat at the ends of its range, where it hides errors of its input.

    Quantization therefore measures accuracy at the input of such an operator.
    """

    @property
    def saturates(self) -> bool:
        """Return whether this operator is flat near the ends of its range, so that errors are hidden."""
        return True


def weight_axes(op: Operator) -> Mapping[int, int]:
    """Return the indices of an operator's inputs that hold constant weights, each with the axis of per-channel scales.

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
    """Return the single ONNX node that computes an operator's real result: its name, attributes and constant inputs.

    Return None if no single ONNX node does, or if the operator lacks the trait Expressible.
    """
    return op.onnx_form(sig) if isinstance(op, Expressible) else None


def prefers_source(op: Operator) -> bool:
    """Return whether ONNX export should rather copy the imported model's nodes than write the node of `onnx_form`.

    Operators without the trait Expressible return False.
    """
    return isinstance(op, Expressible) and op.prefers_source


def permuted(op: Operator, sig: Signature, perm: Permutation) -> tuple[Operator, tuple[Permutation | None, ...]] | None:
    """Return the operator that computes an operator's output transposed by `perm`, and each input's permutation.

    Returns:
        The operator, and for each input the permutation to apply to it (None: leave the input unchanged). None if the
        operator does not commute with this transposition, or lacks the trait Permutable.
    """
    return op.permuted(sig, perm) if isinstance(op, Permutable) else None


def carried(op: Operator, sig: Signature, perm: Permutation) -> Permutation | None:
    """Return the permutation by which an operator's output is transposed if all its inputs are transposed by `perm`.

    Return None if the operator does not commute with this transposition, or lacks the trait Permutable.
    """
    return op.carried(sig, perm) if isinstance(op, Permutable) else None


def crop_of(node: Node, region: Box) -> Crop:
    """Return how a node with one output computes the output's elements in a box, and which elements it reads for them.

    Operators without the trait Croppable compute and read everything.
    """
    crop = node.op.cropped(node, region) if isinstance(node.op, Croppable) else None
    if crop is not None:
        return crop
    reads = tuple(None if v is None else whole(v.type.shape) for v in node.inputs)
    return Crop(node.op, whole(node.output.type.shape), reads)


def row_form(op: Operator, sig: Signature, *, is_narrow: bool = False) -> RowForm | None:
    """Return how an operator computes its output row by row (for line-buffer fusion); None if it cannot.

    Args:
        op: The operator.
        sig: Types of the whole tensors.
        is_narrow: Whether rows of the inputs have no padding columns in memory (`Rowwise.by_narrow_rows`).
    """
    if not isinstance(op, Rowwise):
        return None
    return op.by_narrow_rows(sig) if is_narrow else op.by_rows(sig)


def partitions(op: Operator, sig: Signature, inputs: Sequence[Value | None]) -> Sequence[Partition]:
    """Return the ways to split an operator's output into shards for several cores; empty if there is none.

    Operators without the trait Partitionable are split by rows if their output rows are independent.
    """
    if isinstance(op, Partitionable):
        return op.partitions(sig, inputs)
    form = None if op.moves_data else row_form(op, sig)
    return () if form is None or len(sig.outputs) > 1 else partition_by_rows(form, sig)


def _makes_any_rows(form: RowForm, sig: Signature) -> bool:
    """Return whether the form's operator makes all rows from whole inputs; others make a fixed number of rows."""
    try:
        return form.op.infer(*sig.inputs)[0].shape == sig.output.shape
    except ModelError:  # a reshape names the shape of its result
        return False


def partition_by_rows(form: RowForm, sig: Signature) -> Sequence[Partition]:
    """Return a partition of an operator's output into shards of whole rows, which several cores can compute.

    Args:
        form: How the operator computes its output row by row.
        sig: Types of the operator's whole inputs and output.

    Returns:
        A tuple of one partition; an empty tuple if there is none, for example because the shards would read overlapping
        rows of an input.
    """
    windows = [window for window in form.windows if window is not None]
    if form.finish or not windows or any(w.before or w.goes_on or any(w.sides) or w.span != w.stride for w in windows):
        return ()
    shapes = [(sig.output.shape, form.axis)]
    shapes += [(sig.input(i).shape, w.axis) for i, w in enumerate(form.windows) if w is not None]
    if any(math.prod(shape[:axis]) != 1 for shape, axis in shapes):
        return ()
    if not _makes_any_rows(form, sig):
        return ()

    def shard(start: int, stop: int) -> Shard:
        reads = tuple(
            None if w is None else run_along(sig.input(i).shape, w.axis, start * w.stride, stop * w.stride)
            for i, w in enumerate(form.windows)
        )
        writes = run_along(sig.output.shape, form.axis, start * form.rows, stop * form.rows)
        return Shard(form.op, reads, writes)

    return (Partition(sig.output.shape[form.axis] // form.rows, shard),)


def run_along(shape: Shape, axis: int, start: int, stop: int) -> ElementRun:
    """Return the elements of a tensor of this shape with indices `start` to before `stop` along `axis`.

    All axes before `axis` must have length 1, so that the elements are contiguous.
    """
    return ElementRun(start * math.prod(shape[axis + 1 :]), (*shape[:axis], stop - start, *shape[axis + 1 :]))


def clamp_of(op: Operator) -> tuple[float, float] | None:
    """Return the limits that an operator clamps its result to; None if it does not clamp."""
    return op.clamp if isinstance(op, Clampable) else None


def readers_behind(value: Value, moves: Callable[[Node], bool] = lambda node: node.op.moves_data) -> list[Node]:
    """Return the nodes that compute with a value: its readers, or the readers of results of nodes that only move data.

    Each node is listed once, in the order of the search along the uses.

    Args:
        value: The value.
        moves: Returns whether a node only moves data.
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
