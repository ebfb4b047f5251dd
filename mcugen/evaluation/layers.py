# SPDX-License-Identifier: Apache-2.0
"""Quantization errors by layer: figures of a float model and its integer twin side by side."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mcugen.core.errors import shortened
from mcugen.core.options import DIVERGED_DB
from mcugen.hir.types import Array

REQUESTED_REAL, NO_INTEGER_FORM, BETWEEN_FLOAT_LAYERS = "as wanted", "no integer form", "between float layers"
UNEQUAL_RANGES = "its parts' ranges differ too much for one scale"
"""Reasons why quantization leaves layers in float32."""

UNCONVERTED = "no integer form for these types and constants"
GIVEN_REAL = "the model leaves it between real tensors"
LEARNING = "recurrent layers that learn need real numbers"
RAISED_BY_SEARCH = "--precision auto raised it to reach its goal"
"""Reasons why other layers of a model with integers do not compute in its main type."""

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
"""Remedies for a layer in another type, by reason."""

KEEP_INT8_REMEDY = "--layer NAME=int8 keeps it in int8"
"""Remedy for a layer that was raised for a reason of its own."""

COMPUTED = "computed in "
"""First words of the lines of `precision_lines`."""

NAMES_IN_LINE = 400
"""Largest number of characters of layers' names in one of those lines: more layers take more lines."""

ERROR_HISTOGRAM_BINS = 32
"""Number of bins of a histogram."""


@dataclass(frozen=True)
class Histogram:
    """A histogram of a tensor in the float model (`real`) and in the integer model.

    Each list counts the elements in ERROR_HISTOGRAM_BINS equal parts from `low` to `high`.
    """

    low: float
    high: float
    real: list[int]
    integer: list[int]

    @classmethod
    def of(cls, real: Array, integer: Array) -> Histogram | None:
        """Return the histogram of both tensors; None if one is empty or not finite."""
        if not real.size or not integer.size or not (np.isfinite(real).all() and np.isfinite(integer).all()):
            return None
        low = float(min(real.min(), integer.min()))
        high = float(max(real.max(), integer.max()))
        counts = [np.histogram(tensor, ERROR_HISTOGRAM_BINS, (low, high))[0].tolist() for tensor in (real, integer)]
        return cls(low, high, *counts)


@dataclass(frozen=True)
class LayerError:
    """One tensor that a layer makes: how it is stored, and its error against the float model.

    `name` is the tensor's, which names the layer in options too; `sources` are the compared tensors that it is made
    from. `low` and `high` are the limits of the codes, chosen by `method`; `clipped` is the share of the float
    tensor's elements beyond. `reason` says why a layer computes in float32. `sqnr_db` is None where there is no
    error at all; with `cosine` None the tensor has no counterpart in the integer model.
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
        """The SQNR in dB; inf where there is no error, or nothing to compare."""
        return math.inf if self.sqnr_db is None else self.sqnr_db


@dataclass(frozen=True)
class OtherPrecision:
    """A layer that does not compute in the main type of a model with integers: the reason, and the remedy.

    `name` is that of the tensor it makes, which names the layer in options too.
    """

    name: str
    op: str
    precision: str
    reason: str
    remedy: str


@dataclass(frozen=True)
class PrecisionReason:
    """Why mcugen chose a precision of its own for a layer, and what changes that.

    `layer` is the name of the layer's first result, `remedy` is empty where the reason names an option itself.
    """

    layer: str
    precision: str
    reason: str
    remedy: str = KEEP_INT8_REMEDY


def precision_lines(layers: Sequence[OtherPrecision]) -> list[str]:
    """Return lines that name each of these layers, those together that have a type, reason and remedy in common."""
    kinds: dict[tuple[str, str, str], list[str]] = {}
    for layer in layers:
        kinds.setdefault((layer.precision, layer.reason, layer.remedy), []).append(f"'{shortened(layer.name, 100)}'")
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
    """The errors of all layers in the network's order, over `samples` samples.

    `first_diverging` is the first layer whose SQNR is below `threshold_db`, if there is one; `steepest_fall` the one
    whose SQNR is furthest below that of the worst tensor that it is made from.
    """

    samples: int
    threshold_db: float
    first_diverging: str | None
    steepest_fall: str | None
    layers: list[LayerError]

    @property
    def worst_first(self) -> list[LayerError]:
        """The layers that were compared, the lowest SQNR first."""
        return sorted((layer for layer in self.layers if layer.cosine is not None), key=lambda layer: layer.quality)

    @property
    def in_float(self) -> list[LayerError]:
        """The layers that stay in float32."""
        return [layer for layer in self.layers if layer.reason]


def compared(layers: Sequence[LayerError], samples: int, threshold_db: float = DIVERGED_DB) -> LayerComparison:
    """Return the comparison of all layers, with the layers from which the error comes."""
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
