# SPDX-License-Identifier: Apache-2.0
"""Execution of a built program on samples: writing its input file, watching it, and reading its output."""

from __future__ import annotations

import contextlib
import math
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import numpy as np

from mcugen.codegen.bundle import Bundle, Port
from mcugen.core.errors import ConstraintError, UsageError, VerificationError
from mcugen.lir.formula import Atom, Polynomial, Sizes, Symbol
from mcugen.simulation.accelerators import DRIVER_CHECKS, played_accelerators
from mcugen.simulation.elf import cpu_of, function_at
from mcugen.simulation.machines import Machine
from mcugen.simulation.toolchain import USER_MODE, find_program, first_lines

Sample = Mapping[str, np.ndarray]
"""The inputs of one call of a model, by port name."""
Findings = Mapping[str, Sequence[int]]
"""The numbers that the harness printed (such as instructions and bytes of stack), by their key in the output."""

_POLL_SECONDS = 0.1
_TRAPS = (-signal.SIGILL, -signal.SIGTRAP)
_ERROR_LIBRARY = 7  # MCUGEN_ERROR_LIBRARY of mcugen.h
_ERROR_DIVERGED = 14  # MCUGEN_ERROR_DIVERGED
_FINDING = re.compile(r"([a-z_]+)((?: [0-9a-f]{8})+)")


class TrapError(VerificationError):
    """Raised if a program ends by a trap signal, as builds with Checks.TRAP do on undefined behavior."""


class Measure(IntEnum):
    """A quantity that the test firmware measures for the first sample; the numbers are those of harness.h."""

    NOTHING = 0
    """Only run the samples."""
    STACK = 1
    """Measure the peak stack of a call."""
    TIME = 2
    """Count the instructions of a call."""
    PROFILE = 3
    """Let a QEMU plugin count how often each basic block of a call runs."""


@dataclass(frozen=True)
class Executable:
    """A built program, and how to run it.

    Attributes:
        command: The command that runs the program: the program itself, or an emulator with its options.
        image: The ELF file with the program's symbols.
    """

    command: tuple[str, ...]
    image: Path


@dataclass(frozen=True)
class RunResult:
    """The results of a run of the test firmware on samples."""

    outputs: list[dict[str, np.ndarray]]
    """For each sample, the output arrays by port name."""
    findings: Findings
    """The numbers that the test firmware printed, by the first word of the line."""
    crcs: tuple[int, ...] = ()
    """One CRC-32 for each sample.

    It is that of the converted input for models with generated input conversion, and that of the state after the sample
    for trainable models. Empty for all other models.
    """


def host_program(image: Path) -> Executable:
    """Return the command that runs a host program: the program itself, or QEMU's user mode if it is for another CPU."""
    cpu = cpu_of(image)
    is_foreign = cpu in USER_MODE and cpu != cpu_of(Path(sys.executable))
    return Executable((*([find_program(USER_MODE[cpu])] if is_foreign else []), str(image.resolve())), image)


def qemu_program(
    image: Path, machine: Machine, *, count_instructions: bool = False, plugin: str = "", serial: str = "none"
) -> Executable:
    """Return the QEMU command that runs an image.

    Args:
        image: The firmware.
        machine: The QEMU machine.
        count_instructions: Whether virtual time follows the instructions, which makes the run slower.
        plugin: File of a QEMU plugin and its arguments, separated by commas; "" for none.
        serial: Target of the first serial port, as QEMU's option `-serial` takes it.
    """
    clock = ("-icount", f"shift={machine.counter.shift}") if count_instructions else ()
    command = (
        *(find_program(machine.toolchain.qemu), *machine.options),
        *("-display", "none", "-monitor", "none", "-serial", serial, "-net", "none"),
        *("-semihosting-config", "enable=on,target=native"),
        *clock,
        *(("-plugin", plugin) if plugin else ()),
        *("-kernel", str(image.resolve())),
    )
    return Executable(command, image)


