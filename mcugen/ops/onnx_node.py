# SPDX-License-Identifier: Apache-2.0
"""An ONNX node as the importers of operators see it, and the registry of importers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import onnx

from mcugen.core.errors import McugenError
from mcugen.hir.graph import Graph, Value
from mcugen.hir.operator import Operator
from mcugen.hir.types import Array, DType, QuantParams, TensorType


class Refusal(McugenError):
    """An ONNX node that cannot be compiled; the frontend collects all refusals of a model and reports them at once."""

    exit_code = 4


class BodyRefusal(Refusal):
    """A Refusal of an operator, such as Loop, whose body (a subgraph) has nodes that cannot be compiled.

    Attribute `reasons` has a text for each of these nodes.
    """

    def __init__(self, reasons: Sequence[str], remedy: str = "") -> None:
        remedy = "; or ".join(filter(None, ["see their lines", remedy]))
        super().__init__("every operator of its body must be supported", "those listed", remedy)
        self.reasons = tuple(reasons)

    @property
    def wants_constants(self) -> bool:
        """Return whether the body could be compiled if more values were known at compile time."""
        return any(BIND in reason for reason in self.reasons)


Capture = Callable[[Value], Value]
"""Function that maps a value of the enclosing graph to a value of the body's graph."""


class Body(Protocol):
    """A graph attribute (of If, Loop, Scan) that can be imported into a graph, once or several times."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Return the names of the body's formal inputs."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Return the names of the body's results."""

    def import_into(
        self, graph: Graph, inputs: Sequence[Value], place: str, capture: Capture | None = None
    ) -> list[Value]:
        """Add the body's nodes to `graph` and return its results. May be called several times.

        Args:
            graph: Graph to extend.
            inputs: Values of the body's inputs.
            place: Prefix of the names of the values that are added.
            capture: Maps values of the enclosing graph when they are first used; None if `graph` is the enclosing
                graph.

        Raises:
            BodyRefusal: The body holds something that is not supported.
        """


Operand = Value | Array | np.generic | None
"""Operand of a composed operator; arrays and numpy scalars become constants."""


class Composition(Protocol):
    """A callback that imports an ONNX operator as one of several that together replace another ONNX node."""

    def __call__(
        self, op_type: str, inputs: Sequence[Operand], outputs: int, domain: str, **attributes: object
    ) -> tuple[Value, ...]:
        """Add an operator of the model's own opset and return its results.

        Raises:
            BodyRefusal: The operator is not supported.
        """


