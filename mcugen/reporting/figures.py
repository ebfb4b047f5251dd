# SPDX-License-Identifier: Apache-2.0
"""The report: one dataclass, filled from the program and, where it ran, from the simulation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from typing import Any, Protocol

from mcugen.codegen.libraries import LIBRARIES
from mcugen.core.board import Board, Energy
from mcugen.core.errors import DoesNotFitError
from mcugen.core.options import OWN
from mcugen.evaluation.accuracy import Accuracy, QuantizationEstimate
from mcugen.evaluation.layers import LayerComparison, OtherPrecision
from mcugen.evaluation.sample_results import SampleResults
from mcugen.hir.graph import Graph
from mcugen.lir.program import Control, Instr, Program, Space
from mcugen.memory.peak import busiest, moments
from mcugen.memory.place import Placement
from mcugen.reporting.basis import Basis
from mcugen.reporting.timing import variations
from mcugen.reporting.two_cores import FIRST, OTHER, Helped, Memories, TwoCores, two_cores
from mcugen.search.budget import Fit
from mcugen.search.contention import of_arena


@dataclass(frozen=True)
class ModelFigures:
    """The network itself, without what it has of channels that are constant or that nobody reads."""

    name: str
    sha256: str
    macs: int
    parameters: int
    dropped_channels: int
    dropped_macs: int


@dataclass(frozen=True)
class Flash:
    """Bytes in flash. `code` is what the model adds to a firmware besides weights, library functions included.

    `functions` are bytes of that by C function; what no function has are tables, parameters and initial values.
    """

    code: int | None
    weights: int
    total: int | None
    functions: dict[str, int] | None = None


@dataclass(frozen=True)
class Ram:
    """Bytes in RAM. `arena` holds activations, scratch and I/O; `io` is I/O outside it; `stack` the peak of a call.

    `state` is what one stream of inputs keeps between calls, `copies` are weights that start-up copies to RAM. No
    placement of the same buffers, in the same order of layers, takes less than `arena_bound`.
    """

    arena: int
    arena_bound: int
    state: int
    io: int
    copies: int
    static: int | None
    stack: int | None
    total: int | None


def layer_title(name: str, origin: Sequence[str]) -> str:
    """What a layer is called before people: the last of the ONNX nodes that it comes from, if that has a name."""
    return origin[-1] if origin and origin[-1] else name


@dataclass(frozen=True)
class MemoryUse:
    """What lies in one memory of the board, in bytes: `used` of its `size`, the stack apart.

    `arena` is the part of the arena that it holds, `copies` are weights that start-up copies there; `code` is known
    once it was built.
    """

    name: str
    kind: str
    origin: int
    size: int
    arena: int
    weights: int
    copies: int
    used: int
    code: int = 0


@dataclass(frozen=True)
class Layer:
    """One instruction of the program, or all of a loop or branch.

    `family` is whose kernel computes it (mcugen.core.options.FAMILIES); of a loop or branch, what any part of it calls.
    `flash` are its constants, `ram` the most bytes of the arena in use while it runs: what buffers share counts once.
    """

    name: str
    origin: list[str]
    op: str
    kernel: str
    family: str
    reason: str
    macs: int
    instructions: int | None
    cycles_estimate: int | None
    stalls: list[Stall] | None
    microjoules_estimate: float | None
    flash: int
    ram: int
    core: int | None = None
    """Of a portion of a layer for two cores: on which it runs, 0 or 1. The first computes what is no portion."""


@dataclass(frozen=True)
class Stall:
    """Cycles of the CPU that it waits for a memory, by the board's description of it: for instructions, for data."""

    memory: str
    instructions: int
    data: int

    @property
    def cycles(self) -> int:
        """For both."""
        return self.instructions + self.data


@dataclass(frozen=True)
class BudgetFigures:
    """What the user allows (bytes, None: no limit), what is taken of it, and at which price.

    `ram` are arena, state and copies of weights, `flash_estimate` weights and code. `step` names how the program was
    made to fit; `slowdown_estimate` is by which share of its estimated instructions that made it slower.
    """

    max_ram: int | None
    max_flash: int | None
    ram: int
    flash_estimate: int
    step: str
    slowdown_estimate: float | None

    def __str__(self) -> str:
        limits = (("--max-ram", self.max_ram), ("--max-flash", self.max_flash))
        given = " and ".join(f"{option} {n:,}" for option, n in limits if n is not None)
        price = "" if not self.slowdown_estimate else f", about {100 * self.slowdown_estimate:+.0f} % instructions"
        return f"{given}: {self.step}{price}"


