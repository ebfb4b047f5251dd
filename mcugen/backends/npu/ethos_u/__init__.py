# SPDX-License-Identifier: Apache-2.0
"""Backend for Arm's Ethos-U NPUs: segments are written as TOSA, and compiled by Arm's compiler Vela."""
