# SPDX-License-Identifier: Apache-2.0
"""Hints to options that the user did not set and that would make a call faster or the program smaller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mcugen.core.board import Board
from mcugen.core.errors import shortened
from mcugen.core.options import AUTO_PLACE, CompileOptions, Places
from mcugen.hir.graph import Graph, Node
from mcugen.hir.layer_names import shorten_name
from mcugen.hir.traits import readers_behind, weight_axes
from mcugen.hir.types import DType
from mcugen.lir.program import Buffer, Endpoint, Program, Space
from mcugen.memory.areas import split_arena_stall_cycles
from mcugen.memory.peak import busiest, moments
from mcugen.memory.place import SPILL_RESERVE_BYTES, Placement, hottest, ram_by_speed
from mcugen.ops.conversion import Dequantize, Quantize
from mcugen.search.objective import TOLERANCES
from mcugen.search.plan import ProgramCandidate
from mcugen.search.ram_placement import copies_everywhere, may_copy_everywhere
from mcugen.search.weight_staging import copies_for

INTEGER_IO_HINT = "--integer-io would save RAM"
"""First words of the hint that recommends the option --integer-io."""


def hint_of_integer_io(program: Program, options: CompileOptions) -> list[str]:
    """Return a hint to --integer-io (quantized inputs and outputs) if float inputs or outputs take most of the arena.

    Only inputs that are just quantized, and outputs that are just dequantized, count. The list is empty without a hint.
    """
    ends = float_ends_at_peak(program, options)
    if not ends:
        return []
    floats = sum(e.buffer.nbytes for e in ends)
    integers = sum(e.buffer.count * max(dtype.nbytes for dtype in converted_types(program, e.buffer)) for e in ends)
    sizes = f"{floats:,} bytes of floats in an arena of {program.arena_size:,}, and {integers:,} bytes as integers"
    return [f"{INTEGER_IO_HINT}: {names_of_ends(ends)}, {sizes}"]


def names_of_ends(ends: Sequence[Endpoint]) -> str:
    """Return the text "'x' and 'y' decide the arena's peak" with the names of these inputs and outputs, for a hint."""
    names = " and ".join(f"'{shorten_name(e.name)}'" for e in ends)
    return f"{names} decide{'s' * (len(ends) == 1)} the arena's peak"


def float_ends_at_peak(program: Program, options: CompileOptions) -> list[Endpoint]:
    """Return the float inputs and outputs that take most of the arena's bytes at the moment of its largest use.

    Only inputs that are just quantized, and outputs that are just dequantized, count. The list is empty if they take
    less than half of the arena.
    """
    if options.integer_io or options.states or options.input_pipeline:  # A note of each of these options covers it.
        return []
    alive = set(busiest(moments(program)).buffers)
    ends = [e for e in (*program.inputs, *program.outputs) if e.buffer in alive and converted_types(program, e.buffer)]
    floats = sum(e.buffer.nbytes for e in ends)
    return ends if floats >= TOLERANCES.min_hinted_input_bytes and 2 * floats > program.arena_size else []


def hint_of_types(graph: Graph, options: CompileOptions) -> list[str]:
    """Return a hint to --input-type (integers for a float input) if a float input keeps the first layers in float.

    The hint is for networks whose other layers compute with integers. The list is empty without a hint.
    """
    layers = [node for node in graph.nodes if weight_axes(node.op)]
    if options.input_types or not any(node.input(0).type.dtype is DType.INT8 for node in layers):
        return []
    for value in (v for v in graph.inputs if v.type.dtype is DType.FLOAT32):
        readers = readers_behind(value)
        macs = sum(node.op.macs(node.sig) for node in readers)
        if readers and all(_has_whole_weights(node) for node in readers):
            share = macs / max(sum(node.op.macs(node.sig) for node in layers), 1)
            name = repr(shortened(value.name, 40))
            text = f"{share:.0%} of the multiply-accumulates is in float, as {name} may hold any real numbers"
            return [
                f"--input-type would make the first layer an integer layer ({text}): {name}=uint8 if all are 0 to 255"
            ]
    return []


def _has_whole_weights(node: Node) -> bool:
    """Return whether all weights are integers, possibly scaled by a power of two that was folded into them."""
    data = [node.input(index).data for index in weight_axes(node.op)]
    return bool(data) and all(array is not None and not np.any(array * 2.0**16 % 1) for array in data)


def converted_types(program: Program, buffer: Buffer) -> list[DType]:
    """Return the integer types that a program quantizes a float input to, or dequantizes a float output from.

    The list is empty if other instructions use the buffer too.

    Args:
        program: The program.
        buffer: The buffer of the input or output.
    """
    conversions = {Space.INPUT: Quantize.mnemonic, Space.OUTPUT: Dequantize.mnemonic}
    if buffer.space not in conversions or buffer.dtype is not DType.FLOAT32:
        return []
    users = [i for i in program.instrs if any(o.buffer is buffer for o in i.operands)]
    if any(i.op != conversions[buffer.space] for i in users):
        return []
    return [o.buffer.dtype for i in users for o in i.operands if o.buffer.dtype.is_integer and o.role in ("x", "y")]


def hint_of_places(
    candidate: ProgramCandidate, board: Board, options: CompileOptions, placement: Placement
) -> list[str]:
    """Return a hint to `--place auto`, if the user chose no memories and the option would save cycles.

    The list is empty without a hint.

    Args:
        candidate: The chosen program.
        board: The board with its memories.
        options: The options of the compilation.
        placement: The placement that was chosen without the option.
    """
    program = candidate.program
    if options.place != Places() or options.copy_ahead or not may_copy_everywhere(board, options):
        return []
    lying = {b: placement.copies.get(b, placement.weights) for b in hottest(program)}
    copies = copies_everywhere(program, board, options, lying)
    saved = copies.cycles + _saved_by_arena(candidate, board, placement)
    if not _is_worth_it(saved, candidate):
        return []
    targets = " and ".join(f"{nbytes:,} bytes of weights to '{name}'" for name, nbytes in copies.bytes_by_memory)
    consequence = f"start-up then copies {targets}" if targets else "the arena then lies there"
    return [f"--place {AUTO_PLACE} would use faster RAM, and save about {round(saved):,} cycles a call: {consequence}"]


def hint_of_copies_ahead(candidate: ProgramCandidate, board: Board, options: CompileOptions) -> list[str]:
    """Return a hint to --copy-ahead (DMA copies weights while earlier layers run) where it saves cycles; else [].

    Args:
        candidate: The chosen program.
        board: The board, on which such copies must be possible.
        options: The options of the compilation.
    """
    if options.copy_ahead:
        return []
    ahead = copies_for(candidate.program, board, replace(options, copy_ahead=True))
    saved = sum(gain.cycles for gain in ahead.gains if gain.copy.beside is not None)
    if candidate.copies is not None and candidate.copies.options.place.hot:
        # Start-up copies save a part without prefetching.
        saved = min(saved, candidate.metrics.stall_cycles - ahead.waits)
    if not _is_worth_it(saved, candidate):
        return []
    return [f"--copy-ahead would hide about {round(saved):,} cycles a call of reading weights, if DMA makes copies"]


def _saved_by_arena(candidate: ProgramCandidate, board: Board, placement: Placement) -> float:
    """Return the cycles saved by an arena in the fastest memory with room for it."""
    program, size = candidate.program, candidate.program.arena_size + candidate.program.state_size
    fastest = next((m for m in ram_by_speed(board) if size + SPILL_RESERVE_BYTES <= m.room), None)
    is_known = all(memory.access is not None for memory in placement.arenas)
    if fastest is None or fastest.access is None or not is_known or fastest.speed >= placement.arenas[0].speed:
        return 0.0
    return split_arena_stall_cycles(program, board, placement.arenas) - split_arena_stall_cycles(
        program, board, (fastest,) * len(placement.arenas)
    )


def _is_worth_it(cycles: float, candidate: ProgramCandidate) -> bool:
    return cycles > max(TOLERANCES.min_hinted_share * candidate.metrics.time, TOLERANCES.min_stall_cycles)
