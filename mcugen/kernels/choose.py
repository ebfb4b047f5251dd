# SPDX-License-Identifier: Apache-2.0
"""Which kernel computes each node, where several fit: by what each costs in instructions, RAM and flash.

All choices are made together, because kernels share code and the arena is as large as its busiest moment.
Starting from several extremes, one node after the other takes the kernel that serves the user's goal best, until
none changes any more (coordinate descent); the best end is taken.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from mcugen.core.errors import UsageError
from mcugen.core.options import AUTO, OWN
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.traits import Widenable
from mcugen.kernels.common.library import alone, library_kernels, own_kernel
from mcugen.kernels.common.loop_options import FloatLoops
from mcugen.kernels.common.weighted_layers import half_weights
from mcugen.kernels.cost import CostTable, rough_time
from mcugen.lir.kernel import HALVES, SHORT_LOOPS, SPENDING, Kernel
from mcugen.lir.lower import lower
from mcugen.lir.program import Access, Buffer, Control, Instr, Program
from mcugen.lir.spec import own_kernels
from mcugen.lir.trial import Trial, trial
from mcugen.memory.order import reorder
from mcugen.memory.regions import Lives, freedom, joined_regions
from mcugen.memory.spans import bytes_at

SURROUNDINGS = (32768, 0)
"""Bytes of RAM and flash that count besides: so that products do not chase a few bytes of RAM."""

LEAST_BESIDES = 1024
"""The same of what the user wants most, which counts in earnest."""

FAVOUR = {"speed": 1024, "ram": 25, "flash": 1024}
"""What matters most counts so many times; a hundredth of RAM, whose last bytes cost most, as a quarter of speed."""

NEARLY = 1 + 1 / 16
"""How many times the least flash `flash` may take for time's sake."""

LAST_BYTES = 16
"""Flash counts so many times then: its last hundredth may cost a sixth of the time."""

MOST_SLOWER = 1.065
"""How many times the instructions of `balanced` it takes at most, where that much flash allows it: by estimates, which
err by 4 %, so that it is a tenth."""

ENOUGH = 0.25
MOST_SLOWDOWN = 1.25
"""`balanced` takes at most so many times the instructions that this share of RAM and flash allows."""

CLEARLY = 0.08
NOTABLE = 0.0025
"""Shares of a layer's cycles, and of all, that `speed` must win by another kernel than `balanced` takes: kernels differ
by more than that in the cycles that an instruction takes."""

MAX_ROUNDS = 8


@dataclass(frozen=True)
class Limits:
    """What a plan must not exceed, in bytes; of RAM, `taken` bytes are so anyway, if not by what is in no body.

    `instructions` are those of all nodes, by estimate.
    """

    ram: int
    flash: int
    taken: int = 0
    instructions: float = math.inf

    def excess(self, cost: Cost) -> int:
        """Bytes that a plan takes beyond."""
        return max(cost.ram - self.ram, 0) + max(cost.flash - self.flash, 0)

    def missed(self, cost: Cost) -> tuple[int, float]:
        """By how many bytes and by how many instructions a plan is beyond: nothing else counts before that."""
        return self.excess(cost), max(cost.instructions - self.instructions, 0.0)

    def counted(self, offer: Sequence[Candidate]) -> list[Candidate]:
        """Candidates as they count outside of bodies."""
        return [replace(c, ram=0) if c.ram <= self.taken else c for c in offer]


@dataclass(frozen=True)
class Candidate:
    """A kernel for a node, and what it would cost."""

    kernel: Kernel
    instructions: float
    """With waits for constants and for results, where the costs know of them: `waits` cycles."""
    flash: Mapping[int, int]
    """Bytes of constants and of functions, by numbers: equal constants, and functions of one text, are shared."""
    ram: int
    """Bytes alive while it runs: what waits for later, inputs, outputs and scratch."""
    stalls: float = 0.0
    """Cycles beyond the instructions."""
    waits: float = 0.0
    is_measured: bool = False
    """Whether its instructions are cycles, as it ran."""

    @property
    def cycles(self) -> float:
        """As far as they are known."""
        return self.instructions + self.stalls


