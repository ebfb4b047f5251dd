# SPDX-License-Identifier: Apache-2.0
"""Runs of instructions with overlapping input and output, at the distances that they declare, against separate buffers.

All runs are calls in one program. Its only input is all of its memory before the calls, and its only output is that
memory afterwards. So one C build checks many instructions, no numpy reference is needed, and a write beyond the output
shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from mcugen.codegen.bundle import Bundle
from mcugen.codegen.draft import Draft, Provenance, Sample
from mcugen.codegen.render import render
from mcugen.core.board import Board, load_board
from mcugen.core.options import LibraryFiles
from mcugen.hir.types import Array, DType
from mcugen.lir.program import ALIGNMENT, Access, Buffer, Control, Endpoint, Instr, Operand, Program, Space
from mcugen.memory.place import place
from mcugen.simulation import Setup, simulate

GUARD = 16
"""Smallest number of bytes between the buffers of two runs, which no run may change."""


@dataclass(frozen=True)
class Block:
    """An instruction, or all instructions of a layer, of which one declares how far output and input may overlap.

    Attributes:
        head: The instruction with the declaration.
        instrs: All instructions.
        source: Where the block comes from, for messages: the kernel, and the layer's types.
    """

    head: Instr
    instrs: tuple[Instr, ...]
    source: str

    @property
    def kernel(self) -> str:
        """Return the name of the kernel, or of the marker."""
        return self.head.kernel

    def claims(self) -> list[Claim]:
        """Return all overlaps that the block declares, each once."""
        found = [Claim(self, o.out, o.into, o.lead, is_exact=False) for o in self.head.overlaps]
        named = {(claim.out, claim.into) for claim in found if claim.lead <= 0}
        for out, into in self.head.inplace:
            is_smaller = self.nbytes(out) <= self.nbytes(into)
            if (out, into) not in named and is_smaller and self.head.operand(into).buffer.planned:
                found.append(Claim(self, out, into, 0, is_exact=True))
        return [claim for claim in found if self.head.operand(claim.into).buffer.planned]

    def nbytes(self, role: str) -> int:
        """Return the size of an operand in bytes."""
        return self.head.operand(role).buffer.nbytes


@dataclass(frozen=True)
class Claim:
    """A declared overlap: the output may begin `lead` bytes before the input.

    The output may also begin farther before the input, unless `is_exact`.
    """

    block: Block
    out: str
    into: str
    lead: int
    is_exact: bool

    def __str__(self) -> str:
        sizes = f"{self.block.nbytes(self.into)} to {self.block.nbytes(self.out)} bytes"
        return f"{self.block.source}: {self.out} over {self.into}, lead {self.lead}, {sizes}"

    @property
    def step(self) -> int:
        """Return the smaller one of the element sizes of input and output, in bytes."""
        return min(self.block.head.operand(role).buffer.dtype.nbytes for role in (self.out, self.into))

    @property
    def tighter(self) -> int:
        """Return a lead in bytes that is too short, by the larger one of both element sizes."""
        roles = (self.out, self.into)
        return self.lead - max(self.block.head.operand(role).buffer.dtype.nbytes for role in roles)

    @property
    def is_order(self) -> bool:
        """Return whether the order of reads and writes limits the overlap: the first write precedes the last read."""
        return not self.is_exact and self.lead > -self.block.nbytes(self.into)

    def overlaps_at(self, lead: int) -> bool:
        """Return whether output and input share a byte if the output begins `lead` bytes before the input."""
        return -self.block.nbytes(self.into) < lead < self.block.nbytes(self.out)

    def permitted(self, align: int, random: np.random.Generator) -> list[int]:
        """Return two permitted leads: the tightest multiple of `align` bytes, and a random one."""
        if self.is_exact:
            return [0]
        align = max(align, self.step)  # powers of two
        tightest = -(-self.lead // align) * align
        looser = np.arange(tightest + align, self.block.nbytes(self.out), align)
        shared = [int(lead) for lead in looser if self.overlaps_at(int(lead))]
        found = [tightest] if self.overlaps_at(tightest) else []
        return found + ([int(random.choice(shared))] if shared else [])


@dataclass
class Run:
    """A call of a claim's block at one lead, or without an overlap (None), with its operands' places in memory."""

    claim: Claim
    lead: int | None
    places: dict[Buffer, Buffer] = field(default_factory=dict)

    def operand(self, role: str) -> Buffer:
        """Return the buffer of an operand of the block's first instruction."""
        return self.places[self.claim.block.head.operand(role).buffer]


@dataclass(frozen=True)
class Finding:
    """The effect of a run at a lead on memory, compared with the same run on separate buffers."""

    claim: Claim
    lead: int
    is_same: bool
    is_beyond: bool
    """Whether the run changed a byte that does not belong to the block."""


