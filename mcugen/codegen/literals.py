# SPDX-License-Identifier: Apache-2.0
"""Numbers as C literals: exact, without warnings, the same on every machine."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from mcugen.hir.types import Array, DType, as_stored
from mcugen.lir.program import Double, Wide, param_dtype


def c_float(value: float) -> str:
    """Return the shortest decimal literal of a float32 number."""
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "MCUGEN_MINUS_INFINITY"
    single = np.float32(value)
    plain = str(single) if single == 0 or 1e-4 <= abs(single) < 1e7 else "e"
    if "e" not in plain:  # This gives the same text five times faster.
        return f"{plain}f"
    text = np.format_float_scientific(single, unique=True, trim="-")
    mantissa, _, exponent = text.partition("e")
    power = int(exponent)
    positional = -5 <= power < 7
    text = np.format_float_positional(single, unique=True, trim="0") if positional else f"{mantissa}e{power}"
    if "." not in text and "e" not in text:
        text += ".0"
    return text.rstrip(".") + ("f" if "." in text.rstrip(".") or "e" in text else ".0f")


def c_double(value: float) -> str:
    """Return the shortest decimal literal of a float64 number."""
    if math.isnan(value) or math.isinf(value):
        return c_float(value)
    return repr(float(value))


def c_int(value: int) -> str:
    """Return a C integer literal; the smallest int32 and int64 become expressions, as C has no literals for them."""
    if value == -(2**31):
        return "(-2147483647 - 1)"
    if value == -(2**63):
        return "(-INT64_C(9223372036854775807) - 1)"
    if -(2**31) < value < 2**31:
        return str(value)
    return f"UINT64_C({value})" if value >= 2**63 else f"INT64_C({value})"


def c_param(value: float) -> str:
    """Return the C literal of a kernel's parameter, in the type that `c_param_type` returns."""
    if isinstance(value, float):
        return c_double(value) if isinstance(value, Double) else c_float(value)
    return f"INT64_C({value})" if isinstance(value, Wide) and -(2**31) <= value < 2**31 else c_int(value)


def c_param_type(value: float) -> str:
    """Return the C type of the struct member that holds a value of a kernel's parameter."""
    return param_dtype(value).c


def c_rows(data: Array, width: int = 108, row_size: int = 0) -> Iterator[str]:
    """Yield the elements of a constant array as lines of a C initializer, with a comma after each element.

    Args:
        data: The array.
        width: Largest number of columns of a line.
        row_size: Number of elements after which a new line begins; 0 for lines as long as they can be. If some rows
            take several lines, a comment with the row's number begins each row.
    """
    texts, lengths = _texts(as_stored(data).reshape(-1))
    ends = np.cumsum(lengths + 2)  # Two more for a comma and a space.
    row_size = row_size if 0 < row_size < len(texts) else 0
    numbered = row_size > 0 and _longest_row(ends, row_size) > width
    inner_width = width - len(_row_mark(len(texts) // row_size)) if numbered else width
    fit = np.searchsorted(ends, ends - lengths + (inner_width - 1), "right")
    after = np.maximum(fit, np.arange(1, len(texts) + 1))  # A text that is too long has its own line.
    if row_size:
        after = np.minimum(after, (np.arange(len(texts)) // row_size + 1) * row_size)
    line_ends = after.tolist()
    begin = 0
    while begin < len(texts):
        end = line_ends[begin]
        mark = _row_mark(begin // row_size) if numbered and begin % row_size == 0 else ""
        yield mark + ", ".join(texts[begin:end]) + ","
        begin = end


def _longest_row(ends: Array, row_size: int) -> int:
    """Return the columns of the longest row; `ends` are the columns behind each element and its separator."""
    row_ends = np.append(ends[row_size - 1 :: row_size], ends[-1])
    return int(np.diff(row_ends, prepend=0).max()) - 1  # No space follows the last comma.


def _row_mark(number: int) -> str:
    return f"/* {number} */ "


def _texts(flat: Array) -> tuple[list[str], Array]:
    """Return the elements' literals and their lengths; frequent numbers are formatted once."""
    codes = flat.view(f"u{flat.itemsize}")
    if flat.itemsize == 1:
        codes, which = np.arange(256, dtype=np.uint8), codes
    else:
        codes, which = np.unique(codes, return_inverse=True)
    if 2 * len(codes) > len(flat):  # Formatting duplicates is faster than gathering here.
        texts = _literals(flat)
        return texts, _lengths(texts)
    known = _literals(codes.view(flat.dtype))
    gathered = np.empty(len(known), object)
    gathered[:] = known
    return gathered[which].tolist(), _lengths(known)[which]


def _lengths(texts: list[str]) -> Array:
    return np.fromiter(map(len, texts), np.int64, len(texts))


def _literals(numbers: Array) -> list[str]:
    dtype = DType.of(numbers)
    if dtype is DType.FLOAT32:
        return _float_literals(numbers)
    return [c_double(v) if dtype.is_float else c_int(int(v)) for v in numbers.tolist()]


def _float_literals(numbers: Array) -> list[str]:
    """Return the literals that c_float gives; numpy formats most of them at once."""
    magnitudes, texts = np.abs(numbers), numbers.astype("U16")
    has_exponent = np.strings.find(texts, "e") >= 0
    plain = (numbers == 0) | ((magnitudes >= 1e-4) & (magnitudes < 1e7) & ~has_exponent)
    small = has_exponent & (magnitudes < 1e-4) & ~np.strings.endswith(texts, "e-05")
    if small.any():  # Numpy cannot replace in an empty array.
        texts[small] = np.strings.replace(texts[small], "e-0", "e-")
    literals: list[str] = np.strings.add(texts, "f").tolist()
    for index in np.flatnonzero(~(plain | small)).tolist():
        literals[index] = c_float(float(numbers[index]))
    return literals
