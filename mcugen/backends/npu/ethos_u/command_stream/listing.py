# SPDX-License-Identifier: Apache-2.0
"""Listings of command streams for `mcugen inspect`: text, and JSON data with each field of each operation."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from mcugen.backends.npu.ethos_u.command_stream.decoder import decode
from mcugen.backends.npu.ethos_u.command_stream.operations import (
    CommandStream,
    IntegerType,
    KernelOperation,
    Operation,
)
from mcugen.backends.npu.ethos_u.command_stream.text import format_stream, operation_name
from mcugen.ops.offload import CommandListing


def listing_of(payload: bytes) -> CommandListing:
    """Return the listing of a driver payload.

    Raises:
        CommandStreamError: The bytes are no valid command stream.
    """
    stream = decode(payload)
    return CommandListing(format_stream(stream), stream_data(stream))


def stream_data(stream: CommandStream) -> dict[str, Any]:
    """Return a stream as JSON data; enums are names in lower case, and types are numpy's names."""
    return {
        "accelerator": str(stream.accelerator),
        "architecture": ".".join(str(part) for part in stream.version),
        "words": stream.num_words,
        "operations": [{"operation": _name_of(operation)} | _data(operation) for operation in stream.operations],
    }


def _name_of(operation: Operation) -> str:
    return operation_name(operation) if isinstance(operation, KernelOperation) else operation.kind


def _data(value: Any) -> Any:
    if isinstance(value, IntegerType):
        return str(value)
    if isinstance(value, Enum):
        return (value.name or "none").lower()
    if is_dataclass(value):
        return {field.name: _data(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [_data(part) for part in value]
    return value
