# SPDX-License-Identifier: Apache-2.0
"""Quantization errors by layer: a float model compared with its quantized model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mcugen.core.options import DIVERGED_DB
from mcugen.hir.layer_names import shorten_name
from mcugen.hir.types import Array

REQUESTED_REAL, NO_INTEGER_FORM, BETWEEN_FLOAT_LAYERS = "as requested", "no integer form", "between float layers"
"""Reasons, shown in reports, why a layer stays in float32: the user's option, its operator, or its neighbors."""
UNEQUAL_RANGES = "its parts' ranges differ too much for one scale"
"""Reason, shown in reports, for a layer in float32: the ranges of its inputs differ too much."""

UNCONVERTED = "no integer form for these types and constants"
"""Reason, shown in reports, for a layer in float32: the quantized operator has no form in integer arithmetic."""
GIVEN_REAL = "the model leaves it between real tensors"
"""Reason, shown in reports, for a layer in float32: the given quantized model does not quantize the layer."""
LEARNING = "recurrent layers that learn need real numbers"
"""Reason, shown in reports, for a layer in float32: it is recurrent and is trained on the device."""
RAISED_BY_SEARCH = "--precision auto raised it to reach its goal"
"""Reason, shown in reports: `--precision auto` gave the layer a higher precision than the main one."""

REASON_REMEDIES = {
    REQUESTED_REAL: "leave out its --layer to quantize it",
    NO_INTEGER_FORM: "put another operator in its place: `mcugen operators` lists those with int8 kernels",
    BETWEEN_FLOAT_LAYERS: "it follows where its neighbours are quantized",
    UNEQUAL_RANGES: "bring its parts to one range in training, or force it: --layer NAME=int8",
    UNCONVERTED: "put another operator in its place: `mcugen operators` lists those with int8 kernels",
    GIVEN_REAL: "quantize what it reads and gives, or let mcugen quantize the float model: --calibration",
    LEARNING: "leave it out of --train to quantize it",
    RAISED_BY_SEARCH: "--layer NAME=int8 keeps it in int8, or ask for less: --max-accuracy-drop, --min-sqnr",
}
"""Hint for the user on a layer with another precision than the model's main one, by reason."""

KEEP_INT8_REMEDY = "--layer NAME=int8 keeps it in int8"
"""Hint for the user on a layer with a higher precision, if REASON_REMEDIES has none for the reason."""

COMPUTED = "computed in "
"""First words of each line that `precision_lines` returns, by which other modules recognize such a line."""

NAMES_IN_LINE = 400
"""Largest number of characters of layers' names in one line of `precision_lines`."""

ERROR_HISTOGRAM_BINS = 32
"""Number of bins of a Histogram."""


@dataclass(frozen=True)
class Histogram:
    """Histograms of a tensor in the float model and in the quantized model, over the same bins.

    Attributes:
        low: Lower end of the first bin, in real units.
        high: Upper end of the last bin.
        real: Number of elements in each of ERROR_HISTOGRAM_BINS equal bins, in the float model.
        integer: The same numbers in the quantized model.
    """

    low: float
    high: float
    real: list[int]
    integer: list[int]

    @classmethod
    def of(cls, real: Array, integer: Array) -> Histogram | None:
        """Return the histograms of a tensor's real values in both models; None if one is empty or not finite.

        Args:
            real: The tensor in the float model.
            integer: The dequantized tensor in the quantized model.
        """
        if not real.size or not integer.size or not (np.isfinite(real).all() and np.isfinite(integer).all()):
            return None
        low = float(min(real.min(), integer.min()))
        high = float(max(real.max(), integer.max()))
        counts = [np.histogram(tensor, ERROR_HISTOGRAM_BINS, (low, high))[0].tolist() for tensor in (real, integer)]
        return cls(low, high, *counts)


@dataclass(frozen=True)
class LayerError:
    """The error of a layer's result in the quantized model against the float model; None for figures that do not apply.

    Attributes:
        name: Name of the layer (mcugen.hir.layer_names); that of the tensor for an input or a further result.
        origin: Names of the ONNX nodes of the layer.
        op: Its operator.
        precision: Type of its computation.
        reason: Why it computes in float32; else "".
        method: Name of the method that chose the range of quantized values; "" if none did.
        low: Lower limit of the range, in real units; None if the result is not quantized, like the next two.
        high: Upper limit of the range.
        clipped: Share (0 to 1) of elements of the float tensor that are outside the range.
        weights_sqnr_db: SQNR of the quantized weights in dB; None without quantized weights.
        sqnr_db: SQNR of the result in dB; None without any error.
        cosine: Cosine similarity of the results; None if the quantized model has no such tensor.
        max_abs_error: Largest difference of elements, in real units.
        sources: Names of the compared tensors that the layer reads.
        histogram: Histograms of the result in both models.
    """

    name: str
    origin: list[str]
    op: str
    precision: str
    reason: str
    method: str
    low: float | None
    high: float | None
    clipped: float | None
    weights_sqnr_db: float | None
    sqnr_db: float | None
    cosine: float | None
    max_abs_error: float | None
    sources: list[str]
    histogram: Histogram | None = None

    @property
    def quality(self) -> float:
        """Return the SQNR in dB; infinity if there is no error, or nothing to compare with."""
        return math.inf if self.sqnr_db is None else self.sqnr_db


