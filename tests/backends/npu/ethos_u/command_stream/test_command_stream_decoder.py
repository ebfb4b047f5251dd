# SPDX-License-Identifier: Apache-2.0
"""The decoder: registers, headers, text, and errors that name the word."""

from __future__ import annotations

import numpy as np
import pytest
from ethos_u_streams import CONFIGS, VELA, Assembler, max_pooling

from mcugen.backends.npu.ethos_u.command_stream import CommandStreamError, decode, format_stream
from mcugen.backends.npu.ethos_u.command_stream.operations import (
    ConvolutionOperation,
    InterruptCommand,
    MapLayout,
    PoolingMode,
    PoolingOperation,
    RoundingMode,
    StopCommand,
    TransferCommand,
    WaitCommand,
)
from mcugen.backends.npu.ethos_u.command_stream.registers import REGISTERS, Architecture


def pooling_of(stream: Assembler) -> PoolingOperation:
    operation = decode(stream.payload()).operations[0]
    assert isinstance(operation, PoolingOperation)
    return operation


def patched(npu: str, *commands: tuple[int, int]) -> PoolingOperation:
    """Return the pooling of `max_pooling` with some registers set anew before it."""
    stream = max_pooling(npu)
    words = stream.words
    stream.words = [key | (parameter & 0xFFFF) << 16 for key, parameter in commands]
    stream.words, tail = words[:-2] + stream.words, words[-2:]
    stream.words += tail
    return pooling_of(stream)


@pytest.mark.parametrize("npu", CONFIGS)
def test_registers_become_fields(npu: str) -> None:
    stream = decode(max_pooling(npu).payload())
    assert str(stream.accelerator) == f"ethos-{npu}"
    assert stream.version == (1, 0, 6)
    pooling, stop = stream.operations
    assert isinstance(pooling, PoolingOperation) and isinstance(stop, StopCommand)
    assert (pooling.mode, stop.mask) == (PoolingMode.MAX, 0xFFFF)
    assert (pooling.ifm.shape, pooling.ofm.shape) == ((4, 4, 3), (2, 2, 3))
    assert (pooling.ifm.region, pooling.ifm.strides, pooling.ifm.layout) == (1, (12, 3, 1), MapLayout.NHWC)
    assert (pooling.ofm.addresses[0], pooling.ofm.split) == (0x40, (2, 2, 2))
    assert (pooling.kernel.height, pooling.kernel.stride_y, pooling.kernel.pad_top) == (2, 2, 0)
    assert (pooling.activation.minimum, pooling.activation.maximum) == (-128, 127)


@pytest.mark.parametrize(
    ("bits", "stride", "dilation"),
    [
        (0, (1, 1), (1, 1)),
        (1, (1, 2), (1, 1)),
        (2, (2, 1), (1, 1)),
        (0x40, (1, 3), (1, 1)),
        (0x200, (3, 1), (1, 1)),
        (0x18, (1, 1), (2, 2)),
    ],
)
def test_strides_and_dilations(bits: int, stride: tuple[int, int], dilation: tuple[int, int]) -> None:
    kernel = patched("u55-128", (0x122, bits), (0x120, 2), (0x121, 2)).kernel
    assert (kernel.stride_y, kernel.stride_x) == stride
    assert (kernel.dilation_y, kernel.dilation_x) == dilation
    assert (kernel.height, kernel.width) == (3 if dilation == (1, 1) else 2,) * 2


@pytest.mark.parametrize(
    ("bits", "rounding"),
    [(0, RoundingMode.DOUBLE_SYMMETRIC), (1, RoundingMode.TOWARDS_ZERO), (2, RoundingMode.NATURAL)],
)
def test_rounding_modes_of_ethos_u55(bits: int, rounding: RoundingMode) -> None:
    assert patched("u55-128", (0x114, 0x101 | bits << 14)).scaling.rounding is rounding


