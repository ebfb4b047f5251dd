# SPDX-License-Identifier: Apache-2.0
"""A runner of samples on a device that survives resets: only the sample in progress is repeated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from mcugen.codegen.bundle import Bundle, Port, Validation
from mcugen.core.errors import BoardError, VerificationError
from mcugen.deploy.validation.device import (
    NO_PAUSE,
    UNMEASURED_VALUE,
    DataKind,
    Device,
    Identity,
    Mode,
    RunProgress,
    RunState,
    SessionLostError,
)
from mcugen.hir.types import Array
from mcugen.simulation.execute import Sample, cut_outputs, input_array, sizes_of

_T = TypeVar("_T")

SPOIL_BYTE = 0xA5
"""Byte value that fills the arena before each sample, so that reads of stale data change results."""

_MAX_RESETS_IN_ROW = 3
"""Largest number of resets in a row during one action."""

_STATUS = {
    1: "MCUGEN_ERROR_NULL",
    2: "MCUGEN_ERROR_ALIGNMENT: the arena lies wrong in memory",
    4: "MCUGEN_ERROR_SIZE",
    5: "MCUGEN_ERROR_INPUT",
    6: "MCUGEN_ERROR_WEIGHTS: the file of weights is another, damaged, or not where the firmware says",
    7: "MCUGEN_ERROR_LIBRARY: another library is linked than expected",
}


_FLASH = "flash the files that belong to this model"


def _protocol_error(place: str, pause: int) -> BoardError:
    """Return the error for a run that stands elsewhere than the protocol allows."""
    due = "no pause is due" if pause == NO_PAUSE else f"a pause behind layer {pause} is due"
    return BoardError("the board must pause after the requested layers", f"{place}, and {due}", _FLASH)


@dataclass
class Runner:
    """Runs samples of a model on a device, and reads results. If the device is reset, it repeats the sample.

    Attributes:
        device: The device.
        bundle: The model that its firmware must contain.
        samples: Inputs of the samples by name, as the generated code takes them.
        identity: The firmware's description of itself; None before `connect`.
    """

    device: Device
    bundle: Bundle
    samples: Sequence[Sample]
    check: Callable[[Identity], None]
    """Function that is called with the firmware's identity when a session begins.

    It raises BoardError if the identity is that of other firmware.
    """
    identity: Identity | None = None
    _next: dict[bool, int | None] = field(default_factory=dict)
    """Next sample of a model with state, for the network without (False) and with hooks (True)."""

    def connect(self) -> Identity:
        """Begin a session with the device, check its firmware, and return the firmware's identity."""
        return self._safely("it was asked who it is", lambda: self._identity())

    def outputs(self, index: int, paints: bool = False) -> tuple[dict[str, Array], RunProgress]:
        """Run one sample as the firmware ships the network, and return the outputs and the progress of the run.

        Args:
            index: Number of the sample.
            paints: Whether to measure the stack of the run.

        Returns:
            The outputs by name, and the progress with cycles and stack.
        """

        def run() -> tuple[dict[str, Array], RunProgress]:
            progress = self._run(index, Mode.PLAIN, paints=paints)
            return self._read_outputs(index), progress

        return self._safely(f"it ran sample {index}", run)

    def digests(self, index: int) -> list[int]:
        """Return the CRC-32 of each layer's result on the board for one sample.

        Args:
            index: Number of the sample.

        Returns:
            The CRC-32s, in the order of `bundle.validation.results`.
        """
        return self._words(index, Mode.DIGESTS, len(self._validation.results))[0]

    def times(self, index: int) -> list[int | None]:
        """Return the cycles of each layer for one sample; None for layers that were not measured.

        Args:
            index: Number of the sample.
        """
        words, progress = self._words(index, Mode.TIMES, len(self.bundle.layers))
        if self.identity is None or self.identity.counter == "none":
            return [None] * len(words)
        return [None if word == UNMEASURED_VALUE else max(word - progress.hook, 0) for word in words]

    def stacks(self, index: int) -> list[int | None]:
        """Return the peak stack of each layer in bytes for a sample; None for layers that were not measured.

        It is measured from the frame of the run function's caller down.
        """
        words, _ = self._words(index, Mode.STACKS, len(self.bundle.layers))
        return [None if word == UNMEASURED_VALUE else word for word in words]

    def results(self, index: int, counts: Mapping[int, int]) -> dict[int, Array]:
        """Return the first elements of some layer results for one sample, by result number.

        Args:
            index: Number of the sample.
            counts: Number of elements to read, by the number of the result.
        """

        def run() -> dict[int, Array]:
            fetched: dict[int, Array] = {}

            def fetch(layer: int) -> None:
                for number in (n for n in counts if self._validation.results[n].layer == layer):
                    dtype = self._validation.results[number].dtype.numpy
                    data = self.device.read(DataKind.RESULT, number, counts[number] * dtype.itemsize)
                    fetched[number] = _array(data, dtype)

            self._run(index, Mode.DIGESTS, [self._validation.results[n].layer for n in counts], fetch)
            return fetched

        return self._safely(f"it ran sample {index}", run)

    def constants(self) -> list[int]:
        """Return the CRC-32 of each array of constants in the firmware."""
        numbers = range(len(self._validation.constants))
        return self._safely("its weights were read", lambda: [self.device.constant(n) for n in numbers])

    @property
    def _validation(self) -> Validation:
        assert self.bundle.validation is not None
        return self.bundle.validation

    def _words(self, index: int, mode: Mode, count: int) -> tuple[list[int], RunProgress]:
        def run() -> tuple[list[int], RunProgress]:
            progress = self._run(index, mode)
            return np.frombuffer(self.device.read(DataKind.WORDS, 0, 4 * count), "<u4").tolist(), progress

        return self._safely(f"it ran sample {index}", run)

    def _safely(self, when: str, action: Callable[[], _T]) -> _T:
        """Perform an action, and repeat it from the start if the device was reset."""
        for _ in range(_MAX_RESETS_IN_ROW + 1):
            try:
                if self.identity is None:
                    self._identity()
                return action()
            except SessionLostError:
                self.device.traffic.resets += 1
                self.identity = None
        occurrence = f"{_MAX_RESETS_IN_ROW + 1} times in a row while {when}"
        remedy = "check for a stack overflow, a fault, a watchdog that is not fed, or a weak power supply"
        raise BoardError("the board must not restart", occurrence, remedy)

    def _identity(self) -> Identity:
        identity = self.device.greet()
        self.check(identity)
        self.identity = identity
        self._next = {}
        return identity

    def _run(
        self,
        index: int,
        mode: Mode,
        pauses: Sequence[int] = (),
        at_pause: Callable[[int], None] | None = None,
        *,
        paints: bool = False,
    ) -> RunProgress:
        """Run a sample; for a model with state, run the samples before it first."""
        if self.bundle.has_state:
            hooked = mode is not Mode.PLAIN
            if self._next.get(hooked) != index:
                self.device.reset()
                self._next = {True: 0, False: 0}
                for earlier in range(index):
                    self._run_one(earlier, mode, (), None, False)
            self._next[hooked] = index + 1
        return self._run_one(index, mode, pauses, at_pause, paints)

    def _run_one(
        self, index: int, mode: Mode, pauses: Sequence[int], at_pause: Callable[[int], None] | None, paints: bool
    ) -> RunProgress:
        sizes = sizes_of(self.bundle, self.samples[index], index)
        left = sorted(set(pauses))
        self.device.fill_arena(SPOIL_BYTE)
        for number, port in enumerate(self.bundle.inputs):
            if not port.rows:
                self.device.write(number, self._data(port, index))
        pause = left.pop(0) if left else NO_PAUSE
        arguments = tuple(sizes[symbol.name] for symbol in self.bundle.arguments)
        progress = self.device.run(mode, pause, arguments, paints=paints)
        last_row = -1
        while progress.state is not RunState.DONE:
            if progress.state is RunState.ROWS:
                last_row = self._write_rows(index, progress.value, last_row)
            else:
                if at_pause is None or pause == NO_PAUSE or progress.value != pause:
                    raise _protocol_error(f"it pauses behind layer {progress.value}", pause)
                at_pause(progress.value)
                pause = left.pop(0) if left else NO_PAUSE
            progress = self.device.resume(pause)
        if progress.value != 0:
            failure = f"{_STATUS.get(progress.value, progress.value)} for sample {index}"
            raise VerificationError("the model's run function must return 0 on the board", failure)
        if pause != NO_PAUSE:
            raise _protocol_error("the run is done", pause)
        return progress

    def _data(self, port: Port, index: int) -> bytes:
        sample = self.samples[index]
        array = input_array(port, sample, index, sizes_of(self.bundle, sample, index))
        return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()

    def _write_rows(self, index: int, first: int, last: int) -> int:
        """Write the rows from `first` on and return it. BoardError where that is no row behind the `last` one."""
        streamed = [(number, port) for number, port in enumerate(self.bundle.inputs) if port.rows]
        for number, port in streamed:
            data = self._data(port, index)
            begin = first * port.row_bytes
            if last < first and begin < len(data):
                self.device.write(number, data[begin : begin + port.rows * port.row_bytes])
                return first
        row = f"row {first}" + (f" after row {last}" if last >= 0 else "")
        rule = "the board must ask for rows of its input in their order, each once"
        raise BoardError(rule, row if streamed else f"{row} of a model whose input does not come by rows", _FLASH)

    def _read_outputs(self, index: int) -> dict[str, Array]:
        arrays = {
            port.name: _array(self.device.read(DataKind.OUTPUT, number, port.nbytes), np.dtype(port.dtype)).reshape(
                port.shape
            )
            for number, port in enumerate(self.bundle.outputs)
        }
        return cut_outputs(self.bundle, self.samples[index], arrays)


def _array(data: bytes, dtype: np.dtype[np.generic]) -> Array:
    """Return an array of little-endian elements in this computer's byte order."""
    return np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype)