@dataclass(frozen=True)
class DeadlineFigures:
    """The cycles that a call may take, those that it takes, and those of the program without a deadline, by estimate.

    `step` names how the program was made to be fast enough.
    """

    max_cycles: int
    cycles_estimate: int
    asked_cycles_estimate: int
    step: str

    def __str__(self) -> str:
        asked = f", {self.asked_cycles_estimate:,} as asked" * (self.asked_cycles_estimate != self.cycles_estimate)
        return f"{self.cycles_estimate:,} of {self.max_cycles:,} cycles: {self.step}{asked}"


@dataclass(frozen=True)
class TuningFigures:
    """How many forms of layers were measured, the cycles of the program and of that by fits, by estimate, and the
    layers whose kernels differ.
    """

    candidates: int
    cycles_estimate: int
    fits_cycles_estimate: int
    layers: list[str]

    def __str__(self) -> str:
        gain = 100 * (self.cycles_estimate / max(self.fits_cycles_estimate, 1) - 1)
        found = f"{self.fits_cycles_estimate:,} by fits, {gain:+.1f} %, {len(self.layers)} kernels changed"
        return f"{self.candidates} forms of layers measured: {self.cycles_estimate:,} cycles, {found}"


@dataclass(frozen=True)
class StepFigures:
    """How many steps a run has, the cycles that one may take, and those of the longest, by estimate, in all and by
    layers. `by_rows` are the layers that are computed row by row so that no step takes longer.
    """

    count: int
    max_cycles: int
    cycles_estimate: int
    layers_estimate: list[int]
    by_rows: list[str]

    def __str__(self) -> str:
        rows = f", {len(self.by_rows)} layers by rows for that" * bool(self.by_rows)
        return f"{self.count:,} steps of {self.cycles_estimate:,} cycles at most, of {self.max_cycles:,}{rows}"


@dataclass(frozen=True)
class RowFigures:
    """How many layers are computed row by row, in how many groups; by which share of instructions that is slower."""

    layers: int
    groups: int
    slowdown_estimate: float | None

    def __str__(self) -> str:
        price = "" if self.slowdown_estimate is None else f", about {100 * self.slowdown_estimate:+.0f} % instructions"
        return f"row by row, in {self.groups} group{'s' * (self.groups != 1)}{price}"


@dataclass(frozen=True)
class InputFigures:
    """What makes the input of raw data: the pipeline's text, bytes of its state (RAM) and of its tables (flash, part of
    the code's), instructions for the first sample, and for how many samples its bits were found to be numpy's.
    """

    pipeline: str
    state: int
    tables: int
    instructions: int | None = None
    verified: int = 0


@dataclass(frozen=True)
class Examination:
    """What a model knew after so many steps of learning: the share of samples whose class it told; the mean loss of the
    steps since the one before, None at first.
    """

    steps: int
    accuracy: float
    loss: float | None


@dataclass(frozen=True)
class CallFigures:
    """What a call takes: retired instructions, estimated cycles, bytes of stack and of flash (code and weights), each
    None where it was not measured; bytes of RAM but the stack's.
    """

    instructions: int | None
    cycles_estimate: int | None
    stack: int | None
    flash: int | None
    ram: int


@dataclass(frozen=True)
class LearningFigures:
    """What learning took and gave: what is trained, at which rate; the examinations; what a step takes, with its
    inference, and an inference by a build that does not learn. `state` are the bytes that hold what was learned.
    """

    trained: str
    rate: float
    examinations: list[Examination]
    step: CallFigures
    inference: CallFigures
    state: int


@dataclass(frozen=True)
class Alternative:
    """What the model would take by other options, in bytes of RAM (without the stack) and flash, and in instructions.

    All but RAM are estimates, which differ from what is measured; so the first of several is the model as it is.
    `refusal` says why there is none.
    """

    options: str
    ram: int | None
    flash_estimate: int | None
    instructions_estimate: int | None
    refusal: str = ""


@dataclass(frozen=True)
class ArenaBuffer:
    """A buffer in the arena: its bytes from `offset` on, while layers `first` to `last` run.

    −1 is the moment of the call, the number of layers that of the return. `kind` is one of memory.KINDS.
    """

    name: str
    kind: str
    offset: int
    bytes: int
    first: int
    last: int