@pytest.mark.parametrize(
    ("is_signed", "value", "wanted"), [(True, 0xFF80, -128), (False, 0xFF80, 0xFF80), (True, 5, 5)]
)
def test_zero_points_have_the_sign_of_the_type(is_signed: bool, value: int, wanted: int) -> None:
    assert patched("u55-128", (0x105, int(is_signed)), (0x109, value)).ifm.zero_point == wanted


def test_registers_keep_their_values() -> None:
    stream = max_pooling()
    stream.words[-1:] = [5 | 0, 0xFFFF0000]
    first, second, _ = decode(stream.payload()).operations
    assert isinstance(first, PoolingOperation) and isinstance(second, PoolingOperation)
    assert (first.ifm, first.ofm) == (second.ifm, second.ofm)


def test_transfers_waits_and_interrupts() -> None:
    stream = Assembler("u65-256").short((0x130, 2), (0x131, 0x100 | 3)).long((0x30, 16), (0x31, 0x100), (0x32, 512))
    stream.short((16, 0), (17, 0), (18, 1), (1, 7), (0, 1))
    transfer, dma, kernel, interrupt, stop = decode(stream.payload()).operations
    assert (
        isinstance(transfer, TransferCommand)
        and isinstance(interrupt, InterruptCommand)
        and isinstance(stop, StopCommand)
    )
    assert (transfer.source_region, transfer.target_region, transfer.length) == (2, None, 512)
    assert isinstance(dma, WaitCommand) and isinstance(kernel, WaitCommand)
    assert (dma.is_for_dma, dma.outstanding, kernel.is_for_dma, kernel.outstanding) == (True, 0, False, 1)
    assert interrupt.mask == 7


@pytest.mark.parametrize("architecture", [Architecture.U65, Architecture.U85])
def test_transfers_of_three_dimensions(architecture: Architecture) -> None:
    is_u85 = architecture is Architecture.U85
    stream = Assembler("u85-256" if is_u85 else "u65-256")
    stream.short((0x130, 2 << 9 if is_u85 else 0), (0x131, 0 if is_u85 else 2 << 9), (0x132, 3), (0x133, 2))
    stream.long((0x30, 0), (0x31, 0), (0x32, 8))
    stream.long(*(((0x33, 8), (0x34, 24), (0x35, 10), (0x36, 40)) if is_u85 else ((0x33, 2), (0x34, 16))))
    transfer = decode(stream.short((16, 0), (0, 1)).payload()).operations[0]
    assert isinstance(transfer, TransferCommand)
    assert (transfer.rows, transfer.planes) == (3, 2)
    assert (transfer.source_strides, transfer.target_strides) == ((8, 24), (10, 40))


def test_each_operation_is_one_line_of_text() -> None:
    stream = decode(max_pooling().payload())
    head, *lines = format_stream(stream).splitlines()
    assert head.startswith("ethos-u55-128 (architecture 1.0.6): 64 words, 1 operations, 0 transfers")
    assert len(lines) == len(stream.operations)
    wanted = "pooling.max ifm 4x4x3 int8 NHWC @1:0x0 strides=[12, 3, 1] zp=0 ofm 2x2x3 int8 NHWC @1:0x40"
    assert wanted in lines[0]
    assert "kernel=2x2 stride=2x2 dilation=1x1 pad=[0, 0, 0, 0]" in lines[0]
    assert lines[1].endswith("stop mask=0xffff")


@pytest.mark.parametrize("architecture", Architecture)
def test_no_two_registers_share_a_number(architecture: Architecture) -> None:
    registers = list(REGISTERS[architecture].values())
    assert len(registers) == len(set(registers))


