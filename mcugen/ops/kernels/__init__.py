# SPDX-License-Identifier: Apache-2.0
"""Kernels of weighted layers by family: what each needs, how it packs the weights, and its instruction."""
