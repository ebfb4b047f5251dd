# SPDX-License-Identifier: Apache-2.0
"""Differentiation on HIR: reverse mode, by a rule for each operator, whose gradients are HIR like any other."""

from mcugen.ops.gradient import elementwise, imported, loops, moves, products, recurrent, statistics
from mcugen.ops.gradient.reverse import gradients
from mcugen.ops.gradient.unfused import unfuse

__all__ = ["gradients", "unfuse"]
