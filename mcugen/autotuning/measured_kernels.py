# SPDX-License-Identifier: Apache-2.0
"""`--tune N`: kernels chosen by what they took in the simulator, layer by layer, and not by what was fitted.

Of each layer with a choice the N kernels that promise most run, as one firmware with all of them: with constants where
they lie, and copied to the arena first. Kernels are chosen anew by these cycles. That program is taken if it serves the
goal better than the other one, and takes no longer, as both ran. What ran before does not run again
(mcugen.core.cache).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace

from mcugen.backends.cpu.pipeline import lowered, planned
from mcugen.codegen.bundle import Bundle
from mcugen.core.board import Board
from mcugen.core.cache import Store, cache_folder, code_digest
from mcugen.core.errors import UsageError
from mcugen.core.options import OWN, CompileOptions, LayerTimes
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import bundle_of, target_of
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

ROOM = 1 << 24
"""Bytes that each memory of the firmware has for all candidates: as much as the simulator's machines have."""


@dataclass(frozen=True)
class Candidate:
    """A layer by a kernel; `copies`: its constants are copied to the arena first."""

    node: Node
    kernel: Kernel
    copies: bool


def tuned(
    options: CompileOptions, make: Callable[[CompileOptions], CompiledModel], store: Store | None = None
) -> CompiledModel:
    """The model compiled by measured cycles, or as asked for where that serves the goal no less.

    UsageError for what cannot be measured: a board without a simulator or a timing, options that need other programs.
    """
    store = store or Store(cache_folder() / "tune")
    asked = make(options)
    _require(asked)
    candidates = list(_candidates(asked.graph, target_of(asked.board, options), options.tune))
    before = _cycles(asked, store)
    if not candidates:
        return _told(asked, asked, 0, (before, before))
    found = make(replace(options, times=_measured(candidates, asked, store)))
    after = _cycles(found, store)
    if after <= before and _rank(found, after) < _rank(asked, before):
        return _told(found, asked, len(candidates), (before, after))
    return _told(asked, asked, len(candidates), (before, before))


def _require(compiled: CompiledModel) -> None:
    """UsageError where there is nothing to measure with, or no choice of single kernels."""
    from mcugen.simulation.timings import TIMINGS

    options, board = compiled.options, compiled.board
    others = {
        "--cores": options.cores > 1,
        "--train": options.training is not None,
        "--kernels": options.family != OWN,
        "--weights-reader": options.weights_reader,
        "--copy-ahead": options.copy_ahead,
        "--stream-input": options.stream_input,
        "a deadline": options.max_cycles is not None or options.max_latency is not None,
        "a range of sizes (--dim)": bool(options.ranges),
    }
    asked = [name for name, is_asked in others.items() if is_asked]
    if asked:
        raise UsageError("--tune measures one kernel after the other", asked[0], "leave one out")
    if options.tune < 0:
        raise UsageError("--tune must be a number of kernels", str(options.tune), "e.g. --tune 4")
    if not board.qemu or board.core not in TIMINGS:
        found = f"no timing of a {board.core}" if board.qemu else f"board '{board.name}' is not simulated"
        raise UsageError("--tune needs the time that kernels take on the board", found, "use another board")


def _candidates(graph: Graph, target: Board, most: int) -> Iterator[Candidate]:
    """The kernels that promise most, of each layer that has several, with and without copies of what they read."""
    costs = cost_table(target.cpu, target.features)
    for node in graph.nodes:
        fitting = fitting_kernels(node, target.features, any_size=False)
        if len(fitting) > 1:
            best = sorted(fitting, key=lambda kernel: costs.time(node, kernel))[:most]
            yield from (Candidate(node, kernel, copies) for kernel in best for copies in (False, True))


