# SPDX-License-Identifier: Apache-2.0
"""The figures of a report, which are filled from the program and, if it ran, from the simulation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from typing import Any, Protocol

from mcugen.codegen.libraries import LIBRARIES
from mcugen.codegen.monitor import Monitor
from mcugen.core.board import Board, Energy
from mcugen.core.errors import DoesNotFitError
from mcugen.core.options import OWN
from mcugen.evaluation.accuracy import Accuracy, QuantizationEstimate
from mcugen.evaluation.layers import LayerComparison, OtherPrecision
from mcugen.evaluation.sample_results import SampleResults
from mcugen.hir.graph import DroppedWork, Graph
from mcugen.lir.layer_titles import layer_names
from mcugen.lir.program import Control, Instr, Program, Space
from mcugen.memory.peak import busiest, moments
from mcugen.memory.place import Placement
from mcugen.reporting.basis import Basis
from mcugen.reporting.timing import variations
from mcugen.reporting.two_cores import FIRST, OTHER, Memories, SecondCoreMeasurements, TwoCores, two_cores
from mcugen.search.budget import Fit
from mcugen.search.contention import arena_contention


@dataclass(frozen=True)
class ModelFigures:
    """Figures of the network itself, whatever code is generated; what was removed counts separately."""

    name: str
    """Name of the model in C."""
    sha256: str
    """Digest of the model's file."""
    macs: int
    """Number of multiply-accumulates of an inference."""
    parameters: int
    """Number of weights and biases."""
    dropped_channels: int
    """Number of channels that were removed, as they are constant or not used."""
    dropped_macs: int
    """Number of multiply-accumulates of the removed channels and elements."""
    dropped_elements: int = 0
    """Number of elements of tensors that were removed, such as time steps, because no output depends on them."""


@dataclass(frozen=True)
class Flash:
    """Bytes of flash that the model adds to a firmware; figures are None if the model was not built.

    Attributes:
        code: Bytes of code, library functions, tables, parameters and initial values.
        weights: Bytes of weights.
        total: Sum of code and weights.
        functions: Bytes of code by the name of the C function.
    """

    code: int | None
    weights: int
    total: int | None
    functions: dict[str, int] | None = None


@dataclass(frozen=True)
class Ram:
    """Bytes of RAM that the model takes; None for figures that were not measured.

    Attributes:
        arena: Bytes of activations, scratch buffers, inputs and outputs.
        arena_bound: Proven lower bound of the arena for the same buffers in the same order of layers.
        state: Bytes that one stream of inputs keeps between calls.
        io: Bytes of inputs and outputs outside the arena.
        copies: Bytes of weights that start-up code copies to RAM.
        static: Bytes of static variables.
        stack: Peak stack of a call.
        total: Sum of all of these but `arena_bound`.
    """

    arena: int
    arena_bound: int
    state: int
    io: int
    copies: int
    static: int | None
    stack: int | None
    total: int | None


@dataclass(frozen=True)
class MemoryUse:
    """The use of one memory of the board by the model, in bytes.

    Attributes:
        name: Name of the memory.
        kind: "ram" or "flash".
        origin: First address of the memory.
        size: Size of the memory.
        arena: Part of the arena that the memory holds.
        weights: Weights that the memory holds.
        copies: Weights that start-up code copies there.
        used: Bytes in use, without the stack.
        code: Code that the memory holds; 0 until the model is built.
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
class ReportedLayer:
    """The figures of one layer; None if unknown.

    Attributes:
        name: Its name, unique within the model (mcugen.hir.layer_names).
        origin: Names of its ONNX nodes.
        op: Its operator.
        kernel: Name of its kernel.
        family: Origin of the kernel (mcugen.core.options.FAMILIES); for a loop or branch, that of any kernel in it.
        reason: Why this kernel was chosen, as text.
        macs: Number of multiply-accumulates.
        instructions: Retired instructions of an inference.
        cycles_estimate: Estimated cycles, with stall cycles.
        stalls: Stall cycles by memory.
        microjoules_estimate: Estimated energy in microjoules.
        flash: Bytes of its constants.
        ram: Largest number of bytes of the arena in use while it runs; bytes that buffers share count once.
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
    """Number (0 or 1) of the core that computes this shard of a layer; None for a whole layer on the first core."""


