# SPDX-License-Identifier: Apache-2.0
"""Recognition of attention to a cache of keys and values, whatever operators the exporter wrote for views and masks.

Views are followed by moving the numbers of elements instead of elements; masks are evaluated for every position.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.types import Array, DType, Shape
from mcugen.ops.attention import CachedAttention
from mcugen.ops.matmul import MatMul
from mcugen.ops.movement import Expand, Reshape, Slice, Transpose
from mcugen.ops.pointwise import Binary, Where
from mcugen.ops.scatter import ScatterND, TensorScatter
from mcugen.ops.softmax import Softmax
from mcugen.passes.composite_operators import MAX_HIDING_MASK
from mcugen.passes.positions import (
    MAX_EVALUATED_ELEMENTS,
    evaluate_each,
    follows_from_position,
    positions_of,
    probes,
)
from mcugen.passes.rewrite import RewriteOutcome, pattern


@pattern(MatMul)
def recognize_cached_attention(graph: Graph, node: Node) -> RewriteOutcome:
    """Softmax(scale · q kᵀ, masked by a position) v → CachedAttention(q, k, v, position), which reads what is filled.

    k and v may be transposed, repeated for groups of heads, or multiplied by a constant on the way from the cache. A
    mask may be added (0, or −10⁴ and less), or choose between scores and such numbers. Any operators may compute the
    mask from one integer input with one element, the position: it is evaluated for each position of the cache, and
    must hide exactly the positions behind the query, and, with a window, those that are too old. Without a mask, the
    keys must be a cache that is updated by a scatter.
    """
    shares = _Shares.of(graph, node.input(0))
    if shares is None or node.output.type.dtype is not DType.FLOAT32:
        return False
    scores = _Scores.of(graph, shares)
    if scores is None:
        return False
    cache = _caches(scores, node)
    if cache is None:
        return "keys or values are no cache whose elements of a head are adjacent"
    seen = _visible(scores, cache)
    if isinstance(seen, str):
        return seen
    _replace(graph, node, scores, cache, seen)
    return True


@dataclass(frozen=True)
class _Shares:
    """The shares by which values are added.

    Attributes:
        softmax: The softmax that computes them.
        guards: Conditions, and the value of each for which the shares are those of the softmax, as ONNX's Attention
            writes zeros for rows that are hidden as a whole.
    """

    softmax: Node
    guards: tuple[tuple[Value, bool], ...]

    @staticmethod
    def of(graph: Graph, value: Value) -> _Shares | None:
        """Return the shares that a value holds, perhaps reshaped, if nobody else reads them."""
        guards: list[tuple[Value, bool]] = []
        while graph.only_user(value) is not None and value.producer is not None:
            node = value.producer
            if isinstance(node.op, Softmax):
                is_plain = not node.op.log and node.op.axis == value.type.rank - 1 and len(node.inputs) == 1
                return _Shares(node, tuple(guards)) if is_plain else None
            if isinstance(node.op, Where) and follows_from_position(node.input(0)):
                shown = node.input(1).data is None
                guards.append((node.input(0), shown))
                value = node.input(1 if shown else 2)
            elif isinstance(node.op, Reshape) and node.input(0).type.shape[-1:] == value.type.shape[-1:]:
                value = node.input(0)
            else:
                return None
        return None


# ------------------------------------------------------------------------------------------------------ scores


@dataclass(frozen=True)
class _Mask:
    """A mask of the scores.

    Attributes:
        value: Numbers to add, or a condition.
        shape: Shape of the scores where the mask is applied.
        factor: Factor by which masked scores are multiplied before the softmax.
        shown: For a condition, its value where scores are visible; None for numbers to add.
    """

    value: Value
    shape: Shape
    factor: float
    shown: bool | None = None

    def visible(self, numbers: Array) -> Array | None:
        """Return where scores are visible; None if the mask does something else than hiding."""
        if self.shown is not None:
            seen = numbers.astype(np.bool_) == self.shown
        else:
            seen = numbers == 0
            if not (seen | (numbers * self.factor <= MAX_HIDING_MASK)).all():
                return None
        return np.broadcast_to(seen, self.shape).reshape(-1, self.shape[-1])


@dataclass(frozen=True)
class _Scores:
    """The scores of an attention.

    Attributes:
        product: The matrix product of queries and keys.
        factor: Factor of the product.
        masks: Masks of the scores.
        shape: Shape of the softmax.
        guards: Conditions under which the softmax counts; see _Shares.
    """

    product: Node
    factor: float
    masks: tuple[_Mask, ...]
    shape: Shape
    guards: tuple[tuple[Value, bool], ...]

    @staticmethod
    def of(graph: Graph, shares: _Shares) -> _Scores | None:
        """Return the scores that a softmax reads; None if they are something else."""
        softmax, masks = shares.softmax, list[_Mask]()
        value, factor = softmax.input(0), 1.0
        while (node := value.producer) is not None and graph.only_user(value) is not None:
            if isinstance(node.op, MatMul):
                shape = softmax.output.type.shape
                return _Scores(node, factor * node.op.factor, tuple(masks), shape, shares.guards)
            if isinstance(node.op, Reshape) and node.input(0).type.shape[-1:] == value.type.shape[-1:]:
                value = node.input(0)
            elif (scaled := _scaled(node)) is not None and scaled[1] > 0:
                value, factor = scaled[0], factor * scaled[1]
            elif (masked := _masked(node, factor)) is not None:
                value = masked[0]
                masks.append(masked[1])
            else:
                return None
        return None


def _scaled(node: Node) -> tuple[Value, float] | None:
    """Return x and c of a node that computes x · c for a constant number c."""
    if node.op not in (Binary("Mul"), Binary("Div")):
        return None
    for index in (0, 1) if node.op == Binary("Mul") else (1,):
        number, x = node.input(index).data, node.input(1 - index)
        if number is not None and number.size == 1 and x.type.shape == node.output.type.shape:
            factor = float(number.reshape(())[()])
            if math.isfinite(factor) and factor:
                return x, factor if node.op == Binary("Mul") else 1 / factor
    return None


def _masked(node: Node, factor: float) -> tuple[Value, _Mask] | None:
    """Return the scores, and the mask by which a node hides some of them."""
    shape = node.output.type.shape
    if node.op == Binary("Add"):
        for x, mask in ((0, 1), (1, 0)):
            if node.input(x).type.shape == shape and follows_from_position(node.input(mask)):
                return node.input(x), _Mask(node.input(mask), shape, factor)
    if isinstance(node.op, Where) and follows_from_position(node.input(0)):
        for x, low in ((1, 2), (2, 1)):
            numbers = node.input(low).data
            if (
                numbers is not None
                and (numbers * factor <= MAX_HIDING_MASK).all()
                and node.input(x).type.shape == shape
            ):
                return node.input(x), _Mask(node.input(0), shape, factor, shown=x == 1)
    return None


# -------------------------------------------------------------------------------------------------------- caches


@dataclass(frozen=True)
class _Cache:
    """Keys or values as a matrix product reads them.

    Attributes:
        base: The tensor in memory.
        by_head: Whether its axes are (heads, positions, size); else they are (positions, heads, size).
        heads: Number of heads.
        positions: Number of positions.
        size: Number of elements of a head.
        factor: Factor by which the elements are multiplied.
    """

    base: Value
    by_head: bool
    heads: int
    positions: int
    size: int
    factor: float

    @property
    def shape(self) -> Shape:
        """Return the tensor's shape with three axes."""
        axes = (self.heads, self.positions) if self.by_head else (self.positions, self.heads)
        return (*axes, self.size)


