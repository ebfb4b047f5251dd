# SPDX-License-Identifier: Apache-2.0
"""Notes of a compilation: what the user did not ask for, may not expect, or could gain by another option."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mcugen.core.board import Board
from mcugen.core.options import AUTO_PLACE
from mcugen.driver.option_checks import explain_no_copy_ahead
from mcugen.driver.results import CompilationResults, accelerator_figures
from mcugen.evaluation.layers import precision_lines
from mcugen.hir.graph import Graph
from mcugen.hir.layer_names import shorten_name
from mcugen.hir.traits import Widenable
from mcugen.hir.types import ModelConstant
from mcugen.lir.layer_titles import buffer_names
from mcugen.lir.program import Control, Program, aligned
from mcugen.lir.weights import max_read_bytes
from mcugen.memory.activation_stalls import arena_stall_cycles
from mcugen.memory.place import in_second_core_image, memory_of_arena, memory_of_weights
from mcugen.quantization.precisions import precisions_of_given
from mcugen.search.option_hints import (
    converted_types,
    hint_of_copies_ahead,
    hint_of_integer_io,
    hint_of_places,
    hint_of_types,
)
from mcugen.search.weight_staging import startup_copy_cycles

_NUM_NAMED = 3
"""Number of tensors that a note names."""


def notes_of(results: CompilationResults) -> list[str]:
    """Return all notes of a compilation, one text each, for its report.

    The notes are about the model, the program, and options that would save time or memory.
    """
    graph, quantization = results.graph, results.quantization
    return [
        *graph.notes,
        *_notes_of_nan(graph),
        *([] if quantization else precision_lines(precisions_of_given(graph))),
        *_notes_of_float_weights(graph, results.program),
        *_notes_of_widened_weights(graph, results.program),
        *_notes_of_read_weights(results),
        *results.search.fit.notes(results.target, results.options.optimize),
        *_notes_of_copies(results),
        *_notes_of_copies_ahead(results),
        *_notes_of_caches(results),
        *_notes_of_cores(results),
        *_notes_of_arena(results),
        *_notes_of_npu(results),
        *_notes_of_unused_units(results.board),
        *_hints(results),
        *(quantization.notes if quantization else ()),
        *_notes_of_input_pipeline(results),
    ]


# --------------------------------------------------------------------------------------------------- model


def _notes_of_nan(graph: Graph) -> list[str]:
    """Return a note of constants that hold NaN; infinity may be intended, for example in a mask."""
    constants = {v.name: v.data for part in graph.nested() for v in part.values() if v.data is not None}
    nan_names = [name for name, data in constants.items() if data.dtype.kind == "f" and np.isnan(data).any()]
    if not nan_names:
        return []
    return [f"constants hold NaN, so results may be NaN too: {_listed(nan_names)}; train or export the model again"]


def _notes_of_float_weights(graph: Graph, program: Program) -> list[str]:
    """Return a note of quantized weights that are stored as floats, because their layers compute in float."""
    narrow_sources = _narrow_sources(graph, program)
    parts = [row for part in graph.nested() for row in part.widened.items()]
    widened = [(name, weights) for name, weights in parts if not narrow_sources.issuperset(weights.sources)]
    if not widened:
        return []
    floats = sum(weights.float_bytes for _, weights in widened)
    codes = sum(weights.stored_bytes for _, weights in widened)
    return [
        f"weights that are quantized in the model are floats in flash, {floats:,} bytes for {codes:,}: "
        f"{_listed([name for name, _ in widened])}; "
        "their layers read reals, or have no integer form: quantize what they read, or the float model (--calibration)"
    ]


def _narrow_sources(graph: Graph, program: Program) -> set[ModelConstant]:
    """Return the constants of the model from which weights of fewer than 32 bits were computed."""
    stored = {i.name: {o.role: o.buffer for o in i.operands if o.buffer.data is not None} for i in program.instrs}
    nodes = (node for part in graph.nested() for node in part.nodes)
    return {
        source
        for node in nodes
        if node.outputs and (w := stored.get(node.outputs[0].name, {}).get("w")) is not None and w.dtype.nbytes < 4
        for value in node.inputs
        if value is not None
        for source in value.sources
    }


def _notes_of_widened_weights(graph: Graph, program: Program) -> list[str]:
    """Return a note of layers that store weights in more bits than necessary, for speed."""
    nodes = [node for part in graph.nested() for node in part.nodes if isinstance(node.op, Widenable)]
    nbytes = {node.outputs[0].name: node.op.widened_bytes(node) for node in nodes if isinstance(node.op, Widenable)}
    stored = {i.name: sum(o.buffer.nbytes for o in i.operands if o.buffer.data is not None) for i in program.instrs}
    wide = [name for name, size in nbytes.items() if size and stored.get(name, 0) >= size]
    if not wide:
        return []
    total = sum(nbytes[name] for name in wide)
    return [
        f"weights of {len(wide)} layers that came in few bits are {total:,} bytes of floats in flash, for speed: "
        "--optimize flash keeps them in few bits"
    ]


def _notes_of_input_pipeline(results: CompilationResults) -> list[str]:
    """Return a hint to pass quantized values, if the input pipeline writes floats that the model quantizes."""
    program = results.program
    if results.feed is None or not converted_types(program, program.inputs[0].buffer):
        return []
    return [
        "the input pipeline writes float32, which the model quantizes: with --integer-io it writes codes, in less RAM"
    ]


def _notes_of_unused_units(board: Board) -> list[str]:
    """Return a note on units of the chip that the kernels leave idle."""
    return [f"board '{board.name}': {board.unused}: not used by the generated code"] * bool(board.unused)


def _notes_of_npu(results: CompilationResults) -> list[str]:
    """Return notes on layers that stay on the CPU although the NPU is used, or a hint if it is not used."""
    board, figures = results.board, accelerator_figures(results)
    if figures is None:
        is_quantized = any(v.type.quant is not None for part in results.graph.nested() for v in part.values())
        hint = f"board '{board.name}' has an NPU ({board.npu.kind}), which is not used" if board.npu else ""
        return [f"{hint}: --npu auto runs layers there that it computes faster"] * bool(hint and is_quantized)
    notes = [f"--npu {figures.use}: {figures}"] if figures.segments else [f"--npu {figures.use}: no layer runs there"]
    notes += _notes_of_npu_memories(results) if figures.segments else []
    reasons = dict[str, list[str]]()
    for placement in figures.placements:
        if placement.runs_on == "CPU":
            reasons.setdefault(placement.reason, []).append(placement.layer)
    return notes + [f"on the CPU: {_listed(names)}: {reason}" for reason, names in reasons.items()]


def _notes_of_npu_memories(results: CompilationResults) -> list[str]:
    """Return notes on data that lie elsewhere than the estimate assumes or the user asks, and on missing energy."""
    board, npu = results.board, results.board.npu
    assert npu is not None
    constants, activations = npu.constants.memory, npu.activations.memory
    notes = list[str]()
    if results.options.place.weights or results.options.place.hot_weights:
        notes.append(f"the NPU reads its commands and weights from '{constants}', not from copies in RAM")
    arenas_elsewhere = [memory.name for memory in results.placement.arenas if memory.name != activations]
    if arenas_elsewhere:
        notes.append(f"the time of the NPU is that of an arena in '{activations}', not in '{arenas_elsewhere[0]}'")
    if board.energy is not None:
        notes.append("energy is not estimated: the board file has the current of the CPU alone")
    return notes


# --------------------------------------------------------------------------------------------------- weights


def _notes_of_read_weights(results: CompilationResults) -> list[str]:
    """Return a note of the arena's bytes that hold weights read by a function of the caller."""
    if not results.options.weights_reader:
        return []
    nbytes = max_read_bytes(results.program)
    return [f"--weights-reader: the weights of a layer take up to {nbytes:,} bytes of the arena while it runs"]


