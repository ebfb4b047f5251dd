# SPDX-License-Identifier: Apache-2.0
"""Recognition of operators that exporters write as several: normalization, affine functions, masked softmax.

The recognized operator has a quantization range of its own, and an integer form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from mcugen.hir.graph import Graph, Node, Value, constant_data
from mcugen.hir.operator import Operator
from mcugen.hir.types import Array, DType, Shape
from mcugen.numerics.digits import MAX_SHORT_FACTOR_BITS, fits_float32, has_digits, is_float32
from mcugen.ops.affine import Affine
from mcugen.ops.movement import Reshape
from mcugen.ops.norm import Normalize
from mcugen.ops.pointwise import Binary, Where, argument_of, operands_of
from mcugen.ops.reduce import Reduce
from mcugen.ops.softmax import Softmax
from mcugen.passes.magnitudes import Magnitudes
from mcugen.passes.rewrite import RewriteOutcome, pattern

# --------------------------------------------------------------------------------------------- normalization


@pattern(Binary)
def recognize_normalization(graph: Graph, node: Node) -> RewriteOutcome:
    """d / √(mean d² + ε) → Normalize, centered where d = x − mean x; then n · scale + bias → Normalize with both.

    Here n is the result of a Normalize, and scale and bias are constants.
    """
    normalization = _normalized(node)
    if not isinstance(normalization, tuple):
        return normalization
    _take_affine(graph, graph.rewrite(node, normalization[0], [normalization[1]], types=[node.output.type]))
    return True


@pattern(Binary)
def recognize_shifted(graph: Graph, node: Node) -> RewriteOutcome:
    """x · s + (b − m · s) → (x − m) · r · γ + b, where s = r · γ, r = 1 / √…: as TensorFlow and Keras normalize.

    TensorFlow and Keras write normalizations in the first form, with the mean m, the scale γ and the bias b. The result
    has the form that `recognize_normalization` matches.
    """
    parts = _shifted(node)
    if parts is None:
        return False
    value, root, gamma, bias = parts
    steps = [(Binary(f), v) for f, v in (("Mul", root), ("Mul", gamma), ("Add", bias)) if v is not None]
    for op, operand in steps[:-1]:
        value = graph.add(op, [value, operand], node.origin, types=[node.output.type], before=node).output
    graph.rewrite(node, steps[-1][0], [value, steps[-1][1]], types=[node.output.type])
    return True


def _shifted(node: Node) -> tuple[Value, Value, Value | None, Value | None] | None:
    """Return x − m as the variance reads it, r, γ and b, if the node computes such a sum."""
    if node.output.type.dtype is not DType.FLOAT32:
        return None
    for scaled, shift in operands_of(node.output, "Add"):
        for x, scale in operands_of(scaled, "Mul"):
            for root, gamma in [(scale, None), *operands_of(scale, "Mul")]:
                is_known = gamma is None or gamma.data is not None
                if argument_of(root, "Reciprocal") is None or not is_known:
                    continue
                for mean, bias in _less_mean(shift, scale):
                    d = next((u.output for u in mean.users if u.op == Binary("Sub") and u.inputs == (x, mean)), None)
                    if d is not None:
                        return d, root, gamma, bias
    return None


def _less_mean(shift: Value, scale: Value) -> Iterator[tuple[Value, Value | None]]:
    """Yield m and b (None if absent) for each way in which the value is b − m · scale."""
    node = shift.producer
    for product, bias in (*operands_of(shift, "Add"), (shift, None)):
        negated = [m for m, by in operands_of(product, "Mul") if by is scale]
        yield from ((v, bias) for m in negated if (v := argument_of(m, "Neg")) is not None)
    if node is not None and node.op == Binary("Sub"):
        yield from ((m, node.input(0)) for m, by in operands_of(node.input(1), "Mul") if by is scale)


@pattern(Reshape)
def recognize_groups(graph: Graph, node: Node) -> RewriteOutcome:
    """Reshape(Normalize(Reshape(x))) → Normalize by groups of channels, with the scale and bias behind it.

    The inner reshape must divide the channels (axis 1) into groups, and the outer reshape must restore the shape of x.
    A scale or bias between the reshapes must be a constant with one number for each group.
    """
    inner, x = node.input(0).producer, _reshaped(node.input(0).producer)
    if inner is None or x is None or not isinstance(inner.op, Normalize) or x.type.shape != node.output.type.shape:
        return False
    shape, parted = x.type.shape, inner.output.type.shape
    axes, groups = tuple(range(2, len(shape))), parted[1] if len(parted) > 2 else 0
    if not axes or not groups or shape[0] != parted[0] or shape[1] % groups or inner.op.groups is not None:
        return False
    if inner.op.axes != tuple(range(2, len(parted))):
        return "the statistics are not of whole groups of channels"
    affine = (*inner.inputs, None, None)[1:3]
    if graph.only_user(inner.output) is not node or not all(_is_of_groups(v, groups) for v in affine):
        return "its result is read in the shape of groups, or its scale is no constant of each"
    scale, bias = (_of_groups(graph, v, shape, trivial) for v, trivial in zip(affine, (1, 0), strict=True))
    op = Normalize(axes, inner.op.epsilon, (1, groups) if groups < shape[1] else None, inner.op.centered)
    operands = [x] if scale is bias is None else [x, scale] if bias is None else [x, scale, bias]
    new = graph.rewrite(node, op, operands, types=[node.output.type], origin=inner.origin)
    graph.remove(inner)
    _take_affine(graph, new)
    return True


def _reshaped(node: Node | None) -> Value | None:
    """Return x if a node reads Reshape(x) as its first input."""
    source = node.input(0).producer if node is not None and node.inputs else None
    return source.input(0) if source is not None and isinstance(source.op, Reshape) else None


def _is_of_groups(value: Value | None, groups: int) -> bool:
    """Return whether an operand is absent, or a constant with one number a group."""
    return value is None or (value.data is not None and value.type.count == value.type.shape[1] == groups)


def _of_groups(graph: Graph, value: Value | None, shape: Shape, trivial: float) -> Value | None:
    """Return numbers of groups as numbers of channels; None if the numbers change nothing."""
    if value is None or value.data is None or (value.data == trivial).all():
        return None
    numbers = np.repeat(value.data.reshape(-1), shape[1] // value.type.count)
    return graph.constant(f"{value.name}.channels", numbers.reshape(1, -1, *(1,) * (len(shape) - 2)), of=[value])


def _take_affine(graph: Graph, node: Node) -> None:
    """Merge the scales and biases behind a normalization into it."""
    current: Node | None = node
    while current is not None:
        current = _with_affine(graph, current)


def _normalized(node: Node) -> tuple[Normalize, Value] | RewriteOutcome:
    """Return the normalization that a quotient (or a product with a reciprocal) computes, and its operand."""
    if node.op not in (Binary("Div"), Binary("Mul")) or node.output.type.dtype is not DType.FLOAT32:
        return False
    refused: RewriteOutcome = False
    for top, bottom in operands_of(node.output, "Mul") or [(node.input(0), node.input(1))]:
        root = bottom if node.op == Binary("Div") else argument_of(bottom, "Reciprocal")
        square = None if root is None else argument_of(root, "Sqrt")
        if square is None:
            continue
        mean_square = _mean_square(square, top)
        if mean_square is None or top.type.shape != node.output.type.shape:
            refused = "what the root is taken of is not the mean of the numerator's squares and a constant"
            continue
        axes, epsilon = mean_square
        x = _centered(top, axes)
        return (Normalize(axes, epsilon), x) if x is not None else (Normalize(axes, epsilon, centered=False), top)
    return refused


def _mean_square(value: Value, d: Value) -> tuple[tuple[int, ...], float] | None:
    """Return the axes and ε if the value is mean(d · d) + ε."""
    for mean, epsilon in operands_of(value, "Add"):
        reduce = mean.producer
        if epsilon.data is None or epsilon.type.count != 1 or reduce is None:
            continue
        op = reduce.op
        if isinstance(op, Reduce) and op.function == "mean" and (d, d) in operands_of(reduce.input(0), "Mul"):
            return op.axes, float(epsilon.data.reshape(-1)[0])
    return None


def _centered(d: Value, axes: tuple[int, ...]) -> Value | None:
    """Return x if d = x − mean x over these axes."""
    difference = d.producer
    if difference is None or difference.op != Binary("Sub"):
        return None
    mean = difference.input(1).producer
    same = mean is not None and mean.op == Reduce("mean", axes) and mean.input(0) is difference.input(0)
    return difference.input(0) if same else None


def _with_affine(graph: Graph, node: Node) -> Node | None:
    """Merge the scale or bias that is a Normalize's only reader, a constant that broadcasts to its result, into it."""
    user = graph.only_user(node.output) if isinstance(node.op, Normalize) else None
    if (
        user is None
        or user.op not in (Binary("Mul"), Binary("Add"))
        or user.output.type.shape != node.output.type.shape
    ):
        return None
    x, scale, bias = (*node.inputs, None, None)[:3]
    constant = user.input(1 - list(user.inputs).index(node.output))
    if constant.data is None or bias is not None or (user.op == Binary("Mul") and scale is not None):
        return None
    aligned = _aligned(graph, constant, constant.data, node.output.type.rank)
    inputs = [x, aligned] if user.op == Binary("Mul") else [x, scale, aligned]
    merged = graph.rewrite(user, node.op, inputs, types=[user.output.type], origin=node.origin)
    graph.remove(node)
    return merged


