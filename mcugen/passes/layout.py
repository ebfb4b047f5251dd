# SPDX-License-Identifier: Apache-2.0
"""Layout: operators with spatial axes become channels-last, and the transpositions between them cancel."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise

import numpy as np

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import Permutation
from mcugen.hir.traits import Permutable, carried, permuted
from mcugen.hir.types import Shape
from mcugen.ops.movement import Reshape, Transpose, inverse, to_channels_last
from mcugen.passes.rewrite import RewriteOutcome, Turns, pattern
from mcugen.passes.simplify import simplify


@pattern(Permutable)
def turn_channels_last(graph: Graph, node: Node) -> RewriteOutcome:
    """op(x), channels first → Transpose(op'(Transpose(x))), channels last; constants are transposed at compile time.

    It applies to operators that have faster kernels for channels-last tensors (`Permutable.wants_channels_last`).
    """
    if not isinstance(node.op, Permutable) or not node.op.wants_channels_last:
        return False
    return _rewrite_permuted(graph, node, to_channels_last(node.output.type.rank))


channels_last = Turns("channels_last", turn_channels_last, simplify)
"""Pass that converts operators to channels-last; the transpositions that it adds between neighbours cancel."""


@pattern()
def sink_transpose(graph: Graph, node: Node) -> RewriteOutcome:
    """op(Transpose(a), …) → Transpose(op'(a, …)) if fewer bytes are transposed.

    op must commute with the transposition (`Permutable.permuted`). If op has several inputs, the inverse transposition
    is applied to the other ones; for constants, this happens at compile time.
    """
    perm = _sinkable(node)
    if perm is None:
        return False
    passed = _passed(node, inverse(perm))
    if passed is None:
        return f"transpositions do not pass through {node.op.name}"
    turned, expected = passed
    if not _pays(graph, node, inverse(turned), expected):
        return "more bytes would be transposed"
    return _rewrite_permuted(graph, node, turned)


@pattern(Transpose)
def raise_transpose(graph: Graph, node: Node) -> RewriteOutcome:
    """Transpose(Reshape(Transpose(x))) → Reshape'(Transpose(x)), if the reshape commutes with the outer transposition.

    The two transpositions become neighbours, which merge into one. Exporters write this pattern to shuffle channels, or
    to turn channels into pixels.
    """
    reshape = node.input(0).producer
    if not isinstance(node.op, Transpose) or reshape is None or not isinstance(reshape.op, Reshape):
        return False
    if graph.only_user(reshape.output) is not node:
        return False
    inner = reshape.input(0).producer
    if inner is None or not isinstance(inner.op, Transpose) or graph.only_user(inner.output) is not reshape:
        return False
    form = permuted(reshape.op, reshape.sig, node.op.perm)
    if form is None:
        return "it parts axes that become one"
    op, (perm,) = form
    assert perm is not None
    turned = graph.add(Transpose(perm), [inner.output], node.origin, before=node)
    graph.rewrite(node, op, [turned.output], types=[node.output.type])
    return True


@pattern(Transpose)
def merge_transposes(graph: Graph, node: Node) -> RewriteOutcome:
    """Transpose(Reshape(Transpose(x))) → Reshape(Transpose(Reshape(x))), if both permute parts of common axes.

    The axes before and after the reshape must be products of common smaller axes, so that one transposition of these
    replaces both. Exporters write this pattern to cut an image into windows.
    """
    reshape = _alone_before(graph, node)
    inner = None if reshape is None else _alone_before(graph, reshape)
    if reshape is None or inner is None or not isinstance(reshape.op, Reshape) or not isinstance(inner.op, Transpose):
        return False
    assert isinstance(node.op, Transpose)
    x, quant = inner.input(0), node.output.type.quant
    parts = _common_parts(inner.output.type.shape, reshape.output.type.shape)
    if parts is None or (quant is not None and quant.axis is not None):
        return "its axes and those before it have no parts in common"
    sizes, before, after = parts
    read = [part for axis in inverse(inner.op.perm) for part in before[axis]]
    written = [part for axis in node.op.perm for part in after[axis]]
    perm = tuple(read.index(part) for part in written)
    source = graph.add(Reshape(tuple(sizes[part] for part in read)), [x], inner.origin, before=node)
    turned = graph.add(Transpose(perm), [source.output], node.origin, before=node)
    graph.rewrite(node, Reshape(node.output.type.shape), [turned.output], types=[node.output.type])
    return True


def _alone_before(graph: Graph, node: Node) -> Node | None:
    """Return the node that computes the first input, if this node is the input's only reader."""
    source = node.input(0).producer
    return source if source is not None and graph.only_user(node.input(0)) is node else None


def _common_parts(one: Shape, other: Shape) -> tuple[list[int], list[range], list[range]] | None:
    """Return the sizes of the common factors of both shapes' axes, and each axis's factors; None if some overlap."""
    ends = [list(accumulate(shape, operator.mul, initial=1)) for shape in (one, other)]
    borders = sorted({*ends[0], *ends[1]})
    if 0 in borders or any(high % low for low, high in pairwise(borders)):
        return None
    axes = [[range(borders.index(low), borders.index(high)) for low, high in pairwise(axis_ends)] for axis_ends in ends]
    return [high // low for low, high in pairwise(borders)], axes[0], axes[1]


@pattern(Transpose)
def sink_fork(graph: Graph, node: Node) -> RewriteOutcome:
    """f(Transpose(a), g(Transpose(a))) → Transpose(f'(a, g'(a))) if fewer bytes are transposed.

    Unlike `sink_transpose`, it moves a transposition across several nodes at once, where moving it across one node
    would not reduce the transposed bytes. It also rewrites Transpose(f(g(Transpose(a)))) → f'(g'(a)), where f or g has
    a result of a wider element type.
    """
    region = _region(node) if len(node.output.users) > 1 else _chain(graph, node)
    if not region and node.op == Transpose(inverse(to_channels_last(node.output.type.rank))):
        region = _region(node)
    gain, is_empty = _gain(graph, region), not region
    while gain <= 0:
        shorter = [{n: turn for n, turn in region.items() if n is not last} for last in _ends(region)]
        gains = [_gain(graph, smaller_region) for smaller_region in shorter]
        if len(region) <= 2 or max(gains) < gain:
            return not is_empty and "more bytes would be transposed"
        gain = max(gains)
        region = shorter[gains.index(gain)]
    for reader, turned in region.items():
        _rewrite_permuted(graph, reader, turned)
    return True


sink_transposes = Turns("sink_transposes", sink_transpose, sink_fork, raise_transpose, merge_transposes, simplify)
"""Pass that moves transpositions towards the outputs; pairs that meet cancel, which lets others move further."""


MAX_SINK_NODES = 32
"""Largest number of nodes across which one rewrite moves a transposition."""


def _region(node: Node) -> dict[Node, Permutation]:
    """Return the nodes that a transposition may pass through, and how each node's result would then be transposed.

    Where a node reads another tensor that is computed from transposed tensors alone, the nodes that compute this tensor
    belong to the region, too.
    """
    region: dict[Node, Permutation] = {}
    assert isinstance(node.op, Transpose)
    waiting = [(user, inverse(node.op.perm)) for user in node.output.users]
    while waiting and len(region) < MAX_SINK_NODES:
        reader, perm = waiting.pop(0)
        if reader in region or isinstance(reader.op, Transpose) or len(reader.outputs) != 1:
            continue
        passed = _passed(reader, perm)
        if passed is None:
            continue
        region[reader] = passed[0]
        waiting += [(user, passed[0]) for user in reader.output.users]
        for value, input_perm in _untransposed(reader, passed[1]):
            producers = _producers_of_transposed(value, input_perm, region)
            region |= producers
            waiting += [(user, turned) for producer, turned in producers.items() for user in producer.output.users]
    return region


def _producers_of_transposed(
    value: Value, perm: Permutation, region: Mapping[Node, Permutation]
) -> dict[Node, Permutation]:
    """Return the nodes outside of a region that compute a value, if they read transposed tensors and constants alone.

    Args:
        value: The tensor that the nodes compute.
        perm: How the tensor would be transposed.
        region: The nodes of the region; their results count as transposed.

    Returns:
        How each node's result would be transposed; empty if the value depends on another tensor.
    """
    producers: dict[Node, Permutation] = {}
    waiting = [(value, perm)]
    while waiting:
        read, turned = waiting.pop()
        producer = read.producer
        if producer is None or len(producer.outputs) != 1 or len(region) + len(producers) >= MAX_SINK_NODES:
            return {}
        known = region.get(producer) or producers.get(producer)
        form = permuted(producer.op, producer.sig, turned)
        if form is None or isinstance(producer.op, Transpose) or known not in (None, turned):
            return {}
        if known is None:
            producers[producer] = turned
            waiting += _untransposed(producer, form[1])
    return producers


def _untransposed(node: Node, input_perms: Sequence[Permutation | None]) -> Iterator[tuple[Value, Permutation]]:
    """Yield the inputs, with their permutations, that are neither constants nor transposed now."""
    for value, perm in zip(node.inputs, input_perms, strict=True):
        if value is None or perm is None or value.is_constant:
            continue
        if value.producer is None or value.producer.op != Transpose(inverse(perm)):
            yield value, perm


def _chain(graph: Graph, node: Node) -> dict[Node, Permutation]:
    """Return the functions of one tensor from a transposition to its inverse, as `_region` does; empty without such."""
    region: dict[Node, Permutation] = {}
    assert isinstance(node.op, Transpose)
    perm, reader = inverse(node.op.perm), graph.only_user(node.output)
    while reader is not None and len(reader.outputs) == 1 and len(region) < MAX_SINK_NODES:
        if isinstance(reader.op, Transpose):
            return region if reader.op.perm == perm else {}
        passed = _passed(reader, perm)
        if passed is None or _turned_operands(reader, passed[1]) != 1:
            break
        region[reader] = perm = passed[0]
        reader = graph.only_user(reader.output)
    return {}


def _passed(node: Node, perm: Permutation) -> tuple[Permutation, Sequence[Permutation | None]] | None:
    """Return how the result is transposed if operands are by `perm`, and how each operand is.

    Returns:
        None if transpositions do not pass through the node.
    """
    turned = carried(node.op, node.sig, perm)
    form = None if turned is None else permuted(node.op, node.sig, turned)
    return None if turned is None or form is None else (turned, form[1])


def _turned_operands(node: Node, perms: Sequence[Permutation | None]) -> int:
    """Return how many operands that are not constants would be transposed.

    With one, a chain loses its transpositions and gains none.
    """
    return sum(p is not None and v is not None and not v.is_constant for v, p in zip(node.inputs, perms, strict=True))


def _ends(region: Mapping[Node, Permutation]) -> list[Node]:
    """Return the nodes of a region whose results no other node of it reads."""
    return [node for node in region if not any(user in region for user in node.output.users)]


def _gain(graph: Graph, region: Mapping[Node, Permutation]) -> int:
    """Return the transposed bytes now less those after the rewrite; each reader transposes its operands for itself."""
    gain = 0
    removed: dict[Node, int] = {}
    for node, turned in region.items():
        form = permuted(node.op, node.sig, turned)
        assert form is not None
        for value, perm in zip(node.inputs, form[1], strict=True):
            if value is None or perm is None or value.is_constant:
                continue
            source = value.producer
            if source is not None and isinstance(source.op, Transpose) and source.op.perm == inverse(perm):
                removed[source] = removed.get(source, 0) + 1
            elif source is None or region.get(source) != perm:
                gain -= value.type.nbytes
        outside_users = [user for user in node.output.users if user not in region and _is_read(graph, user)]
        cancelled = [user for user in outside_users if isinstance(user.op, Transpose) and user.op.perm == turned]
        gain += sum(user.output.type.nbytes for user in cancelled)
        if graph.is_output(node.output) or len(cancelled) < len(outside_users):
            gain -= node.output.type.nbytes
    for source, uses in removed.items():
        if uses == len(source.output.uses) and not graph.is_output(source.output):
            gain += source.output.type.nbytes
    return gain


def _is_read(graph: Graph, node: Node) -> bool:
    """Return whether a node contributes to an output or a live reader.

    Transpositions that a rewrite left without readers, and nodes that only these read, do not count.
    """
    users = (user for value in node.outputs for user in value.users)
    is_used = any(not isinstance(user.op, Transpose) or _is_read(graph, user) for user in users)
    return is_used or any(map(graph.is_output, node.outputs))


def _sinkable(node: Node) -> Permutation | None:
    """Return the permutation of the first transposed input of a node that is no transposition itself."""
    if isinstance(node.op, Transpose) or len(node.outputs) != 1:
        return None
    for value in node.inputs:
        if value is not None and value.producer is not None and isinstance(value.producer.op, Transpose):
            return value.producer.op.perm
    return None


def _pays(graph: Graph, node: Node, perm: Permutation, input_perms: Sequence[Permutation | None]) -> bool:
    """Return whether fewer bytes are transposed afterwards, or as many and none of them on the way in.

    Either the sum of transposed bytes falls or a transposition moves towards the outputs: so the pass ends.
    A transposed tensor with several readers counts a share for each, because all of them may follow.
    """
    saved, added = 0.0, 0
    for value, input_perm in zip(node.inputs, input_perms, strict=True):
        if value is None or input_perm is None or value.is_constant:
            continue
        source = value.producer
        if source is None or not isinstance(source.op, Transpose) or source.op.perm != inverse(input_perm):
            added += value.type.nbytes
        elif not graph.is_output(value):
            saved += value.type.nbytes / len(value.users)
    cancels = [isinstance(user.op, Transpose) and user.op.perm == inverse(perm) for user in node.output.users]
    cost = 0 if cancels and all(cancels) and not graph.is_output(node.output) else node.output.type.nbytes
    gain = saved - added - cost
    return gain > 0 or (gain == 0 and added == 0)


def _rewrite_permuted(graph: Graph, node: Node, perm: Permutation) -> bool:
    form = permuted(node.op, node.sig, perm)
    if form is None:
        return False
    op, input_perms = form
    inputs = [_turn(graph, node, v, p) for v, p in zip(node.inputs, input_perms, strict=True)]
    (type_,) = Transpose(perm).infer(node.output.type)
    name = node.output.name
    graph.release_name(node.output)
    new = graph.add(op, inputs, node.origin, names=[name], types=[type_], before=node)
    for user in node.output.users:  # At once, so that no removed work seems left.
        if user.op == Transpose(perm):
            graph.replace(user.output, new.output)
    back = graph.add(Transpose(inverse(perm)), [new.output], node.origin, types=[node.output.type], before=node)
    graph.replace(node.output, back.output)
    graph.remove(node)
    return True


def _turn(graph: Graph, before: Node, value: Value | None, perm: Permutation | None) -> Value | None:
    if value is None or perm is None:
        return value
    source = value.producer
    if source is not None and isinstance(source.op, Transpose) and source.op.perm == inverse(perm):
        return source.input(0)
    if value.data is not None:
        (type_,) = Transpose(perm).infer(value.type)
        turned = np.ascontiguousarray(value.data.transpose(perm))
        return graph.constant(f"{value.name.removesuffix('.turned')}.turned", turned, type_.quant, of=[value])
    return graph.add(Transpose(perm), [value], before.origin, before=before).output