@dataclass(frozen=True)
class Stall:
    """Estimated stall cycles of the CPU for accesses to one memory.

    Attributes:
        memory: Name of the memory.
        instructions: Cycles for which fetches of instructions stall.
        data: Cycles for which accesses to data stall.
    """

    memory: str
    instructions: int
    data: int

    @property
    def cycles(self) -> int:
        """Return the stall cycles for instructions and data together."""
        return self.instructions + self.data


@dataclass(frozen=True)
class WeightCopy:
    """Weights of a layer that each call copies to the arena before the layer runs.

    Attributes:
        layer: Name of the layer.
        bytes: Bytes of the copy.
        cycles_estimate: Estimated cycles of copying.
        saved_cycles_estimate: Estimated cycles of a call that the copy saves in all; None if unknown.
        is_ahead: Whether the copy goes on while earlier layers run (--copy-ahead).
    """

    layer: str
    bytes: int
    cycles_estimate: int
    saved_cycles_estimate: int | None
    is_ahead: bool


@dataclass(frozen=True)
class SegmentFigures:
    """A part of the network that an accelerator computes in one invocation.

    Attributes:
        layer: Name of the layer of the program that invokes the accelerator.
        accelerator: Name of the accelerator.
        layers: Number of layers of the model in the segment.
        runs: Number of invocations per call; more than 1 in a loop, such as that of a recurrent layer.
        accelerator_cycles_estimate: Cycles of all invocations in the accelerator's clock, as its compiler estimates
            them.
        cycles_estimate: The time of all invocations in cycles of the CPU's clock, with the driver and the maintenance
            of caches.
        ram: Bytes of working memory in the arena.
        flash: Bytes of commands and weights.
    """

    layer: str
    accelerator: str
    layers: int
    runs: int
    accelerator_cycles_estimate: int
    cycles_estimate: int
    ram: int
    flash: int


@dataclass(frozen=True)
class PlacementFigures:
    """The place where a layer of the model runs, and the reason.

    Attributes:
        layer: Name of the layer.
        operator: Name of the operator.
        runs_on: Name of the accelerator, or "CPU".
        reason: Why it runs there, as a phrase.
    """

    layer: str
    operator: str
    runs_on: str
    reason: str


@dataclass(frozen=True)
class AcceleratorFigures:
    """The use of the board's accelerator.

    Attributes:
        use: Value of --npu.
        segments: The segments that the accelerator computes, in order.
        placements: Where each layer of the model runs, in order.
        spread: Text on the error of the compiler's estimates, against measured times.
    """

    use: str
    segments: list[SegmentFigures]
    placements: list[PlacementFigures]
    spread: str

    def __str__(self) -> str:
        on_accelerator = sum(placement.runs_on != "CPU" for placement in self.placements)
        cycles = sum(segment.cycles_estimate for segment in self.segments)
        segments = f"{len(self.segments)} segment{'s' * (len(self.segments) != 1)}"
        layers = f"{on_accelerator} of {len(self.placements)} layers"
        return f"{layers} in {segments}, about {cycles:,} cycles ({self.spread})"


def copies_text(copies: Sequence[WeightCopy]) -> str:
    """Return a text on the cycles of copies of weights during a call, with the layers and their bytes."""
    listing = ", ".join(f"{copy.layer} {copy.bytes:,}" for copy in copies)
    cycles, saved = sum(c.cycles_estimate for c in copies), sum(c.saved_cycles_estimate or 0 for c in copies)
    gain = f", which saves about {saved:,}" if saved else ""
    return f"copied in each call, in about {cycles:,} cycles{gain}: {listing}"


