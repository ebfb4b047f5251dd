# SPDX-License-Identifier: Apache-2.0
"""Models of one node with inputs, whose results are compared with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx_models import MICROSOFT, Net, assert_close, numpy_outputs, onnxruntime_outputs

from mcugen.hir.types import Array

RANDOM = np.random.default_rng(0)
"""Random number generator of all cases."""


@dataclass(frozen=True)
class Fixed:
    """An operand that is a constant of the model."""

    data: Array


Operand = Array | Fixed | None
"""An input (array), a constant (Fixed), or an absent operand (None) of a node."""


@dataclass
class Case:
    """One node with its operands (inputs of the model unless Fixed) and the element types of its outputs.

    The type "" stands for an output that is left out.
    """

    op_type: str
    operands: Sequence[Operand]
    attributes: Mapping[str, object] = field(default_factory=dict)
    outputs: Sequence[str] = ("float32",)
    relative: float = 1e-5
    domain: str = MICROSOFT
    opset: int = 17

    def model(self) -> onnx.ModelProto:
        """Return the ONNX model with this node only."""
        net = Net(self.opset)
        self.add_to(net, "")
        return net.plain_model()

    def add_to(self, net: Net, prefix: str) -> None:
        """Add the node to a network, with separate inputs and outputs."""
        names = []
        for index, operand in enumerate(self.operands):
            if operand is None:
                names.append("")
            elif isinstance(operand, Fixed):
                names.append(net.const(operand.data, operand.data.dtype, f"{prefix}c{index}"))
            else:
                names.append(net.input(f"{prefix}x{index}", *operand.shape, dtype=operand.dtype))
        outs = [f"{prefix}y{index}" if dtype else "" for index, dtype in enumerate(self.outputs)]
        net.ops(self.op_type, *names, outs=outs, domain=self.domain, **self.attributes)
        for name, dtype in zip(outs, self.outputs, strict=True):
            if name:
                net.output(name, dtype=np.dtype(dtype).type)

    @property
    def feeds(self) -> dict[str, Array]:
        """Return the inputs of the model by name."""
        return self.feeds_of("")

    def feeds_of(self, prefix: str) -> dict[str, Array]:
        """Return the inputs by name, with a prefix as in `add_to`."""
        given = ((i, x) for i, x in enumerate(self.operands) if x is not None and not isinstance(x, Fixed))
        return {f"{prefix}x{i}": x for i, x in given}


def real(*shape: int, spread: float = 1.0) -> Array:
    """Return normal float32 numbers."""
    return np.asarray(RANDOM.standard_normal(shape) * spread, np.float32)


def positive(*shape: int) -> Array:
    """Return positive float32 numbers."""
    return np.asarray(RANDOM.random(shape) + 0.1, np.float32)


def whole(*numbers: object, dtype: type = np.int32) -> Array:
    """Return integers as an array."""
    return np.asarray(numbers[0] if len(numbers) == 1 else numbers, dtype)


def agrees(case: Case) -> None:
    """Check that the numpy reference of the compiled graph agrees with ONNX Runtime."""
    model = case.model()
    assert_close(numpy_outputs(model, case.feeds), onnxruntime_outputs(model, case.feeds), case.relative)
