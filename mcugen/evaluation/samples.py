# SPDX-License-Identifier: Apache-2.0
"""Calibration and evaluation data: reads files to samples, which map the model's inputs to arrays of their types."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from mcugen.core.errors import UsageError
from mcugen.evaluation.boxes import TRUTH
from mcugen.evaluation.preprocess import Preprocessing, parse_preprocessing
from mcugen.evaluation.sample_files import RAW_PIXELS_NAME, RawArray, read_samples
from mcugen.evaluation.sample_warnings import range_warnings
from mcugen.hir.graph import Graph, Value
from mcugen.hir.types import Array, DType, QuantParams, Shape
from mcugen.lir.program import Buffer, Endpoint, Space
from mcugen.numerics.fixedpoint import quantize

_LABELS = ("labels", "y")
_BOXES = "boxes"

_COLORS = (2, 3, 4)
"""Numbers of channels by which an image's axis is recognized as the channels."""


@dataclass(frozen=True)
class Samples:
    """Samples for calibration or evaluation.

    Attributes:
        inputs: Inputs of each sample, by name.
        labels: Labels by sample: a class number, a class number for each position, or float rows of boxes; None if
            unknown.
        notes: Notes on the conversion of samples whose shape differs from the input's.
        raw: The raw data of each sample, if the model's input is computed from raw data; else None.
        warnings: Problems of the samples, with hints.
        is_random: Whether mcugen drew the samples, because the user gave none.
    """

    inputs: list[dict[str, Array]]
    labels: Array | None
    notes: tuple[str, ...] = ()
    raw: tuple[Array, ...] | None = None
    warnings: tuple[str, ...] = ()
    is_random: bool = False

    def only(self, inputs: Sequence[Mapping[str, Array]]) -> Samples:
        """Return a selection of the samples with their labels.

        Args:
            inputs: The inputs of the selected samples. They must be the very objects in `self.inputs`.
        """
        places = {id(sample): place for place, sample in enumerate(self.inputs)}
        indices = [places[id(sample)] for sample in inputs]
        labels = None if self.labels is None else self.labels[indices]
        return replace(self, inputs=[self.inputs[place] for place in indices], labels=labels, raw=None)

    def fed(self, stored: Sequence[Mapping[str, Array]]) -> Sequence[Mapping[str, Array]]:
        """Return the inputs that the generated code takes for each sample.

        Args:
            stored: The inputs in the code's types, by name. They are returned unless the code computes its input from
                raw data; then the raw data are returned.
        """
        return stored if self.raw is None else [dict.fromkeys(self.inputs[0], raw) for raw in self.raw]


def spread(count: int, max_count: int) -> list[int]:
    """Return at most `max_count` of `count` indices, evenly spaced from first to last."""
    places: list[int] = np.linspace(0, count - 1, min(max_count, count)).round().astype(int).tolist()
    return places


def load_samples(
    source: Path | Mapping[str, Array],
    endpoints: Sequence[Endpoint],
    pixel_scale: float = 1.0,
    preprocess: str = "",
    *,
    accepts_nonfinite: bool = False,
) -> Samples:
    """Read an .npz or .npy file, or a folder of .npz, .npy or .png files with one sample each; or take arrays.

    A file of all samples has a leading axis for them; an .npz file has an array for each model input, and optional
    labels. The array has the input's name. If there is only one input, it may also be called `x`, or `x_uint8` for raw
    pixels, like those of a .png file: they are multiplied by `pixel_scale` for a float input, and are the quantized
    values of an 8-bit input.

    A sample has the input's shape, with or without axes of length 1, or is one row of all elements. An image may have
    its channels first or last; a note says if they were moved. All other shapes are refused.

    Args:
        source: A file, a folder, or arrays by name.
        endpoints: The model's inputs.
        pixel_scale: The factor of raw pixels.
        preprocess: A line for `parse_preprocessing`.
        accepts_nonfinite: Whether float inputs may have NaN and infinities, which are refused otherwise.

    Raises:
        UsageError: Something is wrong with a file, which it names.
    """
    steps = parse_preprocessing(preprocess)
    if steps.scale != 1.0 and pixel_scale != 1.0:
        raise UsageError("pixels must be scaled once", "--pixel-scale and --preprocess scale", "leave one out")
    path = source if isinstance(source, Path) else Path("samples")
    raw, arrays = read_samples(source, [e.name for e in endpoints], steps)
    convert = partial(_convert, pixel_scale=pixel_scale, steps=steps, accepts_nonfinite=accepts_nonfinite)
    inputs = [{e.name: convert(sample[e.name], e) for e in endpoints} for sample in raw]
    turned = (note for sample in raw for e in endpoints for note in _turnings(path, sample[e.name], e, steps))
    labels = labels_of(path, arrays, raw)
    warnings = [*_negative_labels(path, arrays, labels), *_saturated(raw, endpoints, steps)]
    return Samples(inputs, labels, tuple(dict.fromkeys(turned)), warnings=tuple(warnings))


