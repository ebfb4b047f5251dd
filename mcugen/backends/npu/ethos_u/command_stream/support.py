# SPDX-License-Identifier: Apache-2.0
"""The operations that the interpreter executes, and those whose results no public document defines."""

from __future__ import annotations

from dataclasses import dataclass

from mcugen.backends.npu.ethos_u.command_stream.elementwise import ELEMENTWISE_FUNCTIONS
from mcugen.backends.npu.ethos_u.command_stream.operations import ElementwiseMode, PoolingMode, ResizeMode

POOLING_MODES = frozenset(PoolingMode) - {PoolingMode.ARGMAX_X, PoolingMode.ARGMAX_Y}
"""The poolings of the interpreter."""
RESIZE_MODES = frozenset(ResizeMode) - {ResizeMode.REPLICATE}
"""The interpolations of the interpreter."""


@dataclass(frozen=True)
class OperationSupport:
    """One kind of operation, and whether the interpreter executes it.

    Attributes:
        command: The command: convolution, depthwise, pool, elementwise, resize, dma or activation.
        mode: Mode of the command; "" if it has none.
        is_supported: Whether the interpreter executes it.
    """

    command: str
    mode: str
    is_supported: bool


def supported_operations() -> list[OperationSupport]:
    """Return the operations of all commands and modes, in the order of the commands."""
    supported = [OperationSupport(command, "", True) for command in ("convolution", "depthwise")]
    supported += [OperationSupport("pool", mode.name.lower(), mode in POOLING_MODES) for mode in PoolingMode]
    supported += [
        OperationSupport("elementwise", mode.name.lower(), mode in ELEMENTWISE_FUNCTIONS) for mode in ElementwiseMode
    ]
    supported += [OperationSupport("resize", mode.name.lower(), mode in RESIZE_MODES) for mode in ResizeMode]
    supported += [OperationSupport("activation", name, name in ("clip", "table")) for name in ACTIVATIONS]
    supported += [OperationSupport("dma", "1d, 2d, 3d", True), OperationSupport("dma", "indexed", False)]
    return [*supported, OperationSupport("branch", "", False)]


ACTIVATIONS = ("clip", "table", "tanh", "sigmoid")
"""Names of what an operation can do to a result before it stores it."""


def operations_table() -> str:
    """Return a Markdown table of the commands: the modes that the interpreter executes, and those that stop it."""
    rows = ["| command | executed | not public |", "|---|---|---|"]
    operations = supported_operations()
    for command in dict.fromkeys(operation.command for operation in operations):
        modes = [operation for operation in operations if operation.command == command]
        known, unknown = (
            ", ".join(operation.mode or "all" for operation in modes if operation.is_supported is supported)
            for supported in (True, False)
        )
        rows.append(f"| {command} | {known or '-'} | {unknown or '-'} |")
    return "\n".join(rows)
