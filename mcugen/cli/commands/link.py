# SPDX-License-Identifier: Apache-2.0
"""The command `mcugen link`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from mcugen.cli.command import takes_options
from mcugen.cli.commands.console import stdout, tell, tell_kept, tell_notes, tell_warnings, watched, write_json
from mcugen.core.errors import UsageError, shortened
from mcugen.options.arguments import OutputOptions, TaskArguments


@dataclass(frozen=True)
class ModelSettings:
    """The options of `mcugen link` that treat its models differently.

    Attributes:
        exclusive: Groups of models that are never in use together: names, separated by commas.
        set_: Options of one model: NAME:OPTION or NAME:OPTION=VALUE.
    """

    exclusive: list[str]
    set_: list[str]


@takes_options
def link(
    models: Annotated[list[Path], typer.Argument(help="ONNX or .tflite files", show_default=False)],
    *,
    board: str,
    output: Path,
    force: bool,
    per_model: ModelSettings,
    build: bool,
    task: TaskArguments,
    output_options: OutputOptions,
) -> None:
    """Compile several models to one folder of C source files, with shared code and constants stored once."""
    from mcugen.api.compilation import Compilation
    from mcugen.codegen.write import check_folder
    from mcugen.deploy.linking import Linking
    from mcugen.deploy.linking.text import print_link

    common = replace(task, options=task.options.having({"name": ""}))
    settings = _own_settings(models, per_model.set_, [option.name for part in common.parts for option in part.options])
    nets = [
        Compilation.of(model, board, common.overridden(own).build())
        for model, own in zip(models, settings, strict=True)
    ]
    name = task.options.values["name"] or Path(os.path.realpath(output)).name
    linking = Linking(nets, name, [group.split(",") for group in per_model.exclusive])
    linking.check()
    check_folder(output)
    for net in nets:
        with watched(net, output_options.quiet):
            _ = net.compiled
    folder = linking.write(output, force=force)
    result = linking.report(build=build)
    write_json(output_options.json_, result)
    tell_warnings([text for net in nets for text in net.compiled.report.warnings])
    if output_options.quiet:
        return
    tell_notes(result.notes)
    bundle = linking.firmware.bundle
    tell(f"{folder}: {len(bundle.files) + len(bundle.blobs)} files of {len(nets)} models")
    tell_kept(folder)
    if output_options.json_ != "-":
        print_link(result, stdout, output_options.wide)


def _own_settings(models: Sequence[Path], texts: Sequence[str], known: Sequence[str]) -> list[dict[str, list[str]]]:
    """Return the own options of each model by name, from texts MODEL:OPTION=VALUE.

    Raises:
        UsageError: A text does not name exactly one model, or names no option.
    """
    settings: list[dict[str, list[str]]] = [{} for _ in models]
    for text in texts:
        which, _, setting = text.partition(":")
        option, _, value = setting.partition("=")
        numbers = [n for n, model in enumerate(models) if which in (str(n + 1), model.stem)]
        if len(numbers) != 1 or option not in known:
            what = "one model, by its file's name without .onnx or its number," if len(numbers) != 1 else "an option"
            rule, remedy = f"--set must name {what} as in MODEL:OPTION=VALUE", "e.g. --set digits:calibration=a.npz"
            raise UsageError(rule, f"'{shortened(text, 120)}'", remedy)
        settings[numbers[0]].setdefault(option, []).append(value)
    return settings
