# SPDX-License-Identifier: Apache-2.0
"""The options that several commands share, and the parsers of their values.

Only the functions that need numpy and the compiler import them, so that help appears at once.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperOption

from mcugen.cli.settings import MODEL, Kinds, Settings, find_settings, read_settings
from mcugen.codegen.libraries import LIBRARIES
from mcugen.core.board import board_names
from mcugen.core.errors import UsageError, printable, shortened
from mcugen.core.limits import LONGEST_LABEL, MAX_DIGITS, open_regular
from mcugen.core.options import (
    AUTO_PLACE,
    CMSIS_NN,
    DIVERGED_DB,
    FAMILIES,
    FEW_BITS,
    GOALS,
    INPUT_TYPES,
    LOSSES,
    METHODS,
    METRICS,
    MIXED,
    OPTIMIZERS,
    OWN,
    PRECISIONS,
    RUNNING,
    SAMPLES,
    STATISTICS,
    THROUGHPUT,
    TRAINED_AS,
    TWO_BITS,
    WIDE_WEIGHTS,
    CompileOptions,
    LibraryFiles,
    Places,
    Training,
)
from mcugen.distributed.sharing import Workers
from mcugen.driver.tasks import Judging, Quantizing, Teaching

if TYPE_CHECKING:
    from mcugen.hir.types import Array

T = TypeVar("T")

Model = Annotated[Path, typer.Argument(help="ONNX file", show_default=False)]


def _board_completion(incomplete: str) -> list[str]:
    return [name for name in board_names() if name.startswith(incomplete)]


def _completion(*words: str) -> Callable[[str], list[str]]:
    """Return a shell completion for the last of several values separated by commas."""

    def offered(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{word}" for word in words if word.startswith(last)]

    return offered


BoardName = Annotated[
    str,
    typer.Option("--board", "-b", help="a name of `mcugen boards`, or a .toml file", autocompletion=_board_completion),
]
Name = Annotated[str, typer.Option(help="prefix of all C symbols; else the file's name", show_default=False)]
Dim = Annotated[
    list[str] | None,
    typer.Option(
        "--dim",
        help="fixes a symbolic dimension: N=1; or gives the sizes that it may have when the code runs: T=1..64",
        show_default=False,
    ),
]
Bind = Annotated[
    list[str] | None,
    typer.Option("--bind", help="fixes an input at compile time: NAME=[1, 2] or NAME=file.npy", show_default=False),
]
InputType = Annotated[
    list[str] | None,
    typer.Option(
        "--input-type",
        help=f"the caller passes whole numbers, as they are, in place of reals: NAME=uint8 ({', '.join(INPUT_TYPES)})",
        show_default=False,
    ),
]
State = Annotated[
    list[str] | None,
    typer.Option("--state", help="keeps OUTPUT for the next call's INPUT: h_out:h_in", show_default=False),
]
Plugin = Annotated[
    list[Path] | None, typer.Option("--plugin", help="Python file with operators of your own", show_default=False)
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="no progress, no summary")]
Json = Annotated[
    str,
    typer.Option("--json", help="write the report as JSON to a file, or - for stdout", show_default=False),
]
Float16Weights = Annotated[
    bool, typer.Option("--float16-weights", help="rounds weights of float layers to 16 bits: half of their flash")
]
Optimize = Annotated[
    str,
    typer.Option(
        help=f"what matters most: {', '.join(GOALS)}; with --cores 2 also {THROUGHPUT}",
        autocompletion=_completion(*GOALS, THROUGHPUT),
    ),
]

Family = Annotated[
    str,
    typer.Option(
        help=f"whose kernels compute layers: {', '.join(FAMILIES)} (docs/kernels.md)",
        autocompletion=_completion(*FAMILIES),
    ),
]
_CMSIS_NN = LIBRARIES[CMSIS_NN]
CmsisNnInclude = Annotated[
    Path | None,
    typer.Option(
        _CMSIS_NN.options[0],
        envvar=_CMSIS_NN.variables[0],
        help=f"the folder of {_CMSIS_NN.title}'s headers, where code runs that calls it",
        show_default=False,
    ),
]
CmsisNnLib = Annotated[
    Path | None,
    typer.Option(
        _CMSIS_NN.options[1],
        envvar=_CMSIS_NN.variables[1],
        help="the same library as built for the board's CPU; {cpu} in the name stands for that",
        show_default=False,
    ),
]
Kernels = Annotated[
    list[str] | None,
    typer.Option("--kernel", help="takes this kernel wherever it fits; else they are chosen", show_default=False),
]

Place = Annotated[
    list[str] | None,
    typer.Option(
        "--place",
        help="what lies in which memory of the board: auto, or arena=dtcm+ocram, weights=flash, hot-weights=dtcm:32768 "
        "(docs/memory.md)",
        show_default=False,
    ),
]
WeightsBlob = Annotated[
    bool, typer.Option("--weights-blob", help="the run function takes the weights, as a file apart from the code")
]
Updatable = Annotated[
    bool,
    typer.Option(
        "--updatable",
        help="--weights-blob with all that training changes: a model trained again is a new file (docs/memory.md)",
    ),
]
WeightsReader = Annotated[
    bool,
    typer.Option(
        "--weights-reader",
        help="--weights-blob for memory without addresses: a function of yours reads a layer's weights into the arena",
    ),
]
CopyAhead = Annotated[
    bool,
    typer.Option(
        "--copy-ahead",
        help="weights of the next layer are copied to RAM while one runs: by MCUGEN_STAGE_BEGIN and MCUGEN_STAGE_END, "
        "functions of yours for DMA",
    ),
]
WeightsVersion = Annotated[int, typer.Option(min=0, help="of --updatable: what the firmware may compare")]
StreamInput = Annotated[
    bool,
    typer.Option("--stream-input", help="the first input comes row by row, by a function of yours: no memory for it"),
]

ExternalIo = Annotated[
    bool,
    typer.Option("--external-io", help="inputs and outputs lie in buffers of your own: no memory for them"),
]

InputPipeline = Annotated[
    str,
    typer.Option(
        help="how the input is made of raw data, for the firmware as for samples: 'image=rgb565, rgb, scale=1/255', or "
        "a file (docs/pipelines.md)",
        show_default=False,
    ),
]
StackBound = Annotated[
    bool,
    typer.Option(
        "--stack-bound", help="the header tells the most stack that a run takes, as the board's compiler builds it"
    ),
]
SelfTest = Annotated[
    int,
    typer.Option(
        "--self-test",
        help="the self-test has at most so many samples, of yours (--data, --calibration) and made ones, chosen for "
        "the flipped bits of constants that they find",
        min=0,
        max=16,
        show_default=False,
    ),
]
CheckWeights = Annotated[
    bool,
    typer.Option("--check-weights", help="functions that compare weights and tables with checksums, also in steps"),
]
CheckParameters = Annotated[
    bool,
    typer.Option("--check-parameters", help="the same of parameters and tables, where weights are a file of their own"),
]
CheckedArena = Annotated[
    bool,
    typer.Option(
        "--checked-arena", help="besides NAME_run: ones that take the arena's size, or look at canaries around it"
    ),
]
CheckedIndices = Annotated[
    bool,
    typer.Option(
        "--checked-indices", help="no kernels whose constants hold addresses: damaged ones never lead out of memory"
    ),
]
CheckedSteps = Annotated[
    bool,
    typer.Option("--checked-steps", help="a checksum of the arena between steps; implies --steps"),
]
PlausibleOutputs = Annotated[
    list[str] | None,
    typer.Option(
        "--plausible",
        help="NAME_check_outputs tells outputs that lie outside of a range: NAME=LOW..HIGH, or 'samples' for all, as "
        "your samples have them",
        show_default=False,
    ),
]
Steps = Annotated[
    bool,
    typer.Option("--steps", help="besides NAME_run: NAME_begin and NAME_step, one layer or row group a call"),
]
MaxStepCycles = Annotated[
    int | None,
    typer.Option(
        help="no step takes longer on the board, as simulated; implies --steps",
        show_default=False,
    ),
]
Cores = Annotated[
    int,
    typer.Option("--cores", help="2: besides NAME_run code that shares layers between two cores (docs/two_cores.md)"),
]
Helpers = Annotated[
    bool,
    typer.Option("--helpers", help="the header has functions that write pixels, samples, reals, and read classes"),
]
Labels = Annotated[
    Path | None,
    typer.Option(
        help="names of an output's classes, one a line, as strings in C; implies --helpers", show_default=False
    ),
]

MaxRam = Annotated[
    str, typer.Option(help="the model must do with so many bytes of RAM: 20000, or 20KB", show_default=False)
]
MaxLatency = Annotated[
    str,
    typer.Option(help="a call must take no longer on the board: 20ms (docs/memory.md)", show_default=False),
]
MaxCycles = Annotated[str, typer.Option(help="the same in estimated cycles: 1500000", show_default=False)]
Tune = Annotated[
    int,
    typer.Option(help="chooses kernels by simulated cycles, of so many a layer (docs/memory.md)", show_default=False),
]
MaxFlash = Annotated[str, typer.Option(help="the same of flash, weights and code", show_default=False)]


def cpus(jobs: int) -> int:
    """Return the number of processes for `--jobs`; 0 is one for each CPU."""
    return jobs or os.cpu_count() or 1


Train = Annotated[
    str,
    typer.Option(
        help="makes the model one that learns where it runs: last:N layers, names of layers, bias or bias:N, "
        "adapter:RANK or adapter:RANK:N, with commas between them; or a head that remembers samples: "
        "centroids:CLASSES, nearest:CLASSES:SAMPLES:K, statistics, perhaps @LAYER; or auto (docs/training.md)",
        show_default=False,
    ),
]
Loss = Annotated[
    str, typer.Option(help=f"what learning lowers: {', '.join(LOSSES)}", autocompletion=_completion(*LOSSES))
]
OptimizerName = Annotated[
    str, typer.Option(help=f"how it learns: {', '.join(OPTIMIZERS)}", autocompletion=_completion(*OPTIMIZERS))
]
TrainWeights = Annotated[
    str,
    typer.Option(
        help="how trained weights are kept: float32, int8 (not with adam), or auto: int8 where float32 does not fit",
        autocompletion=_completion(*TRAINED_AS),
    ),
]
Statistics = Annotated[
    str,
    typer.Option(
        help="means and variances of batch normalization behind the first trained layer: frozen, or updated by samples",
        autocompletion=_completion(*RUNNING),
    ),
]
Batch = Annotated[int, typer.Option(min=1, max=1_000_000, help="how many samples make a step of learning")]


@dataclass(frozen=True, kw_only=True)
class ReadingArguments:
    """The options of all commands that read a model."""

    dim: Dim = None
    bind: Bind = None
    input_type: InputType = None
    state: State = None
    input_pipeline: InputPipeline = ""
    plugin: Plugin = None

    def made(self) -> CompileOptions:
        """Return the options in the form of the compiler.

        Raises:
            UsageError: The value of an option is invalid; the message names the option.
        """
        return CompileOptions(
            dims=_dims(self.dim or []),
            bound=_bound(self.bind or []),
            input_types=_input_types(self.input_type or []),
            states=_states(self.state or []),
            plugins=tuple(self.plugin or ()),
            input_pipeline=self.input_pipeline,
        )


@dataclass(frozen=True, kw_only=True)
class RunningArguments(ReadingArguments):
    """The options of all commands that compile: those that affect the execution and its resources."""

    float16_weights: Float16Weights = False
    optimize: Optimize = GOALS[0]
    kernels: Family = OWN
    kernel: Kernels = None
    stream_input: StreamInput = False
    external_io: ExternalIo = False
    max_ram: MaxRam = ""
    max_flash: MaxFlash = ""
    max_latency: MaxLatency = ""
    max_cycles: MaxCycles = ""
    tune: Tune = 0
    place: Place = None
    weights_blob: WeightsBlob = False
    updatable: Updatable = False
    weights_version: WeightsVersion = 0
    weights_reader: WeightsReader = False
    copy_ahead: CopyAhead = False
    check_weights: CheckWeights = False
    check_parameters: CheckParameters = False
    checked_arena: CheckedArena = False
    checked_indices: CheckedIndices = False
    checked_steps: CheckedSteps = False
    steps: Steps = False
    max_step_cycles: MaxStepCycles = None
    cores: Cores = 1
    train: Train = ""
    loss: Loss = LOSSES[0]
    optimizer: OptimizerName = OPTIMIZERS[0]
    train_weights: TrainWeights = TRAINED_AS[0]
    statistics: Statistics = RUNNING[0]
    batch: Batch = 1
    cmsis_nn_include: CmsisNnInclude = None
    cmsis_nn_lib: CmsisNnLib = None

    def made(self) -> CompileOptions:
        """Return the options in the form of the compiler."""
        return replace(
            super().made(),
            float16_weights=self.float16_weights,
            optimize=self.optimize,
            family=self.kernels,
            kernels=tuple(self.kernel or ()),
            stream_input=self.stream_input,
            max_ram=_size("--max-ram", self.max_ram),
            max_flash=_size("--max-flash", self.max_flash),
            max_latency=_seconds("--max-latency", self.max_latency),
            max_cycles=_cycles("--max-cycles", self.max_cycles),
            tune=self.tune,
            place=_places(self.place or []),
            weights_blob=self.weights_blob,
            updatable=self.updatable,
            weights_version=self.weights_version,
            weights_reader=self.weights_reader,
            copy_ahead=self.copy_ahead,
            external_io=self.external_io,
            check_weights=self.check_weights,
            check_parameters=self.check_parameters,
            checked_arena=self.checked_arena,
            checked_indices=self.checked_indices,
            checked_steps=self.checked_steps,
            steps=self.steps or self.checked_steps or self.max_step_cycles is not None,
            max_step_cycles=self.max_step_cycles,
            cores=self.cores,
            training=self._training(),
            library=library_files(self.cmsis_nn_include, self.cmsis_nn_lib),
        )

    def _training(self) -> Training | None:
        """Return the options of on-device training, or None."""
        if not self.train:
            return None
        return Training(self.train, self.loss, self.optimizer, self.batch, self.train_weights, self.statistics)


@dataclass(frozen=True, kw_only=True)
class CompileArguments(RunningArguments):
    """The options of all commands whose generated code people read."""

    name: Name = ""
    helpers: Helpers = False
    labels: Labels = None
    stack_bound: StackBound = False
    self_test: SelfTest = 0
    plausible: PlausibleOutputs = None

    def made(self) -> CompileOptions:
        """Return the options in the form of the compiler."""
        return replace(
            super().made(),
            name=self.name,
            helpers=self.helpers or self.labels is not None,
            labels=_labels(self.labels),
            stack_bound=self.stack_bound,
            self_test=self.self_test,
            plausible=_plausible(self.plausible or []),
        )


TECHNIQUES = {"equalization": "equalize", "bias-correction": "correct_bias", "rounding": "optimize_rounding"}
"""Fields of Scheme by the names of the techniques on the command line."""

Preprocess = Annotated[
    str,
    typer.Option(
        "--preprocess",
        help="of each sample: 'resize=96x96, gray, scale=1/255, mean=0.5, std=0.25' (docs/quantization.md)",
        show_default=False,
    ),
]
PixelScale = Annotated[float, typer.Option("--pixel-scale", help="factor of `x_uint8` samples for a float input")]
Without = Annotated[
    list[str] | None,
    typer.Option("--without", help=f"leaves out a technique: {', '.join(TECHNIQUES)}", show_default=False),
]


def techniques(without: Without) -> dict[str, bool]:
    """Return the fields of Scheme that say which techniques are used."""
    for technique in without or ():
        _one_of("--without", technique, tuple(TECHNIQUES))
    return {field: name not in (without or ()) for name, field in TECHNIQUES.items()}


@dataclass(frozen=True, kw_only=True)
class QuantizingArguments:
    """The options of all commands that quantize."""

    precision: Annotated[
        str,
        typer.Option(
            help=f"of the arithmetic: {', '.join((*PRECISIONS, *FEW_BITS, MIXED))}; int8 where samples are given",
            autocompletion=_completion(*PRECISIONS, *FEW_BITS, MIXED),
            show_default=False,
        ),
    ] = ""
    calibration: Annotated[
        Path | None,
        typer.Option(
            help="samples to take ranges from: .npz, .npy, or a folder of .npy, .npz, .png", show_default=False
        ),
    ] = None
    profile: Annotated[
        Path | None, typer.Option(help="ranges of `mcugen profile` instead of samples, or besides", show_default=False)
    ] = None
    synthetic: Annotated[
        str,
        typer.Option(
            help=f"without data: samples are made, of inputs LOW..HIGH or by the {STATISTICS} of batch normalizations",
            show_default=False,
        ),
    ] = ""
    preprocess: Preprocess = ""
    method: Annotated[
        str,
        typer.Option(help=f"of choosing ranges: {', '.join(METHODS)}; else by measured error", show_default=False),
    ] = ""
    symmetric: Annotated[bool, typer.Option("--symmetric", help="activations with zero point 0")] = False
    power_of_two: Annotated[bool, typer.Option("--power-of-two", help="scales that are powers of two")] = False
    per_tensor: Annotated[bool, typer.Option("--per-tensor", help="one scale for all weights of a layer")] = False
    integer_io: Annotated[bool, typer.Option("--integer-io", help="inputs and outputs are the integers, not reals")] = (
        False
    )
    without: Without = None
    layer: Annotated[
        list[str] | None, typer.Option("--layer", help="precision of one layer: NAME=float32", show_default=False)
    ] = None

    def made(self) -> Quantizing:
        """Return the options in the form of a compilation.

        Raises:
            UsageError: Options contradict each other.
        """
        from mcugen.hir.types import DType
        from mcugen.quantization.scheme import Scheme

        _one_of("--method", self.method, ("", *METHODS))
        layers = _layers(self.layer or [])
        quantizing = Quantizing(
            self.precision, self.calibration, self.profile, self.preprocess, layers=layers, synthetic=self.synthetic
        )
        scheme = Scheme(
            DType(quantizing.activations),
            self.method,
            self.symmetric,
            self.power_of_two,
            not self.per_tensor,
            integer_io=self.integer_io,
            weights=DType(quantizing.weights),
            group=quantizing.group,
            **techniques(self.without),
        )
        return replace(quantizing, scheme=scheme)


@dataclass(frozen=True, kw_only=True)
class JudgingArguments:
    """The options of all commands that judge a model."""

    data: Annotated[
        Path | None,
        typer.Option(
            help="evaluation samples, .npz; labels in `labels` or `y`, or boxes in `boxes`", show_default=False
        ),
    ] = None
    pixel_scale: PixelScale = 1.0
    metric: Annotated[
        str,
        typer.Option(
            help=f"{', '.join(METRICS)}, or your own: FILE.py:FUNCTION; else what suits the labels (docs/reports.md)",
            autocompletion=_completion(*METRICS),
            show_default=False,
        ),
    ] = ""
    max_accuracy_drop: Annotated[
        float | None,
        typer.Option(help="of --precision auto, in percentage points against float32; else 0.5", show_default=False),
    ] = None
    min_sqnr: Annotated[
        float | None,
        typer.Option(
            "--min-sqnr", help="of --precision auto, in dB, in place of accuracy or besides", show_default=False
        ),
    ] = None
    max_weights: Annotated[
        str,
        typer.Option(
            help="of --precision auto: 60% of the bytes of int8 weights, by a code or 4 bits; counted as the model has "
            "them, which --optimize flash stores so; kernels for other goals may widen them, which --max-flash counts",
            show_default=False,
        ),
    ] = ""

    def made(self) -> Judging:
        """Return the options in the form of a compilation."""
        share = _share("--max-weights", self.max_weights)
        return Judging(self.data, self.pixel_scale, self.metric, self.max_accuracy_drop, self.min_sqnr, share)


@dataclass(frozen=True)
class Telling:
    """The options on a command's output.

    `quiet` suppresses progress and summary. `json_` is the file for the report as JSON, - for stdout.
    """

    quiet: Quiet = False
    json_: Json = ""

    def made(self) -> Telling:
        """Return the options themselves: they need no conversion."""
        return self


@dataclass(frozen=True)
class Watching:
    """The options that show the passes to developers."""

    dump_after: Annotated[str, typer.Option(help="print the graph after this pass (or `all`) to stderr")] = ""
    time_passes: Annotated[bool, typer.Option("--time-passes", help="print seconds per pass to stderr")] = False

    def made(self) -> Watching:
        """Return the options themselves: they need no conversion."""
        return self


@dataclass(frozen=True)
class TeachingArguments:
    """The options on the samples that a model learns from."""

    lesson: Annotated[
        Path | None,
        typer.Option(help="samples with labels, from which a model with --train learns one by one", show_default=False),
    ] = None
    rate: Annotated[float, typer.Option(min=0.0, help="at which it learns")] = 0.01
    epochs: Annotated[int, typer.Option(min=1, help="how often it is shown the lesson")] = 1

    def made(self) -> Teaching | None:
        """Return the lesson with its learning rate and epochs; None without --lesson."""
        return None if self.lesson is None else Teaching(self.lesson, self.rate, self.epochs)


@dataclass(frozen=True)
class Reporting:
    """The options on the contents of a report."""

    compare_layers: Annotated[
        bool, typer.Option("--compare-layers", help="all layers in order, float and integer side by side")
    ] = False
    diverged: Annotated[float, typer.Option(help="SQNR in dB below which a layer has diverged")] = DIVERGED_DB
    wait_states: Annotated[
        int | None,
        typer.Option(min=0, help="of flash, for the estimate of cycles, instead of the board's", show_default=False),
    ] = None
    extreme_inputs: Annotated[
        bool,
        typer.Option("--extreme-inputs", help="the best and worst of such, where data decides"),
    ] = False
    html: Annotated[Path | None, typer.Option(help="write the report as one page with charts", show_default=False)] = (
        None
    )

    def made(self) -> Reporting:
        """Return the options themselves: they need no conversion."""
        return self


@dataclass(frozen=True)
class Sharing:
    """The options on the processes or computers that share work."""

    jobs: Annotated[int, typer.Option("--jobs", "-j", min=0, help="so many at once; 0: one for each CPU")] = 0
    cluster: Annotated[
        str,
        typer.Option(
            help="a Dask scheduler whose workers do it: tcp://HOST:8786; or local (docs/cluster.md)",
            show_default=False,
        ),
    ] = ""

    def made(self) -> Workers:
        """Return the workers: the given number of processes, by default one for each CPU, or a cluster."""
        return Workers(cpus(self.jobs), self.cluster)


class Ir(StrEnum):
    """An intermediate representation."""

    HIR = "hir"
    LIR = "lir"


@dataclass(frozen=True)
class Inspecting:
    """The options of `mcugen inspect`, which select its output."""

    ir: Annotated[Ir | None, typer.Option(help="dump an intermediate representation", show_default=False)] = None
    memory: Annotated[bool, typer.Option("--memory", help="what lies where in the arena, layer by layer")] = False
    svg: Annotated[
        Path | None, typer.Option(help="write a picture of the arena over time, .svg", show_default=False)
    ] = None
    html: Annotated[
        Path | None,
        typer.Option(help="write the graph as it came and as it is compiled, side by side", show_default=False),
    ] = None
    passes: Annotated[str, typer.Option(help="what these passes did: names, by commas", show_default=False)] = ""

    def made(self) -> Inspecting:
        """Return the options themselves: they need no conversion."""
        return self


PANELS = {
    "How the model is read": ("dim", "bind", "input_type", "state", "plugin"),
    "Quantization": (
        *(
            "profile",
            "synthetic",
            "preprocess",
            "method",
            "symmetric",
            "power_of_two",
            "per_tensor",
            "integer_io",
            "without",
            "layer",
            "float16_weights",
        ),
        *("max_accuracy_drop", "min_sqnr", "max_weights"),
    ),
    "Samples": ("pixel_scale", "metric", "input_pipeline"),
    "Memory": ("max_ram", "max_flash", "place", "copy_ahead", "stream_input", "external_io"),
    "Weights apart from the code": ("weights_blob", "updatable", "weights_version", "weights_reader"),
    "Time": ("max_latency", "max_cycles", "tune", "steps", "max_step_cycles", "cores", "wait_states", "extreme_inputs"),
    "Learning on the device": ("train", "loss", "optimizer", "batch", "statistics", "lesson", "rate", "epochs"),
    "What the code offers": ("name", "helpers", "labels"),
    "Safety": (
        "stack_bound",
        "self_test",
        "check_weights",
        "check_parameters",
        "checked_arena",
        "checked_indices",
        "checked_steps",
        "plausible",
    ),
    "Kernels": ("kernels", "kernel", "cmsis_nn_include", "cmsis_nn_lib"),
    "Computers": ("jobs", "cluster"),
    "For developers": ("dump_after", "time_passes", "diverged", "compare_layers"),
}
"""Groups of options in a command's help, by title. Frequent options are in no group and come first."""


