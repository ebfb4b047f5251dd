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
"""Names of the kernels that copy constants to the arena during a call."""


@dataclass(frozen=True)
class LayerPlacement:
    """The place where one layer of the optimized graph runs, CPU or accelerator, and the reason."""

    layer: str
    """Name of the layer's first result."""
    operator: str
    """Name of the operator."""
    segment: int | None
    """Number of the segment, from 0, that the accelerator computes; None if the layer runs on the CPU."""
    reason: str
    """Why the layer runs there, as a phrase."""


@dataclass(frozen=True)
class GraphChanges:
    """The decisions that change the graph before it is lowered.

    For each kind of decision, there are the names of the results of the layers concerned.
    """

    split_heads: tuple[str, ...] = ()
    """Layers at the end of a chain of attention that is computed head by head."""
    spatial_tiles: tuple[str, ...] = ()
    """Layers at the end of a chain that is computed in tiles of image columns."""
    channel_tiles: tuple[str, ...] = ()
    """Layers that are computed in tiles of output channels."""
    offloaded: tuple[str, ...] = ()
    """Last results of segments that an accelerator computes."""
    recomputed: tuple[str, ...] = ()
    """Results of inference that training computes again for the gradients, instead of keeping them in memory."""

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
"""No changes: those of a graph that is lowered as it was optimized."""


def divided_layers(before: Graph, after: Graph) -> tuple[str, ...]:
    """Return the names of results that operators of another type compute in graph `after` than in graph `before`.

    These are the results of layers that were divided into parts, as an operator that joins the parts now computes them.
    """
    operators = {node.outputs[0].name: type(node.op) for node in before.nodes}
    names = ((node.outputs[0].name, type(node.op)) for node in after.nodes)
    return tuple(name for name, operator in names if operators.get(name, operator) is not operator)


def added_layers(before: Graph, after: Graph) -> tuple[str, ...]:
    """Return the first outputs' names of the nodes in graph `after` that graph `before` does not have."""
    known = {node.outputs[0].name for node in before.nodes}
    return tuple(node.outputs[0].name for node in after.nodes if node.outputs[0].name not in known)


@dataclass(frozen=True)
class BuiltProgram:
    """A program with a memory plan, and the decisions beyond kernels by which it was built."""

    program: Program
    changes: GraphChanges = NO_CHANGES
    """The changes of the model's optimized graph before it was lowered."""
    copies: Copies | None = None
    """The chosen copies of constants to RAM; None if they have not been chosen yet."""
    kind: str = ""
    """Name, in the trace, of the last transformation that changed the graph; "" if there was none."""

    @property
    def key(self) -> Hashable:
        """Return a cache key; the keys of two programs are equal only if both have the same memory plan and sizes."""
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
    """The changes of the graph before it was lowered."""
    row_groups: tuple[tuple[str, ...], ...]
    """The layers of each line-buffered group: layers that are computed together row by row."""
    compressed_weights: tuple[str, ...]
    """Layers whose weights are decompressed before they run."""
    staged_weights: tuple[str, ...]
    """Names of constants that calls copy to the arena, just before their layer or while earlier layers run."""
    copied_weights: tuple[tuple[str, int], ...]
    """Names of memories to which start-up code copies weights, each with the bytes of the copies."""
    shared_layers: tuple[str, ...]
    """Layers that two cores compute together, and branches that they compute at the same time."""
    is_pipelined: bool
    """Whether two cores form a pipeline: each computes one part of the layers, for two frames (calls) at once."""

    @classmethod
    def of(cls, candidate: ProgramCandidate, board: Board, options: CompileOptions) -> ProgramPlan:
        """Return the decisions by which a candidate's program was built.

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
        """Return a phrase for each decision except the choice of kernels, such as "compressed weights: 3"."""
        changes = self.changes
        counted = (
            ("heads split", changes.split_heads),
            ("spatial tiling", changes.spatial_tiles),
            ("output-channel tiling", changes.channel_tiles),
            ("offloaded segments", changes.offloaded),
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
        """Return the decisions as a dictionary for the JSON trace of the search."""
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
    """The planned program, with the decisions by which it was built."""
    metrics: Metrics
    """Its cost per call."""
    goal: str = ""
    """The goal that the program was built for, if that is the only change; "" if something else was changed."""
    number: int | None = None
    """Number of the candidate in the trace of the search; None if it is not recorded there."""

    @property
    def program(self) -> Program:
        """Return the planned program."""
        return self.built.program

    @property
    def copies(self) -> Copies | None:
        """Return the chosen copies of constants to RAM; None if they have not been chosen yet."""
        return self.built.copies

    @property
    def use(self) -> Use:
        """Return the RAM and flash that the program takes, as the search compares them with the budget."""
        return self.metrics.use

    @property
    def instructions(self) -> float:
        """Return the estimated instructions per call; 0 if there is no estimate."""
        return self.metrics.instructions
