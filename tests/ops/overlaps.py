# SPDX-License-Identifier: Apache-2.0
"""Checks that instructions overlap as far as they declare: they are right at the lead, and wrong one element below it.

Each declaration becomes calls in one program, whose output lies at chosen distances before its input and far from all
other data. So a single C build checks all layers of a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from onnx_models import assert_close

from mcugen.codegen.bundle import Bundle
from mcugen.codegen.draft import Draft, Provenance, Sample
from mcugen.codegen.render import render
from mcugen.core.board import Board, load_board
from mcugen.hir.graph import Graph, Node
from mcugen.hir.interpreter import evaluate_node
from mcugen.hir.types import Array
from mcugen.lir.program import ALIGNMENT, Access, Buffer, Endpoint, Instr, Operand, Overlap, Program, Space
from mcugen.memory.place import place
from mcugen.simulation import Setup, simulate


class Lowered(Protocol):
    """A graph and its program; a memory plan is not needed."""

    @property
    def graph(self) -> Graph: ...
    @property
    def program(self) -> Program: ...


@dataclass
class _Call:
    """An instruction whose output begins `lead` bytes before its input."""

    instr: Instr
    node: Node
    overlap: Overlap
    lead: int
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)


def assert_exact(compiled: Lowered, samples: int = 8) -> dict[str, int]:
    """Check that each overlap that a model's instructions declare is safe, and that a shorter lead is not.

    The plain C runs on this computer under the sanitizers, with random inputs. A shorter lead must change a result in
    one of the samples, unless the kernel reads all of its input before it writes.

    Args:
        compiled: The model.
        samples: Number of random contents of memory.

    Returns:
        The leads in bytes by layer.
    """
    declared = [(i, n, o, lead) for i, n, o in _declared(compiled) for lead in (o.lead, o.lead - _step(i, o))]
    calls = [_Call(*each) for each in declared]
    found, expected = _run(calls, load_board("host"), samples)
    for safe, shorter in zip(calls[::2], calls[1::2], strict=True):
        what = f"{safe.instr.name} ({safe.instr.kernel}), {safe.overlap}"
        _assert_right(safe, found, expected, what)
        if safe.lead > -safe.instr.operand(safe.overlap.into).buffer.nbytes:
            same = all(
                np.array_equal(run[a], run[b], equal_nan=run[a].dtype.kind == "f")
                for run in found
                for a, b in zip(safe.outputs, shorter.outputs, strict=True)
            )
            assert not same, f"{what}: a shorter lead does as well"
    return {call.instr.name: call.lead for call in calls[::2]}


def assert_safe(compiled: Lowered, board: str | Board, samples: int = 1, align: int = ALIGNMENT) -> None:
    """Check that each overlap that a model's instructions declare is safe on a board's CPU.

    Args:
        compiled: The model.
        board: The board, or its name.
        samples: Number of random contents of memory.
        align: Bytes to whose multiples leads are rounded up, as the planner does. With 1, int8 outputs lie where
            declared, for kernels that store bytes anywhere.
    """
    calls = [_Call(i, n, o, -(-o.lead // align) * align) for i, n, o in _declared(compiled)]
    found, expected = _run(calls, board if isinstance(board, Board) else load_board(board), samples)
    for call in calls:
        _assert_right(call, found, expected, f"{call.instr.name} ({call.instr.kernel}), {call.overlap}")


def _declared(compiled: Lowered) -> Iterator[tuple[Instr, Node, Overlap]]:
    nodes = {node.outputs[0].name: node for node in compiled.graph.nodes}
    for instr in compiled.program.instrs:
        for overlap in instr.overlaps:
            yield instr, nodes[instr.name], overlap


def _step(instr: Instr, overlap: Overlap) -> int:
    return min(instr.operand(role).buffer.dtype.nbytes for role in (overlap.out, overlap.into))


def _assert_right(call: _Call, found: list[dict[str, Array]], expected: list[dict[str, Array]], what: str) -> None:
    for run, right in zip(found, expected, strict=True):
        try:
            assert_close({name: run[name] for name in call.outputs}, {name: right[name] for name in call.outputs})
        except AssertionError as error:
            raise AssertionError(f"{what}: {error}") from error


def _run(calls: Sequence[_Call], board: Board, samples: int) -> tuple[list[dict[str, Array]], list[dict[str, Array]]]:
    """What the calls give for random inputs, and what numpy gives: outputs by name, for each sample."""
    assert calls, "no instruction declares an overlap"
    program = Program("overlaps")
    for number, call in enumerate(calls):
        _place(program, call, number)
    program.buffers += dict.fromkeys(o.buffer for c in calls for o in c.instr.operands if o.buffer.space is Space.CONST)
    random = np.random.default_rng(5)
    drawn = [_draw(calls, random) for _ in range(samples)]
    bundle = _rendered(program, *drawn[0])
    run = simulate(
        bundle, board, [feeds for feeds, _ in drawn], measure=False, setup=Setup(sanitize=board.name == "host")
    )
    return run.outputs, [expected for _, expected in drawn]


def _place(program: Program, call: _Call, number: int) -> None:
    """Appends the call, on buffers of its own behind all others."""
    taken, instr = dict[Buffer, Buffer](), call.instr
    for operand in instr.operands:
        if operand.buffer.planned and operand.buffer not in taken:
            space = {Access.IN: Space.INPUT, Access.OUT: Space.OUTPUT}.get(operand.access, Space.ARENA)
            taken[operand.buffer] = replace(operand.buffer, name=f"{operand.role}{number}", space=space)
    into, out = (taken[instr.operand(role).buffer] for role in (call.overlap.into, call.overlap.out))
    end = program.arena_size
    first, second = (0, call.lead) if call.lead > 0 else (-call.lead, 0)
    wide = first if out.dtype.nbytes > into.dtype.nbytes else second
    end += -wide % ALIGNMENT  # the wider elements are aligned, or else those that are read
    out.offset, into.offset = end + first, end + second
    end = max(buffer.offset + buffer.nbytes for buffer in (out, into) if buffer.offset is not None)
    for buffer in taken.values():
        if buffer not in (out, into):
            buffer.offset = _aligned(end)
            end = buffer.offset + buffer.nbytes
    program.area_sizes = [_aligned(end)]
    program.buffers += taken.values()
    operands = tuple(Operand(o.role, o.access, taken.get(o.buffer, o.buffer)) for o in instr.operands)
    program.instrs.append(replace(instr, name=f"call{number}", operands=operands, overlaps=(), inplace=(), group=0))

    def endpoints(access: Callable[[Operand], bool], shapes: list[tuple[int, ...]]) -> list[Endpoint]:
        buffers = dict.fromkeys(o.buffer for o in operands if o.buffer.planned and access(o))
        return [Endpoint(b.name, s, b.dtype, None, b) for b, s in zip(buffers, shapes, strict=True)]

    values = dict.fromkeys(v for v in call.node.inputs if v is not None and not v.is_constant)
    read = endpoints(lambda o: o.access is Access.IN, [v.type.shape for v in values])
    written = endpoints(lambda o: o.access is Access.OUT, [v.type.shape for v in call.node.outputs])
    program.inputs += read
    program.outputs += written
    call.inputs, call.outputs = [e.name for e in read], [e.name for e in written]


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _draw(calls: Sequence[_Call], random: np.random.Generator) -> tuple[dict[str, Array], dict[str, Array]]:
    """Random inputs, the same for all calls of an instruction, and the outputs of numpy."""
    feeds, expected = dict[str, Array](), dict[str, Array]()
    drawn, results = dict[int, dict[object, Array]](), dict[int, tuple[Array, ...]]()
    for call in calls:
        values = dict.fromkeys(v for v in call.node.inputs if v is not None and not v.is_constant)
        if id(call.node) not in drawn:
            arrays = {v: _random(v.type.dtype.numpy, v.type.shape, random) for v in values}
            drawn[id(call.node)] = dict(arrays)
            read = [v.data if v.data is not None else arrays[v] for v in call.node.inputs if v is not None]
            results[id(call.node)] = evaluate_node(call.node, read)
        feeds |= zip(call.inputs, drawn[id(call.node)].values(), strict=True)
        expected |= zip(call.outputs, results[id(call.node)], strict=True)
    return feeds, expected


def _random(dtype: np.dtype, shape: tuple[int, ...], random: np.random.Generator) -> Array:
    if dtype.kind == "f":
        return random.standard_normal(shape).astype(dtype)
    if dtype.kind == "b":
        return random.integers(0, 2, shape).astype(dtype)
    limits = np.iinfo(dtype)
    return random.integers(max(limits.min, -(2**15)), min(limits.max, 2**15 - 1), shape, endpoint=True).astype(dtype)


def _rendered(program: Program, inputs: dict[str, Array], outputs: dict[str, Array]) -> Bundle:
    placement = place(program, load_board("host"))
    provenance = Provenance("overlaps", "", "", "")
    return render(Draft(program, provenance, (Sample(inputs, outputs, 0.0, 0),), {}, placement))
