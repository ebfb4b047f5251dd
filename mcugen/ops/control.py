# SPDX-License-Identifier: Apache-2.0
"""Control flow: If, Loop and Scan, whose bodies are graphs of their own.

What is known at compile time is resolved there: a constant condition selects its branch, and a loop with a single step
becomes that step. Loops are unrolled if shapes change from step to step, or if a body needs the step number as a
constant. All other loops and branches become those of C.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, TypeVar

import numpy as np

from mcugen.core.errors import ModelError
from mcugen.core.limits import MAX_LOOP_OPERATIONS, MAX_UNROLL_FOLDED_ELEMENTS, MAX_UNROLLED_STEPS
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.interpreter import run
from mcugen.hir.operator import Operator, Signature
from mcugen.hir.traits import Partial, Stepwise
from mcugen.hir.types import Array, DType, Layout, Shape, TensorType
from mcugen.kernels.common.lstm_loop import LstmLoopSpec
from mcugen.kernels.common.strided_loops import dense_strides
from mcugen.kernels.portable.movement import COPY, CopyLoops
from mcugen.lir.builder import Builder
from mcugen.lir.copies import Offsets
from mcugen.lir.kernel import Call
from mcugen.lir.lower import lower_nodes
from mcugen.lir.moves import order_moves
from mcugen.lir.program import Access, Buffer, Control
from mcugen.lir.spec import HasKernels, spec_of
from mcugen.ops.cells import cell_of, compose_layer
from mcugen.ops.conversion import Cast
from mcugen.ops.counted import LoopState, as_number, counted, rows_by_number
from mcugen.ops.lstm_step import LstmStep, lstm_step
from mcugen.ops.movement import Concat, Reshape, Slice
from mcugen.ops.onnx_node import Body, BodyRefusal, OnnxNode, Refusal, not_constant, onnx_operator

STEP_COUNTER_TYPE = TensorType((), DType.INT64)
"""Type of a loop's step number: an int64 scalar."""

T = TypeVar("T")
"""Type variable of any type."""


def plain(type_: TensorType) -> TensorType:
    """Return a tensor type without quantization and layout, on which bodies of loops and branches do not depend."""
    return replace(type_, quant=None, layout=Layout.NONE)


def work(graph: Graph) -> int:
    """Return the number of operators that one run of `graph` executes; operators in a loop count once per step."""
    return sum(1 + node.op.work if isinstance(node.op, Branch | Repeat) else 1 for node in graph.nodes)


def _macs(graph: Graph) -> int:
    return sum(node.op.macs(node.sig) for node in graph.nodes)


def _require_types(name: str, formal: Sequence[Value], actual: Sequence[TensorType | None]) -> None:
    actual_types = [None if t is None else (t.shape, t.dtype) for t in actual]
    if actual_types != [(v.type.shape, v.type.dtype) for v in formal]:
        expected = ", ".join(str(v.type) for v in formal)
        raise ModelError(f"{name}: inputs must have the types that its body expects", f"not {expected}", "repair it")


# --------------------------------------------------------------------------------------------------- branch


class Branch(Operator):
    """Compute graph `then` if the first input is true, else graph `otherwise`.

    The other inputs are those of `then`, followed by those of `otherwise`.

    Attributes:
        then: Graph of the branch for a true condition.
        otherwise: Graph of the branch for a false condition.
    """

    mnemonic: ClassVar[str] = "branch"
    then: Graph = field(repr=False)
    otherwise: Graph = field(repr=False)

    @property
    def bodies(self) -> tuple[Graph, ...]:
        """Return the graphs of both branches: `then`, then `otherwise`."""
        return (self.then, self.otherwise)

    @property
    def work(self) -> int:
        """Return the number of operators that the branch with more operators executes."""
        return max(work(body) for body in self.bodies)

    def _split(self, items: Sequence[T]) -> tuple[Sequence[T], Sequence[T]]:
        """Split the items that follow the condition into those of each branch."""
        middle = 1 + len(self.then.inputs)
        return items[1:middle], items[middle:]

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the types of the results, which are equal in both branches."""
        for body, types in zip(self.bodies, self._split(inputs), strict=True):
            _require_types(self.name, body.inputs, types)
        return tuple(plain(v.type) for v in self.then.outputs)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the outputs by interpreting the branch that the condition selects."""
        branch = 0 if arrays[0].any() else 1
        return tuple(run(self.bodies[branch], self._split(arrays)[branch]))

    def macs(self, sig: Signature) -> int:
        """Return the multiply-accumulates of the branch that has more of them."""
        return max(map(_macs, self.bodies))

    def lower(self, node: Node, builder: Builder) -> None:
        """Emit an `if` statement in C. Both branches write their results to the same buffers."""
        with builder.one_layer():
            builder.mark(node, Control.IF, [("cond", Access.IN, builder.buffer(node.input(0)))])
            for body, values in zip(self.bodies, self._split(node.inputs), strict=True):
                if body is self.otherwise:
                    builder.mark(node, Control.ELSE)
                _bind(body.inputs, values, builder)
                lower_nodes(body, builder)
                for result, output in zip(body.outputs, node.outputs, strict=True):
                    builder.move(node, builder.buffer(result), builder.buffer(output), "result")
            builder.mark(node, Control.END)


