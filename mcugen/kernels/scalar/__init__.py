# SPDX-License-Identifier: Apache-2.0
"""Integer kernels for CPUs that multiply one pair of numbers at a time."""