@dataclass(frozen=True)
class Others:
    """Of the nodes without a choice, the bytes of RAM that one takes at most, and the instructions of all: those that
    count in trades, and those besides.
    """

    ram: int
    time: float
    besides: float


@dataclass(frozen=True)
class Cost:
    """Of a whole model, as far as kernels matter."""

    instructions: float
    ram: int
    flash: int

    def rank(self, goal: str) -> float:
        """The logarithm of instructions · RAM · flash, of which the goal's counts FAVOUR times; less is better.

        What there is nothing of counts as one: a model may have no weights.
        """
        totals = zip(_TOTALS, (self.instructions, self.ram, self.flash), (1, *SURROUNDINGS), strict=True)
        return sum(
            (FAVOUR[goal] if goal == name else 1)
            * math.log(max(total + (min(besides, LEAST_BESIDES) if goal == name else besides), 1))
            for name, total, besides in totals
        )


_TOTALS = ("speed", "ram", "flash")
"""The goal that each total serves; `balanced` favours none."""


Rank = Callable[[Cost], tuple[float, ...]]
"""Of two plans the one with less is taken."""


class Choice:
    """A kernel for each node that has several, or one of a library; of the names `wanted` wherever one fits.

    `family` is one of FAMILIES (options): `cmsis-nn` takes a library's kernel wherever one fits; for `auto` it is
    one more to choose from, where it was measured as our own were. `any_size` leaves those whose parameters follow from
    sizes that are known at run time. UsageError for a wanted kernel that fits nowhere. What kernels would cost is found
    once, for all limits that are asked for.
    """

    def __init__(
        self,
        graph: Graph,
        features: frozenset[str],
        costs: CostTable,
        goal: str,
        *,
        family: str = OWN,
        wanted: Collection[str] = (),
        any_size: bool = False,
    ) -> None:
        fitting = _measured_first(graph, all_fitting(graph, features, any_size, wanted), costs)
        library = {} if family == OWN or any_size else library_kernels(graph, features, costs, goal, wanted)
        _require(wanted, {k.name for found in (*fitting.values(), library.values()) for k in found})
        if family == AUTO:
            fitting, library = fitting | _compared(library, fitting, features, costs), {}
        fitting = {node: found for node, found in fitting.items() if node not in library}
        self._fitting = {node: [k for k in found if k.name in wanted][:1] or found for node, found in fitting.items()}
        self._library = library
        self._graph, self._features, self._costs, self._goal = graph, features, costs, goal

    def within(self, limits: Limits) -> dict[Node, Kernel]:
        """What serves the goal best for all nodes together."""
        return {node: kernel for node, kernel in self._taken(limits).items() if kernel.emit} | self._library

    def slowest(self, limits: Limits) -> float:
        """The most instructions that `balanced` may take, waits left out."""
        offered, others = self._offered(limits)
        return _slowest(_without_waits(offered), limits, others) + others.besides

    def _taken(self, limits: Limits) -> dict[Node, Kernel]:
        """One of the kernels that fit each node; other nodes have those of a library."""
        if all(len(found) == 1 for found in self._fitting.values()):
            return {node: found[0] for node, found in self._fitting.items()}
        offered, others = self._offered(limits)
        limits = replace(limits, instructions=limits.instructions - others.besides)
        taken = _search(offered, self._goal, limits, others)
        return {node: candidate.kernel for node, candidate in zip(self._offers[0], taken, strict=True)}

    def _offered(self, limits: Limits) -> tuple[list[list[Candidate]], Others]:
        """For each node its candidates, as they count; what other nodes take."""
        offers, rams = self._offers
        outer = set(self._graph.nodes)
        offered = [limits.counted(offer) if node in outer else offer for node, offer in offers.items()]
        return offered, Others(max(rams.values(), default=0), *self._time_of_others)

    @cached_property
    def _time_of_others(self) -> tuple[float, float]:
        """As it counts, and as it does not: what is known roughly counts where it is the larger part."""
        others = time_without_choice(self._graph, self._features, self._costs, self._fitting, self._goal)
        known = sum(min(c.instructions for c in offer) for offer in self._offers[0].values())
        return (others, 0.0) if others > known else (0.0, others)

    @cached_property
    def _offers(self) -> tuple[dict[Node, list[Candidate]], dict[str, int]]:
        return offers_of(self._graph, self._features, self._costs, self._fitting, self._library)


