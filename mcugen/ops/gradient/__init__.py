# SPDX-License-Identifier: Apache-2.0
"""Reverse-mode differentiation of HIR graphs: each operator has a rule that adds the nodes of its gradient."""

from mcugen.ops.gradient import elementwise, imported, loops, moves, products, recurrent, statistics
from mcugen.ops.gradient.reverse import gradients
from mcugen.ops.gradient.unfused import unfuse

__all__ = ["gradients", "unfuse"]
