# SPDX-License-Identifier: Apache-2.0
"""Backends for neural processing units (NPUs)."""
