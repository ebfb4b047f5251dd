# SPDX-License-Identifier: Apache-2.0
"""High-level IR: values, nodes and the graph. It knows no operator by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import NamedTuple, Protocol, overload

from mcugen.core.errors import VerificationError
from mcugen.hir.lesson import Lesson
from mcugen.hir.names import Names
from mcugen.hir.operator import Operator, Signature
from mcugen.hir.types import Array, DType, ModelConstant, QuantParams, TensorType
from mcugen.hir.window_stream import WindowStream


@dataclass(frozen=True)
class ComputedSize:
    """A dimension whose length the model computes at run time.

    Attributes:
        high: The largest possible length.
        value: The int32 scalar of the graph that holds the actual length in each inference.
    """

    high: int
    value: Value


@dataclass(frozen=True)
class DroppedWork:
    """Counts of what passes removed from a graph because no output depends on it.

    Attributes:
        channels: Number of removed channels of layers.
        elements: Number of removed elements, such as those of time steps that nobody reads.
        macs: Number of multiply-accumulates per inference that the removal saves.
    """

    channels: int = 0
    elements: int = 0
    macs: int = 0

    def __add__(self, other: DroppedWork) -> DroppedWork:
        """Return the sum of all counts."""
        return DroppedWork(self.channels + other.channels, self.elements + other.elements, self.macs + other.macs)


class Value:
    """A tensor of a graph: a graph input, a constant, or the output of a node. Values are compared by identity.

    Attribute `data` holds the elements of a constant; it is None for other values. Attribute `producer` is the node
    whose output the value is; it is None for a graph input or a constant.
    """

    def __init__(self, name: str, type_: TensorType, data: Array | None = None) -> None:
        self.name = name
        self.type = type_
        self.data = data
        self.sources: tuple[ModelConstant, ...] = ()
        """Constants of the model that the elements of a constant were computed from, as far as passes recorded them."""
        self.equal_names: tuple[str, ...] = ()
        """Names of values that this value replaced: tensors of the source model with the same elements."""
        self.producer: Node | None = None
        self.uses: dict[tuple[Node, int], None] = {}
        """Pairs (node, input index) that read this value, in insertion order. A dictionary used as an ordered set."""

    @property
    def is_constant(self) -> bool:
        """Return whether the elements are known at compile time."""
        return self.data is not None

    @property
    def users(self) -> list[Node]:
        """Return the nodes that read this value, each once, in the order of their first use."""
        return list(dict.fromkeys(node for node, _ in self.uses))

    def indices(self) -> dict[Node, list[int]]:
        """Return, for each node that reads this value, the input indices at which the node reads it."""
        by_node: dict[Node, list[int]] = {}
        for node, index in self.uses:
            by_node.setdefault(node, []).append(index)
        return by_node

    def __repr__(self) -> str:
        return f"%{self.name}: {self.type}"


class Node:
    """One application of an operator in a graph.

    Attributes:
        op: The operator with its attributes.
        inputs: The operands; None for an absent optional one.
        outputs: The results.
        origin: Names of the ONNX nodes that the node stems from (untrusted text).
        layer: Number of the layer of the model of which this node is a tile; consecutive nodes with equal numbers are
            tiles of one layer. 0 if the node is no tile.
    """

    def __init__(
        self,
        op: Operator,
        inputs: Sequence[Value | None],
        outputs: Sequence[Value],
        origin: Sequence[str],
        layer: int = 0,
    ) -> None:
        self.op = op
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.origin = tuple(dict.fromkeys(origin))
        self.layer = layer
        for output in outputs:
            output.producer = self
        for index, value in enumerate(inputs):
            if value is not None:
                value.uses[self, index] = None

    @property
    def output(self) -> Value:
        """Return the node's only output."""
        (value,) = self.outputs
        return value

    def input(self, index: int) -> Value:
        """Return input `index`, which must be present."""
        value = self.inputs[index]
        assert value is not None
        return value

    @property
    def sig(self) -> Signature:
        """Return the types of the node's inputs and outputs."""
        return Signature(tuple(v.type if v else None for v in self.inputs), tuple(v.type for v in self.outputs))

    def set_input(self, index: int, value: Value | None) -> None:
        """Connect input `index` to another value, and update the users of both values.

        If `value` is None, the input becomes absent.
        """
        self.read_at([index], value)

    def read_at(self, indices: Iterable[int], value: Value | None) -> None:
        """Connect the inputs with these indices to another value, and update the users of both values.

        If `value` is None, the inputs become absent.
        """
        inputs = list(self.inputs)
        for index in indices:
            old, inputs[index] = inputs[index], value
            if old is not None:
                del old.uses[self, index]
            if value is not None:
                value.uses[self, index] = None
        self.inputs = tuple(inputs)

    def release_inputs(self) -> None:
        """Disconnect all inputs, so that their values no longer list this node as a reader."""
        self.read_at(range(len(self.inputs)), None)

    @property
    def place(self) -> str:
        """Return the text that names the node in error messages: its operator and its first ONNX node."""
        return f"{self.op.name} '{self.origin[0]}'" if self.origin and self.origin[0] else self.op.name

    def __repr__(self) -> str:
        return f"<{self.place}>"