def random_samples(endpoints: Sequence[Endpoint]) -> Samples:
    """Return one random sample, equal in every run, for measurements that do not depend on the data."""
    random = np.random.default_rng(0)
    sample = {}
    for endpoint in endpoints:
        normal = random.standard_normal(endpoint.shape)
        kind = endpoint.dtype.numpy.kind
        spread = normal if kind == "f" else np.clip(np.rint(normal * 40), *((-128, 127) if kind == "i" else (0, 1)))
        sample[endpoint.name] = np.asarray(spread, endpoint.dtype.numpy)
    return Samples([sample], None, is_random=True)


def _convert(
    raw: RawArray, endpoint: Endpoint, pixel_scale: float, steps: Preprocessing, *, accepts_nonfinite: bool
) -> Array:
    """Return an array in the input's shape and type."""
    place, key, array = raw.place, raw.key, np.asarray(raw.array)
    if steps.changes_numbers and (endpoint.dtype.is_float or endpoint.quant is not None):
        key, array = "", steps.numbers(place, array)
    reading = _reading(array.shape, endpoint, raw.layout or steps.layout)
    if reading is None:
        shapes = f"{array.shape}, the input is {'at most ' * bool(endpoint.sizes)}{tuple(endpoint.shape)}"
        remedy = "a sample has that shape, or is a row of all elements; a file's first axis counts samples"
        raise UsageError(f"{place} must have samples of the input's shape", shapes, remedy)
    shaped = reading.read(array)
    target, quant = endpoint.dtype.numpy, endpoint.quant
    is_real = endpoint.dtype.is_float or endpoint.dtype.is_narrow_float
    if shaped.dtype.kind not in "fiub":
        raise UsageError(f"{place} must be numeric", str(shaped.dtype), "store numbers")
    unscaled = shaped
    if is_real:
        with np.errstate(over="ignore"):  # what is not finite is refused
            shaped = np.asarray(shaped * (pixel_scale if key == RAW_PIXELS_NAME else 1.0), target)
    finite = np.isfinite(unscaled) if accepts_nonfinite and is_real else np.ones(unscaled.shape, bool)
    if (is_real or shaped.dtype.kind == "f") and not np.isfinite(shaped[finite]).all():
        raise UsageError(f"{place} must be finite", f"NaN, or more than a {target} holds", "repair the data")
    if is_real:
        return shaped
    if key == RAW_PIXELS_NAME and target == np.int8:
        return (shaped.astype(np.int16) - 128).astype(np.int8)
    if shaped.dtype.kind == "f" and quant is not None:
        return quantize(shaped, QuantParams(quant.scale, quant.zero_point), endpoint.dtype)
    if target.kind in "iu" and (shaped != shaped.astype(target)).any():
        raise UsageError(f"{place} must hold values of type {target}", str(shaped.dtype), "convert the data")
    return shaped.astype(target)


@dataclass(frozen=True)
class _Reading:
    """A conversion of a sample to an input of `shape`; `moved` are the axes from and to which channels move before."""

    shape: Shape
    moved: tuple[int, int] | None = None

    def read(self, sample: Array) -> Array:
        """Return the sample in the input's shape."""
        image = sample.reshape(sample.shape[-3:]) if self.moved else sample
        return (np.moveaxis(image, *self.moved) if self.moved else image).reshape(self.shape)


