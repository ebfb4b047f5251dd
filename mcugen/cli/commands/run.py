# SPDX-License-Identifier: Apache-2.0
"""The command `mcugen run`."""

from __future__ import annotations

from pathlib import Path

from mcugen.cli.command import Model, takes_options
from mcugen.cli.commands.console import tell_notes, tell_warnings, watched
from mcugen.options.arguments import CompilationTask


@takes_options
def run(
    model: Model,
    *,
    board: str,
    inputs: Path,
    output: Path,
    task: CompilationTask,
    quiet: bool,
) -> None:
    """Run the generated code on samples and write its outputs."""
    import numpy as np

    from mcugen.api.compilation import Compilation
    from mcugen.codegen.write import replace_file

    net = Compilation.of(model, board, task)
    with watched(net, quiet):
        arrays = net.run(inputs)
    tell_warnings(net.warnings)
    if not quiet:
        tell_notes(net.notes)
    replace_file(output, lambda file: np.savez(file, allow_pickle=False, **arrays))
