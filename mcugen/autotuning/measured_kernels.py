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
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace

from mcugen.autotuning.simulated import Make, SimulatedCandidate, SimulatedCostModel, SimulatedSearch
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
from mcugen.kernels.choose import fitting_kernels
from mcugen.kernels.cost import cost_table
from mcugen.lir.kernel import Kernel
from mcugen.lir.program import Program
from mcugen.lir.weights import StagedConstant, is_read, with_staged_weights
from mcugen.measurement.evaluate import sample_endpoints
from mcugen.reporting.figures import Report, TuningFigures
from mcugen.search.objective import Objective
from mcugen.search.trace import SearchTrace

CANDIDATE_MEMORY_BYTES = 1 << 24
"""Size in bytes of each memory of the firmware that measures all candidate kernels, as in the simulator's machines."""


@dataclass(frozen=True)
class KernelCandidate:
    """A candidate for a layer: a kernel, with or without a copy of its constants, whose cycles are to be measured."""

    node: Node
    """The layer."""
    kernel: Kernel
    """The kernel that computes the layer."""
    copies: bool
    """Whether the layer's constants are copied to the arena before the layer runs."""


def tune_kernels(
    options: CompileOptions, make: Make, store: Store | None = None, trace: SearchTrace | None = None
) -> CompiledModel:
    """Compile the model with kernels chosen by measured cycles.

    If the program with these kernels does not serve the goal better than the requested one, the requested one is
    returned.

    Args:
        options: Options with the number of kernels to measure per layer (`tune`).
        make: Compiles the model with given options.
        store: The cache of measurements; None for one in the user's cache folder.
        trace: Records the requested program and the one with measured kernels; None to record nothing.

    Raises:
        UsageError: If the board has no simulator or no timing, or an option makes measuring single kernels impossible.
    """
    store = store or Store(cache_folder() / "tune")
    costs = SimulatedCostModel(lambda compiled: _report_of_run(compiled, store))
    search = SimulatedSearch("--tune", Objective.of(options), make, costs, trace)
    baseline = search.candidate("as asked", "requested program", options)
    graph, board = baseline.compiled.graph, baseline.compiled.board
    candidates = list(_candidates(graph, target_of(board, options), options.tune))
    chosen = retuned = baseline
    if candidates:
        times = _measure_candidates(candidates, baseline.compiled, store)
        retuned = search.candidate("kernels by measured cycles", "kernel choice", replace(options, times=times))
        if search.objective.serves_better(retuned.metrics, baseline.metrics):
            chosen = retuned
    search.choose(chosen, "serves the goal best, as it ran")
    return _report_tuning(chosen, baseline, len(candidates))


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
        index: [
            StagedConstant(buffer) for buffer in dict.fromkeys(o.buffer for o in instr.operands if is_read(o.buffer))
        ]
        for index, instr in enumerate(program.instrs)
        if instr.name in layers
    }
    return with_staged_weights(program, copies)


def _roomy(board: Board) -> Board:
    """Return the board with enough memory for all candidates at once."""
    memories = (
        replace(m, size=CANDIDATE_MEMORY_BYTES, origin=(i + 1) * CANDIDATE_MEMORY_BYTES)
        for i, m in enumerate(board.memories)
    )
    return replace(board, memories=tuple(memories))


def _candidate_options(options: CompileOptions) -> CompileOptions:
    """Return options that place the candidates as the model is placed, without its budgets."""
    hot = options.place.hot[:1]
    place = replace(options.place, hot_weights=tuple((memory, CANDIDATE_MEMORY_BYTES // 2) for memory, _ in hot))
    return CompileOptions(optimize=options.optimize, place=place, plugins=options.plugins, updatable=options.updatable)


def _report_of_run(compiled: CompiledModel, store: Store) -> Report:
    """Return the report with the cycles of one call on a random sample."""
    (sample,) = random_samples(sample_endpoints(compiled)).inputs
    model = compiled.given_inputs
    total, _ = _run(model.bundle, model.board, as_stored(sample, model.program.inputs), store)
    return replace(compiled.report, cycles_estimate=total)


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
        raise UsageError("--tune needs a timing model of the board", reason, "use another board")
    store.keep(key, json.dumps({"cycles": figures.total, "layers": figures.layers}).encode())
    return figures.total, figures.layers


def _report_tuning(chosen: SimulatedCandidate, baseline: SimulatedCandidate, count: int) -> CompiledModel:
    """Return the chosen program with a report that says what tuning gained by measuring `count` kernels."""
    report = chosen.compiled.report
    baseline_kernels = {layer.name: layer.kernel for layer in baseline.compiled.report.layers}
    changed_layers = [layer.name for layer in report.layers if layer.kernel != baseline_kernels.get(layer.name)]
    cycles, baseline_cycles = round(chosen.metrics.time), round(baseline.metrics.time)
    figures = TuningFigures(count, cycles, baseline_cycles, changed_layers)
    return replace(chosen.compiled, report=replace(report, tuning=figures))
