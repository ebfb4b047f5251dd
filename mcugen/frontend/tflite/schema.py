# SPDX-License-Identifier: Apache-2.0
"""The tables of a .tflite file: numbers, types and defaults of the fields that are read, and the numbers of enums."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from onnx import TensorProto

from mcugen.frontend.tflite.flatbuffer import TableBase, content, numbers, position, scalar, table, tables, text
from mcugen.hir.types import Array, Rounding

FILE_IDENTIFIER = b"TFL3"
"""Bytes 4 to 7 of each .tflite file."""
STATES_KEY = "mcugen.states"
"""Key of the metadata of the ONNX model: JSON, the input that takes a state by the output that gives it."""
LABELS_KEY = "mcugen.labels"
"""Key of the metadata of the ONNX model: JSON, the list of the names of an output's classes."""
PREPROCESS_KEY = "mcugen.preprocess"
"""Key of the metadata of the ONNX model: the normalization of the input, as the text of `--preprocess`."""

ROUNDING_KEY = "mcugen.rounding"
"""Key of the metadata of the ONNX model: how integer operators round, a value of `hir.types.Rounding`."""
NOTES_KEY = "mcugen.notes"
"""Key of the metadata of the ONNX model: assumptions made about the file, to be shown to the user, one a line."""


@dataclass(frozen=True)
class TfliteReading:
    """Choices of the user that the reader of .tflite files follows.

    Attributes:
        rounding: How integer operators round.
        keeps_states: Whether recurrent layers that read several steps keep their states from run to run.
        signature: Key of the signature whose subgraph is the model; "" for the first subgraph.
    """

    rounding: Rounding = Rounding.EXACT
    keeps_states: bool = False
    signature: str = ""


AS_DEFINED = TfliteReading()
"""Default choices: exact rounding, states of several steps that begin with zeros, and the first subgraph."""


@dataclass(frozen=True)
class IfOptions(TableBase):
    """Options of IF."""

    UNION = 92
    then_graph: int = scalar(0)
    else_graph: int = scalar(1)


@dataclass(frozen=True)
class WhileOptions(TableBase):
    """Options of WHILE."""

    UNION = 93
    condition_graph: int = scalar(0)
    body_graph: int = scalar(1)


@dataclass(frozen=True)
class CallOnceOptions(TableBase):
    """Options of CALL_ONCE."""

    UNION = 103
    graph: int = scalar(0)


@dataclass(frozen=True)
class DimensionTable(TableBase):
    """The storage of one dimension of a sparse tensor."""

    form: int = scalar(0, "b")
    dense_size: int = scalar(1)
    segments_kind: int = scalar(2, "B")
    segments: int | None = position(3)
    indices_kind: int = scalar(4, "B")
    indices: int | None = position(5)


@dataclass(frozen=True)
class SparsityTable(TableBase):
    """The storage of a sparse tensor."""

    traversal: tuple[int, ...] = numbers(0)
    block_map: tuple[int, ...] = numbers(1)
    dimensions: tuple[DimensionTable, ...] = tables(2, DimensionTable)


@dataclass(frozen=True)
class Int32Indices(TableBase):
    """Indices of a sparse tensor."""

    values: tuple[int, ...] = numbers(0, "i")


@dataclass(frozen=True)
class Uint16Indices(TableBase):
    """Indices of a sparse tensor."""

    values: tuple[int, ...] = numbers(0, "H")


@dataclass(frozen=True)
class Uint8Indices(TableBase):
    """Indices of a sparse tensor."""

    values: tuple[int, ...] = numbers(0, "B")


INDEX_TABLES: dict[int, type[Int32Indices] | type[Uint16Indices] | type[Uint8Indices]] = {
    1: Int32Indices,
    2: Uint16Indices,
    3: Uint8Indices,
}
"""Tables of the indices of sparse tensors by their numbers in the file's union."""


@dataclass(frozen=True)
class QuantizationTable(TableBase):
    """Scales and zero points of a tensor."""

    scale: tuple[float, ...] = numbers(2, "f")
    zero_point: tuple[int, ...] = numbers(3, "q")
    details_kind: int = scalar(4, "B")
    axis: int = scalar(6)