def _notes_of_copies(results: CompilationResults) -> list[str]:
    """Return a note of weights that start-up copies to RAM unasked, with its time and the option that avoids it."""
    program, board, options, copies = results.program, results.target, results.options, results.placement.copies
    if replace(options.place, arena=results.requested.place.arena) == results.requested.place:
        return []
    nbytes = sum(aligned(buffer.nbytes) for buffer in copies)
    part = f" of {program.weights_size:,}" if nbytes < program.weights_size else ""
    took = startup_copy_cycles(board, options, nbytes)
    to = " and ".join(dict.fromkeys(f"'{memory.name}'" for memory in copies.values()))
    also = f"arena={AUTO_PLACE}," if options.place.arena else ""
    stay = f"--place {also}weights={memory_of_weights(board, options.place).name} leaves them in flash"
    return [f"start-up copies {nbytes:,}{part} bytes of weights to {to} for speed, in about {took:,} cycles; {stay}"]


def _notes_of_copies_ahead(results: CompilationResults) -> list[str]:
    """Return a note of copies that run during other layers, with the cycles that they hide."""
    if not results.options.copy_ahead:
        return []
    copies = results.search.fit.chosen.copies
    gains = [gain for gain in copies.gains if gain.copy.beside is not None] if copies else []
    if not gains:
        return ["--copy-ahead: copying weights while a layer runs saves no time"]
    nbytes = sum(gain.copy.constant.nbytes for gain in gains)
    hidden = f"hides about {round(sum(gain.hidden for gain in gains)):,} cycles of reading"
    summary = f"{len(gains)} copies of weights, {nbytes:,} bytes, go on while other layers run, which {hidden}"
    firmware = "MCUGEN_STAGE_BEGIN and MCUGEN_STAGE_END of the firmware copy by DMA (mcugen.h)"
    return [f"--copy-ahead: {summary}, if {firmware}"]


