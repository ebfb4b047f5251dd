# SPDX-License-Identifier: Apache-2.0
"""Numbers as C literals: exact, without warnings, the same on every machine."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from mcugen.hir.types import Array, DType
from mcugen.lir.program import Double, Wide, param_dtype


def c_float(value: float) -> str:
    """The shortest decimal that gives back the same float32."""
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    single = np.float32(value)
    plain = str(single) if single == 0 or 1e-4 <= abs(single) < 1e7 else "e"
    if "e" not in plain:  # the same text, five times faster
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
    """The shortest decimal that gives back the same float64."""
    if math.isnan(value) or math.isinf(value):
        return c_float(value)
    return repr(float(value))


def c_int(value: int) -> str:
    """An integer literal; the most negative ones have no literal of their own in C."""
    if value == -(2**31):
        return "(-2147483647 - 1)"
    if value == -(2**63):
        return "(-INT64_C(9223372036854775807) - 1)"
    if -(2**31) < value < 2**31:
        return str(value)
    return f"UINT64_C({value})" if value >= 2**63 else f"INT64_C({value})"


def c_param(value: float) -> str:
    """The literal of a kernel parameter."""
    if isinstance(value, float):
        return c_double(value) if isinstance(value, Double) else c_float(value)
    return f"INT64_C({value})" if isinstance(value, Wide) and -(2**31) <= value < 2**31 else c_int(value)


def c_param_type(value: float) -> str:
    """The C type of a kernel parameter."""
    return param_dtype(value).c


def c_rows(data: Array, width: int = 108) -> Iterator[str]:
    """The elements of a constant, as lines of an initializer: each as full as it can be, with a comma behind each."""
    texts, lengths = _texts((data.view(np.uint16) if DType.of(data).is_half else data).reshape(-1))
    ends = np.cumsum(lengths + 2)  # a comma and a space
    begin = 0
    while begin < len(texts):
        room = width + 1 + (ends[begin - 1] if begin else 0)
        end = max(int(np.searchsorted(ends, room, "right")), begin + 1)
        yield f"{', '.join(texts[begin:end])},"
        begin = end


def _texts(flat: Array) -> tuple[list[str], Array]:
    """The elements' literals and their lengths; each number is written once, however often it comes."""
    codes = flat.view(f"u{flat.itemsize}")
    if flat.itemsize == 1:
        codes, which = np.arange(256, dtype=np.uint8), codes
    else:
        codes, which = np.unique(codes, return_inverse=True)
    known = _literals(codes.view(flat.dtype))
    texts = np.empty(len(known), object)
    texts[:] = known
    return texts[which].tolist(), np.fromiter(map(len, known), np.int64, len(known))[which]


def _literals(numbers: Array) -> list[str]:
    dtype = DType.of(numbers)
    if dtype is DType.FLOAT32:
        return _float_literals(numbers)
    return [c_double(v) if dtype.is_float else c_int(int(v)) for v in numbers.tolist()]


def _float_literals(numbers: Array) -> list[str]:
    """As c_float gives them; numpy writes most of them at once."""
    magnitudes, texts = np.abs(numbers), numbers.astype("U16")
    at_once = (numbers == 0) | ((magnitudes >= 1e-4) & (magnitudes < 1e7) & (np.strings.find(texts, "e") < 0))
    literals: list[str] = np.strings.add(texts, "f").tolist()
    for index in np.flatnonzero(~at_once).tolist():
        literals[index] = c_float(float(numbers[index]))
    return literals
