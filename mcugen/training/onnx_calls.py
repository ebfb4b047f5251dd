# SPDX-License-Identifier: Apache-2.0
"""ONNX operators on values of a graph, in which losses and optimizers are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import helper

from mcugen.core.errors import UnsupportedError
from mcugen.frontend.onnx.scope import Scope
from mcugen.hir.graph import Graph, Value
from mcugen.hir.types import Array
from mcugen.ops.training import TRAINING

_OPSETS = {"": 21, TRAINING: 1}


@dataclass(frozen=True)
class OnnxCalls:
    """A callable that adds ONNX operators to a graph: `call("Add", a, b)` returns the value of the sum.

    Attributes:
        graph: The graph.
        stem: First part of the names of all results.
    """

    graph: Graph
    stem: str

    def __call__(self, op_type: str, *operands: Value | Array, **attributes: object) -> Value:
        """Add an operator with one result and return it."""
        return self.several(op_type, operands, 1, "", **attributes)[0]

    def several(
        self, op_type: str, operands: Sequence[Value | Array], outputs: int, domain: str, **attributes: object
    ) -> list[Value]:
        """Add an operator with several results, and return the results.

        Args:
            op_type: Name of the ONNX operator.
            operands: Its inputs; arrays become constants.
            outputs: Number of its results.
            domain: Domain of the operator; "" for standard ONNX.
            **attributes: Its ONNX attributes.

        Raises:
            UnsupportedError: The operator does not support these types.
        """
        values = [v if isinstance(v, Value) else self._constant(np.asarray(v)) for v in operands]
        names = [f"v{index}" for index in range(len(values))]
        results = [f"{self.stem}.{op_type.lower()}{index or ''}" for index in range(outputs)]
        node = helper.make_node(op_type, names, results, results[0], domain=domain, **attributes)
        scope = Scope(self.graph, _OPSETS, dict(zip(names, values, strict=True)))
        scope.import_nodes([node])
        computed = [value for name in results if (value := scope.lookup(name)) is not None]
        if scope.refusals or len(computed) < outputs:
            raise UnsupportedError("--train: the loss and the update must be computed", "; ".join(scope.refusals))
        return computed

    def _constant(self, array: Array) -> Value:
        return self.graph.constant(f"{self.stem}.constant", array)
