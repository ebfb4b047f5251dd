# SPDX-License-Identifier: Apache-2.0
"""The driver's header around a command stream: actions of Arm's Ethos-U driver, in the format that begins with COP1."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from mcugen.backends.npu.ethos_u.command_stream.errors import CommandStreamError
from mcugen.backends.npu.ethos_u.command_stream.operations import NpuConfiguration
from mcugen.backends.npu.ethos_u.command_stream.registers import Architecture

MAGIC = b"COP1"
"""First word of a driver payload."""
MAGIC_OF_VERSION_2 = b"COP2"
"""First word of the payloads that Vela writes with `--cop-format COP2`."""
MAX_MACS_LOG2 = 11
"""Binary logarithm of the multiply-accumulate operations per cycle of the largest Ethos-U."""
CONFIG_WORDS = 2
"""Number of words after an OPTIMIZER_CONFIG action: the configuration and the identity of the NPU."""


class Action(IntEnum):
    """Actions of the driver; the number is the low byte of a word."""

    RESERVED = 0
    OPTIMIZER_CONFIG = 1
    COMMAND_STREAM = 2
    READ_REGISTERS = 3
    DUMP_SHRAM = 4
    NOP = 5


@dataclass(frozen=True)
class Payload:
    """A driver payload.

    Attributes:
        accelerator: The NPU for which the stream was made.
        version: Major, minor and patch version of the NPU's architecture.
        words: The words of the command stream.
    """

    accelerator: NpuConfiguration
    version: tuple[int, int, int]
    words: tuple[int, ...]


def parse_payload(data: bytes) -> Payload:
    """Return the parts of a driver payload.

    Args:
        data: `cmd_data` of Vela's raw output, or the payload tensor of a custom operator in a .tflite file.

    Raises:
        CommandStreamError: The bytes are not one COP1 payload with one configuration and one command stream.
    """
    if data[:4] == MAGIC_OF_VERSION_2:
        raise CommandStreamError("the command stream must be in the format COP1", "COP2", "vela --cop-format COP1")
    if data[:4] != MAGIC or len(data) % 4:
        detail = f"{len(data)} bytes that begin with {data[:4].hex(' ') or 'nothing'}"
        raise CommandStreamError("a command stream is whole words and begins with COP1", detail)
    words = [int(word) for word in np.frombuffer(data, "<u4")]
    configs: list[tuple[int, int]] = []
    streams: list[tuple[int, ...]] = []
    for action, start, end in split_actions(words):
        if action is Action.OPTIMIZER_CONFIG:
            configs.append((words[start], words[start + 1]))
        if action is Action.COMMAND_STREAM:
            streams.append(tuple(words[start:end]))
    if len(configs) != 1 or len(streams) != 1:
        detail = f"{len(configs)} and {len(streams)}"
        raise CommandStreamError("a driver payload has one configuration and one command stream", detail)
    config, identity = configs[0]
    return Payload(decode_config(config), decode_version(identity), streams[0])


def split_actions(words: list[int]) -> Iterator[tuple[Action, int, int]]:
    """Yield each action of a payload with the first and the end index of the words that belong to it."""
    position = 1
    while position < len(words):
        word = words[position]
        number, high, low = word & 0xFF, word >> 8 & 0xFF, word >> 16
        if number not in set(Action) or number == Action.RESERVED:
            detail = f"word {position}: {word:#x}"
            raise CommandStreamError("each word of the driver's header is a known action", detail)
        action = Action(number)
        lengths = {Action.OPTIMIZER_CONFIG: CONFIG_WORDS, Action.COMMAND_STREAM: high << 16 | low}
        start = position + 1
        position = start + lengths.get(action, 0)
        if position > len(words):
            detail = f"{position} words, of which {len(words)} are there"
            raise CommandStreamError("the driver payload must be complete", detail)
        yield action, start, position


def decode_config(word: int) -> NpuConfiguration:
    """Return the NPU that a configuration word describes: logarithm of its MACs, size of its RAM, product."""
    product, macs_log2 = word >> 28, word & 0xF
    if product not in {a.value for a in Architecture} or not 4 < macs_log2 <= MAX_MACS_LOG2:
        raise CommandStreamError("the configuration must be of an Ethos-U55, U65 or U85", f"{word:#010x}")
    architecture, macs = Architecture(product), 1 << macs_log2
    if architecture is Architecture.U85:
        return NpuConfiguration(architecture, macs, cores=min(4, max(1, macs // 256)), shram_bytes=0)
    cores = 2 if architecture is Architecture.U65 and macs == 512 else 1
    return NpuConfiguration(architecture, macs // cores, cores, shram_bytes=(word >> 8 & 0xFF) * 1024 // cores)


def decode_version(word: int) -> tuple[int, int, int]:
    """Return major, minor and patch version of the architecture from the identity word."""
    return word >> 28, word >> 20 & 0xFF, word >> 16 & 0xF
