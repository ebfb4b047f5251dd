# SPDX-License-Identifier: Apache-2.0
"""Numbers as C literals: exact, without warnings, the same on every machine."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from mcugen.hir.types import Array, DType


def c_float(value: float) -> str:
    """The shortest decimal that gives back the same float32."""
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    text = np.format_float_scientific(np.float32(value), unique=True, trim="-")
    mantissa, _, exponent = text.partition("e")
    power = int(exponent)
    if -5 <= power < 7:
        text = np.format_float_positional(np.float32(value), unique=True, trim="0")
    else:
        text = f"{mantissa}e{power}"
    if "." not in text and "e" not in text:
        text += ".0"
    return text.rstrip(".") + ("f" if "." in text.rstrip(".") or "e" in text else ".0f")


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
    return c_float(value) if isinstance(value, float) else c_int(value)


def c_param_type(value: float) -> str:
    """The C type of a kernel parameter: float, int32_t, or int64_t where it must be."""
    if isinstance(value, float):
        return "float"
    return "int32_t" if -(2**31) <= value < 2**31 else "int64_t"


def c_rows(data: Array, width: int = 108) -> Iterator[str]:
    """The elements of a constant, as lines of an initializer."""
    dtype = DType.of(data)
    texts = (
        [c_float(float(v)) for v in data.reshape(-1)] if dtype.is_float else [c_int(int(v)) for v in data.reshape(-1)]
    )
    line = ""
    for text in texts:
        if len(line) + len(text) + 2 > width:
            yield line
            line = ""
        line += f" {text}," if line else f"{text},"
    if line:
        yield line
