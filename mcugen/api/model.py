# SPDX-License-Identifier: Apache-2.0
"""The public Python interface: `compile` and the model that it returns."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from mcugen.api.compilation import Compilation
from mcugen.api.keyword_types import CompileKeywords
from mcugen.api.quantized import ModelInput, QuantizedModel, example_inputs_for, resolve_model
from mcugen.core.board import Board, load_board
from mcugen.core.errors import UsageError, shortened
from mcugen.core.options import DIVERGED_DB
from mcugen.distributed.sharing import Workers
from mcugen.driver.compiled import stack_samples
from mcugen.evaluation.python_samples import SampleInput, sample_source
from mcugen.export.task import Exported, Packaging
from mcugen.hir.types import Array
from mcugen.measurement.extremes import require_simulated, with_extremes
from mcugen.options.keywords import Keywords, takes_keywords
from mcugen.quantization.quantize import Progress, no_progress
from mcugen.reporting.figures import Flash, MemoryUse, Ram, Report, ReportedLayer
from mcugen.reporting.notebook import fact_table, layer_table, memory_table, tables_html

if TYPE_CHECKING:
    from typing import Unpack


class Layers(Sequence[ReportedLayer]):
    """The layers of a compiled model in the order of computation, with their kernels, work and bytes."""

    def __init__(self, layers: Sequence[ReportedLayer]) -> None:
        self._layers = tuple(layers)

    @overload
    def __getitem__(self, index: int) -> ReportedLayer: ...

    @overload
    def __getitem__(self, index: slice) -> Layers: ...

    def __getitem__(self, index: int | slice) -> ReportedLayer | Layers:
        return Layers(self._layers[index]) if isinstance(index, slice) else self._layers[index]

    def __len__(self) -> int:
        return len(self._layers)

    def __repr__(self) -> str:
        """Return the layers as a table of text."""
        return layer_table(self).text()

    def _repr_html_(self) -> str:
        """Return the layers as a table for a notebook."""
        return tables_html([layer_table(self)])


class MemoryFigures:
    """The memory that a compiled model takes; figures that only a build yields are None until `Model.report` has run.

    Attributes:
        flash: Bytes of code and weights (mcugen.reporting.figures.Flash).
        ram: Bytes of the arena, of state between calls, and of the stack (mcugen.reporting.figures.Ram).
        regions: The use of each memory of the board that holds the arena or weights.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self.flash: Flash = report.flash
        self.ram: Ram = report.ram
        self.regions: Sequence[MemoryUse] = tuple(report.memories)

    def __repr__(self) -> str:
        """Return the figures as a table of text."""
        return memory_table(self._report).text()

    def _repr_html_(self) -> str:
        """Return the figures as a table for a notebook."""
        return tables_html([memory_table(self._report)])


