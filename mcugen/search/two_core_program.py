# SPDX-License-Identifier: Apache-2.0
"""Programs for two cores: layers that both cores share or, for throughput, a pipeline over two frames."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from mcugen.backends.cpu.pipeline import lowered, plan_program
from mcugen.core.limits import restart_time_limit
from mcugen.core.options import CompileOptions
from mcugen.hir.graph import Graph, Node
from mcugen.kernels.cost import cost_table
from mcugen.lir.kernel import Kernel
from mcugen.lir.program import Program
from mcugen.memory.place import memory_of_arena
from mcugen.search.contention import arena_contention
from mcugen.search.core_assignment import MIN_STACK_BYTES, Room, share_layers, shared_program
from mcugen.search.core_partition import CoreCostModel, PartitionSearch
from mcugen.search.frame_pipeline import pipelined_program
from mcugen.search.metrics import Use
from mcugen.search.objective import TOLERANCES
from mcugen.search.plan import BuiltProgram, ProgramCandidate
from mcugen.search.problem import SearchProblem
from mcugen.search.transformations import CandidateTransformation
from mcugen.search.weight_staging import copies_enough


class CoreAssignment(CandidateTransformation):
    """The improvement of a candidate by a second core: layers, branches or frames are divided between two cores."""

    kind = "core assignment"
    advantage = "two cores take less time for the same layers"

    def propose(
        self, problem: SearchProblem, candidate: ProgramCandidate, limits: CompileOptions
    ) -> Iterator[BuiltProgram]:
        """Yield the program for two cores, if the options ask for two and the second core saves enough time."""
        if problem.options.cores == 1:
            return
        whole = candidate.program
        program = TwoCoreSearch(problem).program(whole, candidate.use, limits)
        if program is not whole:
            yield BuiltProgram(program, candidate.built.changes)


@dataclass(frozen=True)
class TwoCoreSearch:
    """The search for the program of two cores that replaces a program of one core."""

    problem: SearchProblem
    """The graph, the board, and the options that ask for two cores."""

    def program(self, whole: Program, use: Use, limits: CompileOptions) -> Program:
        """Return the program for two cores, or `whole` if the second core saves too little time.

        If start-up code could copy all weights of `whole` to RAM, but not those of the program for two cores, the
        layers are divided such that their constants take no additional bytes.

        Args:
            whole: The planned program of one core.
            use: The RAM and flash that it uses.
            limits: Options with the limits of RAM and flash.
        """
        room, partition_search = self._room(whole, use, limits), self._partition_search()
        if self.problem.options.throughput:
            return self._pipeline(whole, partition_search, room)
        program = shared_program(self.problem.graph, whole, partition_search, self._build, room)
        if self._is_copied_at_startup(whole) and not self._is_copied_at_startup(program):
            compact_search = replace(partition_search, max_constants_ratio=1.0)
            program = shared_program(self.problem.graph, whole, compact_search, self._build, replace(room, flash=0))
        return program

    def _pipeline(self, whole: Program, partition_search: PartitionSearch, room: Room) -> Program:
        """Return a pipeline over two frames, or the program with shared layers where that gives more frames."""
        board, options = self.problem.board, self.problem.options
        program, time = share_layers(self.problem.graph, whole, partition_search, self._build, room)
        limit = memory_of_arena(board, options.place).room
        limit = limit if room.ram is None else min(limit, whole.arena_size + max(room.ram, 0))
        return pipelined_program(self.problem.graph, whole, partition_search, self._lower, limit, time) or program

    def _is_copied_at_startup(self, program: Program) -> bool:
        return copies_enough(program, self.problem.board, self.problem.options)

    def _build(self, variant: Graph, kernels: Mapping[Node, Kernel], target_arena: int) -> Program:
        """Build a planned program; planning stops at an arena of `target_arena` bytes."""
        restart_time_limit()
        return plan_program(lowered(variant, self.problem.board, self.problem.options, kernels=kernels), target_arena)

    def _lower(self, kernels: Mapping[Node, Kernel]) -> Program:
        """Lower the graph with the given kernels."""
        return lowered(self.problem.graph, self.problem.board, self.problem.options, kernels=kernels)

    def _room(self, program: Program, use: Use, limits: CompileOptions) -> Room:
        """Return the RAM and flash that remain for the two-core form of a program."""
        board = self.problem.board
        max_flash = board.total_flash if limits.max_flash is None else limits.max_flash
        free_ram = memory_of_arena(board, limits.place).room - MIN_STACK_BYTES - program.arena_size
        if limits.max_ram is not None:
            free_ram = min(free_ram, limits.max_ram - use.ram)
        max_ratio = math.inf if limits.optimize == "speed" else TOLERANCES.max_shared_ram_ratio
        return Room(free_ram, max_flash - use.flash, max_ratio)

    def _partition_search(self) -> PartitionSearch:
        """Return the search for partitions of layers over the board's first two cores."""
        board, options = self.problem.board, self.problem.options
        second_core = board.second_core
        assert second_core is not None
        other_board = board.other_kind or board
        first = CoreCostModel(board.features, cost_table(board.cpu, board.features), 1.0, second_core.first_paces)
        second = CoreCostModel(
            other_board.features, cost_table(other_board.cpu, other_board.features), second_core.pace, second_core.paces
        )
        return PartitionSearch(
            first, second, options.kernels, arena_contention(board, memory_of_arena(board, options.place))
        )
