# SPDX-License-Identifier: Apache-2.0
"""Decoding of the operations of the arithmetic units from the registers.

The height and the width of an input follow from the output, the kernel and the padding: the NPU has no registers for
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mcugen.backends.npu.ethos_u.command_stream.operations import (
    UNARY_MODES,
    UNIT_SCALING,
    Accumulation,
    Broadcast,
    ClipRange,
    ConvolutionOperation,
    ElementwiseMode,
    ElementwiseOperation,
    FeatureMap,
    FixedPointScale,
    IntegerType,
    KernelOperation,
    KernelWindow,
    MapLayout,
    MapStorage,
    OutputActivation,
    OutputFunction,
    OutputReverse,
    OutputTranspose,
    PoolingMode,
    PoolingOperation,
    RegionRange,
    ResizeMode,
    ResizeOperation,
    RoundingMode,
    Upscale,
    WeightRanges,
)
from mcugen.backends.npu.ethos_u.command_stream.registers import Architecture, CommandKey, Register
from mcugen.backends.npu.ethos_u.command_stream.state import RegisterState, sign_extend

Shape3 = tuple[int, int, int]
"""Height, width and depth."""

U55_ROUNDINGS = (RoundingMode.DOUBLE_SYMMETRIC, RoundingMode.TOWARDS_ZERO, RoundingMode.NATURAL)
"""RoundingMode modes of Ethos-U55 and U65 in the order of their numbers."""
U85_ROUNDINGS = (
    RoundingMode.DOUBLE_SYMMETRIC,
    RoundingMode.NATURAL,
    RoundingMode.DOUBLE_ASYMMETRIC,
    RoundingMode.SYMMETRIC,
    RoundingMode.TOWARDS_ZERO,
    RoundingMode.DOWN,
)
"""RoundingMode modes of Ethos-U85 in the order of their numbers."""
U55_ACCUMULATOR_BITS = (32, 40, 16)
"""Accumulators of Ethos-U55 and U65 in the order of their numbers; the last is floating-point."""
U85_ACCUMULATOR_BITS = (32, 48)
"""Accumulators of Ethos-U85 in the order of their numbers."""
MICROBLOCKS = ((1, 1), (1, 2), (1, 4), (2, 2), (2, 4), (4, 4))
"""Height and width of the microblocks of Ethos-U85 in the order of their numbers."""
U55_CLIP_RANGES = {0: ClipRange.OFM_TYPE, 2: ClipRange.UINT8, 3: ClipRange.INT8, 5: ClipRange.INT16}
"""Clip ranges of Ethos-U55 and U65."""
FIRST_TABLE = 16
"""Number of the first lookup table among the activation functions of Ethos-U55 and U65; there are eight."""
U55_FUNCTIONS = {0: OutputFunction.NONE, 3: OutputFunction.TANH, 4: OutputFunction.SIGMOID} | {
    FIRST_TABLE + table: OutputFunction.TABLE for table in range(8)
}
"""Activation functions of Ethos-U55 and U65."""
INT8, UINT8 = IntegerType(8, True), IntegerType(8, False)
INT16, INT32 = IntegerType(16, True), IntegerType(32, True)
U85_TABLES = {
    1: (UINT8, UINT8),
    4: (INT8, INT8),
    5: (INT8, INT16),
    7: (INT8, INT32),
    8: (INT16, INT16),
    9: (INT16, INT32),
}
"""Types of the index and of the entries of the lookup tables of Ethos-U85 by number of the activation function."""
U85_FUNCTIONS = {
    0: OutputFunction.NONE,
    10: OutputFunction.TANH,
    11: OutputFunction.SIGMOID,
} | dict.fromkeys(U85_TABLES, OutputFunction.TABLE)
"""Activation functions of Ethos-U85."""
TRANSPOSES = {
    0: OutputTranspose.HWC,
    1: OutputTranspose.WHC,
    2: OutputTranspose.HCW,
    3: OutputTranspose.WCH,
    6: OutputTranspose.CHW,
    7: OutputTranspose.CWH,
}
"""Orders of the axes of a result of Ethos-U85."""
ADDITION_LEFT_SHIFT = {8: 20, 16: 15}
"""Bits by which TensorFlow Lite shifts the operands of an addition left, by the width of their type. Ethos-U55 and U65
scale one operand by OPA_SCALE in this format; the other one is shifted by one bit less."""


@dataclass(frozen=True)
class OperandRegisters:
    """The registers of one feature map.

    Attributes:
        precision: Type, layout and storage.
        region: Region or chaining buffer.
        bases: Addresses of the four tiles.
        split: Heights of the left and right upper tile, width of the left tiles.
        strides: Strides of rows, columns and bricks.
        zero_point: Zero point.
    """

    precision: Register
    region: Register
    bases: tuple[Register, Register, Register, Register]
    split: tuple[Register, Register, Register]
    strides: tuple[Register, Register, Register]
    zero_point: Register


def operand_registers(prefix: str) -> OperandRegisters:
    """Return the registers of IFM, IFM2 or OFM."""

    def named(suffix: str) -> Register:
        return Register[f"{prefix}_{suffix}"]

    return OperandRegisters(
        precision=named("PRECISION"),
        region=named("REGION"),
        bases=(named("BASE0"), named("BASE1"), named("BASE2"), named("BASE3")),
        split=(named("HEIGHT0"), named("HEIGHT1"), named("WIDTH0")),
        strides=(named("STRIDE_Y"), named("STRIDE_X"), named("STRIDE_C")),
        zero_point=named("ZERO_POINT"),
    )


IFM, IFM2, OFM = operand_registers("IFM"), operand_registers("IFM2"), operand_registers("OFM")


def input_length(output: int, stride: int, kernel: int, dilation: int, padding: int, upscale: Upscale) -> int:
    """Return the number of input elements along an axis that an output of a given length covers.

    Args:
        output: Length of the output.
        stride: Step of the window.
        kernel: Number of taps.
        dilation: Distance of two taps.
        padding: Elements of padding on both sides.
        upscale: Enlargement of the input.
    """
    covered = (output - 1) * stride + (kernel - 1) * dilation + 1 - padding
    return covered if upscale is Upscale.NONE else -(-covered // 2)


class KernelDecoder:
    """Decodes one operation of the arithmetic units.

    Args:
        state: The registers.
        position: Index of the operation's word.
    """

    def __init__(self, state: RegisterState, position: int) -> None:
        self.state, self.position = state, position
        self.is_u85 = state.accelerator.architecture is Architecture.U85
        self.output_shape: Shape3 = (
            state.plus_one(Register.OFM_HEIGHT),
            state.plus_one(Register.OFM_WIDTH),
            state.plus_one(Register.OFM_DEPTH),
        )

    def decode(self, command: CommandKey, parameter: int) -> KernelOperation:
        """Return the operation.

        Raises:
            CommandStreamError: A register is not set, or has a value without a meaning.
        """
        if command in (CommandKey.CONVOLUTION, CommandKey.DEPTHWISE):
            has_computed_weights = self.is_u85 and command is CommandKey.CONVOLUTION and bool(parameter & 1)
            return self._convolution(command is CommandKey.DEPTHWISE, has_computed_weights)
        if command is CommandKey.POOL:
            return self._pooling(self.state.choose(PoolingMode, parameter & 7, "pooling mode"))
        if command is CommandKey.ELEMENTWISE:
            return self._elementwise(self.state.choose(ElementwiseMode, parameter & 63, "elementwise mode"))
        return self._resize(self.state.choose(ResizeMode, parameter & 3, "resize mode"))

    def _convolution(self, is_depthwise: bool, has_computed_weights: bool) -> ConvolutionOperation:
        kernel = self._kernel()
        ifm = self._ifm(self._input_shape(kernel), keeps_depth=is_depthwise)
        common = self._common(ifm, with_scale=self.is_u85)
        ifm2 = None
        if has_computed_weights:
            ifm2 = self._feature_map(IFM2, (1, self.output_shape[2], ifm.shape[2]))
        elif common["accumulation"] is Accumulation.IFM2:
            ifm2 = self._feature_map(IFM2, self.output_shape)
        weights = None if has_computed_weights else self._weights(has_weights=True)
        return ConvolutionOperation(
            **common, ifm=ifm, ifm2=ifm2, kernel=kernel, is_depthwise=is_depthwise, weights=weights
        )

    def _pooling(self, mode: PoolingMode) -> PoolingOperation:
        kernel = self._kernel()
        keeps_depth = mode not in (PoolingMode.REDUCE_SUM, PoolingMode.NONE)
        ifm = self._ifm(self._input_shape(kernel), keeps_depth=keeps_depth)
        common = self._common(ifm, with_scale=True)
        if mode is PoolingMode.REDUCE_SUM and self.output_shape[2] != 1:
            raise self.state.invalid("a sum over the depth has the depth 1", str(self.output_shape[2]))
        ifm2 = None
        if common["accumulation"] is Accumulation.IFM2:
            ifm2 = self._feature_map(IFM2, self.output_shape)
        has_scales = common["has_channel_scales"] and self.is_u85
        weights = self._weights(has_weights=False) if has_scales else None
        return PoolingOperation(**common, ifm=ifm, ifm2=ifm2, kernel=kernel, mode=mode, weights=weights)

    def _elementwise(self, mode: ElementwiseMode) -> ElementwiseOperation:
        is_unary = mode in UNARY_MODES
        if self.is_u85:
            ifm_broadcast = self._broadcast(self.state.parameter(Register.IFM_BROADCAST))
            ifm2_broadcast = self._broadcast(0 if is_unary else self.state.parameter(Register.IFM2_BROADCAST))
            is_reversed = False
        else:
            bits = 0 if is_unary else self.state.parameter(Register.IFM2_BROADCAST)
            ifm_broadcast = Broadcast.NONE
            ifm2_broadcast = Broadcast(bits & 7) | (Broadcast.SCALAR if bits >> 7 & 1 else Broadcast.NONE)
            is_reversed = bool(bits >> 6 & 1)
        ifm = self._feature_map(IFM, self.output_shape, ifm_broadcast)
        ifm2 = None if is_unary else self._feature_map(IFM2, self.output_shape, ifm2_broadcast)
        common = self._common(ifm, with_scale=True)
        ifm_scaling, ifm2_scaling = self._operand_scalings(mode, ifm.type, is_reversed)
        if mode is ElementwiseMode.LEAKY_RELU and not self.is_u85:
            ifm2_scaling, common["scaling"] = common["scaling"], UNIT_SCALING
        return ElementwiseOperation(
            **common,
            ifm=ifm,
            ifm2=ifm2,
            mode=mode,
            ifm_scaling=ifm_scaling,
            ifm2_scaling=ifm2_scaling,
            is_reversed=is_reversed,
        )

    def _resize(self, mode: ResizeMode) -> ResizeOperation:
        state = self.state
        height, width = state.plus_one(Register.KERNEL_HEIGHT), state.plus_one(Register.KERNEL_WIDTH)
        ifm = self._ifm((height, width, state.plus_one(Register.IFM_DEPTH)), keeps_depth=True)
        scale = (
            (state.parameter(Register.RESIZE_Y_SCALE) & 0x7FF) + 1,
            (state.parameter(Register.RESIZE_X_SCALE) & 0x7FF) + 1,
        )
        offset = (
            sign_extend(state.parameter(Register.RESIZE_Y_OFFSET), 12),
            sign_extend(state.parameter(Register.RESIZE_X_OFFSET), 12),
        )
        steps = [
            (state.parameter(register) & 0xF) * denominator + (state.payload(register) & 0x7FF)
            for register, denominator in zip((Register.RESIZE_Y, Register.RESIZE_X), scale, strict=True)
        ]
        common = self._common(ifm, with_scale=True)
        return ResizeOperation(
            **common, ifm=ifm, ifm2=None, mode=mode, scale=scale, offset=offset, step=(steps[0], steps[1])
        )

    def _common(self, ifm: FeatureMap, *, with_scale: bool) -> dict[str, Any]:
        state = self.state
        precision = state.parameter(Register.OFM_PRECISION)
        formats = state.parameter(Register.ACCUMULATOR_FORMAT)
        ofm = self._feature_map(OFM, self.output_shape)
        is_global = bool(precision >> 8 & 1)
        accumulator_bits = U85_ACCUMULATOR_BITS if self.is_u85 else U55_ACCUMULATOR_BITS
        microblock = formats >> 8 & 7
        if formats & 3 >= len(accumulator_bits) or microblock >= len(MICROBLOCKS):
            raise state.invalid("the format of the accumulators must be one that Arm documents", f"{formats:#x}")
        transpose = precision >> 11 & 7 if self.is_u85 else 0
        if transpose not in TRANSPOSES:
            raise state.invalid("the transposition must be one that Arm documents", str(transpose))
        return {
            "position": self.position,
            "ofm": ofm,
            "upscale": state.choose(Upscale, state.parameter(Register.IFM_UPSCALE) & 3, "upscale mode"),
            "activation": self._activation(ofm.type),
            "scaling": self._output_scaling(is_global, with_scale),
            "has_channel_scales": not is_global,
            "block": (
                state.plus_one(Register.OFM_BLOCK_HEIGHT),
                state.plus_one(Register.OFM_BLOCK_WIDTH),
                state.plus_one(Register.OFM_BLOCK_DEPTH),
            ),
            "block_dependency": state.parameter(Register.BLOCK_DEPENDENCY) & 7,
            "accumulator_bits": accumulator_bits[formats & 3],
            "accumulation": state.choose(Accumulation, formats >> 4 & 3 if self.is_u85 else 0, "accumulator input"),
            "microblock": MICROBLOCKS[microblock] if self.is_u85 else (0, 0),
            "transpose": TRANSPOSES[transpose],
            "reverse": state.choose(OutputReverse, precision >> 9 & 3 if self.is_u85 else 0, "reversed axis"),
        }

    def _input_shape(self, kernel: KernelWindow) -> Shape3:
        upscale = self.state.choose(Upscale, self.state.parameter(Register.IFM_UPSCALE) & 3, "upscale mode")
        height = input_length(
            self.output_shape[0],
            kernel.stride_y,
            kernel.height,
            kernel.dilation_y,
            kernel.pad_top + kernel.pad_bottom,
            upscale,
        )
        width = input_length(
            self.output_shape[1],
            kernel.stride_x,
            kernel.width,
            kernel.dilation_x,
            kernel.pad_left + kernel.pad_right,
            upscale,
        )
        if height < 1 or width < 1:
            raise self.state.invalid("an operation must read part of its input", f"{height} x {width} elements")
        return height, width, self.state.plus_one(Register.IFM_DEPTH)

    def _ifm(self, shape: Shape3, *, keeps_depth: bool) -> FeatureMap:
        if keeps_depth and shape[2] != self.output_shape[2]:
            detail = f"{shape[2]} and {self.output_shape[2]} channels"
            raise self.state.invalid("the operation has as many channels before as after it", detail)
        return self._feature_map(IFM, shape)

    def _feature_map(
        self, registers: OperandRegisters, shape: Shape3, broadcast: Broadcast = Broadcast.NONE
    ) -> FeatureMap:
        state = self.state
        precision = state.parameter(registers.precision)
        bits = precision >> 1 & 3 if registers is OFM else precision >> 2 & 3
        element_type = IntegerType(8 << bits, bool(precision & 1))
        storage = MapStorage(precision >> 14 & 3) if self.is_u85 else MapStorage.TILES_2X2
        layout = state.choose(MapLayout, precision >> 6 & 3, "layout")
        zero_point = state.typed(registers.zero_point, element_type)
        is_scalar = Broadcast.SCALAR in broadcast
        in_memory = storage in (MapStorage.TILES_2X2, MapStorage.TILES_3X1) and not is_scalar
        addresses, split, strides = (0, 0, 0, 0), (0, 0, 0), (0, 0, 0)
        if in_memory:
            base0, base1, base2, base3 = (state.address(base) for base in registers.bases)
            addresses = (base0, base1, base2, base3)
            height0, height1, width0 = (state.plus_one(size) for size in registers.split)
            split = (height0, height1, width0)
            stride_y, stride_x, stride_c = (state.signed_address(stride) for stride in registers.strides)
            strides = (stride_y, stride_x, stride_c)
        repeated = [Broadcast.HEIGHT, Broadcast.WIDTH, Broadcast.DEPTH]
        height, width, depth = (
            1 if axis in broadcast or is_scalar else n for axis, n in zip(repeated, shape, strict=True)
        )
        return FeatureMap(
            region=state.parameter(registers.region) & 7 if not is_scalar and storage is not MapStorage.NONE else 0,
            addresses=addresses,
            split=split,
            shape=(height, width, depth),
            strides=strides,
            layout=layout,
            type=element_type,
            zero_point=zero_point,
            storage=storage,
            broadcast=broadcast,
            scalar=self._scalar(element_type) if is_scalar else None,
        )

    def _scalar(self, element_type: IntegerType) -> int:
        if self.is_u85:
            value = self.state.payload(Register.SCALAR)
            return sign_extend(value, 32) if element_type.is_signed else value
        return self.state.typed(Register.IFM2_SCALAR, element_type)

    def _broadcast(self, bits: int) -> Broadcast:
        if bits & 0xF > Broadcast.SCALAR:
            raise self.state.invalid("the broadcast must be one that Arm documents", str(bits))
        return Broadcast(bits & 0xF)

    def _kernel(self) -> KernelWindow:
        state = self.state
        bits = state.parameter(Register.KERNEL_STRIDE)
        dilation_x, dilation_y = 1 + (bits >> 3 & 1), 1 + (bits >> 4 & 1)
        return KernelWindow(
            height=state.parameter(Register.KERNEL_HEIGHT) // dilation_y + 1,
            width=state.parameter(Register.KERNEL_WIDTH) // dilation_x + 1,
            stride_y=1 + (bits >> 1 & 1) + 2 * (bits >> 9 & 1),
            stride_x=1 + (bits & 1) + 2 * (bits >> 6 & 1),
            dilation_y=dilation_y,
            dilation_x=dilation_x,
            pad_top=state.parameter(Register.IFM_PAD_TOP) & 0x7F,
            pad_left=state.parameter(Register.IFM_PAD_LEFT) & 0x7F,
            pad_bottom=state.parameter(Register.IFM_PAD_BOTTOM) & 0xFF,
            pad_right=state.parameter(Register.IFM_PAD_RIGHT) & 0xFF,
            is_part_kernel_first=bool(bits >> 2 & 1),
        )

    def _weights(self, *, has_weights: bool) -> WeightRanges:
        state = self.state
        bits = state.parameter(Register.WEIGHT_FORMAT) if self.is_u85 and has_weights else 0
        decoders = state.accelerator.cores if has_weights else 0
        is_fast = bool(bits & 1)
        weights = [
            RegionRange(state.parameter(Register.WEIGHT_REGION) & 7, self._base(base, n), n)
            for base, length in WEIGHT_RANGES[: 1 if is_fast else decoders]
            if (n := state.payload(length))
        ]
        scale_ranges = SCALE_RANGES[: 1 if self.is_u85 else state.accelerator.cores]
        scales = [
            RegionRange(state.parameter(Register.SCALE_REGION) & 7, self._base(base, n), n)
            for base, length in scale_ranges
            if (n := state.payload(length) & 0xFFFFF)
        ]
        if not scales or (has_weights and not weights):
            raise state.invalid("a convolution needs weights and scales", "ranges of no bytes")
        return WeightRanges(tuple(weights), tuple(scales), is_fast, bool(bits >> 4 & 1))

    def _base(self, register: Register, length: int) -> int:
        return self.state.address(register) if length else 0

    def _activation(self, ofm_type: IntegerType) -> OutputActivation:
        state = self.state
        bits = state.parameter(Register.ACTIVATION)
        number = bits & 31
        functions = U85_FUNCTIONS if self.is_u85 else U55_FUNCTIONS
        if number not in functions:
            raise state.invalid("the activation function must be one that Arm documents", str(number))
        table = (bits >> 5 & 7) if self.is_u85 else max(0, number - FIRST_TABLE)
        if self.is_u85:
            clip_range = ClipRange.NONE if bits >> 12 & 1 else ClipRange.OFM_TYPE
        elif bits >> 12 & 7 in U55_CLIP_RANGES:
            clip_range = U55_CLIP_RANGES[bits >> 12 & 7]
        else:
            raise state.invalid("the clip range must be one that Arm documents", str(bits >> 12 & 7))
        table_input, table_output = U85_TABLES.get(number, (None, None)) if self.is_u85 else (None, None)
        return OutputActivation(
            function=functions[number],
            table=table,
            minimum=state.typed(Register.ACTIVATION_MIN, ofm_type),
            maximum=state.typed(Register.ACTIVATION_MAX, ofm_type),
            clip_range=clip_range,
            table_input=table_input,
            table_output=table_output,
        )

    def _output_scaling(self, is_global: bool, with_scale: bool) -> FixedPointScale:
        state = self.state
        if self.is_u85:
            return self._u85_scaling(Register.OFM_SCALE)
        number = state.parameter(Register.OFM_PRECISION) >> 14
        rounding = self._rounding(U55_ROUNDINGS, number)
        if not is_global or not with_scale:
            return FixedPointScale(1, 0, rounding)
        return FixedPointScale(state.payload(Register.OFM_SCALE), state.parameter(Register.OFM_SCALE) & 63, rounding)

    def _u85_scaling(self, register: Register) -> FixedPointScale:
        bits = self.state.parameter(register)
        rounding = self._rounding(U85_ROUNDINGS, bits >> 13 & 7)
        return FixedPointScale(self.state.payload(register) & 0x7FFFFFFF, bits & 63, rounding, bits >> 6 & 31)

    def _rounding(self, modes: tuple[RoundingMode, ...], number: int) -> RoundingMode:
        if number >= len(modes):
            raise self.state.invalid("the rounding mode must be one that Arm documents", str(number))
        return modes[number]

    def _operand_scalings(
        self, mode: ElementwiseMode, element_type: IntegerType, is_reversed: bool
    ) -> tuple[FixedPointScale, FixedPointScale]:
        """Return the scalings of IFM and IFM2."""
        state = self.state
        if self.is_u85:
            is_unary = mode in UNARY_MODES - {ElementwiseMode.LEAKY_RELU}
            second = UNIT_SCALING if is_unary else self._u85_scaling(Register.IFM2_SCALE)
            return self._u85_scaling(Register.IFM_SCALE), second
        if mode not in (ElementwiseMode.ADD, ElementwiseMode.SUB):
            return UNIT_SCALING, UNIT_SCALING
        precision = state.parameter(Register.IFM_PRECISION)
        scaled_operand = precision >> 8 & 3
        rounding = self._rounding(U55_ROUNDINGS, precision >> 14)
        if scaled_operand == 0:
            first = FixedPointScale(state.payload(Register.IFM_SCALE), 0, rounding)
            return first, FixedPointScale(state.payload(Register.IFM2_SCALE) & 0xFFFF, 0, rounding)
        left_shift = ADDITION_LEFT_SHIFT.get(element_type.bits)
        if scaled_operand == 3 or left_shift is None:
            raise state.invalid("the scaling of an addition must be one that Arm documents", f"{precision:#x}")
        shift = state.parameter(Register.IFM_SCALE) & 63
        scaled = FixedPointScale(state.payload(Register.IFM_SCALE), shift, rounding, left_shift)
        shifted = FixedPointScale(1 << (left_shift - 1), 0, rounding)
        scales_ifm = (scaled_operand == 1) != is_reversed
        return (scaled, shifted) if scales_ifm else (shifted, scaled)


WEIGHT_RANGES = (
    (Register.WEIGHT_BASE, Register.WEIGHT_LENGTH),
    (Register.WEIGHT1_BASE, Register.WEIGHT1_LENGTH),
    (Register.WEIGHT2_BASE, Register.WEIGHT2_LENGTH),
    (Register.WEIGHT3_BASE, Register.WEIGHT3_LENGTH),
)
"""Address and length of the weights of each decoder."""
SCALE_RANGES = (
    (Register.SCALE_BASE, Register.SCALE_LENGTH),
    (Register.SCALE1_BASE, Register.SCALE1_LENGTH),
)
"""Address and length of the scales of each core."""