@dataclass(frozen=True)
class BudgetFigures:
    """The user's limits of RAM and flash, and how the program was made to fit them; sizes are in bytes.

    Attributes:
        max_ram: Limit of RAM; None: no limit.
        max_flash: Limit of flash; None: no limit.
        ram: Bytes of arena, state and copies of weights.
        flash_estimate: Bytes of weights, and estimated code.
        step: What was done to make the program fit, as text.
        slowdown_estimate: Additional instructions because of that, as a share of the estimated instructions without it.
    """

    max_ram: int | None
    max_flash: int | None
    ram: int
    flash_estimate: int
    step: str
    slowdown_estimate: float | None

    def __str__(self) -> str:
        limits = (("--max-ram", self.max_ram), ("--max-flash", self.max_flash))
        budget = " and ".join(f"{option} {n:,}" for option, n in limits if n is not None)
        price = "" if not self.slowdown_estimate else f", about {100 * self.slowdown_estimate:+.0f} % instructions"
        return f"{budget}: {self.step}{price}"


@dataclass(frozen=True)
class DeadlineFigures:
    """The user's deadline for a call, and how the program was made to meet it.

    Attributes:
        max_cycles: Largest number of cycles of a call.
        cycles_estimate: Estimated cycles of the program.
        asked_cycles_estimate: Estimated cycles of the program for the user's goal without the deadline.
        step: What was done to make the program fast enough, as text.
    """

    max_cycles: int
    cycles_estimate: int
    asked_cycles_estimate: int
    step: str

    def __str__(self) -> str:
        requested = f", {self.asked_cycles_estimate:,} as asked" * (self.asked_cycles_estimate != self.cycles_estimate)
        return f"{self.cycles_estimate:,} of {self.max_cycles:,} cycles: {self.step}{requested}"


@dataclass(frozen=True)
class TuningFigures:
    """The result of choosing kernels by measured cycles (`--tune`).

    Attributes:
        candidates: Number of layer and kernel combinations that were measured.
        cycles_estimate: Estimated cycles of a call of the tuned program.
        fits_cycles_estimate: Estimated cycles of a call of the program that the cost model chooses without measuring.
        layers: Names of the layers whose kernels differ between both programs.
    """

    candidates: int
    cycles_estimate: int
    fits_cycles_estimate: int
    layers: list[str]

    def __str__(self) -> str:
        gain = 100 * (self.cycles_estimate / max(self.fits_cycles_estimate, 1) - 1)
        comparison = f"{self.fits_cycles_estimate:,} by fits, {gain:+.1f} %, {len(self.layers)} kernels changed"
        return f"{self.candidates} forms of layers measured: {self.cycles_estimate:,} cycles, {comparison}"


