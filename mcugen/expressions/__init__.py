# SPDX-License-Identifier: Apache-2.0
"""Scalar functions as data: typed expressions (`nodes`), what they call (`functions`), and their interpreters."""