def _in_panels(parameters: Sequence[Parameter]) -> list[Parameter]:
    """Return the parameters with the groups that help shows them in."""
    panel_of = {name: panel for panel, names in PANELS.items() for name in names}
    return [_in_panel(p, panel_of[p.name]) if p.name in panel_of else p for p in parameters]


def _in_panel(parameter: Parameter, panel: str) -> Parameter:
    kind, info = get_args(parameter.annotation)
    shown = copy(info)
    shown.rich_help_panel = panel
    return parameter.replace(annotation=Annotated[kind, shown])


SHARED: dict[str, type[Any]] = {
    "reading": ReadingArguments,
    "running": RunningArguments,
    "options": CompileArguments,
    "quantizing": QuantizingArguments,
    "judging": JudgingArguments,
    "telling": Telling,
    "watching": Watching,
    "reporting": Reporting,
    "teaching": TeachingArguments,
    "sharing": Sharing,
    "inspecting": Inspecting,
}
"""Class for a command's parameter of each name; the fields of the class are options of the command."""


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with the options of the classes in SHARED in place of its parameters of those names.

    The command receives the result of the class's method `made`. If the parameter's annotation is the class itself, the
    command receives an instance of the class.
    """
    own = signature(command, eval_str=True).parameters
    groups = {name: signature(SHARED[name], eval_str=True).parameters for name in own if name in SHARED}

    @wraps(command)
    def call(**arguments: Any) -> None:
        read = {name: SHARED[name](**{key: arguments.pop(key) for key in group}) for name, group in groups.items()}
        raw = [name for name in read if own[name].annotation is SHARED[name]]
        command(**{name: options if name in raw else options.made() for name, options in read.items()}, **arguments)

    parameters: list[Parameter] = []
    for name, parameter in own.items():
        parameters += groups[name].values() if name in groups else [parameter]
    keyword_only = [p.replace(kind=Parameter.KEYWORD_ONLY) for p in _in_panels(parameters)]
    call.__signature__ = Signature(keyword_only)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in keyword_only}
    return call


Options = TypeVar("Options", CompileArguments, QuantizingArguments, JudgingArguments)


def overridden(options: Options, settings: Mapping[str, Sequence[str]]) -> Options:
    """Return options with some values replaced.

    Args:
        options: The options.
        settings: Texts by names of options, as in {"max-ram": ["20KB"]}; "" for a flag. Names that are not in `options`
            are ignored. An option that may be repeated keeps its old values too.
    """
    kinds, changes = get_type_hints(type(options)), {}
    for field in fields(options):
        name, before = option_name(field.name), getattr(options, field.name)
        if name in settings:
            changes[field.name] = _setting(name, settings[name], kinds[field.name], before)
    return replace(options, **changes)


def option_names(*kinds: type[Any]) -> list[str]:
    """Return the names of the options of some classes of SHARED, in the form of `overridden`."""
    return [option_name(field.name) for kind in kinds for field in fields(kind)]


def option_name(field: str) -> str:
    """Return the name of the option of a field, without dashes before it."""
    return field.replace("_", "-")


_BY_HAND = ("plugin", "cmsis-nn-include", "cmsis-nn-lib")
"""Options that a settings file cannot give, because they run or link code."""


def settings_kinds() -> Kinds:
    """Return the types of the options that `mcugen.toml` may give, by name."""
    kinds: dict[str, type[Any]] = {MODEL: Path, "board": str}
    for group in (CompileArguments, QuantizingArguments, JudgingArguments):
        hints = get_type_hints(group)
        kinds |= {option_name(field.name): _plain_kind(hints[field.name]) for field in fields(group)}
    return {name: kind for name, kind in kinds.items() if name not in _BY_HAND}


def _plain_kind(hint: Any) -> type[Any]:
    """Return the class of a type hint: list for `list[str] | None`, Path for `Path | None`."""
    kinds = [kind for kind in (get_args(hint) or (hint,)) if kind is not type(None)]
    kind: type[Any] = get_origin(kinds[0]) or kinds[0]
    return kind


def _setting(name: str, texts: Sequence[str], kind: Any, before: Any) -> Any:
    """Return the value of an option from texts.

    Args:
        name: The name of the option, for messages.
        texts: The texts; "" for a flag.
        kind: The type hint of the option.
        before: The old value, which an option of several values keeps.

    Raises:
        UsageError: A text is not a number, a flag has a value, a value is missing, or there are several values.
    """
    kinds, text = (kind, *get_args(kind)), texts[-1]
    several = next((get_args(of)[0] for of in kinds if get_origin(of) is list), None)
    if len(texts) > 1 and several is None:
        raise UsageError(f"--{name} must be given once for each model", f"{len(texts)} times", "give one value")
    if (kind is bool) == bool(text):
        rule = f"--{name} takes no value" if text else f"--{name} must have a value"
        raise UsageError(rule, f"'{shortened(text, 80)}'", f"MODEL:{name}{'=VALUE' * (kind is not bool)}")
    if kind is bool:
        return True
    if several is not None:
        return [*(before or []), *map(several, texts)]
    if float not in kinds:
        return Path(text) if Path in kinds else text
    try:
        return float(text)
    except ValueError as error:
        raise UsageError(f"--{name} must be a number", f"'{shortened(text, 80)}'") from error


_ARGUMENTS = "mcugen.arguments"
_ALL_HELP = "--help-all"


def _texts(value: object) -> list[str]:
    """Return the texts among the values of an option."""
    return [v for v in (value if isinstance(value, list) else [value]) if isinstance(v, str)]


class Command(TyperCommand):
    """A command that also reads its options from `mcugen.toml`.

    An option with one value must be given once: the framework would silently use the last of several values. The name
    of another option is not accepted as a value, as in `--json --quiet`, where the file is missing.
    """

    reads_settings: ClassVar[bool] = True

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help of the command: all options with --help-all, otherwise the frequent ones."""
        seldom = [] if ctx.meta.get(_ALL_HELP) else [p for p in self.params if _is_seldom_needed(p)]
        if not seldom:
            super().format_help(ctx, formatter)
            return
        short = copy(self)
        short.params = [p for p in self.params if p not in seldom]
        short.epilog = f"{len(seldom)} more options: {ctx.command_path} {_ALL_HELP}"
        TyperCommand.format_help(short, ctx, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments together with those of the settings file.

        Raises:
            UsageError: An option with one value is given twice, or without a value. Flags may be repeated.
        """
        if _ALL_HELP in args and not ctx.resilient_parsing:
            ctx.meta[_ALL_HELP] = True
            args = ["--help"]
        values, _, given_params = self.make_parser(ctx).parse_args(args=list(args))
        options = [p for p in given_params if isinstance(p, TyperOption)]
        single = [p for p in options if not (p.multiple or p.is_flag or p.count)]
        twice = next((p for p in single if single.count(p) > 1), None)
        if twice is not None:
            rule, fault = f"{max(twice.opts, key=len)} must be given once", f"{single.count(twice)} times"
            raise UsageError(rule, fault, "give one value")
        names = {name for p in self.params if isinstance(p, TyperOption) for name in (*p.opts, *p.secondary_opts)}
        empty = next((p for p in options if names.intersection(_texts(values.get(p.name)))), None)
        if empty is not None:
            rule, fault = f"{max(empty.opts, key=len)} must be given a value", "the name of another option"
            raise UsageError(rule, fault, "put its value behind it")
        settings = self._settings(ctx, options, values)
        args = [*settings.arguments, *args] if settings else args
        ctx.meta[_ARGUMENTS] = list(args)
        remaining_args = super().parse_args(ctx, args)
        if settings and not ctx.params.get("quiet"):
            where = os.path.relpath(settings.path)
            typer.echo(printable(f"settings of {where}: {', '.join(settings.values)}"), err=True)
        return remaining_args

    def _settings(self, ctx: Any, given_params: Sequence[Any], values: Mapping[str, Any]) -> Settings | None:
        """Return the settings for options of this command that its command line does not give; None if empty."""
        is_plain = ctx.resilient_parsing or "help" in values or not self.reads_settings
        path = None if is_plain or ctx.find_root().params.get("no_settings") else find_settings(Path.cwd())
        if path is None:
            return None
        settings = read_settings(path, settings_kinds())
        options = {name for p in self.params if isinstance(p, TyperOption) and p not in given_params for name in p.opts}
        arguments = [p.name for p in self.params if not isinstance(p, TyperOption)]
        has_model = arguments == [MODEL] and not isinstance(values.get(MODEL), str)
        takes = {name for name in settings.values if f"--{name}" in options or (name == MODEL and has_model)}
        return replace(settings, values={n: v for n, v in settings.values.items() if n in takes}) if takes else None


class FirstCommand(Command):
    """A command that writes the settings file and does not read it."""

    reads_settings = False


def command_text(context: typer.Context) -> str:
    """Return the running command for a shell, with the options from settings."""
    return shlex.join(["mcugen", str(context.info_name), *context.meta[_ARGUMENTS]])


def _is_seldom_needed(parameter: Any) -> bool:
    return getattr(parameter, "rich_help_panel", None) is not None


class Program(typer.Typer):
    """A program whose commands are instances of Command."""

    def command(self, *args: Any, **settings: Any) -> Callable[[T], T]:
        """Register a function as a command."""
        return super().command(*args, **{"cls": Command} | settings)  # type: ignore[return-value]


def _one_of(option: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise UsageError(f"{option} must be known", f"'{value}'", f"one of: {', '.join(filter(None, allowed))}")


def several_of(option: str, text: str, allowed: Sequence[str]) -> tuple[str, ...]:
    """Return the values of a text separated by commas, without duplicates.

    Args:
        option: The name of the option, for messages.
        text: The value of the option.
        allowed: The allowed values.

    Raises:
        UsageError: A value is not allowed, or there is none.
    """
    values = tuple(dict.fromkeys(value.strip() for value in text.split(",")))
    for value in values:
        _one_of(option, value, allowed)
    return values


def _layers(texts: list[str]) -> dict[str, str]:
    """Return the requested precision of layers by name, from texts NAME=PRECISION.

    Raises:
        UsageError: A precision is unknown.
    """
    pairs = []
    for text in texts:
        name, _, precision = text.rpartition("=")
        few = {key: "int4" for key, group in FEW_BITS.items() if group == 0}
        known = PRECISIONS | WIDE_WEIGHTS | few | dict.fromkeys(TWO_BITS, "int2")
        if not name or precision not in known:
            examples = f"a precision is one of: {', '.join(known)}"
            raise UsageError("--layer must read NAME=PRECISION", f"'{text}'", examples)
        pairs.append((name, known[precision]))
    return _named_once("--layer", pairs)


_MOST_LABEL_BYTES = 10**6


def _labels(path: Path | None) -> tuple[str, ...]:
    """Return the names of classes from a file with one name per line; empty lines at its end are ignored."""
    if path is None:
        return ()
    with open_regular(path) as file:
        data = file.read(_MOST_LABEL_BYTES + 1)
    rule = f"--labels must be a text file in UTF-8 of at most {_MOST_LABEL_BYTES:,} bytes"
    if len(data) > _MOST_LABEL_BYTES:
        raise UsageError(rule, f"'{path}': more", "give a name a line")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(rule, f"'{path}': {error.reason} at byte {error.start}", "save it as UTF-8") from error
    lines = tuple(line.removesuffix("\r") for line in text.rstrip("\r\n").split("\n"))
    if text.strip() == "" or any(len(line) > LONGEST_LABEL for line in lines):
        fault = "nothing" if text.strip() == "" else f"a line of more than {LONGEST_LABEL} characters"
        raise UsageError("--labels must name a class a line", f"'{path}': {fault}", "e.g. cat, a line below it dog")
    return lines


def _dims(texts: list[str]) -> dict[str, int | tuple[int, int]]:
    """Return the sizes of symbolic dimensions, or ranges of sizes, from texts NAME=SIZE or NAME=LOW..HIGH."""
    dims: list[tuple[str, int | tuple[int, int]]] = []
    for text in texts:
        key, _, size = text.rpartition("=")
        ends = size.split("..")
        sizes = [_positive(end) for end in ends]
        if not key or len(ends) > 2 or None in sizes:
            examples = "e.g. --dim batch=1, or --dim T=1..64"
            raise UsageError("--dim must read NAME=SIZE or NAME=LOW..HIGH with positive sizes", f"'{text}'", examples)
        low, high = sizes[0] or 0, sizes[-1] or 0
        dims.append((key, low if len(ends) == 1 else (low, high)))
    return _named_once("--dim", dims)


def _plausible(texts: list[str]) -> dict[str, tuple[float, float]]:
    """Return the plausible ranges of outputs by name; the text `samples` gives the key SAMPLES and no range."""
    ranges: list[tuple[str, tuple[float, float]]] = []
    for text in texts:
        name, _, ends = text.rpartition("=")
        low, _, high = (_number(end) for end in ends.partition(".."))
        if text != SAMPLES and (not name or low is None or high is None or low > high):
            examples = "e.g. --plausible y=-1.5..2, or --plausible samples"
            raise UsageError("--plausible must read NAME=LOW..HIGH with LOW not above HIGH", f"'{text}'", examples)
        ranges.append((name or text, (low or 0.0, high or 0.0)))
    return _named_once("--plausible", ranges)


def _number(text: str) -> float | None:
    """Return the finite number of a text; None for any other text."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _bound(texts: list[str]) -> dict[str, Array]:
    """Return the values of inputs by name, from texts NAME=VALUE with numbers as JSON or a .npy file."""
    from mcugen.evaluation.array_files import read_npy

    values = []
    for text in texts:
        name, _, value = text.partition("=")
        array = read_npy(Path(value)) if value.endswith(".npy") else _json_array(text, value)
        if not name or array.dtype.kind not in "fiub":
            raise UsageError("--bind must read NAME=VALUE with numbers", f"'{text}'", 'e.g. --bind "axes=[1, 2]"')
        values.append((name, array))
    return _named_once("--bind", values)


def _json_array(text: str, value: str) -> Array:
    """Return the array of numbers in JSON; `text` is the option's text for messages."""
    import numpy as np

    try:
        return np.asarray(json.loads(value))
    except RecursionError as error:
        reason = f"'{shortened(text, 80)}': lists within lists within lists"
        raise UsageError("--bind must read NAME=VALUE, a value as JSON or a .npy file", reason) from error
    except (ValueError, OverflowError) as error:
        reason = f"'{shortened(text, 200)}': {str(error)[:80]}"
        raise UsageError("--bind must read NAME=VALUE, a value as JSON or a .npy file", reason) from error


def _positive(text: str) -> int | None:
    """Return the positive whole number of a text; None for other texts and for more than MAX_DIGITS digits."""
    is_number = text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS
    return (int(text) or None) if is_number else None


_SIZE = re.compile(r"([0-9]+) ?(?:([KM])(?:i?B)?)?", re.IGNORECASE)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20}


