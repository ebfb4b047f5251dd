# SPDX-License-Identifier: Apache-2.0
"""The command `mcugen evidence`."""

from __future__ import annotations

from pathlib import Path

from mcugen.cli.command import Model, takes_options
from mcugen.cli.commands.console import tell, tell_notes, tell_warnings, watched, write_json
from mcugen.options.arguments import CompilationTask, OutputOptions


@takes_options
def evidence(
    model: Model,
    *,
    board: str,
    output: Path,
    task: CompilationTask,
    output_options: OutputOptions,
) -> None:
    """Write the evidence for a safety assessment: materials, traceability, coverage, bounds, deviations.

    See docs/how-to/evidence.md.
    """
    from mcugen.api.compilation import Compilation
    from mcugen.deploy.evidence.folder import gather_evidence, write_evidence

    net = Compilation.of(model, board, task)
    with watched(net, output_options.quiet):
        gathered = gather_evidence(net)
    write_evidence(gathered, output)
    write_json(output_options.json_, gathered.report)
    tell_warnings(gathered.report.warnings)
    if output_options.quiet:
        return
    tell_notes(gathered.report.notes)
    lines = [(f.covered_lines, f.lines) for f in gathered.coverage.files]
    ran, whole = sum(part for part, _ in lines), sum(count for _, count in lines)
    tell(f"{output}: {len(gathered.files)} files; {gathered.coverage.samples} samples run {ran} of {whole} lines of C")
