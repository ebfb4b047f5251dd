# SPDX-License-Identifier: Apache-2.0
"""Board files corrected by what was measured: `mcugen calibrate-board`."""
