# SPDX-License-Identifier: Apache-2.0
"""Requests of the validation protocol to a device. A lost request is repeated; the device executes each only once."""

from __future__ import annotations

import os
import struct
import time
from dataclasses import dataclass
from enum import IntEnum

from mcugen.codegen.validation import MAX_FRAME_BYTES, MIN_FRAME_BYTES
from mcugen.core.errors import BoardError, printable, shortened
from mcugen.deploy.validation.frames import (
    ANSWER_KIND_OFFSET,
    PROTOCOL_VERSION,
    REFUSAL_KIND,
    Decoder,
    Frame,
    Kind,
    Reason,
)
from mcugen.deploy.validation.links import Link, drain

COUNTERS = ("none", "DWT", "SysTick", "mcycle", "CCOUNT", "the firmware's own", "esp_cpu")
"""Names of cycle counters. The device sends the index of its counter in this tuple."""

NO_PAUSE = 0xFFFF
"""Layer number in a run request that stands for "do not pause"."""

UNMEASURED_VALUE = 0xFFFF_FFFF
"""Number that the device sends in place of cycles or stack bytes that it did not measure."""

_HELLO = struct.Struct("<BBBBHII32s16s")
_PROGRESS = struct.Struct("<BiBQII")
_TEXTS = 5
_BITS_PER_BYTE = 10
"""On a serial line: a start bit, eight of data, a stop bit."""

_FIRST_WAIT = 0.25
_LONGEST_WAIT = 4.0
_FIRST_RUN = 2.0
"""Seconds: an answer that has not come by then is asked for again, each time after twice as long; that of the first
run, whose time nobody knows, later.
"""


_OTHER_FIRMWARE = "flash the files that belong to this model"


class SessionLostError(Exception):
    """Raised if the device no longer knows the session, because it was reset."""


class Mode(IntEnum):
    """The purpose of a run on the device: the plain network, or one kind of measurement."""

    PLAIN = 0
    """Run the network as the firmware ships it."""
    DIGESTS = 1
    """Compute a digest after each layer."""
    TIMES = 2
    """Measure the cycles of each layer."""
    STACKS = 3
    """Measure the stack of each layer, if the firmware states the location of its stack."""


class RunState(IntEnum):
    """State of a run of the model on the device."""

    DONE = 0
    """The run has ended."""
    PAUSED = 1
    """The run pauses after a layer."""
    ROWS = 2
    """The run waits for rows of a streamed input."""


class DataKind(IntEnum):
    """Kind of data to read from the device."""

    OUTPUT = 0
    """An output of the model."""
    RESULT = 1
    """A result of the layer after which the run pauses."""
    WORDS = 2
    """The 32-bit words that a run with measurements stores: digests, times or stacks of layers."""
    SNAPSHOT = 3
    """A snapshot of statistics in the field, taken when its first byte is read."""


@dataclass(frozen=True)
class Identity:
    """The description that the firmware sends of itself. Its texts come from the board and are untrusted."""

    name: str
    """Name of the model in C."""
    version: str
    """Version of mcugen that generated the code."""
    options: str
    """Options of the compilation."""
    compiler: str
    """Version of the compiler that built the firmware."""
    flags: str
    """Flags of the compiler, as far as the firmware states them."""
    counter: str
    """Name of the cycle counter."""
    has_layers: bool
    """Whether the firmware can measure single layers."""
    is_big_endian: bool
    """Whether the CPU stores the most significant byte first."""
    frame: int
    """Largest number of bytes of data in one protocol frame that the device accepts."""
    arena: int
    """Bytes of the arena."""
    clock_hz: int
    """Frequency of the firmware's cycle counter in Hz; 0 if unknown."""
    sha256: str
    """SHA-256 of the model that the firmware was generated from, in hex."""
    code: str
    """Digest of the generated code that the firmware contains."""


@dataclass(frozen=True)
class RunProgress:
    """The progress of a run on the device, as the device reports it.

    Attributes:
        state: DONE, PAUSED or ROWS.
        value: For DONE, the status that the run function returned; for PAUSED, the layer after which the run pauses;
            for ROWS, the number of the input row that the run waits for.
        cycles: Count of the cycle counter for the run; None if not measured.
        stack: Peak stack in bytes; None if not measured.
        hook: Count of the cycle counter for one call of the function that measures after each layer.
    """

    state: RunState
    value: int
    cycles: int | None
    stack: int | None
    hook: int


@dataclass
class Traffic:
    """Statistics of the link to a device."""

    sent: int = 0
    """Number of bytes sent."""
    received: int = 0
    """Number of bytes received."""
    requests: int = 0
    """Number of requests, without repetitions."""
    answers: int = 0
    """Number of valid answers."""
    repeats: int = 0
    """Number of requests that were sent again, as no answer arrived."""
    late: int = 0
    """Number of answers that arrived after their request had been repeated; they do not count as lost."""
    damaged: int = 0
    """Number of frames that arrived damaged."""
    resets: int = 0
    """Number of resets of the device during the validation."""

    @property
    def lost(self) -> int:
        """Return the number of requests or answers that never arrived."""
        return max(self.repeats - self.late, 0)

    def seconds(self, baud: int) -> float:
        """Return the time in seconds that all bytes take on a serial line, one direction at a time.

        Args:
            baud: Bits per second of the line.
        """
        return (self.sent + self.received) * _BITS_PER_BYTE / baud


