# SPDX-License-Identifier: Apache-2.0
"""From an imported graph to a planned program: the passes in order, on one screen."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import takewhile

from mcugen.board import Board
from mcugen.errors import UsageError, VerificationError
from mcugen.hir.graph import Graph
from mcugen.hir.printer import print_graph
from mcugen.hir.verify import verify_graph
from mcugen.lir.budget import Attempt, Budget, Fit, cheapest, use_of
from mcugen.lir.choose import Limits, choose_kernels, estimated_instructions
from mcugen.lir.cost import cost_table
from mcugen.lir.lower import lower
from mcugen.lir.order import reorder
from mcugen.lir.plan import plan_memory
from mcugen.lir.program import Program
from mcugen.lir.verify_plan import verify_plan
from mcugen.options import CompileOptions
from mcugen.passes import clean, fuse, layout, stack
from mcugen.passes.bounds import drop_clamps
from mcugen.passes.convert_qdq import convert_qdq, sink_dequantize
from mcugen.passes.prune import drop_channels
from mcugen.passes.recognize import recognize_affine, recognize_mask, recognize_normalization
from mcugen.streaming import Streaming, with_groups

Pass = Callable[[Graph], bool]

FUSION: tuple[tuple[Pass, str], ...] = (
    (clean.simplify, "exporters write identities; patterns must see through them"),
    (clean.fold_constants, "shapes and weight reshapes are known now"),
    (recognize_normalization, "what older exporters spell out has one range and one integer form"),
    (recognize_mask, "what attention must not see is not to count among its numbers"),
    (fuse.fold_pad, "a padded window costs nothing"),
    (fuse.fuse_dense, "constant weights can be packed for the kernel"),
    (fuse.sink_reshape, "a matrix by rows of several axes stands between two reshapes"),
    (fuse.fold_affine, "batch normalization and bias belong to the weights"),
    (recognize_affine, "what no weights took in is rounded once at least"),
    (fuse.fold_scale, "a product may as well be scaled as it is stored"),
    (fuse.fold_clamp, "an activation belongs to the layer before it, before ranges are taken"),
    (clean.simplify, "folding leaves dead constants"),
    (stack.stack_unary, "several functions of one int8 tensor make one table"),
)
"""In float. Then quantization takes its ranges (mcugen.quant)."""

INTEGERS: tuple[tuple[Pass, str], ...] = (
    *FUSION,
    (sink_dequantize, "data may as well move as they are stored"),
    (clean.simplify, "conversions that now meet cancel"),
    (convert_qdq, "a model that comes quantized is computed in integers"),
    (clean.fold_dequantized, "what no integer operator took is weight-only quantization"),
    (fuse.fuse_dense, "its matrices are float constants now"),
    (fuse.sink_reshape, "which rows of several axes may be multiplied by"),
    (fuse.fold_affine, "and so are its biases"),
    (fuse.fold_clamp, "and its activations"),
)
"""What is computed, in the model's own layout."""

PIPELINE: tuple[tuple[Pass, str], ...] = (
    *INTEGERS,
    (layout.channels_last, "the kernels read pixels; NHWC from here on"),
    (clean.simplify, "neighbouring transpositions cancel"),
    (clean.merge_equal_nodes, "readers of one tensor share its transposition"),
    (layout.sink_transposes, "the others move on until they meet and cancel"),
    (fuse.fold_transpose_into_dense, "flattening may as well read channels last"),
    (clean.fold_constants, "permuted weights are constants"),
    (clean.simplify, "nothing dead may cost memory, nor read channels"),
    (clean.merge_equal_nodes, "equal computations are done once"),
    (drop_channels, "what is constant or unread need not be computed"),
    (drop_clamps, "an activation that nothing reaches costs a comparison"),
    (stack.stack_elementwise, "one loop instead of many"),
    (clean.simplify, "the graph is final"),
)


REPEATED = (clean.simplify, layout.sink_transposes, fuse.fold_pad)
MAX_ROUNDS = 1000


