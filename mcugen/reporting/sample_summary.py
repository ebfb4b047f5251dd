# SPDX-License-Identifier: Apache-2.0
"""A summary of samples for users: ranges, labels, doubts and pictures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mcugen.core.errors import shortened
from mcugen.evaluation.sample_results import view_of
from mcugen.evaluation.samples import Samples, spread
from mcugen.reporting.html import picture

MAX_PICTURES = 8
"""Largest number of samples that are shown."""
FEW_SAMPLES = 32
"""Smallest number of samples that is enough to calibrate a network without a warning."""


def summarize_samples(samples: Samples, classes: Sequence[str]) -> dict[str, Any]:
    """Return JSON data on samples: their number, ranges of inputs, labels, warnings, and pictures as data addresses.

    Args:
        samples: The samples, at least one.
        classes: Names of the classes by number; empty if unknown.
    """
    return {
        "count": len(samples.inputs),
        "inputs": [_ranges(samples, name) for name in samples.inputs[0]],
        "labels": _label_counts(samples, classes),
        "warnings": list(_doubts(samples)),
        "pictures": _pictures(samples, classes),
    }


def _ranges(samples: Samples, name: str) -> dict[str, Any]:
    arrays = [np.asarray(sample[name]) for sample in samples.inputs]
    low, high = (float(function([function(array) for array in arrays])) for function in (np.min, np.max))
    return {"name": name, "shape": list(arrays[0].shape), "low": low, "high": high}


def _label_counts(samples: Samples, classes: Sequence[str]) -> list[tuple[str, int]]:
    """Return the number of samples of each class, by name or number; empty without labels."""
    if samples.labels is None or samples.labels.ndim != 1 or samples.labels.dtype.kind not in "iu":
        return []
    counts = Counter(samples.labels.tolist())
    return [(_class_name(label, classes), count) for label, count in sorted(counts.items())]


def _class_name(label: int, classes: Sequence[str]) -> str:
    return classes[label] if 0 <= label < len(classes) else str(label)


def _doubts(samples: Samples) -> Iterator[str]:
    """Yield warnings on too few, constant, equal and infinite samples."""
    count = len(samples.inputs)
    if count < FEW_SAMPLES:
        yield f"there are only {count} samples: ranges of rare values may be missed; {FEW_SAMPLES} or more are better"
    for name, first in samples.inputs[0].items():
        arrays = [np.asarray(sample[name]) for sample in samples.inputs]
        constant = sum(array.size > 1 and bool((array == array.reshape(-1)[0]).all()) for array in arrays)
        if constant:
            yield f"'{name}' has one value everywhere in {constant} of {count} samples"
        if count > 1 and all(np.array_equal(array, first) for array in arrays):
            yield f"'{name}' is equal in all samples"
        if any(array.dtype.kind == "f" and not np.isfinite(array).all() for array in arrays):
            yield f"'{name}' has values that are not finite"


def _pictures(samples: Samples, classes: Sequence[str]) -> list[dict[str, str]]:
    """Return pictures of some samples, each with a caption."""
    shown = []
    for index in spread(len(samples.inputs), MAX_PICTURES):
        raw = next(iter(samples.inputs[index].values())) if samples.raw is None else samples.raw[index]
        view = view_of(np.asarray(raw))
        label = samples.labels[index] if samples.labels is not None and samples.labels.ndim == 1 else None
        caption = f"{index}" if label is None else f"{index}: {_class_name(int(label), classes)}"
        if view is not None:
            shown.append({"source": str(picture(view)), "caption": shortened(caption, 40)})
    return shown
