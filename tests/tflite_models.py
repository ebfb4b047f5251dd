# SPDX-License-Identifier: Apache-2.0
"""A writer of .tflite files for tests, which shares no code with mcugen's reader, and the interpreters of TensorFlow.

Tables are written as dictionaries of values by the number of their field; the numbers are those of the public schema.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from mcugen.frontend.tflite.convert import convert_tflite
from mcugen.hir.types import Array

_FIRST = """
ADD AVERAGE_POOL_2D CONCATENATION CONV_2D DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE EMBEDDING_LOOKUP FLOOR
FULLY_CONNECTED HASHTABLE_LOOKUP L2_NORMALIZATION L2_POOL_2D LOCAL_RESPONSE_NORMALIZATION LOGISTIC LSH_PROJECTION LSTM
MAX_POOL_2D MUL RELU RELU_N1_TO_1 RELU6 RESHAPE RESIZE_BILINEAR RNN SOFTMAX SPACE_TO_DEPTH SVDF TANH
"""
CODES = {name: code for code, name in enumerate(_FIRST.split())} | {
    **{"CUSTOM": 32, "PAD": 34, "GATHER": 36, "BATCH_TO_SPACE_ND": 37, "SPACE_TO_BATCH_ND": 38, "TRANSPOSE": 39},
    **{"MEAN": 40, "SUB": 41, "DIV": 42, "SQUEEZE": 43, "UNIDIRECTIONAL_SEQUENCE_LSTM": 44, "STRIDED_SLICE": 45},
    **{"SEGMENT_SUM": 125, "RFFT2D": 131, "IMAG": 133, "REAL": 134, "COMPLEX_ABS": 135, "BUCKETIZE": 147},
    **{"UNSORTED_SEGMENT_PROD": 153, "UNSORTED_SEGMENT_MAX": 154, "UNSORTED_SEGMENT_SUM": 155},
    **{"UNSORTED_SEGMENT_MIN": 157, "BITCAST": 159, "NON_MAX_SUPPRESSION_V4": 120, "NON_MAX_SUPPRESSION_V5": 121},
    **{"UNIDIRECTIONAL_SEQUENCE_RNN": 35, "BIDIRECTIONAL_SEQUENCE_RNN": 46, "BIDIRECTIONAL_SEQUENCE_LSTM": 52},
    **{"EXP": 47, "TOPK_V2": 48, "SPLIT": 49, "LOG_SOFTMAX": 50, "CAST": 53, "PRELU": 54, "MAXIMUM": 55},
    **{"ARG_MAX": 56, "MINIMUM": 57, "LESS": 58, "NEG": 59, "PADV2": 60, "GREATER": 61, "GREATER_EQUAL": 62},
    **{"LESS_EQUAL": 63, "SELECT": 64, "SLICE": 65, "SIN": 66, "TRANSPOSE_CONV": 67, "TILE": 69, "EXPAND_DIMS": 70},
    **{"EQUAL": 71, "NOT_EQUAL": 72, "LOG": 73, "SUM": 74, "SQRT": 75, "RSQRT": 76, "SHAPE": 77, "POW": 78},
    **{"ARG_MIN": 79, "FAKE_QUANT": 80, "REDUCE_PROD": 81, "REDUCE_MAX": 82, "PACK": 83, "LOGICAL_OR": 84},
    **{"ONE_HOT": 85, "LOGICAL_AND": 86, "LOGICAL_NOT": 87, "UNPACK": 88, "REDUCE_MIN": 89, "FLOOR_DIV": 90},
    **{"REDUCE_ANY": 91, "SQUARE": 92, "ZEROS_LIKE": 93, "FILL": 94, "FLOOR_MOD": 95, "RANGE": 96},
    **{"RESIZE_NEAREST_NEIGHBOR": 97, "LEAKY_RELU": 98, "SQUARED_DIFFERENCE": 99, "MIRROR_PAD": 100, "ABS": 101},
    **{"SPLIT_V": 102, "CEIL": 104, "REVERSE_V2": 105, "ADD_N": 106, "GATHER_ND": 107, "COS": 108, "WHERE": 109},
    **{"RANK": 110, "ELU": 111, "REVERSE_SEQUENCE": 112, "QUANTIZE": 114, "ROUND": 116, "HARD_SWISH": 117, "IF": 118},
    **{"WHILE": 119, "SCATTER_ND": 122, "SELECT_V2": 123, "DENSIFY": 124, "BATCH_MATMUL": 126, "CUMSUM": 128},
    **{"CALL_ONCE": 129, "BROADCAST_TO": 130, "CONV_3D": 132, "REDUCE_ALL": 140, "VAR_HANDLE": 142},
    **{"READ_VARIABLE": 143, "ASSIGN_VARIABLE": 144, "BROADCAST_ARGS": 145, "GELU": 150, "DYNAMIC_UPDATE_SLICE": 151},
    **{"RELU_0_TO_1": 152, "ATAN2": 156, "SIGN": 158, "BITWISE_XOR": 160, "RIGHT_SHIFT": 161, "STABLEHLO_ADD": 163},
}
TYPES = {"float32": 0, "float16": 1, "int32": 2, "uint8": 3, "int64": 4, "bool": 6, "int16": 7, "int8": 9, "int4": 17}
TYPES |= {"complex64": 8, "resource": 13, "uint64": 12, "uint32": 15}


# ---------------------------------------------------------------------------------------------------- flatbuffers


@dataclass
class Number:
    """A number of a table: a format character of `struct` and its value."""

    kind: str
    value: float


@dataclass
class Numbers:
    """A vector of numbers."""

    kind: str
    values: Sequence[float]


Content = Number | Numbers | str | bytes | Mapping[int, Any] | list[Any]
"""A field of a table: a number, a vector of numbers, a text, a vector of bytes, a table or a vector of tables."""


def flatbuffer(root: Mapping[int, Content], identifier: bytes = b"TFL3") -> bytes:
    """Return the bytes of a flatbuffer: tables first, what they refer to behind them.

    What is one object in Python is written once where offsets permit it.
    """
    out = bytearray(struct.pack("<I4s", 0, identifier))
    waiting: deque[tuple[int, Content]] = deque([(0, root)])
    written: dict[int, int] = {}
    while waiting:
        place, value = waiting.popleft()
        target, found = written.get(id(value), 0), []
        if target <= place:
            target, found = _write(out, value)
            written[id(value)] = target
        struct.pack_into("<I", out, place, target - place)
        waiting += found
    return bytes(out)


def _align(out: bytearray, size: int, before: int = 0) -> None:
    out.extend(bytes(-(len(out) + before) % size))


def _write(out: bytearray, value: Content) -> tuple[int, list[tuple[int, Content]]]:
    if isinstance(value, Mapping):
        return _write_table(out, value)
    if isinstance(value, list):
        _align(out, 4)
        start = len(out)
        out += struct.pack("<I", len(value)) + bytes(4 * len(value))
        return start, [(start + 4 + 4 * n, each) for n, each in enumerate(value)]
    if isinstance(value, Numbers):
        size = struct.calcsize(f"<{value.kind}")
        _align(out, max(size, 4), 4)
        start = len(out)
        out += struct.pack(f"<I{len(value.values)}{value.kind}", len(value.values), *value.values)
        return start, []
    assert isinstance(value, str | bytes)
    data = value.encode() if isinstance(value, str) else value
    _align(out, 16, 4)
    start = len(out)
    out += struct.pack("<I", len(data)) + data + b"\0" * isinstance(value, str)
    return start, []


def _write_table(out: bytearray, fields: Mapping[int, Content]) -> tuple[int, list[tuple[int, Content]]]:
    count = max(fields, default=-1) + 1
    _align(out, 2)
    layout = len(out)
    out += bytes(4 + 2 * count)
    _align(out, 8)
    start = len(out)
    out += struct.pack("<i", start - layout)
    waiting = []
    for number, value in fields.items():
        size = struct.calcsize(f"<{value.kind}") if isinstance(value, Number) else 4
        _align(out, size)
        struct.pack_into("<H", out, layout + 4 + 2 * number, len(out) - start)
        if isinstance(value, Number):
            out += struct.pack(f"<{value.kind}", value.value)
        else:
            waiting.append((len(out), value))
            out += bytes(4)
    struct.pack_into("<HH", out, layout, 4 + 2 * count, len(out) - start)
    return start, waiting


def flexbuffer(options: Mapping[str, float]) -> bytes:
    """Return a map of numbers as a FlexBuffer, with 8 bytes for each number and offset."""
    out, keys = bytearray(), []
    for key in sorted(options):
        keys.append(len(out))
        out += key.encode() + b"\0"
    out += bytes(-len(out) % 8)
    out += struct.pack("<Q", len(keys))
    places = len(out)
    for place in keys:
        out += struct.pack("<Q", len(out) - place)
    out += struct.pack("<QQQ", len(out) - places, 8, len(keys))
    start, kinds = len(out), bytearray()
    for key in sorted(options):
        value = options[key]
        kinds.append({bool: 26, int: 1, float: 3}[type(value)] << 2 | 3)
        out += struct.pack("<d" if isinstance(value, float) else "<q", value)
    out += kinds
    out += bytes(-len(out) % 8)
    return bytes(out + struct.pack("<QBB", len(out) - start, 9 << 2 | 3, 8))


# ---------------------------------------------------------------------------------------------------------- models


def i8(value: int) -> Number:
    """Return a byte of a table."""
    return Number("b", value)


def i32(value: int) -> Number:
    """Return a number of 32 bits."""
    return Number("i", value)


def f32(value: float) -> Number:
    """Return a float."""
    return Number("f", value)


@dataclass
class LiteGraph:
    """A subgraph that is written tensor by tensor; tensors are called by their numbers."""

    model: LiteModel
    tensors: list[dict[int, Content]] = field(default_factory=list)
    operators: list[dict[int, Content]] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)

    def tensor(
        self,
        *shape: int,
        dtype: str = "float32",
        scale: float | Sequence[float] | None = None,
        zero: int | Sequence[int] = 0,
        axis: int = 0,
        name: str | None = None,
        buffer: int = 0,
        **more: Content,
    ) -> int:
        """Add a tensor and return its number; `more` are further fields, as `_5=…`."""
        number = len(self.tensors)
        made: dict[int, Content] = {
            0: Numbers("i", shape),
            1: i8(TYPES[dtype]),
            2: Number("I", buffer),
            3: f"t{number}" if name is None else name,
        }
        if scale is not None:
            scales = [scale] if isinstance(scale, float | int) else list(scale)
            zeros = [zero] * len(scales) if isinstance(zero, int) else list(zero)
            made[4] = {2: Numbers("f", scales), 3: Numbers("q", zeros), 6: i32(axis)}
        made |= {int(key[1:]): value for key, value in more.items()}
        self.tensors.append(made)
        return number

    def input(self, *shape: int, **kind: Any) -> int:
        """Add an input."""
        self.inputs.append(self.tensor(*shape, **kind))
        return self.inputs[-1]

    def const(self, values: object, dtype: str = "float32", **kind: Any) -> int:
        """Add a constant; int4 is packed."""
        array = np.asarray(values, "int8" if dtype == "int4" else dtype)
        data = array.tobytes()
        if dtype == "int4":
            nibbles = np.append(array.reshape(-1), np.zeros(array.size % 2, np.int8)) & 15
            data = (nibbles[::2] | nibbles[1::2] << 4).astype(np.uint8).tobytes()
        return self.tensor(*array.shape, dtype=dtype, buffer=self.model.buffer(data), **kind)

    def op(
        self,
        kind: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        union: int = 0,
        options: Mapping[int, Content] | None = None,
        **more: Content,
    ) -> None:
        """Add an operator; `union` is the number of its options' table."""
        made: dict[int, Content] = {
            0: Number("I", self.model.code(kind)),
            1: Numbers("i", inputs),
            2: Numbers("i", outputs),
        }
        if union:
            made |= {3: Number("B", union), 4: dict(options or {})}
        self.operators.append(made | {int(key[1:]): value for key, value in more.items()})

    def output(self, *tensors: int) -> None:
        """Declare outputs."""
        self.outputs += tensors

    def table(self) -> dict[int, Content]:
        """Return the subgraph as a table."""
        ends = {1: Numbers("i", self.inputs), 2: Numbers("i", self.outputs)}
        return {0: list(self.tensors), **ends, 3: list(self.operators), 4: "main"}


