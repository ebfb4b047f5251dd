# SPDX-License-Identifier: Apache-2.0
"""The result of `mcugen monitor`: snapshots of several devices and times, compared with the samples of compilation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from mcugen.core.errors import ConstraintError, UsageError, listed
from mcugen.deploy.monitoring.drift import SnapshotDrift, Thresholds, compare_snapshot
from mcugen.deploy.monitoring.snapshots import MAX_SNAPSHOTS, Snapshot, decode_snapshots, read_models, read_snapshots

FLEET_SCHEMA = 1
"""Version of the JSON of `mcugen monitor` (docs/monitor.schema.json), increased if a key goes or changes meaning."""


@dataclass(frozen=True)
class Fleet:
    """Snapshots beside their references, ordered by model, device and time.

    Attributes:
        schema: Version of the JSON.
        thresholds: Thresholds of distances beyond chance.
        snapshots: The snapshots.
    """

    schema: int
    thresholds: Thresholds
    snapshots: tuple[SnapshotDrift, ...]

    @property
    def alarms(self) -> list[str]:
        """Return all alarms, each with its snapshot."""
        return [f"{one.source}: {alarm}" for one in self.snapshots for alarm in one.alarms]

    def to_json(self) -> dict[str, Any]:
        """Return the result as a dictionary for JSON."""
        return asdict(self)

    def require_no_alarm(self) -> None:
        """Check that there are no alarms.

        Raises:
            ConstraintError: There is an alarm.
        """
        if self.alarms:
            raise ConstraintError("--check: snapshots must be without alarms", listed(self.alarms, 4, "; "))


def compare_snapshots(snapshots: Sequence[Snapshot], thresholds: Thresholds) -> Fleet:
    """Return snapshots beside their references.

    Args:
        snapshots: The snapshots, in any order.
        thresholds: Thresholds of distances beyond chance.
    """
    drifts = [compare_snapshot(snapshot, thresholds) for snapshot in snapshots]
    ordered = sorted(drifts, key=lambda one: (one.model, one.model_hash, one.device, one.time, one.source))
    return Fleet(FLEET_SCHEMA, thresholds, tuple(ordered))


def read_fleet(
    files: Sequence[Path], reports: Sequence[Path], thresholds: Thresholds, received: Mapping[str, bytes] | None = None
) -> Fleet:
    """Return the snapshots of files and devices beside the references of reports.

    Args:
        files: Files of snapshots.
        reports: Reports of the firmware's models.
        thresholds: Thresholds of distances beyond chance.
        received: Bytes of snapshots that devices sent, by their source.

    Raises:
        UsageError: There is no snapshot or report, a file cannot be read, or a snapshot is damaged or of another model.
    """
    if not files and not received:
        raise UsageError("snapshots must be given", "none", "give files, or --port PORT of a device")
    if not reports:
        raise UsageError("snapshots are compared with a report", "none", "give --report NAME_report.json")
    models = read_models(reports)
    snapshots: list[Snapshot] = []
    for source, data in (received or {}).items():
        snapshots += decode_snapshots(data, source, models)
    for file in files:
        snapshots += read_snapshots(file, models)
        if len(snapshots) > MAX_SNAPSHOTS:
            raise UsageError(f"there must be {MAX_SNAPSHOTS:,} snapshots at most", f"{len(snapshots):,}")
    return compare_snapshots(snapshots, thresholds)


@cache
def _adapter() -> TypeAdapter[Fleet]:
    return TypeAdapter(Fleet)


def fleet_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of what `mcugen monitor --json` writes."""
    schema = _adapter().json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Snapshots of mcugen monitor", **schema}
