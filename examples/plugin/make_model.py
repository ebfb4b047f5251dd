# SPDX-License-Identifier: Apache-2.0
"""Writes `limiter.onnx`: a dense layer whose outputs are limited by the custom operator SoftClip."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def make_model() -> onnx.ModelProto:
    random = np.random.default_rng(0)
    weights = random.standard_normal((8, 3)).astype(np.float32)
    constants = [
        numpy_helper.from_array(weights, "weights"),
        numpy_helper.from_array(np.array([0.5, 1.0, 2.0], np.float32), "limit"),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "weights"], ["sum"], "dense"),
        helper.make_node("SoftClip", ["sum", "limit"], ["y"], "limiter", domain="example"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 3])
    graph = helper.make_graph(nodes, "limiter", [x], [y], constants)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("example", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


if __name__ == "__main__":
    onnx.save(make_model(), Path(__file__).with_name("limiter.onnx"))
