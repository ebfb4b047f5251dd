# SPDX-License-Identifier: Apache-2.0
"""The choice of detections among boxes by scores and overlap, with a fixed number of results."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from mcugen.hir.graph import Node, Value
from mcugen.hir.operator import Operator, Signature
from mcugen.hir.types import Array, DType, TensorType
from mcugen.kernels.portable.signal import DETECTION, DOMAIN, DetectionOptions, DetectionParams
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Call
from mcugen.lir.program import real_param
from mcugen.ops.onnx_node import OnnxNode, onnx_operator

_MAX_DETECTIONS = 1 << 12
"""Largest number of detections: beyond it, the choice takes too long on any microcontroller."""


class Detection(Operator):
    """The boxes of the best scores that do not overlap much with better ones, in order; the rest is 0.

    The inputs are boxes [N, 4] (top, left, bottom, right) and scores [N, C]. The outputs are boxes [M, 4], classes [M],
    scores [M] and the number of detections [1], all float32.

    Attributes:
        max_detections: The number M.
        background: 1 if the first of the C scores is that of the background, else 0.
        max_of_class: Largest number of detections of a class, if `regular`.
        min_score: Least score of a detection.
        max_overlap: Largest intersection over union with a better detection.
        regular: Whether boxes compete within each class; else each box competes by its best class.
    """

    mnemonic: ClassVar[str] = "detection"
    max_detections: int = 1
    background: int = 0
    max_of_class: int = 1
    min_score: float = 0.0
    max_overlap: float = 1.0
    regular: bool = False

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the types of the four outputs."""
        count = self.max_detections
        return TensorType((count, 4)), TensorType((count,)), TensorType((count,)), TensorType((1,))

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output in numpy: for each class, select the best remaining box again and again."""
        boxes, scores = arrays[0], arrays[1][:, self.background :]
        detections: list[tuple[np.float32, int, int]] = []
        for scores_of, classes in self._contests(scores):
            is_left = scores_of >= np.float32(self.min_score)
            for _ in range(self.max_of_class if self.regular else self.max_detections):
                if not is_left.any():
                    break
                best = int(np.argmax(np.where(is_left, scores_of, -np.inf)))
                detections.append((scores_of[best], best, int(classes[best])))
                is_left &= ~(_overlap(boxes, best) > np.float32(self.max_overlap))
                is_left[best] = False
        detections = sorted(detections, key=lambda entry: -entry[0])[: self.max_detections]
        results = tuple(np.zeros(t.shape, np.float32) for t in sig.outputs)
        for n, (score, box, category) in enumerate(detections):
            results[0][n], results[1][n], results[2][n] = boxes[box], category, score
        results[3][0] = len(detections)
        return results

    def _contests(self, scores: Array) -> list[tuple[Array, Array]]:
        """Return the scores of all boxes and their classes, for each class or for the best class of each box."""
        if self.regular:
            return [(scores[:, c], np.full(len(scores), c)) for c in range(scores.shape[1])]
        return [(scores.max(1), scores.argmax(1))]

    def lower(self, node: Node, builder: Builder) -> None:
        """Emit one call, which has a byte of working memory for each box."""
        scores = node.input(1).type
        params = DetectionParams(
            boxes=scores.shape[0],
            columns=scores.shape[1],
            background=self.background,
            max_detections=self.max_detections,
            max_of_class=self.max_of_class,
            min_score=real_param(self.min_score, DType.FLOAT32),
            max_overlap=real_param(self.max_overlap, DType.FLOAT32),
        )
        operands = builder.operands(node, "boxes", "scores", outputs=("y", "classes", "values", "count"))
        operands["is_left"] = builder.scratch(f"{node.outputs[0].name}.is_left", DType.UINT8, scores.shape[0])
        options = DetectionOptions(regular=self.regular)
        variant = "regular" if self.regular else "fast"
        builder.call(node, Call(DETECTION, operands, [params], [options], variant=variant))


def _overlap(boxes: Array, chosen: int) -> Array:
    """Return the intersection over union of every box with one box; 0 for boxes without an area."""
    one = boxes[chosen]
    extent = np.minimum(boxes[:, 2:], one[2:]) - np.maximum(boxes[:, :2], one[:2])
    common = extent.clip(0).prod(1, dtype=np.float32)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1, dtype=np.float32)
    union = areas + areas[chosen] - common
    is_real = (areas > 0) & (areas[chosen] > 0)
    result: Array = np.where(is_real, common / np.where(is_real, union, np.float32(1)), np.float32(0))
    return result


@onnx_operator("Detection", domain=DOMAIN, types=(DType.FLOAT32,), kernels=(DETECTION.name,))
def _import_detection(node: OnnxNode) -> list[Value]:
    boxes, scores = node.input(0), node.input(1)
    for value in (boxes, scores):
        node.require_dtype(value, DType.FLOAT32)
    b, s = boxes.type.shape, scores.type.shape
    node.require(len(b) == len(s) == 2 and b[0] == s[0] > 0 and b[1] == 4, "boxes [N, 4], scores [N, C]", f"{b}, {s}")
    background = s[1] - int(node.attr("num_classes", s[1]))
    node.require(background in (0, 1) and s[1] > background, "there must be scores of all classes", f"{s[1]}")
    count, of_class = int(node.attr("max_detections", 1)), int(node.attr("detections_per_class", 100))
    fault = f"{count} and {of_class}"
    node.require(0 < count <= _MAX_DETECTIONS and of_class > 0, f"1 to {_MAX_DETECTIONS} detections", fault)
    op = Detection(
        count,
        background,
        min(of_class, s[0]),
        float(node.attr("nms_score_threshold", 0.0)),
        float(node.attr("nms_iou_threshold", 1.0)),
        bool(node.attr("use_regular_nms", 0)),
    )
    names = [name or f"{node.name}.{n}" for n, name in enumerate([*node.outputs, "", "", "", ""][:4])]
    return list(node.emit_all(op, [boxes, scores], names))
