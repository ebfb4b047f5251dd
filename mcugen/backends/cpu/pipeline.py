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
from mcugen.hir.traits import SelfTimed, Widenable
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
from mcugen.passes.cache_update import recognize_cache_update
from mcugen.passes.cached_attention import recognize_cached_attention
from mcugen.passes.composite_operators import (
    assume_mask,
    recognize_affine,
    recognize_groups,
    recognize_mask,
    recognize_normalization,
    recognize_shifted,
)
from mcugen.passes.convert_qdq import convert_qdq, keep_sums, sink_dequantize
from mcugen.passes.crop import drop_elements
from mcugen.passes.float16_weights import round_weights
from mcugen.passes.fourier import recognize_fourier
from mcugen.passes.integer_valued_floats import code_integers, cut_channels, recognize_cut, recognize_whole
from mcugen.passes.packed_weights import keep_packed
from mcugen.passes.pass_effect import Effect, observed
from mcugen.passes.prune import constant_channels, drop_channels
from mcugen.passes.quantizer_placement import clamp_first, round_addends
from mcugen.passes.rewrite import Log, Rewriting
from mcugen.passes.window_stream import stream_window

Pass = Callable[[Graph], bool]
"""A compiler pass: a function that changes a graph in place and returns whether it changed anything."""

_LAYERS: tuple[tuple[Pass, str], ...] = (
    (simplify.simplify, "Exporters write identities and computed constants, which hide patterns from later passes."),
    (recognize_shifted, "A mean that is scaled before it is subtracted hides a normalization."),
    (
        recognize_normalization,
        "Older exporters write a normalization as several operators; one operator has one range and an integer form.",
    ),
    (recognize_groups, "A group normalization between reshapes would force channels to come first."),
    (recognize_mask, "Masked scores of attention must not widen the range of the scores."),
    (recognize_cache_update, "An update of a cache at a position can be written in place, also in integers."),
    (
        recognize_cached_attention,
        "Attention of a new token reads the filled part of a cache in place, without transposed copies.",
    ),
    (fuse.fold_pad, "Padding inside a window costs nothing."),
    (fuse.fold_crop, "A border that nobody reads need not be computed, and hides the activation from the layer."),
    (fuse.fuse_dense, "Constant weights can be packed for the kernel."),
    (
        fuse.sink_reshape,
        "A product over several axes is a dense layer between reshapes, which hide its bias and activation.",
    ),
    (fuse.sink_layer_transpose, "A transposition between a convolution and its bias or activation hides these."),
    (simplify.simplify, "Transpositions that met would hide from quantization that a layer reads another layer."),
    (
        recognize_fourier,
        "A fast Fourier transform needs few of a matrix's products, and powers and bands need one frame of memory.",
    ),
    (simplify.simplify, "Parts of spectra leave reshapes and transpositions behind."),
)
_FOLDS: tuple[tuple[Pass, str], ...] = (
    (
        fuse.sink_concat,
        "A normalization or activation behind a concatenation can be folded into layers only before it.",
    ),
    (fuse.fold_affine, "Scale and shift can be folded into the weights of the preceding layer."),
    (recognize_affine, "Scale and shift that no weights absorbed are rounded only once as one operator."),
    (merge_branches, "Parallel layers whose results are added equal one layer with the sum of their weights."),
    (fuse.fold_scale, "The factor of a matrix product can be applied when the product is stored."),
    (fuse.fold_clamp, "An activation folded into the preceding layer leaves only the clamped range to quantize."),
    (operator_stacking.stack_unary, "Several functions of one int8 tensor become one table."),
)
FUSION = tuple((assume_mask if pass_ is recognize_mask else pass_, because) for pass_, because in (*_LAYERS, *_FOLDS))
"""Passes that fuse the layers of a float network, in order, each with the reason for the pass as a sentence.

They run before quantization measures the ranges of tensors (mcugen.quantization).
"""

