# SPDX-License-Identifier: Apache-2.0
"""The order of instructions with the least peak of live bytes.

A model's file gives one order. Any order that keeps the dependencies between instructions computes the same results.
Layers (see Program.layers) move as a whole.

The search is dynamic programming over sets of finished layers, since the set alone decides which buffers are alive.
Sets of equal size are examined together, and for each set only the best order is kept. If there are too many sets of a
size, only the most promising ones are continued (beam search).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from mcugen.lir.overlap import extent
from mcugen.lir.program import MOVE, STOP, WORD, Access, Buffer, Control, Instr, Program, Space, aligned

MAX_ORDER_SETS = 8_000
"""Approximate number of sets of executed layers that the search for an order examines.

The order is optimal if the program has no more such sets.
"""

MAX_BUFFER_VISITS = 1_000_000
"""Largest number of visits of buffers during the search for an order; beyond it, the program keeps its order.

It is about ten times the number for any shared test model.
"""

MIN_BEAM_WIDTH = 16
"""Smallest number of sets of executed layers, among those of one size, that the beam search keeps."""

MAX_KNOWN_ORDERS = 8
"""Number of orders in the cache: candidate programs of one model mostly differ only in kernels, and can reuse an
order."""
_known_orders: dict[Hashable, Sequence[int]] = {}


def reorder(program: Program) -> None:
    """Reorder the instructions of a program, in place, for the least peak of live bytes; a tie keeps the given order.

    A program with run-time sizes that the model computes stays as it is: formulas read these sizes, and operands do not
    show such dependencies.
    """
    if any(symbol.output for symbol in program.symbols):
        return
    problem = _Problem(program)
    order = _cached_order(problem)
    if program.lesson is not None:
        order = _updated_soon(problem, order)
    program.instrs = [program.instrs[i] for unit in order for i in problem.units[unit]]


# ------------------------------------------------------------------------------------------------- what moves


def _units(program: Program) -> list[range]:
    """Return runs of instructions that stay together: layers, outermost blocks, and marked units."""
    ends = dict(program.blocks())
    units: list[range] = []
    end = -1
    for layer in program.layers():
        unit = program.instrs[layer.start].unit
        stops = [i for i in layer if program.instrs[i].kernel == STOP]
        layer = range(layer.start, stops[0] if stops else layer.stop)
        if layer.start <= end or (units and unit and unit == program.instrs[layer.start - 1].unit):
            units[-1] = range(units[-1].start, layer.stop)
        else:
            units.append(layer)
        end = max(end, *(ends.get(i, i) for i in layer))
        units += [range(i, i + 1) for i in stops]
    return units


def _dependencies(program: Program, units: Sequence[range]) -> list[int]:
    """Return, for each unit, the set (as bits) of the units that must run before it.

    A move runs after all earlier users of its source, as if it destroyed the source: its target may take that place.
    """
    before = [0] * len(units)
    writers: dict[Buffer, int] = defaultdict(int)
    readers: dict[Buffer, int] = defaultdict(int)
    stop = 0
    for number, unit in enumerate(units):
        before[number] |= stop
        if program.instrs[unit.start].kernel == STOP:
            before[number], stop = (1 << number) - 1, 1 << number
        for instr, operand in ((program.instrs[i], o) for i in unit for o in program.instrs[i].operands):
            buffer = operand.buffer
            if buffer.space in (Space.CONST, Space.GIVEN):  # The program never writes them.
                continue
            before[number] |= writers[buffer]
            if operand.access is Access.IN and instr.kernel != MOVE:
                readers[buffer] |= 1 << number
            else:
                before[number] |= readers[buffer]
                writers[buffer] |= 1 << number
        before[number] &= ~(1 << number)
    return before


# --------------------------------------------------------------------------------------------------- measure


@dataclass(frozen=True)
class _Saving:
    """Bytes that an output saves if it becomes live at the instruction where its input dies."""

    nbytes: int
    target: int
    source: int


class _Problem:
    """Units, their dependencies, and the bytes that are alive. Sets of units and of buffers are bits of integers."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self.units = _units(program)
        self._before = _dependencies(program, self.units)
        self._after: list[list[int]] = [[] for _ in self.units]
        for number, mask in enumerate(self._before):
            for bit in _bits(mask):
                self._after[bit.bit_length() - 1].append(number)
        self.first_ready = sum(1 << n for n, mask in enumerate(self._before) if not mask)
        users: dict[Buffer, int] = defaultdict(int)
        for number, unit in enumerate(self.units):
            for buffer in self._buffers(unit):
                users[buffer] |= 1 << number
        ends = [e.buffer for e in (*program.inputs, *program.outputs)]
        inner = {b for b, mask in users.items() if b not in ends and self._is_inner(mask)}
        numbered = [b for b in dict.fromkeys((*ends, *users)) if b.planned and b not in inner]
        self._bit = {b: 1 << n for n, b in enumerate(numbered)}
        self._sizes = {self._bit[b]: aligned(b.nbytes) for b in numbered}
        self._users = {self._bit[b]: users[b] for b in numbered}
        self.first_live = self._mask(e.buffer for e in program.inputs)
        self._kept = self._mask(e.buffer for e in program.outputs)
        self._touched = [self._mask(self._buffers(unit)) for unit in self.units]
        self._inner = self._inner_bytes(inner)
        self._savings = [list(self._unit_savings(unit)) for unit in self.units]
        self._hosts = self._find_hosts()
        self._guests: dict[int, int] = defaultdict(int)
        for guest, hosts in self._hosts.items():
            for host in _bits(hosts):
                self._guests[host] |= guest
        self._known: dict[int, int] = {}
        self._nearby: dict[int, int] = {}
        self.work = 0
        """Buffers in all sets that have been measured, which bounds the search."""

    @property
    def facts(self) -> Hashable:
        """Return all inputs of the search, as a key for its cached results."""
        return (
            *(tuple(self._before), tuple(self._touched), tuple(self._inner), tuple(map(tuple, self._savings))),
            *(tuple(self._sizes.items()), tuple(self._users.items()), tuple(self._hosts.items())),
            *(self.first_live, self._kept, MAX_ORDER_SETS, MAX_BUFFER_VISITS, MIN_BEAM_WIDTH),
        )

    def _is_inner(self, users: int) -> bool:
        """Return whether only one unit, of several instructions, uses a buffer; `users` are the units as bits."""
        return users.bit_count() == 1 and len(self.units[users.bit_length() - 1]) > 1

    def _buffers(self, unit: range) -> list[Buffer]:
        return [o.buffer for i in unit for o in self._program.instrs[i].operands if o.buffer.planned]

    def _mask(self, buffers: Iterator[Buffer] | Sequence[Buffer]) -> int:
        mask = 0
        for buffer in buffers:
            mask |= self._bit.get(buffer, 0)
        return mask

    def _inner_bytes(self, inner: set[Buffer]) -> list[int]:
        """Return the most bytes alive within each unit of several instructions, of buffers used only there."""
        if not inner:
            return [0] * len(self.units)
        ranges = [
            (first, last, aligned(b.nbytes)) for b, (first, last) in self._program.live_ranges().items() if b in inner
        ]
        return [max(sum(n for first, last, n in ranges if first <= i <= last) for i in unit) for unit in self.units]

    def _unit_savings(self, unit: range) -> Iterator[_Saving]:
        """Yield the bytes that outputs and inputs of a single instruction or a whole block may share."""
        head = self._program.instrs[unit.start]
        if len(unit) > 1 and head.control is Control.NONE:
            return
        for out, into, both in _shared_extents(head):
            if out in self._bit and into in self._bit:
                saved = aligned(out.nbytes) + aligned(into.nbytes) - aligned(both)
                yield _Saving(saved, self._bit[out], self._bit[into])

    def _find_hosts(self) -> dict[int, int]:
        """Return, for each buffer, the larger buffers that it may lie within.

        A move copies the smaller buffer into the larger one, or out of it.
        """
        direct: dict[int, int] = {}
        for pair in self._vanishing_moves():
            guest, host = sorted(pair, key=lambda bit: self._sizes[bit])
            direct.setdefault(guest, host)
        hosts = dict.fromkeys(direct, 0)
        for guest, host in direct.items():
            while host and not hosts[guest] & host:
                hosts[guest] |= host
                host = direct.get(host, 0)
        return hosts

    def _vanishing_moves(self) -> Iterator[tuple[int, int]]:
        """Yield the source and target of each move that may vanish, as no instruction reads the moved bytes later."""
        moved_parts: dict[int, list[range]] = defaultdict(list)
        for instr in self._program.instrs:
            if instr.kernel != MOVE or instr.stays or not instr.has_fixed_parts:
                continue
            buffers = [instr.operand(role).buffer for role in "xy"]
            if any(instr.distance % max(WORD, b.dtype.nbytes) for b in buffers):
                continue
            x, y = (self._bit.get(b, 0) for b in buffers)
            start, nbytes = instr.part("x")
            part = range(start, start + nbytes)
            if x and y and x != y and not x & self._kept and not any(_meet(part, other) for other in moved_parts[x]):
                moved_parts[x].append(part)
                yield x, y

    def nbytes(self, live: int) -> int:
        """Return the bytes of a set of buffers, without those that lie in others of the set."""
        if live not in self._known:
            self.work += live.bit_count()
            nearby = self._nearby.pop(live, None)
            self._known[live] = self._own_bytes(live, live) if nearby is None else self._updated_bytes(nearby, live)
        return self._known[live]

    def _own_bytes(self, some: int, live: int) -> int:
        """Return the bytes of some buffers of a set, without those that lie in others of the set."""
        return sum(self._sizes[b] for b in _bits(some) if not self._hosts.get(b, 0) & live)

    def _updated_bytes(self, live: int, after: int) -> int:
        """Return the bytes of the set `after`, which differs in few buffers from a set that has been measured.

        Buffers that lie in one of these count as well: they begin or cease to take bytes of their own.
        """
        changed = live ^ after
        for bit in _bits(changed):
            changed |= self._guests[bit] & (live | after)
        return self._known[live] + self._own_bytes(changed & after, after) - self._own_bytes(changed & live, live)

    def step(self, unit: int, finished: int, live: int) -> tuple[int, int]:
        """Return the bytes alive while `unit` runs after `finished`, and the buffers alive afterwards."""
        during = live | self._touched[unit]
        finished |= 1 << unit
        dying = 0
        for bit in _bits(self._touched[unit] & ~self._kept):
            if not self._users[bit] & ~finished:
                dying |= bit
        possible = (s.nbytes for s in self._savings[unit] if s.source & dying and not s.target & live)
        saved = max(possible, default=0)
        after = during & ~dying
        if live in self._known and during not in self._known:
            self._nearby[during] = live
        nbytes = self.nbytes(during)
        if after not in self._known:
            self._nearby[after] = during
        return nbytes + self._inner[unit] - saved, after

    def newly_ready(self, unit: int, finished: int) -> int:
        """Return the units that become ready because `unit` is the last finished one."""
        return sum(1 << n for n in self._after[unit] if not self._before[n] & ~finished)

    @cached_property
    def all_before(self) -> list[int]:
        """Return, for each unit, the set (as bits) of all units that must run before it, directly or indirectly."""
        masks: list[int] = []
        for mask in self._before:  # These are units before it in the original order.
            for bit in _bits(mask):
                mask |= masks[bit.bit_length() - 1]
            masks.append(mask)
        return masks

    def writes_state(self, unit: int) -> bool:
        """Return whether a unit writes a state, such as trained parameters."""
        return self._touches(unit, Space.STATE, reads=False)

    def moves_callers_value(self, unit: int) -> bool:
        """Return whether a unit moves a value that the caller passes, such as the learning rate."""
        return self._program.instrs[self.units[unit].start].kernel == MOVE and self._touches(
            unit, Space.GIVEN, reads=True
        )

    def _touches(self, unit: int, space: Space, *, reads: bool) -> bool:
        operands = (o for i in self.units[unit] for o in self._program.instrs[i].operands)
        return any(o.buffer.space is space and (o.access is Access.IN) is reads for o in operands)

    @cached_property
    def floor(self) -> int:
        """Return a lower bound of the peak of any order: the largest unit, if all its inputs died at that unit."""
        alone = [
            self.nbytes(touched) + inner - max((s.nbytes for s in savings), default=0)
            for touched, inner, savings in zip(self._touched, self._inner, self._savings, strict=True)
        ]
        return max(self.nbytes(self.first_live), self.nbytes(self._kept), *alone, 0)

    def peak(self, order: Sequence[int]) -> int:
        """Return the peak of an order of the units."""
        finished, live, peak = 0, self.first_live, self.floor
        for unit in order:
            cost, live = self.step(unit, finished, live)
            finished, peak = finished | 1 << unit, max(peak, cost)
        return peak