def _bind(formal: Sequence[Value], actual: Sequence[Value | None], builder: Builder) -> None:
    for inner, outer in zip(formal, actual, strict=True):
        assert outer is not None
        builder.alias(inner, outer)


# --------------------------------------------------------------------------------------------------- repeat


@dataclass(frozen=True)
class Walk:
    """The traversal of a tensor by the steps of a loop, each of which reads or writes one slice.

    Attributes:
        axis: Axis along which the slices lie.
        backwards: Whether the first step uses the last slice.
    """

    axis: int = 0
    backwards: bool = False

    def __str__(self) -> str:
        return f"axis {self.axis}{' backwards' * self.backwards}"

    def part(self, whole: Shape) -> Shape:
        """Return the shape of the slice of a tensor that one step of a loop uses: `whole` without the sliced axis."""
        return whole[: self.axis] + whole[self.axis + 1 :]

    def whole(self, part: Shape, steps: int) -> Shape:
        """Return the shape of the tensor that stacks the slices of all steps of a loop along a new axis.

        Args:
            part: Shape of one slice.
            steps: Number of steps of the loop.
        """
        return (*part[: self.axis], steps, *part[self.axis :])

    def position(self, step: int, steps: int) -> int:
        """Return the index, along the sliced axis, of the slice that a step of a loop reads or writes.

        Args:
            step: Number of the step, from 0.
            steps: Number of steps of the loop.
        """
        return steps - 1 - step if self.backwards else step


