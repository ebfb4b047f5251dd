# SPDX-License-Identifier: Apache-2.0
"""The stages of a compilation, from the input model to C."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import onnx

from mcugen.backends.cpu.pipeline import optimize
from mcugen.codegen.draft import Draft, FolderOptions, Provenance, Sample
from mcugen.codegen.functions import KernelSource
from mcugen.codegen.identifiers import identifier
from mcugen.codegen.memory import weights_bytes
from mcugen.core.board import Board, load_board
from mcugen.core.errors import UsageError
from mcugen.core.limits import limit_cpu_seconds
from mcugen.core.options import CompileOptions
from mcugen.driver.compilation_trace import CompilationTrace
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.diagnostics import notes_of
from mcugen.driver.option_checks import check_options, reading_for, resolve_goal
from mcugen.driver.parameters import require_room
from mcugen.driver.plugins import registry_of
from mcugen.driver.program import place_program, search_program
from mcugen.driver.results import CompilationResults, accelerator_figures, weight_copies
from mcugen.driver.target import features_of_cores, target_of
from mcugen.driver.trained_weights import compile_with_trained_weights
from mcugen.driver.variants import Variants
from mcugen.frontend.onnx.borders import with_integer_borders
from mcugen.frontend.onnx.load import LoadedModel, load
from mcugen.frontend.onnx.lost_constants import describe_lost, lost_constants
from mcugen.hir.graph import Graph
from mcugen.numerics.threads import one_thread
from mcugen.pipelines import bind_pipeline
from mcugen.quantization.precisions import precisions_of_given
from mcugen.quantization.quantize import Quantization
from mcugen.reporting.basis import Basis
from mcugen.reporting.figures import InputFigures, Report, describe, memory_use

ModelSource: TypeAlias = str | Path | onnx.ModelProto | Quantization
"""A model to compile: the path of an ONNX file, an ONNX model in memory, or a model that mcugen quantized."""


def compile_model(
    model: ModelSource,
    board: str | Board = "host",
    options: CompileOptions | None = None,
    trace: CompilationTrace | None = None,
) -> CompiledModel:
    """Compile an ONNX model, or a quantized one, for a board, without writing files.

    Args:
        model: The path of an ONNX file, an ONNX model in memory, or a model that mcugen quantized.
        board: The board or its name.
        options: The options of the compilation; the defaults if None.
        trace: Records what the passes do and, if `trace.search` is set, the candidates of the program search.

    Raises:
        McugenError: One of the errors of mcugen.core.errors.
    """
    options = resolve_goal(options or CompileOptions())
    hardware = board if isinstance(board, Board) else load_board(board)
    return compile_with_trained_weights(options, partial(_compile_once, model, hardware, trace))


def _compile_once(
    model: ModelSource, board: Board, trace: CompilationTrace | None, options: CompileOptions
) -> CompiledModel:
    """Compile a model with options that leave no choice of the type of trained weights; see `compile_model`."""
    check_options(options, board)
    quantization = model if isinstance(model, Quantization) else None
    source, options = _load(model, options)
    with limit_cpu_seconds("compilation"), one_thread():
        variants, graph = _import_graph(source, target_of(board, options), options)
        options, symbols = variants.options, variants.symbols(graph)
        optimize(graph, trace)
        options = replace(options, states={**options.states, **graph.states})
        variants = replace(variants, options=options)
        require_room(graph, variants.board, options)
        search = search_program(graph, variants, symbols, board, trace.search if trace else None)
        placed_options = search.placed(options)
        placement = place_program(search, placed_options)
        feed = bind_pipeline(options.input_pipeline, search.fit.program.inputs) if options.input_pipeline else None
        results = CompilationResults(
            source, quantization, board, options, placed_options, graph, search, placement, feed
        )
        report = _report(results)
        computed_graph = search.offloaded or graph
        sample = variants.sample(computed_graph, symbols, results.program)
    draft = _draft(results, report, sample)
    program = results.program
    return CompiledModel(
        source.proto, source.given, board, computed_graph, program, report, results.options, draft, quantization
    )


def _load(model: ModelSource, options: CompileOptions) -> tuple[LoadedModel, CompileOptions]:
    """Return the loaded model, and the options without those that a quantized model has as parts of it."""
    if isinstance(model, Quantization):
        if options.match:
            rule = f"--match {options.match} is for .tflite models that are quantized already"
            raise UsageError(rule, "a model that mcugen quantizes", "leave out --match, or the samples")
        source, options = model.loaded, replace(options, dims={}, bound={})
    else:
        source = load(model, registry_of(options.plugins), options.input_types, reading_for(options))
        options = replace(options, states=source.states_with(options.states))
    if options.helpers and not options.labels:
        options = replace(options, labels=source.labels)
    if options.integer_io:
        states = {*options.states, *options.states.values()}
        source = replace(source, proto=with_integer_borders(source.proto, states))
    return source, options


def _import_graph(source: LoadedModel, target: Board, options: CompileOptions) -> tuple[Variants, Graph]:
    """Return the model with its options, and its graph at the largest sizes; a trained model has its states."""
    variants = Variants(source.proto, identifier(options.name or Path(source.file).stem), options, target)
    graph = variants.graph({key: high for key, (_, high) in options.ranges.items()})
    if options.training is None:
        return variants, graph
    from mcugen.training.lesson import make_trainable  # Most models do not learn.

    states = make_trainable(graph, options.training)
    return replace(variants, options=replace(options, states=states)), graph


def _report(results: CompilationResults) -> Report:
    """Return the report of what is known without running anything."""
    program, options, quantization = results.program, results.options, results.quantization
    digest = quantization.calibration_sha256 if quantization else None
    report = describe(
        Basis.of(results.board, results.description, digest),
        results.fit,
        results.graph,
        results.target,
        results.source.sha256,
        ", ".join(options.kernels) or options.family,
        memory_use(program, results.placement, weights_bytes(program, results.weights_file)),
        notes_of(results),
    )
    report = replace(report, weight_copies=weight_copies(results), accelerator=accelerator_figures(results))
    if results.feed is not None:
        figures = InputFigures(results.feed.text, results.feed.state_bytes, results.feed.table_bytes)
        report = replace(report, input_pipeline=figures)
    if quantization is not None:
        estimate, warnings, layers = quantization.estimate, quantization.warnings, quantization.other_precisions
        return replace(report, quantization_estimate=estimate, warnings=warnings, other_precisions=layers)
    lost = lost_constants(results.source.given.graph, options.bound)
    warnings = (describe_lost(lost),) if lost else ()
    return replace(report, warnings=warnings, other_precisions=precisions_of_given(results.graph))


def _draft(results: CompilationResults, report: Report, sample: Sample) -> Draft:
    """Return everything that the C files are rendered from."""
    source, options, feed = results.source, results.options, results.feed
    accuracy = str(report.quantization_estimate or "")
    provenance = Provenance(source.file, source.sha256, results.target.name, results.description, accuracy)
    form = FolderOptions(
        results.weights_file,
        options.helpers,
        options.labels,
        options.steps or bool(options.monitor_layers),
        validation=options.validation,
        checks=options.check_weights or options.check_parameters,
        checks_steps=options.checked_steps,
        guards=options.checked_arena,
        cached=results.cached_cores,
        input_code=feed.code if feed else None,
    )
    templates = registry_of(options.plugins).templates
    kernel_source = KernelSource(features_of_cores(results.board, options), templates)
    return Draft(results.program, provenance, (sample,), report.to_json(), results.placement, form, kernel_source)
