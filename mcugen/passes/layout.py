# SPDX-License-Identifier: Apache-2.0
"""Layout: operators with space turn channels-last, and the transpositions between them cancel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import Permutation
from mcugen.ops.movement import Transpose, inverse, to_channels_last


def channels_last(graph: Graph) -> bool:
    """op(x) channels-first → Transpose(op'(Transpose(x))) with op' channels-last; constants turn at once."""
    changed = False
    for node in list(graph.nodes):
        if node.op.wants_channels_last:
            changed |= _rewrite_permuted(graph, node, to_channels_last(node.output.type.rank))
    return changed


def sink_transposes(graph: Graph) -> bool:
    """op(Transpose(a), …) → Transpose(op'(a, …)) where that leaves no more transposed bytes than before."""
    changed = False
    for node in list(graph.nodes):
        perm = _sinkable(node)
        if perm is not None and _gain(graph, node, perm) >= 0:
            changed |= _rewrite_permuted(graph, node, inverse(perm))
    return changed


def _sinkable(node: Node) -> Permutation | None:
    """The permutation of the first transposed input of a node that is no transposition itself."""
    if isinstance(node.op, Transpose) or len(node.outputs) != 1:
        return None
    for value in node.inputs:
        if value is not None and value.producer is not None and isinstance(value.producer.op, Transpose):
            return value.producer.op.perm
    return None


def _gain(graph: Graph, node: Node, perm: Permutation) -> int:
    """Bytes no longer transposed on the way in, less those newly transposed on the way in or out."""
    form = node.op.permuted(node.sig, inverse(perm))
    if form is None:
        return -1
    gain = 0 if _only_turned(graph, node.output, perm=inverse(perm)) else -node.output.type.nbytes
    for value, wanted in dict(zip(node.inputs, form[1], strict=True)).items():
        if value is None or wanted is None or value.is_constant:
            continue
        source = value.producer
        cancels = source is not None and isinstance(source.op, Transpose) and source.op.perm == inverse(wanted)
        gain += _saved(graph, value, wanted) if cancels else -value.type.nbytes
    return gain


def _only_turned(graph: Graph, value: Value, perm: Permutation) -> bool:
    """Whether a value is but transposed by `perm`: turning it the other way first costs nothing."""
    turned = all(isinstance(user.op, Transpose) and user.op.perm == perm for user in value.users)
    return turned and bool(value.users) and not graph.is_output(value)


def _saved(graph: Graph, turned: Value, wanted: Permutation) -> int:
    """Bytes of a transposition that vanish with one of its readers: its share, if all of them can sink.

    Transpositions among the readers merge with it anyway.
    """
    readers = [user for user in turned.users if not isinstance(user.op, Transpose)]
    alone = len(readers) == 1 or all(user.op.permuted(user.sig, wanted) is not None for user in readers)
    return turned.type.nbytes // len(readers) if alone and not graph.is_output(turned) else 0


def _rewrite_permuted(graph: Graph, node: Node, perm: Permutation) -> bool:
    form = node.op.permuted(node.sig, perm)
    if form is None:
        return False
    op, wanted = form
    inputs = [_turn(graph, node, v, p) for v, p in zip(node.inputs, wanted, strict=True)]
    (type_,) = Transpose(perm).infer(node.output.type)
    name = node.output.name
    graph.release_name(node.output)
    new = graph.add(op, inputs, node.origin, names=[name], types=[type_], before=node)
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
        return graph.constant(f"{value.name}.turned", np.ascontiguousarray(value.data.transpose(perm)), type_.quant)
    return graph.add(Transpose(perm), [value], before.origin, before=before).output


__all__: Sequence[str] = ["channels_last", "sink_transposes"]