def execute(
    program: Executable,
    bundle: Bundle,
    samples: Sequence[Sample],
    folder: Path,
    *,
    measure: Measure = Measure.NOTHING,
    timeout: float,
    progress: Callable[[int], None] | None = None,
    first: int = 0,
) -> RunResult:
    """Run samples through a program in `folder`.

    Args:
        program: The program to run.
        bundle: Its model.
        samples: Inputs by port name, for each sample.
        folder: Working folder.
        measure: What to measure for the first sample.
        timeout: Seconds within which a sample must be done.
        progress: Called with the number of samples done; None for no calls.
        first: Number of the first sample in messages.

    Raises:
        VerificationError: The model returns an error or faults, or a sample takes longer than `timeout`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    swaps = cpu_of(program.image).is_little_endian != (sys.byteorder == "little")
    _write_inputs(folder / "input.bin", bundle, samples, measure, swaps, first)
    (folder / "output.bin").write_bytes(b"")
    crc_bytes = 4 if bundle.input_code else 0
    sample_bytes = crc_bytes + sum(port.nbytes for port in _written(bundle))
    with played_accelerators(bundle, folder):
        exit_code = _watch(program, folder, sample_bytes, timeout, progress, first)
    console = (folder / "console.txt").read_text(errors="replace")
    findings = _findings(console)
    _check(program, bundle, exit_code, console, findings, first)
    outputs, crcs = _read_outputs(folder / "output.bin", bundle, samples, swaps)
    if progress:
        progress(len(samples))
    return RunResult(outputs, findings, crcs)


def _write_inputs(
    path: Path, bundle: Bundle, samples: Sequence[Sample], measure: Measure, swaps: bool, first: int
) -> None:
    """Write the harness's input file. `swaps` says that the program's CPU has the other byte order."""
    with path.open("wb") as file:
        file.write(_swapped(np.array([measure, len(samples)], np.uint32), swaps).tobytes())
        for index, sample in enumerate(samples, first):
            sizes = sizes_of(bundle, sample, index)
            file.write(_swapped(np.array([sizes[s.name] for s in bundle.arguments], np.int32), swaps).tobytes())
            if bundle.input_code:
                file.write(_raw(bundle, sample, swaps))
                continue
            for port in bundle.inputs:
                data = _swapped(input_array(port, sample, index, sizes), swaps).tobytes()
                file.write(data + b"\xa5" * (port.nbytes - len(data)))
            for port in bundle.lesson.given if bundle.lesson else ():
                none = np.zeros(port.shape, port.dtype)  # a run
                lesson_input = {port.name: sample.get(port.name, none)}
                file.write(_swapped(input_array(port, lesson_input, index, sizes), swaps).tobytes())


def raw_samples(bundle: Bundle, samples: Sequence[Sample]) -> list[np.ndarray]:
    """Return the raw data (such as camera pixels) of each sample, from which the first input is made.

    The samples store it under the name of that input.

    Raises:
        UsageError: A sample does not have the type or rank of raw data.
    """
    code, name = bundle.input_code, bundle.inputs[0].name
    assert code is not None
    for index, sample in enumerate(samples):
        array = sample.get(name, np.empty(0))
        if array.dtype != np.dtype(code.raw_dtype) or array.ndim < 2 or not array.size:
            rule = f"input '{name}' of sample {index} must be raw data of {code.raw_dtype}, for {code.text}"
            raise UsageError(rule, f"{array.dtype} of {array.shape}")
    return [sample[name] for sample in samples]


def _raw(bundle: Bundle, sample: Sample, swaps: bool) -> bytes:
    """Return the raw data of a sample in the harness's format: number of bytes, first two extents, and the data."""
    (array,) = raw_samples(bundle, [sample])
    head = np.array([array.nbytes, *array.shape[:2]], np.int32)
    return bytes(_swapped(head, swaps).tobytes() + _swapped(array, swaps).tobytes())


