# SPDX-License-Identifier: Apache-2.0
"""The CPU pipeline: passes in order, kernel selection, lowering and memory planning of an imported graph."""

from __future__ import annotations

import difflib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mcugen.core.board import Board
from mcugen.core.errors import UsageError, VerificationError
from mcugen.core.options import GOALS, CompileOptions
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.printer import print_graph
from mcugen.hir.traits import Widenable
from mcugen.hir.types import Array
from mcugen.hir.verify import Verifier, verify_graph
from mcugen.kernels.choose import (
    AMPLE_MEMORY_FRACTION,
    KernelChoice,
    Limits,
    estimated_cycles,
    estimated_instructions,
    remarks_on_unmeasured,
    time_without_choice,
)
from mcugen.kernels.cost import CostTable, cost_table
from mcugen.lir.kernel import Kernel
from mcugen.lir.lower import lower
from mcugen.lir.program import Program, Space, aligned
from mcugen.lir.weights import with_read_weights
from mcugen.memory.activation_stalls import arena_stall_cycles
from mcugen.memory.constant_stalls import constant_stall_cycles
from mcugen.memory.order import reorder
from mcugen.memory.place import memory_of_arena, memory_of_weights
from mcugen.memory.plan import plan_memory
from mcugen.memory.verify_plan import verify_plan
from mcugen.passes import fuse, layout, operator_stacking, simplify
from mcugen.passes.bounds import drop_clamps
from mcugen.passes.branches import merge_branches
from mcugen.passes.composite_operators import (
    assume_mask,
    recognize_affine,
    recognize_groups,
    recognize_mask,
    recognize_normalization,
    recognize_shifted,
)
from mcugen.passes.convert_qdq import convert_qdq, keep_sums, sink_dequantize
from mcugen.passes.float16_weights import round_weights
from mcugen.passes.integer_valued_floats import code_integers, cut_channels, recognize_cut, recognize_whole
from mcugen.passes.packed_weights import keep_packed
from mcugen.passes.pass_effect import Effect, observed
from mcugen.passes.prune import constant_channels, drop_channels
from mcugen.passes.rewrite import Log, Rewriting

Pass = Callable[[Graph], bool]
"""A pass: it changes a graph in place and returns whether it changed anything."""

_LAYERS: tuple[tuple[Pass, str], ...] = (
    (simplify.simplify, "exporters write identities and compute constants; patterns must see through them"),
    (recognize_shifted, "a mean that is scaled before it is taken away hides a normalization"),
    (recognize_normalization, "what older exporters spell out has one range and one integer form"),
    (recognize_groups, "normalized between reshapes, channels would have to come first"),
    (recognize_mask, "what attention must not see is not to count among its numbers"),
    (fuse.fold_pad, "a padded window costs nothing"),
    (fuse.fuse_dense, "constant weights can be packed for the kernel"),
    (fuse.sink_reshape, "a matrix by rows of several axes stands between two reshapes"),
)
_FOLDS: tuple[tuple[Pass, str], ...] = (
    (fuse.sink_concat, "behind a concatenation, no layer takes a normalization or activation in"),
    (fuse.fold_affine, "batch normalization and bias belong to the weights"),
    (recognize_affine, "what no weights took in is rounded once at least"),
    (merge_branches, "what was trained as several layers is one that has their sum"),
    (fuse.fold_scale, "a product may as well be scaled as it is stored"),
    (fuse.fold_clamp, "an activation belongs to the layer before it, before ranges are taken"),
    (operator_stacking.stack_unary, "several functions of one int8 tensor make one table"),
)
FUSION = tuple((assume_mask if pass_ is recognize_mask else pass_, because) for pass_, because in (*_LAYERS, *_FOLDS))
"""Passes on a float network, with their reasons, before quantization measures its ranges (mcugen.quantization)."""

