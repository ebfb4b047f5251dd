# SPDX-License-Identifier: Apache-2.0
"""A board in Python that speaks the protocol of docs/how-to/validate.md, and spoils its answers by a seeded grammar."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from mcugen.core.errors import BoardError
from mcugen.deploy.validation.frames import (
    ANSWER_KIND_OFFSET,
    PROTOCOL_VERSION,
    REFUSAL_KIND,
    Decoder,
    Frame,
    Kind,
    Reason,
)
from mcugen.driver.compiled import CompiledModel

DONE, PAUSED, ROWS = range(3)
NO_PAUSE = 0xFFFF
"""Layer number in a run request that stands for "do not pause"."""
HELLO = struct.Struct("<BBBBHII32s16s")
"""Layout of the payload of a greeting's answer."""
PROGRESS = struct.Struct("<BiBQII")
"""Layout of the payload of a run's answer."""
MAX_REQUESTS = 20_000
"""Number of requests, repeated ones included, above which the host counts as caught in a loop."""
MAX_SECONDS = 20_000.0
"""Seconds of the fake clock above which the host counts as caught in a loop."""


class EndlessError(AssertionError):
    """The host sends requests or waits without end."""


@dataclass
class Clock:
    """A simulated clock, which only moves when a board lets time pass."""

    now: float = 0.0

    def monotonic(self) -> float:
        """Return the simulated time in seconds, in place of time.monotonic."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Let simulated time pass."""
        self.now += seconds
        if self.now > MAX_SECONDS:
            raise EndlessError(f"{self.now:,.0f} s")


Spoil = Callable[["FakeBoard", Frame], list[bytes]]
"""A function that returns the byte strings that the board sends in place of an answer."""


def honest(_board: FakeBoard, answer: Frame) -> list[bytes]:
    """Send the answer unchanged."""
    return [answer.encoded()]


@dataclass
class FakeBoard:
    """The device's end of a link: results are zeros, digests are 0, and checksums of constants are right."""

    compiled: CompiledModel
    clock: Clock
    spoil: Spoil = honest
    name: str = "fake board"
    frame: int = 256
    writes: int = 0
    session: int = 0
    sequence: int = -1
    answer: list[bytes] = field(default_factory=list)
    events: list[tuple[int, int]] = field(default_factory=list)
    pause: int = NO_PAUSE
    hooked: bool = False
    is_silent: bool = False
    _out: list[bytes] = field(default_factory=list)
    _decoder: Decoder = field(default_factory=Decoder)

    def read(self, seconds: float) -> bytes:
        """Return the bytes that the board sends, or let `seconds` of simulated time pass if it is silent."""
        if not self._out:
            self.clock.advance(max(seconds, 0.001))
            return b""
        self.clock.advance(0.001)
        return self._out.pop(0)

    def write(self, data: bytes) -> None:
        """Take bytes from the host, and prepare the answers to complete requests."""
        self.writes += 1
        if self.writes > MAX_REQUESTS:
            raise EndlessError(f"{self.writes:,} requests")
        for request in self._decoder.feed(data):
            if (request.session, request.sequence) != (self.session, self.sequence):
                self.answer = self.spoil(self, self._answered(request))
            self._out += [] if self.is_silent else self.answer

    def close(self) -> None:
        """Do nothing: a fake board has no port."""
        pass

    def _answered(self, request: Frame) -> Frame:
        if request.session != self.session and request.kind != Kind.HELLO:
            return replace(request, kind=REFUSAL_KIND, payload=bytes([Reason.NO_SESSION]))
        self.session, self.sequence = request.session, request.sequence
        return replace(
            request, kind=request.kind | ANSWER_KIND_OFFSET, payload=self._payload(Kind(request.kind), request.payload)
        )

    def _payload(self, kind: Kind, data: bytes) -> bytes:
        validation = self.compiled.bundle.validation
        assert validation is not None
        if kind is Kind.HELLO:
            sha256 = bytes.fromhex(self.compiled.report.model.sha256)
            return HELLO.pack(PROTOCOL_VERSION, 1, 1, 0, self.frame, 4096, 0, sha256, validation.code)
        if kind is Kind.TEXT:
            return b"text"
        if kind is Kind.RUN:
            self.hooked, self.pause = data[0] == 1, int.from_bytes(data[2:4], "little")
            rows = [(ROWS, row) for p in self.compiled.bundle.inputs if p.rows for row in range(0, p.row_count, p.rows)]
            layers = [(PAUSED, layer) for layer in range(len(self.compiled.bundle.layers))] if self.hooked else []
            self.events = [*rows, *layers, (DONE, 0)]
            return self._progress()
        if kind is Kind.CONTINUE:
            self.pause = int.from_bytes(data, "little")
            return self._progress()
        if kind is Kind.READ:
            return bytes(int.from_bytes(data[7:9], "little"))
        if kind is Kind.CONSTANT:
            return struct.pack("<I", validation.constants[int.from_bytes(data, "little")].crc32)
        return b""

    def _progress(self) -> bytes:
        while self.events and self.events[0][0] == PAUSED and self.events[0][1] != self.pause:
            self.events.pop(0)
        state, value = self.events.pop(0) if self.events else (DONE, 0)
        return PROGRESS.pack(state, value, 1, 1000, 0xFFFF_FFFF, 4)


NUMBERS = (0, 1, 2, 3, 5, 7, 63, 64, 255, 256, 4096, 4097, 65535, 2**31 - 1, 2**31, 2**32 - 1)
"""Numbers at the limits of types and buffers, by which fields of answers are replaced."""


