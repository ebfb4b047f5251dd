# SPDX-License-Identifier: Apache-2.0
"""C strings from the class labels of an output, which are untrusted text."""

from __future__ import annotations

from collections.abc import Sequence

from mcugen.codegen.identifiers import MAX_C_LINE_COLUMNS
from mcugen.core.errors import UsageError, shortened
from mcugen.hir.types import DType
from mcugen.lir.program import Endpoint

_PIECE = MAX_C_LINE_COLUMNS - 16
"""Columns of a piece of a string."""


def has_order(output: Endpoint) -> bool:
    """Return whether C code can search an output for its largest element.

    The elements must have a type that C can compare, and their number must be fixed at compile time.
    """
    return not output.sizes and not output.dtype.is_narrow_float and output.dtype is not DType.BOOL


def labelled(outputs: Sequence[Endpoint], labels: Sequence[str]) -> Endpoint:
    """Return the output whose elements the labels name: the first output with as many elements as there are labels.

    Raises:
        UsageError: No output that C code can search for its largest element has as many elements as there are labels.
    """
    output = next((e for e in outputs if has_order(e) and e.buffer.count == len(labels)), None)
    if output is None:
        counts = ", ".join(f"'{shortened(e.name, 80)}' has {e.buffer.count}" for e in outputs)
        raise UsageError("there must be a label for each element of an output", f"{len(labels)} labels; {counts}")
    return output


def label_literals(labels: Sequence[str]) -> list[str]:
    """Return a C string literal for each label; long ones consist of several pieces on separate lines."""
    return ["\n    ".join(f'"{piece}"' for piece in _pieces(_escaped(label))) for label in labels]


def _escaped(text: str) -> list[str]:
    """Return each byte of UTF-8 as C source.

    Bytes that are not safe ASCII become escapes of three octal digits, which is the most that an escape can have.
    """
    return [chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in text.encode()]


def _pieces(parts: Sequence[str]) -> list[str]:
    pieces = [""]
    for part in parts:
        if len(pieces[-1]) + len(part) > _PIECE:
            pieces.append("")
        pieces[-1] += part
    return pieces
