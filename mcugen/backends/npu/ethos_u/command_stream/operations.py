# SPDX-License-Identifier: Apache-2.0
"""The operations of a command stream, each with the registers that it uses at the time when it starts.

Feature maps are three-dimensional: height, width, depth. IFM is the input feature map, IFM2 the second operand, OFM the
output feature map. Addresses are byte offsets from the base of a region; the driver sets the bases.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntFlag

from mcugen.backends.npu.ethos_u.command_stream.registers import Architecture

BRICK_DEPTH = 16
"""Number of channels that lie side by side in the layout NHCWB16."""


class MapLayout(Enum):
    """Order of the elements of a feature map in memory."""

    NHWC = 0
    NHCWB16 = 1
    """Rows of bricks: for each row and each 16 channels, all columns of 16 values."""


class MapStorage(Enum):
    """The place of a feature map; Ethos-U55 and U65 know tiles of 2x2 only."""

    TILES_2X2 = 0
    TILES_3X1 = 1
    CHAINED = 2
    """In a buffer inside the NPU, which passes the result of an operation to a later one."""
    NONE = 3
    """Nowhere: the operand is a scalar, or the result stays in the accumulators."""


class RoundingMode(Enum):
    """The rounding of a quotient by a power of two; arithmetic.py has the formulas."""

    DOUBLE_SYMMETRIC = "double"
    DOUBLE_ASYMMETRIC = "double asymmetric"
    NATURAL = "natural"
    SYMMETRIC = "symmetric"
    TOWARDS_ZERO = "towards zero"
    DOWN = "down"


class Upscale(Enum):
    """Enlargement of the IFM to twice its height and width before the operation."""

    NONE = 0
    NEAREST = 1
    ZEROS = 2


class PoolingMode(Enum):
    """The result of a pooling operation for the values under its kernel."""

    MAX = 0
    AVERAGE = 1
    REDUCE_SUM = 2
    SUM = 3
    NONE = 4
    MIN = 5
    ARGMAX_X = 6
    ARGMAX_Y = 7


class ElementwiseMode(Enum):
    """The function of an elementwise operation."""

    MUL = 0
    ADD = 1
    SUB = 2
    MIN = 3
    MAX = 4
    LEAKY_RELU = 5
    ABS = 6
    COUNT_LEADING_ZEROS = 7
    SHIFT_RIGHT = 8
    SHIFT_LEFT = 9
    LOGICAL_SHIFT_RIGHT = 10
    DIV = 11
    EQUAL = 16
    NOT_EQUAL = 17
    GREATER_EQUAL = 18
    GREATER = 19
    AND = 33
    OR = 34
    XOR = 35
    NOT = 36
    AND_NOT = 42


UNARY_MODES = frozenset(
    {ElementwiseMode.LEAKY_RELU, ElementwiseMode.ABS, ElementwiseMode.COUNT_LEADING_ZEROS, ElementwiseMode.NOT}
)
"""The elementwise operations of one operand."""


class ResizeMode(Enum):
    """Interpolation of a resize operation."""

    BILINEAR = 0
    REPLICATE = 1
    NEAREST = 2


class Broadcast(IntFlag):
    """The axes along which an operand is repeated."""

    NONE = 0
    HEIGHT = 1
    WIDTH = 2
    DEPTH = 4
    SCALAR = 8
    """The operand is one value of a register."""


class OutputFunction(Enum):
    """The function that is applied to a result after the clipping."""

    NONE = "none"
    TABLE = "table"
    TANH = "tanh"
    SIGMOID = "sigmoid"


class ClipRange(Enum):
    """The type to whose range results are clipped before the bounds of the activation apply."""

    OFM_TYPE = "ofm"
    UINT8 = "uint8"
    INT8 = "int8"
    INT16 = "int16"
    NONE = "none"
    """No clipping, neither to the bounds of the activation."""


class Accumulation(Enum):
    """The contents of the accumulators of an Ethos-U85 before an operation."""

    RESET = 0
    KEEP = 1
    IFM2 = 2


class OutputTranspose(Enum):
    """The axes of the result in memory (Ethos-U85): axis i of the stored map is axis value[i] of the computed one."""

    HWC = (0, 1, 2)
    WHC = (1, 0, 2)
    HCW = (0, 2, 1)
    WCH = (1, 2, 0)
    CHW = (2, 0, 1)
    CWH = (2, 1, 0)


class OutputReverse(Enum):
    """The axis along which an Ethos-U85 writes a result backwards."""

    NONE = 0
    HEIGHT = 1
    WIDTH = 2
    DEPTH = 3


@dataclass(frozen=True)
class NpuConfiguration:
    """The NPU for which a command stream was made.

    Attributes:
        architecture: The generation.
        macs: Number of multiply-accumulate operations per cycle and core of U55 and U65, or of the whole U85.
        cores: Number of weight decoders that work in parallel.
        shram_bytes: Size of the shared RAM of a core of U55 and U65; its last 2 KiB hold the lookup tables. 0 for U85.
    """

    architecture: Architecture
    macs: int
    cores: int
    shram_bytes: int

    def __str__(self) -> str:
        """Return Vela's name of the accelerator configuration."""
        per_core = self.architecture is not Architecture.U85
        return f"ethos-{self.architecture.name.lower()}-{self.macs * (self.cores if per_core else 1)}"


