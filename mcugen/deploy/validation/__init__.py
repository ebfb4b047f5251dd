# SPDX-License-Identifier: Apache-2.0
"""Validation on the target, over a wire: the computer's end (the device's is templates/validate)."""