class NodeList(Sequence[Node]):
    """The nodes of a graph as a doubly linked list: insertion, removal and lookup take constant time."""

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        order: list[Node | None] = [None, *nodes, None]
        self._next: dict[Node | None, Node | None] = dict(pairwise(order))
        """Successor of each node; the first node follows None, and None follows the last."""
        self._previous: dict[Node | None, Node | None] = {b: a for a, b in pairwise(order)}
        self._indexed: list[Node] | None = None

    def insert_before(self, place: Node | None, node: Node) -> None:
        """Insert `node` before the node `place`, or at the end if `place` is None."""
        previous = self._previous[place]
        self._next[previous], self._next[node] = node, place
        self._previous[node], self._previous[place] = previous, node
        self._indexed = None

    def remove(self, node: Node) -> None:
        """Remove a node; raise KeyError if the list does not contain it."""
        previous, following = self._previous.pop(node), self._next.pop(node)
        self._next[previous], self._previous[following] = following, previous
        self._indexed = None

    @property
    def last(self) -> Node | None:
        """Return the last node, or None if the list is empty."""
        return self._previous[None]

    def behind(self, place: Node | None) -> Iterator[Node]:
        """Yield the nodes after the node `place`, or all nodes if `place` is None."""
        node = self._next[place]
        while node is not None:
            yield node
            node = self._next[node]

    def __iter__(self) -> Iterator[Node]:
        return iter(self._in_order())

    def __contains__(self, value: object) -> bool:
        return value is not None and value in self._next

    def __len__(self) -> int:
        return len(self._next) - 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._in_order() == list(other)

    __hash__ = None  # type: ignore[assignment]

    @overload
    def __getitem__(self, index: int) -> Node: ...
    @overload
    def __getitem__(self, index: slice) -> list[Node]: ...
    def __getitem__(self, index: int | slice) -> Node | list[Node]:
        return self._in_order()[index]

    def _in_order(self) -> list[Node]:
        """Return all nodes in their present order."""
        if self._indexed is None:
            self._indexed = list(self.behind(None))
        return self._indexed


class Watcher(Protocol):
    """An observer that is notified of each node that is added to a graph, or changed, in a `Graph.watched` block."""

    def added(self, node: Node) -> None:
        """Handle a node that has just become part of the graph."""

    def changed(self, node: Node) -> None:
        """Handle a node whose inputs or readers have changed."""