@pytest.mark.parametrize("architecture", [Architecture.U55, Architecture.U65])
def test_numbers_are_those_of_velas_description(architecture: Architecture) -> None:
    regs = pytest.importorskip("ethosu.vela.ethos_u55_regs.ethos_u55_regs", reason=VELA)
    aliases = {"IFM_SCALE": "OPA_SCALE", "IFM2_SCALE": "OPB_SCALE"}
    for key, register in REGISTERS[architecture].items():
        table = regs.cmd1 if key & 0x4000 else regs.cmd0
        name = aliases.get(register.value, register.value)
        assert table[f"NPU_SET_{name}"].value == key & 0x3FF, register


HEADERS = {
    "nothing": (b"", "begins with COP1"),
    "another file": (b"TFL3" * 9, "begins with COP1"),
    "COP2": (b"COP2" + bytes(60), "COP1"),
    "half a word": (max_pooling().payload() + b"\0\0", "whole words"),
    "no stream": (max_pooling().payload()[:28], "one configuration and one command stream"),
    "cut off": (max_pooling().payload()[:-40], "must be complete"),
    "unknown action": (b"COP1" + b"\x09\0\0\0", "known action"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_a_wrong_header_is_one_error(case: str) -> None:
    data, rule = HEADERS[case]
    with pytest.raises(CommandStreamError, match=rule):
        decode(data)


@pytest.mark.parametrize("config", [0x30001807, 0x0000180F, 0x00001800])
def test_a_configuration_of_no_npu_is_refused(config: int) -> None:
    data = bytearray(max_pooling().payload())
    data[8:12] = np.uint32(config).tobytes()
    with pytest.raises(CommandStreamError, match="configuration must be"):
        decode(bytes(data))


def test_errors_name_the_word() -> None:
    stream = Assembler().short((0x10F, 1), (5, 0), (0, 0))
    with pytest.raises(CommandStreamError, match=r"word 1: OFM_HEIGHT_M1 is not set"):
        decode(stream.payload())


@pytest.mark.parametrize("npu", ["u55-128", "u85-256"])
def test_registers_and_commands_of_the_other_generation_are_refused(npu: str) -> None:
    commands = ((0x108, 0), (7, 0)) if npu == "u55-128" else ((0x123, 0), (0x10D, 0))
    for command in commands:
        with pytest.raises(CommandStreamError, match="known to the NPU"):
            decode(Assembler(npu).short(command, (0, 0)).payload())


@pytest.mark.parametrize("words", [[], [0x4000], [5]])
def test_a_stream_must_end_with_a_stop(words: list[int]) -> None:
    with pytest.raises(CommandStreamError):
        decode(Assembler(words=words).payload())


@pytest.mark.parametrize(
    ("command", "rule"),
    [
        ((0x114, 3 << 14 | 0x101), "rounding mode"),
        ((0x105, 3 << 6 | 1), "layout"),
        ((0x124, 3), "accumulators"),
        ((0x125, 9), "activation function"),
        ((0x125, 4 << 12), "clip range"),
        ((0x107, 3), "upscale mode"),
        ((0x104, 7), "as many channels"),
        ((0x100, 100), "part of its input"),
    ],
)
def test_values_without_a_meaning_are_refused(command: tuple[int, int], rule: str) -> None:
    with pytest.raises(CommandStreamError, match=rule):
        patched("u55-128", command)


def test_a_convolution_needs_weights() -> None:
    stream = max_pooling()
    stream.words = stream.words[:-2]
    stream.short((0x128, 0), (0x129, 0)).long((0x20, 0), (0x21, 0), (0x22, 0), (0x23, 0)).short((2, 0), (0, 0))
    with pytest.raises(CommandStreamError, match="needs weights"):
        decode(stream.payload())
    stream.words = stream.words[:-2]
    stream.long((0x21, 32), (0x23, 16)).short((2, 0), (0, 0))
    convolution = decode(stream.payload()).operations[0]
    assert isinstance(convolution, ConvolutionOperation) and convolution.weights is not None
    assert [part.length for part in (*convolution.weights.weights, *convolution.weights.scales)] == [32, 16]
