# SPDX-License-Identifier: Apache-2.0
"""Kernels of weighted layers by family: what each kernel requires, how it packs the weights, and the call it emits."""

from __future__ import annotations

from mcugen.kernels import helium
from mcugen.kernels.dsp import dsp_conv, winograd
from mcugen.kernels.fpu import fpu_conv, fpu_winograd
from mcugen.kernels.portable import compressed_weights, depthwise, depthwise_planes, few_output_channels, weighted
from mcugen.kernels.scalar import scalar_conv
from mcugen.lir.kernel import Kernel

CONV_KERNELS: tuple[Kernel, ...] = (
    *helium.HELIUM_DEPTHWISE,
    *fpu_conv.FPU_DEPTHWISE,
    *depthwise.DEPTHWISE_STRIPS,
    *depthwise_planes.DEPTHWISE_PLANES,
    *weighted.PORTABLE_DEPTHWISE,
    *helium.HELIUM_CONV,
    *fpu_conv.FPU_CONV,
    *dsp_conv.DSP_KERNELS,
    *winograd.WINOGRAD_CONV,
    *fpu_winograd.FPU_WINOGRAD_CONV,
    *scalar_conv.SCALAR_CONV,
    *few_output_channels.ONE_CHANNEL_CONV,
    *weighted.PORTABLE_CONV,
    *compressed_weights.COMPRESSED_DENSE,
)
"""All of mcugen's kernels of convolutions, in order of preference."""

DENSE_KERNELS: tuple[Kernel, ...] = (
    *helium.HELIUM_DENSE,
    *fpu_conv.FPU_DENSE,
    *dsp_conv.DSP_KERNELS,
    *scalar_conv.SCALAR_DENSE,
    *weighted.PORTABLE_DENSE,
    *compressed_weights.COMPRESSED_DENSE,
)
"""All of mcugen's kernels of fully connected layers, in order of preference."""