@dataclass(frozen=True)
class StackFigures:
    """The most bytes of stack that a call takes below its caller's frame, by the code that was linked; None where that
    does not tell, for a reason in `note`. `path` are the calls that take them, with the bytes of each.
    """

    bytes: int | None
    path: list[str]
    note: str


@dataclass(frozen=True)
class SelfTestLayer:
    """Of flipped bits of a layer's constants how many are `significant`: they change an output for some sample that was
    tried; and how many the self-test finds.
    """

    layer: str
    flips: int
    significant: int
    found: int


@dataclass(frozen=True)
class SelfTestFigures:
    """What a self-test finds whose samples were chosen for that: how many `samples`, and how many of these were `given`
    by the user; single flipped bits of all layers, as in SelfTestLayer, others than those that chose the samples.
    """

    samples: int
    given: int
    flips: int
    significant: int
    found: int
    layers: list[SelfTestLayer]

    @property
    def coverage(self) -> str:
        """In words."""
        share = 100 * self.found / max(self.significant, 1)
        counts = f"{self.found} of {self.significant}, of {self.flips} tried"
        return f"{share:.0f} % of the flipped bits of constants that change a result ({counts})"


@dataclass(frozen=True)
class PlausibleRange:
    """What an output's elements must lie in to be plausible, as real numbers."""

    output: str
    low: float
    high: float


@dataclass(frozen=True)
class InstructionRange:
    """The best and the worst case of a run, in instructions: of any input where it `is_bound`, else of so many `inputs`
    that ran. `bound` is what no input exceeds, by the longest path through the code that was linked; None where there
    is no bound, for the reason in `unbounded`.
    """

    best: int
    worst: int
    inputs: int
    is_bound: bool
    bound: int | None
    unbounded: str = ""


@dataclass(frozen=True)
class Report:
    """All figures; None where unknown. Each is measured unless its name ends in `_estimate`."""

    basis: Basis
    """What the figures rest on."""
    model: ModelFigures
    board: str
    cpu: str
    precision: str
    kernels: str
    instructions: int | None
    instructions_per_mac: float | None
    instructions_estimate: int | None
    """Of the layers that have a choice of kernels, by the costs that the choice is made by."""
    cycles_estimate: int | None
    cycles_note: str
    """By which timing cycles are estimated, or why they are not."""
    stalls: list[Stall] | None
    """How many of the cycles are waits for memories; None where cycles are."""
    milliseconds_estimate: float | None
    microjoules_estimate: float | None
    """Where the board tells what current the chip draws."""
    clock_hz: int
    flash: Flash
    ram: Ram
    budget: BudgetFigures | None
    deadline: DeadlineFigures | None
    tuning: TuningFigures | None
    rows: RowFigures | None
    memories: list[MemoryUse]
    """Those that the arena and the weights lie in."""
    accuracy: Accuracy | None
    quantization: LayerComparison | None
    """Of a model that mcugen quantized, where it ran."""
    quantization_estimate: QuantizationEstimate | None
    """Of a model that mcugen quantized on the command line: what that cost, on a few samples."""
    layers: list[Layer]
    notes: tuple[str, ...] = ()
    """What was taken for granted and what is worth a word: one sentence each (may hold untrusted text)."""
    steps: StepFigures | None = None
    """Of a run whose steps may take only so long."""
    input_pipeline: InputFigures | None = None
    """Where the input is made of raw data: measured once the model ran."""
    learning: LearningFigures | None = None
    """Of a model that learned while it ran."""
    buffers: list[ArenaBuffer] | None = None
    """What lies where in the arena, in the order in which lives begin; None in reports of earlier versions."""
    samples: SampleResults | None = None
    """Of a classifier that ran."""
    command: str | None = None
    """That gives the report again."""
    varies: tuple[str, ...] = ()
    """By layers, why instructions depend on data; empty: a run takes as many for any input."""
    instruction_range: InstructionRange | None = None
    """Once it ran, where a run takes as many for any input, or extreme ones ran."""
    stack_bound: StackFigures | None = None
    """Once it was built for the board."""
    alternatives: tuple[Alternative, ...] = ()
    """What other options would change, where that was asked for."""
    two_cores: TwoCores | None = None
    """Of a model for two cores, once it ran."""
    first_part: int | None = None
    """Of a pipeline over frames: how many layers the first core computes, what is handed over included."""
    self_test: SelfTestFigures | None = None
    """Where its samples were chosen."""
    plausible: tuple[PlausibleRange, ...] = ()
    """Where outputs are checked."""
    warnings: tuple[str, ...] = ()
    """What is wrong with samples or unexpected of the program, and what to do: told even where progress is not."""
    other_precisions: tuple[OtherPrecision, ...] = ()
    """Of a model with integers, the layers that do not compute in its main type; `notes` names them, too."""
    self_test_input: str = "random numbers"
    """What the self-test runs on; "" where its samples were chosen by what they find."""

    @property
    def library_calls(self) -> str:
        """How many layers call which library: "9 of 16 layers call CMSIS-NN 7.x"; "" where none does."""
        counts = Counter(layer.family for layer in self.layers if layer.family != OWN)
        total = len(self.layers)
        return "; ".join(
            f"{n} of {total} layer{'s' * (total != 1)} call{'s' * (n == 1)} {LIBRARIES[family].versions}"
            for family, n in sorted(counts.items())
        )

    @property
    def stalled(self) -> float | None:
        """The share of cycles that are waits for memory."""
        return stalled(self.cycles_estimate, self.stalls)

    def to_json(self) -> dict[str, Any]:
        """Plain data for JSON; `cycles` and `ms` are the estimates under short names, of each layer too."""
        data = asdict(self)
        for part in (data, *data["layers"]):
            part["cycles"], part["ms"] = part["cycles_estimate"], _milliseconds(part["cycles_estimate"], self.clock_hz)
        return data


