# SPDX-License-Identifier: Apache-2.0
"""Kernels of weighted layers by family: what each needs, how it packs the weights, and its instruction."""

from __future__ import annotations

from mcugen.lir.builder import Kernel
from mcugen.ops.kernels import depthwise, portable

CONV: tuple[Kernel, ...] = (*depthwise.DEPTHWISE, *portable.DEPTHWISE, *portable.CONV)
"""Of convolutions."""

DENSE: tuple[Kernel, ...] = portable.DENSE
"""Of fully connected layers."""