def _size(option: str, text: str) -> int | None:
    """Return a number of bytes; KB are 1024 bytes, as in the list of boards. None for an empty text."""
    match = _SIZE.fullmatch(text)
    number = _positive(match[1]) if match else None
    if text and number is None:
        raise UsageError(f"{option} must be a positive number of bytes", f"'{text}'", "e.g. 20000, or 20KB")
    return number * _UNITS[(match[2] or "").upper()] if match and number else None


_PERCENT = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,3})?) ?%")


def _share(option: str, text: str) -> float | None:
    """Return a share between 0 and 1 from a text in percent. None for an empty text."""
    match = _PERCENT.fullmatch(text)
    if text and (match is None or not 0 < float(match[1]) <= 100):
        raise UsageError(f"{option} must be a share of at most 100 %", f"'{text}'", "e.g. 60%")
    return float(match[1]) / 100 if match else None


_TIME = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?(us|µs|ms|s)")
_SECONDS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}


def _seconds(option: str, text: str) -> float | None:
    """Return the seconds of a time with its unit. None for an empty text."""
    match = _TIME.fullmatch(text)
    if text and (match is None or not float(match[1])):
        raise UsageError(f"{option} must be a positive time with its unit", f"'{text}'", "e.g. 20ms, 500us or 1.5s")
    return float(match[1]) * _SECONDS[match[2]] if match else None


