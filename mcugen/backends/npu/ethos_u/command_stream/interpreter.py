# SPDX-License-Identifier: Apache-2.0
"""Execution of command streams in numpy, on the bytes that the NPU would read and write.

The interpreter runs one operation after the other; it does not model time. The result is that of the NPU if the stream
orders its operations correctly, which the checker examines.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mcugen.backends.npu.ethos_u.command_stream.arithmetic import Array, divide, scale, scale_channels
from mcugen.backends.npu.ethos_u.command_stream.elementwise import compute_elementwise
from mcugen.backends.npu.ethos_u.command_stream.errors import CommandStreamError, UndocumentedOperation
from mcugen.backends.npu.ethos_u.command_stream.feature_maps import Memory, read, stored_output, write
from mcugen.backends.npu.ethos_u.command_stream.operations import (
    Accumulation,
    BranchCommand,
    ClipRange,
    CommandStream,
    ConvolutionOperation,
    ElementwiseOperation,
    FeatureMap,
    KernelOperation,
    MapStorage,
    Operation,
    OutputActivation,
    OutputFunction,
    OutputReverse,
    PoolingMode,
    PoolingOperation,
    RegionRange,
    ResizeOperation,
    TransferCommand,
    WeightRanges,
)
from mcugen.backends.npu.ethos_u.command_stream.registers import Architecture
from mcugen.backends.npu.ethos_u.command_stream.resizing import resize
from mcugen.backends.npu.ethos_u.command_stream.tables import internal_bytes, look_up
from mcugen.backends.npu.ethos_u.command_stream.weight_codec import decode_fast, decompress
from mcugen.backends.npu.ethos_u.command_stream.weights import (
    WeightLayout,
    arrange_weights,
    fast_order,
    parse_scales,
    stream_order,
)
from mcugen.backends.npu.ethos_u.command_stream.windows import (
    convolve,
    convolve_depthwise,
    count_inside,
    enlarge,
    pad,
    pool,
)


def run(stream: CommandStream, regions: Mapping[int, Memory]) -> None:
    """Execute a command stream on memory regions, which receive its results.

    Args:
        stream: The decoded stream.
        regions: The bytes of each region by its number: weights, scratch memory with the inputs, and fast scratch
            memory as Vela's raw output numbers them.

    Raises:
        CommandStreamError: An access lies outside of its region.
        UndocumentedOperation: The result of an operation is not public; the message names the operation.
    """
    interpreter = Interpreter(stream, regions)
    for operation in stream.operations:
        interpreter.execute(operation)


class Interpreter:
    """The state of the NPU between two operations.

    Attributes:
        accelerator: The NPU.
        regions: Memory regions.
        internal: Memory inside the NPU, which holds the lookup tables.
        chained: Results in the chaining buffers of an Ethos-U85, by number of the buffer.
    """

    def __init__(self, stream: CommandStream, regions: Mapping[int, Memory]) -> None:
        self.accelerator = stream.accelerator
        self.regions = regions
        self.internal: Memory = np.zeros(internal_bytes(stream.accelerator), dtype=np.uint8)
        self.chained: dict[int, Array] = {}

    def execute(self, operation: Operation) -> None:
        """Execute one operation; waits, interrupts and the end change nothing."""
        if isinstance(operation, BranchCommand):
            raise UndocumentedOperation("the interpreter runs streams without branches", f"word {operation.position}")
        if isinstance(operation, TransferCommand):
            self._transfer(operation)
        if isinstance(operation, KernelOperation):
            values = self._compute(operation)
            self._finish(operation, values)

    def _compute(self, operation: KernelOperation) -> Array:
        if operation.accumulation is Accumulation.KEEP or operation.ofm.storage is MapStorage.NONE:
            raise UndocumentedOperation("the interpreter starts each operation with empty accumulators", "KEEP")
        if isinstance(operation, ConvolutionOperation):
            return self._convolution(operation)
        if isinstance(operation, PoolingOperation):
            return self._pooling(operation)
        if isinstance(operation, ElementwiseOperation):
            return self._elementwise(operation)
        if isinstance(operation, ResizeOperation):
            return scale(resize(operation, self._read(operation.ifm)), operation.scaling)
        raise UndocumentedOperation("the interpreter knows no such operation", operation.kind)

    def _region(self, number: int) -> Memory:
        if number not in self.regions:
            raise CommandStreamError("operations access regions that exist", f"region {number}")
        return self.regions[number]

    def _bytes(self, memory_range: RegionRange) -> bytes:
        memory = self._region(memory_range.region)
        end = memory_range.address + memory_range.length
        if end > memory.size:
            detail = f"bytes {memory_range.address} to {end} of {memory.size} in region {memory_range.region}"
            raise CommandStreamError("weights and scales must lie inside their region", detail)
        return memory[memory_range.address : end].tobytes()

    def _read(self, feature_map: FeatureMap) -> Array:
        """Return the values of an operand without its zero point."""
        if feature_map.scalar is not None:
            return np.full((1, 1, 1), feature_map.scalar - feature_map.zero_point, dtype=np.int64)
        if feature_map.storage is MapStorage.CHAINED:
            if feature_map.region not in self.chained:
                raise CommandStreamError("a chaining buffer is read after it was written", str(feature_map.region))
            return self.chained[feature_map.region] - feature_map.zero_point
        return read(feature_map, self._region(feature_map.region)) - feature_map.zero_point

    def _convolution(self, operation: ConvolutionOperation) -> Array:
        ifm = self._read(operation.ifm)
        kernel, output = operation.kernel, operation.ofm.shape
        padded = pad(enlarge(ifm, operation.upscale, kernel, output), kernel, 0)
        if operation.weights is None:
            assert operation.ifm2 is not None
            weights = self._read(operation.ifm2).reshape(output[2], 1, 1, -1)
            return self._scaled(operation, convolve(padded, weights, kernel, output), operation.weights)
        weights = self._weights(operation, operation.weights)
        compute = convolve_depthwise if operation.is_depthwise else convolve
        sums = compute(padded, weights, kernel, output)
        if operation.ifm2 is not None:
            sums = sums + self._read(operation.ifm2)
        return self._scaled(operation, sums, operation.weights)

    def _weights(self, operation: ConvolutionOperation, weights: WeightRanges) -> Array:
        kernel = operation.kernel
        inputs = 1 if operation.is_depthwise else operation.ifm.shape[2]
        layout = WeightLayout(
            accelerator=self.accelerator,
            shape=(operation.ofm.shape[2], kernel.height, kernel.width, inputs),
            block_depth=operation.block[2],
            ifm_bits=operation.ifm.type.bits,
            is_depthwise=operation.is_depthwise,
            is_part_kernel_first=kernel.is_part_kernel_first,
            stride=(kernel.stride_y, kernel.stride_x),
            dilation=(kernel.dilation_y, kernel.dilation_x),
            microblock=operation.microblock,
            is_sparse=weights.is_sparse,
        )
        try:
            if weights.is_fast:
                streams, orders = [decode_fast(self._bytes(weights.weights[0]))], [fast_order(layout)]
            else:
                streams = [decompress(self._bytes(part)) for part in weights.weights]
                orders = [stream_order(layout, decoder) for decoder in range(len(streams))]
            return arrange_weights(streams, orders, layout.shape)
        except ValueError as error:
            raise CommandStreamError("the weights must be complete", f"word {operation.position}: {error}") from None

    def _scaled(self, operation: KernelOperation, sums: Array, weights: WeightRanges | None) -> Array:
        """Return accumulators scaled by one scale or by those of the channels, whose bias is added before."""
        if not operation.has_channel_scales or weights is None:
            return scale(sums, operation.scaling)
        packets = [self._bytes(part) for part in weights.scales]
        try:
            scales = parse_scales(packets, operation.ofm.shape[2], self.accelerator, operation.accumulator_bits)
        except ValueError as error:
            raise CommandStreamError("the scales must be complete", f"word {operation.position}: {error}") from None
        biased = sums + scales.bias
        limit = 1 << (operation.accumulator_bits - 1)
        if biased.size and (biased.max() >= limit or biased.min() < -limit):
            raise UndocumentedOperation("accumulators must not overflow", f"word {operation.position}")
        return scale_channels(biased, scales.multipliers, scales.shifts, operation.scaling.rounding)

    def _pooling(self, operation: PoolingOperation) -> Array:
        ifm2 = self._read(operation.ifm2) if operation.ifm2 is not None else None
        if operation.mode is PoolingMode.NONE:
            unread = np.zeros((1, 1, 1), dtype=np.int64)
            return self._scaled(operation, pool(operation, unread, ifm2), operation.weights)
        ifm = enlarge(self._read(operation.ifm), operation.upscale, operation.kernel, operation.ofm.shape)
        results = pool(operation, ifm, ifm2)
        if operation.mode is PoolingMode.AVERAGE and self._divides(operation):
            results = divide(results, count_inside(operation, *ifm.shape[:2]))
        return self._scaled(operation, results, operation.weights)

    def _divides(self, operation: PoolingOperation) -> bool:
        """Return whether the NPU divides the sums of an average by the number of elements.

        Ethos-U85 always does. Ethos-U55 and U65 do it if the input has padding; else the scaling contains the division.

        Raises:
            UndocumentedOperation: Ethos-U85 scales the average besides.
        """
        if self.accelerator.architecture is not Architecture.U85:
            kernel = operation.kernel
            return operation.has_channel_scales or any(
                (kernel.pad_top, kernel.pad_left, kernel.pad_bottom, kernel.pad_right)
            )
        if operation.scaling.multiplier != 1 << operation.scaling.shift:
            raise UndocumentedOperation("the interpreter knows no scaled average", f"word {operation.position}")
        return True

    def _elementwise(self, operation: ElementwiseOperation) -> Array:
        ifm2 = self._read(operation.ifm2) if operation.ifm2 is not None else None
        results = compute_elementwise(operation, self._read(operation.ifm), ifm2)
        return np.broadcast_to(results, operation.ofm.shape)

    def _finish(self, operation: KernelOperation, scaled: Array) -> None:
        """Add the zero point, clip, look up, and store results."""
        ofm, activation = operation.ofm, operation.activation
        values = clip(scaled + ofm.zero_point, activation, ofm)
        if activation.function in (OutputFunction.TANH, OutputFunction.SIGMOID):
            raise UndocumentedOperation("the interpreter knows no built-in activation", activation.function.value)
        if activation.function is OutputFunction.TABLE:
            values = look_up(values, self.internal, self.accelerator, activation, ofm)
        low, high = ofm.type.bounds
        if values.min() < low or values.max() > high:
            detail = f"word {operation.position}: {values.min()} to {values.max()} in {ofm.type}"
            raise UndocumentedOperation("results must fit their type", detail)
        if values.shape != ofm.shape:
            detail = f"word {operation.position}: {values.shape} and {ofm.shape}"
            raise CommandStreamError("the operands must have the shape of the result", detail)
        if ofm.storage is MapStorage.CHAINED:
            self.chained[ofm.region] = values
            return
        if operation.reverse is not OutputReverse.NONE:
            values = np.flip(values, axis=operation.reverse.value - 1)
        write(stored_output(operation), self._region(ofm.region), values.transpose(operation.transpose.value))

    def _transfer(self, transfer: TransferCommand) -> None:
        if transfer.has_indices:
            raise UndocumentedOperation("the interpreter knows no transfers by indices", f"word {transfer.position}")
        source = self.internal if transfer.source_region is None else self._region(transfer.source_region)
        target = self.internal if transfer.target_region is None else self._region(transfer.target_region)
        for plane in range(transfer.planes):
            for row in range(transfer.rows):
                start = transfer.source + plane * transfer.source_strides[1] + row * transfer.source_strides[0]
                end = transfer.target + plane * transfer.target_strides[1] + row * transfer.target_strides[0]
                sizes = (start + transfer.length > source.size, end + transfer.length > target.size)
                if min(start, end) < 0 or any(sizes):
                    detail = f"word {transfer.position}: {transfer.length} bytes from {start} to {end}"
                    raise CommandStreamError("transfers must lie inside their regions", detail)
                target[end : end + transfer.length] = source[start : start + transfer.length]


def clip(values: Array, activation: OutputActivation, ofm: FeatureMap) -> Array:
    """Return results clipped to the bounds of the activation, and to the range of their type.

    Results of 32 bits are not clipped, except to the range of the index of a lookup table.
    """
    if activation.clip_range is ClipRange.NONE:
        return values
    ranges = {ClipRange.UINT8: (0, 255), ClipRange.INT8: (-128, 127), ClipRange.INT16: (-(1 << 15), (1 << 15) - 1)}
    if activation.clip_range in ranges:
        low, high = ranges[activation.clip_range]
    elif ofm.type.bits > 16:
        return values
    else:
        low, high = ofm.type.bounds
    return np.clip(values, max(low, activation.minimum), min(high, activation.maximum))
