# SPDX-License-Identifier: Apache-2.0
"""The command `mcugen diff`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from mcugen.cli.command import takes_options
from mcugen.cli.commands.console import stdout


@takes_options
def diff(
    before: Annotated[Path, typer.Argument(help="report, as `mcugen report --json` wrote it", show_default=False)],
    after: Annotated[Path, typer.Argument(help="the report to compare with it", show_default=False)],
    *,
    limit: list[str],
    markdown: Path | None,
    html: Path | None,
    json_: str,
    wide: bool,
    quiet: bool,
) -> None:
    """Compare two reports: show changes and their causes, and check them against limits."""
    from mcugen.codegen.write import write_text
    from mcugen.reporting import comparison
    from mcugen.reporting.differences import differences, read_limit
    from mcugen.reporting.stored import read_report

    limits = [read_limit(text) for text in limit]
    comparison_result = differences(read_report(before), read_report(after))
    if markdown is not None:
        write_text(markdown, comparison.markdown(comparison_result))
    if html is not None:
        write_text(html, comparison.differences_page(comparison_result))
    text = json.dumps(comparison_result.to_json(), indent=2)
    if json_ == "-":
        typer.echo(text)
    elif json_:
        write_text(Path(json_), text + "\n")
    if json_ != "-" and not quiet:
        comparison.print_differences(comparison_result, stdout, wide)
    comparison_result.require(limits)
