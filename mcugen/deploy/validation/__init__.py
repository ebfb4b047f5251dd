# SPDX-License-Identifier: Apache-2.0
"""Device validation over a wire: the computer's side; the device's side is in templates/validate."""
