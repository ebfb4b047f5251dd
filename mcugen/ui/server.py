# SPDX-License-Identifier: Apache-2.0
"""The start and the end of the web server of `mcugen ui`."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from mcugen.core.errors import UsageError
from mcugen.core.packages import optional_package
from mcugen.distributed.job_process import JobLimits
from mcugen.distributed.sharing import Workers
from mcugen.ui.desk import Desk
from mcugen.ui.jobs import Jobs
from mcugen.ui.project import Project
from mcugen.ui.uploads import UploadLimits

LOOPBACK = "127.0.0.1"
"""Address that only programs of this computer reach."""


@dataclass(frozen=True)
class ServerOptions:
    """The place where the server listens, its users, and its limits.

    Attributes:
        host: Address to listen at.
        port: Port; 0 for any free one.
        password: Password of users on other computers; "" for none.
        hosts: Further names of this computer that browsers may use.
        job_limits: Limits of each job.
        uploads: Limits of uploads.
    """

    host: str = LOOPBACK
    port: int = 0
    password: str = ""
    hosts: tuple[str, ...] = ()
    job_limits: JobLimits = field(default_factory=lambda: JobLimits(8 << 30, 3600))
    uploads: UploadLimits = field(default_factory=UploadLimits)

    def __post_init__(self) -> None:
        if self.host not in (LOOPBACK, "localhost", "::1") and not self.password:
            remedy = "give --password, or listen at 127.0.0.1 behind a reverse proxy with TLS and --allow-host"
            raise UsageError("a page that other computers reach needs a password", f"--host {self.host}", remedy)


def serve(folder: Path, options: ServerOptions, workers: Workers, tell_address: Callable[[str], None]) -> None:
    """Serve the page of a project folder until Ctrl-C.

    Args:
        folder: The project; it is made if it does not exist.
        options: Where to listen, and limits.
        workers: The processes or computers that share the work of jobs.
        tell_address: Receives the address with the token once the server listens.

    Raises:
        UsageError: The folder or the port cannot be used.
        ToolMissingError: NiceGUI is not installed.
    """
    project = _open_project(folder)
    jobs = Jobs(project, options.job_limits, workers)  # Its process server starts meanwhile.
    with optional_package("ui", "mcugen ui"):
        import uvicorn

        from mcugen.ui.access import Guard, UserAccess
        from mcugen.ui.routes import build_app
    os.chdir(project.root)  # Board files in mcugen.toml are relative to it.
    listener = _listen(options.host, options.port)
    port = listener.getsockname()[1]
    access = UserAccess(port, options.hosts, options.password)
    desk = Desk(project, jobs, options.uploads)
    # Open connections may take two seconds to end.
    config = uvicorn.Config(
        Guard(build_app(desk), access), log_level="warning", server_header=False, timeout_graceful_shutdown=2
    )
    name = f"[{options.host}]" if ":" in options.host else options.host
    host = LOOPBACK if options.host in ("0.0.0.0", "::") else name
    try:
        tell_address(f"http://{host}:{port}/?token={access.token}")
        uvicorn.Server(config).run(sockets=[listener])
    except KeyboardInterrupt:
        pass
    finally:
        jobs.close()


def _open_project(folder: Path) -> Project:
    """Return the project of a folder, with an absolute path.

    Raises:
        UsageError: The folder cannot be made, or its mcugen.toml cannot be read.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError("the project must be a folder", f"'{folder}': {error.strerror}", "name another") from error
    project = Project(folder.resolve())
    project.settings()
    return project


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address.

    Raises:
        UsageError: The address is not free, or not one of this computer.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        remedy = "give another --port, or none for any free one"
        raise UsageError(f"{host}:{port} must be a free address of this computer", str(error), remedy) from error
    return listener
