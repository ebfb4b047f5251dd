# SPDX-License-Identifier: Apache-2.0
"""Steps of inner loops: written once with symbolic registers, scheduled and allocated for each core."""
