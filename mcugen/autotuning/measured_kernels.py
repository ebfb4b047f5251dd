# SPDX-License-Identifier: Apache-2.0
"""`--tune N`: choose kernels layer by layer by cycles measured in the simulator instead of by the cost model.

For each layer with a choice, the N most promising kernels run, all of them in one firmware. Each runs with its
constants in place, and with its constants copied to the arena first. Kernels are then chosen again with these cycles.
The new program is used if a run of both shows that it serves the goal better and is not slower. Results of earlier runs
are cached (mcugen.core.cache).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace

from mcugen.backends.cpu.pipeline import lowered, plan_program
from mcugen.codegen.bundle import Bundle
from mcugen.core.board import Board
from mcugen.core.cache import Store, cache_folder, code_digest
from mcugen.core.errors import UsageError
from mcugen.core.options import CompileOptions, LayerTimes
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.drafts import bundle_of
from mcugen.driver.target import target_of
from mcugen.evaluation.samples import as_stored, random_samples
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.types import Array
from mcugen.kernels.choose import Cost, fitting_kernels
from mcugen.kernels.cost import cost_table
from mcugen.lir.kernel import Kernel
from mcugen.lir.program import Program
from mcugen.lir.weights import Staged, is_read, with_staged_weights
from mcugen.measurement.evaluate import sample_endpoints
from mcugen.reporting.figures import TuningFigures
from mcugen.search.budget import use_of

MEMORY_BYTES = 1 << 24
"""Bytes of each memory in the firmware of all candidates: as many as the simulator's machines have."""


@dataclass(frozen=True)
class KernelCandidate:
    """A layer computed by a kernel, with its constants copied to the arena first if `copies`."""

    node: Node
    kernel: Kernel
    copies: bool


def tune_kernels(
    options: CompileOptions, make: Callable[[CompileOptions], CompiledModel], store: Store | None = None
) -> CompiledModel:
    """Return the model compiled by measured cycles, or as requested if that serves the goal as well.

    Args:
        options: Options with the number of kernels per layer (`tune`).
        make: Compiles the model with given options.
        store: The cache of measurements; by default one in the user's cache folder.

    Raises:
        UsageError: If the board has no simulator or no timing, or an option makes measuring single kernels impossible.
    """
    store = store or Store(cache_folder() / "tune")
    baseline = make(options)
    candidates = list(_candidates(baseline.graph, target_of(baseline.board, options), options.tune))
    baseline_cycles = _cycles(baseline, store)
    if not candidates:
        return _report_tuning(baseline, baseline, 0, (baseline_cycles, baseline_cycles))
    retuned = make(replace(options, times=_measure_candidates(candidates, baseline, store)))
    retuned_cycles = _cycles(retuned, store)
    if retuned_cycles <= baseline_cycles and _rank(retuned, retuned_cycles) < _rank(baseline, baseline_cycles):
        return _report_tuning(retuned, baseline, len(candidates), (baseline_cycles, retuned_cycles))
    return _report_tuning(baseline, baseline, len(candidates), (baseline_cycles, baseline_cycles))


def _candidates(graph: Graph, target: Board, count: int) -> Iterator[KernelCandidate]:
    """Yield the most promising kernels of each layer that has several, with and without copies of its constants."""
    costs = cost_table(target.cpu, target.features)
    for node in graph.nodes:
        fitting = fitting_kernels(node, target.features, any_size=False)
        if len(fitting) > 1:
            best = sorted(fitting, key=lambda kernel: costs.time(node, kernel))[:count]
            yield from (KernelCandidate(node, kernel, copies) for kernel in best for copies in (False, True))


def _measure_candidates(
    candidates: Sequence[KernelCandidate], baseline: CompiledModel, store: Store
) -> Mapping[tuple[str, str], LayerTimes]:
    """Return the measured cycles by layer and kernel, without and with copies."""
    graph, kernels = _side_by_side(candidates)
    board, options = _roomy(baseline.board), _candidate_options(baseline.options)
    names = {node.outputs[0].name: candidate for node, candidate in zip(kernels, candidates, strict=True)}
    program = lowered(graph, target_of(board, options), options, kernels=kernels)
    program = plan_program(_with_copies(program, {name for name, candidate in names.items() if candidate.copies}))
    bundle = bundle_of(program, board, options)
    _, layer_cycles = _run(bundle, board, random_samples(program.inputs).inputs[0], store)
    times: dict[tuple[str, str], dict[bool, int]] = {}
    for layer, cycles in zip(program.layers(), layer_cycles, strict=True):
        candidate = names[program.head(layer).name]
        by_copies = times.setdefault((candidate.node.outputs[0].name, candidate.kernel.name), {})
        by_copies[candidate.copies] = by_copies.get(candidate.copies, 0) + cycles
    return {key: LayerTimes(by[False], by[True]) for key, by in times.items()}


