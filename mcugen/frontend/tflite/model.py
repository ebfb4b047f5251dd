# SPDX-License-Identifier: Apache-2.0
"""A .tflite model with checked indices, shapes and sizes, made from the tables of the file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from mcugen.core.errors import DoesNotFitError, ModelError, UnsupportedError, UsageError, listed, shortened
from mcugen.core.limits import MAX_CONNECTIONS, MAX_NAME_CHARACTERS, MAX_NODES, MAX_RANK, check_size
from mcugen.frontend.tflite.flatbuffer import REMEDY, FlatBuffer, TableT
from mcugen.frontend.tflite.schema import (
    CUSTOM,
    ELEMENT_TYPES,
    OPERATOR_NAMES,
    TYPE_NAMES,
    BufferTable,
    CallOnceOptions,
    ElementType,
    IfOptions,
    ModelTable,
    OperatorCodeTable,
    OperatorTable,
    QuantizationTable,
    SignatureTable,
    SparsityTable,
    SubgraphTable,
    TensorTable,
    WhileOptions,
)
from mcugen.frontend.tflite.sparsity import densify
from mcugen.hir.types import Array
from mcugen.ops.onnx_node import Refusal

MAX_TENSOR_NAME_CHARACTERS = MAX_NAME_CHARACTERS // 2
"""Largest number of characters that are kept of a name: names of nodes and of their results begin with it."""
METADATA_NAME = "TFLITE_METADATA"
"""Name of the buffer that has TensorFlow Lite metadata."""
SCHEMA_VERSION = 3
"""Version of the schema that all .tflite files have."""


@dataclass(frozen=True)
class TensorScales:
    """Scales and zero points of a quantized tensor: one of each, or one for each index of an axis.

    Attributes:
        scales: The scales.
        zero_points: The zero points.
        axis: The axis, if there are several.
    """

    scales: tuple[float, ...]
    zero_points: tuple[int, ...]
    axis: int


@dataclass(eq=False)
class TfliteTensor:
    """A tensor of a subgraph.

    Attributes:
        index: Its number in the subgraph.
        name: Name in the file.
        shape: Sizes of its dimensions.
        type_number: Number of its element type in the file.
        quantization: Scales and zero points; None if its elements are no quantized values.
        content: Bytes of a constant; None for other tensors.
        sparsity: How a sparse constant is stored.
        signature: Its shape as the model was made, with -1 for open sizes; () if there are none.
        is_variable: Whether it keeps its value from one run to the next.
        buffer: The file, which has the indices of sparse constants.
    """

    index: int
    name: str
    shape: tuple[int, ...]
    type_number: int
    quantization: TensorScales | None
    content: memoryview | None
    sparsity: SparsityTable | None
    signature: tuple[int, ...]
    is_variable: bool
    buffer: FlatBuffer

    @property
    def type(self) -> ElementType:
        """Return the element type.

        Raises:
            Refusal: ONNX has no such type.
        """
        known = ELEMENT_TYPES.get(self.type_number)
        if known is None:
            name = TYPE_NAMES.get(self.type_number, f"type {self.type_number}")
            raise Refusal("tensors must have an element type of C", f"{name} of '{self.name}'", "use other types")
        return known

    @property
    def zero(self) -> int:
        """Return what stands for 0: the zero point of a quantized tensor."""
        return self.quantization.zero_points[0] if self.quantization is not None else 0

    @property
    def count(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)

    @property
    def is_constant(self) -> bool:
        """Return whether the file has its elements."""
        return self.content is not None

    @cached_property
    def array(self) -> Array:
        """Return the elements of a constant.

        Raises:
            ModelError: The bytes do not match the shape.
        """
        assert self.content is not None
        if self.sparsity is not None:
            return densify(self.buffer, self.sparsity, self.type, self.content, self.shape)
        size = -(-self.count * self.type.bits // 8)
        if size != len(self.content):
            description = (
                f"{len(self.content):,} bytes for shape {list(self.shape)} of {self.type.name} in '{self.name}'"
            )
            raise self.buffer.damaged(description)
        return self.type.decode(self.content, self.count).reshape(self.shape)

    @property
    def real_array(self) -> Array:
        """Return the real numbers of a constant."""
        scales = self.quantization
        if scales is None:
            return self.array.astype(np.float32)
        shape = [1] * len(self.shape)
        if len(scales.scales) > 1:
            shape[scales.axis] = -1
        zeros = np.asarray(scales.zero_points, np.float32).reshape(shape)
        return (self.array.astype(np.float32) - zeros) * np.asarray(scales.scales, np.float32).reshape(shape)


@dataclass(eq=False)
class TfliteOperator:
    """A use of an operator.

    Attributes:
        index: Its number in the subgraph.
        kind: Name of the operator, in the schema's spelling; of a custom operator, the name that the file gives.
        is_custom: Whether it is a custom operator.
        inputs: The tensors that it reads; None for absent ones.
        outputs: The tensors that it computes.
        intermediates: Tensors that only tell the scales of values within the operator.
        table: The operator in the file.
        buffer: The file, which has the operator's options.
    """

    index: int
    kind: str
    is_custom: bool
    inputs: tuple[TfliteTensor | None, ...]
    outputs: tuple[TfliteTensor, ...]
    intermediates: tuple[TfliteTensor | None, ...]
    table: OperatorTable
    buffer: FlatBuffer

    def bodies(self) -> tuple[int, ...]:
        """Return the numbers of the subgraphs that it runs."""
        match self.kind:
            case "IF":
                choice = self.options(IfOptions)
                return choice.then_graph, choice.else_graph
            case "WHILE":
                loop = self.options(WhileOptions)
                return loop.condition_graph, loop.body_graph
            case "CALL_ONCE":
                return (self.options(CallOnceOptions).graph,)
            case _:
                return ()

    def options(self, kind: type[TableT]) -> TableT:
        """Return the options; if the file has none, the defaults.

        Raises:
            ModelError: The options are those of another operator.
        """
        if self.table.options is None or not self.table.options_kind:
            return kind()
        if self.table.options_kind != kind.UNION:
            raise self.buffer.damaged(f"options of another operator at operator {self.index}, {self.kind}")
        return self.buffer.read(kind, self.table.options)


@dataclass(eq=False)
class TfliteGraph:
    """A subgraph.

    Attributes:
        index: Its number in the file.
        tensors: Its tensors, by number.
        inputs: The tensors that the caller passes.
        outputs: The tensors that the caller receives.
        operators: Its operators in the order of execution.
    """

    index: int
    tensors: tuple[TfliteTensor, ...]
    inputs: tuple[TfliteTensor, ...]
    outputs: tuple[TfliteTensor, ...]
    operators: tuple[TfliteOperator, ...]


@dataclass(eq=False)
class TfliteModel:
    """A .tflite file.

    Attributes:
        place: Name of the file for messages.
        graphs: The subgraphs: the model, bodies of its control flow, and what other signatures compute.
        main: The subgraph that is the model.
        names: Names of inputs and outputs of the model by its signature, by tensor.
        other_signatures: Keys of the signatures of other subgraphs.
        metadata: The bytes of TensorFlow Lite metadata; None if the file has none.
    """

    place: str
    graphs: tuple[TfliteGraph, ...]
    main: TfliteGraph
    names: dict[TfliteTensor, str] = field(default_factory=dict)
    other_signatures: tuple[str, ...] = ()
    metadata: memoryview | None = None

    @cached_property
    def used_graphs(self) -> tuple[TfliteGraph, ...]:
        """Return the model and the bodies of its control flow, in the order of the file."""
        used, waiting = set[int](), [self.main.index]
        while waiting:
            index = waiting.pop()
            if index not in used and 0 <= index < len(self.graphs):
                used.add(index)
                waiting += (body for operator in self.graphs[index].operators for body in operator.bodies())
        return tuple(graph for graph in self.graphs if graph.index in used)


def read_model(data: bytes, place: str, signature: str = "") -> TfliteModel:
    """Return the model in the bytes of a .tflite file.

    Args:
        data: The bytes.
        place: Name of the file for messages.
        signature: Key of the signature whose subgraph is the model; "" for the first subgraph.

    Raises:
        UsageError: The file has no such signature.
        ModelError: The file is damaged.
        UnsupportedError: Tensors have scales of another kind.
        DoesNotFitError: The model exceeds a limit of `core.limits`.
    """
    buffer = FlatBuffer(data, place)
    tables = buffer.root(ModelTable)
    if tables.version != SCHEMA_VERSION:
        raise ModelError(f"{place}: the schema must be version {SCHEMA_VERSION}", f"{tables.version}", REMEDY)
    if not tables.subgraphs:
        raise buffer.damaged("no subgraph")
    kinds = [_operator_kind(buffer, code) for code in tables.operator_codes]
    _check_counts(place, tables)
    graphs = tuple(_read_graph(buffer, n, tables, kinds) for n in range(len(tables.subgraphs)))
    chosen = _choose_signature(tables.signatures, signature, place)
    main = graphs[_checked(buffer, chosen.subgraph, graphs, "subgraph of a signature") if chosen else 0]
    model = TfliteModel(place, graphs, main)
    model.other_signatures = tuple(other.key for other in tables.signatures if other.subgraph != main.index)
    for named in (*chosen.inputs, *chosen.outputs) if chosen else ():
        tensor = main.tensors[_checked(buffer, named.tensor, main.tensors, "tensor of a signature")]
        model.names.setdefault(tensor, named.name[:MAX_TENSOR_NAME_CHARACTERS])
    for entry in tables.metadata:
        if entry.name == METADATA_NAME and entry.buffer < len(tables.buffers):
            model.metadata = tables.buffers[entry.buffer].data
    return model


def _choose_signature(signatures: Sequence[SignatureTable], key: str, place: str) -> SignatureTable | None:
    """Return the signature with a key, or, if the key is empty, the first signature of the first subgraph."""
    if not key:
        return next((signature for signature in signatures if not signature.subgraph), None)
    chosen = next((signature for signature in signatures if signature.key == key), None)
    if chosen is None:
        known = listed([repr(shortened(signature.key)) for signature in signatures], 8) or "none"
        raise UsageError(
            f"{place}: --signature must name a signature of the model", repr(shortened(key)), f"one of: {known}"
        )
    return chosen


def _check_counts(place: str, tables: ModelTable) -> None:
    """Raise DoesNotFitError for a model that exceeds the limits of ONNX models."""
    operators = [operator for graph in tables.subgraphs for operator in graph.operators]
    ports = sum(len(operator.inputs) + len(operator.outputs) for operator in operators)
    for what, limit, count in (
        ("operators", MAX_NODES, len(operators)),
        ("inputs and outputs of operators", MAX_CONNECTIONS, ports),
        ("tensors", MAX_CONNECTIONS, sum(len(graph.tensors) for graph in tables.subgraphs)),
    ):
        if count > limit:
            raise DoesNotFitError(f"{place}: there must be at most {limit:,} {what}", f"{count:,}", "simplify it")


def _operator_kind(buffer: FlatBuffer, code: OperatorCodeTable) -> str:
    number = max(code.old_code, code.code)
    if not 0 <= number < len(OPERATOR_NAMES):
        raise buffer.damaged(f"operator code {number}")
    if number != CUSTOM:
        return OPERATOR_NAMES[number]
    name = code.custom_code[:MAX_TENSOR_NAME_CHARACTERS]
    return f"CUSTOM {name}".strip() if not name or name in OPERATOR_NAMES else name


def _checked(buffer: FlatBuffer, index: int, sequence: Sequence[object], what: str) -> int:
    if not 0 <= index < len(sequence):
        raise buffer.damaged(f"{what} {index} of {len(sequence)}")
    return index


def _read_graph(buffer: FlatBuffer, number: int, tables: ModelTable, kinds: Sequence[str]) -> TfliteGraph:
    graph = tables.subgraphs[number]
    tensors = tuple(_read_tensor(buffer, n, table, tables.buffers) for n, table in enumerate(graph.tensors))

    def find(indices: Sequence[int]) -> tuple[TfliteTensor, ...]:
        return tuple(tensors[_checked(buffer, index, tensors, "tensor")] for index in indices)

    def find_optional(indices: Sequence[int]) -> tuple[TfliteTensor | None, ...]:
        return tuple(None if index == -1 else find([index])[0] for index in indices)

    operators = []
    for place, operator in enumerate(graph.operators):
        kind = kinds[_checked(buffer, operator.code_index, kinds, "operator code")]
        inputs, intermediates = find_optional(operator.inputs), find_optional(operator.intermediates)
        outputs, is_custom = find(operator.outputs), kind not in OPERATOR_NAMES
        operators.append(TfliteOperator(place, kind, is_custom, inputs, outputs, intermediates, operator, buffer))
    _check_writers(buffer, graph)
    return TfliteGraph(number, tensors, find(graph.inputs), find(graph.outputs), tuple(operators))


def _check_writers(buffer: FlatBuffer, graph: SubgraphTable) -> None:
    """Raise ModelError if a tensor is computed twice, or read before it is computed."""
    computed = set(graph.inputs)
    results = {index for operator in graph.operators for index in operator.outputs}
    for place, operator in enumerate(graph.operators):
        late = [index for index in operator.inputs if index in results and index not in computed]
        if late or computed & set(operator.outputs) or len(set(operator.outputs)) != len(operator.outputs):
            raise buffer.damaged(f"operator {place} reads or writes a tensor out of order")
        computed |= set(operator.outputs)


def _read_tensor(buffer: FlatBuffer, index: int, table: TensorTable, buffers: Sequence[BufferTable]) -> TfliteTensor:
    name = table.name[:MAX_TENSOR_NAME_CHARACTERS] or f"tensor{index}"
    if len(table.shape) > MAX_RANK or any(size < 0 for size in table.shape):
        raise buffer.damaged(f"shape {list(table.shape)[: MAX_RANK + 1]} of tensor '{name}'")
    stored = buffers[_checked(buffer, table.buffer, buffers, "buffer")] if table.buffer or buffers else BufferTable()
    data = stored.data if stored.offset <= 1 else buffer.slice(stored.offset, stored.size)
    is_empty = not math.prod(table.shape) and table.buffer > 0
    constant = data if len(data) or is_empty else None
    if constant is None or is_empty:
        check_size(buffer.place, name, math.prod(max(size, 1) for size in table.shape))
    return TfliteTensor(
        index,
        name,
        table.shape,
        table.type,
        _read_scales(buffer, name, table),
        constant,
        table.sparsity,
        table.signature[:MAX_RANK],
        bool(table.is_variable),
        buffer,
    )


def _read_scales(buffer: FlatBuffer, name: str, table: TensorTable) -> TensorScales | None:
    """Return the scales of a tensor of integers; None if it has none."""
    stored = table.quantization or QuantizationTable()
    kind = ELEMENT_TYPES.get(table.type)
    if stored.details_kind and not stored.scale:
        rule = f"{buffer.place}: quantized tensors must have one scale, or one for each index of an axis"
        raise UnsupportedError(rule, f"another kind of scales in '{name}'", "quantize by tensors or channels")
    if not stored.scale or kind is None or kind.is_float:
        return None
    scales = np.asarray(stored.scale, np.float32)
    zeros = stored.zero_point or (0,)
    axis, count = stored.axis, len(scales)
    per_axis = count > 1
    if (
        len(zeros) not in (1, count)
        or not (np.isfinite(scales) & (scales > 0)).all()
        or (per_axis and not (0 <= axis < len(table.shape) and table.shape[axis] == count))
    ):
        raise buffer.damaged(f"scales or zero points that do not fit tensor '{name}'")
    limits = np.iinfo(kind.array.name if kind.array.kind in "iu" else "uint8")
    if any(not limits.min <= zero <= limits.max for zero in zeros):
        raise buffer.damaged(f"a zero point out of the type's range in tensor '{name}'")
    zeros = tuple(zeros) * (count // len(zeros))
    return TensorScales(tuple(map(float, scales)), zeros, axis if per_axis else 0)
