# SPDX-License-Identifier: Apache-2.0
"""Memory planning: live ranges of buffers, order of layers, placement, and an independent verifier."""
