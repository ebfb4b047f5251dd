# SPDX-License-Identifier: Apache-2.0
"""Choice of a kernel for each node, by the estimated instructions, RAM and flash of the whole model.

All choices are made together, because kernels share code and the peak of the arena is shared by all nodes. The search
is a coordinate descent: it starts from several extremes, lets one node after the other take the candidate that ranks
best by the user's goal until no node changes any more, and returns the best plan that a descent reached.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

from mcugen.core.errors import UsageError
from mcugen.core.options import AUTO, OWN
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.traits import SelfTimed, Widenable
from mcugen.kernels.common.library import library_kernels, lower_without_choice, own_kernel
from mcugen.kernels.common.loop_options import FloatLoops
from mcugen.kernels.common.weighted_layers import half_weights
from mcugen.kernels.cost import CostTable, estimate_unmeasured_instructions
from mcugen.lir.kernel import FLOAT16_WEIGHTS, MEMORY_FOR_SPEED, SHORT_LOOPS, Kernel
from mcugen.lir.lower import lower
from mcugen.lir.program import Access, Buffer, Control, Instr, Program
from mcugen.lir.spec import own_kernels
from mcugen.lir.trial import Trial, trial
from mcugen.memory.order import reorder
from mcugen.memory.regions import LiveRanges, freedom, joined_regions
from mcugen.memory.spans import bytes_at

RANK_OFFSET_BYTES = (32768, 0)
"""Bytes that are added to the totals of RAM and of flash when plans are ranked by Cost.rank. Without them, a few bytes
of a small total would outweigh large savings elsewhere."""

MAX_GOAL_OFFSET_BYTES = 1024
"""Upper limit of the offset (RANK_OFFSET_BYTES) for the total that the goal minimizes: even small savings of this total
count."""

GOAL_WEIGHTS = {"speed": 1024, "ram": 25, "flash": 1024}
"""Weight, by goal, of the total that the goal minimizes, in Cost.rank; the other totals have weight 1. With 25, one
percent of RAM, whose last bytes are the most expensive to save, counts as much as a quarter of speed."""

MAX_FLASH_EXCESS_RATIO = 1 + 1 / 16
"""Largest ratio of the flash of a `flash` plan to the least flash found: the excess may be spent on speed."""

FLASH_TRADE_WEIGHT = 16
"""Weight of flash relative to time when plans for goal `flash` are compared: saving 1 % of flash may cost 16 % of the
time."""

MAX_FLASH_SLOWDOWN = 1.065
"""Largest ratio of the instructions of a `flash` plan to those of `balanced`, where the flash limit allows such a plan.
Estimates err by 4 %, so the true ratio is at most about 1.1."""

AMPLE_MEMORY_FRACTION = 0.25
"""Share of the available RAM and flash. If a fast plan uses no more than this share, memory is ample, and `balanced`
must not be much slower (MAX_BALANCED_SLOWDOWN)."""
MAX_BALANCED_SLOWDOWN = 1.25
"""Largest ratio of the instructions of a `balanced` plan to those of the fastest plan that leaves memory ample
(AMPLE_MEMORY_FRACTION)."""

MIN_CLEAR_GAIN = 0.08
"""Smallest relative gain that is larger than the error of estimates. `speed` replaces the kernel of `balanced` only by
one that saves more than this share of the layer's cycles, because cycles per instruction differ between kernels."""
MIN_EXCHANGE_GAIN = 0.01
"""Smallest relative gain for which `balanced` exchanges one kernel for another because of their declared stalls: these
are measured, and both kernels have one emitter, so that errors of their estimates are alike."""
MIN_TOTAL_GAIN = 0.0025
"""Smallest share of the cycles of all layers that replacing a kernel of `balanced` for `speed` must save
(MIN_CLEAR_GAIN)."""

MAX_DESCENT_ROUNDS = 8
"""Largest number of rounds of the coordinate descent over kernel choices; each round tries all kernels of every
node."""


@dataclass(frozen=True)
class Limits:
    """Upper limits of the cost of a plan, which is a choice of one kernel for each node.

    Attributes:
        ram: Largest number of bytes of RAM that a plan may use.
        flash: Largest number of bytes of flash that a plan may use.
        ram_in_use: Bytes of RAM that other parts of the program use anyway, so that using up to this many bytes costs a
            node nothing (discount_ram). This does not apply to nodes in bodies of loops and branches.
        instructions: Largest number of estimated instructions of all nodes per inference.
    """

    ram: int
    flash: int
    ram_in_use: int = 0
    instructions: float = math.inf

    def excess(self, cost: Cost) -> int:
        """Return the bytes of RAM plus flash by which a plan of this cost exceeds the limits; 0 within them."""
        return max(cost.ram - self.ram, 0) + max(cost.flash - self.flash, 0)

    def miss(self, cost: Cost) -> tuple[int, float]:
        """Return how far a plan of this cost exceeds the limits, as a pair: bytes (RAM plus flash), and instructions.

        Both are 0 within the limits. Plans are compared by this pair first, then by the goal.
        """
        return self.excess(cost), max(cost.instructions - self.instructions, 0.0)

    def discount_ram(self, offer: Sequence[Candidate]) -> list[Candidate]:
        """Return a node's candidates, with `ram` set to 0 for those that need at most `ram_in_use` bytes.

        Args:
            offer: The candidate kernels of one node, which must be outside of bodies (subgraphs of loops and branches).
        """
        return [replace(c, ram=0) if c.ram <= self.ram_in_use else c for c in offer]


