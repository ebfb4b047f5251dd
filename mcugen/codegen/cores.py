# SPDX-License-Identifier: Apache-2.0
"""The C function for the shards (in C, "portions") of layers that a second core computes, with its parameters."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from mcugen.codegen.run import OTHER_PORTION, RunStatement

CORE_NAMES = ("cores", "link", "ready", "fork", OTHER_PORTION)
"""C identifiers that only the code of models on two cores uses; other code may not define them."""

_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class RunParameter:
    """A parameter of the generated run function.

    Attributes:
        ctype: C type of the parameter.
        name: C name of the parameter.
    """

    ctype: str
    name: str

    @property
    def declared(self) -> str:
        """Return the C declaration of the parameter, as in a parameter list."""
        return f"{self.ctype}{self.name}"


@dataclass(frozen=True)
class SecondCorePart:
    """The C statements that compute the second core's part of one fork.

    A fork is a layer or a pair of branches that both cores compute at the same time.

    Attributes:
        fork: Number of the fork, from 1.
        lines: The statements.
    """

    fork: int
    lines: Sequence[RunStatement]


@dataclass(frozen=True)
class SecondCoreCode:
    """The template variables of the C function that the second core runs.

    Attributes:
        portions: The statements of the second core for each fork, that is, for each layer that both cores compute.
        parameters: Parameters of the run function that these statements use.
        locals: Typed pointers into the arena that these statements use.
        constant_locals: Typed pointers into the file of weights that these statements use.
    """

    portions: Sequence[SecondCorePart]
    parameters: Sequence[RunParameter]
    locals: Sequence[Any]
    constant_locals: Sequence[Any]


def identifiers_in(lines: Sequence[RunStatement]) -> set[str]:
    """Return all C identifiers that occur in statements of the run function, or in the parameters that these set."""
    texts = [text for line in lines for text in (line.text, *(m[2] for m in line.members))]
    return {word for text in texts for word in _WORD.findall(text)}


def with_memories(words: set[str], arena: str, pointers: Sequence[Any], constants: Sequence[Any]) -> set[str]:
    """Return the identifiers that a function uses, plus those of the memories that its pointers lie in.

    Args:
        words: Identifiers that the function uses.
        arena: Identifier of the arena, added if there are `pointers` into it.
        pointers: Pointers into the arena.
        constants: Pointers into the file of weights, whose identifier is added if there are any.
    """
    return words | ({arena} if pointers else set()) | ({"weights"} if constants else set())


def divide_between_cores(context: Mapping[str, Any]) -> dict[str, Any]:
    """Return the template variables that divide the statements of the run function between two cores.

    Args:
        context: The template variables of a model's C file for one core.
    """
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
        "lines": [line.with_portion_arguments(portion_arguments) for line in ours],
        "handing": handing,
        "locals": _used(context["locals"], identifiers_in([*ours, *handing])),
        "constant_locals": _used(context["constant_locals"], identifiers_in([*ours, *handing])),
    }


def _other(lines: Sequence[RunStatement], context: Mapping[str, Any]) -> SecondCoreCode:
    words = identifiers_in(lines)
    pointers, constants = (_used(context[key], words) for key in ("locals", "constant_locals"))
    words = with_memories(words, context["arena"], pointers, constants)
    parameters = [RunParameter(ctype, name) for ctype, name in context["parameters"] if name in words]
    by_fork = groupby(lines, key=lambda line: line.portion)
    return SecondCoreCode(
        [SecondCorePart(fork, list(group)) for fork, group in by_fork], parameters, pointers, constants
    )


def _used(pointers: Sequence[Any], words: set[str]) -> list[Any]:
    names = [pointer["name"] if isinstance(pointer, dict) else pointer.name for pointer in pointers]
    return [pointer for pointer, name in zip(pointers, names, strict=True) if name in words]