@dataclass(frozen=True)
class StepFigures:
    """The steps that a run is divided into.

    Attributes:
        count: Number of steps.
        max_cycles: Limit of the cycles of a step.
        cycles_estimate: Estimated cycles of the longest step.
        layers_estimate: Estimated cycles of the longest step of each layer.
        by_rows: Names of the layers that are computed row by row to meet the limit.
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
    """Figures of line-buffer fusion: layers that are computed together row by row, in groups.

    Attributes:
        layers: Number of layers in groups.
        groups: Number of groups.
        slowdown_estimate: Additional instructions by the groups, as a share of the estimated instructions of all layers
            computed one by one; None if unknown.
    """

    layers: int
    groups: int
    slowdown_estimate: float | None

    def __str__(self) -> str:
        price = "" if self.slowdown_estimate is None else f", about {100 * self.slowdown_estimate:+.0f} % instructions"
        return f"row by row, in {self.groups} group{'s' * (self.groups != 1)}{price}"


@dataclass(frozen=True)
class InputFigures:
    """The pipeline that computes the model's input from raw data.

    Attributes:
        pipeline: Text of the pipeline.
        state: Bytes of RAM that the pipeline keeps between calls.
        tables: Bytes of its tables in flash, which are part of the code's bytes.
        instructions: Retired instructions for the first sample; None if not measured.
        verified: Number of samples for which its result was equal, bit by bit, to that of numpy.
    """

    pipeline: str
    state: int
    tables: int
    instructions: int | None = None
    verified: int = 0


@dataclass(frozen=True)
class Examination:
    """An evaluation of a model during training.

    Attributes:
        steps: Number of training steps before it.
        accuracy: Share of samples with the correct class.
        loss: Mean loss of the training steps since the previous evaluation; None for the first one.
    """

    steps: int
    accuracy: float
    loss: float | None


@dataclass(frozen=True)
class CallFigures:
    """The cost of one call of a training step or inference; None for figures that were not measured.

    Attributes:
        instructions: Retired instructions.
        cycles_estimate: Estimated cycles.
        stack: Peak stack in bytes.
        flash: Bytes of code and weights.
        ram: Bytes of RAM without the stack.
    """

    instructions: int | None
    cycles_estimate: int | None
    stack: int | None
    flash: int | None
    ram: int


@dataclass(frozen=True)
class LearningFigures:
    """The results and the cost of on-device training.

    Attributes:
        trained: The trained layers, as `--train` names them.
        rate: The learning rate.
        examinations: The evaluations during training.
        step: Cost of a training step, with its inference.
        inference: Cost of an inference of the same model without training.
        state: Bytes of the training state.
    """

    trained: str
    rate: float
    examinations: list[Examination]
    step: CallFigures
    inference: CallFigures
    state: int


@dataclass(frozen=True)
class Alternative:
    """The estimated cost of the model with other options; the first of several has the options that the user set.

    Attributes:
        options: The options that differ from the user's, as text.
        ram: Bytes of RAM without the stack; None, like the next two, if the model cannot be compiled.
        flash_estimate: Estimated bytes of flash.
        instructions_estimate: Estimated instructions of an inference.
        refusal: Why the model cannot be compiled with these options; "" if it can.
    """

    options: str
    ram: int | None
    flash_estimate: int | None
    instructions_estimate: int | None
    refusal: str = ""


@dataclass(frozen=True)
class ArenaBuffer:
    """A buffer in the arena: its place, and the layers during which it is live.

    Attributes:
        name: Name of the buffer: that of the layer that computes it, with its role, or that of an input or output.
        kind: One of mcugen.reporting.memory.BUFFER_KINDS.
        offset: Address of the buffer in the arena, in bytes.
        bytes: Size of the buffer in bytes.
        first: Number of the first layer that needs the buffer; −1 for the call of the model.
        last: Number of the last layer that needs the buffer; the number of layers for the return.
    """

    name: str
    kind: str
    offset: int
    bytes: int
    first: int
    last: int


@dataclass(frozen=True)
class StackFigures:
    """An upper bound of a call's stack below its caller's frame, from an analysis of the linked code.

    Attributes:
        bytes: The bound; None if the code does not allow one.
        path: The chain of calls that reaches it, with the bytes of each function.
        note: Why there is no bound, or what it leaves out.
    """

    bytes: int | None
    path: list[str]
    note: str


@dataclass(frozen=True)
class SelfTestLayer:
    """The fault coverage of the self-test for one layer.

    Attributes:
        layer: Name of the layer.
        flips: Number of bits of its constants that were flipped, one at a time.
        significant: Number of these that change an output for some sample.
        found: Number of these that the self-test detects.
    """

    layer: str
    flips: int
    significant: int
    found: int


@dataclass(frozen=True)
class SelfTestFigures:
    """The fault coverage of a self-test whose samples were chosen to detect faults.

    Attributes:
        samples: Number of samples.
        given: Number of these that the user gave.
        flips: Number of bits of constants that were flipped, one at a time, to measure the coverage. They are other
            bits than those by which the samples were chosen.
        significant: Number of these flips that change an output for some sample.
        found: Number of these flips that the self-test detects.
        layers: The coverage of each layer.
    """

    samples: int
    given: int
    flips: int
    significant: int
    found: int
    layers: list[SelfTestLayer]

    @property
    def coverage(self) -> str:
        """Return a text on the fault coverage in percent."""
        share = 100 * self.found / max(self.significant, 1)
        counts = f"{self.found} of {self.significant}, of {self.flips} tried"
        return f"{share:.0f} % of the flipped bits of constants that change a result ({counts})"


@dataclass(frozen=True)
class PlausibleRange:
    """The range of plausible values of an output's elements, in real units.

    Attributes:
        output: Name of the output.
        low: Smallest plausible value.
        high: Largest plausible value.
    """

    output: str
    low: float
    high: float


@dataclass(frozen=True)
class InstructionRange:
    """The smallest and largest number of instructions of a run.

    Attributes:
        best: The smallest number.
        worst: The largest number.
        inputs: Number of inputs that ran.
        is_bound: Whether the numbers hold for any input, not only for those that ran.
        bound: Upper bound for any input, from the longest path through the linked code; None if there is no bound.
        unbounded: Why there is no bound; "" if there is one.
    """

    best: int
    worst: int
    inputs: int
    is_bound: bool
    bound: int | None
    unbounded: str = ""


@dataclass(frozen=True)
class Report:
    """All figures of a report; None where unknown. Each is measured unless its name ends in `_estimate`."""

    basis: Basis
    """The versions and digests of everything that the figures depend on."""
    model: ModelFigures
    """Figures of the network itself."""
    board: str
    """Name of the board."""
    cpu: str
    """Name of the board's CPU."""
    precision: str
    """Main precision of the model, such as "int8"."""
    kernels: str
    """How the kernels were chosen, as text."""
    instructions: int | None
    """Retired instructions of a call in the simulator."""
    instructions_per_mac: float | None
    """Retired instructions of a call, divided by the model's multiply-accumulates."""
    instructions_estimate: int | None
    """Instructions of a call by the cost model; layers for which there is only one kernel are left out."""
    cycles_estimate: int | None
    """Estimated cycles of a call, with stall cycles."""
    cycles_note: str
    """The timing model by which cycles are estimated, or why there is no estimate."""
    stalls: list[Stall] | None
    """The stall cycles by memory; None if cycles are unknown."""
    milliseconds_estimate: float | None
    """Estimated time of a call at the board's clock."""
    microjoules_estimate: float | None
    """Estimated energy of a call in microjoules; None unless the board file has the chip's current."""
    clock_hz: int
    """Clock of the CPU."""
    flash: Flash
    """Bytes of flash that the model adds to a firmware."""
    ram: Ram
    """Bytes of RAM that the model takes."""
    budget: BudgetFigures | None
    """The user's limits of RAM and flash, and how they are met; None without limits."""
    deadline: DeadlineFigures | None
    """The user's deadline for a call, and how it is met; None without a deadline."""
    tuning: TuningFigures | None
    """The result of choosing kernels by measured cycles; None without `--tune`."""
    rows: RowFigures | None
    """The layers that are computed row by row; None if there are none."""
    memories: list[MemoryUse]
    """The memories that hold the arena and the weights."""
    accuracy: Accuracy | None
    """Accuracy of the generated code on samples; None if it did not run on samples."""
    quantization: LayerComparison | None
    """The errors of layers, if mcugen quantized the model and it ran."""
    quantization_estimate: QuantizationEstimate | None
    """The loss by quantization on a few samples, for a model that mcugen quantized on the command line."""
    layers: list[ReportedLayer]
    """The figures of each layer, in the order of computation."""
    notes: tuple[str, ...] = ()
    """Assumptions and remarks, one sentence each (may hold untrusted text)."""
    steps: StepFigures | None = None
    """The steps that a run is divided into, if there is a limit of their cycles; else None."""
    input_pipeline: InputFigures | None = None
    """Figures of the pipeline that computes the input from raw data; None without a pipeline."""
    learning: LearningFigures | None = None
    """The results of on-device training, if the model was trained."""
    buffers: list[ArenaBuffer] | None = None
    """The buffers in the arena, in the order of their first use; None in reports of earlier versions."""
    samples: SampleResults | None = None
    """The results of wrong, uncertain or inaccurate samples; None unless the model ran on samples."""
    command: str | None = None
    """The shell command that reproduces the report; None if the report is not from the command line."""
    varies: tuple[str, ...] = ()
    """A sentence for each layer whose number of instructions depends on data; empty if it is the same for any input."""
    instruction_range: InstructionRange | None = None
    """The range of a run's instructions.

    It is known once the model ran, if the number does not depend on the input or extreme inputs were run; else None.
    """
    stack_bound: StackFigures | None = None
    """An upper bound of the stack, once the model was built for the board."""
    alternatives: tuple[Alternative, ...] = ()
    """Estimated cost of the model with other options; empty unless the user asked for it."""
    two_cores: TwoCores | None = None
    """The schedule of a model for two cores, once it ran."""
    first_part: int | None = None
    """Number of layers that the first core computes if two cores work on two frames at once; None otherwise.

    The transfer of data to the other core is one of these layers.
    """
    self_test: SelfTestFigures | None = None
    """The fault coverage of the self-test, if its samples were chosen to detect faults."""
    plausible: tuple[PlausibleRange, ...] = ()
    """The plausible ranges of outputs, if the code checks outputs."""
    monitor: Monitor | None = None
    """What the code observes in the field, and the reference of `mcugen monitor`; None without `--monitor`."""
    warnings: tuple[str, ...] = ()
    """Problems of samples or of the program, with hints; they are shown even if progress messages are not."""
    other_precisions: tuple[OtherPrecision, ...] = ()
    """The layers with another precision than the quantized model's main one; `notes` names them, too."""
    weight_copies: tuple[WeightCopy, ...] = ()
    """The copies of weights to the arena that each call makes, in the order of the layers."""
    accelerator: AcceleratorFigures | None = None
    """The use of the board's accelerator, such as an NPU; None if the options do not use it."""
    self_test_input: str = "random numbers"
    """Description of the self-test's input; "" if its samples were chosen to detect faults."""

    @property
    def library_calls(self) -> str:
        """Return a text on the layers that call libraries, such as "9 of 16 layers call CMSIS-NN 7.x"; "" for none."""
        counts = Counter(layer.family for layer in self.layers if layer.family != OWN)
        total = len(self.layers)
        return "; ".join(
            f"{n} of {total} layer{'s' * (total != 1)} call{'s' * (n == 1)} {LIBRARIES[family].versions}"
            for family, n in sorted(counts.items())
        )

    @property
    def stalled_share(self) -> float | None:
        """Return the share of cycles that are stalls on memory; None if unknown."""
        return stalled_share(self.cycles_estimate, self.stalls)

    def __repr__(self) -> str:
        """Return the figures that are known as a table of text."""
        from mcugen.reporting.notebook import fact_table

        return fact_table(self).text()

    def _repr_html_(self) -> str:
        """Return the figures and the layers as tables for a notebook."""
        from mcugen.reporting.notebook import fact_table, layer_table, tables_html

        return tables_html([fact_table(self), layer_table(self.layers)])

    def to_json(self) -> dict[str, Any]:
        """Return the report as a dictionary for JSON.

        `cycles` and `ms` are added as short names of the estimates, also for each layer.
        """
        data = asdict(self)
        for part in (data, *data["layers"]):
            part["cycles"], part["ms"] = part["cycles_estimate"], _milliseconds(part["cycles_estimate"], self.clock_hz)
        return data


