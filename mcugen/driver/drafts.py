# SPDX-License-Identifier: Apache-2.0
"""Programs without a search: drafts that estimate what a model costs, and the C files of a program by itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from mcugen.backends.cpu.pipeline import lowered, optimize, plan_program
from mcugen.codegen.bundle import Bundle
from mcugen.codegen.draft import Draft, FolderOptions, Provenance, Sample
from mcugen.codegen.functions import KernelSource
from mcugen.codegen.identifiers import identifier
from mcugen.codegen.render import render
from mcugen.core.board import Board
from mcugen.core.limits import limit_cpu_seconds
from mcugen.core.options import CompileOptions
from mcugen.driver.option_checks import resolve_goal
from mcugen.driver.plugins import registry_of
from mcugen.driver.target import features_of_cores, target_of
from mcugen.driver.variants import Variants
from mcugen.frontend.onnx.load import LoadedModel
from mcugen.hir.graph import Graph
from mcugen.lir.program import Program
from mcugen.memory.place import place
from mcugen.numerics.threads import one_thread
from mcugen.quantization.quantize import Quantization


def draft_program(model: Quantization, board: Board, options: CompileOptions) -> tuple[Graph, Program]:
    """Return the optimized graph of a quantized model, and a program for a quick estimate of the model's cost.

    No search is made for the best program. The program has a memory plan and runs layer by layer, with the kernels that
    serve the goal. It may exceed the memory of the board, as a search for a program that fits would take several times
    as long.

    Args:
        model: The quantized model.
        board: The board.
        options: The options of the compilation.
    """
    return _plan_without_search(model.loaded, board, replace(options, dims={}, bound={}))


def draft_float_program(source: LoadedModel, board: Board, options: CompileOptions) -> Program:
    """Return a program of a float model for a quick estimate of its cost, without a search for the best program.

    The program has a memory plan and runs layer by layer, with the kernels that serve the goal. It may exceed the
    memory of the board.

    Args:
        source: The float model.
        board: The board.
        options: The options of the compilation.
    """
    return _plan_without_search(source, board, replace(options, integer_io=False))[1]


def _plan_without_search(source: LoadedModel, board: Board, options: CompileOptions) -> tuple[Graph, Program]:
    """Return the optimized graph and a planned program of a loaded model, which no search has changed."""
    target = target_of(board, options)
    options = replace(resolve_goal(options), stream_input=False)
    with limit_cpu_seconds("compilation"), one_thread():
        graph = Variants(source.proto, identifier(Path(source.file).stem), options, target).graph({})
        optimize(graph)
        return graph, plan_program(lowered(graph, target, options))


def bundle_of(program: Program, board: Board, options: CompileOptions) -> Bundle:
    """Return the C files of a planned program that belongs to no model, for measurements.

    Its self-test has zeros as inputs and as expected outputs, so that the program can be linked.

    Args:
        program: The planned program.
        board: The board.
        options: The options of the compilation.
    """
    inputs, outputs = (
        {e.name: np.zeros(e.shape, e.dtype.numpy) for e in ends} for ends in (program.inputs, program.outputs)
    )
    provenance = Provenance(program.name, "", board.name, options.describe())
    source = KernelSource(features_of_cores(board, options), registry_of(options.plugins).templates)
    placement = place(program, board, options.place)
    return render(
        Draft(program, provenance, (Sample(inputs, outputs, 0.0, 0),), {}, placement, FolderOptions(), source)
    )
