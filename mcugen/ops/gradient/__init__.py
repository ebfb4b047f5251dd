# SPDX-License-Identifier: Apache-2.0
"""Differentiation on HIR: reverse mode, by a rule for each operator, whose gradients are HIR like any other."""

from mcugen.ops.gradient import elementwise, imported, moves, products, statistics
from mcugen.ops.gradient.reverse import gradients

__all__ = ["elementwise", "gradients", "imported", "moves", "products", "statistics"]
