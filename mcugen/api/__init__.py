# SPDX-License-Identifier: Apache-2.0
"""The public Python interface: one model for one board, and everything that can be asked of the pair."""
