# SPDX-License-Identifier: Apache-2.0
"""The command `mcugen view`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mcugen.cli.command import takes_options
from mcugen.cli.commands.console import tell


@takes_options
def view(
    report: Annotated[Path, typer.Argument(help="report, as `mcugen report --json` wrote it", show_default=False)],
    *,
    output: Path | None,
    quiet: bool,
) -> None:
    """Write the HTML page of a stored report, as `mcugen report --html` does, without compiling again."""
    from mcugen.codegen.write import write_text
    from mcugen.reporting.html import report_page
    from mcugen.reporting.stored import read_report

    page = output or report.with_suffix(".html")
    write_text(page, report_page(read_report(report)))
    if not quiet:
        tell(f"wrote {page}")
