# SPDX-License-Identifier: Apache-2.0
"""Weights that are stored by a code, and decoded to the arena once, just before their layer.

Layers read them there as any others, by the same kernels. That takes less flash, more time, and more RAM where a
layer's weights are large beside its activations.
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
from mcugen.kernels.choose import ENOUGH, NEARLY, Cost
from mcugen.kernels.cost import CostTable, cost_table
from mcugen.kernels.portable.compressed_weights import LEAST_SAVED, Code, code_of
from mcugen.lir.program import DECODE_WEIGHTS, PREPARING, Buffer, Instr, Program, Space
from mcugen.lir.weights import Decoded, is_read, with_decoded_weights
from mcugen.memory.peak import moments
from mcugen.memory.place import copied_bytes, memory_of_arena
from mcugen.memory.plan import Planned, plan_memory
from mcugen.memory.verify_plan import verify_plan
from mcugen.search.budget import Budget, Use, use_of
from mcugen.search.channel_tiling import channels_of, divided

TILE = 10_240
"""Bytes of weights that are decoded at once though the arena has no room for them: each portion is a call."""

SURELY_BETTER = 0.95
"""How many times the product of time, RAM and flash a program may have at most for a balance, if it has layers in
portions or decodes weights.
"""

TRIES = 6
"""So often memory is planned, with fewer codes, until it is no more than allowed."""


Codes = Mapping[Buffer, Decoded]
"""Constants by what is stored of them."""


def codes_of(program: Program, board: Board, options: CompileOptions, *, must_save: bool = False) -> Codes:
    """Those that are shorter; none where weights are to stay, or fit the budget.

    For the goal of least flash, and where flash `must` be saved, all of them; for a balance those that save more of the
    flash than they take of the time, each as a share of what the program takes; for other goals none.
    """
    is_for_flash = must_save or options.optimize == "flash"
    if not _may_decode(program, options) or not (is_for_flash or options.optimize == GOALS[0]):
        return {}
    flash = use_of(program, board, options).flash
    if is_for_flash and options.max_flash is not None and flash <= options.max_flash:
        return {}
    found = dict(_codes(program))
    if is_for_flash or not program.instructions_estimate:
        return found if is_for_flash else {}
    costs, time = cost_table(board.cpu), program.instructions_estimate
    return {b: d for b, d in found.items() if d.saved(b) / flash > costs.decoding(b.nbytes) / time}


def with_codes(
    program: Program, codes: Codes, board: Board, options: CompileOptions, *, must_save: bool = False
) -> Program:
    """A planned program with weights decoded before their layers, where that serves the goal, and RAM is there.

    That of least flash asks for it, if it saves more than that gives for time's sake, and so does what `must` save
    flash, if it saves any; a balance, if the product of time, RAM and flash is less.
    """
    if not codes:
        return program
    before, use, most = Planned.of(program), use_of(program, board, options), _room(program, board, options)
    coded = dict(codes)
    for _ in range(TRIES):
        made = _with_estimates(with_decoded_weights(program, coded), program, cost_table(board.cpu))
        plan_memory(made)
        taken = made, use_of(made, board, options)
        if made.arena_size <= most and _pays(taken, (program, use), options.optimize, must_save):
            verify_plan(made)
            return made
        coded.pop(max(coded, key=lambda b: b.nbytes))
        if not coded or (made.arena_size <= most and options.optimize != GOALS[0]):
            break
    before.restore(program)
    return program


def _pays(made: tuple[Program, Use], whole: tuple[Program, Use], goal: str, must_save: bool) -> bool:
    """Whether a program with decoded weights serves the goal better than the one as it was."""
    flash, before = made[1].flash, whole[1].flash
    if must_save:
        return flash < before
    return NEARLY * flash <= before if goal == "flash" else _rank(*made) < _rank(*whole) + math.log(SURELY_BETTER)


def _rank(program: Program, use: Use) -> float:
    """How a balance sees time, RAM and flash."""
    return Cost(program.instructions_estimate or 0.0, use.ram, use.flash).rank(GOALS[0])


def in_tiles(graph: Graph, program: Program, codes: Codes) -> Graph | None:
    """The graph of a planned program with layers in portions whose weights, once they are decoded, find room where the
    arena has some while the layer runs, or take TILE bytes; None if there are no such layers.
    """
    if not codes:
        return None
    held, taken = Counter[str](), Counter[str]()
    for instr, moment in zip(program.instrs, moments(program)[1:], strict=False):
        held[instr.name] += sum({o.buffer: o.buffer.nbytes for o in instr.operands if o.buffer in codes}.values())
        taken[instr.name] = max(taken[instr.name], moment.nbytes)
    rooms = {name: max(program.arena_size - taken[name], TILE) for name, nbytes in held.items() if nbytes}
    large = [node for node in graph.nodes if held[node.outputs[0].name] > rooms.get(node.outputs[0].name, math.inf)]
    return divided(graph, {n: some for n in large if (some := channels_of(n, rooms[n.output.name].__ge__))})


def better_of(programs: Sequence[Program], board: Board, options: CompileOptions) -> Program:
    """The better trade of time, RAM and flash, of those within the limits for these if any are."""

    def rank(program: Program) -> tuple[float, float]:
        use = use_of(program, board, options)
        return Budget.of(options).excess(use), _rank(program, use)

    return min(programs, key=rank)


def _may_decode(program: Program, options: CompileOptions) -> bool:
    """Whether weights may lie in flash as they are not read."""
    is_told = options.weights_in_file or options.checked_indices or options.cores > 1
    return not is_told and program.lesson is None and not program.symbols


def _codes(program: Program) -> Iterator[tuple[Buffer, Decoded]]:
    """Constants with their codes where these are shorter, if only layers alone read them."""
    readers = defaultdict[Buffer, list[Instr]](list)
    for instr in program.instrs:
        for operand in instr.operands:
            readers[operand.buffer].append(instr)
    in_blocks = {id(program.instrs[i]) for whole in program.wholes() if len(whole) > 1 for i in whole}
    outputs = {endpoint.buffer for endpoint in program.outputs}
    for buffer, found in readers.items():
        is_alone = not any(id(instr) in in_blocks or instr.kernel in PREPARING for instr in found)
        if not is_alone or not is_read(buffer) or buffer in outputs:
            continue
        assert buffer.data is not None
        code = code_of(buffer.data)
        if code is not None and code.nbytes + LEAST_SAVED * len(found) < buffer.nbytes:
            yield buffer, _decoded(buffer, code)


def _decoded(constant: Buffer, code: Code) -> Decoded:
    coded = Buffer(f"{constant.name}.coded", DType.UINT8, code.coded.size, Space.CONST, code.coded)
    plain = None
    if code.plain is not None:
        plain = Buffer(f"{constant.name}.plain", DType.INT32, code.plain.size, Space.CONST, code.plain)
    return Decoded([coded, *([] if plain is None else [plain])], lambda held: code.call(held, coded, plain))


def _room(program: Program, board: Board, options: CompileOptions) -> float:
    """Bytes that the arena may take."""
    others = program.state_size + copied_bytes(program, board, options.place)
    most = ENOUGH * min(board.total_ram, memory_of_arena(board, options.place).room) - others
    if options.max_ram is not None:
        most = min(most, options.max_ram - others)
    return max(most, program.arena_size)


def _with_estimates(made: Program, before: Program, costs: CostTable) -> Program:
    """With what decoding takes, by layer."""
    estimates = dict(before.layer_estimates)
    for instr in (i for i in made.instrs if i.kernel == DECODE_WEIGHTS and i.name in estimates):
        estimates[instr.name] += costs.decoding(instr.operand("y").buffer.nbytes)
    more = sum(estimates.values()) - sum(before.layer_estimates.values())
    known = before.instructions_estimate
    return replace(made, layer_estimates=estimates, instructions_estimate=None if known is None else known + more)
