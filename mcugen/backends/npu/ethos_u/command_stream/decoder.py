# SPDX-License-Identifier: Apache-2.0
"""Decoding of command streams: words set registers, and each operation takes the registers that it uses.

Registers keep their values from one operation to the next, for Vela writes only those that change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from mcugen.backends.npu.ethos_u.command_stream.errors import CommandStreamError
from mcugen.backends.npu.ethos_u.command_stream.kernel_operations import KernelDecoder
from mcugen.backends.npu.ethos_u.command_stream.operations import (
    BranchCommand,
    CommandStream,
    CounterMask,
    InterruptCommand,
    Operation,
    StopCommand,
    TransferCommand,
    WaitCommand,
)
from mcugen.backends.npu.ethos_u.command_stream.payload import parse_payload
from mcugen.backends.npu.ethos_u.command_stream.registers import (
    REGISTERS,
    TWO_WORDS,
    Architecture,
    CommandKey,
    Register,
)
from mcugen.backends.npu.ethos_u.command_stream.state import RegisterState

MAX_WORDS = 1 << 22
"""Largest number of words of a stream that is decoded; the driver's header allows four times as many."""


def decode(stream: bytes) -> CommandStream:
    """Return the operations of a command stream.

    Args:
        stream: A driver payload (`cmd_data` of `vela --output-format raw`) for an Ethos-U55, U65 or U85.

    Raises:
        CommandStreamError: The bytes are not a valid command stream; the message names the word.
    """
    payload = parse_payload(stream)
    if len(payload.words) > MAX_WORDS:
        raise CommandStreamError(f"a command stream has at most {MAX_WORDS} words", str(len(payload.words)))
    state = RegisterState(payload.accelerator)
    operations = tuple(decode_operations(payload.words, state))
    if not operations or not isinstance(operations[-1], StopCommand):
        raise CommandStreamError("a command stream must end with a stop", f"{len(payload.words)} words without one")
    return CommandStream(payload.accelerator, operations, len(payload.words), payload.version)


def decode_operations(words: Sequence[int], state: RegisterState) -> Iterator[Operation]:
    """Yield the operations of a stream up to the first stop."""
    known = REGISTERS[state.accelerator.architecture]
    position = 0
    while position < len(words):
        start, key, parameter = position, words[position] & 0xFFFF, words[position] >> 16
        position += 2 if key & TWO_WORDS else 1
        if position > len(words):
            raise CommandStreamError("a command must be complete", f"word {start}: the second word is missing")
        payload = words[position - 1] if key & TWO_WORDS else 0
        if key in known:
            state.set(known[key], parameter, payload)
            continue
        operation = decode_operation(start, key, parameter, payload, state)
        yield operation
        if isinstance(operation, StopCommand):
            return


def decode_operation(position: int, key: int, parameter: int, payload: int, state: RegisterState) -> Operation:
    """Return the operation that a command starts.

    Args:
        position: Index of the command's word.
        key: Key of the command.
        parameter: Upper half of the command's first word.
        payload: The command's second word, or 0.
        state: The registers at that time.

    Raises:
        CommandStreamError: The command does not exist, or it needs a register that no command has set.
    """
    state.position = position
    is_u85 = state.accelerator.architecture is Architecture.U85
    if key not in set(CommandKey) or (key in U85_COMMANDS and not is_u85):
        detail = f"word {position}: {key:#06x} (Ethos-{state.accelerator.architecture.name})"
        raise CommandStreamError("each command must be known to the NPU", detail)
    command = CommandKey(key)
    simple: dict[CommandKey, Callable[[], Operation]] = {
        CommandKey.STOP: lambda: StopCommand(position, parameter),
        CommandKey.INTERRUPT: lambda: InterruptCommand(position, parameter),
        CommandKey.PMU_MASK: lambda: CounterMask(position, bool(parameter & 1)),
        CommandKey.DMA_WAIT: lambda: WaitCommand(position, True, parameter & 3),
        CommandKey.KERNEL_WAIT: lambda: WaitCommand(position, False, parameter & 3),
        CommandKey.BRANCH: lambda: BranchCommand(position, parameter & 1, payload),
        CommandKey.DMA_START: lambda: decode_transfer(position, state),
    }
    if command in simple:
        return simple[command]()
    return KernelDecoder(state, position).decode(command, parameter)


U85_COMMANDS = frozenset({CommandKey.RESIZE, CommandKey.BRANCH})
"""Commands that Ethos-U55 and U65 do not know."""


def decode_transfer(position: int, state: RegisterState) -> TransferCommand:
    """Return the DMA transfer that the registers describe."""
    source, target = state.parameter(Register.DMA_SOURCE_REGION), state.parameter(Register.DMA_TARGET_REGION)
    length = state.address(Register.DMA_LENGTH)
    is_u85 = state.accelerator.architecture is Architecture.U85
    dimensions = (source if is_u85 else target) >> 9 & 3
    if dimensions == 3:
        raise state.invalid("DMA transfers have one to three dimensions", "mode 3")
    rows = state.parameter(Register.DMA_SIZE0) if dimensions >= 1 else 1
    planes = state.parameter(Register.DMA_SIZE1) if dimensions == 2 else 1
    source_strides, target_strides = (0, 0), (0, 0)
    if dimensions and is_u85:
        source_strides = strides(state, dimensions, Register.DMA_SOURCE_STRIDE0, Register.DMA_SOURCE_STRIDE1)
        target_strides = strides(state, dimensions, Register.DMA_TARGET_STRIDE0, Register.DMA_TARGET_STRIDE1)
    elif dimensions:
        skip0, skip1 = strides(state, dimensions, Register.DMA_SKIP0, Register.DMA_SKIP1)
        source_strides = (length, length * rows)
        target_strides = (length + skip0, length * rows + skip1)
    if not length or not rows or not planes:
        raise state.invalid("DMA transfers move at least one byte", f"{planes} x {rows} x {length}")
    return TransferCommand(
        position=position,
        source_region=None if source >> 8 & 1 else source & 7,
        source=state.address(Register.DMA_SOURCE),
        target_region=None if target >> 8 & 1 else target & 7,
        target=state.address(Register.DMA_TARGET),
        length=length,
        rows=rows,
        planes=planes,
        source_strides=source_strides,
        target_strides=target_strides,
        has_indices=is_u85 and bool((source | target) >> 11 & 1),
    )


def strides(state: RegisterState, dimensions: int, inner: Register, outer: Register) -> tuple[int, int]:
    """Return two strides of a transfer, the second of which counts for three dimensions only."""
    return state.signed_address(inner), state.signed_address(outer) if dimensions == 2 else 0