class Measurement(Protocol):
    """The results of a simulated run that a report needs; every figure is None if it was not measured."""

    @property
    def instructions(self) -> int | None:
        """Return the retired instructions of one call; None if not measured."""

    @property
    def layer_instructions(self) -> tuple[int, ...] | None:
        """Return the retired instructions of each layer; None if not measured."""

    @property
    def stack(self) -> int | None:
        """Return the peak stack of a call in bytes; None if not measured."""

    @property
    def sizes(self) -> Any:
        """Return the bytes that the model adds to a firmware (mcugen.simulation.FirmwareSizes), or None if unknown."""

    @property
    def cycles(self) -> Any:
        """Return the estimated cycles (mcugen.simulation.cycles.Cycles); None if they were not estimated."""

    @property
    def stack_bound(self) -> Any:
        """Return the upper bound of the stack (mcugen.simulation.stack.StackBound); None if not computed."""


def stalled_share(cycles: int | None, stalls: Sequence[Stall] | None) -> float | None:
    """Return the share of `cycles` that are stalls on memory; None if unknown."""
    return sum(stall.cycles for stall in stalls) / cycles if cycles and stalls is not None else None


def _milliseconds(cycles: int | None, clock_hz: int) -> float | None:
    return None if cycles is None else round(1e3 * cycles / clock_hz, 3)


