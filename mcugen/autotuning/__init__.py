# SPDX-License-Identifier: Apache-2.0
"""Searches that compile or simulate each candidate: precision, latency, step latency, measured kernels."""
