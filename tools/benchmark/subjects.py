# SPDX-License-Identifier: Apache-2.0
"""The models that are compared, a sample of inputs for each, and how far outputs may be off."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from mcugen.codegen.bundle import Port
from mcugen.core.errors import UsageError
from mcugen.evaluation.accuracy import run_onnxruntime

Sample = dict[str, np.ndarray]

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT.parent / "shared" / "models"
DIGITS = ROOT / "examples" / "digits"

FLOAT_MODELS = (
    DIGITS / "digits_f32.onnx",
    MODELS / "mnist_cntk.onnx",
    MODELS / "resnet8_cifar10_f32.onnx",
    MODELS / "ds_cnn_kws_f32.onnx",
    MODELS / "mobilenet_v1_025_vww_f32.onnx",
    MODELS / "autoencoder_ad_f32.onnx",
    MODELS / "streaming_wakeword_f32.onnx",
)
INT8_MODELS = (
    DIGITS / "digits_int8.onnx",
    MODELS / "resnet8_cifar10_int8_qdq.onnx",
    MODELS / "ds_cnn_kws_int8_qdq.onnx",
    MODELS / "mobilenet_v1_025_vww_int8_qdq.onnx",
    MODELS / "autoencoder_ad_int8_qdq.onnx",
    MODELS / "streaming_wakeword_int8_qdq.onnx",
)

FLOAT_TOLERANCE = 1e-3
"""Largest error of an output, relative to the output of largest magnitude."""
INT_TOLERANCE = 4
"""Largest error of an integer output, in quantization steps: rounding may differ by one in every layer."""


@dataclass(frozen=True)
class Subject:
    """A model file with a sample of inputs, and the outputs to expect."""

    path: Path
    sample: Sample
    reference: Mapping[str, np.ndarray]

    @property
    def name(self) -> str:
        """Name of the file, without its suffix."""
        return self.path.stem


def load_subject(path: Path) -> Subject:
    """Reads a model, chooses its sample, and asks ONNX Runtime for the outputs."""
    model = onnx.load(path)
    sample = sample_for(path, ports(model, "model")[0])
    return Subject(path, sample, run_onnxruntime(model, [sample])[0])


def ports(model: onnx.ModelProto, name: str) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
    """Inputs and outputs as the ONNX file declares them. UsageError for a shape that is not fixed."""
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in constants]
    return (
        tuple(_port(value, f"{name}_input_{i}") for i, value in enumerate(inputs)),
        tuple(_port(value, f"{name}_output_{i}") for i, value in enumerate(model.graph.output)),
    )


def _port(value: onnx.ValueInfoProto, accessor: str) -> Port:
    tensor = value.type.tensor_type
    dims = tensor.shape.dim
    if not all(dim.HasField("dim_value") for dim in dims):
        raise UsageError(f"'{value.name}' must have a fixed shape to be compared")
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    shape = tuple(dim.dim_value for dim in dims)
    return Port(value.name, accessor, dtype.name, shape, math.prod(shape) * dtype.itemsize)


def sample_for(path: Path, inputs: Sequence[Port]) -> Sample:
    """The first recorded sample beside the model, or seeded random numbers."""
    recorded = path.with_suffix(".io.npz")
    if recorded.is_file():
        with np.load(recorded, allow_pickle=False) as arrays:
            return {port.name: arrays[f"in0_{i}"] for i, port in enumerate(inputs)}
    random = np.random.default_rng(0)
    return {port.name: _random(random, port) for port in inputs}


def _random(random: np.random.Generator, port: Port) -> np.ndarray:
    dtype = np.dtype(port.dtype)
    if dtype.kind == "f":
        return random.standard_normal(port.shape).astype(dtype)
    limits = np.iinfo(dtype)
    return random.integers(limits.min, limits.max, port.shape, dtype, endpoint=True)


def largest_error(outputs: Mapping[str, np.ndarray], reference: Mapping[str, np.ndarray]) -> float:
    """Relative to the largest magnitude for float outputs, in quantization steps for integers; NaN is infinite."""
    return max((_error(outputs[name], wanted) for name, wanted in reference.items()), default=0.0)


def _error(found: np.ndarray, wanted: np.ndarray) -> float:
    error = float(np.abs(found.astype(np.float64) - wanted.astype(np.float64)).max(initial=0.0))
    if math.isnan(error):
        return math.inf
    return error / (float(np.abs(wanted).max(initial=0.0)) or 1.0) if wanted.dtype.kind == "f" else error


def chosen(models: Sequence[Path], terms: str) -> list[Path]:
    """Those that exist and whose name has one of the terms, which commas separate."""
    wanted = [term.strip() for term in terms.split(",") if term.strip()]
    return [m for m in models if m.is_file() and (not wanted or any(term in m.stem for term in wanted))]
