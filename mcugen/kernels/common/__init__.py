# SPDX-License-Identifier: Apache-2.0
"""Parts that kernels of several instruction sets share: shapes, packing, loops, reading orders."""
