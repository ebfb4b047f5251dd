# SPDX-License-Identifier: Apache-2.0
"""An ONNX node as operator families see it, and the registry of who imports what."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
    """A node that cannot be compiled; the importer collects them all and reports them at once."""

    exit_code = 4


class BodyRefusal(Refusal):
    """A body of which some nodes cannot be compiled; `reasons` name them, `remedy` is what helps besides."""

    def __init__(self, reasons: Sequence[str], remedy: str = "") -> None:
        remedy = "; or ".join(filter(None, ["see their lines", remedy]))
        super().__init__("every operator of its body must be supported", "those listed", remedy)
        self.reasons = tuple(reasons)

    @property
    def wants_constants(self) -> bool:
        """Whether the body might do if more were known of it at compile time."""
        return any(BIND in reason for reason in self.reasons)


Capture = Callable[[Value], Value]


class Body(Protocol):
    """A graph attribute (of If, Loop, Scan), to be imported where the operator wants it."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the formal inputs."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the results."""

    def import_into(
        self, graph: Graph, inputs: Sequence[Value], place: str, capture: Capture | None = None
    ) -> list[Value]:
        """Add the body's nodes to `graph` and return its results. May be called several times.

        Args:
            graph: Graph to extend.
            inputs: Values of the body's inputs.
            place: Prefix of the names of values.
            capture: Maps values of the enclosing graph when they are first used. None if `graph` is the enclosing
                graph.

        Raises:
            BodyRefusal: The body holds something that is not supported.
        """


Operand = Value | Array | np.generic | None
"""Operand of a composed operator; arrays and numpy scalars become constants."""


class Composition(Protocol):
    """Imports standard operators in the place of a node that is composed of them."""

    def __call__(
        self, op_type: str, inputs: Sequence[Operand], outputs: int, domain: str, **attributes: object
    ) -> tuple[Value, ...]:
        """Add an operator of the model's own opset and return its results.

        Raises:
            BodyRefusal: The operator is not supported.
        """


@dataclass
class OnnxNode:
    """One node: operator, inputs as HIR values (None where absent), attributes as Python values.

    Inputs of ONNX type float16 or bfloat16 come as float32, unless the operator is registered with
    `keeps_halves`; `dtypes` tells what they are in ONNX.
    """

    graph: Graph
    domain: str
    op_type: str
    name: str
    inputs: tuple[Value | None, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    opset: int
    """Version of the operator set of `domain`."""
    dtypes: tuple[DType | None, ...] = ()
    """ONNX element types of the inputs."""
    declared: tuple[TensorType | None, ...] = ()
    """Output types by ONNX's shape inference, where they are complete: for results that depend on values."""
    texts: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """By input index: the strings of which the input's value holds the positions (`takes_strings`)."""
    named: Callable[[str], Value | None] = lambda _: None
    """The tensors of the graph so far, by name: for operators that name what they do not read."""
    composition: Composition | None = None

    def has(self, index: int) -> bool:
        """Whether input `index` is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def input(self, index: int) -> Value:
        """Input `index`; Refusal if it is absent."""
        if not self.has(index):
            raise Refusal(f"{self.op_type}: input {index} must be given", "it is absent", "repair the export")
        value = self.inputs[index]
        assert value is not None
        return value

    def optional(self, index: int) -> Value | None:
        """Return input `index`, or None if it is absent."""
        return self.inputs[index] if self.has(index) else None

    def attr(self, key: str, default: Any) -> Any:
        """Return an attribute or its default.

        ONNX's checker covers only operators that have a schema.

        Raises:
            Refusal: The attribute is of another kind than the default.
        """
        value = self.attributes.get(key, default)
        kind = _kind(default)
        if kind and not isinstance(value, _KINDS[kind]):
            self._refuse_kind(key, f"{kind}", value)
        return value

    def attributes_of(self, op_type: str) -> dict[str, Any]:
        """Return the attributes that ONNX's operator `op_type` also has; empty lists count as absent."""
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
        """Return the elements of a constant input.

        Raises:
            Refusal: The input is not known at compile time.
        """
        value = self.input(index)
        if value.data is None:
            raise not_constant(f"{self.op_type}: {what} must be constant", value)
        return value.data

    def param(self, key: str, index: int) -> Array | None:
        """Return a parameter that is an attribute in old opsets and constant input `index` in new ones, or None."""
        if self.has(index):
            return self.const(index, key)
        attribute = self.attributes.get(key)
        return None if attribute is None else np.asarray(attribute)

    def ints(self, key: str, index: int) -> list[int] | None:
        """`param` as a list of Python ints."""
        values = self.param(key, index)
        if values is not None and values.size and values.dtype.kind not in "biu":
            self._refuse_kind(key, "an integer in each place", values.reshape(-1)[:8])
        return None if values is None else [int(v) for v in values.reshape(-1)]

    def whole(self, index: int, what: str) -> int:
        """Return the single element of a constant input as an integer."""
        array = self.const(index, what)
        if array.size != 1 or not np.isfinite(array).all():
            elements = ", ".join(str(v) for v in array.reshape(-1)[:8].tolist())
            raise Refusal(f"{self.op_type}: {what} must be one number", f"[{elements}]", "repair the model")
        return int(array.reshape(())[()])

    def body(self, key: str) -> Body:
        """Return a graph attribute."""
        graph_attribute: Body = self.attributes[key]
        return graph_attribute

    def require(self, holds: object, rule: str, actual: str, remedy: str = "repair the model") -> None:
        """Refuse the node unless a rule holds.

        Args:
            holds: Whether the node meets the rule.
            rule: The rule.
            actual: What the node has instead.
            remedy: What the user can do.
        """
        if not holds:
            raise Refusal(f"{self.op_type}: {rule}", actual, remedy)

    def require_dtype(self, value: Value, *allowed: DType) -> None:
        """Refuses element types that no kernel is written for."""
        if value.type.dtype not in allowed:
            names = ", ".join(dtype.value for dtype in allowed)
            raise Refusal(
                f"{self.op_type}: the element type must be one of {names}", value.type.dtype.value, "cast to float32"
            )

    def emit(self, op: Operator, *inputs: Value | None, types: Sequence[TensorType] = (), suffix: str = "") -> Value:
        """Add a node with one output to the graph and return the output."""
        name = f"{self.outputs[0]}.{suffix}" if suffix else self.outputs[0]
        origin = (self.name or self.outputs[0],)
        return self.graph.add(op, inputs, origin, names=[name], types=types).output

    def emit_all(self, op: Operator, inputs: Sequence[Value | None], names: Sequence[str]) -> tuple[Value, ...]:
        """Add a node with several outputs, called `names`."""
        return self.graph.add(op, inputs, (self.name or names[0],), names=names).outputs

    def call(self, op_type: str, *inputs: Operand, domain: str = "", **attributes: object) -> Value:
        """Add another ONNX operator in place of this node and return its first result; see Composition.

        Quantization treats composed operators one by one.
        """
        return self.calls(op_type, inputs, 1, domain, **attributes)[0]

    def calls(
        self, op_type: str, inputs: Sequence[Operand], outputs: int, domain: str = "", **attributes: object
    ) -> tuple[Value, ...]:
        """`call` for an operator of several results."""
        assert self.composition is not None
        return self.composition(op_type, inputs, outputs, domain, **attributes)

    def constant(self, suffix: str, data: Array, quant: QuantParams | None = None) -> Value:
        """Add a constant named after this node."""
        return self.graph.constant(f"{self.outputs[0]}.{suffix}", data, quant)


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
    """Return the refusal of a value known only at run time; the message names the inputs that it depends on."""
    sources = sorted(v.name for v in _sources(value))
    if sources == [value.name]:
        origin = f"'{value.name}' is an input"
    else:
        origin = f"'{value.name}' is computed from " + ", ".join(f"'{name}'" for name in sources)
    return Refusal(rule, origin + also, BIND + " ".join(f"--bind '{name}=...'" for name in sources))


