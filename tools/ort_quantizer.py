# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime's static quantizer, which studies compare with mcugen's."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process


class Samples(CalibrationDataReader):  # type: ignore[misc]
    """Calibration samples as the quantizer reads them."""

    def __init__(self, samples: Sequence[Mapping[str, np.ndarray]]) -> None:
        self._remaining = iter(samples)

    def get_next(self) -> Mapping[str, np.ndarray] | None:
        """Return the next sample, or None behind the last one."""
        return next(self._remaining, None)


def prepared(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model as the quantizer wants it: optimized, with all shapes."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "source.onnx"), Path(folder, "prepared.onnx")
        onnx.save(model, source)
        quant_pre_process(str(source), str(target), skip_symbolic_shape=True)
        return onnx.load(target)


def quantized(model: onnx.ModelProto, samples: Sequence[Mapping[str, np.ndarray]], **settings: Any) -> onnx.ModelProto:
    """Return a prepared model with int8 weights, by `settings` of `quantize_static`."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = (str(Path(folder, f"{name}.onnx")) for name in ("source", "target"))
        onnx.save(model, source)
        quantize_static(source, target, Samples(samples), weight_type=QuantType.QInt8, **settings)
        return onnx.load(target)