INTEGER_PASSES: tuple[tuple[Pass, str], ...] = (
    *_LAYERS,
    (recognize_whole, "A network whose float tensors hold integers can be computed in integers."),
    (recognize_cut, "Rescaled integers need no 64-bit division, which would cost more than the products."),
    (code_integers, "Integers that the caller passes can become quantized values without floats in between."),
    (clamp_first, "A rounding between a layer and its activation hides the activation from the layer."),
    *_FOLDS,
    (sink_dequantize, "Data movements can move quantized values instead of reals."),
    (round_addends, "A layer that is not rounded before a quantized sum would stay in float, and the sum with it."),
    (convert_qdq, "Operators between Dequantize and Quantize have an integer form."),
    (fuse.fold_pad, "Conversions stood between padding and its window."),
    (keep_sums, "The last layer can keep integer weights although its result is float."),
    (keep_packed, "Weights of few bits save flash in float layers, too."),
    (simplify.fold_dequantized, "Dequantized constants that no integer operator reads are weight-only quantization."),
    (fuse.fuse_dense, "Matrices of weight-only quantization are float constants now."),
    (fuse.sink_reshape, "Rows of several axes may be multiplied by these matrices."),
    (fuse.fold_affine, "Scale and shift can be folded into these weights as well."),
    (fuse.fold_clamp, "Activations can be folded into these layers as well."),
    (cut_channels, "Integer sums can be scaled by integers if the quantized values stay the same."),
)
"""Passes that may change the results of a model, in order, each with its reason as a sentence; layouts stay NCHW.

All later passes of PIPELINE keep the results bit by bit.
"""

PIPELINE: tuple[tuple[Pass, str], ...] = (
    *INTEGER_PASSES,
    (
        operator_stacking.tabulate,
        "Functions of one int8 tensor become one table although exporters round between them.",
    ),
    (layout.channels_last, "Kernels read all channels of a pixel together: NHWC from here on."),
    (simplify.merge_equal_nodes, "Readers of one tensor can share its transposition."),
    (layout.sink_transposes, "Transpositions that move towards each other cancel."),
    (fuse.fold_pad, "Padding may have been separated from its window by a transposition."),
    (fuse.fold_transpose_into_dense, "A dense layer behind a flattening can read channels last."),
    (fuse.fold_transpose_into_row, "A row times a transposed computed matrix can read the matrix in place."),
    (stream_window, "The user may ask for a stream: then only new time steps are computed, and others are states."),
    (drop_elements, "Time steps and pixels that no output depends on need not be computed."),
    (simplify.simplify, "Permuted weights are constants, and slices of what was cropped take everything."),
    (simplify.merge_equal_nodes, "Equal computations are done once."),
    (simplify.take_states, "If only the last step of a recurrent layer is read, the other steps need not be stored."),
    (operator_stacking.pool_first, "Pooling first leaves fewer elements for the following functions."),
    (drop_channels, "Channels that are constant or unread need not be computed."),
    (drop_clamps, "A clamp that no value reaches only costs comparisons."),
    (operator_stacking.stack_elementwise, "Consecutive elementwise operators can share one loop."),
    (round_weights, "The user may ask for float16 weights, and nothing is folded into weights any more."),
)
"""All passes of a compilation, in order, each with its reason as a sentence.

Tensors are NHWC from `layout.channels_last` on.
"""


@dataclass
class Trace:
    """Debugging output of the pass pipeline, which `optimize` fills while it runs.

    Attributes:
        dump_after: Name of the pass after which to dump the graph; "all" for each pass, "" for none.
        watched: Names of the passes whose effects are recorded.
        dumps: For each dump, the name of the pass and the graph after it as text.
        seconds: For each pass that ran, its name and its time in seconds.
        effects: The effect of each run of a watched pass, in order, including runs on the bodies of control flow
            operators.
    """

    dump_after: str = ""
    watched: Sequence[str] = ()
    dumps: list[tuple[str, str]] = field(default_factory=list)
    seconds: list[tuple[str, float]] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)

    def __post_init__(self) -> None:
        names = list(dict.fromkeys(pass_.__name__ for pass_, _ in PIPELINE))
        if self.dump_after not in ("", "all", *names):
            raise UsageError("--dump-after must name a pass", f"'{self.dump_after}'", f"all, {', '.join(names)}")
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
    """Run all passes of the compiler (PIPELINE) on a graph in place, and verify the graph after each pass.

    The bodies of control flow operators are optimized first.

    Args:
        graph: The graph, changed in place.
        trace: Receives debugging output; None for none.
    """
    _run(PIPELINE, graph, trace)


