# SPDX-License-Identifier: Apache-2.0
"""float32 kernels for CPUs with an FPU."""
