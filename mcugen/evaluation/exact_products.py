# SPDX-License-Identifier: Apache-2.0
"""Rewriting of quantized models so that ONNX Runtime computes them exactly on every CPU.

ONNX Runtime's products of uint8 and int8 saturate on x86 CPUs that have AVX2 or AVX-512 but no VNNI: the instruction
adds two products in 16 bits (255 · 127 + 255 · 127 = 32767). Products of two uint8 tensors, or of two int8 tensors, are
computed in 32 bits everywhere. So where types are mixed, the int8 operand becomes uint8: 128 is added to its codes and
to its zero point, so that their differences are unchanged. ONNX Runtime's own entry `session.x64quantprecision` does
that for constant weights when it optimizes, and then fails to run products of two int8 tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_MICROSOFT = "com.microsoft"

Operand = tuple[int, int]
"""Position of a node's input with quantized values, and position of the input with their zero point."""

PRODUCTS: Mapping[tuple[str, str], Sequence[Operand]] = {
    ("", "ConvInteger"): ((0, 2), (1, 3)),
    ("", "MatMulInteger"): ((0, 2), (1, 3)),
    ("", "QLinearConv"): ((0, 2), (3, 5)),
    ("", "QLinearMatMul"): ((0, 2), (3, 5)),
    (_MICROSOFT, "DynamicQuantizeLSTM"): ((1, 9), (2, 11)),
    (_MICROSOFT, "DynamicQuantizeMatMul"): ((1, 3),),
    (_MICROSOFT, "MatMulIntegerToFloat"): ((0, 4), (1, 5)),
    (_MICROSOFT, "QAttention"): ((0, 6), (1, 7)),
    (_MICROSOFT, "QGemm"): ((0, 2), (3, 5)),
    (_MICROSOFT, "QLinearConv"): ((0, 2), (3, 5)),
}
"""Operators that multiply quantized values, by domain and name, with their operands."""

_MEET_UINT8 = frozenset({"DynamicQuantizeLSTM", "DynamicQuantizeMatMul"})
"""Operators that quantize a float input to uint8 and multiply their operands by it."""


def with_exact_products(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model in which no integer product multiplies int8 by uint8.

    ONNX Runtime saturates such products on some CPUs, so the int8 operand becomes uint8. A model without operators of
    PRODUCTS is returned itself.
    """
    bodies = (model.graph, *model.functions)
    if not any(_key(node) in PRODUCTS for body in bodies for node in all_nodes(body)):
        return model
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    copy = onnx.shape_inference.infer_shapes(model)
    _Rewriter().rewrite(copy.graph, {}, {})
    return copy


def _key(node: onnx.NodeProto) -> tuple[str, str]:
    return ("" if node.domain == "ai.onnx" else node.domain), node.op_type


def all_nodes(body: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph or function, and those of nested graphs."""
    for node in body.node:
        yield node
        for subgraph in _subgraphs(node):
            yield from all_nodes(subgraph)


def _subgraphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    return [graph for a in node.attribute for graph in ([a.g] if a.HasField("g") else a.graphs)]


class _Rewriter:
    """A rewriter of one model, which counts the names that it makes."""

    def __init__(self) -> None:
        self._made = 0

    def rewrite(
        self, graph: onnx.GraphProto, outer_types: Mapping[str, int], outer_constants: Mapping[str, TensorProto]
    ) -> None:
        """Rewrite a graph in place, given the types and constants of the tensors around it."""
        types = {**outer_types, **_types(graph)}
        constants = {**outer_constants, **_constants(graph)}
        nodes: list[onnx.NodeProto] = []
        for node in graph.node:
            for subgraph in _subgraphs(node):
                self.rewrite(subgraph, types, constants)
            nodes += [*self._operands(node, types, constants), node]
        nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]  # they are the graph's own
        del graph.node[:]
        graph.node.extend(nodes)

    def _operands(
        self, node: onnx.NodeProto, types: Mapping[str, int], constants: Mapping[str, TensorProto]
    ) -> list[onnx.NodeProto]:
        """Make a node's int8 operands uint8 if it mixes types, and return the nodes that compute them."""
        operands = PRODUCTS.get(_key(node), ())
        kinds = [_operand_type(node, operand, types) for operand in operands]
        if TensorProto.UINT8 not in kinds and node.op_type not in _MEET_UINT8:
            return []
        before = []
        for operand in (o for o, kind in zip(operands, kinds, strict=True) if kind == TensorProto.INT8):
            for index in operand:
                nodes = self._unsigned(_input(node, index), constants)
                before += nodes
                node.input.extend([""] * (index + 1 - len(node.input)))
                node.input[index] = nodes[-1].output[0]
        return before

    def _unsigned(self, name: str, constants: Mapping[str, TensorProto]) -> list[onnx.NodeProto]:
        """Return nodes of which the last one gives an int8 tensor (without a name: zero) plus 128, as uint8."""
        data = numpy_helper.to_array(constants[name]) if name in constants else None if name else np.zeros((), np.int8)
        if data is not None:
            return [self._node("Constant", value=numpy_helper.from_array((data ^ np.int8(-128)).view(np.uint8)))]
        offset = self._node("Constant", value=numpy_helper.from_array(np.asarray(128, np.int32)))
        wide = self._node("Cast", name, to=TensorProto.INT32)
        moved = self._node("Add", wide.output[0], offset.output[0])
        return [offset, wide, moved, self._node("Cast", moved.output[0], to=TensorProto.UINT8)]

    def _node(self, op_type: str, *inputs: str, **attributes: object) -> onnx.NodeProto:
        self._made += 1
        return helper.make_node(op_type, inputs, [f"mcugen.unsigned.{self._made}"], **attributes)


def _types(graph: onnx.GraphProto) -> dict[str, int]:
    """Return the element types by tensor, as far as ONNX can infer them."""
    types = {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.value_info, *graph.output)}
    return types | {tensor.name: tensor.data_type for tensor in graph.initializer}


def _constants(graph: onnx.GraphProto) -> dict[str, TensorProto]:
    initializers = {tensor.name: tensor for tensor in graph.initializer}
    overridable = {v.name for v in graph.input}
    nodes = [node for node in graph.node if node.op_type == "Constant" and node.attribute[0].name == "value"]
    return {n: t for n, t in initializers.items() if n not in overridable} | {
        n.output[0]: n.attribute[0].t for n in nodes
    }


def _input(node: onnx.NodeProto, index: int) -> str:
    return node.input[index] if index < len(node.input) else ""


def _operand_type(node: onnx.NodeProto, operand: Operand, types: Mapping[str, int]) -> int:
    """Return the type of the codes, or of the zero point if an operator made the codes that ONNX does not know."""
    operand_types = (types.get(_input(node, index), 0) for index in operand)
    return next(filter(None, operand_types), TensorProto.UNDEFINED)
