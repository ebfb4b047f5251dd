# SPDX-License-Identifier: Apache-2.0
"""Template contexts of constant arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mcugen.codegen.identifiers import MAX_C_LINE_COLUMNS, comment, comment_lines
from mcugen.codegen.literals import c_rows
from mcugen.codegen.run import Renderer
from mcugen.hir.types import Array, DType, ModelConstant, Shape
from mcugen.lir.layer_titles import Titles, buffer_title
from mcugen.lir.program import Buffer, StoredTensor

WORD = 4
"""Largest number of bytes that kernels load at once from an array, whatever its type; arrays have this alignment."""

LINE_WIDTH = MAX_C_LINE_COLUMNS - 5
"""Largest number of columns of a line of elements: it is indented by four, and the last one ends with a brace."""

MIN_ROW_ELEMENTS = 8
"""Smallest number of elements of a line that ends with a row: shorter rows would make files much longer."""

MAX_DESCRIBED_TENSORS = 8
"""Largest number of tensors that the comment above an array lists, and of constants that a tensor is folded from."""

MAX_COMMENTED_NAME_CHARACTERS = 48
"""Largest number of characters of a tensor's name in a comment; in longer names, the middle is left out."""


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
    return array_context(renderer.array(buffer), buffer, constant_title(buffer, renderer.titles), place)


def constant_title(buffer: Buffer, titles: Titles) -> str:
    """Return the text that names a constant in C comments: its layer, and its role in the layer such as "weights"."""
    title, role = buffer_title(buffer, titles)
    return f"{title}: {role}" if role else title


def array_context(name: str, buffer: Buffer, title: str, place: str) -> dict[str, Any]:
    """Return the template context of a constant array.

    Args:
        name: C name.
        buffer: The constant.
        title: First line of the comment above the array.
        place: Name of the macro that places the array in a section.
    """
    data = buffer.data
    assert data is not None
    row_size = buffer.row_size or natural_row_size(data.shape)
    return {
        "name": name,
        "ctype": buffer.dtype.c,
        "align": max(WORD, data.itemsize, buffer.alignment),
        "count": max(data.size, 1),  # C has no arrays of size 0.
        "contents": [comment_lines(line) for line in _contents(buffer, title)],
        "place": place,
        "rows": list(c_rows(data, LINE_WIDTH, _line_size(row_size))) or ["0,"],
    }


def natural_row_size(shape: Shape) -> int:
    """Return the number of elements of a row: in generated C, each row of an array begins a new line.

    A row covers the fewest trailing axes that together have at least MIN_ROW_ELEMENTS elements. It never covers the
    first axis: if all other axes together have fewer elements, it covers exactly these. The result is 0 for an array of
    one axis, which has no rows.
    """
    size = 1
    for length in reversed(shape[1:]):
        size *= length
        if size >= MIN_ROW_ELEMENTS:
            break
    return size if len(shape) > 1 else 0


def _line_size(row_size: int) -> int:
    """Return the elements after which a new line begins: a row, or several whole rows that are short."""
    return row_size * -(-MIN_ROW_ELEMENTS // row_size) if row_size else 0


def _contents(buffer: Buffer, title: str) -> Iterator[str]:
    """Yield the lines of the comment above a constant array: its title, the tensors that it contains, its layout."""
    assert buffer.data is not None
    yield f"{comment(title, 90)}, {buffer.nbytes} bytes"
    for tensor in buffer.tensors[:MAX_DESCRIBED_TENSORS]:
        yield _tensor_text(tensor)
    if len(buffer.tensors) > MAX_DESCRIBED_TENSORS:
        yield f"And {len(buffer.tensors) - MAX_DESCRIBED_TENSORS} more tensors"
    axes = "".join(f"[{length}]" for length in buffer.data.shape) if buffer.data.ndim > 1 else ""
    rows = f"rows of {buffer.row_size}" if buffer.row_size else axes
    if buffer.layout or rows:
        yield f"Layout: {'; '.join(part for part in (buffer.layout, rows) if part)}"


def _tensor_text(tensor: StoredTensor) -> str:
    """Return the sentence that describes a tensor of the model: name, type, shape, and quantization as stored."""
    sources = [_source_text(source) for source in tensor.sources[:MAX_DESCRIBED_TENSORS]]
    more = len(tensor.sources) - MAX_DESCRIBED_TENSORS
    listed = ", ".join([*sources, *[f"and {more} more"] * (more > 0)])
    text = f"Folded from {listed}" if len(sources) > 1 else listed
    if tensor.quant is None:
        return _capitalized(text)
    lowest, highest = (f"{number:.6g}" for number in (min(tensor.quant.scale), max(tensor.quant.scale)))
    scale = lowest if lowest == highest else f"{lowest} to {highest}"
    by = "" if tensor.quant.axis is None else f" by channel (axis {tensor.quant.axis})"
    stored = f"stored with scale {scale}{by}, zero point {tensor.quant.zero_point}"
    return _capitalized("; ".join(part for part in (text, stored) if part))


def _source_text(source: ModelConstant) -> str:
    kind = "initializer" if source.is_initializer else "constant"
    shape = ", ".join(map(str, source.shape))
    return f'{kind} "{comment(source.name, MAX_COMMENTED_NAME_CHARACTERS)}", {source.dtype} [{shape}]'


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]