INTEGER_PASSES: tuple[tuple[Pass, str], ...] = (
    *_LAYERS,
    (recognize_whole, "an integer network kept in floats is one nevertheless"),
    (recognize_cut, "what it divides by 64 bits costs more than its products"),
    (code_integers, "what the caller passes as integers need not become real to be codes"),
    *_FOLDS,
    (sink_dequantize, "data may as well move as they are stored"),
    (convert_qdq, "a model that comes quantized is computed in integers"),
    (fuse.fold_pad, "conversions stood between padding and its window"),
    (keep_sums, "the last layer's weights need not become floats because its result does"),
    (keep_packed, "weights of few bits are short in flash, whatever they are multiplied with"),
    (simplify.fold_dequantized, "what no integer operator took is weight-only quantization"),
    (fuse.fuse_dense, "its matrices are float constants now"),
    (fuse.sink_reshape, "which rows of several axes may be multiplied by"),
    (fuse.fold_affine, "and so are its biases"),
    (fuse.fold_clamp, "and its activations"),
    (cut_channels, "sums of integers are scaled by integers, where that gives the same codes"),
)
"""Passes, with their reasons, that determine the results of a model; they keep the model's data layout."""

PIPELINE: tuple[tuple[Pass, str], ...] = (
    *INTEGER_PASSES,
    (
        operator_stacking.tabulate,
        "what exporters round between two steps is a function of one int8 tensor nevertheless",
    ),
    (layout.channels_last, "the kernels read pixels; NHWC from here on"),
    (simplify.merge_equal_nodes, "readers of one tensor share its transposition"),
    (layout.sink_transposes, "the others move on until they meet and cancel"),
    (fuse.fold_pad, "padding may have waited for a transposition"),
    (fuse.fold_transpose_into_dense, "flattening may as well read channels last"),
    (fuse.fold_transpose_into_row, "a row meets computed weights as they lie"),
    (simplify.simplify, "permuted weights are constants"),
    (simplify.merge_equal_nodes, "equal computations are done once"),
    (simplify.take_states, "what only the last step gives need not be kept of all"),
    (operator_stacking.pool_first, "a window of four leaves a quarter to compute"),
    (drop_channels, "what is constant or unread need not be computed"),
    (drop_clamps, "an activation that nothing reaches costs a comparison"),
    (operator_stacking.stack_elementwise, "one loop instead of many"),
    (round_weights, "the user may have asked for it, and nothing is folded into weights any more"),
)
"""All passes of a compilation, with their reasons, in order; NHWC from `layout.channels_last` on."""


@dataclass
class Trace:
    """Debugging output of the pipeline.

    Attributes:
        dump_after: Name of the pass after which to print the graph; "all" for each pass, "" for none.
        watched: Names of the passes whose effects are recorded.
        dumps: Name of a pass, and the graph after it as text.
        seconds: Name of a pass, and its time in seconds.
    """

    dump_after: str = ""
    watched: Sequence[str] = ()
    dumps: list[tuple[str, str]] = field(default_factory=list)
    seconds: list[tuple[str, float]] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    """The effect of each run of a watched pass, also on bodies of operators."""

    def __post_init__(self) -> None:
        names = list(dict.fromkeys(pass_.__name__ for pass_, _ in PIPELINE))
        if self.dump_after not in ("", "all", *names):
            raise UsageError("the pass to dump after must exist", f"'{self.dump_after}'", f"all, {', '.join(names)}")
        unknown = [name for name in self.watched if name not in names]
        if unknown:
            near = [match for name in unknown for match in difflib.get_close_matches(name, names, n=3, cutoff=0.5)]
            unknown_names = ", ".join(f"'{name}'" for name in unknown)
            raise UsageError(
                "--passes must name passes", unknown_names, f"one of: {', '.join(dict.fromkeys(near or names))}"
            )

    def to_json(self) -> dict[str, object]:
        """Return the effects of the watched passes as JSON data."""
        return {"passes": [effect.to_json() for effect in self.effects]}


