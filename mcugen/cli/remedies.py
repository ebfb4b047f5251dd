# SPDX-License-Identifier: Apache-2.0
"""The command that a user can paste after an error: the failed command with the remedy applied, or a diagnosis.

Remedies are texts for people ("give --calibration SAMPLES.npz, or …"). The first alternative with options becomes the
arguments of the command.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mcugen.cli.corrections import nearest_value, placeholder
from mcugen.core.errors import (
    ConstraintError,
    DoesNotFitError,
    InternalError,
    Interrupted,
    McugenError,
    ModelError,
    OutputError,
    UnsupportedError,
    VerificationError,
)
from mcugen.core.nearest import nearest_spelling

_OPTION = re.compile(r"(?<![\w-])(--?[a-z][a-z0-9-]*)(?: ('[^']*'|\"[^\"]*\"|[^\s,;'\"]+))?")
_WAYS = re.compile(r"; or |, or | or |; ")
_WHOLE = re.compile(
    r"`((?:mcugen|pyocd) [^`…]+)`|^((?:mcugen|pip|apt-get|sudo|dask|brew) [^…]+)$|: ((?:mcugen|dask) [^…;]+)"
)
_CHOICES = re.compile(r"one of:? ([^;:`]+)")
_QUOTED = re.compile(r"'([^']+)'")
_LEFT_OUT = re.compile(r"leave (?:it|one|these|this)(?: options)? out")
_OUT = re.compile(r"leave (?:out (--[a-z-]+)|(--[a-z-]+) out)")

_NOT_ONNX = (".tflite", ".pt2", ".keras", ".pt", ".pth", ".h5", ".pb", ".pkl", ".joblib", ".safetensors", ".zip")
"""Suffixes of model files that ONNX's checker cannot read, in lower case."""


@dataclass(frozen=True)
class Invocation:
    """A command as the user gave it.

    Attributes:
        name: Name of the command.
        arguments: Its arguments and options.
        options: All options that the command has, by name, with whether they take a value.
        corrected: The command line with wrong names of options and values corrected; "" if none is certainly wrong.
    """

    name: str
    arguments: Sequence[str]
    options: Mapping[str, bool] = field(default_factory=dict)
    corrected: str = ""

    @property
    def model(self) -> str:
        """Return the file of the model of the command, or a placeholder."""
        first = [text for text in self.arguments[:1] if not text.startswith("-")]
        return next(
            (text for text in [*self.arguments, *first] if text.endswith((".onnx", ".tflite")) or text in first),
            "MODEL.onnx",
        )

    def option(self, name: str) -> str:
        """Return an option with its value as the user wrote them, as in "--board rp2040"; "" if it is absent."""
        words = list(self.arguments)
        return shlex.join(words[words.index(name) : words.index(name) + 2]) if name in words else ""

    def without(self, option: str, key: str = "") -> Invocation:
        """Return the command without an option; with a `key`, without the option's values that begin with KEY=."""
        kept: list[str] = []
        words = iter(self.arguments)
        for word in words:
            option_words = [word]
            if word == option and self.options.get(option):
                option_words += [value for value in [next(words, None)] if value is not None]
            is_option = word == option or word.startswith(f"{option}=")
            if not is_option or not option_words[-1].removeprefix(f"{option}=").startswith(f"{key}=" * bool(key)):
                kept += option_words
        return Invocation(self.name, kept, self.options)

    def having(self, option: str, value: str) -> Invocation:
        """Return the command with an option added.

        The option replaces those of the same name; if `value` is KEY=VALUE, only those with the same KEY.
        """
        words = [option, value] if self.options[option] else [option]
        key, equals, _ = value.partition("=")
        return Invocation(self.name, [*self.without(option, key * bool(equals)).arguments, *words], self.options)

    def replacing(self, word: str, other: str) -> Invocation:
        """Return the command with one of its words replaced.

        Args:
            word: The word to replace.
            other: The new word.
        """
        return replace(self, arguments=[other if argument == word else argument for argument in self.arguments])

    def __str__(self) -> str:
        return shlex.join(["mcugen", self.name, *self.arguments])


def command_that_helps(error: McugenError, invocation: Invocation) -> str:
    """Return the shell command to suggest after an error; "" after Ctrl-C.

    It is a command that the error names, or the user's command changed as the error advises, or else one that shows
    more about the problem.
    """
    if isinstance(error, Interrupted):
        return ""
    whole = _WHOLE.search(error.remedy)
    if whole:
        return str(next(filter(None, whole.groups()))).strip()
    changed = _changed(error, invocation)
    if changed is not None:
        return str(changed)
    return invocation.corrected or _shown(error, invocation)


def _changed(error: McugenError, invocation: Invocation) -> Invocation | None:
    """Return the command with the remedy applied; None if the remedy changes no option."""
    return _left_out(error, invocation) or _chosen(error, invocation) or _given(error, invocation)


def _left_out(error: McugenError, invocation: Invocation) -> Invocation | None:
    """Return the command without the option to leave out; None if the remedy leaves out none.

    The remedy names the option, or says "leave it out" of an option of the rule that is present in the command.
    """
    named = _OUT.search(error.remedy)
    if named:
        return invocation.without(named[1] or named[2])
    options = [option for option, _ in _OPTION.findall(f"{error.found} {error.rule}")]
    present = next((option for option in options if option in invocation.arguments), None)
    return invocation.without(present) if present and _LEFT_OUT.search(error.remedy) else None


