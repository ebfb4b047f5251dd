# SPDX-License-Identifier: Apache-2.0
"""Definitions that every package uses: errors, limits, cache, resources, options, boards, version."""
