# SPDX-License-Identifier: Apache-2.0
"""The command `mcugen link`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mcugen.cli.arguments import Arguments, OutputOptions
from mcugen.cli.command import takes_options
from mcugen.cli.commands.console import stdout, tell, tell_notes, tell_warnings, watched, write_json
from mcugen.core.errors import UsageError, shortened
from mcugen.core.options import CompileOptions
from mcugen.driver.tasks import Judging, Quantizing

if TYPE_CHECKING:
    from mcugen.api.compilation import Compilation


@takes_options
def link(
    models: Annotated[list[Path], typer.Argument(help="ONNX files", show_default=False)],
    *,
    board: str,
    output: Path,
    exclusive: list[str],
    set_: list[str],
    build: bool,
    options: Arguments[CompileOptions],
    quantizing: Arguments[Quantizing],
    judging: Arguments[Judging],
    output_options: OutputOptions,
) -> None:
    """Compile several models to one folder of C source files, with shared code and constants stored once."""
    from mcugen.deploy.linking import Linking
    from mcugen.deploy.linking.text import print_link

    common = options.having({"name": ""}), quantizing, judging
    settings = _settings(models, set_, [option.name for arguments in common for option in arguments.options])
    nets = [_net(model, board, *common, own_settings) for model, own_settings in zip(models, settings, strict=True)]
    name = options.values["name"] or Path(os.path.realpath(output)).name
    linking = Linking(nets, name, [group.split(",") for group in exclusive])
    linking.check()
    for net in nets:
        with watched(net, output_options.quiet):
            _ = net.compiled
    folder = linking.write(output)
    result = linking.report(build=build)
    write_json(output_options.json_, result)
    tell_warnings([text for net in nets for text in net.compiled.report.warnings])
    if output_options.quiet:
        return
    tell_notes(result.notes)
    bundle = linking.firmware.bundle
    tell(f"{folder}: {len(bundle.files) + len(bundle.blobs)} files of {len(nets)} models")
    if output_options.json_ != "-":
        print_link(result, stdout)


def _net(
    model: Path,
    board: str,
    options: Arguments[CompileOptions],
    quantizing: Arguments[Quantizing],
    judging: Arguments[Judging],
    settings: Mapping[str, Sequence[str]],
) -> Compilation:
    """Return the compilation of one model, with its own options in place of common ones."""
    from mcugen.api.compilation import Compilation

    return Compilation(
        model,
        board,
        options.overridden(settings).build(),
        quantizing.overridden(settings).build(),
        judging.overridden(settings).build(),
    )


def _settings(models: Sequence[Path], texts: Sequence[str], known: Sequence[str]) -> list[dict[str, list[str]]]:
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
