# SPDX-License-Identifier: Apache-2.0
"""The values of a command's options, and the option objects of the compiler that are built from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, TypeVar

from mcugen.core.options import CompileOptions, Training
from mcugen.distributed.sharing import Workers
from mcugen.driver.tasks import Judging, Quantizing, Teaching
from mcugen.options.option import Option
from mcugen.options.values import library_files

T = TypeVar("T")
"""Type of the class whose fields options set (see TARGETS)."""


@dataclass(frozen=True)
class OutputOptions:
    """The options on a command's own output.

    Attributes:
        quiet: Whether to print no progress and no summary.
        json_: File for the report as JSON; "-" for stdout, "" for none.
        wide: Whether to print all columns of tables, however wide the terminal is.
    """

    quiet: bool
    json_: str
    wide: bool = False


class Ir(StrEnum):
    """An intermediate representation of the compiler, as a value of `mcugen inspect --ir`."""

    HIR = "hir"
    """The graph of operators (high-level intermediate representation)."""
    LIR = "lir"
    """The program of kernel calls (low-level intermediate representation)."""


TARGETS: Mapping[str, type[Any]] = {
    target.__name__: target for target in (CompileOptions, Quantizing, Judging, Teaching, Workers, OutputOptions)
}
"""The classes whose fields options set, by name."""


@dataclass(frozen=True)
class Arguments(Generic[T]):
    """The values of those options of a command that set fields of one class, as the command line gives them.

    Attributes:
        target: The class: CompileOptions, Quantizing, Judging, Teaching, Workers or OutputOptions.
        options: The options of the command that set fields of the class.
        values: The values of these options, by option name without dashes.
    """

    target: type[T]
    options: Sequence[Option]
    values: Mapping[str, Any]

    def build(self) -> T:
        """Return an instance of the class with the values of the options.

        Raises:
            UsageError: The value of an option is invalid, or options contradict each other; the message names them.
        """
        parts: dict[str, dict[str, Any]] = {"": {}}
        for option in self.options:
            part, _, field = option.path.rpartition(".")
            parts.setdefault(part, {})[field] = option.read(self.values[option.name])
        implied = [o.implies for o in self.options if o.implies and self.values[o.name] != o.initial]
        own = parts.pop("") | dict.fromkeys(implied, True)
        built: T = _BUILDERS.get(self.target, self.target)(**own, **parts)
        return built

    def having(self, values: Mapping[str, Any]) -> Arguments[T]:
        """Return a copy in which some options have other values.

        Args:
            values: The new values by option name without dashes.
        """
        return replace(self, values={**self.values, **values})

    def overridden(self, settings: Mapping[str, Sequence[str]]) -> Arguments[T]:
        """Return a copy with options set by texts, as in {"max-ram": ["20KB"]}.

        Args:
            settings: The texts by option name without dashes; "" for a flag. Names that are not options of these
                arguments are ignored. An option that may be repeated keeps its old values and gets the new ones in
                addition.

        Raises:
            UsageError: A text does not suit its option.
        """
        own = [option for option in self.options if option.name in settings]
        return self.having({o.name: o.convert(settings[o.name], self.values[o.name]) for o in own})

    def given(self) -> dict[str, Any]:
        """Return the values that differ from their defaults, by option name without dashes."""
        return {o.name: self.values[o.name] for o in self.options if self.values[o.name] != o.initial}


@dataclass(frozen=True)
class CompilationTask:
    """Task of a command that compiles a model.

    Attributes:
        options: Options of the generated code.
        quantizing: How the model is quantized.
        judging: Samples and metric of the evaluation, and limits of accuracy.
    """

    options: CompileOptions
    quantizing: Quantizing
    judging: Judging


@dataclass(frozen=True)
class TaskArguments:
    """The values of the options from which a CompilationTask is built, as the command line gives them.

    Attributes:
        options: Values of the options of the generated code.
        quantizing: Values of the options on quantization.
        judging: Values of the options on evaluation.
    """

    options: Arguments[CompileOptions]
    quantizing: Arguments[Quantizing]
    judging: Arguments[Judging]

    @property
    def parts(self) -> tuple[Arguments[CompileOptions], Arguments[Quantizing], Arguments[Judging]]:
        """Return the values of the options on code, on quantization and on evaluation."""
        return self.options, self.quantizing, self.judging

    def build(self) -> CompilationTask:
        """Return the task with options built from the given values.

        Raises:
            UsageError: The value of an option is invalid, or options contradict each other; the message names them.
        """
        return CompilationTask(self.options.build(), self.quantizing.build(), self.judging.build())

    def overridden(self, settings: Mapping[str, Sequence[str]]) -> TaskArguments:
        """Return a copy with options set by texts, as in {"max-ram": ["20KB"]} (see `Arguments.overridden`)."""
        return TaskArguments(
            self.options.overridden(settings), self.quantizing.overridden(settings), self.judging.overridden(settings)
        )

    def given(self) -> dict[str, Any]:
        """Return the values of all parts that differ from their defaults, by option name without dashes."""
        return {name: value for part in self.parts for name, value in part.given().items()}


def _compile_options(
    training: Mapping[str, Any] | None = None, library: Mapping[str, Any] | None = None, **fields: Any
) -> CompileOptions:
    options = CompileOptions(**fields)
    learning = Training(**training) if training and training["layers"] else None
    return replace(options, training=learning, library=library_files(**library) if library else None)


def _quantizing(scheme: dict[str, Any], **fields: Any) -> Quantizing:
    from mcugen.hir.types import DType
    from mcugen.quantization.scheme import Scheme

    quantizing, techniques = Quantizing(**fields), scheme.pop("without")
    types: dict[str, Any] = {"activations": DType(quantizing.activations), "weights": DType(quantizing.weights)}
    return replace(quantizing, scheme=Scheme(**scheme, **techniques, **types, group=quantizing.group))


def _teaching(lesson: Path | None, rate: float, epochs: int) -> Teaching | None:
    return None if lesson is None else Teaching(lesson, rate, epochs)


_BUILDERS: Mapping[type[Any], Any] = {CompileOptions: _compile_options, Quantizing: _quantizing, Teaching: _teaching}
"""Functions that build instances of classes with parts, or None; other classes are called themselves."""