def _aligned(graph: Graph, value: Value, data: Array, rank: int) -> Value:
    """Return a constant with leading axes of length 1 up to this rank."""
    if data.ndim == rank:
        return value
    return graph.constant(f"{value.name}.aligned", data.reshape((1,) * (rank - data.ndim) + data.shape), of=[value])


# ---------------------------------------------------------------------------------------------------- affine


@pattern(Binary)
def recognize_affine(graph: Graph, node: Node) -> RewriteOutcome:
    """x · c + d, (x + d) · c and longer chains with constants that broadcast, such as one per channel → Affine.

    Affine is one operator that computes y = (x + before) · scale + shift. In integers the chain is then rounded once
    instead of after each step. In floats the rewrite is made only if the error of each merged constant stays within
    MAX_ROUNDING times the rounding error of the original steps.
    """
    inner = _inner(graph, node)
    before = None if inner is None else _chain(inner)
    if inner is None or before is None or (step := _step(node)) is None:
        return False
    operand, chain = inner.input(_operand(inner)), before.followed_by(step)
    if chain is None:
        return "a sum of constants would lose digits that the steps keep"
    arrays = np.broadcast_arrays(*chain.operands.values())
    size = max((array.size for array in arrays), default=0)
    if size <= 1:
        return "a scalar function of one tensor is a table"
    if size > node.output.type.count // 2 or operand.type.shape != node.output.type.shape:
        return "constants of each element cost more than they save"
    constants = [_shaped(graph, node, k, v) for k, v in zip(chain.operands, arrays, strict=True)]
    graph.rewrite(node, Affine(chain.steps), [operand, *constants], types=[node.output.type], origin=inner.origin)
    graph.remove(inner)
    return True


