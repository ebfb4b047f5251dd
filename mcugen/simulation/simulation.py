# SPDX-License-Identifier: Apache-2.0
"""Simulation of a generated model: build with the test firmware, runs on samples, and measurements."""

from __future__ import annotations

import contextlib
import platform
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from mcugen.codegen.bundle import Bundle
from mcugen.core.board import Board
from mcugen.core.errors import ToolMissingError, UsageError
from mcugen.core.options import LibraryFiles
from mcugen.distributed.sharing import ONLY_THIS_PROCESS, Workers
from mcugen.simulation.build import Checks, TargetImages, build_host, build_parts, build_target
from mcugen.simulation.cycles import Cycles, estimate_cycles, with_accelerators
from mcugen.simulation.elf import function_sizes, read_sizes
from mcugen.simulation.execute import (
    Executable,
    Measure,
    RunResult,
    Sample,
    TrapError,
    execute,
    host_program,
    qemu_program,
    raw_samples,
)
from mcugen.simulation.machines import Machine, find_machine, tool_versions
from mcugen.simulation.profile import Profiler
from mcugen.simulation.stack import StackBound, stack_bound
from mcugen.simulation.timer import Reading, TimerReadings

MIN_SHARE_SAMPLES = 16
"""Smallest number of samples for which another simulator process is started."""

MAX_SHARE_SAMPLES = 256
"""Largest number of samples that a cluster worker gets at once; they are computed again if the worker is lost."""

MIN_CLUSTER_SHARES = 8
"""Smallest number of parts into which samples are divided for a cluster, so that many workers get work."""

SECONDS_PER_SAMPLE = 120.0
"""Time limit for one sample in seconds, after which a run counts as hanging."""

PROFILED_TIMEOUT_FACTOR = 10
"""Factor by which the time limit of a profiled run is longer; the plugin slows it down."""


@dataclass(frozen=True)
class FirmwareSizes:
    """Bytes that the model adds to a firmware, including the library functions that it needs."""

    code: int
    """Flash for code, constants and initial values, without the weights."""
    weights: int
    """Flash for the weights."""
    static_ram: int
    """RAM for data and bss, without the arena."""
    functions: Mapping[str, int] = field(default_factory=dict)
    """Bytes of code of each C function in the simulated firmware."""


@dataclass(frozen=True)
class Execution:
    """Results and measurements of runs of a model; None for quantities that were not measured or cannot be measured."""

    outputs: list[dict[str, np.ndarray]]
    """One dict per sample, by port name."""
    instructions: int | None
    """Retired instructions of one call of the run function, its return included."""
    layer_instructions: tuple[int, ...] | None
    """Instructions of each layer in an instrumented build; their sum differs a little from `instructions`."""
    stack: int | None
    """Peak stack of the call in bytes, below the caller's frame."""
    sizes: FirmwareSizes | None
    """Bytes of flash and RAM that the model adds to a firmware."""
    cycles: Cycles | None = None
    """Estimated cycles of the call and of its layers."""
    input_instructions: int | None = None
    """Instructions that convert the first raw sample to the input."""
    crcs: tuple[int, ...] = ()
    """For each sample, the CRC-32 of the input converted from raw data, or of a trainable model's state afterwards.

    Empty for models with neither.
    """
    stack_bound: StackBound | None = None
    """Upper bound of a call's stack for any input; None if it was not computed."""


@dataclass(frozen=True)
class Setup:
    """Options for the build and the runs of a simulation."""

    sanitize: bool = False
    """Whether to build for the host with address and undefined-behavior sanitizers."""
    timeout: float = SECONDS_PER_SAMPLE
    """Time limit of one sample in seconds."""
    progress: Callable[[int], None] | None = None
    """Called with the number of finished samples."""
    workdir: Path | None = None
    """Folder in which the files of build and run are kept; None for a temporary folder."""
    library: LibraryFiles | None = None
    """Library for models that call one."""
    workers: Workers = ONLY_THIS_PROCESS
    """Processes or computers that run the simulators, between which samples are divided unless the model has state."""


