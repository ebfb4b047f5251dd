# SPDX-License-Identifier: Apache-2.0
"""Quantized models as ONNX: a QuantizeLinear and a DequantizeLinear around float operators (QDQ)."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import onnx

from mcugen.hir.graph import Node, Value
from mcugen.hir.layer_names import module_path
from mcugen.hir.traits import Cell, bias_input, weight_axes
from mcugen.hir.types import Array, DType, QuantParams
from mcugen.numerics.fixedpoint import quantize
from mcugen.quantization.assign import is_quantized_constant
from mcugen.quantization.domains import Domain, domain_of
from mcugen.quantization.float_model import FloatModel
from mcugen.quantization.onnx_writer import OnnxWriter
from mcugen.quantization.plan import Plan, QuantizedWeights
from mcugen.quantization.recurrent import recurrent_decisions, write_recurrent_layer
from mcugen.quantization.scheme import activation_params, represented_range


def write_qdq(model: FloatModel, plan: Plan) -> onnx.ModelProto:
    """Return the quantized model: the float model with QuantizeLinear and DequantizeLinear nodes as `plan` decides.

    The opset is one that has the types of the plan.
    """
    has_int16 = any(stored.dtype is DType.INT16 for stored in plan.activations.values())
    return _QdqWriter(model.with_int16 if has_int16 or DType.INT16 in plan.precision.values() else model, plan).write()


def _stored_codes(codes: QuantizedWeights) -> Array:
    """Return a layer's weights in the type that ONNX stores: int4 also for 2-bit weights, which ONNX Runtime lacks."""
    has_few_bits = codes.dtype in (DType.INT4, DType.INT2)
    return codes.weights.astype(ml_dtypes.int4) if has_few_bits else codes.weights


def stored_name(name: str) -> str:
    """Return the name that the quantized values of tensor `name` have in the QDQ model."""
    return f"{name}_quantized"


_REAL_ENDS = (float(np.finfo(np.float32).tiny), -math.inf, math.inf)
"""Margin and range of real arguments behind integer layers: nothing is known of a quotient."""


