# SPDX-License-Identifier: Apache-2.0
"""The steps of a compilation, from the input model to C."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnx

from mcugen.backends.cpu.pipeline import lowered, optimize, plan_program
from mcugen.codegen.bundle import Bundle
from mcugen.codegen.draft import Draft, FolderForm, Provenance, Sample
from mcugen.codegen.functions import KernelSource
from mcugen.codegen.identifiers import identifier
from mcugen.codegen.memory import WeightsFile, weights_bytes
from mcugen.codegen.render import render
from mcugen.core.board import Board, load_board
from mcugen.core.errors import ConstraintError, DoesNotFitError, McugenError, ToolMissingError, UsageError, shortened
from mcugen.core.limits import cpu_seconds
from mcugen.core.options import (
    AUTO_PLACE,
    FAMILIES,
    GOALS,
    LEARN_INTEGERS,
    LOSS_NAMES,
    OPTIMIZER_NAMES,
    RUNNING,
    THROUGHPUT,
    TRAINED_AS,
    CompileOptions,
    Training,
)
from mcugen.driver.compilation_trace import CompilationTrace
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.option_conflicts import COPY_AHEAD, require_compatible
from mcugen.driver.parameters import require_room
from mcugen.driver.plugins import registry_of
from mcugen.driver.variants import Variants, check_ranges
from mcugen.evaluation.layers import precision_lines
from mcugen.frontend.onnx.borders import with_integer_borders
from mcugen.frontend.onnx.load import LoadedModel, load
from mcugen.frontend.onnx.lost_constants import describe_lost, lost_constants
from mcugen.hir.graph import Graph
from mcugen.hir.traits import Widenable
from mcugen.lir.formula import Symbol
from mcugen.lir.kernel import CHECKED, HALVES, UPDATABLE
from mcugen.lir.program import Control, Program
from mcugen.lir.weights import largest_read
from mcugen.memory.activation_stalls import waits_for_arena
from mcugen.memory.loop_tuning import tuning_flags
from mcugen.memory.place import (
    Placement,
    copied_bytes,
    copies_of,
    in_its_image,
    memory_of_arena,
    memory_of_weights,
    place,
)
from mcugen.memory.plan import Planned
from mcugen.numerics.threads import one_thread
from mcugen.pipelines import bind
from mcugen.quantization.precisions import precisions_of_given
from mcugen.quantization.quantize import Quantization
from mcugen.reporting.basis import Basis
from mcugen.reporting.figures import InputFigures, Report, describe, memory_use
from mcugen.search.budget import Fit
from mcugen.search.objective import Budget
from mcugen.search.option_hints import codes_of, hint_of_codes, hint_of_copies_ahead, hint_of_places, hint_of_types
from mcugen.search.problem import SearchProblem
from mcugen.search.program_search import ProgramSearch
from mcugen.search.slowdown_cap import SearchResult, SlowdownCap
from mcugen.search.trace import SearchTrace
from mcugen.search.weight_staging import time_of_copies

ModelSource: TypeAlias = str | Path | onnx.ModelProto | Quantization
"""A file, a loaded model, or a quantized one."""


def compile_model(
    model: ModelSource,
    board: str | Board = "host",
    options: CompileOptions | None = None,
    trace: CompilationTrace | None = None,
) -> CompiledModel:
    """Compile an ONNX model, or a quantized one, for a board, without writing files.

    Args:
        model: A file, a loaded model, or a quantized one.
        board: The board or its name.
        options: The options of the compilation; the defaults if None.
        trace: Records what the passes and, if it asks for that, the program search do.

    Raises:
        McugenError: One of the errors of mcugen.core.errors.
    """
    options = options or CompileOptions()
    if options.optimize == THROUGHPUT:
        options = replace(options, optimize=GOALS[0], throughput=True)
    hardware = board if isinstance(board, Board) else load_board(board)
    coded = _with_codes(options)
    if coded is None:
        return _compile_once(model, hardware, options, trace)
    try:
        return _compile_once(model, hardware, _with_training(options, "float32"), trace)
    except (DoesNotFitError, ConstraintError) as error:
        return _compile_integer_training(model, hardware, coded, trace, error)


def _compile_once(
    model: ModelSource, board: Board, options: CompileOptions, trace: CompilationTrace | None
) -> CompiledModel:
    """Compile a model once, with fixed options."""
    file = _check_options(options, board)
    target = target_of(board, options)
    registry = registry_of(options.plugins)
    quantized = model if isinstance(model, Quantization) else None
    source = model.loaded if isinstance(model, Quantization) else load(model, registry, options.input_types)
    if options.integer_io and quantized is None:
        states = {*options.states, *options.states.values()}
        source = replace(source, proto=with_integer_borders(source.proto, states))
    if quantized:
        options = replace(options, dims={}, bound={})  # These are part of the quantized model.
    name = identifier(options.name or Path(source.file).stem)
    check_ranges(options.ranges)
    variants = Variants(source.proto, name, options, target)
    with cpu_seconds("compilation"), one_thread():
        graph = variants.graph({key: high for key, (_, high) in options.ranges.items()})
        options = (variants := _taught(graph, variants)).options
        symbols = variants.symbols(graph)
        optimize(graph, trace)
        require_room(graph, target, options)
        best = _search_program(graph, variants, symbols, board, trace.search if trace else None)
        fit, target, program, chosen = best.fit, best.board, best.fit.program, best.placed(options)
        notes = fit.notes(target, options.optimize)
        notes += _copy_notes(fit, target, options, chosen)
        requested, options = options, chosen
        placement = place(program, target, options.place, most_spilled=_max_spilled_bytes(fit, options))
        cached = _has_data_caches(target, placement) if options.cores > 1 else (False, False)
        notes += [*_cache_notes(target, placement, cached), *_core_notes(program, target, options, placement)]
        notes += [*_arena_notes(program, target, placement, options), *_hints(fit, graph, target, requested, placement)]
        if file and placement.copies:
            problem = f"{file.option} and copies to RAM"
            raise UsageError("a file of weights is read where it lies", problem, "leave one out")
        fit = fit.placed(target, options)
        notes = [
            *graph.notes,
            *_nan_notes(graph),
            *([] if quantized else precision_lines(precisions_of_given(graph))),
            *_widened_notes(graph),
            *_wide_notes(graph, program),
            *([_READ_NOTE.format(largest_read(program))] * options.weights_reader),
            *notes,
            *(quantized.notes if quantized else ()),
        ]
        described = "; ".join([options.describe(), *([quantized.describe()] if quantized else [])])
        basis = Basis.of(board, described, quantized.calibration_sha256 if quantized else None)
        memories = memory_use(program, placement, weights_bytes(program, file))
        kernels = ", ".join(options.kernels) or options.family
        figures = describe(basis, fit, graph, target, source.sha256, kernels, memories, notes)
        sample = variants.sample(graph, symbols, program)
    figures = _with_precisions(figures, quantized) if quantized else _report_given(figures, graph, source, options)
    figures, form = _with_input(figures, program, options, file)
    form = replace(form, cached=cached)
    rated = str(figures.quantization_estimate or "")
    provenance = Provenance(source.file, source.sha256, target.name, described, rated)
    kernel_source = KernelSource(_features_of_cores(board, options), registry.templates)
    draft = Draft(program, provenance, (sample,), figures.to_json(), placement, form, kernel_source)
    return CompiledModel(source.proto, source.given, board, graph, program, figures, options, draft, quantized)


def _with_precisions(figures: Report, quantization: Quantization) -> Report:
    """Return the report with the quantization estimate, warnings and remaining precisions of a quantized model."""
    estimate, warnings, layers = quantization.estimate, quantization.warnings, quantization.other_precisions
    return replace(figures, quantization_estimate=estimate, warnings=warnings, other_precisions=layers)


def _report_given(figures: Report, graph: Graph, source: LoadedModel, options: CompileOptions) -> Report:
    """Return the report of a model that mcugen did not quantize, with warnings and its layers in float32."""
    lost = lost_constants(source.given.graph, options.bound)
    warnings = (describe_lost(lost),) if lost else ()
    return replace(figures, warnings=warnings, other_precisions=precisions_of_given(graph))


def draft_program(model: Quantization, board: Board, options: CompileOptions) -> tuple[Graph, Program]:
    """Return the optimized graph and a planned program, to estimate what models cost.

    The program runs layer by layer with the kernels that serve the goal. It is not fitted to the board, which would
    take several times as long.

    Args:
        model: The quantized model.
        board: The board.
        options: The options of the compilation.
    """
    return _draft_once(model.loaded, board, replace(options, dims={}, bound={}))


def drafted_in_float(source: LoadedModel, board: Board, options: CompileOptions) -> Program:
    """Return a planned program like that of `drafted` for a model that is not quantized.

    Args:
        source: The float model.
        board: The board.
        options: The options of the compilation.
    """
    return _draft_once(source, board, replace(options, integer_io=False))[1]


def _draft_once(source: LoadedModel, board: Board, options: CompileOptions) -> tuple[Graph, Program]:
    target = target_of(board, options)
    options = replace(options, stream_input=False)
    with cpu_seconds("compilation"), one_thread():
        graph = Variants(source.proto, identifier(Path(source.file).stem), options, target).graph({})
        optimize(graph)
        return graph, plan_program(lowered(graph, target, options))


def target_of(board: Board, options: CompileOptions) -> Board:
    """Return the board with the tuning flags of the options as features."""
    return replace(board, features=board.features | _wishes(board, options))


def bundle_of(program: Program, board: Board, options: CompileOptions) -> Bundle:
    """Return the C files of a planned program without a model, with a self-test that expects nothing in particular.

    Args:
        program: The planned program.
        board: The board.
        options: The options of the compilation.
    """
    inputs, outputs = (
        {e.name: np.zeros(e.shape, e.dtype.numpy) for e in ends} for ends in (program.inputs, program.outputs)
    )
    provenance = Provenance(program.name, "", board.name, options.describe())
    source = KernelSource(board.features, registry_of(options.plugins).templates)
    placement = place(program, board, options.place)
    return render(Draft(program, provenance, (Sample(inputs, outputs, 0.0, 0),), {}, placement, FolderForm(), source))


def _search_program(
    graph: Graph, variants: Variants, symbols: Sequence[Symbol], hardware: Board, trace: SearchTrace | None
) -> SearchResult:
    """Search the program for the target; where only code size decides, candidates are compiled for the hardware.

    Args:
        graph: The optimized graph.
        variants: The model with its options and target.
        symbols: Its symbolic sizes; there are no alternatives to the program for all of these.
        hardware: The board as the user named it.
        trace: Records the candidates, if given.
    """
    target, options = variants.board, variants.options
    if symbols:
        return SearchResult(variants.program(symbols), target, options)
    problem = SearchProblem(graph, target, options, trace=trace)
    fit = ProgramSearch(problem, partial(_code_of, board=hardware, options=options)).run()
    return SlowdownCap(graph, SearchResult(fit, target, options), partial(target_of, hardware), trace).result()


def _code_of(program: Program, board: Board, options: CompileOptions) -> int | None:
    """Return the bytes of a program's code as built for the board, or None where no compiler is available."""
    from mcugen.simulation.simulation import linked_sizes, roots_of

    if not board.qemu:
        return None
    saved_plan = Planned.of(program)
    try:
        return linked_sizes(bundle := bundle_of(program, board, options), board, roots_of(bundle), options.library).code
    except (DoesNotFitError, ToolMissingError, UsageError):
        return None
    finally:
        saved_plan.restore(program)


