# SPDX-License-Identifier: Apache-2.0
"""The ONNX graph of a trained module, written node by node."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx
from onnx import helper, numpy_helper

from mcugen.frontend.torch.program import name_outputs
from mcugen.hir.types import Array, DType, QuantParams, Shape

_OPSET = 21
"""ONNX operator set: the first one with int4 tensors."""
_IR_VERSION = 10
"""ONNX file format version that belongs to the operator set."""


@dataclass(frozen=True)
class DequantizedTensor:
    """A dequantized tensor of an ONNX graph.

    Attributes:
        name: Name of the tensor.
        quant: Scale and zero point of the int8 values behind it.
    """

    name: str
    quant: QuantParams


class OnnxGraph:
    """A quantized ONNX graph under construction, with one float input that is named "input" and one float output."""

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[onnx.TensorProto] = []

    def store(self, name: str, data: Array) -> str:
        """Add a constant and return its name."""
        self._initializers.append(numpy_helper.from_array(np.ascontiguousarray(data), name))
        return name

    def add(self, op_type: str, inputs: list[str], output: str, **attributes: object) -> str:
        """Add a node with one output and return the output's name."""
        self._nodes.append(helper.make_node(op_type, inputs, [output], output, **attributes))
        return output

    def dequantize(self, name: str, data: Array, quant: QuantParams, dtype: DType) -> str:
        """Add a quantized constant with a scale per channel on axis 0; return the name of its real values.

        Args:
            name: Name of the real values.
            data: The integers.
            quant: Their scales.
            dtype: Their type in the file: INT4, INT8 or INT32.
        """
        stored = data.astype(ml_dtypes.int4 if dtype is DType.INT4 else dtype.numpy)
        scale = self.store(f"{name}_scale", quant.scales.astype(np.float32))
        return self.add("DequantizeLinear", [self.store(f"{name}_quantized", stored), scale], name, axis=0)

    def quantize(self, name: str, quant: QuantParams) -> DequantizedTensor:
        """Add the int8 quantization of a real tensor, and return its dequantized values.

        Args:
            name: The tensor.
            quant: Its scale and zero point.
        """
        params = [
            self.store(f"{name}_scale", np.asarray(quant.scale[0], np.float32)),
            self.store(f"{name}_zero_point", np.asarray(quant.zero_point, np.int8)),
        ]
        stored = self.add("QuantizeLinear", [name, *params], f"{name}_quantized")
        return DequantizedTensor(self.add("DequantizeLinear", [stored, *params], f"{name}_dequantized"), quant)

    def model(self, name: str, shapes: tuple[Shape, Shape], output: str) -> onnx.ModelProto:
        """Return the checked model, whose output is named "output".

        Args:
            name: Name of the graph.
            shapes: Shapes of the input and of the output, for one sample.
            output: The tensor that is the output.
        """
        ends = [
            helper.make_tensor_value_info(end, onnx.TensorProto.FLOAT, shape)
            for end, shape in zip(("input", output), shapes, strict=True)
        ]
        graph = helper.make_graph(self._nodes, name, ends[:1], ends[1:], self._initializers)
        name_outputs(graph)
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION, producer_name="mcugen"
        )
        onnx.checker.check_model(model, full_check=True)
        return model