class Model:
    """A model that is compiled for a board: its C files, its figures, and ways to run it; `mcugen.compile` returns it.

    Attributes:
        compilation: The stages of the compilation, for `mcugen.Linking` and programs that need more than this class.
    """

    def __init__(self, compilation: Compilation) -> None:
        self.compilation = compilation
        self._measured: Report | None = None

    @property
    def name(self) -> str:
        """Return the prefix of all C symbols."""
        return self.compilation.compiled.bundle.name

    @property
    def board(self) -> Board:
        """Return the board that the code is for."""
        return self.compilation.target

    @property
    def files(self) -> Mapping[str, str]:
        """Return the texts of the C files by name, as `write` writes them."""
        return dict(self.compilation.compiled.bundle.files)

    @property
    def notes(self) -> Sequence[str]:
        """Return assumptions and remarks of the compiler, one sentence each."""
        return self._figures.notes

    @property
    def warnings(self) -> Sequence[str]:
        """Return problems of the samples or of the code, one sentence each."""
        return self._figures.warnings

    @property
    def memory(self) -> MemoryFigures:
        """Return the flash and RAM that the model takes, in bytes."""
        return MemoryFigures(self._figures)

    @property
    def layers(self) -> Layers:
        """Return the layers with their kernels; their instructions and cycles are None before `report`."""
        return Layers(self._figures.layers)

    @cached_property
    def quantization(self) -> QuantizedModel | None:
        """Return the quantized model as ONNX, its accuracy and precisions; None if mcugen did not quantize."""
        quantization = self.compilation.compiled.quantization
        return None if quantization is None else QuantizedModel(quantization)

    def write(self, folder: str | os.PathLike[str] | None = None, *, force: bool = False) -> Path:
        """Write the C files to a folder, and return its path.

        Files of an earlier result are replaced; other files in the folder stay. If writing fails, nothing changes.

        Args:
            folder: The folder; by default one with the name of the model in the working directory.
            force: Whether to overwrite files that were edited, or that mcugen did not write.

        Raises:
            OutputError: The folder cannot be written; or, without `force`, a file to write was edited or was not
                written by mcugen.
        """
        return self.compilation.write(None if folder is None else Path(folder), force=force)

    def run(self, inputs: SampleInput, *, simulate: bool = False) -> dict[str, Array]:
        """Compute the outputs of the generated code for some samples.

        By default, numpy computes them, without a C compiler: integers are those of the C code bit by bit, and reals
        may differ in the last bits.

        Args:
            inputs: The samples: a path, an array with a leading axis of samples, a list of arrays, or a dictionary of
                these by the names of inputs.
            simulate: Whether to build the C code for the board, and run it in the simulator (natively for "host").

        Returns:
            The outputs by name, each of shape [samples, ...].

        Raises:
            UsageError: The samples do not have the shapes and types of the inputs.
            ToolMissingError: A compiler or the simulator is needed and missing.
        """
        net, source = self.compilation, sample_source(inputs)
        if simulate:
            return net.run(source)
        samples = net.samples(source, net.compiled.program.inputs, accepts_nonfinite=True)
        return stack_samples(net.compiled.interpret_samples(samples.inputs))

    def report(
        self,
        data: SampleInput | None = None,
        *,
        diverged: float = DIVERGED_DB,
        wait_states: int | None = None,
        extreme_inputs: bool = False,
        jobs: int = 1,
        cluster: str = "",
    ) -> Report:
        """Build the code, run it on samples in the board's simulator, and measure accuracy, instructions and memory.

        Args:
            data: The samples, as for `run`; labels are an array `labels` beside them, or the second of a tuple. By
                default those that `compile` got as `data`, else the first sample of `calibration`.
            diverged: SQNR in dB below which a layer of a quantized model counts as diverged.
            wait_states: Wait states of flash in CPU cycles, in place of those of the board.
            extreme_inputs: Whether to run extreme inputs too, if the number of instructions depends on the data.
            jobs: Number of processes that run samples.
            cluster: Address of a Dask scheduler whose workers run samples; "" for none.

        Returns:
            The report; `memory` and `layers` of the model have its figures from then on.

        Raises:
            UsageError: The samples do not have the shapes and types of the inputs.
            ToolMissingError: The compiler or the simulator of the board is missing.
        """
        net = self.compilation
        if extreme_inputs:
            require_simulated(net.target)
        net.workers = Workers(jobs, cluster)
        source = None if data is None else sample_source(data)
        result = net.report(source, diverged=diverged, wait_states=wait_states)
        if extreme_inputs:
            result = with_extremes(net.compiled, result, net.progress)
        if net.teaching is not None:
            result = replace(result, learning=net.learned())
        self._measured = result
        return result

    def export(
        self,
        format: str,
        folder: str | os.PathLike[str] | None = None,
        *,
        version: str = "",
        url: str = "",
        zipped: bool = False,
        force: bool = False,
    ) -> Exported:
        """Write a package for an IDE or a build system.

        Args:
            format: Name of the format, such as "arduino" or "zephyr" (docs/how-to/export.md).
            folder: The folder to write to; by default one named like the model.
            version: Version of the package, MAJOR.MINOR.PATCH; "" for that of mcugen.
            url: Web page of the package, for the metadata of package managers; "" for none.
            zipped: Whether to write one zip file, if the tool reads such files.
            force: Whether to overwrite files that were edited, or that mcugen did not write.

        Raises:
            UsageError: The format is unknown, or not possible for the board.
            OutputError: The files cannot be written.
        """
        packaging = Packaging(url=url, zipped=zipped, force=force)
        chosen = replace(packaging, version=version) if version else packaging
        return self.compilation.export(format, None if folder is None else Path(folder), chosen)

    @property
    def _figures(self) -> Report:
        """Return the measured report if there is one, else the compiler's."""
        return self._measured or self.compilation.compiled.report

    def __repr__(self) -> str:
        """Return name, board, precision and sizes in one line."""
        figures = self._figures
        sizes = f"arena {figures.ram.arena:,} bytes, weights {figures.flash.weights:,} bytes"
        where = f"{figures.model.name} on {figures.board} ({figures.cpu})"
        return f"<mcugen.Model: {where}, {figures.precision}, {len(figures.layers)} layers, {sizes}>"

    def _repr_html_(self) -> str:
        """Return the figures and the layers as tables for a notebook."""
        return tables_html([fact_table(self._figures), layer_table(self.layers)])