BIND = "fix it at compile time: "


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
AnyImporter = TypeVar("AnyImporter", bound=Importer)

FLOAT = (DType.FLOAT32,)
FLOATS = (DType.FLOAT32, DType.FLOAT64)
SIGNED = (DType.INT8, DType.INT16, DType.INT32, DType.INT64)
UNSIGNED = (DType.UINT8, DType.UINT16, DType.UINT32, DType.UINT64)
INTEGERS = (*SIGNED, *UNSIGNED)
NUMBERS = (*FLOATS, *INTEGERS)


NO_CODE_TEXT = "none: the same bytes"
"""Shown in place of kernels for operators that only rename a tensor."""
KNOWN_AT_COMPILE_TIME_TEXT = "none: known at compile time"
"""Shown in place of kernels for operators whose inputs must be constant."""
COMPOSED_TEXT = "by ONNX operators"
"""Shown in place of kernels for operators that importers compose of other operators (`OnnxNode.call`)."""

MICROSOFT = "com.microsoft"
"""The domain of what ONNX Runtime adds to ONNX."""


@dataclass(frozen=True)
class Support:
    """The supported part of an operator. The importer holds it, and `mcugen operators` prints it."""

    types: tuple[DType, ...] = ()
    """Element types of the data; () for all types that ONNX allows and C has.

    float32 includes the 16-bit floats, which are computed as float32. The data are of the type parameter of the
    schema's output, or else of the first input.
    """
    kernels: tuple[str, ...] = ()
    """Templates that compute it, in order of preference."""
    limits: str = ""
    """What is refused, in a few words."""
    keeps_halves: bool = False
    """It takes 16-bit floats as they are stored."""
    takes_strings: bool = False
    """It takes a constant list of strings (class names), as int64 positions in the list."""


