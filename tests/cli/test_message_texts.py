# SPDX-License-Identifier: Apache-2.0
"""The texts of messages and help are reviewed: golden/messages.txt has all of them, so that a change is seen.

After a deliberate change: `pytest tests/cli/test_message_texts.py --update-golden`. Then read the difference: each text
must follow the rules of CONTRIBUTING.md for messages.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

import pytest
import typer
from message_texts import message_texts, text_of

from mcugen.cli.app import app
from mcugen.options.table import OPTIONS

Golden = Callable[[str, str], None]


def help_texts() -> str:
    """Return the help of all commands, and of all options by their first commands."""
    root = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    commands = {**root, **root["boards"].commands}
    lines = [f"{name}: {command.help}" for name, command in sorted(commands.items())]
    options = sorted(f"{option.flag} ({option.commands[0]}): {option.description}" for option in OPTIONS)
    return "\n".join(["== commands", *lines, "", "== options", *options, ""])


def test_every_message_was_reviewed(golden: Golden) -> None:
    golden("messages.txt", message_texts())


def test_every_help_text_was_reviewed(golden: Golden) -> None:
    golden("help.txt", help_texts())


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("'a b'", "a b"),
        ("f'a {b} c'", "a {} c"),
        ("'a' if b else 'c'", "a | c"),
        ("f'a {b}' + 'c' * d", "a {}c"),
        ("x.y", "{}"),
    ],
)
def test_texts_of_expressions(source: str, text: str) -> None:
    assert text_of(ast.parse(source, mode="eval").body) == text


def test_messages_are_collected_from_all_rooms() -> None:
    texts = message_texts()
    assert texts.count("== ") > 100
    for part in ("UsageError: --format must be known", "ModelError: ", "DoesNotFitError: ", "BoardError: "):
        assert part in texts


def test_help_has_no_fragments() -> None:
    """Help begins in lower case for options, in the imperative for commands, and ends without a stop for options."""
    for option in OPTIONS:
        assert not option.description.endswith("."), option.flags
        assert not re.match(r"(It|They|That|Those|Which|The same)\b", option.description), option.flags
