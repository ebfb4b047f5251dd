# SPDX-License-Identifier: Apache-2.0
"""Kernels of weighted layers by family: what each needs, how it packs the weights, and its instruction."""

from __future__ import annotations

from mcugen.kernels import (
    coded,
    depthwise,
    dsp_conv,
    floats,
    helium,
    planes,
    portable,
    scalar,
    single,
    winograd,
    winograd_floats,
)
from mcugen.lir.kernel import Kernel

CONV: tuple[Kernel, ...] = (
    *helium.DEPTHWISE,
    *floats.DEPTHWISE,
    *depthwise.DEPTHWISE,
    *planes.DEPTHWISE,
    *portable.DEPTHWISE,
    *helium.CONV,
    *floats.CONV,
    *dsp_conv.CONV,
    *winograd.CONV,
    *winograd_floats.CONV,
    *scalar.CONV,
    *single.CONV,
    *portable.CONV,
    *coded.DENSE,
)
"""Kernels of convolutions, in order of preference."""

DENSE: tuple[Kernel, ...] = (
    *helium.DENSE,
    *floats.DENSE,
    *dsp_conv.DENSE,
    *scalar.DENSE,
    *portable.DENSE,
    *coded.DENSE,
)
"""Kernels of fully connected layers, in order of preference."""