class Measurement(Protocol):
    """What the report reads of a simulation."""

    @property
    def instructions(self) -> int | None: ...  # noqa: D102
    @property
    def layer_instructions(self) -> tuple[int, ...] | None: ...  # noqa: D102
    @property
    def stack(self) -> int | None: ...  # noqa: D102
    @property
    def sizes(self) -> Any: ...  # noqa: D102
    @property
    def cycles(self) -> Any: ...  # noqa: D102
    @property
    def stack_bound(self) -> Any: ...  # noqa: D102


def stalled(cycles: int | None, stalls: Sequence[Stall] | None) -> float | None:
    """The share of cycles that are waits for memory; None where they are not known."""
    return sum(stall.cycles for stall in stalls) / cycles if cycles and stalls is not None else None


def _milliseconds(cycles: int | None, clock_hz: int) -> float | None:
    return None if cycles is None else round(1e3 * cycles / clock_hz, 3)


def count_parameters(graph: Graph) -> int:
    """Elements of the weights and biases that layers with multiply-accumulates read."""
    layers = [n for g in graph.nested() for n in g.nodes if n.op.macs(n.sig) and not n.op.bodies]
    return sum(v.type.count for n in layers for v in n.inputs if v is not None and v.is_constant)


def memory_use(program: Program, placement: Placement, weights: int) -> list[MemoryUse]:
    """What lies where; `weights` are their bytes in flash."""
    found = []
    for memory in placement.memories:
        areas = zip(placement.arenas, program.area_sizes, strict=True)
        arena = sum(size for other, size in areas if other == memory)
        image, copies = weights if memory == placement.weights else 0, placement.copied_to(memory)
        use = (arena, image, copies, arena + image + copies)
        found.append(MemoryUse(memory.name, memory.kind, memory.origin, memory.size, *use))
    return found


def describe(
    basis: Basis,
    fit: Fit,
    graph: Graph,
    board: Board,
    sha256: str,
    kernels: str,
    memories: Sequence[MemoryUse],
    notes: Sequence[str],
) -> Report:
    """What the compiler knows without running anything. `kernels` says how they were chosen, `fit` what was fitted."""
    program = fit.program
    estimate = program.instructions_estimate
    macs = sum(program.macs_of(layer) for layer in program.layers())
    copies = sum(m.copies for m in memories)
    dropped = [part.dropped for part in graph.nested()]
    channels, unneeded = sum(d.channels for d in dropped), sum(d.macs for d in dropped)
    return Report(
        basis=basis,
        model=ModelFigures(program.name, sha256, macs, count_parameters(graph), channels, unneeded),
        board=board.name,
        cpu=board.cpu,
        precision=_precision(program),
        kernels=kernels,
        instructions=None,
        instructions_per_mac=None,
        instructions_estimate=None if estimate is None else round(estimate),
        cycles_estimate=None,
        cycles_note="",
        stalls=None,
        milliseconds_estimate=None,
        microjoules_estimate=None,
        clock_hz=board.clock_hz,
        flash=Flash(None, sum(m.weights for m in memories) or program.weights_size, None),
        ram=Ram(program.arena_size, program.arena_bound, program.state_size, 0, copies, None, None, None),
        budget=_budget(fit),
        deadline=None,
        tuning=None,
        rows=_rows(program, fit),
        memories=list(memories),
        accuracy=None,
        quantization=None,
        quantization_estimate=None,
        layers=_layers(program),
        first_part=None if program.handover is None else _part(program, program.handover),
        notes=tuple(notes),
        varies=variations(program, board),
    )


