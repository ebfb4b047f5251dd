# SPDX-License-Identifier: Apache-2.0
"""A device validation, from the first request to the report."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path

from mcugen.api.compilation import Compilation
from mcugen.codegen.bundle import Result
from mcugen.core.board import Board
from mcugen.core.errors import BoardError, ToolMissingError, UsageError
from mcugen.deploy.validation.compare import compare_tensors, judge_result, likely_causes, worst_verdict
from mcugen.deploy.validation.device import Device, Identity
from mcugen.deploy.validation.figures import (
    CYCLES,
    INSTRUCTIONS,
    CycleRange,
    Difference,
    LayerCheck,
    LinkStatistics,
    SimulatedFigures,
    ValidationReport,
    Verdict,
)
from mcugen.deploy.validation.links import Link, ProcessLink, open_port
from mcugen.deploy.validation.probes import is_probe, open_probe
from mcugen.deploy.validation.runner import Runner
from mcugen.driver.compiled import CompiledModel
from mcugen.evaluation.metrics import Metric
from mcugen.evaluation.samples import Samples, as_stored, random_samples
from mcugen.hir.types import Array
from mcugen.measurement.evaluate import choose_metric, measure_accuracy, sample_endpoints
from mcugen.quantization.quantize import Progress, no_progress
from mcugen.simulation.build import Checks, build_wire_host, build_wire_target
from mcugen.simulation.execute import Sample, host_program, qemu_program
from mcugen.simulation.machines import find_machine
from mcugen.simulation.simulation import Execution, Setup, simulate_layer_stacks
from mcugen.simulation.timer import SysTick

SIMULATOR_PORT = "simulator"
"""Value of `--port` for a simulated board: QEMU's machine, or a build for this computer."""

_MAX_FETCHED_BYTES = 1 << 16
"""Largest number of bytes of a tensor that are fetched to locate a difference."""

_MAX_COMPARED_FLOATS = 1 << 10
"""Largest number of elements that are compared by value in a float tensor whose bits differ."""

MAX_CLOCK_DEVIATION = 0.02
"""Largest deviation of the firmware's clock from the board file's, as a share, that is no note: more than oscillators
have."""


@dataclass(frozen=True)
class ValidationSetup:
    """The connection to the board, and what to validate.

    Attributes:
        port: Value of `--port`.
        baud: Bits per second of a serial port.
        patience: Seconds of silence after which the board counts as lost.
        layer_samples: Number of samples, from the first one on, for which layers are compared.
        simulates: Whether to add the simulator's figures to the report.
    """

    port: str
    baud: int = 115_200
    patience: float = 20.0
    layer_samples: int = 8
    simulates: bool = False

    def __post_init__(self) -> None:
        if self.baud <= 0 or not self.patience > 0:
            raise UsageError("--baud and --timeout must be more than 0", f"{self.baud} and {self.patience:g}")


Observer = Callable[[ValidationReport], None]
"""Function that receives the report on what is known so far, after each step of a validation."""


def validate_model(net: Compilation, wiring: ValidationSetup, observer: Observer | None = None) -> ValidationReport:
    """Validate a compiled model on a board with its evaluation samples, or with one random sample if it has none.

    Args:
        net: The compilation.
        wiring: The connection to the board, and what to validate.
        observer: Receives the report on the samples and layers so far, without accuracy.

    Raises:
        BoardError: No board answers, or a board with other firmware does.
        VerificationError: The model's run function returns an error.
    """
    if wiring.port == SIMULATOR_PORT:
        _require_serial_port(net.target)
    compiled = net.compiled
    endpoints = sample_endpoints(compiled)
    source = net.judging.data
    samples = random_samples(endpoints) if source is None else net.samples(source, endpoints, accepts_nonfinite=True)
    metric = choose_metric(net.judging.metric, samples.labels, compiled.program.outputs, compiled.program.inputs)
    return validate(compiled, samples, metric, wiring, net.progress, observer)