def count_parameters(graph: Graph) -> int:
    """Return the number of weights and biases of the layers that compute multiply-accumulates."""
    layers = [n for g in graph.nested() for n in g.nodes if n.op.macs(n.sig) and not n.op.bodies]
    return sum(v.type.count for n in layers for v in n.inputs if v is not None and v.is_constant)


def memory_use(program: Program, placement: Placement, weights: int) -> list[MemoryUse]:
    """Return the use of each memory of the board that holds data of a program.

    Args:
        program: The planned program.
        placement: The memories that hold arena, weights and copies.
        weights: Bytes of weights in flash.
    """
    uses = []
    for memory in placement.memories:
        areas = zip(placement.arenas, program.area_sizes, strict=True)
        arena = sum(size for other, size in areas if other == memory)
        image, copies = weights if memory == placement.weights else 0, placement.copied_to(memory)
        use = (arena, image, copies, arena + image + copies)
        uses.append(MemoryUse(memory.name, memory.kind, memory.origin, memory.size, *use))
    return uses


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
    """Return a report of everything that is known without building or running the model.

    Args:
        basis: Versions and digests.
        fit: The program, and how it was made to fit the budget.
        graph: The graph after all passes.
        board: The board.
        sha256: The digest of the model.
        kernels: How the kernels were chosen, as text.
        memories: The use of each memory.
        notes: Notes for the user, one sentence each.
    """
    program = fit.program
    estimate = program.instructions_estimate
    macs = sum(program.macs_of(layer) for layer in program.layers())
    copies = sum(m.copies for m in memories)
    dropped = [part.dropped for part in graph.nested()]
    total = sum(dropped, DroppedWork())
    return Report(
        basis=basis,
        model=ModelFigures(
            program.name, sha256, macs, count_parameters(graph), total.channels, total.macs, total.elements
        ),
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
    use, slowdown = fit.chosen.use, fit.slowdown
    share = None if slowdown is None else round(slowdown, 4)
    return BudgetFigures(fit.budget.ram, fit.budget.flash, use.ram, use.flash, fit.chosen.name, share)


def _rows(program: Program, fit: Fit | None) -> RowFigures | None:
    """Return the figures of layers that are computed row by row; None without such layers."""
    spans = [(a, b) for a, b in program.blocks() if program.instrs[a].control is Control.STREAM]
    names = {i.name for a, b in spans for i in program.instrs[a:b] if i.op != program.instrs[a].op}
    slowdown = fit.line_buffering_slowdown if fit else None
    return RowFigures(len(names), len(spans), None if slowdown is None else round(slowdown, 4)) if spans else None


def add_measurements(
    report: Report, run: Measurement, accuracy: Accuracy | None, board: Board, helped: Measurement | None = None
) -> Report:
    """Return a report with the results of a simulation added.

    Args:
        report: The report of the compiler.
        run: The simulation.
        accuracy: The accuracy of the outputs; None if unknown.
        board: The board.
        helped: The simulation of all layers on the second core, if that has another CPU than the first; else None.
    """
    is_offloaded = report.accelerator is not None and bool(report.accelerator.segments)
    energy = None if is_offloaded else board.energy  # It is that of the CPU.
    sizes, memories = run.sizes, report.memories
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
        two_cores=two_cores(
            layers, _measure_helped(report, helped, board), report.first_part, _memories(report, board)
        ),
        stack_bound=stack_figures(run.stack_bound) if run.stack_bound else None,
        **_estimates(report, run, energy),
    )


