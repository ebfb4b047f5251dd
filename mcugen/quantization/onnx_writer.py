# SPDX-License-Identifier: Apache-2.0
"""Conversion of HIR back to ONNX: fused nodes are written anew, all other nodes are copied from the source model."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from mcugen.frontend.onnx.functions import STANDARD_DOMAINS
from mcugen.frontend.onnx.nodes import rename, rename_inputs, tensors_read
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.layer_names import main_node, source_of
from mcugen.hir.names import Names
from mcugen.hir.traits import clamp_of, onnx_form, prefers_source
from mcugen.hir.types import Array, DType


class OnnxWriter:
    """A converter of an HIR `graph` to an ONNX model whose tensors have the names of the graph's values.

    An HIR node whose operator equals one ONNX operator (`onnx_form`) is written as that operator. For any other node,
    the nodes of the ONNX model `source` that compute its outputs are copied. Subclasses override `read`, `constant`,
    `on_written`, `replacement`, `input_dtype` and `output`.
    """

    def __init__(self, source: onnx.ModelProto, graph: Graph) -> None:
        self.source, self.graph = source, graph
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}
        self.written: dict[str, Value] = {v.name: v for v in graph.inputs}
        self._stored = {t.name: t for t in source.graph.initializer}
        self._producers = {name: node for node in source.graph.node for name in node.output if name}
        self._names = Names((*self._stored, *self._producers, *self.written, *graph.output_names), "_")
        self._copied: set[int] = set()
        self._made: set[str] = set()
        """Results of the copied nodes."""
        self._computing = {node.origin[0] for node in graph.nodes if node.origin and not node.op.moves_data}

    def write(self) -> onnx.ModelProto:
        """Return the ONNX model, with inputs of fixed shape and without dead nodes."""
        for value in self.graph.inputs:
            self.on_written(value)
        for node in self.graph.nodes:
            self._write_node(node)
        renamed: dict[str, str] = {}
        declared = []
        for name, value in zip(self.graph.output_names, self.graph.outputs, strict=True):
            tensor, dtype = self._output(name, value)
            declared.append(tensor_info(name, dtype, value.type.shape))
            if tensor == name:
                continue
            if value.is_constant or tensor in renamed or value in self.graph.inputs or value.name != name:
                self._free_name(name)
                self.add("Identity", [tensor], name)
            else:
                renamed |= {tensor: name, name: self.fresh(f"{name}_real")}
        for node in self.nodes:
            rename(node, renamed)
        number_equal_names(self.nodes)
        return self._model(declared)

    def _free_name(self, name: str) -> None:
        """Rename the tensor of this name that copied nodes compute on the way to another output, if there is one."""
        if name in self._made:
            copied = {name: self.fresh(f"{name}_copied")}
            for node in self.nodes:
                rename(node, copied)

    # ------------------------------------------------------------------------------------ what writers refine

    def read(self, value: Value, reader: Node | None) -> str:
        """Return the name of the ONNX tensor from which a node reads an activation: the name of the value itself.

        Subclasses may return another tensor, such as the dequantized one.

        Args:
            value: The activation.
            reader: The node that reads it; None if the caller of the model reads it as an output.
        """
        return value.name

    def constant(self, value: Value, reader: Node, index: int) -> str:
        """Return the name of the ONNX tensor that a node reads for its constant input.

        Args:
            value: The constant.
            reader: The node that reads it.
            index: The index of the input.
        """
        assert value.data is not None
        return self.store(value.name, value.data)

    def on_written(self, value: Value) -> None:
        """Do nothing: a hook that is called for each value that was just written, and for each input of the graph.

        Subclasses may add nodes behind the value.
        """

    def replacement(self, node: Node) -> bool:
        """Return False: the node is written in its usual form.

        Subclasses may write some nodes in another form; they return True for these.
        """
        return False

    def input_dtype(self, value: Value) -> DType:
        """Return the element type of an input of the model."""
        return value.type.dtype

    def output(self, name: str, value: Value) -> tuple[str, DType]:
        """Return the name and the element type of the tensor that becomes an output of the ONNX model.

        Args:
            name: The name of the output.
            value: The value of the graph that the output gives.
        """
        return self.read(value, None), value.type.dtype

    # ---------------------------------------------------------------------------------------------- primitives

    def fresh(self, preferred: str) -> str:
        """Reserve and return an unused tensor name: `preferred`, with a number appended if it is in use."""
        return self._names.take(preferred)

    def store(self, preferred: str, array: Array) -> str:
        """Add an initializer with these numbers and return its name, which is `preferred` if that is free."""
        stored = self.initializers.get(preferred) or self._stored.get(preferred)
        if stored is not None:
            stored_array = numpy_helper.to_array(stored)
            is_equal = (
                stored_array.dtype == array.dtype
                and stored_array.shape == array.shape
                and stored_array.tobytes() == array.tobytes()
            )
            name = preferred if is_equal else self.fresh(preferred)
        else:
            name = self.fresh(preferred)
        self.initializers[name] = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
        return name

    def add(self, op_type: str, inputs: Sequence[str], output: str, name: str = "", **attributes: object) -> str:
        """Append a node with one output and return the output's name.

        Args:
            op_type: The ONNX operator.
            inputs: The names of the inputs.
            output: The name of the output.
            name: The name of the node; empty for a name derived from the output.
            attributes: The attributes of the node.
        """
        self._names.add(output)
        self.nodes.append(helper.make_node(op_type, inputs, [output], name or f"{output}/{op_type}", **attributes))
        return output

    # ------------------------------------------------------------------------------------------------- details

    def _write_node(self, node: Node) -> None:
        is_copied = all(value.name in self._made for value in node.outputs)  # A copied node may have several results.
        writers = (self._write_own_form, self._write_slices)
        if not (is_copied or any(write(node) for write in (reversed(writers) if prefers_source(node.op) else writers))):
            return  # The value has no name in the source: its readers are copied together with what computes it.
        for value in node.outputs:
            if value.name in self._names:
                self.written |= {value.name: value} | {n: value for n in value.equal_names if n not in self.written}
                self.on_written(value)

    def _write_own_form(self, node: Node) -> bool:
        """Write a node in its own form, if all its inputs are written."""
        if not all(v is None or v.is_constant or v.name in self.written for v in node.inputs):
            return False
        return self.replacement(node) or self._write_form(node)

    def _write_form(self, node: Node) -> bool:
        form = onnx_form(node.op, node.sig)
        if form is None:
            return False
        op_type, attributes, extra = form
        name = node.output.name
        inputs = [self._operand(node, i) for i in range(len(node.inputs))]
        inputs += [self.store(f"{name}.{op_type}{i}", array) for i, array in enumerate(extra)]
        clamp = clamp_of(node.op)
        first, last = main_node(source_of(node)), node.origin[-1] if node.origin else ""
        if node.op.moves_data and node.origin and node.origin[0] in self._computing:
            first = ""  # The name belongs to the computing node between the data movements.
        if clamp is None:
            self.add(op_type, inputs, name, first, **attributes)
            return True
        real = self.add(op_type, inputs, self.fresh(f"{name}_preactivation"), first, **attributes)
        last = last if last != first else ""
        if clamp == (0.0, math.inf):
            self.add("Relu", [real], name, last)
        else:
            limits = [
                "" if math.isinf(c) else self.store(f"{name}.{side}", np.asarray(c, np.float32))
                for side, c in zip(("low", "high"), clamp, strict=True)
            ]
            self.add("Clip", [real, *limits], name, last)
        return True

    def _operand(self, node: Node, index: int) -> str:
        value = node.inputs[index]
        if value is None:
            return ""
        return self.constant(value, node, index) if value.is_constant else self.read(value, node)

    def _write_slices(self, node: Node) -> bool:
        named_outputs = [value for value in node.outputs if value.name in self._producers]
        for value in named_outputs:
            if value.name not in self.written:
                self._copy(value.name, node)
        return bool(named_outputs)

    def _copy(self, name: str, reader: Node | None) -> None:
        """Copy the source nodes that compute a tensor from tensors written so far (depth first)."""
        stack = [name]
        while stack:
            tensor = stack[-1]
            step = self._producers.get(tensor)
            if step is None or id(step) in self._copied or (tensor in self.written and tensor != name):
                if step is None and tensor in self._stored:
                    self.initializers[tensor] = self._stored[tensor]
                stack.pop()
                continue
            missing = [n for n in tensors_read(step) if self._is_missing(n)]
            if missing:
                stack += missing
                continue
            self._copied.add(id(step))
            copy = onnx.NodeProto()
            copy.CopyFrom(step)
            self._connect(copy, reader)
            self.nodes.append(copy)
            stack.pop()

    def _is_missing(self, name: str) -> bool:
        if name in self.written or name in self.initializers:
            return False
        step = self._producers.get(name)
        return name in self._stored if step is None else id(step) not in self._copied

    def _connect(self, copy: onnx.NodeProto, reader: Node | None) -> None:
        """Connect a copied node's inputs to written tensors, and rename its outputs that exist already."""
        redundant = [name for name in copy.output if name in self.written]
        renamed = {name: self.fresh(f"{name}_unused") for name in redundant}
        for index, name in enumerate(copy.output):
            copy.output[index] = renamed.get(name, name)
        self._made.update(copy.output)
        rename_inputs(
            copy, {name: self.read(self.written[name], reader) for name in tensors_read(copy) if name in self.written}
        )

    def _output(self, name: str, value: Value) -> tuple[str, DType]:
        if value.data is not None:
            return self.store(value.name, value.data), value.type.dtype
        if value.name not in self.written:  # The source's own nodes compute the output from written tensors.
            self._copy(name, None)
            return name, value.type.dtype
        return self.output(name, value)

    def _model(self, outputs: Sequence[onnx.ValueInfoProto]) -> onnx.ModelProto:
        inputs = [tensor_info(v.name, self.input_dtype(v), v.type.shape) for v in self.graph.inputs]
        live = _live(self.nodes, self.graph.output_names)
        used = {name for node in live for name in tensors_read(node)}
        stored = [tensor for name, tensor in self.initializers.items() if name in used]
        graph = helper.make_graph(live, self.source.graph.name or "model", inputs, outputs, stored)
        imported = list(self.source.opset_import)
        if not {entry.domain for entry in imported}.intersection(STANDARD_DOMAINS):
            imported.append(helper.make_opsetid("", onnx.defs.onnx_opset_version()))
        model = helper.make_model(graph, opset_imports=imported, producer_name="mcugen")
        model.ir_version = max(self.source.ir_version, 8)
        return model


def tensor_info(name: str, dtype: DType, shape: Sequence[int]) -> onnx.ValueInfoProto:
    """Return the ONNX declaration (ValueInfoProto) of a model input or output of this name, type and shape."""
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype.value)), shape)


def number_equal_names(nodes: Sequence[onnx.NodeProto]) -> None:
    """Append numbers to node names that occur several times, because ONNX Runtime needs distinct names.

    Several nodes that come from one source node have its name.
    """
    names = Names(separator="_")
    for node in nodes:
        if node.name:
            node.name = names.take(node.name)


def _live(nodes: Sequence[onnx.NodeProto], outputs: Sequence[str]) -> list[onnx.NodeProto]:
    needed, live = set(outputs), []
    for node in reversed(nodes):
        if needed.intersection(node.output):
            needed.update(tensors_read(node))
            live.append(node)
    return live[::-1]