class Repeat(HasKernels, Partial, Stepwise, Operator):
    """A loop that runs `body` `steps` times.

    Inputs of the node: the first condition (only if `conditional`), the initial values of the `states`, the tensors of
    which each step reads one slice (`taken`), and tensors that all steps read as a whole. Inputs of the body: the step
    number, the states, the slices, and the whole tensors. Outputs of the body: the next condition (only if
    `conditional`), the next states, and one slice of each tensor in `stacked`. Outputs of the node: the final states
    and the stacked tensors.

    Attributes:
        body: Graph of one step.
        steps: Number of steps, or the largest number if `conditional`.
        states: Number of values that the loop carries from step to step.
        taken: For each tensor that is read slice by slice, the axis and the direction of the slices.
        stacked: For each tensor that the slices of all steps form, the axis and the direction of the slices.
        conditional: Whether the loop ends early, once its condition is false.
    """

    mnemonic: ClassVar[str] = "repeat"
    body: Graph = field(repr=False)
    steps: int
    states: int
    taken: tuple[Walk, ...] = ()
    stacked: tuple[Walk, ...] = ()
    conditional: bool = False

    @property
    def bodies(self) -> tuple[Graph, ...]:
        """Return the graph of the loop's body, in a tuple of one."""
        return (self.body,)

    @property
    def work(self) -> int:
        """Return the number of operators that all steps together execute."""
        return self.steps * work(self.body)

    def _split(self, items: Sequence[T]) -> tuple[Sequence[T], Sequence[T], Sequence[T], Sequence[T]]:
        """Split the node's inputs into the condition (if there is one), states, sliced tensors, and whole tensors."""
        first = int(self.conditional)
        second = first + self.states
        third = second + len(self.taken)
        return items[:first], items[first:second], items[second:third], items[third:]

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the types of the final states, and of stacked tensors, which get an axis of steps."""
        _, states, scan_inputs, seen = self._split(inputs)
        parts = [
            None if t is None else plain(t.with_shape(w.part(t.shape)))
            for t, w in zip(scan_inputs, self.taken, strict=True)
        ]
        _require_types(self.name, self.body.inputs, [STEP_COUNTER_TYPE, *states, *parts, *seen])
        _, results, rows = self._results(self.body.outputs)
        _require_types(self.name, results, states)
        whole = [v.type.with_shape(w.whole(v.type.shape, self.steps)) for v, w in zip(rows, self.stacked, strict=True)]
        return tuple(plain(t) for t in (*(v.type for v in results), *whole))

    def _results(self, items: Sequence[T]) -> tuple[Sequence[T], Sequence[T], Sequence[T]]:
        """Split the body's results into the condition (if there is one), states, and slices of stacked tensors."""
        first, second = int(self.conditional), int(self.conditional) + self.states
        return items[:first], items[first:second], items[second:]

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the outputs by interpreting the body step by step."""
        cond, states, scan_inputs, seen = self._split(arrays)
        rows: list[Sequence[Array]] = []
        for step in range(self.steps):
            if self.conditional and not cond[0].any():
                break
            parts = [a.take(w.position(step, self.steps), w.axis) for a, w in zip(scan_inputs, self.taken, strict=True)]
            cond, states, row = self._results(run(self.body, [np.asarray(step), *states, *parts, *seen]))
            rows.append(row)
        columns = [[row[i] for row in rows] for i in range(len(self.stacked))]
        stacks = [np.stack(c[::-1] if w.backwards else c, w.axis) for c, w in zip(columns, self.stacked, strict=True)]
        return (*states, *stacks)

    @property
    def repeats(self) -> tuple[int, ...]:
        """Return how often the loop's body runs, at most: the number of steps, in a tuple of one."""
        return (self.steps,)

    def spec(self, node: Node) -> LstmLoopSpec | Node:
        """Return what kernels need to know of the loop: for the steps of a quantized LSTM, its layers and states.

        Other loops, which have no kernel of their own, return the node itself.
        """
        step = self._lstm_step()
        if step is None:
            return node
        first = [None if value is None else value.data for value in node.inputs[:2]]
        layers, states = (spec_of(step.inner), spec_of(step.recurrent)), (step.hidden.type, step.cell.type)
        return LstmLoopSpec(self.steps, self.taken[0].axis, bool(self.stacked), *layers, *states, *first)

    def _lstm_step(self) -> LstmStep | None:
        """Return the body as a quantized LSTM step, or None if it is none.

        The loop must read x from front to back, and stack h in the same way or not at all.
        """
        if self.conditional or self.states != 2 or self.taken not in ((Walk(0),), (Walk(1),)):
            return None
        return lstm_step(self.body) if self.stacked in ((), self.taken) else None

    def computed(self, needed: Sequence[bool]) -> Sequence[bool]:
        """Return, for each output, whether the loop computes it: all final states, stacked outputs only if needed."""
        return [index < self.states or is_needed for index, is_needed in enumerate(needed)]

    def keeping(self, needed: Sequence[bool]) -> Repeat:
        """Return the loop without the stacked outputs that are not needed.

        Args:
            needed: For each output of the node, whether it is needed: final states (always True), then stacked outputs.
        """
        body, first = self.body.copy(), int(self.conditional)
        kept = [index for index in range(len(body.outputs)) if index < first or needed[index - first]]
        names, values = [body.output_names[i] for i in kept], [body.outputs[i] for i in kept]
        body.output_names, body.outputs = names, values
        stacked = tuple(w for w, is_needed in zip(self.stacked, needed[self.states :], strict=True) if is_needed)
        return replace(self, body=body, stacked=stacked)

    def last_part(self, node: Node, output: Value) -> tuple[int, int] | None:
        """Return where a stacked output holds the slice of the last step, if this slice is also a final state.

        Returns:
            The offset and the number of elements of the slice; None if the slices are not values of a state, the slice
            is not contiguous, or the loop may end early.
        """
        index = node.outputs.index(output) - self.states
        if self.conditional or not self.steps or index < 0 or self._stacked_state(index) is None:
            return None
        walk, count = self.stacked[index], output.type.count // self.steps
        is_run = math.prod(output.type.shape[: walk.axis]) == 1
        return (walk.position(self.steps - 1, self.steps) * count, count) if is_run else None

    def last_state(self, node: Node, graph: Graph, output: Value) -> Value:
        """Return the loop's output with the final value of a state, given the output that stacks this state's values.

        Args:
            node: Node of the loop.
            graph: Graph of the node; unused, since the loop always outputs final states.
            output: The stacked output, for which `last_part` does not return None.
        """
        index = self._stacked_state(node.outputs.index(output) - self.states)
        assert index is not None
        return node.outputs[index]

    def _stacked_state(self, index: int) -> int | None:
        """Return the index of the state that is stacked as output `index`; None if that output stacks no state."""
        _, states, rows = self._results(self.body.outputs)
        return next((k for k, v in enumerate(states) if v is rows[index]), None)

    def macs(self, sig: Signature) -> int:
        """Return the multiply-accumulates of all steps."""
        return self.steps * _macs(self.body)

    def lower(self, node: Node, builder: Builder) -> None:
        """Emit a loop in C. Each state, a value carried from step to step, has a buffer that each step updates last."""
        cond, states, scan_inputs, seen = self._split(node.inputs)
        index = builder.scratch(f"{node.outputs[0].name}.step", DType.INT64, 1)
        with builder.one_layer():
            kept = [_first(node, v, builder) for v in (*cond, *states)]
            conds, buffers = kept[: len(cond)], kept[len(cond) :]
            _bind_to(node.outputs[: self.states], buffers, builder)
            stacks = [builder.buffer(v) for v in node.outputs[self.states :]]
            loop = [("cond", Access.IN, b) for b in conds]
            rows = [(f"part{i}", Access.OUT, b) for i, b in enumerate(stacks)]
            builder.mark(node, Control.FOR, [("index", Access.OUT, index), *loop, *rows], steps=self.steps)
            self._lower_step(node, builder, index, kept, list(scan_inputs), list(seen))
            builder.mark(node, Control.END, [("index", Access.INOUT, index), *loop])

    def _lower_step(
        self,
        node: Node,
        builder: Builder,
        index: Buffer,
        kept: list[Buffer],
        scan_inputs: list[Value | None],
        seen: list[Value | None],
    ) -> None:
        formal = self.body.inputs
        _bind_to(formal[: 1 + self.states], [index, *kept[int(self.conditional) :]], builder)
        parts, shared_formals = (
            formal[1 + self.states :][: len(scan_inputs)],
            formal[1 + self.states + len(scan_inputs) :],
        )
        _bind(shared_formals, seen, builder)
        for value, part, walk in zip(scan_inputs, parts, self.taken, strict=True):
            assert value is not None
            if part.uses or self.body.is_output(part):
                window = _Window(walk, value.type.shape, self.steps)
                window.emit(node, builder, index, builder.buffer(value), builder.buffer(part), reads=True)
        lower_nodes(self.body, builder)
        conds, results, rows = self._results(self.body.outputs)
        for row, output, walk in zip(rows, node.outputs[self.states :], self.stacked, strict=True):
            window = _Window(walk, output.type.shape, self.steps)
            window.emit(node, builder, index, builder.buffer(row), builder.buffer(output), reads=False)
        after = [builder.buffer(v) for v in (*conds, *results)]

        def spare(state: Buffer) -> Buffer:
            return builder.scratch(f"{state.name}.old", state.dtype, state.count)

        for source, target in order_moves(list(zip(after, kept, strict=True)), spare):
            builder.move(node, source, target, "next value")