def optimize(graph: Graph, trace: Trace | None = None) -> None:
    """Run the pipeline in place, on the bodies of operators first; the verifier runs after each pass."""
    _run(PIPELINE, graph, trace)


def fuse_float(graph: Graph) -> None:
    """Run the passes FUSION on a float graph, in place."""
    _run(FUSION, graph)


def convert_integers(graph: Graph) -> None:
    """Run the passes INTEGER_PASSES, in place; later passes do not change results, bit by bit."""
    _run(INTEGER_PASSES, graph)


def find_constant_channels(graph: Graph) -> dict[Value, Array]:
    """Run the pipeline in place up to the pass that removes constant channels, and return these channels.

    For each value, the array has one entry for each channel: the quantized value that the channel always has, or NaN.
    """
    before = [pass_ for pass_, _ in PIPELINE].index(drop_channels)
    _run(PIPELINE[:before], graph)
    return constant_channels(graph)


def _run(passes: tuple[tuple[Pass, str], ...], graph: Graph, trace: Trace | None = None, depth: int = 0) -> None:
    verifier = Verifier()
    verifier.check(graph)
    for node in graph.nodes:
        for body in node.op.bodies:
            _run(passes, body, trace, depth + 1)
    for pass_, because in passes:
        start = time.perf_counter()
        if trace is not None and pass_.__name__ in trace.watched:
            trace.effects.append(_observed(pass_, because, graph))
        else:
            pass_(graph)
        _verify(verifier, graph, pass_.__name__)
        if trace is not None and depth == 0:
            trace.seconds.append((pass_.__name__, time.perf_counter() - start))
            if trace.dump_after in (pass_.__name__, "all"):
                trace.dumps.append((pass_.__name__, print_graph(graph)))
    verify_graph(graph)


def _observed(pass_: Pass, because: str, graph: Graph) -> Effect:
    """Run a pass and return its effect."""
    before, log = print_graph(graph), Log()
    if isinstance(pass_, Rewriting):
        pass_(graph, log)
    else:
        pass_(graph)
    return observed(pass_, because, graph, before, log)


def _verify(verifier: Verifier, graph: Graph, name: str) -> None:
    """Raise VerificationError with the name of the pass after which the graph is not well formed."""
    try:
        verifier.check(graph)
    except VerificationError as error:
        raise VerificationError(f"pass {name}: {error.rule}", error.found, error.remedy) from error


def lowered(
    graph: Graph,
    board: Board,
    options: CompileOptions,
    *,
    any_size: bool = False,
    kernels: Mapping[Node, Kernel] | None = None,
) -> Program:
    """Lower an optimized graph to a program, without a memory plan.

    Args:
        graph: The optimized graph.
        board: The board that the program is for.
        options: The options of the compilation.
        any_size: Whether programs for different sizes of a dimension must differ in parameters only.
        kernels: The kernel of each node; by default the best ones within the board's RAM and flash.

    Raises:
        UsageError: The first input is to be streamed, but no kernel reads it row by row.
    """
    costs = cost_table(board.cpu, board.features)
    choices = Kernels(graph, board, options, any_size).within() if kernels is None else dict(kernels)
    remarks = remarks_on_unmeasured(graph, board.features, costs, any_size)
    widens = _widens(graph, board, options)
    program = lower(graph, board.features, options.states, options.optimize, choices, any_size, remarks, widens=widens)
    program.layer_estimates = estimated_instructions(graph, costs, choices)
    unchosen_time = time_without_choice(graph, board.features, costs, choices, options.optimize)
    program.instructions_estimate = (sum(program.layer_estimates.values()) + unchosen_time) or None
    if choices:
        timed = replace(costs, core=board.core)
        cycles = estimated_cycles(graph, timed, choices)
        unchosen_time = time_without_choice(graph, board.features, timed, choices, options.optimize)
        program.cycles_estimate = None if cycles is None else cycles + unchosen_time
    if options.stream_input and program.streamed is None:
        rule = "--stream-input: the first input must be read row by row"
        remedy = "compile without it: the input lies in the arena then"
        raise UsageError(rule, "what reads it needs all of it, or some of it twice", remedy)
    if options.weights_reader:
        with_read_weights(program)
    return program


