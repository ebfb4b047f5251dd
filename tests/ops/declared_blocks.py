# SPDX-License-Identifier: Apache-2.0
"""Instructions of random layers with the overlaps that they declare, for every kernel that a CPU can use."""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache, lru_cache

import numpy as np
import onnx.parser
from onnx_models import optimized
from overlap_runs import Block, blocks_of
from random_layers import OTHERS, WEIGHTED, other_layers, weighted_layers
from shared_models import roomy
from test_streamed import NETS, groups

from mcugen.hir.graph import Graph, Node
from mcugen.hir.traits import partitions
from mcugen.kernels.common.library import lower_without_choice
from mcugen.kernels.families import library_kernels_of
from mcugen.lir.kernel import SHORT_LOOPS, Kernel
from mcugen.lir.program import Control, Program
from mcugen.lir.spec import own_kernels
from mcugen.lir.trial import trial
from mcugen.ops.fork import Forked, fork_layer
from mcugen.ops.row_groups import group_of
from mcugen.ops.stream import Streamed
from mcugen.reporting.kernels import declared_kernels
from mcugen.search.line_buffer_groups import GraphSegment, with_groups

BOARDS = ("nrf52840", "rp2040", "stm32f103", "corstone300", "esp32c3")
"""Names of boards, one for each family of kernels."""


@cache
def graphs(seed: int, layers: int) -> tuple[Graph, ...]:
    """Return models of random layers: `layers` for each kind of weights, and one for each group of other operators."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        weighted = [weighted_layers(kind, layers, np.random.default_rng([seed, i])) for i, kind in enumerate(WEIGHTED)]
        others = [other_layers(number, np.random.default_rng([seed, 100 + number])) for number in range(len(OTHERS))]
        models = [*(net.model() for net in (*weighted, *others)), *_examples()]
        return tuple(map(optimized, models))


def _examples() -> list[onnx.ModelProto]:
    """Return the models beside the declarations of kernels."""
    return [onnx.parser.parse_model(kernel.example) for kernel in declared_kernels() if kernel.example]


FUNCTIONS = 4
"""Largest number of C functions that are compiled for one kernel; layers that need a further one are left out."""


def programs_of(graph: Graph, board: str, most: int, library: str = "") -> Iterator[tuple[Program, str]]:
    """Yield programs of single nodes with each kernel that fits the node on a board, and the names of their operators.

    Args:
        graph: The model.
        board: Name of the board.
        most: Largest number of programs for one kernel.
        library: Name of a library whose kernels are used; "" for mcugen's own.
    """
    features, counts = roomy(board).features, Counter[str]()
    functions = defaultdict[str, set[object]](set)
    for node in graph.nodes:
        choices = own_kernels(node.op) if not library else library_kernels_of(node, library)
        if not choices and not library:
            yield lower_without_choice(node, features).program, node.op.name
        for kernel in choices:
            wanted = features | (kernel.needs & {SHORT_LOOPS})
            if counts[kernel.name] >= most or not kernel.fits(node, wanted):
                continue
            program = trial(node, kernel, wanted).program
            keys = {instr.function_key for instr in program.instrs}
            if len(functions[kernel.name] | keys) <= max(FUNCTIONS, len(keys)):
                functions[kernel.name] |= keys
                counts[kernel.name] += 1
                yield program, node.op.name


@lru_cache(maxsize=len(BOARDS) + 1)  # those of one seed
def declared_blocks(seed: int, layers: int, most: int, board: str, library: str = "") -> tuple[Block, ...]:
    """Return the instructions that declare overlaps, of all programs of a seed on a board.

    Args:
        seed: Seed of the random layers.
        layers: Number of layers for each kind of weights.
        most: Largest number of programs for one kernel.
        board: Name of the board.
        library: Name of a library whose kernels are used; "" for mcugen's own.
    """
    return tuple(
        block
        for graph in graphs(seed, layers)
        for program, name in programs_of(graph, board, most, library)
        for block in blocks_of(program, name)
        if block.claims()
    )


def blocks_of_all_boards(seed: int, layers: int, most: int) -> list[Block]:
    """Return the instructions that declare overlaps, each for the first of BOARDS that can use its kernel."""
    found, seen = list[Block](), set[str]()
    for board in BOARDS:
        blocks = [block for block in declared_blocks(seed, layers, most, board) if block.kernel not in seen]
        seen |= {block.kernel for block in blocks}
        found += blocks
    return found


def streamed_blocks(random: np.random.Generator, count: int) -> list[Block]:
    """Return layers that are computed row by row, with the overlaps that they declare.

    Args:
        random: Source of the choices.
        count: Number of line-buffered groups of each network.
    """
    found = list[Block]()
    for name, image in NETS.items():
        graph = optimized(image().finished().model())
        spans = groups(graph)
        for number in random.permutation(len(spans))[:count]:
            first, end = spans[number]
            segment = GraphSegment(first, end, group_of(graph.nodes[first:end], graph.outputs), 0, 0.0)
            for node in with_groups(graph, [segment]).nodes:
                if isinstance(node.op, Streamed):
                    program = lower_without_choice(node, roomy(BOARDS[0]).features).program
                    found += [b for b in blocks_of(program, name) if b.head.control is Control.STREAM and b.claims()]
    return found


def forked_blocks(seed: int, layers: int, random: np.random.Generator) -> list[Block]:
    """Return layers that are divided at random over two cores, with the overlaps that they declare."""
    found, features = list[Block](), roomy(BOARDS[0]).features
    for graph in graphs(seed, layers):
        for number, node in enumerate(graph.nodes):
            form = _divided(node, random) if len(node.outputs) == 1 and not node.op.bodies else None
            if form is None:
                continue
            other = graph.copy()
            whole = other.nodes[number]
            inputs = [v for v in whole.inputs if v is not None and not v.is_constant]
            fork = other.rewrite(whole, form, inputs, types=[whole.output.type])
            program = lower_without_choice(fork, features).program
            found += [b for b in blocks_of(program, node.op.name) if b.head.control is Control.FORK and b.claims()]
    return found


def _divided(node: Node, random: np.random.Generator) -> Forked | None:
    """Return a layer in two shards; of some, the second is made aside."""
    ways = list(partitions(node.op, node.sig, node.inputs))
    for _ in range(4 if ways else 0):
        partition = ways[int(random.integers(len(ways)))]
        if partition.length > 1:
            cut, is_aside = int(random.integers(1, partition.length)), not random.integers(4)
            form = fork_layer(node, partition, [((0, cut, False), (cut, partition.length, is_aside))])
            if form is not None:
                return form
    return None


def is_for_board(kernel: Kernel, board: str) -> bool:
    """Return whether a kernel is tested on this board: the first of BOARDS that has the features that the kernel needs.

    Kernels of every CPU, whose templates may have fast paths, are tested on a Cortex-M4 and a Cortex-M55.
    """
    if not kernel.needs - {SHORT_LOOPS}:
        return board in ("nrf52840", "corstone300")
    return board == next(name for name in BOARDS if kernel.needs - {SHORT_LOOPS} <= roomy(name).features)