class Graph:
    """A graph of nodes in topological order, with inputs and outputs.

    It may be edited while iterating over `list(graph.nodes)`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.inputs: list[Value] = []
        self.output_names: list[str] = []
        self._outputs: list[Value] = []
        self._places: dict[Value, list[int]] = {}
        """Indices of each output value among the outputs."""
        self._nodes = NodeList()
        self.sizes: dict[str, ComputedSize] | None = None
        """Dimensions computed at run time, by symbol; None in loop bodies, whose shapes are fixed."""
        self.assumed: Mapping[str, int] = {}
        """Lengths of computed dimensions that this variant of the graph assumes.

        Other dimensions have their largest length.
        """
        self.shapes_vary = False
        """Whether one program serves several shapes; then no result may be derived from the shapes at compile time."""
        self.lesson: Lesson | None = None
        """How the graph trains on the device; None for inference only."""
        self.external_io = False
        """Whether inputs and outputs lie in the caller's memory instead of the arena."""
        self.keeps_statistics = False
        """Whether running statistics of normalization layers are updated."""
        self.float16_weights = False
        """Whether weights of float layers are rounded to float16."""
        self.stream: WindowStream | None = None
        """How the first input is divided into time steps, if a call gets only the new ones; None for whole inputs."""
        self.states: Mapping[str, str] = {}
        """States that passes added: the input that keeps each of these outputs for the next call."""
        self.dropped = DroppedWork()
        self.widened: dict[str, WidenedWeights] = {}
        """Weights that were quantized in the file and became floats in the graph, by name."""
        self.notes: list[str] = []
        """Assumptions made about the model, to be shown to the user (untrusted text)."""
        self._names = Names()
        self._watcher: Watcher | None = None
        self._made: set[Node] = set()

    @property
    def nodes(self) -> NodeList:
        """Return the nodes in topological order."""
        return self._nodes

    @nodes.setter
    def nodes(self, nodes: Iterable[Node]) -> None:
        """Replace all nodes; `nodes` must be in topological order."""
        self._nodes = NodeList(nodes)

    @property
    def outputs(self) -> Sequence[Value]:
        """Return the values that the model's caller reads, in the order of `output_names`.

        To change the outputs, assign a whole new sequence to this property.
        """
        return self._outputs

    @outputs.setter
    def outputs(self, values: Iterable[Value]) -> None:
        """Replace the values that the model's caller reads."""
        self._outputs, self._places = list(values), {}
        for place, value in enumerate(self._outputs):
            self._places.setdefault(value, []).append(place)

    def has_name(self, name: str) -> bool:
        """Return whether a value of the graph has this name."""
        return name in self._names

    def fresh_name(self, preferred: str) -> str:
        """Reserve and return an unused value name: `preferred`, with a number appended if that name is in use."""
        return self._names.take(preferred)

    def release_name(self, value: Value) -> None:
        """Make the name of a value free for other values. The caller must be about to remove the value."""
        self._names.release(value.name)

    def rename(self, value: Value, name: str) -> None:
        """Rename a value to exactly `name`; do nothing if another value of the graph has that name already."""
        if name not in self._names:
            self.release_name(value)
            value.name = self.fresh_name(name)

    def add_input(self, name: str, type_: TensorType) -> Value:
        """Add a graph input of this name and type, and return it."""
        value = Value(self.fresh_name(name), type_)
        self.inputs.append(value)
        return value

    def add_output(self, name: str, value: Value) -> None:
        """Make `value` a graph output under the given public name."""
        self._places.setdefault(value, []).append(len(self._outputs))
        self._outputs.append(value)
        self.output_names.append(name)

    def constant(
        self,
        name: str,
        data: Array,
        quant: QuantParams | None = None,
        dtype: DType | None = None,
        *,
        of: Iterable[Value | None] = (),
    ) -> Value:
        """Add a constant and return its value.

        Args:
            name: Preferred name; a number is appended if it is in use.
            data: Elements.
            quant: Scale and zero point of quantized elements; None for other elements.
            dtype: Element type, if numpy lacks it: integers below 8 bits are stored in bytes. None for the type of
                `data`.
            of: Constants that the elements were computed from, whose sources become those of the new constant.
        """
        value = Value(self.fresh_name(name), TensorType(data.shape, dtype or DType.of(data), quant), data)
        value.sources = merged_sources(of)
        return value

    def add(
        self,
        op: Operator,
        inputs: Sequence[Value | None],
        origin: Sequence[str] = (),
        *,
        names: Sequence[str] = (),
        types: Sequence[TensorType] = (),
        before: Node | None = None,
    ) -> Node:
        """Add a node at the end, or before another node.

        Args:
            op: Operator to apply.
            inputs: Operands; None for an absent optional one.
            origin: Names of the ONNX nodes that the node stems from.
            names: Wanted names of the outputs; by default made from the first input and the operator.
            types: Types of the outputs; inferred by the operator if empty.
            before: Node to insert before; None appends.

        Returns:
            The new node.
        """
        out_types = tuple(types) or op.infer(*(v.type if v else None for v in inputs))
        base = names or [f"{inputs[0].name if inputs and inputs[0] else op.name}.{op.name}"] * len(out_types)
        outputs = [Value(self.fresh_name(n), t) for n, t in zip(base, out_types, strict=False)]
        node = Node(op, inputs, outputs, origin)
        self.nodes.insert_before(before, node)
        if self._watcher is not None:
            self._watcher.added(node)
            self._made.add(node)
        return node

    def remove(self, node: Node) -> None:
        """Remove a node whose outputs have no readers."""
        read = node.inputs
        node.release_inputs()
        self.nodes.remove(node)
        if self._watcher is not None:
            for value in dict.fromkeys(read):
                self._tell_neighbours(self._watcher, value)

    def replace(self, old: Value, new: Value) -> None:
        """Make every reader of `old`, graph outputs included, read `new` instead.

        If both have the same shape and element type, `new` takes over the names of `old` as its `equal_names`.
        """
        readers = old.indices()
        if (old.type.shape, old.type.dtype) == (new.type.shape, new.type.dtype):
            new.equal_names += tuple(name for name in (*old.equal_names, old.name) if name != new.name)
        for node, indices in readers.items():
            node.read_at(indices, new)
        if self._watcher is not None:
            for changed in (old.producer, *readers, new.producer):
                if changed is not None:
                    self._watcher.changed(changed)
        for place in self._places.pop(old, ()):
            self._outputs[place] = new
            self._places.setdefault(new, []).append(place)

    def rewrite(
        self,
        node: Node,
        op: Operator,
        inputs: Sequence[Value | None],
        *,
        types: Sequence[TensorType] = (),
        origin: Iterable[str] = (),
    ) -> Node:
        """Replace a node that has one output by a new node at the same position, and return the new node.

        Args:
            node: Node to replace.
            op: Operator of the new node.
            inputs: Operands of the new node.
            types: Type of the output, as a sequence of one; inferred if empty.
            origin: ONNX names to add in front of those of `node`.
        """
        self.release_name(node.output)
        new = self.add(op, inputs, (*origin, *node.origin), names=[node.output.name], types=types, before=node)
        self.replace(node.output, new.output)
        self.remove(node)
        return new

    @contextmanager
    def watched(self, watcher: Watcher) -> Iterator[None]:
        """Notify `watcher` of each node that is added or changed within the `with` block."""
        self._watcher = watcher
        try:
            yield
        finally:
            self._watcher = None
            self._made.clear()

    def is_new(self, node: Node | None) -> bool:
        """Return whether a node was added since the current `with graph.watched(…)` block began; False for None.

        Outside such a block, the result is always False.
        """
        return node in self._made

    @staticmethod
    def _tell_neighbours(watcher: Watcher, value: Value | None) -> None:
        """Report the nodes affected when `value` loses a reader: its producer, and its reader if one is left."""
        if value is not None and value.producer is not None:
            watcher.changed(value.producer)
        if value is not None and len(value.uses) == 1:
            watcher.changed(next(iter(value.uses))[0])

    def is_output(self, value: Value) -> bool:
        """Return whether this value is a graph output."""
        return value in self._places

    def only_user(self, value: Value) -> Node | None:
        """Return the node that reads `value`, if the value has exactly one use and is no graph output; else None."""
        return next(iter(value.uses))[0] if len(value.uses) == 1 and not self.is_output(value) else None

    def values(self) -> Iterator[Value]:
        """Yield every value once: inputs, then constants and results in order of appearance."""
        seen: dict[Value, None] = dict.fromkeys(self.inputs)
        for node in self.nodes:
            seen.update(dict.fromkeys(v for v in node.inputs if v is not None))
            seen.update(dict.fromkeys(node.outputs))
        seen.update(dict.fromkeys(self.outputs))
        yield from seen

    def nested(self) -> Iterator[Graph]:
        """Yield this graph, then all graphs that its nodes contain, such as bodies of loops, recursively."""
        yield self
        for node in self.nodes:
            for body in node.op.bodies:
                yield from body.nested()

    def copy(self) -> Graph:
        """Return an independent graph with the same operators and shared constant data."""
        other = Graph(self.name)
        other.__dict__.update(self.__dict__)
        values = {value: Value(value.name, value.type, value.data) for value in self.values()}
        for value, copied in values.items():
            copied.sources, copied.equal_names = value.sources, value.equal_names
        other.inputs, other.output_names = [values[v] for v in self.inputs], list(self.output_names)
        other.outputs = [values[v] for v in self.outputs]
        other.nodes = [
            Node(n.op, [values[v] if v else None for v in n.inputs], [values[v] for v in n.outputs], n.origin, n.layer)
            for n in self.nodes
        ]
        other.sizes = self.sizes and {key: replace(s, value=values[s.value]) for key, s in self.sizes.items()}
        other.notes, other.widened, other._names = list(self.notes), dict(self.widened), self._names.copy()
        other._watcher, other._made = None, set()
        return other

    def inline(self, body: Graph, inputs: Sequence[Value]) -> list[Value]:
        """Append copies of the nodes of `body`, and return the values that correspond to its outputs.

        The nodes read `inputs` in place of the inputs of `body`, in order.
        """
        values: dict[Value | None, Value | None] = {None: None, **dict(zip(body.inputs, inputs, strict=True))}

        def here(value: Value | None) -> Value | None:
            if value is not None and value not in values:
                assert value.data is not None
                values[value] = self.constant(value.name, value.data, value.type.quant, value.type.dtype, of=[value])
            return values[value]

        for node in body.nodes:
            names, types = [v.name for v in node.outputs], [v.type for v in node.outputs]
            clone = self.add(_apart(node.op), [here(v) for v in node.inputs], node.origin, names=names, types=types)
            values.update(zip(node.outputs, clone.outputs, strict=True))
        return [output for v in body.outputs if (output := here(v)) is not None]

    def sort(self) -> None:
        """Restore topological order; keep the present order where it is valid (stable, depth first)."""
        order: dict[Node, None] = {}
        for root in self.nodes:
            stack: list[tuple[Node, bool]] = [(root, False)]
            while stack:
                node, ready = stack.pop()
                if node in order:
                    continue
                if ready:
                    order[node] = None
                    continue
                stack.append((node, True))
                producers = [v.producer for v in reversed(node.inputs) if v is not None and v.producer]
                stack.extend((p, False) for p in producers if p not in order)
        if len(order) != len(self.nodes):
            raise VerificationError("every producer must be a node of the graph")
        self.nodes = order