def sizes_of(bundle: Bundle, sample: Sample, index: int = 0) -> dict[str, int]:
    """Return the sizes that the caller of the model passes, by name, read from the shapes of a sample.

    Raises:
        UsageError: A size is out of the range that the model was compiled for, or an input has another rank.
    """
    sizes = {}
    for symbol in bundle.arguments:
        plain = Polynomial(((1, (Atom(symbol.name),)),))
        axes = [(p, axis) for p in bundle.inputs for axis, formula in p.sizes.items() if formula == plain]
        port, axis = axes[0]
        where = f"input '{port.name}' of sample {index}"
        shape = sample[port.name].shape if port.name in sample else ()
        if len(shape) != len(port.shape):
            raise UsageError(f"{where} must have {len(port.shape)} axes", f"shape {shape}")
        sizes[symbol.name] = shape[axis]
        if not symbol.low <= shape[axis] <= symbol.high:
            limits = f"{symbol.low} to {symbol.high}, as the model was compiled with --dim"
            raise UsageError(f"{where}: the size of axis {axis} must be {limits}", str(shape[axis]))
    return sizes


def _swapped(array: np.ndarray, swaps: bool) -> np.ndarray:
    """Return the array, with the bytes of each element reversed if `swaps` is set."""
    return array.byteswap() if swaps else array


def input_array(port: Port, sample: Sample, index: int, sizes: Sizes) -> np.ndarray:
    """Return an input of a sample in the memory layout that the code reads.

    Args:
        port: The input.
        sample: Inputs by port name.
        index: Number of the sample, for messages.
        sizes: Sizes that the caller of the model passes, by name.

    Raises:
        UsageError: The sample lacks the input, or has it in another type or shape.
    """
    where = f"input '{port.name}' of sample {index}"
    if port.name not in sample:
        raise UsageError(f"{where} must be given", "inputs " + ", ".join(sorted(sample)))
    array = sample[port.name]
    shape = port.shape_at(sizes)
    if array.dtype != np.dtype(port.dtype) or array.shape != shape:
        raise UsageError(f"{where} must be {port.dtype} of shape {shape}", f"{array.dtype} of {array.shape}")
    return port.in_memory(array)


def _read_outputs(
    path: Path, bundle: Bundle, samples: Sequence[Sample], swaps: bool
) -> tuple[list[dict[str, np.ndarray]], tuple[int, ...]]:
    """Return the outputs of each sample, and the CRCs. The program writes outputs in their largest sizes."""
    outputs: list[dict[str, np.ndarray]] = []
    crcs: list[int] = []
    with path.open("rb") as file:
        for sample in samples:
            if bundle.input_code or bundle.lesson:
                crcs += _swapped(np.frombuffer(file.read(4), np.uint32), swaps).tolist()
            arrays = {port.name: _swapped(_output(port, file.read(port.nbytes)), swaps) for port in _written(bundle)}
            outputs.append(cut_outputs(bundle, sample, arrays))
            if bundle.lesson and np.any(sample.get(bundle.lesson.rate.name, 0)):
                outputs[-1][bundle.lesson.loss.name] = arrays[bundle.lesson.loss.name]
    return outputs, tuple(crcs)


def _written(bundle: Bundle) -> tuple[Port, ...]:
    """Return the ports that the harness writes for each sample; the loss of an inference is 0."""
    return (*bundle.outputs, *([bundle.lesson.loss] if bundle.lesson else []))


def cut_outputs(bundle: Bundle, sample: Sample, arrays: Sample) -> dict[str, np.ndarray]:
    """Cut outputs of variable size to their actual shapes.

    Args:
        bundle: The model.
        sample: The inputs, whose shapes determine some sizes.
        arrays: The outputs in their largest shapes; outputs that hold a size determine the other sizes.

    Returns:
        The cut outputs by port name, without those that only hold a size.

    Raises:
        VerificationError: An output holds a size out of its range.
    """
    telling = {s.output: s for s in bundle.symbols if s.output}
    sizes = sizes_of(bundle, sample)
    sizes |= {symbol.name: _told(symbol, arrays[name]) for name, symbol in telling.items()}
    ports = [port for port in bundle.outputs if port.name not in telling]
    return {port.name: _cut(arrays[port.name], port.shape_at(sizes)) for port in ports}


