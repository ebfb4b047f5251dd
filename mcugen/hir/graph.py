# SPDX-License-Identifier: Apache-2.0
"""The high-level IR: values, nodes and the graph. It knows no operator by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Protocol, overload

from mcugen.errors import VerificationError
from mcugen.hir.lesson import Lesson
from mcugen.hir.names import Names
from mcugen.hir.operator import Operator, Signature
from mcugen.hir.types import Array, DType, QuantParams, TensorType


@dataclass(frozen=True)
class ComputedSize:
    """A length that the model itself finds at run time: at most `high`, and held by the int32 tensor `value`."""

    high: int
    value: Value


@dataclass(frozen=True)
class Dropped:
    """What of an imported model need not be computed: channels, and the multiply-accumulates they would have taken."""

    channels: int = 0
    macs: int = 0


class Value:
    """A tensor: a graph input, a constant (`data` is set) or the output of `producer`. Identity equality."""

    def __init__(self, name: str, type_: TensorType, data: Array | None = None) -> None:
        self.name = name
        self.type = type_
        self.data = data
        self.producer: Node | None = None
        self.uses: dict[tuple[Node, int], None] = {}
        """Who reads it as which input, in order: a set that remembers."""

    @property
    def is_constant(self) -> bool:
        """Whether the elements are known at compile time."""
        return self.data is not None

    @property
    def users(self) -> list[Node]:
        """The nodes that read this value, each once, in order of first use."""
        return list(dict.fromkeys(node for node, _ in self.uses))

    def indices(self) -> dict[Node, list[int]]:
        """At which inputs each of them reads it."""
        found: dict[Node, list[int]] = {}
        for node, index in self.uses:
            found.setdefault(node, []).append(index)
        return found

    def __repr__(self) -> str:
        return f"%{self.name}: {self.type}"


class Node:
    """One application of an operator. `origin` names the ONNX nodes it stems from (untrusted text).

    Nodes one behind the other with the same `layer`, other than 0, compute one layer of the model in portions.
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
        """The only output."""
        (value,) = self.outputs
        return value

    def input(self, index: int) -> Value:
        """Input `index`, which must be present."""
        value = self.inputs[index]
        assert value is not None
        return value

    @property
    def sig(self) -> Signature:
        """The types of inputs and outputs."""
        return Signature(tuple(v.type if v else None for v in self.inputs), tuple(v.type for v in self.outputs))

    def set_input(self, index: int, value: Value | None) -> None:
        """Makes one input read another value, or none."""
        self.read_at([index], value)

    def read_at(self, indices: Iterable[int], value: Value | None) -> None:
        """Makes these inputs read another value, or none; keeps the uses of both values true."""
        inputs = list(self.inputs)
        for index in indices:
            old, inputs[index] = inputs[index], value
            if old is not None:
                del old.uses[self, index]
            if value is not None:
                value.uses[self, index] = None
        self.inputs = tuple(inputs)

    def release_inputs(self) -> None:
        """Rewires all inputs to nothing."""
        self.read_at(range(len(self.inputs)), None)

    @property
    def place(self) -> str:
        """The node for error messages: operator and first ONNX name."""
        return f"{self.op.name} '{self.origin[0]}'" if self.origin and self.origin[0] else self.op.name

    def __repr__(self) -> str:
        return f"<{self.place}>"


class NodeList(Sequence[Node]):
    """Nodes in order. To put one before another, to take one out and to ask for one takes no longer in a long list."""

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        order: list[Node | None] = [None, *nodes, None]
        self._next: dict[Node | None, Node | None] = dict(pairwise(order))
        """What follows each node; the first follows None, and None the last."""
        self._previous: dict[Node | None, Node | None] = {b: a for a, b in pairwise(order)}
        self._indexed: list[Node] | None = None

    def insert_before(self, place: Node | None, node: Node) -> None:
        """Puts in a node: before another one, else at the end."""
        previous = self._previous[place]
        self._next[previous], self._next[node] = node, place
        self._previous[node], self._previous[place] = previous, node
        self._indexed = None

    def remove(self, node: Node) -> None:
        """Takes out a node; KeyError if it is not there."""
        previous, following = self._previous.pop(node), self._next.pop(node)
        self._next[previous], self._previous[following] = following, previous
        self._indexed = None

    @property
    def last(self) -> Node | None:
        """The last one, if there is any."""
        return self._previous[None]

    def behind(self, place: Node | None) -> Iterator[Node]:
        """Those behind a node, or all."""
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
        """All of them as they stand now."""
        if self._indexed is None:
            self._indexed = list(self.behind(None))
        return self._indexed


