# SPDX-License-Identifier: Apache-2.0
"""Calls of Arm's compiler Vela: its configuration from a board, and the compiled segments."""

from __future__ import annotations

import importlib.util
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from mcugen.core.board import Board, Npu, NpuPort
from mcugen.core.errors import ToolMissingError, UsageError, VerificationError
from mcugen.hir.types import Array

EXTRA = "pip install 'mcugen[ethos-u]'"
"""Command that installs Vela."""

TIMEOUT_SECONDS = 300.0
"""Time limit of one call of the compiler; networks of ten million weights take some seconds."""

_WORKER = Path(__file__).with_name("regor_worker.py")

Reply: TypeAlias = dict[str, Any]
"""The compiled graph as the worker returns it (regor_worker.py)."""

_COP1, _COP2 = b"COP1", b"COP2"
"""First bytes of the driver's payload in its two formats."""

_HEADER_WORDS = 16
"""Words before the commands in a payload of format COP2."""

_CONFIG_ACTION, _NO_ACTION, _COMMANDS_ACTION = 0x00100001, 5, 2
"""Words of format COP1: the NPU's configuration follows in two words; nothing; commands follow, their number in words
in the upper half, whose bits 16 to 23 lie in the second byte."""


def is_installed() -> bool:
    """Return whether Vela's core is installed."""
    try:
        return importlib.util.find_spec("ethosu.regor") is not None
    except ModuleNotFoundError:
        return False


@dataclass(frozen=True)
class Place:
    """The place of a tensor in the memory that commands address.

    Attributes:
        region: Number of the base address.
        offset: Offset in bytes from the base address.
        nbytes: Size in bytes.
    """

    region: int
    offset: int
    nbytes: int


@dataclass(frozen=True)
class CompiledTosa:
    """A TOSA graph as Vela compiled it.

    Attributes:
        commands: Words of the driver's payload: a header of format COP1, and the commands.
        weights: Bytes of weights, biases and scales, in the region `weights_region`.
        weights_region: Number of the weights' base address.
        scratch: Place of the working memory; empty if the graph needs none.
        inputs: Places of the inputs, all in one region.
        outputs: Places of the outputs, all in one region.
        cycles: Vela's estimate in cycles of the NPU's clock, with the time of memories.
        compute_cycles: The part of the estimate that counts operations alone.
    """

    commands: Array
    weights: Array
    weights_region: int
    scratch: Place
    inputs: tuple[Place, ...]
    outputs: tuple[Place, ...]
    cycles: float
    compute_cycles: float


def compile_tosa(graphs: Sequence[bytes], board: Board) -> list[CompiledTosa | str]:
    """Compile TOSA files for the board's NPU.

    Args:
        graphs: The contents of the files.
        board: The board, which has an Ethos-U.

    Returns:
        For each graph, the compiled graph, or the compiler's error message.

    Raises:
        ToolMissingError: Vela is not installed.
        VerificationError: The compiler ended without a result.
    """
    if not is_installed():
        raise ToolMissingError("code for Ethos-U needs Arm's compiler Vela", "no package ethos-u-vela", EXTRA)
    assert board.npu is not None
    request = {
        "architecture": architecture(board.npu)[0],
        "system": system_configuration(board),
        "options": _OPTIONS.format(arena_bytes=board.memory(board.npu.activations.memory).size),
        "graphs": list(graphs),
    }
    replies = _run_worker(request)
    return [reply if isinstance(reply, str) else _compiled(reply) for reply in replies]


def _run_worker(request: Mapping[str, object]) -> list[Reply | str]:
    with tempfile.TemporaryDirectory(prefix="mcugen-vela-") as folder:
        request_file, reply_file = Path(folder) / "request", Path(folder) / "reply"
        request_file.write_bytes(pickle.dumps(dict(request)))
        command = [sys.executable, "-I", str(_WORKER), str(request_file), str(reply_file)]
        try:
            run = subprocess.run(command, capture_output=True, timeout=TIMEOUT_SECONDS, text=True, errors="replace")
        except subprocess.TimeoutExpired:
            problem = f"no result after {TIMEOUT_SECONDS:g} s"
            raise VerificationError("Vela must compile a segment", problem, "compile with --npu off") from None
        if run.returncode or not reply_file.is_file():
            problem = f"exit code {run.returncode}: {run.stderr.strip()[-300:]}"
            raise VerificationError("Vela must compile a segment", problem, "compile with --npu off")
        replies: list[Reply | str] = pickle.loads(reply_file.read_bytes())
        return replies


SIZES = {
    "u55": (32, 64, 128, 256),
    "u65": (256, 512),
    "u85": (128, 256, 512, 1024, 2048),
}
"""Multiply-accumulates per cycle of each product."""

MAX_CORE_MACS = {"u65": 256}
"""Multiply-accumulates per cycle of one core of products with several cores."""


