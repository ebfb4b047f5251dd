# SPDX-License-Identifier: Apache-2.0
"""Quantizes digits_f32.onnx to digits_int8.onnx with ONNX Runtime and prints the accuracy of both."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from mcugen.evaluation.session import Session

HERE = Path(__file__).resolve().parent
FLOAT_MODEL = HERE / "digits_f32.onnx"
INT8_MODEL = HERE / "digits_int8.onnx"
CALIBRATION = HERE / "calibration.npz"
EVAL = HERE / "eval.npz"


class Samples(CalibrationDataReader):
    """Feeds images to the calibrator one by one."""

    def __init__(self, images: np.ndarray) -> None:
        self._feeds: Iterator[dict[str, np.ndarray]] = ({"image": image[None]} for image in images)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._feeds, None)


def quantize() -> None:
    """Write the QDQ twin of the float model."""
    with tempfile.TemporaryDirectory() as folder:
        folded = Path(folder) / "folded.onnx"  # batch norms folded into convolutions
        quant_pre_process(FLOAT_MODEL, folded, skip_symbolic_shape=True)
        quantize_static(
            folded,
            INT8_MODEL,
            Samples(np.load(CALIBRATION)["image"]),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QInt8,
            weight_type=QuantType.QInt8,
        )
    model = onnx.load(INT8_MODEL)
    for opset in [opset for opset in model.opset_import if opset.domain]:
        model.opset_import.remove(opset)  # ONNX Runtime lists every operator set it knows
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, INT8_MODEL)


def accuracy(model: Path) -> float:
    """Share of the evaluation set that ONNX Runtime classifies rightly."""
    data = np.load(EVAL)
    session = Session(onnx.load(model))  # the same figures on every CPU
    scores = np.concatenate([session.run(["scores"], {"image": image[None]})["scores"] for image in data["image"]])
    return float((scores.argmax(axis=1) == data["labels"]).mean())


def print_accuracies() -> None:
    """One line a model."""
    for model in (FLOAT_MODEL, INT8_MODEL):
        print(f"{model.name}: {100 * accuracy(model):.2f} % of {len(np.load(EVAL)['labels'])} samples")


if __name__ == "__main__":
    quantize()
    print_accuracies()
