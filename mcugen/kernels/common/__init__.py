# SPDX-License-Identifier: Apache-2.0
"""Parts shared by kernels of several instruction sets: shapes, weight packing, loops, traversal orders."""