@dataclass(frozen=True)
class TensorTable(TableBase):
    """A tensor."""

    shape: tuple[int, ...] = numbers(0)
    type: int = scalar(1, "b")
    buffer: int = scalar(2, "I")
    name: str = text(3)
    quantization: QuantizationTable | None = table(4, QuantizationTable)  # noqa: RUF009 (a declaration of the field)
    is_variable: int = scalar(5, "B")
    sparsity: SparsityTable | None = table(6, SparsityTable)  # noqa: RUF009 (a declaration of the field)
    signature: tuple[int, ...] = numbers(7)


@dataclass(frozen=True)
class OperatorCodeTable(TableBase):
    """An operator that the model uses; codes above 127 are in the newer field only."""

    old_code: int = scalar(0, "b")
    custom_code: str = text(1)
    version: int = scalar(2, default=1)
    code: int = scalar(3)


@dataclass(frozen=True)
class OperatorTable(TableBase):
    """A use of an operator on tensors; -1 stands for an absent tensor."""

    code_index: int = scalar(0, "I")
    inputs: tuple[int, ...] = numbers(1)
    outputs: tuple[int, ...] = numbers(2)
    options_kind: int = scalar(3, "B")
    options: int | None = position(4)
    custom_options: memoryview = content(5)  # noqa: RUF009 (a declaration of the field)
    intermediates: tuple[int, ...] = numbers(8)


@dataclass(frozen=True)
class SubgraphTable(TableBase):
    """A graph: the first is the model, others are bodies of control flow."""

    tensors: tuple[TensorTable, ...] = tables(0, TensorTable)
    inputs: tuple[int, ...] = numbers(1)
    outputs: tuple[int, ...] = numbers(2)
    operators: tuple[OperatorTable, ...] = tables(3, OperatorTable)
    name: str = text(4)


@dataclass(frozen=True)
class BufferTable(TableBase):
    """The bytes of a constant; files of more than 2 GB tell where they are behind the tables."""

    data: memoryview = content(0)  # noqa: RUF009 (a declaration of the field)
    offset: int = scalar(1, "Q")
    size: int = scalar(2, "Q")


@dataclass(frozen=True)
class NamedTensorTable(TableBase):
    """The name of an input or output in a signature."""

    name: str = text(0)
    tensor: int = scalar(1, "I")


@dataclass(frozen=True)
class SignatureTable(TableBase):
    """A signature: names of the inputs and outputs of a subgraph."""

    inputs: tuple[NamedTensorTable, ...] = tables(0, NamedTensorTable)
    outputs: tuple[NamedTensorTable, ...] = tables(1, NamedTensorTable)
    key: str = text(2)
    subgraph: int = scalar(4, "I")


@dataclass(frozen=True)
class MetadataTable(TableBase):
    """A named buffer of data that the interpreters do not need."""

    name: str = text(0)
    buffer: int = scalar(1, "I")


@dataclass(frozen=True)
class ModelTable(TableBase):
    """The whole file."""

    version: int = scalar(0, "I")
    operator_codes: tuple[OperatorCodeTable, ...] = tables(1, OperatorCodeTable)
    subgraphs: tuple[SubgraphTable, ...] = tables(2, SubgraphTable)
    description: str = text(3)
    buffers: tuple[BufferTable, ...] = tables(4, BufferTable)
    metadata: tuple[MetadataTable, ...] = tables(6, MetadataTable)
    signatures: tuple[SignatureTable, ...] = tables(7, SignatureTable)


