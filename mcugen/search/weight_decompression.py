# SPDX-License-Identifier: Apache-2.0
"""Weight compression: weights are stored by an entropy code and decoded to the arena just before their layer.

Layers read decoded weights like others, with the same kernels. Compression saves flash but costs time, and RAM where
the weights of a layer are large beside its activations.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from mcugen.core.board import Board
from mcugen.core.options import GOALS, CompileOptions
from mcugen.hir.graph import Graph
from mcugen.hir.types import DType
from mcugen.kernels.choose import Cost
from mcugen.kernels.cost import CostTable, cost_table
from mcugen.kernels.portable.compressed_weights import MIN_SAVED_CODE_BYTES, CompressedConstant, compress_constant
from mcugen.lir.program import DECODE_WEIGHTS, PREPARATION_KERNELS, Buffer, Instr, Program, Space
from mcugen.lir.weights import CompressedForm, is_read, with_decoded_weights
from mcugen.memory.peak import moments
from mcugen.memory.place import copied_bytes, memory_of_arena
from mcugen.memory.plan import Planned, plan_memory
from mcugen.memory.verify_plan import verify_plan
from mcugen.search.budget import use_of
from mcugen.search.channel_tiling import channels_per_portion, divide_by_channels
from mcugen.search.metrics import Use
from mcugen.search.objective import TOLERANCES, Budget

DECODED_TILE_BYTES = 10_240
"""Largest size in bytes of the decompressed weights of one tile, if the arena has less free room and so must grow.

