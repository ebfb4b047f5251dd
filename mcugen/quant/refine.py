# SPDX-License-Identifier: Apache-2.0
"""Stand-in: weights are rounded to nearest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mcugen.hir.types import Array, DType
from mcugen.quant.float_model import FloatModel
from mcugen.quant.plan import Plan
from mcugen.quant.profile import Profile
from mcugen.quant.weights import plain_codes


def refine(
    model: FloatModel,
    plan: Plan,
    samples: Sequence[Mapping[str, Array]],
    profile: Profile,
    progress: Callable[[int, int], None],
) -> Plan:
    """The plan with codes for every integer layer."""
    for node in model.graph.nodes:
        if node.op.weight_axes and plan.precision.get(node.outputs[0].name, DType.FLOAT32) is not DType.FLOAT32:
            plan.layers[node.output.name] = plain_codes(node, plan.scheme)
    return plan
