# SPDX-License-Identifier: Apache-2.0
"""Calibration and evaluation data: files → one dict of arrays per sample, in the types that the model's inputs have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mcugen.errors import UsageError
from mcugen.hir.graph import Graph
from mcugen.hir.types import Array, DType, QuantParams
from mcugen.lir.program import Buffer, Endpoint, Space
from mcugen.ops.fixedpoint import quantize
from mcugen.report.preprocess import Preprocessing, parse_preprocessing
from mcugen.report.sample_files import PIXELS, RawArray, read_samples

_LABELS = ("labels", "y")


@dataclass(frozen=True)
class Samples:
    """Inputs by name for each sample, and class numbers where they are known (else None)."""

    inputs: list[dict[str, Array]]
    labels: Array | None
    notes: tuple[str, ...] = ()
    """How samples were taken that are not of the input's shape."""


def load_samples(path: Path, endpoints: Sequence[Endpoint], pixel_scale: float = 1.0, preprocess: str = "") -> Samples:
    """Reads an .npz or .npy file, or a folder of .npz, .npy or .png files with one sample each.

    A file of all samples has a leading axis for them, an .npz one array per model input and optional labels. An
    input may be called by its name; a model's only input also `x`, or `x_uint8` for raw pixels, which are
    multiplied by `pixel_scale` for a float input and are the codes of an 8-bit one (so are those of a .png).
    `preprocess` is a line for `parse_preprocessing`. UsageError names what is wrong with which file.
    """
    steps = parse_preprocessing(preprocess)
    if steps.scale != 1.0 and pixel_scale != 1.0:
        raise UsageError("pixels must be scaled once", "--pixel-scale and --preprocess scale", "leave one out")
    raw, arrays = read_samples(path, [e.name for e in endpoints], steps)
    inputs = [{e.name: _convert(sample[e.name], e, pixel_scale, steps) for e in endpoints} for sample in raw]
    return Samples(inputs, _labels(path, arrays, len(raw)))


def random_samples(endpoints: Sequence[Endpoint]) -> Samples:
    """One seeded sample, for figures that need none in particular."""
    random = np.random.default_rng(0)
    sample = {}
    for endpoint in endpoints:
        normal = random.standard_normal(endpoint.shape)
        kind = endpoint.dtype.numpy.kind
        spread = normal if kind == "f" else np.clip(np.rint(normal * 40), *((-128, 127) if kind == "i" else (0, 1)))
        sample[endpoint.name] = spread.astype(endpoint.dtype.numpy)
    return Samples([sample], None)


def _convert(raw: RawArray, endpoint: Endpoint, pixel_scale: float, steps: Preprocessing) -> Array:
    """In the input's shape and type, with finite numbers."""
    place, key, array = raw.place, raw.key, raw.array
    if steps.changes_numbers and (endpoint.dtype.is_float or endpoint.quant is not None):
        key, array = "", steps.numbers(place, array)
    shaped = _shaped(place, array, endpoint)
    target, quant = endpoint.dtype.numpy, endpoint.quant
    if shaped.dtype.kind not in "fiub":
        raise UsageError(f"{place} must be numeric", str(shaped.dtype), "store numbers")
    if shaped.dtype.kind == "f" and not np.isfinite(shaped).all():
        raise UsageError(f"{place} must be finite", "NaN or infinity in a sample", "repair the data")
    if target.kind == "f":
        return (shaped * (pixel_scale if key == PIXELS else 1.0)).astype(target)
    if key == PIXELS and target == np.int8:
        return (shaped.astype(np.int16) - 128).astype(np.int8)
    if shaped.dtype.kind == "f" and quant is not None:
        return quantize(shaped, QuantParams(quant.scale, quant.zero_point), endpoint.dtype)
    if target.kind in "iu" and (shaped != shaped.astype(target)).any():
        raise UsageError(f"{place} must hold values of type {target}", str(shaped.dtype), "convert the data")
    return shaped.astype(target)


def _shaped(place: str, sample: Array, endpoint: Endpoint) -> Array:
    """The sample in the input's shape; images are turned to have their channels where the input has them."""
    if endpoint.sizes:
        return _sized(place, sample, endpoint)
    if sample.size != int(np.prod(endpoint.shape)):
        found = f"{sample.shape}, the input is {endpoint.shape}"
        raise UsageError(f"{place} must have samples of the input's size", found, "reshape the data")
    wanted = tuple(endpoint.shape[1:])
    if sample.ndim == 3 and sample.shape != wanted:
        turned = (np.moveaxis(sample, 0, -1), np.moveaxis(sample, -1, 0))
        sample = next((t for t in turned if t.shape == wanted), sample)
    return sample.reshape(endpoint.shape)


def _sized(place: str, sample: Array, endpoint: Endpoint) -> Array:
    """For an input with axes of any length in a range; leading axes of length 1 may be left out."""
    full = sample.reshape((1,) * (len(endpoint.shape) - sample.ndim) + sample.shape)
    pairs = enumerate(zip(full.shape, endpoint.shape, strict=False))
    if full.ndim != len(endpoint.shape) or any(
        n > m or (n < m and axis not in endpoint.sizes) for axis, (n, m) in pairs
    ):
        found = f"{sample.shape}, the input is at most {endpoint.shape}"
        raise UsageError(f"{place} must have samples of the input's shape", found, "reshape the data")
    return full


def _labels(path: Path, arrays: Mapping[str, Array], count: int) -> Array | None:
    for key in _LABELS:
        if key in arrays:
            labels = arrays[key].reshape(-1)
            if len(labels) != count or labels.dtype.kind not in "iu":
                raise UsageError(f"{path}: '{key}' must hold one class number a sample", f"{arrays[key].shape}")
            known = (labels >= 0).all() and len(np.unique(labels)) > 1
            return labels if known else None  # one class for all (as in anomaly detection) ranks nothing
    return None


def as_stored(sample: Mapping[str, Array], endpoints: Sequence[Endpoint]) -> dict[str, Array]:
    """A sample as the generated code takes it: reals become codes where an input is quantized."""
    return {e.name: _codes(sample[e.name], e) for e in endpoints if e.name in sample}


def _codes(array: Array, endpoint: Endpoint) -> Array:
    if endpoint.quant is None or array.dtype.kind != "f":
        return array
    return quantize(array, endpoint.quant, endpoint.dtype)


def graph_endpoints(graph: Graph, states: Mapping[str, str] | None = None) -> list[Endpoint]:
    """The inputs of a graph that is not lowered, but for those that keep an output (`states`: output → input)."""
    nowhere = Buffer("", DType.FLOAT32, 0, Space.INPUT)
    given = [v for v in graph.inputs if v.name not in (states or {}).values()]
    return [Endpoint(v.name, v.type.shape, v.type.dtype, v.type.quant, nowhere) for v in given]
