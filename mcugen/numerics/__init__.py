# SPDX-License-Identifier: Apache-2.0
"""Integer arithmetic of quantized operators: fixed point, curves, windows, and bounds of sums."""
