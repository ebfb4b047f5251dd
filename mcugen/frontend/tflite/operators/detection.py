# SPDX-License-Identifier: Apache-2.0
"""The custom operator that chooses detections among the boxes of an SSD network."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mcugen.frontend.tflite.node import TfliteNode, tflite_operator
from mcugen.hir.types import Array
from mcugen.kernels.portable.signal import DOMAIN
from mcugen.ops.onnx_node import Refusal


@tflite_operator(
    "TFLite_Detection_PostProcess",
    becomes=f"Mul, Add, Exp, Concat, Detection of `{DOMAIN}`",
    limits="a batch of 1; one class of a detection; constant anchors",
)
def _build_detection(node: TfliteNode) -> None:
    encodings, scores, anchors = node.input(0).shape, node.input(1).shape, node.constant_input(2).real_array
    is_known = len(encodings) == len(scores) == 3 and encodings[0] == scores[0] == 1 and encodings[1] == scores[1]
    node.require(is_known and encodings[2] >= 4 and anchors.shape == (encodings[1], 4), "other shapes of boxes")
    regular = bool(node.custom_integer("use_regular_nms", 0))
    classes = node.custom_integer("max_classes_per_detection", 1)
    if not regular and classes != 1:
        raise Refusal(
            "a detection must have one class", f"{classes} classes", "export with max_classes_per_detection=1"
        )
    count = node.custom_integer("max_detections", low=1)
    boxes = _decoded(node, anchors)
    values = node.emit("Reshape", node.real(1), node.constant(list(scores[1:]), "scores"))
    results = node.emit_all(
        "Detection",
        [boxes, values],
        4,
        domain=DOMAIN,
        max_detections=count,
        num_classes=node.custom_integer("num_classes", low=1),
        detections_per_class=node.custom_integer("detections_per_class", 100, low=1),
        nms_score_threshold=float(node.custom_number("nms_score_threshold")),
        nms_iou_threshold=float(node.custom_number("nms_iou_threshold")),
        use_regular_nms=int(regular),
    )
    shapes = [(1, count, 4), (1, count), (1, count), (1,)]
    node.require([y.shape for y in node.operator.outputs] == shapes, "other shapes of detections")
    for index, result in enumerate(results):
        node.finish(node.emit("Reshape", result, node.shape_of(node.output(index))), index)


def _decoded(node: TfliteNode, anchors: Array) -> str:
    """Return the corners of the boxes [N, 4]: top, left, bottom, right.

    Encodings are the place of the center in an anchor, and the logarithm of the size, by scales of their own.
    """
    count = len(anchors)
    scales = np.array([node.custom_number(f"{side}_scale") for side in "yxhw"], np.float64)
    node.require(bool(((scales > 1e-9) & (scales < 1e9)).all()), "scales of boxes out of range")
    rows = node.emit("Reshape", node.real(0), node.constant([count, node.input(0).shape[2]], "rows"))

    def part(begin: int) -> str:
        bounds: Sequence[tuple[int, str]] = ((begin, "begin"), (begin + 2, "end"), (1, "axis"))
        return node.emit("Slice", rows, *(node.constant([n], what) for n, what in bounds))

    def constant(values: Array, what: str) -> str:
        return node.constant(values.astype(np.float32), what)

    wide = anchors.astype(np.float64)
    center = node.emit("Mul", part(0), constant(wide[:, 2:] / scales[:2], "place"))
    center = node.emit("Add", center, constant(wide[:, :2], "center"))
    half = node.emit("Exp", node.emit("Mul", part(2), constant(1 / scales[2:], "factor")))
    half = node.emit("Mul", half, constant(wide[:, 2:] / 2, "size"))
    return node.emit("Concat", node.emit("Sub", center, half), node.emit("Add", center, half), axis=1)