class Device:
    """A device on a link, which executes requests of the validation protocol.

    Methods raise SessionLostError if the device was reset, and BoardError if it is silent or refuses the request.

    Args:
        link: The link.
        baud: Bits per second of a serial line.
        patience: Seconds of silence after which the device counts as lost.
    """

    def __init__(self, link: Link, baud: int, patience: float) -> None:
        self.traffic = Traffic()
        self._link, self._baud, self._patience = link, baud, patience
        self._decoder = Decoder()
        self._session = self._sequence = 0
        self._chunk = 64
        self._slowest_run = _FIRST_RUN

    def greet(self) -> Identity:
        """Begin a new session, even if the device is busy with an earlier one, and return the firmware's identity.

        Raises:
            BoardError: The firmware has another version of the protocol, or gives an invalid answer.
        """
        drain(self._link, 0.02)
        self._session = int.from_bytes(os.urandom(4), "little") | 1
        self._chunk = MIN_FRAME_BYTES
        data = self._ask(Kind.HELLO, bytes([PROTOCOL_VERSION]), size=None)
        remedy = "flash the files of this version's `mcugen compile --validation`"
        if data[:1] != bytes([PROTOCOL_VERSION]) or len(data) != _HELLO.size:
            versions = f"{data[0] if data else 'none'}, this is {PROTOCOL_VERSION}"
            raise BoardError("the firmware must speak this version of the protocol", versions, remedy)
        _, counter, layers, is_big, frame, arena, hz, sha256, code = _HELLO.unpack(data)
        if not MIN_FRAME_BYTES <= frame <= MAX_FRAME_BYTES or max(layers, is_big) > 1:
            rule = (
                f"the board must report frames of {MIN_FRAME_BYTES} to {MAX_FRAME_BYTES:,} bytes, and flags of 0 or 1"
            )
            raise BoardError(rule, f"frames of {frame:,} bytes, flags {layers} and {is_big}", remedy)
        self._chunk = frame
        texts = [self._ask(Kind.TEXT, bytes([i]), size=None).decode("ascii", "replace") for i in range(_TEXTS)]
        counts = COUNTERS[counter] if counter < len(COUNTERS) else str(counter)
        name, version, options, compiler, flags = (printable(shortened(text, 400)) for text in texts)
        properties = (counts, bool(layers), bool(is_big), frame, arena, hz, sha256.hex(), code.hex())
        return Identity(name, version, options, compiler, flags, *properties)

    def fill_arena(self, pattern: int) -> None:
        """Fill the arena with one byte value before a run, so that reads of stale data become visible."""
        self._ask(Kind.SPOIL, bytes([pattern]))

    def write(self, index: int, data: bytes) -> None:
        """Write one input of the model.

        Args:
            index: Number of the input.
            data: Its elements, little-endian.
        """
        step = self._chunk - 5
        for at in range(0, len(data), step):
            self._ask(Kind.WRITE, struct.pack("<BI", index, at) + data[at : at + step])

    def run(
        self, mode: Mode, pause: int = NO_PAUSE, sizes: tuple[int, ...] = (), *, paints: bool = False
    ) -> RunProgress:
        """Run the model on the inputs that `write` sent.

        Args:
            mode: What to measure.
            pause: Number of the layer after which to pause; NO_PAUSE to run to the end.
            sizes: Sizes that the caller of the model passes, for models with sizes that vary at run time.
            paints: Whether to measure the stack of the run, by filling the stack with a pattern first.
        """
        return self._run(Kind.RUN, struct.pack(f"<BBH{len(sizes)}i", mode, paints, pause, *sizes))

    def resume(self, pause: int = NO_PAUSE) -> RunProgress:
        """Continue a paused run until it ends or has computed layer number `pause`."""
        return self._run(Kind.CONTINUE, struct.pack("<H", pause))

    def read(self, store: DataKind, index: int, nbytes: int) -> bytes:
        """Read data from the device.

        Args:
            store: An output, a result of the layer after which the run pauses, or the words of digests or times.
            index: Number of the output or result.
            nbytes: Number of bytes to read.

        Returns:
            The bytes of the elements, little-endian.
        """
        parts = []
        for at in range(0, nbytes, self._chunk):
            count = min(self._chunk, nbytes - at)
            parts.append(self._ask(Kind.READ, struct.pack("<BHIH", store, index, at, count), size=count))
        return b"".join(parts)

    def reset(self) -> None:
        """Reset the model's state on the device: what the model keeps between calls."""
        self._ask(Kind.RESET)

    def constant(self, index: int) -> int:
        """Return the CRC-32 of a constant array in the firmware, as the device computes it.

        Args:
            index: Number of the array.
        """
        return int.from_bytes(self._ask(Kind.CONSTANT, struct.pack("<H", index), size=4), "little")

    def await_late_answers(self) -> None:
        """Wait some seconds for answers that are late, so that they are not counted as lost."""
        end = time.monotonic() + _LONGEST_WAIT
        while self.traffic.lost and time.monotonic() < end:
            self._answer(Frame(self._session, 0, 0), time.monotonic() + _FIRST_WAIT)

    def _run(self, kind: Kind, payload: bytes) -> RunProgress:
        begin = time.monotonic()
        data = self._ask(kind, payload, wait=2 * self._slowest_run, size=_PROGRESS.size)
        seconds = time.monotonic() - begin
        self._slowest_run = seconds if self._slowest_run == _FIRST_RUN else max(self._slowest_run, seconds)
        state, value, is_timed, cycles, stack, hook = _PROGRESS.unpack(data)
        if state not in list(RunState):
            known = ", ".join(f"{one.value} {one.name.lower()}" for one in RunState)
            raise BoardError(f"the board must report the state of a run: {known}", str(state), _OTHER_FIRMWARE)
        measured = None if stack == UNMEASURED_VALUE else stack
        return RunProgress(RunState(state), value, cycles if is_timed else None, measured, hook)

    def _ask(self, kind: Kind, payload: bytes = b"", wait: float = 0.0, size: int | None = 0) -> bytes:
        """Return the data of an answer, which must have `size` bytes (None: any number).

        Args:
            kind: What is asked for.
            payload: The data of the request.
            wait: Seconds that the answer takes at least.
            size: Bytes of data that the answer must have; None for any number.

        Raises:
            SessionLostError: The device was reset.
            BoardError: The device is silent, refuses, or answers something else.
        """
        self._sequence = self._sequence % 0xFFFF + 1
        request = Frame(self._session, self._sequence, kind, payload)
        encoded = request.encoded()
        deadline = time.monotonic() + self._patience
        pause = wait + _FIRST_WAIT + 2 * (len(encoded) + self._chunk) * _BITS_PER_BYTE / self._baud
        self.traffic.requests += 1
        while True:
            self._link.write(encoded)
            self.traffic.sent += len(encoded)
            answer = self._answer(request, min(time.monotonic() + pause, deadline))
            if answer is not None and size not in (None, len(answer)):
                sizes = f"{len(answer):,} bytes, {size:,} are due"
                raise BoardError(f"the board must answer {kind.name} as the protocol says", sizes, _OTHER_FIRMWARE)
            if answer is not None:
                return answer
            if time.monotonic() >= deadline:
                raise self._silence(kind)
            self.traffic.repeats += 1
            pause = min(2 * pause, max(pause, _LONGEST_WAIT))

    def _answer(self, request: Frame, until: float) -> bytes | None:
        while (left := until - time.monotonic()) > 0:
            data = self._link.read(left)
            self.traffic.received += len(data)
            for frame in self._decoder.feed(data):
                if (frame.session, frame.sequence) != (request.session, request.sequence):
                    self.traffic.late += frame.session == request.session
                    continue
                self.traffic.answers += 1
                if frame.kind == REFUSAL_KIND:
                    raise _refusal(request, frame.payload)
                if frame.kind != request.kind | ANSWER_KIND_OFFSET:
                    rule = f"the board must answer {Kind(request.kind).name} as the protocol says"
                    raise BoardError(rule, f"an answer of kind {frame.kind:#x}", _OTHER_FIRMWARE)
                return frame.payload
            self.traffic.damaged = self._decoder.damaged
        return None

    def _silence(self, kind: Kind) -> BoardError:
        name, traffic, seconds = self._link.name, self.traffic, self._patience
        if traffic.answers:
            symptom = f"silent for {seconds:g} s after {traffic.answers:,} answers, when asked to {kind.name.lower()}"
            remedy = "check for a crash (stack overflow, fault, watchdog), or wait longer: --timeout SECONDS"
            return BoardError(f"{name}: the board must answer", symptom, remedy)
        if traffic.received:
            symptom = f"{traffic.received:,} bytes within {seconds:g} s, and none of them an answer"
            remedy = (
                "set --baud as in the firmware (8 data bits, no parity), or check that no other firmware uses this port"
            )
            return BoardError(f"{name}: the board must answer", symptom, remedy)
        symptom = f"nothing at all within {seconds:g} s"
        remedy = "check the port, the firmware's --baud, that RX and TX are crossed, and that the firmware polls"
        return BoardError(f"{name}: the board must answer", symptom, remedy)


def _refusal(request: Frame, payload: bytes) -> Exception:
    reason = payload[0] if payload else 0
    if reason in (Reason.NO_SESSION, Reason.NOT_PAUSED):  # The device was reset, or gave up a run.
        return SessionLostError(Reason(reason).name)
    what = f"{Kind(request.kind).name} with {len(request.payload)} bytes, reason {reason}"
    return BoardError("the board must accept the request", what, _OTHER_FIRMWARE)
