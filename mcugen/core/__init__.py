# SPDX-License-Identifier: Apache-2.0
"""Definitions that all packages use: errors, limits, cache, resources, options, boards, version."""