@dataclass
class Grammar:
    """A generator of damaged answers: one of `one_of` answers is damaged in a random way of WAYS.

    Some boards damage all answers after the first damaged one.
    """

    random: random.Random
    one_of: int = 20
    kept: Callable[[FakeBoard, Frame], list[bytes]] | None = None
    ways: list[str] = field(default_factory=list)
    """Names of the ways in which answers were damaged so far, for messages."""

    def __call__(self, board: FakeBoard, answer: Frame) -> list[bytes]:
        draw = self.random
        if self.kept is not None and draw.randrange(3):
            return self.kept(board, answer)
        if draw.randrange(self.one_of):
            return honest(board, answer)
        way = draw.choice(list(WAYS))
        self.ways.append(f"{way} of {answer.kind:#x}")
        if draw.randrange(8) == 0:
            self.kept = lambda board, answer: WAYS[way](draw, board, answer)
        return WAYS[way](draw, board, answer)


def _fields(draw: random.Random, _board: FakeBoard, answer: Frame) -> list[bytes]:
    """Change a field of the payload, or all bytes of one that has none."""
    layout = {Kind.HELLO: HELLO, Kind.RUN: PROGRESS, Kind.CONTINUE: PROGRESS}.get(answer.kind & ~ANSWER_KIND_OFFSET)
    if layout is None or len(answer.payload) != layout.size:
        return [replace(answer, payload=draw.randbytes(len(answer.payload))).encoded()]
    values = list(layout.unpack(answer.payload))
    place = draw.randrange(len(values))
    if isinstance(values[place], bytes):
        values[place] = draw.randbytes(len(values[place]))
    else:
        widths = {"B": 8, "H": 16, "I": 32, "Q": 64, "i": 31}
        letters = [letter for letter in layout.format.removeprefix("<") if letter in widths]
        values[place] = draw.choice(NUMBERS) % (1 << widths[letters[place]])
        if letters[place] == "i" and draw.randrange(3) == 0:
            values[place] = -values[place] - 1
    return [replace(answer, payload=layout.pack(*values)).encoded()]


def _standing(draw: random.Random, board: FakeBoard, answer: Frame) -> list[bytes]:
    """Tell of another state of the run, with a likely number."""
    if answer.kind & ~ANSWER_KIND_OFFSET not in (Kind.RUN, Kind.CONTINUE):
        return _fields(draw, board, answer)
    value = draw.choice((0, 1, 2, 3, -1, board.pause, len(board.compiled.bundle.layers)))
    return [replace(answer, payload=PROGRESS.pack(draw.randrange(4), value, 1, 5, 0, 0)).encoded()]


def _sized(draw: random.Random, _board: FakeBoard, answer: Frame) -> list[bytes]:
    size = draw.choice((0, 1, max(len(answer.payload) - 1, 0), len(answer.payload) + 1, 5000, 70_000))
    return [replace(answer, payload=(answer.payload + bytes(size))[:size]).encoded()]


def _headed(draw: random.Random, _board: FakeBoard, answer: Frame) -> list[bytes]:
    change = draw.choice(
        (
            {"session": draw.getrandbits(32)},
            {"sequence": draw.getrandbits(16)},
            {"kind": draw.choice((0, 5, 0x80, 0x81, 0x85, 0x8A, 0xFE))},
        )
    )
    return [replace(answer, **change).encoded()]


def _refused(draw: random.Random, _board: FakeBoard, answer: Frame) -> list[bytes]:
    reason = draw.choice((b"", b"\0", b"\1", b"\2", b"\3", b"\x09", b"\1\1"))
    return [replace(answer, kind=REFUSAL_KIND, payload=reason).encoded()]


def _damaged(draw: random.Random, _board: FakeBoard, answer: Frame) -> list[bytes]:
    """Send a part of the frame, one with a wrong bit, noise around it, or the frame twice."""
    whole = answer.encoded()
    at = draw.randrange(len(whole))
    wrong = bytearray(whole)
    wrong[at] ^= 1 << draw.randrange(8)
    noise = draw.randbytes(draw.randrange(300))
    return draw.choice(([whole[:at]], [bytes(wrong)], [noise, whole], [whole, noise], [whole, whole], [noise]))


def _flooded(draw: random.Random, _board: FakeBoard, answer: Frame) -> list[bytes]:
    """Send much that is no answer before it."""
    stale = replace(answer, sequence=(answer.sequence - 1) & 0xFFFF).encoded()
    much = draw.choice((bytes(60_000), b"\x55" * 60_000, draw.randbytes(60_000), stale * 500))
    return [much] * draw.randrange(1, 5) + [answer.encoded()] * draw.randrange(2)


def _late(draw: random.Random, board: FakeBoard, answer: Frame) -> list[bytes]:
    board.clock.advance(draw.choice((0.1, 1.0, 3.0)))
    return [answer.encoded()]


def _silent(_draw: random.Random, board: FakeBoard, _answer: Frame) -> list[bytes]:
    board.is_silent = True
    return []


def _cut(_draw: random.Random, board: FakeBoard, _answer: Frame) -> list[bytes]:
    raise BoardError(f"{board.name}: the connection must stay open", "it is cut")


def _reset(_draw: random.Random, board: FakeBoard, answer: Frame) -> list[bytes]:
    board.session, board.sequence, board.events = 0, -1, []
    return []


WAYS: dict[str, Callable[[random.Random, FakeBoard, Frame], list[bytes]]] = {
    "fields": _fields,
    "standing": _standing,
    "size": _sized,
    "head": _headed,
    "refusal": _refused,
    "damage": _damaged,
    "flood": _flooded,
    "late": _late,
    "silence": _silent,
    "cut": _cut,
    "reset": _reset,
}
"""Functions that damage an answer, by name."""