def _measured_first(graph: Graph, fitting: Mapping[Node, list[Kernel]], costs: CostTable) -> dict[Node, list[Kernel]]:
    """Of layers that were measured only the kernels that were: cycles are no instructions."""

    def measured(node: Node, found: list[Kernel]) -> list[Kernel]:
        return [k for k in found if (node.outputs[0].name, k.name) in costs.times]

    outer = set(graph.nodes)
    return {node: (node in outer and measured(node, found)) or found for node, found in fitting.items()}


def offers_of(
    graph: Graph,
    features: frozenset[str],
    costs: CostTable,
    fitting: Mapping[Node, Sequence[Kernel]],
    settled: Mapping[Node, Kernel] | None = None,
    *,
    in_any_order: bool = False,
) -> tuple[dict[Node, list[Candidate]], dict[str, int]]:
    """What each kernel that fits would cost, by node; the bytes that other nodes need, by their first outputs' names.

    Some of those have kernels already: `settled`. Nodes run in the order of the least RAM, or, `in_any_order`, each in
    the better one of that and theirs: in groups other orders are the best.
    """
    firsts = {node: found[0] for node, found in fitting.items() if found[0].emit}
    program = lower(graph, features, choices={**(settled or {}), **firsts})
    standing = alive_at(program) if in_any_order else {}
    reorder(program)
    alive = {name: min(now, standing.get(name, now), key=Alive.least) for name, now in alive_at(program).items()}
    lasting = {v for g in graph.nested() if g is not graph for v in g.inputs}
    times = dict(_nodes(graph))
    numbers: dict[object, int] = {}
    fitted, outer = replace(costs, times={}), set(graph.nodes)
    offers = {
        node: [
            _candidate(node, k, features, costs if node in outer else fitted, times[node], alive, lasting, numbers)
            for k in found
        ]
        for node, found in fitting.items()
    }
    offers = {node: _by_cycles(node, offer, costs, times[node]) for node, offer in offers.items()}
    others = alive.keys() - {node.outputs[0].name for node in fitting}
    return offers, {name: alive[name].least() for name in others}


def _by_cycles(node: Node, offer: list[Candidate], costs: CostTable, times: int) -> list[Candidate]:
    """Candidates that count by cycles of the core, if those of all of them were fitted."""
    cycles = [costs.cycles(node, c.kernel) for c in offer]
    known = [(c, n - costs.time(node, c.kernel)) for c, n in zip(offer, cycles, strict=True) if n is not None]
    if len(known) < len(offer) or any(c.is_measured for c in offer):
        return offer
    return [_taking(c, times * more) for c, more in known]


def _taking(candidate: Candidate, more: float) -> Candidate:
    """With so many cycles beside its instructions."""
    instructions, waits = candidate.instructions + more, candidate.waits + more
    return replace(candidate, instructions=instructions, waits=waits, stalls=0.0)


