# SPDX-License-Identifier: Apache-2.0
"""Choice of the layers that two cores share: as many as fit into RAM together, those that save most time first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile

from mcugen.hir.graph import Graph, Node
from mcugen.kernels.choose import all_fitting
from mcugen.lir.kernel import Kernel
from mcugen.lir.program import MOVE, Control, Program
from mcugen.ops.branches import side_by_side
from mcugen.ops.fork import Forked
from mcugen.search.core_partition import LayerPartition, PartitionSearch
from mcugen.search.objective import TOLERANCES
from mcugen.search.parallel_branches import BranchPair, branch_pairs

MIN_STACK_BYTES = 300
"""Bytes of RAM that most models need at least beside the arena, mainly for the stack."""

MAX_BUILT_PROGRAMS = 32
"""Largest number of programs that are built to find the layers that two cores can share within the RAM limit."""

Offer = tuple[Node, Sequence[LayerPartition]]
"""A layer and its partitions over two cores, the fastest first; slower partitions may take less memory."""

Build = Callable[[Graph, Mapping[Node, Kernel], int], Program]
"""Function that builds a program with a memory plan.

Its arguments are the graph, the kernel of each node, and the arena size in bytes at which planning stops because it is
small enough; 0 asks for the smallest arena.
"""


@dataclass(frozen=True)
class Room:
    """The memory that a two-core program may use in addition to that of the program for one core.

    Attributes:
        ram: Bytes of RAM that may be added; None means that only `times` limits them.
        flash: Bytes of flash that may be added; None means that only Tolerances.max_constants_ratio limits them.
        times: Largest ratio of the RAM for two cores, stack included, to the RAM for one core.
    """

    ram: int | None = None
    flash: int | None = None
    times: float = TOLERANCES.max_shared_ram_ratio


def shared_program(
    graph: Graph, whole: Program, partition_search: PartitionSearch, build: Build, room: Room = Room()
) -> Program:
    """Return the program in which two cores share layers, as `share_layers` chooses them.

    Args:
        graph: The optimized graph.
        whole: The planned program of one core.
        partition_search: Finds partitions of a layer over two cores.
        build: Builds a planned program of the graph with given kernels.
        room: Bytes of RAM and flash that may be used beyond those of `whole`.
    """
    return share_layers(graph, whole, partition_search, build, room)[0]


def share_layers(
    graph: Graph, whole: Program, partition_search: PartitionSearch, build: Build, room: Room = Room()
) -> tuple[Program, float]:
    """Choose the layers that two cores compute together, and return that program with its estimated time.

    The program equals `whole` except for the shared layers and for branches that run at the same time. The result is
    `whole` itself if some of its layers run row by row, or if the second core would save less than the share
    Tolerances.min_two_core_saving of the time. The time is in instructions of the first core.

    Args:
        graph: The optimized graph.
        whole: The planned program of one core.
        partition_search: Finds partitions of a layer over two cores.
        build: Builds a planned program of the graph with given kernels.
        room: Bytes of RAM and flash that may be used beyond those of `whole`.
    """
    kernels = kernels_of(graph, whole, partition_search.first.features)
    alone = {
        node: partition_search.first.time(node, kernels.get(node.outputs[0].name))
        for node in graph.nodes
        if node.outputs
    }
    time = sum(alone.values())
    if any(instr.control is Control.STREAM for instr in whole.instrs):
        return whole, time
    own_limit = room.times * (whole.arena_size + MIN_STACK_BYTES) - MIN_STACK_BYTES
    limit = int(own_limit if room.ram is None else min(own_limit, whole.arena_size + max(room.ram, 0)))
    spare = int((TOLERANCES.max_constants_ratio - 1) * whole.weights_size)
    spare = spare if room.flash is None else min(spare, max(room.flash, 0))
    partitions_by_node = {
        node: partition_search.of(node, kernels.get(node.outputs[0].name), spare) for node in graph.nodes
    }
    offers = sorted(
        ((node, faster) for node, (_, faster) in partitions_by_node.items() if faster),
        key=lambda o: -partitions_by_node[o[0]][0],
    )
    search = _Search(graph, kernels, build, limit, spare, _living_beside(whole))
    chosen = search.most({}, offers)
    saved = sum(alone[node] - partition.time for node, partition in chosen.items())
    search.beside_each_other(chosen, partition_search, alone)
    saved += search.saved
    if saved < TOLERANCES.min_two_core_saving * time:
        return whole, time
    chosen = {node: partition for node, partition in chosen.items() if node not in search.inside}
    program = search.program(chosen, 0)
    return (program, time - saved) if program.arena_size <= limit and not _copied(program) else (whole, time)


def kernels_of(graph: Graph, program: Program, features: frozenset[str]) -> dict[str, Kernel]:
    """Return, by the name of each node's first output, the kernel that a program uses for the node.

    Nodes without a choice of kernels are left out.

    Args:
        graph: The graph that the program was lowered from.
        program: The program.
        features: CPU features that the program was lowered for, and tuning flags, which select variants of kernels.
    """
    used = {(instr.name, instr.kernel) for instr in program.instrs}
    fitting = all_fitting(graph, features)
    return {
        n.outputs[0].name: k
        for n, node_kernels in fitting.items()
        for k in node_kernels
        if (n.outputs[0].name, k.name) in used
    }


@dataclass
class _Search:
    """The search for partitions of layers that fit into RAM together, besides other live buffers."""

    graph: Graph
    kernels: Mapping[str, Kernel]
    """The kernels of whole layers, by output."""
    build: Build
    limit: int
    """Largest arena in bytes."""
    spare: int
    """Bytes of constants beyond those of one core's program, for all layers together."""
    beside: Mapping[str, int]
    tries: int = MAX_BUILT_PROGRAMS
    branches: list[tuple[BranchPair, Mapping[str, Kernel]]] = field(default_factory=list)
    """The branches that run in parallel, with kernels by output."""
    saved: float = 0.0
    """Time saved by these branches beyond what sharing their layers saves."""

    @property
    def inside(self) -> set[Node]:
        """Return the nodes of the parallel branches."""
        return {node for pair, _ in self.branches for node in pair.nodes}

    def beside_each_other(
        self, chosen: Mapping[Node, LayerPartition], partition_search: PartitionSearch, alone: Mapping[Node, float]
    ) -> None:
        """Run branches in parallel where this takes less time than their layers one by one, shared where they are.

        Args:
            chosen: The chosen partitions of layers.
            partition_search: Estimates the time of parallel nodes.
            alone: Time of each node on the first core.
        """
        gains = []
        for pair in branch_pairs(self.graph, lambda node: alone[node], partition_search.other.pace):
            if pair.first and pair.second:
                sides = partition_search.parallel_run(pair.first, pair.second, self.kernels)
                current_time = sum(chosen[node].time if node in chosen else alone[node] for node in pair.nodes)
                gains.append((current_time - sides.time, pair, sides))
        for gain, pair, sides in sorted(gains, key=lambda entry: -entry[0]):
            if gain <= 0 or self.inside & {*pair.nodes} or not self.tries:
                continue
            self.tries -= 1
            self.branches.append((pair, sides.kernels))
            program = self.program(
                {n: partition for n, partition in chosen.items() if n not in self.inside}, self.limit
            )
            if program.arena_size <= self.limit and not _copied(program) and not _has_idle_side(program):
                self.saved += gain
            else:
                self.branches.pop()

    def most(self, chosen: Mapping[Node, LayerPartition], offers: Sequence[Offer]) -> Mapping[Node, LayerPartition]:
        """Return the chosen partitions and as many of the offered ones as fit: all at once, or else half after half.

        A single layer that does not fit is tried with its next partition. Layers whose shards would need a copy, since
        they cannot lie in place, go to the second half.
        """
        offers = [
            (node, fitting_partitions)
            for node, partitions in offers
            if (fitting_partitions := self._fitting(node, partitions))
        ]
        if not offers or not self.tries:
            return chosen
        self.tries -= 1
        extended = {**chosen, **{node: partitions[0] for node, partitions in offers}}
        program = self.program(extended, self.limit)
        copied = _copied(program)
        has_room = (
            program.arena_size <= self.limit and sum(partition.flash for partition in extended.values()) <= self.spare
        )
        if has_room and not copied:
            return extended
        if len(offers) == 1:
            ((node, partitions),) = offers
            return self.most(chosen, [(node, partitions[1:])])
        second_offers = [offer for offer in offers if offer[0].output.name in copied]
        first_offers = [offer for offer in offers if offer not in second_offers]
        if not first_offers or not second_offers:
            first_offers, second_offers = offers[: len(offers) // 2], offers[len(offers) // 2 :]
        return self.most(self.most(chosen, first_offers), second_offers)

    def program(self, chosen: Mapping[Node, LayerPartition], target_bytes: int) -> Program:
        """Build the program whose layers are forks where a partition is chosen."""
        shared_graph = self.graph.copy()
        partitions = {node.output.name: partition for node, partition in chosen.items()}
        kernels = {node: kernel for partition in partitions.values() for node, kernel in partition.kernels.items()}
        for node in list(shared_graph.nodes):
            name = node.outputs[0].name
            if name in partitions:
                inputs = [v for v in node.inputs if v is not None and not v.is_constant]
                shared_graph.rewrite(node, partitions[name].fork, inputs, types=[node.output.type])
            elif name in self.kernels:
                kernels[node] = self.kernels[name]
        self._put_side_by_side(shared_graph, kernels)
        return self.build(shared_graph, kernels, target_bytes)

    def _put_side_by_side(self, graph: Graph, kernels: dict[Node, Kernel]) -> None:
        """Add the chosen parallel branches to a copy of the graph, and their kernels to `kernels`."""
        for pair, chosen in self.branches:
            parts = [{node.outputs[0].name for node in part} for part in (pair.first, pair.second)]
            first, second = ([n for n in graph.nodes if n.outputs[0].name in part] for part in parts)
            pair_node = side_by_side(graph, first, second)
            inner = [node for body in pair_node.op.bodies for node in body.nodes]
            kernels |= {n: chosen[n.outputs[0].name] for n in inner if n.outputs[0].name in chosen}

    def _fitting(self, node: Node, partitions: Sequence[LayerPartition]) -> Sequence[LayerPartition]:
        """Return the partitions from the first one that fits if no other layer is shared.

        That is checked with programs of one layer, which are quick to build. Of the partitions with many more
        constants, only the first that fits is kept, if it is fast enough.
        """
        room = self.limit - self.beside.get(node.output.name, 0)
        small, large = (
            list(dropwhile(lambda partition: not self._fits_alone(node, partition, room), kind))
            for kind in (
                [partition for partition in partitions if not partition.flash],
                [partition for partition in partitions if partition.flash],
            )
        )
        return [
            partition
            for partition in large[:1]
            if not small or partition.time <= TOLERANCES.max_large_form_time_ratio * small[0].time
        ] + small

    def _fits_alone(self, node: Node, partition: LayerPartition, room: int) -> bool:
        program = self.build(_alone(node, partition.fork), partition.kernels, max(room, 1))
        return program.arena_size <= room and not _copied(program)


def _living_beside(program: Program) -> dict[str, int]:
    """Return by layer the live bytes that it does not use; the most of all its instructions."""
    ranges = program.live_ranges()
    bytes_beside: dict[str, int] = {}
    for index, instr in enumerate(program.instrs):
        used = {operand.buffer for operand in instr.operands}
        unused_bytes = sum(b.nbytes for b, (first, last) in ranges.items() if first <= index <= last and b not in used)
        bytes_beside[instr.name] = max(bytes_beside.get(instr.name, 0), unused_bytes)
    return bytes_beside


def _alone(node: Node, fork: Forked) -> Graph:
    """Return a graph of one layer, which is a fork."""
    graph = Graph("layer")
    inputs = [graph.add_input(v.name, v.type) for v in node.inputs if v is not None and not v.is_constant]
    fork_node = graph.add(fork, inputs, node.origin, names=[node.output.name], types=[node.output.type])
    graph.add_output(node.output.name, fork_node.output)
    return graph


def _has_idle_side(program: Program) -> bool:
    """Return whether one side of a fork computes nothing: its layers are views of what the other side uses."""
    sides = [span for start, middle, end in program.forks() for span in ((start, middle), (middle, end))]
    return any(
        all(i.control is not Control.NONE or i.moves_nothing for i in program.instrs[first + 1 : last])
        for first, last in sides
    )


def _copied(program: Program) -> frozenset[str]:
    """Return the layers of forks with a copy of data that was meant to be used in place."""
    moves = (i for i in program.instrs if i.op == Forked.mnemonic and i.kernel == MOVE and not i.stays)
    return frozenset(move.name for move in moves if not move.moves_nothing)