def _caches(scores: _Scores, node: Node) -> tuple[_Cache, _Cache] | None:
    """Return the caches of keys and of values, if they have equal heads."""
    keys, values = scores.product.input(1), node.input(1)
    rows = math.prod(scores.shape[:-1])
    k, v = _cache(keys, rows, transposed=True), _cache(values, rows, transposed=False)
    if k is None or v is None or k.heads != v.heads or k.positions != v.positions:
        return None
    return k, v


def _cache(value: Value, rows: int, *, transposed: bool) -> _Cache | None:
    """Return the tensor farthest from the operand of a product of which the operand is a view by heads and positions.

    Args:
        value: The operand: (..., positions, size), or, if `transposed`, (..., size, positions).
        rows: Number of rows of the product, for all heads together.
        transposed: Whether positions are the last axis.
    """
    best = None
    for base, numbers, factor in _views(value):
        places = np.swapaxes(numbers, -1, -2) if transposed else numbers
        best = _matched(base, places, rows, factor) or best
    return best


def _views(value: Value) -> Iterator[tuple[Value, Array, float]]:
    """Yield a value and the tensors of which it is a view: the tensor, the numbers of its elements, and a factor."""
    numbers, factor = np.arange(value.type.count).reshape(value.type.shape), 1.0
    yield value, numbers, factor
    while (node := value.producer) is not None:
        scaled = _scaled(node)
        if scaled is not None:
            value, factor = scaled[0], factor * scaled[1]
        elif isinstance(node.op, Reshape | Transpose | Slice | Expand):
            value = node.input(0)
            source = np.arange(value.type.count).reshape(value.type.shape)
            numbers = node.op.evaluate(node.sig, source)[0].reshape(-1)[numbers]
        else:
            return
        yield value, numbers, factor