@dataclass(frozen=True)
class _Chain:
    """Constants of y = (x + before) · scale + shift, in float64; 0 and 1 stand for absent steps.

    With ε = 2⁻²³, a constant that is rounded to float32 has a relative error of at most ε/2, and so has the result of
    each step. Where y is close to 0, (x + before) · scale = −shift: the rounding of that product, up to ε/2 · |shift|,
    is the error of the model's own steps. A chain may lose no more than that, besides a few ulp of y. Operations that
    are exact for whole x in the model (a sum; a product with a constant of few digits) must stay exact. Therefore

    - a sum of two constants must be a float32 number;
    - a sum before a product stays there: (x + a) · c would be off by ε · |a · c| as x · c + a · c;
    - a sum between two products moves before the first: (x · c + d) · k = (x + d / c) · (c · k), where d / c is a
      float32 number, or c has many digits and d / c is off by no more than the product: ε/2 · |(a + d / c) · c| is at
      most MAX_ROUNDING times ε/2 · |d|.
    """

    before: Array
    scale: Array
    shift: Array

    def followed_by(self, step: tuple[Array, Array]) -> _Chain | None:
        """Return the chain with y · scale + shift behind it, or None where it would lose digits."""
        scale, shift = step
        scaled = self if (scale == 1).all() else self._times(scale)
        chain = scaled if scaled is None or not shift.any() else scaled._plus(shift)
        return chain if chain is not None and all(map(fits_float32, chain.operands.values())) else None

    def _plus(self, number: Array) -> _Chain | None:
        is_before = bool((self.scale == 1).all()) and not self.shift.any()
        held = self.before if is_before else self.shift
        total = held + number
        if not ((held == 0) | (number == 0) | is_float32(total)).all():
            return None
        return replace(self, before=total) if is_before else replace(self, shift=total)

    def _times(self, number: Array) -> _Chain | None:
        product = self.scale * number
        if not self.shift.any() or has_digits(number, 1).all():
            scaled = replace(self, scale=product, shift=self.shift * number)
            is_sum = bool((product == 1).all()) and not self.before.any()
            return replace(scaled, before=scaled.shift, shift=np.zeros(())) if is_sum else scaled
        with np.errstate(all="ignore"):
            before = np.where(self.shift == 0, self.before, self.before + self.shift / self.scale)
        is_as_close = np.abs(before * self.scale) <= MAX_ROUNDING * np.abs(self.shift)
        may_round = ~has_digits(self.scale, MAX_SHORT_FACTOR_BITS) & is_as_close
        if not (np.isfinite(before) & ((self.shift == 0) | is_float32(before) | may_round)).all():
            return None
        return replace(self, before=before, scale=product, shift=np.zeros(()))

    @property
    def operands(self) -> dict[str, Array]:
        """Return the constants of the steps that are present, by name."""
        constants = {"offset": self.before, "scale": self.scale, "shift": self.shift}
        return {name: a for name, a in constants.items() if (a != (name == "scale")).any()}

    @property
    def steps(self) -> tuple[str, ...]:
        """Return the functions of the steps that are present, in the order of `operands`."""
        return tuple("Mul" if name == "scale" else "Add" for name in self.operands)