def run_permitted(
    claims: Sequence[Claim], board: Board, *, samples: int = 4, align: int = 1, library: LibraryFiles | None = None
) -> list[Finding]:
    """Run claims at permitted leads, rounded up to `align` bytes; on this computer under the sanitizers.

    Args:
        claims: The claims.
        board: The board whose CPU runs the code.
        samples: Number of random contents of memory.
        align: Alignment of leads in bytes.
        library: Files of a library that the code calls, if any.
    """
    random = np.random.default_rng(11)
    leads = [(claim, claim.permitted(align, random)) for claim in claims]
    return _run(leads, board, Setup(sanitize=board.name == "host", library=library), samples)


def run_tighter(claims: Sequence[Claim], *, samples: int = 4) -> list[Finding]:
    """Run claims that the order of accesses limits, with an output one element nearer to the input's end.

    Args:
        claims: The claims.
        samples: Number of random contents of memory.
    """
    shared = [(claim, [claim.tighter]) for claim in claims if claim.is_order and claim.overlaps_at(claim.tighter)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CC", "gcc -Wno-restrict")  # copies onto themselves are among what shows
        return _run(shared, load_board("host"), Setup(), samples)


MAX_CLAIMS = 400
"""Largest number of claims that one program contains: the time of compilers grows faster than the program."""


def _run(leads: Sequence[tuple[Claim, Sequence[int]]], board: Board, setup: Setup, samples: int) -> list[Finding]:
    """Run claims at leads, those of a kernel in as few programs as possible."""
    tried = sorted(((claim, at) for claim, at in leads if at), key=lambda each: each[0].block.kernel)
    parts = [tried[start : start + MAX_CLAIMS] for start in range(0, len(tried), MAX_CLAIMS)]
    return [finding for part in parts for finding in _run_program(part, board, setup, samples)]


def _run_program(
    leads: Sequence[tuple[Claim, Sequence[int]]], board: Board, setup: Setup, samples: int
) -> list[Finding]:
    random = np.random.default_rng(12)
    groups = [(Run(claim, None), [Run(claim, lead) for lead in at]) for claim, at in leads]
    runs = [run for separate, others in groups for run in (separate, *others)]
    program, constants = Program("overlaps"), dict[Buffer, None]()
    for number, run in enumerate(runs):
        _append(program, run, number)
        constants |= dict.fromkeys(o.buffer for i in run.claim.block.instrs for o in i.operands if _is_constant(o))
    for number, constant in enumerate(constants):
        constant.name = f"c{number}"
    program.buffers += constants
    size = aligned(program.area_sizes[0] + GUARD)
    images = [_image(size, groups, random) for _ in range(samples)]
    bundle = _rendered(program, size, images[0])
    done = simulate(bundle, board, [{"before": image} for image in images], measure=False, setup=setup)
    found = [output["after"] for output in done.outputs]
    used = np.zeros(size, bool)
    for run in runs:
        for buffer in run.places.values():
            used[_span(buffer)] = True
    changed = [np.flatnonzero((a != b) & ~used) for a, b in zip(images, found, strict=True)]
    return [
        Finding(run.claim, run.lead or 0, _is_same(separate, run, images, found), _is_beyond(run, changed))
        for separate, others in groups
        for run in others
    ]


def _is_constant(operand: Operand) -> bool:
    return operand.buffer.space is Space.CONST


def _rendered(program: Program, size: int, image: Array) -> Bundle:
    """Return the C of a program, whose input and output are all of its memory."""
    before, after = (
        Endpoint(name, (size,), DType.INT8, None, Buffer(name, DType.INT8, size, space, None, 0))
        for name, space in (("before", Space.INPUT), ("after", Space.OUTPUT))
    )
    program.inputs, program.outputs, program.area_sizes = [before], [after], [size]
    program.buffers += [before.buffer, after.buffer]
    sample = Sample({"before": image}, {"after": image}, 0.0, 0)
    placement = place(program, load_board("host"))
    return render(Draft(program, Provenance("overlaps", "", "", ""), (sample,), {}, placement))


def aligned(size: int) -> int:
    """Return a size rounded up to the alignment of buffers."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def _span(buffer: Buffer) -> slice:
    assert buffer.offset is not None
    return slice(buffer.offset, buffer.offset + buffer.nbytes)


def _is_same(separate: Run, run: Run, before: Sequence[Array], after: Sequence[Array]) -> bool:
    """Return whether all results that are written are those of separate buffers, bit by bit."""
    head = run.claim.block.head
    written = [o.role for o in head.operands if o.access in (Access.OUT, Access.INOUT) and o.role != run.claim.into]
    for apart, over in ((separate.operand(role), run.operand(role)) for role in written):
        changed = np.zeros(apart.count, bool)
        for image, result in zip(before, after, strict=True):
            changed |= _elements(image, apart) != _elements(result, apart)
        for result in after:
            expected, found = (_elements(result, buffer)[changed] for buffer in (apart, over))
            if not np.array_equal(expected, found, equal_nan=apart.dtype.is_float):
                return False
    return True


def _elements(image: Array, buffer: Buffer) -> Array:
    return np.frombuffer(image[_span(buffer)].tobytes(), buffer.dtype.numpy)


def _is_beyond(run: Run, changed: Sequence[Array]) -> bool:
    begin = min(b.offset or 0 for b in run.places.values()) - GUARD
    end = max((b.offset or 0) + b.nbytes for b in run.places.values()) + GUARD
    return any(bool(((begin <= at) & (at < end)).any()) for at in changed)


def _append(program: Program, run: Run, number: int) -> None:
    """Append the instructions of a run, on memory of its own behind all others."""
    claim, block = run.claim, run.claim.block
    places, end = run.places, program.area_sizes[0] + GUARD
    for operand in (o for instr in (block.head, *block.instrs) for o in instr.operands):
        if operand.buffer.planned or operand.buffer.space in (Space.STATE, Space.GIVEN, Space.TAKEN):
            name = f"b{number}_{len(places)}"
            places.setdefault(operand.buffer, replace(operand.buffer, name=name, space=Space.ARENA, area=0))
    into, out = run.operand(claim.into), run.operand(claim.out)
    if run.lead is not None:
        end = aligned(end)
        first, second = (0, run.lead) if run.lead > 0 else (-run.lead, 0)
        wide = first if out.dtype.nbytes > into.dtype.nbytes else second
        end += -wide % ALIGNMENT  # the wider elements are aligned, or else those that are read
        out.offset, into.offset = end + first, end + second
        end = max(end + first + out.nbytes, end + second + into.nbytes)
    for buffer in places.values():
        if run.lead is None or buffer not in (out, into):
            buffer.offset = aligned(end)
            end = buffer.offset + buffer.nbytes
    program.area_sizes = [end]
    program.buffers += places.values()
    for instr in block.instrs:
        operands = tuple(Operand(o.role, o.access, places.get(o.buffer, o.buffer), o.lanes) for o in instr.operands)
        added = replace(instr, name=f"run{number}", operands=operands, overlaps=(), inplace=(), group=0, unit=0)
        program.instrs.append(added)


def _image(size: int, groups: Sequence[tuple[Run, Sequence[Run]]], random: np.random.Generator) -> Array:
    """Random bytes, with the same random elements in what all runs of a claim read."""
    image = random.integers(-128, 128, size).astype(np.int8)
    drawn = dict[Buffer, Array]()
    for separate, others in groups:
        for buffer in separate.places:
            if buffer not in drawn:
                drawn[buffer] = random_elements(buffer.dtype, buffer.count, random)
            for run in (separate, *others):
                if run.lead is None or buffer is not run.claim.block.head.operand(run.claim.out).buffer:
                    image[_span(run.places[buffer])] = drawn[buffer].view(np.int8)
        for run in others:  # the output has no contents of its own where it lies over the input
            into = run.claim.block.head.operand(run.claim.into).buffer
            image[_span(run.places[into])] = drawn[into].view(np.int8)
    return image


def random_elements(dtype: DType, count: int, random: np.random.Generator) -> Array:
    """Return random elements of a type: normal floats, or integers of at most 16 bits, since they may be indices."""
    if dtype.is_float:
        return random.standard_normal(count).astype(dtype.numpy)
    if dtype is DType.BOOL:
        return random.integers(0, 2, count).astype(dtype.numpy)
    limits = np.iinfo(dtype.numpy)
    low, high = max(int(limits.min), -(2**15)), min(int(limits.max), 2**15 - 1)
    return random.integers(low, high, count, endpoint=True).astype(dtype.numpy)


def blocks_of(program: Program, source: str) -> Iterator[Block]:
    """Yield what declares overlaps in a program: instructions, and layers by rows or in portions as a whole."""
    for instr in program.instrs:
        if not instr.overlaps and not instr.inplace:
            continue
        title = f"{instr.kernel} ({source}, {instr.note})"
        if instr.control is Control.NONE:
            yield Block(instr, (instr,), title)
        elif instr.control is Control.STREAM:
            yield Block(instr, tuple(i for i in program.instrs if i.group == instr.group), title)
        elif instr.control is Control.FORK:
            for number, instrs in enumerate(_orders(program, instr)):
                yield Block(instr, instrs, f"{title}, order {number}")


def _orders(program: Program, fork: Instr) -> Iterator[tuple[Instr, ...]]:
    """The instructions of a layer in shards, as two cores may compute them: one side first, or the other."""
    layer = [i for i in program.instrs if i.group == fork.group]
    spans = [(a, m, e) for a, m, e in program.forks() if program.instrs[a] in layer]
    first, last = program.instrs.index(layer[0]), program.instrs.index(layer[-1])
    for is_swapped in (False, True):
        instrs, at = list[Instr](), first
        for start, middle, end in spans:
            sides = program.instrs[start + 1 : middle], program.instrs[middle + 1 : end]
            instrs += program.instrs[at:start]
            instrs += [instr for side in sides[:: -1 if is_swapped else 1] for instr in side]
            at = end + 1
        yield (*instrs, *program.instrs[at : last + 1])
