# SPDX-License-Identifier: Apache-2.0
"""Common parts of the importers of com.microsoft: registration, checks of input axes, reshaping."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps

import numpy as np

from mcugen.hir.graph import Value
from mcugen.hir.types import DType, Shape
from mcugen.ops.onnx_node import (
    COMPOSED_TEXT,
    FLOAT,
    MICROSOFT,
    AnyImporter,
    Importer,
    OnnxNode,
    Refusal,
    onnx_operator,
)

Axes = Callable[[Importer], Callable[[OnnxNode], Sequence[Value | None]]]
"""Decorator of an importer that first checks the axes of the node's inputs."""


def composed(*op_types: str, types: Sequence[DType] = FLOAT, limits: str = "") -> Callable[[AnyImporter], AnyImporter]:
    """Return a decorator that registers an importer of com.microsoft operators that are composed of ONNX operators.

    Args:
        op_types: Names of the operators.
        types: Supported element types.
        limits: What is not supported, in a few words; "" if everything is.
    """
    return onnx_operator(*op_types, domain=MICROSOFT, types=types, kernels=(COMPOSED_TEXT,), limits=limits)


def axes(*specs: str) -> Axes:
    """Return a decorator that checks the axes of an importer's inputs.

    Args:
        specs: One text for each input, with one word an axis: a name stands for one size in all inputs ("B S H"), "_"
            for any size, "..." for any axes; "|" separates alternatives, and "*" accepts any shape. Absent inputs pass.

    Raises:
        Refusal: An input has other axes.
    """

    def decorate(importer: Importer) -> Callable[[OnnxNode], Sequence[Value | None]]:
        @wraps(importer)
        def checked(node: OnnxNode) -> Sequence[Value | None]:
            _check(node, specs)
            return importer(node)

        return checked

    return decorate


def _check(node: OnnxNode, specs: Sequence[str]) -> None:
    sizes: dict[str, int] = {}
    for index, spec in enumerate(specs):
        if spec == "*" or not node.has(index):
            continue
        shape = node.input(index).type.shape
        matched_sizes = next(
            (f for one in spec.split("|") if (f := _match(one.split(), shape, sizes)) is not None), None
        )
        if matched_sizes is None:
            known = ", ".join(f"{name} = {size}" for name, size in sizes.items() if name in spec.split())
            rule = f"{node.op_type}: input {index} must have axes '{spec}'"
            raise Refusal(rule, f"{shape}{' where ' + known if known else ''}", "repair the model")
        sizes |= matched_sizes


def _match(names: list[str], shape: Shape, sizes: dict[str, int]) -> dict[str, int] | None:
    """Return the sizes of the names, or None if the shape does not match."""
    if "..." in names:
        at = names.index("...")
        behind = len(names) - at - 1
        if len(shape) < at + behind:
            return None
        names, shape = names[:at] + names[at + 1 :], shape[:at] + shape[len(shape) - behind :]
    if len(names) != len(shape):
        return None
    matched_sizes: dict[str, int] = {}
    for name, size in zip(names, shape, strict=True):
        if name == "_":
            continue
        if size != (int(name) if name.isdigit() else (sizes | matched_sizes).get(name, size)):
            return None
        if not name.isdigit():
            matched_sizes[name] = size
    return matched_sizes


# ------------------------------------------------------------------------------------------------------ shapes


def shaped(node: OnnxNode, x: Value, *shape: int) -> Value:
    """Reshape `x` to `shape`, and return the result; return `x` itself if it has this shape."""
    return x if shape == x.type.shape else node.call("Reshape", x, np.array(shape, np.int64))


def sliced(node: OnnxNode, x: Value, axis: int, start: int, end: int) -> Value:
    """Return the entries `start` to before `end` of `x` along an axis; `x` itself if these are all."""
    if (start, end) == (0, x.type.shape[axis]):
        return x
    return node.call("Slice", x, *(np.array([number], np.int64) for number in (start, end, axis)))


def joined(node: OnnxNode, parts: Sequence[Value | None], axis: int) -> Value:
    """Return the concatenation along `axis` of the parts that are present (not None)."""
    present_parts = [part for part in parts if part is not None and part.type.count]
    return present_parts[0] if len(present_parts) == 1 else node.call("Concat", *present_parts, axis=axis)


def split_heads(node: OnnxNode, x: Value, heads: int) -> Value:
    """Reshape x from (batch, tokens, heads · size of a head) to (batch, heads, tokens, size of a head)."""
    batch, length, width = x.type.shape
    node.require(heads >= 1 and not width % heads, "heads must be of equal size", f"{heads} of {width}")
    return node.call("Transpose", shaped(node, x, batch, length, heads, width // heads), perm=[0, 2, 1, 3])


def merge_heads(node: OnnxNode, x: Value) -> Value:
    """Reshape x from (batch, heads, tokens, size of a head) to (batch, tokens, heads · size of a head)."""
    batch, heads, length, size = x.type.shape
    return shaped(node, node.call("Transpose", x, perm=[0, 2, 1, 3]), batch, length, heads * size)
