# SPDX-License-Identifier: Apache-2.0
"""The command that a user meant by one with wrong names of commands, options or values.

Every word that is right stays. If the meaning of any wrong word is not certain, there is no correction.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from typer.core import TyperOption

from mcugen.cli.synonyms import COMMANDS, OPTION_WORDS, OPTIONS_WITH_VALUES, POSITIONAL, VALUES
from mcugen.core.board import load_board
from mcugen.core.errors import UsageError
from mcugen.core.nearest import folded, nearest
from mcugen.options.option import REQUIRED, Option
from mcugen.options.table import OPTIONS

_MODEL_SUFFIX = ".onnx"
_LONG_DASHES = ("\N{EN DASH}", "\N{EM DASH}")
"""Dashes that text processors put in place of two hyphens."""
_ROOT_FLAGS = ("--no-settings",)


@dataclass(frozen=True)
class Grammar:
    """The options and arguments that a command accepts.

    Attributes:
        name: Name of the command.
        flags: Whether an option takes a value, by each of its names.
        num_arguments: Number of positional arguments; None for any number.
        num_required: Number of positional arguments that must be given.
    """

    name: str
    flags: Mapping[str, bool]
    num_arguments: int | None
    num_required: int

    @classmethod
    def of(cls, name: str, command: Any) -> Grammar:
        """Return the options and arguments that a command accepts.

        Args:
            name: Name of the command.
            command: The command as the framework (Typer) declares it.
        """
        options = [p for p in command.params if isinstance(p, TyperOption)]
        flags = {flag: not (p.is_flag or p.count) for p in options for flag in (*p.opts, *p.secondary_opts)}
        arguments = [p for p in command.params if not isinstance(p, TyperOption)]
        number = None if any(p.nargs != 1 for p in arguments) else len(arguments)
        flags |= {"--help": False, "--help-all": False}
        return cls(name, flags, number, sum(bool(p.required) for p in arguments))

    def option(self, flag: str) -> Option | None:
        """Return the option of the command that has the name `flag`; None for --help and for unknown names."""
        return next((o for o in OPTIONS if self.name in o.commands and flag in o.flags.replace("/", " ").split()), None)


@dataclass
class _Words:
    """The words of a corrected command.

    Attributes:
        words: All words, in the order given.
        arguments: Positions of the words that are arguments.
        is_certain: Whether the meaning of all words is certain.
    """

    words: list[str] = field(default_factory=list)
    arguments: list[int] = field(default_factory=list)
    is_certain: bool = True

    def add_argument(self, word: str) -> None:
        """Add a word that is an argument."""
        self.arguments.append(len(self.words))
        self.words.append(word)

    def has(self, *names: str) -> bool:
        """Return whether an option is given by any of its names."""
        options = [word for position, word in enumerate(self.words) if position not in self.arguments]
        return any(word.partition("=")[0] in names or word[:2] in names for word in options)


def corrected_command(words: Sequence[str], commands: Mapping[str, Any]) -> str:
    """Return the corrected command line; "" if the correction is uncertain or nothing is wrong.

    Args:
        words: The command line without the name of the program.
        commands: The commands of the framework by name.
    """
    root = [word for word in words if word in _ROOT_FLAGS]
    other_words = [word for word in words if word not in _ROOT_FLAGS]
    command_words = _command(other_words, commands)
    if command_words is None:
        return ""
    name, own = command_words
    if name.startswith("--"):
        return shlex.join(["mcugen", name])
    command = commands[name]
    member = _member(command, own)
    if member:
        name, command, own = f"{name} {member}", command.commands[member], own[1:]
    fixed = corrected_arguments(own, Grammar.of(name.split()[-1], command))
    if fixed is None or [*root, *name.split(), *fixed] == [*root, *other_words]:
        return ""
    return shlex.join(["mcugen", *root, *name.split(), *fixed])


def _command(words: Sequence[str], commands: Mapping[str, Any]) -> tuple[str, list[str]] | None:
    """Return the command that is meant and its own words; None if that is not certain."""
    if not words:
        return None
    first = words[0]
    if first.startswith("-"):
        name = OPTION_WORDS.get(folded(first.lstrip("-")), "")
        return (f"--{name}", []) if name in ("help", "version") and len(words) == 1 else _implied(words)
    if first in commands:
        return first, list(words[1:])
    if first.lower() == "help":
        return "--help", []
    if first.endswith(_MODEL_SUFFIX):
        return _implied(words)
    if COMMANDS.get(folded(first)) == "":
        return None
    meant = nearest(first, commands, COMMANDS)
    return _in_group(words, commands) if meant is None else (meant, list(words[1:]))


def _member(group: Any, words: Sequence[str]) -> str | None:
    """Return the command of a group that the first word means, such as `show` of `mcugen boards show`."""
    is_named = bool(words) and not words[0].startswith("-")
    return nearest(words[0], getattr(group, "commands", {})) if is_named else None


def _in_group(words: Sequence[str], commands: Mapping[str, Any]) -> tuple[str, list[str]] | None:
    """Return the group of a command that is given without the group, such as `mcugen show rp2040`."""
    groups = [name for name, command in commands.items() if words[0] in getattr(command, "commands", {})]
    is_model = any(word.endswith(_MODEL_SUFFIX) for word in words)
    return (groups[0], list(words)) if len(groups) == 1 and not is_model else None


def _implied(words: Sequence[str]) -> tuple[str, list[str]] | None:
    """Return the command `compile` for a command line that has a model but no command."""
    return ("compile", list(words)) if any(word.endswith(_MODEL_SUFFIX) for word in words) else None


def commands_with(flag: str) -> list[str]:
    """Return the commands that have an option named `flag`, as a user writes them; [] if none or most have it."""
    names = [name for option in OPTIONS if flag in option.flags.split() for name in option.commands]
    return [f"`mcugen {name}`" for name in dict.fromkeys(names) if name != "show"] if len(names) <= _MOST_NAMED else []


_MOST_NAMED = 4
"""Largest number of commands that a hint lists."""


def corrected_arguments(words: Sequence[str], grammar: Grammar) -> list[str] | None:
    """Return the words after a command with wrong words replaced and missing ones added; None if that is uncertain.

    Args:
        words: The words after the command.
        grammar: What the command accepts.
    """
    result = _Words()
    stream = iter(range(len(words)))
    for index in stream:
        following = words[index + 1] if index + 1 < len(words) else None
        if _read(words[index], following, grammar, result):
            next(stream, None)
    _place_extra_arguments(result, grammar)
    if not result.is_certain:
        return None
    if result.has("--help", "--help-all"):
        return result.words
    return [*_missing_arguments(result, grammar), *result.words, *_missing_options(result, grammar)]


def _read(word: str, following: str | None, grammar: Grammar, result: _Words) -> bool:
    """Add a word, and its value if it is an option that takes one; return whether the following word was used."""
    for dash in _LONG_DASHES:
        word = f"--{word.removeprefix(dash)}" if word.startswith(dash) else word
    flag, equals, value = word.partition("=")
    if not _is_flag(word):
        result.add_argument(word)
        return False
    if f"-{flag}" in grammar.flags and flag not in grammar.flags:  # As in `-board`, which is `-b oard`.
        flag = f"-{flag}"
    elif not flag.startswith("--") and grammar.flags.get(flag[:2]) and flag[:2] != flag:  # As in `-bhost`.
        result.words.append(word)
        return False
    known = [flag] if flag in grammar.flags else _meant(flag, grammar)
    if not known:
        result.is_certain = False
        return False
    if known[0] == POSITIONAL:
        model = value or following
        if model:
            result.add_argument(model)
        result.is_certain &= bool(model)
        return not value
    if len(known) > 1 or not grammar.flags[known[0]]:
        result.words += known
        result.is_certain &= not equals
        return False
    is_given = following is not None and not _is_flag(following)
    option_value = value if equals else following if is_given else None
    result.words += _option(known[0], option_value, grammar, bool(equals))
    return not equals and is_given


def _option(flag: str, value: str | None, grammar: Grammar, has_equals: bool) -> list[str]:
    """Return the words of an option with its value, or with a placeholder for a value that is missing."""
    option = grammar.option(flag)
    if value is None:
        return [flag, placeholder(flag if option is None else option.flag)]
    right = value if option is None else corrected_value(option, value)
    return [f"{flag}={right}"] if has_equals else [flag, right]


def corrected_value(option: Option, value: str) -> str:
    """Return the corrected value of an option with fixed choices; `value` itself if a correction is uncertain."""
    if callable(option.choices):
        return value
    is_enum = isinstance(option.kind, type) and issubclass(option.kind, StrEnum)
    choices = tuple(option.kind) if is_enum else tuple(option.choices)
    if value in choices:
        return value
    return nearest_value(option.name, value, choices) or value


def nearest_value(option: str, value: str, choices: Sequence[str]) -> str | None:
    """Return the allowed value that a wrong value of an option stands for; None if that is uncertain.

    Args:
        option: Name of the option, without dashes.
        value: The wrong value.
        choices: The values that the option takes.
    """
    words = VALUES.get(option, {})
    return None if words.get(folded(value)) == "" else nearest(value, choices, words)


def _meant(flag: str, grammar: Grammar) -> list[str]:
    """Return the option, perhaps with its value, that a wrong flag certainly means; [] if there is none."""
    word = folded(flag.lstrip("-"))
    names = [known.removeprefix("--") for known in grammar.flags if known.startswith("--")]
    synonyms = {folded(other): name for other, name in OPTION_WORDS.items()}
    if synonyms.get(word) == POSITIONAL:
        return [POSITIONAL]
    if word in OPTIONS_WITH_VALUES:
        name, value = OPTIONS_WITH_VALUES[word]
        return [f"--{name}", value] if f"--{name}" in grammar.flags else []
    near = nearest(word, names, synonyms)
    return [] if near is None else [f"--{near}"]


def _place_extra_arguments(result: _Words, grammar: Grammar) -> None:
    """Make an argument too many the value of --board, if it is the name of a board and none is given."""
    if grammar.num_arguments is None or len(result.arguments) <= grammar.num_arguments:
        return
    boards = [position for position in result.arguments if _is_board(result.words[position])]
    is_one_too_many = len(result.arguments) == grammar.num_arguments + 1
    if not is_one_too_many or len(boards) != 1 or "--board" not in grammar.flags or result.has("-b", "--board"):
        result.is_certain = False
        return
    position = boards[0]
    result.arguments = [other + (other > position) for other in result.arguments if other != position]
    result.words[position : position + 1] = ["--board", result.words[position]]


def _is_board(word: str) -> bool:
    try:
        return bool(load_board(word))
    except UsageError:
        return False


def _missing_arguments(result: _Words, grammar: Grammar) -> list[str]:
    """Return placeholders for arguments that must be given."""
    number = grammar.num_required - len(result.arguments)
    return [_OTHER_ARGUMENTS.get(grammar.name, "MODEL.onnx")] * number


_OTHER_ARGUMENTS = {"show": "BOARD", "view": "REPORT.json", "diff": "REPORT.json", "monitor": "SNAPSHOT"}
"""Placeholders for arguments of the commands that do not take a model."""


def _missing_options(result: _Words, grammar: Grammar) -> Iterator[str]:
    """Yield the options that must be given, with placeholders for their values."""
    for option in OPTIONS:
        is_needed = grammar.name in option.commands and option.initial is REQUIRED
        if is_needed and not result.has(*option.flags.split()):
            yield from (option.flag, placeholder(option.flag))


def placeholder(flag: str) -> str:
    """Return a placeholder, for a suggested command, for the value of an option that only the user knows."""
    return flag.lstrip("-").upper().replace("-", "_")


def _is_flag(word: str) -> bool:
    """Return whether a word looks like an option: "-" (of stdout) and negative numbers do not."""
    return word.startswith("-") and word != "-" and not word[1:].replace(".", "", 1).isdigit()