@takes_keywords("compile")
def compile(
    model: ModelInput,
    board: str | os.PathLike[str] | Board = "host",
    *,
    example_inputs: Any = None,
    progress: Progress = no_progress,
    **options: Unpack[CompileKeywords],
) -> Model:
    """Compile a model to C for a board, and quantize it first if samples are given.

    Every option of `mcugen compile` on the code, the quantization and the evaluation is a keyword: `max_ram` is
    `--max-ram`. None stands for an option that is not given. Options of NAME=VALUE take dictionaries.

    Args:
        model: The model: a file (.onnx, .tflite, .pt2, .keras), the bytes of an ONNX or .tflite file, an
            `onnx.ModelProto`, a `QuantizedModel`; a `torch.nn.Module` or `ExportedProgram`; a Keras model; or a fitted
            estimator or pipeline of scikit-learn, XGBoost or LightGBM.
        board: The board: a name of `mcugen boards`, a .toml file, or a board in memory. "host" is this computer.
        example_inputs: Inputs of one inference, which give a PyTorch module its shapes: a tensor or array, a tuple of
            these, a dictionary by the parameters of `forward`, or an .npz or .npy file of arrays. By default, the first
            sample of `calibration`.
        progress: Called with the name of a task, the number of finished steps, and the number of all steps.
        **options: The options; docs/reference/options.md describes them.

    Returns:
        The compiled model.

    Raises:
        UsageError: A keyword, a value, a board or a file of samples is wrong.
        ModelError: The model is not valid ONNX, or its framework cannot convert it.
        UnsupportedError: The model uses an operator that mcugen does not have.
        DoesNotFitError: The model does not fit the board, or exceeds a limit that you set.

    Example:
        >>> import mcugen, numpy as np, onnx
        >>> model = onnx.parser.parse_model('''
        ...     <ir_version: 10, opset_import: ["": 21]>
        ...     small (float[1, 4] x) => (float[1, 2] y)
        ...     <float[4, 2] w = {0.1, 0.2, 0.3, -0.4, 0.5, 0.6, -0.7, 0.8}> { y = MatMul(x, w) }''')
        >>> samples = np.random.default_rng(0).uniform(-1, 1, (64, 1, 4))
        >>> net = mcugen.compile(model, board="rp2040", calibration=samples)
        >>> net
        <mcugen.Model: small on rp2040 (cortex-m0plus), int8, 3 layers, arena 32 bytes, weights 24 bytes>
        >>> net.run(samples[:5])["y"].shape
        (5, 1, 2)
        >>> "small.c" in net.files
        True
    """
    keywords = Keywords("compile", options)
    examples = example_inputs_for(model, example_inputs, options.get("calibration"))
    net = Compilation.of(
        resolve_model(model, examples, keywords.task.options.plugins),
        resolve_board(board),
        keywords.task,
        teaching=keywords.teaching,
    )
    net.progress = progress
    _ = net.compiled
    return Model(net)


def resolve_board(board: Any) -> Board:
    """Return the board that a name, a file or a Board object stands for.

    Raises:
        UsageError: There is no such board.
    """
    if isinstance(board, Board):
        return board
    if isinstance(board, str | os.PathLike):
        return load_board(os.fspath(board))
    fault = f"{shortened(repr(board), 80)}, which is of type {type(board).__name__}"
    raise UsageError("board must be a name of `mcugen boards`, a .toml file, or a mcugen.Board", fault)
