# SPDX-License-Identifier: Apache-2.0
"""The interface of accelerators: what a backend declares so that parts of a graph can run beside the CPU.

docs/how-to/recipes.md shows how to add one in a file of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from mcugen.core.board import Board, Npu
from mcugen.hir.graph import Graph, Node
from mcugen.hir.operator import Operator
from mcugen.ops.offload import CompiledSegment


class SegmentRefused(Exception):
    """An accelerator's compiler cannot compile a segment; the message says why, as a phrase."""


class Accelerator(ABC):
    """A kind of accelerator: which nodes it computes, and how segments of a graph are compiled for it.

    An accelerator computes the bits of the numpy specification, or of the operators that `adapt` returns.

    Attributes:
        family: First word of the kinds in board files that are for this accelerator: "ethos" for "ethos-u55-128".
    """

    family: ClassVar[str]

    def serves(self, npu: Npu) -> bool:
        """Return whether this accelerator is for a board's NPU."""
        return npu.kind.split("-")[0] == self.family

    def why_missing(self) -> tuple[str, str] | None:
        """Return what is missing on this computer to compile for the accelerator, and a remedy; None if nothing is."""
        return None

    @abstractmethod
    def fault(self, node: Node, npu: Npu) -> str:
        """Return why the accelerator does not compute a node of an optimized graph, as a phrase; "" if it does.

        The phrase appears in reports. It need not find all faults: `compile` may refuse a segment.
        """

    def adapt(self, node: Node, npu: Npu) -> Operator | None:
        """Return an operator that the accelerator computes, or computes faster, but rounds differently; else None.

        Offloaded nodes get that operator, unless the user asks for the CPU's results. `fault` decides on it, too.
        """
        return None

    @abstractmethod
    def compile(self, bodies: Sequence[Graph], board: Board) -> list[CompiledSegment | SegmentRefused]:
        """Compile several segments, whose nodes have no `fault`.

        Args:
            bodies: The segments as graphs.
            board: The board; its NPU is served by this accelerator.

        Returns:
            For each body, the compiled segment, or why it cannot be compiled.

        Raises:
            ToolMissingError: The compiler is not installed.
        """

    def arena_memory(self, board: Board) -> str:
        """Return the name of the RAM that must hold the arena, because the accelerator reads and writes it."""
        assert board.npu is not None
        return board.npu.activations.memory
