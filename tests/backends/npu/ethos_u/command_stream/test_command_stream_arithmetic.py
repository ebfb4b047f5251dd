# SPDX-License-Identifier: Apache-2.0
"""Scaling and rounding against exact fractions and TensorFlow Lite's formula; weights against Vela's own orders."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from ethos_u_streams import VELA

from mcugen.backends.npu.ethos_u.command_stream.arithmetic import divide, scale
from mcugen.backends.npu.ethos_u.command_stream.operations import FixedPointScale, NpuConfiguration, RoundingMode
from mcugen.backends.npu.ethos_u.command_stream.registers import Architecture
from mcugen.backends.npu.ethos_u.command_stream.weight_codec import decode_fast, decompress
from mcugen.backends.npu.ethos_u.command_stream.weights import (
    PADDING,
    WeightLayout,
    arrange_weights,
    fast_order,
    parse_scales,
    stream_order,
)

VALUES = [0, 1, -1, 2, -2, 3, -3, 5, -5, 127, -128, 1000, -1001, (1 << 31) - 1, -(1 << 31), 123456789, -123456789]
SCALES = [(1, 0), (1, 1), (3, 2), ((1 << 30) + 1, 31), (1 << 30, 32), (1500000000, 40), ((1 << 31) - 1, 62), (7, 63)]


def away(quotient: Fraction) -> int:
    """Return the nearest integer, ties away from zero."""
    return int(math.copysign(math.floor(abs(quotient) + Fraction(1, 2)), quotient))


ROUNDINGS = {
    RoundingMode.NATURAL: lambda q: math.floor(q + Fraction(1, 2)),
    RoundingMode.SYMMETRIC: away,
    RoundingMode.TOWARDS_ZERO: math.trunc,
    RoundingMode.DOWN: math.floor,
}


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize(("multiplier", "shift"), SCALES)
def test_a_shift_rounds_as_its_mode_says(multiplier: int, shift: int, rounding: RoundingMode) -> None:
    found = scale(np.array(VALUES), FixedPointScale(multiplier, shift, rounding))
    assert found.tolist() == [ROUNDINGS[rounding](Fraction(v * multiplier, 1 << shift)) for v in VALUES]


def multiply_by_quantized_multiplier(value: int, multiplier: int, shift: int) -> int:
    """Return TensorFlow Lite's product: high half with ties away from zero, then a rounding shift."""
    product = value * multiplier
    nudge = 1 << 30 if product >= 0 else 1 - (1 << 30)
    high = int(Fraction(product + nudge, 1 << 31))
    exponent = shift - 31
    mask = (1 << exponent) - 1
    threshold = (mask >> 1) + (high < 0)
    return (high >> exponent) + ((high & mask) > threshold)


@pytest.mark.parametrize("shift", [31, 32, 38, 45, 62])
def test_double_rounding_is_that_of_tensorflow_lite(shift: int) -> None:
    rng = np.random.default_rng(1)
    values = np.concatenate([np.array(VALUES), rng.integers(-(1 << 31), 1 << 31, 2000)])
    for multiplier in (1 << 30, (1 << 31) - 1, 1500000000):
        found = scale(values, FixedPointScale(multiplier, shift, RoundingMode.DOUBLE_SYMMETRIC))
        assert found.tolist() == [multiply_by_quantized_multiplier(int(v), multiplier, shift) for v in values]


@pytest.mark.parametrize("left_shift", [15, 20])
def test_double_rounding_knows_of_operands_that_were_shifted_left(left_shift: int) -> None:
    values = np.arange(-256, 256)
    for shift, multiplier in itertools.product((16, 18, 25), (1 << 30, 1623821475)):
        found = scale(values, FixedPointScale(multiplier, shift, RoundingMode.DOUBLE_SYMMETRIC, left_shift))
        wanted = [
            multiply_by_quantized_multiplier(int(v) << left_shift, multiplier, shift + left_shift) for v in values
        ]
        assert found.tolist() == wanted


def test_division_takes_ties_away_from_zero() -> None:
    sums, counts = np.meshgrid(np.arange(-300, 300), np.arange(1, 70))
    wanted = [away(Fraction(int(s), int(c))) for s, c in zip(sums.reshape(-1), counts.reshape(-1), strict=True)]
    assert divide(sums, counts).reshape(-1).tolist() == wanted


# ----------------------------------------------------------------------------------------------------- weights