def _with_training(options: CompileOptions, precision: str) -> CompileOptions:
    assert options.training is not None
    return replace(options, training=replace(options.training, precision=precision))


def _with_codes(options: CompileOptions) -> CompileOptions | None:
    """Return options with int8 weights for training, or None if the weights must stay in float32."""
    training = options.training
    if training is None or training.precision != TRAINED_AS[0] or training.is_head or training.updates_statistics:
        return None
    if training.optimizer not in LEARN_INTEGERS:
        return None
    return _with_training(options, "int8")


def _compile_integer_training(
    model: ModelSource,
    board: Board,
    options: CompileOptions,
    trace: CompilationTrace | None,
    error: McugenError,
) -> CompiledModel:
    """Compile with trained weights as int8, and note that.

    If the int8 weights do not fit either, the error of the float32 weights is raised.
    """
    try:
        compiled = _compile_once(model, board, options, trace)
    except (DoesNotFitError, ConstraintError, UsageError):
        raise error from None
    note = f"trained weights are int8, as float32 did not fit ({error.found}); --train-weights float32 insists"
    return replace(compiled, report=replace(compiled.report, notes=(*compiled.report.notes, note)))


def _taught(graph: Graph, variants: Variants) -> Variants:
    """Make the graph learn if the options ask for it, and return the variants with its states."""
    options = variants.options
    if options.training is None:
        return variants
    from mcugen.training.lesson import teach  # Most models do not learn.

    return replace(variants, options=replace(options, states=teach(graph, options.training)))