MAX_ROUNDING = 2.0
"""Largest allowed ratio of the rounding error of a merged float constant to that of the product which it replaces."""


def _inner(graph: Graph, node: Node) -> Node | None:
    """Return the operator that computes an operand, if this node is the operand's only reader."""
    if node.op not in _AFFINE or node.output.type.dtype is not DType.FLOAT32:
        return None
    producers = [v.producer for v in node.inputs if v is not None and graph.only_user(v) is node]
    return next((p for p in producers if p is not None and (p.op in _AFFINE or _is_plain_affine(p.op))), None)


_AFFINE = tuple(Binary(function) for function in ("Add", "Sub", "Mul", "Div"))


def _is_plain_affine(op: Operator) -> bool:
    return isinstance(op, Affine) and op.clamp is None


def _operand(node: Node) -> int:
    """Return the index of the first operand that is not a constant."""
    return next((i for i, v in enumerate(node.inputs) if v is not None and v.data is None), 0)


def _chain(node: Node) -> _Chain | None:
    """Return the chain that a node computes from its only operand that is not a constant."""
    one, none = np.ones(()), np.zeros(())
    chain, steps = _Chain(none, one, none), [_step(node)]
    if isinstance(node.op, Affine):
        constants = [numbers.astype(np.float64) for numbers in constant_data(node.inputs[1:])]
        pairs = zip(node.op.steps, constants, strict=False)
        steps = [(one, number) if kind == "Add" else (number, none) for kind, number in pairs]
    for step in steps:
        longer = None if step is None else chain.followed_by(step)
        if longer is None:
            return None
        chain = longer
    return chain


