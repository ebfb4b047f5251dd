# SPDX-License-Identifier: Apache-2.0
"""Simulation: builds of generated code with test firmware, runs under QEMU or on this computer, and measurements."""

from mcugen.simulation.simulation import Execution, FirmwareSizes, Setup, simulate, simulate_layer_stacks

__all__ = ["Execution", "FirmwareSizes", "Setup", "simulate", "simulate_layer_stacks"]
