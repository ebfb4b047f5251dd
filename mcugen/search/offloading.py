# SPDX-License-Identifier: Apache-2.0
"""Offloading: which segments of the graph an accelerator computes, by the estimated time of the whole program."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from mcugen.backends.accelerator import Accelerator, SegmentRefused
from mcugen.backends.partition import segments_of
from mcugen.core.board import Npu
from mcugen.core.errors import DoesNotFitError
from mcugen.core.options import AUTO_PLACE, NPU_EXACT, NPU_ONLY, CompileOptions, Places
from mcugen.hir.graph import Graph, Node
from mcugen.hir.operator import Operator
from mcugen.hir.subgraph import body_of
from mcugen.kernels.choose import time_without_choice
from mcugen.kernels.cost import cost_table
from mcugen.ops.control import Repeat
from mcugen.ops.movement import Movement, Reshape
from mcugen.ops.offload import CompiledSegment, offload
from mcugen.search.candidates import CandidateBuilder, Selection
from mcugen.search.metrics import AccuracyLevel, Metrics
from mcugen.search.objective import TOLERANCES
from mcugen.search.plan import NO_CHANGES, GraphChanges, LayerPlacement
from mcugen.search.problem import SearchProblem
from mcugen.search.refinements import Refinement
from mcugen.search.step_projections import hoist_projections


class Offloading(Refinement):
    """The search step that offers parts of the graph to the board's accelerator, and keeps what saves time.

    Candidates are graphs in which segments are single nodes. First, all nodes that the accelerator takes are offloaded.
    Then, nodes that the CPU computes faster stay there, and segments that do not pay are left out. Each candidate is a
    program search of its own, so that goals and budgets hold as for other programs.
    """

    kind = "offloading"

    def refine(self, builder: CandidateBuilder, selection: Selection) -> Selection:
        """Choose the fastest program with offloaded segments, if it is faster than the program chosen so far."""
        problem = builder.problem
        if problem.accelerator is None or problem.board.npu is None:
            return selection
        partitioners = self._partitioners(builder, selection, problem.accelerator, problem.board.npu)
        best, is_forced = selection, problem.options.npu == NPU_ONLY
        for partitioner in partitioners:
            for segments in partitioner.candidates():
                candidate = self._built(builder, partitioner, segments)
                if candidate is None or not (is_forced or _serves_better(candidate, best)):
                    continue
                best = replace(candidate, placements=partitioner.placements(segments))
                if is_forced:
                    return best
        if best is selection:
            return replace(selection, placements=partitioners[-1].placements([]))
        return best

    def _partitioners(
        self, builder: CandidateBuilder, selection: Selection, accelerator: Accelerator, npu: Npu
    ) -> list[Partitioner]:
        """Return a choice of segments for each form of the graph: with projections of all steps at once, and as it is.

        The last one is for the graph of the selected program.
        """
        problem = builder.problem
        partitioners = [Partitioner(problem, accelerator, npu, _cycles_by_layer(selection))]
        hoisted = hoist_projections(problem.graph)
        if hoisted is None:
            return partitioners
        search = f"{problem.search_name}, with projections before loops"
        variant = replace(problem.with_graph(hoisted, NO_CHANGES), accelerator=None, evaluator=None, search=search)
        try:
            cycles = _cycles_by_layer(builder.run_search(variant))
        except DoesNotFitError:
            return partitioners
        variant = replace(variant, accelerator=accelerator, search=problem.search_name)
        return [Partitioner(variant, accelerator, npu, cycles), *partitioners]

    def _built(
        self, builder: CandidateBuilder, partitioner: Partitioner, segments: Sequence[Segment]
    ) -> Selection | None:
        """Return the best program with these segments; None if it does not fit.

        If layers of the CPU stall for their weights, these may be copied to the memory that the arena left.
        """
        problem = partitioner.problem
        graph = with_segments(problem.graph, segments)
        changes = GraphChanges(offloaded=tuple(segment.nodes[-1].outputs[0].name for segment in segments))
        options = _with_arena(problem.options, partitioner.accelerator.arena_memory(problem.board))
        offloaded = replace(problem.with_graph(graph, changes), accelerator=None, evaluator=None)
        offloaded = replace(offloaded, search=f"{problem.search_name}, with the NPU")
        plain = _searched(builder, offloaded.with_options(options))
        copying = _with_copied_weights(problem, options)
        if plain is None or copying is None or not _metrics(plain).stall_cycles:
            return plain
        copied = _searched(builder, offloaded.with_options(copying))
        return copied if copied is not None and _metrics(copied).time < _metrics(plain).time else plain


def _searched(builder: CandidateBuilder, problem: SearchProblem) -> Selection | None:
    """Return the result of a program search; None if no program fits."""
    try:
        return builder.run_search(problem)
    except DoesNotFitError:
        return None


def _with_copied_weights(problem: SearchProblem, options: CompileOptions) -> CompileOptions | None:
    """Return options that also copy weights at start-up to the board's default memory for the arena.

    Returns:
        The options; None if the arena lies there, or if weights are placed already.
    """
    memory = problem.board.memory(problem.board.arena_memory)
    is_told = problem.options.place != Places() or options.weights_in_file
    if is_told or options.optimize not in ("balanced", "speed") or memory.name in options.place.arena:
        return None
    hot = (memory.name, int(TOLERANCES.max_copied_share * memory.room))
    return replace(options, place=replace(options.place, hot_weights=hot))


def _with_arena(options: CompileOptions, memory: str) -> CompileOptions:
    """Return the options with the arena in a memory that the accelerator reaches, unless the user named one."""
    if options.place.arena and AUTO_PLACE not in options.place.arena:
        return options
    return replace(options, place=replace(options.place, arena=(memory,)))


def _serves_better(candidate: Selection, best: Selection) -> bool:
    """Return whether a program with offloaded segments replaces the best program so far.

    It must be faster; for the goals `ram` and `flash`, it must serve the goal better, too.
    """
    ours, theirs = _metrics(candidate), _metrics(best)
    if ours.time >= theirs.time:
        return False
    return candidate.problem.options.optimize not in ("ram", "flash") or best.problem.objective.serves_better(
        ours, theirs
    )


def _metrics(selection: Selection) -> Metrics:
    return selection.problem.costs.evaluate(selection.chosen.built, AccuracyLevel.PLACED)


def _cycles_by_layer(selection: Selection) -> dict[str, float]:
    """Return the estimated CPU cycles of each layer, by the name of its first result.

    Instructions of layers are scaled so that their sum is the time of the program.
    """
    problem, program = selection.problem, selection.chosen.program
    board, goal = problem.board, problem.options.optimize
    costs = replace(cost_table(board.cpu, board.features), core=board.core)
    cycles = dict(program.layer_estimates)
    for scope in scopes_of(problem.graph):
        for node in scope.graph.nodes:
            name = node.outputs[0].name
            if name not in cycles and not node.op.bodies:
                body, _, _ = body_of(scope.graph, [node])
                cycles[name] = scope.runs * time_without_choice(body, board.features, costs, (), goal)
    total = sum(cycles.values())
    return {name: own * _metrics(selection).time / total for name, own in cycles.items()} if total else {}


@dataclass(frozen=True, eq=False)
class NodeScope:
    """A graph whose nodes an accelerator may compute: the graph of a program, or the body of one of its loops.

    Attributes:
        graph: The graph.
        loop: The node of the loop; None for the graph of the program.
        runs: How often the graph runs per inference.
    """

    graph: Graph
    loop: Node | None = None
    runs: int = 1


def scopes_of(graph: Graph) -> list[NodeScope]:
    """Return a graph and the bodies of its loops whose number of steps is known."""
    loops = [(node, node.op) for node in graph.nodes if isinstance(node.op, Repeat) and not node.op.conditional]
    return [NodeScope(graph), *(NodeScope(op.body, node, op.steps) for node, op in loops)]


@dataclass(frozen=True, eq=False)
class Segment:
    """A segment of the graph that the accelerator can compute.

    Attributes:
        nodes: The nodes of the graph, in order.
        body: The nodes as a graph of their own, with the operators that the accelerator computes.
        compiled: What the accelerator's compiler made of it.
        loop: The loop whose steps run the segment; None if it runs once.
    """

    nodes: tuple[Node, ...]
    body: Graph
    compiled: CompiledSegment
    loop: Node | None = None


@dataclass
class Partitioner:
    """The choice of segments for one graph.

    Attributes:
        problem: The graph, the board and the options.
        accelerator: The accelerator.
        npu: The board's NPU.
        cpu_cycles: Estimated CPU cycles of layers per inference, by the name of their first result.
        refusals: Why nodes stay on the CPU, as phrases.
    """

    problem: SearchProblem
    accelerator: Accelerator
    npu: Npu
    cpu_cycles: Mapping[str, float]
    refusals: dict[Node, str] = field(default_factory=dict)

    def candidates(self) -> list[list[Segment]]:
        """Return the choices of segments to try, each with at least one segment; the largest segments come first."""
        supported = self._supported()
        whole = self._compiled(supported)
        choices = [whole]
        if self.problem.options.npu != NPU_ONLY:
            trimmed = self._compiled(self._without_slow_nodes(supported))
            choices += [[s for s in choice if self._pays(s)] for choice in (whole, trimmed)] + [trimmed]
            choices += [[s for s in choice if s.loop is None] for choice in choices]
        known = dict[tuple[tuple[Node, ...], ...], list[Segment]]()
        for choice in choices:
            if choice:
                known.setdefault(tuple(segment.nodes for segment in choice), choice)
        return list(known.values())

    def placements(self, segments: Sequence[Segment]) -> tuple[LayerPlacement, ...]:
        """Return where each layer runs if these segments are offloaded, and why."""
        number = {node: index for index, segment in enumerate(segments) for node in segment.nodes}
        loops = {segment.loop for segment in segments}
        scopes = [scope for scope in self._scopes if scope.loop is None or scope.loop in loops]
        return tuple(
            LayerPlacement(
                node.outputs[0].name, node.op.name, number.get(node), self._reason(node, number.get(node), segments)
            )
            for scope in scopes
            for node in scope.graph.nodes
        )

    def _reason(self, node: Node, number: int | None, segments: Sequence[Segment]) -> str:
        if number is not None:
            segment = segments[number]
            return (
                f"segment {number}: {segment.compiled.cpu_cycles:,.0f} cycles on {segment.compiled.accelerator}, "
                f"{self._on_cpu(segment.nodes):,.0f} on the CPU"
            )
        if any(segment.loop is node for segment in segments):
            return "a loop, some of whose layers run elsewhere"
        if node in self.refusals:
            return self.refusals[node]
        alone = self._alone.get(node)
        if alone is None:
            return "its segment does not save time"
        ours = self._on_cpu([node])
        return f"CPU: {ours:,.0f} cycles, {alone.accelerator}: {alone.cpu_cycles:,.0f} with the invocation"

    def _supported(self) -> set[Node]:
        """Return the nodes that the accelerator can compute, each compiled as a segment of its own."""
        for node in self._scope_of:
            fault = self.accelerator.fault(node, self.npu)
            if fault and (adapted := self._adapted(node)):
                (twin,) = body_of(self._scope_of[node].graph, [node])[0].nodes
                twin.op = adapted
                fault = self.accelerator.fault(twin, self.npu)
            if fault:
                self.refusals[node] = fault
        return {node for node in self._scope_of if node in self._alone}

    @cached_property
    def _scopes(self) -> list[NodeScope]:
        return scopes_of(self.problem.graph)

    @cached_property
    def _scope_of(self) -> dict[Node, NodeScope]:
        """Return the scope of each node, in the order of scopes and nodes."""
        return {node: scope for scope in self._scopes for node in scope.graph.nodes}

    @cached_property
    def _alone(self) -> dict[Node, CompiledSegment]:
        """Return each node that the accelerator takes, compiled as a segment of its own."""
        nodes = [node for node in self._scope_of if node not in self.refusals]
        alone = dict[Node, CompiledSegment]()
        bodies = [self._body([node]) for node in nodes]
        for node, result in zip(nodes, self._compile(bodies), strict=True):
            if isinstance(result, SegmentRefused):
                self.refusals[node] = str(result)
            else:
                alone[node] = result
        return alone

    def _compiled(self, supported: Collection[Node]) -> list[Segment]:
        """Return the largest segments of these nodes; a segment that the compiler refuses is halved, down to nodes."""
        segments = list[Segment]()
        parts = [part for scope in self._scopes for part in segments_of(scope.graph, supported)]
        while parts := [part for part in parts if not all(isinstance(node.op, Movement) for node in part)]:
            bodies, halves = [self._body(part) for part in parts], list[list[Node]]()
            for part, body, result in zip(parts, bodies, self._compile(bodies), strict=True):
                if not isinstance(result, SegmentRefused):
                    segments.append(Segment(tuple(part), body, result, self._scope_of[part[0]].loop))
                elif len(part) > 1:
                    halves += [part[: len(part) // 2], part[len(part) // 2 :]]
                else:
                    self.refusals[part[0]] = str(result)
            parts = halves
        order = {node: index for index, node in enumerate(self._scope_of)}
        return sorted(segments, key=lambda segment: order[segment.nodes[0]])

    def _compile(self, bodies: Sequence[Graph]) -> list[CompiledSegment | SegmentRefused]:
        return self.accelerator.compile(bodies, self.problem.board) if bodies else []

    def _body(self, nodes: Sequence[Node]) -> Graph:
        """Return nodes as a graph, with the operators that the accelerator computes faster if the user allows it."""
        body, _, _ = body_of(self._scope_of[nodes[0]].graph, nodes)
        for node in body.nodes:
            node.op = self._adapted(node) or node.op
        return body

    def _adapted(self, node: Node) -> Operator | None:
        """Return the operator that the accelerator computes instead of that of a node; None to keep it."""
        return None if self.problem.options.npu == NPU_EXACT else self.accelerator.adapt(node, self.npu)

    def _pays(self, segment: Segment) -> bool:
        return segment.compiled.cpu_cycles < self._on_cpu(segment.nodes)

    def _on_cpu(self, nodes: Sequence[Node]) -> float:
        """Return the estimated CPU cycles of nodes of one scope, which run once."""
        return sum(self.cpu_cycles.get(node.outputs[0].name, 0.0) for node in nodes) / self._scope_of[nodes[0]].runs

    def _without_slow_nodes(self, supported: Collection[Node]) -> set[Node]:
        """Return the nodes without those that the CPU computes faster, also if a segment is divided at the node."""
        kept = set(supported)
        while slow := {node for node in kept if self._is_slow(node, kept)}:
            kept -= slow
        return kept

    def _is_slow(self, node: Node, kept: Collection[Node]) -> bool:
        """Return whether the CPU is faster, with one more invocation unless the node begins or ends a segment."""
        gain = self._cycles_of_work(node) - self._on_cpu([node])
        if self._is_at_border(node, kept):
            return gain > 0
        if isinstance(node.op, Reshape):  # It costs nothing within a segment.
            return False
        return gain > self._alone[node].cpu_cycles - self._cycles_of_work(node)

    def _cycles_of_work(self, node: Node) -> float:
        """Return the accelerator's time for a node, without the invocation, in cycles of the CPU's clock."""
        return self._alone[node].accelerator_cycles * self.problem.board.clock_hz / self.npu.clock_hz

    @staticmethod
    def _is_at_border(node: Node, kept: Collection[Node]) -> bool:
        producers = {value.producer for value in node.inputs if value is not None}
        users = {user for value in node.outputs for user in value.users}
        return not producers & set(kept) or not users & set(kept)


def with_segments(graph: Graph, segments: Sequence[Segment]) -> Graph:
    """Return a copy of a graph in which segments are single nodes that the accelerator computes."""
    copy = _offloaded(graph, [segment for segment in segments if segment.loop is None])
    names = {node.outputs[0].name: node for node in copy.nodes}
    for loop in dict.fromkeys(segment.loop for segment in segments if segment.loop is not None):
        assert isinstance(loop.op, Repeat)
        body = _offloaded(loop.op.body, [segment for segment in segments if segment.loop is loop])
        names[loop.outputs[0].name].op = replace(loop.op, body=body)
    return copy


def _offloaded(graph: Graph, segments: Sequence[Segment]) -> Graph:
    """Return a copy of a graph in which segments of its own nodes are single nodes."""
    copy = graph.copy()
    twins = dict(zip(graph.nodes, copy.nodes, strict=True))
    values = {value.name: value for value in copy.values()}
    for segment in segments:
        nodes = [twins[node] for node in segment.nodes]
        inputs = [values[value.name] for value in segment.body.inputs]
        node = offload(copy, nodes, segment.body, inputs, segment.compiled)
        values.update(zip(segment.body.output_names, node.outputs, strict=True))  # Their names have a new suffix.
    return copy