def fuse_float(graph: Graph) -> None:
    """Fuse the layers of a float graph in place, such as activations and batch normalizations, by the passes FUSION."""
    _run(FUSION, graph)


def convert_integers(graph: Graph) -> None:
    """Convert a quantized graph to integer operators in place, by the passes INTEGER_PASSES.

    The converted graph computes the same bits as the generated code, since later passes do not change results.
    """
    _run(INTEGER_PASSES, graph)


def find_constant_channels(graph: Graph) -> dict[Value, Array]:
    """Find the channels of quantized tensors whose elements are constant, whatever the input is.

    The passes of the pipeline run on `graph` in place, up to the pass that would remove these channels.

    Returns:
        By tensor, an array with one entry for each channel: the quantized value of a constant channel, else NaN.
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
        any_size: Whether programs for different run-time sizes must differ in parameters only.
        kernels: The kernel of each node; None for the best ones within the board's RAM and flash.

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
    if choices or any(isinstance(node.op, SelfTimed) for node in graph.nodes):
        timed = replace(costs, core=board.core)
        cycles = estimated_cycles(graph, timed, choices)
        unchosen_time = time_without_choice(graph, board.features, timed, choices, options.optimize)
        program.cycles_estimate = None if cycles is None else cycles + unchosen_time
    if options.stream_input and program.streamed is None:
        rule = "--stream-input: the first input must be read row by row"
        remedy = "compile without it: the input lies in the arena then"
        raise UsageError(rule, "a layer reads the whole input, or parts of it twice", remedy)
    if options.weights_reader:
        with_read_weights(program)
    return program


class Kernels:
    """A selector of the best kernel of each node of a graph, for a goal and within limits of memory and time."""

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
        """Return the best kernel of each node within limits of RAM and flash, by node.

        Args:
            limits: The limits in bytes; None for the RAM and flash of the board.
        """
        return self._choice.within(replace(limits or self._limits, instructions=self._options.most_instructions))

    def slowest(self) -> float:
        """Return the largest estimated number of instructions per inference that the goal `balanced` accepts.

        It is infinite if the board's RAM or flash is scarce for the model.
        """
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
        node.op.widened_bytes(node)
        for node in nodes
        if isinstance(node.op, Widenable) and not node.op.widens_by_parts(node.sig, board.features)
    )
    return nbytes <= AMPLE_MEMORY_FRACTION * board.total_flash


def _with_waits(costs: CostTable, board: Board, options: CompileOptions) -> CostTable:
    """Return the costs with estimates of stall cycles, as far as the goal needs them.

    For `speed`, the costs include the stalls of the core and of all memories. For `balanced`, they include the
    stalls that kernels declare, and those on activations if there is a data cache. Measured times include all
    stalls. The time with copied constants counts for `speed` only, as the other goals may not copy them.
    """
    is_copied = options.optimize == "speed"
    times = {key: min(t.plain, t.copied) if is_copied else t.plain for key, t in options.times.items()}
    is_balanced = options.optimize == GOALS[0]
    costs = replace(costs, times=times, declared_core=board.core if is_balanced else "")
    slow, fast = memory_of_weights(board, options.place), memory_of_arena(board, options.place)
    price = options.copy_price

    def of_arena(program: Program) -> float:
        return sum(arena_stall_cycles(program, board, fast).values())

    if is_balanced and board.cache(fast, "data") is not None:
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
    """Order a program's instructions for the least memory, place its buffers, verify the placement, and return it.

    Args:
        program: The program, changed in place.
        target_bytes: Arena size in bytes at which the planner stops searching, because it is small enough.
        max_bytes: Arena size in bytes above which the plan is useless, so that the planner need not improve it.

    Raises:
        VerificationError: The plan would let an instruction overwrite data that is still needed.
    """
    reorder(program)
    plan_memory(program, target_bytes, max_bytes)
    verify_plan(program)
    return program
