# SPDX-License-Identifier: Apache-2.0
"""Files of samples: .npz or .npy with all samples, or folders of .npz, .npy or .png with one sample each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mcugen.core.errors import UsageError, listed
from mcugen.core.limits import MAX_FILE_SAMPLES
from mcugen.evaluation.array_files import read_npy, read_npz
from mcugen.evaluation.preprocess import Preprocessing
from mcugen.hir.types import Array

RAW_PIXELS_NAME = "x_uint8"
"""Name of an array of raw pixels in a file of samples."""

UNNAMED_ARRAY = "arr_0"
"""Name that `numpy.savez` gives to the first array without a name."""

ONLY_INPUT_NAME = "x"
"""Name that the array of samples may have, besides the input's own name, if the model has only one input."""


@dataclass(frozen=True)
class RawArray:
    """An array as a file contains it.

    Attributes:
        place: File and array, for messages.
        key: Name of the array.
        array: The array.
        layout: Order of the axes of an image, "hwc" or "chw", if the file format defines it; else "".
    """

    place: str
    key: str
    array: Array
    layout: str = ""


RawSample = dict[str, RawArray]
"""Arrays of one sample, by name of the model's input."""


def read_samples(
    source: Path | Mapping[str, Array], inputs: Sequence[str], steps: Preprocessing
) -> tuple[list[RawSample], Mapping[str, Array]]:
    """Read samples from a file, a folder or arrays.

    Args:
        source: A file, a folder with one sample in each file, or arrays by name.
        inputs: The names of the model's inputs.
        steps: The preprocessing of images.

    Returns:
        At least one sample, each with all `inputs`; and all arrays of the file, or those given, empty for a folder.

    Raises:
        UsageError: A file or an array is not valid; the message names it.
    """
    path = source if isinstance(source, Path) else Path("samples")
    if not isinstance(source, Path):
        arrays: Mapping[str, Array] = {name: np.asarray(array) for name, array in source.items()}
    elif path.is_dir():
        return list(_read_folder(path, inputs, steps)), {}
    else:
        arrays = {ONLY_INPUT_NAME: read_npy(path)} if path.suffix == ".npy" else read_npz(path)
    _require_images(path, steps, False)
    chosen = {name: _array_of(path, arrays, name, len(inputs) == 1) for name in inputs}
    for raw in chosen.values():
        if raw.array.ndim == 0 or not len(raw.array):
            raise UsageError(f"{raw.place} must have a leading axis of samples", str(raw.array.shape))
    counts = {raw.key: len(raw.array) for raw in chosen.values()}
    if len(set(counts.values())) != 1:
        raise UsageError(f"{path}: inputs must have equally many samples", str(counts), "repair the file")
    count = next(iter(counts.values()))
    if count > MAX_FILE_SAMPLES:
        raise UsageError(
            f"{path}: there must be at most {MAX_FILE_SAMPLES:,} samples", f"{count:,}", "give some of them"
        )
    samples = [{n: RawArray(f"{r.place}[{i}]", r.key, r.array[i]) for n, r in chosen.items()} for i in range(count)]
    return samples, arrays


def _read_folder(folder: Path, inputs: Sequence[str], steps: Preprocessing) -> Iterator[RawSample]:
    """Yield one sample a file, in the order of their names."""
    files = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    kinds: Mapping[str, Callable[[Path], Mapping[str, Array]]] = {
        ".npy": lambda path: {ONLY_INPUT_NAME: read_npy(path)},
        ".npz": read_npz,
        ".png": lambda path: {RAW_PIXELS_NAME: steps.read_image(path)},
    }
    rule = f"{folder}: a folder of samples must hold .npy, .npz or .png files"
    if not files:
        raise UsageError(rule, "nothing", "put one sample in each file")
    suffixes = {path.suffix.lower(): path for path in files}
    for suffix, path in suffixes.items():
        if suffix not in kinds:
            raise UsageError(rule, f"'{path.name}'", "move other files away")
    if len(suffixes) > 1:
        file_names = " and ".join(f"'{path.name}'" for path in list(suffixes.values())[:2])
        raise UsageError(f"{rule}, all of one kind", file_names, "make a folder of each")
    (suffix,) = suffixes
    _require_images(folder, steps, suffix == ".png")
    for path in files:
        arrays = kinds[suffix](path)
        yield {name: _array_of(path, arrays, name, len(inputs) == 1) for name in inputs}


def _require_images(path: Path, steps: Preprocessing, images: bool) -> None:
    keys = ["resize"] * bool(steps.size) + ["gray" if steps.mode == "L" else "rgb"] * bool(steps.mode)
    if keys and not images:
        remedy = "leave it out, or give a folder of .png"
        raise UsageError(f"--preprocess {keys[0]} must be for images", f"arrays in {path}", remedy)


def _array_of(path: Path, arrays: Mapping[str, Array], name: str, only: bool) -> RawArray:
    """Return the array of an input: its name is the input's, or `x` or `x_uint8` if there is only one input.

    The only array of a file may have the name that `numpy.savez` gives to arrays without one.
    """
    if not only and path.suffix.lower() in (".npy", ".png"):
        rule = f"{path}: a sample of several inputs must be in an .npz file"
        raise UsageError(rule, f"a {path.suffix} file", "name its arrays like the inputs")
    names = [name, *((ONLY_INPUT_NAME, RAW_PIXELS_NAME) if only else ())]
    for key in [*names, *([UNNAMED_ARRAY] if only and len(arrays) == 1 else [])]:
        if key in arrays:
            return RawArray(f"{path}: '{key}'", key, arrays[key], "hwc" if path.suffix.lower() == ".png" else "")
    expected_names = " or ".join(f"'{n}'" for n in names)
    present = listed(f"'{key}'" for key in arrays) or "nothing"
    raise UsageError(
        f"{path}: there must be an array {expected_names}", present, "name the arrays like the model's inputs"
    )
