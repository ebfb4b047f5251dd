# SPDX-License-Identifier: Apache-2.0
"""Commands: functions whose parameters are replaced by options of the option table, and that read `mcugen.toml`.

Only the functions that need numpy and the compiler import them, so that help appears at once.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, is_dataclass, replace
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from operator import itemgetter
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperOption

from mcugen.cli.typer_options import typer_parameter
from mcugen.core.errors import UsageError, printable
from mcugen.options.arguments import TARGETS, Arguments
from mcugen.options.option import Option, OutputKind
from mcugen.options.settings import MODEL, Settings, find_settings, read_settings, settings_kinds
from mcugen.options.table import OPTIONS, find_option, option_of_parameter, options_that_set

T = TypeVar("T")
"""Type of the function that becomes a command."""

Model = Annotated[Path, typer.Argument(help="ONNX or .tflite file", show_default=False)]
"""Type of the command-line argument that is the path of the ONNX file, for commands that take a model."""


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command function: replace its parameters by the command-line options that give their values.

    All options are declared in the option table (mcugen.options.table). The type of a parameter decides what replaces
    it. A settings class (CompileOptions, Quantizing, Judging, Teaching, Workers or OutputOptions) stands for all
    options of the command that set fields of the class. The function receives an instance of the class or, for
    `Arguments[CLASS]`, the values as given on the command line. Another dataclass stands for one parameter for each of
    its fields. `typer.Context` and annotated arguments stay as they are. Any other parameter is the option with the
    parameter's name.
    """
    name = command.__name__.removesuffix("_command").replace("_", "-")
    hints = signature(command, eval_str=True).parameters
    readers = {key: _reader(name, parameter) for key, parameter in hints.items()}

    outputs = [option for option in OPTIONS if name in option.commands and option.writes]

    @wraps(command)
    def call(**values: Any) -> None:
        _check_outputs(outputs, values)
        command(**{key: reader.read(values) for key, reader in readers.items()})

    parameters = [parameter for reader in readers.values() for parameter in reader.parameters]
    call.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in parameters}
    return call


def _check_outputs(outputs: Sequence[Option], values: Mapping[str, Any]) -> None:
    """Check that a command can write to all paths that its options give; a file may lie in a folder that it writes."""
    from mcugen.codegen.write import check_file, check_writable

    folders = [values[option.parameter_name] for option in outputs if option.writes is OutputKind.FOLDER]
    for folder in folders:
        if folder is not None:
            check_writable(folder)
    for option in outputs:
        path = values[option.parameter_name]
        if option.writes is OutputKind.FILE and path and path != "-":
            check_file(Path(path), may_be_in=folders)


@dataclass(frozen=True)
class _Reader:
    """A parameter of a command, and how its value is read from the command line.

    Attributes:
        parameters: The parameters that Typer gets in place of it.
        read: Function from the values of all parameters of Typer, by name, to the value of the command's parameter.
    """

    parameters: Sequence[Parameter]
    read: Callable[[Mapping[str, Any]], Any]


def _reader(command: str, parameter: Parameter) -> _Reader:
    """Return the reader of a parameter of a command; see `takes_options`."""
    annotation = parameter.annotation
    target, is_built = _target(annotation)
    if target is not None:
        options = options_that_set(target, command)
        return _Reader([typer_parameter(o) for o in options], partial(_read_all, target, options, is_built))
    if annotation is typer.Context or get_origin(annotation) is Annotated:
        return _Reader([parameter.replace(kind=Parameter.KEYWORD_ONLY)], itemgetter(parameter.name))
    if isinstance(annotation, type) and is_dataclass(annotation):
        readers = {
            key: _reader(command, Parameter(key, Parameter.KEYWORD_ONLY, annotation=hint))
            for key, hint in get_type_hints(annotation).items()
        }
        parameters = [own for reader in readers.values() for own in reader.parameters]
        return _Reader(parameters, partial(_read_group, annotation, readers))
    option = find_option(parameter.name.rstrip("_").replace("_", "-"), command)
    return _Reader([typer_parameter(option)], partial(_read, option))


def _target(annotation: Any) -> tuple[type[Any] | None, bool]:
    """Return the class whose fields a command's parameter has, if any, and whether the command gets an instance."""
    if get_origin(annotation) is Arguments:
        return get_args(annotation)[0], False
    kinds = [kind for kind in (get_args(annotation) or (annotation,)) if kind is not NoneType]
    return (kinds[0], True) if kinds[0] in TARGETS.values() else (None, False)


def _read(option: Option, values: Mapping[str, Any]) -> Any:
    return option.read(values[option.parameter_name])


def _read_all(target: type[Any], options: Sequence[Option], is_built: bool, values: Mapping[str, Any]) -> Any:
    arguments = Arguments(target, options, {option.name: values[option.parameter_name] for option in options})
    return arguments.build() if is_built else arguments


def _read_group(group: type[Any], readers: Mapping[str, _Reader], values: Mapping[str, Any]) -> Any:
    return group(**{field: reader.read(values) for field, reader in readers.items()})


