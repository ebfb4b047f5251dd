# SPDX-License-Identifier: Apache-2.0
"""The program that plays an accelerator beside test firmware: it executes the commands in the firmware's memory."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mcugen.codegen.bundle import AcceleratorInvocation, Bundle
from mcugen.core.errors import ToolMissingError

REQUEST_PIPE, REPLY_PIPE = "request.pipe", "reply.pipe"
"""Names of the pipes in the folder of a run (templates/harness/semihosting.c): a byte says that a file is complete."""
REQUEST_FILE, REPLY_FILE = "request.bin", "reply.bin"
"""Names of the files in the folder of a run with the contents of a request and of its reply."""

DRIVER_CHECKS = {
    1: "the driver is reserved once before each release",
    2: "the driver that is released is the reserved one",
    3: "the driver is reserved, and the number of base addresses is that of the commands",
    4: 'the commands begin with "COP1"',
    5: "the commands have their size, and are aligned to 16 bytes",
    6: "a region has the size that the commands use",
    7: "a region is aligned to 16 bytes and not null",
    8: "a region lies at its place in the memory plan",
    9: "a region is cleaned from the data cache before the commands run",
    10: "the outputs are invalidated in the data cache after the commands ran",
}
"""The checks of the driver's stand-in, by the number that it prints (templates/harness/ethos_u/driver.c.j2)."""


@dataclass
class _Player:
    """A thread that answers requests of the test firmware.

    Attributes:
        invocations: The invocations of the model, by the number that requests begin with.
        folder: The folder of the run with the pipes.
        failure: An exception that ended the thread.
    """

    invocations: Sequence[AcceleratorInvocation]
    folder: Path
    failure: Exception | None = None
    _ends: list[int] = field(default_factory=list)

    def serve(self) -> None:
        """Answer requests until the pipe is closed."""
        try:
            requests, replies = self._ends
            while os.read(requests, 1) != _END:
                try:
                    self._answer()
                finally:  # Without a reply, the firmware would wait for ever.
                    os.write(replies, b"\1")
        except Exception as error:
            self.failure = error

    def _answer(self) -> None:
        """Execute the invocation of the request, and write the bytes of its outputs."""
        with (self.folder / REQUEST_FILE).open("rb") as request:
            invocation = self.invocations[int.from_bytes(request.read(4), "little")]
            read = {operand.role: request.read(operand.nbytes) for operand in invocation.read_operands}
        execute = invocation.work.execute
        assert execute is not None
        (self.folder / REPLY_FILE).write_bytes(execute(read))

    def open(self) -> None:
        """Open both pipes; for reading and writing, so that neither waits for the firmware."""
        self._ends = [os.open(self.folder / name, os.O_RDWR) for name in (REQUEST_PIPE, REPLY_PIPE)]

    def stop(self, thread: threading.Thread) -> None:
        """End the thread, and close the pipes."""
        os.write(self._ends[0], _END)
        thread.join()
        for end in self._ends:
            os.close(end)


@contextlib.contextmanager
def played_accelerators(bundle: Bundle, folder: Path) -> Iterator[None]:
    """Play the accelerators that a model invokes while the block runs the test firmware in `folder`.

    Raises:
        ToolMissingError: The system has no named pipes.
    """
    if not bundle.invocations:
        yield
        return
    if not hasattr(os, "mkfifo"):
        raise ToolMissingError("simulations of an NPU need named pipes", "a system without", "use Linux or macOS")
    for name in (REQUEST_PIPE, REPLY_PIPE, REQUEST_FILE, REPLY_FILE):
        (folder / name).unlink(missing_ok=True)
    for name in (REQUEST_PIPE, REPLY_PIPE):
        os.mkfifo(folder / name)
    (folder / REPLY_FILE).touch()
    player = _Player(bundle.invocations, folder)
    player.open()
    thread = threading.Thread(target=player.serve, daemon=True)
    thread.start()
    try:
        yield
    except Exception as error:
        raise (player.failure or error) from error
    finally:
        player.stop(thread)
    if player.failure is not None:
        raise player.failure


_END = b"\0"
"""A byte in the pipe of requests that ends the thread."""