def layout(**changes: object) -> WeightLayout:
    accelerator = NpuConfiguration(Architecture.U55, 128, 1, 24 * 1024)
    fields: dict[str, object] = {"accelerator": accelerator, "shape": (20, 3, 3, 40), "block_depth": 16, "ifm_bits": 8}
    fields |= {"is_depthwise": False, "is_part_kernel_first": False, "stride": (1, 1), "dilation": (1, 1)}
    return WeightLayout(**(fields | {"microblock": (0, 0)} | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("macs", [32, 128])
@pytest.mark.parametrize("ifm_bits", [8, 16])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("shape", [(20, 3, 3, 40), (7, 1, 1, 33), (40, 9, 10, 5), (33, 5, 2, 1)])
@pytest.mark.parametrize("order", ["depth", "part-kernel", "depthwise"])
def test_the_order_is_that_of_velas_codec(
    order: str, shape: tuple[int, int, int, int], dilation: int, ifm_bits: int, macs: int
) -> None:
    codec = pytest.importorskip("ethosu.mlw_codec", reason=VELA)
    if order == "depthwise":
        shape = (*shape[:3], 1)
    weights = np.random.default_rng(3).integers(-255, 256, shape).astype(np.int16)
    o_depth, decomposition = 4 if macs == 32 else 8, 8 // dilation
    depthwise, part_kernel = order == "depthwise", order == "part-kernel"
    volume = weights.transpose(3, 1, 2, 0) if depthwise else weights
    volume = np.ascontiguousarray(volume if not depthwise else weights)
    data, _ = codec.reorder_encode(
        8, o_depth, volume, 16, depthwise, part_kernel, ifm_bits, decomposition, decomposition
    )
    described = layout(
        accelerator=NpuConfiguration(Architecture.U55, macs, 1, 24 * 1024),
        shape=shape,
        ifm_bits=ifm_bits,
        is_depthwise=depthwise,
        is_part_kernel_first=part_kernel,
        dilation=(dilation, dilation),
    )
    stream = decompress(bytes(data))
    np.testing.assert_array_equal(arrange_weights([stream], [stream_order(described, 0)], shape), weights)


@pytest.mark.parametrize("macs", [128, 256, 512, 1024, 2048])
@pytest.mark.parametrize("order", ["depth", "part-kernel", "depthwise"])
@pytest.mark.parametrize("ifm_bits", [8, 16])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_each_weight_is_read_once(macs: int, order: str, ifm_bits: int, is_sparse: bool) -> None:
    if order == "depthwise" and is_sparse:
        pytest.skip("Ethos-U85 has no sparse depthwise convolutions")
    depthwise = order == "depthwise"
    cores = min(4, max(1, macs // 256))
    described = layout(
        accelerator=NpuConfiguration(Architecture.U85, macs, cores, 0),
        shape=(70, 3, 5, 1 if depthwise else 150),
        ifm_bits=ifm_bits,
        is_depthwise=depthwise,
        is_part_kernel_first=order == "part-kernel",
        stride=(2, 1),
        microblock=(1, 4) if macs <= 512 else (2, 4),
        block_depth=128,
        is_sparse=is_sparse,
    )
    orders = [stream_order(described, decoder) for decoder in range(cores)]
    for read in (np.concatenate(orders), *([] if depthwise else [fast_order(described)])):
        np.testing.assert_array_equal(np.sort(read[read != PADDING]), np.arange(np.prod(described.shape)))


def test_too_few_weights_are_an_error() -> None:
    described = layout(shape=(8, 1, 1, 8))
    with pytest.raises(ValueError, match="3 weights of"):
        arrange_weights([np.zeros(3, np.int16)], [stream_order(described, 0)], described.shape)


@pytest.mark.parametrize("kind", ["raw", "16 values", "4 values"])
def test_the_fast_format_is_read(kind: str) -> None:
    """The writer here follows the description: flags, offset and palette of 9-bit entries, then the weights."""
    rng = np.random.default_rng(4)
    is_raw, palette = kind == "raw", np.array([0, 1, -1, 5, 127, -128, 255, -255, 3, 4, 6, 7, 8, 9, 10, 11])
    width = {"raw": 8, "16 values": 4, "4 values": 2}[kind]
    weights = rng.integers(-100, 150, 64) if is_raw else palette[rng.integers(0, 1 << width, 64)]
    header = int(is_raw) | int(width == 2) << 1 | (-22 & 0xFF) << 104
    for index, value in enumerate(palette):
        header |= (abs(int(value)) << 1 | int(value < 0)) << (112 + 9 * index)
    body = 0
    for index, weight in enumerate(weights):
        field = (int(weight) - 22) & 0xFF if is_raw else palette.tolist().index(weight)
        body |= field << (width * index)
    data = header.to_bytes(32, "little") + body.to_bytes(8 * width, "little")
    assert decode_fast(data).tolist() == weights.tolist()
    with pytest.raises(ValueError, match="fast format"):
        decode_fast(data[:16])


@pytest.mark.parametrize(
    ("architecture", "bits", "widths"),
    [
        (Architecture.U55, 32, (5, 4)),
        (Architecture.U55, 40, (5, 4)),
        (Architecture.U85, 32, (4, 4)),
        (Architecture.U85, 48, (6, 2)),
    ],
)
@pytest.mark.parametrize("cores", [1, 2])
def test_packets_of_bias_and_scale_are_read(
    architecture: Architecture, bits: int, widths: tuple[int, int], cores: int
) -> None:
    bias, multipliers, shifts = [-5, 1 << 30, -(1 << 31), 7, 0], [1, 2, 30000, 4, 5], [0, 63, 31, 40, 1]
    packets = [b"" for _ in range(cores)]
    for channel, (b, m, s) in enumerate(zip(bias, multipliers, shifts, strict=True)):
        packet = b.to_bytes(widths[0], "little", signed=True) + m.to_bytes(widths[1], "little") + bytes([s])
        packets[channel % cores] += packet.ljust(10, b"\0")
    found = parse_scales(packets, len(bias), NpuConfiguration(architecture, 256, cores, 0), bits)
    assert (found.bias.tolist(), found.multipliers.tolist(), found.shifts.tolist()) == (bias, multipliers, shifts)
    with pytest.raises(ValueError, match="bytes of scales"):
        parse_scales(
            [packet[:10] for packet in packets], len(bias), NpuConfiguration(architecture, 256, cores, 0), bits
        )