def _with_input(
    figures: Report, program: Program, options: CompileOptions, file: WeightsFile | None
) -> tuple[Report, FolderForm]:
    """Return the report with the input pipeline, and the form of the folder."""
    feed = bind(options.input_pipeline, program.inputs) if options.input_pipeline else None
    if feed and program.streamed is not None:
        raise UsageError("an input that is made of raw data lies in memory", "--stream-input", "leave one out")
    if options.checked_arena and len(program.area_sizes) > 1:
        raise UsageError("--checked-arena takes one arena", "several", "leave out --place")
    if feed and codes_of(program, program.inputs[0].buffer):
        figures = replace(figures, notes=(*figures.notes, _REALS_NOTE))
    if feed:
        figures = replace(figures, input_pipeline=InputFigures(feed.text, feed.state_bytes, feed.table_bytes))
    form = FolderForm(
        file,
        options.helpers,
        options.labels,
        options.steps,
        validation=options.validation,
        checks=options.check_weights or options.check_parameters,
        checks_steps=options.checked_steps,
        guards=options.checked_arena,
        input_code=feed.code if feed else None,
    )
    return figures, form


def _copy_notes(fit: Fit, board: Board, options: CompileOptions, chosen: CompileOptions) -> list[str]:
    """Return notes of weights that start-up copies without being asked to, and of copies during layers."""
    notes = [_copied_note(fit.program, board, chosen)] if chosen is not options else []
    return [*notes, *([_copied_ahead_note(fit)] if options.copy_ahead else [])]


