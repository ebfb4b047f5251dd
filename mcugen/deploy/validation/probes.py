# SPDX-License-Identifier: Apache-2.0
"""Links to a device through a debug probe and pyOCD: RTT, and semihosting."""

from __future__ import annotations

import time
from typing import Any, ClassVar

from mcugen.core.errors import BoardError, ToolMissingError, UsageError
from mcugen.deploy.validation.links import Link, open_port

_POLL_SECONDS = 0.0005
_BURST = 256
"""Largest number of characters that are passed on before the timeout is checked."""


def is_probe(port: str) -> bool:
    """Return whether `--port` names a debug probe: rtt or semihosting, a colon, and pyOCD's name of the target."""
    return port.partition(":")[0] in _LINKS


def open_probe(port: str) -> _ProbeLink:
    """Open the debug-probe link that `--port` names.

    Raises:
        ToolMissingError: pyOCD is not installed.
        BoardError: There is no probe or no target.
    """
    kind, _, target = port.partition(":")
    if "/" in target:
        rule = "--port rtt:TARGET and semihosting:TARGET must name a target of pyOCD"
        raise UsageError(rule, f"'{target}'", "`pyocd list --targets` names them")
    return _LINKS[kind](port, target)


def open_link(port: str, baud: int) -> Link:
    """Open the link that a value of `--port` names: a debug probe, a device, a pyserial URL, or a socket.

    Raises:
        ToolMissingError: A package is not installed.
        BoardError: There is no such port.
    """
    return open_probe(port) if is_probe(port) else open_port(port, baud)


class _ProbeLink:
    """A link by a session of pyOCD with the only connected probe."""

    options: ClassVar[dict[str, object]] = {"connect_mode": "attach", "resume_on_disconnect": True}

    def __init__(self, port: str, target: str) -> None:
        try:
            from pyocd.core.exceptions import Error
            from pyocd.core.helpers import ConnectHelper
        except ImportError as error:
            fault = "no such package, or a broken one"
            raise ToolMissingError(f"--port {port} needs pyOCD", fault, "pip install pyocd") from error
        self.name = port
        self._failures: tuple[type[Exception], ...] = (Error, OSError)
        try:
            session = ConnectHelper.session_with_chosen_probe(
                blocking=False, return_first=True, target_override=target or None, options=dict(self.options)
            )
            if session is None:
                raise BoardError(
                    f"{port}: a debug probe must be connected", "none", "`pyocd list` shows those it finds"
                )
            self._session: Any = session
            session.open()
            self._begin(session.board.target)
        except self._failures as error:
            raise BoardError(
                f"{port}: the probe must reach the board", str(error), "`pyocd list`, power, cable"
            ) from error

    def _begin(self, target: Any) -> None:
        raise NotImplementedError

    def _take(self) -> bytes:
        """Return the bytes received since the last call."""
        raise NotImplementedError

    def _give(self, data: bytes) -> None:
        raise NotImplementedError

    def read(self, seconds: float) -> bytes:
        """Return the bytes received so far; wait at most `seconds` for the first one (Link.read)."""
        end = time.monotonic() + seconds
        try:
            while not (data := self._take()) and time.monotonic() < end:
                time.sleep(_POLL_SECONDS)
        except self._failures as error:
            raise self._broken(error) from error
        return data

    def write(self, data: bytes) -> None:
        """Send all bytes (Link.write)."""
        try:
            self._give(data)
        except self._failures as error:
            raise self._broken(error) from error

    def close(self) -> None:
        """Close the link."""
        self._session.close()

    def _broken(self, error: Exception) -> BoardError:
        return BoardError(
            f"{self.name}: the probe must reach the board", str(error), "check that the probe is plugged in"
        )


class RttLink(_ProbeLink):
    """Channel 0 of SEGGER's Real Time Transfer, in both directions."""

    def _begin(self, target: Any) -> None:
        from pyocd.debug.rtt import RTTControlBlock

        block = RTTControlBlock.from_target(target)
        block.start()
        if not block.up_channels or not block.down_channels:
            raise BoardError(f"{self.name}: the firmware must have RTT in both directions", "one, or none")
        self._up, self._down = block.up_channels[0], block.down_channels[0]

    def _take(self) -> bytes:
        return bytes(self._up.read())

    def _give(self, data: bytes) -> None:
        self._down.write(data, blocking=True)


class SemihostingLink(_ProbeLink):
    """A link by Arm semihosting (SYS_READC, SYS_WRITEC) through a debug probe.

    It is slow, as the CPU stops for each character, but needs no pins.
    """

    def _begin(self, target: Any) -> None:
        from pyocd.core.target import Target
        from pyocd.debug.semihost import SemihostAgent, SemihostIOHandler

        come, to_send = bytearray(), bytearray()

        class Console(SemihostIOHandler):  # type: ignore[misc]
            """Console of both directions; a character that has not arrived yet reads as -1."""

            def write(self, fd: int, ptr: int, length: int) -> int:
                come.extend(self.agent.get_data(ptr, length))
                return 0

            def readc(self) -> int:
                return to_send.pop(0) if to_send else -1

        self._come, self._to_send, self._target = come, to_send, target
        self._halted = Target.State.HALTED
        self._agent = SemihostAgent(target.get_target_context(), console=Console())
        target.resume()

    def _take(self) -> bytes:
        for _ in range(_BURST):
            if self._target.get_state() != self._halted or not self._agent.check_and_handle_semihost_request():
                break
            self._target.resume()
        data = bytes(self._come)
        self._come.clear()
        return data

    def _give(self, data: bytes) -> None:
        self._to_send += data


_LINKS = {"rtt": RttLink, "semihosting": SemihostingLink}
