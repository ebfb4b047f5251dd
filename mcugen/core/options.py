# SPDX-License-Identifier: Apache-2.0
"""Options of a compilation, which describe the wanted code; the hardware is described by a Board."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy.typing as npt

GOALS = ("balanced", "speed", "ram", "flash")
"""Optimization goals: "balanced" (least time · RAM · flash), "speed" (fewest cycles), least "ram", least "flash"."""

THROUGHPUT = "throughput"
"""Value of `--optimize` for two cores: most frames per second, although each frame may take longer.

In all other respects the goal is `balanced`.
"""


OWN, PORTABLE, CMSIS_NN, AUTO = "own", "portable", "cmsis-nn", "auto"
"""Names of the kernel families; "auto" is also the value of other options that let the compiler choose."""
FAMILIES = (OWN, PORTABLE, CMSIS_NN, AUTO)
"""Kernel families by name.

own: mcugen's kernels; portable: those in plain C alone; cmsis-nn: CMSIS-NN's kernels wherever it has one; auto: the
    best
of mcugen's and CMSIS-NN's for the goal.
"""
ETHOS_U_DRIVER = "ethos-u-core-driver"
"""Key of Arm's driver among the libraries that generated code calls (mcugen.codegen.libraries)."""
OWN_FAMILIES = (OWN, PORTABLE)
"""Kernel families that call no library."""

LOSS_NAMES = ("cross-entropy", "mse", "mae", "huber", "contrastive")
"""Names of the losses of on-device training (mcugen.training.losses), by which `--loss` selects one."""
OPTIMIZER_NAMES = ("sgd", "momentum", "adam")
"""Names of the optimizers of on-device training (mcugen.training.optimizers); the first is the default."""
INTEGER_OPTIMIZER_NAMES = OPTIMIZER_NAMES[:2]
"""Names of the optimizers that can update int8 weights."""
HEAD_NAMES = ("centroids", "nearest", "statistics")
"""Names of the trainable heads (mcugen.training.heads), which remember samples instead of using gradients."""
MATCH_STATISTICS = "statistics"
"""Value of `--synthetic` for random samples that have the statistics that the model's batch normalizations hold."""

RANGE_METHODS = (
    "minmax",
    "extrapolated",
    "moving_average",
    "percentile",
    "percentile99.9",
    "percentile99.5",
    "entropy",
    "mse",
)
"""Names of the methods that choose the quantization range of an activation (mcugen.quantization.ranges)."""

PRECISIONS = {"float32": "float32", "int8": "int8", "int16x8": "int16"}
"""Name of the activations' DType by value of `--precision`; weights are float32 for `float32`, else int8."""

FOUR_BIT_GROUP_SIZES = {"w4a8": 0, "w4a8g32": 32, "w4a8g64": 64, "w4a8g128": 128}
"""Number of consecutive inputs of a layer whose 4-bit weights share a scale (0: all), by value of `--precision`.

Activations have 8 bits. Layers that would lose too much accuracy keep weights of 8 bits.
"""

TWO_BIT_GROUP_SIZES = {"w2a8": 32}
"""Number of consecutive inputs of a layer whose 2-bit weights share a scale, by the value of `--layer NAME=…`.

Fully connected layers and large convolutions can have 2-bit weights; their activations have 8 bits.
"""

INT16_WEIGHT_PRECISIONS = {"int16x16": "int32"}
"""Internal DType name of a layer with int16 activations and int16 weights, by value of `--layer`.

The weights use as many of the 16 bits as keep their sums of products within int32.
"""

MIXED = "auto"
"""Value of `--precision` for a search that chooses the precision of each layer."""

SAMPLES = "samples"
"""Key of CompileOptions.plausible for which the ranges of all outputs are measured on the samples."""

DIVERGED_DB = 20.0
"""Default SQNR in dB below which a quantized layer counts as diverged: at 20 dB the error is a tenth of the signal."""

