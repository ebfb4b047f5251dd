# SPDX-License-Identifier: Apache-2.0
"""Class names of an output: untrusted text to C strings."""

from __future__ import annotations

from collections.abc import Sequence

from mcugen.codegen.identifiers import WIDTH
from mcugen.core.errors import UsageError, shortened
from mcugen.hir.types import DType
from mcugen.lir.program import Endpoint

_PIECE = WIDTH - 16
"""Columns of a piece of a string."""


def has_order(output: Endpoint) -> bool:
    """Whether C compares the elements of an output as they are, and knows how many there are."""
    return not output.sizes and not output.dtype.is_narrow_float and output.dtype is not DType.BOOL


def labelled(outputs: Sequence[Endpoint], labels: Sequence[str]) -> Endpoint:
    """Return the output whose classes the labels name: the first with as many elements.

    Raises:
        UsageError: No output has as many elements as there are labels.
    """
    found = next((e for e in outputs if has_order(e) and e.buffer.count == len(labels)), None)
    if found is None:
        counts = ", ".join(f"'{shortened(e.name, 80)}' has {e.buffer.count}" for e in outputs)
        raise UsageError("there must be a label for each element of an output", f"{len(labels)} labels; {counts}")
    return found


def label_literals(labels: Sequence[str]) -> list[str]:
    """C string literals, an entry each; long ones of several pieces, on lines of their own."""
    return ["\n    ".join(f'"{piece}"' for piece in _pieces(_escaped(label))) for label in labels]


def _escaped(text: str) -> list[str]:
    """Each byte of UTF-8 as C has it: what is neither harmless nor ASCII as three octal digits, which end an escape."""
    return [chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in text.encode()]


def _pieces(parts: Sequence[str]) -> list[str]:
    pieces = [""]
    for part in parts:
        if len(pieces[-1]) + len(part) > _PIECE:
            pieces.append("")
        pieces[-1] += part
    return pieces