def _copied_note(program: Program, board: Board, options: CompileOptions) -> str:
    """Return the note of weights that start-up copies to RAM, with its time and the option that avoids it."""
    nbytes = copied_bytes(program, board, options.place)
    part = f" of {program.weights_size:,}" if nbytes < program.weights_size else ""
    took = time_of_copies(board, options, nbytes)
    to = " and ".join(dict.fromkeys(f"'{memory.name}'" for memory in copies_of(program, board, options.place).values()))
    also = f"arena={AUTO_PLACE}," if options.place.arena else ""
    stay = f"--place {also}weights={memory_of_weights(board, options.place).name} leaves them in flash"
    return f"start-up copies {nbytes:,}{part} bytes of weights to {to} for speed, in about {took:,} cycles; {stay}"


def _copied_ahead_note(fit: Fit) -> str:
    """Return the note of copies that run during other layers, with the cycles that they hide."""
    gains = [gain for gain in fit.chosen.copies.gains if gain.copy.beside is not None] if fit.chosen.copies else []
    if not gains:
        return "--copy-ahead: no copy pays that goes on while a layer runs"
    nbytes = sum(gain.copy.constant.nbytes for gain in gains)
    hidden = f"hides about {round(sum(gain.hidden for gain in gains)):,} cycles of reading"
    summary = f"{len(gains)} copies of weights, {nbytes:,} bytes, go on while other layers run, which {hidden}"
    return f"--copy-ahead: {summary}, if MCUGEN_STAGE_BEGIN and MCUGEN_STAGE_END of the firmware copy by DMA (mcugen.h)"


