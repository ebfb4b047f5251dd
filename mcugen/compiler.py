# SPDX-License-Identifier: Apache-2.0
"""The whole compilation, on one screen."""

from __future__ import annotations

import hashlib
from pathlib import Path

import onnx

from mcugen.board import Board, load_board
from mcugen.codegen.identifiers import identifier
from mcugen.codegen.render import Provenance, render
from mcugen.compiled import CompiledModel
from mcugen.errors import UsageError
from mcugen.importer.load import load_model, prepare_model
from mcugen.lir.place import place
from mcugen.options import GOALS, CompileOptions
from mcugen.pipeline import Trace, build_program, optimize
from mcugen.plugins import load_plugin
from mcugen.report.figures import count_parameters, describe
from mcugen.variants import Variants, check_ranges


def compile_model(
    model: str | Path | onnx.ModelProto,
    board: str | Board = "host",
    options: CompileOptions | None = None,
    trace: Trace | None = None,
) -> CompiledModel:
    """Compiles an ONNX model for a board. Raises the errors of mcugen.errors; writes nothing."""
    options = options or CompileOptions()
    if options.optimize not in GOALS:
        raise UsageError("--optimize must name a goal", f"'{options.optimize}'", f"one of: {', '.join(GOALS)}")
    target = board if isinstance(board, Board) else load_board(board)
    for plugin in options.plugins:
        load_plugin(plugin)
    proto, sha256, file = _load(model)
    name = identifier(options.name or Path(file).stem)
    check_ranges(options.ranges)
    variants = Variants(proto, name, options, target)
    graph = variants.graph({key: high for key, (_, high) in options.ranges.items()})
    symbols = variants.symbols(graph)
    optimize(graph, trace)
    program = variants.program(symbols) if symbols else build_program(graph, target, options)
    place(program, target)
    figures = describe(program, target, sha256, count_parameters(graph))
    provenance = Provenance(file, sha256, target.name, options.describe())
    bundle = render(program, provenance, variants.sample(graph, symbols), figures.to_json())
    return CompiledModel(proto, target, graph, program, bundle, figures, options)


def _load(model: str | Path | onnx.ModelProto) -> tuple[onnx.ModelProto, str, str]:
    """The checked model, the SHA-256 of its bytes, and its file name without the folder."""
    if isinstance(model, onnx.ModelProto):
        proto = onnx.ModelProto()
        proto.CopyFrom(model)
        digest = hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()
        return (
            prepare_model(proto, model.graph.name or "model"),
            digest,
            f"{model.graph.name or 'model'}.onnx",
        )
    path = Path(model)
    proto, digest = load_model(path)
    return proto, digest, path.name
