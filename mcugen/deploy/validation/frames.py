# SPDX-License-Identifier: Apache-2.0
"""Frames of the validation protocol: a body and its CRC-32, in COBS encoding between zero bytes.

Damaged frames are dropped.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

PROTOCOL_VERSION = 2
"""Version of the protocol, which must be the same on both sides."""
FRAME_HEADER = struct.Struct("<IHB")
"""Layout of a frame's header: session number, sequence number, kind."""

_CRC = struct.Struct("<I")
_LONGEST_RUN = 254
_MAX_UNFINISHED_BYTES = 1 << 16
"""Largest number of bytes without a zero that are kept; more bytes are not a frame."""


class Kind(IntEnum):
    """Kind of a request to the device; the kind of its answer has the bit ANSWER_KIND_OFFSET set in addition."""

    HELLO = 1
    """Begin a session, and ask for numbers that describe the firmware."""
    TEXT = 2
    """Ask for a text that describes the firmware."""
    SPOIL = 3
    """Fill the arena with a byte value."""
    WRITE = 4
    """Write bytes of an input."""
    RUN = 5
    """Run the model."""
    CONTINUE = 6
    """Continue a paused run."""
    READ = 7
    """Read bytes of a DataKind."""
    RESET = 8
    """Reset the model's state."""
    CONSTANT = 9
    """Ask for the CRC-32 of an array of constants."""


ANSWER_KIND_OFFSET = 0x80
"""Bit that is set in the kind of an answer; the other bits are the kind of its request."""
REFUSAL_KIND = 0xFF
"""Kind of an answer that refuses a request; its payload is a Reason."""


class Reason(IntEnum):
    """Reason why the device refuses a request."""

    NO_SESSION = 1
    """The device does not know the session."""
    BAD_REQUEST = 2
    """The request is invalid."""
    NOT_PAUSED = 3
    """The request needs a paused run, but none is paused."""


@dataclass(frozen=True)
class Frame:
    """A frame (message) of the validation protocol.

    Attributes:
        session: Number of the session.
        sequence: Sequence number of a request, or of the request that the frame answers.
        kind: A Kind, with ANSWER_KIND_OFFSET for an answer, or REFUSAL_KIND.
        payload: The data of the request or answer.
    """

    session: int
    sequence: int
    kind: int
    payload: bytes = b""

    def encoded(self) -> bytes:
        """Return the frame as bytes to send: with its CRC-32, in COBS encoding between zero bytes."""
        body = FRAME_HEADER.pack(self.session, self.sequence, self.kind) + self.payload
        return b"\0" + _cobs_encode(body + _CRC.pack(zlib.crc32(body))) + b"\0"


def _cobs_encode(body: bytes) -> bytes:
    """Return the body in COBS encoding: runs of up to 254 nonzero bytes, each after its length plus one."""
    out = bytearray()
    remaining = body
    while True:
        zero = remaining.find(b"\0", 0, _LONGEST_RUN)
        run = remaining[: _LONGEST_RUN if zero < 0 else zero]
        out.append(len(run) + 1)
        out += run
        if len(run) == len(remaining):
            return bytes(out)
        remaining = remaining[len(run) + (zero >= 0) :]


def _plain(stuffed: bytes) -> bytes | None:
    """Return the decoded body; None if the bytes are not valid COBS."""
    out = bytearray()
    at = 0
    while at < len(stuffed):
        code = stuffed[at]
        run = stuffed[at + 1 : at + code]
        if len(run) != code - 1:
            return None
        out += run
        at += code
        if code <= _LONGEST_RUN and at < len(stuffed):
            out.append(0)
    return bytes(out)


class Decoder:
    """A decoder that finds complete frames in a stream of bytes; other text, noise and damaged frames are skipped."""

    def __init__(self) -> None:
        self.damaged = 0
        """Number of byte sequences between zeros that were not valid frames."""
        self._open = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Take the next received bytes, and yield the frames that these bytes complete."""
        *ended, begun = data.split(b"\0")
        for part in ended:
            whole, self._open = bytes(self._open + part), bytearray()
            if not whole:
                continue
            frame = _frame(whole)
            if frame is None:
                self.damaged += 1
            else:
                yield frame
        self._open += begun
        if len(self._open) > _MAX_UNFINISHED_BYTES:
            self._open.clear()
            self.damaged += 1


def _frame(stuffed: bytes) -> Frame | None:
    body = _plain(stuffed)
    if body is None or len(body) < FRAME_HEADER.size + _CRC.size:
        return None
    body, crc = body[: -_CRC.size], body[-_CRC.size :]
    if _CRC.unpack(crc)[0] != zlib.crc32(body):
        return None
    session, sequence, kind = FRAME_HEADER.unpack(body[: FRAME_HEADER.size])
    return Frame(session, sequence, kind, body[FRAME_HEADER.size :])
