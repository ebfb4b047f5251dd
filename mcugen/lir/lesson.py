# SPDX-License-Identifier: Apache-2.0
"""What learns, as instructions: a call runs, or judges what it found, or learns from it, and each goes on where the
one before ends.
"""

from __future__ import annotations

from collections.abc import Iterator

from mcugen.hir.graph import Graph, Node
from mcugen.hir.lesson import Lesson
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Kernel, reads
from mcugen.lir.program import STOP, Access, Instr, LessonPorts, Operand, Program, Space

STOP_KERNEL = Kernel(
    STOP,
    what="where a call ends that goes no further",
    operands=(reads("x", "the loss, which must be a finite number", optional=True),),
)


def lesson_names(graph: Graph) -> set[str]:
    """Of inputs and outputs that no run has."""
    lesson = graph.lesson
    return set() if lesson is None else {lesson.target, lesson.rate, lesson.loss}


def phases(graph: Graph, lesson: Lesson) -> list[list[Node]]:
    """The nodes that a run needs, those that the loss needs besides, and the rest; each in order."""
    results = dict(zip(graph.output_names, graph.outputs, strict=True))
    runs = [value for name, value in results.items() if name != lesson.loss and name not in lesson.states]
    done: set[Node] = set()
    found = []
    for wanted in (runs, [results[lesson.loss]], list(results.values())):
        needed, todo = set[Node](), [value.producer for value in wanted]
        while todo:
            node = todo.pop()
            if node is not None and node not in needed and node not in done:
                needed.add(node)
                todo += [value.producer for value in node.inputs if value is not None]
        found.append([node for node in graph.nodes if node in needed])
        done |= needed
    return found


def stops(program: Program, ports: LessonPorts) -> Iterator[Instr]:
    """What ends a run, and a call that only judges."""
    for phase, operands in enumerate([(), (Operand("x", Access.IN, ports.loss.buffer),)]):
        name = f"{program.name}.stop{phase}"
        yield Instr(STOP, name, operands, {"phase": phase}, op=STOP, origin=(name,), declaration=STOP_KERNEL)


def lesson_ports(graph: Graph, lesson: Lesson, builder: Builder) -> LessonPorts:
    """Target and rate, which the caller hands over, and the loss, which it may ask for."""
    inputs = {value.name: value for value in graph.inputs}
    loss = dict(zip(graph.output_names, graph.outputs, strict=True))[lesson.loss]
    target, rate = (builder.endpoint(name, inputs[name], Space.GIVEN) for name in (lesson.target, lesson.rate))
    first = {name: builder.const(f"{name}.first", array) for name, array in lesson.first.items()}
    ends = target, rate, builder.endpoint(lesson.loss, loss, Space.TAKEN)
    return LessonPorts(*ends, lesson.classes, lesson.what, first)
