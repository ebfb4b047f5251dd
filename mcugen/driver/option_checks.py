# SPDX-License-Identifier: Apache-2.0
"""Checks of options that need nothing but the board: they run before a model is loaded or quantized."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace

from mcugen.codegen.memory import WeightsFile
from mcugen.core.board import Board
from mcugen.core.errors import UsageError, shortened
from mcugen.core.nearest import nearest_spelling
from mcugen.core.options import (
    AUTO_PLACE,
    FAMILIES,
    GOALS,
    INTEGER_OPTIMIZER_NAMES,
    LOSS_NAMES,
    MATCHES,
    OPTIMIZER_NAMES,
    STATISTICS_MODES,
    THROUGHPUT,
    TRAINED_PRECISIONS,
    CompileOptions,
    Training,
)
from mcugen.driver.option_conflicts import COPY_AHEAD, require_compatible
from mcugen.driver.tasks import Teaching
from mcugen.driver.variants import check_ranges
from mcugen.frontend.tflite.schema import TfliteReading
from mcugen.hir.types import Rounding
from mcugen.kernels.families import load_families
from mcugen.memory.place import check_places, memory_of_weights
from mcugen.pipelines import parse_pipeline, read_pipeline
from mcugen.reporting.kernels import declared_kernels
from mcugen.search.objective import Budget


def resolve_goal(options: CompileOptions) -> CompileOptions:
    """Return the options with the goal `throughput` replaced by the goal `balanced` and the field `throughput`.

    `throughput` is the goal of most frames per second on two cores; in all other respects it equals `balanced`. Options
    with another goal are returned as they are.
    """
    if options.optimize != THROUGHPUT:
        return options
    return replace(options, optimize=GOALS[0], throughput=True)


def reading_for(options: CompileOptions) -> TfliteReading:
    """Return what the options ask of the reader of .tflite files.

    Raises:
        UsageError: `--match` names no reference implementation.
    """
    if options.match and options.match not in MATCHES:
        rule = "--match must name a reference implementation"
        raise UsageError(rule, f"'{options.match}'", f"one of: {', '.join(MATCHES)}")
    rounding = Rounding(options.match) if options.match else Rounding.EXACT
    return TfliteReading(rounding, options.keeps_states, options.signature)


def check_options(options: CompileOptions, board: Board) -> None:
    """Check that all options are valid, possible on the board and compatible, before a model is loaded.

    Raises:
        UsageError: If an option is invalid or impossible on the board, or if options exclude each other.
    """
    options = resolve_goal(options)
    _check_values(options)
    _check_cores(options, board)
    if options.training is not None:
        _check_training(options.training)
    require_compatible(options)
    _check_places(options, board)
    _check_tools(options, board)
    if options.copy_ahead and (refusal := explain_no_copy_ahead(options, board)) is not None:
        raise refusal


def check_teaching(teaching: Teaching, options: CompileOptions) -> None:
    """Check the settings to train a model on samples: the options must say what is trained.

    Raises:
        UsageError: If no part of the model is trained on the device, or if the learning rate is not positive.
    """
    if options.training is None:
        raise UsageError("--lesson is for models that learn", "no --train", "name the trained layers: --train last:1")
    if not 0 < teaching.rate < float("inf"):
        raise UsageError("--rate must be a positive number", str(teaching.rate))


def explain_no_copy_ahead(options: CompileOptions, board: Board) -> UsageError | None:
    """Return the error that says why --copy-ahead (DMA copies weights while the CPU computes) is impossible.

    Reasons are another option, a memory that no DMA controller reads, and an arena behind a data cache.

    Returns:
        The error; None if --copy-ahead is possible.
    """
    conflict = COPY_AHEAD.error(options)
    if conflict is not None:
        return conflict
    source, arenas = memory_of_weights(board, options.place), options.place.arena or (board.arena_memory,)
    if source.name not in board.dma_reads:
        problem = (
            f"board '{board.name}' lists {', '.join(board.dma_reads) or 'none'}, and weights lie in '{source.name}'"
        )
        remedy = f'a board file with dma_reads = ["{source.name}"], if its DMA controller can (docs/how-to/boards.md)'
        return UsageError("--copy-ahead: a DMA controller must read the memory of the weights", problem, remedy)
    for name in arenas:
        if name == AUTO_PLACE or board.cache(board.memory(name), "data"):
            rule = "--copy-ahead: the arena must lie in a memory without a data cache, which a DMA controller bypasses"
            free = [m.name for m in board.memories if m.kind == "ram" and not board.cache(m, "data")]
            remedy = f"--place arena=MEMORY: {', '.join(free)}" if free else "leave it out"
            return UsageError(rule, f"--place arena={name}", remedy)
    return None


def _check_values(options: CompileOptions) -> None:
    """Raise UsageError if the value of an option is none of those that it may have."""
    if options.optimize not in GOALS:
        goals = ", ".join((*GOALS, THROUGHPUT))
        raise UsageError("--optimize must name a goal", f"'{options.optimize}'", f"one of: {goals}")
    if options.family not in FAMILIES:
        raise UsageError("--kernels must name a family", f"'{options.family}'", f"one of: {', '.join(FAMILIES)}")
    load_families(options.family)
    reading_for(options)
    if options.kernels and not options.plugins:  # The kernels of a plug-in are known once it has run.
        _check_kernels(options.kernels)
    Budget.of(options)
    check_ranges(options.ranges)
    if options.input_pipeline:
        parse_pipeline(read_pipeline(options.input_pipeline))
    if not 0 <= options.weights_version < 1 << 32:
        raise UsageError("--weights-version must fit 32 bits", str(options.weights_version))
    if options.weights_version and not options.updatable:
        raise UsageError("a version is for an updatable file of weights", "--weights-version", "give --updatable")
    if options.tune < 0:
        raise UsageError("--tune must be a number of kernels", str(options.tune), "e.g. --tune 4")
    if options.stream_steps is not None and options.stream_steps < 1:
        raise UsageError("--stream-steps must be a number of steps", str(options.stream_steps), "e.g. --stream-steps 1")
    if options.stream_axis is not None and options.stream_steps is None:
        raise UsageError("an axis of steps is for a stream", "--stream-axis", "give --stream-steps")


def _check_kernels(names: Sequence[str]) -> None:
    """Raise UsageError if a name is not that of a kernel."""
    known = [kernel.name for kernel in declared_kernels()]
    for name in names:
        if name not in known:
            near = nearest_spelling(name, known)
            remedy = f"one of: {near}" if near else "docs/reference/kernels.md lists all kernels"
            raise UsageError("--kernel must name a kernel", f"'{shortened(name, 200)}'", remedy)


def _check_cores(options: CompileOptions, board: Board) -> None:
    """Raise UsageError for a number of cores that the board does not have."""
    if options.cores not in (1, 2):
        raise UsageError("--cores must be 1 or 2", str(options.cores))
    if options.cores > 1 and board.second_core is None:
        rule = "--cores 2: the board must list a second core, like the first or with a board file of its own"
        raise UsageError(rule, f"board '{board.name}' lists {len(board.cores) or 1}", "leave --cores out")


def _check_training(training: Training) -> None:
    """Raise UsageError for a wrong choice of what learns, and how."""
    if training.layers.endswith(".npz"):
        rule, remedy = "--train names the layers to train, --lesson the samples", "--train auto --lesson"
        raise UsageError(rule, f"'{training.layers}'", f"{remedy} {shlex.quote(training.layers)}")
    choices = (
        ("loss", training.loss, LOSS_NAMES),
        ("optimizer", training.optimizer, OPTIMIZER_NAMES),
        ("train-weights", training.precision, TRAINED_PRECISIONS),
        ("statistics", training.statistics, STATISTICS_MODES),
    )
    for option, value, known in choices:
        if value not in known:
            raise UsageError(f"--{option} must be known", f"'{value}'", f"one of: {', '.join(known)}")
    if training.is_head and training != Training(training.layers):
        problem = f"--loss {training.loss} --optimizer {training.optimizer} --batch {training.batch}"
        problem += f" --statistics {training.statistics}"
        raise UsageError(f"--train {training.layers} has its own way to learn", problem, "leave these options out")
    if training.precision == "int8" and training.optimizer not in INTEGER_OPTIMIZER_NAMES:
        rule = (
            f"--train-weights int8 learns by {' or '.join(INTEGER_OPTIMIZER_NAMES)}: others remember averages of reals"
        )
        raise UsageError(rule, f"--optimizer {training.optimizer}", "--train-weights float32")


def _check_places(options: CompileOptions, board: Board) -> None:
    """Raise UsageError for memories that the board lacks, or that cannot hold what is placed there."""
    places, file = options.place, WeightsFile.requested(options)
    check_places(board, places)
    if file is not None and (places.hot or memory_of_weights(board, places).kind == "ram"):
        raise UsageError(
            "a file of weights cannot be copied to RAM", f"{file.option} and copies to RAM", "leave one out"
        )
    if options.cores > 1 and len(places.arena) == 1 and AUTO_PLACE not in places.arena:
        board.seen_by_second_core(board.memory(places.arena[0]))


def _check_tools(options: CompileOptions, board: Board) -> None:
    """Raise UsageError if an option needs a compiler or a simulation that the board does not have."""
    if options.stack_bound and not board.qemu:
        raise UsageError("--stack-bound needs the compiler of a board", f"board '{board.name}'", "give another path")
    if options.tune:
        from mcugen.simulation.timings import TIMINGS

        if not board.qemu or board.core not in TIMINGS:
            problem = f"no timing of a {board.core}" if board.qemu else f"board '{board.name}' is not simulated"
            raise UsageError("--tune needs a timing model of the board", problem, "use another board")
