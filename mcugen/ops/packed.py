# SPDX-License-Identifier: Apache-2.0
"""Weights with few bits and one scale per group, which stay packed in flash whatever they are multiplied with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from mcugen import kernels
from mcugen.core.errors import ModelError
from mcugen.hir.crop import Box, Crop, whole
from mcugen.hir.graph import Graph, Node, Value, constant_data
from mcugen.hir.operator import IntegerForm, Operator, RowForm, Signature, each_row
from mcugen.hir.traits import Clampable, Croppable, Quantizable, Rowwise, Widenable
from mcugen.hir.types import Array, DType, TensorType, required
from mcugen.kernels.common.conv_shape import ConvShape
from mcugen.kernels.common.loop_options import FloatLoops
from mcugen.kernels.common.specs import ConvSpec
from mcugen.kernels.common.weighted_layers import FloatLimits
from mcugen.kernels.fpu.fpu_conv import UpperLimit, clamp_options
from mcugen.kernels.portable.packed import (
    DENSE_PACKED,
    DENSE_PACKED_TILE,
    ROWS_PER_WEIGHT,
    TILE_ROWS,
    GroupedCodes,
    GroupedReals,
    GroupedRows,
    GroupedZero,
    GroupRequantizer,
    PackedOptions,
    PackedWeights,
    TileOptions,
    largest_group_sums,
    tile_sizes,
)
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Params, Site
from mcugen.lir.program import Overlap
from mcugen.lir.traversal import Traversal, overlap
from mcugen.numerics.fixedpoint import Range, clamp_range, dequantize, is_quantized
from mcugen.numerics.sums import real_product
from mcugen.ops.conversion import Dequantize

MIN_PACKED_SAVED_BYTES = 512
"""Smallest number of bytes that packed weights must save against float32 to outweigh the code of their kernel."""


class DequantizeBlocks(Operator):
    """w = (q − zero_point) · scale for constants [N, K] or [K, N], with one scale per block.

    The integers in the graph have zero points already subtracted.

    Attributes:
        axis: Axis along which blocks lie.
        block: Number of consecutive elements of a block.
    """

    mnemonic: ClassVar[str] = "dequantize_blocks"
    axis: int = 0
    block: int = 1

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: float32 in the shape of the integers."""
        (codes,) = required(inputs[:1])
        return (TensorType(codes.shape),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the dequantized weights in numpy, as ONNX defines it."""
        codes, scales = arrays
        return (codes.astype(np.float32) * repeat_scales(scales, self.axis, self.block, codes.shape[self.axis]),)

    def turned(self) -> DequantizeBlocks:
        """Return the operator for the transposed matrix: blocks then lie along the other axis."""
        return replace(self, axis=1 - self.axis)


def repeat_scales(scales: Array, axis: int, block: int, size: int) -> Array:
    """Repeat each scale for all elements of its block.

    Args:
        scales: One scale per block.
        axis: Axis along which blocks lie.
        block: Elements of a block.
        size: Number of elements, and so of repeated scales, along the axis; the last block may be partial.
    """
    return scales.take(np.arange(size) // block, axis)


class PackedDense(Quantizable, Clampable, Croppable, Rowwise, Widenable, Operator):
    """y[…, n] = clamp(bias[n] + Σ_g scale[n, g] · Σ_{k in group g} w[n, k] · x[…, k]), with an optional bias.

    The weights w [N, K] are constant integers of a few bits, with zero points subtracted; the scales [N, G] and the
    bias are real.

    Attributes:
        group: Number of inputs that share a scale.
        clamp: Limits of the real result; None for no clamp.
    """

    mnemonic: ClassVar[str] = "packed_dense"
    group: int = 1
    clamp: Range | None = None

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: that of x with one element for each output of the layer on the last axis."""
        x, w, scales = required(inputs[:3])
        if x.shape[-1] != w.shape[1] or scales.shape != (w.shape[0], -(-w.shape[1] // self.group)):
            shapes = f"{x.shape} by {w.shape}, scales {scales.shape}"
            raise ModelError("packed_dense: depths and groups must agree", shapes, "repair the model")
        return (TensorType((*x.shape[:-1], w.shape[0])),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the layer's output in numpy.

        Float x: a float product with unpacked weights. Quantized x: exact integer sums of each group, scaled and added.
        """
        x, codes, scales = arrays[:3]
        bias = arrays[3] if len(arrays) > 3 else np.zeros(len(codes), np.float32)
        if sig.input(0).quant is None:
            weights = codes.astype(np.float32) * repeat_scales(scales, 1, self.group, codes.shape[1])
            real = real_product(x, weights.T) + bias
            return (self._clamped(real),)
        sums = self._sums(x.astype(np.int64) - sig.input(0).q.zero_point, codes)
        if sig.output.quant is None:
            return (self._clamped((sums.astype(np.float32) * _units(sig, scales)).sum(-1) + bias),)
        low, high = clamp_range(self.clamp, sig.output.q, sig.output.dtype)
        clipped = np.clip(self._requantizer(sig, codes, scales, bias)(sums), low, high)
        return (clipped.astype(sig.output.dtype.numpy),)

    def _sums(self, x: Array, codes: Array) -> Array:
        """Return the sums of products of each group, [..., N, G]."""
        starts = range(0, codes.shape[1], self.group)
        groups = [slice(start, start + self.group) for start in starts]
        return np.stack([x[..., at] @ codes[:, at].astype(np.int64).T for at in groups], -1)

    def _clamped(self, y: Array) -> Array:
        clamped: Array = y if self.clamp is None else np.clip(y, *self.clamp)
        return clamped.astype(np.float32)

    def _requantizer(self, sig: Signature, codes: Array, scales: Array, bias: Array) -> GroupRequantizer:
        unit, sums = sig.output.q.scale[0], largest_group_sums(codes, self.group, sig.input(0).dtype)
        factors = scales.astype(np.float64) * sig.input(0).q.scale[0] / unit
        return GroupRequantizer.of(factors, bias.astype(np.float64) / unit, sig.output.q.zero_point, sums)

    def cropped(self, node: Node, region: Box) -> Crop | None:
        """Return the operator itself for some rows."""
        x, *constants = (None if v is None else whole(v.type.shape) for v in node.inputs)
        assert x is not None
        return Crop(self, (*region[:-1], range(node.output.type.shape[-1])), ((*region[:-1], x[-1]), *constants))

    def macs(self, sig: Signature) -> int:
        """Return the multiply-accumulates: rows of x · outputs · inputs of the layer."""
        return sig.output.count * sig.input(1).shape[1]

    def integer(self, graph: Graph, sig: Signature, inputs: Sequence[Value | None]) -> IntegerForm | None:
        """Return the layer on quantized tensors, with its inputs; None if int32 cannot hold the sums of all groups.

        A group consists of consecutive inputs that share a weight scale.
        """
        x, codes = inputs[0], inputs[1]
        bias = inputs[3] if len(inputs) > 3 else None
        if x is None or codes is None or not is_quantized(sig.output):
            return None
        if (bias is not None and (bias.data is None or bias.type.quant is not None)) or not self.takes(x, codes):
            return None
        return self, inputs

    def takes(self, x: Value, codes: Value) -> bool:
        """Return whether the layer can compute with quantized x: int32 must hold the sum of products of each group.

        A group consists of consecutive inputs that share a weight scale. `codes` are the integer weights.
        """
        return (
            is_quantized(x.type)
            and codes.data is not None
            and bool(largest_group_sums(codes.data, self.group, x.type.dtype).max() < 2**31)
        )

    def by_rows(self, sig: Signature) -> RowForm | None:
        """Return how to compute each output row from a row of x (for line-buffer fusion); None if there are no rows."""
        return each_row(self, sig, [i == 0 for i in range(len(sig.inputs))])

    def widened_bytes(self, node: Node) -> int:
        """Return the bytes of all weights as float32 if x is real; 0 if x is quantized."""
        return 4 * node.sig.input(1).count if node.sig.input(0).quant is None else 0

    def widens_by_parts(self, sig: Signature, features: frozenset[str]) -> bool:
        """Return whether the layer has enough rows to unpack its weights to float32 tile by tile at little cost.

        Each tile is used for up to 32 rows of x. On a Cortex-M4, unpacking then adds 0.3 instructions to the 1.1
        instructions of each multiply-accumulate. The CPU must have the features that the kernel needs, and x must be
        real.
        """
        rows = sig.output.count // sig.output.shape[-1]
        return rows >= TILE_ROWS and sig.input(0).quant is None and DENSE_PACKED_TILE.needs <= features

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a kernel for packed weights (several per byte) or for weights that are unpacked when compiling.

        A kernel for packed weights unpacks each weight for each product or, with the goal `balanced`, tiles of weights
        to float32.
        """
        if builder.optimize == "balanced" and self.widens_by_parts(node.sig, builder.features):
            self._lower_tiles(node, builder)
        elif builder.widens and self.widened_bytes(node):
            self._lower_widened(node, builder)
        else:
            self._lower_as_read(node, builder)

    def _lower_tiles(self, node: Node, builder: Builder) -> None:
        sig, site = node.sig, Site(builder, node, DENSE_PACKED_TILE)
        codes, scales, *more = _constants(node)
        packed, size = self._packed(codes, sig.output)
        operands = {"x": site.x, "w": site.const("w", packed.data), "scale": site.const("scale", scales)}
        if packed.has_zeros:
            operands["zeros"] = site.const("zeros", packed.zeros)
        if more:
            operands["bias"] = site.const("bias", more[0])
        patch, tile = tile_sizes(size.rows, size.depth)
        operands |= {"y": site.y, "patch": site.scratch("patch", DType.FLOAT32, patch)}
        operands["tile"] = site.scratch("tile", DType.FLOAT32, tile)
        low, high = self.clamp or (-math.inf, math.inf)
        limits = FloatLimits(low=low, high=None if math.isinf(high) else high)
        options = TileOptions(
            bits=packed.bits, zero=packed.zero, zeros=packed.has_zeros, bias=bool(more), rows=TILE_ROWS
        )
        starts = np.arange(0, size.rows, TILE_ROWS)
        order = Traversal(starts * size.depth, np.append(starts[1:], size.rows) * size.out_channels)
        loops = [clamp_options(low, high), UpperLimit(high=limits.high is not None), FloatLoops.of(site)]
        overlaps = overlap(sig.input(0), sig.output, order)
        variant = f"w{packed.bits}"
        builder.call(node, site.call(operands, [size, limits], [options, *loops], overlaps=overlaps, variant=variant))

    def _lower_as_read(self, node: Node, builder: Builder) -> None:
        """Lower to a kernel that widens each weight once for four rows."""
        sig, site = node.sig, Site(builder, node, DENSE_PACKED)
        codes, scales, *more = _constants(node)
        packed, rows = self._packed(codes, sig.output)
        constants, params, shift = self._store(sig, codes, scales, more[0] if more else None)
        if packed.has_zeros:
            constants["zeros"] = packed.zeros
        constants["w"] = packed.data
        order = [name for name in ("w", "scale", "zeros", "bias") if name in constants]
        operands = {"x": site.x} | {name: site.const(name, constants[name]) for name in order} | {"y": site.y}
        if sig.input(0).quant is not None:
            params.append(GroupedZero(x_zero_point=sig.input(0).q.zero_point))
        options = PackedOptions(
            x_t=sig.input(0).dtype.c,
            y_t=sig.output.dtype.c,
            bits=packed.bits,
            zero=packed.zero,
            zeros=packed.has_zeros,
            bias="bias" in constants,
            clamp=self.clamp is not None and not shift,
            has_row_blocks=rows.rows >= ROWS_PER_WEIGHT,
            shift=shift,
        )
        variant = f"w{packed.bits}_{sig.input(0).dtype.tag}_{sig.output.dtype.tag}"
        builder.call(node, site.call(operands, [rows, *params], [options], overlaps=_overlaps(sig), variant=variant))

    def _packed(self, codes: Array, y: TensorType) -> tuple[PackedWeights, GroupedRows]:
        """Return the weights as they are stored, and the layer's sizes."""
        packed, (channels, depth) = PackedWeights.of(codes, self.group), codes.shape
        assert packed is not None, "layers are made of codes that fit"
        return packed, GroupedRows(rows=y.count // channels, depth=depth, out_channels=channels, group_size=self.group)

    def _lower_widened(self, node: Node, builder: Builder) -> None:
        """Lower to a dense layer with float32 weights, which take at least four times the flash."""
        x, w = node.sig.input(0), TensorType(node.sig.input(1).shape)
        codes, scales, *more = _constants(node)
        weights = codes.astype(np.float32) * repeat_scales(scales, 1, self.group, codes.shape[1])
        channels, depth = codes.shape
        shape = ConvShape.of_rows(node.output.type.count // channels, depth, channels)
        spec = ConvSpec(x, w, node.output.type, weights, more[0] if more else None, self.clamp, shape)
        features = builder.features
        kernel = next(k for k in kernels.DENSE_KERNELS if k.runs_on(features) and all(holds(spec) for holds in k.when))
        assert kernel.emit is not None
        emitted = kernel.emit(spec, Site(builder, node, kernel))
        for call in emitted if isinstance(emitted, list) else [emitted]:
            builder.call(node, call)

    def _store(
        self, sig: Signature, codes: Array, scales: Array, bias: Array | None
    ) -> tuple[dict[str, Array], list[Params], int]:
        """Return the constants that multiply and initialize group sums, the output limits, and the shift.

        The shift is 0 for real results.
        """
        if sig.output.quant is not None:
            requantizer = self._requantizer(sig, codes, scales, np.zeros(len(codes)) if bias is None else bias)
            low, high = clamp_range(self.clamp, sig.output.q, sig.output.dtype)
            constants = {"scale": requantizer.multiplier.astype(np.int32), "bias": requantizer.bias}
            return constants, [GroupedCodes(low=low, high=high)], requantizer.shift
        constants = {"scale": scales.astype(np.float32) if sig.input(0).quant is None else _units(sig, scales)}
        if bias is not None:
            constants["bias"] = bias
        return constants, [] if self.clamp is None else [GroupedReals(low=self.clamp[0], high=self.clamp[1])], 0


def _constants(node: Node) -> list[Array]:
    """Return the integer weights, the scales and, if there is one, the bias."""
    return constant_data(node.inputs[1:])


def _overlaps(sig: Signature) -> list[Overlap]:
    """Return how y may overlap x: four rows of x are read again for each channel of y, other rows singly."""
    x, y = sig.input(0), sig.output
    rows, depth, channels = y.count // y.shape[-1], x.shape[-1], y.shape[-1]
    fours = rows // ROWS_PER_WEIGHT * ROWS_PER_WEIGHT
    starts = np.concatenate([np.arange(0, fours, ROWS_PER_WEIGHT), np.arange(fours, rows)])
    ends = np.append(starts[1:], rows)
    return overlap(x, y, Traversal(np.repeat(starts * depth, 2), np.repeat(ends * channels, 2)))


def _units(sig: Signature, scales: Array) -> Array:
    """Return the real value of one unit of the products of quantized values."""
    units: Array = (scales.astype(np.float64) * sig.input(0).q.scale[0]).astype(np.float32)
    return units


def is_worth_packing(codes: Array, group: int) -> bool:
    """Return whether packed weights save at least MIN_PACKED_SAVED_BYTES against float32 weights.

    Args:
        codes: The integer weights, [N, K].
        group: Number of inputs that share a scale.
    """
    packed = PackedWeights.of(codes, group)
    scales = len(codes) * -(-codes.shape[1] // group)
    return packed is not None and (4 * codes.size - packed.nbytes - 4 * scales >= MIN_PACKED_SAVED_BYTES)


def packed_form(
    graph: Graph, sig: Signature, inputs: Sequence[Value | None], clamp: Range | None
) -> IntegerForm | None:
    """Return the dense layer with packed weights for a dense layer whose weights come from DequantizeBlocks.

    Args:
        graph: Graph to which constants are added.
        sig: Types of the layer's inputs and output.
        inputs: Inputs of the layer.
        clamp: Limits of the real result; None for no clamp.

    Returns:
        The operator and its inputs; None if the weights come from elsewhere, packing saves too little, or 32 bits do
        not hold the sums.
    """
    form = packed_operands(graph, inputs)
    if form is None or inputs[0] is None:
        return None
    group, operands = form
    return PackedDense(group, clamp).integer(graph, sig, [inputs[0], *operands])


def packed_operands(graph: Graph, inputs: Sequence[Value | None]) -> tuple[int, list[Value]] | None:
    """Return the operands of a dense layer with weights that stay packed, given the inputs of the unpacked layer.

    The weights must be [N, K] or [N, K, 1…].

    Returns:
        The number of inputs that share a scale, and the packed weights, scales [N, G] and bias. None if the weights are
        not dequantized constants, or if packing saves too little.
    """
    weights, bias = inputs[1], inputs[2] if len(inputs) > 2 else None
    source = None if weights is None else weights.producer
    if source is None or (bias is not None and bias.data is None):
        return None
    stored = source.input(0)
    if stored.data is None:
        return None
    if isinstance(source.op, DequantizeBlocks) and source.op.axis == 1:
        group, codes, scales = source.op.block, stored.data, source.input(1).data
    elif isinstance(source.op, Dequantize) and stored.type.q.axis in (None, 0):
        matrix = stored.data.reshape(len(stored.data), -1)
        group, codes = matrix.shape[1], matrix.astype(np.int64) - stored.type.q.zero_point
        scales = np.broadcast_to(stored.type.q.scales.astype(np.float32), len(codes)).reshape(-1, 1)
    else:
        return None
    assert scales is not None
    if np.abs(codes).max(initial=0) >= 2**15 or not is_worth_packing(codes, group):
        return None
    name = stored.name
    scale_sources = source.inputs[1:] if isinstance(source.op, DequantizeBlocks) else ()
    operands = [
        graph.constant(f"{name}.packed", codes.astype(np.int16), of=[stored]),
        graph.constant(f"{name}.scales", scales, of=scale_sources),
    ]
    if bias is not None:
        assert bias.data is not None
        real = bias.data if bias.type.quant is None else dequantize(bias.data, bias.type.q)
        operands.append(graph.constant(f"{name}.bias", real.reshape(-1).astype(np.float32), of=[bias]))
    return group, operands
