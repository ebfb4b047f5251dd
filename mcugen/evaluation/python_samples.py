# SPDX-License-Identifier: Apache-2.0
"""Samples as Python programs hold them: arrays, lists, dictionaries or files, brought to one form."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mcugen.core.errors import UsageError, listed
from mcugen.evaluation.sample_files import ONLY_INPUT_NAME
from mcugen.hir.types import Array, DType

SampleInput: TypeAlias = (
    str
    | os.PathLike[str]
    | npt.ArrayLike
    | Mapping[str, npt.ArrayLike]
    | Sequence[Mapping[str, npt.ArrayLike]]
    | tuple[npt.ArrayLike | Mapping[str, npt.ArrayLike] | Sequence[Mapping[str, npt.ArrayLike]], npt.ArrayLike | None]
)
"""Type of samples as a user gives them; see `sample_source`. Arrays may be of any library that numpy can convert."""

LABELS_NAME = "labels"
"""Name of the array of labels among the arrays of samples."""


def sample_source(samples: object) -> Path | dict[str, Array]:
    """Return samples in one of the forms that `load_samples` takes: a path, or arrays by name.

    Args:
        samples: A SampleInput, which is one of these:

            - the path of an .npz file, an .npy file, or a folder with one sample in each file;
            - for a model with one input: an array with a leading axis of samples, or a list of arrays;
            - a dictionary from the names of inputs to such arrays or lists;
            - a list with a dictionary for each sample, from the names of inputs to arrays;
            - a tuple of any of these except a path, and the labels of the samples.

    Raises:
        UsageError: The samples have another form, or differ in shape.
    """
    if isinstance(samples, str | os.PathLike):
        return Path(samples)
    if isinstance(samples, tuple):
        return _labelled(samples)
    if isinstance(samples, list) and samples and all(isinstance(sample, Mapping) for sample in samples):
        samples = _by_name(samples)
    if isinstance(samples, Mapping):
        return {str(name): _array(str(name), values) for name, values in samples.items()}
    return {ONLY_INPUT_NAME: _array(ONLY_INPUT_NAME, samples)}


def _labelled(pair: tuple[Any, ...]) -> dict[str, Array]:
    """Return the arrays of a tuple of samples and labels."""
    source = sample_source(pair[0]) if len(pair) == 2 else None
    if not isinstance(source, dict):
        fault = f"a tuple of {len(pair)}" if source is None else "a path in a tuple"
        remedy = "give a list of samples, or (samples, labels); a file holds labels itself"
        raise UsageError("a tuple of samples must be arrays and their labels", fault, remedy)
    return source | ({} if pair[1] is None else {LABELS_NAME: _array(LABELS_NAME, pair[1])})


def _by_name(samples: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the arrays of all samples for each name.

    Raises:
        UsageError: The samples do not have the same names.
    """
    names = list(samples[0])
    other = next((number for number, sample in enumerate(samples) if sample.keys() != samples[0].keys()), None)
    if other is not None:
        fault = f"sample 0 has {listed(map(str, names))}, sample {other} has {listed(map(str, samples[other]))}"
        raise UsageError("samples in a list must have the same names", fault, "name the arrays like the model's inputs")
    return {name: [sample[name] for sample in samples] for name in names}


def _array(name: str, values: object) -> Array:
    """Return the array of one name, with a leading axis of samples.

    Raises:
        UsageError: The values are not numbers, or the samples differ in shape.
    """
    rule, remedy = (
        f"samples '{name}' must be numbers in arrays of one shape",
        "give an array, a list of arrays or a path",
    )
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:  # Libraries refuse to convert tensors on other devices, say.
        raise UsageError(rule, str(error).split("\n")[0], remedy) from error
    if array.dtype == DType.BFLOAT16.numpy:  # NumPy has no kind of its own for this type.
        array = array.astype(np.float32)
    if array.dtype.kind not in "fiub" or array.ndim == 0:
        raise UsageError(rule, f"{type(values).__name__} of {array.dtype}", remedy)
    return array
