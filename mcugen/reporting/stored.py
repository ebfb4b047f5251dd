# SPDX-License-Identifier: Apache-2.0
"""Reports as JSON files: reading of `--json` output, and the JSON Schema of a report."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from mcugen.core.errors import UsageError
from mcugen.core.limits import read_bounded
from mcugen.reporting.basis import SCHEMA
from mcugen.reporting.figures import Report

MAX_REPORT_BYTES = 64 << 20
"""Largest size in bytes of a report file."""


@cache
def _adapter() -> TypeAdapter[Report]:
    return TypeAdapter(Report)


def report_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the report files that `--json` writes."""
    schema = _adapter().json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A report of mcugen", **schema}


def read_report(path: Path) -> Report:
    """Read a report from a file that `--json` wrote.

    Raises:
        UsageError: The file is no report, or is of a newer version.
    """
    try:
        data = json.loads(read_bounded(path, MAX_REPORT_BYTES))
    except OSError as error:
        raise UsageError(f"{path.name}: the report must be readable", error.strerror or "") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path.name}: a report must be JSON", str(error)[:200], _REMEDY) from error
    basis = data.get("basis") if isinstance(data, dict) else None
    schema = basis.get("schema") if isinstance(basis, dict) else None
    if not isinstance(schema, int) or schema > SCHEMA:
        version = "no version" if schema is None else f"version {schema}"
        raise UsageError(f"{path.name}: a report must be of version {SCHEMA} at most", version, _REMEDY)
    try:
        return _adapter().validate_python(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the whole"
        raise UsageError(f"{path.name}: a report must keep its schema", f"{where}: {first['msg']}", _REMEDY) from error


_REMEDY = "give what `mcugen report MODEL --json FILE` of this version wrote"
