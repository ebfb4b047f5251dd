# SPDX-License-Identifier: Apache-2.0
"""The errors that users see: each has a rule, the value found and a remedy; each class has its own exit code."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

MAX_LINE_CHARACTERS = 3000
"""Largest number of characters of one line of a message in terminals and logs; a whole message has at most 4096."""


def shortened(text: str, longest: int = MAX_LINE_CHARACTERS) -> str:
    """Return the text, or its beginning and its end around an ellipsis if it has more than `longest` characters."""
    if len(text) <= longest:
        return text
    tail = longest // 4
    head = longest - tail
    return f"{text[:head]} … [{len(text) - longest:,} more characters] … {text[-tail:]}"


def listed(items: Iterable[str], max_items: int = 12, separator: str = ", ") -> str:
    """Return the text of a list for a message: the first items and, if there are more, the number of further ones.

    Args:
        items: The items; long ones are shortened.
        max_items: Largest number of items in the text.
        separator: Text between two items.
    """
    known = list(items)
    more = [f"and {len(known) - max_items:,} more"] if len(known) > max_items else []
    return separator.join([shortened(item, MAX_LINE_CHARACTERS // 4) for item in known[:max_items]] + more)


def printable(text: str) -> str:
    """Return a text from a model made safe for a terminal: unprintable characters become dots."""
    return "".join(c if c.isprintable() or c == "\n" else "·" for c in text)


class McugenError(Exception):
    """Base class of all expected failures; the message reads `rule. found: … try: …`.

    Args:
        rule: What must hold, as a sentence.
        observed: The value seen instead; "" for none. It becomes the attribute `found`.
        remedy: An action for the user; "" for none.
    """

    exit_code: ClassVar[int] = 1
    """Exit code of the program after the error."""
    command: str = ""
    """A shell command that helps the user, to be printed with the message; "" for none. mcugen.cli.remedies sets it."""

    def __init__(self, rule: str, observed: str = "", remedy: str = "") -> None:
        self.rule, self.found, self.remedy = rule, observed, remedy
        labelled_texts = (
            ("", shortened(rule, 2400)),
            ("found: ", shortened(observed, 600)),
            ("try: ", shortened(remedy, 900)),
        )
        parts = [f"{label}{text}." for label, text in labelled_texts if text]
        super().__init__(printable(" ".join(p[:-1] if p.endswith("..") else p for p in parts)))

    def __reduce__(self) -> tuple[type[McugenError], tuple[str, str, str]]:
        """Pickle all parts of the error, so that it passes between processes."""
        return type(self), (self.rule, self.found, self.remedy)


class InternalError(McugenError):
    """An unexpected exception, which is a bug in mcugen. The command ends with exit code 1."""


class Interrupted(McugenError):
    """The user interrupted the command (Ctrl-C); exit code 130."""

    exit_code = 130


class UsageError(McugenError):
    """The command line, an option or an input file of samples is wrong."""

    exit_code = 2


class ModelError(McugenError):
    """The model is corrupt or inconsistent, or lacks information that compilation needs (such as a fixed shape)."""

    exit_code = 3


class UnsupportedError(McugenError):
    """The model is valid, but uses operators, or attributes of operators, that mcugen cannot compile."""

    exit_code = 4


class DoesNotFitError(McugenError):
    """The model needs more memory than the board has."""

    exit_code = 5


class ConstraintError(McugenError):
    """A limit that the user set was exceeded, for example on accuracy."""

    exit_code = 6


class VerificationError(McugenError):
    """A check of the compiler's own work failed: verifier, plan verifier, build or simulated run."""

    exit_code = 7


class ToolMissingError(McugenError):
    """A program that the command needs (compiler, QEMU) is not installed."""

    exit_code = 8


class OutputError(McugenError):
    """A result cannot be written, as there is no space or no permission, for example."""

    exit_code = 9


class BoardError(McugenError):
    """A connected board does not answer, or gives an unexpected answer."""

    exit_code = 10