def _shared_extents(instr: Instr) -> Iterator[tuple[Buffer, Buffer, int]]:
    """Yield each output and input that may share memory, and the bytes that both take together then."""
    buffers = {o.role: o.buffer for o in instr.operands}
    uses = Counter(o.buffer for o in instr.operands)
    leads = [(out, into, 0) for out, into in instr.inplace if buffers[out].nbytes <= buffers[into].nbytes]
    for out, into, lead in leads + [(o.out, o.into, o.lead) for o in instr.overlaps]:
        y, x = buffers[out], buffers[into]
        both = extent(x.nbytes, y.nbytes, lead)
        if uses[x] == 1 and both < x.nbytes + y.nbytes:
            yield y, x, both


def _meet(a: range, b: range) -> bool:
    return a.start < b.stop and b.start < a.stop


def _bits(mask: int) -> Iterator[int]:
    while mask:
        bit = mask & -mask
        yield bit
        mask ^= bit


# ---------------------------------------------------------------------------------------------------- search


@dataclass(frozen=True)
class _Way:
    """The best known order of a set of units: its peak, live buffers and ready units after it, and its last step."""

    peak: int
    live: int
    ready: int
    unit: int = -1
    earlier: _Way | None = None

    def order(self) -> list[int]:
        """Return the units in order."""
        units: list[int] = []
        last = self
        while last.earlier is not None:
            units.append(last.unit)
            last = last.earlier
        return units[::-1]


