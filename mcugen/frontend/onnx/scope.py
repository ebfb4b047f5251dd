# SPDX-License-Identifier: Apache-2.0
"""Import of the nodes of one ONNX graph, subgraph or function body to HIR, with the names in its scope."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx
from onnx import helper, numpy_helper

from mcugen.core.errors import DoesNotFitError, ModelError, UnsupportedError
from mcugen.core.limits import MAX_CONTROL_FLOW_DEPTH, MAX_NODES, check_size
from mcugen.frontend.onnx import fold
from mcugen.frontend.onnx.composition import Composed, Recorder, selected_branch_parts
from mcugen.frontend.onnx.functions import (
    STANDARD_DOMAINS,
    data_inputs,
    find_body,
    first_version,
    has_body,
    input_types,
    outputs_like,
    type_name,
)
from mcugen.frontend.onnx.judge import onnx_objection
from mcugen.frontend.onnx.nodes import every_node, tensors_read
from mcugen.frontend.onnx.sequences import SEQUENCE_OPERATORS, SequenceNode
from mcugen.hir.graph import Graph, Value, merged_sources
from mcugen.hir.types import Array, DType, ModelConstant, TensorType
from mcugen.ops.conversion import Cast, Dequantize
from mcugen.ops.onnx_node import BUILT_IN, Body, BodyRefusal, Capture, OnnxNode, Refusal, Registry, Support

_MOVES = 4
"""Largest number of operators between stored quantized values and the layer that reads them.

Exporters leave a conversion, transposition and reshaping there.
"""
MAX_INFERENCE_CONSTANT_ELEMENTS = 4096
"""Largest number of elements of a constant that is passed to ONNX's shape inference, which reads only short ones."""


