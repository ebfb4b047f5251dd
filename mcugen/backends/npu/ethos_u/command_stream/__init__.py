# SPDX-License-Identifier: Apache-2.0
"""Decoder, checker and interpreter of the command streams of Arm's Ethos-U NPUs.

`decode` reads the bytes that the driver gives to the NPU, `format_stream` prints their operations, `check` proves that
they stay inside their memory, and `run` executes them in numpy.
"""

from mcugen.backends.npu.ethos_u.command_stream.checker import check
from mcugen.backends.npu.ethos_u.command_stream.decoder import decode
from mcugen.backends.npu.ethos_u.command_stream.errors import CommandStreamError, UndocumentedOperation
from mcugen.backends.npu.ethos_u.command_stream.interpreter import run
from mcugen.backends.npu.ethos_u.command_stream.listing import listing_of
from mcugen.backends.npu.ethos_u.command_stream.operations import CommandStream, NpuConfiguration
from mcugen.backends.npu.ethos_u.command_stream.support import supported_operations
from mcugen.backends.npu.ethos_u.command_stream.text import format_stream

__all__ = [
    "CommandStream",
    "CommandStreamError",
    "NpuConfiguration",
    "UndocumentedOperation",
    "check",
    "decode",
    "format_stream",
    "listing_of",
    "run",
    "supported_operations",
]