METRIC_TITLES = {
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
"""Title in reports by the name of an accuracy metric (mcugen.evaluation.metrics)."""


@dataclass(frozen=True)
class LibraryFiles:
    """The user's copy of a library that generated code calls.

    Attributes:
        include: Folder of the library's headers.
        archive: Path of the built archive; "{cpu}" in the path stands for the CPU of a board.
    """

    include: Path
    archive: Path

    def archive_for(self, cpu: str) -> Path:
        """Return the path of the library's archive for a CPU, with "{cpu}" replaced."""
        return Path(str(self.archive).replace("{cpu}", cpu))


AUTO_PLACE = "auto"
"""Value of `--place` that lets the compiler choose the memories."""


@dataclass(frozen=True)
class Places:
    """Placement of data in the board's memories, by name; empty fields use the board's defaults.

    Attributes:
        arena: Memories that may share the arena, the best first; ("auto",) stands for all RAM, the fastest first.
        weights: Memory of the weights; a RAM gets copies of all weights at start-up.
        hot_weights: Pairs of a RAM and the largest number of bytes of weights to copy there at start-up. The weights
            that save most cycles come first or, if the board file has no wait states, the weights that are read most
            often for their size. Each further pair takes from the remaining weights.
    """

    arena: tuple[str, ...] = ()
    weights: str = ""
    hot_weights: tuple[str, int] | tuple[tuple[str, int], ...] = ()

    @property
    def hot(self) -> tuple[tuple[str, int], ...]:
        """Return `hot_weights` as a tuple of pairs: name of the memory, and largest number of bytes."""
        match self.hot_weights:
            case (str(memory), int(nbytes)):
                return ((memory, nbytes),)
            case pairs:
                return pairs

    def describe(self) -> str:
        """Return the placement as the text that `--place` takes."""
        parts = [f"arena={'+'.join(self.arena)}"] * bool(self.arena) + [f"weights={self.weights}"] * bool(self.weights)
        if self.hot:
            parts.append(f"hot-weights={'+'.join(f'{name}:{nbytes}' for name, nbytes in self.hot)}")
        return ",".join(parts)


MONITOR_BYTES = 512
"""Default of the largest number of bytes of statistics in the field (`--monitor-bytes`)."""

MAX_PSI = 0.1
"""Default threshold of the population stability index of drift beyond chance (`mcugen monitor --max-psi`).

In the practice of scorecards, a change above 0.1 counts as moderate.
"""
MAX_KS = 0.05
"""Default threshold of the Kolmogorov-Smirnov distance of drift beyond chance (`mcugen monitor --max-ks`)."""

NPU_OFF, NPU_AUTO, NPU_EXACT, NPU_ONLY = "off", "auto", "exact", "only"
"""Values of `--npu`: leave the NPU alone; use it where it saves time; likewise, but keep on the CPU what the NPU would
round differently; use it for all that it takes."""

NPU_USES = (NPU_OFF, NPU_AUTO, NPU_EXACT, NPU_ONLY)
"""Values of `--npu`; the first one is the default."""

INPUT_TYPES = ("uint8", "int8", "uint16", "int16")
"""Names of the integer types in which a caller may pass a float input; float32 represents all their values exactly."""

MATCHES = ("tflite",)
"""Names of reference implementations whose bits `--match` asks for: "tflite" is TensorFlow Lite Micro."""

TRAINED_PRECISIONS = ("auto", "float32", "int8")
"""Values of `--train-weights`: the type in which trained weights are stored, or `auto`."""

STATISTICS_MODES = ("frozen", "updated")
"""Values of `--statistics`: whether training updates the running means and variances of batch normalizations."""


@dataclass(frozen=True)
class Training:
    """Options of on-device training.

    The trained part is a selection of layers (mcugen.training.layers), or a head behind the model, which learns from
    samples without gradients and has its own loss and optimizer (mcugen.training.heads).
    """

    layers: str
    """Selection of the trained layers, as `--train` takes it; AUTO selects those of best accuracy in a simulation."""
    loss: str = LOSS_NAMES[0]
    """Loss of the training, one of LOSS_NAMES."""
    optimizer: str = OPTIMIZER_NAMES[0]
    """Optimizer of the training, one of OPTIMIZER_NAMES."""
    batch: int = 1
    """Number of samples of a training step."""
    precision: str = TRAINED_PRECISIONS[0]
    """Type of the trained weights, one of TRAINED_PRECISIONS; `auto` is float32, or int8 if float32 does not fit."""
    statistics: str = STATISTICS_MODES[0]
    """Treatment of batch normalization behind the first trained layer, one of STATISTICS_MODES."""

    @property
    def is_head(self) -> bool:
        """Return whether `layers` selects a head (mcugen.training.heads), which is trained without gradients."""
        return self.layers.partition("@")[0].partition(":")[0] in HEAD_NAMES

    @property
    def needs_layer_search(self) -> bool:
        """Return whether `layers` is AUTO, so that simulated training must choose the trained layers."""
        return self.layers == AUTO

    @property
    def updates_statistics(self) -> bool:
        """Return whether training updates the statistics of batch normalization."""
        return self.statistics == STATISTICS_MODES[1]

    def describe(self) -> str:
        """Return the training options as one line for the comment at the top of the generated code."""
        if self.is_head:
            return f"remembers {self.layers}"
        batch = f", {self.batch} samples a step" if self.batch > 1 else ""
        codes = " as int8" if self.precision == "int8" else ""
        statistics = ", updates statistics" if self.updates_statistics else ""
        return f"trains {self.layers}{codes} by {self.loss} with {self.optimizer}{batch}{statistics}"


@dataclass(frozen=True)
class LayerTimes:
    """Measured cycles of one layer with one kernel, with and without a copy of its constants.

    Attributes:
        plain: Cycles if the kernel reads the constants where they are stored.
        copied: Cycles if the constants are copied to the arena first, including the copy.
    """

    plain: int
    copied: int


@dataclass(frozen=True)
class CompileOptions:
    """Options of one compilation.

    Attributes:
        name: Prefix of all C symbols; by default from the model's file name.
        dims: Sizes of symbolic dimensions. The size of a dimension with a range (low, high) is an argument of the run
            function.
        bound: Values of inputs that become constants at compile time.
        input_types: One of INPUT_TYPES for each float input, by name, for which the caller passes whole numbers.
        match: Name of the reference implementation whose bits the outputs must have, one of MATCHES; "" for none.
        keeps_states: Whether recurrent layers of a .tflite model that read several steps keep their states from call to
            call, as in TensorFlow Lite Micro.
        signature: Key of the signature of a .tflite model to compile; "" for the first subgraph.
        states: The input that each of these outputs feeds in the next call. Both disappear from the caller's interface.
        plugins: Python files that register the user's own operators (see mcugen.driver.plugins).
        float16_weights: Whether the weights of float layers are rounded to float16, and stored as such.
        optimize: One of GOALS.
        family: One of FAMILIES.
        kernels: Names of kernels that are used wherever they fit.
        stream_steps: Number of new time steps of the first input that each call gets, if a network over a window of
            time becomes a stream that keeps the other steps; None for whole windows.
        stream_axis: Axis of the first input that counts time steps; None for the only axis that can be.
        stream_input: Whether the caller passes the first input row by row, so that it needs no memory.
        max_ram: Largest number of bytes of RAM (see mcugen.search.budget); None is no limit.
        max_flash: Largest number of bytes of flash; None is no limit.
        place: Placement of data in the board's memories.
        weights_blob: Whether the run function reads the weights from a file that the caller has put in memory.
        updatable: Whether that file also has all other data that training changes, and `weights_version`. A retrained
            model is then another file for the same code.
        weights_version: Version number in an updatable file of weights.
        weights_reader: Whether a function of the caller reads each layer's part of the file into the arena, as no
            pointer can reach the file.
        copy_ahead: Whether the firmware copies the next layer's weights to the arena while a layer runs, where that
            saves time (see docs/how-to/memory.md).
        library: Files of the library that the code is linked with for runs, if it calls one. They do not change code.
        integer_io: Whether the caller does the conversions at a quantized model's inputs and outputs, and passes
            quantized values.
        external_io: Whether inputs and outputs lie in the caller's buffers, whose addresses the run function takes.
        validation: Whether to add the firmware's part of `mcugen validate`; no other file changes.
        input_pipeline: Description of how the input is made from raw data, or the name of a file with the description
            (mcugen.pipelines). Code for the conversion is generated, and samples are raw.
        helpers: Whether the header has inline functions that write inputs and read outputs.
        labels: Names of the classes of an output.
        steps: Whether the caller can run one layer, or group of rows, at a time.
        max_step_cycles: Largest number of estimated cycles of a step, which may lead to layers in `by_rows` (see
            mcugen.autotuning.step_latency).
        by_rows: Names of layers that run in groups of rows.
        stack_bound: Whether the header gives a bound of a call's stack as built by the board's compiler (see
            mcugen.measurement.stack_bounds).
        self_test: Largest number of self-test samples, which are chosen for the faults that they detect (see
            mcugen.measurement.selftests); 0 is one sample.
        check_weights: Whether there are functions that compare the constants with checksums.
        check_parameters: Whether there are functions that compare the parameters beside a file of weights with
            checksums.
        checked_arena: Whether there are functions that take the arena's size, or check canaries.
        checked_indices: Whether no damaged constant can lead out of memory; some kernels cannot guarantee this.
        checked_steps: Whether a checksum protects the arena between steps.
        plausible: Ranges of plausible outputs by name; the key SAMPLES stands for the ranges of the samples' outputs
            (see mcugen.measurement.plausibility).
        monitor: Whether there are functions that keep statistics in the field (see mcugen.measurement.monitoring).
        monitor_layers: Names of layers whose results are observed too; the code then runs in steps.
        monitor_bytes: Largest number of bytes of these statistics.
        max_cycles: Largest number of estimated cycles of a call on the board.
        max_latency: Longest time of a call on the board in seconds, by estimated cycles.
        most_instructions: Largest number of instructions by the estimate that selects kernels; follows from
            `max_cycles` or `max_latency` (see mcugen.autotuning.latency).
        copy_price: Cost in cycles of each byte of weights that start-up may copy to RAM (see
            mcugen.search.weight_staging).
        tune: Number of kernels of each layer that run in the simulator (see mcugen.autotuning.measured_kernels).
        times: Measured cycles by the names of layer and kernel; a result of `tune`.
        cores: Number of cores. Two cores share a layer where that saves time (see mcugen.search.core_partition).
        throughput: Whether two cores may compute parts of two frames at once, where that gives more frames per second
            (see mcugen.search.frame_pipeline). The goal THROUGHPUT stands for this option.
        training: Options of on-device training, whose results are part of the model's state (see mcugen.training).
        npu: Use of the board's NPU, one of NPU_USES (see mcugen.search.offloading).
    """

    name: str = ""
    dims: Mapping[str, int | tuple[int, int]] = field(default_factory=dict)
    bound: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    input_types: Mapping[str, str] = field(default_factory=dict)
    match: str = ""
    keeps_states: bool = False
    signature: str = ""
    states: Mapping[str, str] = field(default_factory=dict)
    plugins: tuple[str | Path, ...] = ()
    float16_weights: bool = False
    optimize: str = GOALS[0]
    family: str = OWN
    kernels: tuple[str, ...] = ()
    stream_steps: int | None = None
    stream_axis: int | None = None
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
    monitor: bool = False
    monitor_layers: tuple[str, ...] = ()
    monitor_bytes: int = MONITOR_BYTES
    max_cycles: int | None = None
    max_latency: float | None = None
    most_instructions: float = math.inf
    copy_price: float | None = None
    tune: int = 0
    times: Mapping[tuple[str, str], LayerTimes] = field(default_factory=dict)
    cores: int = 1
    throughput: bool = False
    training: Training | None = None
    npu: str = NPU_OFF

    @property
    def fixed_dims(self) -> dict[str, int]:
        """Return the size of each symbolic dimension that is fixed at compile time, by name."""
        return {key: low for key, (low, high) in self._ends().items() if low == high}

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """Return the smallest and largest size of each symbolic dimension that varies at run time, by name."""
        return {key: (low, high) for key, (low, high) in self._ends().items() if low != high}

    @property
    def may_spill(self) -> bool:
        """Return whether the arena may be split over several memories; some options require one memory."""
        return not self.checked_arena and self.cores == 1 and not self.copy_ahead

    def _ends(self) -> dict[str, tuple[int, int]]:
        return {key: (size, size) if isinstance(size, int) else size for key, size in self.dims.items()}

    @property
    def weights_in_file(self) -> bool:
        """Return whether the weights are a separate file, which firmware may replace or read part by part."""
        return self.weights_blob or self.updatable or self.weights_reader

    def describe(self) -> str:
        """Return the options that affect the generated code as one line for the comment at its top."""
        ends = sorted(self._ends().items())
        dims = ", ".join(f"{key}={low}" if low == high else f"{key}={low}..{high}" for key, (low, high) in ends)
        parts = [f"dims {dims}"] * bool(dims) + [f"bound {', '.join(sorted(self.bound))}"] * bool(self.bound)
        parts += [f"input type {', '.join(f'{i}={t}' for i, t in sorted(self.input_types.items()))}"] * bool(
            self.input_types
        )
        parts += [f"match {self.match}"] * bool(self.match) + ["keep states"] * self.keeps_states
        parts += [f"signature {self.signature}"] * bool(self.signature)
        parts += [f"state {', '.join(f'{o}:{i}' for o, i in sorted(self.states.items()))}"] * bool(self.states)
        parts += [f"plugins {', '.join(Path(p).name for p in self.plugins)}"] * bool(self.plugins)
        parts += ["float16 weights"] * self.float16_weights
        parts += [f"kernels {self.family}"] * (self.family != OWN)
        parts += [f"kernels {', '.join(self.kernels)}"] * bool(self.kernels)
        parts += [f"place {self.place.describe()}"] * (self.place != Places())
        parts += ["weights blob"] * self.weights_blob + ["updatable"] * self.updatable
        parts += ["weights read"] * self.weights_reader + ["weights copied ahead"] * self.copy_ahead
        parts += ["input row by row"] * self.stream_input
        parts += [f"stream of {n} steps a call" for n in (self.stream_steps,) if n is not None]
        parts += [f"steps on axis {axis}" for axis in (self.stream_axis,) if axis is not None]
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
        ranges_text = ", ".join(
            n if n == SAMPLES else f"{n}={low:g}..{high:g}" for n, (low, high) in self.plausible.items()
        )
        parts += [f"plausible {ranges_text}"] * bool(ranges_text)
        parts += ["monitored"] * self.monitor + [f"{len(self.monitor_layers)} layers"] * bool(self.monitor_layers)
        parts += [f"{self.cores} cores"] * (self.cores > 1)
        parts += [f"npu {self.npu}"] * (self.npu != NPU_OFF)
        parts += [self.training.describe()] if self.training else []
        parts += ["helpers"] * self.helpers + [f"{len(self.labels)} labels"] * bool(self.labels)
        parts += [f"at most {n} bytes of RAM" for n in (self.max_ram,) if n is not None]
        parts += [f"at most {n} bytes of flash" for n in (self.max_flash,) if n is not None]
        parts += [f"at most {n} cycles" for n in (self.max_cycles,) if n is not None]
        parts += [f"at most {1e3 * seconds:g} ms" for seconds in (self.max_latency,) if seconds is not None]
        parts += [f"tuned by {self.tune} kernels a layer"] * bool(self.tune)
        parts += [f"optimize {self.optimize}"] * (self.optimize != GOALS[0]) + ["throughput"] * self.throughput
        return "; ".join(parts) or "default options"
