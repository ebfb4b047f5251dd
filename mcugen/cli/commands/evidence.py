# SPDX-License-Identifier: Apache-2.0
"""`mcugen evidence`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mcugen.cli.commands.console import tell, tell_notes, tell_warnings, watched, write_json
from mcugen.cli.options import BoardName, Model, Telling, takes_options
from mcugen.core.options import CompileOptions
from mcugen.driver.tasks import Judging, Quantizing


@takes_options
def evidence(
    model: Model,
    *,
    board: BoardName,
    output: Annotated[Path, typer.Option("-o", "--output", help="folder of the evidence", show_default=False)],
    options: CompileOptions,
    quantizing: Quantizing,
    judging: Judging,
    telling: Telling,
) -> None:
    """Writes what an assessor asks for: materials, traceability, coverage, bounds, deviations (docs/evidence.md)."""
    from mcugen.api.compilation import Compilation
    from mcugen.deploy.evidence.folder import gather, write

    net = Compilation(model, board, options, quantizing, judging)
    with watched(net, telling.quiet):
        found = gather(net)
    write(found, output)
    write_json(telling.json_, found.report)
    tell_warnings(found.report.warnings)
    if telling.quiet:
        return
    tell_notes(found.report.notes)
    lines = [(f.covered_lines, f.lines) for f in found.coverage.files]
    ran, whole = sum(part for part, _ in lines), sum(count for _, count in lines)
    tell(f"{output}: {len(found.files)} files; {found.coverage.samples} samples run {ran} of {whole} lines of C")