def _step(node: Node) -> tuple[Array, Array] | None:
    """Return scale and shift where a node computes x · scale + shift with one constant operand."""
    at = 0 if node.input(1).data is None else 1
    constant = node.input(at).data
    if node.input(1 - at).data is not None or constant is None or not isinstance(node.op, Binary):
        return None
    return node.op.line(constant, at)


def _shaped(graph: Graph, node: Node, name: str, numbers: Array) -> Value:
    """Return a constant with leading axes of length 1, so that it has the node's rank."""
    shape = (1,) * (node.output.type.rank - numbers.ndim) + numbers.shape
    return graph.constant(f"{node.output.name}.{name}", numbers.reshape(shape).astype(np.float32))


# ----------------------------------------------------------------------------------------------------- masks


@pattern(Softmax)
def recognize_mask(graph: Graph, node: Node) -> RewriteOutcome:
    """Softmax(x + m) → Softmax(x + m', visible): elements that a constant mask m certainly hides are not added.

    An element is hidden if its exponential is 0 in float32 whatever x is: it is less than the largest element of its
    row by UNDERFLOW or more. An element with a mask of −∞ is always hidden. A finite mask element hides only if x has
    known bounds (`Magnitudes`), for example from quantization or from a normalization before the scores. `visible` is a
    constant that marks the other elements, and m' is the mask without the hiding numbers. Softmax(visible ? x : c) is
    rewritten likewise.

    Without the rewrite, the large negative masks would widen the quantized range of the sum so much that visible
    elements share few levels.
    """
    return _hide(graph, node, _proven)


@pattern(Softmax)
def assume_mask(graph: Graph, node: Node) -> RewriteOutcome:
    """Softmax(x + m) → Softmax(x + m', visible): elements of a constant mask m that are −10⁴ or less hide.

    A hidden element gets probability 0; the boolean constant `visible` marks the other elements, and m' has 0 in place
    of the hiding numbers. Unlike `recognize_mask`, this rewrite needs no bounds of x. It is applied where decisions
    about a float network are made before quantization, when bounds are not known yet. `recognize_mask` later proves the
    rewrite for the quantized network, or leaves the addition as it is.
    """
    return _hide(graph, node, _assumed)


UNDERFLOW = 104.0
"""Difference d from which exp(-d) is 0 in float32 (below half of the smallest denormal number)."""
MASK_ROUNDING = 2.0**-20
"""Assumed relative rounding error of float32 in the difference of two sums of a score and a mask element: 2^-20."""
MAX_HIDING_MASK = -1e4
"""Largest mask element (-10⁴) that is assumed to hide a position: exporters add -10⁴ or less to hidden scores."""

Hiding = Callable[[Value, Array, Array], Array]
"""Function that returns a boolean array of the elements that a mask hides.

Its arguments are the scores, the mask, and the maximum of each row of the mask.
"""


def _proven(x: Value, mask: Array, largest: Array) -> Array:
    """Return where exponentials are 0 for all finite scores."""
    may_hide = np.isfinite(mask) & (mask < largest - UNDERFLOW)
    apart = UNDERFLOW + (2 * Magnitudes().of(x) if may_hide.any() else 0.0)
    with np.errstate(all="ignore"):  # A row of infinities hides nothing.
        rounding = MASK_ROUNDING * np.abs(mask) + MASK_ROUNDING * np.abs(largest)
        return np.asarray(mask - largest <= -apart - rounding)


def _assumed(_: Value, mask: Array, largest: Array) -> Array:
    """Return where a mask is as low as exporters write hidden elements."""
    return (mask <= MAX_HIDING_MASK) & (largest > MAX_HIDING_MASK)


