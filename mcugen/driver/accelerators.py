# SPDX-License-Identifier: Apache-2.0
"""The accelerator of a compilation: chosen by the board's NPU among built-in ones and those of plug-ins."""

from __future__ import annotations

from mcugen.backends.accelerator import Accelerator
from mcugen.backends.npu.ethos_u.accelerator import ETHOS_U
from mcugen.core.board import Board
from mcugen.core.errors import ToolMissingError, UsageError
from mcugen.core.options import NPU_OFF, CompileOptions
from mcugen.driver.plugins import accelerators_of

BUILT_IN_ACCELERATORS: tuple[Accelerator, ...] = (ETHOS_U,)
"""The accelerators that come with mcugen."""


def accelerator_of(board: Board, options: CompileOptions) -> Accelerator | None:
    """Return the accelerator that the options use, or None: it is off, or its compiler is not installed.

    Raises:
        UsageError: The board has no NPU, or one that no accelerator is for.
        ToolMissingError: `--npu only` is set, and the accelerator's compiler is not installed.
    """
    if options.npu == NPU_OFF:
        return None
    accelerator = serving(board, options)
    missing = accelerator.why_missing()
    if missing is None:
        return accelerator
    raise ToolMissingError(f"--npu {options.npu} needs the accelerator's compiler", f"no {missing[0]}", missing[1])


def serving(board: Board, options: CompileOptions) -> Accelerator:
    """Return the accelerator for the board's NPU, whether its compiler is installed or not.

    Raises:
        UsageError: The board has no NPU, or one that no accelerator is for.
    """
    if board.npu is None:
        rule = f"--npu {options.npu} needs a board file with a table [npu]"
        raise UsageError(
            rule, f"board '{board.name}' has none", "leave --npu out, or add the table (docs/how-to/npu.md)"
        )
    known = (*accelerators_of(options.plugins), *BUILT_IN_ACCELERATORS)
    chosen = next((accelerator for accelerator in known if accelerator.serves(board.npu)), None)
    if chosen is None:
        families = ", ".join(f"{accelerator.family}-…" for accelerator in known)
        rule = f"board '{board.name}': npu.kind must be that of a known accelerator"
        raise UsageError(rule, repr(board.npu.kind), f"one of: {families}; or a plug-in with an accelerator")
    return chosen
