# SPDX-License-Identifier: Apache-2.0
"""Runs the command line in this process, since a new process takes a second to start.

The table of options is built once, which takes 30 ms.
"""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from functools import cache
from unittest import mock

import typer.main

from mcugen.cli import app as cli

_COMMANDS = cache(typer.main.get_command)


@dataclass(frozen=True)
class Done:
    """Exit code, standard output and standard error of a command."""

    code: int
    out: str
    err: str


def mcugen(*arguments: object) -> Done:
    """Run a command of mcugen in this process, and return its exit code and output."""
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with (
        mock.patch("sys.argv", ["mcugen", *map(str, arguments)]),
        mock.patch("typer.main.get_command", _COMMANDS),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            cli.main()
        except SystemExit as end:
            code = end.code
    assert code is None or isinstance(code, int)
    return Done(code or 0, out.getvalue(), err.getvalue())
