# SPDX-License-Identifier: Apache-2.0
"""Helpers that put many one-operator cases into one model, so that a single C build checks them all."""

from __future__ import annotations

import numpy as np
import onnx
from compilers import assert_accepted_in_turn
from onnx import TensorProto, helper
from onnx_models import (
    Feeds,
    Net,
    assert_close,
    onnxruntime_outputs,
    operators,
    outputs_in_c,
    random_feeds,
    reference_outputs,
)

from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.hir.interpreter import interpret
from mcugen.lir.overlap import extent
from mcugen.lir.program import Instr

Quant = tuple[float, int]
"""Scale and zero point."""
SPREAD = 0.013
"""A scale without a simple ratio to any other scale: products never lie halfway between two integers."""


class Cases:
    """A model of independent operators: operator i reads input x{i} and computes output y{i}."""

    def __init__(self, opset: int = 20) -> None:
        self.net = Net(opset)
        self.quants: list[Quant] = []
        self.count = 0

    def add(
        self,
        op_type: str,
        shape: tuple[int, ...],
        *constants: np.ndarray | None,
        dtype: type = np.float32,
        out: type | None = None,
        **attributes: object,
    ) -> None:
        """Add an operator on an input of the given shape.

        Args:
            op_type: The ONNX operator.
            shape: Shape of the input.
            *constants: The further inputs; None for absent ones.
            dtype: Type of the input.
            out: Type of the output; that of the input by default.
            **attributes: Attributes of the operator.
        """
        x = self.net.input(f"x{self.count}", *shape, dtype=dtype)
        y = self.net.op(op_type, x, *self._constants(constants), out=f"y{self.count}", **attributes)
        self.net.output(y, dtype=out or dtype)
        self.count += 1

    def add_int8(
        self,
        op_type: str,
        shape: tuple[int, ...],
        x: Quant,
        y: Quant,
        *constants: np.ndarray | None,
        **attributes: object,
    ) -> None:
        """Add an operator between a DequantizeLinear with parameters `x` and a QuantizeLinear with parameters `y`.

        Args:
            op_type: The ONNX operator.
            shape: Shape of the input.
            x: Scale and zero point of the input.
            y: Scale and zero point of the output.
            *constants: The further inputs; None for absent ones.
            **attributes: Attributes of the operator.
        """
        q = self.net.input(f"x{self.count}", *shape, dtype=np.int8)
        operands = (self.net.dequantize(q, *x), *self._constants(constants))
        real = self.net.op(op_type, *operands, out=f"real{self.count}", **attributes)
        self.net.output(self.net.quantize(real, *y, out=f"y{self.count}"), dtype=np.int8)
        self.quants.append(y)
        self.count += 1

    def _constants(self, arrays: tuple[np.ndarray | None, ...]) -> list[str]:
        return ["" if a is None else self.net.const(a, a.dtype.type) for a in arrays]

    def check_float(self, relative: float = 1e-5) -> None:
        """Check that ONNX Runtime, numpy and C agree: floats within `relative`, integers exactly."""
        model = self.net.model()
        feeds = random_feeds(model, spread=2.0)
        compiled = compile_model(model)
        found = interpret(compiled.graph, feeds)
        assert_close(found, onnxruntime_outputs(model, feeds), relative)
        check_c(compiled, feeds, found, relative)

    def check_int8(self, share: float = 0.005, slack: float = 0.01) -> None:
        """Check that all operators compute in integers, that every result is rounded correctly, and C equals numpy.

        A result is rounded correctly if it is within half a step and `slack` of the real result. Results differ from
        ONNX Runtime's by at most 1, and less than the part `share` of them differs.
        """
        model = self.net.model()
        feeds = random_feeds(model)
        compiled = compile_model(model)
        assert not {"quantize", "dequantize"} & set(operators(compiled.graph))
        found = interpret(compiled.graph, feeds)
        expected = onnxruntime_outputs(with_reals(model, len(self.quants)), feeds)
        differing = total = 0
        for case, (scale, zero) in enumerate(self.quants):
            q = found[f"y{case}"].astype(np.float64)
            exact = np.clip(expected[f"real{case}"].astype(np.float64) / scale + zero, -128, 127)
            assert np.abs(q - exact).max() <= 0.5 + slack, f"case {case}"
            difference = np.abs(q - expected[f"y{case}"])
            assert difference.max() <= 1, f"case {case}"
            differing, total = differing + int((difference > 0).sum()), total + q.size
        assert differing < share * total, f"{differing} of {total}"
        check_c(compiled, feeds, found)


def with_reals(model: onnx.ModelProto, count: int) -> onnx.ModelProto:
    """Return the model with the tensors before quantization, real0 to real<count - 1>, as further outputs."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for index in range(count):
        copy.graph.output.append(helper.make_tensor_value_info(f"real{index}", TensorProto.FLOAT, None))
    return copy


def check_c(compiled: CompiledModel, feeds: Feeds, expected: Feeds, relative: float = 1e-5) -> None:
    """Check that the generated C computes `expected` under the sanitizers, and that a second compiler accepts it.

    Args:
        compiled: The model.
        feeds: The inputs by name.
        expected: The expected outputs by name.
        relative: Accepted error of floats, relative to the largest magnitude of their tensor.
    """
    assert_close(outputs_in_c(compiled, feeds), expected, relative)
    assert_accepted_in_turn(compiled.bundle)


def check_model(model: onnx.ModelProto, feeds: Feeds, expected: Feeds | None = None, relative: float = 1e-5) -> None:
    """Check that numpy and C agree with `expected` (by default ONNX Runtime's outputs) and compile without warnings."""
    compiled = compile_model(model)
    found = interpret(compiled.graph, feeds)
    assert_close(found, onnxruntime_outputs(model, feeds) if expected is None else expected, relative)
    check_c(compiled, feeds, found, relative)


def check_by_reference(net: Net, feeds: Feeds | None = None, relative: float = 1e-5) -> None:
    """Check that ONNX's reference implementation, numpy and C agree; inputs that `feeds` lacks are random."""
    model = net.model()
    feeds = random_feeds(model) | dict(feeds or {})
    check_model(model, feeds, reference_outputs(model, feeds), relative)


def share(instr: Instr) -> float:
    """Return the part of the smaller one of x and y that may overlap the other, as the instruction declares."""
    x, y = (instr.operand(role).buffer.nbytes for role in "xy")
    most = max((x + y - extent(x, y, o.lead) for o in instr.overlaps if (o.out, o.into) == ("y", "x")), default=0)
    return max(most, y if ("y", "x") in instr.inplace and y <= x else 0) / min(x, y)