Key = tuple[str, str]
"""Domain ("" for ONNX's own) and operator."""


@dataclass(frozen=True)
class Registry:
    """The operators that a compilation knows: those of mcugen, or these and a user's own (mcugen.driver.plugins)."""

    importers: dict[Key, Importer] = field(default_factory=dict)
    """The function that adds an operator's HIR nodes and returns its outputs, None for absent ones."""
    support: dict[Key, Support] = field(default_factory=dict)
    """What is supported of it."""
    left_out: dict[Key, str] = field(default_factory=dict)
    """Why mcugen does not compile it, though others do."""
    templates: tuple[Path, ...] = ()
    """Folders of further templates."""

    def copy(self) -> Registry:
        """One to add to."""
        return Registry(dict(self.importers), dict(self.support), dict(self.left_out), self.templates)


BUILT_IN = Registry()
"""The operators of mcugen, complete once mcugen.ops is imported."""

_OPEN: ContextVar[Registry] = ContextVar("_OPEN", default=BUILT_IN)


@contextmanager
def registering(registry: Registry) -> Iterator[None]:
    """Send all registrations within the `with` block to `registry`."""
    token = _OPEN.set(registry)
    try:
        yield
    finally:
        _OPEN.reset(token)


def leave_out(reason: str, *op_types: str, domain: str = "") -> None:
    """Record why operators are not compiled; the refusal and docs/operators.md show the reason."""
    _OPEN.get().left_out.update({(domain, op_type): reason for op_type in op_types})


def as_standard(node: OnnxNode, op_type: str, *inputs: Value | None, **attributes: object) -> list[Value | None]:
    """Import the node as ONNX's newest operator `op_type`, which is equivalent for these inputs and attributes.

    Unlike a composed operator, it remains one operator for quantization.
    """
    same = replace(node, domain="", op_type=op_type, inputs=inputs, attributes=attributes, opset=_NEWEST)
    return list(BUILT_IN.importers["", op_type](same))


_NEWEST = 1 << 20
"""An opset in which every operator is as it is now."""


def onnx_operator(
    *op_types: str,
    domain: str = "",
    types: Sequence[DType] = (),
    kernels: Sequence[str] = (),
    limits: str = "",
    keeps_halves: bool = False,
    takes_strings: bool = False,
) -> Callable[[AnyImporter], AnyImporter]:
    """Return a decorator that registers an importer of ONNX operators and what it supports (see Support)."""
    support = Support(tuple(types), tuple(kernels), limits, keeps_halves, takes_strings)

    def register(importer: AnyImporter) -> AnyImporter:
        registry = _OPEN.get()
        for op_type in op_types:
            registry.importers[domain, op_type] = importer
            registry.support[domain, op_type] = support
        return importer

    return register
