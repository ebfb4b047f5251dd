# SPDX-License-Identifier: Apache-2.0
"""Kernels in portable C, some with faster variants for single instruction sets."""
