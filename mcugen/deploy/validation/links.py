# SPDX-License-Identifier: Apache-2.0
"""Links to a device: a serial port, a TCP socket, or a program on this computer (QEMU, or a build of the firmware)."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Protocol

from mcugen.core.errors import BoardError, UsageError, listed
from mcugen.core.packages import optional_package

_CHUNK = 1 << 16
_CONNECT_SECONDS = 5.0
_WRITE_SECONDS = 5.0
"""Seconds that a program may take to read what it is sent."""
_PIPE_BYTES = 512
"""Bytes that a pipe takes without waiting where it is ready to be written (PIPE_BUF of POSIX)."""


class Link(Protocol):
    """A link that carries bytes to a device and back. Its methods raise BoardError if the link breaks."""

    @property
    def name(self) -> str:
        """Return the name of the link for messages."""

    def read(self, seconds: float) -> bytes:
        """Return received bytes; wait at most `seconds` for the first one, and return b"" if none arrives."""

    def write(self, data: bytes) -> None:
        """Send all bytes."""

    def close(self) -> None:
        """Close the link."""


def open_port(port: str, baud: int) -> Link:
    """Open the link that a value of `--port` names: a device, a pyserial URL, or socket://HOST:PORT.

    Args:
        port: The value of `--port`.
        baud: Bits per second of a serial port.

    Raises:
        BoardError: There is no such port.
    """
    if port.startswith("socket://"):
        return SocketLink(port)
    return SerialLink(port, baud)


class SerialLink:
    """A link to the device over a serial port, or over any URL that pyserial accepts."""

    def __init__(self, port: str, baud: int) -> None:
        with optional_package("validate", "a serial port"):
            import serial

        self.name = port
        self._failure = (serial.SerialException, OSError)
        try:
            self._port: Any = serial.serial_for_url(port, baud, timeout=0, write_timeout=_CONNECT_SECONDS)
        except ValueError as error:
            raise UsageError("--port and --baud must be usable", str(error), _ports()) from error
        except self._failure as error:
            raise BoardError(f"{port}: the port must open", str(error), _ports()) from error

    def read(self, seconds: float) -> bytes:
        """Return the bytes received so far; wait at most `seconds` for the first one (Link.read)."""
        try:
            self._port.timeout = seconds
            first = self._port.read(1)
            self._port.timeout = 0
            return bytes(first + self._port.read(_CHUNK)) if first else b""
        except (*self._failure, TypeError) as error:  # Pyserial raises TypeError if the port is gone.
            raise _broken(self.name, error) from error

    def write(self, data: bytes) -> None:
        """Send all bytes (Link.write)."""
        try:
            self._port.write(data)
            self._port.flush()
        except self._failure as error:
            raise _broken(self.name, error) from error

    def close(self) -> None:
        """Close the link."""
        self._port.close()


def list_ports() -> dict[str, str]:
    """Return the descriptions of the serial ports of this computer by device; none if pyserial is not installed."""
    try:
        from serial.tools.list_ports import comports
    except ImportError:
        return {}
    return {port.device: f"{port.device}: {port.description}" for port in comports()}


def _ports() -> str:
    devices = list(list_ports())
    known = f"there are {listed(devices)}" if devices else "there is no serial port on this computer: is it plugged in"
    return f"{known}; a user may need to be in the group dialout"


class SocketLink:
    """A link to the device over a TCP socket: a serial server, QEMU, or the console of a debug probe."""

    def __init__(self, url: str) -> None:
        self.name = url
        host, _, port = url.removeprefix("socket://").strip("/").rpartition(":")
        if not host or not port.isdecimal():
            raise UsageError("--port socket://HOST:PORT must name both", f"'{url}'", "e.g. socket://localhost:9090")
        try:
            self._socket = socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS)
        except (OSError, OverflowError) as error:
            raise BoardError(f"{url}: the port must open", str(error), "check that the server runs") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def read(self, seconds: float) -> bytes:
        """Return the bytes received so far; wait at most `seconds` for the first one (Link.read)."""
        ready, _, _ = select.select([self._socket], [], [], seconds)
        if not ready:
            return b""
        try:
            data = self._socket.recv(_CHUNK)
        except OSError as error:
            raise _broken(self.name, error) from error
        if not data:
            raise _broken(self.name, "closed from the other side")
        return data

    def write(self, data: bytes) -> None:
        """Send all bytes (Link.write)."""
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise _broken(self.name, error) from error

    def close(self) -> None:
        """Close the link."""
        self._socket.close()


class ProcessLink:
    """A link to a program on this computer in place of a device, over its standard input and output."""

    def __init__(self, command: Sequence[str], name: str, folder: Path | None = None) -> None:
        self.name = name
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, bufsize=0
        )

    def read(self, seconds: float) -> bytes:
        """Return the bytes received so far; wait at most `seconds` for the first one (Link.read)."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], seconds)
        if not ready:
            return b""
        data = os.read(self._process.stdout.fileno(), _CHUNK)
        if not data:
            raise _broken(self.name, self._last_words())
        return data

    def write(self, data: bytes) -> None:
        """Send all bytes (Link.write)."""
        assert self._process.stdin is not None
        left = memoryview(data)
        try:
            while left:
                _, ready, _ = select.select([], [self._process.stdin], [], _WRITE_SECONDS)
                if not ready:
                    raise _broken(self.name, f"the program has not read for {_WRITE_SECONDS:g} s")
                left = left[os.write(self._process.stdin.fileno(), left[:_PIPE_BYTES]) :]
        except OSError as error:
            raise _broken(self.name, self._last_words()) from error

    def close(self) -> None:
        """Close the link."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()

    def _last_words(self) -> str:
        """Return a text on why the program ended: its exit code and the end of its error output."""
        code = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read()[-2000:].decode(errors="replace").strip()
        return f"the program ended with exit code {code}: {said or 'it said nothing'}"


def _broken(name: str, reason: object) -> BoardError:
    return BoardError(
        f"{name}: the connection must stay open",
        str(reason),
        "check that the board is plugged in, and that no other program uses the port",
    )


def drain(link: Link, seconds: float) -> None:
    """Discard received bytes until nothing arrives for `seconds`; give up after four times as long."""
    end = time.monotonic() + 4 * seconds
    while link.read(seconds) and time.monotonic() < end:
        pass