@dataclass
class Scope:
    """The names and values of the ONNX tensors of a model or body, and the import of its nodes into an HIR graph.

    Names that are not in `env` come from the enclosing scope `outer`. Floats of 16 bits or less are computed as
    float32, because C has no such types.

    Attributes:
        graph: The HIR graph to which nodes are added.
        opsets: Version of each operator domain.
        env: HIR values by ONNX name; None for outputs of refused nodes and of nodes that depend on them.
        sequences: Sequences of known length, by ONNX name.
        halves: ONNX types of values that are floats of at most 16 bits, by name.
        declared: Complete types that the model states; exporters write the results of ONNX's shape inference.
        refusals: Reasons why nodes cannot be compiled.
        strange: Element types that C does not have, by the names of constants with these types.
        texts: Constant strings by name, for operators that need only their positions.
        place: Prefix of value names, from the composite operator or graph attribute that this scope is the body of.
        node_place: Prefix of node names, if it is not `place`.
        within: Label of the composite operator that this scope is the body of, for messages.
        outer: The enclosing scope.
        capture: Function that makes a value of the enclosing scope available here; None if its name is enough.
        depth: Number of enclosing control flow operators.
        budget: Number of nodes that may still be imported; all scopes of a model share this list of one element.
        composed: ONNX nodes that can replace a node which its importer expands to other operators, by that node's first
            output.
        registry: Importers of operators.
    """

    graph: Graph
    opsets: Mapping[str, int]
    env: dict[str, Value | None] = field(default_factory=dict)
    sequences: dict[str, list[Value]] = field(default_factory=dict)
    halves: dict[str, DType] = field(default_factory=dict)
    declared: Mapping[str, TensorType] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)
    strange: dict[str, str] = field(default_factory=dict)
    texts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    place: str = ""
    node_place: str = ""
    within: str = ""
    outer: Scope | None = None
    capture: Capture | None = None
    depth: int = 0
    budget: list[int] = field(default_factory=lambda: [MAX_NODES])
    composed: Composed = field(default_factory=dict)
    registry: Registry = BUILT_IN

    # ------------------------------------------------------------------------------------------------ names

    def knows(self, name: str) -> bool:
        """Return whether `name` is a value or sequence in this scope, even one that could not be imported."""
        return name in self.env or name in self.sequences or (self.outer is not None and self.outer.knows(name))

    def sequence(self, name: str) -> list[Value] | None:
        """Return the values of the sequence called `name`; None if the name does not denote a sequence."""
        if name in self.env or name in self.sequences or self.outer is None:
            return self.sequences.get(name)
        items = self.outer.sequence(name)
        if items is not None and self.capture is not None:
            items = self.sequences[name] = [self.capture(value) for value in items]
        return items

    def lookup(self, name: str) -> Value | None:
        """Return the value of a name; None if it is unknown, could not be imported, or is a sequence."""
        if name in self.env or name in self.sequences or self.outer is None:
            return self.env.get(name)
        value = self.outer.lookup(name)
        if value is not None and self.capture is not None:
            half = self.outer.half(name)
            if half is not None:
                self.halves[name] = half
            value = self.env[name] = self.capture(value)
        return value

    def full_name(self, name: str) -> str:
        """Return the name of a tensor of this scope that is unique in the model.

        A body (of an If, or of an operator that ONNX defines by others) has its own tensor names. If its nodes replace
        the node that has the body, these names must not collide with others.

        Args:
            name: Name of the tensor within the scope.
        """
        return self.place + name if self.outer is None or name in self.env else self.outer.full_name(name)

    def half(self, name: str) -> DType | None:
        """Return the narrow float type (at most 16 bits) that a value has in ONNX; None if it has another type."""
        if name in self.env or self.outer is None:
            return self.halves.get(name)
        return self.outer.half(name)

    def initializer(self, tensor: onnx.TensorProto) -> Value | None:
        """Add an initializer and return its value; None if C has no such element type."""
        array = to_array(tensor)
        return self.constant(tensor.name, array, [_model_constant(tensor.name, array, is_initializer=True)])

    def constant(self, name: str, array: Array, sources: Sequence[ModelConstant] = ()) -> Value | None:
        """Add a constant under its ONNX name, and return its value; None if C has no such element type.

        Args:
            name: Name of the tensor in the model.
            array: The elements.
            sources: Constants of the model that the elements were computed from.
        """
        try:
            dtype = DType.of(array)
        except ValueError:
            self.strange[name] = array.dtype.name
            if array.dtype.kind in "OSU":
                self.texts[name] = tuple(
                    v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v) for v in array.reshape(-1)
                )
            return None
        stored = np.ascontiguousarray(array).astype(dtype.numpy).reshape(array.shape)
        value = self.graph.constant(self.place + name, stored, dtype=dtype)
        value.sources = tuple(sources)
        return value

    def output(self, name: str, declared_type: DType | None) -> Value | None:
        """Return the value that a model output gives.

        A value that has a narrow float type in ONNX, such as float16, is converted back to that type.

        Args:
            name: ONNX name of the output.
            declared_type: The type that the model declares; None to use the value's ONNX type.

        Returns:
            The value; None if the name is unknown.
        """
        value = self.lookup(name)
        half = self.half(name) if declared_type is None else declared_type
        if value is None or half is None or not half.is_narrow_float or value.type.dtype is not DType.FLOAT32:
            return value
        return self.graph.add(Cast(half), [value], names=[f"{self.place}{name}.narrow"]).output

    # ------------------------------------------------------------------------------------------------ nodes

    def import_nodes(self, nodes: Sequence[onnx.NodeProto]) -> None:
        """Import nodes in order; record those that cannot be compiled in `refusals`."""
        self._pay(len(nodes) + 1)
        for node in nodes:
            self._import_node(node)

    def _pay(self, count: int) -> None:
        """Count imported nodes, and raise DoesNotFitError above the limit, as nested unrolled bodies can explode."""
        self.budget[0] -= count
        if self.budget[0] < 0:
            rule = f"a model must have at most {MAX_NODES:,} nodes, bodies of functions and unrolled loops included"
            raise DoesNotFitError(rule, "more", "simplify the model")

    def _import_node(self, node: onnx.NodeProto) -> None:
        absent = [name for name in node.input if name and not self.knows(name)]
        if absent:
            return self._fail(
                node, f"every input must be computed. found: '{absent[0]}' is not. try: repair the model."
            )
        inputs = tuple(self._actual(node, name) if name else None for name in node.input)
        missing = [n for n, v in zip(node.input, inputs, strict=True) if n and v is None and self.sequence(n) is None]
        strange = [f"'{name}' is {self.strange[name]}" for name in missing if name in self.strange]
        if strange:
            reason = f"constants must have an element type of C. found: {strange[0]}. try: export float32 weights."
            return self._fail(node, reason)
        if missing:  # An earlier refusal caused this one, so only unknown operators are worth a line.
            self.refusals += self._unknown_operators(node)
            return self._fail(node)
        try:
            if node.op_type in SEQUENCE_OPERATORS:
                return self._sequence_node(node, inputs)
            if node.op_type == "Identity" and not inputs[0]:
                self.sequences[node.output[0]] = self.sequence(node.input[0]) or []
                return None
            last = self.graph.nodes.last
            results = self._results(node, inputs)
            for added in self.graph.nodes.behind(last):  # Includes intermediate results of composite operators.
                _check_sizes(node, added.outputs)
        except Refusal as refusal:
            if isinstance(refusal, BodyRefusal):
                self.refusals.extend(refusal.reasons)
            return self._fail(node, str(refusal))
        except ModelError as error:
            raise ModelError(f"{node_label(node)}: {error.rule}", error.found, error.remedy) from error
        except MemoryError as error:
            raise DoesNotFitError(f"{node_label(node)}: must fit this computer", str(error)[:200]) from error
        except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
            complaint = self._objection(node, inputs)
            if not complaint:
                raise  # ONNX accepts the node, so this is a bug in mcugen.
            raise ModelError(f"{node_label(node)}: must be valid ONNX", complaint, "repair the model") from error
        for name, value in zip(node.output, results, strict=False):
            if name:
                self._adopt_name(node, name, value)
                self.env[name] = self._without_elements(name, value)

    def _objection(self, node: onnx.NodeProto, inputs: Sequence[Value | None]) -> str:
        """Return ONNX's own objection to a node with these inputs; "" if there is none."""
        types = [self._onnx_type(name, v) for name, v in zip(node.input, inputs, strict=True)]
        known = [None if v is None or v.type.count > MAX_INFERENCE_CONSTANT_ELEMENTS else v.data for v in inputs]
        return onnx_objection(node, types, known, self.opsets)

    def _adopt_name(self, node: onnx.NodeProto, name: str, value: Value | None) -> None:
        """Rename a value that an importer named after the node's first output to its own output name."""
        prefix = f"{self.place}{node.output[0]}"
        if value is not None and not value.is_constant and value.name.startswith((f"{prefix}.", f"{prefix}/")):
            self.graph.rename(value, self.place + name)

    def _actual(self, node: onnx.NodeProto, name: str) -> Value | None:
        """Return the value of an input; for constant strings, their indices if the operator accepts indices."""
        if name in self.texts and self.registry.support.get((node.domain, node.op_type), Support()).takes_strings:
            return self.graph.constant(f"{self.place}{name}", np.arange(len(self.texts[name]), dtype=np.int64))
        return self.lookup(name)

    def _sequence_node(self, node: onnx.NodeProto, inputs: Sequence[Value | None]) -> None:
        """Import an operator on sequences of known length."""
        view = self._view(node, "", inputs)
        result = SEQUENCE_OPERATORS[node.op_type](SequenceNode(view, tuple(map(self.sequence, node.input))))
        if isinstance(result, Value):
            self.env[node.output[0]] = result
        else:
            self.sequences[node.output[0]] = result

    def _without_elements(self, name: str, value: Value | None) -> Value | None:
        """Return a tensor without elements as a constant, so that nothing computes it; other values unchanged."""
        if value is None or value.is_constant or value.type.count:
            return value
        return self.constant(name, np.empty(value.type.shape, value.type.dtype.value))

    def _fail(self, node: onnx.NodeProto, reason: str = "") -> None:
        if reason:
            self.refusals.append(self._line(node, reason))
        self.env.update(dict.fromkeys(filter(None, node.output)))

    def _line(self, node: onnx.NodeProto, reason: str) -> str:
        where = f" (in {self.within or self.place.rstrip('/')})" if self.place else ""
        return f"{node_label(node)}{where}: {reason}"

    def _unknown_operators(self, node: onnx.NodeProto) -> list[str]:
        """Return a line for each operator of a node and its bodies that cannot be compiled whatever its inputs."""
        return [self._line(n, str(self._not_supported(n))) for n in every_node([node]) if not self._is_known(n)]

    def _is_known(self, node: onnx.NodeProto) -> bool:
        domain = _domain(node)
        known = (domain, node.op_type) in self.registry.importers or has_body(
            node.op_type, self.opsets.get(domain, 1), domain
        )
        return known or node.op_type in SEQUENCE_OPERATORS or node.op_type in fold.ALWAYS_FOLDED

    def _not_supported(self, node: onnx.NodeProto) -> Refusal:
        domain = _domain(node)
        reason = self.registry.left_out.get((domain, node.op_type), "")
        reason = reason or f"domain '{domain or 'ai.onnx'}', opset {self.opsets.get(domain, 'unknown')}"
        remedy = "replace it by supported operators (see docs/reference/operators.md), or register it with --plugin"
        return Refusal("operator not supported", reason, remedy)

    def _results(self, node: onnx.NodeProto, inputs: Sequence[Value | None]) -> Sequence[Value | None]:
        domain = _domain(node)
        folded = self._fold(node, inputs)
        if folded is not None:
            return folded
        importer = self.registry.importers.get((domain, node.op_type))
        support = self.registry.support.get((domain, node.op_type), Support())
        if not support.keeps_halves or self._computes_halves(node, inputs):
            inputs = self._widened(node, inputs)
        if importer is not None:
            _check_types(node, support, inputs, self.opsets.get(domain, 1))
            if not support.keeps_halves:  # Operators that only move data accept small types too.
                self._check_schema(node, inputs)
            self._note_later(node)
            recorder = self._recorder(node, inputs)
            view = replace(self._view(node, domain, inputs), composition=recorder)
            results = importer(view)
            recorder.finish(view.outputs, results, self.composed)
            for body in view.attributes.values():
                if isinstance(body, Subgraph) and body.taken is not None:
                    self.composed[view.outputs[0]] = selected_branch_parts(
                        body.proto, view.outputs, body.taken.full_name
                    )
            return results
        self._check_schema(node, inputs)
        types = [self._onnx_type(name, v) for name, v in zip(node.input, inputs, strict=True)]
        body = find_body(node, self.opsets.get(domain, 1), types)
        if body is None:
            raise self._not_supported(node)
        return self._expand(node, body, inputs)

    def _note_later(self, node: onnx.NodeProto) -> None:
        """Add a note if a node's operator does not exist in the model's opset."""
        first = first_version(node.op_type) if node.domain in STANDARD_DOMAINS else 0
        if first > self.opsets.get("", 0) and not self.within:
            note = f"{node.op_type} is of a later opset than the model: taken as opset {first} defines it"
            self.graph.notes += [note] * (note not in self.graph.notes)

    def _recorder(self, node: onnx.NodeProto, inputs: Sequence[Value | None]) -> Recorder:
        names = {v: self.full_name(name) for name, v in zip(node.input, inputs, strict=True) if v is not None}
        inner = [
            (name, self.lookup(name)) for name in tensors_read(node) if name not in node.input and self.knows(name)
        ]
        names |= {v: self.full_name(name) for name, v in inner if v is not None}
        return Recorder(self.graph, f"{self.place}{next(filter(None, node.output), '')}", names, self._composer(node))

    def _composer(self, node: onnx.NodeProto) -> Callable[[onnx.NodeProto, dict[str, Value | None]], list[Value]]:
        """Return a function that imports a part of a composed node into the graph."""

        def compose(part: onnx.NodeProto, env: dict[str, Value | None]) -> list[Value]:
            location = f"{node_label(node)} in {self.within}" if self.within else node_label(node)
            inner = Scope(
                self.graph,
                self.opsets,
                env,
                depth=self.depth,
                budget=self.budget,
                within=location,
                composed=self.composed,
                registry=self.registry,
            )
            inner.import_nodes([part])
            results = [inner.lookup(name) for name in part.output]
            if inner.refusals or None in results:
                raise BodyRefusal(inner.refusals)
            return [v for v in results if v is not None]

        return compose

    def _check_schema(self, node: onnx.NodeProto, inputs: Sequence[Value | None]) -> None:
        """Raise Refusal for element types that ONNX does not allow, which importers and bodies rely on."""
        domain = _domain(node)
        allowed = input_types(node.op_type, self.opsets.get(domain, 1), domain)
        for index, (name, value, types) in enumerate(zip(node.input, inputs, allowed, strict=False)):
            dtype = self._onnx_dtype(name, value)
            if dtype is not None and type_name(dtype) not in types:
                rule = f"{node.op_type}: input {index} must be of a type that ONNX allows"
                raise Refusal(rule, f"{dtype.value} of '{name}'", "cast it before")

    def _view(self, node: onnx.NodeProto, domain: str, inputs: Sequence[Value | None]) -> OnnxNode:
        name = self._node_name(node)
        attributes = {a.name: self._attribute(a, name) for a in node.attribute}
        return OnnxNode(
            self.graph,
            domain,
            node.op_type,
            name,
            tuple(inputs),
            tuple(self.place + name if name else "" for name in node.output),
            attributes,
            self.opsets.get(domain, 1),
            tuple(self._onnx_dtype(name, v) for name, v in zip(node.input, inputs, strict=True)),
            tuple(self.declared.get(name) for name in node.output),
            {index: self.texts[name] for index, name in enumerate(node.input) if name in self.texts},
            self.env.get,
        )

    def _node_name(self, node: onnx.NodeProto) -> str:
        """Return the name of a node; one of a nested graph has the name of the node around it before its own."""
        name, place = str(node.name), self.node_place or self.place
        if not name:
            return place.rstrip("/")
        return name if name.startswith(place) else place + name

    def _attribute(self, attribute: onnx.AttributeProto, node_name: str) -> object:
        if attribute.ref_attr_name:
            reference = f"'{attribute.name}' refers to '{attribute.ref_attr_name}'"
            raise ModelError(
                "attributes must have values where they belong to no function", reference, "repair the model"
            )
        value = helper.get_attribute_value(attribute)
        if isinstance(value, onnx.GraphProto):
            return Subgraph(self, value, node_name)
        if isinstance(value, bytes):
            return value.decode("utf-8", "replace")
        if isinstance(value, list | tuple) and value and isinstance(value[0], bytes):
            return [item.decode("utf-8", "replace") for item in value]
        return to_array(value) if isinstance(value, onnx.TensorProto) else value

    # ----------------------------------------------------------------------------------------------- halves

    def _onnx_dtype(self, name: str, value: Value | None) -> DType | None:
        if value is None or value.type.dtype is not DType.FLOAT32:
            return None if value is None else value.type.dtype
        return self.half(name) or DType.FLOAT32

    def _onnx_type(self, name: str, value: Value | None) -> TensorType | None:
        dtype = self._onnx_dtype(name, value)
        return None if value is None or dtype is None else replace(value.type, dtype=dtype, quant=None)

    def _computes_halves(self, node: onnx.NodeProto, inputs: Sequence[Value | None]) -> bool:
        """Return whether a narrow float among the inputs is float32 in the HIR, so that all of them must be float32."""
        pairs = zip(node.input, inputs, strict=True)
        return any(v is not None and v.type.dtype is DType.FLOAT32 and self.half(n) is not None for n, v in pairs)

    def _widened(self, node: onnx.NodeProto, inputs: Sequence[Value | None]) -> list[Value | None]:
        """Return the inputs with narrow floats as float32, and record the narrow types of the outputs in `halves`."""
        dtypes = [self._onnx_dtype(n, v) for n, v in zip(node.input, inputs, strict=True)]
        half = next((d for d in dtypes if d is not None and d.is_narrow_float), None)
        if half is not None:
            same = [index for index, dtype in enumerate(dtypes) if dtype is half]
            outputs = outputs_like(node, self.opsets.get(node.domain, 1), same)
            self.halves.update(dict.fromkeys(outputs, half))
        small = {n: v.type.dtype for n, v in zip(node.input, inputs, strict=True) if v and v.type.dtype.is_narrow_float}
        self.halves.update(small)
        return [v if v is None or not v.type.dtype.is_narrow_float else self._widen(v) for v in inputs]

    def _widen(self, value: Value) -> Value:
        if value.data is not None:
            return self.graph.constant(f"{value.name}.wide", value.data.astype(np.float32), of=[value])
        return self.graph.add(Cast(DType.FLOAT32), [value], names=[f"{value.name}.wide"]).output

    # ---------------------------------------------------------------------------- what is known or composite

    def _fold(self, node: onnx.NodeProto, inputs: Sequence[Value | None]) -> list[Value | None] | None:
        """Return outputs known at compile time (shapes, functions of constants); None if there are none."""
        if node.op_type in ("Shape", "Size") and inputs[0] is not None:
            shape = np.asarray(inputs[0].type.shape, np.int64)
            span = {a.name: a.i for a in node.attribute}
            array = (
                shape[span.get("start", 0) : span.get("end", len(shape))] if node.op_type == "Shape" else shape.prod()
            )
            return [self.constant(node.output[0], np.asarray(array))]
        known = all(v is None or (v.data is not None and v.type.quant is None) for v in inputs)
        if not known or node.domain not in STANDARD_DOMAINS or not fold.can_fold(node):
            return None
        feeds = {
            name: self._reference_array(name, v) for name, v in zip(node.input, inputs, strict=True) if v is not None
        }
        arrays = fold.evaluate(node, feeds, self.opsets[""])
        if arrays is None:
            return None
        sources = merged_sources(inputs)
        if node.op_type == "Constant":
            sources = tuple(_model_constant(name, array, is_initializer=False) for name, array in arrays.items())
        return [self.constant(name, arrays[name], sources) if name else None for name in node.output]

    def _reference_array(self, name: str, value: Value) -> Array:
        """Return a constant in the type that ONNX's reference expects."""
        assert value.data is not None
        dtype = self._onnx_dtype(name, value)
        assert dtype is not None
        return value.data.astype(dtype.value) if dtype.value != value.data.dtype.name else value.data

    def _expand(
        self, node: onnx.NodeProto, body: onnx.FunctionProto, inputs: Sequence[Value | None]
    ) -> list[Value | None]:
        """Import the body of a composite operator in the node's place and return its outputs."""
        opsets = dict(self.opsets) | {entry.domain: entry.version for entry in body.opset_import}
        inner = Scope(
            self.graph,
            opsets,
            refusals=self.refusals,
            depth=self.depth,
            budget=self.budget,
            place=f"{self.place}{node.name or next(filter(None, node.output), node.op_type)}/",
            within=f"{node_label(node)} in {self.within}" if self.within else node_label(node),
            registry=self.registry,
        )
        actual = dict(zip(body.input, zip(node.input, inputs, strict=True), strict=False))
        for formal in body.input:
            name, value = actual.get(formal, ("", None))
            if value is not None:
                inner.env[formal] = value
                half = self.half(name)
                if half is not None:
                    inner.halves[formal] = half
        for step in body.node:  # Absent optional inputs become empty names in the body.
            for index, name in enumerate(step.input):
                if name in body.input and name not in inner.env:
                    step.input[index] = ""
        inner.import_nodes(body.node)
        for outer, name in zip(node.output, body.output, strict=False):
            half = inner.half(name)
            if half is not None:
                self.halves[outer] = half
            else:
                self.halves.pop(outer, None)
        return [inner.lookup(name) if inner.knows(name) else None for name in body.output]