def _matched(base: Value, places: Array, rows: int, factor: float) -> _Cache | None:
    """Return the cache if an operand (..., positions, size) has these elements of a tensor."""
    positions, size = places.shape[-2:]
    if not places.size or base.type.count % (positions * size):
        return None
    heads = base.type.count // (positions * size)
    if rows % heads:
        return None
    operand = places.reshape(-1, positions, size)
    numbers = np.arange(len(operand)) * heads // len(operand)
    if len(operand) % heads:
        return None
    for by_head in (True, False):
        shape = (heads, positions, size) if by_head else (positions, heads, size)
        whole = np.arange(base.type.count).reshape(shape)
        expected = (whole if by_head else whole.swapaxes(0, 1))[numbers]
        if np.array_equal(operand, expected):
            return _Cache(base, by_head, heads, positions, size, factor)
    return None


# --------------------------------------------------------------------------------------------------------- masks


@dataclass(frozen=True)
class _Visible:
    """The positions that each query sees.

    Attributes:
        past: The position in the graph; None if all positions are visible.
        queries: Number of queries of each head.
        offset: Position of the first query, less the position in the graph.
        window: Number of visible positions; 0 for all.
    """

    past: Value | None
    queries: int = 1
    offset: int = 0
    window: int = 0


def _visible(scores: _Scores, caches: tuple[_Cache, _Cache]) -> _Visible | str:
    """Return which positions the queries see, or why there is no such rule."""
    if not scores.masks and not scores.guards:
        producer = caches[0].base.producer
        is_cache = producer is not None and isinstance(producer.op, ScatterND | TensorScatter)
        return _Visible(None) if is_cache and caches[0].base.data is None else "no position masks it"
    values = [*(mask.value for mask in scores.masks), *(condition for condition, _ in scores.guards)]
    candidates = [list(positions_of(value)) for value in values]
    reason = "its masks depend on several positions"
    for past in (p for p in candidates[0] if all(p in positions for positions in candidates)):
        seen = _seen_from(past, scores, caches[0])
        if not isinstance(seen, str):
            return seen
        reason = seen
    return reason


def _seen_from(past: Value, scores: _Scores, cache: _Cache) -> _Visible | str:
    """Return which positions the queries see from a position in the graph, or why there is no such rule."""
    seen: _Tables | None = None
    for mask in scores.masks:
        part = _seen(mask, past, cache.positions)
        if isinstance(part, str):
            return part
        seen = part if seen is None else {p: table & part[p] for p, table in seen.items() if p in part}
    counts = _counts(scores, past, cache.positions)
    if seen is None or counts is None:
        return "its masks are not understood"
    return _rule(seen, counts, scores, cache, past)


def _counts(scores: _Scores, past: Value, count: int) -> Array | None:
    """Return at which positions the shares are those of the softmax, whatever the guards are; None if unknown."""
    counts = np.ones(count, np.bool_)
    for condition, shown in scores.guards:
        tables = [table for table in evaluate_each(condition, past, range(count)) or () if table is not None]
        if len(tables) < count:
            return None
        counts &= [bool((table == shown).all()) for table in tables]
    return counts


_Tables = dict[int, Array]
"""Whether rows of scores see keys, [row, key], for each position at which a mask can be evaluated."""


