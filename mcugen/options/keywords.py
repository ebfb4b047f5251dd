# SPDX-License-Identifier: Apache-2.0
"""Keywords of the Python interface: the options of a command, with values of Python in place of texts.

A keyword has the name of its option with underscores: `max_ram` for `--max-ram`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from inspect import Parameter, Signature, cleandoc, signature
from pathlib import Path
from textwrap import fill
from typing import Any, TypeVar, get_args

from mcugen.core.errors import UsageError, shortened
from mcugen.core.options import CompileOptions
from mcugen.driver.tasks import Judging, Quantizing, Teaching
from mcugen.options.arguments import TARGETS, Arguments, CompilationTask, TaskArguments
from mcugen.options.option import Option
from mcugen.options.table import OPTIONS, options_that_set

T = TypeVar("T")
"""Type of the class whose fields options set (see options.arguments.TARGETS)."""
F = TypeVar("F", bound=Callable[..., Any])
"""Type of a function that takes keywords."""

_CLASSES = (CompileOptions, Quantizing, Judging, Teaching)
"""The classes whose fields keywords set."""

_METHODS = {
    "output": "call .write(FOLDER) of the result",
    "inputs": "call .run(SAMPLES) of the result",
    "format": "call .export(FORMAT) of the result",
    "json": "call .report().to_json() of the result",
    "html": "call .report() of the result",
}
"""Remedy for options of the command line that write or run something, by the keyword that a user may try."""

_FORMS: Mapping[Any, str] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a text",
    Path: "a path",
    list: "a text, or a list of texts",
}
"""Descriptions of the values of options, by type, for messages."""


class Keywords:
    """The options that are given to a function of the Python interface by keywords.

    Args:
        command: The command of the command line that has the same options: "compile" or "quantize".
        values: The values by keyword; None stands for an option that is not given.

    Raises:
        UsageError: A keyword is not an option of the command, or a value is not of its type.
    """

    def __init__(self, command: str, values: Mapping[str, Any]) -> None:
        options = keyword_options(command)
        for keyword in values:
            _require_known(command, keyword, options)
        self._command = command
        self._values = {o.name: _option_value(o, values.get(keyword)) for keyword, o in options.items()}

    @property
    def task(self) -> CompilationTask:
        """Return the task that the options describe.

        Raises:
            UsageError: A value is invalid, or options contradict each other.
        """
        return TaskArguments(
            self._arguments(CompileOptions), self._arguments(Quantizing), self._arguments(Judging)
        ).build()

    @property
    def teaching(self) -> Teaching | None:
        """Return how the generated code is trained on the samples of `lesson`; None if there are no such samples."""
        return self._arguments(Teaching).build() if self._values.get("lesson") is not None else None

    def _arguments(self, target: type[T]) -> Arguments[T]:
        options = options_that_set(target, self._command)
        return Arguments(target, options, {option.name: self._values[option.name] for option in options})


def keyword_options(command: str) -> dict[str, Option]:
    """Return the options of a command that are keywords of the Python function of the same name, by keyword."""
    return {o.parameter_name: o for o in OPTIONS if command in o.commands and TARGETS.get(o.target) in _CLASSES}


def settings_keywords(command: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a settings file that are keywords of the Python function of a command, by keyword."""
    options = keyword_options(command)
    return {keyword: settings[option.name] for keyword, option in options.items() if option.name in settings}


def _require_known(command: str, keyword: str, options: Mapping[str, Option]) -> None:
    """Raise UsageError with the nearest keyword if a keyword is unknown; fields of option classes are near, too."""
    if keyword in options:
        return
    fields = {option.path.rpartition(".")[2]: name for name, option in options.items()}
    near = fields.get(keyword) or next(iter(get_close_matches(keyword[:40].lower(), options, 1)), None)
    remedy = f"{near}=…" if near else "help(mcugen.compile) lists all keywords"
    rule = f"mcugen.{command} has no keyword '{shortened(keyword, 80)}'"
    raise UsageError(rule, remedy=_METHODS.get(keyword, remedy))


def _option_value(option: Option, value: Any) -> Any:
    """Return the value that the command line would give for a Python value.

    Raises:
        UsageError: The value is not of the option's type, or beyond its limits.
    """
    if value is None:
        path = os.environ.get(option.envvar) if option.envvar else None
        return option.initial if path is None else Path(path)
    plain = value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value
    try:
        converted = _converted(option, plain)
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        takes_names = option.base is list and option.from_python is not None
        form = _FORMS[option.base] + " or a number" * bool(option.kind is str and option.parse)
        form += ", or a dictionary" * takes_names
        fault = f"{shortened(repr(value), 80)}, which is of type {type(value).__name__}"
        raise UsageError(f"{option.parameter_name} must be {form}", fault) from error
    _require_limits(option, converted)
    return converted


def _converted(option: Option, value: Any) -> Any:
    """Return a Python value in the type of an option; TypeError or ValueError if it has none."""
    if option.base is list and _is_text(value):
        return [get_args(option.kind)[0](os.fspath(value))]
    if option.base is list and isinstance(value, list | tuple) and all(map(_is_text, value)):
        return [get_args(option.kind)[0](os.fspath(text)) for text in value]
    if option.kind in (str, Path) and _is_text(value):
        return option.kind(os.fspath(value))
    if option.from_python is not None:
        return option.from_python(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if option.kind is float and is_number:
        return float(value)
    if option.kind is str and option.parse and is_number:
        return str(value)
    if option.kind in (bool, int) and type(value) is option.kind:
        return value
    raise TypeError


def _is_text(value: Any) -> bool:
    return isinstance(value, str | os.PathLike)


def _require_limits(option: Option, value: Any) -> None:
    """Raise UsageError if a number is below or above the limits of its option."""
    low, high = option.min, option.max
    if (low is not None and value < low) or (high is not None and value > high):
        limits = [f"at least {low:g}" if low is not None else "", f"at most {high:g}" if high is not None else ""]
        raise UsageError(f"{option.parameter_name} must be {' and '.join(filter(None, limits))}", f"{value}")


def keyword_help(option: Option) -> str:
    """Return the help text of an option in which the flags of options are replaced by the names of keywords."""
    return re.sub(r"(?<!\w)--([a-z][a-z0-9-]+)", lambda flag: flag[1].replace("-", "_"), option.description)


def takes_keywords(command: str) -> Callable[[F], F]:
    """Return a decorator that adds the keywords of a command to the signature and the docstring of a function.

    Args:
        command: The command whose options are keywords of the function, in place of its `**options`.
    """

    def decorate(function: F) -> F:
        own = [p for p in signature(function).parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
        options = keyword_options(command)
        keywords = [Parameter(name, Parameter.KEYWORD_ONLY, default=None) for name in options]
        function.__signature__ = Signature([*own, *keywords])  # type: ignore[attr-defined]
        lines = [
            fill(f"{name}: {keyword_help(option)}", 116, initial_indent="    ", subsequent_indent=" " * 8)
            for name, option in options.items()
        ]
        function.__doc__ = "\n".join([cleandoc(function.__doc__ or ""), "", "Keywords:", *lines])
        return function

    return decorate