@dataclass
class Subgraph(Body):
    """A graph attribute of an If, Loop or Scan; the importer of that node adds the subgraph's nodes to a graph.

    Attributes:
        scope: The scope of the node that has the attribute.
        proto: The graph in ONNX form.
        node_name: Name of the node that has the attribute.
        taken: The scope of the import if the subgraph's nodes replaced the whole node, as for an If with a constant
            condition; else None.
    """

    scope: Scope
    proto: onnx.GraphProto
    node_name: str = ""
    taken: Scope | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """Return the names of the subgraph's formal inputs."""
        return tuple(v.name for v in self.proto.input)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Return the names of the subgraph's results."""
        return tuple(v.name for v in self.proto.output)

    def import_into(
        self, graph: Graph, inputs: Sequence[Value], place: str, capture: Capture | None = None
    ) -> list[Value]:
        """Import the subgraph's nodes into a graph, and return the subgraph's results.

        Args:
            graph: The graph to which the nodes are added.
            inputs: Values of the subgraph's formal inputs.
            place: Prefix of the names of the added values.
            capture: Makes a value of the enclosing scope available in `graph`; None if it is available already.
        """
        if self.scope.depth >= MAX_CONTROL_FLOW_DEPTH:
            raise UnsupportedError(
                f"control flow must nest at most {MAX_CONTROL_FLOW_DEPTH} deep", "more", "simplify the model"
            )
        inner = Scope(
            graph,
            self.scope.opsets,
            declared=declared_types(self.proto),
            refusals=[],
            place=f"{place}/",
            node_place=f"{self.node_name}/" if self.node_name else "",
            outer=self.scope,
            capture=capture,
            depth=self.scope.depth + 1,
            budget=self.scope.budget,
            composed=self.scope.composed if capture is None else {},
            registry=self.scope.registry,
        )
        for tensor in self.proto.initializer:
            inner.env[tensor.name] = inner.initializer(tensor)
        if len(self.proto.input) != len(inputs):
            rule = f"the body must have as many inputs as it is given values: {len(inputs)}"
            raise Refusal(rule, str(len(self.proto.input)), "repair the model")
        for info, value in zip(self.proto.input, inputs, strict=True):
            inner.env[info.name] = value
        inner.import_nodes(self.proto.node)
        if inner.refusals:
            raise BodyRefusal(inner.refusals)
        results = [inner.output(v.name, None) for v in self.proto.output]
        absent = [v.name for v, r in zip(self.proto.output, results, strict=True) if r is None]
        if absent:
            raise Refusal("every output of the body must be computed", f"'{absent[0]}' is not", "repair the model")
        if capture is None and not inputs:
            self.taken = inner
        return [r for r in results if r is not None]


