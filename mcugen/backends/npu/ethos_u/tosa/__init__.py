# SPDX-License-Identifier: Apache-2.0
"""TOSA, the operator set of Arm's tensor compilers: graphs in memory, and their files (specification 1.0)."""
