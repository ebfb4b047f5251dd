# SPDX-License-Identifier: Apache-2.0
"""Operators of PyTorch for which its ONNX exporter has no translation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from onnxscript import opset21 as op


def integer_operators() -> Mapping[Any, Callable[..., Any]]:
    """Return translations of operators on integers, for torch.onnx.export."""
    return {torch.ops.aten._int_mm.default: _int_mm}


def _int_mm(self: Any, mat2: Any) -> Any:
    """Multiply two int8 matrices; sums are int32."""
    return op.MatMulInteger(self, mat2)