@dataclass(frozen=True)
class IntegerType:
    """The integer type of the elements of a feature map.

    Attributes:
        bits: 8, 16, 32 or 64.
        is_signed: Whether values can be negative.
    """

    bits: int
    is_signed: bool

    @property
    def num_bytes(self) -> int:
        """Size of an element."""
        return self.bits // 8

    @property
    def bounds(self) -> tuple[int, int]:
        """Least and greatest value."""
        if self.is_signed:
            return -(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1
        return 0, (1 << self.bits) - 1

    def __str__(self) -> str:
        """Return numpy's name of the type."""
        return f"{'' if self.is_signed else 'u'}int{self.bits}"


@dataclass(frozen=True)
class FeatureMap:
    """An operand or a result of an operation.

    Attributes:
        region: Number of the memory region, or of the chaining buffer if storage is CHAINED.
        addresses: Byte offsets of the four tiles: top left, top right, bottom left, bottom right.
        split: Height of the left and of the right upper tile, and width of the left tiles, in elements.
        shape: Height, width and depth.
        strides: Bytes from one row, column and 16 channels to the next; the last counts for NHCWB16 only.
        layout: Order of the elements.
        type: Type of the elements.
        zero_point: Stored value that stands for zero.
        storage: Where the map lies.
        broadcast: The axes along which the map is repeated; its shape is 1 there.
        scalar: The value of a scalar operand, which has no memory.
    """

    region: int
    addresses: tuple[int, int, int, int]
    split: tuple[int, int, int]
    shape: tuple[int, int, int]
    strides: tuple[int, int, int]
    layout: MapLayout
    type: IntegerType
    zero_point: int
    storage: MapStorage = MapStorage.TILES_2X2
    broadcast: Broadcast = Broadcast.NONE
    scalar: int | None = None

    @property
    def is_in_memory(self) -> bool:
        """Whether the map lies in a memory region."""
        return self.storage in (MapStorage.TILES_2X2, MapStorage.TILES_3X1) and self.scalar is None


@dataclass(frozen=True)
class FixedPointScale:
    """A multiplication by `multiplier` / 2^`shift`.

    Attributes:
        multiplier: Factor of 31 or 32 bits.
        shift: Number of bits of the right shift, 0 to 63.
        rounding: RoundingMode of the shift.
        left_shift: Number of bits by which the formula of double rounding takes the operand to be shifted left before
            (TensorFlow Lite adds two values with 20 or 15 additional bits); 0 for none.
    """

    multiplier: int
    shift: int
    rounding: RoundingMode
    left_shift: int = 0


UNIT_SCALING = FixedPointScale(1, 0, RoundingMode.NATURAL)
"""A scaling that changes nothing."""


@dataclass(frozen=True)
class KernelWindow:
    """The window of a convolution or of a pooling.

    Attributes:
        height, width: Size in elements, without dilation.
        stride_y, stride_x: Steps of the window in elements of the (enlarged) IFM.
        dilation_y, dilation_x: Distance of two taps, 1 or 2.
        pad_top, pad_left, pad_bottom, pad_right: Elements of padding around the IFM.
        is_part_kernel_first: Order of the weights: taps before channels, else channels before taps.
    """

    height: int
    width: int
    stride_y: int
    stride_x: int
    dilation_y: int
    dilation_x: int
    pad_top: int
    pad_left: int
    pad_bottom: int
    pad_right: int
    is_part_kernel_first: bool


@dataclass(frozen=True)
class RegionRange:
    """Bytes in a region.

    Attributes:
        region: Number of the region.
        address: Offset of the first byte.
        length: Number of bytes.
    """

    region: int
    address: int
    length: int


@dataclass(frozen=True)
class WeightRanges:
    """Compressed weights, and packets of bias, multiplier and shift per channel.

    Attributes:
        weights: A range for each weight decoder; several share the channels of a block among each other.
        scales: Ranges of the packets of 10 bytes; one for each core of a U65, one for U55 and U85.
        is_fast: Whether an Ethos-U85 reads the weights in its fast format.
        is_sparse: Whether two of each four weights are zero and left out (Ethos-U85).
    """

    weights: tuple[RegionRange, ...]
    scales: tuple[RegionRange, ...]
    is_fast: bool = False
    is_sparse: bool = False


@dataclass(frozen=True)
class OutputActivation:
    """The clipping of a result and the function that follows, before the result is written.

    Attributes:
        function: None, a lookup table, or a function that is built in.
        table: Number of the table, in units of 256 bytes on U55 and U65, of the table's size on U85.
        minimum, maximum: Bounds of the result, with its zero point.
        clip_range: The type to whose range the result is clipped.
        table_input: Type of the index of a table on U85; None elsewhere.
        table_output: Type of the entries of a table on U85; None elsewhere.
    """

    function: OutputFunction
    table: int
    minimum: int
    maximum: int
    clip_range: ClipRange
    table_input: IntegerType | None = None
    table_output: IntegerType | None = None


@dataclass(frozen=True)
class Operation:
    """A command that starts, orders or ends something.

    Attributes:
        position: Index of its word in the command stream.
    """

    position: int

    @property
    def kind(self) -> str:
        """Return the name of the operation in lower case."""
        return type(self).__name__.removesuffix("Operation").removesuffix("Command").lower()


@dataclass(frozen=True)
class WaitCommand(Operation):
    """A wait until few transfers or operations of the arithmetic units are unfinished.

    Attributes:
        is_for_dma: Whether to wait for transfers, else for operations of the arithmetic units.
        outstanding: Number of operations that may be unfinished.
    """

    is_for_dma: bool
    outstanding: int


@dataclass(frozen=True)
class StopCommand(Operation):
    """The end of the stream.

    Attributes:
        mask: Mask of the interrupt.
    """

    mask: int


@dataclass(frozen=True)
class InterruptCommand(Operation):
    """An interrupt within the stream.

    Attributes:
        mask: Mask of the interrupt.
    """

    mask: int


@dataclass(frozen=True)
class CounterMask(Operation):
    """A start or a stop of the performance counters.

    Attributes:
        is_enabled: Whether the counters count from here.
    """

    is_enabled: bool


@dataclass(frozen=True)
class BranchCommand(Operation):
    """A jump to another word (Ethos-U85).

    Attributes:
        condition: 0 always, 1 if the result of the last operation was true.
        target: Offset of the word.
    """

    condition: int
    target: int


@dataclass(frozen=True)
class TransferCommand(Operation):
    """A DMA transfer of `planes` times `rows` times `length` bytes.

    Attributes:
        source_region, target_region: Regions; None for the memory inside the NPU, which holds the lookup tables.
        source, target: Offsets of the first byte.
        length: Bytes of a row.
        rows, planes: Numbers of rows and of planes.
        source_strides, target_strides: Bytes from one row and from one plane to the next.
        has_indices: Whether the transfer gathers or scatters by a list of indices (Ethos-U85).
    """

    source_region: int | None
    source: int
    target_region: int | None
    target: int
    length: int
    rows: int = 1
    planes: int = 1
    source_strides: tuple[int, int] = (0, 0)
    target_strides: tuple[int, int] = (0, 0)
    has_indices: bool = False


@dataclass(frozen=True)
class KernelOperation(Operation):
    """An operation of the arithmetic units.

    Attributes:
        ifm: First operand.
        ifm2: Second operand; None for operations of one.
        ofm: Result, with its shape before a transposition.
        upscale: Enlargement of the IFM.
        activation: What happens to the result.
        scaling: Scaling of the result for all channels; its rounding counts with scales per channel, too.
        has_channel_scales: Whether the packets of `Weights` scale each channel instead of `scaling`.
        block: Height, width and depth of the blocks in which the result is computed.
        block_dependency: How many blocks may start before blocks of the operation before have ended.
        accumulator_bits: 32, 40 or 48 (16 for the floating-point accumulators of U55, which Vela does not use).
        accumulation: What the accumulators contain before.
        microblock: Height and width of the microblock of a U85; (0, 0) elsewhere.
        transpose: Order of the axes in memory (U85).
        reverse: Axis that is written backwards (U85).
    """

    ifm: FeatureMap
    ifm2: FeatureMap | None
    ofm: FeatureMap
    upscale: Upscale
    activation: OutputActivation
    scaling: FixedPointScale
    has_channel_scales: bool
    block: tuple[int, int, int]
    block_dependency: int
    accumulator_bits: int
    accumulation: Accumulation
    microblock: tuple[int, int]
    transpose: OutputTranspose
    reverse: OutputReverse


@dataclass(frozen=True)
class ConvolutionOperation(KernelOperation):
    """A convolution, a depthwise convolution or a product by a matrix.

    Attributes:
        kernel: The window.
        is_depthwise: Whether each channel of the result reads its own channel of the IFM.
        weights: Weights and scales; None if IFM2 holds the weights (products of two computed matrices on U85).
    """

    kernel: KernelWindow
    is_depthwise: bool
    weights: WeightRanges | None


@dataclass(frozen=True)
class PoolingOperation(KernelOperation):
    """A pooling.

    Attributes:
        kernel: The window.
        mode: What is computed of the values in the window.
        weights: Scales per channel; None for `scaling`.
    """

    kernel: KernelWindow
    mode: PoolingMode
    weights: WeightRanges | None


@dataclass(frozen=True)
class ElementwiseOperation(KernelOperation):
    """An operation on single elements.

    Attributes:
        mode: What is computed.
        ifm_scaling, ifm2_scaling: Scaling of the operands before the operation.
        is_reversed: Whether IFM2 is the first operand.
    """

    mode: ElementwiseMode
    ifm_scaling: FixedPointScale
    ifm2_scaling: FixedPointScale
    is_reversed: bool


@dataclass(frozen=True)
class ResizeOperation(KernelOperation):
    """An interpolation (Ethos-U85): input position = (output position · step + offset) / scale.

    Attributes:
        mode: The interpolation.
        scale: Numerators of the enlargement, for rows and columns.
        offset: Offsets in units of 1/scale, for rows and columns.
        step: Denominators of the enlargement, for rows and columns.
    """

    mode: ResizeMode
    scale: tuple[int, int]
    offset: tuple[int, int]
    step: tuple[int, int]


@dataclass(frozen=True)
class CommandStream:
    """A decoded command stream.

    Attributes:
        accelerator: The NPU for which it was made.
        operations: Its operations in order.
        num_words: Length of the stream in words of 32 bits, without the driver's header.
        version: Major, minor and patch version of the NPU's architecture.
    """

    accelerator: NpuConfiguration
    operations: tuple[Operation, ...]
    num_words: int
    version: tuple[int, int, int]
