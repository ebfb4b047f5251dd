# SPDX-License-Identifier: Apache-2.0
"""The whole compilation, on one screen."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnx

from mcugen.board import Board, load_board
from mcugen.hir.graph import Graph
from mcugen.hir.verify import verify_graph
from mcugen.importer import import_model
from mcugen.importer.load import load_model, prepare_model
from mcugen.lir.lower import lower
from mcugen.lir.plan import plan_memory
from mcugen.lir.program import Program
from mcugen.lir.verify_plan import verify_plan
from mcugen.options import CompileOptions
from mcugen.passes import clean, fuse, layout, stack
from mcugen.passes.convert_qdq import convert_qdq

Pass = Callable[[Graph], bool]

PIPELINE: tuple[tuple[Pass, str], ...] = (
    (clean.simplify, "exporters write identities; patterns must see through them"),
    (clean.fold_constants, "shapes and weight reshapes are known now"),
    (fuse.fold_pad, "a padded window costs nothing"),
    (fuse.fuse_dense, "constant weights can be packed for the kernel"),
    (fuse.fold_affine, "batch normalization and bias belong to the weights"),
    (fuse.fold_clamp, "an activation belongs to the layer before it, before ranges are taken"),
    (clean.simplify, "folding leaves dead constants"),
    (stack.stack_unary, "several functions of one int8 tensor make one table"),
    (convert_qdq, "a model that comes quantized is computed in integers"),
    (clean.fold_dequantized, "what no integer operator took is weight-only quantization"),
    (fuse.fuse_dense, "its matrices are float constants now"),
    (fuse.fold_affine, "and so are its biases"),
    (fuse.fold_clamp, "and its activations"),
    (layout.channels_last, "the kernels read pixels; NHWC from here on"),
    (clean.simplify, "neighbouring transpositions cancel"),
    (layout.sink_transposes, "the others move on until they meet"),
    (clean.simplify, "and cancel"),
    (fuse.fold_transpose_into_dense, "flattening may as well read channels last"),
    (clean.fold_constants, "permuted weights are constants"),
    (clean.simplify, "nothing dead may cost memory"),
    (clean.merge_equal_nodes, "equal computations are done once"),
    (stack.stack_elementwise, "one loop instead of many"),
    (clean.simplify, "the graph is final"),
)


@dataclass
class Trace:
    """What a developer may watch: dumps after named passes, and seconds per pass."""

    dump_after: str = ""
    dumps: list[tuple[str, str]] = field(default_factory=list)
    seconds: list[tuple[str, float]] = field(default_factory=list)


def optimize(graph: Graph, trace: Trace | None = None) -> None:
    """Runs the pipeline in place; the verifier runs after each pass."""
    verify_graph(graph)
    for pass_, _because in PIPELINE:
        start = time.perf_counter()
        while pass_(graph) and pass_ in (clean.simplify, layout.sink_transposes, fuse.fold_pad):
            pass  # until nothing changes
        verify_graph(graph)
        if trace is not None:
            trace.seconds.append((pass_.__name__, time.perf_counter() - start))
            if trace.dump_after in (pass_.__name__, "all"):
                trace.dumps.append((pass_.__name__, str(graph)))


def build_program(graph: Graph, board: Board) -> Program:
    """Lowers an optimized graph for a board and plans its memory."""
    program = lower(graph, board.features)
    plan_memory(program)
    verify_plan(program)
    return program
