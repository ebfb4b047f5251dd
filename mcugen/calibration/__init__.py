# SPDX-License-Identifier: Apache-2.0
"""Calibration of board files by measured cycles: `mcugen calibrate-board`."""