@dataclass(frozen=True)
class Candidate:
    """A kernel for a node, and its estimated or measured cost per inference.

    Attributes:
        kernel: The kernel that would compute the node.
        instructions: Estimated instructions, plus `load_stalls` where the cost model knows them; measured cycles if
            `is_measured`.
        flash: Bytes of each constant and each C function that the kernel needs, by a number that identifies the
            content. Equal constants, and functions of equal text, have the same number and are stored once in the
            program.
        ram: Bytes of RAM alive while the node runs: live values of other nodes, inputs, outputs and scratch.
        stalls: Stall cycles beyond `instructions` that the kernel declares for the core (Kernel.stalls).
        load_stalls: Part of `instructions` that are stall cycles: those of loads of constants and, where fitted cycles
            of the core replace instructions, the difference between both.
        is_measured: Whether `instructions` are cycles that were measured on the device.
    """

    kernel: Kernel
    instructions: float
    flash: Mapping[int, int]
    ram: int
    stalls: float = 0.0
    load_stalls: float = 0.0
    is_measured: bool = False

    @property
    def cycles(self) -> float:
        """Return the estimated cycles of the node per inference: `instructions` plus `stalls`."""
        return self.instructions + self.stalls


@dataclass(frozen=True)
class FixedCost:
    """The cost of all nodes for which there is no choice between kernels.

    The instructions of these nodes are a rough estimate. They count in comparisons of plans only if they exceed the
    least possible instructions of the nodes with a choice. So one of the two figures is 0.

    Attributes:
        ram_bytes: Largest number of bytes of RAM in use while one of these nodes runs.
        compared_instructions: Instructions per inference that are part of a plan's total when plans are compared.
        uncompared_instructions: Instructions per inference that only count towards the limit of instructions, not when
            plans are compared.
    """

    ram_bytes: int
    compared_instructions: float
    uncompared_instructions: float


@dataclass(frozen=True)
class Cost:
    """The estimated cost of a whole model with one choice of kernels.

    Attributes:
        instructions: Instructions per inference, with stall cycles as far as they are known.
        ram: Peak RAM in bytes: the largest use of the arena by any node.
        flash: Bytes of constants and functions that depend on the kernels.
    """

    instructions: float
    ram: int
    flash: int

    def rank(self, goal: str) -> float:
        """Return a number by which plans are compared for a goal; the plan with the lower number is better.

        It is log(instructions) + log(RAM + offset) + log(flash + offset), in which the total that the goal minimizes
        has the weight GOAL_WEIGHTS[goal]. The offsets (RANK_OFFSET_BYTES) keep a few bytes of a small total from
        outweighing large savings elsewhere. Totals of 0 count as 1: a model may have no weights.
        """
        totals = zip(_TOTALS, (self.instructions, self.ram, self.flash), (1, *RANK_OFFSET_BYTES), strict=True)
        return sum(
            (GOAL_WEIGHTS[goal] if goal == name else 1)
            * math.log(max(total + (min(besides, MAX_GOAL_OFFSET_BYTES) if goal == name else besides), 1))
            for name, total, besides in totals
        )


_TOTALS = ("speed", "ram", "flash")
"""Names of the goals that minimize instructions, RAM and flash, in this order; `balanced` favours none of the
totals."""


Rank = Callable[[Cost], tuple[float, ...]]
"""Function that returns the sort key of a plan's cost: the plan with the lower key is better."""