def _hints(fit: Fit, graph: Graph, board: Board, options: CompileOptions, placement: Placement) -> list[str]:
    """Return hints to options that the user did not set."""
    hints = hint_of_places(fit.chosen, board, options, placement)
    if _refusal_of_copies_ahead(options, board) is None:
        hints += hint_of_copies_ahead(fit.chosen, board, options)
    return [*hints, *hint_of_codes(fit.program, options), *hint_of_types(graph, options)]


def _max_spilled_bytes(fit: Fit, options: CompileOptions) -> float:
    """Return the bytes that an arena in several memories may take."""
    if not options.may_spill:
        return 0
    other_bytes = fit.chosen.use.ram - fit.program.arena_size
    return math.inf if options.max_ram is None else options.max_ram - other_bytes


def _arena_notes(program: Program, board: Board, placement: Placement, options: CompileOptions) -> list[str]:
    """Return notes of an arena that exceeds the board's own memory: what lies in slower memory, and its cost."""
    memory, arenas = memory_of_arena(board, options.place), placement.arenas
    if len(arenas) > 1:
        return [
            _spilling(program, board, placement, index) for index, m in enumerate(arenas) if m.speed > arenas[0].speed
        ]
    if options.place.arena or arenas[0].speed <= memory.speed:
        return []
    size = f"the arena of {program.arena_size:,} bytes"
    return [f"{size} lies in '{arenas[0].name}', slower than '{memory.name}', which has {memory.room:,}; {_SPLIT}"]


def _spilling(program: Program, board: Board, placement: Placement, area: int) -> str:
    """Return the note of a part of the arena in slower memory, with its stall cycles and largest buffers."""
    memory, size = placement.arenas[area], program.area_sizes[area]
    waits = waits_for_arena(program, board, memory)
    lying = {buffer: cycles for buffer, cycles in waits.items() if buffer.area == area and buffer.nbytes}
    names = ", ".join(f"'{shortened(b.name, 40)}' {b.nbytes:,}" for b in sorted(lying, key=lambda b: -lying[b])[:3])
    more = f" and {len(lying) - 3} more" if len(lying) > 3 else ""
    cost = f"about {round(sum(lying.values())):,} cycles of waiting"
    return f"{size:,} bytes of the arena spill to '{memory.name}', {cost}: {names}{more}"


def _has_data_caches(board: Board, placement: Placement) -> tuple[bool, bool]:
    """Return for each of two unlike cores whether it has a data cache before the arena; equal cores share theirs.

    Raises:
        UsageError: If the second core cannot access the arena.
    """
    seen = [(memory, board.seen_by_helper(memory)) for memory in placement.arenas]
    helper_caches = [other.cache(other.memory(other.arena_memory), "data") for _, other in seen if other]
    return any(other and board.cache(memory, "data") for memory, other in seen), any(helper_caches)


def _core_notes(program: Program, board: Board, options: CompileOptions, placement: Placement) -> list[str]:
    """Return notes of what two cores do, where it differs from what was requested, and what it requires."""
    if options.cores == 1:
        return []
    image = _image_notes(board, placement, program)
    if program.handover is not None:
        nbytes = sum(program.instrs[i].part("x")[1] for i in program.handover)
        return [
            f"a pipeline over frames: core '{board.cores[0].name}' begins a frame while '{board.cores[1].name}' ends "
            f"the one before ({program.name}_push gives its result, {program.name}_pull the last one's); {nbytes:,} "
            "bytes are handed over",
            *image,
        ]
    if any(instr.control is Control.FORK for instr in program.instrs):
        note = "--optimize throughput: two cores that share layers give more frames than a pipeline"
        return [note] * options.throughput + image
    return [
        "--cores 2: one core computes all, as the other would save nothing to speak of within the RAM that two may "
        f"take; there is {program.name}_run alone, as without --cores"
    ]