def _compared(
    library: Mapping[Node, Kernel],
    fitting: Mapping[Node, Sequence[Kernel]],
    features: frozenset[str],
    costs: CostTable,
) -> dict[Node, list[Kernel]]:
    """Our kernels and a library's, by the nodes of which both were measured.

    Of an operator without a choice, what it writes itself stands for a kernel (own_kernel).
    """
    found = {}
    for node, theirs in library.items():
        alone = own_kernel(node, features)
        ours = list(fitting.get(node, [alone] if alone else []))
        if costs.knows(node, theirs) and any(costs.knows(node, kernel) for kernel in ours):
            found[node] = [*ours, theirs]
    return found


def estimated_instructions(graph: Graph, costs: CostTable, kernels: Mapping[Node, Kernel]) -> dict[str, float]:
    """Of the nodes that have these kernels, in one inference, by the names of their first outputs."""
    return {n.outputs[0].name: times * costs.instructions(n, kernels[n]) for n, times in _nodes(graph) if n in kernels}


def time_without_choice(
    graph: Graph, features: frozenset[str], costs: CostTable, settled: Collection[Node], goal: str
) -> float:
    """Instructions of all nodes but those that are `settled`, in one inference, roughly where they were not measured.

    Those of a core are cycles, as far as they are known.
    """
    return sum(
        times * _time_alone(node, features, costs, goal)
        for node, times in _nodes(graph)
        if node not in settled and not node.op.bodies
    )


WIDENING = 0.45
"""Instructions a product that it takes to widen weights of few bits by tiles, for 32 rows each."""


def _time_alone(node: Node, features: frozenset[str], costs: CostTable, goal: str) -> float:
    """Of a node without a choice."""
    kernel = own_kernel(node, features)
    if kernel is not None and costs.knows(node, kernel):
        return _known_time(node, kernel, costs)
    if isinstance(node.op, Widenable) and node.op.widens_by_parts(node.sig, features):
        time = _known_time(node, Kernel("dense_f32_fpu", options=(FloatLoops,)), costs)  # which its products are
        return time + (goal != "speed") * WIDENING * node.op.macs(node.sig)
    return rough_time(node, features) + costs.rough_stalls(node)


def _known_time(node: Node, kernel: Kernel, costs: CostTable) -> float:
    cycles = costs.cycles(node, kernel)
    return costs.time(node, kernel) if cycles is None else cycles


def estimated_cycles(graph: Graph, costs: CostTable, kernels: Mapping[Node, Kernel]) -> float | None:
    """Of the same nodes, on memory that keeps pace with the core; None if there is no core.

    Those of kernels whose cycles were not fitted are instructions, and what is known to stall.
    """
    if not costs.core:
        return None

    def cycles(node: Node, kernel: Kernel) -> float:
        known = costs.cycles(node, kernel)
        return costs.time(node, kernel) + costs.stalls(node, kernel) if known is None else known

    return sum(times * cycles(n, kernels[n]) for n, times in _nodes(graph) if n in kernels)


def _nodes(graph: Graph, times: int = 1) -> Iterator[tuple[Node, int]]:
    """All nodes, those of bodies included, and how often each runs."""
    for node in graph.nodes:
        for body, repeats in zip(node.op.bodies, node.op.repeats, strict=True):
            yield from _nodes(body, times * repeats)
        yield node, times


def all_fitting(
    graph: Graph, features: frozenset[str], any_size: bool = False, wanted: Collection[str] = ()
) -> dict[Node, list[Kernel]]:
    """Our kernels that fit, by the nodes that have any, those of bodies included."""
    return {node: found for node, _ in _nodes(graph) if (found := fitting_kernels(node, features, any_size, wanted))}


def fitting_kernels(node: Node, features: frozenset[str], any_size: bool, wanted: Collection[str] = ()) -> list[Kernel]:
    """The kernels that fit a node and write their instruction themselves, the preferred ones first.

    Those that spend memory are found where that is wished, or by name.
    """
    found = [k for k in own_kernels(node.op) if k.emit and k.fits(node, features)]
    found = [k for k in found if not k.spends or SPENDING in features or k.name in wanted]
    if HALVES in features:
        found = [k for k in found if half_weights in k.when] or found
    return [k for k in found if k.any_size] or found if any_size else found


