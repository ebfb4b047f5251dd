# SPDX-License-Identifier: Apache-2.0
"""The command `mcugen explore`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mcugen.cli.command import Model, takes_options
from mcugen.cli.commands.console import progress_shown, stdout, tell_warnings, write_json
from mcugen.core.board import chip_names
from mcugen.core.errors import UsageError
from mcugen.core.options import FOUR_BIT_GROUP_SIZES, GOALS, MIXED, PRECISIONS, CompileOptions
from mcugen.distributed.sharing import Workers
from mcugen.driver.tasks import Judging, Quantizing
from mcugen.options.arguments import Arguments, OutputOptions, TaskArguments
from mcugen.options.values import several_of

if TYPE_CHECKING:
    from mcugen.explore.prepare import ExplorationSubject

ALL = "all"
"""Value of `--boards` that stands for all known boards."""


@dataclass(frozen=True)
class ExplorationOptions:
    """The options of `mcugen explore` that say which combinations are run, and which count as the best.

    A combination is a board, a precision and an optimization goal, for which the model is compiled.

    Attributes:
        min_accuracy: Smallest accepted value of the accuracy metric; None for no limit.
        max_energy: Largest accepted energy of a call in microjoules; None for no limit.
        price: Prices of boards, as texts BOARD=PRICE.
        simulate: Whether to run combinations under QEMU.
        most_runs: Largest number of combinations to run.
    """

    min_accuracy: float | None
    max_energy: float | None
    price: list[str]
    simulate: bool
    most_runs: int


@dataclass(frozen=True)
class ExplorationView:
    """The options of `mcugen explore` on what it shows.

    Attributes:
        all_: Whether to list all combinations instead of the best ones.
        html: File for the result as a page, if any.
    """

    all_: bool
    html: Path | None


@takes_options
def explore(
    model: Model,
    *,
    boards: str,
    task: TaskArguments,
    search: ExplorationOptions,
    sharing: Workers,
    cache: Path | None,
    view: ExplorationView,
    output_options: OutputOptions,
) -> None:
    """Compare a model on many boards, in several precisions, for several goals, and show the best combinations.

    --precision and --optimize take several values, separated by commas. Results are cached for later runs.
    """
    from mcugen.codegen.write import write_text
    from mcugen.core.cache import Store, user_store
    from mcugen.explore.demands import Demands, Prices
    from mcugen.explore.page import explored_page
    from mcugen.explore.search import Exploration, combinations
    from mcugen.explore.text import print_explored

    options, quantizing = task.options, task.quantizing
    precisions, goals = _precisions(quantizing), several_of("--optimize", options.values["optimize"], GOALS)
    requested, judged = options.having({"optimize": GOALS[0]}).build(), task.judging.build()
    demands = replace(
        Demands.of_options(requested),
        microjoules=search.max_energy,
        accuracy=search.min_accuracy,
        drop=judged.max_drop,
    )
    exploration = Exploration(
        _request(model, requested, quantizing, judged, precisions),
        combinations(_board_names(boards), precisions, goals),
        demands,
        Prices(_parse_prices(search.price)),
        search.simulate,
        search.most_runs,
        sharing,
        store=user_store("explore") if cache is None else Store(cache),
    )
    with progress_shown(output_options.quiet) as exploration.progress:
        explored = exploration.run()
    write_json(output_options.json_, explored)
    tell_warnings([text for one in explored.outcomes if one.report is not None for text in one.report.warnings])
    if view.html is not None:
        write_text(view.html, explored_page(explored))
    if output_options.json_ != "-":
        print_explored(explored, stdout, explored.outcomes if view.all_ else explored.front, output_options.wide)
    explored.require()


def _precisions(quantizing: Arguments[Quantizing]) -> Sequence[str]:
    """Return the precisions to try; by default float32, and int8 if samples or ranges are given."""
    known = {"calibration", "profile", "synthetic"} & set(quantizing.given())
    usual = "float32,int8" if known else "float32"
    return several_of(
        "--precision", quantizing.values["precision"] or usual, (*PRECISIONS, *FOUR_BIT_GROUP_SIZES, MIXED)
    )


def _request(
    model: Path,
    options: CompileOptions,
    quantizing: Arguments[Quantizing],
    judged: Judging,
    precisions: Sequence[str],
) -> ExplorationSubject:
    """Return the request that all combinations share; deadlines are checked on results instead."""
    from mcugen.explore.prepare import ExplorationSubject

    if MIXED not in precisions:  # Without a search for precisions, limits on accuracy are checked on results.
        judged = replace(judged, max_drop=None, min_sqnr=None)
    by_precision = {precision: _quantizing_for(quantizing, precision) for precision in precisions}
    return ExplorationSubject(model, replace(options, max_latency=None, max_cycles=None), by_precision, judged)


def _board_names(text: str) -> Sequence[str]:
    """Return the names of boards in an option's value; `all` is every board but the host.

    Raises:
        UsageError: There is no name.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UsageError("--boards must name some board", f"'{text}'", "e.g. --boards rp2040,stm32f446; or all")
    return chip_names() if names == [ALL] else names


def _quantizing_for(arguments: Arguments[Quantizing], precision: str) -> Quantizing:
    """Return the quantization options of one precision; float32 takes no samples."""
    if precision == "float32":
        return Quantizing(preprocess=arguments.values["preprocess"])
    return arguments.having({"precision": precision}).build()


def _parse_prices(texts: Sequence[str]) -> dict[str, float]:
    """Return the price of each board, from texts BOARD=PRICE.

    Raises:
        UsageError: A text has no name, or no price of at least 0.
    """
    prices = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        try:
            prices[name] = float(number)
        except ValueError:
            prices[name] = math.nan
        if not name or not 0 <= prices[name] < math.inf:
            raise UsageError("--price must read BOARD=PRICE", f"'{text}'", "e.g. --price rp2040=0.8")
    return prices
