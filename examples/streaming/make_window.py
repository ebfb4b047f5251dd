# SPDX-License-Identifier: Apache-2.0
"""Writes `window.onnx`, a small keyword spotter with seeded random weights: 24 frames of 16 features → 3 scores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FEATURES, FRAMES, SCORES = 16, 24, 3
LAYERS = ((3, 24), (6, 24), (8, 24), (10, 16))
"""(frames, channels): a depthwise convolution over time, then a pointwise one. 3 + 6 + 8 + 10 - 3 = 24 frames."""


def make_window() -> onnx.ModelProto:
    random = np.random.default_rng(0)
    nodes, constants, channels, x = [], [], FEATURES, "frames"

    def weights(name: str, *shape: int) -> str:
        fan_in = int(np.prod(shape[1:]))
        values = random.standard_normal(shape) / np.sqrt(fan_in)
        constants.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    for number, (span, width) in enumerate(LAYERS):
        time, mix = f"time{number}", f"mix{number}"
        kernel = weights(f"{time}_weights", channels, 1, span, 1)
        nodes.append(helper.make_node("Conv", [x, kernel], [time], time, kernel_shape=[span, 1], group=channels))
        pointwise = weights(f"{mix}_weights", width, channels, 1, 1)
        nodes.append(helper.make_node("Conv", [time, pointwise], [mix], mix, kernel_shape=[1, 1]))
        nodes.append(helper.make_node("Relu", [mix], [f"{mix}_relu"], f"{mix}_relu"))
        x, channels = f"{mix}_relu", width
    nodes.append(helper.make_node("Flatten", [x], ["flat"], "flat"))
    nodes.append(helper.make_node("MatMul", ["flat", weights("head_weights", channels, SCORES)], ["head"], "head"))
    nodes.append(helper.make_node("Softmax", ["head"], ["scores"], "softmax"))
    frames = helper.make_tensor_value_info("frames", TensorProto.FLOAT, [1, FEATURES, FRAMES, 1])
    scores = helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, SCORES])
    graph = helper.make_graph(nodes, "window", [frames], [scores], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


if __name__ == "__main__":
    onnx.save(make_window(), Path(__file__).with_name("window.onnx"))
