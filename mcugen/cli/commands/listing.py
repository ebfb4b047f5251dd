# SPDX-License-Identifier: Apache-2.0
"""The commands that list boards, operators and the version: `boards`, `operators`, `version`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from mcugen.cli.command import takes_options
from mcugen.cli.commands.console import json_text, progress_shown, stdout
from mcugen.core.board import load_board
from mcugen.core.options import GOALS, CompileOptions
from mcugen.core.version import __version__
from mcugen.distributed.sharing import Workers
from mcugen.driver.tasks import Judging, Quantizing
from mcugen.options.values import cpus


@takes_options
def boards(
    context: typer.Context,
    like: str,
    fits: Path | None,
    json_: bool,
) -> None:
    """List boards with CPU, clock, memory and kits; `show NAME` prints all data of one board."""
    from mcugen.reporting.listing import boards_like, print_boards

    if context.invoked_subcommand is not None:
        return
    if fits is None:
        print_boards(stdout, json_, like)
    else:
        _print_fits(fits, [board.name for board in boards_like(like) if board.name != "host"], json_)


def _print_fits(model: Path, names: Sequence[str], as_json: bool) -> None:
    """Print whether a model fits each board, by estimates as of `mcugen explore --no-simulate`, in float32.

    Raises:
        ConstraintError: The model fits no board.
    """
    from mcugen.core.cache import user_store
    from mcugen.explore.fits import board_fits, fits_to_json, print_fits, require_fit
    from mcugen.explore.prepare import ExplorationSubject
    from mcugen.explore.search import Exploration, combinations

    request = ExplorationSubject(model, CompileOptions(), {"float32": Quantizing()}, Judging())
    store, points = user_store("explore"), combinations(names, ["float32"], GOALS[:1])
    exploration = Exploration(request, points, simulate=False, workers=Workers(cpus("--jobs", 0)), store=store)
    with progress_shown(as_json) as exploration.progress:
        explored = exploration.run()
    fits = board_fits(explored)
    if as_json:
        typer.echo(json_text(fits_to_json(explored, fits)))
    else:
        print_fits(explored.model, fits, stdout)
    require_fit(fits)


@takes_options
def show(name: Annotated[str, typer.Argument()], json_: bool) -> None:
    """Print all data of one board."""
    from mcugen.reporting.listing import print_board

    print_board(load_board(name), stdout, json_)


@takes_options
def measured(
    folder: Annotated[
        Path | None, typer.Argument(help="folder of measurements (default: mcugen's own)", show_default=False)
    ] = None,
    *,
    html: Path | None,
    json_: bool,
) -> None:
    """Check cycles that users measured on their boards, and print them beside the estimates."""
    from mcugen.codegen.write import write_text
    from mcugen.core.resources import resource_dir
    from mcugen.deploy.measured.contribution import read_measurements
    from mcugen.deploy.measured.table import measurement_page, print_measurements

    measurements = read_measurements(folder or resource_dir("boards") / "measured")
    if html is not None:
        write_text(html, measurement_page(measurements))
    if json_:
        typer.echo(json_text([asdict(one) for one in measurements]))
    else:
        print_measurements(measurements, stdout)


@takes_options
def operators(plugin: list[Path]) -> None:
    """Print the table of supported ONNX operators (Markdown: docs/reference/operators.md)."""
    from mcugen.driver.plugins import registry_of
    from mcugen.reporting.operators import operator_table

    typer.echo(operator_table(registry_of(plugin)), nl=False)


def version() -> None:
    """Print the version."""
    typer.echo(__version__)