def _bind_to(values: Sequence[Value], buffers: Sequence[Buffer], builder: Builder) -> None:
    for value, buffer in zip(values, buffers, strict=True):
        builder.bind(value, buffer)


def _first(node: Node, value: Value | None, builder: Builder) -> Buffer:
    """Return a buffer for a state, initialized with its first value."""
    assert value is not None
    buffer = builder.scratch(f"{value.name}.state", value.type.dtype, value.type.count)
    builder.move(node, builder.buffer(value), buffer, "first value")
    return buffer


@dataclass(frozen=True)
class _Window:
    """Copies one step's part out of, or into, a whole tensor of shape `whole`."""

    walk: Walk
    whole: Shape
    steps: int

    def emit(self, node: Node, builder: Builder, index: Buffer, x: Buffer, y: Buffer, *, reads: bool) -> None:
        """Emit the copy of buffer `x` to `y`. With `reads`, `x` is the stacked tensor; else `y` is."""
        part = self.walk.part(self.whole)
        strides = dense_strides(self.whole)
        stride, inner = strides[self.walk.axis], list(self.walk.part(tuple(strides)))
        offset, growth = ((self.steps - 1) * stride, -stride) if self.walk.backwards else (0, stride)
        walks = (inner, dense_strides(part)) if reads else (dense_strides(part), inner)
        loops, whole, step = CopyLoops.of(part, *walks), "x" if reads else "y", "y" if reads else "x"
        places = {f"{whole}_offset": offset, f"{step}_offset": 0, f"{whole}_step": growth, f"{step}_step": 0}
        call = Call(
            COPY,
            {"x": x, "y": y, "step": index},
            [Offsets(**places), *loops.params(y.dtype)],
            [loops.options(x.dtype, stepped=True)],
            access={} if reads else {"y": Access.INOUT},
            variant=f"step_{loops.variant(x.dtype)}",
            note=f"the step's part, along {self.walk}",
        )
        builder.call(node, call)


# --------------------------------------------------------------------------------------------------- import


class _Capture:
    """A body's graph while it is imported, with the values of the graph around it that it reads."""

    def __init__(self, name: str) -> None:
        self.graph = Graph(name)
        self.inner: dict[Value, Value] = {}
        """By value around, the one inside."""

    def __call__(self, outer: Value) -> Value:
        """Return the value inside the body that stands for `outer`.

        Constants, and values computed from constants alone, are repeated inside; others become inputs of the body.
        """
        if outer not in self.inner:
            self.inner[outer] = self._constant(outer) or self.graph.add_input(outer.name, plain(outer.type))
        return self.inner[outer]

    def _constant(self, outer: Value) -> Value | None:
        if outer.data is not None:
            return self.graph.constant(outer.name, outer.data, outer.type.quant, outer.type.dtype, of=[outer])
        producer = outer.producer
        if (
            producer is None
            or len(producer.outputs) > 1
            or not all(v is not None and v.is_constant for v in producer.inputs)
        ):
            return None
        inputs = [self(v) for v in producer.inputs if v is not None]
        return self.graph.add(producer.op, inputs, producer.origin, names=[outer.name], types=[outer.type]).output

    def finish(self, results: Sequence[Value], names: Sequence[str]) -> list[Value]:
        """Declare the results, drop unread inputs, and return the captured outer values of the other inputs."""
        for name, value in zip(names, results, strict=True):
            self.graph.add_output(name, value)
        read = {o: i for o, i in self.inner.items() if i in self.graph.inputs}
        unread = [i for i in read.values() if not i.uses and not self.graph.is_output(i)]
        self.graph.inputs = [v for v in self.graph.inputs if v not in unread]
        return [o for o, i in read.items() if i not in unread]


def _stored(node: OnnxNode, index: int) -> Value:
    """Return an input in its ONNX type.

    float16 values that are computed as float32 are narrowed, so that states round as in ONNX.
    """
    value = node.input(index)
    dtype = node.dtypes[index]
    return _as(node.graph, value, dtype) if dtype is not None and dtype.is_narrow_float else value


def _as(graph: Graph, value: Value, dtype: DType | None) -> Value:
    """Return `value` as float32 or as the 16-bit float `dtype`, if it is one of these types and `dtype` is another.

    The two sides of a branch or the states of a loop may disagree on which of these types a value has.
    """
    own_dtype = value.type.dtype
    both = dtype is not None and {own_dtype, dtype} <= {DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16}
    if dtype is None or dtype is own_dtype or not both:
        return value
    if value.data is not None:
        return graph.constant(f"{value.name}.{dtype.tag}", value.data.astype(dtype.numpy), of=[value])
    return graph.add(Cast(dtype), [value], names=[f"{value.name}.{dtype.tag}"]).output


def _names(node: OnnxNode, count: int) -> list[str]:
    first = next(filter(None, node.outputs), node.op_type)
    output_names = [*node.outputs, *[""] * count][:count]
    return [name or f"{first}.out{i}" for i, name in enumerate(output_names)]


