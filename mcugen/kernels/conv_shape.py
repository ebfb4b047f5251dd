# SPDX-License-Identifier: Apache-2.0
"""A convolution as its kernels see it: two spatial axes always, channels last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, cast

from mcugen.hir.graph import Node
from mcugen.kernels.weighted import weights_of
from mcugen.lir.program import Param
from mcugen.numerics.window import Window

PARAMS = (
    *("batch", "in_c", "out_c", "in_h", "in_w", "out_h", "out_w"),
    *("k_h", "k_w", "stride_h", "stride_w", "dilation_h", "dilation_w", "pad_h", "pad_w"),
)
"""The numbers of a shape that kernels read as parameters."""

_BY_AXIS = ("in", "out", "k", "stride", "dilation", "pad")


class _Convolution(Protocol):
    """What a shape reads of the operator."""

    @property
    def window(self) -> Window: ...
    @property
    def groups(self) -> int: ...


@dataclass(frozen=True)
class ConvShape:
    """Sizes in elements; `pad_h` and `pad_w` are above and to the left. A one-dimensional one has height 1."""

    batch: int
    in_h: int
    in_w: int
    in_c: int
    out_h: int
    out_w: int
    out_c: int
    k_h: int
    k_w: int
    stride_h: int
    stride_w: int
    dilation_h: int
    dilation_w: int
    pad_h: int
    pad_w: int
    groups: int

    @staticmethod
    def of(node: Node) -> ConvShape:
        """The shape of a channels-last Conv."""
        op = cast("_Convolution", node.op)
        x, w, y = node.sig.input(0).shape, node.sig.input(1).shape, node.sig.output.shape
        flat = len(x) == 3

        def both(values: Sequence[int], missing: int) -> tuple[int, int]:
            return (missing, values[0]) if flat else (values[0], values[1])

        window = op.window
        return ConvShape(
            x[0],
            *(*both(x[1:-1], 1), x[-1]),
            *(*both(y[1:-1], 1), y[-1]),
            *both(w[1:-1], 1),
            *both(window.strides, 1),
            *both(window.dilations, 1),
            *both(window.before, 0),
            op.groups,
        )

    def params(self) -> dict[str, Param]:
        """All numbers of the shape, by name."""
        return {name: getattr(self, name) for name in PARAMS}

    def as_row(self) -> ConvShape:
        """The same of an image one pixel wide, laid down: elements in the same order, but as one row."""
        if self.in_w != 1 or self.out_w != 1 or self.k_w != 1 or self.pad_w:
            return self
        return self.turned()

    def turned(self) -> ConvShape:
        """With its axes exchanged. Where one of them has length 1 everywhere, elements keep their order."""
        axes = {f"{name}_{new}": getattr(self, f"{name}_{old}") for name in _BY_AXIS for new, old in ("hw", "wh")}
        return replace(self, **axes)

    @property
    def is_depthwise(self) -> bool:
        """One filter a channel."""
        return self.groups > 1 and self.groups == self.in_c == self.out_c

    @property
    def is_inside(self) -> bool:
        """Whether no window leaves the input."""
        right = self.stride_w * (self.out_w - 1) + (self.k_w - 1) * self.dilation_w + 1
        below = self.stride_h * (self.out_h - 1) + (self.k_h - 1) * self.dilation_h + 1
        return not (self.pad_h or self.pad_w) and right <= self.in_w and below <= self.in_h

    @property
    def reads_pixels(self) -> bool:
        """Whether each output pixel reads exactly one input pixel (1×1, no padding): no gathering needed."""
        same = (self.in_h - 1) // self.stride_h + 1 == self.out_h and (self.in_w - 1) // self.stride_w + 1 == self.out_w
        return self.k_h == self.k_w == 1 and not (self.pad_h or self.pad_w) and same


def shape_of(node: Node) -> ConvShape:
    """Of a convolution, or of a dense layer as one of pixels in a row."""
    if weights_of(node).ndim > 2:
        return ConvShape.of(node)
    channels, depth = weights_of(node).shape
    rows = node.output.type.count // channels
    return ConvShape(1, 1, rows, depth, 1, rows, channels, 1, 1, 1, 1, 1, 1, 0, 0, 1)