_ARGUMENTS = "mcugen.arguments"
"""Key in a context of Click for the arguments of a command with those of the settings file."""
_ALL_HELP = "--help-all"
"""Option of every command that prints the help of all its options."""


def _texts(value: object) -> list[str]:
    """Return the texts among the values of an option."""
    return [v for v in (value if isinstance(value, list) else [value]) if isinstance(v, str)]


class Command(TyperCommand):
    """A command that reads its options from `mcugen.toml` in addition to the command line.

    An option with one value must be given once: the framework would silently use the last of several values. The name
    of another option is not accepted as a value: in `--json --quiet` the file name of --json is missing.
    """

    reads_settings: ClassVar[bool] = True

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help of the command: all options with --help-all, otherwise the frequent ones."""
        common = [_without_panel(p) for p in self.params if _is_common(p, str(self.name))]
        num_more = len(self.params) - len(common)
        if not num_more or ctx.meta.get(_ALL_HELP):
            super().format_help(ctx, formatter)
            return
        short = copy(self)
        short.params = common
        short.epilog = f"{num_more} more options: {ctx.command_path} {_ALL_HELP}"
        TyperCommand.format_help(short, ctx, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments together with those of the settings file.

        Raises:
            UsageError: An option with one value is given twice, or without a value. Flags may be repeated.
        """
        if _ALL_HELP in args and not ctx.resilient_parsing:
            ctx.meta[_ALL_HELP] = True
            args = ["--help"]
        values, _, given_params = self.make_parser(ctx).parse_args(args=list(args))
        options = [p for p in given_params if isinstance(p, TyperOption)]
        single = [p for p in options if not (p.multiple or p.is_flag or p.count)]
        twice = next((p for p in single if single.count(p) > 1), None)
        if twice is not None:
            rule, fault = f"{max(twice.opts, key=len)} must be given once", f"{single.count(twice)} times"
            raise UsageError(rule, fault, "give one value")
        names = {name for p in self.params if isinstance(p, TyperOption) for name in (*p.opts, *p.secondary_opts)}
        empty = next((p for p in options if names.intersection(_texts(values.get(p.name)))), None)
        if empty is not None:
            rule, fault = f"{max(empty.opts, key=len)} must be given a value", "the name of another option"
            raise UsageError(rule, fault, "give its value after it")
        settings = self._settings(ctx, options, values)
        args = [*settings.arguments, *args] if settings else args
        ctx.meta[_ARGUMENTS] = list(args)
        remaining_args = super().parse_args(ctx, args)
        if settings and not ctx.params.get("quiet"):
            where = os.path.relpath(settings.path)
            typer.echo(printable(f"settings of {where}: {', '.join(settings.values)}"), err=True)
        return remaining_args

    def _settings(self, ctx: Any, given_params: Sequence[Any], values: Mapping[str, Any]) -> Settings | None:
        """Return the settings for options of this command that its command line does not give; None if empty."""
        is_plain = ctx.resilient_parsing or "help" in values or not self.reads_settings
        path = None if is_plain or ctx.find_root().params.get("no_settings") else find_settings(Path.cwd())
        if path is None:
            return None
        settings = read_settings(path, settings_kinds())
        options = {name for p in self.params if isinstance(p, TyperOption) and p not in given_params for name in p.opts}
        arguments = [p.name for p in self.params if not isinstance(p, TyperOption)]
        has_model = arguments == [MODEL] and not isinstance(values.get(MODEL), str)
        takes = {name for name in settings.values if f"--{name}" in options or (name == MODEL and has_model)}
        return replace(settings, values={n: v for n, v in settings.values.items() if n in takes}) if takes else None


class FirstCommand(Command):
    """The command `init`, which writes the settings file and does not read it."""

    reads_settings = False


def command_text(context: typer.Context) -> str:
    """Return the running command as a text for a shell, with the options that come from the settings file."""
    return shlex.join(["mcugen", str(context.info_name), *context.meta[_ARGUMENTS]])


def _is_common(parameter: Any, command: str) -> bool:
    """Return whether the short help of a command shows a parameter: an argument, or a common option of the table."""
    return not isinstance(parameter, TyperOption) or option_of_parameter(str(parameter.name), command).is_common(
        command
    )


def _without_panel(parameter: Any) -> Any:
    """Return a parameter as the short help shows it: in the first group of options."""
    shown = copy(parameter)
    shown.rich_help_panel = None
    return shown


class CommandApp(typer.Typer):
    """A Typer application that registers functions as instances of Command.

    Its commands therefore read options from `mcugen.toml`, refuse an option that is given twice, and have --help-all.
    """

    def command(self, *args: Any, **settings: Any) -> Callable[[T], T]:
        """Return a decorator that registers a function as a command of class Command, unless `cls` names another class.

        Args:
            *args: Positional arguments of `typer.Typer.command`, such as the name of the command.
            **settings: Keyword arguments of `typer.Typer.command`.
        """
        return super().command(*args, **{"cls": Command} | settings)  # type: ignore[return-value]
