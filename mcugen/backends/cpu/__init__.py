# SPDX-License-Identifier: Apache-2.0
"""The CPU backend: passes in order, kernel selection, lowering and memory planning."""
