# SPDX-License-Identifier: Apache-2.0
"""What is asked of a compilation besides code: to quantize a model, and to judge it."""

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
    """How a float model is quantized, if at all. UsageError for what contradicts itself.

    `precision` is of PRECISIONS or FEW_BITS, or MIXED; "" is int8 where there are samples (`calibration`: a file, a
    folder, or arrays), a `profile` of earlier ones or `synthetic` ones (LOW..HIGH or STATISTICS), else float32.
    `preprocess` is what becomes of each sample first (see mcugen.evaluation.preprocess). `scheme` says more (see
    mcugen.quantization.scheme); `layers` are precisions of single layers, by the names of their outputs.
    """

    precision: str = ""
    calibration: str | Path | Mapping[str, npt.NDArray[Any]] | None = None
    profile: str | Path | None = None
    preprocess: str = ""
    scheme: Scheme | None = None
    layers: Mapping[str, str] = field(default_factory=dict)
    """Precisions of single layers, by the names of their outputs: values of PRECISIONS or WIDE_WEIGHTS, int4
    (FEW_BITS) or int2 (TWO_BITS)."""
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
            found = f"--synthetic {self.synthetic} and --{'profile' if self.calibration is None else 'calibration'}"
            raise UsageError("synthetic samples are for models without data", found, "leave out --synthetic")

    @property
    def is_wanted(self) -> bool:
        """Whether there is anything to quantize."""
        return self.precision != "float32"

    @property
    def activations(self) -> str:
        """Their element type (a DType), where nothing else is said of a layer."""
        return PRECISIONS.get(self.precision, "int8")

    @property
    def weights(self) -> str:
        """The element type of weights (a DType), as far as the model bears it."""
        return "int4" if self.precision in FEW_BITS else "int8"

    @property
    def group(self) -> int:
        """Inputs that share a scale of weights, where these have 4 bits; 0: all."""
        return FEW_BITS.get(self.precision, 0)


@dataclass(frozen=True)
class Judging:
    """How a model is judged: by samples (`data`: a file, a folder, or arrays), by a measure, and what is good enough.

    `metric` is one of METRICS, or FILE.py:FUNCTION; "" is top1 where there are labels, else sqnr. `max_drop`
    (percentage points) and `min_sqnr` (dB) are what mixed precisions must reach, with weights of at most `max_weights`
    of their bytes as int8.
    """

    data: str | Path | Mapping[str, npt.NDArray[Any]] | None = None
    pixel_scale: float = 1.0
    metric: str = ""
    max_drop: float | None = None
    min_sqnr: float | None = None
    max_weights: float | None = None


@dataclass(frozen=True)
class Teaching:
    """What a model is shown: a file of samples with labels, in its order, so many times, at a learning rate."""

    lesson: Path
    rate: float = 0.01
    epochs: int = 1
