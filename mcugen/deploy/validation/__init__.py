# SPDX-License-Identifier: Apache-2.0
"""Device validation over a serial link: the host's side. The device's side is in templates/validate."""
