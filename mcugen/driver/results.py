# SPDX-License-Identifier: Apache-2.0
"""The results of the stages of a compilation, from which its report, notes and C files follow."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from mcugen.codegen.memory import WeightsFile
from mcugen.core.board import Board
from mcugen.core.options import NPU_OFF, CompileOptions
from mcugen.frontend.onnx.load import LoadedModel
from mcugen.hir.graph import Graph
from mcugen.hir.layer_names import tensor_name
from mcugen.lir.layer_titles import titles_of
from mcugen.lir.program import BEGIN_WEIGHTS, Program
from mcugen.memory.place import Placement
from mcugen.ops.offload import offloaded_nodes
from mcugen.pipelines import Feed
from mcugen.quantization.quantize import Quantization
from mcugen.reporting.figures import AcceleratorFigures, PlacementFigures, SegmentFigures, WeightCopy
from mcugen.search.budget import Fit
from mcugen.search.plan import WEIGHT_COPY_KERNELS
from mcugen.search.program_search import SearchResult
from mcugen.search.weight_staging import startup_copy_cycles


@dataclass(frozen=True)
class CompilationResults:
    """The results of the stages of one compilation."""

    source: LoadedModel
    """The model as loaded."""
    quantization: Quantization | None
    """How the model was quantized, if mcugen did it."""
    board: Board
    """The board as the user named it."""
    requested: CompileOptions
    """The options as the user gave them."""
    options: CompileOptions
    """The options after the search: weights that it chose to copy to RAM are added to the requested placement."""
    graph: Graph
    """The optimized graph."""
    search: SearchResult
    """The result of the program search, before the program is placed in the memories of the board."""
    placement: Placement
    """The memories in which arena, state and weights lie."""
    feed: Feed | None
    """The pipeline that computes the input from raw data, if there is one."""

    @property
    def program(self) -> Program:
        """Return the program, placed in the memories of the board."""
        return self.search.fit.program

    @property
    def target(self) -> Board:
        """Return the board that the program was built for, with tuning flags among its CPU features.

        Tuning flags are names by which variants of kernels are selected, such as "updatable" for weights that may be
        replaced.
        """
        return self.search.board

    @cached_property
    def fit(self) -> Fit:
        """Return the result of the search with the RAM and flash that the program takes in its memories.

        Raises:
            DoesNotFitError: If the placed program exceeds the budget or the board.
        """
        return self.search.fit.placed(self.target, self.options)

    @property
    def description(self) -> str:
        """Return the options and the quantization in words, as banners and reports show them."""
        quantization = [self.quantization.describe()] if self.quantization else []
        return "; ".join([self.options.describe(), *quantization])

    @property
    def weights_file(self) -> WeightsFile | None:
        """Return the form of the file in which weights are stored, or None if they are part of the C code."""
        return WeightsFile.requested(self.options)

    @cached_property
    def cached_cores(self) -> tuple[bool, bool]:
        """Return whether the first core and the second core access the arena through a data cache of their own.

        Both values are False for a single core, and for two equal cores, which share a cache.

        Raises:
            UsageError: If the second core cannot access the arena.
        """
        if self.options.cores == 1:
            return False, False
        board = self.target
        views = [(memory, board.seen_by_second_core(memory)) for memory in self.placement.arenas]
        first = any(other and board.cache(memory, "data") for memory, other in views)
        return first, any(other and other.cache(other.memory(other.arena_memory), "data") for _, other in views)


def accelerator_figures(results: CompilationResults) -> AcceleratorFigures | None:
    """Return the use of the board's accelerator; None if the options do not use it."""
    search = results.search
    if results.options.npu == NPU_OFF:
        return None
    titles = titles_of(results.program)
    offloaded = offloaded_nodes(search.offloaded) if search.offloaded else ()
    segments = [
        SegmentFigures(
            layer=titles[node.outputs[0].name],
            accelerator=op.segment.accelerator,
            layers=len(op.body.nodes),
            runs=runs,
            accelerator_cycles_estimate=round(runs * op.segment.accelerator_cycles),
            cycles_estimate=round(runs * op.segment.cpu_cycles),
            ram=op.segment.scratch_bytes,
            flash=op.segment.constant_bytes,
        )
        for node, op, runs in offloaded
    ]
    placements = [
        PlacementFigures(
            tensor_name(placement.layer),
            placement.operator,
            "CPU" if placement.segment is None else segments[placement.segment].accelerator,
            placement.reason,
        )
        for placement in search.placements
    ]
    return AcceleratorFigures(results.options.npu, segments, placements, ESTIMATE_SPREAD)


ESTIMATE_SPREAD = "estimated by Vela; on an RA8P1, measured times were 0.44 to 3 times its estimates"
"""Text for reports on the error of estimates of segments, against measured times."""


def weight_copies(results: CompilationResults) -> tuple[WeightCopy, ...]:
    """Return the copies of weights to the arena that each call of the program makes."""
    program, copies = results.program, results.search.fit.chosen.copies
    titles, saved = titles_of(program), {gain.copy.constant: gain.cycles for gain in copies.gains} if copies else {}
    call_copies = []
    for index, instr in enumerate(program.instrs):
        if instr.kernel not in WEIGHT_COPY_KERNELS:
            continue
        constant, copy = instr.operand("x").buffer, instr.operand("y").buffer
        later = program.instrs[index + 1 :]
        readers = (i for i in later if any(o.buffer is copy and o.access.reads for o in i.operands))
        layer = next((titles[i.name] for i in readers), "")
        cycles = startup_copy_cycles(results.target, results.options, copy.nbytes)
        gain = saved.get(constant)
        is_ahead = instr.kernel == BEGIN_WEIGHTS
        call_copies.append(WeightCopy(layer, copy.nbytes, cycles, None if gain is None else round(gain), is_ahead))
    return tuple(call_copies)
