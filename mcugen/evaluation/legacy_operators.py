# SPDX-License-Identifier: Apache-2.0
"""Operators as old opsets define them, for ONNX's reference evaluator, which has only the newest definitions.

They follow ONNX's changelog of operators, independently of the importer, whose results they verify.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import onnx

from mcugen.hir.types import Array

BROADCAST_BY_SHAPE = 7
"""First opset in which operators of two tensors broadcast as numpy does, and have no attribute `axis`."""

SOFTMAX_OF_ONE_AXIS = 13
"""First opset in which Softmax and similar operators work along one axis, not on a flattened matrix."""


def legacy_operators(opset: int) -> list[type[Any]]:
    """Return implementations of the operators that an opset defines otherwise than the newest one.

    Args:
        opset: The version of ONNX's operator set.

    Returns:
        Classes in the form that onnx.reference.ReferenceEvaluator takes.
    """
    functions: dict[str, Callable[[Any, Array, Array], Array]] = {}
    if opset < BROADCAST_BY_SHAPE:
        functions |= {name: partial(_binary, function) for name, function in _BINARY.items()} | {"PRelu": _prelu}
    implementations = [_implementation(name, opset, function) for name, function in functions.items()]
    if opset < SOFTMAX_OF_ONE_AXIS:
        implementations += [_implementation(name, opset, partial(_flattened, row)) for name, row in _BY_ROW.items()]
    return implementations


@cache
def legacy_names(opset: int) -> frozenset[str]:
    """Return the names of the operators that `legacy_operators` implements in an opset."""
    return frozenset(implementation.__name__ for implementation in legacy_operators(opset))


def _implementation(name: str, opset: int, function: Callable[..., Array]) -> type[Any]:
    from onnx.reference.op_run import OpRun

    def run(self: Any, *operands: Array, **_attributes: object) -> tuple[Array]:
        return (np.asarray(function(self, *operands)),)

    return type(name, (OpRun,), {"op_domain": "", "op_schema": onnx.defs.get_schema(name, opset), "_run": run})


def _binary(function: Callable[[Array, Array], Array], node: Any, a: Array, b: Array) -> Array:
    """Align the second operand with the axes of the first that begin at `axis`, or with the last ones."""
    axis = getattr(node, "axis", None)
    if getattr(node, "broadcast", 0) and axis is not None and b.ndim:
        start = axis + a.ndim if axis < 0 else axis
        b = b.reshape(b.shape + (1,) * (a.ndim - start - b.ndim))
    return np.asarray(function(a, b))


def _prelu(_node: Any, x: Array, slope: Array) -> Array:
    """Multiply negative elements; slopes of shape [C] belong to axis 1."""
    by_channel = slope.reshape(-1, *(1,) * (x.ndim - 2)) if slope.size > 1 and slope.ndim == 1 and x.ndim > 1 else slope
    return np.where(x > 0, x, x * by_channel).astype(x.dtype)


def _flattened(by_row: Callable[[Array], Array], node: Any, x: Array) -> Array:
    """Apply a function to the rows of a matrix: axes before `axis` (default 1) are its first axis."""
    axis = getattr(node, "axis", 1)
    start = axis + x.ndim if axis < 0 else axis
    rows = x.reshape(int(np.prod(x.shape[:start])), -1) if x.size else x.reshape(0, 1)
    return by_row(rows).reshape(x.shape).astype(x.dtype)


def _divide(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.asarray(np.divide(a, b))
    return np.asarray(np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b)), a.dtype)


def _power(a: Array, b: Array) -> Array:
    return np.asarray(np.power(a, b), a.dtype)


def _softmax(rows: Array) -> Array:
    shifted = np.exp(rows - rows.max(axis=1, keepdims=True, initial=-np.inf))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))


def _log_softmax(rows: Array) -> Array:
    shifted = rows - rows.max(axis=1, keepdims=True, initial=-np.inf)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def _hardmax(rows: Array) -> Array:
    """Return 1 at the first maximum of each row, else 0."""
    return np.asarray(np.arange(rows.shape[1]) == rows.argmax(axis=1)[:, None] if rows.size else rows)


_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    **{"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": _divide, "Pow": _power},
    **{"And": np.logical_and, "Or": np.logical_or, "Xor": np.logical_xor},
    **{"Greater": np.greater, "Less": np.less, "Equal": np.equal},
}
_BY_ROW: dict[str, Callable[[Array], Array]] = {"Softmax": _softmax, "LogSoftmax": _log_softmax, "Hardmax": _hardmax}
