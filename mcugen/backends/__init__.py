# SPDX-License-Identifier: Apache-2.0
"""Backends: each lowers an optimized graph to a planned program."""
