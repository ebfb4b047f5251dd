# SPDX-License-Identifier: Apache-2.0
"""`--monitor`: the statistics of the user's samples with which `mcugen monitor` compares those of devices."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import numpy.typing as npt

from mcugen.codegen.labels import has_order, labelled
from mcugen.codegen.monitor import (
    MAX_CLASS_BINS,
    MAX_MONITORED_CLASSES,
    MONITOR_FORMAT,
    OBSERVED_TYPES,
    Distribution,
    Monitor,
    MonitoredClasses,
    MonitoredTensor,
    ObservedElements,
    TensorReference,
    observed_elements,
    snapshot_bytes,
)
from mcugen.codegen.validation import observable_results
from mcugen.core.errors import UsageError
from mcugen.driver.compiled import CompiledModel
from mcugen.evaluation.samples import spread
from mcugen.hir.graph import Node
from mcugen.hir.types import Array, DType
from mcugen.lir.program import Endpoint
from mcugen.measurement.observations import (
    Codes,
    Gauge,
    Observation,
    balanced_edges,
    bins_of,
    codes_of,
    score_order,
    unit_of,
)
from mcugen.ops.conversion import Quantize

MONITOR_COST_SHARE = 0.0125
"""Share of a call's estimated instructions that the observation of tensors may take. The promise is 2 % of the cycles;
the rest covers what grows with neither tensors nor classes, and instructions that take more than one cycle."""
INSTRUCTIONS_PER_ELEMENT = 58
"""Instructions to observe one element (Cortex-M4, gcc -O2: tests/codegen/test_monitor.py)."""
INSTRUCTIONS_PER_TENSOR = 900
"""Instructions to observe a tensor, besides those of its elements (measured alike)."""
INSTRUCTIONS_PER_SCORE = 10
"""Instructions to compare one score of a class (measured alike)."""

MAX_PART_ELEMENTS = 16384
"""Largest number of observed elements of a part in one run, whose sums of 17-bit numbers fit in 32 bits."""
MAX_PREDICTIONS = 64
"""Largest number of predictions of a run; an output with more is observed like an input."""

MAX_REFERENCE_SAMPLES = 1024
"""Largest number of samples that the reference of inputs is computed from."""
MIN_REFERENCE_SAMPLES = 8
"""Smallest number of samples that the variance from run to run can be estimated from."""
MAX_REFERENCE_MACS = 1_500_000_000
"""Largest number of multiply-accumulates that numpy may compute for the reference of outputs."""


def with_monitor(compiled: CompiledModel, samples: Sequence[Mapping[str, Array]]) -> CompiledModel:
    """Return the model with C files that keep statistics in the field, and their reference in the report.

    Args:
        compiled: The model, with the limit of the monitor's bytes in its options.
        samples: The user's samples, as inputs of the graph.

    Raises:
        UsageError: There are too few samples, a tensor has a type that is not observed, or the limit is exceeded.
    """
    if len(samples) < MIN_REFERENCE_SAMPLES:
        rule = f"--monitor compares with {MIN_REFERENCE_SAMPLES} samples of the inputs or more"
        raise UsageError(rule, str(len(samples) or "none"), "give --data or --calibration")
    samples = _consecutive(samples, MAX_REFERENCE_SAMPLES, compiled)
    layers = _chosen_layers(compiled)
    num_runs = max(MAX_REFERENCE_MACS // max(compiled.report.model.macs, 1), 4 * MIN_REFERENCE_SAMPLES)
    results, layer_runs = interpret_layers(compiled, _consecutive(samples, num_runs, compiled), layers)
    monitor = _monitor(compiled, samples, results, layers, layer_runs)
    _require_small(monitor, compiled.options.monitor_bytes)
    report = replace(compiled.report, monitor=monitor)
    draft = compiled.draft
    draft = draft._replace(form=replace(draft.form, monitor=monitor), report=report.to_json())
    return replace(compiled, report=report, draft=draft)


def _consecutive(
    samples: Sequence[Mapping[str, Array]], count: int, compiled: CompiledModel
) -> Sequence[Mapping[str, Array]]:
    """Return some of the samples: spread over all, or the first ones if a state carries over from each to the next."""
    has_states = bool(compiled.program.states)
    return samples[:count] if has_states else [samples[i] for i in spread(len(samples), count)]


def _require_small(monitor: Monitor, limit: int) -> None:
    if monitor.nbytes > limit:
        rule = f"--monitor-bytes: the statistics must fit in {limit} bytes"
        raise UsageError(
            rule, f"{monitor.nbytes} bytes for {', '.join(monitor.names)}", f"give --monitor-bytes {monitor.nbytes}"
        )


def observable_layers(compiled: CompiledModel) -> dict[str, tuple[int, Endpoint]]:
    """Return number and result of the layers that can be observed, by name.

    Their results are values of the graph, so that numpy computes them, and lie whole in the arena.
    """
    values = {v.name: v for node in compiled.graph.nodes for v in node.inputs if v is not None and v.data is None}
    names = compiled.bundle.layers
    observable = {}
    for layer, buffer in observable_results(compiled.program).items():
        if (value := values.get(buffer.name)) is None or buffer.dtype not in OBSERVED_TYPES:
            continue
        if value.type.dtype is buffer.dtype and math.prod(value.type.shape) == buffer.count:
            endpoint = Endpoint(buffer.name, value.type.shape, buffer.dtype, value.type.quant, buffer)
            observable[names[layer]] = (layer, endpoint)
    return observable


def _chosen_layers(compiled: CompiledModel) -> dict[str, tuple[int, Endpoint]]:
    """Return number and result of the layers that the user chose, by name.

    Raises:
        UsageError: There is no such layer, or its result cannot be observed; the message names those that can.
    """
    chosen = compiled.options.monitor_layers
    observable = observable_layers(compiled) if chosen else {}
    for name in chosen:
        if name not in observable:
            is_layer = name in compiled.bundle.layers
            rule = "--monitor-layers must name layers whose whole result is in the arena for later layers"
            seen = f"'{name}'" + (" has none" if is_layer else " is no layer")
            raise UsageError(rule, seen, f"one of {', '.join(observable)}" if observable else "leave it out")
    return {name: observable[name] for name in chosen}


def interpret_layers(
    compiled: CompiledModel,
    samples: Sequence[Mapping[str, Array]],
    layers: Mapping[str, tuple[int, Endpoint]],
) -> tuple[list[dict[str, Array]], list[dict[str, Array]]]:
    """Return the outputs, and the results of layers by the name of their tensor, for samples that follow each other.

    Args:
        compiled: The model.
        samples: The inputs by name, without states, for each sample.
        layers: Number and result of each layer, by name.
    """
    tensor_names = {endpoint.name for _, endpoint in layers.values()}
    seen: dict[str, list[Array]] = {name: [] for name in tensor_names}
    of_sample: dict[str, Array] = {}

    def observe(node: Node, arrays: list[Array]) -> None:
        present = [value for value in node.inputs if value is not None]
        of_sample.update((v.name, a) for v, a in zip(present, arrays, strict=True) if v.name in tensor_names)

    def finish(_: int) -> None:
        for name in tensor_names:
            seen[name].append(of_sample[name])

    results = compiled.interpret_samples(samples, finish, observe if tensor_names else None)
    return results, [{name: seen[name][i] for name in tensor_names} for i in range(len(samples))]


def _monitor(
    compiled: CompiledModel,
    samples: Sequence[Mapping[str, Array]],
    results: Sequence[Mapping[str, Array]],
    layers: Mapping[str, tuple[int, Endpoint]],
    layer_runs: Sequence[Mapping[str, Array]],
) -> Monitor:
    program = compiled.program
    classes = {e.name: e for e in program.outputs if _has_classes(e, compiled)}
    ends = [(e, True, samples) for e in program.inputs]
    ends += [(e, False, results) for e in program.outputs if e.name not in classes]
    observed = [_Tensor.of(e, is_input, runs, compiled) for e, is_input, runs in ends if np.prod(e.shape)]
    inner = [_Tensor.of(e, False, layer_runs, compiled) for _, e in layers.values()]
    stride = _stride(compiled, [t.elements for t in (*observed, *inner)], classes.values())
    numbers = [(name, layer) for name, (layer, _) in layers.items()]
    tensors = (
        *(tensor.described(stride) for tensor in observed),
        *(replace(t.described(stride), name=n, layer=k) for t, (n, k) in zip(inner, numbers, strict=True)),
    )
    outputs = tuple(_classes(e, [run[e.name] for run in results], compiled) for e in classes.values())
    nbytes = snapshot_bytes(len(tensors), [output.bins for output in outputs])
    monitor = Monitor(MONITOR_FORMAT, "", nbytes, tensors, outputs)
    content = json.dumps([compiled.draft.provenance.sha256, asdict(monitor)], sort_keys=True)
    return replace(monitor, model=hashlib.sha256(content.encode()).hexdigest()[:16])


def _has_classes(output: Endpoint, compiled: CompiledModel) -> bool:
    """Return whether an output has scores of classes: labels, or else few elements on its last axis."""
    labels = compiled.options.labels
    if not has_order(output) or output.dtype not in OBSERVED_TYPES or not output.shape:
        return False
    if labels:
        return labelled(compiled.program.outputs, labels).name == output.name
    return 2 <= output.shape[-1] <= MAX_MONITORED_CLASSES and math.prod(output.shape[:-1]) <= MAX_PREDICTIONS


def _stride(compiled: CompiledModel, tensors: Sequence[ObservedElements], classes: Iterable[Endpoint]) -> int:
    """Return the stride by which the observation of all tensors takes at most MONITOR_COST_SHARE of a call."""
    report = compiled.report
    instructions = report.instructions_estimate or 2 * report.model.macs
    fixed = INSTRUCTIONS_PER_TENSOR * len(tensors)
    fixed += sum(INSTRUCTIONS_PER_SCORE * int(np.prod(e.shape)) for e in classes)
    elements = sum(at.rows * at.parts * at.extent for at in tensors)
    allowed = (MONITOR_COST_SHARE * instructions - fixed) / INSTRUCTIONS_PER_ELEMENT
    longest = max((at.extent for at in tensors), default=1)
    return int(np.clip(np.ceil(elements / max(allowed, 1.0)), -(-longest // MAX_PART_ELEMENTS), longest))


@dataclass(frozen=True)
class _Tensor:
    """A tensor that is to be observed, with its codes in all samples."""

    endpoint: Endpoint
    is_input: bool
    unit: int
    codes: Sequence[Codes]
    clip: tuple[int, int]
    elements: ObservedElements

    @classmethod
    def of(
        cls, endpoint: Endpoint, is_input: bool, runs: Sequence[Mapping[str, Array]], compiled: CompiledModel
    ) -> _Tensor:
        """Return a tensor with its codes.

        Raises:
            UsageError: The element type is not observed.
        """
        dtype = endpoint.dtype
        if dtype not in OBSERVED_TYPES:
            types = ", ".join(known.value for known in OBSERVED_TYPES)
            raise UsageError(f"--monitor observes {types}", f"'{endpoint.name}' is {dtype.value}", "leave it out")
        arrays = [np.asarray(run[endpoint.name]) for run in runs]
        sizes = [np.abs(array[np.isfinite(array)].astype(np.float64)).max(initial=0.0) for array in arrays]
        unit = unit_of(dtype, float(max(sizes)))
        codes = [codes_of(array, dtype, unit) for array in arrays]
        clip = _clip_codes(endpoint, unit, compiled)
        if clip is None:
            clip = min(int(c.min()) for c in codes) - 1, max(int(c.max()) for c in codes) + 1
        return cls(endpoint, is_input, unit, codes, clip, _choose_parts(codes, observed_elements(endpoint.shape)))

    def described(self, stride: int) -> MonitoredTensor:
        """Return the tensor as generated C observes it, with its reference.

        Args:
            stride: The stride of observed elements, which is less for a tensor with fewer elements.
        """
        endpoint, all_codes = self.endpoint, np.concatenate([c.reshape(-1) for c in self.codes])
        elements = replace(self.elements, stride=min(stride, self.elements.extent))
        center = int(np.rint(all_codes.mean()))
        edges = balanced_edges(all_codes)
        whole = Gauge(center, edges, *self.clip, replace(elements, stride=1))
        strided = replace(whole, elements=elements)
        complete = [whole.observe(codes) for codes in self.codes]
        seen = [strided.observe(codes, run) for run, codes in enumerate(self.codes)]
        quant = endpoint.quant
        is_scaled = quant is not None and len(quant.scale) == 1
        return MonitoredTensor(
            endpoint.name,
            self.is_input,
            endpoint.dtype.value,
            self.unit,
            float(quant.scale[0]) if quant is not None and is_scaled else 1.0,
            int(quant.zero_point) if quant is not None and is_scaled else 0,
            center,
            edges,
            *self.clip,
            elements,
            _reference(complete, [one for one in seen if one.count], center, elements.parts),
        )


PART_CONTRAST = 4.0
"""Factor by which means of other parts must differ more than those of quarters, relative to chance, to be taken."""


def _choose_parts(codes: Sequence[Codes], grids: Sequence[ObservedElements]) -> ObservedElements:
    """Return the grid by whose means of parts a change of order is seen best; the first one unless another is clear."""
    contrasts = [_part_contrast(codes, grid) for grid in grids]
    best = int(np.argmax(contrasts))
    return grids[best if contrasts[best] > PART_CONTRAST * contrasts[0] else 0]


def _part_contrast(codes: Sequence[Codes], grid: ObservedElements) -> float:
    """Return the squared differences of the means of parts, relative to their variance from run to run."""
    if grid.parts == 1:
        return 0.0
    begins = np.arange(grid.parts)[:, None] * grid.part_elements
    places = begins + np.arange(grid.extent) * grid.distance
    means = np.array([code.reshape(grid.rows, grid.row_elements)[:, places].mean(axis=(0, 2)) for code in codes])
    away = means - means.mean(axis=1, keepdims=True)
    return float((away.mean(axis=0) ** 2 / (away.var(axis=0) + 1e-3)).sum())


def _clip_codes(endpoint: Endpoint, unit: int, compiled: CompiledModel) -> tuple[int, int] | None:
    """Return the codes at which a tensor is clipped: the ends of its type, or of the type that it is quantized to.

    None stands for a tensor that nothing clips.
    """
    dtype = endpoint.dtype
    if dtype is DType.FLOAT32:
        quantized = [n.outputs[0].type for n in compiled.graph.nodes if _quantizes(n, endpoint.name)]
        quant = quantized[0].quant if quantized else None
        if quant is None or len(quant.scale) != 1:
            return None
        ends = [float(quant.scale[0]) * (limit - quant.zero_point) for limit in quantized[0].dtype.limits]
        low, high = codes_of(np.array(ends, np.float32), dtype, unit)
        return int(low), int(high)
    if dtype.nbytes > 2 or dtype is DType.BOOL:
        return None
    low, high = codes_of(np.array(dtype.limits, dtype.numpy), dtype, unit)
    return int(low), int(high)


def _quantizes(node: Node, name: str) -> bool:
    value = node.inputs[0] if isinstance(node.op, Quantize) else None
    return value is not None and value.name == name


def _reference(
    complete: Sequence[Observation], seen: Sequence[Observation], center: int, parts: int
) -> TensorReference:
    """Return the statistics of samples.

    Args:
        complete: Observations of all elements of each sample, which give the statistics.
        seen: Observations of those elements that a device observes of each sample, which give the variances.
        center: Code from which distances are summed.
        parts: Number of parts of the tensor.
    """
    count = sum(one.count for one in complete)
    means = np.array([sum(one.sums) / one.count for one in seen])
    mean = sum(sum(one.sums) for one in complete) / count
    part_sums = np.array([one.sums[:parts] for one in complete], np.float64)
    seen_parts = np.array([one.sums[:parts] for one in seen]) / np.array([[one.count / parts] for one in seen])
    square = sum(one.squares for one in complete) / count
    roughness = np.array([one.steps / one.count for one in seen])
    return TensorReference(
        distribution([one.bins for one in complete], [one.bins for one in seen]),
        mean + center,
        _variance(means),
        float(np.sqrt(max(square - mean**2, 0.0))),
        _variance(np.array([one.squares / one.count for one in seen])),
        sum(one.steps for one in complete) / count,
        _variance(roughness),
        sum(one.clipped for one in complete) / count,
        tuple(float(total) / (count / parts) + center for total in part_sums.sum(0)),
        tuple(_variance(part) for part in (seen_parts - means[:, None]).T),
        min(one.low for one in complete),
        max(one.high for one in complete),
    )


def _variance(values: npt.NDArray[np.float64]) -> float:
    return float(values.var(ddof=1)) if len(values) > 1 else 0.0


def distribution(complete: Sequence[Sequence[int]], seen: Sequence[Sequence[int]]) -> Distribution:
    """Return the distribution of counts.

    Args:
        complete: Counts of each bin in each sample, which give the shares.
        seen: Counts of what a device observes of each sample, which give the variances.
    """
    total = np.array(complete, np.float64).sum(0)
    shares = np.array([np.asarray(counts) / max(sum(counts), 1) for counts in seen])
    cumulative = shares.cumsum(1)
    return Distribution(
        len(complete),
        tuple(map(float, total / total.sum())),
        tuple(_variance(share) for share in shares.T),
        tuple(_variance(share) for share in cumulative.T),
    )


def _classes(endpoint: Endpoint, arrays: Sequence[Array], compiled: CompiledModel) -> MonitoredClasses:
    dtype, count = endpoint.dtype, endpoint.shape[-1]
    rows = [np.asarray(array).reshape(-1, count) for array in arrays]
    largest = max(float(np.abs(row[np.isfinite(row)].astype(np.float64)).max(initial=0.0)) for row in rows)
    unit = unit_of(dtype, largest)
    per_bin = -(-count // MAX_CLASS_BINS)
    predicted, margins = zip(*(predictions(row, dtype, unit) for row in rows), strict=True)
    edges = balanced_edges(np.concatenate(margins))
    bins = -(-count // per_bin)
    class_counts = [np.bincount(classes // per_bin, minlength=bins).tolist() for classes in predicted]
    confidence_counts = [bins_of(margin, edges).tolist() for margin in margins]
    quant = endpoint.quant
    return MonitoredClasses(
        endpoint.name,
        dtype.value,
        unit,
        len(rows[0]),
        count,
        per_bin,
        edges,
        float(quant.scale[0]) if quant is not None and len(quant.scale) == 1 else 1.0,
        tuple(compiled.options.labels) if len(compiled.options.labels) == count else (),
        distribution(class_counts, class_counts),
        distribution(confidence_counts, confidence_counts),
    )


def predictions(scores: Array, dtype: DType, unit: int) -> tuple[Codes, Codes]:
    """Return the class of each row of scores, and by how much its score exceeds the next one, as codes.

    Args:
        scores: Scores of shape (rows, classes).
        dtype: Type of the scores.
        unit: Binary exponent of the unit of codes.
    """
    order = np.argsort(-score_order(scores, dtype), axis=1, kind="stable")[:, :2]
    best, following = (np.take_along_axis(codes_of(scores, dtype, unit), order[:, k : k + 1], 1)[:, 0] for k in (0, 1))
    return order[:, 0].astype(np.int64), best - following
