# SPDX-License-Identifier: Apache-2.0
"""Layers in portions of output channels whose weights a cache holds, where all of them lie in slow memory.

A layer reads its weights anew for every few pixels. If they are more than the cache holds, each time comes from slow
memory, mostly flash on a serial bus. A portion's weights stay in the cache until all pixels have been computed: each
weight comes from slow memory once, and no RAM is taken for a copy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace

from mcugen.core.board import Board
from mcugen.core.options import CompileOptions
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.traits import Divisible
from mcugen.lir.program import Program
from mcugen.memory.constant_stalls import constants_of
from mcugen.memory.place import copies_of, memory_of_weights
from mcugen.ops.movement import Concat

TOGETHER = 16
"""Channels of which portions have whole groups, or else a quarter of that: as many as kernels compute at once."""

MOST_PORTIONS = 64
"""Each is a call of its own."""

LEAST_SAVED = 0.1
"""Cycles for each instruction of the program, that portions must save in all, as they take calls and code."""


def in_portions(graph: Graph, program: Program, board: Board, options: CompileOptions) -> Graph | None:
    """The graph of a program with those layers in portions that wait for weights again and again, but for weights that
    start-up copies by the options, and without other copies; None if none do.
    """
    cache = board.cache(memory_of_weights(board, options.place), "data")
    if cache is None or options.cores > 1 or options.weights_reader or graph.lesson is not None:
        return None
    saved = _saved(program, board, options)
    waiting = [node for node in graph.nodes if saved[node.outputs[0].name] > 0]
    chosen = {node: some for node in waiting if (some := channels_of(node, lambda n: cache.missed(n) == 0))}
    least = LEAST_SAVED * (program.instructions_estimate or 0.0)
    if sum(saved[node.output.name] for node in chosen) < least:
        return None
    return divided(graph, chosen)


def _saved(program: Program, board: Board, options: CompileOptions) -> Mapping[str, float]:
    """Cycles by layer that it waits beyond reading its constants once, but for those that start-up copies."""
    slow = memory_of_weights(board, options.place)
    copied = copies_of(program, board, options.place)
    saved = defaultdict[str, float](float)
    for constant in constants_of(program, board, slow):
        waits, once = constant.waits(board, slow), board.reading(slow, constant.buffer.nbytes)
        if constant.buffer not in copied and constant.runs == 1 and waits is not None and once is not None:
            saved[constant.instr.name] += max(waits - once, 0.0)
    return saved


def channels_of(node: Node, holds: Callable[[int], bool]) -> int:
    """Of a portion of whose weights, as so many bytes, that holds, with no more portions than need be; 0 where there is
    none, or where no portion is needed.
    """
    if not isinstance(node.op, Divisible) or not node.op.has_channels_alone(node.sig, node.inputs):
        return 0
    channels, nbytes = node.output.type.shape[-1], sum(v.type.nbytes for v in node.inputs[1:] if v is not None)
    for unit in (TOGETHER, TOGETHER // 4):
        for count in range(2, min(MOST_PORTIONS, channels // unit) + 1):
            each = -(-channels // (unit * count)) * unit
            if holds(nbytes * each // channels):
                return each if each < channels else 0
    return 0


def divided(graph: Graph, chosen: Mapping[Node, int]) -> Graph | None:
    """The graph with these nodes in portions of so many channels; None if there are none."""
    places = {node: place for place, node in enumerate(graph.nodes)}
    other = graph.copy()
    nodes = list(other.nodes)
    for node, channels in chosen.items():
        _divide(other, nodes[places[node]], channels)
    return other if chosen else None


def _divide(graph: Graph, node: Node, channels: int) -> None:
    """So many channels by each portion; their results are joined, and all that remains one layer."""
    out, layer = node.output.type, node.layer or 1 + max(other.layer for other in graph.nodes)
    parts = []
    for start in range(0, out.shape[-1], channels):
        stop = min(start + channels, out.shape[-1])
        inputs = [node.input(0), *(v and _some(graph, v, start, stop) for v in node.inputs[1:])]
        name, type_ = f"{node.output.name}.{start}", out.with_shape((*out.shape[:-1], stop - start), out.layout)
        parts.append(graph.add(node.op, inputs, node.origin, names=[name], types=[type_], before=node))
    whole = graph.rewrite(node, Concat(out.rank - 1), [part.output for part in parts], types=[out])
    for made in (*parts, whole):
        made.layer = layer


def _some(graph: Graph, value: Value, start: int, stop: int) -> Value:
    """Of weights or biases, some output channels."""
    assert value.data is not None
    quant = value.type.quant
    if quant is not None and quant.axis is not None:
        quant = replace(quant, scale=quant.scale[start:stop])
    return graph.constant(f"{value.name}.{start}", value.data[start:stop], quant, value.type.dtype)
