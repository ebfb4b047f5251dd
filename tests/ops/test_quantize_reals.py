# SPDX-License-Identifier: Apache-2.0
"""QuantizeLinear and DequantizeLinear of floats without divisions: every CPU's way gives the bits of the division."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_models import Net, outputs_in_c

from mcugen.driver.compiler import compile_model
from mcugen.numerics.reciprocal import Reciprocal

SCALES = (1 / 255, 2 / 255, 1 / 128, 0.1, 0.75, 1.0, 3.0, 0.0235, 7.3e-9, 1e12, float(np.nextafter(np.float32(2), 0)))
"""Powers of two and other numbers of few bits have many ties; a significand of ones makes the longest products."""
ZEROS = (-128, 0, 127, -7)
STRANGE = np.array(
    [0, np.inf, np.nan, 1e-45, 1e-40, 1.2e-38, 3.4e38, 2.0**23, 2.0**24 + 2, 2.0**31, 2.0**32, 2.0**33], np.float32
)
"""Ends of ranges; negative ones, NaN too, are made of these."""


def around_ties(scale: float, most: int, step: int = 1) -> np.ndarray:
    """The floats about the middle between neighbouring codes, of both signs, and those of no size."""
    middles = ((np.arange(0, most + 1, step)[:, None] + 0.5) * np.float64(np.float32(scale))).astype(np.float32)
    near = (middles.view(np.int32) + np.arange(-3, 4)).astype(np.int32).view(np.float32).reshape(-1)
    some = np.concatenate([near, STRANGE])
    return np.concatenate([some, -some])


def by_division(x: np.ndarray, scale: float, zero: int, dtype: type) -> np.ndarray:
    """ONNX's words: x / scale in float32, rounded half to even, saturating; of NaN the least code."""
    limits = np.iinfo(dtype)
    with np.errstate(all="ignore"):
        codes = np.rint(x / np.float32(scale)).astype(np.float64) + zero
    return np.clip(np.where(np.isnan(codes), limits.min, codes), limits.min, limits.max).astype(dtype)


@pytest.mark.parametrize("most", [255, 65535])
def test_ratios_by_multiplications_round_as_quotients_do(most: int):
    random = np.random.default_rng(most)
    scales = np.concatenate([np.float32(SCALES), np.exp(random.uniform(-12, 4, 25)).astype(np.float32)])
    for scale in scales:
        found = Reciprocal.of(float(scale), most)
        assert found is not None, f"{scale}"
        anywhere = (random.uniform(-most, most, 20000) * scale).astype(np.float32)
        x = np.concatenate([around_ties(scale, most), anywhere])
        with np.errstate(all="ignore"):
            ratio, wanted = found.ratio(x), x / scale
        inside = np.abs(wanted) <= most
        assert np.array_equal(np.rint(ratio[inside]), np.rint(wanted[inside]))
        assert np.array_equal(np.isnan(ratio), np.isnan(wanted))
        assert (np.abs(ratio[~inside & ~np.isnan(wanted)]) > most - 1).all()


def test_a_reciprocal_that_steps_elsewhere_is_found_out():
    """What the compiler checks for: one float alone is no 1 / scale."""
    scale = np.float32(1 / 255)
    assert not Reciprocal(float(np.float32(255)), 1e-30)._agrees(scale, 255)
    assert not Reciprocal(float(np.float32(254.99998)), 1e-30)._agrees(scale, 255)