@dataclass(frozen=True)
class ElementType:
    """An element type of tensors.

    Attributes:
        name: Name for messages.
        onnx: Number of the type in ONNX.
        bits: Bits of a stored element.
        array: numpy type of its elements in memory.
    """

    name: str
    onnx: int
    bits: int
    array: np.dtype[np.generic]

    @property
    def is_float(self) -> bool:
        """Return whether elements are floating-point numbers."""
        return self.array.kind == "f"

    def decode(self, data: memoryview, count: int) -> Array:
        """Return the elements that a constant's bytes hold."""
        if self.bits >= 8:
            return np.frombuffer(data, self.array.newbyteorder("<"), count).astype(self.array)
        packed = np.frombuffer(data, np.uint8)
        shifts = np.arange(0, 8, self.bits, dtype=np.uint8)
        values = ((packed[:, None] >> shifts) & ((1 << self.bits) - 1)).reshape(-1)[:count].astype(np.int16)
        if self.array.kind == "i":
            values = np.where(values >= 1 << (self.bits - 1), values - (1 << self.bits), values)
        return np.asarray(values, self.array)


def _type(name: str, bits: int = 0, array: str = "") -> ElementType:
    stored = np.dtype(array or name)
    return ElementType(name, TensorProto.DataType.Value(name.upper()), bits or 8 * stored.itemsize, stored)


FLOAT32, INT32, INT64, BOOL = _type("float", array="float32"), _type("int32"), _type("int64"), _type("bool")
FLOAT16, INT8, INT16, INT4 = _type("float16"), _type("int8"), _type("int16"), _type("int4", 4, "int8")
BOOL_NUMBER = 6
"""Number of the element type of truth values."""
INT32_NUMBER = 2
"""Number of the element type of integers of 32 bits."""
ELEMENT_TYPES = {
    0: FLOAT32,
    1: FLOAT16,
    INT32_NUMBER: INT32,
    3: _type("uint8"),
    4: INT64,
    BOOL_NUMBER: BOOL,
    7: INT16,
    9: INT8,
    10: _type("double", array="float64"),
    12: _type("uint64"),
    15: _type("uint32"),
    16: _type("uint16"),
    17: INT4,
}
"""Element types by their numbers in the file."""
TYPE_NAMES = {
    **{number: kind.name for number, kind in ELEMENT_TYPES.items()},
    **{5: "string", 8: "complex64", 11: "complex128", 13: "resource", 14: "variant", 18: "bfloat16", 19: "int2"},
    **{20: "uint4", 21: "float8_e4m3fn", 22: "float8_e5m2"},
}
"""Names of all element types by their numbers."""
COMPLEX64 = 8
"""Number of the element type of complex numbers, which ONNX lacks."""
RESOURCE = 13
"""Number of the element type of handles of variables."""


class FusedActivation(IntEnum):
    """The function that an operator applies to its result."""

    NONE = 0
    RELU = 1
    RELU_N1_TO_1 = 2
    RELU6 = 3
    TANH = 4
    SIGN_BIT = 5


class WindowPadding(IntEnum):
    """The placement of windows at the edges of an image."""

    SAME = 0
    VALID = 1


