# SPDX-License-Identifier: Apache-2.0
"""The operator of a segment: a part of the graph that an accelerator, such as an NPU, computes in one invocation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from mcugen.core.errors import ModelError
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.interpreter import run
from mcugen.hir.operator import Operator, Signature
from mcugen.hir.traits import SelfTimed
from mcugen.hir.types import Array, TensorType
from mcugen.lir.builder import Builder


@dataclass(frozen=True)
class CommandListing:
    """The commands of an accelerator for readers.

    Attributes:
        text: A line for each command.
        data: The same as JSON data.
    """

    text: str
    data: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class CompiledSegment(ABC):
    """A segment as an accelerator's compiler returns it: its cost, and the calls that run it.

    Attributes:
        accelerator: Name of the accelerator for reports, such as "Ethos-U55-128".
        accelerator_cycles: Estimated cycles of one invocation, in cycles of the accelerator's clock.
        cpu_cycles: Estimated time of one invocation in cycles of the CPU's clock, with the driver and the maintenance
            of caches.
        scratch_bytes: Bytes of RAM that the accelerator needs besides inputs and outputs.
        constant_bytes: Bytes of flash for commands and weights.
    """

    accelerator: str
    accelerator_cycles: float
    cpu_cycles: float
    scratch_bytes: int
    constant_bytes: int

    @abstractmethod
    def emit(self, node: Node, builder: Builder) -> None:
        """Append the instructions that compute `node`, an Offloaded node, to the program.

        The one that invokes the accelerator gets the work that it does (Instr.offloaded).
        """

    def listing(self) -> CommandListing | None:
        """Return the commands of the segment for readers; None if the accelerator has no such listing."""
        return None


class Offloaded(SelfTimed, Operator):
    """A segment of the graph that an accelerator computes; inputs and outputs are those of the body.

    The body is evaluated by the operators' numpy forms: accelerators compute the same bits. It is none of
    `Operator.bodies`, since the CPU runs none of its nodes.

    Attributes:
        body: The segment as a graph.
        segment: What the accelerator's compiler made of it.
    """

    mnemonic: ClassVar[str] = "offloaded"
    body: Graph = field(repr=False)
    segment: CompiledSegment = field(repr=False)

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the types of the body's outputs."""
        formals = [value.type for value in self.body.inputs]
        if list(inputs) != formals:
            raise ModelError("offloaded: inputs must have the types of the body's inputs", str(inputs), "repair it")
        return tuple(value.type for value in self.body.outputs)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the outputs by interpreting the body."""
        return tuple(run(self.body, list(arrays)))

    def macs(self, sig: Signature) -> int:
        """Return the sum of the multiply-accumulates of the body's nodes."""
        return sum(node.op.macs(node.sig) for node in self.body.nodes)

    def cycles(self, sig: Signature) -> float:
        """Return the estimated time of one invocation in cycles of the CPU's clock."""
        return self.segment.cpu_cycles

    def lower(self, node: Node, builder: Builder) -> None:
        """Emit the calls that run the segment, as one layer."""
        with builder.one_layer():
            self.segment.emit(node, builder)


def offloaded_nodes(graph: Graph) -> Iterator[tuple[Node, Offloaded, int]]:
    """Yield the nodes of a graph and of its loops that an accelerator computes.

    Each comes with its operator and the number of runs per inference.
    """
    for node in graph.nodes:
        for body, repeats in zip(node.op.bodies, node.op.repeats, strict=True):
            yield from ((inner, op, repeats * runs) for inner, op, runs in offloaded_nodes(body))
        if isinstance(node.op, Offloaded):
            yield node, node.op, 1


def offload(
    graph: Graph, nodes: Sequence[Node], body: Graph, inputs: Sequence[Value], segment: CompiledSegment
) -> Node:
    """Replace nodes of a graph by one node that an accelerator computes, and return it.

    Args:
        graph: The graph, changed in place.
        nodes: The nodes, in the order of the graph; no path from one of them to another leaves them.
        body: The nodes as a graph of their own (`body_of`), perhaps with operators that the accelerator rounds alike.
        inputs: The values of `graph` that are the body's inputs.
        segment: What the accelerator's compiler made of the body.
    """
    results = {value.name: value for node in nodes for value in node.outputs}
    olds = [results[name] for name in body.output_names]
    origin = tuple(dict.fromkeys(name for node in nodes for name in node.origin))
    names, types = [value.name for value in olds], [value.type for value in olds]
    place = next((n for n in graph.nodes if n not in nodes and any(v in olds for v in n.inputs)), None)
    node = graph.add(Offloaded(body, segment), inputs, origin, names=names, types=types, before=place)
    for old, new in zip(olds, node.outputs, strict=True):
        graph.replace(old, new)
    for old_node in reversed(list(nodes)):
        graph.remove(old_node)
    graph.sort()
    return node
