# SPDX-License-Identifier: Apache-2.0
"""Output-channel tiling: layers are computed in portions whose weights fit the data cache of a slow memory.

A layer reads its weights again for every few pixels. If the weights exceed the cache, each pass reads slow memory,
mostly flash on a serial bus. The weights of a portion stay in the cache until all pixels have been computed: each
weight is read from slow memory once, and no RAM is used for a copy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace

from mcugen.core.board import Board
from mcugen.core.options import CompileOptions
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.traits import Partitionable
from mcugen.lir.program import Program
from mcugen.memory.constant_stalls import constant_reads
from mcugen.memory.place import copies_of, memory_of_weights
from mcugen.ops.movement import Concat
from mcugen.search.objective import TOLERANCES

CHANNELS_AT_ONCE = 16
"""Output channels that kernels compute at once.

The channels of a tile are a multiple of this number, or of a quarter of it if no such tile is small enough.
"""

MAX_PORTIONS = 64
"""Largest number of tiles (groups of output channels) that a layer is divided into; each tile is one kernel call."""


def tile_output_channels(graph: Graph, program: Program, board: Board, options: CompileOptions) -> Graph | None:
    """Return a graph in which layers are tiled by output channels, so that the weights of each tile stay in the cache.

    Only layers that would read weights from slow memory several times are tiled, not those whose weights start-up code
    copies to RAM.

    Args:
        graph: The optimized graph.
        program: Its planned program.
        board: The board, with the cache of the weights' memory.
        options: Options with the placement and copies.

    Returns:
        The tiled graph. None if the weights' memory has no data cache, if the options exclude tiling, or if tiling
        saves too few stall cycles.
    """
    cache = board.cache(memory_of_weights(board, options.place), "data")
    if cache is None or options.cores > 1 or options.weights_reader or graph.lesson is not None:
        return None
    saved = _saved(program, board, options)
    waiting = [node for node in graph.nodes if saved[node.outputs[0].name] > 0]
    chosen = {
        node: channels
        for node in waiting
        if (channels := channels_per_portion(node, lambda n: cache.evicted_share(n) == 0))
    }
    min_saved = TOLERANCES.min_saved_stalls_per_instruction * (program.instructions_estimate or 0.0)
    if sum(saved[node.output.name] for node in chosen) < min_saved:
        return None
    return divide_by_channels(graph, chosen)


def _saved(program: Program, board: Board, options: CompileOptions) -> Mapping[str, float]:
    """Return by layer the stall cycles beyond reading its constants once, without constants that start-up copies."""
    slow = memory_of_weights(board, options.place)
    copied = copies_of(program, board, options.place)
    saved = defaultdict[str, float](float)
    for constant in constant_reads(program, board, slow):
        waits, single_read = (
            constant.stall_cycles(board, slow),
            board.sequential_read_cycles(slow, constant.buffer.nbytes),
        )
        if constant.buffer not in copied and constant.runs == 1 and waits is not None and single_read is not None:
            saved[constant.instr.name] += max(waits - single_read, 0.0)
    return saved


def channels_per_portion(node: Node, holds: Callable[[int], bool]) -> int:
    """Return the number of output channels per tile for the fewest tiles whose weights satisfy a condition.

    Args:
        node: The layer to divide by output channels.
        holds: Returns whether a number of bytes of weights is small enough for one tile.

    Returns:
        Output channels per tile; 0 if the layer cannot be divided, or if no tile is small enough.
    """
    if not isinstance(node.op, Partitionable) or not node.op.has_channels_alone(node.sig, node.inputs):
        return 0
    channels, nbytes = node.output.type.shape[-1], sum(v.type.nbytes for v in node.inputs[1:] if v is not None)
    for unit in (CHANNELS_AT_ONCE, CHANNELS_AT_ONCE // 4):
        for count in range(2, min(MAX_PORTIONS, channels // unit) + 1):
            portion_channels = -(-channels // (unit * count)) * unit
            if holds(nbytes * portion_channels // channels):
                return portion_channels if portion_channels < channels else 0
    return 0


def divide_by_channels(graph: Graph, chosen: Mapping[Node, int]) -> Graph | None:
    """Return a copy of the graph in which the chosen nodes are divided into tiles of output channels.

    Each tile is a node with part of the weights; a concatenation joins their results.

    Args:
        graph: The graph to copy.
        chosen: The nodes to divide, each with its number of output channels per tile.

    Returns:
        The copy; None if `chosen` is empty.
    """
    places = {node: place for place, node in enumerate(graph.nodes)}
    tiled = graph.copy()
    nodes = list(tiled.nodes)
    for node, channels in chosen.items():
        _divide(tiled, nodes[places[node]], channels)
    return tiled if chosen else None


def _divide(graph: Graph, node: Node, channels: int) -> None:
    """Replace a node by one per portion of output channels, whose results are concatenated."""
    out, layer = node.output.type, node.layer or 1 + max(other.layer for other in graph.nodes)
    parts = []
    for start in range(0, out.shape[-1], channels):
        stop = min(start + channels, out.shape[-1])
        inputs = [node.input(0), *(v and channels_of_constant(graph, v, start, stop) for v in node.inputs[1:])]
        name, type_ = f"{node.output.name}.{start}", out.with_shape((*out.shape[:-1], stop - start), out.layout)
        parts.append(graph.add(node.op, inputs, node.origin, names=[name], types=[type_], before=node))
    whole = graph.rewrite(node, Concat(out.rank - 1), [part.output for part in parts], types=[out])
    for added in (*parts, whole):
        added.layer = layer


def channels_of_constant(graph: Graph, value: Value, start: int, stop: int) -> Value:
    """Add a constant with some output channels of weights or biases."""
    assert value.data is not None
    quant = value.type.quant
    if quant is not None and quant.axis is not None:
        quant = replace(quant, scale=quant.scale[start:stop])
    return graph.constant(f"{value.name}.{start}", value.data[start:stop], quant, value.type.dtype, of=[value])
