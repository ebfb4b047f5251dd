# SPDX-License-Identifier: Apache-2.0
"""Lowering of a graph to a program: every node emits its own instructions through the builder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from itertools import groupby
from typing import Protocol, runtime_checkable

from mcugen.core.errors import VerificationError
from mcugen.hir.graph import Graph, Node
from mcugen.lir.builder import Builder
from mcugen.lir.external import lend_buffers
from mcugen.lir.kernel import Kernel
from mcugen.lir.lesson import lesson_inputs, lesson_ports, phases, stops, training_port_names
from mcugen.lir.program import Program, Space
from mcugen.lir.state import StateUpdate, keep_state


@runtime_checkable
class Lowerable(Protocol):
    """An operator that can be lowered to instructions of the low-level IR.

    Operators that passes always replace before lowering need no `lower`.
    """

    def lower(self, node: Node, builder: Builder) -> None:
        """Append the instructions that compute `node` to the program, by the builder."""


def lower(
    graph: Graph,
    features: frozenset[str],
    states: Mapping[str, str] | None = None,
    optimize: str = "balanced",
    choices: Mapping[Node, Kernel] | None = None,
    any_size: bool = False,
    remarks: Mapping[Node, str] | None = None,
    *,
    widens: bool = False,
) -> Program:
    """Lower a graph to a program of the low-level IR, whose memory is not planned yet.

    Args:
        graph: Graph to lower.
        features: Names of CPU features, and of tuning flags, which select variants of kernels.
        states: For each output that is a state, the name of the input that it becomes in the next call; None for a
            model without states.
        optimize: The user's goal: "speed", "ram", "flash" or "balanced".
        choices: Kernels of nodes for which several fit; other nodes get the first kernel that fits.
        any_size: Whether programs for different run-time sizes must differ in parameters only.
        remarks: For some nodes, text that is added to the reason of the node's kernel in the report.
        widens: Whether to store weights of few bits (such as 4) in the wider type of the computation.
    """
    states = states or {}
    program = Program(graph.name)
    builder = Builder(program, features, optimize, choices, any_size, remarks, widens)
    kept = set(states.values())
    program.states = [builder.endpoint(v.name, v, Space.STATE) for v in graph.inputs if v.name in kept]
    apart = training_port_names(graph)
    program.inputs = [builder.endpoint(v.name, v, Space.INPUT) for v in graph.inputs if v.name not in kept | apart]
    _lower_phases(graph, builder)
    moves = []
    of_input = {e.name: e for e in program.states}
    for name, value in zip(graph.output_names, graph.outputs, strict=True):
        if name in states:
            moves.append(StateUpdate(of_input[states[name]], builder.buffer(value)))
        elif name not in apart:
            program.outputs.append(builder.endpoint(name, value, Space.OUTPUT))
    keep_state(program, moves)
    if graph.external_io:
        lend_buffers(program)
    used = {o.buffer for i in program.instrs for o in i.operands}
    used |= {e.buffer for e in (*program.inputs, *program.outputs, *program.states)}
    used |= set(program.lesson.buffers if program.lesson else ())
    program.buffers = [b for b in program.buffers if b in used]
    return program


def _lower_phases(graph: Graph, builder: Builder) -> None:
    """Emit the instructions of a graph; with training, those of inference first, then the loss, then the rest."""
    program = builder.program
    if graph.lesson is None:
        return lower_nodes(graph, builder)
    runs, judges, learns = phases(graph, graph.lesson)
    _lower(runs, builder)
    run_ends = len(program.instrs)
    lesson_endpoints = lesson_inputs(graph, graph.lesson, builder)
    _lower(judges, builder)
    program.lesson = lesson_ports(graph, graph.lesson, builder, lesson_endpoints, run_ends)
    after_run, after_loss = stops(program, program.lesson)
    program.instrs.insert(run_ends, after_run)
    program.instrs.append(after_loss)
    _lower(learns, builder)


def lower_nodes(graph: Graph, builder: Builder) -> None:
    """Emit the instructions of all nodes of a graph, or of an operator's body, whose inputs already have buffers."""
    _lower(graph.nodes, builder)


def _lower(nodes: Iterable[Node], builder: Builder) -> None:
    for layer, portions in groupby(nodes, lambda node: node.layer):
        with builder.one_layer() if layer else nullcontext():
            _lower_each(portions, builder)


def _lower_each(nodes: Iterable[Node], builder: Builder) -> None:
    for node in nodes:
        if (kernel := builder.chosen_library_kernel(node)) is not None:
            builder.emit_kernel(kernel, node)
            continue
        if not isinstance(node.op, Lowerable):
            raise VerificationError("every operator must have a kernel", node.place, "report this as a bug of mcugen")
        node.op.lower(node, builder)
