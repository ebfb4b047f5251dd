# SPDX-License-Identifier: Apache-2.0
"""The instructions of on-device training: a call runs inference, and then optionally the loss and the update."""

from __future__ import annotations

from collections.abc import Iterator

from mcugen.hir.graph import Graph, Node
from mcugen.hir.lesson import Lesson
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Kernel, reads
from mcugen.lir.program import STOP, Access, Endpoint, Instr, LessonPorts, Operand, Program, Space
from mcugen.lir.state import copy_of

STOP_KERNEL = Kernel(
    STOP,
    what="where a call ends that goes no further",
    operands=(reads("x", "the loss, which must be a finite number", optional=True),),
)
"""Declaration of the pseudo-kernel STOP, at which a call of a trainable model may end; it computes nothing."""


def training_port_names(graph: Graph) -> set[str]:
    """Return the names of the inputs and outputs that only training uses: expected output, learning rates and loss.

    The set is empty if the model is not trainable.
    """
    lesson = graph.lesson
    return set() if lesson is None else {lesson.target, lesson.rate, lesson.loss}


def phases(graph: Graph, lesson: Lesson) -> list[list[Node]]:
    """Return the nodes of each phase of a trainable model in order: inference, the loss, and the update of weights.

    Args:
        graph: The trainable graph.
        lesson: Description of its training.
    """
    results = dict(zip(graph.output_names, graph.outputs, strict=True))
    runs = [value for name, value in results.items() if name != lesson.loss and name not in lesson.states]
    scheduled: set[Node] = set()
    phase_nodes = []
    for results_of_phase in (runs, [results[lesson.loss]], list(results.values())):
        needed, todo = set[Node](), [value.producer for value in results_of_phase]
        while todo:
            node = todo.pop()
            if node is not None and node not in needed and node not in scheduled:
                needed.add(node)
                todo += [value.producer for value in node.inputs if value is not None]
        phase_nodes.append([node for node in graph.nodes if node in needed])
        scheduled |= needed
    return phase_nodes


def stops(program: Program, ports: LessonPorts) -> Iterator[Instr]:
    """Yield the two STOP instructions at which a training call may end: one after inference, one after the loss."""
    for phase, operands in enumerate([(), (Operand("x", Access.IN, ports.loss.buffer),)]):
        name = f"{program.name}.stop{phase}"
        yield Instr(STOP, name, operands, {"phase": phase}, op=STOP, origin=(name,), declaration=STOP_KERNEL)


def lesson_inputs(graph: Graph, lesson: Lesson, builder: Builder) -> tuple[Endpoint, Endpoint]:
    """Return the endpoints of the inputs that only training uses: the expected output, then the learning rates.

    Args:
        graph: The trainable graph.
        lesson: Description of its training.
        builder: Builder of the program.
    """
    inputs = {value.name: value for value in graph.inputs}
    target, rate = (builder.endpoint(name, inputs[name], Space.GIVEN) for name in (lesson.target, lesson.rate))
    return target, rate


def lesson_ports(
    graph: Graph, lesson: Lesson, builder: Builder, inputs: tuple[Endpoint, Endpoint], run_ends: int
) -> LessonPorts:
    """Return the arguments and results of training calls, and give the loss a buffer of its own.

    Args:
        graph: The trainable graph.
        lesson: Description of its training.
        builder: Builder of the program.
        inputs: Endpoints of the expected output and the learning rates, in this order (`lesson_inputs`).
        run_ends: Number of instructions that belong to inference, which come first in the program.
    """
    loss = dict(zip(graph.output_names, graph.outputs, strict=True))[lesson.loss]
    first = {name: builder.const(f"{name}.first", array) for name, array in lesson.first.items()}
    of_run = builder.program.instrs[:run_ends]
    source = builder.buffer(loss)
    is_of_run = any(o.buffer is source for instr in of_run for o in instr.operands)
    if is_of_run or source.space is not Space.ARENA:
        builder.bind(loss, builder.scratch(f"{loss.name}.loss", loss.type.dtype, loss.type.count))
        builder.program.instrs.append(copy_of(source, builder.buffer(loss), loss.name, "loss"))
    loss_endpoint = builder.endpoint(lesson.loss, loss, Space.TAKEN)
    builder.bind(loss, source)
    return LessonPorts(*inputs, loss_endpoint, lesson.classes, lesson.what, lesson.learning, first, lesson.layers)
