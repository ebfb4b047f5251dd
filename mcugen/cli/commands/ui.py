# SPDX-License-Identifier: Apache-2.0
"""The command `mcugen ui`."""

from __future__ import annotations

import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from mcugen.cli.command import takes_options
from mcugen.distributed.sharing import Workers


@dataclass(frozen=True)
class ListeningOptions:
    """The options of `mcugen ui` on where it listens, and who may use it.

    Attributes:
        host: Address to listen at.
        port: Port; 0 for any free one.
        password: Password of users on other computers; "" for none.
        allow_host: Further names of this computer that browsers may use.
        browser: Whether to open a browser.
    """

    host: str
    port: int
    password: str
    allow_host: list[str]
    browser: bool


@dataclass(frozen=True)
class LimitOptions:
    """The options of `mcugen ui` that limit uploads and jobs.

    Attributes:
        max_upload: Largest size of an upload in bytes.
        job_memory: Largest memory of each process of a job in bytes.
        job_minutes: Longest time of a job in minutes.
    """

    max_upload: int
    job_memory: int
    job_minutes: float


@takes_options
def ui(
    folder: Annotated[Path, typer.Argument(help="folder of the project", show_default=False)] = Path(),
    *,
    listening: ListeningOptions,
    limits: LimitOptions,
    sharing: Workers,
) -> None:
    """Open a local web page that takes a model to a package for a board."""
    from mcugen.distributed.job_process import JobLimits
    from mcugen.ui.server import ServerOptions, serve
    from mcugen.ui.uploads import UploadLimits

    options = ServerOptions(
        host=listening.host,
        port=listening.port,
        password=listening.password,
        hosts=tuple(listening.allow_host),
        job_limits=JobLimits(limits.job_memory, 60 * limits.job_minutes),
        uploads=UploadLimits(limits.max_upload),
    )

    def tell_address(address: str) -> None:
        typer.echo(f"open {address}")
        if listening.browser:
            webbrowser.open(address)

    serve(folder, options, sharing, tell_address)
