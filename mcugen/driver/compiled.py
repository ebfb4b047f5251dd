# SPDX-License-Identifier: Apache-2.0
"""The result of a compilation, and ways to run it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx

from mcugen.codegen.bundle import Bundle
from mcugen.codegen.draft import Draft
from mcugen.codegen.golden import first_state
from mcugen.codegen.render import render
from mcugen.codegen.write import write_folder
from mcugen.core.board import Board
from mcugen.core.errors import UsageError, VerificationError
from mcugen.core.options import CompileOptions
from mcugen.driver.variants import Variants
from mcugen.evaluation.oracle import OracleModel, OracleRun, run_oracle
from mcugen.hir.graph import Graph, Node
from mcugen.hir.interpreter import Observer, Reference, interpret
from mcugen.hir.types import Array
from mcugen.kernels.common.library import references
from mcugen.lir.program import Program
from mcugen.quantization.quantize import Quantization
from mcugen.reporting.figures import Report

if TYPE_CHECKING:
    from mcugen.simulation import Execution


@dataclass(frozen=True)
class CompiledModel:
    """The result of a compilation: the optimized graph, the program, the C files, and ways to run them."""

    model: onnx.ModelProto
    """The checked model: opset converted, functions inlined, symbolic dimensions still free."""
    given: onnx.ModelProto
    """The model as the user gave it; the quantized ONNX model if mcugen quantized it."""
    board: Board
    """The board as the user named it."""
    graph: Graph
    """The optimized graph (high-level intermediate representation)."""
    program: Program
    """The planned program (low-level intermediate representation)."""
    report: Report
    """The report of the compilation; figures that only a run yields are None."""
    options: CompileOptions
    """The options of the compilation, with the placement of data in memories that the search chose."""
    draft: Draft
    """The data from which the C files are rendered."""
    quantization: Quantization | None = None
    """How the model was quantized, if mcugen did it."""
    given_bundle: Bundle | None = None
    """C files that replace those rendered from the draft; None to render them."""

    @cached_property
    def bundle(self) -> Bundle:
        """Return the C files; they are rendered on first use, since a comparison of models does not need them."""
        return self.given_bundle or render(self.draft)

    def write(self, folder: str | Path, *, force: bool = False) -> Path:
        """Write the C files to a folder and return its path.

        An earlier result in the folder is replaced completely or, if writing fails, left untouched. Other files stay.

        Args:
            folder: The folder.
            force: Whether files that were edited, or that mcugen did not write, are overwritten.
        """
        return write_folder(self.bundle, Path(folder), force=force)

    def run(self, inputs: Mapping[str, Array], *, sanitize: bool = False) -> dict[str, Array]:
        """Run the generated code on several samples, and return its outputs by name.

        The code is built with the host compiler (board `host`), or cross-compiled and run in QEMU. Symbolic sizes that
        were given as ranges are read from the shapes of the arrays.

        Args:
            inputs: The inputs by name, each with a leading axis of samples.
            sanitize: Whether to build with the compiler's sanitizers.

        Returns:
            The outputs by name, each with a leading axis of samples.

        Raises:
            UsageError: If outputs of the samples differ in shape. Also if the arrays do not have the types and shapes
                of the inputs, or equally many samples.
        """
        counts = {name: len(array) if np.ndim(array) else 0 for name, array in inputs.items()}
        if len(set(counts.values())) > 1 or not all(counts.values()):
            problem = ", ".join(f"'{name}' has shape {np.shape(array)}" for name, array in inputs.items())
            raise UsageError("inputs must have a leading axis of equally many samples", problem, "give at least one")
        count = next(iter(counts.values()), 0)
        samples = [{name: np.asarray(array[i]) for name, array in inputs.items()} for i in range(count)]
        outputs = self.simulate(samples, measure=False, sanitize=sanitize).outputs
        return stack_samples(outputs)

    @property
    def given_inputs(self) -> CompiledModel:
        """Return the model without its input pipeline: it takes the model's own inputs instead of raw data."""
        return replace(self, given_bundle=replace(self.bundle, input_code=None))

    def reference(
        self, samples: Sequence[Mapping[str, Array]], progress: Callable[[int], None] | None = None
    ) -> list[dict[str, Array]]:
        """Return the outputs for each sample as another program (such as ONNX Runtime) computes them.

        It runs the model as the user gave it. If no other program can run the model, mcugen's own numpy code computes
        the outputs.

        Args:
            samples: The inputs by name, for each sample.
            progress: Receives the number of finished samples.
        """
        return self.reference_run(samples, progress).outputs

    def reference_run(
        self, samples: Sequence[Mapping[str, Array]], progress: Callable[[int], None] | None = None
    ) -> OracleRun:
        """Compute reference outputs for each sample with another program, from the model as the user gave it.

        If no other program can run the model (because of a plug-in's operators, or of training), mcugen's numpy code
        does.

        Args:
            samples: The inputs by name, for each sample.
            progress: Receives the number of finished samples.

        Returns:
            The outputs, the name of the program that computed them, and a note if it is mcugen's own code.
        """
        if self.graph.stream is not None:
            note = "compared with mcugen's own numpy code: other programs compute whole windows"
            return OracleRun(self.interpret_samples(samples, progress), "numpy", note)
        if self.graph.lesson is not None:
            note = "compared with mcugen's own numpy code: no other program computes a model that learns"
            return OracleRun(self.interpret_samples(samples, progress), "numpy", note)
        try:
            return run_oracle(self._oracle, samples, progress)
        except VerificationError as error:
            note = f"compared with mcugen's own numpy code: no other program runs the model ({error.found})"
            return OracleRun(self.interpret_samples(samples, progress), "numpy", note)

    @property
    def _oracle(self) -> OracleModel:
        """Return the model and the options that another program needs to run it."""
        options, program = self.options, self.program
        coded = {e.name: (e.quant, e.dtype.numpy) for e in (*program.inputs, *program.outputs) if e.quant is not None}
        return OracleModel(self.given, self.model, {**options.bound, **self.first_states}, options.states, coded)

    def interpret_samples(
        self,
        samples: Sequence[Mapping[str, Array]],
        progress: Callable[[int], None] | None = None,
        observe: Observer | None = None,
    ) -> list[dict[str, Array]]:
        """Return the outputs for samples that follow each other, computed by numpy instead of by generated code.

        Integer outputs are those of the generated code, bit by bit. States are passed from each sample to the next.

        Args:
            samples: The inputs by name, without states, for each sample.
            progress: Receives the number of finished samples.
            observe: Called with each node and its inputs before the node is evaluated.
        """
        options, states = self.options, self.first_states
        results = []
        for count, sample in enumerate(samples, 1):
            results.append(self.interpret({**states, **sample}, observe))
            states = {target: results[-1][source] for source, target in options.states.items()}
            if progress:
                progress(count)
        return results

    @property
    def first_states(self) -> dict[str, Array]:
        """Return the initial values of the inputs that hold states between calls, by input name."""
        return {v.name: first_state(self.graph, v) for v in self.graph.inputs if v.name in self.options.states.values()}

    def interpret(self, sample: Mapping[str, Array], observe: Observer | None = None) -> dict[str, Array]:
        """Return the outputs for one sample, states included, computed by numpy instead of by generated code.

        Args:
            sample: The inputs by name. A trainable model does not learn from a sample without target and learning rate.
            observe: Called with each node and its inputs before the node is evaluated.
        """
        lesson = self.bundle.lesson.given if self.bundle.lesson else ()
        none = {port.name: np.zeros(port.shape, port.dtype) for port in lesson}
        return interpret(self._graph_for(sample), {**none, **sample}, observe, self._references)

    @cached_property
    def _references(self) -> Mapping[Node, Reference]:
        """Return the references of kernels that round in their own way."""
        return references(self.graph, self.program)

    def _graph_for(self, sample: Mapping[str, Array]) -> Graph:
        """Return the graph for the sizes of a sample."""
        from mcugen.simulation.execute import sizes_of

        symbols = self.program.symbols
        if not symbols:
            return self.graph
        variants = Variants(self.model, self.graph.name, self.options, self.board)
        sizes = {s.name: s.high for s in symbols} | sizes_of(self.bundle, sample)
        return variants.settle_sizes(symbols, sizes, lambda graph: interpret(graph, sample))

    def simulate(
        self,
        samples: Sequence[Mapping[str, Array]],
        *,
        measure: bool = True,
        per_layer: bool = False,
        cycles: bool = False,
        wait_states: int | None = None,
        sanitize: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> Execution:
        """Run the generated code on samples, natively or in QEMU, and return its outputs and measurements.

        Args:
            samples: Inputs by name, for each call.
            measure: Whether to measure instructions, stack and sizes of code and data.
            per_layer: Whether to measure each layer too.
            cycles: Whether to estimate cycles from the executed instructions.
            wait_states: Wait states of flash, in place of the board's.
            sanitize: Whether to build with the compiler's sanitizers.
            progress: Receives the number of finished samples.
        """
        from mcugen.simulation import Setup, simulate

        return simulate(
            self.bundle,
            self.board,
            samples,
            measure=measure,
            per_layer=per_layer,
            cycles=cycles,
            wait_states=wait_states,
            setup=Setup(sanitize, progress=progress, library=self.options.library),
        )


def stack_samples(outputs: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Return the outputs of several samples as one array per output name, with a leading axis of samples.

    Raises:
        UsageError: If the shapes of an output differ.
    """
    for name in outputs[0]:
        shapes = sorted({o[name].shape for o in outputs})
        if len(shapes) > 1:
            problem = f"'{name}' has {shapes[0]} and {shapes[1]}"
            raise UsageError("outputs of several samples must have one shape", problem, "run the samples one by one")
    return {name: np.stack([o[name] for o in outputs]) for name in outputs[0]}