def _seen(mask: _Mask, past: Value, count: int) -> _Tables | str:
    """Return which scores are visible at each position, or why the mask is not understood."""
    numbers = probes(count)
    masks = evaluate_each(mask.value, past, numbers)
    if masks is None or math.prod(mask.shape) * len(numbers) > MAX_EVALUATED_ELEMENTS:
        return "its mask is too large to be evaluated for each position"
    tables = {p: mask.visible(array) for p, array in zip(numbers, masks, strict=True) if array is not None}
    understood = {p: table for p, table in tables.items() if table is not None}
    if len(understood) < len(tables) or any(p not in tables for p in range(count)):
        return "its mask does more than to hide positions"
    return understood


def _rule(seen: _Tables, counts: Array, scores: _Scores, cache: _Cache, past: Value) -> _Visible | str:
    """Return the rule by which rows see positions.

    Args:
        seen: Whether rows see keys, for each position.
        counts: Whether the softmax counts, [position].
        scores: The scores.
        cache: The keys.
        past: The integer with the position.

    Returns:
        The rule, or why there is none.
    """
    keys, rows = cache.positions, len(seen[0])
    middle, latest = seen[keys // 2][0], seen[keys - 1][0]
    offset = _end(middle) - keys // 2 - 1
    window = int(latest.sum()) if latest.sum() < _end(latest) else 0
    for queries in sorted({1, scores.shape[-2] if len(scores.shape) > 1 else 1}):
        valid = [p for p in range(keys) if 0 <= p + offset <= keys - queries]
        last = offset + np.arange(rows)[:, None] % queries
        is_whole = valid and not rows // cache.heads % queries and counts[valid].all()
        exact = set(valid)
        if is_whole and all(_agrees(table, p + last, window, exact=p in exact) for p, table in seen.items()):
            return _Visible(past, queries, offset, window)
    return "its mask is no window behind a position"


def _end(row: Array) -> int:
    """Return the number of keys up to the last one that a row sees; all keys if it sees none."""
    return int(len(row) - np.argmax(row[::-1]))


def _agrees(seen: Array, last: Array, window: int, *, exact: bool) -> bool:
    """Return whether rows see what CachedAttention lets them see.

    Args:
        seen: Whether rows see keys, [row, key].
        last: The last position that each row sees, [row, 1].
        window: Number of visible positions; 0 for all.
        exact: Whether the positions lie in the cache. Outside of it, where nothing is stored, rows may see fewer keys
            or none, and negative positions may count from the end. Rows whose positions wrap around see others.
    """
    keys = seen.shape[1]
    limited, from_end = (np.clip(ends, 0, keys - 1) for ends in (last, np.where(last < 0, last + keys, last)))
    places = np.arange(keys)
    return any(
        np.array_equal((places <= ends) & ((places > ends - window) if window else np.True_), seen)
        for ends in ([last] if exact else [last, limited, from_end])
    )


# ------------------------------------------------------------------------------------------------------- rewrite


def _replace(graph: Graph, node: Node, scores: _Scores, caches: tuple[_Cache, _Cache], seen: _Visible) -> None:
    """Put the operator in the place of the second product."""
    keys, values = caches
    heads = math.prod(scores.shape[:-1]) // seen.queries
    queries, factor = scores.product.input(0), scores.factor * keys.factor
    while (scaled := _scaled(queries.producer) if queries.producer else None) is not None and scaled[1] > 0:
        queries, factor = scaled[0], factor * scaled[1]
    op = CachedAttention(factor, keys.by_head, values.by_head, seen.offset, seen.window)

    def shaped(value: Value, shape: Shape) -> Value:
        if value.type.shape == shape:
            return value
        return graph.add(Reshape(shape), [value], node.origin, before=node).output

    q = shaped(queries, (heads, seen.queries, keys.size))
    operands = [q, shaped(keys.base, keys.shape), shaped(values.base, values.shape)]
    operands += [] if seen.past is None else [seen.past]
    graph.release_name(node.output)
    result = graph.add(op, operands, node.origin, names=[node.output.name], before=node).output
    scale = values.factor * node.op.factor if isinstance(node.op, MatMul) else values.factor
    if scale != 1:
        constant = graph.constant(f"{result.name}.factor", np.full((1, 1, 1), scale, np.float32))
        result = graph.add(Binary("Mul"), [result, constant], node.origin, before=node).output
    graph.replace(node.output, shaped(result, node.output.type.shape))
    graph.remove(node)