@dataclass(frozen=True)
class OtherPrecision:
    """A layer with another precision than the quantized model's main one.

    Attributes:
        name: Display name of the layer (mcugen.hir.layer_names).
        op: Operator of the layer.
        precision: Element type that the layer computes in, such as "float32".
        reason: Why the layer has this precision.
        remedy: Hint for the user how to change that.
    """

    name: str
    op: str
    precision: str
    reason: str
    remedy: str


@dataclass(frozen=True)
class PrecisionReason:
    """The reason why mcugen chose the precision of a layer.

    Attributes:
        layer: Name of the layer's first result.
        precision: The chosen precision.
        reason: The reason.
        remedy: Hint how to change that; "" if the reason itself names an option.
    """

    layer: str
    precision: str
    reason: str
    remedy: str = KEEP_INT8_REMEDY


def precision_lines(layers: Sequence[OtherPrecision]) -> list[str]:
    """Return lines of text that name layers of another precision than the model's main one, and say why.

    Layers with equal precision, reason and remedy share lines.
    """
    kinds: dict[tuple[str, str, str], list[str]] = {}
    for layer in layers:
        kinds.setdefault((layer.precision, layer.reason, layer.remedy), []).append(f"'{shorten_name(layer.name, 100)}'")
    return [
        f"{COMPUTED}{precision}: {names}; {reason}{f'; {remedy}' * bool(remedy)}"
        for (precision, reason, remedy), all_names in kinds.items()
        for names in _in_lines(all_names)
    ]


def _in_lines(names: Sequence[str]) -> Iterator[str]:
    """Yield the names, as many together as fit a line."""
    line = ""
    for name in names:
        if line and len(line) + len(name) > NAMES_IN_LINE:
            yield line
            line = ""
        line += f", {name}" if line else name
    yield line


@dataclass(frozen=True)
class LayerComparison:
    """The quantization errors of all layers.

    Attributes:
        samples: Number of samples that the errors are measured on.
        threshold_db: SQNR in dB below which a layer counts as diverged.
        first_diverging: Name of the first diverged layer; None if no layer diverged.
        steepest_fall: Name of the layer whose SQNR is furthest below that of its worst input; None if there is none.
        layers: The errors in the order of the network.
    """

    samples: int
    threshold_db: float
    first_diverging: str | None
    steepest_fall: str | None
    layers: list[LayerError]

    @property
    def worst_first(self) -> list[LayerError]:
        """Return the errors of the layers that exist in both models, sorted by SQNR, the lowest first."""
        return sorted((layer for layer in self.layers if layer.cosine is not None), key=lambda layer: layer.quality)

    @property
    def in_float(self) -> list[LayerError]:
        """Return the errors of the layers that stay in float32."""
        return [layer for layer in self.layers if layer.reason]


def summarize_layers(layers: Sequence[LayerError], samples: int, threshold_db: float = DIVERGED_DB) -> LayerComparison:
    """Return the comparison of all layers, with the layers at which the error begins and grows most.

    Args:
        layers: The errors in the order of the network.
        samples: Number of samples that the errors are measured on.
        threshold_db: SQNR in dB below which a layer counts as diverged.
    """
    diverged = next((layer.name for layer in layers if layer.quality < threshold_db), None)
    quality = {layer.name: layer.quality for layer in layers}
    losses = {layer.name: _loss(layer, quality) for layer in layers}
    steepest = max(losses, key=lambda name: losses[name], default=None)
    falls = steepest if steepest is not None and losses[steepest] > 0 else None
    return LayerComparison(samples, threshold_db, diverged, falls, list(layers))


def _loss(layer: LayerError, quality: Mapping[str, float]) -> float:
    """Return by how many dB a layer is worse than the worst tensor that it is made from; -inf if that one is exact."""
    source = min((quality[name] for name in layer.sources), default=math.inf)
    return source - layer.quality if math.isfinite(source) else -math.inf
