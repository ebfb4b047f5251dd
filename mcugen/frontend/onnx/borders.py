# SPDX-License-Identifier: Apache-2.0
"""Changes of the element types of inputs and outputs: quantized values, or integers in place of floats."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx
from onnx import numpy_helper

from mcugen.core.errors import UsageError, shortened
from mcugen.frontend.onnx.nodes import bodies_of, graphs_of

MOVEMENT_OPERATORS = frozenset({"Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"})
"""Names of ONNX operators that only move elements, of any type.

They may stand between an input or output of the model and its conversion to or from quantized values.
"""


def with_integer_borders(model: onnx.ModelProto, states: Collection[str] = ()) -> onnx.ModelProto:
    """Return a copy of the model whose inputs and outputs hold quantized values, so that the caller converts them.

    This applies to inputs that the model does nothing with but quantize, and to outputs that result from
    dequantization.

    Args:
        model: The quantized model.
        states: Names of inputs and outputs that stay as they are.

    Raises:
        UsageError: No input or output can hold quantized values, and none does already.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    borders = _Borders(copy.graph)
    constants = {tensor.name for tensor in copy.graph.initializer}
    ends = [v for v in copy.graph.input if v.name not in constants and v.name not in states]
    outs = [v for v in copy.graph.output if v.name not in states]
    opened = [borders.open_input(v) for v in ends] + [borders.open_output(v) for v in outs]
    coded = [v.type.tensor_type.elem_type not in _REALS for v in (*ends, *outs)]
    if not any(opened) and not any(coded):
        rule = "--integer-io: inputs or outputs must be quantized"
        raise UsageError(rule, "a model without such conversions at its borders", "quantize it with --calibration")
    borders.sweep()
    return copy


