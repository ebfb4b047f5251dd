# SPDX-License-Identifier: Apache-2.0
"""What a user can paste after an error: the command that ran, as its remedy changes it, or one that shows more.

Remedies are written for people ("give --calibration SAMPLES.npz, or …"): the first way with options becomes arguments.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

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

_OPTION = re.compile(r"(?<![\w-])(--?[a-z][a-z0-9-]*)(?: ('[^']*'|\"[^\"]*\"|[^\s,;'\"]+))?")
_WAYS = re.compile(r"; or |, or | or |; ")
_WHOLE = re.compile(
    r"`((?:mcugen|pyocd) [^`…]+)`|^((?:mcugen|pip|apt-get|sudo|dask|brew) [^…]+)$|: ((?:mcugen|dask) [^…;]+)"
)
_CHOICE = re.compile(r"one of:? '?([\w.+-]+)")
_EXAMPLE = re.compile(r"e\.g\. (?!-)('[^']*'|\"[^\"]*\"|[^\s,;]+)")
_QUOTED = re.compile(r"'([^']+)'")
_LEFT_OUT = re.compile(r"leave (?:it|one|these|this) out")
_OUT = re.compile(r"leave (?:out (--[a-z-]+)|(--[a-z-]+) out)")


@dataclass(frozen=True)
class Invocation:
    """A command as it was given: its name, its arguments, and which options it has (by name: whether they take a
    value).
    """

    name: str
    arguments: Sequence[str]
    options: Mapping[str, bool] = field(default_factory=dict)

    @property
    def model(self) -> str:
        """The ONNX file it was given, or a word in its place."""
        first = [text for text in self.arguments[:1] if not text.startswith("-")]
        return next(
            (text for text in [*self.arguments, *first] if text.endswith(".onnx") or text in first), "MODEL.onnx"
        )

    def option(self, name: str) -> str:
        """An option with its value, as it was given; "" where it was not."""
        words = list(self.arguments)
        return shlex.join(words[words.index(name) : words.index(name) + 2]) if name in words else ""

    def without(self, option: str, key: str = "") -> Invocation:
        """The same, an option left out; of those that read KEY=VALUE only what `key` is said of, if one is given."""
        kept: list[str] = []
        words = iter(self.arguments)
        for word in words:
            said = [word]
            if word == option and self.options.get(option):
                said += [value for value in [next(words, None)] if value is not None]
            is_option = word == option or word.startswith(f"{option}=")
            if not is_option or not said[-1].removeprefix(f"{option}=").startswith(f"{key}=" * bool(key)):
                kept += said
        return Invocation(self.name, kept, self.options)

    def having(self, option: str, value: str) -> Invocation:
        """The same with an option, in place of what was said of it; of its KEY, where it reads KEY=VALUE."""
        given = [option, value] if self.options[option] else [option]
        key, equals, _ = value.partition("=")
        return Invocation(self.name, [*self.without(option, key * bool(equals)).arguments, *given], self.options)

    def __str__(self) -> str:
        return shlex.join(["mcugen", self.name, *self.arguments])


def command_that_helps(error: McugenError, given: Invocation) -> str:
    """What to paste; "" where nothing failed but the user's patience."""
    if isinstance(error, Interrupted):
        return ""
    whole = _WHOLE.search(error.remedy)
    if whole:
        return str(next(filter(None, whole.groups()))).strip()
    changed = _changed(error, given)
    if changed is not None:
        return str(changed)
    return _shown(error, given)


def _changed(error: McugenError, given: Invocation) -> Invocation | None:
    """The command with what the remedy asks for; None where that is no option."""
    return _left_out(error, given) or _chosen(error, given) or _given(error, given)


def _left_out(error: McugenError, given: Invocation) -> Invocation | None:
    """Without the option that the remedy names; or that of those named besides which was given."""
    named = _OUT.search(error.remedy)
    if named:
        return given.without(named[1] or named[2])
    options = [option for option, _ in _OPTION.findall(f"{error.found} {error.rule}")]
    present = next((option for option in options if option in given.arguments), None)
    return given.without(present) if present and _LEFT_OUT.search(error.remedy) else None