def validate(
    compiled: CompiledModel,
    samples: Samples,
    metric: Metric,
    wiring: ValidationSetup,
    progress: Progress = no_progress,
    observer: Observer | None = None,
) -> ValidationReport:
    """Run samples on the board, compare the results with the reference, and return the report.

    Args:
        compiled: The model that the board's firmware contains.
        samples: The samples, with labels if known.
        metric: The metric of accuracy.
        wiring: The connection to the board, and what to validate.
        progress: Receives the progress of the validation.
        observer: Receives the report on the samples and layers so far, without accuracy.

    Raises:
        BoardError: No board answers, or a board with other firmware does.
        VerificationError: The model's run function returns an error.
    """
    stored = [as_stored(sample, compiled.program.inputs) for sample in samples.inputs]
    with tempfile.TemporaryDirectory(prefix="mcugen-") as folder:
        work = Path(folder)
        with _port(compiled, wiring, work) as (link, ticks):
            device = Device(link, wiring.baud, wiring.patience)
            board = Runner(device, compiled.bundle, stored, _checker(compiled))
            board.connect()
            with _reference(compiled, stored, work) as (reference, notes):
                unit = INSTRUCTIONS if wiring.port == SIMULATOR_PORT and compiled.board.qemu else CYCLES
                session = _Session(compiled, board, reference, wiring, link.name, progress, observer, ticks, unit)
                session.notes += notes
                session.run()
            device.await_late_answers()
            return _whole_report(session, samples, metric)


def _require_serial_port(board: Board) -> None:
    """Raise UsageError if the board is simulated by a machine whose serial port is not known."""
    machine = find_machine(board) if board.qemu else None
    if machine is not None and not machine.uart:
        machine_text, remedy = f"machine '{machine.name}'", "name another board with the same CPU"
        raise UsageError("--port simulator needs a machine whose serial port is known", machine_text, remedy)


@contextmanager
def _port(compiled: CompiledModel, wiring: ValidationSetup, folder: Path) -> Iterator[tuple[Link, Fraction]]:
    """Yield the link, and the counts of the board's counter per cycle (per instruction for the simulator)."""
    ticks = Fraction(1)
    if wiring.port == SIMULATOR_PORT:
        link, ticks = _simulator(compiled, folder)
    else:
        link = open_probe(wiring.port) if is_probe(wiring.port) else open_port(wiring.port, wiring.baud)
    try:
        yield link, ticks
    finally:
        link.close()


def _simulator(compiled: CompiledModel, folder: Path) -> tuple[Link, Fraction]:
    """Return a link to the firmware in QEMU or on this computer, and the counts of its counter per cycle."""
    board, files = compiled.board, compiled.options.library
    if not board.qemu:
        program = host_program(build_wire_host(compiled.bundle, folder / "device", Checks.NONE, files))
        return ProcessLink(program.command, "this computer"), Fraction(1)
    _require_serial_port(board)
    machine = find_machine(board)
    image = build_wire_target(compiled.bundle, board, machine, folder / "device", files)
    program = qemu_program(image, machine, count_instructions=True, serial="stdio")
    counter = machine.counter
    ticks = Fraction(counter.clock_hz << counter.shift, 10**9) if isinstance(counter, SysTick) else Fraction(1)
    return ProcessLink(program.command, f"QEMU's {machine.name}"), ticks


@contextmanager
def _reference(
    compiled: CompiledModel, stored: Sequence[Sample], folder: Path
) -> Iterator[tuple[Runner | None, list[str]]]:
    """Yield the same firmware built for this computer, the reference of all results, and notes for the report.

    The runner is None if this computer has no compiler.
    """
    try:
        image = build_wire_host(compiled.bundle, folder / "reference", Checks.NONE, compiled.options.library)
    except ToolMissingError as error:
        yield None, [f"bits are not compared, as the generated code cannot run on this computer: {error}"]
        return
    link = ProcessLink(host_program(image).command, "the reference on this computer")
    device = Device(link, 10**9, 600.0)
    try:
        yield Runner(device, compiled.bundle, stored, _checker(compiled)), []
    finally:
        link.close()


def _checker(compiled: CompiledModel) -> Callable[[Identity], None]:
    """Return a check that a firmware has this model, compiled with the options given here.

    The check raises BoardError; the results of any other firmware would be meaningless.
    """
    validation, figures = compiled.bundle.validation, compiled.report.model
    assert validation is not None

    def check(identity: Identity) -> None:
        firmware_text = f"'{identity.name}', by mcugen {identity.version} with {identity.options}"
        remedy = "flash a firmware with the files of `mcugen compile … --validation` and the options given here"
        if identity.sha256 != figures.sha256:
            raise BoardError(
                f"the board must run this model, SHA-256 {figures.sha256[:16]}…",
                f"another one, SHA-256 {identity.sha256[:16]}…: {firmware_text}",
                remedy,
            )
        if identity.code != validation.code.hex():
            rule = "the board must run the code that the model is compiled to here"
            raise BoardError(rule, f"other code of the same model: {firmware_text}", remedy)

    return check


