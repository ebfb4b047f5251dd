# SPDX-License-Identifier: Apache-2.0
"""Template contexts of constant arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from mcugen.codegen.identifiers import comment
from mcugen.codegen.literals import c_rows
from mcugen.codegen.run import Renderer
from mcugen.hir.types import Array, DType
from mcugen.lir.layer_titles import Titles, buffer_title
from mcugen.lir.program import Buffer

WORD = 4
"""Largest number of bytes that kernels load at once from an array, whatever its type; arrays have this alignment."""


def is_unbounded(data: Array | None) -> bool:
    """Return whether some element of a float constant is infinite or NaN, so that its C literal needs math.h."""
    return data is not None and DType.of(data).is_float and not np.isfinite(data).all()


def constant(buffer: Buffer, renderer: Renderer, place: str) -> dict[str, Any]:
    """Return the template variables of a constant's C array.

    Args:
        buffer: The constant.
        renderer: The C names of the model's code.
        place: Name of the C macro that places the array in a linker section.
    """
    assert buffer.data is not None
    return array_context(
        renderer.array(buffer), buffer.dtype.c, buffer.data, constant_title(buffer, renderer.titles), place
    )


def constant_title(buffer: Buffer, titles: Titles) -> str:
    """Return the text that names a constant in C comments: its layer, and its role in the layer such as "weights"."""
    title, role = buffer_title(buffer, titles)
    return f"{title}: {role}" if role else title


def array_context(name: str, ctype: str, data: Array, title: str, place: str) -> dict[str, Any]:
    """Return the template context of a constant array.

    Args:
        name: C name.
        ctype: C type of the elements.
        data: The elements.
        title: Text of the comment above the array.
        place: Name of the macro that places the array in a section.
    """
    return {
        "name": name,
        "ctype": ctype,
        "align": max(WORD, data.itemsize),
        "count": max(data.size, 1),  # C has no arrays of size 0.
        "nbytes": data.nbytes,
        "origin": comment(title, 90),
        "place": place,
        "rows": list(c_rows(data)) or ["0,"],
    }