def _empty(node: OnnxNode, name: str, type_: TensorType) -> Value:
    return node.graph.constant(name, np.empty(type_.shape, type_.dtype.numpy), dtype=type_.dtype)


def _condition(node: OnnxNode, index: int) -> Value:
    value = node.input(index)
    if value.type.count != 1 or value.type.dtype is not DType.BOOL:
        raise Refusal(f"{node.op_type}: the condition must be one bool", str(value.type), "repair the model")
    return value


@onnx_operator(
    "If",
    kernels=("move",),
    limits="branches of one shape and type, unless the condition is constant",
    keeps_halves=True,
)
def _import_if(node: OnnxNode) -> list[Value]:
    """Import If.

    A constant condition selects its branch; else the results of both branches must have the same types.
    """
    cond = _condition(node, 0)
    bodies = [node.body(key) for key in ("then_branch", "else_branch")]
    place = _names(node, 1)[0]
    if cond.data is not None:
        return bodies[0 if cond.data.any() else 1].import_into(node.graph, [], place)
    captures = [_Capture(f"{place}.{side}") for side in ("then", "else")]
    results = _branches(cond, bodies, captures)
    if len(results[0]) != len(results[1]):
        raise ModelError("If: branches must give equally many results", f"{len(results[0])} and {len(results[1])}")
    for index, pair in enumerate(zip(*results, strict=True)):
        half = next((v.type.dtype for v in pair if v.type.dtype.is_narrow_float), None)
        for side, value in enumerate(pair):
            results[side][index] = _as(captures[side].graph, value, half)
        types = [plain(side[index].type) for side in results]
        if types[0] != types[1]:
            rule = "If: both branches must give results of one type and shape, where the condition is not constant"
            raise not_constant(rule, cond, f"; '{bodies[0].outputs[index]}' is {types[0]} or {types[1]}")
    names = _names(node, len(results[0]))
    known = [i for i, v in enumerate(results[0]) if not v.type.count]
    kept = [i for i in range(len(names)) if i not in known]
    seen = [c.finish([r[i] for i in kept], [names[i] for i in kept]) for c, r in zip(captures, results, strict=True)]
    op = Branch(captures[0].graph, captures[1].graph)
    outputs: dict[int, Value] = {i: _empty(node, names[i], results[0][i].type) for i in known}
    if kept:
        inputs = [cond, *seen[0], *seen[1]]
        branch_node = node.graph.add(op, inputs, (node.name or names[0],), names=[names[i] for i in kept])
        outputs |= dict(zip(kept, branch_node.outputs, strict=True))
    return [outputs[i] for i in range(len(names))]


def _branches(cond: Value, bodies: Sequence[Body], captures: Sequence[_Capture]) -> list[list[Value]]:
    """Import both branches and return their results.

    Raises:
        BodyRefusal: A branch is not supported; the message names the reasons of both, and how to avoid the branch.
    """
    results: list[list[Value]] = []
    reasons: list[str] = []
    for body, capture in zip(bodies, captures, strict=True):
        try:
            results.append(body.import_into(capture.graph, [], capture.graph.name, capture))
        except BodyRefusal as refusal:
            reasons += refusal.reasons
    if reasons:
        raise BodyRefusal(reasons, not_constant("", cond).remedy if results else "")
    return results


OuterResults = tuple[Value | None, list[Value], list[Value]]
"""Outputs of a loop body: the next condition (None if there is no condition), the next states, and the slices of
stacked results."""


