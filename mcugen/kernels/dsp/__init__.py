# SPDX-License-Identifier: Apache-2.0
"""Kernels for the DSP extension (Armv7E-M, Armv8-M Mainline)."""