class Watcher(Protocol):
    """Who wants to know what becomes of a graph."""

    def added(self, node: Node) -> None:
        """Called with a node that has just become part of the graph."""

    def changed(self, node: Node) -> None:
        """One that reads, or is read by, something else than before."""


class Graph:
    """Nodes in topological order. Safe to edit while iterating over `list(graph.nodes)`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.inputs: list[Value] = []
        self.output_names: list[str] = []
        self._outputs: list[Value] = []
        self._places: dict[Value, list[int]] = {}
        """Where a value stands among the outputs."""
        self._nodes = NodeList()
        self.sizes: dict[str, ComputedSize] | None = None
        """By symbol; None where there can be none (shapes in bodies of loops are fixed)."""
        self.assumed: Mapping[str, int] = {}
        """The computed sizes for which this graph is made; others are taken to be as large as they can be."""
        self.shapes_vary = False
        """Whether one program serves other shapes, too: what is computed must not depend on these."""
        self.lesson: Lesson | None = None
        """What of it learns, if anything does."""
        self.external_io = False
        """Whether inputs and outputs lie in memory of the caller's."""
        self.keeps_statistics = False
        """Whether running statistics of normalizations are to change."""
        self.float16_weights = False
        """Whether weights of float layers are to be rounded to float16 numbers."""
        self.dropped = Dropped()
        self.widened: dict[str, tuple[int, int]] = {}
        """Weights that came as codes and became floats, by name: bytes of the floats, and of the codes."""
        self.notes: list[str] = []
        """What was taken for granted of the model, for people to read (untrusted text)."""
        self._names = Names()
        self._watcher: Watcher | None = None
        self._made: set[Node] = set()

    @property
    def nodes(self) -> NodeList:
        """In an order in which each can be computed."""
        return self._nodes

    @nodes.setter
    def nodes(self, nodes: Iterable[Node]) -> None:
        self._nodes = NodeList(nodes)

    @property
    def outputs(self) -> Sequence[Value]:
        """What the caller of the model sees, by `output_names`; it is changed as a whole."""
        return self._outputs

    @outputs.setter
    def outputs(self, values: Iterable[Value]) -> None:
        self._outputs, self._places = list(values), {}
        for place, value in enumerate(self._outputs):
            self._places.setdefault(value, []).append(place)

    def has_name(self, name: str) -> bool:
        """Whether a value is called so."""
        return name in self._names

    def fresh_name(self, wanted: str) -> str:
        """`wanted`, numbered if a value is called so already."""
        return self._names.take(wanted)

    def release_name(self, value: Value) -> None:
        """Lets a value that is about to be removed hand its name on."""
        self._names.release(value.name)

    def rename(self, value: Value, name: str) -> None:
        """Gives a value a name that is free; nothing happens if it is not."""
        if name not in self._names:
            self.release_name(value)
            value.name = self.fresh_name(name)

    def add_input(self, name: str, type_: TensorType) -> Value:
        """A new graph input."""
        value = Value(self.fresh_name(name), type_)
        self.inputs.append(value)
        return value

    def add_output(self, name: str, value: Value) -> None:
        """Makes `value` a graph output with the given outward name."""
        self._places.setdefault(value, []).append(len(self._outputs))
        self._outputs.append(value)
        self.output_names.append(name)

    def constant(self, name: str, data: Array, quant: QuantParams | None = None, dtype: DType | None = None) -> Value:
        """A new constant. `dtype` says what numpy cannot: integers below 8 bits lie in bytes."""
        return Value(self.fresh_name(name), TensorType(data.shape, dtype or DType.of(data), quant), data)

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
        """Appends a node (or inserts it before another). Output types are inferred unless given."""
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
        """Takes out a node whose outputs nobody reads."""
        read = node.inputs
        node.release_inputs()
        self.nodes.remove(node)
        if self._watcher is not None:
            for value in dict.fromkeys(read):
                self._tell_neighbours(self._watcher, value)

    def replace(self, old: Value, new: Value) -> None:
        """Makes every reader of `old`, graph outputs included, read `new`."""
        readers = old.indices()
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
        """Replaces a single-output node by another in the same place; the origins are joined."""
        self.release_name(node.output)
        new = self.add(op, inputs, (*origin, *node.origin), names=[node.output.name], types=types, before=node)
        self.replace(node.output, new.output)
        self.remove(node)
        return new

    @contextmanager
    def watched(self, watcher: Watcher) -> Iterator[None]:
        """Tells of changes that are made meanwhile."""
        self._watcher = watcher
        try:
            yield
        finally:
            self._watcher = None
            self._made.clear()

    def is_new(self, node: Node | None) -> bool:
        """Whether a node was made while the graph was watched."""
        return node in self._made

    @staticmethod
    def _tell_neighbours(watcher: Watcher, value: Value | None) -> None:
        """Of a value that lost a reader: who computes it, and who is alone with it now."""
        if value is not None and value.producer is not None:
            watcher.changed(value.producer)
        if value is not None and len(value.uses) == 1:
            watcher.changed(next(iter(value.uses))[0])

    def is_output(self, value: Value) -> bool:
        """Whether a caller of the model sees this value."""
        return value in self._places

    def only_user(self, value: Value) -> Node | None:
        """The node that alone reads `value`, if the caller does not see it and there is just one use."""
        return next(iter(value.uses))[0] if len(value.uses) == 1 and not self.is_output(value) else None

    def values(self) -> Iterator[Value]:
        """Every value once: inputs, then constants and results in order of appearance."""
        seen: dict[Value, None] = dict.fromkeys(self.inputs)
        for node in self.nodes:
            seen.update(dict.fromkeys(v for v in node.inputs if v is not None))
            seen.update(dict.fromkeys(node.outputs))
        seen.update(dict.fromkeys(self.outputs))
        yield from seen

    def nested(self) -> Iterator[Graph]:
        """This graph, then the bodies of its nodes, at every depth."""
        yield self
        for node in self.nodes:
            for body in node.op.bodies:
                yield from body.nested()

    def copy(self) -> Graph:
        """Another graph with the same operators and data: what is done to it does nothing to this one."""
        other = Graph(self.name)
        other.__dict__.update(self.__dict__)
        values = {value: Value(value.name, value.type, value.data) for value in self.values()}
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
        """Appends the nodes of another graph, which reads these values as its inputs; what its outputs are then."""
        values: dict[Value | None, Value | None] = {None: None, **dict(zip(body.inputs, inputs, strict=True))}

        def here(value: Value | None) -> Value | None:
            if value is not None and value not in values:
                assert value.data is not None
                values[value] = self.constant(value.name, value.data, value.type.quant, value.type.dtype)
            return values[value]

        for node in body.nodes:
            names, types = [v.name for v in node.outputs], [v.type for v in node.outputs]
            made = self.add(_apart(node.op), [here(v) for v in node.inputs], node.origin, names=names, types=types)
            values.update(zip(node.outputs, made.outputs, strict=True))
        return [found for v in body.outputs if (found := here(v)) is not None]

    def sort(self) -> None:
        """Restores topological order, keeping the present order where it is one (stable, depth first)."""
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
    """The same operator with `other` bodies in place of its own."""
    bodies = {f.name: getattr(op, f.name) for f in fields(op) if isinstance(getattr(op, f.name), Graph)}
    return replace(op, **{name: other(body) for name, body in bodies.items()}) if bodies else op


def _apart(op: Operator) -> Operator:
    """The same operator, whose bodies are its own."""
    return with_bodies(op, Graph.copy) if op.bodies else op


def retyped(value: Value, **changes: object) -> None:
    """Changes fields of a value's type in place (e.g. `quant=`)."""
    value.type = replace(value.type, **changes)  # type: ignore[arg-type]
