# SPDX-License-Identifier: Apache-2.0
"""Profiles as JSON files: written once, read for every scheme that is tried."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mcugen.codegen.write import write_text
from mcugen.core.errors import UsageError
from mcugen.core.limits import MAX_PROFILE_BYTES, read_bounded
from mcugen.quantization.float_model import FloatModel
from mcugen.quantization.profile import RANGE_HISTOGRAM_BINS, Profile, TensorProfile, fingerprint

PROFILE_FORMAT_VERSION = 1
"""Version of the JSON format of profiles; files of another version are refused."""

_MAX_BIN_COUNT = 2**53
"""Largest count of a bin: float64 holds integers up to here exactly."""

_MAX_REAL = 1e39
"""Magnitude that all reals must stay below, larger than any float32 number; NaN fails the comparison, too."""


def write_profile(profile: Profile, path: Path) -> None:
    """Write a profile as a JSON object, with one line per tensor."""
    tensors = (f"  {json.dumps(name)}: {json.dumps(vars(tensor))}" for name, tensor in profile.tensors.items())
    version = f'"version": {PROFILE_FORMAT_VERSION},\n'
    head = f'{version}"sha256": {json.dumps(profile.sha256)},\n"samples": {profile.samples},\n'
    write_text(path, "{\n" + head + '"tensors": {\n' + ",\n".join(tensors) + "\n}\n}\n")


def read_profile(path: Path, model: FloatModel) -> Profile:
    """Read a profile of `model`.

    Raises:
        UsageError: The file holds the profile of another model, or no profile.
    """
    try:
        profile = _profile(json.loads(read_bounded(path, MAX_PROFILE_BYTES)))
    except OSError as error:
        raise _profile_error(path, error.strerror or "an unreadable file") from error
    except (ValueError, RecursionError) as error:
        raise _profile_error(path, str(error)[:120]) from error
    if profile.sha256 != fingerprint(model):
        remedy = "run `mcugen profile` on this model with the same --dim, --bind and --without"
        raise UsageError(f"{path}: the profile must be of the model to quantize", "that of another", remedy)
    missing = {v.name for v in model.tensors} - profile.tensors.keys()
    if missing:
        raise _profile_error(path, f"nothing about tensor '{min(missing)}'")
    return profile


def _profile_error(path: Path, fault: str) -> UsageError:
    return UsageError(f"{path}: must be a profile", fault, "write it with `mcugen profile`")


def _profile(document: Any) -> Profile:
    """Return the profile in a JSON document; a ValueError says what is wrong with it."""
    _require(isinstance(document, dict), "no JSON object")
    _require(
        document.get("version") == PROFILE_FORMAT_VERSION,
        f"version {document.get('version')!r}, not {PROFILE_FORMAT_VERSION}",
    )
    sha256, samples, tensors = (document.get(key) for key in ("sha256", "samples", "tensors"))
    _require(isinstance(sha256, str), "no 'sha256'")
    _require(type(samples) is int and samples > 0, "no count of 'samples'")
    _require(isinstance(tensors, dict), "no 'tensors'")
    assert isinstance(sha256, str) and isinstance(samples, int) and isinstance(tensors, dict)
    return Profile(sha256, samples, {name: _tensor(name, samples, entry) for name, entry in tensors.items()})


def _tensor(name: str, samples: int, entry: Any) -> TensorProfile:
    _require(isinstance(entry, dict), f"tensor '{name}' is no object")
    lows, highs, means = (_reals(name, key, entry.get(key)) for key in ("lows", "highs", "means"))
    _require(len(lows) == len(highs) == samples, f"tensor '{name}' has not one 'lows' and 'highs' a sample")
    _require(all(low <= high for low, high in zip(lows, highs, strict=True)), f"tensor '{name}' has lows above highs")
    counts = entry.get("histogram")
    whole = isinstance(counts, list) and all(type(n) is int and 0 <= n <= _MAX_BIN_COUNT for n in counts)
    _require(
        whole and len(counts) == RANGE_HISTOGRAM_BINS and sum(counts) > 0,
        f"tensor '{name}' has no 'histogram' of {RANGE_HISTOGRAM_BINS} counts",
    )
    return TensorProfile(lows, highs, tuple(counts), means)


def _reals(name: str, key: str, entry: Any) -> tuple[float, ...]:
    numbers = isinstance(entry, list) and all(type(x) in (int, float) for x in entry)
    _require(numbers and all(abs(x) < _MAX_REAL for x in entry), f"tensor '{name}' has no '{key}'")
    return tuple(map(float, entry))


def _require(condition: bool, fault: str) -> None:
    if not condition:
        raise ValueError(fault)