@dataclass
class OnnxNode:
    """An ONNX node as its importer sees it; importers add nodes to `graph` and return the outputs.

    Inputs of type float16 or bfloat16 come as float32, unless the operator is registered with `keeps_halves`.

    Attributes:
        graph: The HIR graph to which importers add nodes.
        domain: Operator domain; "" for ONNX's own.
        op_type: ONNX operator.
        name: Name of the node; may be empty.
        inputs: The inputs as HIR values; None if absent.
        outputs: Names of the outputs; "" if unused.
        attributes: Attributes as Python values.
        opset: Version of the operator set of `domain`.
        dtypes: ONNX element types of the inputs.
        declared: Complete output types by ONNX's shape inference, for results whose shape depends on values.
        texts: The strings of each input that is a constant list of strings (`takes_strings`); its value holds indices.
        named: Returns the tensor of this name, for operators that name tensors that they do not read.
        composition: Imports other ONNX operators in place of this node.
    """

    graph: Graph
    domain: str
    op_type: str
    name: str
    inputs: tuple[Value | None, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    opset: int
    dtypes: tuple[DType | None, ...] = ()
    declared: tuple[TensorType | None, ...] = ()
    texts: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    named: Callable[[str], Value | None] = lambda _: None
    composition: Composition | None = None

    def has(self, index: int) -> bool:
        """Return whether the optional input `index` is present."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def input(self, index: int) -> Value:
        """Return input `index`.

        Raises:
            Refusal: The input is absent.
        """
        if not self.has(index):
            raise Refusal(f"{self.op_type}: input {index} must be given", "it is absent", "repair the export")
        value = self.inputs[index]
        assert value is not None
        return value

    def optional(self, index: int) -> Value | None:
        """Return input `index`, or None if it is absent."""
        return self.inputs[index] if self.has(index) else None

    def attr(self, key: str, default: Any) -> Any:
        """Return the value of attribute `key`, or `default` if the node does not have the attribute.

        The type is checked, since ONNX's own checker does not know the attributes of other domains.

        Raises:
            Refusal: The attribute is of another kind than the default.
        """
        value = self.attributes.get(key, default)
        kind = _kind(default)
        if kind and not isinstance(value, _KINDS[kind]):
            self._refuse_kind(key, f"{kind}", value)
        return value

    def attributes_of(self, op_type: str) -> dict[str, Any]:
        """Return the node's attributes that ONNX's operator `op_type` also has; empty lists count as absent."""
        known = onnx.defs.get_schema(op_type).attributes
        return {k: v for k, v in self.attributes.items() if k in known and not (isinstance(v, Sequence) and not len(v))}

    def reals(self, key: str) -> list[float]:
        """Return an attribute that is a list of numbers; empty if absent."""
        return [float(v) for v in self._list(key, "a number")]

    def integers(self, key: str) -> list[int]:
        """Return an attribute that is a list of integers; empty if absent."""
        return [int(v) for v in self._list(key, "an integer")]

    def _list(self, key: str, kind: str) -> Sequence[Any]:
        elements: Sequence[Any] = self.attr(key, ())
        if not all(isinstance(item, _KINDS[kind]) for item in elements):
            self._refuse_kind(key, f"{kind} in each place", elements)
        return elements

    def _refuse_kind(self, key: str, kind: str, value: object) -> None:
        raise Refusal(f"{self.op_type}: attribute {key} must be {kind}", str(value)[:80], "repair the model")

    def const(self, index: int, what: str) -> Array:
        """Return the elements of a constant input; `what` names the input in messages.

        Raises:
            Refusal: The input is not known at compile time.
        """
        value = self.input(index)
        if value.data is None:
            raise not_constant(f"{self.op_type}: {what} must be constant", value)
        return value.data

    def param(self, key: str, index: int) -> Array | None:
        """Return a parameter that is attribute `key` in old opsets and constant input `index` in new ones.

        Returns:
            The parameter as an array; None if both are absent.
        """
        if self.has(index):
            return self.const(index, key)
        attribute = self.attributes.get(key)
        return None if attribute is None else np.asarray(attribute)

    def ints(self, key: str, index: int) -> list[int] | None:
        """Return attribute `key`, or constant input `index`, as a list of ints; None if both are absent."""
        values = self.param(key, index)
        if values is not None and values.size and values.dtype.kind not in "biu":
            self._refuse_kind(key, "an integer in each place", values.reshape(-1)[:8])
        return None if values is None else [int(v) for v in values.reshape(-1)]

    def whole(self, index: int, what: str) -> int:
        """Return the only element of constant input `index` as an integer; `what` names the input in messages."""
        array = self.const(index, what)
        if array.size != 1 or not np.isfinite(array).all():
            elements = ", ".join(str(v) for v in array.reshape(-1)[:8].tolist())
            raise Refusal(f"{self.op_type}: {what} must be one number", f"[{elements}]", "repair the model")
        return int(array.reshape(())[()])

    def body(self, key: str) -> Body:
        """Return the graph attribute `key` (a subgraph, as of If, Loop or Scan), which can be imported."""
        graph_attribute: Body = self.attributes[key]
        return graph_attribute

    def require(self, holds: object, rule: str, actual: str, remedy: str = "repair the model") -> None:
        """Raise a Refusal unless a rule holds for the node.

        Args:
            holds: Whether the node meets the rule; any object, by its truth value.
            rule: Text of the rule.
            actual: Text that says what the node has instead.
            remedy: Text that says what the user can do.
        """
        if not holds:
            raise Refusal(f"{self.op_type}: {rule}", actual, remedy)

    def require_dtype(self, value: Value, *allowed: DType) -> None:
        """Check that a value has one of the allowed element types.

        Raises:
            Refusal: No kernel supports the element type.
        """
        if value.type.dtype not in allowed:
            names = ", ".join(dtype.value for dtype in allowed)
            raise Refusal(
                f"{self.op_type}: the element type must be one of {names}", value.type.dtype.value, "cast to float32"
            )

    def emit(self, op: Operator, *inputs: Value | None, types: Sequence[TensorType] = (), suffix: str = "") -> Value:
        """Add a node with one output to the graph and return the output.

        Args:
            op: Operator with its attributes.
            inputs: Operands; None for an absent optional one.
            types: Type of the output, as a sequence of one; inferred if empty.
            suffix: End of the output's name, for values that are not the ONNX node's own output.
        """
        name = f"{self.outputs[0]}.{suffix}" if suffix else self.outputs[0]
        origin = (self.name or self.outputs[0],)
        return self.graph.add(op, inputs, origin, names=[name], types=types).output

    def emit_all(self, op: Operator, inputs: Sequence[Value | None], names: Sequence[str]) -> tuple[Value, ...]:
        """Add a node with several outputs to the graph, and return its outputs.

        Args:
            op: Operator with its attributes.
            inputs: Operands; None for an absent optional one.
            names: Names of the outputs.
        """
        return self.graph.add(op, inputs, (self.name or names[0],), names=names).outputs

    def call(self, op_type: str, *inputs: Operand, domain: str = "", **attributes: object) -> Value:
        """Add another ONNX operator in place of this node, and return its first result.

        Quantization treats the operators of which a node is composed one by one.

        Args:
            op_type: Name of the operator.
            inputs: Operands; arrays become constants.
            domain: Domain of the operator; "" for ONNX's own.
            attributes: Attributes of the operator.
        """
        return self.calls(op_type, inputs, 1, domain, **attributes)[0]

    def calls(
        self, op_type: str, inputs: Sequence[Operand], outputs: int, domain: str = "", **attributes: object
    ) -> tuple[Value, ...]:
        """Add another ONNX operator in place of this node, and return its results.

        Args:
            op_type: Name of the operator.
            inputs: Operands; arrays become constants.
            outputs: Number of results.
            domain: Domain of the operator; "" for ONNX's own.
            attributes: Attributes of the operator.
        """
        assert self.composition is not None
        return self.composition(op_type, inputs, outputs, domain, **attributes)

    def constant(
        self, suffix: str, data: Array, quant: QuantParams | None = None, *, of: Iterable[Value | None] = ()
    ) -> Value:
        """Add a constant named after this node's first output, with `suffix` appended.

        Args:
            suffix: End of the name.
            data: Elements.
            quant: Scale and zero point of quantized elements.
            of: Constants that the elements were computed from.
        """
        return self.graph.constant(f"{self.outputs[0]}.{suffix}", data, quant, of=of)


_KINDS: Mapping[str, tuple[type, ...]] = {
    "an integer": (int, np.integer, np.bool_),
    "a number": (int, float, np.number, np.bool_),
    "a text": (str,),
    "a list": (list, tuple, np.ndarray),
}


def _kind(default: object) -> str:
    """Return the kind of value that an attribute with this default must have; "" for any."""
    return next((kind for kind, types in _KINDS.items() if isinstance(default, types)), "")


def not_constant(rule: str, value: Value, also: str = "") -> Refusal:
    """Return the error for a value that is known only at run time; it names the inputs that the value depends on.

    Args:
        rule: Text of the violated rule.
        value: The value.
        also: Text that is appended to the explanation.
    """
    sources = sorted(v.name for v in _sources(value))
    if sources == [value.name]:
        origin = f"'{value.name}' is an input"
    else:
        origin = f"'{value.name}' is computed from " + ", ".join(f"'{name}'" for name in sources)
    return Refusal(rule, origin + also, BIND + " ".join(f"--bind '{name}=...'" for name in sources))


BIND = "fix it at compile time: "
"""Beginning of the hint to fix a value at compile time; command-line options follow this text."""


def _sources(value: Value) -> set[Value]:
    """Return the graph inputs on which a value depends."""
    graph_inputs, seen, todo = set(), {value}, [value]
    while todo:
        current = todo.pop()
        if current.producer is None and current.data is None:
            graph_inputs.add(current)
        inputs = current.producer.inputs if current.producer else ()
        fresh = [v for v in inputs if v is not None and v not in seen]
        seen.update(fresh)
        todo += fresh
    return graph_inputs


Importer = Callable[[OnnxNode], Sequence[Value | None]]
"""Function that adds the HIR nodes of an ONNX node to its graph, and returns its outputs (None for unused ones)."""
AnyImporter = TypeVar("AnyImporter", bound=Importer)
"""Type of the importer that a decorator registers and returns unchanged."""

FLOAT = (DType.FLOAT32,)
"""Element types of operators that have a float32 kernel, but none of float64."""
FLOATS = (DType.FLOAT32, DType.FLOAT64)
"""Element types of floats for which there are kernels."""
SIGNED = (DType.INT8, DType.INT16, DType.INT32, DType.INT64)
"""Element types of signed integers."""
UNSIGNED = (DType.UINT8, DType.UINT16, DType.UINT32, DType.UINT64)
"""Element types of unsigned integers."""
INTEGERS = (*SIGNED, *UNSIGNED)
"""Element types of integers, signed and unsigned."""
NUMBERS = (*FLOATS, *INTEGERS)
"""Element types of floats and integers."""


NO_CODE_TEXT = "none: the same bytes"
"""Text of `mcugen operators` in place of kernels, for operators that only rename a tensor and need no code."""
KNOWN_AT_COMPILE_TIME_TEXT = "none: known at compile time"
"""Text of `mcugen operators` in place of kernels, for operators whose inputs must be constant."""
COMPOSED_TEXT = "by ONNX operators"
"""Text of `mcugen operators` in place of kernels, for operators that importers compose of others (`OnnxNode.call`)."""

MICROSOFT = "com.microsoft"
"""Domain of the operators that ONNX Runtime adds to ONNX."""


@dataclass(frozen=True)
class Support:
    """The part of an ONNX operator that mcugen supports; `mcugen operators` prints it.

    Attributes:
        types: Supported element types; () for all that ONNX allows and C has. float32 includes 16-bit floats.
        kernels: Templates that compute the operator, in order of preference.
        limits: What is not supported, in a few words.
        keeps_halves: Whether 16-bit floats are passed to the importer as they are stored.
        takes_strings: Whether a constant list of strings is passed as int64 indices into the list.
    """

    types: tuple[DType, ...] = ()
    kernels: tuple[str, ...] = ()
    limits: str = ""
    keeps_halves: bool = False
    takes_strings: bool = False


@dataclass(frozen=True)
class TfliteSupport:
    """The conversion of an operator of .tflite files to ONNX operators, and what the documents say of it.

    Attributes:
        build: Adds the ONNX nodes of an operator (a `mcugen.frontend.tflite.node.TfliteNode`).
        becomes: The ONNX operators that it makes, beside conversions of layout and scale.
        limits: What is not supported.
    """

    build: Callable[[Any], None]
    becomes: str
    limits: str


Key = tuple[str, str]
"""Key of an ONNX operator: its domain ("" for ONNX's own) and its name."""


@dataclass(frozen=True)
class Registry:
    """The operators that a compilation knows: mcugen's own, and those of a plug-in (mcugen.driver.plugins), if any.

    Attributes:
        importers: By domain and operator, the function that adds HIR nodes and returns the outputs (None if absent).
        support: By domain and operator, what is supported of it.
        left_out: By domain and operator, why mcugen does not compile an operator that other tools compile.
        tflite: By name, how an operator of .tflite files becomes ONNX operators.
        templates: Folders with the C templates of plug-ins.
    """

    importers: dict[Key, Importer] = field(default_factory=dict)
    support: dict[Key, Support] = field(default_factory=dict)
    left_out: dict[Key, str] = field(default_factory=dict)
    tflite: dict[str, TfliteSupport] = field(default_factory=dict)
    templates: tuple[Path, ...] = ()

    def copy(self) -> Registry:
        """Return an independent copy of the registry, to which a plug-in can add operators."""
        return Registry(
            dict(self.importers), dict(self.support), dict(self.left_out), dict(self.tflite), self.templates
        )


BUILT_IN = Registry()
"""Registry of mcugen's own operators, complete once mcugen.ops is imported."""

_OPEN: ContextVar[Registry] = ContextVar("_OPEN", default=BUILT_IN)


@contextmanager
def registering(registry: Registry) -> Iterator[None]:
    """Register operators in `registry` instead of BUILT_IN within the `with` block, as plug-ins do."""
    token = _OPEN.set(registry)
    try:
        yield
    finally:
        _OPEN.reset(token)


def open_registry() -> Registry:
    """Return the registry in which operators are registered now: BUILT_IN, or that of the plug-in that is loaded."""
    return _OPEN.get()


def leave_out(reason: str, *op_types: str, domain: str = "") -> None:
    """Record why operators are not supported; the error message and docs/reference/operators.md show the reason."""
    _OPEN.get().left_out.update({(domain, op_type): reason for op_type in op_types})


def as_standard(node: OnnxNode, op_type: str, *inputs: Value | None, **attributes: object) -> list[Value | None]:
    """Import the node as ONNX's newest operator `op_type`, which is equivalent for these inputs and attributes.

    Unlike a composed operator, it remains one operator for quantization.
    """
    same = replace(node, domain="", op_type=op_type, inputs=inputs, attributes=attributes, opset=_NEWEST)
    return list(BUILT_IN.importers["", op_type](same))


_NEWEST = 1 << 20
"""An opset version in which every operator has its present definition."""


def onnx_operator(
    *op_types: str,
    domain: str = "",
    types: Sequence[DType] = (),
    kernels: Sequence[str] = (),
    limits: str = "",
    keeps_halves: bool = False,
    takes_strings: bool = False,
) -> Callable[[AnyImporter], AnyImporter]:
    """Return a decorator that registers a function as the importer of ONNX operators.

    Args:
        op_types: Names of the operators.
        domain: Their domain; "" for ONNX's own.
        types: Supported element types; empty for all that ONNX allows and C has.
        kernels: Templates that compute the operator, in order of preference, for `mcugen operators`.
        limits: What is not supported, in a few words.
        keeps_halves: Whether 16-bit floats are passed as they are stored, instead of as float32.
        takes_strings: Whether a constant list of strings is passed as int64 indices into the list.
    """
    support = Support(tuple(types), tuple(kernels), limits, keeps_halves, takes_strings)

    def register(importer: AnyImporter) -> AnyImporter:
        registry = _OPEN.get()
        for op_type in op_types:
            registry.importers[domain, op_type] = importer
            registry.support[domain, op_type] = support
        return importer

    return register