def _side_by_side(candidates: Sequence[KernelCandidate]) -> tuple[Graph, dict[Node, Kernel]]:
    """Return a graph of all candidates, and the kernel of each; candidates of one layer read the same values."""
    graph, kernels, known = Graph("candidates"), dict[Node, Kernel](), dict[Value, Value]()
    for candidate in candidates:
        node = candidate.node
        for value in node.inputs:
            if value is not None and value not in known:
                known[value] = (
                    graph.add_input(f"x{len(known)}", value.type)
                    if value.data is None
                    else Value(graph.fresh_name(value.name), value.type, value.data)
                )
        read = [None if value is None else known[value] for value in node.inputs]
        kernel_node = graph.add(node.op, read, names=["y"] * len(node.outputs), types=[v.type for v in node.outputs])
        kernels[kernel_node] = candidate.kernel
    graph.add_output("y", kernel_node.outputs[0])  # Outputs of further candidates are dead, and may overlap.
    return graph, kernels


def _with_copies(program: Program, layers: Container[str]) -> Program:
    """Return the program with the constants of these layers copied to the arena before them."""
    copies = {
        index: [Staged(buffer) for buffer in dict.fromkeys(o.buffer for o in instr.operands if is_read(o.buffer))]
        for index, instr in enumerate(program.instrs)
        if instr.name in layers
    }
    return with_staged_weights(program, copies)


def _roomy(board: Board) -> Board:
    """Return the board with enough memory for all candidates at once."""
    memories = (replace(m, size=MEMORY_BYTES, origin=(i + 1) * MEMORY_BYTES) for i, m in enumerate(board.memories))
    return replace(board, memories=tuple(memories))


def _candidate_options(options: CompileOptions) -> CompileOptions:
    """Return options that place the candidates as the model is placed, without its budgets."""
    hot = options.place.hot[:1]
    place = replace(options.place, hot_weights=tuple((memory, MEMORY_BYTES // 2) for memory, _ in hot))
    return CompileOptions(optimize=options.optimize, place=place, plugins=options.plugins, updatable=options.updatable)


def _cycles(compiled: CompiledModel, store: Store) -> int:
    """Return the cycles of one call on a random sample."""
    (sample,) = random_samples(sample_endpoints(compiled)).inputs
    model = compiled.given_inputs
    total, _ = _run(model.bundle, model.board, as_stored(sample, model.program.inputs), store)
    return total


def _run(bundle: Bundle, board: Board, sample: Mapping[str, Array], store: Store) -> tuple[int, Sequence[int]]:
    """Return the estimated cycles of a call and of its layers, from the cache where possible."""
    from mcugen.simulation import simulate
    from mcugen.simulation.machines import tool_versions

    causes = (code_digest(), asdict(board), tool_versions(board), sorted(bundle.files.items()))
    key = hashlib.sha256(json.dumps(causes, sort_keys=True, default=sorted).encode()).hexdigest() + ".json"
    known = store.read(key)
    with suppress(ValueError, TypeError, KeyError):  # A damaged entry is measured again.
        document = json.loads(known or b"")
        return int(document["cycles"]), [int(cycles) for cycles in document["layers"]]
    figures = simulate(bundle, board, [sample], per_layer=True, cycles=True).cycles
    if figures is None or figures.total is None or figures.layers is None:
        reason = figures.note if figures else f"board '{board.name}' is not simulated"
        raise UsageError("--tune needs the time that kernels take on the board", reason, "use another board")
    store.keep(key, json.dumps({"cycles": figures.total, "layers": figures.layers}).encode())
    return figures.total, figures.layers


def _rank(compiled: CompiledModel, cycles: int) -> float:
    """Return how well a program serves the goal: less is better."""
    use = use_of(compiled.program, compiled.board, compiled.options)
    return Cost(cycles, use.ram, use.flash).rank(compiled.options.optimize)


def _report_tuning(
    chosen: CompiledModel, baseline: CompiledModel, count: int, cycles: tuple[int, int]
) -> CompiledModel:
    """Return the program with a report that says what tuning gained."""
    baseline_kernels = {layer.name: layer.kernel for layer in baseline.report.layers}
    changed_layers = [layer.name for layer in chosen.report.layers if layer.kernel != baseline_kernels.get(layer.name)]
    figures = TuningFigures(count, cycles[1], cycles[0], changed_layers)
    return replace(chosen, report=replace(chosen.report, tuning=figures))
