# SPDX-License-Identifier: Apache-2.0
"""The models that are compared, a sample of inputs for each, and how far outputs may be off."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx

from mcugen.codegen.bundle import Port
from mcugen.core.board import Board
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
    """A model file with a sample of inputs, and the expected outputs."""

    path: Path
    sample: Sample
    reference: Mapping[str, np.ndarray]

    @property
    def name(self) -> str:
        """Return the name of the file without its suffix."""
        return self.path.stem


def load_subject(path: Path) -> Subject:
    """Read a model, choose its sample, and compute the expected outputs by ONNX Runtime."""
    model = onnx.load(path)
    sample = sample_for(path, ports(model, "model")[0])
    return Subject(path, sample, run_onnxruntime(model, [sample])[0])


def ports(model: onnx.ModelProto, name: str) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
    """Return inputs and outputs as the ONNX file declares them.

    Raises:
        UsageError: A shape is not fixed.
    """
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
    """Return the first recorded sample beside the model, or else seeded random numbers."""
    recorded = path.with_suffix(".io.npz")
    if recorded.is_file():
        with np.load(recorded, allow_pickle=False) as arrays:
            return {port.name: arrays[f"in0_{i}"] for i, port in enumerate(inputs)}
    random = np.random.default_rng(0)
    return {port.name: random_array(random, port.shape, port.dtype) for port in inputs}


def random_array(random: np.random.Generator, shape: Sequence[int], dtype: str) -> np.ndarray:
    """Return integers of the type's whole range, or standard normal numbers."""
    if np.dtype(dtype).kind == "f":
        return random.standard_normal(shape).astype(dtype)
    limits = np.iinfo(dtype)
    return random.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def roomy(board: Board, size: int = 1 << 25) -> Board:
    """Return the board with at least `size` bytes in each memory, as only the code is measured."""
    return replace(board, memories=tuple(replace(m, size=max(m.size, size)) for m in board.memories))


def largest_error(outputs: Mapping[str, np.ndarray], reference: Mapping[str, np.ndarray]) -> float:
    """Return the largest error: relative for float outputs, in quantization steps for integers; inf for NaN."""
    return max((_error(outputs[name], wanted) for name, wanted in reference.items()), default=0.0)


def _error(found: np.ndarray, wanted: np.ndarray) -> float:
    error = float(np.abs(found.astype(np.float64) - wanted.astype(np.float64)).max(initial=0.0))
    if math.isnan(error):
        return math.inf
    return error / (float(np.abs(wanted).max(initial=0.0)) or 1.0) if wanted.dtype.kind == "f" else error


def chosen(models: Sequence[Path], terms: str) -> list[Path]:
    """Return the models that exist and whose name contains one of the comma-separated terms."""
    wanted = [term.strip() for term in terms.split(",") if term.strip()]
    return [m for m in models if m.is_file() and (not wanted or any(term in m.stem for term in wanted))]
