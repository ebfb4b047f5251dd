# SPDX-License-Identifier: Apache-2.0
"""A shared measurement of one model on one board: what it holds, how it is written, and the checks of received files.

The declarations below are the schema (docs/measurement.schema.json). All texts are words of mcugen's own, or match a
narrow pattern, so that neither names nor paths of a user can be in a file.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NoReturn

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from mcugen.core.board import Board, board_names, load_board
from mcugen.core.errors import UsageError, VerificationError, listed, printable, shortened
from mcugen.core.limits import read_bounded
from mcugen.deploy.validation.figures import CYCLES, LayerCheck, ValidationReport, Verdict

FORMAT: Literal["mcugen-measurement"] = "mcugen-measurement"
VERSION = 1
"""Name and version of the format, in each file; the version is increased if a key goes or changes meaning."""

MAX_FILE_BYTES = 1 << 20
"""Largest size of a file in bytes: a thousand layers take about 200,000."""

_MAX_COUNT = (1 << 53) - 1
"""Largest number in a file: JSON numbers are exact up to here in all programs."""

_FLAGS = ("not optimized", "optimized for size", "optimized", "fast-math", "FPU", "DSP", "MVE", "unaligned", "plain C")
"""Texts about the compiler's flags that the firmware's code can report by itself; others are left out."""

_COMPILER = re.compile(r"(gcc|clang|IAR) (\d{1,9}(?:\.\d{1,6}){0,2})")
"""Pattern of the beginning of a compiler's name with its version; what follows it may be the user's."""

_MAX_LAYER_EXCESS = 1.25
"""Largest sum of the layers' cycles as a share of the inference's: layers are timed in code with hooks."""

_REMEDY = "write it with `mcugen validate --share`, and leave it as it is"

Count = Annotated[int, Field(strict=True, ge=0, le=_MAX_COUNT)]
"""Type of a count: a whole number that is exact in JSON."""
Word = Annotated[str, Field(strict=True, pattern=r"^[a-z0-9][a-z0-9_.+-]{0,63}$")]
"""Type of a name of mcugen's own: a board, CPU, kernel or operator."""


@dataclass(frozen=True)
class SharedLayer:
    """A layer of a shared measurement, without its name.

    Attributes:
        op: Its operator.
        kernel: Its kernel.
        macs: Number of multiply-accumulates.
        cycles: Measured cycles; None if not measured.
        cycles_estimate: Cycles that the simulator estimates for the board; None if it cannot.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    op: Annotated[str, Field(strict=True, pattern=r"^[A-Za-z0-9_.+-]{0,64}$")]
    kernel: Annotated[str, Field(strict=True, pattern=r"^[a-z0-9_]{0,64}$")]
    macs: Count
    cycles: Count | None
    cycles_estimate: Count | None


@dataclass(frozen=True)
class SharedMeasurement:
    """A measurement of one model on one board, as users share it.

    Attributes:
        format: Name of the format.
        version: Version of the format.
        board: Name of the board that mcugen knows.
        cpu: Its CPU.
        clock_hz: Frequency of the cycle counter in Hz, as the firmware tells.
        counter: Name of the cycle counter.
        compiler: Name and version of the compiler.
        flags: What the firmware tells of the compiler's flags.
        mcugen: Version of mcugen.
        precision: Main precision of the model.
        sha256: SHA-256 of the model's file, in hex.
        verdict: "exact" if all bits were those of the reference, "close" for floats within the tolerance.
        cycles: Measured cycles of an inference.
        cycles_estimate: Cycles that the simulator estimates; None if it cannot.
        layers: The layers, in order.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    format: Literal["mcugen-measurement"]
    version: Annotated[int, Field(strict=True, ge=VERSION, le=VERSION)]
    board: Word
    cpu: Word
    clock_hz: Annotated[int, Field(strict=True, ge=1_000_000, le=4_000_000_000)]
    counter: Literal["DWT", "SysTick", "mcycle", "CCOUNT", "the firmware's own", "esp_cpu"]
    compiler: Annotated[str, Field(strict=True, pattern=r"^((gcc|clang|IAR) [0-9]{1,9}(\.[0-9]{1,6}){0,2}|unknown)$")]
    flags: Annotated[list[Literal[*_FLAGS]], Field(max_length=len(_FLAGS))]  # type: ignore[valid-type]
    mcugen: Annotated[str, Field(strict=True, pattern=r"^[0-9]{1,4}(\.[0-9]{1,4}){2}[0-9a-z.+-]{0,20}$")]
    precision: Annotated[str, Field(strict=True, pattern=r"^[a-z0-9]{1,16}$")]
    sha256: Annotated[str, Field(strict=True, pattern=r"^[0-9a-f]{64}$")]
    verdict: Literal["exact", "close"]
    cycles: Annotated[int, Field(strict=True, ge=1, le=_MAX_COUNT)]
    cycles_estimate: Count | None
    layers: Annotated[list[SharedLayer], Field(min_length=1, max_length=10_000)]

    @property
    def key(self) -> tuple[str, ...]:
        """Return what measurements of the same thing have in common."""
        return (self.board, self.sha256, self.compiler, *self.flags, self.mcugen, str(self.clock_hz))


@cache
def _adapter() -> TypeAdapter[SharedMeasurement]:
    return TypeAdapter(SharedMeasurement)


