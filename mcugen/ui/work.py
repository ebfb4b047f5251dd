# SPDX-License-Identifier: Apache-2.0
"""The work of the page's jobs: functions that run in processes of their own, and write to a folder of results."""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any

from mcugen.api.compilation import Compilation
from mcugen.core.board import chip_names, load_board
from mcugen.core.cache import Store, code_digest
from mcugen.core.errors import UsageError
from mcugen.core.options import GOALS
from mcugen.deploy.monitoring.drift import Thresholds
from mcugen.deploy.monitoring.fleet import read_fleet
from mcugen.deploy.monitoring.text import fleet_page
from mcugen.deploy.validation.figures import ValidationReport
from mcugen.deploy.validation.session import SIMULATOR_PORT, ValidationSetup, validate_model
from mcugen.deploy.validation.text import findings, layer_check_table, totals, validation_page
from mcugen.distributed.job_process import Emit
from mcugen.distributed.sharing import Workers
from mcugen.evaluation.sample_import import import_samples
from mcugen.evaluation.sample_warnings import label_warnings
from mcugen.explore.demands import Demands
from mcugen.explore.fingerprint import fingerprint
from mcugen.explore.fits import board_fits
from mcugen.explore.measure import write_outcomes
from mcugen.explore.page import explored_page
from mcugen.explore.point import Outcome, replace_infinities
from mcugen.explore.prepare import subject_by_keywords
from mcugen.explore.search import Exploration, Explored, combinations
from mcugen.explore.text import heading, verdict_lines
from mcugen.export.formats import FORMATS
from mcugen.export.task import Packaging
from mcugen.export.zipped import zip_files
from mcugen.lir.program import Endpoint
from mcugen.measurement.evaluate import sample_endpoints
from mcugen.options.keywords import Keywords
from mcugen.reporting.html import report_page, verdict
from mcugen.reporting.network import network_page
from mcugen.reporting.sample_summary import summarize_samples

