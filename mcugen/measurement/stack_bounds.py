# SPDX-License-Identifier: Apache-2.0
"""`--stack-bound`: an upper bound of a call's stack, from an analysis of the compiled code.

The bound holds for the compiler and the flags that the header names.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from mcugen.codegen.draft import StackNote
from mcugen.core.errors import VerificationError
from mcugen.driver.compiled import CompiledModel
from mcugen.reporting.figures import stack_figures
from mcugen.simulation.build import build_parts, flags_of
from mcugen.simulation.machines import find_machine, tool_versions
from mcugen.simulation.stack import stack_bound


def with_stack_bound(compiled: CompiledModel) -> CompiledModel:
    """Return the model with an upper bound of the stack that a call needs, in bytes, in its header and report.

    Raises:
        ToolMissingError: If the cross compiler is not installed.
        VerificationError: If no bound can be derived from the code.
    """
    board, bundle = compiled.board, compiled.bundle
    root = f"{bundle.name}_run"
    with tempfile.TemporaryDirectory(prefix="mcugen-") as folder:
        image, _ = build_parts(bundle, board, Path(folder), [root], compiled.options.library)
        bound = stack_bound(image, root, find_machine(board).toolchain)
    if bound.bytes is None:
        raise VerificationError("a call's stack must have a bound", bound.reason, "leave out --stack-bound")
    compiler, _ = tool_versions(board)
    note = StackNote(bound.bytes, compiler, flags_of(board), bool(bound.pointers))
    report = replace(compiled.report, stack_bound=stack_figures(bound))
    form = replace(compiled.draft.form, stack=note)
    draft = compiled.draft._replace(form=form, report=report.to_json())
    return replace(compiled, report=report, draft=draft)