# --------------------------------------------------------------------------------------------------- arena


def _notes_of_arena(results: CompilationResults) -> list[str]:
    """Return notes of an arena that exceeds the board's own memory: what lies in slower memory, and its cost."""
    program, options, arenas = results.program, results.options, results.placement.arenas
    if len(arenas) > 1:
        return [_note_of_spill(results, area) for area, m in enumerate(arenas) if m.speed > arenas[0].speed]
    memory = memory_of_arena(results.target, options.place)
    if options.place.arena or arenas[0].speed <= memory.speed:
        return []
    size = f"the arena of {program.arena_size:,} bytes"
    remedy = "--place auto leaves there what is used least, and report tells what either takes"
    return [f"{size} lies in '{arenas[0].name}', slower than '{memory.name}', which has {memory.room:,}; {remedy}"]


def _note_of_spill(results: CompilationResults, area: int) -> str:
    """Return the note of a part of the arena in slower memory, with its stall cycles and largest buffers."""
    program, memory = results.program, results.placement.arenas[area]
    waits = arena_stall_cycles(program, results.target, memory)
    stalls = {buffer: cycles for buffer, cycles in waits.items() if buffer.area == area and buffer.nbytes}
    largest = sorted(stalls, key=lambda buffer: -stalls[buffer])
    titles = buffer_names(program)
    names = _listed([titles[buffer] for buffer in largest], [f" {buffer.nbytes:,}" for buffer in largest])
    cost = f"about {round(sum(stalls.values())):,} cycles of waiting"
    return f"{program.area_sizes[area]:,} bytes of the arena spill to '{memory.name}', {cost}: {names}"


# --------------------------------------------------------------------------------------------------- two cores


def _notes_of_cores(results: CompilationResults) -> list[str]:
    """Return notes of what two cores do, where it differs from what was requested, and what it requires."""
    program, board, options = results.program, results.target, results.options
    if options.cores == 1:
        return []
    image = _notes_of_second_image(results)
    if program.handover is not None:
        nbytes = sum(program.instrs[i].part("x")[1] for i in program.handover)
        return [
            f"a pipeline over frames: core '{board.cores[0].name}' begins a frame while '{board.cores[1].name}' ends "
            f"the one before ({program.name}_push gives its result, {program.name}_pull the last one's); {nbytes:,} "
            "bytes are handed over",
            *image,
        ]
    if any(instr.control is Control.FORK for instr in program.instrs):
        note = "--optimize throughput: two cores that share layers give more frames than a pipeline"
        return [note] * options.throughput + image
    return [
        "--cores 2: one core computes all, as the other would save nothing to speak of within the RAM that two may "
        f"take; there is {program.name}_run alone, as without --cores"
    ]


def _notes_of_caches(results: CompilationResults) -> list[str]:
    """Return notes of what the caches of two cores require of the firmware."""
    where = ", ".join(f"'{memory.name}'" for memory in results.placement.arenas)
    return [
        f"core '{core.name}' has a data cache before {where}, where the arena lies: build with MCUGEN_CORES_CACHE and "
        "make that memory write-through, or uncached, before the first run (mcugen_cores_cache.h)"
        for core, is_cached in zip(results.target.cores, results.cached_cores, strict=False)
        if is_cached
    ]


def _notes_of_second_image(results: CompilationResults) -> list[str]:
    """Return notes on a second core whose firmware has its own copy of weights."""
    program, board, placement = results.program, results.target, results.placement
    seen = board.seen_by_second_core(placement.arenas[0]) if program.of_second_core() else None
    if seen is None or in_second_core_image(placement, program, seen) == placement:
        return []
    return [
        f"weights of core '{board.cores[1].name}' lie in its own image ('{seen.weights_memory}'), faster than where "
        "start-up copies the first core's: build NAME_weights.c with -D'MCUGEN_SECTION(name)=' there"
    ]


# --------------------------------------------------------------------------------------------------- hints


def _hints(results: CompilationResults) -> list[str]:
    """Return hints to options that the user did not set."""
    candidate, board, options = results.search.fit.chosen, results.target, results.requested
    hints = hint_of_places(candidate, board, options, results.placement)
    if explain_no_copy_ahead(options, board) is None:
        hints += hint_of_copies_ahead(candidate, board, options)
    return [*hints, *hint_of_integer_io(results.program, options), *hint_of_types(results.graph, options)]


def _listed(names: Sequence[str], details: Sequence[str] | None = None) -> str:
    """Return the first names of tensors, each with its detail if there are any, and the number of further names."""
    named = zip(names, details or [""] * len(names), strict=True)
    texts = [f"'{shorten_name(name)}'{detail}" for name, detail in named]
    return ", ".join(texts[:_NUM_NAMED]) + (f" and {len(texts) - _NUM_NAMED} more" if len(texts) > _NUM_NAMED else "")
