# SPDX-License-Identifier: Apache-2.0
"""`--monitor`: the statistics that generated C keeps in the field, their layout in memory, and the C files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2

from mcugen.codegen.identifiers import comment, identifier, own_names
from mcugen.codegen.literals import c_int
from mcugen.hir.types import DType

MONITOR_FORMAT = 1
"""Version of the layout of snapshots (MCUGEN_MONITOR_FORMAT)."""
MONITOR_MAGIC = 0x4E4F4D4D
"""First word of a snapshot (MCUGEN_MONITOR_MAGIC)."""
MONITOR_BINS = 8
"""Number of bins of a histogram (MCUGEN_MONITOR_BINS)."""
MONITOR_PARTS = 4
"""Largest number of parts of a tensor that have means of their own (MCUGEN_MONITOR_PARTS)."""

HEAD_BYTES, TENSOR_BYTES, CRC_BYTES = 64, 96, 4
"""Bytes of mcugen_monitor_head, of mcugen_monitor_tensor, and of the checksum at the end of a snapshot."""
SNAPSHOT_ALIGNMENT = 8
"""Multiple in bytes of the size of a snapshot, which has members of 64 bits."""

MAX_MONITORED_CLASSES = 256
"""Largest number of elements of an output without labels that counts as scores of classes."""
MAX_CLASS_BINS = 32
"""Largest number of counters of classes; classes with neighboring numbers share a counter if there are more."""

OBSERVED_TYPES = (
    DType.FLOAT32,
    DType.INT8,
    DType.UINT8,
    DType.INT16,
    DType.UINT16,
    DType.INT32,
    DType.UINT32,
    DType.BOOL,
)
"""Element types that generated code can observe."""


@dataclass(frozen=True)
class ObservedElements:
    """The elements of a tensor that a run observes; every stride-th element of each part, another one in each run.

    Attributes:
        rows: Number of samples of a batch.
        row_elements: Elements of one sample.
        parts: Parts of a sample: channels, or equal portions; each has a mean of its own.
        part_elements: Elements from the begin of a part to the next one.
        extent: Elements of a part.
        distance: Elements from one element of a part to the next one, its neighbor.
        stride: One element of so many is observed.
    """

    rows: int
    row_elements: int
    parts: int
    part_elements: int
    extent: int
    distance: int
    stride: int = 1

    @property
    def max_count(self) -> int:
        """Return the largest number of elements that one run observes."""
        return self.rows * self.parts * -(-self.extent // self.stride)


def observed_elements(shape: Sequence[int]) -> tuple[ObservedElements, ...]:
    """Return grids of all elements of a tensor, each with other parts; the first one is for tensors in general.

    The parts are channels, if there are at most MONITOR_PARTS. Else they are quarters of a sample, or, with many
    channels on the last axis, every second, third or fourth channel.

    Args:
        shape: Shape of the tensor. Of at least three axes, axis 1 or else the last one holds the channels, if it has at
            most MONITOR_PARTS elements. Axis 0 is the batch, if there are several axes.
    """
    rows, sample = (shape[0], tuple(shape[1:])) if len(shape) > 1 else (1, tuple(shape) or (1,))
    count = math.prod(sample)
    if len(sample) > 1 and 1 < sample[0] <= MONITOR_PARTS:
        extent = count // sample[0]
        return (ObservedElements(rows, count, sample[0], extent, extent, 1),)
    if len(sample) > 1 and 1 < sample[-1] <= MONITOR_PARTS:
        return (ObservedElements(rows, count, sample[-1], 1, count // sample[-1], sample[-1]),)
    parts = next(n for n in (4, 3, 2, 1) if count % n == 0)
    quarters = ObservedElements(rows, count, parts, count // parts, count // parts, 1)
    steps = [n for n in (2, 3, 4) if len(sample) > 1 and sample[-1] % n == 0]
    return (quarters, *(ObservedElements(rows, count, n, 1, count // n, n) for n in steps))


@dataclass(frozen=True)
class Distribution:
    """Shares of the bins of a histogram over the samples of compilation.

    Attributes:
        samples: Number of samples.
        shares: Share of each bin.
        variances: Variance, from run to run, of a run's share of each bin.
        cumulative_variances: Variance, from run to run, of a run's share of each bin and all bins below it.
    """

    samples: int
    shares: tuple[float, ...]
    variances: tuple[float, ...]
    cumulative_variances: tuple[float, ...]


@dataclass(frozen=True)
class TensorReference:
    """Statistics of a tensor over the samples of compilation, in codes.

    Attributes:
        histogram: Shares of the bins.
        mean: Mean of all elements.
        mean_variance: Variance of a run's mean, from run to run.
        spread: Standard deviation of all elements.
        square_variance: Variance of a run's mean squared distance from the center, from run to run.
        roughness: Mean absolute difference of neighbors.
        roughness_variance: Variance of a run's roughness, from run to run.
        clipped: Share of elements at or beyond the ends of the range.
        part_means: Mean of each part.
        part_variances: Variance, from run to run, of the difference between a part's mean and the mean of all parts.
        low: Smallest value.
        high: Largest value.
    """

    histogram: Distribution
    mean: float
    mean_variance: float
    spread: float
    square_variance: float
    roughness: float
    roughness_variance: float
    clipped: float
    part_means: tuple[float, ...]
    part_variances: tuple[float, ...]
    low: int
    high: int


@dataclass(frozen=True)
class MonitoredTensor:
    """A tensor that generated code observes, and its reference.

    Attributes:
        name: Name of the tensor in the model, or of the layer.
        is_input: Whether the tensor is an input; else it is an output or the result of a layer.
        dtype: Element type.
        unit: Binary exponent of the unit of codes: an element is code · 2^unit.
        scale: Real value of one quantization step; 1 for floats.
        zero_point: Quantized value of 0.
        center: Code from which distances are summed.
        edges: Edges of the histogram's bins, as codes; a value belongs to the bin below an edge that is equal.
        clip_low: A code at or below this one counts as clipped.
        clip_high: A code at or above this one counts as clipped.
        elements: The elements that runs observe.
        reference: Statistics of the samples of compilation.
        layer: Number of the layer whose result the tensor is; None for an input or output.
    """

    name: str
    is_input: bool
    dtype: str
    unit: int
    scale: float
    zero_point: int
    center: int
    edges: tuple[int, ...]
    clip_low: int
    clip_high: int
    elements: ObservedElements
    reference: TensorReference
    layer: int | None = None

    @property
    def kind(self) -> str:
        """Return the word for the tensor: input, output or layer."""
        return "input" if self.is_input else "output" if self.layer is None else "layer"

    def real(self, code: float) -> float:
        """Return the real value of a code."""
        return self.scale * (code * 2.0**self.unit - self.zero_point)

    @property
    def real_unit(self) -> float:
        """Return the real difference of two neighboring codes."""
        return self.scale * 2.0**self.unit


@dataclass(frozen=True)
class MonitoredClasses:
    """An output with scores of classes, and its reference.

    Attributes:
        name: Name of the output.
        dtype: Element type.
        unit: Binary exponent of the unit of codes.
        rows: Number of predictions of a run.
        classes: Number of classes.
        classes_per_bin: Number of classes that share a counter.
        edges: Edges of the bins of confidence: the difference of the two largest scores, as codes.
        scale: Real value of one quantization step; 1 for floats.
        labels: Names of the classes; empty if unknown.
        predictions: Shares of the counters of classes.
        confidence: Shares of the bins of confidence.
    """

    name: str
    dtype: str
    unit: int
    rows: int
    classes: int
    classes_per_bin: int
    edges: tuple[int, ...]
    scale: float
    labels: tuple[str, ...]
    predictions: Distribution
    confidence: Distribution

    @property
    def bins(self) -> int:
        """Return the number of counters of classes."""
        return -(-self.classes // self.classes_per_bin)


@dataclass(frozen=True)
class Monitor:
    """The statistics that generated code keeps in the field, and the reference of `mcugen monitor`.

    Attributes:
        format: Version of the layout of snapshots.
        model: Hash of the model and of everything else here, 16 hexadecimal digits, which snapshots contain.
        nbytes: Bytes of a snapshot.
        tensors: Observed tensors: inputs, then outputs that are no scores of classes, then results of layers.
        outputs: Outputs with scores of classes.
    """

    format: int
    model: str
    nbytes: int
    tensors: tuple[MonitoredTensor, ...]
    outputs: tuple[MonitoredClasses, ...]

    @property
    def names(self) -> list[str]:
        """Return the names of all observed tensors and outputs."""
        return [*(tensor.name for tensor in self.tensors), *(output.name for output in self.outputs)]

    @property
    def model_words(self) -> tuple[int, int]:
        """Return the two words of the hash, as C reads them."""
        return int(self.model[:8], 16), int(self.model[8:], 16)


def snapshot_bytes(num_tensors: int, class_bins: Sequence[int]) -> int:
    """Return the bytes of a snapshot.

    Args:
        num_tensors: Number of observed tensors.
        class_bins: Number of counters of classes of each output with classes.
    """
    content = HEAD_BYTES + TENSOR_BYTES * num_tensors + sum(4 * (n + MONITOR_BINS) for n in class_bins) + CRC_BYTES
    return -(-content // SNAPSHOT_ALIGNMENT) * SNAPSHOT_ALIGNMENT


Ports = Mapping[tuple[bool, str], Mapping[str, Any]]
"""Template contexts of inputs (True) and outputs (False) by name."""


@dataclass(frozen=True)
class LayerResult:
    """The place of a layer's result, and when it is there.

    Attributes:
        address: C expression of its address, in the arena that the caller passes.
        call: Number of the call of NAME_step after which it is complete, from 0.
    """

    address: str
    call: int


def monitor_texts(env: jinja2.Environment, context: Mapping[str, Any]) -> dict[str, str]:
    """Return the C files of a monitor, by file name.

    Args:
        env: Environment of the templates.
        context: Context of the model's templates, with that of the monitor (`monitor_context`).
    """
    name = context["name"]
    files = {f"{name}_monitor.{kind}": f"monitor.{kind}.j2" for kind in ("h", "c")}
    return {file: env.get_template(template).render(context).rstrip("\n") + "\n" for file, template in files.items()}


MONITOR_FUNCTIONS = (
    "monitor",
    "monitor_has_its_size",
    "monitor_reset",
    "monitor_inputs",
    "monitor_outputs",
    "monitor_layers",
    "monitor_status",
    "monitor_weights",
    "monitor_snapshot",
    "run_monitored",
)
"""Names, after the model's prefix, of the types and functions of a monitor."""