class KernelChoice:
    """The search for the best kernel of each node of a graph, by estimated cost.

    The costs of kernels are estimated once, for all limits that `within` is called with.

    Args:
        graph: The model.
        features: Names of CPU features, and of tuning flags, which select variants of kernels.
        costs: Cost model of the CPU.
        goal: The goal of the optimization: `speed`, `ram`, `flash` or `balanced`.
        family: One of FAMILIES (mcugen.core.options): `cmsis-nn` uses a kernel of the library wherever one fits; for
            `auto`, a library kernel is one more candidate where both it and one of mcugen's kernels were measured.
        requested: Names of kernels that are used wherever they fit.
        any_size: Whether sizes may be known at run time only: then only kernels with Kernel.any_size are used at nodes
            that have such kernels.

    Raises:
        UsageError: A kernel named in `requested` fits no node.
    """

    def __init__(
        self,
        graph: Graph,
        features: frozenset[str],
        costs: CostTable,
        goal: str,
        *,
        family: str = OWN,
        requested: Collection[str] = (),
        any_size: bool = False,
    ) -> None:
        fitting = _measured_first(graph, all_fitting(graph, features, any_size, requested), costs)
        library = {} if family == OWN or any_size else library_kernels(graph, family, features, costs, goal, requested)
        _require(requested, {k.name for kernels in (*fitting.values(), library.values()) for k in kernels})
        if family == AUTO:
            fitting, library = fitting | _compared(library, fitting, features, costs), {}
        fitting = {node: kernels for node, kernels in fitting.items() if node not in library}
        self._fitting = {
            node: [k for k in kernels if k.name in requested][:1] or kernels for node, kernels in fitting.items()
        }
        self._library = library
        self._graph, self._features, self._costs, self._goal = graph, features, costs, goal

    def within(self, limits: Limits) -> dict[Node, Kernel]:
        """Return the kernel of each node in the plan that is best for the goal within the limits.

        Nodes whose operator emits its own instructions, without a choice of kernels, are absent.
        """
        return {node: kernel for node, kernel in self._taken(limits).items() if kernel.emit} | self._library

    def slowest(self, limits: Limits) -> float:
        """Return the largest number of instructions per inference, without stalls, that a `balanced` plan may take.

        It is MAX_BALANCED_SLOWDOWN times the instructions of the fastest plan, if that plan uses at most the fraction
        AMPLE_MEMORY_FRACTION of the limits of RAM and flash. Otherwise, the result is infinite.
        """
        offered, fixed_cost = self._offered(limits)
        return _slowest(_without_waits(offered), limits, fixed_cost) + fixed_cost.uncompared_instructions

    def _taken(self, limits: Limits) -> dict[Node, Kernel]:
        """Return the chosen kernel of each node with candidates; nodes with a library kernel are not among them."""
        if all(len(kernels) == 1 for kernels in self._fitting.values()):
            return {node: kernels[0] for node, kernels in self._fitting.items()}
        offered, fixed_cost = self._offered(limits)
        limits = replace(limits, instructions=limits.instructions - fixed_cost.uncompared_instructions)
        plan = _search(offered, self._goal, limits, fixed_cost)
        return {node: candidate.kernel for node, candidate in zip(self._offers[0], plan, strict=True)}

    def _offered(self, limits: Limits) -> tuple[list[list[Candidate]], FixedCost]:
        """Return the candidates of each node under these limits, and the cost of all other nodes."""
        offers, rams = self._offers
        outer = set(self._graph.nodes)
        offered = [limits.discount_ram(offer) if node in outer else offer for node, offer in offers.items()]
        return offered, FixedCost(max(rams.values(), default=0), *self._time_of_others)

    @cached_property
    def _time_of_others(self) -> tuple[float, float]:
        """Return the instructions of nodes without a choice as (compared, uncompared), see FixedCost.

        Their rough estimate counts only where it exceeds the least instructions of the nodes with a choice.
        """
        fixed_time = time_without_choice(self._graph, self._features, self._costs, self._fitting, self._goal)
        known = sum(min(c.instructions for c in offer) for offer in self._offers[0].values())
        return (fixed_time, 0.0) if fixed_time > known else (0.0, fixed_time)

    @cached_property
    def _offers(self) -> tuple[dict[Node, list[Candidate]], dict[str, int]]:
        return offers_of(self._graph, self._features, self._costs, self._fitting, self._library)


def _measured_first(graph: Graph, fitting: Mapping[Node, list[Kernel]], costs: CostTable) -> dict[Node, list[Kernel]]:
    """Keep only the measured kernels of nodes that were measured, outside of bodies.

    Measured cycles and estimated instructions cannot be compared.
    """

    def measured(node: Node, kernels: list[Kernel]) -> list[Kernel]:
        return [k for k in kernels if (node.outputs[0].name, k.name) in costs.times]

    outer = set(graph.nodes)
    return {node: (node in outer and measured(node, kernels)) or kernels for node, kernels in fitting.items()}


def offers_of(
    graph: Graph,
    features: frozenset[str],
    costs: CostTable,
    fitting: Mapping[Node, Sequence[Kernel]],
    settled: Mapping[Node, Kernel] | None = None,
    *,
    in_any_order: bool = False,
) -> tuple[dict[Node, list[Candidate]], dict[str, int]]:
    """Estimate the cost of every kernel that fits a node, and the RAM of the nodes without a choice of kernels.

    Args:
        graph: The model.
        features: Names of CPU features, and of tuning flags, which select variants of kernels.
        costs: Cost model of the CPU.
        fitting: The kernels that fit, by node.
        settled: Nodes whose kernel is fixed already, such as library kernels.
        in_any_order: Whether to use, for each node, the smaller RAM of two node orders: the graph's own and the order
            of least RAM. Line-buffer fusion, which computes several layers together row by row, needs this, because its
            best order may be another one. If False, nodes run in the order of least RAM.

    Returns:
        The candidates of each node of `fitting`, and for the other nodes the bytes of RAM alive while the node runs, by
        the name of the node's first output.
    """
    firsts = {node: kernels[0] for node, kernels in fitting.items() if kernels[0].emit}
    program = lower(graph, features, choices={**(settled or {}), **firsts})
    standing = live_memory_by_node(program) if in_any_order else {}
    reorder(program)
    alive = {
        name: min(now, standing.get(name, now), key=LiveMemory.used_bytes)
        for name, now in live_memory_by_node(program).items()
    }
    lasting = {v for g in graph.nested() if g is not graph for v in g.inputs}
    times = dict(_nodes(graph))
    numbers: dict[object, int] = {}
    fitted, outer = replace(costs, times={}), set(graph.nodes)
    offers = {
        node: [
            _candidate(node, k, features, costs if node in outer else fitted, times[node], alive, lasting, numbers)
            for k in kernels
        ]
        for node, kernels in fitting.items()
    }
    offers = {node: _by_cycles(node, offer, costs, times[node]) for node, offer in offers.items()}
    fixed_names = alive.keys() - {node.outputs[0].name for node in fitting}
    return offers, {name: alive[name].used_bytes() for name in fixed_names}


def _by_cycles(node: Node, offer: list[Candidate], costs: CostTable, times: int) -> list[Candidate]:
    """Return the candidates with core cycles in place of instructions, if all of them have fitted cycles."""
    cycles = [costs.cycles(node, c.kernel) for c in offer]
    known = [(c, n - costs.time(node, c.kernel)) for c, n in zip(offer, cycles, strict=True) if n is not None]
    if len(known) < len(offer) or any(c.is_measured for c in offer):
        return offer
    return [_taking(c, times * more) for c, more in known]