def _cycles(option: str, text: str) -> int | None:
    """Return a positive number of cycles. None for an empty text."""
    if text and _positive(text) is None:
        raise UsageError(f"{option} must be a positive number of cycles", f"'{text}'", "e.g. 1500000")
    return _positive(text)


def _input_types(texts: list[str]) -> dict[str, str]:
    """Return the types of inputs by name, from texts NAME=TYPE."""
    pairs = []
    for text in texts:
        name, _, type_name = text.rpartition("=")
        if not name or type_name not in INPUT_TYPES:
            rule = f"--input-type must read NAME=TYPE, of {', '.join(INPUT_TYPES)}"
            raise UsageError(rule, f"'{shortened(text, 80)}'", "e.g. --input-type image=uint8")
        pairs.append((name, type_name))
    return _named_once("--input-type", pairs)


def _states(texts: list[str]) -> dict[str, str]:
    """Return the input that each output feeds in the next call, from texts OUTPUT:INPUT."""
    pairs = []
    for text in texts:
        output, _, kept = text.rpartition(":")
        if not output or not kept:
            raise UsageError("--state must read OUTPUT:INPUT", f"'{text}'", "e.g. --state h_out:h_in")
        pairs.append((output, kept))
    return _named_once("--state", pairs)


def library_files(include: Path | None, archive: Path | None) -> LibraryFiles | None:
    """Return the library's headers and archive, or None if neither is given.

    Raises:
        UsageError: Only one of them is given.
    """
    if include is not None and archive is not None:
        return LibraryFiles(include, archive)
    if include is not None or archive is not None:
        present, missing = _CMSIS_NN.options if archive is None else reversed(_CMSIS_NN.options)
        raise UsageError(f"{present} and {missing} must be given together", f"no {missing}", f"give {missing} too")
    return None