def unmeasured(graph: Graph, features: frozenset[str], costs: CostTable, any_size: bool = False) -> dict[Node, str]:
    """A remark on nodes with a choice of kernels of which some were not measured: those are guessed to be slow."""
    found = {}
    for node, _ in _nodes(graph):
        kernels = own_kernels(node.op)
        names = [k.name for k in kernels if k.emit and k.name not in costs.kernels and k.fits(node, features)]
        if names and len(fitting_kernels(node, features, any_size)) > 1:
            found[node] = f"not measured on {costs.cpu}: {', '.join(names)} (make costs)"
    return found


def _require(wanted: Collection[str], known: set[str]) -> None:
    missing = sorted(set(wanted) - known)
    if missing:
        offered = f"one of: {', '.join(sorted(known))}" if known else "this model has no layer with a choice"
        raise UsageError("a wanted kernel must fit some layer", ", ".join(missing), offered)


@dataclass(frozen=True)
class Alive:
    """Bytes alive while an instruction runs, but for its scratch; and those of them that it saves in place.

    `is_free`: whether its output has a place of its own, and is not a part of something larger.
    """

    nbytes: int
    saved: int
    is_free: bool

    def least(self) -> int:
        """What is left of them."""
        return self.nbytes - self.saved


def alive_at(program: Program) -> dict[str, Alive]:
    """By the name of a node's first output, at its busiest instruction."""
    scratch = {o.buffer for i in program.instrs for o in i.operands if o.access is Access.SCRATCH}
    lives = Lives(program, 0)
    places = {
        b: (number, at, len(region.members) == 1)
        for number, region in enumerate(joined_regions(lives, True))
        for b, at in region.members.items()
        if b not in scratch
    }
    spans = {b: (number, at, at + b.nbytes) for b, (number, at, _) in places.items()}
    taken = bytes_at(spans, lives.ranges, len(program.instrs))
    ending: dict[int, set[Buffer]] = defaultdict(set)
    for buffer, (_, last) in lives.ranges.items():
        ending[last].add(buffer)
    free = [
        all(places[o.buffer][2] for o in instr.operands if o.access is Access.OUT and o.buffer in places)
        for instr in program.instrs
    ]
    for start, end in program.blocks():
        if program.instrs[start].control is Control.STREAM and free[start]:  # its results may lie over its inputs
            saved = _saved_in_place([program.instrs[start]], ending[end])
            taken[start : end + 1] = [nbytes - saved for nbytes in taken[start : end + 1]]
    found: dict[str, Alive] = {}
    for index, (instr, is_free) in enumerate(zip(program.instrs, free, strict=True)):
        now = Alive(taken[index], _saved_in_place([instr], ending[index]) if is_free else 0, is_free)
        found[instr.name] = max(now, found.get(instr.name, now), key=Alive.least)
    return found


def _candidate(
    node: Node,
    kernel: Kernel,
    features: frozenset[str],
    costs: CostTable,
    times: int,
    alive: Mapping[str, Alive],
    lasting: Collection[Value],
    numbers: dict[object, int],
) -> Candidate:
    """What a kernel costs at a node, by lowering the node alone.

    `lasting` are values that nothing may overwrite; `numbers` are of what lies in flash, and get more.
    """
    made = trial(node, kernel, features) if kernel.emit else Trial.of(node, alone(node, features))
    program = made.program
    functions = {instr.function_key: kernel.name for instr in program.instrs}
    stored: dict[object, int] = dict(costs.code_of(functions, kernel.code_of(node)))
    stored.update(made.constants)
    flash = {numbers.setdefault(content, len(numbers)): nbytes for content, nbytes in stored.items()}
    around = alive.get(node.outputs[0].name)
    read = ((v, b) for v, b in zip(node.inputs, made.inputs, strict=True) if v is not None and b is not None)
    ending = {buffer for value, buffer in read if set(value.users) == {node} and value not in lasting}
    saved = _saved_in_place(program.instrs, ending) if around and around.is_free else 0
    ram = (around.nbytes if around else 0) - saved + program.scratch_size
    measured = costs.times.get((node.outputs[0].name, kernel.name))
    if measured is not None:
        return Candidate(kernel, times * measured, flash, ram, is_measured=True)
    waits, stalls = times * costs.waits(program), times * costs.stalls(node, kernel)
    return Candidate(kernel, times * costs.time(node, kernel) + waits, flash, ram, stalls, waits)