def simulate(
    bundle: Bundle,
    board: Board,
    samples: Sequence[Sample],
    *,
    measure: bool = True,
    per_layer: bool = False,
    cycles: bool = False,
    wait_states: int | None = None,
    setup: Setup | None = None,
) -> Execution:
    """Run the model on each sample, under QEMU or, for board `host`, on this computer.

    Args:
        bundle: The model.
        board: The board.
        samples: Arrays by port name, for each sample.
        measure: Whether to measure stack, instructions and sizes (QEMU only).
        per_layer: Whether to measure each layer (QEMU only).
        cycles: Whether to estimate cycles of the call and, with `per_layer`, of each layer (QEMU only).
        wait_states: Wait states of flash in CPU cycles, in place of the board's; None for the board's.
        setup: Further options.

    Raises:
        UsageError: A sample does not match the ports, or the library is not the model's.
        VerificationError: The C code does not compile without warnings, returns an error, faults or hangs.
        ToolMissingError: A compiler or QEMU is not installed.
    """
    if not samples:
        raise UsageError("a simulation must have samples", "none")
    setup = setup or Setup()
    bundle = _with_room(bundle, samples)
    timeout = setup.timeout
    with _folder(setup.workdir) as folder:
        run_all = partial(_run_all, bundle=bundle, samples=samples, folder=folder, setup=setup)
        if not board.qemu:
            run_here = _run_here(bundle, folder, setup, run_all)
            return Execution(run_here.outputs, None, None, None, None, crcs=run_here.crcs)
        machine, hooks = find_machine(board), per_layer and bool(bundle.layers)
        images = build_target(bundle, board, machine, folder, hooks=hooks, empty=measure, files=setup.library)
        run_samples = run_all
        if setup.workers.cluster and not bundle.has_state:
            run_samples = partial(_run_on_cluster, board=board, bundle=bundle, samples=samples, setup=setup)
        run = run_samples(qemu_program(images.model, machine), measure=Measure.STACK if measure else Measure.NOTHING)
        time = partial(_time, machine=machine, bundle=bundle, sample=samples[0], timeout=timeout)
        layers = time(images.layers).layer_instructions(bundle.layers_of(samples[0])) if images.layers else None
        if not measure:
            return Execution(run.outputs, None, layers, None, None, crcs=run.crcs)
        timing = time(images.model)
        instructions = timing.instructions()
        timed = board if wait_states is None else board.with_flash_waits(wait_states)
        profiler = Profiler(machine, bundle, samples[0], timed, PROFILED_TIMEOUT_FACTOR * timeout)
        estimate = estimate_cycles(images, profiler, instructions) if cycles else None
        estimate = with_accelerators(estimate, bundle) if estimate and bundle.invocations else estimate
        stack, input_instructions = run.findings["stack"][0], timing.input_instructions()
        bound = stack_bound(images.model, f"{bundle.name}_run", machine.toolchain)
        return Execution(
            run.outputs, instructions, layers, stack, _sizes(images), estimate, input_instructions, run.crcs, bound
        )


def _run_all(
    program: Executable,
    bundle: Bundle,
    samples: Sequence[Sample],
    folder: Path,
    setup: Setup,
    measure: Measure = Measure.NOTHING,
) -> RunResult:
    """Run all samples in parallel shares. The first sample of the first share is measured."""
    ends = _shares(len(samples), 1 if bundle.has_state else setup.workers.jobs)
    count = len(ends) - 1
    finished = [0] * count

    def run(part: int) -> RunResult:
        def advance(number: int) -> None:
            finished[part] = number
            if setup.progress:
                setup.progress(sum(finished))

        return execute(
            program,
            bundle,
            samples[ends[part] : ends[part + 1]],
            folder / f"run{part or ''}",
            measure=Measure.NOTHING if part else measure,
            timeout=setup.timeout,
            first=ends[part],
            progress=advance,
        )

    with ThreadPoolExecutor(count) as pool:
        return _joined(list(pool.map(run, range(count))))


