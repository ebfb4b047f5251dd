# SPDX-License-Identifier: Apache-2.0
"""The kernel that runs a segment on an Ethos-U NPU by Arm's driver."""

from __future__ import annotations

from typing import Annotated

from mcugen.core.options import ETHOS_U_DRIVER
from mcugen.hir.types import DType
from mcugen.lir.kernel import Kernel, Options, Params, reads, scratch, writes


class RegionSizes(Params):
    """Kernel parameters with the bytes of all data of a segment."""

    command_bytes: Annotated[int, "bytes of the commands"]
    region_bytes: Annotated[dict[str, int], "bytes of the region with this number"]


class Regions(Options):
    """Template options: the operand that each base address of the NPU points to."""

    regions: Annotated[tuple[str, ...], "operand by number of the region; empty: unused"]


ETHOS_U_INVOKE = Kernel(
    "ethos_u_invoke",
    what="a part of the network, which an Ethos-U NPU computes by its commands",
    operands=(
        reads("x", "inputs, one behind the other"),
        reads("commands", "commands of the NPU, with the header that the driver reads", DType.UINT32),
        reads("weights", "weights, biases and scales as the NPU decodes them", DType.UINT8, optional=True),
        writes("y", "outputs, one behind the other"),
        scratch("scratch", "working memory of the NPU", DType.UINT8, optional=True),
    ),
    params=(RegionSizes,),
    options=(Regions,),
    library=ETHOS_U_DRIVER,
)
"""Kernel that invokes the NPU once; it returns MCUGEN_ERROR_ACCELERATOR if the driver reports an error."""
