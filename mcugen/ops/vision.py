# SPDX-License-Identifier: Apache-2.0
"""Pooling of regions of interest whose coordinates are computed: RoiAlign and MaxRoiPool."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from mcugen.core.errors import ModelError
from mcugen.hir.graph import Node, Value
from mcugen.hir.operator import Operator, Signature
from mcugen.hir.types import Array, DType, Layout, TensorType, required
from mcugen.kernels.portable.sampling import (
    MAX_ROI_POOL,
    ROI_ALIGN,
    AlignOptions,
    BinSamples,
    FloatTypeOptions,
    RegionParams,
    RegionScale,
)
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Call
from mcugen.lir.program import real_param
from mcugen.ops.onnx_node import OnnxNode, Refusal, onnx_operator

_FLOATS = (DType.FLOAT32, DType.FLOAT64)
_MAX_BIN_SAMPLES = 1024
"""Samples along one side of a bin, where the region's size decides: a bound for regions that make no sense."""


class RoiAlign(Operator):
    """y[r, c, i, j] = the average or maximum of x[batch[r], c] at sample points in bin (i, j) of region r.

    The inputs are x [N, C, H, W], rois [R, 4] with rows (x1, y1, x2, y2), and batch [R]. Between elements x is
    interpolated linearly; a maximum takes the largest of the four weighted neighbours, as in ONNX. A batch outside
    N is clamped.

    Attributes:
        height: Number of bins per column of a region.
        width: Number of bins per row of a region.
        samples: Number of sample points per side of a bin; 0 for one per element.
        scale: Factor from coordinates of regions to those of x.
        half_pixel: Whether coordinates are shifted by half an element.
        takes_max: Whether y is the maximum instead of the average.
    """

    mnemonic: ClassVar[str] = "roi_align"
    height: int = 1
    width: int = 1
    samples: int = 0
    scale: float = 1.0
    half_pixel: bool = True
    takes_max: bool = False

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: [regions, channels, height, width]."""
        x, rois, batch = required(inputs)
        if x.rank != 4 or rois.rank != 2 or rois.shape[1] != 4 or batch.shape != rois.shape[:1]:
            shapes = f"{x.shape}, {rois.shape}, {batch.shape}"
            raise ModelError("roi_align: regions must be four numbers and a batch index", shapes, "repair the model")
        shape = (rois.shape[0], x.shape[1], self.height, self.width)
        return (TensorType(shape, x.dtype, layout=Layout.CHANNELS_FIRST),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output in numpy, by sampling one region after the other."""
        x, rois, batch = arrays
        y = np.zeros(sig.output.shape, x.dtype)
        for r, (roi, image) in enumerate(zip(rois.astype(x.dtype), batch, strict=True)):
            plane = x[min(max(int(image), 0), len(x) - 1)]
            rows = self._samples(roi[1], roi[3], self.height, x.shape[2])
            columns = self._samples(roi[0], roi[2], self.width, x.shape[3])
            for i, j in np.ndindex(self.height, self.width):
                y[r, :, i, j] = self._bin(plane, rows[i], columns[j])
        return (y,)

    def _samples(self, start: Array, end: Array, bins: int, size: int) -> list[list[tuple[int, int, Array]]]:
        """For each bin, (index, next index, weight of the next) of the samples; (−1, −1, 0) outside."""
        real = start.dtype.type
        offset, scale = real(0.5 if self.half_pixel else 0.0), real(self.scale)
        first, length = start * scale - offset, (end * scale - offset) - (start * scale - offset)
        if not self.half_pixel:
            length = length if length > 1 else real(1)
        bin_length = length / real(bins)
        count = self.samples
        if not count:
            samples_per_bin = np.ceil(bin_length)
            count = 0 if np.isnan(samples_per_bin) else int(np.clip(samples_per_bin, 0, _MAX_BIN_SAMPLES))
        return [
            [
                _neighbours(first + real(i) * bin_length + (real(s) + real(0.5)) * bin_length / real(count), size)
                for s in range(count)
            ]
            for i in range(bins)
        ]

    def _bin(self, plane: Array, rows: list[tuple[int, int, Array]], columns: list[tuple[int, int, Array]]) -> Array:
        total = np.zeros(len(plane), plane.dtype)
        started = False
        for top, bottom, v in rows:
            for left, right, u in columns:
                outside = top < 0 or left < 0
                parts = [
                    plane[:, top, left] * ((1 - v) * (1 - u)),
                    plane[:, top, right] * ((1 - v) * u),
                    plane[:, bottom, left] * (v * (1 - u)),
                    plane[:, bottom, right] * (v * u),
                ]
                if not self.takes_max:
                    total += 0 if outside else parts[0] + parts[1] + parts[2] + parts[3]
                    continue
                value = np.zeros_like(total) if outside else np.max(parts, 0)
                total, started = (np.maximum(total, value) if started else value), True
        return total if self.takes_max else total / plane.dtype.type(max(len(rows) * len(columns), 1))

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a loop over the sample points."""
        x = node.input(0).type
        operands = builder.operands(node, "x", "rois", "images")
        params = [
            _regions(node, self.height, self.width),
            BinSamples(samples=self.samples, max_samples=_MAX_BIN_SAMPLES),
            RegionScale(scale=real_param(self.scale, x.dtype)),
        ]
        options = AlignOptions(
            t=x.dtype.c, f="" if x.dtype is DType.FLOAT64 else "f", half_pixel=self.half_pixel, max=self.takes_max
        )
        variant = f"{'max' if self.takes_max else 'average'}_{x.dtype.tag}"
        builder.call(node, Call(ROI_ALIGN, operands, params, [options], variant=variant))


def _regions(node: Node, height: int, width: int) -> RegionParams:
    batch, channels, rows, columns = node.input(0).type.shape
    count = node.output.type.shape[0]
    return RegionParams(
        batch=batch,
        channels=channels,
        in_size0=rows,
        in_size1=columns,
        num_regions=count,
        out_size0=height,
        out_size1=width,
    )


def _neighbours(at: Array, size: int) -> tuple[int, int, Array]:
    """Return the elements below and above a position, and the weight of the upper one."""
    if not (at >= -1 and at <= size):
        return -1, -1, at * 0
    at = np.maximum(at, 0)
    low = min(int(at), size - 1)
    if low == size - 1:
        return low, low, at * 0
    return low, low + 1, at - at.dtype.type(low)


class MaxRoiPool(Operator):
    """y[r, c, i, j] = the largest element of x[batch, c] in bin (i, j) of region r; 0 if the bin is empty.

    The inputs are x [N, C, H, W] and rois [R, 5] with rows (batch, x1, y1, x2, y2), which are scaled and rounded. A
    batch outside N is clamped.

    Attributes:
        height: Number of bins per column of a region.
        width: Number of bins per row of a region.
        scale: Factor from coordinates of regions to those of x.
    """

    mnemonic: ClassVar[str] = "max_roi_pool"
    height: int = 1
    width: int = 1
    scale: float = 1.0

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: [regions, channels, height, width]."""
        x, rois = required(inputs)
        if x.rank != 4 or rois.rank != 2 or rois.shape[1] != 5:
            raise ModelError("max_roi_pool: regions must be five numbers", f"{x.shape}, {rois.shape}", "repair it")
        shape = (rois.shape[0], x.shape[1], self.height, self.width)
        return (TensorType(shape, x.dtype, layout=Layout.CHANNELS_FIRST),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output in numpy, by pooling one region after the other."""
        x, rois = arrays
        y = np.zeros(sig.output.shape, x.dtype)
        for r, roi in enumerate(rois):
            plane = x[_whole(roi[0], 0, len(x) - 1)]
            rows = self._bins(roi[2], roi[4], self.height, x.shape[2])
            columns = self._bins(roi[1], roi[3], self.width, x.shape[3])
            for i, j in np.ndindex(self.height, self.width):
                part = plane[:, slice(*rows[i]), slice(*columns[j])]
                y[r, :, i, j] = part.max((1, 2)) if part.size else 0
        return (y,)

    def _bins(self, start: Array, end: Array, bins: int, size: int) -> list[tuple[int, int]]:
        """First and end of each bin."""
        real, scale = start.dtype.type, start.dtype.type(self.scale)
        far = 2**20
        first, last = (_whole(_round(v * scale), -far, far) for v in (start, end))
        bin_length = real(max(last - first + 1, 1)) / real(bins)
        edges = [
            (math.floor(real(i) * bin_length) + first, math.ceil(real(i + 1) * bin_length) + first) for i in range(bins)
        ]
        return [(min(max(a, 0), size), min(max(b, 0), size)) for a, b in edges]

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a loop over the elements of y."""
        x = node.input(0).type
        operands = builder.operands(node, "x", "rois")
        scale = RegionScale(scale=real_param(self.scale, x.dtype))
        params = [_regions(node, self.height, self.width), scale]
        options = FloatTypeOptions(t=x.dtype.c, f="" if x.dtype is DType.FLOAT64 else "f")
        builder.call(node, Call(MAX_ROI_POOL, operands, params, [options], variant=x.dtype.tag))


def _round(value: Array) -> Array:
    """Half away from zero, as C's round."""
    rounded: Array = np.trunc(value + np.copysign(0.5, value.astype(np.float64)))
    return rounded


def _whole(value: Array, low: int, high: int) -> int:
    """Return an integer clamped to [low, high]; NaN gives 0."""
    return int(value) if low <= value <= high else high if value > high else low if value < low else 0


# --------------------------------------------------------------------------------------------------- import


def _bins(node: OnnxNode, *sizes: object) -> tuple[int, int]:
    output_sizes = tuple(int(str(s)) for s in sizes)
    if len(output_sizes) != 2 or not 0 < min(output_sizes) <= max(output_sizes) < 2**15:
        raise ModelError(f"{node.op_type}: the output must have positive sizes", f"{output_sizes}", "repair the model")
    return output_sizes[0], output_sizes[1]


def _scale(node: OnnxNode) -> float:
    scale = float(node.attr("spatial_scale", 1.0))
    if not math.isfinite(scale):
        raise ModelError(f"{node.op_type}: spatial_scale must be finite", f"{scale}", "repair the model")
    return scale


@onnx_operator("RoiAlign", types=_FLOATS, kernels=("roi_align",))
def _import_roi_align(node: OnnxNode) -> list[Value]:
    x, rois, batch = (node.input(i) for i in range(3))
    node.require_dtype(x, *_FLOATS)
    node.require_dtype(rois, x.type.dtype)
    node.require_dtype(batch, DType.INT64)
    mode = str(node.attr("mode", "avg")).lower()
    transform = node.attr("coordinate_transformation_mode", "half_pixel" if node.opset >= 16 else "output_half_pixel")
    samples = int(node.attr("sampling_ratio", 0))
    if mode not in ("avg", "max") or transform not in ("half_pixel", "output_half_pixel"):
        raise Refusal("RoiAlign: the modes must be known", f"'{mode}', '{transform}'", "repair the model")
    if not 0 <= samples <= _MAX_BIN_SAMPLES:
        raise ModelError("RoiAlign: sampling_ratio must be 0 to 1024", f"{samples}", "repair the model")
    height, width = _bins(node, node.attr("output_height", 1), node.attr("output_width", 1))
    op = RoiAlign(height, width, samples, _scale(node), transform == "half_pixel", mode == "max")
    return [node.emit(op, x, rois, batch)]


@onnx_operator("MaxRoiPool", types=_FLOATS, kernels=("max_roi_pool",))
def _import_max_roi_pool(node: OnnxNode) -> list[Value]:
    x, rois = node.input(0), node.input(1)
    node.require_dtype(x, *_FLOATS)
    node.require_dtype(rois, x.type.dtype)
    height, width = _bins(node, *node.attr("pooled_shape", ()))
    return [node.emit(MaxRoiPool(height, width, _scale(node)), x, rois)]
