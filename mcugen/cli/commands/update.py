# SPDX-License-Identifier: Apache-2.0
"""The command `mcugen update`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mcugen.cli.command import Model, takes_options
from mcugen.cli.commands.console import tell, tell_notes, tell_warnings, watched, write_json
from mcugen.options.arguments import CompilationTask, OutputOptions


@takes_options
def update(
    model: Model,
    *,
    board: str,
    for_: Path,
    output: Path,
    slot: int | None,
    signature_file: Path | None,
    task: CompilationTask,
    output_options: OutputOptions,
) -> None:
    """Write a new file of weights for existing code, from a retrained model of the same structure."""
    from mcugen.api.compilation import Compilation
    from mcugen.codegen.update import InstalledCode, read_signature, slot_image
    from mcugen.codegen.write import replace_file

    installed = InstalledCode.of(for_)
    version = task.options.weights_version or installed.version + 1
    same = replace(task.options, name=installed.name, updatable=True, weights_version=version)
    net = Compilation.of(model, board, replace(task, options=same))
    with watched(net, output_options.quiet):
        compiled = net.compiled
    file = installed.update(compiled.bundle) + read_signature(signature_file)
    file = file if slot is None else slot_image(file, slot)
    replace_file(output, lambda stream: stream.write(file))
    write_json(output_options.json_, compiled.report)
    tell_warnings(compiled.report.warnings)
    if not output_options.quiet:
        tell_notes(compiled.report.notes)
        tell(f"{output}: version {version} of {installed.name}'s weights, {len(file):,} bytes")
