# SPDX-License-Identifier: Apache-2.0
"""The whole compilation, on one screen."""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from pathlib import Path

import numpy as np
import onnx

from mcugen.board import Board, load_board
from mcugen.codegen.bundle import Bundle
from mcugen.codegen.golden import first_state, golden_sample
from mcugen.codegen.identifiers import identifier
from mcugen.codegen.render import Provenance, Sample, render
from mcugen.codegen.write import write_folder
from mcugen.errors import McugenError, UnsupportedError, UsageError, VerificationError
from mcugen.hir.graph import Graph
from mcugen.hir.interpreter import interpret
from mcugen.hir.printer import print_graph
from mcugen.hir.types import Array, Shape
from mcugen.hir.verify import verify_graph
from mcugen.importer import import_model, size_output
from mcugen.importer.load import load_model, prepare_model
from mcugen.lir.bounded import merge_sizes
from mcugen.lir.formula import Sizes, Symbol
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
from mcugen.simulate.execute import sizes_of

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


LARGEST_SIZE = 4096
"""Of a range: all of it is looked at."""

SEEDS = 8
"""Of samples for the self-test of a model that computes sizes."""

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
    return _planned(_lowered(graph, board, options or CompileOptions()))


def _lowered(graph: Graph, board: Board, options: CompileOptions) -> Program:
    return lower(graph, board.features, options.states, options.optimize)


def _planned(program: Program) -> Program:
    plan_memory(program)
    verify_plan(program)
    return program


# ------------------------------------------------------------------------------- sizes known at run time only


@dataclass(frozen=True)
class _Variants:
    """A model at any sizes of its symbols."""

    model: onnx.ModelProto
    name: str
    options: CompileOptions
    board: Board

    def graph(self, sizes: Sizes) -> Graph:
        """As imported; symbols of the model itself that are missing are as large as they can be."""
        given = {key: size for key, size in sizes.items() if key in self.options.ranges}
        computed = {key: size for key, size in sizes.items() if key not in given}
        graph = import_model(self.model, self.name, self.options.fixed_dims | given, self.options.bound, computed)
        check_states(graph, self.options.states)
        return graph

    def symbols(self, graph: Graph) -> list[Symbol]:
        """Those of the command line, then those that the model computes."""
        given = [Symbol(key, low, high) for key, (low, high) in self.options.ranges.items()]
        return given + [Symbol(key, 0, s.high, size_output(key)) for key, s in (graph.sizes or {}).items()]

    def program(self, symbols: Sequence[Symbol]) -> Program:
        """For all sizes of the symbols, of which there is one at least."""
        return _planned(merge_sizes(symbols, self._at))

    def _at(self, sizes: Sizes) -> _Variant:
        graph = self.graph(sizes)
        shapes = {value.name: value.type.shape for value in graph.values()}
        outputs = zip(graph.output_names, graph.outputs, strict=True)
        return _Variant(graph, shapes, {name: value.type.shape for name, value in outputs}, self)

    def sample(self, graph: Graph, symbols: Sequence[Symbol]) -> Sample:
        """For the self-test, with the largest sizes; `graph` is made for them."""
        kept, sizes = set(self.options.states.values()), {s.name: s.high for s in symbols}
        if not any(s.output for s in symbols):
            return golden_sample(graph, kept)
        found = []
        for seed in range(SEEDS):
            golden = partial(golden_sample, kept=kept, seed=seed)
            with warnings.catch_warnings(), suppress(McugenError, ValueError):  # of nothing there may be no maximum
                warnings.simplefilter("ignore", RuntimeWarning)
                found.append(golden(self.settled(symbols, sizes, partial(_outputs_of, golden))))
                if all(found[-1].outputs[s.output].all() for s in symbols if s.output):
                    break
        if not found:
            raise UnsupportedError("a result must be found for some sample", f"none in {SEEDS}", "repair the model")
        return found[-1]

    def settled(self, symbols: Sequence[Symbol], sizes: Sizes, run: Callable[[Graph], Mapping[str, Array]]) -> Graph:
        """The optimized graph for given sizes, and for those computed sizes that `run` finds with that graph."""
        for _ in range(len(symbols) + 1):  # a size may depend on those before it
            graph = self.graph(sizes)
            optimize(graph)
            outputs = run(graph)
            found = {**sizes, **{s.name: int(outputs[s.output][0]) for s in symbols if s.output}}
            if found == sizes:
                break
            sizes = found
        return graph


def _outputs_of(make: Callable[[Graph], Sample], graph: Graph) -> Mapping[str, Array]:
    return make(graph).outputs


@dataclass(frozen=True)
class _Variant:
    """The model at fixed sizes; `shapes` are those of its tensors as imported, `outputs` of its outputs."""

    graph: Graph
    shapes: dict[str, Shape]
    outputs: dict[str, Shape]
    variants: _Variants

    def lower(self) -> Program:
        """Its program, without a memory plan."""
        optimize(self.graph)
        return _lowered(self.graph, self.variants.board, self.variants.options)


def check_ranges(ranges: Mapping[str, tuple[int, int]]) -> None:
    """UsageError for ranges that no size can have, or that are too long."""
    for key, (low, high) in ranges.items():
        if not 1 <= low <= high <= LARGEST_SIZE:
            rule = f"--dim NAME=LOW..HIGH must be a range of sizes from 1 to {LARGEST_SIZE}"
            raise UsageError(rule, f"{key}={low}..{high}", f"e.g. --dim {key}=1..64")


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

        Builds it with the host compiler (board `host`) or cross-compiles it and runs it under QEMU. A size that
        was given a range follows from the arrays' shapes. UsageError if the samples' outputs differ in shape.
        """
        count = len(next(iter(inputs.values()))) if inputs else 0
        samples = [{name: np.asarray(array[i]) for name, array in inputs.items()} for i in range(count)]
        outputs = self.simulate(samples, measure=False, sanitize=sanitize).outputs
        return stacked(outputs)

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
            results.append(self.interpret({**kept, **sample}))
            kept = {target: results[-1][source] for source, target in options.states.items()}
            if progress:
                progress(count)
        return results

    def interpret(self, sample: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs for one sample, states among it, by the operators' numpy references."""
        return interpret(self._graph_for(sample), sample)

    def _graph_for(self, sample: Mapping[str, Array]) -> Graph:
        """The graph for the sizes of a sample."""
        symbols = self.program.symbols
        if not symbols:
            return self.graph
        variants = _Variants(self.model, self.graph.name, self.options, self.board)
        sizes = {s.name: s.high for s in symbols} | sizes_of(self.bundle, sample)
        return variants.settled(symbols, sizes, lambda graph: interpret(graph, sample))

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


def stacked(outputs: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """One array an output, with a leading axis of samples. UsageError where their shapes differ."""
    for name in outputs[0]:
        shapes = sorted({o[name].shape for o in outputs})
        if len(shapes) > 1:
            found = f"'{name}' has {shapes[0]} and {shapes[1]}"
            raise UsageError("outputs of several samples must have one shape", found, "run the samples one by one")
    return {name: np.stack([o[name] for o in outputs]) for name in outputs[0]}


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
    variants = _Variants(proto, name, options, target)
    graph = variants.graph({key: high for key, (_, high) in options.ranges.items()})
    symbols = variants.symbols(graph)
    optimize(graph, trace)
    program = variants.program(symbols) if symbols else build_program(graph, target, options)
    place(program, target)
    figures = describe(program, target, sha256, count_parameters(graph))
    provenance = Provenance(file, sha256, target.name, options.describe())
    bundle = render(program, provenance, variants.sample(graph, symbols), figures.to_json())
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
