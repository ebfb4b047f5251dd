# SPDX-License-Identifier: Apache-2.0
"""Snapshots of monitors: decoding of untrusted bytes by the layout of mcugen_monitor.h."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mcugen.codegen.monitor import (
    CRC_BYTES,
    HEAD_BYTES,
    MONITOR_BINS,
    MONITOR_FORMAT,
    MONITOR_MAGIC,
    MONITOR_PARTS,
    TENSOR_BYTES,
    Monitor,
)
from mcugen.core.errors import UsageError
from mcugen.core.limits import read_bounded
from mcugen.measurement.observations import Observation
from mcugen.reporting.figures import Report
from mcugen.reporting.stored import read_report

MAX_SNAPSHOT_FILE_BYTES = 4 << 20
"""Largest size in bytes of a file of snapshots."""
MAX_SNAPSHOTS = 10_000
"""Largest number of snapshots that are compared at once."""

_HEAD = "16I"
_TENSOR = f"Q{MONITOR_PARTS}qQIIii{MONITOR_BINS}I"


@dataclass(frozen=True)
class MonitoredModel:
    """A model whose code keeps statistics.

    Attributes:
        name: Name of the model.
        sha256: SHA-256 digest of the model's file.
        monitor: What is observed.
    """

    name: str
    sha256: str
    monitor: Monitor


@dataclass(frozen=True)
class Snapshot:
    """A decoded snapshot.

    Attributes:
        source: Where it comes from: name of a file, with a number if the file has several.
        model: The model.
        weights: CRC-32 of the file of weights; 0 if the weights are in the firmware.
        version: Version of the file of weights.
        device: Number of the device, as its firmware tells.
        time: Time, as its firmware tells.
        runs: Successful runs.
        errors: Runs with an error.
        longest: Cycles of the longest run; 0 if unknown.
        self_tests: Failed self-tests.
        checksums: Failed comparisons with checksums.
        tensors: Observations of the model's tensors.
        predictions: For each output with classes, the counters of classes.
        confidence: For each output with classes, the counts of the bins of confidence.
    """

    source: str
    model: MonitoredModel
    weights: int
    version: int
    device: int
    time: int
    runs: int
    errors: int
    longest: int
    self_tests: int
    checksums: int
    tensors: tuple[Observation, ...]
    predictions: tuple[tuple[int, ...], ...]
    confidence: tuple[tuple[int, ...], ...]


def read_models(paths: Sequence[Path]) -> dict[str, MonitoredModel]:
    """Return the monitored models of reports by the hash in their snapshots.

    Raises:
        UsageError: A file is no report, or a report is of a model without `--monitor`.
    """
    models = {}
    for path in paths:
        report = read_report(path)
        if report.monitor is None:
            remedy = "compile with --monitor, and give the report of that compilation"
            raise UsageError(f"{path}: the report must be of a monitored model", "no monitor", remedy)
        models[report.monitor.model] = _monitored(report, report.monitor)
    return models


def _monitored(report: Report, monitor: Monitor) -> MonitoredModel:
    return MonitoredModel(report.model.name, report.model.sha256, monitor)


def read_snapshots(path: Path, models: Mapping[str, MonitoredModel]) -> list[Snapshot]:
    """Return the snapshots of a file, which follow each other without gaps.

    Raises:
        UsageError: The file cannot be read or is too large, or a snapshot is damaged or of another model.
    """
    try:
        data = read_bounded(path, MAX_SNAPSHOT_FILE_BYTES)
    except OSError as error:
        raise UsageError(f"{path}: the snapshot must be readable", error.strerror or "") from error
    return list(decode_snapshots(data, str(path), models))


def decode_snapshots(data: bytes, source: str, models: Mapping[str, MonitoredModel]) -> Iterator[Snapshot]:
    """Yield the snapshots in some bytes, which follow each other without gaps.

    Args:
        data: The bytes; untrusted.
        source: Where they come from, for messages.
        models: The known models by their hash in snapshots.

    Raises:
        UsageError: A snapshot is damaged or of another model.
    """
    at, number = 0, 0
    while at < len(data) or not number:
        number += 1
        nbytes = snapshot_size(data[at : at + HEAD_BYTES], len(data) - at, source)
        is_alone = number == 1 and at + nbytes == len(data)
        yield _decode(data[at : at + nbytes], source if is_alone else f"{source}[{number}]", models)
        at += nbytes


def snapshot_size(head: bytes, available: int, source: str) -> int:
    """Return the bytes of a snapshot by its head.

    Args:
        head: Its first HEAD_BYTES bytes; untrusted.
        available: Largest possible number of bytes.
        source: Where the snapshot comes from, for messages.

    Raises:
        UsageError: The head is damaged, or of another format.
    """
    if len(head) < HEAD_BYTES:
        rule = f"{source}: a snapshot must have at least {HEAD_BYTES} bytes"
        raise UsageError(rule, f"{len(head)} bytes", _REMEDY)
    order = _byte_order(head, source)
    _, version, nbytes = struct.unpack(f"{order}3I", head[:12])
    if version != MONITOR_FORMAT:
        remedy = "use the version of mcugen that compiled the firmware"
        raise UsageError(f"{source}: the snapshot's format must be {MONITOR_FORMAT}", str(version), remedy)
    if not HEAD_BYTES + CRC_BYTES <= nbytes <= available:
        raise UsageError(f"{source}: the snapshot must be complete", f"{available} of {nbytes} bytes", _REMEDY)
    return int(nbytes)


def _byte_order(head: bytes, source: str) -> str:
    """Return the byte order of a snapshot as `struct` writes it."""
    for order in "<>":
        if struct.unpack(f"{order}I", head[:4])[0] == MONITOR_MAGIC:
            return order
    raise UsageError(f"{source}: a snapshot must begin with 'MMON'", repr(head[:4]), _REMEDY)


_REMEDY = "give all NAME_MONITOR_SIZE bytes that NAME_monitor_snapshot wrote"


def _decode(data: bytes, source: str, models: Mapping[str, MonitoredModel]) -> Snapshot:
    order = _byte_order(data, source)
    _, _, _, *fields = struct.unpack_from(f"{order}{_HEAD}", data)
    model_hash = f"{fields[0]:08x}{fields[1]:08x}"
    if zlib.crc32(data[:-CRC_BYTES]) != struct.unpack(f"{order}I", data[-CRC_BYTES:])[0]:
        raise UsageError(f"{source}: the snapshot's checksum must be right", "damaged bytes", _REMEDY)
    if model_hash not in models:
        known = ", ".join(f"{model.name} {key}" for key, model in models.items())
        remedy = "give --report with the report of the firmware on the device"
        raise UsageError(f"{source}: the snapshot must be of a reported model ({known})", model_hash, remedy)
    model = models[model_hash]
    if len(data) != model.monitor.nbytes:
        rule = f"{source}: a snapshot of {model.name} must have {model.monitor.nbytes} bytes"
        raise UsageError(rule, f"{len(data)} bytes", _REMEDY)
    tensors, at = [], HEAD_BYTES
    for _ in model.monitor.tensors:
        tensors.append(_observation(struct.unpack_from(f"{order}{_TENSOR}", data, at)))
        at += TENSOR_BYTES
    predictions, confidence = [], []
    for output in model.monitor.outputs:
        counts = struct.unpack_from(f"{order}{output.bins + MONITOR_BINS}I", data, at)
        predictions.append(counts[: output.bins])
        confidence.append(counts[output.bins :])
        at += 4 * len(counts)
    weights, version, device, time, _, runs, errors, longest, self_tests, checksums, _ = fields[2:]
    parts = (tuple(tensors), tuple(predictions), tuple(confidence))
    counters = (weights, version, device, time, runs, errors, longest, self_tests, checksums)
    snapshot = Snapshot(source, model, *counters, *parts)
    _require_consistent(snapshot)
    return snapshot


def _observation(fields: Sequence[int]) -> Observation:
    squares, *sums = fields[: 1 + MONITOR_PARTS]
    steps, count, clipped, low, high, *bins = fields[1 + MONITOR_PARTS :]
    return Observation(squares, tuple(sums), steps, count, clipped, low, high, tuple(bins))


def _require_consistent(snapshot: Snapshot) -> None:
    """Check that counts of a snapshot agree, as bytes with a right checksum may still be made up."""
    for tensor, seen in zip(snapshot.model.monitor.tensors, snapshot.tensors, strict=True):
        is_possible = sum(seen.bins) == seen.count and seen.clipped <= seen.count
        if not is_possible or (seen.count and (seen.low > seen.high or abs(sum(seen.sums)) > seen.count << 17)):
            rule = f"{snapshot.source}: the counts of '{tensor.name}' must agree"
            raise UsageError(rule, json.dumps([seen.count, *seen.bins]), _REMEDY)
