# SPDX-License-Identifier: Apache-2.0
"""Verification of a memory plan: replays a program in the planned arena and in separate memory for each buffer."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import NamedTuple

import numpy as np

from mcugen.core.errors import VerificationError
from mcugen.lir.program import (
    ALIGNMENT,
    BEGIN_WEIGHTS,
    END_WEIGHTS,
    MOVE,
    WORD,
    Access,
    Buffer,
    Control,
    Instr,
    Operand,
    Program,
    Space,
)


def verify_plan(program: Program) -> None:
    """Verify that no instruction of a planned program reads bytes that another buffer has overwritten.

    Raises:
        VerificationError: An instruction would read wrong bytes; the message names it.
    """
    movable = {o.buffer for i in program.instrs if i.kernel == MOVE for o in i.operands}
    for buffer in filter(lambda b: b.planned, program.buffers):
        _check_address(program, buffer, buffer in movable)
    replay = _Replay(program)
    for endpoint in program.inputs:
        replay.write(endpoint.buffer)
    replay.block(0)
    replay.check_ended()
    for endpoint in program.outputs:
        if not replay.holds(endpoint.buffer):
            _fail(endpoint.buffer, "an output is overwritten before the end")
    if program.handover is not None:
        _verify_frames(program, program.handover)


def _verify_frames(program: Program, handover: range) -> None:
    """Replay a pipeline as two cores run it: the first part of a frame together with the second part of the last frame.

    Neither part uses a word that the other writes, so that their order makes no difference. Then the results of the
    first part are handed over, after which the outputs must still be in the arena.
    """
    replay, instrs = _Replay(program), program.instrs
    begins, hands_over, ends = instrs[: handover.start], instrs[handover.start : handover.stop], instrs[handover.stop :]
    for part in (begins, hands_over, begins, ends, hands_over):
        if part is begins:
            for endpoint in program.inputs:
                replay.write(endpoint.buffer)
        replay.run(part)
    for endpoint in program.outputs:
        if not replay.holds(endpoint.buffer):
            _fail(endpoint.buffer, "an output is overwritten by what is handed over")
    replay.run(ends)
    states = [{o.buffer for i in part for o in i.operands if o.buffer.space is Space.STATE} for part in (begins, ends)]
    for state in states[0] & states[1]:
        _fail(state, "a state must be of one part of a pipeline")
    replay.check_disjoint(range(handover.start), range(handover.stop, len(instrs)))


class _Replay:
    """Each write leaves new numbers, in the buffer's own memory and in the arena; whatever is read must be the same.

    One number stands for `granule` bytes: no two buffers, nor parts that are moved, begin among them.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._ends = dict(program.blocks())
        self.instrs: Sequence[Instr] = program.instrs
        planned = [b for b in program.buffers if b.planned]
        self._granule = gcd(ALIGNMENT, *map(_start, planned), *_parts(program))
        areas = [0, *np.cumsum([self._cells(size) for size in program.area_sizes]).tolist()]
        own = [areas[-1], *(areas[-1] + np.cumsum([self._cells(b.nbytes) for b in planned])).tolist()]
        self._arena = {b: areas[b.area] + _start(b) // self._granule for b in planned}
        self._own = dict(zip(planned, own, strict=False))
        self._memory = -1 - np.arange(own[-1])  # Distinct values that no write produces.
        self._written = 0
        self._half_read: dict[Buffer, list[Buffer]] = {}
        """Inputs of the stream that is running, over which its outputs are being written."""
        self._copied: list[Buffer] = []
        """Targets of copies in progress, which may be written at any time until the copies end."""

    def _cells(self, nbytes: int) -> int:
        return -(-nbytes // self._granule)

    def _new(self, count: int) -> np.ndarray:
        self._written += count
        return np.arange(self._written - count, self._written)

    def _span(self, where: dict[Buffer, int], buffer: Buffer, at: int = 0, nbytes: int | None = None) -> slice:
        start = where[buffer] + at // self._granule
        return slice(start, start + self._cells(buffer.nbytes if nbytes is None else nbytes))

    def _lanes(self, where: dict[Buffer, int], operand: Operand) -> np.ndarray:
        """Return the cells of an operand's lanes, which begin and end at cell boundaries."""
        numbers = _elements(operand) * operand.buffer.dtype.nbytes // self._granule
        return where[operand.buffer] + np.unique(numbers)

    def _has(self, instr: Instr, operand: Operand) -> bool:
        """Return whether the bytes that an operand reads are still in the arena."""
        work = instr.offloaded
        if work is not None and work.inputs and operand.role == "x":
            return all(self.holds(operand.buffer, at, nbytes) for at, nbytes in work.inputs)
        if operand.lanes is None or not operand.buffer.planned:
            return self.holds(operand.buffer)
        arena, own = self._lanes(self._arena, operand), self._lanes(self._own, operand)
        return bool((self._memory[arena] == self._memory[own]).all())

    def _write_lanes(self, operand: Operand) -> None:
        arena, own = self._lanes(self._arena, operand), self._lanes(self._own, operand)
        self._memory[arena] = self._memory[own] = self._new(len(own))

    def holds(self, buffer: Buffer, at: int = 0, nbytes: int | None = None) -> bool:
        """Return whether a buffer, or `nbytes` of it from `at` on, is still in the arena."""
        if not buffer.planned:
            return True
        arena, own = self._span(self._arena, buffer, at, nbytes), self._span(self._own, buffer, at, nbytes)
        kept = self._memory[arena] == self._memory[own]
        if buffer in self._half_read:  # The stream itself ensures that it reads these bytes before it writes them.
            for over in self._half_read[buffer]:
                lost = self._span(self._arena, over)
                kept[max(lost.start - arena.start, 0) : max(lost.stop - arena.start, 0)] = True
        return bool(kept.all())

    def write(self, buffer: Buffer) -> None:
        """Replay a write of all bytes of a buffer."""
        if buffer.planned:
            self._put(buffer, 0, self._new(self._cells(buffer.nbytes)))

    def _put(self, buffer: Buffer, at: int, numbers: np.ndarray) -> None:
        for where in (self._arena, self._own):
            start = where[buffer] + at // self._granule
            self._memory[start : start + len(numbers)] = numbers

    # --------------------------------------------------------------------------------------------- blocks

    def run(self, instrs: Sequence[Instr]) -> None:
        """Replay some instructions of the program in order, as if they were the whole program."""
        whole, self.instrs = self.instrs, instrs
        self.block(0)
        self.instrs = whole

    def block(self, at: int) -> int:
        """Replay from instruction `at` to the marker that ends its block, and return the number of the marker.

        Steps of a loop run twice. Both branches of a condition start from the same memory, and a buffer is in the arena
        afterwards if it is there after both branches.
        """
        while at < len(self.instrs) and self.instrs[at].control not in (Control.ELSE, Control.END):
            instr = self.instrs[at]
            if instr.control is not Control.FORK:
                self._step(instr)
            if instr.control is Control.IF:
                before = self._memory.copy()
                at = self.block(at + 1)
                if self.instrs[at].control is Control.ELSE:
                    before, self._memory = self._memory, before
                    at = self.block(at + 1)
                self._join(before)
            elif instr.control is Control.FOR:
                before = self._memory.copy()
                for _ in range(2):
                    end = self.block(at + 1)
                    self._step(self.instrs[end])
                if any(o.role == "cond" for o in instr.operands):  # The loop may have no step at all.
                    self._join(before)
                at = end
            elif instr.control is Control.STREAM:
                at = self._events(at)
            elif instr.control is Control.FORK:
                at = self._sides(at)
            at += 1
        return at

    def _join(self, other: np.ndarray) -> None:
        """Merge memory after two branches: cells keep their contents only where both agree."""
        differing = np.flatnonzero(self._memory != other)
        pairs = np.stack([self._memory[differing], other[differing]])
        _, which = np.unique(pairs, axis=1, return_inverse=True)
        self._memory[differing] = self._new(len(differing))[which.reshape(-1)]

    def _events(self, at: int) -> int:
        """Replay a stream, event by event, and return the number of the marker that ends it."""
        instr = self.instrs[at]
        pairs = [(instr.operand(o.into).buffer, instr.operand(o.out).buffer) for o in instr.overlaps]
        self._half_read = {into: [out for x, out in pairs if x is into and _collide(x, out)] for into, _ in pairs}
        end = self._ends[at]
        cases = [start + 1 for start, _ in self._program.cases(at, end)]
        for event in instr.events:
            self.block(cases[event])
        self._half_read = {}
        return end

    def _sides(self, at: int) -> int:
        """Replay a fork and return the marker that ends it.

        Each side finds memory as it was before the fork, and no side uses a word that the other changes. The order of
        both sides then makes no difference.
        """
        middle = self.block(at + 1)
        end = self.block(middle + 1)
        self.check_disjoint(range(at + 1, middle), range(middle + 1, end))
        return end

    def check_disjoint(self, one: range, other: range) -> None:
        """Check that neither of two runs of instructions writes a word of the arena that the other uses."""
        first, second = self._words(one), self._words(other)
        for ours, theirs in ((first, second), (second, first)):
            for written in ours.written:
                for used in (*theirs.read, *theirs.written):
                    if _touch(written, used):
                        _fail(written.buffer, f"written by one core while the other uses %{used.buffer.name}")

    def _words(self, span: range) -> _Words:
        """Return the parts of the arena that the instructions of one side read and write.

        A move of bytes onto themselves is no instruction of the generated code: it neither reads nor writes.
        """
        words = _Words([], [])
        for instr in self.instrs[span.start : span.stop]:
            if instr.moves_nothing:
                continue
            for operand in instr.operands:
                buffer = operand.buffer
                if not buffer.planned:
                    if buffer.space is Space.STATE and self._program.handover is not None:
                        continue  # See _verify_frames.
                    if operand.access is not Access.IN and buffer.space is not Space.TAKEN:
                        _fail(buffer, f"{instr.name}: one core of two must not write it")
                    continue
                (words.read if operand.access is Access.IN else words.written).append(operand)
        return words

    def check_ended(self) -> None:
        """Check that no copy is still in progress."""
        for copied in self._copied:
            _fail(copied, "its copy must end")

    # --------------------------------------------------------------------------------------- instructions

    def _step(self, instr: Instr) -> None:
        self._copy(instr)
        if instr.kernel == MOVE:
            self._move(instr)
            return
        operands = [o for o in instr.operands if o.buffer.planned]
        for operand in operands:
            if operand.access.reads and not self._has(instr, operand):
                _fail(operand.buffer, f"{instr.name}: read after another buffer took its place")
        written = [o for o in operands if o.access is not Access.IN]
        for operand in written:
            for other in operands:
                if _collide(operand.buffer, other.buffer) and not _may_lie_over(instr, operand, other):
                    _fail(operand.buffer, f"{instr.name}: overlaps operand %{other.buffer.name}")
        for operand in written:
            if operand.lanes is None:
                self.write(operand.buffer)
            else:
                self._write_lanes(operand)

    def _copy(self, instr: Instr) -> None:
        """Begin or end a copy, and check that no instruction uses a byte that a copy is writing."""
        if instr.kernel == END_WEIGHTS:
            ended = instr.operand("y").buffer
            if self._copied[:1] != [ended]:
                _fail(ended, "copies must end in the order in which they began")
            del self._copied[0]
        for copied in self._copied:
            for operand in instr.operands:
                if copied is operand.buffer or _collide(copied, operand.buffer):
                    _fail(copied, f"{instr.name}: uses %{operand.buffer.name} while the copy is being made")
        if instr.kernel == BEGIN_WEIGHTS:
            self._copied.append(instr.operand("y").buffer)

    def _move(self, instr: Instr) -> None:
        for operand in instr.operands:
            if operand.lanes is not None and operand.lanes.count != operand.lanes.pitch:
                _fail(operand.buffer, f"{instr.name}: some channels of it are moved as if they were contiguous")
        x, y = instr.operand("x").buffer, instr.operand("y").buffer
        (x_at, nbytes), (y_at, _) = instr.part("x"), instr.part("y")
        if not self.holds(x, x_at, nbytes):
            _fail(x, f"{instr.name}: read after another buffer took its place")
        if not y.planned:
            return
        if not x.planned:
            self._put(y, y_at, self._new(self._cells(nbytes)))
            return
        apart = abs(_start(y) + y_at - _start(x) - x_at) >= nbytes and instr.has_fixed_parts
        if _collide(x, y) and not (instr.moves_nothing or apart):
            _fail(y, f"{instr.name}: overlaps operand %{x.name}")
        self._put(y, y_at, self._memory[self._span(self._own, x, x_at, nbytes)].copy())


class _Words(NamedTuple):
    """The operands in the arena that one side of a fork reads and writes."""

    read: list[Operand]
    written: list[Operand]


def _touch(a: Operand, b: Operand) -> bool:
    """Return whether two operands have a word of the arena in common."""
    if a.buffer.area != b.buffer.area:
        return False
    if a.lanes is None and b.lanes is None:
        (begin, end), (other, last) = _word_span(a.buffer), _word_span(b.buffer)
        return begin < last and other < end
    return bool(np.intersect1d(_words_of(a), _words_of(b)).size)


def _word_span(buffer: Buffer) -> tuple[int, int]:
    return _start(buffer) // WORD, -(-(_start(buffer) + buffer.nbytes) // WORD)


def _words_of(operand: Operand) -> np.ndarray:
    """Return the word indices of an operand in its area."""
    if operand.lanes is None:
        return np.arange(*_word_span(operand.buffer))
    size = operand.buffer.dtype.nbytes
    first = _start(operand.buffer) + _elements(operand) * size
    return np.union1d(first // WORD, (first + size - 1) // WORD)


def _elements(operand: Operand) -> np.ndarray:
    """Return the indices of the elements in an operand's lanes."""
    lanes, count = operand.lanes, operand.buffer.count
    assert lanes is not None
    return (np.arange(count // lanes.pitch)[:, None] * lanes.pitch + lanes.first + np.arange(lanes.count)).reshape(-1)


def _parts(program: Program) -> list[int]:
    """Return the offsets at which moved parts and lanes begin and end in their buffers."""
    moves = [i.params for i in program.instrs if i.kernel == MOVE and "y_at" in i.params]
    lanes = [(o.lanes, o.buffer.dtype.nbytes) for i in program.instrs for o in i.operands if o.lanes]
    return [
        *(int(p[key]) for p in moves for key in ("x_at", "y_at", "nbytes")),
        *(n * size for part, size in lanes for n in (part.first, part.count, part.pitch)),
    ]


def _may_lie_over(instr: Instr, out: Operand, into: Operand) -> bool:
    """Return whether the instruction declares that its output may overlap another operand at the planned distance."""
    distance = _start(out.buffer) - _start(into.buffer)
    if (out.role, into.role) in instr.inplace and distance == 0 and out.buffer.nbytes <= into.buffer.nbytes:
        return True
    leads = [o.lead for o in instr.overlaps if (o.out, o.into) == (out.role, into.role)]
    return any(distance <= -lead for lead in leads)


def _start(buffer: Buffer) -> int:
    assert buffer.offset is not None
    return buffer.offset


def _collide(a: Buffer, b: Buffer) -> bool:
    if a is b or a.area != b.area or not (a.planned and b.planned):
        return False
    return _start(a) < _start(b) + b.nbytes and _start(b) < _start(a) + a.nbytes


def _check_address(program: Program, buffer: Buffer, is_moved: bool) -> None:
    size = program.area_sizes[buffer.area] if buffer.area < len(program.area_sizes) else -1
    if buffer.offset is None or buffer.offset < 0 or buffer.offset + buffer.nbytes > size:
        _fail(buffer, "lies outside the arena")
    if buffer.offset is not None and buffer.offset % (max(WORD, buffer.dtype.nbytes) if is_moved else ALIGNMENT):
        _fail(buffer, "is not aligned")


def _fail(buffer: Buffer, reason: str) -> None:
    raise VerificationError("the memory plan must keep live data", f"%{buffer.name}: {reason}", "report this as a bug")
