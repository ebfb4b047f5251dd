# SPDX-License-Identifier: Apache-2.0
"""The description of one option, from which command line, settings files, Python keywords and documents follow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from enum import Enum
from inspect import Parameter
from keyword import iskeyword
from typing import Any, get_args, get_origin

from mcugen.core.errors import UsageError, shortened

REQUIRED = Parameter.empty
"""Value of `Option.default` for an option that must be given."""

_TARGETS_IN_SETTINGS = ("CompileOptions", "Quantizing", "Judging")
"""Classes whose fields a settings file and `mcugen link --set` may give."""


class OutputKind(Enum):
    """Kind of output that a command writes to the path of an option; the path is checked before any long work."""

    FILE = "file"
    FOLDER = "folder"


@dataclass(frozen=True)
class Option:
    """One option of some commands.

    Attributes:
        flags: Names on the command line, separated by spaces: "--board -b". A flag that is on by default has a name to
            turn it off: "--build/--no-build".
        kind: Type of the value: bool for a flag, str, int, float, Path, or an enumeration; list[str] or list[Path] for
            an option that may be repeated.
        help: Text of the help; "{choices}" stands for the values in `choices`.
        commands: Commands that have the option.
        field: Class and field that the option sets, such as "CompileOptions.max_ram"; in
            "CompileOptions.training.loss" it is part of a field. Empty for an option that its command reads itself.
        panel: Title of the group that the option is in. Options without a group are needed most, and come first.
        common: Commands whose --help shows the option; --help-all shows all options. By default the commands of an
            option without a group, and no command of an option in a group.
        default: Value if the option is absent, or REQUIRED. None stands for False of a flag and "" of a text.
        parse: Function from the flag (for messages) and the value to the value of the field.
        choices: Values that the shell completes, or a function that returns them.
        from_python: Function from a Python value that the command line cannot express, such as a dictionary or an
            array, to what `parse` takes; it raises TypeError or ValueError for other values.
        implies: Another field of the same class, a flag, that the option turns on.
        by_hand: Whether a settings file cannot give the option, because it runs or links code, or is for one command.
        show_default: Whether help shows the default.
        min: Smallest number.
        max: Largest number.
        envvar: Environment variable that gives the value if the option is absent.
        writes: What the command writes to the path that the option gives; None for an option that gives no output.
    """

    flags: str
    kind: Any
    help: str
    commands: tuple[str, ...]
    field: str = ""
    panel: str = ""
    _: KW_ONLY
    common: tuple[str, ...] | None = None
    default: Any = None
    parse: Callable[[str, Any], Any] | None = None
    choices: Iterable[str] | Callable[[], Iterable[str]] = ()
    from_python: Callable[[Any], Any] | None = None
    implies: str = ""
    by_hand: bool = False
    show_default: bool = True
    min: float | None = None
    max: float | None = None
    envvar: str | None = None
    writes: OutputKind | None = None

    @property
    def flag(self) -> str:
        """Return the long name with its dashes, such as "--max-ram"."""
        return next(flag for flag in self.flags.split() if flag.startswith("--")).partition("/")[0]

    @property
    def name(self) -> str:
        """Return the long name without dashes before it: the key in a settings file."""
        return self.flag.removeprefix("--")

    @property
    def parameter_name(self) -> str:
        """Return the name of the Python parameter that stands for the option, such as "max_ram"."""
        name = self.name.replace("-", "_")
        return f"{name}_" if iskeyword(name) else name

    @property
    def target(self) -> str:
        """Return the name of the class whose field the option sets; "" if there is none."""
        return self.field.partition(".")[0]

    @property
    def path(self) -> str:
        """Return the field that the option sets, without its class, such as "max_ram" or "training.loss"."""
        return self.field.partition(".")[2]

    @property
    def initial(self) -> Any:
        """Return the value of an absent option as the command line gives it; REQUIRED if the option must be given."""
        return {bool: False, str: ""}.get(self.kind) if self.default is None else self.default

    @property
    def base(self) -> type[Any]:
        """Return the type of the value; list for an option that may be repeated."""
        base: type[Any] = get_origin(self.kind) or self.kind
        return base

    def is_common(self, command: str) -> bool:
        """Return whether the short help of a command shows the option."""
        return command in (self.commands if self.common is None and not self.panel else self.common or ())

    @property
    def is_in_settings(self) -> bool:
        """Return whether a settings file may give the option."""
        return (self.target in _TARGETS_IN_SETTINGS or self.name == "board") and not self.by_hand

    @property
    def description(self) -> str:
        """Return the help text with the choices filled in."""
        has_choices = "{choices}" in self.help  # The names of boards are only read to complete one.
        return self.help.replace("{choices}", ", ".join(self.known_values())) if has_choices else self.help

    def read(self, value: Any) -> Any:
        """Convert a value of the command line to the value of the field.

        Args:
            value: The value from the command line.

        Raises:
            UsageError: The value is invalid; the message names the option.
        """
        value = value or [] if self.base is list else value
        return self.parse(self.flag, value) if self.parse else value

    def convert(self, texts: Sequence[str], before: Any) -> Any:
        """Convert texts of `mcugen link --set` to the value that the command line would give.

        Args:
            texts: The texts of `mcugen link --set`; "" for a flag.
            before: The old value. An option that may be repeated keeps its values and gets the new ones in addition.

        Raises:
            UsageError: A text is not a number, a flag has a value, a value is missing, or there are several values.
        """
        text, fault = texts[-1], f"'{shortened(texts[-1], 80)}'"
        if len(texts) > 1 and self.base is not list:
            raise UsageError(f"{self.flag} must be given once for each model", f"{len(texts)} times", "give one value")
        if (self.kind is bool) == bool(text):
            rule = f"{self.flag} takes no value" if text else f"{self.flag} must have a value"
            raise UsageError(rule, fault, f"MODEL:{self.name}{'=VALUE' * (self.kind is not bool)}")
        if self.kind is bool:
            return True
        if self.base is list:
            return [*(before or []), *map(get_args(self.kind)[0], texts)]
        try:
            return self.kind(text)
        except ValueError as error:
            raise UsageError(f"{self.flag} must be a {'whole ' * (self.kind is int)}number", fault) from error

    def known_values(self) -> Iterable[str]:
        """Return the values that `choices` lists, or that the function `choices` returns, for completion."""
        return self.choices() if callable(self.choices) else self.choices