@dataclass
class _Session:
    """The state of a validation: the results so far."""

    compiled: CompiledModel
    board: Runner
    reference: Runner | None
    wiring: ValidationSetup
    port: str
    progress: Progress
    observer: Observer | None
    ticks: Fraction
    unit: str = CYCLES
    """What the board's counter counts, divided by `ticks`."""
    notes: list[str] = field(default_factory=list)
    outputs: list[dict[str, Array]] = field(default_factory=list)
    cycles: list[int] = field(default_factory=list)
    stack: int | None = None
    wrong_constants: list[str] = field(default_factory=list)
    verdicts: dict[int, list[Verdict]] = field(default_factory=dict)
    """Verdicts on the outputs of each sample, by sample number."""
    layers: dict[int, list[Verdict]] = field(default_factory=dict)
    """Verdicts on the results of each layer, by layer number."""
    times: list[int | None] = field(default_factory=list)
    stacks: list[int | None] = field(default_factory=list)
    difference: Difference | None = None
    compared: int = 0

    def run(self) -> None:
        """Check the constants, then run all samples, then compare the layers for the first samples."""
        self._check_constants()
        self._run_samples()
        identity = self.board.identity
        assert identity is not None
        if not identity.has_layers:
            self.notes.append("the firmware was built without hooks: layers are neither compared nor timed")
            return
        if self.compiled.bundle.layers:
            self.times = [self._cycles(count) for count in self.board.times(0)]
            self.stacks = self.board.stacks(0) if self.stack is not None else []
        if self.reference is not None:
            self._compare_layers(self.wiring.layer_samples)

    @property
    def different(self) -> list[int]:
        """Return the numbers of the samples whose outputs are wrong."""
        return [index for index, verdicts in self.verdicts.items() if Verdict.DIFFERENT in verdicts]

    def _check_constants(self) -> None:
        validation = self.compiled.bundle.validation
        assert validation is not None
        pairs = zip(validation.constants, self.board.constants(), strict=True)
        self.wrong_constants = [constant.name for constant, crc in pairs if constant.crc32 != crc]

    def _run_samples(self) -> None:
        """Run all samples; the first sample also runs once before, to measure its stack."""
        total, name = len(self.board.samples), self.compiled.board.name
        _, painted = self.board.outputs(0, paints=True)
        self.stack = painted.stack
        for index in range(total):
            begin = time.monotonic()
            outputs, progress = self.board.outputs(index)
            self.outputs.append(outputs)
            count = self._cycles(progress.cycles, time.monotonic() - begin)
            self.cycles += [count] if count is not None else []
            if self.reference is not None:
                expected, _ = self.reference.outputs(index)
                is_real = any(array.dtype.kind == "f" for array in expected.values())
                self.verdicts[index] = [judge_result(outputs[key], expected[key], is_real) for key in expected]
            self._tell(f"{name}: running", index + 1, total)

    def _tell(self, what: str, finished: int, total: int) -> None:
        """Tell the progress of a task, and what is known so far."""
        self.progress(what, finished, total)
        if self.observer is not None:
            self.observer(_report(self))

    def _cycles(self, counts: int | None, seconds: float | None = None) -> int | None:
        """Return the cycles of a counter's difference; None if a 32-bit counter may have overflowed in `seconds`."""
        identity = self.board.identity
        if counts is None or identity is None or identity.counter == "none":
            return None
        clock = identity.clock_hz or self.compiled.board.clock_hz
        is_short = identity.counter in ("DWT", "CCOUNT", "the firmware's own", "esp_cpu")
        if is_short and seconds is not None and self.ticks == 1 and seconds * clock > 2**32:
            self.notes.append("a run took longer than its counter of 32 bits counts: it is not timed")
            return None
        return round(counts / self.ticks)

    def _compare_layers(self, count: int) -> None:
        """Compare the layers' digests for the first samples and the first wrong sample; stop at a difference."""
        total = len(self.board.samples)
        chosen = list(range(min(count, total)))
        chosen += [index for index in self.different[:1] if index not in chosen]
        for index in chosen:
            self._compare_sample(index)
            self.compared += 1
            self._tell("layers", self.compared, len(chosen))
            if self.difference is not None:
                return
        if self.different and self.difference is None:
            self.difference = self._output_difference(self.different[0])

    def _compare_sample(self, index: int) -> None:
        assert self.reference is not None
        board, reference = self.board.digests(index), self.reference.digests(index)
        results = self._results
        unequal = [number for number, pair in enumerate(zip(board, reference, strict=True)) if pair[0] != pair[1]]
        verdicts = {number: Verdict.EXACT for number in range(len(results)) if number not in unequal}
        verdicts |= self._judge_fetched(index, unequal)
        for number, verdict in sorted(verdicts.items()):
            self.layers.setdefault(results[number].layer, []).append(verdict)
        first = next((n for n in sorted(verdicts) if verdicts[n] is Verdict.DIFFERENT), None)
        if first is not None:
            self.difference = self._layer_difference(index, first, board[first])

    @property
    def _results(self) -> Sequence[Result]:
        validation = self.compiled.bundle.validation
        assert validation is not None
        return validation.results

    def _judge_fetched(self, index: int, unequal: Sequence[int]) -> dict[int, Verdict]:
        """Return the verdicts on results whose bits differ.

        Float results, and the results that follow them, may be within tolerance. Integer results before the first float
        result must be exact.
        """
        assert self.reference is not None
        results = self._results
        floats = [n for n in unequal if results[n].dtype.is_float or results[n].dtype.is_narrow_float]
        first = min(floats, default=len(results))
        hard = [n for n in unequal if n < first]
        if hard:
            return {hard[0]: Verdict.DIFFERENT}
        counts = {n: min(results[n].nbytes // results[n].dtype.nbytes, _MAX_COMPARED_FLOATS) for n in unequal}
        mine, theirs = self.board.results(index, counts), self.reference.results(index, counts)
        return {n: self._judge_part(results[n], mine[n], theirs[n]) for n in unequal}

    @staticmethod
    def _judge_part(result: Result, board: Array, reference: Array) -> Verdict:
        """Return the verdict on the fetched part of a result whose digests differ.

        If the fetched parts are equal, the difference lies behind them, or does not occur on every run.
        """
        verdict = judge_result(board, reference, True)
        if verdict is not Verdict.EXACT:
            return verdict
        return Verdict.DIFFERENT if board.nbytes == result.nbytes else Verdict.UNKNOWN

    def _layer_difference(self, index: int, number: int, digest: int) -> Difference:
        assert self.reference is not None
        result = self._results[number]
        counts = {number: min(result.nbytes, _MAX_FETCHED_BYTES) // result.dtype.nbytes}
        mine, theirs = self.board.results(index, counts)[number], self.reference.results(index, counts)[number]
        again = self.board.digests(index)[number]
        layer = self.compiled.report.layers[result.layer]
        location = (index, result.layer, layer.name, layer.kernel)
        is_repeatable = again == digest and mine.tobytes() != theirs.tobytes()
        return self._difference(location, mine, theirs, is_repeatable, index not in self.different)

    def _output_difference(self, index: int) -> Difference:
        """Return the difference of a wrong output although all layers are right, or are not compared."""
        assert self.reference is not None
        expected, _ = self.reference.outputs(index)
        name = next(n for n in expected if expected[n].tobytes() != self.outputs[index][n].tobytes())
        again, _ = self.board.outputs(index)
        is_repeatable = again[name].tobytes() == self.outputs[index][name].tobytes()
        return self._difference((index, -1, name, ""), self.outputs[index][name], expected[name], is_repeatable, False)

    def _difference(
        self,
        where: tuple[int, int, str, str],
        board: Array,
        reference: Array,
        is_repeatable: bool,
        is_plain_equal: bool,
    ) -> Difference:
        identity = self.board.identity
        assert identity is not None
        is_float = board.dtype.kind == "f"
        difference = compare_tensors(board, reference)
        reasons = likely_causes(
            difference,
            identity,
            self.wrong_constants,
            is_float=is_float,
            is_repeatable=is_repeatable,
            is_plain_equal=is_plain_equal,
        )
        return Difference(
            *where,
            dtype=str(board.dtype),
            element=difference.element,
            board=difference.board,
            reference=difference.reference,
            count=difference.count,
            compared=difference.compared,
            is_repeatable=is_repeatable,
            causes=reasons,
        )


def _whole_report(session: _Session, samples: Samples, metric: Metric) -> ValidationReport:
    """Return the report of an ended session, with accuracy and, if they are wanted, the simulator's figures."""
    compiled = session.compiled
    accuracy, oracle = measure_accuracy(compiled, samples, session.outputs, metric, session.progress)
    session.notes += [oracle.note] if oracle.note else []
    assert session.board.identity is not None
    session.notes += _clock_notes(session.board.identity.clock_hz, compiled.board)
    is_simulated = session.wiring.simulates
    run, stacks = _simulate(compiled, session.board.samples[0]) if is_simulated else (None, None)
    return replace(
        _report(session),
        accuracy=accuracy,
        simulated=None if run is None else _figures_of(run),
        layers=_layers(session, run, stacks),
        notes=(*compiled.report.notes, *samples.notes, *dict.fromkeys(session.notes)),
    )


def _report(session: _Session) -> ValidationReport:
    """Return the report on what a session has run so far."""
    board, figures = session.board, session.compiled.report
    assert board.identity is not None
    return ValidationReport(
        model=figures.model,
        board=figures.board,
        cpu=figures.cpu,
        precision=figures.precision,
        firmware=board.identity,
        samples=len(session.outputs),
        accuracy=None,
        outputs=worst_verdict([verdict for verdicts in session.verdicts.values() for verdict in verdicts]).value,
        different_samples=len(session.different),
        layer_samples=session.compared,
        difference=session.difference,
        constants_differ=session.wrong_constants,
        cycles=_cycles(session),
        instructions_estimate=figures.instructions_estimate,
        stack=session.stack,
        simulated=None,
        wire=_wire(board.device, session.wiring, session.port),
        layers=_layers(session, None, None),
        notes=(),
    )


def _clock_notes(clock_hz: int, board: Board) -> list[str]:
    """Return a note if the firmware's counter has another frequency than the CPU's clock in the board file."""
    if not clock_hz or abs(clock_hz - board.clock_hz) <= MAX_CLOCK_DEVIATION * board.clock_hz:
        return []
    return [f"the firmware counts with {clock_hz / 1e6:g} MHz, the board file describes {board.clock_hz / 1e6:g} MHz"]


def _simulate(compiled: CompiledModel, sample: Sample) -> tuple[Execution, tuple[int, ...] | None]:
    """Return a simulated run, and the stack of each layer.

    If code converts the input from raw data, the run takes the converted input, as the board does.
    """
    compiled = compiled.given_inputs
    run = compiled.simulate([sample], per_layer=True, cycles=True)
    setup = Setup(library=compiled.options.library)
    return run, simulate_layer_stacks(compiled.bundle, compiled.board, sample, setup)


def _figures_of(run: Execution) -> SimulatedFigures:
    cycles = run.cycles
    return SimulatedFigures(
        run.instructions, None if cycles is None else cycles.total, "" if cycles is None else cycles.note, run.stack
    )


def _cycles(session: _Session) -> CycleRange | None:
    identity, cycles = session.board.identity, session.cycles
    if not cycles or identity is None:
        return None
    clock = identity.clock_hz or session.compiled.board.clock_hz
    milliseconds = round(1e3 * cycles[0] / clock, 3)
    return CycleRange(session.unit, identity.counter, cycles[0], min(cycles), max(cycles), clock, milliseconds)


def _wire(device: Device, wiring: ValidationSetup, port: str) -> LinkStatistics:
    traffic = device.traffic
    return LinkStatistics(
        port=port,
        baud=wiring.baud,
        sent=traffic.sent,
        received=traffic.received,
        frames=traffic.requests + traffic.answers,
        lost=traffic.lost,
        damaged=traffic.damaged,
        resets=traffic.resets,
        seconds=round(traffic.seconds(wiring.baud), 3),
    )


def _layers(session: _Session, run: Execution | None, simulated: tuple[int, ...] | None) -> list[LayerCheck]:
    layers = session.compiled.report.layers
    unknown: tuple[None, ...] = (None,) * len(layers)
    times, stacks = session.times or unknown, session.stacks or unknown
    instructions = (run.layer_instructions if run else None) or unknown
    estimates = (run.cycles.layers if run and run.cycles else None) or unknown
    return [
        LayerCheck(
            layer.name,
            list(layer.origin),
            layer.op,
            layer.kernel,
            layer.macs,
            worst_verdict(session.layers.get(number, [])).value,
            *figures,
        )
        for number, (layer, *figures) in enumerate(
            zip(layers, times, instructions, estimates, stacks, simulated or unknown, strict=True)
        )
    ]
