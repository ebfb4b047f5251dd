# SPDX-License-Identifier: Apache-2.0
"""Options of the option table in the form that Typer takes: parameters of a function, with completion for the shell."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter
from typing import Annotated, Any

import typer

from mcugen.options.option import Option


def typer_parameter(option: Option) -> Parameter:
    """Return the Python function parameter from which Typer makes a command-line option."""
    kind = option.kind if option.initial is not None else option.kind | None
    return Parameter(
        option.parameter_name,
        Parameter.KEYWORD_ONLY,
        default=option.initial,
        annotation=Annotated[kind, _typer_option(option)],
    )


def _typer_option(option: Option) -> Any:
    return typer.Option(
        *option.flags.split(),
        help=option.description,
        rich_help_panel=option.panel or None,
        autocompletion=_completion(option) if option.choices else None,
        show_default=option.show_default,
        min=option.min,
        max=option.max,
        envvar=option.envvar,
    )


def _completion(option: Option) -> Callable[[str], list[str]]:
    """Return the function by which a shell completes the value of an option: the last one of several with commas."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{word}" for word in option.known_values() if word.startswith(last)]

    return complete
