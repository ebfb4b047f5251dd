# SPDX-License-Identifier: Apache-2.0
"""The whole compilation, on one screen."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

import numpy as np
import onnx

from mcugen.board import Board, load_board
from mcugen.codegen.bundle import Bundle
from mcugen.codegen.golden import first_state, golden_sample
from mcugen.codegen.identifiers import identifier
from mcugen.codegen.render import Provenance, render
from mcugen.codegen.write import write_folder
from mcugen.errors import UsageError, VerificationError
from mcugen.hir.graph import Graph
from mcugen.hir.interpreter import interpret
from mcugen.hir.printer import print_graph
from mcugen.hir.types import Array
from mcugen.hir.verify import verify_graph
from mcugen.importer import import_model
from mcugen.importer.load import load_model, prepare_model
from mcugen.lir.lower import lower
from mcugen.lir.place import place
from mcugen.lir.plan import plan_memory
from mcugen.lir.program import Program
from mcugen.lir.verify_plan import verify_plan
from mcugen.options import GOALS, CompileOptions
from mcugen.passes import clean, fuse, layout, stack
from mcugen.passes.convert_qdq import convert_qdq, sink_dequantize
from mcugen.plugins import load_plugin
from mcugen.report.accuracy import run_onnxruntime
from mcugen.report.figures import Report, count_parameters, describe
from mcugen.simulate import Execution, simulate

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
    (sink_dequantize, "data may as well move as they are stored"),
    (clean.simplify, "conversions that now meet cancel"),
    (convert_qdq, "a model that comes quantized is computed in integers"),
    (clean.fold_dequantized, "what no integer operator took is weight-only quantization"),
    (fuse.fuse_dense, "its matrices are float constants now"),
    (fuse.fold_affine, "and so are its biases"),
    (fuse.fold_clamp, "and its activations"),
    (layout.channels_last, "the kernels read pixels; NHWC from here on"),
    (clean.simplify, "neighbouring transpositions cancel"),
    (clean.merge_equal_nodes, "readers of one tensor share its transposition"),
    (layout.sink_transposes, "the others move on until they meet and cancel"),
    (fuse.fold_transpose_into_dense, "flattening may as well read channels last"),
    (clean.fold_constants, "permuted weights are constants"),
    (clean.simplify, "nothing dead may cost memory"),
    (clean.merge_equal_nodes, "equal computations are done once"),
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
    verify_graph(graph)
    for node in graph.nodes:
        for body in node.op.bodies:
            optimize(body)
    for pass_, _because in PIPELINE:
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


def build_program(graph: Graph, board: Board, options: CompileOptions | None = None) -> Program:
    """Lowers an optimized graph for a board and plans its memory."""
    options = options or CompileOptions()
    program = lower(graph, board.features, options.states, options.optimize)
    plan_memory(program)
    verify_plan(program)
    return program


@dataclass(frozen=True)
class CompiledModel:
    """The result: both IRs, the C files, and ways to run them."""

    model: onnx.ModelProto
    """The checked model: opset converted, functions inlined, symbolic dimensions still free."""
    board: Board
    graph: Graph
    program: Program
    bundle: Bundle
    report: Report
    options: CompileOptions

    def write(self, folder: str | Path) -> Path:
        """Writes the C files; an earlier result in the folder is replaced as a whole or left untouched."""
        return write_folder(self.bundle, Path(folder))

    def run(self, inputs: Mapping[str, Array], *, sanitize: bool = False) -> dict[str, Array]:
        """Outputs of the generated code for arrays with a leading axis of samples.

        Builds it with the host compiler (board `host`) or cross-compiles it and runs it under QEMU.
        """
        count = len(next(iter(inputs.values()))) if inputs else 0
        samples = [{name: np.asarray(array[i]) for name, array in inputs.items()} for i in range(count)]
        outputs = self.simulate(samples, measure=False, sanitize=sanitize).outputs
        return {e.name: np.stack([o[e.name] for o in outputs]) for e in self.program.outputs}

    @property
    def reference_name(self) -> str:
        """Whose results `reference` gives: onnxruntime knows only ONNX's own operators."""
        known = all(onnx.defs.has(n.op_type, n.domain) for n in self.model.graph.node)
        return "ONNX Runtime" if known else "numpy"

    def reference(
        self, samples: Sequence[Mapping[str, Array]], progress: Callable[[int], None] | None = None
    ) -> list[dict[str, Array]]:
        """The outputs for each sample by another program: ONNX Runtime, or the operators' numpy references."""
        options = self.options
        if self.reference_name == "ONNX Runtime":
            return run_onnxruntime(self.model, samples, progress, options.bound, options.states)
        kept = {v.name: first_state(v.type) for v in self.graph.inputs if v.name in options.states.values()}
        results = []
        for count, sample in enumerate(samples, 1):
            results.append(interpret(self.graph, kept | dict(sample)))
            kept = {target: results[-1][source] for source, target in options.states.items()}
            if progress:
                progress(count)
        return results

    def simulate(
        self,
        samples: Sequence[Mapping[str, Array]],
        *,
        measure: bool = True,
        per_layer: bool = False,
        sanitize: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> Execution:
        """Runs samples and measures; see mcugen.simulate."""
        return simulate(
            self.bundle,
            self.board,
            samples,
            measure=measure,
            per_layer=per_layer,
            sanitize=sanitize,
            progress=progress,
        )


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
    graph = import_model(proto, name, options.dims, options.bound)
    check_states(graph, options.states)
    optimize(graph, trace)
    program = build_program(graph, target, options)
    place(program, target)
    figures = describe(program, target, sha256, count_parameters(graph))
    provenance = Provenance(file, sha256, target.name, options.describe())
    bundle = render(program, provenance, golden_sample(graph, set(options.states.values())), figures.to_json())
    return CompiledModel(proto, target, graph, program, bundle, figures, options)


def check_states(graph: Graph, states: Mapping[str, str]) -> None:
    """UsageError unless each state is an output of the type of its own input."""
    outputs = dict(zip(graph.output_names, graph.outputs, strict=True))
    inputs = {v.name: v for v in graph.inputs}
    for output, kept in states.items():
        for name, known, kind in ((output, outputs, "output"), (kept, inputs, "input")):
            if name not in known:
                choices = ", ".join(f"'{k}'" for k in known) or "none"
                raise UsageError(f"--state OUTPUT:INPUT must name an {kind} of the model", f"'{name}'", choices)
        source, target = outputs[output].type, inputs[kept].type
        if (source.shape, source.dtype) != (target.shape, target.dtype):
            raise UsageError(f"--state {output}:{kept}: both must have one type", f"{source} and {target}")
    if len(set(states.values())) != len(states):
        raise UsageError("--state: each input can keep one output", ", ".join(sorted(states.values())))


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
