# SPDX-License-Identifier: Apache-2.0
"""The models and data of ../shared, for the tests that use them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx

from mcugen.backends.cpu.pipeline import PIPELINE
from mcugen.core.board import Board, load_board
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.evaluation.session import Session
from mcugen.frontend.onnx import import_model
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.interpreter import evaluate_node
from mcugen.passes.convert_qdq import convert_qdq

SHARED = Path(__file__).resolve().parents[2] / "shared"
"""Folder of the shared models and data."""
MODELS = SHARED / "models"
"""Folder of the shared models."""
DATA = SHARED / "data"
"""Folder of the shared data sets."""

_FAMILIES = ("resnet8_", "ds_cnn_", "mobilenet_v1_", "autoencoder_", "streaming_wakeword_", "mnist_")
_EXPORTED = ("pt_resnet_s_", "pt_tcn_", "pt_mlp_", "pt_yolo_head_", "pt_bilstm_")
NAMES = sorted(p.stem for p in MODELS.glob("*.onnx") if p.stem.startswith(_FAMILIES + _EXPORTED))
"""Names of all shared models that tests use, without their file extension."""
QUANTIZED = [n for n in NAMES if "_int8_" in n or "_ortq_" in n]
"""Names of the shared models that are quantized."""
FLOAT = [n for n in NAMES if n not in QUANTIZED]
"""Names of the shared float models."""

DATASETS = {
    "resnet8": "cifar10",
    "ds_cnn": "kws",
    "mobilenet": "vww",
    "autoencoder": "ad",
    "streaming": "sww",
    "mnist": "mnist",
}
"""Name of the data set by the first part of a model's name."""


def dataset(name: str, split: str = "eval") -> Path:
    """Return the .npz file of a model's data."""
    key = next(value for prefix, value in DATASETS.items() if name.startswith(prefix))
    return DATA / f"{key}_{split}.npz"


def options(name: str) -> CompileOptions:
    """Return options with symbolic dimensions bound to 1."""
    return CompileOptions(dims={"batch": 1} if "dynbatch" in name else {})


def roomy(board: str) -> Board:
    """Return a board with the same CPU and enough memory for every model; tests check the code, not the fit."""
    found = load_board(board)
    memories = tuple(dataclasses.replace(m, size=1 << 25, origin=m.origin) for m in found.memories)
    return dataclasses.replace(found, memories=memories)


def recorded(name: str, compiled: CompiledModel) -> tuple[list[dict[str, np.ndarray]], list[dict[str, np.ndarray]]]:
    """Return the three inputs beside a model and the expected outputs."""
    io = np.load(MODELS / f"{name}.io.npz")
    inputs = [
        {e.name: io[f"in{k}_{i}"].reshape(e.shape) for i, e in enumerate(compiled.program.inputs)} for k in range(3)
    ]
    outputs = [
        {e.name: io[f"out{k}_{i}"].reshape(e.shape) for i, e in enumerate(compiled.program.outputs)} for k in range(3)
    ]
    return inputs, outputs


# ------------------------------------------------------------------------------ layer by layer, as ONNX has it


def integer_graph(model: onnx.ModelProto) -> Graph:
    """Return the graph right after conversion to integers, still channels-first and named as in ONNX."""
    graph = import_model(model, "net")
    for pass_, _ in PIPELINE:
        while pass_(graph) and pass_ is not convert_qdq:
            pass
        if pass_ is convert_qdq:
            break
    return graph


def tensors_of_onnxruntime(model: onnx.ModelProto, samples: list[dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    """Return every quantized tensor of the model for each sample, graph optimization off; uint8 as int8."""
    instrumented = onnx.ModelProto()
    instrumented.CopyFrom(model)
    model = instrumented
    known = {o.name for o in model.graph.output}
    for node in model.graph.node:
        if node.op_type == "QuantizeLinear" and node.output[0] not in known:
            model.graph.output.append(onnx.helper.make_empty_tensor_value_info(node.output[0]))
    session = Session(model)
    results = []
    for sample in samples:
        tensors = session.run(session.outputs, sample) | sample
        results.append({n: (a ^ np.uint8(128)).view(np.int8) if a.dtype == np.uint8 else a for n, a in tensors.items()})
    return results


def layer_results(graph: Graph, tensors: dict[str, np.ndarray]) -> dict[Node, tuple[np.ndarray, np.ndarray]]:
    """Return our result and ONNX Runtime's for each node with a quantized output that ONNX Runtime has too.

    Our results are computed from ONNX Runtime's tensors. Only for inputs that ONNX Runtime does not have (such as an
    inserted requantization) our own values are used.

    Args:
        graph: The integer graph.
        tensors: The tensors of ONNX Runtime, by name.
    """
    ours: dict[Value, np.ndarray] = {}

    def read(value: Value) -> np.ndarray:
        if value.data is not None:
            return value.data
        found = _of_onnxruntime(value, tensors)
        return ours[value] if found is None else found

    results = {}
    for node in graph.nodes:
        found = evaluate_node(node, [read(v) for v in node.inputs if v is not None])
        ours.update(zip(node.outputs, found, strict=True))
        expected = _of_onnxruntime(node.outputs[0], tensors)
        if expected is not None and node.outputs[0].type.quant is not None:
            results[node] = (found[0], expected)
    return results


def _of_onnxruntime(value: Value, tensors: dict[str, np.ndarray]) -> np.ndarray | None:
    found = tensors.get(value.name.removesuffix(".s8"))
    if found is None or found.dtype != value.type.dtype.numpy or found.size != value.type.count:
        return None
    return found.reshape(value.type.shape)
