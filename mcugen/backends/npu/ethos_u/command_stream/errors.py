# SPDX-License-Identifier: Apache-2.0
"""Errors of command streams: bytes that are not a stream, accesses outside of memory, and undocumented operations."""

from __future__ import annotations

from mcugen.core.errors import McugenError


class CommandStreamError(McugenError):
    """The bytes are not a valid command stream of an Ethos-U; exit code 7 (verification failed)."""

    exit_code = 7


class UndocumentedOperation(CommandStreamError):
    """An operation whose result is not defined by public documents, so that the interpreter cannot run it."""