def _hide(graph: Graph, node: Node, hides: Hiding) -> RewriteOutcome:
    masked, shape = node.input(0).producer, node.input(0).type.shape
    if not isinstance(node.op, Softmax) or len(node.inputs) > 1 or masked is None:
        return False
    mask = _mask_that_is_added(masked) if masked.op == Binary("Add") else _mask_that_chooses(masked, shape)
    if mask is None or not (mask.numbers <= MAX_HIDING_MASK).any():
        return False
    if node.op.log or node.op.axis != len(shape) - 1:
        return "it is a logarithm, or along another axis than the last"
    if graph.only_user(node.input(0)) is not node:
        return "others read what is masked"
    if mask.scores.type.shape != shape:
        return "what is masked is broadcast"
    return _hidden(graph, node, mask, mask.hidden(hides))


def _hidden(graph: Graph, node: Node, mask: _Mask, hidden: Array) -> RewriteOutcome:
    """Replace the mask by the softmax's operand `visible`, and add only the numbers that hide nothing."""
    x, masked, shape = mask.scores, node.input(0).producer, node.output.type.shape
    assert masked is not None
    if not hidden.any():
        return "scores may be so far apart that what is masked counts, or of some row nothing would be left"
    remainder = np.where(hidden, np.float32(0), mask.numbers).astype(np.float32)
    if mask.is_choice and not (hidden == mask.is_masked).all():
        return "of some row nothing would be left"
    if not mask.is_choice and remainder.any():
        added = graph.constant(f"{masked.output.name}.added", remainder)
        x = graph.add(Binary("Add"), [x, added], masked.origin, before=node).output
    visible = graph.constant(f"{node.output.name}.visible", _spread(~hidden, shape))
    graph.rewrite(node, node.op, [x, visible], types=[node.output.type])
    return True


@dataclass(frozen=True)
class _Mask:
    """A mask of a softmax: the scores, and the numbers that are added to them or replace them."""

    scores: Value
    numbers: Array
    """Numbers of the mask: the last axis is that of the scores, the other axes are those that the mask has."""
    is_masked: Array
    """Positions where the numbers replace the scores, if the mask is a choice."""
    is_choice: bool = False

    def hidden(self, hides: Hiding) -> Array:
        """Return where exponentials are 0; some element of each row is never hidden."""
        if not self.is_choice:
            return hides(self.scores, self.numbers, self.numbers.max(-1, keepdims=True))
        largest = np.where(self.is_masked, -np.inf, 0.0).max(-1, keepdims=True)
        may_hide = self.is_masked & (largest > -np.inf)
        return np.asarray(may_hide & hides(self.scores, self.numbers, np.zeros_like(largest)))


def _mask_that_is_added(node: Node) -> _Mask | None:
    for x, mask in operands_of(node.output, "Add"):
        if mask.data is not None and mask.type.dtype is DType.FLOAT32:
            numbers = np.broadcast_to(mask.data, (*mask.type.shape[:-1], x.type.shape[-1]))
            return _Mask(x, numbers, np.ones((), np.bool_))
    return None


def _mask_that_chooses(node: Node, shape: Shape) -> _Mask | None:
    if not isinstance(node.op, Where):
        return None
    condition, first, second = (node.input(i) for i in range(3))
    for x, mask, shown in ((first, second, True), (second, first, False)):
        if condition.data is not None and mask.data is not None and mask.type.dtype is DType.FLOAT32:
            is_masked, numbers = np.broadcast_arrays(condition.data != shown, mask.data)
            wide = (*is_masked.shape[:-1], shape[-1])
            return _Mask(x, np.broadcast_to(numbers, wide), np.broadcast_to(is_masked, wide), True)
    return None


def _spread(mask: Array, shape: tuple[int, ...]) -> Array:
    """Return a mask repeated along the axes where it is broadcast, except for leading axes."""
    full = mask.reshape((1,) * (len(shape) - mask.ndim) + mask.shape)
    leading = next((axis for axis, size in enumerate(full.shape) if size > 1), 0)
    return np.ascontiguousarray(np.broadcast_to(full, (*full.shape[:leading], *shape[leading:])))
