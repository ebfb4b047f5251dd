# SPDX-License-Identifier: Apache-2.0
"""The errors a user can meet: each names a place, a reason and a remedy, and has an exit code of its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

LONGEST = 3000
"""Characters of a line for people: what terminals and logs can take. Messages have 4096 at most."""


def shortened(text: str, longest: int = LONGEST) -> str:
    """Return the text, or its beginning and end if it is longer than `longest`."""
    if len(text) <= longest:
        return text
    tail = longest // 4
    head = longest - tail
    return f"{text[:head]} … [{len(text) - longest:,} more characters] … {text[-tail:]}"


def listed(items: Iterable[str], most: int = 12, separator: str = ", ") -> str:
    """Return a list for a message: the first items, and how many more there are."""
    known = list(items)
    more = [f"and {len(known) - most:,} more"] if len(known) > most else []
    return separator.join([shortened(item, LONGEST // 4) for item in known[:most]] + more)


def printable(text: str) -> str:
    """Text from models for a terminal: what is no printable character (escape sequences, say) becomes a dot."""
    return "".join(c if c.isprintable() or c == "\n" else "·" for c in text)


class McugenError(Exception):
    """Base of all expected failures.

    `rule` says what must hold, `found` what was there instead, `remedy` what the user can do about it;
    the message reads `rule. found: … try: …`.
    """

    exit_code: ClassVar[int] = 1
    command: str = ""
    """What the user can paste, once the command line knows (mcugen.cli.remedies)."""

    def __init__(self, rule: str, found: str = "", remedy: str = "") -> None:
        self.rule, self.found, self.remedy = rule, found, remedy
        told = (("", shortened(rule, 2400)), ("found: ", shortened(found, 600)), ("try: ", shortened(remedy, 900)))
        parts = [f"{label}{text}." for label, text in told if text]
        super().__init__(printable(" ".join(p[:-1] if p.endswith("..") else p for p in parts)))

    def __reduce__(self) -> tuple[type[McugenError], tuple[str, str, str]]:
        """Pickle all parts of the error, so that it passes between processes."""
        return type(self), (self.rule, self.found, self.remedy)


class InternalError(McugenError):
    """A bug of mcugen: what no other error foresees."""


class Interrupted(McugenError):
    """The user wanted it to end."""

    exit_code = 130


class UsageError(McugenError):
    """The command line, an option or an input file of samples is wrong."""

    exit_code = 2


class ModelError(McugenError):
    """The model is corrupt, inconsistent, or lacks what compilation needs (e.g. a fixed shape)."""

    exit_code = 3


class UnsupportedError(McugenError):
    """The model is valid but uses operators (or forms of them) that mcugen cannot compile."""

    exit_code = 4


class DoesNotFitError(McugenError):
    """The model needs more memory than the board has."""

    exit_code = 5


class ConstraintError(McugenError):
    """An accuracy or another figure that the user demanded was missed."""

    exit_code = 6


class VerificationError(McugenError):
    """A check of the compiler's own work failed: verifier, plan verifier, build or simulated run."""

    exit_code = 7


class ToolMissingError(McugenError):
    """A program that the command needs (compiler, QEMU) is not installed."""

    exit_code = 8


class OutputError(McugenError):
    """A result cannot be written: no space, no permission."""

    exit_code = 9


class BoardError(McugenError):
    """A board on a wire does not answer, or not as it must."""

    exit_code = 10
