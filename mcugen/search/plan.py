# SPDX-License-Identifier: Apache-2.0
"""Plans and candidates: the decisions that make a program, and a program with its estimated cost."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, fields

from mcugen.core.board import Board
from mcugen.core.options import CompileOptions
from mcugen.hir.graph import Graph
from mcugen.hir.layer_names import tensor_name
from mcugen.lir.layer_titles import Titles, buffer_names, titles_of
from mcugen.lir.program import BEGIN_WEIGHTS, DECODE_WEIGHTS, STAGE_WEIGHTS, Control, Program
from mcugen.memory.place import copies_of
from mcugen.search.metrics import Metrics, Use
from mcugen.search.weight_copies import Copies

WEIGHT_COPY_KERNELS = (STAGE_WEIGHTS, BEGIN_WEIGHTS)
"""Kernels that copy constants to the arena during a call."""


@dataclass(frozen=True)
class GraphChanges:
    """Decisions that change the graph before it is lowered: for each kind, the results of the layers concerned."""

    split_heads: tuple[str, ...] = ()
    """Layers that end a chain of attention which is computed head by head."""
    spatial_tiles: tuple[str, ...] = ()
    """Layers that end a chain which is computed in patches of columns."""
    channel_tiles: tuple[str, ...] = ()
    """Layers that are computed in portions of output channels."""
    recomputed: tuple[str, ...] = ()
    """Results of the forward run that are recomputed for gradients."""

    def merged(self, other: GraphChanges) -> GraphChanges:
        """Return the changes of this object followed by those of `other`, for each kind of change."""
        names = [entry.name for entry in fields(self)]
        return GraphChanges(**{name: (*getattr(self, name), *getattr(other, name)) for name in names})

    def named(self, titles: Titles) -> GraphChanges:
        """Return the changes with the names of layers in place of the names of their results."""
        changes = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return GraphChanges(
            **{kind: tuple(titles.get(name, tensor_name(name)) for name in names) for kind, names in changes.items()}
        )


NO_CHANGES = GraphChanges()
"""The changes of a graph that was lowered as optimized: none."""


def divided_layers(before: Graph, after: Graph) -> tuple[str, ...]:
    """Return the names of results that another type of operator computes in `after` than in `before`.

    That is the case for layers that were divided into parts, whose results are then joined.
    """
    operators = {node.outputs[0].name: type(node.op) for node in before.nodes}
    names = ((node.outputs[0].name, type(node.op)) for node in after.nodes)
    return tuple(name for name, operator in names if operators.get(name, operator) is not operator)


def added_layers(before: Graph, after: Graph) -> tuple[str, ...]:
    """Return the first outputs' names of the nodes in `after` that `before` does not have."""
    known = {node.outputs[0].name for node in before.nodes}
    return tuple(node.outputs[0].name for node in after.nodes if node.outputs[0].name not in known)


@dataclass(frozen=True)
class BuiltProgram:
    """A program with a memory plan, and the decisions beyond kernels by which it was built."""

    program: Program
    changes: GraphChanges = NO_CHANGES
    """The changes of the model's optimized graph before it was lowered."""
    copies: Copies | None = None
    """The chosen copies of constants to RAM; None before they have been chosen."""
    kind: str = ""
    """Name, in the trace, of the last transformation that changed the graph; "" if there was none."""

    @property
    def key(self) -> Hashable:
        """Return a key that equals that of another program only if both have the same plan and sizes."""
        program, copies = self.program, self.copies
        calls = tuple((instr.name, instr.kernel, instr.events) for instr in program.instrs)
        estimates = program.instructions_estimate, program.cycles_estimate
        sizes = (*program.area_sizes, program.weights_size, program.state_size)
        return self.changes, calls, estimates, sizes, copies and (copies.options.place, copies.waits)