def _chosen(error: McugenError, given: Invocation) -> Invocation | None:
    """With the first of several values, or with an example: of the option that the rule is about, or of an argument."""
    found = _CHOICE.search(error.remedy) or _EXAMPLE.search(error.remedy)
    if found is None:
        return None
    value = found[1].strip("'\"")
    about = next((option for option, _ in _OPTION.findall(error.rule) if given.options.get(option)), "")
    if error.rule.startswith("the board must") and "--board" in given.options:
        about = "--board"
    wrong = next(iter(_QUOTED.findall(f"{error.found} {error.rule}")), None)
    is_key = any(word.startswith(f"{wrong}=") for word in given.arguments)  # --dim WRONG=2
    if about and not is_key:
        return _aliased(given, about).having(about, value)
    if wrong is not None and any(wrong in word for word in given.arguments):
        return replace(given, arguments=[word.replace(wrong, value) for word in given.arguments])
    return None


def _given(error: McugenError, given: Invocation) -> Invocation | None:
    """With the options of the first way that names some."""
    ways = ([o for o in _OPTION.findall(way) if o[0] in given.options] for way in _WAYS.split(error.remedy))
    wanted = next(filter(None, ways), [])
    for option, value in wanted:
        given = _aliased(given, option).having(option, value.strip("'\"") or _word(option))
    return given if wanted else None


def _aliased(given: Invocation, option: str) -> Invocation:
    """Without the short form of an option."""
    short = {"--board": "-b", "--output": "-o"}.get(option)
    return given.without(short) if short else given


def _word(option: str) -> str:
    """What stands for a value that the user knows."""
    return option.lstrip("-").upper().replace("-", "_")


def _with_sizes_to_fill_in(arguments: Sequence[str]) -> list[str]:
    """`--dim NAME=1` as `--dim NAME=SIZE`: the sizes that were given are the first that a larger input is made of."""
    pairs = zip(["", *arguments], arguments, strict=False)
    return [f"{word.partition('=')[0]}=SIZE" if before == "--dim" else word for before, word in pairs]


def _shown(error: McugenError, given: Invocation) -> str:
    """A command that shows more of what is wrong."""
    if isinstance(error, (InternalError, VerificationError)):
        return f"MCUGEN_TRACEBACK=1 {given}"
    file = error.rule.partition(": ")[0]
    if file in given.arguments and not Path(file).exists():
        return f"ls -l {shlex.quote(str(Path(file).parent))}"
    if isinstance(error, DoesNotFitError):
        deadline = [given.option(name) for name in ("--max-latency", "--max-cycles") if given.option(name)]
        model = shlex.quote(given.model)
        return f"mcugen explore {model} {deadline[0]}" if deadline else f"mcugen boards --fits {model}"
    if isinstance(error, ConstraintError) and "--all" in given.options:
        return str(given.having("--all", ""))
    if isinstance(error, UnsupportedError):
        bound = [value.strip("'") for option, value in _OPTION.findall(str(error)) if option == "--bind"]
        return str(given.having("--bind", bound[0])) if bound and "--bind" in given.options else "mcugen operators"
    if isinstance(error, ModelError) and "--dim" in given.arguments and "must fit the input" in error.rule:
        return str(replace(given, arguments=_with_sizes_to_fill_in(given.arguments)))
    if isinstance(error, ModelError):
        check = f"import onnx; onnx.checker.check_model({json.dumps(given.model)}, full_check=True)"
        return f"python -c {shlex.quote(check)}"
    if isinstance(error, OutputError):
        return "df -h . && ls -ld ."
    data = next(
        (word for word in given.arguments if word.endswith(".npz") and word in f"{error.rule} {error.found}"), ""
    )
    if data:
        look = f"import numpy; print({{k: (v.dtype, v.shape) for k, v in numpy.load({json.dumps(data)}).items()}})"
        return f"python -c {shlex.quote(look)}"
    return f"mcugen {given.name} --help-all"
