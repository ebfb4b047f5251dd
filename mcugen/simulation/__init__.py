# SPDX-License-Identifier: Apache-2.0
"""Builds generated code with test firmware, runs it under QEMU (or on this computer), and measures it."""

from mcugen.simulation.simulation import Execution, Setup, Sizes, simulate, simulate_layer_stacks

__all__ = ["Execution", "Setup", "Sizes", "simulate", "simulate_layer_stacks"]