def _cache_notes(board: Board, placement: Placement, cached: tuple[bool, bool]) -> list[str]:
    """Return notes of what the caches of two cores require of the firmware."""
    where = ", ".join(f"'{memory.name}'" for memory in placement.arenas)
    return [
        f"core '{core.name}' has a data cache before {where}, where the arena lies: build with MCUGEN_CORES_CACHE and "
        "make that memory write-through, or uncached, before the first run (mcugen_cores_cache.h)"
        for core, is_cached in zip(board.cores, cached, strict=False)
        if is_cached
    ]


def _image_notes(board: Board, placement: Placement, program: Program) -> list[str]:
    """Return notes on a second core whose firmware has its own copy of weights."""
    seen = board.seen_by_helper(placement.arenas[0]) if program.of_second_core() else None
    if seen is None or in_its_image(placement, program, seen) == placement:
        return []
    return [
        f"weights of core '{board.cores[1].name}' lie in its own image ('{seen.weights_memory}'), faster than where "
        "start-up copies the first core's: build NAME_weights.c with -D'MCUGEN_SECTION(name)=' there"
    ]


_SPLIT = "--place auto leaves there what is used least, and report tells what either takes"


def _nan_notes(graph: Graph) -> list[str]:
    """Return a note of constants that hold NaN; infinity may be intended, for example in a mask."""
    constants = {v.name: v.data for part in graph.nested() for v in part.values() if v.data is not None}
    nan_names = [name for name, data in constants.items() if data.dtype.kind == "f" and np.isnan(data).any()]
    if not nan_names:
        return []
    names = ", ".join(f"'{shortened(name, 40)}'" for name in nan_names[:3])
    more = f" and {len(nan_names) - 3} more" if len(nan_names) > 3 else ""
    return [f"constants hold NaN, and so may all results: {names}{more}; train or export the model again"]


def _widened_notes(graph: Graph) -> list[str]:
    """Return a note of quantized weights that are stored as floats, because their layers compute in float."""
    widened = [row for part in graph.nested() for row in part.widened.items()]
    if not widened:
        return []
    floats, codes = (sum(sizes) for sizes in zip(*(sizes for _, sizes in widened), strict=True))
    names = ", ".join(f"'{shortened(name, 40)}'" for name, _ in widened[:3])
    more = f" and {len(widened) - 3} more" if len(widened) > 3 else ""
    return [
        f"weights that are quantized in the model are floats in flash, {floats:,} bytes for {codes:,}: {names}{more}; "
        "their layers read reals, or have no integer form: quantize what they read, or the float model (--calibration)"
    ]


def _wide_notes(graph: Graph, program: Program) -> list[str]:
    """Return a note of layers that store weights in more bits than necessary, for speed."""
    nodes = [node for part in graph.nested() for node in part.nodes if isinstance(node.op, Widenable)]
    nbytes = {node.outputs[0].name: node.op.widened_bytes(node.sig) for node in nodes if isinstance(node.op, Widenable)}
    stored = {
        i.name: max((o.buffer.nbytes for o in i.operands if o.buffer.data is not None), default=0)
        for i in program.instrs
    }
    wide = [name for name, size in nbytes.items() if size and stored.get(name, 0) >= size]
    if not wide:
        return []
    total = sum(nbytes[name] for name in wide)
    return [
        f"weights of {len(wide)} layers that came in few bits are {total:,} bytes of floats in flash, for speed: "
        "--optimize flash keeps them in few bits"
    ]


_REALS_NOTE = (
    "the input pipeline writes float32, which the model quantizes: with --integer-io it writes codes, in less RAM"
)
_READ_NOTE = "--weights-reader: the weights of a layer take up to {:,} bytes of the arena while it runs"


def _check_cores(options: CompileOptions, board: Board) -> None:
    """Raise UsageError for a number of cores that the board does not have."""
    if options.cores not in (1, 2):
        raise UsageError("--cores must be 1 or 2", str(options.cores))
    if options.cores > 1 and board.helper is None:
        rule = "--cores 2: the board must list a second core, like the first or with a board file of its own"
        raise UsageError(rule, f"board '{board.name}' lists {len(board.cores) or 1}", "leave --cores out")


def _features_of_cores(board: Board, options: CompileOptions) -> frozenset[str]:
    """Return the features of all CPUs that the code is built for."""
    other = board.other_kind if options.cores > 1 else None
    return board.features | other.features if other else board.features


