# SPDX-License-Identifier: Apache-2.0
"""Plain rounding of weights."""

from __future__ import annotations

import numpy as np

from mcugen.hir.graph import Node
from mcugen.quant.plan import Codes
from mcugen.quant.scheme import Scheme, weight_scales


def plain_codes(node: Node, scheme: Scheme) -> Codes:
    """Weights rounded to nearest."""
    ((index, axis),) = node.op.weight_axes.items()
    data = node.input(index).data
    assert data is not None
    scales = weight_scales(data, axis, scheme)
    shape = [1] * data.ndim
    shape[axis] = -1
    codes = np.clip(np.rint(data / scales.reshape(shape)), -127, 127).astype(np.int8)
    at = node.op.bias_input
    bias = node.inputs[at] if at is not None and len(node.inputs) > at else None
    return Codes(codes, scales, axis, None if bias is None else bias.data)