def monitor_context(
    monitor: Monitor, ports: Ports, layers: Mapping[int, LayerResult], context: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the template context of a monitor.

    Args:
        monitor: What is observed.
        ports: The model's inputs and outputs.
        layers: Results of layers by the number of the layer.
        context: Context of the model's templates.
    """
    tensors = [
        _tensor_context(index, tensor, _place(tensor, ports, layers, context))
        for index, tensor in enumerate(monitor.tensors)
    ]
    names = own_names()
    outputs = [
        {
            **_element_context(output.dtype, _port_place(ports[False, output.name], context)),
            "field": identifier(output.name, names),
            "title": f"output {comment(output.name)}",
            "rows": output.rows,
            "classes": output.classes,
            "bins": output.bins,
            "per_bin": output.classes_per_bin,
            "edges": [c_int(edge) for edge in output.edges],
            "unit": output.unit,
        }
        for output in monitor.outputs
    ]
    used = HEAD_BYTES + TENSOR_BYTES * len(tensors) + sum(4 * (o.bins + MONITOR_BINS) for o in monitor.outputs)
    return {
        "nbytes": monitor.nbytes,
        "padding": (monitor.nbytes - used - CRC_BYTES) // 4,
        "model": [f"0x{word:08x}u" for word in monitor.model_words],
        "tensors": tensors,
        "outputs": outputs,
        "kinds": _kinds(monitor),
        **_calls("input", [t for t in tensors if t["kind"] == "input"], context),
        **_calls("output", [*(t for t in tensors if t["kind"] == "output"), *outputs], context),
        "layers": [tensor for tensor in tensors if tensor["kind"] == "layer"],
    }


def _kinds(monitor: Monitor) -> list[dict[str, object]]:
    """Return the contexts of the element types for which there are functions."""
    tensor_types = {tensor.dtype for tensor in monitor.tensors}
    class_types = {output.dtype for output in monitor.outputs}
    kinds: list[dict[str, object]] = []
    for name in sorted(tensor_types | class_types):
        dtype = DType(name)
        is_shifted = (dtype.is_integer and dtype.nbytes == 4) or dtype is DType.UINT16
        kinds.append(
            {
                "tag": dtype.tag,
                "ctype": dtype.c,
                "code": "bits" if dtype is DType.FLOAT32 else "shift" if is_shifted else "plain",
                "is_unsigned": dtype in (DType.UINT16, DType.UINT32),
                "is_tensor": name in tensor_types,
                "is_class": name in class_types,
            }
        )
    return kinds


def _place(
    tensor: MonitoredTensor, ports: Ports, layers: Mapping[int, LayerResult], context: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the context of the place of a tensor: its address, and when it is there."""
    if tensor.layer is None:
        return _port_place(ports[tensor.is_input, tensor.name], context)
    result = layers[tensor.layer]
    address = f"(const {DType(tensor.dtype).c} *)(const void *)({result.address})"
    return {"lent": "", "address": address, "call": result.call}


def _port_place(port: Mapping[str, Any], context: Mapping[str, Any]) -> dict[str, Any]:
    return {"lent": port["lent"], "address": port["lent"] or f"{port['accessor']}({context['arena']})"}


def _element_context(dtype: str, place: Mapping[str, Any]) -> dict[str, Any]:
    element = DType(dtype)
    return {**place, "tag": element.tag, "ctype": element.c, "bytes": element.nbytes}


def _tensor_context(index: int, tensor: MonitoredTensor, place: Mapping[str, Any]) -> dict[str, Any]:
    elements = tensor.elements
    selection = "all elements" if elements.stride == 1 else f"one element of {elements.stride} in each run, in turn"
    return {
        **_element_context(tensor.dtype, place),
        "index": index,
        "kind": tensor.kind,
        "title": f"{tensor.kind} {comment(tensor.name)}",
        "taken": f"{selection}: range, mean and histogram",
        "edges": [c_int(edge) for edge in tensor.edges],
        "clip_low": c_int(tensor.clip_low),
        "clip_high": c_int(tensor.clip_high),
        "center": c_int(tensor.center),
        "unit": tensor.unit,
        "most": elements.max_count,
        **{field: f"{value}u" for field, value in vars(elements).items()},
        "stride": elements.stride,
    }


def _calls(side: str, ports: Sequence[Mapping[str, Any]], context: Mapping[str, Any]) -> dict[str, object]:
    """Return the parameters and arguments of the function that observes one side of the model."""
    in_arena = any(not port["lent"] for port in ports)
    lent = [port for port in ports if port["lent"]]
    arena = context["arena_type"] if side == "input" else context["const_arena_type"]
    parameters = [arena] * in_arena + [f"const {port['ctype']} *{port['lent']}" for port in lent]
    arguments = [context["arena"]] * in_arena + [port["lent"] for port in lent]
    return {
        f"{side}_parameters": "".join(f", {text}" for text in parameters),
        f"{side}_arguments": "".join(f", {text}" for text in arguments),
        f"{side}_arena": in_arena,
        f"{side}_lent": [str(port["lent"]) for port in lent],
    }