@dataclass
class _Repetition:
    """A Loop or a Scan on its way to the graph."""

    node: OnnxNode
    body: Body
    steps: int
    cond: Value | None
    """The first condition, None if it is true."""
    initial: list[Value]
    taken: list[tuple[Value, Walk]]
    stacked: Callable[[int, int], Walk]
    """How part `index` of a given rank is stacked."""
    counts: bool
    """Whether the body is a Loop's, which reads the step's number and a condition, and gives a condition."""

    def results(self) -> list[Value]:
        """Return the values of the node's outputs."""
        if self.cond is not None and self.cond.data is not None:
            self.steps *= int(self.cond.data.any())
            self.cond = None
        if self.steps == 1 and self.cond is None:
            return self._unrolled()
        try:
            loop = _LoopBody(self)
        except BodyRefusal as refusal:
            if not 0 < self.steps <= MAX_UNROLLED_STEPS or not refusal.wants_constants:
                raise
            if self.cond is not None:
                raise BodyRefusal([*refusal.reasons, str(self._unknown_condition())]) from refusal
            return self._unrolled()  # the step's number may have to be known
        if self.cond is None:
            loop.count()
        if not self.steps:
            empty = [
                _empty(self.node, f"{n}.none", t) for n, t in zip("r" * len(loop.rows), loop.stack_types(), strict=True)
            ]
            return [*self.initial, *empty]
        if loop.ends_at_once and self.cond is None:
            self.steps = 1
        if self.steps == 1 and self.cond is None:
            return self._unrolled()
        if loop.changes_shapes:
            self._require(self.steps <= MAX_UNROLLED_STEPS, f"states change their shapes in {self.steps} steps")
            return self._unrolled()
        if loop.rows and loop.conditional:
            if self.steps > MAX_UNROLLED_STEPS:
                raise self._unknown_condition()
            return self._unrolled()
        self._require(
            work(loop.graph) * self.steps <= MAX_LOOP_OPERATIONS, f"{work(loop.graph) * self.steps:,} operators to run"
        )
        return loop.emit()

    def split(self, results: list[Value]) -> OuterResults:
        """Condition, next states and parts among a body's results."""
        cond = results.pop(0) if self.counts else None
        return cond, results[: len(self.initial)], results[len(self.initial) :]

    def import_step(
        self, graph: Graph, step: Value, states: list[Value], parts: list[Value], place: str, capture: _Capture | None
    ) -> OuterResults:
        """One step of the body, which runs only while the condition is true."""
        actual = [*states, *parts]
        if self.counts:
            actual = [step, graph.constant(f"{place}.true", np.asarray(True)), *actual]
        if len(actual) != len(self.body.inputs) or len(self.body.outputs) < len(self.initial) + self.counts:
            mismatch = f"{len(self.body.inputs)} and {len(self.body.outputs)}"
            raise Refusal(
                f"{self.node.op_type}: the body's inputs and outputs must be the operator's", mismatch, "repair it"
            )
        cond, states_after, rows = self.split(self.body.import_into(graph, actual, place, capture))
        after = [_as(graph, v, s.type.dtype) for v, s in zip(states_after, self.initial, strict=True)]
        for value, first in zip(after, self.initial, strict=True):
            if value.type.dtype is not first.type.dtype:
                mismatch = f"{first.type.dtype.value}, then {value.type.dtype.value}"
                raise Refusal(f"{self.node.op_type}: a state must keep its element type", mismatch, "repair the model")
        return cond, after, rows

    def _unrolled(self) -> list[Value]:
        """Step after step in the graph around, with its number and all that follows from it known."""
        if self.cond is not None:
            raise self._unknown_condition()
        graph, states, rows = self.node.graph, list(self.initial), list[list[Value]]()
        place = _names(self.node, 1)[0]
        for step in range(self.steps):
            name = f"{place}/{step}"
            number = graph.constant(f"{name}.step", np.asarray(step, np.int64))
            parts = [self._part(value, walk, step, f"{name}.part{i}") for i, (value, walk) in enumerate(self.taken)]
            cond, states, row = self.import_step(graph, number, states, parts, name, None)
            rows.append(row)
            if cond is not None and cond.data is None and step + 1 < self.steps:
                raise self._unknown_condition()
            if cond is not None and cond.data is not None and not cond.data.any():
                break
        columns = [[row[i] for row in rows] for i in range(len(rows[0]))]
        return [*states, *(self._stack(i, column) for i, column in enumerate(columns))]

    def _part(self, value: Value, walk: Walk, step: int, name: str) -> Value:
        shape, at = value.type.shape, walk.position(step, self.steps)
        if value.data is not None:
            return self.node.graph.constant(name, value.data.take(at, walk.axis), dtype=value.type.dtype)
        starts = tuple(at * (axis == walk.axis) for axis in range(len(shape)))
        sizes = tuple(1 if axis == walk.axis else size for axis, size in enumerate(shape))
        part = self.node.emit(Slice(starts, sizes, (1,) * len(shape)), value, suffix=f"slice{step}")
        return self.node.emit(Reshape(walk.part(shape)), part, suffix=f"part{step}")

    def _stack(self, index: int, column: list[Value]) -> Value:
        first = column[0].type
        if any((v.type.shape, v.type.dtype) != (first.shape, first.dtype) for v in column):
            part_types = ", ".join(str(v.type) for v in column[:4])
            raise Refusal(
                f"{self.node.op_type}: the parts of an output must have one shape", part_types, "repair the model"
            )
        walk = self.stacked(index, first.rank)
        ordered = column[::-1] if walk.backwards else column
        suffix = f"stack{index}"
        if all(v.data is not None for v in ordered) and first.count * len(ordered) <= MAX_UNROLL_FOLDED_ELEMENTS:
            data = np.stack([v.data for v in ordered if v.data is not None], walk.axis)
            return self.node.graph.constant(f"{_names(self.node, 1)[0]}.{suffix}", data, dtype=first.dtype)
        shape = walk.whole(first.shape, 1)
        apart = [self.node.emit(Reshape(shape), v, suffix=f"{suffix}.{i}") for i, v in enumerate(ordered)]
        return self.node.emit(Concat(walk.axis), *apart, suffix=suffix)

    def _unknown_condition(self) -> Refusal:
        when = "with outputs that grow, or steps that cannot be alike,"
        rule = f"{self.node.op_type}: {when} the condition must be constant"
        if self.cond is not None:
            return not_constant(rule, self.cond)
        return Refusal(rule, "one that the body computes", "give the loop a fixed number of steps")

    def _require(self, holds: bool, workload: str) -> None:
        if not holds:
            limits = f"{MAX_UNROLLED_STEPS} unrolled steps, and {MAX_LOOP_OPERATIONS:,} operators run in all"
            rule = f"{self.node.op_type}: at most {limits}"
            raise Refusal(rule, workload, "use fewer steps")


