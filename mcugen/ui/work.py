# SPDX-License-Identifier: Apache-2.0
"""The work of the page's jobs: functions that run in processes of their own, and write to a folder of results."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcugen.core.cache import Store, code_digest
from mcugen.distributed.job_process import Emit
from mcugen.distributed.sharing import Workers
from mcugen.explore.fingerprint import fingerprint
from mcugen.options.keywords import Keywords

if TYPE_CHECKING:
    from mcugen.api.compilation import Compilation
    from mcugen.deploy.validation.figures import ValidationReport
    from mcugen.explore.point import Outcome
    from mcugen.explore.search import Exploration
    from mcugen.reporting.tables import TextTable

KEY_CHARACTERS = 32
"""Number of hexadecimal digits of a job's key, which names its folder of results."""
OUTCOMES, EXPLORED = "outcomes.json", "explore.html"
REPORT, PAGE, NETWORK = "report.json", "report.html", "network.html"
"""Names of files in a folder of results."""
VALIDATION = "validation"
"""Format of a package that is the code of firmware for a validation."""
_OBSERVED_SECONDS = 0.3
"""Least time in seconds between two parts of a validation's result."""


USED_MODULES = ("mcugen.api.compilation", "mcugen.explore.page", "mcugen.explore.prepare", "mcugen.reporting.network")
"""Modules that jobs use and that take long to import, before the first job begins."""


class JobQueue(StrEnum):
    """Queues of jobs; each queue runs one job after the other."""

    CHECKS = "checks"
    BOARDS = "boards"
    RUNS = "runs"


class JobKind(StrEnum):
    """Kinds of jobs."""

    MODEL = "model"
    FITS = "fits"
    SAMPLES = "samples"
    EXPLORE = "explore"
    REPORT = "report"
    PACKAGE = "package"
    VALIDATE = "validate"
    WATCH = "watch"

    @property
    def queue(self) -> JobQueue:
        """Return the queue of jobs of this kind: jobs that a user waits for do not queue behind long ones."""
        if self in (JobKind.MODEL, JobKind.SAMPLES, JobKind.WATCH):
            return JobQueue.CHECKS
        return JobQueue.BOARDS if self is JobKind.FITS else JobQueue.RUNS