def _check_training(options: CompileOptions) -> None:
    """Raise UsageError for a wrong choice of what learns, and how."""
    training = options.training
    if training is None:
        return
    if training.layers.endswith(".npz"):
        rule, remedy = "--train says what is trained, --lesson by which samples", "--train auto --lesson"
        raise UsageError(rule, f"'{training.layers}'", f"{remedy} {shlex.quote(training.layers)}")
    choices = (
        ("loss", training.loss, LOSS_NAMES),
        ("optimizer", training.optimizer, OPTIMIZER_NAMES),
        ("train-weights", training.precision, TRAINED_AS),
        ("statistics", training.statistics, RUNNING),
    )
    for option, value, known in choices:
        if value not in known:
            raise UsageError(f"--{option} must be known", f"'{value}'", f"one of: {', '.join(known)}")
    if training.is_head and training != Training(training.layers):
        problem = f"--loss {training.loss} --optimizer {training.optimizer} --batch {training.batch}"
        problem += f" --statistics {training.statistics}"
        raise UsageError(f"--train {training.layers} has its own way to learn", problem, "leave these out")


def _refusal_of_copies_ahead(options: CompileOptions, board: Board) -> UsageError | None:
    """Return an error if no copy can run while the CPU computes, or if a run could leave one unfinished."""
    conflict = COPY_AHEAD.error(options)
    if conflict is not None:
        return conflict
    source, arenas = memory_of_weights(board, options.place), options.place.arena or (board.arena_memory,)
    if source.name not in board.dma_reads:
        problem = (
            f"board '{board.name}' lists {', '.join(board.dma_reads) or 'none'}, and weights lie in '{source.name}'"
        )
        remedy = f'a board file with dma_reads = ["{source.name}"], if its DMA controller can (docs/boards.md)'
        return UsageError("--copy-ahead: a DMA controller must read the memory of the weights", problem, remedy)
    for name in arenas:
        if name == AUTO_PLACE or board.cache(board.memory(name), "data"):
            rule = "--copy-ahead: the arena must lie in a memory without a data cache, which a DMA controller bypasses"
            free = [m.name for m in board.memories if m.kind == "ram" and not board.cache(m, "data")]
            remedy = f"--place arena=MEMORY: {', '.join(free)}" if free else "leave it out"
            return UsageError(rule, f"--place arena={name}", remedy)
    return None


def _wishes(board: Board, options: CompileOptions) -> frozenset[str]:
    """Return the tuning flags of kernels, besides the CPU's features."""
    wishes = {UPDATABLE: options.updatable, CHECKED: options.checked_indices, HALVES: options.float16_weights}
    flags = frozenset(wish for wish, is_used in wishes.items() if is_used)
    return flags | tuning_flags(board, memory_of_weights(board, options.place), options.optimize)


def _check_options(options: CompileOptions, board: Board) -> WeightsFile | None:
    """Check the options, and return how weights are stored in a file, or None if they are not.

    Raises:
        UsageError: If an option is invalid, or options exclude each other.
    """
    if options.optimize not in GOALS:
        goals = ", ".join((*GOALS, THROUGHPUT))
        raise UsageError("--optimize must name a goal", f"'{options.optimize}'", f"one of: {goals}")
    if options.family not in FAMILIES:
        raise UsageError("--kernels must name a family", f"'{options.family}'", f"one of: {', '.join(FAMILIES)}")
    Budget.of(options)  # Raises for a wrong budget before anything is loaded.
    if not 0 <= options.weights_version < 1 << 32:
        raise UsageError("--weights-version must fit 32 bits", str(options.weights_version))
    if options.weights_version and not options.updatable:
        raise UsageError("a version is for an updatable file of weights", "--weights-version", "give --updatable")
    _check_cores(options, board)
    _check_training(options)
    require_compatible(options)
    if options.copy_ahead and (refusal := _refusal_of_copies_ahead(options, board)) is not None:
        raise refusal
    is_file = options.weights_in_file
    return WeightsFile(options.updatable, options.weights_version, options.weights_reader) if is_file else None
