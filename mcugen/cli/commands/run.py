# SPDX-License-Identifier: Apache-2.0
"""The command `mcugen run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mcugen.cli.commands.console import tell_notes, tell_warnings, watched
from mcugen.cli.options import BoardName, Model, Quiet, takes_options
from mcugen.core.options import CompileOptions
from mcugen.driver.tasks import Judging, Quantizing


@takes_options
def run(
    model: Model,
    *,
    board: BoardName,
    inputs: Annotated[Path, typer.Option(help="samples, .npz", show_default=False)],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="where to write the outputs, .npz", show_default=False)
    ],
    running: CompileOptions,
    quantizing: Quantizing,
    judging: Judging,
    quiet: Quiet = False,
) -> None:
    """Run the generated code on samples and write its outputs."""
    import numpy as np

    from mcugen.api.compilation import Compilation
    from mcugen.codegen.write import replace_file

    net = Compilation(model, board, running, quantizing, judging)
    with watched(net, quiet):
        arrays = net.run(inputs)
    tell_warnings(net.warnings)
    if not quiet:
        tell_notes(net.notes)
    replace_file(output, lambda file: np.savez(file, allow_pickle=False, **arrays))
