# SPDX-License-Identifier: Apache-2.0
"""A .tflite operator as its builder sees it, and the registry of builders, which add ONNX nodes to a graph."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from mcugen.core.errors import DoesNotFitError
from mcugen.core.limits import MAX_NODES
from mcugen.frontend.tflite.flatbuffer import TableT
from mcugen.frontend.tflite.flexbuffer import FlexBufferError, read_flexbuffer
from mcugen.frontend.tflite.model import TensorScales, TfliteGraph, TfliteModel, TfliteOperator, TfliteTensor
from mcugen.frontend.tflite.schema import (
    AS_DEFINED,
    FLOAT32,
    INT4,
    INT32,
    INT64,
    ElementType,
    FusedActivation,
    TfliteReading,
)
from mcugen.hir.names import Names
from mcugen.hir.types import Array
from mcugen.ops.onnx_node import Refusal, Registry, TfliteSupport, open_registry

TO_CHANNELS_FIRST, TO_CHANNELS_LAST = (0, 3, 1, 2), (0, 2, 3, 1)
"""Permutations of images: TensorFlow Lite has channels last, ONNX first."""
_BOUNDS = {
    FusedActivation.RELU_N1_TO_1: (-1.0, 1.0),
    FusedActivation.RELU6: (0.0, 6.0),
}
"""Bounds of activations that limit values on both sides."""
MAX_CONSTANTS_PER_BYTE = 16
"""Largest number of bytes of all constants of the ONNX model for each byte of the file, with SPARE_CONSTANT_BYTES."""
SPARE_CONSTANT_BYTES = 1 << 22
"""Bytes that constants of small files may have."""
_NO_NAME = re.compile(r"((StatefulPartitionedCall|PartitionedCall|Identity)(_int8|_\d+)?(:\d+)?|tensor\d+)?")
"""Names of tensors that say nothing of the layer."""


@dataclass
class KeptState:
    """A state that is kept between runs.

    Attributes:
        declared: The input that takes its value.
        value: Name of its value at this place of the model.
        tensor: A tensor with its type and scale.
    """

    declared: onnx.ValueInfoProto
    value: str
    tensor: TfliteTensor


@dataclass
class TfliteWriter:
    """The ONNX model that builders extend; its names and limits are shared by all graphs.

    Attributes:
        model: The .tflite model.
        names: Names of tensors in use.
        registry: The operators that are known.
        budget: Number of bytes that further constants may have.
        reading: What the user asks of the reader.
        states: States by the name of their variable, or by the number of their tensor behind a slash.
        variables: Names of variables by their handles.
        initial: By the name of a variable, its value before the first run: the tensor and its ONNX name.
        arranged: Names of constants by tensor and order of axes.
        reset_layers: Layers whose states begin with zeros in each run although the file keeps them.
        refusals: A line for each operator that cannot be compiled.
        nested: Numbers of the subgraphs that are being converted, from outside to inside.
        num_nodes: Number of nodes so far.
        node_names: Names of nodes in use; `hir.layer_names` drops the ends of further names.
        domains: Domains of the ONNX operators in use.
    """

    model: TfliteModel
    names: Names
    registry: Registry
    budget: int
    reading: TfliteReading = AS_DEFINED
    states: dict[str, KeptState] = field(default_factory=dict)
    variables: dict[TfliteTensor, str] = field(default_factory=dict)
    initial: dict[str, tuple[TfliteTensor, str]] = field(default_factory=dict)
    arranged: dict[tuple[TfliteTensor, tuple[int, ...]], str] = field(default_factory=dict)
    reset_layers: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    nested: list[int] = field(default_factory=list)
    num_nodes: int = 0
    node_names: Names = field(default_factory=lambda: Names(separator="_output_"))
    domains: set[str] = field(default_factory=set)


@dataclass
class OnnxBody:
    """The nodes of one ONNX graph: the model's, or that of a body of control flow.

    Attributes:
        writer: What all graphs share.
        graph: The subgraph.
        values: Names of tensors as they are stored.
        unpacked: The constants that hold the elements of unpacked ones (DEQUANTIZE, DENSIFY), by the latter.
        nodes: The nodes so far.
        constants: The initializers so far, by name.
        declared: Names, element types and shapes of results whose shape ONNX cannot infer.
    """

    writer: TfliteWriter
    graph: TfliteGraph
    values: dict[TfliteTensor, str] = field(default_factory=dict)
    unpacked: dict[TfliteTensor, TfliteTensor] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, TensorProto] = field(default_factory=dict)
    declared: list[tuple[str, int, tuple[int, ...]]] = field(default_factory=list)

    def add_constant(self, name: str, array: Array, kind: ElementType | None = None) -> str:
        """Add an initializer and return its name.

        Args:
            name: Preferred name.
            array: The elements.
            kind: The element type if it is narrower than the array's.
        """
        self.writer.budget -= array.nbytes
        if self.writer.budget < 0:
            rule = f"{self.writer.model.place}: constants must not be much larger than the file"
            raise DoesNotFitError(rule, "tensors that share their bytes", "export the model again")
        name = self.writer.names.take(name)
        if kind is INT4:
            packed = np.asarray(array, np.uint8).reshape(-1) & 15
            packed = np.append(packed, np.uint8(0)) if len(packed) % 2 else packed
            raw = (packed[::2] | packed[1::2] << 4).tobytes()
        else:
            raw = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes()
        number = kind.onnx if kind is not None else helper.np_dtype_to_tensor_dtype(array.dtype)
        self.constants[name] = helper.make_tensor(name, number, array.shape, raw, raw=True)
        return name


class TfliteNode:
    """An operator with what its builder needs: tensors as numbers or as stored, and functions that add ONNX nodes.

    Tensors are called by their place among the operator's inputs or outputs.
    """

    def __init__(self, body: OnnxBody, operator: TfliteOperator) -> None:
        """Keep the operator, and the ONNX graph that its nodes are added to."""
        self.body = body
        self.operator = operator
        first = operator.outputs[0].name if operator.outputs else ""
        self.layer_name = operator.kind.lower() if _NO_NAME.fullmatch(first) else first
        self._own: dict[str, tuple[onnx.NodeProto, int]] = {}
        """Nodes of this operator whose result has no reader yet, and which result it is."""

    # ------------------------------------------------------------------------------------------------ what there is

    def options(self, kind: type[TableT]) -> TableT:
        """Return the operator's options."""
        return self.operator.options(kind)

    @cached_property
    def custom_options(self) -> Mapping[str, Any]:
        """Return the options of a custom operator by name; {} if it has none.

        Raises:
            ModelError: The bytes are no map of a FlexBuffer.
        """
        if not self.custom_bytes:
            return {}
        try:
            options = read_flexbuffer(self.custom_bytes)
        except FlexBufferError as error:
            raise self.operator.buffer.damaged(f"custom options of operator {self.label}: {error}") from error
        self.require(isinstance(options, dict), "custom options without names")
        return dict(options)

    @property
    def custom_bytes(self) -> bytes:
        """Return the options of a custom operator as the file has them."""
        return bytes(self.operator.table.custom_options)

    def custom_number(self, name: str, default: float | None = None) -> float:
        """Return an option of a custom operator that is a finite number.

        Args:
            name: Name of the option.
            default: Its value if it is absent; None if it must be given.
        """
        value = self.custom_options.get(name, default)
        value = default if value is None else value
        self.require(isinstance(value, int | float) and math.isfinite(value), f"option '{name}' is {value!r:.40}")
        assert value is not None
        return float(value)

    def custom_integer(self, name: str, default: int | None = None, low: int = -(2**31), high: int = 2**31 - 1) -> int:
        """Return an option of a custom operator that is a whole number within bounds.

        Args:
            name: Name of the option.
            default: Its value if it is absent; None if it must be given.
            low: Its smallest value.
            high: Its largest value.
        """
        value = self.custom_number(name, default)
        self.require(value == int(value) and low <= value <= high, f"option '{name}' is {value}")
        return int(value)

    def has(self, index: int) -> bool:
        """Return whether an optional input is given."""
        return index < len(self.operator.inputs) and self.operator.inputs[index] is not None

    def input(self, index: int) -> TfliteTensor:
        """Return an input.

        Raises:
            ModelError: The input is absent.
        """
        tensor = self.operator.inputs[index] if index < len(self.operator.inputs) else None
        if tensor is None:
            raise self.operator.buffer.damaged(f"no input {index} at operator {self.label}")
        return tensor

    def output(self, index: int = 0) -> TfliteTensor:
        """Return an output.

        Raises:
            ModelError: The operator has no such output.
        """
        if index >= len(self.operator.outputs):
            raise self.operator.buffer.damaged(f"no output {index} at operator {self.label}")
        return self.operator.outputs[index]

    @property
    def label(self) -> str:
        """Return the operator's number and name for messages."""
        return f"{self.operator.index}, {self.operator.kind}"

    def array(self, index: int) -> Array:
        """Return the elements of an input that must be constant.

        Raises:
            Refusal: The input is computed.
        """
        return self._constant(self.input(index), index).array

    def constant_input(self, index: int) -> TfliteTensor:
        """Return an input that must be constant; of an unpacked constant (DEQUANTIZE), the one that the file stores.

        Raises:
            Refusal: The input is computed.
        """
        tensor = self.input(index)
        return self._constant(self.body.unpacked.get(tensor, tensor), index)

    def _constant(self, tensor: TfliteTensor, index: int) -> TfliteTensor:
        if not tensor.is_constant:
            raise Refusal(f"input {index} must be a constant", f"'{tensor.name}' is computed", "export a constant")
        return tensor

    def make_constant(self, array: Array, index: int = 0) -> None:
        """Make elements that are known at compile time the value of an output, which becomes a constant."""
        tensor = self.output(index)
        self.require(array.dtype == tensor.type.array and array.size == tensor.count, f"elements of '{tensor.name}'")
        tensor.content, tensor.sparsity = memoryview(array.tobytes()), None
        self.body.values.pop(tensor, None)

    def mark_unpacked(self) -> None:
        """Let the first output stand for the first input, if that is a constant which the operator only unpacks."""
        source = self.body.unpacked.get(self.input(0), self.input(0))
        if source.is_constant:
            self.body.unpacked[self.output()] = source

    def integers(self, index: int) -> list[int]:
        """Return the elements of an input that must be constant whole numbers."""
        values = self.array(index)
        self.require(values.dtype.kind in "iu", f"input {index} of {values.dtype.name}")
        return [int(value) for value in values.reshape(-1)]

    def require(self, condition: bool, fault: str) -> None:
        """Raise ModelError if a condition does not hold that every valid file meets."""
        if not condition:
            raise self.operator.buffer.damaged(f"{fault} at operator {self.label}")

    # ---------------------------------------------------------------------------------------------------- ONNX nodes

    def emit_all(self, op_type: str, inputs: Sequence[str], outputs: int, **attributes: object) -> list[str]:
        """Add an ONNX node and return the names of its results."""
        for name in inputs:
            self._own.pop(name, None)
        results = [self.new_name(op_type) for _ in range(outputs)]
        node = self._add(op_type, inputs, results, **attributes)
        self._own |= {name: (node, n) for n, name in enumerate(results)}
        return results

    def _add(self, op_type: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: object) -> onnx.NodeProto:
        """Add an ONNX node; layers are called by the operator's first output (see `hir.layer_names`)."""
        writer = self.body.writer
        writer.num_nodes += 1
        if writer.num_nodes > MAX_NODES:
            rule = f"{writer.model.place}: there must be at most {MAX_NODES:,} nodes, bodies of control flow included"
            raise DoesNotFitError(rule, "more", "simplify the model")
        name = writer.node_names.take(self.layer_name)
        node = helper.make_node(op_type, inputs, outputs, name, **attributes)
        writer.domains.add(node.domain)
        self.body.nodes.append(node)
        return node

    def emit(self, op_type: str, *inputs: str, **attributes: object) -> str:
        """Add an ONNX node with one result and return the result's name."""
        return self.emit_all(op_type, inputs, 1, **attributes)[0]

    def new_name(self, what: str) -> str:
        """Return an unused name that begins with the operator's first output."""
        return self.body.writer.names.take(f"{self.layer_name}/{what}")

    def constant(self, values: Array | Sequence[int] | float, what: str = "constant") -> str:
        """Add an initializer and return its name; lists become int64, numbers float32."""
        array = np.asarray(values, np.float32 if isinstance(values, float) else None)
        if isinstance(values, list | tuple):
            array = np.asarray(values, np.int64)
        return self.body.add_constant(f"{self.layer_name}/{what}", array)

    def constant_scalar(self, value: int, what: str) -> str:
        """Add a single number of int64 and return its name."""
        return self.constant(np.asarray(value, np.int64), what)

    def is_real(self, tensor: TfliteTensor) -> bool:
        """Return whether a tensor holds real numbers, as floats or as quantized values."""
        return tensor.quantization is not None or tensor.type.is_float

    def zeros(self, tensor: TfliteTensor) -> str:
        """Return a value of zeros that is stored like a tensor."""
        zero = self.constant(np.asarray(tensor.zero, tensor.type.array), "zero")
        return self.emit("Expand", zero, self.shape_of(tensor))

    def stored(self, index: int) -> str:
        """Return the ONNX name of an input as the file stores it."""
        return self.stored_tensor(self.input(index))

    def stored_tensor(self, tensor: TfliteTensor) -> str:
        """Return the ONNX name of a tensor as the file stores it.

        Raises:
            ModelError: Nothing computes the tensor.
        """
        if tensor not in self.body.values:
            self.require(tensor.is_constant, f"tensor '{tensor.name}' without a value")
            self.body.values[tensor] = self.body.add_constant(tensor.name, tensor.array, tensor.type)
        return self.body.values[tensor]

    def real(self, index: int, perm: Sequence[int] = ()) -> str:
        """Return the ONNX name of the real numbers of an input, or of an integer tensor without scales as it is.

        Args:
            index: Place of the input.
            perm: Order of the axes of the result; () for that of the tensor.
        """
        tensor = self.input(index)
        self.require(not perm or len(perm) == len(tensor.shape), f"rank {len(tensor.shape)} of '{tensor.name}'")
        if tensor.is_constant:
            return self._real_constant(tensor, tensor.quantization, perm)
        name = self.stored_tensor(tensor)
        name = self.emit("Transpose", name, perm=list(perm)) if perm else name
        return self.dequantized(name, tensor)

    def real_constant(self, index: int) -> str:
        """Return the ONNX name of the real numbers of an input that must be constant, converted from what is stored.

        Raises:
            Refusal: The input is computed.
        """
        tensor = self.constant_input(index)
        return self._real_constant(tensor, tensor.quantization, ())

    def _real_constant(self, tensor: TfliteTensor, scales: TensorScales | None, perm: Sequence[int]) -> str:
        array, kind = tensor.array, tensor.type
        if kind is INT64 and scales is not None:
            limits = np.iinfo(np.int32)
            if array.min(initial=0) < limits.min or array.max(initial=0) > limits.max:
                self.require(not perm and len(array.shape) == 1, f"64 bits in '{tensor.name}'")
                factors = np.asarray(scales.scales, np.float64)
                return self.constant((array * factors).astype(np.float32), "bias")
            array, kind = array.astype(np.int32), INT32
        if perm and scales is not None:
            scales = TensorScales(scales.scales, scales.zero_points, list(perm).index(scales.axis))
        arranged = self.body.writer.arranged
        key = (tensor, tuple(perm))
        if key not in arranged:
            name = f"{tensor.name}/arranged" if perm else tensor.name
            arranged[key] = self.body.add_constant(name, np.transpose(array, perm) if perm else array, kind)
        return self._dequantized(arranged[key], scales, kind)

    def dequantized(self, name: str, tensor: TfliteTensor) -> str:
        """Return the real numbers of a value that is stored like a tensor."""
        return self._dequantized(name, tensor.quantization, tensor.type)

    def _dequantized(self, name: str, scales: TensorScales | None, kind: ElementType) -> str:
        if scales is not None:
            return self.emit("DequantizeLinear", name, *self._scale_constants(scales, kind), axis=scales.axis)
        if kind.is_float and kind is not FLOAT32:
            return self.emit("Cast", name, to=TensorProto.FLOAT)
        return name

    def _scale_constants(self, scales: TensorScales, kind: ElementType) -> tuple[str, str]:
        """Add the constants of a scale and a zero point: scalars unless there is one for each index of an axis."""
        single = len(scales.scales) == 1
        scale, zero = np.asarray(scales.scales, np.float32), np.asarray(scales.zero_points, kind.array)
        return (
            self.body.add_constant(f"{self.layer_name}/scale", scale.reshape(()) if single else scale),
            self.body.add_constant(f"{self.layer_name}/zero", zero.reshape(()) if single else zero, kind),
        )

    def bias(self, index: int, x: int, weights: int) -> list[str]:
        """Return the real numbers of a bias, [] if it is absent; a quantized one has the scales of the products.

        Args:
            index: Place of the bias among the inputs.
            x: Place of the layer's input.
            weights: Place of its weights.
        """
        if not self.has(index):
            return []
        bias, left, right = self.input(index), self.input(x).quantization, self.input(weights).quantization
        if not bias.is_constant or bias.type.is_float or left is None or right is None:
            return [self.real(index)]
        products = np.float32(left.scales[0]) * np.asarray(right.scales, np.float32)
        self.require(bool((products > 0).all()), "scales too small")
        scales = tuple(map(float, products))
        self.require(len(scales) in (1, bias.count) and len(bias.shape) == 1, "a bias of another shape")
        return [self._real_constant(bias, TensorScales(scales, (0,) * len(scales), 0), ())]

    def scaled(self, value: str, scales: TensorScales, kind: ElementType) -> str:
        """Return the real numbers of quantized values."""
        return self._dequantized(value, scales, kind)

    def rounded(self, value: str, scales: TensorScales, kind: ElementType) -> str:
        """Return real numbers as quantized values."""
        return self.emit("QuantizeLinear", value, *self._scale_constants(scales, kind))

    @contextmanager
    def collect(self) -> Iterator[list[onnx.NodeProto]]:
        """Add the nodes of a `with` block to a list of their own: the nodes of a body of control flow."""
        outer, self.body.nodes = self.body.nodes, []
        try:
            yield self.body.nodes
        finally:
            self.body.nodes = outer

    def keep_state(self, name: str, tensor: TfliteTensor, shape: Sequence[int] = (), key: str = "") -> KeptState:
        """Return the state of a variable; the model gets an input for a new one.

        Args:
            name: Name of the variable.
            tensor: A tensor with its type and scale.
            shape: Its shape; () for that of the tensor.
            key: What tells the variable from others; "" for its name.
        """
        writer, key = self.body.writer, key or name
        if key not in writer.states:
            unique = writer.names.take(name)
            declared = helper.make_tensor_value_info(unique, tensor.type.onnx, shape or tensor.shape)
            writer.states[key] = KeptState(declared, unique, tensor)
        self.require(same_type(writer.states[key].tensor, tensor), f"another type of variable '{name}'")
        return writer.states[key]

    def keep_own_state(self, what: str, tensor: TfliteTensor, shape: Sequence[int]) -> KeptState:
        """Return a state of this operator alone, which begins with zeros.

        Args:
            what: The state's name within the operator.
            tensor: A tensor with its type and scale.
            shape: Its shape.

        Raises:
            Refusal: The operator is within control flow.
        """
        self._require_outside()
        key = f"/{self.body.graph.index}/operator {self.operator.index}/{what}"
        return self.keep_state(f"{self.layer_name}/{what}", tensor, shape, key)

    def keep_tensor(self, tensor: TfliteTensor, shape: Sequence[int] = ()) -> KeptState:
        """Return the state of a tensor that keeps its value between runs, whose name need not be unique.

        Args:
            tensor: The tensor.
            shape: Shape of the state; () for that of the tensor.

        Raises:
            Refusal: The operator is within control flow.
        """
        self._require_outside()
        return self.keep_state(tensor.name, tensor, shape, f"/{self.body.graph.index}/{tensor.index}")

    def _require_outside(self) -> None:
        if self.body.writer.nested:
            raise Refusal("operators with a state must be outside of control flow", self.label, "move them out of it")

    # ------------------------------------------------------------------------------------------------------- results

    def finish(
        self, value: str, index: int = 0, activation: int = 0, perm: Sequence[int] = (), *, is_reshaped: bool = False
    ) -> None:
        """Make real numbers, or an integer tensor without scales, the value of an output.

        Args:
            value: ONNX name of the value.
            index: Place of the output.
            activation: The function that is applied first.
            perm: Order of the axes of the output within those of the value; () for the same.
            is_reshaped: Whether the value has another shape than the output.
        """
        tensor = self.output(index)
        value = self.activated(value, activation)
        if tensor.quantization is not None:
            self.require(len(tensor.quantization.scales) == 1, f"scales of channels in '{tensor.name}'")
            value = self.quantized(value, tensor)
        elif tensor.type.is_float and tensor.type is not FLOAT32:
            value = self.emit("Cast", value, to=tensor.type.onnx)
        value = self.emit("Transpose", value, perm=list(perm)) if perm else value
        value = self.emit("Reshape", value, self.shape_of(tensor)) if is_reshaped else value
        self.finish_stored(value, index)

    def quantized(self, value: str, tensor: TfliteTensor) -> str:
        """Return real numbers quantized like a tensor."""
        assert tensor.quantization is not None
        if tensor.type.array.itemsize > 2:
            raise Refusal("quantized tensors must have at most 16 bits", f"{tensor.type.name}", "quantize to int8")
        return self.emit("QuantizeLinear", value, *self._scale_constants(tensor.quantization, tensor.type))

    def finish_stored(self, value: str, index: int = 0) -> None:
        """Make a value that has the output's element type the value of an output."""
        tensor = self.output(index)
        own = self._own.pop(value, None)
        name = self.body.values[tensor]
        if own is None:
            self._add("Identity", [value], [name])
            return
        own[0].output[own[1]] = name
        self.body.declared = [(name if info[0] == value else info[0], *info[1:]) for info in self.body.declared]

    def activated(self, value: str, activation: int) -> str:
        """Return the value behind an operator's own activation function."""
        if activation == FusedActivation.NONE:
            return value
        if activation == FusedActivation.RELU:
            return self.emit("Relu", value)
        if activation in _BOUNDS:
            low, high = _BOUNDS[FusedActivation(activation)]
            return self.emit("Clip", value, self.constant(low, "low"), self.constant(high, "high"))
        if activation == FusedActivation.TANH:
            return self.emit("Tanh", value)
        known = activation in {*FusedActivation}
        self.require(known, f"activation function {activation}")
        raise Refusal("a layer's own activation must be a known function", FusedActivation(activation).name, "use Relu")

    # ------------------------------------------------------------------------------------------------ data movements

    def move(self, *places: int, output: int = 0) -> tuple[list[str], Callable[[str], None]]:
        """Return inputs for an operator that only moves elements, and what makes its result an output.

        Quantized values are moved as they are stored if the inputs and the output have the same scale; else the real
        numbers are.

        Args:
            places: Places of the inputs whose elements are moved.
            output: Place of the output.
        """
        target = self.output(output)
        sources = [self.input(place) for place in places]
        if all(same_type(source, target) for source in sources):
            return [self.stored(place) for place in places], lambda value: self.finish_stored(value, output)
        return [self.real(place) for place in places], lambda value: self.finish(value, output)

    def declare(self, value: str, tensor: TfliteTensor, *, is_stored: bool) -> None:
        """Declare the shape of a result that does not follow from constants.

        Args:
            value: ONNX name of the result.
            tensor: The tensor with its shape and type.
            is_stored: Whether the result has the tensor's element type; else it has real numbers.
        """
        kind = tensor.type.onnx if is_stored else TensorProto.FLOAT
        self.body.declared.append((value, kind, tensor.shape))

    def shape_of(self, tensor: TfliteTensor, what: str = "shape") -> str:
        """Add the shape of a tensor as a constant."""
        return self.constant(list(tensor.shape), what)


def same_type(left: TfliteTensor, right: TfliteTensor) -> bool:
    """Return whether two tensors have the same element type and the same scale."""
    return left.type_number == right.type_number and left.quantization == right.quantization


Builder = Callable[[TfliteNode], None]
"""Adds the ONNX nodes of an operator."""


def tflite_operator(*kinds: str, becomes: str | Mapping[str, str], limits: str = "") -> Callable[[Builder], Builder]:
    """Register a builder for operators, of the schema or custom ones.

    Args:
        kinds: Names of the operators, as the schema or the file has them.
        becomes: The ONNX operators that it makes, for the documents; by operator if they differ.
        limits: What is not supported, for the documents.
    """

    def register(build: Builder) -> Builder:
        for kind in kinds:
            result = becomes if isinstance(becomes, str) else becomes[kind]
            open_registry().tflite[kind] = TfliteSupport(build, result, limits)
        return build

    return register


def wrapped_axis(node: TfliteNode, axis: int, rank: int) -> int:
    """Return an axis as a number from 0."""
    node.require(-rank <= axis < max(rank, 1), f"axis {axis} of rank {rank}")
    return axis % max(rank, 1)