def _updated_soon(problem: _Problem, order: Sequence[int]) -> Sequence[int]:
    """Return the order with writes of states as early as possible, unless that raises the peak.

    Gradients of several layers are then not kept at the same time. Units that read the caller's values, such as a rate,
    move along.
    """
    early_order, finished, updates = list[int](), 0, [unit for unit in order if problem.writes_state(unit)]
    given_readers = sum(1 << unit for unit in order if problem.moves_callers_value(unit))
    for unit in order:
        if not finished >> unit & 1:
            early_order.append(unit)
            finished |= 1 << unit
        for late in updates:
            if not problem.all_before[late] & ~(finished | given_readers):
                more = (problem.all_before[late] | 1 << late) & ~finished
                early_order += [bit.bit_length() - 1 for bit in _bits(more)]
                finished |= more
    return early_order if problem.peak(early_order) <= problem.peak(order) else order


def _cached_order(problem: _Problem) -> Sequence[int]:
    """Return the order of an equal problem that was solved lately, or search for one."""
    facts = problem.facts
    if facts not in _known_orders:
        while len(_known_orders) >= MAX_KNOWN_ORDERS:
            del _known_orders[next(iter(_known_orders))]
        _known_orders[facts] = _search(problem)
    return _known_orders[facts]


def _search(problem: _Problem) -> Sequence[int]:
    """Return the best order that is found within the bounds; the given one unless another has a lower peak."""
    original = range(len(problem.units))
    limit = problem.peak(original)
    if limit == problem.floor:
        return original
    width = max(MAX_ORDER_SETS // len(original), MIN_BEAM_WIDTH)
    prefixes = {0: _Way(problem.floor, problem.first_live, problem.first_ready)}
    for _ in original:
        if problem.work > MAX_BUFFER_VISITS:
            return original
        candidates: dict[int, _Way] = {}
        for finished, prefix in prefixes.items():
            for step in _steps(problem, finished, prefix):
                after = finished | 1 << step.unit
                if step.peak < limit and (after not in candidates or step.peak < candidates[after].peak):
                    candidates[after] = step
        best = sorted(
            candidates, key=lambda finished: (candidates[finished].peak, problem.nbytes(candidates[finished].live))
        )
        prefixes = {finished: candidates[finished] for finished in best[:width]}
    return next((prefix.order() for prefix in prefixes.values()), original)


def _steps(problem: _Problem, finished: int, prefix: _Way) -> list[_Way]:
    """Return the possible next units.

    A unit that neither raises the peak nor leaves more bytes alive is taken at once, since it cannot make later steps
    worse.
    """
    steps = []
    alive = problem.nbytes(prefix.live)
    for bit in _bits(prefix.ready):
        unit = bit.bit_length() - 1
        cost, live = problem.step(unit, finished, prefix.live)
        ready = prefix.ready ^ bit | problem.newly_ready(unit, finished | bit)
        steps.append(_Way(max(prefix.peak, cost), live, ready, unit, prefix))
        if cost <= prefix.peak and problem.nbytes(live) <= alive:
            return steps[-1:]
    return steps
