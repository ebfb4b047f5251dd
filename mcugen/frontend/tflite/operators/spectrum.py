# SPDX-License-Identifier: Apache-2.0
"""Fourier transforms, and the parts of complex numbers, which are a last axis of two in the ONNX model."""

from __future__ import annotations

from mcugen.frontend.tflite.node import TfliteNode, tflite_operator
from mcugen.frontend.tflite.schema import COMPLEX64


@tflite_operator("RFFT2D", becomes="DFT", limits="a constant length")
def _build_transform(node: TfliteNode) -> None:
    x, lengths = node.input(0), node.integers(1)
    node.require(len(x.shape) > 1 and len(lengths) == 2 and min(lengths) > 0, f"shape {list(x.shape)}")
    node.require(node.output().type_number == COMPLEX64, "a result that is not complex")
    value = node.emit("Unsqueeze", node.real(0), node.constant([-1], "axis"))
    for axis, length in ((-2, lengths[1]), (-3, lengths[0])):
        sizes = [node.constant_scalar(n, what) for n, what in ((length, "length"), (axis, "axis"))]
        value = node.emit("DFT", value, *sizes, onesided=int(axis == -2))
    node.finish_stored(value)


_PARTS = {"REAL": 0, "IMAG": 1}


@tflite_operator(*_PARTS, becomes="Gather")
def _build_part(node: TfliteNode) -> None:
    value = _complex(node)
    node.finish(node.emit("Gather", value, node.constant_scalar(_PARTS[node.operator.kind], "part"), axis=-1))


@tflite_operator("COMPLEX_ABS", becomes="ReduceL2")
def _build_magnitude(node: TfliteNode) -> None:
    node.finish(node.emit("ReduceL2", _complex(node), node.constant([-1], "axes"), keepdims=0))


def _complex(node: TfliteNode) -> str:
    """Return the complex numbers that are the first input."""
    node.require(node.input(0).type_number == COMPLEX64, "an input that is not complex")
    return node.stored(0)
