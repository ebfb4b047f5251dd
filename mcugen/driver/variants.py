# SPDX-License-Identifier: Apache-2.0
"""A model with symbolic sizes: it is imported, optimized and lowered for as many sizes as necessary."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import onnx

from mcugen.backends.cpu.pipeline import lowered, optimize, plan_program
from mcugen.codegen.draft import Sample
from mcugen.codegen.golden import golden_sample
from mcugen.core.board import Board
from mcugen.core.errors import McugenError, UnsupportedError, UsageError
from mcugen.core.options import CompileOptions
from mcugen.driver.plugins import registry_of
from mcugen.frontend.onnx import import_model, size_output
from mcugen.hir.graph import Graph
from mcugen.hir.types import Array, Shape
from mcugen.hir.window_stream import WindowStream
from mcugen.kernels.common.library import references
from mcugen.lir.bounded import merge_sizes
from mcugen.lir.formula import Sizes, Symbol
from mcugen.lir.program import Program
from mcugen.search.budget import Fit, cheapest
from mcugen.search.candidates import REQUESTED_CANDIDATE_NAME
from mcugen.search.cost_model import ProgramCostModel
from mcugen.search.objective import Budget
from mcugen.search.plan import BuiltProgram, ProgramCandidate

MAX_SIZE = 4096
"""Largest size that --dim NAME=LOW..HIGH accepts, as the model is imported for every size of the range."""

NUM_SEEDS = 8
"""Largest number of random samples that are tried as self-test, until all sizes that the model computes exceed 0."""


@dataclass(frozen=True)
class Variants:
    """A model with symbolic sizes, which can be imported and compiled for any of these sizes."""

    model: onnx.ModelProto
    """The checked ONNX model, whose symbolic dimensions are still free."""
    name: str
    """Name of the model in C symbols."""
    options: CompileOptions
    """The options of the compilation, with the sizes or ranges of symbolic dimensions."""
    board: Board
    """The board whose CPU features include tuning flags: names by which variants of kernels are selected."""

    def graph(self, sizes: Sizes) -> Graph:
        """Import the model for given sizes, by symbol, and return its graph.

        Sizes that the model computes are as large as possible unless they are given.
        """
        ranged_sizes = {key: size for key, size in sizes.items() if key in self.options.ranges}
        computed = {key: size for key, size in sizes.items() if key not in ranged_sizes}
        dims, registry = self.options.fixed_dims | ranged_sizes, registry_of(self.options.plugins)
        training = self.options.training
        keeps = training is not None and training.updates_statistics
        graph = import_model(
            self.model, self.name, dims, self.options.bound, computed, registry=registry, keeps_statistics=keeps
        )
        check_states(graph, self.options.states)
        graph.external_io = self.options.external_io
        if self.options.stream_steps is not None:
            graph.stream = WindowStream(self.options.stream_steps, self.options.stream_axis)
        for part in graph.nested():
            part.float16_weights = self.options.float16_weights
            part.shapes_vary = bool(self.options.ranges or graph.sizes)
        return graph

    def symbols(self, graph: Graph) -> list[Symbol]:
        """Return the symbolic sizes: those given as ranges by --dim, then those that the model itself computes."""
        ranged = [Symbol(key, low, high) for key, (low, high) in self.options.ranges.items()]
        return ranged + [Symbol(key, 0, s.high, size_output(key)) for key, s in (graph.sizes or {}).items()]

    def program(self, symbols: Sequence[Symbol]) -> Fit:
        """Return the one program that works for all sizes of the symbols, as a search result.

        There must be at least one symbol. No alternatives are tried, since few kernels work for every size.

        Raises:
            DoesNotFitError: If the program exceeds the budget or the board.
        """
        program = plan_program(merge_sizes(symbols, self._variant_of))
        built = BuiltProgram(program)
        metrics = ProgramCostModel(self.board, self.options).evaluate(built)
        candidate = ProgramCandidate(REQUESTED_CANDIDATE_NAME, built, metrics)
        budget = Budget.of(self.options)
        return Fit(budget, cheapest([candidate], budget, self.board), candidate)

    def _variant_of(self, sizes: Sizes) -> _Variant:
        """Return the model at given sizes, by symbol, as imported and not optimized."""
        graph = self.graph(sizes)
        shapes = {value.name: value.type.shape for value in graph.values()}
        outputs = zip(graph.output_names, graph.outputs, strict=True)
        return _Variant(graph, shapes, {name: value.type.shape for name, value in outputs}, self)

    def sample(self, graph: Graph, symbols: Sequence[Symbol], program: Program) -> Sample:
        """Return the inputs and expected outputs of the self-test, with the largest size of each symbol.

        Args:
            graph: The optimized graph for these sizes.
            symbols: The symbols of the model.
            program: The program of the graph.
        """
        state_inputs, sizes = set(self.options.states.values()), {s.name: s.high for s in symbols}
        if not any(s.output for s in symbols):
            return golden_sample(graph, state_inputs, references=references(graph, program))
        samples = []
        for seed in range(NUM_SEEDS):
            golden = partial(golden_sample, kept=state_inputs, seed=seed)
            with warnings.catch_warnings(), suppress(McugenError, ValueError):  # An empty tensor has no maximum.
                warnings.simplefilter("ignore", RuntimeWarning)
                samples.append(golden(self.settle_sizes(symbols, sizes, partial(_outputs_of, golden))))
                if all(samples[-1].outputs[s.output].all() for s in symbols if s.output):
                    break
        if not samples:
            raise UnsupportedError("a result must be found for some sample", f"none in {NUM_SEEDS}", "repair the model")
        return samples[-1]

    def settle_sizes(
        self, symbols: Sequence[Symbol], sizes: Sizes, run: Callable[[Graph], Mapping[str, Array]]
    ) -> Graph:
        """Return the optimized graph for given sizes, with the actual values of the sizes that the model computes.

        The graph is run to learn these values, and imported again with them, until they no longer change.

        Args:
            symbols: The symbolic sizes of the model.
            sizes: The size of each symbol: as given or, for a size that the model computes, as first assumed.
            run: Returns the outputs of a graph, which include the computed sizes.
        """
        for _ in range(len(symbols) + 1):  # A size may depend on previous ones.
            graph = self.graph(sizes)
            optimize(graph)
            outputs = run(graph)
            actual_sizes = {**sizes, **{s.name: int(outputs[s.output][0]) for s in symbols if s.output}}
            if actual_sizes == sizes:
                break
            sizes = actual_sizes
        return graph


def _outputs_of(make: Callable[[Graph], Sample], graph: Graph) -> Mapping[str, Array]:
    """Return the outputs of the sample that a function makes of a graph."""
    return make(graph).outputs


@dataclass(frozen=True)
class _Variant:
    """The model at fixed sizes, with the shapes of its tensors as imported and of its outputs."""

    graph: Graph
    shapes: dict[str, Shape]
    outputs: dict[str, Shape]
    variants: Variants

    def lower(self) -> Program:
        """Return the program of the optimized graph, without a memory plan."""
        optimize(self.graph)
        return lowered(self.graph, self.variants.board, self.variants.options, any_size=True)


def check_ranges(ranges: Mapping[str, tuple[int, int]]) -> None:
    """Check the ranges of sizes that --dim gives, by symbol, each as its least and largest size.

    Raises:
        UsageError: If a range is empty, or is not within 1 to MAX_SIZE.
    """
    for key, (low, high) in ranges.items():
        if not 1 <= low <= high <= MAX_SIZE:
            rule = f"--dim NAME=LOW..HIGH must be a range of sizes from 1 to {MAX_SIZE}"
            raise UsageError(rule, f"{key}={low}..{high}", f"e.g. --dim {key}=1..64")


def check_states(graph: Graph, states: Mapping[str, str]) -> None:
    """Check that each state names an output and the input that takes its value in the next call.

    Raises:
        UsageError: If a name is unknown, an input takes two outputs, or the types of output and input differ.
    """
    outputs = dict(zip(graph.output_names, graph.outputs, strict=True))
    inputs = {v.name: v for v in graph.inputs}
    for output, state_input in states.items():
        for name, known, kind in ((output, outputs, "output"), (state_input, inputs, "input")):
            if name not in known:
                choices = ", ".join(f"'{k}'" for k in known) or "none"
                raise UsageError(f"--state OUTPUT:INPUT must name an {kind} of the model", f"'{name}'", choices)
        source, target = outputs[output].type, inputs[state_input].type
        if (source.shape, source.dtype) != (target.shape, target.dtype):
            raise UsageError(f"--state {output}:{state_input}: both must have one type", f"{source} and {target}")
    if len(set(states.values())) != len(states):
        raise UsageError("--state: each input can keep one output", ", ".join(sorted(states.values())))