def declared_types(graph: onnx.GraphProto) -> dict[str, TensorType]:
    """Return the complete types that a graph declares for intermediate tensors and outputs, by name."""
    types = {}
    for info in (*graph.value_info, *graph.output):
        sizes = declared_sizes(info)
        shape = tuple(size for size in sizes if size is not None)
        dtype = dtype_or_none(info)
        if info.type.tensor_type.HasField("shape") and len(shape) == len(sizes) and dtype:
            types[info.name] = TensorType(shape, dtype)
    return types


def declared_sizes(info: onnx.ValueInfoProto) -> list[int | None]:
    """Return the declared size of each axis; None for a symbolic axis, and for −1, which PaddlePaddle writes for it."""
    dims = info.type.tensor_type.shape.dim
    return [dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None for dim in dims]


def dtype_or_none(info: onnx.ValueInfoProto) -> DType | None:
    """Return the declared element type of a tensor; None if C has no such type."""
    try:
        return DType(helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type).name)
    except (ValueError, KeyError):
        return None


def type_number_name(number: int) -> str:
    """Return the name of an ONNX element type number (TensorProto.DataType), for messages."""
    names: dict[int, str] = dict(map(reversed, onnx.TensorProto.DataType.items()))
    return names.get(number, f"unknown element type {number}")