def measurement_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the files that `mcugen validate --share` writes."""
    schema = _adapter().json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A measurement of mcugen", **schema}


def require_shareable(board: Board, port: str) -> None:
    """Check, before anything runs, that a measurement can be shared.

    Args:
        board: The board.
        port: Value of `--port`.

    Raises:
        UsageError: The board is a file of the user's, or is simulated.
    """
    if board.name not in board_names() or board != load_board(board.name) or board.name == "host":
        remedy = "name a board of `mcugen boards`"
        raise UsageError("--share is for boards that come with mcugen", f"'{board.name}'", remedy)
    if port == "simulator":
        raise UsageError("--share is for cycles of real boards", "--port simulator", "give the port of a board")


def measurement_of(report: ValidationReport) -> SharedMeasurement:
    """Return what a validation report shares.

    Args:
        report: The report of a validation whose results were right.

    Raises:
        VerificationError: The firmware measured no cycles.
    """
    cycles, firmware = report.cycles, report.firmware
    if cycles is None or cycles.unit != CYCLES or not cycles.first:
        rule = "--share needs the cycles of an inference, which the firmware must measure"
        raise VerificationError(rule, "none", "give the firmware a counter: NAME_VALIDATE_CYCLES")
    compiler = _COMPILER.match(firmware.compiler)
    firmware_flags = [flag.strip() for flag in firmware.flags.split(",")]
    simulated = report.simulated
    return SharedMeasurement(
        format=FORMAT,
        version=VERSION,
        board=report.board,
        cpu=report.cpu,
        clock_hz=cycles.clock_hz,
        counter=firmware.counter,  # type: ignore[arg-type]
        compiler=f"{compiler[1]} {compiler[2]}" if compiler else "unknown",
        flags=[flag for flag in _FLAGS if flag in firmware_flags],
        mcugen=firmware.version,
        precision=report.precision,
        sha256=report.model.sha256,
        verdict="exact" if report.outputs == Verdict.EXACT else "close",
        cycles=cycles.first,
        cycles_estimate=None if simulated is None else simulated.cycles_estimate,
        layers=[_layer(layer) for layer in report.layers],
    )


def _layer(layer: LayerCheck) -> SharedLayer:
    return SharedLayer(layer.op, layer.kernel, layer.macs, layer.cycles, layer.cycles_estimate)


def measurement_text(measurement: SharedMeasurement) -> str:
    """Return the text of a file with a measurement, which `read_measurement` accepts.

    Raises:
        UsageError: The firmware firmware_flags something that may not be shared.
    """
    data = asdict(measurement)
    _check(data, "--share")
    return json.dumps(data, indent=1) + "\n"


def read_measurement(path: Path) -> SharedMeasurement:
    """Read and check a shared measurement.

    Raises:
        UsageError: The file cannot be read, is no measurement, or cannot be right; the message names file and key.
    """
    name = shortened(printable(path.name), 80)
    try:
        data = json.loads(read_bounded(path, MAX_FILE_BYTES), parse_constant=_refuse_constant)
    except OSError as error:
        raise UsageError(f"{name}: a measurement must be readable", error.strerror or "") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{name}: a measurement must be JSON", shortened(printable(str(error)), 120), _REMEDY
        ) from error
    return _check(data, name)


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def _check(data: Any, name: str) -> SharedMeasurement:
    """Return the measurement in JSON data; UsageError names the first key that is wrong."""
    try:
        measurement = _adapter().validate_python(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = shortened(printable(".".join(map(str, first["loc"]))), 80) or "the whole"
        fault = f"{where}: {shortened(printable(first['msg']), 160)}"
        raise UsageError(f"{name}: a measurement must keep docs/measurement.schema.json", fault, _REMEDY) from error
    _require_plausible(measurement, name)
    return measurement


def _require_plausible(measurement: SharedMeasurement, name: str) -> None:
    """Raise UsageError if a measurement contradicts the board or itself."""
    if measurement.board not in board_names():
        raise UsageError(f"{name}: the board must be one of mcugen's", f"'{measurement.board}'", "mcugen boards")
    board = load_board(measurement.board)
    if measurement.cpu != board.cpu:
        raise UsageError(f"{name}: the CPU must be that of {board.name}, {board.cpu}", f"'{measurement.cpu}'", _REMEDY)
    total = sum(layer.cycles or 0 for layer in measurement.layers)
    if total > _MAX_LAYER_EXCESS * measurement.cycles:
        fault = f"{total:,} of {measurement.cycles:,} cycles"
        raise UsageError(f"{name}: layers must not take longer than the inference", fault, _REMEDY)


def read_measurements(folder: Path) -> list[SharedMeasurement]:
    """Read all measurements of a folder, ordered by board and model.

    Raises:
        UsageError: The folder cannot be read, a file is wrong, or two files have the same measurement.
    """
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == ".json")
    except OSError as error:
        raise UsageError(f"{folder}: the folder of measurements must be readable", error.strerror or "") from error
    known: dict[SharedMeasurement | str, str] = {}
    measurements = []
    for path in paths:
        measurement = read_measurement(path)
        text = json.dumps(asdict(measurement))
        if text in known:
            names = listed([known[text], path.name])
            raise UsageError("each measurement must be in one file", names, "remove one of them")
        known[text] = path.name
        measurements.append(measurement)
    return sorted(measurements, key=lambda one: one.key)
