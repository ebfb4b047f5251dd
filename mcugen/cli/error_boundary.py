# SPDX-License-Identifier: Apache-2.0
"""The outermost error handler: any exception that ends a command becomes a message and an exit code."""

from __future__ import annotations

import errno
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup, TyperOption

from mcugen.cli.corrections import commands_with, corrected_command
from mcugen.cli.remedies import Invocation, command_that_helps
from mcugen.core.errors import (
    DoesNotFitError,
    InternalError,
    Interrupted,
    McugenError,
    OutputError,
    UsageError,
    printable,
    shortened,
)
from mcugen.core.version import __version__

TRACEBACK_VARIABLE = "MCUGEN_TRACEBACK"
"""Environment variable: if it is set, errors print their Python traceback."""

_PATH_ERRORS = (
    *(errno.ENAMETOOLONG, errno.ELOOP, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM),
    errno.ENXIO,
)
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE)
_LONGEST_ARGUMENTS = 400
MAX_MESSAGE_CHARACTERS = 4000
"""Largest number of characters of an error message with its suggested command.

A command that would exceed it is not printed.
"""
_PACKAGE = Path(__file__).resolve().parents[1]


class Commands(TyperGroup):
    """The group of all commands. It turns exceptions, and calls of sys.exit in a plug-in, into McugenErrors."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Parse the words up to the command's name; usage errors of the framework become McugenErrors."""
        with self._usage_errors():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        """Run a command and handle the exceptions that the framework does not know.

        Raises:
            Interrupted: The user pressed Ctrl-C.
            InternalError: The command's code ended the program.
            McugenError: Any expected failure, with a command that the user can paste.
        """
        try:
            with self._usage_errors():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted("interrupted") from None
        except BrokenPipeError:  # A reader that closes the pipe early, like `head`, is no failure.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return None
        except (SystemExit, EOFError) as end:
            if isinstance(end.__context__, BrokenPipeError):  # Rich turned a closed pipe into SystemExit.
                return None
            raise internal_error(end) from end
        except McugenError as error:
            error.command = error.command or command_that_helps(error, self._invocation(ctx))
            raise

    def _invocation(self, ctx: Any) -> Invocation:
        """Return the command line in a form that hints can change."""
        name = ctx.invoked_subcommand or ""
        command = self.get_command(ctx, name)
        options = {
            opt: not p.is_flag for p in getattr(command, "params", ()) if isinstance(p, TyperOption) for opt in p.opts
        }
        words = sys.argv[1:]
        own = words[words.index(name) + 1 :] if name in words else []
        return Invocation(name, own, options, corrected_command(words, self.commands))

    @contextmanager
    def _usage_errors(self) -> Iterator[None]:
        """Turn the framework's usage errors into errors of mcugen, with the command that the user meant."""
        try:
            yield
        except Exception as error:
            if not _is_usage_error(error):
                raise
            own = _usage_error(error)
            own.command = corrected_command(sys.argv[1:], self.commands)
            raise own from error


def _is_usage_error(error: Exception) -> bool:
    """Return whether an exception is a usage error of the framework, whose classes Typer has names of its own for.

    Help for a command without arguments is one of them, too, but no error for users.
    """
    return hasattr(error, "format_message") and type(error).__name__ != "NoArgsIsHelpError"


def _usage_error(error: Any) -> UsageError:
    """Return the error of mcugen for a usage error of the framework, whose message may quote a text of any length."""
    path: list[str] = []
    context = error.ctx
    while context is not None and context.parent is not None:
        path.insert(0, context.info_name)
        context = context.parent
    text = error.format_message().partition(" (Possible options")[0].partition(" Did you mean")[0]
    message = shortened(text).rstrip(".")
    commands = commands_with(getattr(error, "option_name", ""))
    elsewhere = f"give it to {', '.join(commands)}, or " if commands else ""
    remedy = f"{elsewhere}see `{' '.join(['mcugen', *path, '--help'])}`"
    return UsageError(message[0].lower() + message[1:], remedy=remedy)


def guarded(run: Callable[[], object]) -> int:
    """Run the program, print any exception as a message on stderr, and return the exit code."""
    try:
        run()
    except SystemExit as end:  # The framework ends programs this way.
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        return _told(error)
    return 0


def _told(error: BaseException) -> int:
    """Print an error and return its exit code."""
    known = _known(error)
    if os.environ.get(TRACEBACK_VARIABLE):
        traceback.print_exception(error)
    try:
        console = Console(stderr=True, emoji=False)  # `:x:` in a name is not an emoji.
        console.print(f"[bold red]error:[/] {escape(str(known))}", highlight=False, soft_wrap=True)
        if known.command and len(str(known)) + len(known.command) < MAX_MESSAGE_CHARACTERS:
            console.print(f"    {escape(printable(known.command))}", highlight=False, soft_wrap=True)
    except BrokenPipeError:
        pass
    return known.exit_code


def _known(error: BaseException) -> McugenError:
    if isinstance(error, McugenError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Interrupted("interrupted")
    if isinstance(error, MemoryError):
        detail = shortened(str(error), 200) or "no memory left"
        return DoesNotFitError(
            "the work must fit this computer's memory", detail, "use smaller shapes or fewer samples"
        )
    if isinstance(error, OSError) and error.errno in _PATH_ERRORS:
        if error.filename is None:  # Errors of os.getcwd have no file name.
            return UsageError("the working directory must exist", error.strerror or "", "change to another folder")
        return UsageError(f"{error.filename}: the path must be usable", error.strerror or "", "give another path")
    if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
        return OutputError("there must be space for files", error.strerror or "", "check space and permissions")
    return internal_error(error)


def internal_error(error: BaseException) -> InternalError:
    """Return the error to show for an unexpected exception: its message, its place, and how to report the bug."""
    reason = shortened(f"{type(error).__name__}: {error}".split("\n")[0], 300)
    command = shortened(shlex.join(["mcugen", *sys.argv[1:]]), _LONGEST_ARGUMENTS)
    remedy = (
        f"report this as a bug of mcugen {__version__} with the command, {command}, and the model; "
        f"{TRACEBACK_VARIABLE}=1 in the environment shows more"
    )
    return InternalError("internal error: this must not happen", f"{reason} ({_place(error)})", remedy)


def _place(error: BaseException) -> str:
    """Return file and line of the last frame in mcugen."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        f for f in frames if Path(f.filename).is_relative_to(_PACKAGE) and Path(f.filename).name != Path(__file__).name
    ]
    last = next(reversed(own or frames), None)
    if last is None:
        return "nowhere"
    path = Path(last.filename)
    file = path.relative_to(_PACKAGE.parent) if path.is_relative_to(_PACKAGE) else path
    return f"{file}:{last.lineno}"