def _range(report: Report, instructions: int | None) -> InstructionRange | None:
    is_known = instructions is not None and not report.varies
    return InstructionRange(instructions, instructions, 1, True, instructions) if instructions and is_known else None


def _memories(report: Report, board: Board) -> Memories:
    """Return the memories that both of the board's cores use."""
    banks = {memory.name: memory.banks for memory in board.memories}
    arenas = [arena_contention(board, board.memory(use.name)) for use in report.memories if use.arena]
    return Memories(banks, max(arenas, default=0.0))


def _measure_helped(report: Report, run: Measurement | None, board: Board) -> SecondCoreMeasurements | None:
    if run is None or board.second_core is None:
        return None
    return SecondCoreMeasurements(
        _measured_layers(report.layers, run, None), (board.clock_hz, board.second_core.clock_hz)
    )


def _with_code(memories: Sequence[MemoryUse], board: Board, code: int) -> list[MemoryUse]:
    """Return the memories' use with the code in the memory where it runs.

    Code that runs from RAM also lies in flash, from which it is copied.
    """
    runs_from, stored = board.memory(board.code_memory), board.memory(board.weights_memory)
    holders = dict.fromkeys([runs_from, *([stored] if runs_from.kind == "ram" and stored.kind != "ram" else [])])
    known = {use.name: use for use in memories}
    for memory in holders:
        nothing = MemoryUse(memory.name, memory.kind, memory.origin, memory.size, 0, 0, 0, 0)
        use = known.get(memory.name, nothing)
        known[memory.name] = replace(use, code=code, used=use.used + code)
    return list(known.values())