def _measured(
    candidates: Sequence[Candidate], asked: CompiledModel, store: Store
) -> Mapping[tuple[str, str], LayerTimes]:
    """What each took, by layer and kernel."""
    graph, kernels = _side_by_side(candidates)
    board, options = _roomy(asked.board), _placed(asked.options)
    names = {node.outputs[0].name: candidate for node, candidate in zip(kernels, candidates, strict=True)}
    program = lowered(graph, target_of(board, options), options, kernels=kernels)
    program = planned(_with_copies(program, {name for name, candidate in names.items() if candidate.copies}))
    bundle = bundle_of(program, board, options)
    _, each = _run(bundle, board, random_samples(program.inputs).inputs[0], store)
    found: dict[tuple[str, str], dict[bool, int]] = {}
    for layer, cycles in zip(program.layers(), each, strict=True):
        candidate = names[program.head(layer).name]
        by_copies = found.setdefault((candidate.node.outputs[0].name, candidate.kernel.name), {})
        by_copies[candidate.copies] = by_copies.get(candidate.copies, 0) + cycles
    return {key: LayerTimes(by[False], by[True]) for key, by in found.items()}


def _side_by_side(candidates: Sequence[Candidate]) -> tuple[Graph, dict[Node, Kernel]]:
    """A graph of all candidates, of which those of one layer read the same values, and the kernel of each."""
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
        made = graph.add(node.op, read, names=["y"] * len(node.outputs), types=[v.type for v in node.outputs])
        kernels[made] = candidate.kernel
    graph.add_output("y", made.outputs[0])  # those of the others may take the same place
    return graph, kernels


def _with_copies(program: Program, layers: Container[str]) -> Program:
    """Whose constants are copied to the arena before these layers."""
    held = {
        index: [Staged(buffer) for buffer in dict.fromkeys(o.buffer for o in instr.operands if is_read(o.buffer))]
        for index, instr in enumerate(program.instrs)
        if instr.name in layers
    }
    return with_staged_weights(program, held)


def _roomy(board: Board) -> Board:
    """The board, but with memory for all candidates at once."""
    memories = (replace(m, size=ROOM, origin=(i + 1) * ROOM) for i, m in enumerate(board.memories))
    return replace(board, memories=tuple(memories))


def _placed(options: CompileOptions) -> CompileOptions:
    """For the candidates, which lie where the model does, without its budgets."""
    hot = options.place.hot[:1]
    place = replace(options.place, hot_weights=tuple((memory, ROOM // 2) for memory, _ in hot))
    return CompileOptions(optimize=options.optimize, place=place, plugins=options.plugins, updatable=options.updatable)


def _cycles(compiled: CompiledModel, store: Store) -> int:
    """Of one call on a random sample."""
    (sample,) = random_samples(sample_endpoints(compiled)).inputs
    given = compiled.given_inputs
    total, _ = _run(given.bundle, given.board, as_stored(sample, given.program.inputs), store)
    return total


def _run(bundle: Bundle, board: Board, sample: Mapping[str, Array], store: Store) -> tuple[int, Sequence[int]]:
    """Estimated cycles of a call and of its layers, from the store where it has run before."""
    from mcugen.simulation import simulate
    from mcugen.simulation.machines import tool_versions

    causes = (code_digest(), asdict(board), tool_versions(board), sorted(bundle.files.items()))
    key = hashlib.sha256(json.dumps(causes, sort_keys=True, default=sorted).encode()).hexdigest() + ".json"
    known = store.read(key)
    with suppress(ValueError, TypeError, KeyError):  # one that is damaged is measured again
        document = json.loads(known or b"")
        return int(document["cycles"]), [int(cycles) for cycles in document["layers"]]
    found = simulate(bundle, board, [sample], per_layer=True, cycles=True).cycles
    if found is None or found.total is None or found.layers is None:
        reason = found.note if found else f"board '{board.name}' is not simulated"
        raise UsageError("--tune needs the time that kernels take on the board", reason, "use another board")
    store.keep(key, json.dumps({"cycles": found.total, "layers": found.layers}).encode())
    return found.total, found.layers


def _rank(compiled: CompiledModel, cycles: int) -> float:
    """How well a program serves the goal; less is better."""
    use = use_of(compiled.program, compiled.board, compiled.options)
    return Cost(cycles, use.ram, use.flash).rank(compiled.options.optimize)


def _told(taken: CompiledModel, asked: CompiledModel, count: int, cycles: tuple[int, int]) -> CompiledModel:
    """The program, whose report says what tuning gained."""
    before = {layer.name: layer.kernel for layer in asked.report.layers}
    others = [layer.name for layer in taken.report.layers if layer.kernel != before.get(layer.name)]
    figures = TuningFigures(count, cycles[1], cycles[0], others)
    return replace(taken, report=replace(taken.report, tuning=figures))