def _taking(candidate: Candidate, more: float) -> Candidate:
    """Return the candidate with additional stall cycles among its instructions."""
    instructions, load_stalls = candidate.instructions + more, candidate.load_stalls + more
    return replace(candidate, instructions=instructions, load_stalls=load_stalls, stalls=0.0)


def _compared(
    library: Mapping[Node, Kernel],
    fitting: Mapping[Node, Sequence[Kernel]],
    features: frozenset[str],
    costs: CostTable,
) -> dict[Node, list[Kernel]]:
    """Return our kernels and the library's for each node at which kernels of both were measured.

    If an operator has no choice of kernels, the kernel of the one instruction that it emits is used (own_kernel).
    """
    compared = {}
    for node, theirs in library.items():
        alone = own_kernel(node, features)
        ours = list(fitting.get(node, [alone] if alone else []))
        if costs.knows(node, theirs) and any(costs.knows(node, kernel) for kernel in ours):
            compared[node] = [*ours, theirs]
    return compared


def estimated_instructions(graph: Graph, costs: CostTable, kernels: Mapping[Node, Kernel]) -> dict[str, float]:
    """Estimate the instructions per inference of each node that has a kernel.

    Args:
        graph: The model.
        costs: Cost model of the CPU.
        kernels: The kernels of nodes.

    Returns:
        Instructions by the name of a node's first output; nodes without a kernel are absent.
    """
    return {n.outputs[0].name: times * costs.instructions(n, kernels[n]) for n, times in _nodes(graph) if n in kernels}


def time_without_choice(
    graph: Graph, features: frozenset[str], costs: CostTable, settled: Collection[Node], goal: str
) -> float:
    """Estimate the time per inference of the nodes that are not `settled`, in instructions, or in cycles where known.

    A node none of whose kernels was measured is estimated as simple C.

    Args:
        graph: The model.
        features: Names of CPU features, and of tuning flags, which select variants of kernels.
        costs: Cost model of the CPU; cycles that it has fitted for a core replace instructions.
        settled: Nodes to leave out, because their kernel is chosen elsewhere.
        goal: The goal of the optimization; unless it is `speed`, weights of fewer bits than the computation stay packed
            in flash and are unpacked at run time, one tile of weights at a time, which adds instructions.

    Returns:
        The sum over the nodes.
    """
    return sum(
        times * _time_alone(node, features, costs, goal)
        for node, times in _nodes(graph)
        if node not in settled and not node.op.bodies
    )


WIDENING_INSTRUCTIONS_PER_MAC = 0.45
"""Instructions per multiply-accumulate that unpacking weights of few bits adds, if each unpacked tile of weights serves
32 rows of the input."""


def _time_alone(node: Node, features: frozenset[str], costs: CostTable, goal: str) -> float:
    """Return the instructions, or cycles where known, of a node without a choice of kernels."""
    if isinstance(node.op, SelfTimed):
        return node.op.cycles(node.sig)
    kernel = own_kernel(node, features)
    if kernel is not None and costs.knows(node, kernel):
        return _known_time(node, kernel, costs)
    if isinstance(node.op, Widenable) and node.op.widens_by_parts(node.sig, features):
        time = _known_time(node, Kernel("dense_f32_fpu", options=(FloatLoops,)), costs)  # It computes the products.
        return time + (goal != "speed") * WIDENING_INSTRUCTIONS_PER_MAC * node.op.macs(node.sig)
    return estimate_unmeasured_instructions(node, features) + costs.rough_stalls(node)


def _known_time(node: Node, kernel: Kernel, costs: CostTable) -> float:
    cycles = costs.cycles(node, kernel)
    return costs.time(node, kernel) if cycles is None else cycles


def estimated_cycles(graph: Graph, costs: CostTable, kernels: Mapping[Node, Kernel]) -> float | None:
    """Estimate the cycles per inference of all nodes that have a kernel, on memory without stalls.

    For kernels without fitted cycles, the estimate is the number of instructions plus the known stall cycles.

    Args:
        graph: The model.
        costs: Cost model of the CPU.
        kernels: The kernels of nodes; other nodes do not count.

    Returns:
        The sum of cycles, or None if the cost model is for no particular core (CostTable.core).
    """
    if not costs.core:
        return None

    def cycles(node: Node, kernel: Kernel) -> float:
        known = costs.cycles(node, kernel)
        return costs.time(node, kernel) + costs.stalls(node, kernel) if known is None else known

    return sum(times * cycles(n, kernels[n]) for n, times in _nodes(graph) if n in kernels)


def _nodes(graph: Graph, times: int = 1) -> Iterator[tuple[Node, int]]:
    """Yield all nodes, including those of bodies, and how often each runs per inference."""
    for node in graph.nodes:
        for body, repeats in zip(node.op.bodies, node.op.repeats, strict=True):
            yield from _nodes(body, times * repeats)
        yield node, times


def all_fitting(
    graph: Graph, features: frozenset[str], any_size: bool = False, requested: Collection[str] = ()
) -> dict[Node, list[Kernel]]:
    """Return mcugen's own kernels that fit each node, including nodes of bodies (loops and branches).

    Nodes that no kernel fits are left out.

    Args:
        graph: The model.
        features: Names of CPU features, and of tuning flags, which select variants of kernels.
        any_size: Whether sizes may be known at run time only.
        requested: Names of kernels that are returned even if they use more memory to save time.
    """
    return {
        node: kernels for node, _ in _nodes(graph) if (kernels := fitting_kernels(node, features, any_size, requested))
    }