def _places(texts: list[str]) -> Places:
    """Return the placement of data in memories, from texts of one or more parts WHAT=MEMORY separated by commas."""
    pairs = []
    for part in (part.strip() for text in texts for part in text.split(",")):
        what, _, where = ("arena", "", part) if part == AUTO_PLACE else part.partition("=")
        if what not in ("arena", "weights", "hot-weights") or not all(where.split("+")):
            examples = "e.g. --place auto, or --place arena=dtcm,weights=flash,hot-weights=dtcm:32768"
            raise UsageError("--place must read WHAT=MEMORY of arena, weights and hot-weights", f"'{part}'", examples)
        pairs.append((what, where))
    named = _named_once("--place", pairs)
    hot = tuple(_hot_weights(text) for text in named.get("hot-weights", "").split("+") if text)
    arena = tuple(named["arena"].split("+")) if "arena" in named else ()
    return Places(arena, named.get("weights", ""), hot)


def _hot_weights(text: str) -> tuple[str, int]:
    memory, _, size = text.rpartition(":")
    nbytes = _positive(size)
    if not memory or not nbytes:
        rule = "--place hot-weights must read MEMORY:BYTES, of several with + between them"
        raise UsageError(rule, f"'{text}'", "e.g. hot-weights=dtcm:32768")
    return memory, nbytes


def _named_once(option: str, pairs: Sequence[tuple[str, T]]) -> dict[str, T]:
    """Return the values by name.

    Raises:
        UsageError: The option is given twice for one name.
    """
    named = dict(pairs)
    if len(named) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"{option} must be given once for each name", f"'{twice}' twice", "leave one out")
    return named