def _shares(total: int, max_shares: int) -> list[int]:
    """Return the begins of the shares of `total` samples, and the end of the last."""
    count = max(min(max_shares, total // MIN_SHARE_SAMPLES), 1)
    return [total * i // count for i in range(count + 1)]


def _joined(runs: Sequence[RunResult]) -> RunResult:
    """Join the runs of all shares; measurements are those of the first."""
    outputs = [output for run in runs for output in run.outputs]
    return RunResult(outputs, runs[0].findings, tuple(crc for run in runs for crc in run.crcs))


@dataclass(frozen=True)
class SampleShare:
    """A part of the samples, which one worker process or computer runs.

    Attributes:
        first: Number of the first of these samples among all samples.
        samples: The samples, which are consecutive.
        measure: What to measure for the first sample.
    """

    first: int
    samples: Sequence[Sample]
    measure: Measure


def _run_on_cluster(
    program: Executable,
    board: Board,
    bundle: Bundle,
    samples: Sequence[Sample],
    setup: Setup,
    measure: Measure = Measure.NOTHING,
) -> RunResult:
    """Run all samples on other computers, whose simulators must have the same version."""
    ends = _shares(len(samples), max(MIN_CLUSTER_SHARES, -(-len(samples) // MAX_SHARE_SAMPLES)))
    shares = [
        SampleShare(first, samples[first:end], Measure.NOTHING if first else measure) for first, end in pairwise(ends)
    ]
    work = partial(_run_share, program.image, board, tool_versions(board)[1], bundle, setup.timeout)
    runs: dict[int, RunResult] = {}
    for share, run in setup.workers.run_tasks(work, shares):
        runs[share.first] = run
        if setup.progress:
            setup.progress(sum(len(run.outputs) for run in runs.values()))
    return _joined([runs[first] for first in sorted(runs)])


def _run_share(
    image: Path, board: Board, simulator: str | None, bundle: Bundle, timeout: float, share: SampleShare
) -> RunResult:
    """Run one share on a worker of a cluster.

    Raises:
        ToolMissingError: The worker has another version of the simulator.
    """
    own = tool_versions(board)[1]
    if own != simulator:
        rule = "workers of a cluster must have the simulator of this computer"
        raise ToolMissingError(rule, f"on {platform.node()}: {own}, not {simulator}", "install that version there")
    program = qemu_program(image, find_machine(board))
    with _folder(None) as folder:
        return execute(
            program, bundle, share.samples, folder, measure=share.measure, timeout=timeout, first=share.first
        )


def _with_room(bundle: Bundle, samples: Sequence[Sample]) -> Bundle:
    """Return the bundle with room in its program for the largest raw sample."""
    if bundle.input_code is None:
        return bundle
    largest = max(array.size for array in raw_samples(bundle, samples))
    return replace(bundle, input_code=replace(bundle.input_code, most_raw=largest))


def _run_here(bundle: Bundle, folder: Path, setup: Setup, run_all: Callable[[Executable], RunResult]) -> RunResult:
    """Run the model on this computer; if a sanitizer stops it, run another build that prints the reason."""
    build = partial(build_host, bundle, folder, files=setup.library)
    if not setup.sanitize:
        return run_all(host_program(build(Checks.NONE)))
    program = host_program(build(Checks.TRAP))
    try:
        return run_all(program)
    except TrapError:
        run_all(host_program(build(Checks.TELL)))
        raise


@contextlib.contextmanager
def _folder(workdir: Path | None) -> Iterator[Path]:
    if workdir is not None:
        workdir.mkdir(parents=True, exist_ok=True)
        yield workdir
        return
    with tempfile.TemporaryDirectory(prefix="mcugen-") as folder:
        yield Path(folder)


def simulate_layer_stacks(
    bundle: Bundle, board: Board, sample: Sample, setup: Setup | None = None
) -> tuple[int, ...] | None:
    """Run a sample in the simulator, and return the peak stack of each layer in bytes, without the caller's frame.

    Return None if the board has no QEMU machine (code that runs on this computer) or the model no layers. The hook that
    is called after each layer uses some bytes of stack itself, so that no result is smaller. The errors are those of
    `simulate`.

    Args:
        bundle: The model.
        board: The board.
        sample: Inputs by port name.
        setup: Further options of the run; None for the defaults.
    """
    setup = setup or Setup()
    if not board.qemu or not bundle.layers:
        return None
    bundle, machine = _with_room(bundle, [sample]), find_machine(board)
    with _folder(setup.workdir) as folder:
        image = build_target(bundle, board, machine, folder, hooks=False, stacks=True, files=setup.library).stacks
        assert image is not None
        run = execute(
            qemu_program(image, machine), bundle, [sample], folder / "run", measure=Measure.STACK, timeout=setup.timeout
        )
        return tuple(run.findings["layer_stacks"][: len(bundle.layers)])


def _time(image: Path, machine: Machine, bundle: Bundle, sample: Sample, timeout: float) -> TimerReadings:
    """Measure the time of one sample in a separate run, since counting instructions is slow."""
    program = qemu_program(image, machine, count_instructions=True)
    folder = image.with_suffix(".run")
    findings = execute(program, bundle, [sample], folder, measure=Measure.TIME, timeout=timeout).findings

    def readings(key: str) -> list[Reading]:
        words = iter(findings.get(key, ()) if key == "make_input" else findings[key])
        return list(zip(words, words, words, strict=True))

    keys = ("nothing", "known_loop", "two_hooks", "hooks", "run", "layers", "make_input")
    return TimerReadings(machine.counter, **{key: readings(key) for key in keys})


def roots_of(bundle: Bundle) -> list[str]:
    """Return the names of the C functions through which a program uses a model: run, port accessors, and reset."""
    ports = [p.accessor for p in (*bundle.inputs, *bundle.outputs) if not p.is_lent and not p.rows]
    return [f"{bundle.name}_run", *ports, *[f"{bundle.name}_reset"] * bundle.has_state]


def linked_sizes(
    bundle: Bundle, board: Board, roots: Sequence[str], library: LibraryFiles | None = None
) -> FirmwareSizes:
    """Build a firmware with functions of a bundle, and return the bytes that they and the functions they call add.

    Args:
        bundle: The model.
        board: The board.
        roots: Names of the C functions.
        library: Library that the model calls.

    Raises:
        ToolMissingError: The compiler is not installed.
        UsageError: The board has no compiler (`host`).
    """
    with _folder(None) as folder:
        model, empty = map(read_sizes, build_parts(bundle, board, folder, roots, library))
    return FirmwareSizes(code=model.flash - empty.flash, weights=model.weights, static_ram=model.ram - empty.ram)


def _sizes(images: TargetImages) -> FirmwareSizes:
    assert images.empty is not None
    model, empty = read_sizes(images.model), read_sizes(images.empty)
    functions = function_sizes(images.model) - function_sizes(images.empty)
    return FirmwareSizes(model.flash - empty.flash, model.weights, model.ram - empty.ram, functions)