def _reading(sample_shape: Shape, endpoint: Endpoint, layout: str) -> _Reading | None:
    """Return the conversion of a sample in shape `sample_shape`; None where it does not fit.

    `layout` says where the sample's channels are; "" stands for unknown.
    """
    full = _sized(sample_shape, endpoint) if endpoint.sizes else _fixed(sample_shape, endpoint)
    if full is not None:
        return _Reading(full)
    if len(endpoint.shape) != 4 or len(sample_shape) not in (3, 4) or sample_shape[:-3] not in ((), (1,)):
        return None
    turns = {
        "chw": _Reading((1, sample_shape[-1], *sample_shape[-3:-1]), (-1, 0)),
        "hwc": _Reading((1, *sample_shape[-2:], sample_shape[-3]), (0, -1)),
    }
    possible = (turns[target_layout] for target_layout in _layouts(endpoint.shape) if target_layout != layout)
    return next((turn for turn in possible if _fits(turn.shape, endpoint)), None)


def _layouts(image: Shape) -> tuple[str, ...]:
    """Return the layouts that an input of these four axes may have: colors are few, and images often square."""
    _, first, middle, last = image
    if (first in _COLORS) != (last in _COLORS):
        return ("chw",) if first in _COLORS else ("hwc",)
    if (first == middle) != (middle == last):
        return ("hwc",) if first == middle else ("chw",)
    return "chw", "hwc"


def _fixed(sample_shape: Shape, endpoint: Endpoint) -> Shape | None:
    """Return the input's shape if it equals the sample's except for axes of length 1, or if the sample is one row."""
    input_shape = tuple(endpoint.shape)
    longer = [tuple(n for n in shape if n != 1) for shape in (sample_shape, input_shape)]
    is_row = len(longer[0]) <= 1 and math.prod(sample_shape) == math.prod(input_shape)
    return input_shape if longer[0] == longer[1] or is_row else None


def _sized(sizes: Shape, endpoint: Endpoint) -> Shape | None:
    """Return the sample's shape with the input's axes, for an input with axes of variable length; else None.

    A sample with a single axis is not taken for a row of all elements here.
    """
    input_shape = endpoint.shape
    variable = [axis for axis, n in enumerate(input_shape) if n != 1 or axis in endpoint.sizes]
    spread = dict(zip(variable, sizes, strict=False)) if len(variable) == len(sizes) else {}
    missing = len(input_shape) - len(sizes)
    padded = (1,) * missing + sizes if missing >= 0 else sizes[-missing:] if set(sizes[:-missing]) == {1} else ()
    candidates = [padded, tuple(spread.get(axis, 1) for axis in range(len(input_shape)))]
    return next((shape for shape in candidates if _fits(shape, endpoint)), None)


def _fits(shape: Shape, endpoint: Endpoint) -> bool:
    """Return whether an input has, or may have, this shape."""
    pairs = enumerate(zip(shape, endpoint.shape, strict=False))
    return len(shape) == len(endpoint.shape) and all(n == m or (n < m and a in endpoint.sizes) for a, (n, m) in pairs)


def _turnings(path: Path, raw: RawArray, endpoint: Endpoint, steps: Preprocessing) -> Iterator[str]:
    """Yield a note on an array whose channels were moved, unless its file says where they are."""
    reading = _reading(raw.array.shape, endpoint, raw.layout or steps.layout)
    if reading is not None and reading.moved and not raw.layout:
        where, target = ("last", "first") if reading.moved == (-1, 0) else ("first", "last")
        shapes = f"{raw.array.shape} for input '{endpoint.name}' of {tuple(endpoint.shape)}"
        yield f"{path}: samples of {shapes} were taken to have their channels {where}, and turned to have them {target}"


