# SPDX-License-Identifier: Apache-2.0
"""The model that is quantized: fused float32, as ONNX for ONNX Runtime and as HIR for decisions, with equal names."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from mcugen.hir.graph import Graph


@dataclass
class FloatModel:
    """Every value of `graph` that is no constant has a tensor of the same name and numbers in `proto`."""

    proto: onnx.ModelProto
    graph: Graph
