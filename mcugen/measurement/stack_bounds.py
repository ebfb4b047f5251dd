# SPDX-License-Identifier: Apache-2.0
"""`--stack-bound`: the most stack that a call takes, from the code that the board's compiler makes of the model.

What is told holds for that compiler and those flags, which the header names.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from mcugen.codegen.draft import StackNote
from mcugen.core.errors import UsageError, VerificationError
from mcugen.driver.compiled import CompiledModel
from mcugen.reporting.figures import stack_figures
from mcugen.simulation.build import build_parts, flags_of
from mcugen.simulation.machines import find_machine, tool_versions
from mcugen.simulation.stack import stack_bound


def with_stack_bound(compiled: CompiledModel) -> CompiledModel:
    """The same, whose header and report tell the bound.

    UsageError for a board without a cross compiler; ToolMissingError where it is not installed; VerificationError where
    the code does not tell.
    """
    board, bundle = compiled.board, compiled.bundle
    if not board.qemu:
        raise UsageError("--stack-bound reads what a board's compiler makes", f"board '{board.name}'", "give another")
    root = f"{bundle.name}_run"
    with tempfile.TemporaryDirectory(prefix="mcugen-") as folder:
        image, _ = build_parts(bundle, board, Path(folder), [root], compiled.options.library)
        found = stack_bound(image, root, find_machine(board).toolchain)
    if found.bytes is None:
        raise VerificationError("a call's stack must have a bound", found.reason, "leave out --stack-bound")
    compiler, _ = tool_versions(board)
    note = StackNote(found.bytes, compiler, flags_of(board), bool(found.pointers))
    report = replace(compiled.report, stack_bound=stack_figures(found))
    form = replace(compiled.draft.form, stack=note)
    draft = compiled.draft._replace(form=form, report=report.to_json())
    return replace(compiled, report=report, draft=draft)