def _budget(fit: Fit | None) -> BudgetFigures | None:
    if fit is None or not fit.budget.limits:
        return None
    use, slowdown = fit.taken.use, fit.slowdown
    share = None if slowdown is None else round(slowdown, 4)
    return BudgetFigures(fit.budget.ram, fit.budget.flash, use.ram, use.flash, fit.taken.step, share)


def _rows(program: Program, fit: Fit | None) -> RowFigures | None:
    """Of streams: what their cases compute."""
    spans = [(a, b) for a, b in program.blocks() if program.instrs[a].control is Control.STREAM]
    names = {i.name for a, b in spans for i in program.instrs[a:b] if i.op != program.instrs[a].op}
    slowdown = fit.rows_slowdown if fit else None
    return RowFigures(len(names), len(spans), None if slowdown is None else round(slowdown, 4)) if spans else None


def measured(
    report: Report, run: Measurement, accuracy: Accuracy | None, board: Board, helped: Measurement | None = None
) -> Report:
    """The report with what a simulation of the board found, and one of its second core if that is another kind."""
    sizes, energy, memories = run.sizes, board.energy, report.memories
    flash, ram = report.flash, report.ram
    if sizes is not None:
        flash = Flash(sizes.code, sizes.weights, sizes.code + sizes.weights, dict(sorted(sizes.functions.items())))
        memories = _with_code(memories, board, sizes.code)
        stack = run.stack or 0
        total = ram.arena + ram.state + ram.io + ram.copies + sizes.static_ram + stack
        ram = replace(ram, static=sizes.static_ram, stack=run.stack, total=total)
    per_mac = run.instructions / report.model.macs if run.instructions and report.model.macs else None
    layers = _measured_layers(report.layers, run, energy)
    return replace(
        report,
        instructions=run.instructions,
        instructions_per_mac=None if per_mac is None else round(per_mac, 4),
        flash=flash,
        ram=ram,
        memories=memories,
        accuracy=accuracy,
        layers=layers,
        instruction_range=_range(report, run.instructions),
        two_cores=two_cores(layers, _helped(report, helped, board), report.first_part, _memories(report, board)),
        stack_bound=stack_figures(run.stack_bound) if run.stack_bound else None,
        **_estimates(report, run, energy),
    )


def _range(report: Report, instructions: int | None) -> InstructionRange | None:
    is_known = instructions is not None and not report.varies
    return InstructionRange(instructions, instructions, 1, True, instructions) if instructions and is_known else None


def _memories(report: Report, board: Board) -> Memories:
    """Those that both of the board's cores use."""
    banks = {memory.name: memory.banks for memory in board.memories}
    arenas = [of_arena(board, board.memory(use.name)) for use in report.memories if use.arena]
    return Memories(banks, max(arenas, default=0.0))


def _helped(report: Report, run: Measurement | None, board: Board) -> Helped | None:
    if run is None or board.helper is None:
        return None
    return Helped(_measured_layers(report.layers, run, None), (board.clock_hz, board.helper.clock_hz))


def _with_code(memories: Sequence[MemoryUse], board: Board, code: int) -> list[MemoryUse]:
    """With the code where it runs from; code that runs from RAM lies in flash, too, from which it is copied."""
    runs_from, stored = board.memory(board.code_memory), board.memory(board.weights_memory)
    holders = dict.fromkeys([runs_from, *([stored] if runs_from.kind == "ram" and stored.kind != "ram" else [])])
    known = {use.name: use for use in memories}
    for memory in holders:
        nothing = MemoryUse(memory.name, memory.kind, memory.origin, memory.size, 0, 0, 0, 0)
        use = known.get(memory.name, nothing)
        known[memory.name] = replace(use, code=code, used=use.used + code)
    return list(known.values())


def stack_figures(bound: Any) -> StackFigures:
    """Of what the linked code tells (mcugen.simulation.stack.StackBound)."""
    told = f"and what functions of the caller's take, which {', '.join(bound.pointers)} calls" * bool(bound.pointers)
    return StackFigures(bound.bytes, [f"{name} {nbytes}" for name, nbytes in bound.path], bound.reason or told)