class Kernels:
    """Chooses the best kernels of a graph for a goal on a board, within limits of memory and time."""

    def __init__(self, graph: Graph, board: Board, options: CompileOptions, any_size: bool = False) -> None:
        self.board, self._options = board, options
        self._choice = KernelChoice(
            graph,
            board.features,
            _with_waits(cost_table(board.cpu, board.features), board, options),
            options.optimize,
            family=options.family,
            requested=options.kernels,
            any_size=any_size,
        )

    def within(self, limits: Limits | None = None) -> dict[Node, Kernel]:
        """Return the best kernel of each node within limits of memory, by default the board's RAM and flash."""
        return self._choice.within(replace(limits or self._limits, instructions=self._options.most_instructions))

    def slowest(self) -> float:
        """Return the largest number of instructions of a `balanced` program; infinity if RAM or flash is scarce."""
        return self._choice.slowest(self._limits)

    @property
    def _limits(self) -> Limits:
        return Limits(self.board.total_ram, self.board.total_flash)


def _widens(graph: Graph, board: Board, options: CompileOptions) -> bool:
    """Return whether weights of few bits are stored as int8 in flash: for speed, or if they leave enough flash free."""
    if options.optimize != GOALS[0]:
        return options.optimize == "speed"
    nodes = (node for part in graph.nested() for node in part.nodes)
    nbytes = sum(
        node.op.widened_bytes(node.sig)
        for node in nodes
        if isinstance(node.op, Widenable) and not node.op.widens_by_parts(node.sig, board.features)
    )
    return nbytes <= AMPLE_MEMORY_FRACTION * board.total_flash


def _with_waits(costs: CostTable, board: Board, options: CompileOptions) -> CostTable:
    """Return the costs with estimates of stall cycles, as far as the goal needs them.

    For `speed`, the costs include the stalls of the core and of all memories. For `balanced`, they include the stalls
    on activations if there is a data cache. Measured times include all stalls. The time with copied constants counts
    for `speed` only, as the other goals may not copy them.
    """
    is_copied = options.optimize == "speed"
    times = {key: min(t.plain, t.copied) if is_copied else t.plain for key, t in options.times.items()}
    costs = replace(costs, times=times)
    slow, fast = memory_of_weights(board, options.place), memory_of_arena(board, options.place)
    price = options.copy_price

    def of_arena(program: Program) -> float:
        return sum(arena_stall_cycles(program, board, fast).values())

    if options.optimize == GOALS[0] and board.cache(fast, "data") is not None:
        return replace(costs, load_stalls=of_arena)
    if options.optimize != "speed":
        return costs

    def load_stalls(program: Program) -> float:
        constants = constant_stall_cycles(program, board, slow, fast)
        if price is not None:
            held = sum(aligned(b.nbytes) for b in program.buffers if b.space is Space.CONST)
            constants = min(constants, price * held + constant_stall_cycles(program, board, fast))
        return constants + of_arena(program)

    return replace(costs, core=board.core, load_stalls=load_stalls)


def plan_program(program: Program, target_bytes: int = 0, max_bytes: float = math.inf) -> Program:
    """Reorder a program for the least memory, plan and verify its memory, and return it.

    Args:
        program: The program, changed in place.
        target_bytes: Size of an arena that is small enough, at which the planner stops; see plan_memory.
        max_bytes: Size limit of an arena, beyond which the quality of the plan does not matter; see plan_memory.
    """
    reorder(program)
    plan_memory(program, target_bytes, max_bytes)
    verify_plan(program)
    return program