def labels_of(path: Path, arrays: Mapping[str, Array], raw: Sequence[Mapping[str, RawArray]]) -> Array | None:
    """Return the labels in a file of all samples: a class, a class at each position, or boxes for each sample.

    Args:
        path: The file, for messages.
        arrays: The arrays of the file; an array that is an input of the model is not taken for labels.
        raw: The samples that were read from the file.

    Returns:
        The labels; None if the file has none.

    Raises:
        UsageError: The labels have another form.
    """
    inputs = {array.key for sample in raw for array in sample.values()}
    key = next((key for key in (*_LABELS, _BOXES) if key in arrays and key not in inputs), None)
    if key is None:
        return None
    stored, count = arrays[key], len(raw)
    sizes = f"{stored.dtype} of {stored.shape} for {count} sample{'s' * (count != 1)}"
    if key == _BOXES:
        if stored.ndim != 3 or stored.shape[::2] != (count, len(TRUTH)) or stored.dtype.kind not in "fiu":
            row = ", ".join(TRUTH)
            remedy = f"store samples x boxes x 5 numbers: {row}; rows that are none have class -1"
            raise UsageError(f"{path}: '{key}' must hold the boxes of each sample", sizes, remedy)
        return stored.astype(np.float64)
    if stored.dtype.kind not in "iu" or not stored.ndim or len(stored) != count or _is_one_hot(stored):
        rule = f"{path}: '{key}' must hold one class number a sample, or one a position of it"
        raise UsageError(rule, sizes, "store integers; for one-hot labels: labels.argmax(1)")
    if stored.size > count:
        return stored
    labels = stored.reshape(-1)
    known = (labels >= 0).all() and len(np.unique(labels)) > 1
    return labels if known else None  # one class for all (as in anomaly detection) ranks nothing


def _negative_labels(path: Path, arrays: Mapping[str, Array], labels: Array | None) -> Iterator[str]:
    """Yield a warning where some labels name no class, so that none is used."""
    numbers = next((np.asarray(arrays[key]).reshape(-1) for key in _LABELS if key in arrays), None)
    if labels is not None or numbers is None or numbers.dtype.kind != "i":
        return
    negative = int((numbers < 0).sum())
    if 0 < negative < len(numbers):
        remedy = "give each sample the number of its class, or leave out samples without one"
        yield f"{path}: {negative} of {len(numbers)} labels are negative and name no class: no label is used; {remedy}"


def _saturated(
    raw: Sequence[Mapping[str, RawArray]], endpoints: Sequence[Endpoint], steps: Preprocessing
) -> Iterator[str]:
    """Yield a warning for each integer input that is given reals beyond what its type holds."""
    for endpoint in endpoints:
        if endpoint.quant is None:
            continue
        placed = [(sample[endpoint.name].place, np.asarray(sample[endpoint.name].array)) for sample in raw]
        reals = [steps.numbers(place, array) for place, array in placed]
        scale, zero = float(endpoint.quant.scale[0]), endpoint.quant.zero_point
        low, high = ((end - zero) * scale for end in endpoint.dtype.limits)
        floats = [{endpoint.name: array} for array in reals if array.dtype.kind == "f"]
        yield from range_warnings(floats, {endpoint.name: (low, high)})


def _is_one_hot(labels: Array) -> bool:
    """Return whether labels have a column for each class: as class numbers of positions, nearly all would be 0."""
    return (
        labels.ndim == 2
        and labels.shape[1] > 1
        and set(np.unique(labels)) == {0, 1}
        and bool((labels.sum(1) == 1).all())
    )


def as_stored(sample: Mapping[str, Array], endpoints: Sequence[Endpoint]) -> dict[str, Array]:
    """Return a sample in the types that the generated code takes: values of quantized inputs are quantized."""
    return {e.name: _codes(sample[e.name], e) for e in endpoints if e.name in sample}


def _codes(array: Array, endpoint: Endpoint) -> Array:
    if endpoint.quant is None or array.dtype.kind != "f":
        return array
    return quantize(array, endpoint.quant, endpoint.dtype)


def graph_endpoints(graph: Graph, states: Mapping[str, str] | None = None) -> list[Endpoint]:
    """Return descriptions (Endpoint) of the inputs of a graph that is not lowered yet, without states.

    Args:
        graph: The graph.
        states: The input that gets the value of each of these outputs in the next call.
    """
    return value_endpoints([v for v in graph.inputs if v.name not in (states or {}).values()])


def value_endpoints(values: Sequence[Value]) -> list[Endpoint]:
    """Return descriptions (Endpoint) of values of a graph that is not lowered yet.

    Their buffers do not exist yet, and are placeholders.
    """
    nowhere = Buffer("", DType.FLOAT32, 0, Space.INPUT)
    return [Endpoint(v.name, v.type.shape, v.type.dtype, v.type.quant, nowhere) for v in values]
