# SPDX-License-Identifier: Apache-2.0
"""Builds generated code with test firmware, runs it under QEMU (or on this computer), and measures it."""

from mcugen.simulate.simulation import Execution, Sizes, simulate

__all__ = ["Execution", "Sizes", "simulate"]
