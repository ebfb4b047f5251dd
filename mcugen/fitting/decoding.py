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

from mcugen.board import Board
from mcugen.fitting.budget import Budget, use_of
from mcugen.fitting.portions import channels_of, divided
from mcugen.hir.graph import Graph
from mcugen.hir.types import DType
from mcugen.kernels.choose import ENOUGH, NEARLY, Cost
from mcugen.kernels.coded import LEAST_SAVED, Code, code_of
from mcugen.kernels.cost import CostTable, cost_table
from mcugen.lir.program import DECODE_WEIGHTS, PREPARING, Buffer, Instr, Program, Space
from mcugen.lir.weights import Decoded, is_read, with_decoded_weights
from mcugen.memory.peak import moments
from mcugen.memory.place import copied_bytes, memory_of_arena
from mcugen.memory.plan import Planned, plan_memory
from mcugen.memory.verify_plan import verify_plan
from mcugen.options import GOALS, CompileOptions

TILE = 10_240
"""Bytes of weights that are decoded at once though the arena has no room for them: each portion is a call."""

TRIES = 6
"""So often memory is planned, with fewer codes, until it is no more than allowed."""


Codes = Mapping[Buffer, Decoded]
"""Constants by what is stored of them."""


def codes_of(program: Program, board: Board, options: CompileOptions) -> Codes:
    """Those that are shorter, for the goal of least flash; none where weights are to stay, or fit the budget."""
    if not _may_decode(program, options):
        return {}
    if options.max_flash is not None and use_of(program, board, options).flash <= options.max_flash:
        return {}
    return dict(_codes(program))


def with_codes(program: Program, codes: Codes, board: Board, options: CompileOptions) -> Program:
    """A planned program with weights decoded before their layers, where that takes less flash, and RAM is there.

    That is what the goal of least flash asks for, if it saves more than that gives for time's sake.
    """
    if not codes:
        return program
    before, use, most = Planned.of(program), use_of(program, board, options), _room(program, board, options)
    coded = dict(codes)
    for _ in range(TRIES):
        made = _with_estimates(with_decoded_weights(program, coded), program, cost_table(board.cpu))
        plan_memory(made)
        if made.arena_size <= most and NEARLY * use_of(made, board, options).flash <= use.flash:
            verify_plan(made)
            return made
        coded.pop(max(coded, key=lambda b: b.nbytes))
        if made.arena_size <= most or not coded:
            break
    before.restore(program)
    return program


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
        cost = Cost(program.instructions_estimate or 0.0, use.ram, use.flash)
        return Budget.of(options).excess(use), cost.rank(GOALS[0])

    return min(programs, key=rank)


def _may_decode(program: Program, options: CompileOptions) -> bool:
    """Whether weights may lie in flash as they are not read."""
    is_told = options.weights_in_file or options.checked_indices or options.cores > 1
    return options.optimize == "flash" and not is_told and program.lesson is None and not program.symbols


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