class LiteModel:
    """A .tflite model with one subgraph or several."""

    def __init__(self) -> None:
        """Begin an empty model with its first subgraph, `graph`."""
        self.buffers: list[bytes] = [b""]
        self.codes: list[str] = []
        self.graphs: list[LiteGraph] = []
        self.signatures: list[dict[int, Content]] = []
        self.metadata: dict[str, bytes] = {}
        self.graph = self.subgraph()

    def subgraph(self) -> LiteGraph:
        """Add a subgraph."""
        self.graphs.append(LiteGraph(self))
        return self.graphs[-1]

    def buffer(self, data: bytes) -> int:
        """Add the bytes of a constant and return their number."""
        self.buffers.append(data)
        return len(self.buffers) - 1

    def code(self, kind: str) -> int:
        """Return the number of an operator in this file."""
        if kind not in self.codes:
            self.codes.append(kind)
        return self.codes.index(kind)

    def sign(
        self, inputs: Mapping[str, int], outputs: Mapping[str, int], key: str = "serving_default", subgraph: int = 0
    ) -> None:
        """Add a signature."""
        named = [[{0: name, 1: Number("I", tensor)} for name, tensor in each.items()] for each in (inputs, outputs)]
        self.signatures.append({0: named[0], 1: named[1], 2: key, 4: Number("I", subgraph)})

    def data(self) -> bytes:
        """Return the bytes of the file."""
        codes: list[Content] = []
        for kind in self.codes:
            code = CODES.get(kind, CODES["CUSTOM"])
            made: dict[int, Content] = {0: i8(min(code, 127)), 2: i32(1), 3: i32(code)}
            codes.append(made if kind in CODES else made | {1: kind})
        root: dict[int, Content] = {
            0: Number("I", 3),
            1: codes,
            2: [graph.table() for graph in self.graphs],
            3: "test",
            4: [{0: data} if data else {} for data in self.buffers],
        }
        if self.metadata:
            root[6] = [{0: name, 1: Number("I", self.buffer(data))} for name, data in self.metadata.items()]
            root[4] = [{0: data} if data else {} for data in self.buffers]
        if self.signatures:
            root[7] = [*self.signatures]
        return flatbuffer(root)