def stack_figures(bound: Any) -> StackFigures:
    """Return the figures of a stack bound of the linked code (mcugen.simulation.stack.StackBound)."""
    note = f"and what functions of the caller's take, which {', '.join(bound.pointers)} calls" * bool(bound.pointers)
    return StackFigures(bound.bytes, [f"{name} {nbytes}" for name, nbytes in bound.path], bound.reason or note)


def _estimates(report: Report, run: Measurement, energy: Energy | None) -> dict[str, Any]:
    """Return the fields of a report that depend on cycles."""
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
    """Return the stalls that a simulation counted (mcugen.simulation.waits.Wait)."""
    return [Stall(wait.memory, wait.fetch_cycles, wait.read_cycles) for wait in waits]


def _microjoules(cycles: int | None, energy: Energy | None) -> float | None:
    return None if cycles is None or energy is None else round(energy.microjoules(cycles), 3)


def _measured_layers(layers: Sequence[ReportedLayer], run: Measurement, energy: Energy | None) -> list[ReportedLayer]:
    """Return the layers with their measured figures; layers behind the last that ran are for learning, and unknown."""
    instructions = run.layer_instructions or ()
    cycles = (run.cycles.layers if run.cycles else None) or ()
    waits = (run.cycles.layer_waits if run.cycles else None) or ()
    return [
        replace(
            layer,
            instructions=count,
            cycles_estimate=layer_cycles,
            stalls=None if waited is None else _stalls(waited),
            microjoules_estimate=_microjoules(layer_cycles, energy),
        )
        for layer, count, layer_cycles, waited in zip_longest(layers, instructions, cycles, waits)
    ]


def require_fit(report: Report, board: Board) -> None:
    """Check the measured sizes, code and stack included, against the board and the budget.

    Raises:
        DoesNotFitError: Something does not fit.
    """
    for kind, needed, available in (
        ("flash", report.flash.total, board.total_flash),
        ("RAM", report.ram.total, board.total_ram),
    ):
        if needed is not None and needed > available:
            excess = f"{needed:,} bytes, {needed - available:,} more than there are"
            raise DoesNotFitError(f"code, weights and memory must fit the {kind} of board '{board.name}'", excess)
    allowed, flash = report.budget.max_flash if report.budget else None, report.flash.total
    if allowed is not None and flash is not None and flash > allowed:
        excess = f"{flash:,} bytes as measured, {flash - allowed:,} more; the estimate was too low"
        raise DoesNotFitError(f"the model must fit --max-flash {allowed:,}", excess, "ask for less")


def _precision(program: Program) -> str:
    plain = (instr for instr in program.instrs if instr.control is Control.NONE)
    kinds = {instr.operands[0].buffer.dtype.value for instr in plain if instr.macs}
    if not kinds:  # no layer multiplies and accumulates
        kinds = {endpoint.dtype.value for endpoint in (*program.inputs, *program.outputs)[:1]}
    kind = kinds.pop() if len(kinds) == 1 else "mixed"
    return "int16x8" if kind == "int16" else kind  # weights are int8


def _layers(program: Program) -> list[ReportedLayer]:
    times = moments(program)
    layers = [(program.head(span), span) for span in program.layers()]
    return [
        ReportedLayer(
            name=name,
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
        for name, (instr, span) in zip(layer_names(program), layers, strict=True)
    ]


def _core(program: Program, span: range) -> int | None:
    """Return the core on which a side of a fork, or a part of a pipeline, runs."""
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