class _LoopBody:
    """The body as a graph of its own."""

    def __init__(self, of: _Repetition) -> None:
        self.of = of
        self.last: dict[int, Array] = {}
        """Of states that count steps, and are none in the loop: their last values."""
        self.taken = list(of.taken)
        self.fixed = {i: v for i, v in enumerate(of.initial) if not v.type.count}
        """States that are constants in all steps, as far as one knows."""
        while True:
            same = self._import()
            if same <= set(self.fixed):
                break
            self.fixed |= {i: of.initial[i] for i in same}

    def _import(self) -> set[int]:
        """Import the body; return the indices of states that start as constants and never change."""
        of = self.of
        self.capture = _Capture(_names(of.node, 1)[0])
        self.graph = graph = self.capture.graph
        step = graph.add_input(f"{graph.name}.step", STEP_COUNTER_TYPE)
        states = [
            self.capture(v) if i in self.fixed else graph.add_input(f"{graph.name}.state{i}", plain(v.type))
            for i, v in enumerate(of.initial)
        ]
        parts = [
            graph.add_input(f"{graph.name}.part{i}", plain(v.type.with_shape(walk.part(v.type.shape))))
            for i, (v, walk) in enumerate(of.taken)
        ]
        self.step, self.read, self.parts = step, states, parts
        self.cond, self.states, self.rows = of.import_step(graph, step, states, parts, graph.name, self.capture)
        return {i for i, v in enumerate(of.initial) if v.is_constant and self.states[i] is states[i]}

    def count(self) -> None:
        """Remove what depends on the step number alone: the condition, counters, and slices gathered by the number."""
        of, graph = self.of, self.graph
        varying = [i for i in range(len(self.states)) if i not in self.fixed]
        states = [LoopState(self.read[i], of.initial[i].data, self.states[i]) for i in varying]
        counted_loop = counted(graph, self.step, states, self.cond, of.steps)
        if counted_loop is None:
            return
        of.steps, self.cond = counted_loop.steps, None
        for i in varying:
            if self.read[i] in counted_loop.numbers:
                self.last[i] = counted_loop.last[self.read[i]]
                self._replace(self.read[i], as_number(graph, self.step, self.read[i].type.dtype))
        outer = {inner: value for value, inner in self.capture.inner.items()}
        for node, axis in rows_by_number(graph, self.step, of.steps):
            part = graph.add_input(f"{graph.name}.part{len(self.parts)}", node.output.type)
            self.taken.append((outer[node.input(0)], Walk(axis)))
            self.parts.append(part)
            self._replace(node.output, part)

    def _replace(self, old: Value, new: Value) -> None:
        """Replace a value in the graph and among the results that are not declared yet."""
        self.graph.replace(old, new)
        self.states, self.rows = ([new if v is old else v for v in values] for values in (self.states, self.rows))

    @property
    def conditional(self) -> bool:
        """Return whether the number of steps is known only at run time."""
        return self.of.cond is not None or (self.cond is not None and self.cond.data is None)

    @property
    def ends_at_once(self) -> bool:
        """Return whether the first step is the last."""
        return self.cond is not None and self.cond.data is not None and not self.cond.data.any()

    @property
    def changes_shapes(self) -> bool:
        """Return whether a state has another shape after a step."""
        return any(v.type.shape != s.type.shape for v, s in zip(self.states, self.of.initial, strict=True))

    def walks(self) -> list[Walk]:
        """Return how each output slice is stacked."""
        return [self.of.stacked(i, v.type.rank) for i, v in enumerate(self.rows)]

    def stack_types(self) -> list[TensorType]:
        """Return the types of the stacked outputs."""
        pairs = zip(self.rows, self.walks(), strict=True)
        return [plain(v.type.with_shape(walk.whole(v.type.shape, self.of.steps))) for v, walk in pairs]

    def emit(self) -> list[Value]:
        """Add the loop to the surrounding graph and return its outputs."""
        of, node = self.of, self.of.node
        names = _names(node, len(self.states) + len(self.rows))
        varying = [i for i in range(len(self.states)) if i not in self.fixed and i not in self.last]
        filled = [i for i, v in enumerate(self.rows) if v.type.count]
        outputs = {i: of.initial[i] for i in self.fixed}
        if (layer := self._layer(varying)) is not None:
            outputs |= layer | {i: node.call("Identity", last) for i, last in self.last.items()}
            return [outputs[i] for i in range(len(names))]
        outputs |= {i: node.graph.constant(f"{names[i]}.last", last) for i, last in self.last.items()}
        seen_by_all = [v for v in self.graph.inputs if v not in (self.step, *self.read, *self.parts)]
        self.graph.inputs = [self.step, *(self.read[i] for i in varying), *self.parts, *seen_by_all]
        conds = [self.cond or self.graph.constant("true", np.asarray(True))] if self.conditional else []
        results = [*conds, *(self.states[i] for i in varying), *(self.rows[i] for i in filled)]
        kept = [names[i] for i in (*varying, *(len(self.states) + i for i in filled))]
        seen = self.capture.finish(results, ["cond"] * len(conds) + kept)
        walks = self.walks()
        op = Repeat(
            self.graph,
            of.steps,
            len(varying),
            tuple(walk for _, walk in self.taken),
            tuple(walks[i] for i in filled),
            self.conditional,
        )
        outputs |= {
            len(self.states) + i: _empty(node, names[len(self.states) + i], t)
            for i, t in enumerate(self.stack_types())
            if i not in filled
        }
        if kept:
            starts = [of.cond or node.graph.constant(f"{names[0]}.start", np.asarray(True))] * len(conds)
            inputs = [*starts, *(of.initial[i] for i in varying), *(value for value, _ in self.taken), *seen]
            places = [*varying, *(len(self.states) + i for i in filled)]
            outputs |= dict(zip(places, _add(node, op, inputs, kept), strict=True))
        return [outputs[i] for i in range(len(names))]

    def _layer(self, varying: list[int]) -> dict[int, Value] | None:
        """Return the outputs of the recurrent layer that the loop is, by output index; None if it is none.

        The body must be one cell, and each stacked output its state h.
        """
        if self.conditional or len(self.taken) != 1 or not varying:
            return None
        (x, walk), of = self.taken[0], self.of
        walks = [of.stacked(i, v.type.rank) for i, v in enumerate(self.rows)]
        is_flat = x.type.rank == 3 and all(self.read[i].type.rank == 2 for i in varying)
        if not is_flat or any(w.backwards != walk.backwards for w in walks):
            return None
        cell = cell_of(self.parts[0], [self.read[i] for i in varying], [self.states[i] for i in varying])
        numbers = [] if cell is None else [varying[i] for i in cell.states]
        if cell is None or any(row is not self.states[numbers[0]] for row in self.rows):
            return None
        steps_first = self._moved_axis(x, walk.axis, 0)
        every, *last = compose_layer(of.node, cell, steps_first, [of.initial[i] for i in numbers], walk.backwards)
        rows = {len(self.states) + i: self._moved_axis(every, 0, w.axis) for i, w in enumerate(walks)}
        return dict(zip(numbers, last, strict=True)) | rows

    def _moved_axis(self, value: Value, axis: int, to: int) -> Value:
        """Return a tensor with one axis at another place; the other axes keep their order."""
        order = [a for a in range(value.type.rank) if a != axis]
        order.insert(to, axis)
        return value if axis == to else self.of.node.call("Transpose", value, perm=order)