def converted(data: bytes) -> onnx.ModelProto:
    """Return the ONNX model of a .tflite file."""
    return convert_tflite(data, "model.tflite")


# ---------------------------------------------------------------------------------------------------- interpreters


def tflm_outputs(data: bytes, feeds: Sequence[Array], runs: int = 1) -> list[Array]:
    """Return the outputs by TensorFlow Lite Micro, behind some runs with the same inputs."""
    reason = "needs the wheel tflite-micro (the extra tflite-oracle)"
    runtime = pytest.importorskip("tflite_micro.python.tflite_micro.runtime", reason=reason)
    interpreter = runtime.Interpreter.from_bytes(data, arena_size=4_000_000)
    for _ in range(runs):
        for index, array in enumerate(feeds):
            interpreter.set_input(array, index)
        interpreter.invoke()
    outputs = []
    while True:
        try:
            outputs.append(np.array(interpreter.get_output(len(outputs))))
        except (IndexError, ValueError, RuntimeError):
            return outputs


def litert_outputs(data: bytes, feeds: Sequence[Array], runs: int = 1) -> list[Array]:
    """Return the outputs by the reference kernels of TensorFlow Lite."""
    reason = "needs the wheel ai-edge-litert (the extra tflite-oracle)"
    module = pytest.importorskip("ai_edge_litert.interpreter", reason=reason)
    interpreter = module.Interpreter(
        model_content=data, experimental_op_resolver_type=module.OpResolverType.BUILTIN_REF
    )
    interpreter.allocate_tensors()
    for _ in range(runs):
        for detail, array in zip(interpreter.get_input_details(), feeds, strict=True):
            interpreter.set_tensor(detail["index"], array)
        interpreter.invoke()
    return [interpreter.get_tensor(detail["index"]) for detail in interpreter.get_output_details()]


def shared_tflite(name: str) -> Path:
    """Return the path of a shared .tflite model; skip the test if it is absent."""
    path = Path(__file__).resolve().parents[1].parent / "shared" / "tflite" / f"{name}.tflite"
    if not path.is_file():
        pytest.skip(f"{path} is absent")
    return path