def _chosen(error: McugenError, invocation: Invocation) -> Invocation | None:
    """Return the command with the choice of the remedy that is meant; None if that is not certain.

    The value replaces the value of the option in the rule, or the wrong text that the message quotes.
    """
    choices = _CHOICES.search(error.remedy)
    if choices is None:
        return None
    about = next((option for option, _ in _OPTION.findall(error.rule) if invocation.options.get(option)), "")
    if error.rule.startswith("the board must") and "--board" in invocation.options:
        about = "--board"
    wrong = next(iter(_QUOTED.findall(f"{error.found} {error.rule}")), None)
    value = _meant(wrong, about, [choice.strip(" .'") for choice in choices[1].split(",")])
    if value is None:
        return None
    is_key = any(word.startswith(f"{wrong}=") for word in invocation.arguments)  # As in --dim WRONG=2.
    if about and not is_key:
        return _aliased(invocation, about).having(about, value)
    if wrong is not None and any(wrong in word for word in invocation.arguments):
        return replace(invocation, arguments=[word.replace(wrong, value) for word in invocation.arguments])
    return None


def _meant(wrong: str | None, option: str, choices: Sequence[str]) -> str | None:
    """Return the choice that is meant: the only one, or the one that is certainly nearest to the wrong value."""
    if len(choices) == 1:
        return choices[0] if choices != ["none"] else None
    return None if wrong is None else nearest_value(option.removeprefix("--"), wrong, choices)


def _given(error: McugenError, invocation: Invocation) -> Invocation | None:
    """Return the command with the options of the first alternative that names any; None if no alternative does."""
    alternatives = (
        [o for o in _OPTION.findall(alternative) if o[0] in invocation.options]
        for alternative in _WAYS.split(error.remedy)
    )
    chosen_options = next(filter(None, alternatives), [])
    for option, value in chosen_options:
        invocation = _aliased(invocation, option).having(option, value.strip("'\"") or placeholder(option))
    return invocation if chosen_options else None


def _aliased(invocation: Invocation, option: str) -> Invocation:
    """Return the command without the short form of an option."""
    short = {"--board": "-b", "--output": "-o"}.get(option)
    return invocation.without(short) if short else invocation


def _with_sizes_to_fill_in(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with SIZE in place of the sizes of `--dim`, which do not fit the model's inputs."""
    pairs = zip(["", *arguments], arguments, strict=False)
    return [f"{word.partition('=')[0]}=SIZE" if before == "--dim" else word for before, word in pairs]


def _nearest_file(path: Path) -> str:
    """Return the path of the file whose name a misspelt path certainly means; "" if there is none."""
    stems = [other.stem for other in path.parent.glob(f"*{path.suffix}")] if path.suffix else []
    near = nearest_spelling(path.stem, stems)
    return "" if near is None else str(path.with_stem(near))


def _shown(error: McugenError, invocation: Invocation) -> str:
    """Return a command that shows more about an error; "" if there is none."""
    if isinstance(error, (InternalError, VerificationError)):
        return f"MCUGEN_TRACEBACK=1 {invocation}"
    file = error.rule.partition(": ")[0]
    if file in invocation.arguments and not Path(file).exists():
        near = _nearest_file(Path(file))
        return str(invocation.replacing(file, near)) if near else f"ls -l {shlex.quote(str(Path(file).parent))}"
    if isinstance(error, DoesNotFitError):
        deadline = [invocation.option(name) for name in ("--max-latency", "--max-cycles") if invocation.option(name)]
        model = shlex.quote(invocation.model)
        return f"mcugen explore {model} {deadline[0]}" if deadline else f"mcugen boards --fits {model}"
    if isinstance(error, ConstraintError) and "--all" in invocation.options:
        return str(invocation.having("--all", ""))
    if isinstance(error, UnsupportedError):
        bound = [value.strip("'") for option, value in _OPTION.findall(str(error)) if option == "--bind"]
        if bound and "--bind" in invocation.options:
            return str(invocation.having("--bind", bound[0]))
        is_listed = "operator" in error.rule and not invocation.model.endswith(".tflite")
        return "mcugen operators" if is_listed else ""
    if isinstance(error, ModelError) and "--dim" in invocation.arguments and "must fit the input" in error.rule:
        return str(replace(invocation, arguments=_with_sizes_to_fill_in(invocation.arguments)))
    if isinstance(error, ModelError) and Path(invocation.model).suffix.lower() in _NOT_ONNX:
        return ""
    if isinstance(error, ModelError):
        check = f"import onnx; onnx.checker.check_model({json.dumps(invocation.model)}, full_check=True)"
        return f"python -c {shlex.quote(check)}"
    if isinstance(error, OutputError) and "space" in error.remedy:
        return "df -h . && ls -ld ."
    data = next(
        (word for word in invocation.arguments if word.endswith(".npz") and word in f"{error.rule} {error.found}"), ""
    )
    if data:
        look = f"import numpy; print({{k: (v.dtype, v.shape) for k, v in numpy.load({json.dumps(data)}).items()}})"
        return f"python -c {shlex.quote(look)}"
    return f"mcugen {invocation.name} --help-all"