def with_input_types(model: onnx.ModelProto, types: Mapping[str, str]) -> onnx.ModelProto:
    """Return a copy of the model in which the caller passes integers for some float inputs.

    Args:
        model: The model.
        types: The new element type, one of INPUT_TYPES, by the name of the input. An input that has the type already
            stays.

    Raises:
        UsageError: A name is no float input, or is also an output.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    constants = {tensor.name for tensor in graph.initializer} | {output.name for output in graph.output}
    inputs = {v.name: v.type.tensor_type for v in graph.input if v.name not in constants}
    reals = [name for name, type_ in inputs.items() if type_.elem_type in _REALS]
    for name, type_name in types.items():
        stored = onnx.TensorProto.DataType.Value(type_name.upper())
        if name in inputs and inputs[name].elem_type == stored:
            continue
        if name not in reals:
            rule = f"--input-type: {shortened(name, 80)!r} must be an input of real numbers"
            known = ", ".join(repr(shortened(real, 80)) for real in reals)
            raise UsageError(rule, "no such input", f"one of: {known}" if known else "leave it out")
        real = f"{name}.real"
        while any(real in (*node.input, *node.output) for node in graph.node):
            real += "_"
        _read_as(graph, name, real)
        graph.node.insert(0, onnx.helper.make_node("Cast", [name], [real], real, to=inputs[name].elem_type))
        inputs[name].elem_type = stored
    return copy


def _read_as(graph: onnx.GraphProto, old: str, new: str) -> None:
    """Rename an input of nodes, also in bodies: in ONNX an inner name never hides an outer one."""
    for node in graph.node:
        _rename(node.input, old, new)
        for attribute in node.attribute:
            for body in graphs_of(attribute):
                _read_as(body, old, new)
                for output in body.output:
                    output.name = new if output.name == old else output.name


_REALS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16, onnx.TensorProto.DOUBLE)


class _Borders:
    """A graph whose inputs and outputs are changed in place."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._graph = graph
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        for node in graph.node:
            if node.op_type == "Constant" and node.attribute[0].HasField("t"):
                self._constants[node.output[0]] = node.attribute[0].t
        self._producers = {name: node for node in graph.node for name in node.output}
        self._readers: defaultdict[str, list[onnx.NodeProto]] = defaultdict(list)
        self._fixed = {output.name for output in graph.output}
        """Names of tensors that keep their name and type: outputs, and tensors that bodies read."""
        for node in graph.node:
            for name in node.input:
                self._readers[name].append(node)
            for body in bodies_of(node):
                self._fixed.update(name for inner in body.node for name in inner.input)
                self._fixed.update(output.name for output in body.output)
        self._removed: list[onnx.NodeProto] = []
        self._retyped: set[str] = set()

    def open_input(self, value: onnx.ValueInfoProto) -> bool:
        """Quantize an input if only equal conversions read it, perhaps after data movements; return whether it did."""
        names, conversions = [value.name], list[onnx.NodeProto]()
        for name in names:
            for node in self._readers[name]:
                if node.op_type == "QuantizeLinear" and node.input[0] == name and node.output[0] not in self._fixed:
                    conversions.append(node)
                elif _moves(node, name) and node.output[0] not in self._fixed:
                    names.append(node.output[0])
                else:
                    return False
        zeros = [self._zero_point(node) for node in conversions]
        kinds = {self._kind(node) for node in conversions}
        if len(kinds) != 1 or None in kinds or zeros[0] is None or set(names) & self._fixed:
            return False
        value.type.tensor_type.elem_type = zeros[0].data_type
        for node in conversions:
            self._read_instead(node.output[0], node.input[0])
        self._removed += conversions
        self._retyped |= set(names)
        return True

    def open_output(self, value: onnx.ValueInfoProto) -> bool:
        """Quantize an output if a conversion computes it, directly or before data movements; return whether it did."""
        chain: list[onnx.NodeProto] = []
        node = self._producers.get(value.name)
        while node is not None and _moves(node, node.input[0]) and self._is_private(node.input[0]):
            chain.append(node)
            node = self._producers.get(node.input[0])
        zero = self._zero_point(node) if node is not None and node.op_type == "DequantizeLinear" else None
        if node is None or zero is None or node in self._removed:
            return False
        codes = node.input[0]
        if chain:
            chain[-1].input[0] = codes
        else:
            node.output[0] = f"{value.name}_dequantized"
            for reader in self._readers[value.name]:
                _rename(reader.input, value.name, node.output[0])
            self._graph.node.append(onnx.helper.make_node("Identity", [codes], [value.name], f"{value.name}_codes"))
        value.type.tensor_type.elem_type = zero.data_type
        self._retyped |= {name for moved in chain for name in moved.output}
        return True

    def sweep(self) -> None:
        """Remove replaced nodes, and stored types of values whose type changed."""
        for node in self._removed:
            self._graph.node.remove(node)
        kept = [info for info in self._graph.value_info if info.name not in self._retyped]
        del self._graph.value_info[:]
        self._graph.value_info.extend(kept)

    def _is_private(self, name: str) -> bool:
        return len(self._readers[name]) == 1 and name not in self._fixed

    def _zero_point(self, node: onnx.NodeProto) -> onnx.TensorProto | None:
        """Return the zero point, which has the quantized type, of a per-tensor conversion with constants; else None."""
        constants = [self._constants.get(name) for name in node.input[1:]]
        if len(constants) < 2 or any(c is None or numpy_helper.to_array(c).size != 1 for c in constants):
            return None
        return constants[1]

    def _kind(self, node: onnx.NodeProto) -> tuple[object, ...] | None:
        """Return the type, scale and zero point of a conversion, or None if it is not per tensor and constant."""
        zero, scale = self._zero_point(node), self._constants.get(node.input[1])
        if zero is None or scale is None:
            return None
        return zero.data_type, *(np.asarray(numpy_helper.to_array(c)).reshape(-1)[0].item() for c in (scale, zero))

    def _read_instead(self, old: str, new: str) -> None:
        for node in self._readers[old]:
            _rename(node.input, old, new)
            self._readers[new].append(node)


def _moves(node: onnx.NodeProto, name: str) -> bool:
    return node.op_type in MOVEMENT_OPERATORS and node.domain in ("", "ai.onnx") and node.input[0] == name


def _rename(names: Sequence[str], old: str, new: str) -> None:
    for index, name in enumerate(names):
        if name == old:
            names[index] = new  # type: ignore[index]
