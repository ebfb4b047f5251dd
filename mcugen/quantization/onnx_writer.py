# SPDX-License-Identifier: Apache-2.0
"""HIR back to ONNX: what passes have fused is written as new nodes, all else is taken over from the source model."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from mcugen.frontend.onnx.functions import STANDARD_DOMAINS
from mcugen.frontend.onnx.nodes import reads, rename, rename_inputs
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.names import Names
from mcugen.hir.traits import clamp_of, onnx_form, prefers_source
from mcugen.hir.types import Array, DType


class OnnxWriter:
    """Writes `graph` as nodes whose tensors bear the names of its values.

    A node with an `onnx_form` becomes that; another is a slice of `source`: the nodes that lead from the tensors
    written so far to its outputs, which bear the same names there.
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
        """Results of the nodes taken over."""
        self._computing = {node.origin[0] for node in graph.nodes if node.origin and not node.op.moves_data}

    def write(self) -> onnx.ModelProto:
        """The model: inputs of fixed shape, nodes in topological order, no dead ones."""
        for value in self.graph.inputs:
            self.made(value)
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
                self.add("Identity", [tensor], name)
            else:
                renamed |= {tensor: name, name: self.fresh(f"{name}_real")}
        for node in self.nodes:
            rename(node, renamed)
        number_equal_names(self.nodes)
        return self._model(declared)

    # ------------------------------------------------------------------------------------ what writers refine

    def read(self, value: Value, reader: Node | None) -> str:
        """The tensor that `reader` (None: the caller of the model) takes for an activation."""
        return value.name

    def constant(self, value: Value, reader: Node, index: int) -> str:
        """The tensor that `reader` takes for a constant."""
        assert value.data is not None
        return self.store(value.name, value.data)

    def made(self, value: Value) -> None:
        """Called when the nodes for a value (or an input of the graph) are written."""

    def replacement(self, node: Node) -> bool:
        """Whether the writer has written this node in a way of its own."""
        return False

    def input_dtype(self, value: Value) -> DType:
        """The element type of an input of the model."""
        return value.type.dtype

    def output(self, name: str, value: Value) -> tuple[str, DType]:
        """The tensor that the caller of the model gets, and its element type."""
        return self.read(value, None), value.type.dtype

    # ---------------------------------------------------------------------------------------------- primitives

    def fresh(self, wanted: str) -> str:
        """`wanted`, numbered if a tensor is called so already."""
        return self._names.take(wanted)

    def store(self, wanted: str, array: Array) -> str:
        """An initializer with these numbers; its name is `wanted` where that is free."""
        known = self.initializers.get(wanted) or self._stored.get(wanted)
        if known is not None:
            present = numpy_helper.to_array(known)
            same = (
                present.dtype == array.dtype and present.shape == array.shape and present.tobytes() == array.tobytes()
            )
            name = wanted if same else self.fresh(wanted)
        else:
            name = self.fresh(wanted)
        self.initializers[name] = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
        return name

    def add(self, op_type: str, inputs: Sequence[str], output: str, name: str = "", **attributes: object) -> str:
        """Appends a node with one output and returns the output's name."""
        self._names.add(output)
        self.nodes.append(helper.make_node(op_type, inputs, [output], name or f"{output}/{op_type}", **attributes))
        return output

    # ------------------------------------------------------------------------------------------------- details

    def _write_node(self, node: Node) -> None:
        made = all(value.name in self._made for value in node.outputs)  # with another result of a node taken over
        ways = (self._write_anew, self._write_slices)
        if not (made or any(write(node) for write in (reversed(ways) if prefers_source(node.op) else ways))):
            return  # it has no name in the source: readers are slices that begin before it
        for value in node.outputs:
            if value.name in self._names:
                self.written[value.name] = value
                self.made(value)

    def _write_anew(self, node: Node) -> bool:
        """In nodes of its own, where all that it reads is written."""
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
        first, last = (node.origin[0], node.origin[-1]) if node.origin else ("", "")
        if node.op.moves_data and first in self._computing:
            first = ""  # the name belongs to what computes between data movements
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
        known = [value for value in node.outputs if value.name in self._producers]
        for value in known:
            if value.name not in self.written:
                self._copy(value.name, node)
        return bool(known)

    def _copy(self, name: str, reader: Node | None) -> None:
        """Takes over what computes a tensor of the source from tensors written so far (depth first)."""
        stack = [name]
        while stack:
            tensor = stack[-1]
            step = self._producers.get(tensor)
            if step is None or id(step) in self._copied or (tensor in self.written and tensor != name):
                if step is None and tensor in self._stored:
                    self.initializers[tensor] = self._stored[tensor]
                stack.pop()
                continue
            waiting = [n for n in reads(step) if self._is_missing(n)]
            if waiting:
                stack += waiting
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
        """Inputs from what is written; outputs that are written already get names of no importance."""
        spare = [name for name in copy.output if name in self.written]
        renamed = {name: self.fresh(f"{name}_unused") for name in spare}
        for index, name in enumerate(copy.output):
            copy.output[index] = renamed.get(name, name)
        self._made.update(copy.output)
        rename_inputs(
            copy, {name: self.read(self.written[name], reader) for name in reads(copy) if name in self.written}
        )

    def _output(self, name: str, value: Value) -> tuple[str, DType]:
        if value.data is not None:
            return self.store(value.name, value.data), value.type.dtype
        if value.name not in self.written:  # what the source's own nodes make of what is written
            self._copy(name, None)
            return name, value.type.dtype
        return self.output(name, value)

    def _model(self, outputs: Sequence[onnx.ValueInfoProto]) -> onnx.ModelProto:
        inputs = [tensor_info(v.name, self.input_dtype(v), v.type.shape) for v in self.graph.inputs]
        live = _live(self.nodes, self.graph.output_names)
        used = {name for node in live for name in reads(node)}
        stored = [tensor for name, tensor in self.initializers.items() if name in used]
        graph = helper.make_graph(live, self.source.graph.name or "model", inputs, outputs, stored)
        imported = list(self.source.opset_import)
        if not {entry.domain for entry in imported}.intersection(STANDARD_DOMAINS):
            imported.append(helper.make_opsetid("", onnx.defs.onnx_opset_version()))
        model = helper.make_model(graph, opset_imports=imported, producer_name="mcugen")
        model.ir_version = max(self.source.ir_version, 8)
        return model


def tensor_info(name: str, dtype: DType, shape: Sequence[int]) -> onnx.ValueInfoProto:
    """The declaration of an input or output."""
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype.value)), shape)


def number_equal_names(nodes: Sequence[onnx.NodeProto]) -> None:
    """Lets nodes that stem from one of the source be told apart, as ONNX Runtime demands."""
    taken = Names(separator="_")
    for node in nodes:
        if node.name:
            node.name = taken.take(node.name)


def _live(nodes: Sequence[onnx.NodeProto], outputs: Sequence[str]) -> list[onnx.NodeProto]:
    wanted, live = set(outputs), []
    for node in reversed(nodes):
        if wanted.intersection(node.output):
            wanted.update(reads(node))
            live.append(node)
    return live[::-1]