def fitting_kernels(
    node: Node, features: frozenset[str], any_size: bool, requested: Collection[str] = ()
) -> list[Kernel]:
    """Return mcugen's own kernels that fit a node, in order of preference.

    Kernels that use more memory to save time (Kernel.spends) are returned only under the tuning flag MEMORY_FOR_SPEED,
    or if `requested` names them. Under the flag FLOAT16_WEIGHTS, only kernels with float16 weights are returned if any
    fits.

    Args:
        node: The node.
        features: Names of CPU features, and of tuning flags, which select variants of kernels.
        any_size: Whether to return only the kernels for sizes known at run time, if any fits.
        requested: Names of kernels that are returned even if they use more memory to save time.
    """
    kernels = [k for k in own_kernels(node.op) if k.emit and k.fits(node, features)]
    kernels = [k for k in kernels if not k.spends or MEMORY_FOR_SPEED in features or k.name in requested]
    if FLOAT16_WEIGHTS in features:
        kernels = [k for k in kernels if half_weights in k.when] or kernels
    return [k for k in kernels if k.any_size] or kernels if any_size else kernels


def remarks_on_unmeasured(
    graph: Graph, features: frozenset[str], costs: CostTable, any_size: bool = False
) -> dict[Node, str]:
    """Return a remark for each node whose choice of kernels is uncertain, as some fitting kernels were not measured.

    The remark is a text that names these kernels; the search assumes that they are slow. Nodes that only one kernel
    fits, or whose kernels all were measured on the CPU, are absent.

    Args:
        graph: The model.
        features: Names of CPU features, and of tuning flags, which select variants of kernels.
        costs: Cost model of the CPU.
        any_size: Whether sizes may be known at run time only.
    """
    remarks = {}
    for node, _ in _nodes(graph):
        kernels = own_kernels(node.op)
        names = [k.name for k in kernels if k.emit and k.name not in costs.kernels and k.fits(node, features)]
        if names and len(fitting_kernels(node, features, any_size)) > 1:
            remarks[node] = f"not measured on {costs.cpu}: {', '.join(names)} (make costs)"
    return remarks


def _require(requested: Collection[str], known: set[str]) -> None:
    missing = sorted(set(requested) - known)
    if missing:
        offered = f"one of: {', '.join(sorted(known))}" if known else "this model has no layer with a choice"
        raise UsageError("the kernel of --kernel must suit a layer of the model", ", ".join(missing), offered)


@dataclass(frozen=True)
class LiveMemory:
    """RAM in use while one instruction of a program runs, without the instruction's scratch memory.

    Attributes:
        nbytes: Bytes of live buffers, counted as if no output of the instruction shared memory with an input.
        saved: Bytes to subtract from `nbytes`, because an output of the instruction overwrites an input that is not
            used later.
        is_free: Whether the outputs have buffers of their own, so that they may overwrite inputs; False if they are
            parts of larger buffers.
    """

    nbytes: int
    saved: int
    is_free: bool

    def used_bytes(self) -> int:
        """Return the bytes of RAM that live buffers take: `nbytes` less `saved`."""
        return self.nbytes - self.saved


def live_memory_by_node(program: Program) -> dict[str, LiveMemory]:
    """Return the RAM in use while each node of a program runs, by the name of the node's first output.

    If a node has several instructions, the result is that of the instruction that needs most.
    """
    scratch = {o.buffer for i in program.instrs for o in i.operands if o.access is Access.SCRATCH}
    live_ranges = LiveRanges(program, 0)
    places = {
        b: (number, at, len(region.members) == 1)
        for number, region in enumerate(joined_regions(live_ranges, True))
        for b, at in region.members.items()
        if b not in scratch
    }
    spans = {b: (number, at, at + b.nbytes) for b, (number, at, _) in places.items()}
    live_bytes = bytes_at(spans, live_ranges.ranges, len(program.instrs))
    ending: dict[int, set[Buffer]] = defaultdict(set)
    for buffer, (_, last) in live_ranges.ranges.items():
        ending[last].add(buffer)
    free = [
        all(places[o.buffer][2] for o in instr.operands if o.access is Access.OUT and o.buffer in places)
        for instr in program.instrs
    ]
    for start, end in program.blocks():
        if program.instrs[start].control is Control.STREAM and free[start]:  # Its results may replace its inputs.
            saved = _saved_in_place([program.instrs[start]], ending[end])
            live_bytes[start : end + 1] = [nbytes - saved for nbytes in live_bytes[start : end + 1]]
    peaks: dict[str, LiveMemory] = {}
    for index, (instr, is_free) in enumerate(zip(program.instrs, free, strict=True)):
        now = LiveMemory(live_bytes[index], _saved_in_place([instr], ending[index]) if is_free else 0, is_free)
        peaks[instr.name] = max(now, peaks.get(instr.name, now), key=LiveMemory.used_bytes)
    return peaks