def with_bodies(op: Operator, other: Callable[[Graph], Graph]) -> Operator:
    """Return a copy of an operator in which each nested graph (`Operator.bodies`) is replaced by `other(body)`.

    An operator without nested graphs is returned unchanged.
    """
    bodies = {f.name: getattr(op, f.name) for f in fields(op) if isinstance(getattr(op, f.name), Graph)}
    return replace(op, **{name: other(body) for name, body in bodies.items()}) if bodies else op


def _apart(op: Operator) -> Operator:
    """Return the operator with copies of its bodies."""
    return with_bodies(op, Graph.copy) if op.bodies else op


class WidenedWeights(NamedTuple):
    """Weights that are quantized in the model and floats in the graph.

    Attributes:
        float_bytes: Bytes as floats.
        stored_bytes: Bytes as in the model.
        sources: Constants of the model that they were computed from.
    """

    float_bytes: int
    stored_bytes: int
    sources: tuple[ModelConstant, ...]


def merged_sources(values: Iterable[Value | None]) -> tuple[ModelConstant, ...]:
    """Return the constants of the model that these values were computed from, each once.

    A value that a node computes from constants alone, such as dequantized weights, has the sources of these constants.
    """
    return tuple(dict.fromkeys(source for value in values if value is not None for source in _sources(value)))


def _sources(value: Value) -> tuple[ModelConstant, ...]:
    producer = value.producer
    if producer is None or not all(v is None or v.is_constant for v in producer.inputs):
        return value.sources
    return tuple(source for v in producer.inputs if v is not None for source in v.sources)


def constant_data(values: Iterable[Value | None]) -> list[Array]:
    """Return the element arrays of those values that are constants, in order; other values and None are left out."""
    return [value.data for value in values if value is not None and value.data is not None]


def change_type(value: Value, **changes: object) -> None:
    """Change fields of a value's TensorType in place, for example `quant` (keyword arguments are its field names)."""
    value.type = replace(value.type, **changes)  # type: ignore[arg-type]