_OPERATORS = """
ADD AVERAGE_POOL_2D CONCATENATION CONV_2D DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE EMBEDDING_LOOKUP FLOOR
FULLY_CONNECTED HASHTABLE_LOOKUP L2_NORMALIZATION L2_POOL_2D LOCAL_RESPONSE_NORMALIZATION LOGISTIC LSH_PROJECTION LSTM
MAX_POOL_2D MUL RELU RELU_N1_TO_1 RELU6 RESHAPE RESIZE_BILINEAR RNN SOFTMAX SPACE_TO_DEPTH SVDF TANH CONCAT_EMBEDDINGS
SKIP_GRAM CALL CUSTOM EMBEDDING_LOOKUP_SPARSE PAD UNIDIRECTIONAL_SEQUENCE_RNN GATHER BATCH_TO_SPACE_ND
SPACE_TO_BATCH_ND TRANSPOSE MEAN SUB DIV SQUEEZE UNIDIRECTIONAL_SEQUENCE_LSTM STRIDED_SLICE BIDIRECTIONAL_SEQUENCE_RNN
EXP TOPK_V2 SPLIT LOG_SOFTMAX DELEGATE BIDIRECTIONAL_SEQUENCE_LSTM CAST PRELU MAXIMUM ARG_MAX MINIMUM LESS NEG PADV2
GREATER GREATER_EQUAL LESS_EQUAL SELECT SLICE SIN TRANSPOSE_CONV SPARSE_TO_DENSE TILE EXPAND_DIMS EQUAL NOT_EQUAL LOG
SUM SQRT RSQRT SHAPE POW ARG_MIN FAKE_QUANT REDUCE_PROD REDUCE_MAX PACK LOGICAL_OR ONE_HOT LOGICAL_AND LOGICAL_NOT
UNPACK REDUCE_MIN FLOOR_DIV REDUCE_ANY SQUARE ZEROS_LIKE FILL FLOOR_MOD RANGE RESIZE_NEAREST_NEIGHBOR LEAKY_RELU
SQUARED_DIFFERENCE MIRROR_PAD ABS SPLIT_V UNIQUE CEIL REVERSE_V2 ADD_N GATHER_ND COS WHERE RANK ELU REVERSE_SEQUENCE
MATRIX_DIAG QUANTIZE MATRIX_SET_DIAG ROUND HARD_SWISH IF WHILE NON_MAX_SUPPRESSION_V4 NON_MAX_SUPPRESSION_V5
SCATTER_ND SELECT_V2 DENSIFY SEGMENT_SUM BATCH_MATMUL PLACEHOLDER_FOR_GREATER_OP_CODES CUMSUM CALL_ONCE BROADCAST_TO
RFFT2D CONV_3D IMAG REAL COMPLEX_ABS HASHTABLE HASHTABLE_FIND HASHTABLE_IMPORT HASHTABLE_SIZE REDUCE_ALL
CONV_3D_TRANSPOSE VAR_HANDLE READ_VARIABLE ASSIGN_VARIABLE BROADCAST_ARGS RANDOM_STANDARD_NORMAL BUCKETIZE
RANDOM_UNIFORM MULTINOMIAL GELU DYNAMIC_UPDATE_SLICE RELU_0_TO_1 UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_MAX
UNSORTED_SEGMENT_SUM ATAN2 UNSORTED_SEGMENT_MIN SIGN BITCAST BITWISE_XOR RIGHT_SHIFT STABLEHLO_LOGISTIC STABLEHLO_ADD
STABLEHLO_DIVIDE STABLEHLO_MULTIPLY STABLEHLO_MAXIMUM STABLEHLO_RESHAPE STABLEHLO_CLAMP STABLEHLO_CONCATENATE
STABLEHLO_BROADCAST_IN_DIM STABLEHLO_CONVOLUTION STABLEHLO_SLICE STABLEHLO_CUSTOM_CALL STABLEHLO_REDUCE STABLEHLO_ABS
STABLEHLO_AND STABLEHLO_COSINE STABLEHLO_EXPONENTIAL STABLEHLO_FLOOR STABLEHLO_LOG STABLEHLO_MINIMUM STABLEHLO_NEGATE
STABLEHLO_OR STABLEHLO_POWER STABLEHLO_REMAINDER STABLEHLO_RSQRT STABLEHLO_SELECT STABLEHLO_SUBTRACT STABLEHLO_TANH
STABLEHLO_SCATTER STABLEHLO_COMPARE STABLEHLO_CONVERT STABLEHLO_DYNAMIC_SLICE STABLEHLO_DYNAMIC_UPDATE_SLICE
STABLEHLO_PAD STABLEHLO_IOTA STABLEHLO_DOT_GENERAL STABLEHLO_REDUCE_WINDOW STABLEHLO_SORT STABLEHLO_WHILE
STABLEHLO_GATHER STABLEHLO_TRANSPOSE DILATE STABLEHLO_RNG_BIT_GENERATOR REDUCE_WINDOW STABLEHLO_COMPOSITE
STABLEHLO_SHIFT_LEFT STABLEHLO_CBRT STABLEHLO_CASE
"""
OPERATOR_NAMES: tuple[str, ...] = tuple(_OPERATORS.split())
"""Names of the builtin operators; the code of an operator is its place."""
CUSTOM = OPERATOR_NAMES.index("CUSTOM")
"""Code of operators that the file names itself."""