def _candidate(
    node: Node,
    kernel: Kernel,
    features: frozenset[str],
    costs: CostTable,
    times: int,
    alive: Mapping[str, LiveMemory],
    lasting: Collection[Value],
    numbers: dict[object, int],
) -> Candidate:
    """Estimate the cost of a kernel at a node by lowering the node alone.

    Args:
        node: The node.
        kernel: The kernel.
        features: Names of CPU features, and of tuning flags, which select variants of kernels.
        costs: Cost model of the CPU.
        times: How often the node runs per inference.
        alive: The bytes alive at each node, by the name of its first output.
        lasting: Values that nothing may overwrite.
        numbers: Numbers of contents in flash; contents that are new get the next number.
    """
    lowered = trial(node, kernel, features) if kernel.emit else Trial.of(node, lower_without_choice(node, features))
    program = lowered.program
    functions = {instr.function_key: kernel.name for instr in program.instrs}
    stored: dict[object, int] = dict(costs.code_of(functions, kernel.code_of(node)))
    stored.update(lowered.constants)
    flash = {numbers.setdefault(content, len(numbers)): nbytes for content, nbytes in stored.items()}
    around = alive.get(node.outputs[0].name)
    read = ((v, b) for v, b in zip(node.inputs, lowered.inputs, strict=True) if v is not None and b is not None)
    ending = {buffer for value, buffer in read if set(value.users) == {node} and value not in lasting}
    saved = _saved_in_place(program.instrs, ending) if around and around.is_free else 0
    ram = (around.nbytes if around else 0) - saved + program.scratch_size
    measured = costs.times.get((node.outputs[0].name, kernel.name))
    if measured is not None:
        return Candidate(kernel, times * measured, flash, ram, is_measured=True)
    load_stalls, stalls = times * costs.load_stalls(program), times * costs.stalls(node, kernel)
    return Candidate(kernel, times * costs.time(node, kernel) + load_stalls, flash, ram, stalls, load_stalls)


def _saved_in_place(instrs: Sequence[Instr], ending: Collection[Buffer]) -> int:
    """Return the most bytes saved by an output that overlaps a buffer in `ending`, which no later instruction reads."""
    outs = ((i, out.buffer) for i in instrs for out in i.operands if out.access is Access.OUT)
    pairs = ((i, y, x.buffer) for i, y in outs for x in i.operands if x.buffer in ending)
    freedoms = ((y, x, freedom(i, y, x)) for i, y, x in pairs)
    return max((free.max_shared_bytes(y.nbytes, x.nbytes) for y, x, free in freedoms if free is not None), default=0)


class _Plan:
    """A candidate for each node, and running totals that include the nodes without a choice."""

    def __init__(self, candidates: Sequence[Candidate], fixed_cost: FixedCost) -> None:
        self.taken = list(candidates)
        self._instructions = fixed_cost.compared_instructions + sum(c.instructions for c in candidates)
        self._ram = _Largest([fixed_cost.ram_bytes, *(c.ram for c in candidates)])
        self._users: Counter[int] = Counter()
        self._flash = sum(self._add_code(candidate) for candidate in candidates)

    def cost(self) -> Cost:
        """Return the instructions, RAM and flash of the whole model with the current candidates."""
        return Cost(self._instructions, self._ram.most, self._flash)

    def change(self, index: int, candidate: Candidate) -> None:
        """Replace the candidate of a node, and update the totals."""
        old, self.taken[index] = self.taken[index], candidate
        self._instructions += candidate.instructions - old.instructions
        self._ram.exchange(old.ram, candidate.ram)
        self._flash -= self._remove_code(old)
        self._flash += self._add_code(candidate)

    def costs_with(self, index: int, offer: Sequence[Candidate]) -> list[Cost]:
        """Return the cost of the whole model for each candidate in `offer` in place of the node's current one."""
        old = self.taken[index]
        ram, flash = self._ram.most_without(old.ram), self._flash - self._remove_code(old)
        costs = [
            Cost(
                self._instructions + (candidate.instructions - old.instructions),
                max(ram, candidate.ram),
                flash + self._unshared(candidate),
            )
            for candidate in offer
        ]
        self._add_code(old)
        return costs

    def _add_code(self, candidate: Candidate) -> int:
        """Add a user to each content of the candidate, and return the bytes that are new in flash."""
        added = self._unshared(candidate)
        for key in candidate.flash:
            self._users[key] += 1
        return added

    def _remove_code(self, candidate: Candidate) -> int:
        """Remove a user from each content of the candidate, and return the bytes that vanish from flash."""
        for key in candidate.flash:
            self._users[key] -= 1
        return self._unshared(candidate)

    def _unshared(self, candidate: Candidate) -> int:
        """Return the bytes of the candidate's contents that no node uses."""
        return sum(nbytes for key, nbytes in candidate.flash.items() if not self._users[key])


