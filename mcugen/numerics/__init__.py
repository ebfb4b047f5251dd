# SPDX-License-Identifier: Apache-2.0
"""What numbers become: fixed point, curves, windows, and bounds of sums."""