def _estimates(report: Report, run: Measurement, energy: Energy | None) -> dict[str, Any]:
    """The fields that tell of cycles."""
    if run.cycles is None:
        return {}
    total = run.cycles.total
    return {
        "cycles_estimate": total,
        "cycles_note": run.cycles.note,
        "stalls": None if total is None else _stalls(run.cycles.waits),
        "milliseconds_estimate": _milliseconds(total, report.clock_hz),
        "microjoules_estimate": _microjoules(total, energy),
    }


def _stalls(waits: Sequence[Any]) -> list[Stall]:
    """Of what a simulation counted (mcugen.simulation.waits.Wait)."""
    return [Stall(wait.memory, wait.fetch_cycles, wait.read_cycles) for wait in waits]


def _microjoules(cycles: int | None, energy: Energy | None) -> float | None:
    return None if cycles is None or energy is None else round(energy.microjoules(cycles), 3)


def _measured_layers(layers: Sequence[Layer], run: Measurement, energy: Energy | None) -> list[Layer]:
    """Those behind the last that ran are for learning: nothing is known of them."""
    instructions = run.layer_instructions or ()
    cycles = (run.cycles.layers if run.cycles else None) or ()
    waits = (run.cycles.layer_waits if run.cycles else None) or ()
    return [
        replace(
            layer,
            instructions=count,
            cycles_estimate=each,
            stalls=None if waited is None else _stalls(waited),
            microjoules_estimate=_microjoules(each, energy),
        )
        for layer, count, each, waited in zip_longest(layers, instructions, cycles, waits)
    ]


def require_fit(report: Report, board: Board) -> None:
    """DoesNotFitError if what was measured, code and stack included, is more than the board has."""
    for kind, needed, available in (
        ("flash", report.flash.total, board.total_flash),
        ("RAM", report.ram.total, board.total_ram),
    ):
        if needed is not None and needed > available:
            found = f"{needed:,} bytes, {needed - available:,} more than there are"
            raise DoesNotFitError(f"code, weights and memory must fit the {kind} of board '{board.name}'", found)
    allowed, flash = report.budget.max_flash if report.budget else None, report.flash.total
    if allowed is not None and flash is not None and flash > allowed:
        found = f"{flash:,} bytes as measured, {flash - allowed:,} more; the estimate was too low"
        raise DoesNotFitError(f"the model must fit --max-flash {allowed:,}", found, "ask for less")


def _precision(program: Program) -> str:
    plain = (instr for instr in program.instrs if instr.control is Control.NONE)
    kinds = {instr.operands[0].buffer.dtype.value for instr in plain if instr.macs}
    if not kinds:  # no layer multiplies and accumulates
        kinds = {endpoint.dtype.value for endpoint in (*program.inputs, *program.outputs)[:1]}
    kind = kinds.pop() if len(kinds) == 1 else "mixed"
    return "int16x8" if kind == "int16" else kind  # weights are int8


def _layers(program: Program) -> list[Layer]:
    times = moments(program)
    layers = [(program.head(span), span) for span in program.layers()]
    return [
        Layer(
            name=program.completing(span).name,
            origin=list(instr.origin),
            op=instr.op,
            kernel=instr.kernel,
            family=next((program.instrs[i].library for i in span if program.instrs[i].library), OWN),
            reason=instr.reason,
            macs=program.macs_of(span),
            instructions=None,
            cycles_estimate=None,
            stalls=None,
            microjoules_estimate=None,
            flash=_constant_bytes(program.instrs[i] for i in span),
            ram=busiest(times[i + 1] for i in span).nbytes,
            core=_core(program, span),
        )
        for instr, span in layers
    ]


def _core(program: Program, span: range) -> int | None:
    """On which core a side of a fork, or a part of a pipeline, runs."""
    if program.handover is not None:
        return OTHER if span.start >= program.handover.stop else FIRST
    if not program.is_side(span):
        return None
    return FIRST if any(program.instrs[i].control is Control.FORK for i in span) else OTHER


def _part(program: Program, handover: range) -> int:
    return sum(layer.start < handover.stop for layer in program.layers())


def _constant_bytes(instrs: Iterable[Instr]) -> int:
    operands = [o for instr in instrs for o in instr.operands]
    return sum(b.nbytes for b in dict.fromkeys(o.buffer for o in operands) if b.space is Space.CONST)