def _saved_in_place(instrs: Sequence[Instr], ending: Collection[Buffer]) -> int:
    """Bytes that an output need not take because it may lie over one of the buffers that nobody reads later."""
    outs = ((i, out.buffer) for i in instrs for out in i.operands if out.access is Access.OUT)
    pairs = ((i, y, x.buffer) for i, y in outs for x in i.operands if x.buffer in ending)
    found = ((y, x, freedom(i, y, x)) for i, y, x in pairs)
    return max((free.most_shared(y.nbytes, x.nbytes) for y, x, free in found if free is not None), default=0)


class _Plan:
    """A candidate for each node, and the running totals, with what `others` take, which have no choice."""

    def __init__(self, taken: Sequence[Candidate], others: Others) -> None:
        self.taken = list(taken)
        self._instructions = others.time + sum(c.instructions for c in taken)
        self._ram = _Largest([others.ram, *(c.ram for c in taken)])
        self._users: Counter[int] = Counter()
        self._flash = sum(self._add_code(candidate) for candidate in taken)

    def cost(self) -> Cost:
        """Instructions, RAM and flash of the whole network, as chosen now."""
        return Cost(self._instructions, self._ram.most, self._flash)

    def change(self, index: int, candidate: Candidate) -> None:
        """Lets a node take another candidate."""
        old, self.taken[index] = self.taken[index], candidate
        self._instructions += candidate.instructions - old.instructions
        self._ram.exchange(old.ram, candidate.ram)
        self._flash -= self._remove_code(old)
        self._flash += self._add_code(candidate)

    def costs_with(self, index: int, offer: Sequence[Candidate]) -> list[Cost]:
        """What the whole would cost if a node took each of these."""
        old = self.taken[index]
        ram, flash = self._ram.most_without(old.ram), self._flash - self._remove_code(old)
        found = [
            Cost(
                self._instructions + (candidate.instructions - old.instructions),
                max(ram, candidate.ram),
                flash + self._unshared(candidate),
            )
            for candidate in offer
        ]
        self._add_code(old)
        return found

    def _add_code(self, candidate: Candidate) -> int:
        """Bytes that it adds."""
        added = self._unshared(candidate)
        for key in candidate.flash:
            self._users[key] += 1
        return added

    def _remove_code(self, candidate: Candidate) -> int:
        """Bytes that are gone with it."""
        for key in candidate.flash:
            self._users[key] -= 1
        return self._unshared(candidate)

    def _unshared(self, candidate: Candidate) -> int:
        """Bytes of what nobody else has."""
        return sum(nbytes for key, nbytes in candidate.flash.items() if not self._users[key])