def _told(symbol: Symbol, array: np.ndarray) -> int:
    size = int(array.reshape(-1)[0])
    if not symbol.low <= size <= symbol.high:
        raise VerificationError(f"size '{symbol.name}' must be {symbol.low} to {symbol.high}", str(size))
    return size


def _cut(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return the first elements in a smaller shape; elements lie without gaps from the start."""
    return array.reshape(-1)[: math.prod(shape)].reshape(shape)


def _output(port: Port, data: bytes) -> np.ndarray:
    if len(data) != port.nbytes:
        raise VerificationError("the test program must write all outputs", f"'{port.name}' is cut off")
    return np.frombuffer(data, port.dtype).reshape(port.shape)


def _watch(
    program: Executable,
    folder: Path,
    bytes_per_sample: int,
    timeout: float,
    progress: Callable[[int], None] | None,
    first: int,
) -> int:
    """Run a program, report finished samples, and return the exit code.

    Args:
        program: The program.
        folder: The folder of the run, where the program writes its output.
        bytes_per_sample: Bytes of output of a sample, from which the finished samples follow.
        timeout: Seconds without a finished sample after which the program is killed.
        progress: Called with the number of finished samples.
        first: Number of the first sample, for messages.

    Raises:
        VerificationError: The program was killed.
    """
    output, finished, deadline = folder / "output.bin", 0, time.monotonic() + timeout
    with _process(program, folder) as process:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(_POLL_SECONDS)
            now_done = output.stat().st_size // max(bytes_per_sample, 1)
            if now_done > finished:
                finished, deadline = now_done, time.monotonic() + timeout
                if progress:
                    progress(finished)
            if time.monotonic() > deadline:
                raise VerificationError(
                    "a run must end", f"sample {first + finished} is not finished after {timeout:g} s"
                )


@contextlib.contextmanager
def _process(program: Executable, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Yield the running program with its console in a file; end it with the block."""
    with (folder / "console.txt").open("wb") as console:
        process = subprocess.Popen(
            program.command, cwd=folder, stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def _findings(console: str) -> Findings:
    """Return the harness's lines: a key, then numbers of eight hexadecimal digits."""
    matches = (_FINDING.fullmatch(line) for line in console.splitlines())
    return {match[1]: [int(word, 16) for word in match[2].split()] for match in matches if match}


def _check(program: Executable, bundle: Bundle, exit_code: int, console: str, findings: Findings, first: int) -> None:
    libraries = " and ".join(library.versions for library in bundle.libraries if not library.stand_in)
    if "npu" in findings:
        check, invocation, region = findings["npu"]
        where = f"not so in invocation {invocation}, region {region}"
        raise VerificationError(
            f"calls of the NPU's driver: {DRIVER_CHECKS[check]}", where, "report this as a bug of mcugen"
        )
    if "status" in findings:
        number, status = findings["status"]
        sample = first + number
        if status == _ERROR_LIBRARY and libraries:
            rule = f"the library that is linked must be {libraries}, built for the board's CPU"
            raise UsageError(rule, f"it refused a call, or needs more memory than planned, in sample {sample}")
        if status == _ERROR_DIVERGED:
            remedy = "a smaller --rate, or fewer layers behind --train"
            raise ConstraintError("the loss must stay finite", f"none any more at sample {sample}", remedy)
        raise VerificationError("the model's run function must return 0", f"{status} for sample {sample}")
    if "fault" in findings:
        exception, pc = findings["fault"]
        function = function_at(program.image, pc) or "unknown code"
        fault = f"exception {exception} in {function} (pc {pc:#010x})"
        remedy = f"{libraries} as built for the board's CPU" * bool(libraries)
        raise VerificationError("the model must not fault", fault, remedy)
    if exit_code != 0:
        failure = TrapError if exit_code in _TRAPS else VerificationError
        raise failure("the simulated program must succeed", f"exit code {exit_code}: {first_lines(console)}")