def _model_constant(name: str, array: Array, *, is_initializer: bool) -> ModelConstant:
    return ModelConstant(name, array.shape, array.dtype.name, is_initializer)


def to_array(tensor: onnx.TensorProto) -> Array:
    """Return the elements of an initializer or attribute.

    Raises:
        ModelError: The elements cannot be read.
    """
    try:
        array: Array = numpy_helper.to_array(tensor)
    except KeyError as error:
        dtype_name = type_number_name(tensor.data_type)
        raise ModelError(f"tensor '{tensor.name}' must be readable", dtype_name, "export again") from error
    except (ValueError, TypeError, RuntimeError) as error:
        raise ModelError(f"tensor '{tensor.name}' must be readable", str(error)[:200], "export again") from error
    return array


def _domain(node: onnx.NodeProto) -> str:
    return "" if node.domain in STANDARD_DOMAINS else node.domain


def node_label(node: onnx.NodeProto) -> str:
    """Return the name and the operator of a node as text for messages."""
    return f"{node.op_type} '{node.name or next(iter(node.output), '')}'"


def _check_types(node: onnx.NodeProto, support: Support, inputs: Sequence[Value | None], opset: int) -> None:
    """Raise Refusal for element types that no kernel supports."""
    for index in data_inputs(node.op_type, opset, node.domain) if support.types else ():
        value = inputs[index] if index < len(inputs) else None
        if value is not None and value.type.dtype not in support.types:
            names = ", ".join(dtype.value for dtype in support.types)
            rule = f"{node.op_type}: the element type must be one of {names}"
            raise Refusal(rule, f"{value.type.dtype.value} of '{value.name}'", "cast it before")


def _check_sizes(node: onnx.NodeProto, results: Sequence[Value | None]) -> None:
    for value in results:
        if value is not None and not value.is_constant and not _is_stored(value):
            check_size(node_label(node), value.name, value.type.count)


def _is_stored(value: Value) -> bool:
    """Return whether a value is dequantized from constants, possibly moved: a layer reads the constants from flash."""
    count = value.type.count
    for _ in range(_MOVES):
        producer = value.producer
        if producer is None or not (isinstance(producer.op, Dequantize) or producer.op.moves_data):
            return False
        value = producer.input(0)
        if isinstance(producer.op, Dequantize):
            return value.is_constant and value.type.count >= count
    return False