KEY_CHARACTERS = 32
"""Number of hexadecimal digits of a job's key, which names its folder of results."""
OUTCOMES, EXPLORED = "outcomes.json", "explore.html"
REPORT, PAGE, NETWORK = "report.json", "report.html", "network.html"
"""Names of files in a folder of results."""
VALIDATION = "validation"
"""Format of a package that is the code of firmware for a validation."""
_PORTS = re.compile(r"/dev/[\w./-]+|COM\d+|socket://[\w.:\[\]-]+", re.ASCII)
"""Ports that users of the page may choose: other URLs of pyserial write files."""
_OBSERVED_SECONDS = 0.3
"""Least time in seconds between two parts of a validation's result."""


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
    def queue(self) -> str:
        """Return the name of the queue of jobs of this kind: checks do not queue behind long jobs."""
        if self in (JobKind.MODEL, JobKind.SAMPLES, JobKind.WATCH):
            return "checks"
        return self.value if self is JobKind.FITS else "runs"


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
        """Return a digest of the request, the contents of its files in the project, and mcugen's code.

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
    """Return the result of a job as JSON data, in its own process; files are written to its folder.

    Args:
        task: The job.
        emit: Receives progress, as a tuple of task, finished steps and all steps, and parts of the result.

    Raises:
        McugenError: The job failed.
    """
    os.chdir(task.root)
    task.folder.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = _WORK[task.request.kind](task, emit)
    return result


def _compilation(task: JobTask, emit: Emit, board: str, **changes: Any) -> Compilation:
    """Return the compilation of a job for a board, with options that differ from those of the request."""
    request = task.request
    options = Keywords("compile", request.options).task
    options = replace(options, options=replace(options.options, **changes))
    net = Compilation.of(Path(request.model), board, options, workers=task.workers)
    net.progress = lambda what, finished, total: emit((what, finished, total))
    return net


def _look_at_model(task: JobTask, emit: Emit) -> dict[str, Any]:
    """Return inputs, outputs, operators and size of a model, and write the page with its graph."""
    emit(("reading the model", 0, 2))
    net = _compilation(task, emit, "host")
    proto = net.source.proto
    operators = Counter(node.op_type for node in net.source.given.graph.node)
    emit(("compiling", 1, 2))
    compiled = net.compiled
    page = network_page(proto, compiled.graph, compiled.program, "host")
    (task.folder / NETWORK).write_text(page, encoding="utf-8")
    figures, ram, flash = compiled.report.model, compiled.report.ram.arena, compiled.report.flash.weights
    boards = [load_board(name) for name in chip_names()]
    needs = f"{ram:,} bytes of RAM, {flash:,} bytes of flash"
    room = sum(ram <= board.total_ram and flash <= board.total_flash for board in boards)
    return {
        "ends": [
            *((f"Input '{end.name}'", _shape(end)) for end in compiled.program.inputs),
            *((f"Output '{end.name}'", _shape(end)) for end in compiled.program.outputs),
        ],
        "operators": ", ".join(f"{count} {name}" for name, count in operators.most_common()),
        "macs": figures.macs,
        "parameters": figures.parameters,
        "estimate": f"{room} of {len(boards)} boards have room for the model as it is: {needs}, without code",
        "notes": list(compiled.report.notes),
        "warnings": list(compiled.report.warnings),
    }


def _shape(end: Endpoint) -> str:
    quantized = "" if end.quant is None else ", quantized"
    return f"{' x '.join(map(str, end.shape))} {end.dtype.value}{quantized}"


def _fit_boards(task: JobTask, emit: Emit) -> dict[str, Any]:
    """Return whether the model fits each board, as `mcugen boards --fits` does."""
    precision, about = ("int8", "in int8") if task.request.options.get("calibration") else ("float32", "as it is")
    exploration = _exploration(task, emit, combinations(chip_names(), [precision], GOALS[:1]), simulate=False)
    known: list[dict[str, Any]] = []

    def arrived(outcome: Outcome) -> None:
        alone = Explored("", (outcome,), exploration.demands, exploration.prices)
        known.extend(asdict(fit) for fit in board_fits(alone))
        emit({"precision": about, "fits": known})

    exploration.arrived = arrived
    return {"precision": about, "fits": [asdict(fit) for fit in board_fits(exploration.run())]}


def _exploration(task: JobTask, emit: Emit, points: Sequence[Any], *, simulate: bool) -> Exploration:
    """Return an exploration with the options of a request, whose cache lies in the project."""
    request = task.request
    subject = subject_by_keywords(Path(request.model), request.options, [point.precision for point in points])
    demands = Demands.of_options(Keywords("compile", request.options).task.options)
    store = Store(task.folder.parent / "explore")
    exploration = Exploration(subject, points, demands, simulate=simulate, workers=task.workers, store=store)
    exploration.progress = lambda what, finished, total: emit((what, finished, total))
    return exploration


def _explore(task: JobTask, emit: Emit) -> dict[str, Any]:
    """Measure the model for all combinations, and write their outcomes and the page of `mcugen explore --html`."""
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
    net = _compilation(task, emit, task.request.board)
    report = replace(net.report(), command=str(task.request.more["command"]))
    data = json.dumps(replace_infinities(report.to_json()), indent=2, allow_nan=False)
    (task.folder / REPORT).write_text(f"{data}\n", encoding="utf-8")
    (task.folder / PAGE).write_text(report_page(report), encoding="utf-8")
    result = {"verdict": verdict(report), "warnings": list(report.warnings), "notes": list(report.notes)}
    return {**result, "is_monitored": report.monitor is not None}


def _package(task: JobTask, emit: Emit) -> dict[str, Any]:
    """Write the package for an IDE or a build system, or the code of firmware for validation, as one zip file."""
    chosen = str(task.request.more["format"])
    net = _compilation(task, emit, task.request.board, validation=chosen == VALIDATION)
    folder, name = task.folder / "package", net.compiled.bundle.name
    steps, notes = list[str](), list[str]()
    if chosen == VALIDATION:
        net.write(folder)
    else:
        exported = net.export(chosen, folder, Packaging(zipped=bool(FORMATS[chosen].archive), force=True))
        steps, notes = exported.steps, exported.notes
    files = {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
    first = next(iter(files))
    is_archive = len(files) == 1
    file = f"{name}-{chosen}{Path(first).suffix if is_archive else '.zip'}"
    (task.folder / file).write_bytes(files[first] if is_archive else zip_files(files, f"{name}/"))
    return {"file": file, "steps": steps, "notes": notes}


def _validate(task: JobTask, emit: Emit) -> dict[str, Any]:
    """Run the model on a connected board, tell what it computes meanwhile, and write the page of the validation."""
    port, emitted_at = str(task.request.more["port"]), 0.0
    if port != SIMULATOR_PORT and not _PORTS.fullmatch(port):
        raise UsageError("the port must be a serial port or socket://HOST:PORT", port, "choose one of the list")

    def shown(report: ValidationReport) -> dict[str, Any]:
        table = layer_check_table(report).to_json()
        return {"totals": totals(report), "layers": table, "findings": findings(report), "notes": list(report.notes)}

    def observe(report: ValidationReport) -> None:
        nonlocal emitted_at
        if time.monotonic() - emitted_at > _OBSERVED_SECONDS:
            emitted_at = time.monotonic()
            emit(shown(report))

    net = _compilation(task, emit, task.request.board, validation=True)
    result = validate_model(net, ValidationSetup(port, int(task.request.more["baud"])), observe)
    (task.folder / PAGE).write_text(validation_page(result), encoding="utf-8")
    return shown(result)


def _watch(task: JobTask, emit: Emit) -> dict[str, Any]:
    """Compare snapshots of devices with the reports of their firmware, and write the page of `mcugen monitor`."""
    emit(("comparing snapshots", 0, 1))
    files, reports = ([Path(name) for name in task.request.more[kind]] for kind in ("snapshots", "reports"))
    fleet = read_fleet(files, reports, Thresholds())
    (task.folder / PAGE).write_text(fleet_page(fleet), encoding="utf-8")
    devices = {(one.model, one.device) for one in fleet.snapshots}
    return {"snapshots": len(fleet.snapshots), "devices": len(devices), "alarms": fleet.alarms}


def _look_at_samples(task: JobTask, emit: Emit) -> dict[str, Any]:
    """Convert dropped files if necessary, and return what samples hold: ranges, labels, warnings, pictures."""
    source = Path(str(task.request.more["source"]))
    emit(("reading samples", 0, 2))
    compiled = _compilation(task, emit, "host").compiled
    endpoints = sample_endpoints(compiled)
    notes: list[str] = []
    classes: Sequence[str] = ()
    if source.is_dir():
        shape = endpoints[0].shape if len(endpoints) == 1 else ()
        imported = import_samples(source, source.parents[1] / f"{source.name}.npz", shape)
        source, classes, notes = imported.file, imported.classes, list(imported.notes)
    emit(("checking samples", 1, 2))
    samples = _compilation(task, emit, "host").samples(source, endpoints, accepts_nonfinite=True)
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