@dataclass(frozen=True)
class JobRequest:
    """A job, by everything that its result depends on.

    Attributes:
        kind: What is computed.
        model: Path of the model, relative to the project.
        board: Name of the board; "" if the job does not depend on it.
        options: Options as keywords of `mcugen.compile`; paths are relative to the project.
        more: Arguments of this kind of job; a list may have paths, too.
    """

    kind: JobKind
    model: str = ""
    board: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)

    def key(self, root: Path) -> str:
        """Return a digest of the request, the contents of its files, and mcugen's code.

        Args:
            root: Folder of the project.

        Raises:
            OSError: A file cannot be read.
        """
        values = [self.model, *self.options.values(), *self.more.values()]
        texts = [str(text) for value in values for text in (value if isinstance(value, list) else [value])]
        files = [root / text for text in texts if text and len(text) < 4096 and (root / text).is_file()]
        files += sorted((root / self.model).parent.glob(f"{Path(self.model).name}*[._-]data")) if self.model else []
        digests = [_file_digest(path, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
        return fingerprint(code_digest(), asdict(self), digests)[:KEY_CHARACTERS]


@lru_cache(maxsize=1 << 15)
def _file_digest(path: Path, size: int, modified: int) -> str:
    """Return the digest of a file; size and time tell whether it must be read again."""
    return fingerprint(path)


@dataclass(frozen=True)
class JobTask:
    """A job with its places.

    Attributes:
        root: Folder of the project.
        folder: Folder of its results.
        request: What is computed.
        workers: The processes or computers that share its work.
    """

    root: Path
    folder: Path
    request: JobRequest
    workers: Workers


def run_job(task: JobTask, emit: Emit) -> dict[str, Any]:
    """Compute the result of a job, in its own process; files are written to its folder.

    Args:
        task: The job.
        emit: Receives progress, as a tuple of task, finished steps and all steps, and parts of the result.

    Returns:
        The result as JSON data.

    Raises:
        McugenError: The job failed.
    """
    os.chdir(task.root)
    task.folder.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = _WORK[task.request.kind](task, emit)
    return result


def _compilation(task: JobTask, board: str, **changes: Any) -> Compilation:
    from mcugen.api.compilation import Compilation

    request = task.request
    options = Keywords("compile", request.options).task
    options = replace(options, options=replace(options.options, **changes))
    return Compilation.of(Path(request.model), board, options, workers=task.workers)


def _progress(emit: Emit) -> Callable[[str, int, int], None]:
    return lambda what, finished, total: emit((what, finished, total))


def _look_at_model(task: JobTask, emit: Emit) -> dict[str, Any]:
    """Return inputs, outputs, operators and size of a model, and write the page with its graph."""
    from mcugen.core.board import load_board
    from mcugen.reporting.network import network_page

    emit(("reading the model", 0, 2))
    net = _compilation(task, "host")
    proto = net.source.proto
    operators = Counter(node.op_type for node in net.source.given.graph.node)
    emit(("compiling", 1, 2))
    compiled = net.compiled
    page = network_page(proto, compiled.graph, compiled.program, "host")
    (task.folder / NETWORK).write_text(page, encoding="utf-8")
    figures, ram, flash = compiled.report.model, compiled.report.ram.arena, compiled.report.flash.weights
    boards = [load_board(name) for name in known_boards()]
    room = sum(ram <= board.total_ram and flash <= board.total_flash for board in boards)
    return {
        "inputs": [_endpoint(e) for e in compiled.program.inputs],
        "outputs": [_endpoint(e) for e in compiled.program.outputs],
        "operators": dict(operators.most_common()),
        "macs": figures.macs,
        "parameters": figures.parameters,
        "estimate": f"{room} of {len(boards)} boards have {ram:,} bytes of RAM and {flash:,} of flash, without code",
        "notes": list(compiled.report.notes),
        "warnings": list(compiled.report.warnings),
    }


def _endpoint(endpoint: Any) -> dict[str, Any]:
    quantized = "" if endpoint.quant is None else ", quantized"
    return {"name": endpoint.name, "shape": list(endpoint.shape), "type": f"{endpoint.dtype.value}{quantized}"}


def known_boards() -> list[str]:
    """Return the names of all boards but this computer."""
    from mcugen.core.board import board_names

    return [name for name in board_names() if name != "host"]


def _fit_boards(task: JobTask, emit: Emit) -> dict[str, Any]:
    """Return whether the model fits each board, as `mcugen boards --fits` does."""
    from mcugen.core.options import GOALS
    from mcugen.explore.fits import board_fits
    from mcugen.explore.search import Explored, combinations

    precision = "int8" if task.request.options.get("calibration") else "float32"
    points = combinations(known_boards(), [precision], GOALS[:1])
    exploration = _exploration(task, emit, points, simulate=False)
    known: list[Outcome] = []

    def shown(explored: Explored) -> dict[str, Any]:
        return {"precision": precision, "fits": [asdict(fit) for fit in board_fits(explored)]}

    def arrived(outcome: Outcome) -> None:
        known.append(outcome)
        emit(shown(Explored("", tuple(known), exploration.demands, exploration.prices)))

    exploration.arrived = arrived
    return shown(exploration.run())


def _exploration(task: JobTask, emit: Emit, points: Sequence[Any], *, simulate: bool) -> Exploration:
    """Return an exploration with the options of a request, whose cache lies in the project."""
    from mcugen.explore.demands import Demands
    from mcugen.explore.prepare import subject_by_keywords
    from mcugen.explore.search import Exploration

    request = task.request
    subject = subject_by_keywords(Path(request.model), request.options, [point.precision for point in points])
    demands = Demands.of_options(Keywords("compile", request.options).task.options)
    store = Store(task.folder.parent / "explore")
    return Exploration(
        subject, points, demands, simulate=simulate, workers=task.workers, store=store, progress=_progress(emit)
    )


def _explore(task: JobTask, emit: Emit) -> dict[str, Any]:
    """Measure the model for all combinations, and write their outcomes and the page of `mcugen explore --html`."""
    from mcugen.explore.measure import write_outcomes
    from mcugen.explore.page import explored_page
    from mcugen.explore.search import combinations
    from mcugen.explore.text import heading, verdict_lines

    more = task.request.more
    points = combinations(more["boards"], more["precisions"], more["goals"])
    exploration = _exploration(task, emit, points, simulate=bool(more["simulate"]))
    exploration.arrived = emit
    explored = exploration.run()
    write_outcomes(task.folder / OUTCOMES, explored.outcomes)
    (task.folder / EXPLORED).write_text(explored_page(explored), encoding="utf-8")
    return {"heading": heading(explored), "verdict": verdict_lines(explored)}


def _report(task: JobTask, emit: Emit) -> dict[str, Any]:
    """Compile, build and simulate the model, and write the report as JSON and as a page."""
    from mcugen.explore.point import replace_infinities
    from mcugen.reporting.html import report_page, verdict

    net = _compilation(task, task.request.board)
    net.progress = _progress(emit)
    report = net.report()
    if task.request.more.get("alternatives"):
        emit(("comparing alternatives", 0, 1))
        report = replace(report, alternatives=net.alternatives())
    report = replace(report, command=str(task.request.more["command"]))
    data = json.dumps(replace_infinities(report.to_json()), indent=2, allow_nan=False)
    (task.folder / REPORT).write_text(f"{data}\n", encoding="utf-8")
    (task.folder / PAGE).write_text(report_page(report), encoding="utf-8")
    result = {"verdict": verdict(report), "warnings": list(report.warnings), "notes": list(report.notes)}
    return {**result, "is_monitored": report.monitor is not None}


def _package(task: JobTask, emit: Emit) -> dict[str, Any]:
    """Write the package for an IDE or a build system, or the code of firmware for validation, as one zip file."""
    from mcugen.export.formats import FORMATS
    from mcugen.export.task import Packaging
    from mcugen.export.zipped import zip_files

    chosen = str(task.request.more["format"])
    net = _compilation(task, task.request.board, validation=chosen == VALIDATION)
    net.progress = _progress(emit)
    folder, name = task.folder / "package", net.compiled.bundle.name
    steps, notes, archives = list[str](), list[str](), list[str]()
    if chosen == VALIDATION:
        net.write(folder)
    else:
        format_ = FORMATS[chosen]
        exported = net.export(chosen, folder, Packaging(zipped=bool(format_.archive), force=True))
        steps, notes, archives = (
            exported.steps,
            exported.notes,
            list(exported.installed.written) * bool(format_.archive),
        )
    if archives:
        file = f"{name}-{chosen}{Path(archives[0]).suffix}"
        (folder / archives[0]).replace(task.folder / file)
    else:
        file = f"{name}-{chosen}.zip"
        files = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
        (task.folder / file).write_bytes(zip_files(files, f"{name}/"))
    return {"file": file, "steps": steps, "notes": notes}


def _validate(task: JobTask, emit: Emit) -> dict[str, Any]:
    """Run the model on a connected board, tell what it computes meanwhile, and write the page of the validation."""
    from mcugen.deploy.validation.session import ValidationSetup, validate_model
    from mcugen.deploy.validation.text import findings, layer_check_table, totals, validation_page

    more, told = task.request.more, 0.0

    def shown(report: ValidationReport) -> dict[str, Any]:
        table = plain_table(layer_check_table(report))
        return {"totals": totals(report), "layers": table, "findings": findings(report), "notes": list(report.notes)}

    def observe(report: ValidationReport) -> None:
        nonlocal told
        if time.monotonic() - told > _OBSERVED_SECONDS:
            told = time.monotonic()
            emit(shown(report))

    net = _compilation(task, task.request.board, validation=True)
    net.progress = _progress(emit)
    result = validate_model(net, ValidationSetup(str(more["port"]), int(more["baud"])), observe)
    (task.folder / PAGE).write_text(validation_page(result), encoding="utf-8")
    return shown(result)


def plain_table(table: TextTable) -> dict[str, Any]:
    """Return a table as JSON data: its headings, which of them are above numbers, and its rows."""
    from mcugen.reporting.tables import CellKind

    numbers = [column.kind is CellKind.NUMBER for column in table.columns]
    return {
        "heads": [column.head for column in table.columns],
        "numbers": numbers,
        "rows": [list(r) for r in table.rows],
    }


def _watch(task: JobTask, emit: Emit) -> dict[str, Any]:
    """Compare snapshots of devices with the reports of their firmware, and write the page of `mcugen monitor`."""
    from mcugen.deploy.monitoring.drift import Thresholds
    from mcugen.deploy.monitoring.fleet import read_fleet
    from mcugen.deploy.monitoring.text import fleet_page

    emit(("comparing snapshots", 0, 1))
    files, reports = ([Path(name) for name in task.request.more[kind]] for kind in ("snapshots", "reports"))
    fleet = read_fleet(files, reports, Thresholds())
    (task.folder / PAGE).write_text(fleet_page(fleet), encoding="utf-8")
    devices = {(one.model, one.device) for one in fleet.snapshots}
    return {"snapshots": len(fleet.snapshots), "devices": len(devices), "alarms": fleet.alarms}


def _look_at_samples(task: JobTask, emit: Emit) -> dict[str, Any]:
    """Convert dropped files if necessary, and return what samples hold: ranges, labels, warnings, pictures."""
    from mcugen.evaluation.sample_import import import_samples
    from mcugen.evaluation.sample_warnings import label_warnings
    from mcugen.measurement.evaluate import sample_endpoints
    from mcugen.reporting.sample_summary import summarize_samples

    source = Path(str(task.request.more["source"]))
    emit(("reading samples", 0, 2))
    compiled = _compilation(task, "host").compiled
    endpoints = sample_endpoints(compiled)
    notes: list[str] = []
    classes: Sequence[str] = ()
    if source.is_dir():
        shape = endpoints[0].shape if len(endpoints) == 1 else ()
        imported = import_samples(source, source.parents[1] / f"{source.name}.npz", shape)
        source, classes, notes = imported.file, imported.classes, list(imported.notes)
    emit(("checking samples", 1, 2))
    samples = _compilation(task, "host").samples(source, endpoints, accepts_nonfinite=True)
    warnings = [*samples.warnings, *label_warnings(samples.labels, compiled.program.outputs, endpoints, "")]
    summary = summarize_samples(samples, classes)
    warnings.extend(summary["warnings"])
    return {**summary, "file": source.as_posix(), "notes": [*notes, *samples.notes], "warnings": warnings}


_WORK: Mapping[JobKind, Callable[[JobTask, Emit], dict[str, Any]]] = {
    JobKind.MODEL: _look_at_model,
    JobKind.FITS: _fit_boards,
    JobKind.SAMPLES: _look_at_samples,
    JobKind.EXPLORE: _explore,
    JobKind.REPORT: _report,
    JobKind.PACKAGE: _package,
    JobKind.VALIDATE: _validate,
    JobKind.WATCH: _watch,
}
"""The function of each kind of job."""