@dataclass(frozen=True)
class ProgramPlan:
    """The decisions that the search made for a program, with the layers by their names (mcugen.hir.layer_names)."""

    goal: str
    """The goal by which kernels were chosen."""
    kernels: tuple[tuple[str, str], ...]
    """Each layer with its kernel, in the order of the program."""
    changes: GraphChanges
    row_groups: tuple[tuple[str, ...], ...]
    """The layers of each line-buffered group."""
    compressed_weights: tuple[str, ...]
    """Layers whose weights are decompressed before they run."""
    staged_weights: tuple[str, ...]
    """Constants that are copied to the arena before their layer, or while earlier layers run."""
    copied_weights: tuple[tuple[str, int], ...]
    """Memories to which start-up copies weights, with the bytes of the copies."""
    shared_layers: tuple[str, ...]
    """Layers that two cores share, or branches that they compute at the same time."""
    is_pipelined: bool
    """Whether two cores compute two frames at once."""

    @classmethod
    def of(cls, candidate: ProgramCandidate, board: Board, options: CompileOptions) -> ProgramPlan:
        """Return the plan of a candidate.

        Args:
            candidate: The candidate with its copies.
            board: The board with its memories.
            options: The options that it was built with.
        """
        program, copies = candidate.built.program, candidate.built.copies
        titles, buffers = titles_of(program), buffer_names(program)
        calls = [instr for instr in program.instrs if instr.control is Control.NONE and not instr.moves_nothing]
        places = copies.options.place if copies else options.place
        nbytes = dict[str, int]()
        for buffer, memory in copies_of(program, board, places).items():
            nbytes[memory.name] = nbytes.get(memory.name, 0) + buffer.nbytes
        return cls(
            goal=candidate.goal or options.optimize,
            kernels=tuple(dict.fromkeys((titles[instr.name], instr.kernel) for instr in calls)),
            changes=candidate.built.changes.named(titles),
            row_groups=tuple(_blocks(program, Control.STREAM, titles)),
            compressed_weights=tuple(dict.fromkeys(titles[i.name] for i in calls if i.kernel == DECODE_WEIGHTS)),
            staged_weights=tuple(
                dict.fromkeys(buffers[i.operand("x").buffer] for i in calls if i.kernel in WEIGHT_COPY_KERNELS)
            ),
            copied_weights=tuple(nbytes.items()),
            shared_layers=tuple(name for block in _blocks(program, Control.FORK, titles) for name in block),
            is_pipelined=program.handover is not None,
        )

    def decisions(self) -> list[str]:
        """Return the decisions beyond kernels as phrases for tables, such as "compressed weights: 3"."""
        changes = self.changes
        counted = (
            ("heads split", changes.split_heads),
            ("spatial tiling", changes.spatial_tiles),
            ("output-channel tiling", changes.channel_tiles),
            ("recomputed results", changes.recomputed),
            ("line-buffered groups", self.row_groups),
            ("compressed weights", self.compressed_weights),
            ("weights copied before layers", self.staged_weights),
            ("layers on two cores", self.shared_layers),
        )
        phrases = [f"{text}: {len(layers)}" for text, layers in counted if layers]
        phrases += [f"{nbytes:,} bytes of weights copied to '{memory}'" for memory, nbytes in self.copied_weights]
        return phrases + ["two frames at once"] * self.is_pipelined

    def to_json(self) -> dict[str, object]:
        """Return the plan as JSON data."""
        changes = {entry.name: list(getattr(self.changes, entry.name)) for entry in fields(GraphChanges)}
        return {
            "goal": self.goal,
            "kernels": [{"layer": layer, "kernel": kernel} for layer, kernel in self.kernels],
            **changes,
            "line_buffered_groups": [list(group) for group in self.row_groups],
            "compressed_weights": list(self.compressed_weights),
            "staged_weights": list(self.staged_weights),
            "copied_weights": [{"memory": memory, "bytes": nbytes} for memory, nbytes in self.copied_weights],
            "shared_layers": list(self.shared_layers),
            "is_pipelined": self.is_pipelined,
        }


def _blocks(program: Program, control: Control, titles: Titles) -> Iterator[tuple[str, ...]]:
    """Yield the names of the layers of each outermost block that begins with a marker."""
    for whole in program.wholes():
        if program.instrs[whole.start].control is control:
            instrs = [program.instrs[index] for index in whole]
            yield tuple(
                dict.fromkeys(titles[i.name] for i in instrs if i.control is Control.NONE and not i.moves_nothing)
            )


@dataclass(frozen=True)
class ProgramCandidate:
    """A planned program that the search considers, with its name in messages and its cost."""

    name: str
    """Its name in messages, such as "kernels chosen for the budget"."""
    built: BuiltProgram
    metrics: Metrics
    """Its cost per call."""
    goal: str = ""
    """The goal that it was built for, if a different goal is all that the transformation changes."""
    number: int | None = None
    """Its number in the trace of the search, if it is recorded there."""

    @property
    def program(self) -> Program:
        """Return the planned program."""
        return self.built.program

    @property
    def copies(self) -> Copies | None:
        """Return the chosen copies of constants to RAM; None before they have been chosen."""
        return self.built.copies

    @property
    def use(self) -> Use:
        """Return the RAM and flash that the search compares with the budget."""
        return self.metrics.use

    @property
    def instructions(self) -> float:
        """Return the estimated instructions per call; 0 where no layer has a choice of kernels."""
        return self.metrics.instructions
