# SPDX-License-Identifier: Apache-2.0
"""Kernels of weighted layers by family: what each needs, how it packs the weights, and its instruction."""

from __future__ import annotations

from mcugen.kernels import helium
from mcugen.kernels.dsp import dsp_conv, winograd
from mcugen.kernels.fpu import fpu_conv, fpu_winograd
from mcugen.kernels.portable import compressed_weights, depthwise, depthwise_planes, few_output_channels, weighted
from mcugen.kernels.scalar import scalar_conv
from mcugen.lir.kernel import Kernel

CONV: tuple[Kernel, ...] = (
    *helium.DEPTHWISE,
    *fpu_conv.DEPTHWISE,
    *depthwise.DEPTHWISE,
    *depthwise_planes.DEPTHWISE,
    *weighted.DEPTHWISE,
    *helium.CONV,
    *fpu_conv.CONV,
    *dsp_conv.CONV,
    *winograd.CONV,
    *fpu_winograd.CONV,
    *scalar_conv.CONV,
    *few_output_channels.CONV,
    *weighted.CONV,
    *compressed_weights.DENSE,
)
"""Kernels of convolutions, in order of preference."""

DENSE: tuple[Kernel, ...] = (
    *helium.DENSE,
    *fpu_conv.DENSE,
    *dsp_conv.DENSE,
    *scalar_conv.DENSE,
    *weighted.DENSE,
    *compressed_weights.DENSE,
)
"""Kernels of fully connected layers, in order of preference."""
