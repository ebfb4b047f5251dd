# SPDX-License-Identifier: Apache-2.0
"""Importer of RequantShift, which QuantLab writes into integer networks for PULP's compilers (DORY, Deeploy).

It requantizes sums. The networks hold their integers in float tensors; the values computed are 32-bit integers.
"""

from __future__ import annotations

import numpy as np

from mcugen.hir.graph import Value
from mcugen.hir.types import Array
from mcugen.ops.onnx_node import COMPOSED_TEXT, OnnxNode, Refusal, onnx_operator

_DOMAINS = ("", "PACTOps", "ai.onnx.contrib")
_INT32, _FLOAT = 6, 1


def _import(node: OnnxNode) -> list[Value]:
    """clip(⌊(x · mul + add + div / 2) / div⌋): halves are rounded up where anything is cut off."""
    divisor, signed = _number(node, "div", 1), bool(_number(node, "signed", 0))
    levels = _number(node, "n_levels_out" if "n_levels_out" in node.attributes else "n_levels", 2)
    min_level = -(levels // 2) if signed else 0
    mul, add = (_whole(node, i) for i in (1, 2))
    x = node.call("Cast", node.input(0), to=_INT32)
    sums = node.call("Add", node.call("Mul", x, mul), (add.astype(np.int64) + divisor // 2).astype(np.int32))
    if min_level < 0:  # towards 0 would be up
        sums = node.call("Sub", sums, node.call("Mod", sums, np.int32(divisor)))
    quotient = node.call("Cast", node.call("Div", sums, np.int32(divisor)), to=_FLOAT)
    return [node.call("Clip", quotient, np.float32(min_level), np.float32(min_level + levels - 1))]


def _number(node: OnnxNode, key: str, minimum: int) -> int:
    """Return an attribute that exporters write as a number or as a tensor of one element."""
    try:
        value = np.asarray(node.attributes.get(key, np.nan), np.float64).reshape(-1)
    except (TypeError, ValueError):
        value = np.asarray([np.nan])
    if value.size != 1 or value[0] != np.rint(value[0]) or not minimum <= value[0] < 2**31:
        rule = f"{node.op_type}: {key} must be one whole number of at least {minimum}"
        raise Refusal(rule, str(value[:8])[:60], "export again")
    return int(value[0])


def _whole(node: OnnxNode, at: int) -> Array:
    """Return a constant of integers."""
    values = node.const(at, ("x", "mul", "add")[at])
    if (values != np.rint(values)).any() or np.abs(values).max(initial=0) >= 2**31:
        raise Refusal(f"{node.op_type}: input {at} must be whole numbers of 32 bits", "others", "export again")
    return values.astype(np.int32)


for _domain in _DOMAINS:
    onnx_operator("RequantShift", domain=_domain, kernels=(COMPOSED_TEXT,))(_import)