def _add(node: OnnxNode, op: Repeat, inputs: Sequence[Value], names: Sequence[str]) -> Sequence[Value]:
    """Add the loop and return its outputs; evaluate it at compile time if all inputs are constant."""
    arrays = [v.data for v in inputs if v.data is not None]
    types = op.infer(*(v.type for v in inputs))
    if len(arrays) < len(inputs) or sum(t.count for t in types) > MAX_UNROLL_FOLDED_ELEMENTS:
        return node.graph.add(op, inputs, (node.name or names[0],), names=names).outputs
    results = op.evaluate(Signature(tuple(v.type for v in inputs), types), *arrays)
    folded = [np.ascontiguousarray(a, t.dtype.numpy).reshape(t.shape) for a, t in zip(results, types, strict=True)]
    return [node.graph.constant(n, a, dtype=t.dtype) for n, a, t in zip(names, folded, types, strict=True)]


@onnx_operator(
    "Loop",
    kernels=("move", "copy"),
    limits="a constant trip count; run-time condition without scan outputs",
    keeps_halves=True,
)
def _import_loop(node: OnnxNode) -> list[Value]:
    """Import Loop. The number of steps needs a static bound, since memory and time must be known."""
    node.require(node.has(0), "the number of steps needs a static bound", "none", "give the loop a constant trip count")
    steps = max(node.whole(0, "the trip count, a static bound of the steps,"), 0)
    return _Repetition(
        node,
        node.body("body"),
        steps,
        _condition(node, 1) if node.has(1) else None,
        [_stored(node, i) for i in range(2, len(node.inputs))],
        [],
        lambda index, rank: Walk(),
        counts=True,
    ).results()


@onnx_operator("Scan", kernels=("move", "copy"), keeps_halves=True)
def _import_scan(node: OnnxNode) -> list[Value]:
    """Import Scan. The length of the scanned axes gives the number of steps."""
    body, count = node.body("body"), int(node.attr("num_scan_inputs", 1))
    states = len(node.inputs) - count
    if not 0 < count <= len(node.inputs) or len(node.outputs) < states:
        raise Refusal("Scan: the inputs must be states and scanned tensors", f"{count} scanned", "repair the model")
    values = [_stored(node, i) for i in range(states, len(node.inputs))]
    axes, directions = _padded(node, "scan_input_axes", count), _padded(node, "scan_input_directions", count)
    walks = [Walk(_axis(a, v.type.rank), bool(d)) for v, a, d in zip(values, axes, directions, strict=True)]
    lengths = {v.type.shape[w.axis] for v, w in zip(values, walks, strict=True)}
    node.require(len(lengths) == 1, "scanned axes must be equally long", f"{sorted(lengths)}")
    outputs = len(body.outputs) - states
    out_axes, out_ways = _padded(node, "scan_output_axes", outputs), _padded(node, "scan_output_directions", outputs)
    return _Repetition(
        node,
        body,
        lengths.pop(),
        None,
        [_stored(node, i) for i in range(states)],
        list(zip(values, walks, strict=True)),
        lambda index, rank: Walk(_axis(out_axes[index], rank + 1), bool(out_ways[index])),
        counts=False,
    ).results()


def _padded(node: OnnxNode, key: str, count: int) -> list[int]:
    entries = node.integers(key)
    return (entries + [0] * count)[: max(count, 0)]


def _axis(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise Refusal("Scan: an axis must be one of the tensor's", f"{axis} of rank {rank}", "repair the model")
    return axis % rank
