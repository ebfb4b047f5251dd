# SPDX-License-Identifier: Apache-2.0
"""The C function of the part of a network that another core computes, with its parameters."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from mcugen.codegen.run import OTHER_PORTION, RunStatement

CORE_NAMES = ("cores", "link", "ready", "fork", OTHER_PORTION)
"""Names in the code of models on two cores."""

_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class RunParameter:
    """A parameter of the run function."""

    ctype: str
    name: str

    @property
    def declared(self) -> str:
        """Return the C declaration."""
        return f"{self.ctype}{self.name}"


@dataclass(frozen=True)
class SecondCorePart:
    """The part of a fork that the other core computes."""

    fork: int
    lines: Sequence[RunStatement]


@dataclass(frozen=True)
class Other:
    """All portions, and the parameters, pointers into the arena and into a file of weights that they use."""

    portions: Sequence[SecondCorePart]
    parameters: Sequence[RunParameter]
    locals: Sequence[Any]
    constant_locals: Sequence[Any]


def words_of(lines: Sequence[RunStatement]) -> set[str]:
    """Return the names in lines and in the parameters that the lines set."""
    texts = [text for line in lines for text in (line.text, *(m[2] for m in line.members))]
    return {word for text in texts for word in _WORD.findall(text)}


def with_memories(words: set[str], arena: str, pointers: Sequence[Any], constants: Sequence[Any]) -> set[str]:
    """Return the names, and those of the memories that their pointers refer to: the arena, the file of weights."""
    return words | ({arena} if pointers else set()) | ({"weights"} if constants else set())


def divided(context: Mapping[str, Any]) -> dict[str, Any]:
    """Return the template context of the run function's own lines and of the other core's; empty without forks."""
    lines: Sequence[RunStatement] = context["lines"]
    theirs = [line for line in lines if line.portion]
    if not theirs:
        return {"other": None, "handing": []}
    other = _other(theirs, context)
    handing = [line for line in lines if line.hands_over]
    ours = [line for line in lines if not line.portion and not line.hands_over]
    portion_arguments = "".join(f", {parameter.name}" for parameter in other.parameters)
    return {
        "other": other,
        "lines": [line.passing(portion_arguments) for line in ours],
        "handing": handing,
        "locals": _used(context["locals"], words_of([*ours, *handing])),
        "constant_locals": _used(context["constant_locals"], words_of([*ours, *handing])),
    }


def _other(lines: Sequence[RunStatement], context: Mapping[str, Any]) -> Other:
    words = words_of(lines)
    pointers, constants = (_used(context[key], words) for key in ("locals", "constant_locals"))
    words = with_memories(words, context["arena"], pointers, constants)
    parameters = [RunParameter(ctype, name) for ctype, name in context["parameters"] if name in words]
    by_fork = groupby(lines, key=lambda line: line.portion)
    return Other([SecondCorePart(fork, list(group)) for fork, group in by_fork], parameters, pointers, constants)


def _used(pointers: Sequence[Any], words: set[str]) -> list[Any]:
    names = [pointer["name"] if isinstance(pointer, dict) else pointer.name for pointer in pointers]
    return [pointer for pointer, name in zip(pointers, names, strict=True) if name in words]
