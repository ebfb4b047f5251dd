# SPDX-License-Identifier: Apache-2.0
"""Outputs that keep the precision of 32-bit sums, because one int8 scale for all of their channels would be too coarse.

The last layer of a detector computes logits and box sides, that of a regression quantities of different units: the
widest channel determines the scale of all. The readers of such a layer compute in float32, and get its sums as reals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mcugen.core.errors import shortened
from mcugen.evaluation.accuracy import run_onnxruntime
from mcugen.evaluation.layers import PrecisionReason
from mcugen.evaluation.samples import spread
from mcugen.hir.graph import Node, Value
from mcugen.hir.traits import Cell, readers_behind, weight_axes
from mcugen.hir.types import Array, DType
from mcugen.ops.elementwise import Elementwise
from mcugen.quantization.domains import domain_of
from mcugen.quantization.float_model import FloatModel, all_tensors
from mcugen.quantization.scores import cheap_macs

MAX_CHANNEL_RANGE_RATIO = 8.0
"""Largest ratio of a tensor's range to that of its narrowest channel for which an output is rounded to int8.

At this ratio the narrowest channel still uses 5 of the 8 bits. With a larger ratio the 32-bit sums are not rounded.
"""

MACS_PER_ELEMENT = 8.0
"""Time of one element of an elementwise float32 layer, in multiply-accumulates of an int8 layer."""

SMALL_SUM_BYTES = 256
"""Size in bytes up to which an output's 32-bit sums are kept in any model.

In models with a larger int8 tensor, the size of that tensor is the limit.
"""

MAX_PROFILED_SAMPLES = 64
"""Largest number of samples by which the ranges of an output's channels are measured."""


@dataclass(frozen=True)
class UnroundedOutputs:
    """The layers at the end of a model whose 32-bit sums are not rounded to int8, and the float32 layers after them.

    The channels of such a layer differ so much in range that one int8 scale would be too coarse for the narrowest.

    Attributes:
        layers: For each such layer, the ratio of its output's range to the range of its narrowest channel, by the name
            of its output.
        tail: For each float32 layer after them, by name, the layer in `layers` with the largest ratio among those that
            it may depend on.
    """

    layers: Mapping[str, float] = field(default_factory=dict)
    tail: Mapping[str, str] = field(default_factory=dict)

    @property
    def reasons(self) -> list[PrecisionReason]:
        """Return the reasons why layers after an unrounded layer compute in float32, one for each of them.

        An unrounded layer is one whose 32-bit sums are not rounded to int8.
        """
        return [
            PrecisionReason(name, DType.FLOAT32.value, f"{self._ratio(layer)}, and outputs keep what its sums tell")
            for name, layer in self.tail.items()
        ]

    @property
    def notes(self) -> list[str]:
        """Return a note for each layer whose 32-bit sums are an output of the model, without being rounded to int8."""
        bare = [
            n for n, ratio in self.layers.items() if ratio > MAX_CHANNEL_RANGE_RATIO and n not in self.tail.values()
        ]
        return [f"an output is not rounded: {self._ratio(name)}" for name in bare]

    def _ratio(self, layer: str) -> str:
        ratio, name = self.layers[layer], shortened(layer, 100)
        return f"the range of '{name}' is {ratio:.0f} times that of its narrowest channel"


@dataclass(frozen=True)
class _Tail:
    """The layers between the last layers with weights and an output."""

    last: Sequence[Node]
    behind: Sequence[Node]


def choose_unrounded_outputs(model: FloatModel, samples: Sequence[Mapping[str, Array]]) -> UnroundedOutputs:
    """Choose the outputs whose last layers keep their 32-bit sums, as int8 is too coarse for some of their channels.

    Args:
        model: The float model.
        samples: Calibration samples, with the states of streams. Without samples, no output is chosen.
    """
    graph, layers, names_behind = model.graph, dict[str, float](), dict[str, str]()
    outputs = [v for name, v in zip(graph.output_names, graph.outputs, strict=True) if name not in model.states]
    tails = [tail for value in outputs if (tail := _tail_of(model, value)) is not None]
    behind = {node for tail in tails for node in tail.behind}
    tails = [tail for tail in tails if all(behind.issuperset(readers_behind(node.output)) for node in tail.last)]
    if not tails or not samples:
        return UnroundedOutputs()
    ratios = _range_ratios(model, [node.output for tail in tails for node in tail.last], samples)
    for tail in tails:
        widest = max(tail.last, key=lambda node: ratios[node.output.name])
        if ratios[widest.output.name] > MAX_CHANNEL_RANGE_RATIO:
            layers |= {node.output.name: ratios[node.output.name] for node in tail.last}
            names_behind |= {node.output.name: widest.output.name for node in tail.behind}
    return UnroundedOutputs(layers, names_behind)


def _tail_of(model: FloatModel, output: Value) -> _Tail | None:
    """Return the tail of an output, or None if it is not elementwise, or costs too much in float32.

    Classes (Softmax, ArgMax) need no such precision. Functions with a domain, such as quotients, need the rounded
    results: these tell how far an argument may be from 0.
    """
    last, behind = list[Node](), list[Node]()
    todo, seen = [output], {output}
    for value in todo:
        node = value.producer
        if node is None:
            continue
        if weight_axes(node.op) and not isinstance(node.op, Cell):
            last.append(node)
            continue
        if not (node.op.moves_data or isinstance(node.op, Elementwise)):
            return None
        if any(v is not None and domain_of(node, v) is not None for v in node.inputs):
            return None
        behind += [] if node.op.moves_data else [node]
        new = [v for v in node.inputs if v is not None and not v.is_constant and v not in seen]
        todo += new
        seen.update(new)
    if not last:
        return None
    elements = sum(node.output.type.count for node in behind)
    sum_bytes = 4 * sum(node.output.type.count for node in last)
    largest = max(v.type.count for v in model.graph.values() if not v.is_constant)
    is_cheap = MACS_PER_ELEMENT * elements <= cheap_macs(model.graph) and sum_bytes <= max(SMALL_SUM_BYTES, largest)
    return _Tail(last, behind) if is_cheap else None


def _range_ratios(
    model: FloatModel, values: Sequence[Value], samples: Sequence[Mapping[str, Array]]
) -> dict[str, float]:
    """Return the ratio of each tensor's range, 0 included, to that of its narrowest channel that varies."""
    used = [samples[i] for i in spread(len(samples), MAX_PROFILED_SAMPLES)]
    results = run_onnxruntime(all_tensors(model), used)
    ratios = {}
    for value in values:
        arrays = np.stack([result[value.name].reshape(value.type.shape) for result in results])
        axis = 1 + (1 if value.type.rank > 2 else value.type.rank - 1)
        other = tuple(a for a in range(arrays.ndim) if a != axis)
        low, high = arrays.min(other), arrays.max(other)
        spans = (high - low)[high > low]
        whole = max(float(high.max(initial=0.0)), 0.0) - min(float(low.min(initial=0.0)), 0.0)
        ratios[value.name] = whole / float(spans.min()) if spans.size else 1.0
    return ratios