def layers() -> tuple[Net, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Quantizations to each type, their inputs and results; one behind another elementwise operator."""
    net, feeds, wanted = Net(opset=21), {}, {}
    for index, scale in enumerate(SCALES):
        dtype = (np.int8, np.int8, np.uint8, np.int16)[index % 4]
        zero = ZEROS[index % 3] + 128 * (dtype is np.uint8)
        x = around_ties(scale, 255 if dtype is not np.int16 else 65535, 1 if dtype is not np.int16 else 501)
        feeds[f"x{index}"], wanted[f"y{index}"] = x, by_division(x, scale, zero, dtype)
        real = net.input(f"x{index}", len(x))
        net.output(net.quantize(real, scale, zero, dtype, out=f"y{index}"), dtype=dtype)
    x = around_ties(0.1, 255)
    feeds["x"], wanted["y"] = x, by_division(np.abs(x), 0.1, -7, np.int8)
    net.output(net.quantize(net.op("Abs", net.input("x", len(x))), 0.1, -7, out="y"), dtype=np.int8)
    return net, feeds, wanted


def check(wanted: dict[str, np.ndarray], found: dict[str, np.ndarray]) -> None:
    for name, codes in wanted.items():
        assert np.array_equal(codes, found[name]), name


@pytest.mark.parametrize("board", ["host", "rp2040", "nrf52840"])
def test_plain_c(board: str):
    net, feeds, wanted = layers()
    check(wanted, outputs_in_c(compile_model(net.model(), board), feeds))


@pytest.mark.qemu
@pytest.mark.parametrize("board", ["nrf52840", "corstone300", "rp2040", "esp32c3", "rv32imafc"])
def test_each_cpu(board: str):
    net, feeds, wanted = layers()
    (found,) = compile_model(net.model(), board).simulate([feeds], measure=False).outputs
    check(wanted, found)


def test_no_division_is_left():
    net, _, _ = layers()
    for board in ("nrf52840", "corstone300", "rp2040", "esp32c3"):
        kernels = compile_model(net.model(), board).bundle.files["net_kernels.h"]
        assert " / k" not in kernels, board


def by_computed_scales() -> tuple[Net, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The same where scales and zero points are inputs; of no size, without end, too."""
    net, feeds, wanted = Net(opset=21), {}, {}
    for index, scale in enumerate((*SCALES, 1e-35, 3e38, 0.0, np.inf, np.nan)):
        dtype = (np.int8, np.uint8, np.int16)[index % 3]
        zero = ZEROS[index % 4] + 128 * (dtype is np.uint8)
        x = around_ties(scale if 0 < scale < 1e30 else 1.0, 255)
        names = [net.input(f"{role}{index}", dtype=t) for role, t in (("s", np.float32), ("z", dtype))]
        feeds |= {f"x{index}": x, f"s{index}": np.float32(scale), f"z{index}": np.asarray(zero, dtype)}
        wanted[f"y{index}"] = by_division(x, scale, zero, dtype)
        net.output(net.op("QuantizeLinear", net.input(f"x{index}", len(x)), *names, out=f"y{index}"), dtype=dtype)
    return net, feeds, wanted


@pytest.mark.parametrize("board", ["host", "rp2040"])
def test_computed_scales_in_plain_c(board: str):
    net, feeds, wanted = by_computed_scales()
    check(wanted, outputs_in_c(compile_model(net.model(), board), feeds))


@pytest.mark.qemu
@pytest.mark.parametrize("board", ["nrf52840", "corstone300", "rp2040", "esp32c3"])
def test_computed_scales_on_each_cpu(board: str):
    net, feeds, wanted = by_computed_scales()
    (found,) = compile_model(net.model(), board).simulate([feeds], measure=False).outputs
    check(wanted, found)


def codes_of_reals() -> tuple[Net, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Dequantizations of every code."""
    net, feeds, wanted = Net(opset=21), {}, {}
    codes = np.arange(-128, 128).astype(np.int8)
    for index, scale in enumerate(SCALES):
        zero = ZEROS[index % 4]
        feeds[f"x{index}"] = codes
        wanted[f"y{index}"] = (codes.astype(np.float32) - np.float32(zero)) * np.float32(scale)
        q = net.input(f"x{index}", len(codes), dtype=np.int8)
        net.output(net.dequantize(q, scale, zero, out=f"y{index}"))
    return net, feeds, wanted


def test_reals_of_codes_in_plain_c():
    net, feeds, wanted = codes_of_reals()
    for board in ("host", "nrf52840"):
        check(wanted, outputs_in_c(compile_model(net.model(), board), feeds))


@pytest.mark.qemu
@pytest.mark.parametrize("board", ["corstone300", "rp2040", "esp32c3"])
def test_reals_of_codes_on_each_cpu(board: str):
    net, feeds, wanted = codes_of_reals()
    (found,) = compile_model(net.model(), board).simulate([feeds], measure=False).outputs
    check(wanted, found)
