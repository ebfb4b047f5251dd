# SPDX-License-Identifier: Apache-2.0
"""The routes of the web server: the page, uploads, results and assets."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Literal

from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse, PlainTextResponse
from nicegui import ui

from mcugen.core.errors import McugenError, UsageError
from mcugen.options.settings import FILE
from mcugen.reporting.charts import vega
from mcugen.reporting.comparison import differences_page
from mcugen.reporting.differences import differences
from mcugen.reporting.html import report_page
from mcugen.reporting.pages import source
from mcugen.reporting.stored import read_report
from mcugen.ui.desk import Desk
from mcugen.ui.page import build_page
from mcugen.ui.uploads import TooLargeError, finish_samples, receive_file, receive_sample
from mcugen.ui.work import EXPLORED, NETWORK, PAGE, REPORT, JobKind

SHOWN_FILES = (PAGE, NETWORK, EXPLORED, REPORT)
"""Names of files of results that the page shows or offers; a package is offered besides."""


def build_app(desk: Desk) -> FastAPI:
    """Return the application: the page, and the routes of uploads, results and assets."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    _add_assets(app)
    _add_uploads(app, desk)
    _add_results(app, desk)
    ui.run_with(
        app,
        root=lambda: build_page(desk),
        title="mcugen",
        dark=None,
        language="en-US",
        favicon="data:image/svg+xml,<svg xmlns='http://www.w3.org/2000/svg'/>",
        show_welcome_message=False,
        reconnect_timeout=10,
    )
    return app


def _add_assets(app: FastAPI) -> None:
    """Add the script of the page, which never changes while the server runs: browsers keep it by its address."""

    @app.get("/assets/{digest}/page.js")
    def asset(digest: str) -> Response:
        # The names of Vega must not hide those of the page's other scripts.
        text = f"(() => {{{vega()}\n}})();\n{source('drawing.js')}\n{source('../ui/page.js')}"
        return Response(text, media_type="text/javascript", headers={"cache-control": "private, max-age=31536000"})


def _add_uploads(app: FastAPI, desk: Desk) -> None:
    """Add the routes that receive files, as bodies of requests."""

    async def answer(request: Request, receive: Coroutine[Any, Any, None]) -> Response:
        """Return the answer to an upload: none, or a text with the reason why it was refused."""
        length = request.headers.get("content-length", "0")
        try:
            if not length.isdecimal() or int(length) > desk.limits.file_bytes:
                rule = f"an upload must have at most {desk.limits.file_bytes:,} bytes"
                raise TooLargeError(rule, f"{length[:20]}", "drop a smaller file, or allow more: --max-upload")
            await receive
        except McugenError as error:
            receive.close()  # It may not have begun.
            return Response(str(error), 413 if isinstance(error, TooLargeError) else 400, media_type="text/plain")
        return Response(status_code=204)

    @app.put("/upload/samples/{folder}/{path:path}")
    async def sample(folder: str, path: str, request: Request) -> Response:
        return await answer(request, receive_sample(desk.project, folder, path, request.stream(), desk.limits))

    @app.put("/upload/{folder}/{name}")
    async def file(folder: Literal["models", "snapshots"], name: str, request: Request) -> Response:
        return await answer(request, receive_file(desk.project, folder, name, request.stream(), desk.limits))

    @app.post("/upload/samples/{folder}")
    async def finish(folder: str, request: Request) -> Response:
        return await answer(request, _take_samples(desk, folder))


async def _take_samples(desk: Desk, folder: str) -> None:
    """Choose the samples of a drop, once a job has converted them if they are no file of arrays.

    Raises:
        McugenError: They are no samples, or there is no model yet that they belong to.
    """
    path = finish_samples(desk.project, folder)
    if not (desk.project.root / path).is_dir():
        desk.use_samples(path)
        return
    request = desk.request(JobKind.SAMPLES, {"source": path})
    if request is None:
        raise UsageError("samples of images or sound need a model, whose input they become", "none", "drop it first")
    job = desk.jobs.submit(request, again=True)
    while job.state.is_open:
        await asyncio.sleep(0.1)
    if job.result is None:
        raise UsageError(*(job.failure or ("the samples must be looked at", "this was cancelled", "drop them again")))
    desk.use_samples(str(job.result["file"]))


def _add_results(app: FastAPI, desk: Desk) -> None:
    """Add the routes of results: pages of reports, packages, and the settings."""
    fresh = {"cache-control": "no-cache"}

    @app.get("/results/{key}/{name}")
    def result(key: str, name: str) -> Response:
        job = desk.jobs.find(key)
        is_offered = job is not None and (name in SHOWN_FILES or name == (job.result or {}).get("file"))
        if job is None or not is_offered or not (path := desk.jobs.folder(job) / name).is_file():
            return Response(status_code=404)
        is_page = name.endswith(".html")
        return FileResponse(path, headers=fresh, filename=None if is_page else name)

    @app.get("/results/{key}/points/{index}.html")
    def point(key: str, index: int) -> Response:
        job = desk.jobs.find(key)
        explored = None if job is None else desk.explored(job)
        if explored is None or not 0 <= index < len(explored.outcomes):
            return Response(status_code=404)
        report = explored.outcomes[index].report
        text = "" if report is None else report_page(report)
        return Response(text, media_type="text/html", headers=fresh)

    @app.get("/results/differences/{before}/{after}.html")
    def differences_of(before: str, after: str) -> Response:
        known = [desk.jobs.find(key) for key in (before, after)]
        paths = [desk.jobs.folder(job) / REPORT for job in known if job is not None]
        if len(paths) != 2 or not all(path.is_file() for path in paths):
            return Response(status_code=404)
        page = differences_page(differences(*map(read_report, paths)))
        return Response(page, media_type="text/html", headers=fresh)

    @app.get(f"/{FILE}")
    def settings() -> Response:
        path = desk.project.settings_file
        text = path.read_text() if path.is_file() else ""
        return PlainTextResponse(text, headers={**fresh, "content-disposition": f'attachment; filename="{FILE}"'})
