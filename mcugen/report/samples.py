# SPDX-License-Identifier: Apache-2.0
"""Evaluation data: .npz files → one dict of arrays per sample, in the types that the model's inputs have."""

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

_PIXELS = "x_uint8"
_LABELS = ("labels", "y")


@dataclass(frozen=True)
class Samples:
    """Inputs by name for each sample, and class numbers where they are known (else None)."""

    inputs: list[dict[str, Array]]
    labels: Array | None


def load_samples(path: Path, endpoints: Sequence[Endpoint], pixel_scale: float = 1.0, preprocess: str = "") -> Samples:
    """Reads an .npz with one array per model input, a leading axis for samples, and optional labels.

    An input may be called by its name; a model's only input also `x`, or `x_uint8` for raw pixels, which are
    multiplied by `pixel_scale` for a float input and are the codes of an 8-bit one. UsageError names what is
    wrong with the file.
    """
    arrays = read_npz(path)
    chosen = {e.name: _array_of(path, arrays, e, len(endpoints) == 1) for e in endpoints}
    counts = {key: len(array) for key, array in chosen.values() if array.ndim}
    if len(set(counts.values())) != 1:
        raise UsageError(f"{path}: inputs must have equally many samples", str(counts), "repair the file")
    count = next(iter(counts.values()))
    inputs = [
        {e.name: _convert(path, *_sample(chosen[e.name], i), e, pixel_scale) for e in endpoints} for i in range(count)
    ]
    return Samples(inputs, _labels(path, arrays, count))


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


def read_npz(path: Path) -> dict[str, Array]:
    """The arrays of a file; UsageError where it cannot be read. Pickled objects are refused."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("a single array")
            return {key: archive[key] for key in archive.files}
    except OSError as error:
        reason = error.strerror or "not an .npz file"
        raise UsageError(
            f"{path}: samples must be in a readable .npz file", reason, "write it with numpy.savez"
        ) from error
    except Exception as error:  # zip and numpy raise a dozen types for corrupt files
        reason = str(error)[:120]
        raise UsageError(f"{path}: samples must be in an .npz file", reason, "write it with numpy.savez") from error


def _array_of(path: Path, arrays: Mapping[str, Array], endpoint: Endpoint, only: bool) -> tuple[str, Array]:
    names = [endpoint.name, *(("x", _PIXELS) if only else ())]
    for name in names:
        if name in arrays:
            if arrays[name].ndim == 0 or not len(arrays[name]):
                raise UsageError(f"{path}: '{name}' must have a leading axis of samples", str(arrays[name].shape))
            return name, arrays[name]
    wanted = " or ".join(f"'{n}'" for n in names)
    present = ", ".join(f"'{key}'" for key in arrays) or "nothing"
    raise UsageError(f"{path}: there must be an array {wanted}", present, "name the arrays like the model's inputs")


def _sample(chosen: tuple[str, Array], index: int) -> tuple[str, Array]:
    return chosen[0], chosen[1][index]


def _convert(path: Path, key: str, sample: Array, endpoint: Endpoint, pixel_scale: float) -> Array:
    place = f"{path}: '{key}'"
    shaped = _shaped(place, sample, endpoint)
    target, quant = endpoint.dtype.numpy, endpoint.quant
    if shaped.dtype.kind not in "fiub":
        raise UsageError(f"{place} must be numeric", str(shaped.dtype), "store numbers")
    if shaped.dtype.kind == "f" and not np.isfinite(shaped).all():
        raise UsageError(f"{place} must be finite", "NaN or infinity in a sample", "repair the data")
    if target.kind == "f":
        return (shaped * (pixel_scale if key == _PIXELS else 1.0)).astype(target)
    if key == _PIXELS and target == np.int8:
        return (shaped.astype(np.int16) - 128).astype(np.int8)
    if shaped.dtype.kind == "f" and quant is not None:
        return quantize(shaped, QuantParams(quant.scale, quant.zero_point), endpoint.dtype)
    if target.kind in "iu" and (shaped != shaped.astype(target)).any():
        raise UsageError(f"{place} must hold values of type {target}", str(shaped.dtype), "convert the data")
    return shaped.astype(target)


def _shaped(place: str, sample: Array, endpoint: Endpoint) -> Array:
    """The sample in the input's shape; channels-first images are turned for a channels-last input."""
    if endpoint.sizes:
        return _sized(place, sample, endpoint)
    if sample.size != int(np.prod(endpoint.shape)):
        found = f"{sample.shape}, the input is {endpoint.shape}"
        raise UsageError(f"{place} must have samples of the input's size", found, "reshape the data")
    wanted = tuple(endpoint.shape[1:])
    if sample.ndim == 3 and sample.shape != wanted and np.moveaxis(sample, 0, -1).shape == wanted:
        sample = np.moveaxis(sample, 0, -1)
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
