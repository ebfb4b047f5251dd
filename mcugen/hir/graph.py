# SPDX-License-Identifier: Apache-2.0
"""The high-level IR: values, nodes and the graph. It knows no operator by name."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mcugen.errors import VerificationError
from mcugen.hir.operator import Operator, Signature
from mcugen.hir.types import Array, DType, QuantParams, TensorType


def free_name(wanted: str, taken: Container[str], separator: str = ".") -> str:
    """`wanted`, numbered if it is taken."""
    name, count = wanted, 1
    while name in taken:
        count += 1
        name = f"{wanted}{separator}{count}"
    return name


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
        self.uses: list[tuple[Node, int]] = []

    @property
    def is_constant(self) -> bool:
        """Whether the elements are known at compile time."""
        return self.data is not None

    @property
    def users(self) -> list[Node]:
        """The nodes that read this value, each once, in order of first use."""
        return list(dict.fromkeys(node for node, _ in self.uses))

    def __repr__(self) -> str:
        return f"%{self.name}: {self.type}"


class Node:
    """One application of an operator. `origin` names the ONNX nodes it stems from (untrusted text)."""

    def __init__(
        self, op: Operator, inputs: Sequence[Value | None], outputs: Sequence[Value], origin: Sequence[str]
    ) -> None:
        self.op = op
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.origin = tuple(dict.fromkeys(origin))
        for output in outputs:
            output.producer = self
        for index, value in enumerate(inputs):
            if value is not None:
                value.uses.append((self, index))

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
        """Rewires one input."""
        old = self.inputs[index]
        if old is not None:
            old.uses.remove((self, index))
        if value is not None:
            value.uses.append((self, index))
        self.inputs = (*self.inputs[:index], value, *self.inputs[index + 1 :])

    @property
    def place(self) -> str:
        """The node for error messages: operator and first ONNX name."""
        return f"{self.op.name} '{self.origin[0]}'" if self.origin and self.origin[0] else self.op.name

    def __repr__(self) -> str:
        return f"<{self.place}>"


class Graph:
    """Nodes in topological order. Safe to edit while iterating over `list(graph.nodes)`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.inputs: list[Value] = []
        self.outputs: list[Value] = []
        self.output_names: list[str] = []
        self.nodes: list[Node] = []
        self.sizes: dict[str, ComputedSize] | None = None
        """By symbol; None where there can be none (shapes in bodies of loops are fixed)."""
        self.assumed: Mapping[str, int] = {}
        """The computed sizes for which this graph is made; others are taken to be as large as they can be."""
        self.shapes_vary = False
        """Whether one program serves other shapes, too: what is computed must not depend on these."""
        self.dropped = Dropped()
        self.notes: list[str] = []
        """What was taken for granted of the model, for people to read (untrusted text)."""
        self._names: set[str] = set()

    def fresh_name(self, wanted: str) -> str:
        """`wanted`, numbered if a value is called so already."""
        name = free_name(wanted, self._names)
        self._names.add(name)
        return name

    def release_name(self, value: Value) -> None:
        """Lets a value that is about to be removed hand its name on."""
        self._names.discard(value.name)

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
        self.outputs.append(value)
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
        self.nodes.insert(self.nodes.index(before) if before else len(self.nodes), node)
        return node

    def remove(self, node: Node) -> None:
        """Takes out a node whose outputs nobody reads."""
        for index in range(len(node.inputs)):
            node.set_input(index, None)
        self.nodes.remove(node)

    def replace(self, old: Value, new: Value) -> None:
        """Makes every reader of `old`, graph outputs included, read `new`."""
        for node, index in list(old.uses):
            node.set_input(index, new)
        self.outputs = [new if value is old else value for value in self.outputs]

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

    def is_output(self, value: Value) -> bool:
        """Whether a caller of the model sees this value."""
        return any(value is output for output in self.outputs)

    def only_user(self, value: Value) -> Node | None:
        """The node that alone reads `value`, if the caller does not see it and there is just one use."""
        return value.uses[0][0] if len(value.uses) == 1 and not self.is_output(value) else None

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
        self.nodes = list(order)


def retyped(value: Value, **changes: object) -> None:
    """Changes fields of a value's type in place (e.g. `quant=`)."""
    value.type = replace(value.type, **changes)  # type: ignore[arg-type]
