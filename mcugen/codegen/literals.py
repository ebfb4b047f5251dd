# SPDX-License-Identifier: Apache-2.0
"""Numbers as C literals: exact, without warnings, the same on every machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from mcugen.hir.types import Array, DType
from mcugen.lir.program import Double, Wide, param_dtype

MOST_KNOWN = 1 << 16
"""Elements whose literals are remembered, and that are read at once."""


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
    """The elements of a constant, as lines of an initializer."""
    line = ""
    for text in _texts((data.view(np.uint16) if DType.of(data).is_half else data).reshape(-1)):
        if len(line) + len(text) + 2 > width:
            yield line
            line = ""
        line += f" {text}," if line else f"{text},"
    if line:
        yield line


def _texts(flat: Array) -> Iterator[str]:
    """The elements' literals; what comes often (zeros, samples) is written once."""
    literal, known = _literal(DType.of(flat)), dict[int, str]()
    for start in range(0, len(flat), MOST_KNOWN):
        part = flat[start : start + MOST_KNOWN]
        for bits, value in zip(part.view(f"u{part.itemsize}").tolist(), part.tolist(), strict=True):
            text = known.get(bits)
            if text is None:
                text = literal(value)
                if len(known) < MOST_KNOWN:
                    known[bits] = text
            yield text


def _literal(dtype: DType) -> Callable[[Any], str]:
    if dtype.is_float:
        return lambda v: c_double(float(v)) if dtype is DType.FLOAT64 else c_float(float(v))
    return lambda v: c_int(int(v))
