# SPDX-License-Identifier: Apache-2.0
"""Builds a generated model with the test firmware, runs it on samples, and measures it."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mcugen.board import Board
from mcugen.codegen.bundle import Bundle
from mcugen.errors import UsageError
from mcugen.simulate.build import TargetImages, build_host, build_target
from mcugen.simulate.elf import read_sizes
from mcugen.simulate.execute import Findings, Measure, Sample, execute, host_program, qemu_program
from mcugen.simulate.machines import Machine, find_machine
from mcugen.simulate.timer import Reading, Timer, Timing

SECONDS_PER_SAMPLE = 120.0
"""A run that finishes no sample in this time is held to hang."""


@dataclass(frozen=True)
class Sizes:
    """Bytes that the model adds to a firmware, library functions it pulls in included."""

    code: int
    """Flash for code, constants and initial values, without the weights."""
    weights: int
    static_ram: int
    """Data and bss without the arena."""


@dataclass(frozen=True)
class Execution:
    """Results and measurements; what was not, or cannot be, measured is None."""

    outputs: list[dict[str, np.ndarray]]
    """One dict per sample, by port name."""
    instructions: int | None
    """Retired instructions of one call of the run function, its return included."""
    layer_instructions: tuple[int, ...] | None
    """Of an instrumented build, so that the sum differs a little from `instructions`."""
    stack: int | None
    """Peak bytes of the call, below the caller's frame."""
    sizes: Sizes | None


def simulate(
    bundle: Bundle,
    board: Board,
    samples: Sequence[Sample],
    *,
    measure: bool = True,
    per_layer: bool = False,
    sanitize: bool = False,
    timeout: float = SECONDS_PER_SAMPLE,
    progress: Callable[[int], None] | None = None,
    workdir: Path | None = None,
) -> Execution:
    """Runs the model on each sample (arrays by port name), under QEMU or, for board `host`, on this computer.

    `measure` and `per_layer` apply to QEMU, `sanitize` (address and UB) to the host. `timeout` is the longest
    time in seconds that one sample may take; `progress` is told how many samples are done. Build and run
    files stay in `workdir` if one is given.

    UsageError: a sample does not match the ports. VerificationError: the C does not compile without warnings,
    returns an error status, faults or hangs. ToolMissingError: a compiler or QEMU is not installed.
    """
    if not samples:
        raise UsageError("a simulation must have samples", "none")
    with _folder(workdir) as folder:
        if not board.qemu:
            program = host_program(build_host(bundle, folder, sanitize=sanitize))
            run = execute(program, bundle, samples, folder / "run", timeout=timeout, progress=progress)
            return Execution(run.outputs, None, None, None, None)

        machine = find_machine(board.qemu)
        images = build_target(bundle, board, machine, folder, hooks=per_layer)
        program = qemu_program(images.model, machine.name)
        what = Measure.STACK if measure else Measure.NOTHING
        run = execute(
            program, bundle, samples, folder / "run", measure=what, timeout=timeout, progress=progress
        )

        def timing(image: Path) -> Timing:
            """Of the first sample, in a run of its own: counting instructions is slow."""
            counting = qemu_program(image, machine.name, count_instructions=True)
            place = folder / image.stem
            timed = execute(counting, bundle, samples[:1], place, measure=Measure.TIME, timeout=timeout)
            return _timing(machine, timed.findings)

        return Execution(
            outputs=run.outputs,
            instructions=timing(images.model).instructions() if measure else None,
            layer_instructions=timing(images.layers).layer_instructions(len(bundle.layers))
            if images.layers
            else None,
            stack=run.findings["stack"][0] if measure else None,
            sizes=_sizes(images) if measure else None,
        )


@contextlib.contextmanager
def _folder(workdir: Path | None) -> Iterator[Path]:
    if workdir is not None:
        workdir.mkdir(parents=True, exist_ok=True)
        yield workdir
        return
    with tempfile.TemporaryDirectory(prefix="mcugen-") as folder:
        yield Path(folder)


def _timing(machine: Machine, findings: Findings) -> Timing:
    def readings(key: str) -> list[Reading]:
        words = iter(findings[key])
        return [Reading(*triple) for triple in zip(words, words, words, strict=True)]

    keys = ("nothing", "known_loop", "two_hooks", "hooks", "run", "layers")
    return Timing(Timer(machine.clock_hz), **{key: readings(key) for key in keys})


def _sizes(images: TargetImages) -> Sizes:
    model, empty = read_sizes(images.model), read_sizes(images.empty)
    return Sizes(code=model.flash - empty.flash, weights=model.weights, static_ram=model.ram - empty.ram)
