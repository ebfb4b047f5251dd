# SPDX-License-Identifier: Apache-2.0
"""Models of domain ai.onnx.ml with many independent nodes, so that a single C build checks them all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from checks import check_c
from onnx import helper
from onnx_models import assert_close, onnxruntime_outputs

from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.hir.interpreter import interpret

ML = "ai.onnx.ml"
"""Name of ONNX's domain of classical machine learning."""


class MlCases:
    """A model of independent nodes that share inputs; node i computes y{i} (and z{i})."""

    def __init__(self, version: int = 3, opset: int = 18, **inputs: np.ndarray) -> None:
        self.feeds = inputs
        self.version, self.opset = version, opset
        self.nodes: list[onnx.NodeProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.constants: list[onnx.TensorProto] = []

    def add(
        self,
        op_type: str,
        outputs: Sequence[tuple[type, int]] = ((np.float32, 2),),
        inputs: Sequence[str] = ("x",),
        **attributes: object,
    ) -> None:
        """Add a node.

        Args:
            op_type: The operator.
            outputs: Element type and rank of each output.
            inputs: Names of the inputs.
            **attributes: Attributes of the node.
        """
        count = len(self.nodes)
        names = [f"{letter}{count}" for letter in "yz"[: len(outputs)]]
        given = {key: value for key, value in attributes.items() if value is not None}
        self.nodes.append(helper.make_node(op_type, inputs, names, f"n{count}", domain=ML, **given))
        for name, (dtype, rank) in zip(names, outputs, strict=True):
            number = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
            self.outputs.append(helper.make_tensor_value_info(name, number, [None] * rank))

    def const(self, name: str, array: np.ndarray) -> str:
        """Add a constant and return its name."""
        self.constants.append(onnx.numpy_helper.from_array(array, name))
        return name

    def model(self) -> onnx.ModelProto:
        """Return the ONNX model."""
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in self.feeds.items()
        ]
        graph = helper.make_graph(self.nodes, "ml", inputs, self.outputs, self.constants)
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid(ML, self.version)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def compile(self, optimize: str = "balanced") -> CompiledModel:
        """Compile the model for this computer, for a goal."""
        return compile_model(self.model(), options=CompileOptions(optimize=optimize))

    def check(self, relative: float = 1e-5, goals: Sequence[str] = ("balanced",), reference: bool = True) -> None:
        """Check that ONNX Runtime (or ONNX's reference), numpy and C agree, for each optimization goal."""
        for goal in goals:
            compiled = self.compile(goal)
            found = interpret(compiled.graph, self.feeds)
            if reference and goal == goals[0]:
                assert_close(found, onnxruntime_outputs(self.model(), self.feeds), relative)
            check_c(compiled, self.feeds, found, relative)


LABEL_AND_SCORES = ((np.int64, 1), (np.float32, 2))
"""Element types and ranks of a classifier's outputs."""
