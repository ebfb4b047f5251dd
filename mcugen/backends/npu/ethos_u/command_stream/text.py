# SPDX-License-Identifier: Apache-2.0
"""Text of command streams, one line for each operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mcugen.backends.npu.ethos_u.command_stream.operations import (
    BranchCommand,
    Broadcast,
    ClipRange,
    CommandStream,
    ConvolutionOperation,
    CounterMask,
    ElementwiseOperation,
    FeatureMap,
    FixedPointScale,
    InterruptCommand,
    KernelOperation,
    KernelWindow,
    MapStorage,
    Operation,
    OutputActivation,
    OutputFunction,
    OutputReverse,
    OutputTranspose,
    PoolingOperation,
    RegionRange,
    ResizeOperation,
    StopCommand,
    TransferCommand,
    Upscale,
    WaitCommand,
    WeightRanges,
)


def format_stream(stream: CommandStream) -> str:
    """Return the text of a stream: a line with the NPU, and a line with the parameters of each operation.

    A feature map reads `name height x width x depth type layout @region:address strides zero point`.
    """
    kernels = sum(isinstance(operation, KernelOperation) for operation in stream.operations)
    transfers = sum(isinstance(operation, TransferCommand) for operation in stream.operations)
    version = ".".join(str(part) for part in stream.version)
    head = f"{stream.accelerator} (architecture {version}): {stream.num_words} words, {kernels} operations, "
    lines = [f"{head}{transfers} transfers"]
    lines += [f"{operation.position:6d}: {format_operation(operation)}" for operation in stream.operations]
    return "\n".join(lines) + "\n"


def format_operation(operation: Operation) -> str:
    """Return one line with the name of an operation and its parameters."""
    if isinstance(operation, KernelOperation):
        return format_kernel_operation(operation)
    return SHORT_FORMATS[type(operation)](operation)


SHORT_FORMATS: Mapping[type[Operation], Callable[[Any], str]] = {
    WaitCommand: lambda o: f"{'dma_wait' if o.is_for_dma else 'kernel_wait'} outstanding={o.outstanding}",
    StopCommand: lambda o: f"stop mask={o.mask:#06x}",
    InterruptCommand: lambda o: f"irq mask={o.mask:#06x}",
    CounterMask: lambda o: f"pmu_mask enabled={int(o.is_enabled)}",
    BranchCommand: lambda o: f"branch {'if true ' if o.condition else ''}target={o.target:#x}",
    TransferCommand: lambda o: format_transfer(o),
}
"""Texts of the operations that are no arithmetic."""


def format_transfer(transfer: TransferCommand) -> str:
    """Return the line of a DMA transfer."""
    source, target = (
        f"{'internal' if region is None else region}:{address:#x}"
        for region, address in ((transfer.source_region, transfer.source), (transfer.target_region, transfer.target))
    )
    text = f"dma @{source} -> @{target} bytes={transfer.length}"
    if transfer.rows > 1 or transfer.planes > 1:
        counts = f"rows={transfer.rows} planes={transfer.planes}"
        text += f" {counts} strides={list(transfer.source_strides)}->{list(transfer.target_strides)}"
    return text + (" indexed" if transfer.has_indices else "")


def format_kernel_operation(operation: KernelOperation) -> str:
    """Return the line of an operation of the arithmetic units."""
    parts = [operation_name(operation), format_map("ifm", operation.ifm)]
    if operation.ifm2 is not None:
        parts.append(format_map("ifm2", operation.ifm2))
    parts.append(format_map("ofm", operation.ofm))
    if isinstance(operation, ConvolutionOperation | PoolingOperation):
        parts += [format_window(operation.kernel)]
        parts += [format_weights(operation.weights)] if operation.weights else []
    if isinstance(operation, ElementwiseOperation):
        parts += [f"ifm_scale={format_scaling(operation.ifm_scaling)}"]
        parts += [f"ifm2_scale={format_scaling(operation.ifm2_scaling)}", *["reversed"] * operation.is_reversed]
    if isinstance(operation, ResizeOperation):
        parts.append(f"scale={operation.scale} step={operation.step} offset={operation.offset}")
    if operation.upscale is not Upscale.NONE:
        parts.append(f"upscale={operation.upscale.name.lower()}")
    per_channel = operation.has_channel_scales and isinstance(operation, ConvolutionOperation | PoolingOperation)
    scale = f"per channel {operation.scaling.rounding.value}" if per_channel else format_scaling(operation.scaling)
    parts += [f"scale={scale}", format_activation(operation.activation)]
    if operation.transpose is not OutputTranspose.HWC:
        parts.append(f"transpose={operation.transpose.name.lower()}")
    if operation.reverse is not OutputReverse.NONE:
        parts.append(f"reverse={operation.reverse.name.lower()}")
    parts.append(f"block={format_shape(operation.block)} acc={operation.accumulator_bits}")
    parts.append(f"acc_input={operation.accumulation.name.lower()} blockdep={operation.block_dependency}")
    return " ".join(parts)


def operation_name(operation: KernelOperation) -> str:
    """Return the lower-case name of an operation with its mode."""
    if isinstance(operation, ConvolutionOperation):
        return "depthwise" if operation.is_depthwise else "conv"
    if isinstance(operation, PoolingOperation | ElementwiseOperation | ResizeOperation):
        return f"{operation.kind}.{operation.mode.name.lower()}"
    return operation.kind


def format_shape(shape: tuple[int, ...]) -> str:
    """Return a shape as 8x8x16."""
    return "x".join(str(length) for length in shape)


def format_map(name: str, feature_map: FeatureMap) -> str:
    """Return the text of an operand or a result."""
    text = f"{name} {format_shape(feature_map.shape)} {feature_map.type}"
    if feature_map.scalar is not None:
        return f"{text} scalar={feature_map.scalar} zp={feature_map.zero_point}"
    if feature_map.storage is MapStorage.CHAINED:
        text += f" chained:{feature_map.region}"
    elif feature_map.is_in_memory:
        text += f" {feature_map.layout.name} @{feature_map.region}:{feature_map.addresses[0]:#x}"
        text += f" strides={list(feature_map.strides)}"
        height0, height1, width0 = feature_map.split
        if min(height0, height1) < feature_map.shape[0] or width0 < feature_map.shape[1]:
            further_tiles = ",".join(f"{address:#x}" for address in feature_map.addresses[1:])
            text += f" tiles={height0}/{height1}x{width0}:{further_tiles}"
    if feature_map.broadcast is not Broadcast.NONE:
        text += f" broadcast={(feature_map.broadcast.name or '').lower()}"
    return f"{text} zp={feature_map.zero_point}"


def format_window(kernel: KernelWindow) -> str:
    """Return the text of a kernel with its stride, dilation and padding."""
    padding = [kernel.pad_top, kernel.pad_left, kernel.pad_bottom, kernel.pad_right]
    order = "part-kernel" if kernel.is_part_kernel_first else "depth-first"
    return (
        f"kernel={kernel.height}x{kernel.width} stride={kernel.stride_y}x{kernel.stride_x} "
        f"dilation={kernel.dilation_y}x{kernel.dilation_x} pad={padding} order={order}"
    )


def format_weights(weights: WeightRanges) -> str:
    """Return the text of the ranges of weights and scales."""
    flags = " fast" * weights.is_fast + " sparse" * weights.is_sparse
    texts = [f"weights={','.join(map(format_range, weights.weights))}{flags}"] if weights.weights else []
    return " ".join([*texts, f"scales={','.join(map(format_range, weights.scales))}"])


def format_range(memory_range: RegionRange) -> str:
    """Return the text of a range of bytes: region, address and length."""
    return f"@{memory_range.region}:{memory_range.address:#x}+{memory_range.length}"


def format_scaling(scaling: FixedPointScale) -> str:
    """Return the text of a scaling: multiplier, shift and rounding."""
    extra = f"<<{scaling.left_shift}" if scaling.left_shift else ""
    return f"{scaling.multiplier}>>{scaling.shift}{extra} {scaling.rounding.value}"


def format_activation(activation: OutputActivation) -> str:
    """Return the text of an activation: function and bounds."""
    bounds = "none" if activation.clip_range is ClipRange.NONE else f"[{activation.minimum},{activation.maximum}]"
    forced = activation.clip_range not in (ClipRange.NONE, ClipRange.OFM_TYPE)
    text = f"clip={bounds}" + (f" as {activation.clip_range.value}" if forced else "")
    if activation.function is OutputFunction.NONE:
        return text
    number = str(activation.table) if activation.function is OutputFunction.TABLE else ""
    return f"{text} {activation.function.value}{number}"
