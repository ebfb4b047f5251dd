# SPDX-License-Identifier: Apache-2.0
"""Options of a compilation. They are about behavior only; hardware is a Board."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy.typing as npt

GOALS = ("balanced", "speed", "ram", "flash")
"""Optimization goals of generated code."""

THROUGHPUT = "throughput"
"""Goal on two cores: many frames instead of a short time for each. Otherwise equal to the first goal."""


OWN, CMSIS_NN, AUTO = "own", "cmsis-nn", "auto"
FAMILIES = (OWN, CMSIS_NN, AUTO)
"""Kernel families: mcugen's own; the library's wherever it has one; whichever serves the goal."""

LOSSES = ("cross-entropy", "mse", "mae", "huber", "contrastive")
OPTIMIZERS = ("sgd", "momentum", "adam")
LEARN_INTEGERS = OPTIMIZERS[:2]
"""Optimizers for int8 weights."""
HEADS = ("centroids", "nearest", "statistics")
"""Trainable heads; see mcugen.training."""
STATISTICS = "statistics"
"""Choice of synthetic samples that match the statistics of batch normalizations instead of a range."""

METHODS = (
    "minmax",
    "extrapolated",
    "moving_average",
    "percentile",
    "percentile99.9",
    "percentile99.5",
    "entropy",
    "mse",
)
"""Ways to choose the range of an activation from its profile."""

PRECISIONS = {"float32": "float32", "int8": "int8", "int16x8": "int16"}
"""Activation type (a DType) of each precision; weights are int8 except for float32."""

FEW_BITS = {"w4a8": 0, "w4a8g32": 32, "w4a8g64": 64, "w4a8g128": 128}
"""Precisions of weights of 4 bits where the model bears it, activations of 8: so many inputs share a scale (0: all)."""

TWO_BITS = {"w2a8": 32}
"""Precisions of weights of 2 bits, of single layers that are fully connected; so many inputs share a scale."""

WIDE_WEIGHTS = {"int16x16": "int32"}
"""Precision of single layers with int16 activations and weights of up to 16 bits, as many as keep sums within int32."""

MIXED = "auto"
"""The precision that is chosen layer by layer."""

SAMPLES = "samples"
"""Name that stands for all outputs, with ranges as samples have them."""

DIVERGED_DB = 20.0
"""An SQNR below which a layer has diverged, unless the user says otherwise: an error of a tenth of the signal."""

METRICS = {
    "top1": "top-1",
    "top5": "top-5",
    "auc": "AUC",
    "f1": "F1",
    "pixels": "pixels right",
    "iou": "mean IoU",
    "error": "positions wrong",
    "perplexity": "perplexity",
    "map50": "mAP at IoU 0.5",
    "map": "mAP at IoU 0.5 to 0.95",
    "mse": "mean squared error",
    "mae": "mean absolute error",
    "cosine": "cosine",
    "max_abs_error": "largest error",
    "sqnr": "SQNR",
    "agreement": "agreement",
}
"""Titles of the measures of how good outputs are (mcugen.evaluation.metrics), by name."""


@dataclass(frozen=True)
class LibraryFiles:
    """A library that generated code calls, as a user has it: the folder of its headers, and a built archive of it.

    In the archive's name "{cpu}" stands for the CPU of a board.
    """

    include: Path
    archive: Path

    def archive_for(self, cpu: str) -> Path:
        """Return the archive for a CPU."""
        return Path(str(self.archive).replace("{cpu}", cpu))


AUTO_PLACE = "auto"
"""Name that stands for the best memory."""


@dataclass(frozen=True)
class Places:
    """Placement of data in the board's memories, by name; empty fields use the board's defaults.

    `arena` lists memories that may share the arena, the best first; ("auto",) stands for all RAM, the fastest first. A
    RAM in `weights` gets copies of all weights. A RAM in `hot_weights` gets copies of at most so many bytes of the
    weights that save most cycles there, or, where the board file has no wait states, of those that are read most often
    for their size. Of several such pairs, each takes from what the previous ones left.
    """

    arena: tuple[str, ...] = ()
    weights: str = ""
    hot_weights: tuple[str, int] | tuple[tuple[str, int], ...] = ()

    @property
    def hot(self) -> tuple[tuple[str, int], ...]:
        """The pairs of hot_weights."""
        match self.hot_weights:
            case (str(memory), int(nbytes)):
                return ((memory, nbytes),)
            case pairs:
                return pairs

    def describe(self) -> str:
        """Return the placement in the form of the command line."""
        parts = [f"arena={'+'.join(self.arena)}"] * bool(self.arena) + [f"weights={self.weights}"] * bool(self.weights)
        if self.hot:
            parts.append(f"hot-weights={'+'.join(f'{name}:{nbytes}' for name, nbytes in self.hot)}")
        return ",".join(parts)


INPUT_TYPES = ("uint8", "int8", "uint16", "int16")
"""Types of inputs that may replace reals: float32 represents all of their numbers."""

TRAINED_AS = ("auto", "float32", "int8")
"""Types in which trained weights are kept."""

RUNNING = ("frozen", "updated")
"""Treatment of running means and variances while a model trains."""


@dataclass(frozen=True)
class Training:
    """Options of on-device training.

    `layers` selects the layers (see mcugen.training.layers); loss, optimizer and batch size follow. Or it selects a
    head that remembers samples (see mcugen.training.heads), which has its own loss and optimizer.
    """

    layers: str
    """Selection of layers; AUTO selects those that a trial shows to be best."""
    loss: str = LOSSES[0]
    optimizer: str = OPTIMIZERS[0]
    batch: int = 1
    precision: str = TRAINED_AS[0]
    """Of trained weights: float32, or int8 where that is too large (auto), or one of these."""
    statistics: str = RUNNING[0]
    """Of batch normalization behind the first trained layer."""

    @property
    def is_head(self) -> bool:
        """Whether nothing has a gradient."""
        return self.layers.partition("@")[0].partition(":")[0] in HEADS

    @property
    def is_open(self) -> bool:
        """Whether a lesson is to say what is trained."""
        return self.layers == AUTO

    @property
    def updates_statistics(self) -> bool:
        """Whether batch normalization goes on taking its statistics."""
        return self.statistics == RUNNING[1]

    def describe(self) -> str:
        """Return the options as the banner shows them."""
        if self.is_head:
            return f"remembers {self.layers}"
        batch = f", {self.batch} samples a step" if self.batch > 1 else ""
        codes = " as int8" if self.precision == "int8" else ""
        statistics = ", updates statistics" if self.updates_statistics else ""
        return f"trains {self.layers}{codes} by {self.loss} with {self.optimizer}{batch}{statistics}"


@dataclass(frozen=True)
class LayerTimes:
    """Cycles that a layer took by a kernel, with its constants where they lie, and copied to the arena first."""

    plain: int
    copied: int


@dataclass(frozen=True)
class CompileOptions:
    """`name` prefixes all C symbols (default: from the model's file name); `dims` fixes symbolic dimensions.

    A dimension may also get a range (low, high): then its size is an argument of the run function.
    `bound` gives inputs their values at compile time: they are constants then. `input_types` are of real inputs that
    the caller has as whole numbers: one of INPUT_TYPES by name. `states` maps outputs to inputs:
    what an output is after one call, its input is in the next; neither is the caller's business any more.
    `plugins` are Python files that register operators of the user's own (see mcugen.driver.plugins).
    `float16_weights`: weights of float layers are rounded to float16 numbers, which kernels store as such.
    `optimize` is one of GOALS, `family` one of FAMILIES; `kernels` are names of kernels, taken wherever they fit.
    `max_ram` and `max_flash` are the most bytes that the model may take (see mcugen.search.budget); None is no limit.
    `stream_input`: the caller hands over the first input row by row, so that it takes no memory. `integer_io`: what a
    quantized model converts at its borders, the caller converts: its inputs and outputs are codes.
    With `helpers` the header has inline functions that write inputs and read outputs; `labels` name the classes of an
    output. With `steps` the caller may ask for one layer, or row group, after the other: none takes more than
    `max_step_cycles`, by estimated cycles of the board, which may lead to layers `by_rows` (see
    mcugen.autotuning.step_latency). `external_io`: inputs and outputs lie in buffers of the caller's, whose addresses
    the run function takes. `input_pipeline` describes, or names a file that describes, how the input is made of raw
    data (mcugen.pipelines): code for that is generated, and samples are raw. `max_cycles`, or `max_latency` in seconds,
    is the longest that a call may take on the board, by estimated cycles; `most_instructions`, by the estimate that
    kernels are chosen by, is what that leads to (see mcugen.autotuning.latency). `copy_price`: cycles that a byte of a
    copy in RAM counts for which start-up may make (see mcugen.search.weight_staging). With `tune`, so many kernels of
    each layer run in the simulator (see mcugen.autotuning.measured_kernels), which leads to `times`, by the names of
    layers and kernels. With two `cores`, both compute portions of a layer at once where that takes less time (see
    mcugen.search.core_partition); for `throughput`, which `optimize` THROUGHPUT stands for, or parts of two frames,
    where that gives more frames (see mcugen.search.frame_pipeline). `place` says what lies in which memory. With
    `weights_blob` the run function reads the weights from a file of theirs that the caller has put somewhere in memory.
    `updatable` puts all else into it that training changes, and its `weights_version`, so that a model that was trained
    again is another file for the same code. With `weights_reader` no pointer reaches the file: a function of the
    caller's reads each layer's part into the arena. `copy_ahead`: the firmware copies weights of the next layer to the
    arena while one runs, where that pays (see docs/memory.md). `library` is what the code is linked with where it runs,
    if it calls a library; it shapes no code. `validation` adds the firmware's part of `mcugen validate`, and changes no
    other file. With `stack_bound` the header tells the most stack that a call takes when the board's compiler builds it
    (see mcugen.measurement.stack_bounds). The self-test has at most `self_test` samples, chosen for what they find (see
    mcugen.measurement.selftests), or one. `check_weights`: functions that compare the constants with checksums,
    `check_parameters`: those that lie beside a file of weights, `checked_arena`: ones that take the arena's size, or
    look at canaries. With `checked_indices` no damaged constant leads out of memory, which some kernels cannot promise.
    With `training` there is a function that goes on training the model, which has what it learned in its state (see
    mcugen.training). `checked_steps`: a checksum of the arena between steps. `plausible`: ranges that outputs must lie
    in, by their names; with the key SAMPLES those that samples have (see mcugen.measurement.plausibility).
    """

    name: str = ""
    dims: Mapping[str, int | tuple[int, int]] = field(default_factory=dict)
    bound: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    input_types: Mapping[str, str] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)
    plugins: tuple[str | Path, ...] = ()
    float16_weights: bool = False
    optimize: str = GOALS[0]
    family: str = OWN
    kernels: tuple[str, ...] = ()
    stream_input: bool = False
    max_ram: int | None = None
    max_flash: int | None = None
    place: Places = Places()
    weights_blob: bool = False
    updatable: bool = False
    weights_version: int = 0
    weights_reader: bool = False
    copy_ahead: bool = False
    library: LibraryFiles | None = None
    integer_io: bool = False
    external_io: bool = False
    validation: bool = False
    input_pipeline: str = ""
    helpers: bool = False
    labels: tuple[str, ...] = ()
    steps: bool = False
    max_step_cycles: int | None = None
    by_rows: frozenset[str] = frozenset()
    stack_bound: bool = False
    self_test: int = 0
    check_weights: bool = False
    check_parameters: bool = False
    checked_arena: bool = False
    checked_indices: bool = False
    checked_steps: bool = False
    plausible: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    max_cycles: int | None = None
    max_latency: float | None = None
    most_instructions: float = math.inf
    copy_price: float | None = None
    tune: int = 0
    times: Mapping[tuple[str, str], LayerTimes] = field(default_factory=dict)
    cores: int = 1
    throughput: bool = False
    training: Training | None = None

    @property
    def fixed_dims(self) -> dict[str, int]:
        """The dimensions with one size."""
        return {key: low for key, (low, high) in self._ends().items() if low == high}

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """The dimensions whose size is known at run time only, between two bounds."""
        return {key: (low, high) for key, (low, high) in self._ends().items() if low != high}

    @property
    def may_spill(self) -> bool:
        """Whether an arena that is too large for one memory may lie in several: some code knows of one only."""
        return not self.checked_arena and self.cores == 1 and not self.copy_ahead

    def _ends(self) -> dict[str, tuple[int, int]]:
        return {key: (size, size) if isinstance(size, int) else size for key, size in self.dims.items()}

    @property
    def weights_in_file(self) -> bool:
        """Whether weights are a file of their own, which firmware may replace or read part by part."""
        return self.weights_blob or self.updatable or self.weights_reader

    def describe(self) -> str:
        """Return the options that shape the generated code, as its banner shows them."""
        ends = sorted(self._ends().items())
        dims = ", ".join(f"{key}={low}" if low == high else f"{key}={low}..{high}" for key, (low, high) in ends)
        parts = [f"dims {dims}"] * bool(dims) + [f"bound {', '.join(sorted(self.bound))}"] * bool(self.bound)
        parts += [f"input type {', '.join(f'{i}={t}' for i, t in sorted(self.input_types.items()))}"] * bool(
            self.input_types
        )
        parts += [f"state {', '.join(f'{o}:{i}' for o, i in sorted(self.states.items()))}"] * bool(self.states)
        parts += [f"plugins {', '.join(Path(p).name for p in self.plugins)}"] * bool(self.plugins)
        parts += ["float16 weights"] * self.float16_weights
        parts += [f"kernels {self.family}"] * (self.family != OWN)
        parts += [f"kernels {', '.join(self.kernels)}"] * bool(self.kernels)
        parts += [f"place {self.place.describe()}"] * (self.place != Places())
        parts += ["weights blob"] * self.weights_blob + ["updatable"] * self.updatable
        parts += ["weights read"] * self.weights_reader + ["weights copied ahead"] * self.copy_ahead
        parts += ["input row by row"] * self.stream_input
        parts += ["integers at its borders"] * self.integer_io
        parts += ["inputs and outputs of the caller's"] * self.external_io
        parts += ["input of raw data"] * bool(self.input_pipeline)
        parts += ["steps"] * (self.steps and self.max_step_cycles is None)
        parts += [f"steps of at most {n} cycles" for n in (self.max_step_cycles,) if n is not None]
        parts += ["stack bound"] * self.stack_bound
        parts += [f"self-test of at most {self.self_test} samples"] * bool(self.self_test)
        parts += ["checked weights"] * self.check_weights + ["checked parameters"] * self.check_parameters
        parts += ["checked arena"] * self.checked_arena + ["checked indices"] * self.checked_indices
        parts += ["checked steps"] * self.checked_steps
        told = ", ".join(n if n == SAMPLES else f"{n}={low:g}..{high:g}" for n, (low, high) in self.plausible.items())
        parts += [f"plausible {told}"] * bool(told)
        parts += [f"{self.cores} cores"] * (self.cores > 1)
        parts += [self.training.describe()] if self.training else []
        parts += ["helpers"] * self.helpers + [f"{len(self.labels)} labels"] * bool(self.labels)
        parts += [f"at most {n} bytes of RAM" for n in (self.max_ram,) if n is not None]
        parts += [f"at most {n} bytes of flash" for n in (self.max_flash,) if n is not None]
        parts += [f"at most {n} cycles" for n in (self.max_cycles,) if n is not None]
        parts += [f"at most {1e3 * seconds:g} ms" for seconds in (self.max_latency,) if seconds is not None]
        parts += [f"tuned by {self.tune} kernels a layer"] * bool(self.tune)
        parts += [f"optimize {self.optimize}"] * (self.optimize != GOALS[0]) + ["throughput"] * self.throughput
        return "; ".join(parts) or "default options"
