# SPDX-License-Identifier: Apache-2.0
"""Checks of input axes for com.microsoft operators, whose schemas do not specify them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps

from mcugen.hir.graph import Value
from mcugen.hir.types import Shape
from mcugen.ops.onnx_node import Importer, OnnxNode, Refusal

Axes = Callable[[Importer], Callable[[OnnxNode], Sequence[Value | None]]]


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
