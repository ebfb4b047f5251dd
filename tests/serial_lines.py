# SPDX-License-Identifier: Apache-2.0
"""Serial lines over a socket or a pseudo-terminal to a simulated device, with faults on the way."""

from __future__ import annotations

import os
import random
import select
import socket
import subprocess
import threading
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field


class Fault:
    """A line that passes bytes unchanged; subclasses change them."""

    def to_board(self, data: bytes) -> bytes:
        """Return the bytes that reach the board when the host sends `data`."""
        return data

    def to_host(self, data: bytes) -> bytes:
        """Return the bytes that reach the host when the board sends `data`."""
        return data

    def resets(self) -> bool:
        """Return whether to reset the board now."""
        return False


@dataclass
class Noise(Fault):
    """A line that damages one of `one_of` bytes in both directions, at random with a seed."""

    change: Callable[[random.Random, int], Sequence[int]]
    one_of: int
    random: random.Random = field(default_factory=lambda: random.Random(1))
    count: int = 0

    def to_board(self, data: bytes) -> bytes:
        out = bytearray()
        for byte in data:
            hit = self.random.randrange(self.one_of) == 0
            self.count += hit
            out += bytes(self.change(self.random, byte)) if hit else bytes([byte])
        return bytes(out)

    to_host = to_board


@dataclass
class Silence(Fault):
    """A line on which nothing comes from the board any more once the host has sent `after` bytes."""

    after: int

    def to_board(self, data: bytes) -> bytes:
        self.after -= len(data)
        return data

    def to_host(self, data: bytes) -> bytes:
        return data if self.after > 0 else b""


@dataclass
class Resets(Fault):
    """A line that resets the board whenever the host has sent `every` bytes, at most `times` times."""

    every: int
    times: int
    sent: int = 0

    def to_board(self, data: bytes) -> bytes:
        self.sent += len(data)
        return data

    def resets(self) -> bool:
        if self.sent < self.every or self.times == 0:
            return False
        self.sent, self.times = 0, self.times - 1
        return True


class WrongBaud(Fault):
    """A line at twice the speed: half of the bytes arrive, and none is right."""

    def to_board(self, data: bytes) -> bytes:
        return bytes((byte * 7 + 0x5B) & 0xFF | 0x80 for byte in data[::2])

    to_host = to_board


class Rubbish(Fault):
    """A line on which nothing from the board arrives correctly."""

    def to_host(self, data: bytes) -> bytes:
        return bytes(byte ^ 0x55 for byte in data)


class Chatter(Fault):
    """A firmware that prints text between frames."""

    def to_host(self, data: bytes) -> bytes:
        return b"[00:00:01.234] tick\r\n" + data


@dataclass
class Board:
    """A program whose standard input and output are a board's serial line, and which can be reset."""

    command: Sequence[str]
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the program."""
        self.stop()
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(self.command, stdin=pipe, stdout=pipe, stderr=subprocess.PIPE, bufsize=0)

    def stop(self) -> bytes:
        """Stop the program and return what it wrote to stderr."""
        if self.process is None:
            return b""
        with suppress(OSError):
            self.process.stdin.close()  # type: ignore[union-attr]
        try:
            self.process.wait(1)
        except subprocess.TimeoutExpired:
            self.process.kill()
        _, errors = self.process.communicate() if not self.process.stdin else (b"", self.process.stderr.read())
        self.process.stdout.close()  # type: ignore[union-attr]
        self.process.wait()
        self.process = None
        return errors


def carry(board: Board, fault: Fault, near: Callable[[], int], ends: threading.Event, write: Callable) -> None:
    """Pass bytes between host and board in both directions until `ends` is set.

    Args:
        board: The board's program.
        fault: The fault of the line.
        near: Returns the file descriptor of the host's side.
        ends: Event that ends the transmission.
        write: Writes bytes to the host's side.
    """
    board.start()
    while not ends.is_set():
        out = board.process.stdout.fileno()  # type: ignore[union-attr]
        ready, _, _ = select.select([near(), out], [], [], 0.05)
        if near() in ready:
            data = os.read(near(), 4096)
            if not data:
                break
            with suppress(BrokenPipeError):
                board.process.stdin.write(fault.to_board(data))  # type: ignore[union-attr]
        if out in ready and (data := os.read(out, 4096)):
            write(fault.to_host(data))
        if fault.resets():
            board.start()
    board.stop()


@contextmanager
def on_socket(command: Sequence[str], fault: Fault | None = None) -> Iterator[str]:
    """Yield the port of a board behind a socket."""
    ends = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            server.settimeout(60)
            with suppress(OSError):
                peer, _ = server.accept()
                with peer:
                    carry(Board(command), fault or Fault(), peer.fileno, ends, peer.sendall)

        with _thread(serve, ends):
            yield f"socket://127.0.0.1:{server.getsockname()[1]}"


@contextmanager
def on_terminal(command: Sequence[str], fault: Fault | None = None) -> Iterator[str]:
    """Yield the port of a board behind a pseudo-terminal."""
    ends = threading.Event()
    master, slave = os.openpty()
    tty.setraw(slave)

    def serve() -> None:
        with suppress(OSError):
            carry(Board(command), fault or Fault(), lambda: master, ends, lambda data: os.write(master, data))

    try:
        with _thread(serve, ends):
            yield os.ttyname(slave)
    finally:
        os.close(master)
        os.close(slave)


@contextmanager
def _thread(serve: Callable[[], None], ends: threading.Event) -> Iterator[None]:
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join(20)