class _Largest:
    """The largest of a multiset of numbers, kept up to date while single numbers are exchanged."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.most = max(numbers)
        self._counts = Counter(numbers)

    def most_without(self, number: int) -> int:
        """Return the largest number without one occurrence of `number`.

        All numbers are scanned only if that occurrence is the only maximum.
        """
        if number < self.most or self._counts[number] > 1:
            return self.most
        return max((other for other in self._counts if other != number), default=0)

    def exchange(self, old: int, new: int) -> None:
        """Replace one occurrence of `old` by `new`."""
        self.most = max(self.most_without(old), new)
        self._counts[new] += 1
        self._counts[old] -= 1
        if not self._counts[old]:
            del self._counts[old]


def _search(offers: Sequence[Sequence[Candidate]], goal: str, limits: Limits, fixed_cost: FixedCost) -> list[Candidate]:
    """Return the best plan by the goal, one candidate for each node.

    `speed` takes the kernel of fewest cycles only at nodes where it is clearly faster than that of `balanced`.
    `balanced` takes stall cycles into account only if the plan becomes clearly better, because estimates of stalls err.
    """
    if goal == "speed":
        best = _best([[_with_stalls(c) for c in offer] for offer in offers], goal, limits, fixed_cost)
        improved = _where_faster(best, _balanced(offers, limits, fixed_cost))
        fits = limits.miss(_Plan(improved, fixed_cost).cost()) <= limits.miss(_Plan(best, fixed_cost).cost())
        return improved if fits else best
    best = _best(offers, goal, limits, fixed_cost)
    if goal != "balanced":
        return best
    if any(c.load_stalls for offer in offers for c in offer):
        plain = _balanced(offers, limits, fixed_cost)
        best = best if _is_clearly_better(_Plan(best, fixed_cost), _Plan(plain, fixed_cost), limits) else plain
    return _with_fewer_stalls(best, offers, limits, fixed_cost)


def _with_fewer_stalls(
    plan: list[Candidate], offers: Sequence[Sequence[Candidate]], limits: Limits, fixed_cost: FixedCost
) -> list[Candidate]:
    """Return a `balanced` plan with one kernel exchanged for another, if declared stalls make that clearly better.

    Both kernels may differ in their inner loops only.
    """
    if limits.instructions < math.inf or limits.excess(_Plan(plan, fixed_cost).cost()):
        return plan
    rank = _within(limits, lambda cost: cost.rank("balanced"))

    def in_cycles(candidates: Sequence[Candidate]) -> _Plan:
        return _Plan([_with_stalls(c) for c in candidates], fixed_cost)

    alike = [
        [
            c
            for c in offer
            if c is old or (min(c.stalls, old.stalls) > 0 and _differs_in_loops_only(c.kernel, old.kernel))
        ]
        for offer, old in zip(offers, plan, strict=True)
    ]
    best = min(_with_one_kernel(plan, alike), key=lambda rival: rank(in_cycles(rival).cost()), default=plan)
    return best if _is_clearly_better(in_cycles(best), in_cycles(plan), limits, MIN_EXCHANGE_GAIN) else plan


def _differs_in_loops_only(one: Kernel, other: Kernel) -> bool:
    """Return whether two kernels have the same emitter, and functions that layers share."""
    return one.emit is other.emit and one.code is other.code is None


def _with_stalls(candidate: Candidate) -> Candidate:
    """Return the candidate with its declared stall cycles among its instructions.

    Negative ones are left out: whether a core issues two instructions at once depends on the loops that a board takes.
    """
    return _taking(candidate, candidate.stalls) if candidate.stalls > 0 else candidate


def _balanced(offers: Sequence[Sequence[Candidate]], limits: Limits, fixed_cost: FixedCost) -> list[Candidate]:
    """Return the plan of the goal `balanced`, with stall cycles left out."""
    plain = _without_waits(offers)
    chosen = _best(plain, "balanced", limits, fixed_cost)
    return [offer[plain_offer.index(c)] for offer, plain_offer, c in zip(offers, plain, chosen, strict=True)]


def _without_waits(offers: Sequence[Sequence[Candidate]]) -> list[list[Candidate]]:
    return [
        [replace(c, instructions=c.instructions - c.load_stalls, load_stalls=0.0) for c in offer] for offer in offers
    ]


def _where_faster(fast: Sequence[Candidate], other: Sequence[Candidate]) -> list[Candidate]:
    """Return the plan `other`, with candidates of `fast` at the nodes where these are clearly faster."""
    notable = MIN_TOTAL_GAIN * sum(c.cycles for c in other)

    def is_faster(quick: Candidate, slow: Candidate) -> bool:
        min_gain = 0.0 if quick.is_measured else max(MIN_CLEAR_GAIN * slow.cycles, notable)
        return slow.cycles - quick.cycles > min_gain

    return [quick if is_faster(quick, slow) else slow for quick, slow in zip(fast, other, strict=True)]


def _best(offers: Sequence[Sequence[Candidate]], goal: str, limits: Limits, fixed_cost: FixedCost) -> list[Candidate]:
    """Return the best plan that descents from the extremes reach, by the goal."""
    if goal == "flash":
        return _traded(offers, limits, fixed_cost)
    free = best = _best_end(offers, fixed_cost, _within(limits, lambda cost: cost.rank(goal)))
    if goal == "balanced":
        fast = replace(limits, instructions=min(limits.instructions, _slowest(offers, limits, fixed_cost)))
        rank = _within(fast, lambda cost: cost.rank(goal))
        best = _best_end(offers, fixed_cost, rank)
        # The limit may end descents early, and estimates of RAM cannot tell small differences.
        if _is_clearly_better(free, best, fast):
            best = free
    return best.taken


def _is_clearly_better(one: _Plan, other: _Plan, limits: Limits, min_gain: float = MIN_CLEAR_GAIN) -> bool:
    """Return whether a plan ranks better for `balanced` by more than `min_gain`.

    Estimates cannot tell differences below MIN_CLEAR_GAIN.
    """
    rank = _within(limits, lambda cost: cost.rank("balanced"))
    clearly = _within(limits, lambda cost: cost.rank("balanced") + min_gain)
    return clearly(one.cost()) < rank(other.cost())


def _within(limits: Limits, worth: Callable[[Cost], float]) -> Rank:
    """Return a key that compares plans by how far they miss the limits first, and by `worth` second."""
    return lambda cost: (*limits.miss(cost), worth(cost))


def _traded(offers: Sequence[Sequence[Candidate]], limits: Limits, fixed_cost: FixedCost) -> list[Candidate]:
    """Return the `flash` plan: the best trade of time and flash among the plans with nearly the least flash.

    The plan uses at most MAX_FLASH_EXCESS_RATIO times the least flash, or less where the flash limit is smaller. If
    there is a plan of at most MAX_FLASH_SLOWDOWN times the instructions of `balanced` (unrolled loops included), one of
    these is returned.
    """
    min_flash_cost = _best_end(offers, fixed_cost, _within(limits, lambda cost: cost.rank("flash"))).cost()
    flash_limits = replace(
        limits, ram=max(limits.ram, min_flash_cost.ram), flash=int(MAX_FLASH_EXCESS_RATIO * min_flash_cost.flash)
    )
    if limits.flash < flash_limits.flash:
        flash_limits = replace(flash_limits, flash=max(limits.flash, min_flash_cost.flash))
    long = [[c for c in offer if SHORT_LOOPS not in c.kernel.needs] or offer for offer in offers]
    slowest = MAX_FLASH_SLOWDOWN * _Plan(_best(long, "balanced", limits, fixed_cost), fixed_cost).cost().instructions
    quick = replace(flash_limits, instructions=min(limits.instructions, slowest))
    plan = _best_trade(offers, flash_limits, fixed_cost)
    if any(quick.miss(plan.cost())):
        faster = _best_trade(offers, quick, fixed_cost)
        plan = plan if any(quick.miss(faster.cost())) else faster
    return plan.taken


def _best_trade(offers: Sequence[Sequence[Candidate]], limits: Limits, fixed_cost: FixedCost) -> _Plan:
    """Return the plan of the best trade of time and flash, log(instructions) + FLASH_TRADE_WEIGHT · log(flash)."""

    def trade(cost: Cost) -> float:
        return math.log(max(cost.instructions, 1.0)) + FLASH_TRADE_WEIGHT * math.log(max(cost.flash, 1))

    rank = _within(limits, trade)
    best = _best_end(offers, fixed_cost, rank)
    while True:
        rivals = [_end(start, offers, fixed_cost, rank) for start in _with_one_kernel(best.taken, offers)]
        better = min(rivals, key=lambda plan: rank(plan.cost()), default=best)
        if rank(better.cost()) >= rank(best.cost()):
            return best
        best = better


def _with_one_kernel(
    candidates: Sequence[Candidate], offers: Sequence[Sequence[Candidate]]
) -> Iterator[list[Candidate]]:
    """Yield the plan once per kernel, with that kernel wherever it is offered; then with one kernel for another.

    A kernel's code is shared, so that a change of one node alone may gain nothing. Where a kernel replaces all others,
    the plan may exceed the limits, and the descent from there may leave the other nodes with slow kernels.
    """
    names = sorted({c.kernel.name for offer in offers for c in offer})
    for new, old in [*((name, None) for name in names), *product(names, sorted({c.kernel.name for c in candidates}))]:
        plan = [
            next((c for c in offer if c.kernel.name == new and old in (None, current.kernel.name)), current)
            for offer, current in zip(offers, candidates, strict=True)
        ]
        if any(c is not current for c, current in zip(plan, candidates, strict=True)):
            yield plan


def _slowest(offers: Sequence[Sequence[Candidate]], limits: Limits, fixed_cost: FixedCost) -> float:
    """Return the most instructions that `balanced` may take.

    These are MAX_BALANCED_SLOWDOWN times those of the fastest plan within AMPLE_MEMORY_FRACTION of the memory.

    There is no limit if the fastest plan needs more than that share of memory.
    """
    room = Limits(int(AMPLE_MEMORY_FRACTION * limits.ram), int(AMPLE_MEMORY_FRACTION * limits.flash), limits.ram_in_use)
    fastest = _best_end(offers, fixed_cost, _within(room, lambda cost: cost.rank("speed"))).cost()
    return math.inf if room.excess(fastest) else MAX_BALANCED_SLOWDOWN * fastest.instructions


def _best_end(offers: Sequence[Sequence[Candidate]], fixed_cost: FixedCost, rank: Rank) -> _Plan:
    """Return the plan of least rank among those that the descents from all starts reach."""
    starts = {tuple(map(id, start)): start for start in _starts(offers)}
    ends = [_end(start, offers, fixed_cost, rank) for start in starts.values()]
    return min(ends, key=lambda plan: rank(plan.cost()))


def _end(start: Sequence[Candidate], offers: Sequence[Sequence[Candidate]], fixed_cost: FixedCost, rank: Rank) -> _Plan:
    """Return the plan that a descent from `start` reaches."""
    plan = _Plan(start, fixed_cost)
    _descend(plan, offers, rank)
    return plan


def _starts(offers: Sequence[Sequence[Candidate]]) -> Iterator[list[Candidate]]:
    """Yield start plans: fewest instructions, least RAM, least flash.

    Then, per kernel, yield the plan with that kernel wherever it is offered.

    Nodes to which the kernel is not offered take their smallest candidate.
    """

    def flash(candidate: Candidate) -> int:
        return sum(candidate.flash.values())

    for extreme in (lambda c: c.instructions, lambda c: c.ram, flash):
        yield [min(offer, key=extreme) for offer in offers]
    for name in sorted({c.kernel.name for offer in offers for c in offer}):
        yield [min(offer, key=lambda c: (c.kernel.name != name, flash(c))) for offer in offers]


def _descend(plan: _Plan, offers: Sequence[Sequence[Candidate]], rank: Rank) -> None:
    """Change one node at a time to its best candidate until no node changes, for at most MAX_DESCENT_ROUNDS rounds."""
    for _ in range(MAX_DESCENT_ROUNDS):
        changed = False
        for index, offer in enumerate(offers):
            ranks = [rank(cost) for cost in plan.costs_with(index, offer)]
            best = min(ranks)
            if best < rank(plan.cost()):
                plan.change(index, offer[ranks.index(best)])
                changed = True
        if not changed:
            return
