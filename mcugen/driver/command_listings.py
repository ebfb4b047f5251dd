# SPDX-License-Identifier: Apache-2.0
"""Listings of an accelerator's commands: of a compiled model's segments, or of files that Arm's Vela wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcugen.backends.npu.ethos_u.command_stream import CommandStreamError, listing_of
from mcugen.core.limits import MAX_MODEL_BYTES, read_bounded
from mcugen.driver.compiled import CompiledModel
from mcugen.evaluation.array_files import read_npz
from mcugen.frontend.tflite.model import read_model
from mcugen.lir.layer_titles import titles_of
from mcugen.ops.offload import CommandListing, offloaded_nodes

VELA_OPERATOR = "ethos-u"
"""Name of the custom operator of .tflite files that Vela wrote; its first input is the driver payload."""
VELA_ARRAY = "cmd_data"
"""Name of the array with the driver payload in files of `vela --output-format raw`."""


@dataclass(frozen=True)
class SegmentListing:
    """The commands of one invocation of an accelerator.

    Attributes:
        name: The layer that the invocation is in the report, or its number in the file.
        commands: The commands.
    """

    name: str
    commands: CommandListing


@dataclass(frozen=True)
class SegmentListings:
    """The commands of all invocations of an accelerator.

    Attributes:
        segments: The invocations, in order.
    """

    segments: tuple[SegmentListing, ...]

    def __str__(self) -> str:
        return "\n".join(
            f"segment {number}: {segment.name}\n{segment.commands.text}" for number, segment in enumerate(self.segments)
        )

    def to_json(self) -> dict[str, Any]:
        """Return the listings as JSON data."""
        return {"segments": [{"layer": segment.name, **segment.commands.data} for segment in self.segments]}


def segment_listings(compiled: CompiledModel) -> SegmentListings:
    """Return the commands of all segments of a compiled model that have a listing."""
    titles = titles_of(compiled.program)
    return SegmentListings(
        tuple(
            SegmentListing(titles[node.outputs[0].name], listing)
            for node, op, _ in offloaded_nodes(compiled.graph)
            if (listing := op.segment.listing()) is not None
        )
    )


def vela_listings(path: Path) -> SegmentListings | None:
    """Return the commands in a file that Vela wrote: .tflite, or .npz of `--output-format raw`; None for other files.

    Raises:
        OSError: The file cannot be read.
        ModelError: The .tflite file is damaged.
        UsageError: The .npz file cannot be read.
        CommandStreamError: The commands are not valid; the message names the file.
    """
    payloads = _PAYLOADS_BY_SUFFIX[path.suffix](path) if path.suffix in _PAYLOADS_BY_SUFFIX else {}
    try:
        listings = [SegmentListing(f"{path.name}, {place}", listing_of(data)) for place, data in payloads.items()]
    except CommandStreamError as error:
        remedy = error.remedy or "write it again by vela"
        raise CommandStreamError(f"{path.name}: {error.rule}", error.found, remedy) from error
    return SegmentListings(tuple(listings)) if listings else None


def _tflite_payloads(path: Path) -> dict[str, bytes]:
    """Return the driver payloads in a .tflite file by the place of their operators."""
    first_inputs = (
        (operator.index, operator.inputs[0])
        for operator in read_model(read_bounded(path, MAX_MODEL_BYTES), path.name).graphs[0].operators
        if operator.is_custom and operator.kind == VELA_OPERATOR and operator.inputs
    )
    return {f"operator {n}": bytes(x.content) for n, x in first_inputs if x is not None and x.content is not None}


def _raw_payloads(path: Path) -> dict[str, bytes]:
    arrays = read_npz(path)
    return {VELA_ARRAY: arrays[VELA_ARRAY].tobytes()} if VELA_ARRAY in arrays else {}


_PAYLOADS_BY_SUFFIX: Mapping[str, Callable[[Path], dict[str, bytes]]] = {
    ".tflite": _tflite_payloads,
    ".npz": _raw_payloads,
}