@dataclass
class Trace:
    """What a developer may watch: dumps after named passes, and seconds per pass."""

    dump_after: str = ""
    dumps: list[tuple[str, str]] = field(default_factory=list)
    seconds: list[tuple[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        names = dict.fromkeys(pass_.__name__ for pass_, _ in PIPELINE)
        if self.dump_after not in ("", "all", *names):
            raise UsageError("the pass to dump after must exist", f"'{self.dump_after}'", f"all, {', '.join(names)}")


def optimize(graph: Graph, trace: Trace | None = None) -> None:
    """Runs the pipeline in place, on the bodies of operators first; the verifier runs after each pass."""
    _run(PIPELINE, graph, trace)


def fuse_float(graph: Graph) -> None:
    """Runs the part of the pipeline in place that comes before quantization."""
    _run(FUSION, graph)


def convert_integers(graph: Graph) -> None:
    """Runs the part of the pipeline in place that says what is computed, to the last bit; the rest moves data."""
    _run(INTEGERS, graph)


def _run(passes: tuple[tuple[Pass, str], ...], graph: Graph, trace: Trace | None = None) -> None:
    verify_graph(graph)
    for node in graph.nodes:
        for body in node.op.bodies:
            _run(passes, body)
    for pass_, _because in passes:
        start = time.perf_counter()
        _run_pass(pass_, graph)
        verify_graph(graph)
        if trace is not None:
            trace.seconds.append((pass_.__name__, time.perf_counter() - start))
            if trace.dump_after in (pass_.__name__, "all"):
                trace.dumps.append((pass_.__name__, print_graph(graph)))


def _run_pass(pass_: Pass, graph: Graph) -> None:
    """Once, or until nothing changes where one round makes work for the next."""
    if pass_ not in REPEATED:
        pass_(graph)
        return
    rounds = sum(1 for _ in takewhile(lambda _: pass_(graph), range(MAX_ROUNDS)))
    if rounds == MAX_ROUNDS:
        raise VerificationError(f"pass {pass_.__name__} must end", f"{rounds} rounds", "report this as a bug of mcugen")


AS_ASKED = "as asked"

Build = Callable[[Graph, Board, CompileOptions], Program]


@dataclass(frozen=True)
class Step:
    """A way to make a program that keeps to a budget; it may help with RAM or flash, as `serves` says."""

    name: str
    serves: tuple[str, ...]
    build: Build


def build_program(graph: Graph, board: Board, options: CompileOptions | None = None) -> Fit:
    """Lowers an optimized graph for a board and plans its memory, within the budget of `options`.

    If the program as asked for exceeds that, STEPS are tried: the one that fits with the fewest instructions is taken.
    DoesNotFitError says how near they came.
    """
    options = options or CompileOptions()
    budget = Budget.of(options)

    def attempt(name: str, build: Build) -> Attempt:
        program = build(graph, board, options)
        return Attempt(name, program, use_of(program, cost_table(board.cpu)))

    asked = attempt(AS_ASKED, _as_asked)
    if not budget.excess(asked.use):
        return Fit(budget, asked, asked)
    steps = [step for step in STEPS if set(step.serves) & set(budget.limits)]
    taken = cheapest([asked, *(attempt(step.name, step.build) for step in steps)], budget)
    return Fit(budget, taken, asked)


def _as_asked(graph: Graph, board: Board, options: CompileOptions) -> Program:
    return _least(planned(lowered(way, board, options)) for way in _ways(graph, board, options))


def _least(programs: Iterable[Program]) -> Program:
    return min(programs, key=lambda program: program.arena_size)


def _for_goal(goal: str) -> Build:
    """As asked, but made for another goal."""
    return lambda graph, board, options: _as_asked(graph, board, replace(options, optimize=goal))


CORRECTIONS = 4
"""How often kernels are chosen anew, with what the choice misjudged."""


def _within_limits(graph: Graph, board: Board, options: CompileOptions) -> Program:
    """The goal as asked, but kernels chosen within the budget.

    The choice knows nothing of the planner's tricks, nor of code without a choice: by what it misjudged, its limits
    are moved. Of what that gives, the best is taken: what fits with the fewest instructions, or fits least badly.
    """
    budget, costs = Budget.of(options), cost_table(board.cpu)
    limits = _limits(budget, board)
    tried: dict[Limits, Attempt] = {}
    while limits not in tried and len(tried) < CORRECTIONS:
        ways = _ways(graph, board, options)
        program = _least(planned(lowered(way, board, options, limits=limits)) for way in ways)
        use = use_of(program, costs)
        tried[limits] = Attempt("", program, use)
        limits = Limits(
            limits.ram + (0 if budget.ram is None else budget.ram - use.ram),
            limits.flash + (0 if budget.flash is None else budget.flash - use.flash),
        )
    return _best(tried.values(), budget)


NEARBY = 1.1
"""Estimates of the RAM of groups may be so much too high."""


def _in_groups(graph: Graph, board: Board, options: CompileOptions) -> Program:
    """As many layers in groups as it takes, with kernels for the goal as asked."""
    budget, costs = Budget.of(options), cost_table(board.cpu)
    limits = _limits(budget, board)
    streaming = Streaming(graph, board.features, costs, is_streamed_in=options.stream_input)
    plans = list(streaming.plans())
    near = [plan for plan in plans if max(s.ram for s in plan) <= NEARBY * limits.ram] or plans[:1] or [[]]
    attempts = []
    for plan in near[-MOST_WAYS:]:
        way = with_groups(graph, plan, is_streamed_in=options.stream_input) if plan else graph
        program = planned(lowered(way, board, options, limits=limits))
        attempts.append(Attempt("", program, use_of(program, costs)))
    return _best(attempts, budget)


def _limits(budget: Budget, board: Board) -> Limits:
    """Of the budget, where it has some, else of the board."""
    return Limits(budget.ram or board.total_ram, budget.flash or board.total_flash)


def _best(attempts: Iterable[Attempt], budget: Budget) -> Program:
    """What fits with the fewest instructions, or fits least badly."""
    return min(attempts, key=lambda a: (budget.excess(a.use), a.instructions)).program


STEPS: tuple[Step, ...] = (
    Step("kernels chosen for the budget", ("ram", "flash"), _within_limits),
    Step("layers in groups, row by row", ("ram",), _in_groups),
    Step("all for the least RAM", ("ram",), _for_goal("ram")),
    Step("all for the least flash", ("flash",), _for_goal("flash")),
)
"""What is tried where a program as asked for is too large."""


MOST_WAYS = 4
"""Of grouping layers, that are planned: estimates of their RAM are right within some percent."""


def _ways(graph: Graph, board: Board, options: CompileOptions) -> Iterator[Graph]:
    """The graph; for the least RAM with layers in groups, in the ways that promise most.

    Where the caller hands over the input row by row, the first layers are a group in any case.
    """
    is_streamed_in = options.stream_input
    if options.optimize != "ram" and not is_streamed_in:
        yield graph
        return
    streaming = Streaming(graph, board.features, cost_table(board.cpu), is_streamed_in=is_streamed_in)
    plans = list(streaming.plans())
    chosen = plans[:MOST_WAYS] if options.optimize == "ram" else sorted(plans, key=streaming.product)[:1]
    yield from (with_groups(graph, plan, is_streamed_in=is_streamed_in) for plan in chosen)
    if not plans or not is_streamed_in:
        yield graph


def lowered(
    graph: Graph, board: Board, options: CompileOptions, *, any_size: bool = False, limits: Limits | None = None
) -> Program:
    """The program without a memory plan; with `any_size` it differs between sizes in parameters alone.

    Kernels are chosen within `limits`, or else those of the board.
    """
    costs = cost_table(board.cpu)
    choices = choose_kernels(
        graph,
        board.features,
        costs,
        options.optimize,
        limits or Limits(board.total_ram, board.total_flash),
        wanted=options.kernels,
        any_size=any_size,
    )
    program = lower(graph, board.features, options.states, options.optimize, choices, any_size)
    program.instructions_estimate = estimated_instructions(graph, costs, choices)
    if options.stream_input and program.streamed is None:
        rule = "--stream-input: the first input must be read row by row"
        remedy = "compile without it: the input lies in the arena then"
        raise UsageError(rule, "what reads it needs all of it, or some of it twice", remedy)
    return program


def planned(program: Program) -> Program:
    """The program in the order that needs the least memory, with a checked memory plan."""
    reorder(program)
    plan_memory(program)
    verify_plan(program)
    return program