class _QdqWriter(OnnxWriter):
    """A writer that quantizes the result of each integer layer at once; readers get it dequantized."""

    def __init__(self, model: FloatModel, plan: Plan) -> None:
        super().__init__(model.proto, model.graph)
        self.plan = plan
        self.kept = {*model.states, *model.states.values()}
        """Inputs and outputs that are states. They are passed as integers, so that nothing is converted between calls.
        """
        self._stored_as: dict[tuple[str, DType], str] = {}
        """The dequantized tensor, by the name of the value and the type that it is stored in."""
        self._rounded = self._behind_integers()
        """Values that depend on results of integer layers."""
        self._codes: dict[str, str] = {}
        """The quantized tensor behind each dequantized one."""
        self._within: dict[tuple[str, float, float], str] = {}
        """Tensors limited to the domain of a function, by source tensor and ends; ± the margin for domains without 0.
        """

    def _behind_integers(self) -> set[Value]:
        reachable: set[Value] = set()
        for node in self.graph.nodes:
            if self._precision(node) is not DType.FLOAT32 or any(v in reachable for v in node.inputs if v is not None):
                reachable.update(node.outputs)
        return reachable

    def input_dtype(self, value: Value) -> DType:
        """Return the type of an input of the model: the integer type if the caller passes quantized values."""
        return self.plan.activations[value.name].dtype if self._is_coded_input(value) else value.type.dtype

    def output(self, name: str, value: Value) -> tuple[str, DType]:
        """Return the tensor that the caller gets: the quantized one if the caller wants integers and it exists."""
        tensor, dtype = super().output(name, value)
        stored = self.plan.activations.get(value.name)
        if stored is None or not self._is_coded(name):
            return tensor, dtype
        if tensor not in self._codes and name in self.kept:
            tensor = self._convert(value, stored.dtype, tensor)
        return (self._codes[tensor], stored.dtype) if tensor in self._codes else (tensor, dtype)

    def _is_coded(self, name: str) -> bool:
        """Return whether an input or output of the model is passed as integers."""
        return self.plan.scheme.integer_io or name in self.kept

    def _is_coded_input(self, value: Value) -> bool:
        return self._is_coded(value.name) and value.producer is None and value.name in self.plan.activations

    def on_written(self, value: Value) -> None:
        """Quantize the result of an integer layer, or dequantize an input that is passed as integers."""
        producer = value.producer
        if self._is_coded_input(value):
            stored = self.plan.activations[value.name]
            params = self._stored_params(value.name, stored.quant, stored.dtype.numpy)
            real = self.add("DequantizeLinear", [value.name, *params], self.fresh(f"{value.name}_dequantized"))
            self._stored_as[value.name, stored.dtype] = real
            self._codes[real] = value.name
        if (
            producer is not None
            and self._precision(producer) is not DType.FLOAT32
            and value.name in self.plan.activations
        ):
            self._convert(value, self.plan.activations[value.name].dtype, value.name)

    def read(self, value: Value, reader: Node | None) -> str:
        """Return the real tensor, or its form in the reader's type, limited to the domain of the reader's function."""
        tensor = self._read(value, reader)
        domain = None if reader is None or value.is_constant else domain_of(reader, value)
        if reader is None or domain is None:
            return tensor
        if tensor not in self._codes:
            return self._clamp(tensor, *domain.ends(*_REAL_ENDS)) if value in self._rounded else tensor
        return self._clamp_to_domain(tensor, domain, value, reader)

    def _clamp_to_domain(self, tensor: str, domain: Domain, value: Value, reader: Node) -> str:
        """Return dequantized arguments of a function, with those outside of its domain moved to its end.

        Saturation and rounding leave the domain: a sum that saturates can be negative before a square root, and a small
        denominator becomes 0. An argument that is rounded to an excluded end becomes half a step. The limits follow
        from the type that the reader gets. Quotients in integers saturate by themselves.
        """
        stored = self.plan.stored_as(value)
        if stored is None:
            return tensor
        precision = self._precision(reader)
        dtype = stored.dtype if precision is DType.FLOAT32 else precision
        quant = self.plan.quant_of(value, dtype)
        margin, (low, high) = quant.scale[0] / 2, represented_range(quant, dtype)
        lower, upper = domain.ends(margin, stored.low, stored.high)
        if domain is Domain.NOT_ZERO and math.isinf(lower) and math.isinf(upper) and precision is DType.FLOAT32:
            return self._replace_zeros(tensor, margin)
        return self._clamp(tensor, lower if low < lower else -math.inf, upper if high > upper else math.inf)

    def _clamp(self, tensor: str, lower: float, upper: float) -> str:
        """Return the tensor clamped to the finite ends."""
        if math.isinf(lower) and math.isinf(upper):
            return tensor
        if (tensor, lower, upper) not in self._within:
            clamped = tensor
            for op_type, what, end in (("Max", "least", lower), ("Min", "most", upper)):
                if math.isfinite(end):
                    bound = self.store(f"{tensor}_{what}", np.asarray(end, np.float32))
                    clamped = self.add(op_type, [clamped, bound], self.fresh(f"{tensor}_clamped"))
            self._within[tensor, lower, upper] = clamped
        return self._within[tensor, lower, upper]

    def _replace_zeros(self, tensor: str, margin: float) -> str:
        """Return the tensor with `margin` in the place of 0."""
        key = (tensor, -margin, margin)
        if key not in self._within:
            zero = self.store(f"{tensor}_zero", np.asarray(0, np.float32))
            small = self.store(f"{tensor}_margin", np.asarray(margin, np.float32))
            is_zero = self.add("Equal", [tensor, zero], self.fresh(f"{tensor}_is_zero"))
            self._within[key] = self.add("Where", [is_zero, small, tensor], self.fresh(f"{tensor}_nonzero"))
        return self._within[key]

    def _read(self, value: Value, reader: Node | None) -> str:
        stored = self.plan.activations.get(value.name)
        precision = self._precision(reader)
        dequantized = self._stored_as.get((value.name, stored.dtype)) if stored else None
        if stored is None or (dequantized is None and precision is DType.FLOAT32):
            return value.name
        if precision is DType.FLOAT32 or (dequantized is not None and precision is stored.dtype):
            return dequantized or value.name
        converted = self._stored_as.get((value.name, precision))
        return converted or self._convert(value, precision, dequantized or value.name)

    def constant(self, value: Value, reader: Node, index: int) -> str:
        """Return weights as integers, biases in the scale of the products, and other constants like activations."""
        precision = self._precision(reader)
        if precision is DType.FLOAT32 or value.type.dtype is not DType.FLOAT32:
            return super().constant(value, reader, index)
        codes = self.plan.layers.get(reader.output.name)
        if codes is not None and index in weight_axes(reader.op):
            return self._weights(f"{reader.output.name}.weight", codes)
        if codes is not None and index == bias_input(reader.op) and codes.bias is not None:
            if codes.group:
                return self.store(f"{reader.output.name}.bias", codes.bias)
            return self._bias(reader, codes.bias, codes.scales)
        if not is_quantized_constant(reader, index):
            return super().constant(value, reader, index)
        assert value.data is not None
        quant = activation_params(value.data.min(), value.data.max(), precision, self.plan.scheme)
        return self._dequantize(value.name, quantize(value.data, quant, precision), quant)

    def replacement(self, node: Node) -> bool:
        """Write a recurrent layer in integers, which takes several nodes."""
        precision = self._precision(node)
        if precision is DType.FLOAT32 or not isinstance(node.op, Cell):
            return False
        inputs = ["" if v is None or v.is_constant else self.read(v, node) for v in node.inputs]
        outputs = [v.name for v in node.outputs]
        expanded = write_recurrent_layer(node, inputs, outputs, *recurrent_decisions(node, self.plan))
        if expanded is None:
            return False
        self.nodes += expanded[0]
        self.initializers |= {tensor.name: tensor for tensor in expanded[1]}
        return True

    def _bias(self, reader: Node, bias: Array, scales: Array) -> str:
        """Return a bias in int32 in units of input scale · weight scale.

        The unit is doubled until the bias fits in int32, as may be needed for 16-bit inputs.
        """
        unit = self._params(reader.input(0), reader).scales * scales
        unit = np.resize(unit, bias.shape).astype(np.float32).astype(np.float64)  # Groups may share scales.
        while np.abs(bias / unit).max(initial=0.0) >= 2**31 - 1:
            unit = unit * 2
        codes = np.rint(bias / unit).astype(np.int32)
        return self._dequantize(f"{reader.output.name}.bias", codes, QuantParams(tuple(map(float, unit)), 0, 0))

    def _params(self, value: Value, reader: Node) -> QuantParams:
        """Return the parameters of an activation as the reader gets it."""
        return self.plan.quant_of(value, self._precision(reader))

    def _precision(self, node: Node | None) -> DType:
        return DType.FLOAT32 if node is None else self.plan.precision_of(node)

    def _convert(self, value: Value, dtype: DType, source: str) -> str:
        """Quantize `source`, which holds the reals of `value`, and dequantize it for readers."""
        is_main_type = dtype is self.plan.activations[value.name].dtype
        quant = self.plan.quant(value.name, dtype)
        name = value.name if is_main_type else f"{value.name}_{dtype.value}"
        params = self._stored_params(name, quant, dtype.numpy)
        origin = value.producer.origin if value.producer else ()
        module = next(filter(None, map(module_path, reversed(origin))), "")
        label = module and f"{module}:QuantizeLinear"
        codes = self.add("QuantizeLinear", [source, *params], self.fresh(stored_name(name)), label)
        real = self.add("DequantizeLinear", [codes, *params], self.fresh(f"{name}_dequantized"))
        self._stored_as[value.name, dtype] = real
        self._codes[real] = codes
        return real

    def _dequantize(self, name: str, codes: Array, quant: QuantParams) -> str:
        tensor = self.store(stored_name(name), codes)
        params = self._stored_params(name, quant, codes.dtype)
        axis: dict[str, object] = {} if quant.axis is None else {"axis": quant.axis}
        return self.add("DequantizeLinear", [tensor, *params], self.fresh(f"{name}_dequantized"), "", **axis)

    def _weights(self, name: str, codes: QuantizedWeights) -> str:
        if not codes.group:
            return self._dequantize(name, _stored_codes(codes), codes.quant)
        operands = [
            self.store(stored_name(name), _stored_codes(codes)),
            self.store(f"{name}_scale", codes.scales.astype(np.float32)),
        ]
        real = self.fresh(f"{name}_dequantized")
        return self.add("DequantizeLinear", operands, real, axis=1, block_size=codes.group)

    def _stored_params(self, name: str, quant: QuantParams, dtype: np.dtype[Any]) -> list[str]:
        scale = np.asarray(quant.scale if quant.axis is not None else quant.scale[0], np.float32)
        zero = np.full(scale.shape, quant.zero_point).astype(dtype)
        return [self.store(f"{name}_scale", scale), self.store(f"{name}_zero_point", zero)]
