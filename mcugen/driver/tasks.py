# SPDX-License-Identifier: Apache-2.0
"""Tasks of a compilation besides code: quantizing a model, judging it, and training it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcugen.core.errors import UsageError
from mcugen.core.options import FEW_BITS, MIXED, PRECISIONS

if TYPE_CHECKING:
    import numpy.typing as npt

    from mcugen.quantization.scheme import Scheme


@dataclass(frozen=True)
class Quantizing:
    """Settings to quantize a float model, if it is quantized at all.

    `precision` is one of PRECISIONS or FEW_BITS, or MIXED. "" stands for int8 if there are samples, a `profile` of
    earlier samples, or `synthetic` ones (LOW..HIGH or STATISTICS), else for float32. `calibration` names the samples: a
    file, a folder, or arrays. `preprocess` is applied to each sample first (see mcugen.evaluation.preprocess). `scheme`
    has further settings (see mcugen.quantization.scheme).

    Raises:
        UsageError: If the settings contradict each other.
    """

    precision: str = ""
    calibration: str | Path | Mapping[str, npt.NDArray[Any]] | None = None
    profile: str | Path | None = None
    preprocess: str = ""
    scheme: Scheme | None = None
    layers: Mapping[str, str] = field(default_factory=dict)
    """Precisions of single layers by output name: values of PRECISIONS or WIDE_WEIGHTS, int4 (FEW_BITS) or int2."""
    synthetic: str = ""
    finetune: int = 0
    """Epochs of quantization-aware fine-tuning on the samples (see mcugen.quantization.finetune)."""

    def __post_init__(self) -> None:
        real = self.calibration is not None or self.profile is not None
        known = real or bool(self.synthetic)
        object.__setattr__(self, "precision", self.precision or ("int8" if known else "float32"))
        allowed = (*PRECISIONS, *FEW_BITS, MIXED)
        if self.precision not in allowed:
            raise UsageError("--precision must be known", f"'{self.precision}'", f"one of: {', '.join(allowed)}")
        if not self.is_wanted and (known or self.layers):
            raise UsageError("samples are for quantization", "--precision float32", "give --precision int8")
        if self.is_wanted and not known:
            remedy = "give --calibration SAMPLES.npz or --profile PROFILE.json; without any data --synthetic LOW..HIGH"
            raise UsageError("quantization needs samples of the model's inputs", "none", remedy)
        if real and self.synthetic:
            problem = f"--synthetic {self.synthetic} and --{'profile' if self.calibration is None else 'calibration'}"
            raise UsageError("synthetic samples are for models without data", problem, "leave out --synthetic")

    @property
    def is_wanted(self) -> bool:
        """Return whether the model is quantized."""
        return self.precision != "float32"

    @property
    def activations(self) -> str:
        """Return the element type of activations (a DType) of layers without a precision of their own."""
        return PRECISIONS.get(self.precision, "int8")

    @property
    def weights(self) -> str:
        """Return the element type of weights (a DType), for layers that support it."""
        return "int4" if self.precision in FEW_BITS else "int8"

    @property
    def group(self) -> int:
        """Return how many inputs share a scale of 4-bit weights; 0 means all."""
        return FEW_BITS.get(self.precision, 0)


@dataclass(frozen=True)
class Judging:
    """Settings to judge a model: the samples (`data`: a file, a folder, or arrays), the metric, and the limits.

    `metric` is one of METRICS, or FILE.py:FUNCTION; "" is top1 if there are labels, else sqnr. Mixed precisions must
    keep to `max_drop` (percentage points) and `min_sqnr` (dB), with weights of at most the share `max_weights` of their
    bytes as int8.
    """

    data: str | Path | Mapping[str, npt.NDArray[Any]] | None = None
    pixel_scale: float = 1.0
    metric: str = ""
    max_drop: float | None = None
    min_sqnr: float | None = None
    max_weights: float | None = None


@dataclass(frozen=True)
class Teaching:
    """Settings to train a model: a file of labelled samples, in its order, epochs, and the learning rate."""

    lesson: Path
    rate: float = 0.01
    epochs: int = 1
