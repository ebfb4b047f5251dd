# SPDX-License-Identifier: Apache-2.0
"""The command `mcugen link`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mcugen.cli.commands.console import stdout, tell, tell_notes, tell_warnings, watched, write_json
from mcugen.cli.options import (
    BoardName,
    CompileArguments,
    JudgingArguments,
    QuantizingArguments,
    Telling,
    option_names,
    overridden,
    takes_options,
)
from mcugen.core.errors import UsageError, shortened

if TYPE_CHECKING:
    from mcugen.api.compilation import Compilation


@takes_options
def link(
    models: Annotated[list[Path], typer.Argument(help="ONNX files", show_default=False)],
    *,
    board: BoardName,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="folder; all its symbols begin with its name", show_default=False)
    ],
    exclusive: Annotated[
        list[str] | None,
        typer.Option(help="A,B: models that are never in use together, and may share memory", show_default=False),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="an option of one model, by its file's name or number: digits:calibration=a.npz, 2:name=words",
            show_default=False,
        ),
    ] = None,
    build: Annotated[bool, typer.Option(help="measure the flash of code, if the board's compiler is installed")] = True,
    options: CompileArguments,
    quantizing: QuantizingArguments,
    judging: JudgingArguments,
    telling: Telling,
) -> None:
    """Compile several models to one folder of C source files, with shared code and constants stored once."""
    from mcugen.deploy.linking import Linking
    from mcugen.deploy.linking.text import print_link

    common, settings = (replace(options, name=""), quantizing, judging), _settings(models, set_ or [])
    nets = [_net(model, board, common, own_settings) for model, own_settings in zip(models, settings, strict=True)]
    for net in nets:
        with watched(net, telling.quiet):
            _ = net.compiled
    name = options.name or Path(os.path.realpath(output)).name
    linking = Linking(nets, name, [group.split(",") for group in exclusive or ()])
    folder = linking.write(output)
    result = linking.report(build=build)
    write_json(telling.json_, result)
    tell_warnings([text for net in nets for text in net.compiled.report.warnings])
    if telling.quiet:
        return
    tell_notes(result.notes)
    bundle = linking.firmware.bundle
    tell(f"{folder}: {len(bundle.files) + len(bundle.blobs)} files of {len(nets)} models")
    if telling.json_ != "-":
        print_link(result, stdout)


def _net(
    model: Path,
    board: str,
    arguments: tuple[CompileArguments, QuantizingArguments, JudgingArguments],
    settings: Mapping[str, Sequence[str]],
) -> Compilation:
    """Return the compilation of one model, with its own options in place of common ones."""
    from mcugen.api.compilation import Compilation

    compiling, quantizing, judging = arguments
    own = overridden(quantizing, settings).made(), overridden(judging, settings).made()
    return Compilation(model, board, overridden(compiling, settings).made(), *own)


def _settings(models: Sequence[Path], texts: Sequence[str]) -> list[dict[str, list[str]]]:
    """Return the own options of each model by name, from texts MODEL:OPTION=VALUE.

    Raises:
        UsageError: A text does not name exactly one model, or names no option.
    """
    known = option_names(CompileArguments, QuantizingArguments, JudgingArguments)
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