class _Largest:
    """The largest of numbers of which one after the other is exchanged."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.most = max(numbers)
        self._counts = Counter(numbers)

    def most_without(self, number: int) -> int:
        """The largest of all but one that equals `number`; only where it is the largest itself, others are sought."""
        if number < self.most or self._counts[number] > 1:
            return self.most
        return max((other for other in self._counts if other != number), default=0)

    def exchange(self, old: int, new: int) -> None:
        """Takes out one that equals `old`, and puts `new` in its place."""
        self.most = max(self.most_without(old), new)
        self._counts[new] += 1
        self._counts[old] -= 1
        if not self._counts[old]:
            del self._counts[old]


def _search(offers: Sequence[Sequence[Candidate]], goal: str, limits: Limits, others: Others) -> list[Candidate]:
    """The best by the goal. For `speed` that takes fewest instructions, where they are sure to be faster. `balanced`
    goes by waits only where that is clearly better, as estimates of them err.
    """
    taken = _best(offers, goal, limits, others)
    if goal == "balanced" and any(c.waits for offer in offers for c in offer):
        plain = _balanced(offers, limits, others)
        return taken if _is_clearly_better(_Plan(taken, others), _Plan(plain, others), limits) else plain
    if goal != "speed":
        return taken
    surely = _where_faster(taken, _balanced(offers, limits, others))
    fits = limits.missed(_Plan(surely, others).cost()) <= limits.missed(_Plan(taken, others).cost())
    return surely if fits else taken


def _balanced(offers: Sequence[Sequence[Candidate]], limits: Limits, others: Others) -> list[Candidate]:
    """What that goal takes, which knows of no waits."""
    plain = _without_waits(offers)
    taken = _best(plain, "balanced", limits, others)
    return [offer[given.index(c)] for offer, given, c in zip(offers, plain, taken, strict=True)]


def _without_waits(offers: Sequence[Sequence[Candidate]]) -> list[list[Candidate]]:
    return [[replace(c, instructions=c.instructions - c.waits, waits=0.0) for c in offer] for offer in offers]


def _where_faster(fast: Sequence[Candidate], other: Sequence[Candidate]) -> list[Candidate]:
    """Of two plans the other one, but for layers that the fast one wins clearly."""
    notable = NOTABLE * sum(c.cycles for c in other)

    def is_faster(quick: Candidate, slow: Candidate) -> bool:
        least = 0.0 if quick.is_measured else max(CLEARLY * slow.cycles, notable)
        return slow.cycles - quick.cycles > least

    return [quick if is_faster(quick, slow) else slow for quick, slow in zip(fast, other, strict=True)]


def _best(offers: Sequence[Sequence[Candidate]], goal: str, limits: Limits, others: Others) -> list[Candidate]:
    """The best end of the descents from the extremes."""
    if goal == "flash":
        return _traded(offers, limits, others)
    free = best = _best_end(offers, others, _within(limits, lambda cost: cost.rank(goal)))
    if goal == "balanced":
        fast = replace(limits, instructions=min(limits.instructions, _slowest(offers, limits, others)))
        rank = _within(fast, lambda cost: cost.rank(goal))
        best = _best_end(offers, others, rank)
        # that limit may end descents early; estimates of RAM do not tell small differences
        if _is_clearly_better(free, best, fast):
            best = free
    return best.taken


def _is_clearly_better(one: _Plan, other: _Plan, limits: Limits) -> bool:
    """For a balance; what differs by less, estimates do not tell apart."""
    rank = _within(limits, lambda cost: cost.rank("balanced"))
    clearly = _within(limits, lambda cost: cost.rank("balanced") + CLEARLY)
    return clearly(one.cost()) < rank(other.cost())


def _within(limits: Limits, worth: Callable[[Cost], float]) -> Rank:
    """Of plans within the limits, or of those that miss them least, that of the least `worth`."""
    return lambda cost: (*limits.missed(cost), worth(cost))


def _traded(offers: Sequence[Sequence[Candidate]], limits: Limits, others: Others) -> list[Candidate]:
    """Of what takes nearly the least flash, and fits where that fits, the best trade of time and flash; one that is
    hardly slower than `balanced` if there is any.
    """
    least = _best_end(offers, others, _within(limits, lambda cost: cost.rank("flash"))).cost()
    most = replace(limits, ram=max(limits.ram, least.ram), flash=int(NEARLY * least.flash))
    if limits.flash < most.flash:
        most = replace(most, flash=max(limits.flash, least.flash))
    long = [[c for c in offer if SHORT_LOOPS not in c.kernel.needs] or offer for offer in offers]
    slowest = MOST_SLOWER * _Plan(_best(long, "balanced", limits, others), others).cost().instructions
    quick = replace(most, instructions=min(limits.instructions, slowest))
    found = _best_trade(offers, most, others)
    if any(quick.missed(found.cost())):
        faster = _best_trade(offers, quick, others)
        found = found if any(quick.missed(faster.cost())) else faster
    return found.taken


def _best_trade(offers: Sequence[Sequence[Candidate]], limits: Limits, others: Others) -> _Plan:
    """Of time and flash, in which the last bytes of flash count."""

    def trade(cost: Cost) -> float:
        return math.log(max(cost.instructions, 1.0)) + LAST_BYTES * math.log(max(cost.flash, 1))

    rank = _within(limits, trade)
    found = _best_end(offers, others, rank)
    while True:
        rivals = [_end(start, offers, others, rank) for start in _with_one_kernel(found.taken, offers)]
        better = min(rivals, key=lambda plan: rank(plan.cost()), default=found)
        if rank(better.cost()) >= rank(found.cost()):
            return found
        found = better


def _with_one_kernel(taken: Sequence[Candidate], offers: Sequence[Sequence[Candidate]]) -> Iterator[list[Candidate]]:
    """A plan, but with a kernel wherever it is offered: its code is shared, so that one node alone may gain nothing."""
    for name in sorted({c.kernel.name for offer in offers for c in offer}):
        yield [next((c for c in offer if c.kernel.name == name), old) for offer, old in zip(offers, taken, strict=True)]


def _slowest(offers: Sequence[Sequence[Candidate]], limits: Limits, others: Others) -> float:
    """The most instructions that `balanced` may take: where there is room, bytes that it saves serve nobody."""
    room = Limits(int(ENOUGH * limits.ram), int(ENOUGH * limits.flash), limits.taken)
    fastest = _best_end(offers, others, _within(room, lambda cost: cost.rank("speed"))).cost()
    return math.inf if room.excess(fastest) else MOST_SLOWDOWN * fastest.instructions


def _best_end(offers: Sequence[Sequence[Candidate]], others: Others, rank: Rank) -> _Plan:
    """Of what the descents come to, that of the least rank."""
    starts = {tuple(map(id, start)): start for start in _starts(offers)}
    ends = [_end(start, offers, others, rank) for start in starts.values()]
    return min(ends, key=lambda plan: rank(plan.cost()))


def _end(start: Sequence[Candidate], offers: Sequence[Sequence[Candidate]], others: Others, rank: Rank) -> _Plan:
    """What a descent comes to."""
    plan = _Plan(start, others)
    _descend(plan, offers, rank)
    return plan


def _starts(offers: Sequence[Sequence[Candidate]]) -> Iterator[list[Candidate]]:
    """The fastest, the smallest, and for each kernel: that one wherever it is offered, else the smallest."""

    def flash(candidate: Candidate) -> int:
        return sum(candidate.flash.values())

    for extreme in (lambda c: c.instructions, lambda c: c.ram, flash):
        yield [min(offer, key=extreme) for offer in offers]
    for name in sorted({c.kernel.name for offer in offers for c in offer}):
        yield [min(offer, key=lambda c: (c.kernel.name != name, flash(c))) for offer in offers]


def _descend(plan: _Plan, offers: Sequence[Sequence[Candidate]], rank: Rank) -> None:
    """Changes one node at a time until nothing gets better."""
    for _ in range(MAX_ROUNDS):
        changed = False
        for index, offer in enumerate(offers):
            ranks = [rank(cost) for cost in plan.costs_with(index, offer)]
            best = min(ranks)
            if best < rank(plan.cost()):
                plan.change(index, offer[ranks.index(best)])
                changed = True
        if not changed:
            return
