# SPDX-License-Identifier: Apache-2.0
"""Measurements of a compiled model: accuracy, self-test vectors, stack bounds, extreme inputs, plausibility."""
