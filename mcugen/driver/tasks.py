# SPDX-License-Identifier: Apache-2.0
"""Tasks of a compilation besides code: quantizing a model, judging it, and training it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcugen.core.errors import UsageError
from mcugen.core.options import FOUR_BIT_GROUP_SIZES, MIXED, PRECISIONS

if TYPE_CHECKING:
    import numpy.typing as npt

    from mcugen.quantization.scheme import Scheme


@dataclass(frozen=True)
class Quantizing:
    """Settings to quantize a float model, and whether it is quantized at all.

    Attributes:
        precision: "float32", "int8", "int16x8", a key of FOUR_BIT_GROUP_SIZES such as "w4a8" (4-bit weights), or "auto"
            to search for the precision of each layer. "" stands for int8 if there are samples of any kind, else for
            float32.
        calibration: The samples to quantize with: a file, a folder, or arrays by input name.
        profile: File of statistics that earlier samples gave (`mcugen profile`), in place of samples.
        preprocess: What is applied to each sample first (see mcugen.evaluation.preprocess).
        scheme: Further settings (see mcugen.quantization.scheme).
        synthetic: LOW..HIGH for random samples, or "statistics" for samples made from the statistics in the model's
            batch normalizations.

    Raises:
        UsageError: If the settings contradict each other.
    """

    precision: str = ""
    calibration: str | Path | Mapping[str, npt.NDArray[Any]] | None = None
    profile: str | Path | None = None
    preprocess: str = ""
    scheme: Scheme | None = None
    layers: Mapping[str, str] = field(default_factory=dict)
    """Precisions of single layers by output name: "float32", "int8", "int16x8", "int16x16", "int4" or "int2"."""
    synthetic: str = ""
    finetune: int = 0
    """Number of epochs of quantization-aware fine-tuning on the samples (mcugen.quantization.finetune); 0 for none."""

    def __post_init__(self) -> None:
        real = self.calibration is not None or self.profile is not None
        known = real or bool(self.synthetic)
        object.__setattr__(self, "precision", self.precision or ("int8" if known else "float32"))
        allowed = (*PRECISIONS, *FOUR_BIT_GROUP_SIZES, MIXED)
        if self.precision not in allowed:
            raise UsageError("--precision must be known", f"'{self.precision}'", f"one of: {', '.join(allowed)}")
        if not self.is_wanted and (known or self.layers):
            raise UsageError("samples are for quantization", "--precision float32", "give --precision int8")
        if self.is_wanted and not known:
            remedy = "give --calibration SAMPLES.npz or --profile PROFILE.json; without any data --synthetic LOW..HIGH"
            raise UsageError("quantization needs samples of the model's inputs", "none", remedy)
        if real and self.synthetic:
            problem = f"--synthetic {self.synthetic} and --{'profile' if self.calibration is None else 'calibration'}"
            raise UsageError("--synthetic replaces samples", problem, "leave out --synthetic")

    @property
    def is_wanted(self) -> bool:
        """Return whether the model is quantized."""
        return self.precision != "float32"

    @property
    def activations(self) -> str:
        """Return the name of the DType of activations in layers without a precision of their own."""
        return PRECISIONS.get(self.precision, "int8")

    @property
    def weights(self) -> str:
        """Return the name of the weights' DType, for layers that support it."""
        return "int4" if self.precision in FOUR_BIT_GROUP_SIZES else "int8"

    @property
    def group(self) -> int:
        """Return the number of inputs of a layer whose 4-bit weights share a scale; 0 means all inputs."""
        return FOUR_BIT_GROUP_SIZES.get(self.precision, 0)


@dataclass(frozen=True)
class Judging:
    """Settings to measure the accuracy of a model, and the limits that mixed precision must keep to.

    Attributes:
        data: The samples: a file, a folder, or arrays by name.
        pixel_scale: Factor by which raw pixels of images are multiplied for a float input.
        metric: One of METRICS, or FILE.py:FUNCTION; "" is top1 if there are labels, else sqnr.
        max_drop: Largest loss of the metric against float32, in percentage points for shares; None if not limited.
        min_sqnr: Smallest SQNR of the outputs in dB; None if not limited.
        max_weights: Largest size of the weights, as a share (0 to 1) of their bytes in int8; None if not limited.
    """

    data: str | Path | Mapping[str, npt.NDArray[Any]] | None = None
    pixel_scale: float = 1.0
    metric: str = ""
    max_drop: float | None = None
    min_sqnr: float | None = None
    max_weights: float | None = None


@dataclass(frozen=True)
class Teaching:
    """Settings to train the generated code on samples in the simulator.

    Attributes:
        lesson: File of labelled samples, which are learned in the order of the file.
        rate: Learning rate.
        epochs: Number of passes over the samples.
    """

    lesson: Path
    rate: float = 0.01
    epochs: int = 1