Smaller tiles would need too many kernel calls.
"""

MAX_DECODING_PLANS = 6
"""Largest number of memory plans that are tried, each with one compressed constant less than the one before."""


CompressedConstants = Mapping[Buffer, CompressedForm]
"""The constants to compress, each with its compressed form."""


def choose_compressed_constants(
    program: Program, board: Board, options: CompileOptions, *, must_save: bool = False
) -> CompressedConstants:
    """Return the constants to compress; empty if weights must stay as they are or the flash limit is already met.

    For `flash`, or if flash must be saved, all constants that become shorter are compressed. `balanced` compresses the
    constants for which the relative saving of flash exceeds the relative increase of time. Other goals compress none.

    Args:
        program: The planned program.
        board: The board, with the costs of its CPU.
        options: Options with goal and limits.
        must_save: Whether a flash limit must be met.
    """
    is_for_flash = must_save or options.optimize == "flash"
    if not _may_decode(program, options) or not (is_for_flash or options.optimize == GOALS[0]):
        return {}
    flash = use_of(program, board, options).flash
    if is_for_flash and options.max_flash is not None and flash <= options.max_flash:
        return {}
    codes = dict(_codes(program))
    if is_for_flash or not program.instructions_estimate:
        return codes if is_for_flash else {}
    costs, time = cost_table(board.cpu), program.instructions_estimate
    return {b: d for b, d in codes.items() if d.saved_bytes(b) / flash > costs.decoding(b.nbytes) / time}


def with_compressed_constants(
    program: Program, codes: CompressedConstants, board: Board, options: CompileOptions, *, must_save: bool = False
) -> Program:
    """Return the program with compressed weights if this serves the goal and RAM suffices, else the program itself.

    For `flash`, compression must save more flash than the goal may spend on speed; with `must_save`, any saving is
    enough. For `balanced`, time · RAM · flash must decrease.

    Args:
        program: The planned program.
        codes: The constants to compress; the largest are dropped until the decompressed weights fit the arena.
        board: The board with its memories.
        options: Options with goal and limits.
        must_save: Whether a flash limit must be met.
    """
    if not codes:
        return program
    saved_plan, use, max_arena = Planned.of(program), use_of(program, board, options), _room(program, board, options)
    coded = dict(codes)
    for _ in range(MAX_DECODING_PLANS):
        candidate = _with_estimates(with_decoded_weights(program, coded), program, cost_table(board.cpu))
        plan_memory(candidate)
        candidate_use = candidate, use_of(candidate, board, options)
        if candidate.arena_size <= max_arena and _pays(candidate_use, (program, use), options.optimize, must_save):
            verify_plan(candidate)
            return candidate
        coded.pop(max(coded, key=lambda b: b.nbytes))
        if not coded or (candidate.arena_size <= max_arena and options.optimize != GOALS[0]):
            break
    saved_plan.restore(program)
    return program


def _pays(candidate: tuple[Program, Use], whole: tuple[Program, Use], goal: str, must_save: bool) -> bool:
    """Return whether compression serves the goal better than the unchanged program."""
    flash, whole_flash = candidate[1].flash, whole[1].flash
    if must_save:
        return flash < whole_flash
    return (
        TOLERANCES.max_flash_excess_ratio * flash <= whole_flash
        if goal == "flash"
        else _rank(*candidate) < _rank(*whole) + math.log(TOLERANCES.max_trade_ratio)
    )


def _rank(program: Program, use: Use) -> float:
    """Return the `balanced` rank of a program: less is better."""
    return Cost(program.instructions_estimate or 0.0, use.ram, use.flash).rank(GOALS[0])


def tile_for_decoding(graph: Graph, program: Program, codes: CompressedConstants) -> Graph | None:
    """Return the graph with output-channel tiling of layers whose decoded weights exceed the free part of the arena.

    Tiles are as large as the part of the arena that is free while the layer runs, or DECODED_TILE_BYTES.

    Args:
        graph: The graph of the program.
        program: The planned program without compression.
        codes: The constants to compress.

    Returns:
        The tiled graph, or None if no layer needs tiles.
    """
    if not codes:
        return None
    decoded_bytes, live_bytes = Counter[str](), Counter[str]()
    for instr, moment in zip(program.instrs, moments(program)[1:], strict=False):
        decoded_bytes[instr.name] += sum(
            {o.buffer: o.buffer.nbytes for o in instr.operands if o.buffer in codes}.values()
        )
        live_bytes[instr.name] = max(live_bytes[instr.name], moment.nbytes)
    rooms = {
        name: max(program.arena_size - live_bytes[name], DECODED_TILE_BYTES)
        for name, nbytes in decoded_bytes.items()
        if nbytes
    }
    large = [
        node for node in graph.nodes if decoded_bytes[node.outputs[0].name] > rooms.get(node.outputs[0].name, math.inf)
    ]
    return divide_by_channels(
        graph, {n: channels for n in large if (channels := channels_per_portion(n, rooms[n.output.name].__ge__))}
    )


def better_of(programs: Sequence[Program], board: Board, options: CompileOptions) -> Program:
    """Return the program with the least product time · RAM · flash, among those that exceed the limits least.

    Args:
        programs: The candidates, with memory plans.
        board: The board with its memories.
        options: Options with the limits.
    """

    def rank(program: Program) -> tuple[float, float]:
        use = use_of(program, board, options)
        return Budget.of(options).excess(use), _rank(program, use)

    return min(programs, key=rank)


def _may_decode(program: Program, options: CompileOptions) -> bool:
    """Return whether weights may be stored in another form than the one that layers read."""
    is_told = options.weights_in_file or options.checked_indices or options.cores > 1
    return not is_told and program.lesson is None and not program.symbols


def _codes(program: Program) -> Iterator[tuple[Buffer, CompressedForm]]:
    """Yield constants that become shorter by compression and that only layers outside of control flow read."""
    readers = defaultdict[Buffer, list[Instr]](list)
    for instr in program.instrs:
        for operand in instr.operands:
            readers[operand.buffer].append(instr)
    in_blocks = {id(program.instrs[i]) for whole in program.wholes() if len(whole) > 1 for i in whole}
    outputs = {endpoint.buffer for endpoint in program.outputs}
    for buffer, instrs in readers.items():
        is_alone = not any(
            id(instr) in in_blocks or instr.is_offloaded or instr.kernel in PREPARATION_KERNELS for instr in instrs
        )
        if not is_alone or not is_read(buffer) or buffer in outputs:
            continue
        assert buffer.data is not None
        code = compress_constant(buffer.data)
        if code is not None and code.nbytes + MIN_SAVED_CODE_BYTES * len(instrs) < buffer.nbytes:
            yield buffer, _decoded(buffer, code)


def _decoded(constant: Buffer, code: CompressedConstant) -> CompressedForm:
    """Return the compressed form of a constant: its buffers, and the call that decodes it."""
    coded = Buffer(f"{constant.name}.coded", DType.UINT8, code.coded.size, Space.CONST, code.coded)
    plain = None
    if code.plain is not None:
        plain = Buffer(f"{constant.name}.plain", DType.INT32, code.plain.size, Space.CONST, code.plain)
    for stored, layout in ((coded, "a Rice code of"), (plain, "words that are not encoded, from")):
        if stored is not None:
            stored.describe(constant.tensors, f"{layout} {constant.layout or constant.name}")
    return CompressedForm([coded, *([] if plain is None else [plain])], lambda held: code.call(held, coded, plain))


def _room(program: Program, board: Board, options: CompileOptions) -> float:
    """Return the largest arena in bytes."""
    other_bytes = program.state_size + copied_bytes(program, board, options.place)
    max_arena = (
        TOLERANCES.ample_memory_fraction * min(board.total_ram, memory_of_arena(board, options.place).room)
        - other_bytes
    )
    if options.max_ram is not None:
        max_arena = min(max_arena, options.max_ram - other_bytes)
    return max(max_arena, program.arena_size)


def _with_estimates(decoding_program: Program, original: Program, costs: CostTable) -> Program:
    """Return the program with the instructions of decoding added to its estimates, for cycles as a lower bound."""
    estimates = dict(original.layer_estimates)
    for instr in (i for i in decoding_program.instrs if i.kernel == DECODE_WEIGHTS and i.name in estimates):
        estimates[instr.name] += costs.decoding(instr.operand("y").buffer.nbytes)
    decoding_time = sum(estimates.values()) - sum(original.layer_estimates.values())
    instructions, cycles = original.instructions_estimate, original.cycles_estimate
    return replace(
        decoding_program,
        layer_estimates=estimates,
        instructions_estimate=None if instructions is None else instructions + decoding_time,
        cycles_estimate=None if cycles is None else cycles + decoding_time,
    )