def architecture(npu: Npu) -> tuple[str, int, int]:
    """Return the core's name of an NPU, its multiply-accumulates per cycle and core, and its cores.

    For example, they are "EthosU55", 128 and 1.

    Raises:
        UsageError: There is no such NPU.
    """
    known = {f"ethos-{product}-{size}": (product, size) for product, sizes in SIZES.items() for size in sizes}
    if npu.kind not in known:
        raise UsageError("npu.kind must be an Ethos-U with its size", repr(npu.kind), f"one of: {', '.join(known)}")
    product, size = known[npu.kind]
    macs = min(size, MAX_CORE_MACS.get(product, size))
    return f"Ethos{product.upper()}", macs, size // macs


def title_of(npu: Npu) -> str:
    """Return the name of an NPU in reports, such as "Ethos-U55-128"."""
    family, product, macs = npu.kind.split("-")
    return f"{family.capitalize()}-{product.upper()}-{macs}"


_OPTIONS = """[compiler]
output_format=Raw
cop_format=COP2
[scheduler]
optimize=Performance
arena_size_limit={arena_bytes}
separate_io_regions=true
cpu_tensor_alignment=16
"""
"""Options of the compiler: inputs and outputs get a region each, which the memory plan places."""


def system_configuration(board: Board) -> str:
    """Return Vela's configuration of the system: clocks and memories of the NPU, from the board file."""
    npu = board.npu
    assert npu is not None
    is_shared = npu.constants.memory == npu.activations.memory
    constants = "Sram" if is_shared else _area(board, npu.constants)
    ports = ["axi0_port=Sram", f"axi1_port={constants}", *_port("Sram", npu.activations)]
    ports += [] if is_shared else _port(constants, npu.constants)
    lines = [
        "[architecture]",
        f"macs={architecture(npu)[1]}",
        f"cores={architecture(npu)[2]}",
        "[vela]",
        "system_config_name=board",
        "memory_mode_name=board",
        "[System_Config.board]",
        f"core_clock={npu.clock_hz}",
        *ports,
        "[Memory_Mode.board]",
        f"const_mem_area={'Axi0' if is_shared else 'Axi1'}",
        "arena_mem_area=Axi0",
        "cache_mem_area=Axi0",
        f"arena_cache_size={board.memory(npu.activations.memory).size}",
    ]
    return "\n".join(lines) + "\n"


def _area(board: Board, port: NpuPort) -> str:
    return "OffChipFlash" if board.memory(port.memory).kind == "flash" else "Dram"


def _port(area: str, port: NpuPort) -> list[str]:
    values = {
        "clock_scale": port.clock_scale,
        "burst_length": port.burst_bytes,
        "read_latency": port.read_latency,
        "write_latency": port.write_latency,
    }
    return [f"{area}_{key}={value}" for key, value in values.items()]


def _compiled(reply: Reply) -> CompiledTosa | str:
    commands, weights = reply["commands"], reply["weights"]
    _, fast_bytes = reply["fast_scratch"]
    if fast_bytes:
        return f"{fast_bytes} bytes of a second working memory"
    region, nbytes = reply["scratch"]
    inputs, outputs = (tuple(Place(*entry) for entry in reply[key]) for key in ("inputs", "outputs"))
    compiled = CompiledTosa(
        commands=driver_payload(commands),
        weights=np.frombuffer(weights, np.uint8),
        weights_region=int(reply["weights_region"]),
        scratch=Place(region, 0, nbytes),
        inputs=inputs,
        outputs=outputs,
        cycles=float(reply["cycles"]),
        compute_cycles=float(reply["npu_cycles"]),
    )
    return compiled if _has_own_regions(compiled) else "regions that inputs and outputs share with other data"


def _has_own_regions(compiled: CompiledTosa) -> bool:
    """Return whether the inputs lie in a region of their own, and the outputs, too."""
    inputs, outputs = ({place.region for place in places} for places in (compiled.inputs, compiled.outputs))
    shared = {compiled.weights_region, compiled.scratch.region}
    return len(inputs) == len(outputs) == 1 and len(inputs | outputs | shared) == 2 + len(shared)


def driver_payload(payload: bytes) -> Array:
    """Return the words of a driver's payload in format COP1, which all versions of Arm's driver read.

    Args:
        payload: The payload in format COP2, the only one in which Vela gives inputs and outputs regions of their own.

    Raises:
        VerificationError: The payload has another format.
    """
    words = np.frombuffer(payload, "<u4").astype(np.uint32)
    if payload[:4] != _COP2 or int(words[7]) != int.from_bytes(b"VEUM", "little"):
        raise VerificationError("Vela's commands must have the known header", repr(payload[:4]), "use ethos-u-vela 5.2")
    commands = words[_HEADER_WORDS:]
    count = len(commands)
    action = _COMMANDS_ACTION | (count >> 16) << 8 | (count & 0xFFFF) << 16
    magic = int.from_bytes(_COP1, "little")
    header = [magic, _CONFIG_ACTION, int(words[10]), int(words[11]), *[_NO_ACTION] * 3, action]
    return np.concatenate([np.array(header, np.uint32), commands])
