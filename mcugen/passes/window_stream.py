# SPDX-License-Identifier: Apache-2.0
"""Streams: a network over a window of time takes only the new steps of a call, and keeps the others as states.

Each tensor along the time axis becomes the steps that one call adds. What a layer needs of earlier steps is a state of
its input: steps that the previous calls computed. A layer that needs the whole window, such as a mean over time, keeps
a window of its input. Operators say which steps they need (trait Croppable).

Positions count the steps of a tensor from the first step of the stream, which is position 0 of the first window.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from mcugen.core.errors import UsageError
from mcugen.hir.crop import Box, Crop, replaced, shape_of, shifted, whole
from mcugen.hir.graph import Graph, Node, Value, change_type
from mcugen.hir.traits import crop_of
from mcugen.hir.types import Array
from mcugen.hir.window_stream import WindowStream
from mcugen.ops.conv import Conv
from mcugen.ops.movement import Concat, Pad
from mcugen.passes.crop import crop_type, part_of

_OPTION = "--stream-steps"


def stream_window(graph: Graph) -> bool:
    """f(window of steps) → f(new steps, states): if the user asks for a stream, the network keeps the other steps.

    Return whether the graph changed.

    Raises:
        UsageError: The network has no such form, or it is unclear which axis counts the steps.
    """
    if graph.stream is None or graph.stream.window:
        return False
    plan, window = _chosen_plan(graph, graph.stream), graph.inputs[0].type.shape
    graph.stream = replace(graph.stream, axis=plan.axis, window=window[plan.axis])
    _Rewrite(graph, plan).apply()
    return True


def _chosen_plan(graph: Graph, stream: WindowStream) -> _Plan:
    """Return the plan for the requested time axis, or for the only axis along which layers have less to compute."""
    source = graph.inputs[0]
    if stream.axis is not None:
        axis = stream.axis
        if not 0 <= axis < source.type.rank or source.type.shape[axis] <= stream.steps:
            seen = f"axis {axis} of '{source.name}' with shape {source.type.shape}"
            raise UsageError(f"{_OPTION}: the window must be longer than the new steps", seen, "name another axis")
        return _Plan(graph, axis, stream.steps)
    plans: list[_Plan] = []
    refusal: UsageError | None = None
    for axis, size in enumerate(source.type.shape):
        if size > stream.steps:
            try:
                plans.append(_Plan(graph, axis, stream.steps))
            except UsageError as error:
                refusal = error
    plans = [plan for plan in plans if plan.saves_work]
    if len(plans) == 1:
        return plans[0]
    if not plans:
        rule = f"{_OPTION}: some layer must need only a part of the window"
        raise refusal or UsageError(rule, "each layer reads the whole window", "leave the option out")
    axes = " and ".join(str(plan.axis) for plan in plans)
    raise UsageError(f"{_OPTION}: the time axis must be clear", f"axes {axes} can be", "give --stream-axis")


@dataclass(frozen=True)
class _Steps:
    """The steps of a tensor in each call.

    Attributes:
        axis: The axis that counts steps.
        count: Number of new steps in a call.
        first: Position of the first new step of the first call; negative if steps come late.
        clean: Window position from which steps do not depend on padding in front of the window.
        window: Number of steps in a whole window, if the tensor were computed for each input step; None if the window
            does not consist of whole calls' strides.
        settled: Position from which steps equal those of the window form, in the first window of a stream.
    """

    axis: int
    count: int
    first: int
    clean: int
    window: int | None
    settled: int

    @property
    def stop(self) -> int:
        """Return the position after the last new step of the first call."""
        return self.first + self.count


@dataclass(frozen=True)
class _Call:
    """The part of a node that one call computes.

    Attributes:
        crop: The operator, and what it reads of each input, at the positions of the first call.
        steps: The steps of the output; None if the output has no time axis, but belongs to the whole window.
    """

    crop: Crop
    steps: _Steps | None


@dataclass
class _Plan:
    """A plan of what each call of a streaming network computes.

    Attributes:
        graph: The graph of the window form.
        axis: The axis of the first input that counts steps.
        new: Number of new steps of the first input in a call.
        steps: The steps of each tensor along the time axis.
        calls: What a call computes of each node that depends on the window.
        needed: Position of the first step that a call needs of a tensor, in the first call.
        windowed: Tensors without a time axis that depend on the window.
        settled_windows: Number of calls after which the results of whole windows are those of the window form.
    """

    graph: Graph
    axis: int
    new: int
    steps: dict[Value, _Steps] = field(default_factory=dict)
    calls: dict[Node, _Call] = field(default_factory=dict)
    needed: dict[Value, int] = field(default_factory=dict)
    settled_windows: int = 0
    windowed: set[Value] = field(default_factory=set)

    def __post_init__(self) -> None:
        source = self.graph.inputs[0]
        self.steps[source] = _Steps(self.axis, self.new, 0, 0, source.type.shape[self.axis], 0)
        for node in self.graph.nodes:
            values = [v for v in node.inputs if v is not None]
            if any(v in self.steps for v in values):
                self.calls[node] = self._streamed(node) or self._on_window(node)
                self._note(node)
            elif any(v in self.windowed for v in values):
                self.windowed |= set(node.outputs)

    @property
    def saves_work(self) -> bool:
        """Return whether calls compute fewer multiply-accumulates than the window form, or else fewer elements."""
        pairs = [(node, call) for node, call in self.calls.items() if call.steps is not None]
        has_macs = any(node.op.macs(node.sig) for node in self.graph.nodes)
        return any(not has_macs or node.op.macs(node.sig) for node, _ in pairs)

    def kept(self, value: Value) -> range:
        """Return the positions that a call has of a tensor: those of its state, then the new ones."""
        steps = self.steps[value]
        return range(min(self.needed.get(value, steps.first), steps.first), steps.stop)

    def _note(self, node: Node) -> None:
        """Note the steps of the output and what is needed of the inputs."""
        call = self.calls[node]
        if call.steps is None:
            self.windowed |= set(node.outputs)
        else:
            self.steps[node.output] = call.steps
        for value, box in zip(node.inputs, call.crop.reads, strict=True):
            if value in self.steps and value is not None and box is not None:
                first = box[self.steps[value].axis][0]
                self.needed[value] = min(self.needed.get(value, first), first)

    def _streamed(self, node: Node) -> _Call | None:
        """Return how a call computes the new steps of a node's output; None if no axis of the output counts steps."""
        if len(node.outputs) > 1 or any(v in self.windowed for v in node.inputs):
            return None
        for axis, size in enumerate(node.output.type.shape):
            interior = _Interior.of(node, axis, self.steps) if size > 1 else None
            if interior is not None:
                return self._call(node, axis, interior)
        return None

    def _call(self, node: Node, axis: int, interior: _Interior) -> _Call:
        """Return what a call computes of a node whose output steps each depend on some steps of the inputs."""
        timed = {index: self.steps[v] for index, v in enumerate(node.inputs) if v in self.steps and v is not None}
        counts = {steps.count / interior.strides[index] for index, steps in timed.items()}
        count = int(min(counts))
        if len(counts) > 1 or count != min(counts) or not count:
            strides = max(interior.strides[index] * self.new // timed[index].count for index in timed)
            raise _refusal(node, f"the number of new steps must be a multiple of {strides}")
        if len(interior.places) < count:
            raise _refusal(node, f"the window must have more than {count} steps without padding")
        ends = [(s.stop - 1 - interior.last[i]) // interior.strides[i] + 1 for i, s in timed.items()]
        first = min(ends) - count
        clean, settled, window = interior.places[0], 0, set[int | None]()
        for index, steps in timed.items():
            stride, low = interior.strides[index], interior.first[index]
            clean = max(clean, -((low - steps.clean) // stride))
            if steps.settled > 0 or (low < 0 and steps.first < 0 and interior.places[0] > 0):
                settled = max(settled, -((low - max(steps.settled, 0)) // stride))
            if interior.places[0] > 0 and not _pads_zeros(node):
                settled = max(settled, interior.places[0])
            whole_window = steps.window is not None and steps.window % stride == 0
            window.add(steps.window // stride if whole_window and steps.window is not None else None)
        total = window.pop() if len(window) == 1 else None
        place = interior.places[(len(interior.places) - count) // 2]
        crop = crop_of(node, replaced(whole(node.output.type.shape), {axis: range(place, place + count)}))
        reads = list(crop.reads)
        for index, steps in timed.items():
            box = crop.reads[index]
            assert box is not None
            reads[index] = _moved(box, steps.axis, (first - place) * interior.strides[index])
        return _Call(replace(crop, reads=tuple(reads)), _Steps(axis, count, first, clean, total, settled))

    def _on_window(self, node: Node) -> _Call:
        """Return how a call computes a node from whole windows of its inputs."""
        everything = Crop(node.op, (), tuple(None if v is None else whole(v.type.shape) for v in node.inputs))
        crop = crop_of(node, whole(node.outputs[0].type.shape)) if len(node.outputs) == 1 else everything
        reads = list(crop.reads)
        for index, (value, box) in enumerate(zip(node.inputs, crop.reads, strict=True)):
            if value not in self.steps or value is None or box is None:
                continue
            steps = self.steps[value]
            read = box[steps.axis]
            if steps.window is None:
                raise _refusal(node, "it reads the whole window, which must be a multiple of the strides before it")
            if read[0] < steps.clean:
                seen = f"of its steps {read[0]} to {read[-1]}, those before {steps.clean} depend on padding"
                raise _refusal(node, f"it must not read steps that depend on padding of the window's start: {seen}")
            if read[-1] >= steps.first + steps.window:
                raise _refusal(node, "it must not read steps that depend on padding of the window's end")
            distance = steps.count - steps.window
            reads[index] = _moved(box, steps.axis, distance)
            calls = -((read[0] + distance - max(steps.settled, 0)) // steps.count)
            source = self.steps[self.graph.inputs[0]]
            calls = max(calls, -(-self.graph.inputs[0].type.shape[self.axis] // source.count) - 1)
            self.settled_windows = max(self.settled_windows, calls)
        return _Call(replace(crop, reads=tuple(reads)), None)


@dataclass(frozen=True)
class _Interior:
    """The dependence of a node's output steps on steps of its inputs, where no padding is in reach.

    Step p of the output reads the steps stride · p + first to stride · p + last of an input.

    Attributes:
        places: The window positions of the output's steps without padding.
        strides: The stride, by the index of each input along the time axis.
        first: The first step, by index.
        last: The last step, by index.
    """

    places: range
    strides: Mapping[int, int]
    first: Mapping[int, int]
    last: Mapping[int, int]

    @staticmethod
    def of(node: Node, axis: int, steps: Mapping[Value, _Steps]) -> _Interior | None:
        """Return the dependence along one axis of the output; None if this axis does not count steps."""
        box, size = whole(node.output.type.shape), node.output.type.shape[axis]
        middle = range(size // 2, size // 2 + 1)
        if not _has_step(crop_of(node, replaced(box, {axis: middle})), axis, middle, node, steps):
            return None
        crops = [crop_of(node, replaced(box, {axis: range(p, p + 1)})) for p in range(size)]
        timed = {i: steps[v].axis for i, v in enumerate(node.inputs) if v is not None and v in steps}
        lengths = [_length(crop, axis, p, timed) for p, crop in enumerate(crops)]
        longest = max(*lengths, 1)
        alike = [lengths[p] == lengths[p + 1] == longest and _alike(crops, p, timed) for p in range(size - 1)]
        if True not in alike:
            return None
        place = alike.index(True)
        stop = alike.index(False, place) if False in alike[place:] else size - 1
        reads = {i: [_axis(crop, i, a) for crop in crops[place : stop + 1]] for i, a in timed.items()}
        strides = {i: rows[1][0] - rows[0][0] for i, rows in reads.items()}
        is_even = all(b[0] - a[0] == strides[i] for i, rows in reads.items() for a, b in pairwise(rows))
        if not is_even or min(strides.values()) < 1:
            return None
        first = {i: rows[0][0] - place * strides[i] for i, rows in reads.items()}
        last = {i: rows[0][-1] - place * strides[i] for i, rows in reads.items()}
        return _Interior(range(place, stop + 1), strides, first, last)


def _has_step(crop: Crop, axis: int, step: range, node: Node, steps: Mapping[Value, _Steps]) -> bool:
    """Return whether a crop computes one step only, from a part of the steps of its inputs and all of the rest."""
    if crop.writes[axis] != step:
        return False
    for value, box in zip(node.inputs, crop.reads, strict=True):
        if value is None or value not in steps:
            continue
        if box is None:
            return False
        full, along = whole(value.type.shape), steps[value].axis
        if box[along] == full[along] or replaced(box, {along: full[along]}) != full:
            return False
    return True


def _length(crop: Crop, axis: int, place: int, timed: Mapping[int, int]) -> int:
    """Return the number of steps that a crop reads of all inputs; 0 if it computes more than one step."""
    if crop.writes[axis] != range(place, place + 1) or any(crop.reads[i] is None for i in timed):
        return 0
    return sum(len(_axis(crop, i, a)) for i, a in timed.items())


def _alike(crops: Sequence[Crop], place: int, timed: Mapping[int, int]) -> bool:
    """Return whether a step and the next one are computed alike: by one operator, from the same other inputs."""
    one, other = crops[place], crops[place + 1]
    same = all(a == b for i, (a, b) in enumerate(zip(one.reads, other.reads, strict=True)) if i not in timed)
    return one.op == other.op and same and not one.constants


def _axis(crop: Crop, index: int, axis: int) -> range:
    box = crop.reads[index]
    assert box is not None
    return box[axis]


def _moved(box: Box, axis: int, distance: int) -> Box:
    return replaced(box, {axis: shifted(box[axis], distance)})


def _pads_zeros(node: Node) -> bool:
    """Return whether a node's padding are zeros, as states are before the first call."""
    x = node.input(0).type
    zero = x.quant.zero_point if x.quant is not None else 0
    return isinstance(node.op, Conv) or (isinstance(node.op, Pad) and node.op.stored(x)[0] == zero)


def _refusal(node: Node, reason: str) -> UsageError:
    return UsageError(f"{_OPTION}: {reason}", node.place, "change the model or the number of steps")


@dataclass
class _Rewrite:
    """The rewrite of a window's graph to that of a stream."""

    graph: Graph
    plan: _Plan
    news: dict[Value, Value] = field(default_factory=dict)
    """What a call has of each tensor: only its new steps, or all of a tensor that belongs to the whole window."""
    kept: dict[Value, Value] = field(default_factory=dict)
    """The state and the new steps of each tensor, joined."""
    states: dict[str, str] = field(default_factory=dict)

    def apply(self) -> None:
        """Replace the nodes, and add inputs and outputs for the states."""
        graph, source = self.graph, self.graph.inputs[0]
        shape = source.type.shape
        change_type(source, shape=shape_of(replaced(whole(shape), {self.plan.axis: range(self.plan.new)})))
        self.news[source] = source
        for node in list(graph.nodes):
            self._node(node)
        outputs, names = [self.news.get(v, v) for v in graph.outputs], list(graph.output_names)
        notes = [self._note(name, value) for name, value in zip(names, graph.outputs, strict=True)]
        graph.outputs = outputs
        for value, name in list(self._new_states()):
            graph.add_output(name, value)
        for node in reversed(list(graph.nodes)):
            if not any(v.uses or graph.is_output(v) for v in node.outputs):
                graph.remove(node)
        graph.states = self.states
        graph.notes += [note for note in notes if note]

    def _node(self, node: Node) -> None:
        """Replace a node by what a call computes of it, or let it read what a call has of its inputs."""
        call = self.plan.calls.get(node)
        if call is None:
            for index, value in enumerate(node.inputs):
                if value is not None and value in self.news:
                    node.set_input(index, self.news[value])
            return
        inputs = [
            None if value is None else self._part(node, value, box, call.crop.constants.get(index))
            for index, (value, box) in enumerate(zip(node.inputs, call.crop.reads, strict=True))
            if value is None or box is not None
        ]
        types = [value.type for value in node.outputs]
        if call.steps is not None:
            box = replaced(whole(types[0].shape), {call.steps.axis: range(call.steps.count)})
            types = [crop_type(types[0], box)]
        for value in node.outputs:
            self.graph.release_name(value)
        names = [value.name for value in node.outputs]
        new = self.graph.add(call.crop.op, inputs, node.origin, names=names, types=types, before=node)
        self.news |= dict(zip(node.outputs, new.outputs, strict=True))

    def _part(self, reader: Node | None, value: Value, box: Box | None, constant: Array | None = None) -> Value:
        """Return the elements in a box of a tensor, at the positions of the first call."""
        steps = self.plan.steps.get(value)
        assert box is not None
        if steps is None:
            return part_of(self.graph, reader, self.news.get(value, value), whole(value.type.shape), box, constant)
        is_new = box[steps.axis][0] >= steps.first
        has = range(steps.first, steps.stop) if is_new else self.plan.kept(value)
        source = self.news[value] if is_new else self._joined(reader, value)
        return part_of(self.graph, reader, source, replaced(whole(value.type.shape), {steps.axis: has}), box)

    def _joined(self, reader: Node | None, value: Value) -> Value:
        """Return the state of a tensor, joined with its new steps."""
        if value not in self.kept:
            steps, new = self.plan.steps[value], self.news[value]
            past = range(self.plan.kept(value).start, steps.first)
            state_type = crop_type(new.type, replaced(whole(new.type.shape), {steps.axis: past}))
            state = self.graph.add_input(f"{value.name}.past", state_type)
            joined = self.graph.add(Concat(steps.axis), [state, new], before=reader)
            change_type(joined.output, quant=new.type.quant)
            self.kept[value] = joined.output
            self.states[f"{state.name}.next"] = state.name
        return self.kept[value]

    def _new_states(self) -> Iterator[tuple[Value, str]]:
        """Yield the new state of each tensor that has one, and the name of the output for it."""
        for value, output in zip(self.kept, self.states, strict=True):
            steps, kept = self.plan.steps[value], self.plan.kept(value)
            box = replaced(whole(value.type.shape), {steps.axis: kept[steps.count :]})
            yield self._part(None, value, box), output

    def _note(self, name: str, value: Value) -> str:
        """Return a sentence on what an output is in a call; empty for an output that does not depend on the window."""
        steps = self.plan.steps.get(value)
        if steps is not None:
            early = max(steps.settled, 0) - steps.first
            begin = f"; its first {early} steps belong to a window that has not begun" if early > 0 else ""
            return f"stream: output '{name}' has the next {steps.count} steps of axis {steps.axis} in each call{begin}"
        if value not in self.plan.windowed:
            return ""
        return (
            f"stream: output '{name}' is that of the window that ends with the call; "
            f"the first {self.plan.settled_windows} calls see less than a window"
        )
