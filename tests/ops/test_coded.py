# SPDX-License-Identifier: Apache-2.0
"""Weights stored by a Rice code: the bits of the reference, in fewer bytes, where the goal is flash."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from test_dsp_conv import Layers

from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.kernels.portable.compressed_weights import (
    ESCAPE_PREFIX_ZEROS,
    READ_AHEAD,
    REMAINDER_BITS,
    choose_remainder_bits,
    encode,
)

CODED = ("dense_coded",)


def decoded(data: np.ndarray, count: int, remainder: int) -> list[int]:
    """As the code is described: bit by bit."""
    bits = iter("".join(f"{byte:08b}" for byte in data))
    found = []
    for _ in range(count):
        prefix = 0
        while prefix < ESCAPE_PREFIX_ZEROS and next(bits) == "0":
            prefix += 1
        rest, number = (8, 0) if prefix == ESCAPE_PREFIX_ZEROS else (remainder, prefix)
        for _ in range(rest):
            number = 2 * number + int(next(bits))
        found.append(-(number + 1) // 2 if number % 2 else number // 2)
    return found


@settings(max_examples=60)
@given(arrays.arrays(np.int8, st.integers(1, 40)), st.sampled_from(REMAINDER_BITS))
def test_every_number_comes_back(codes: np.ndarray, remainder: int):
    assert decoded(encode(codes, remainder), len(codes), remainder) == codes.tolist()


def laplace(scale: float, *shape: int) -> np.ndarray:
    return np.clip(np.rint(np.random.default_rng(3).laplace(0, scale, shape)), -128, 127).astype(np.int8)


@pytest.mark.parametrize("scale", [0.4, 1.0, 4.0, 12.0])
def test_bytes_are_near_the_entropy(scale: float):
    codes = laplace(scale, 20_000)
    share = np.unique(codes, return_counts=True)[1] / codes.size
    entropy = -float((share * np.log2(share)).sum())
    remainder, bits = choose_remainder_bits(codes)
    assert bits < (1.03 * entropy + 0.25) * codes.size
    assert len(encode(codes, remainder)) == math.ceil(bits / 8) + READ_AHEAD


@pytest.mark.qemu
@pytest.mark.parametrize("board", ["rp2040", "nrf52840", "corstone300"])
def test_bits_are_those_of_the_reference(board: str):
    layers = Layers()
    for number, scale in enumerate((0.1, 2.0, 9.0)):
        layers.add(f"row {number}", (1, 61), laplace(scale, 7, 61), relu=number == 1)
    outliers = laplace(0.2, 5, 40)
    outliers[:, ::7] = np.array([127, -128, -127, 126, 90, -91])
    layers.zeros = [-128, 127]
    layers.add("outliers", (1, 40), outliers)
    layers.check(CODED, ("host", board))


def test_activations_of_16_bits():
    layers = Layers(np.int16)
    layers.add("row", (1, 300), laplace(5.0, 6, 300))
    layers.check(CODED, ("host",))


def test_taken_where_flash_matters_most():
    layers = Layers()
    layers.add("compressible", (1, 200), laplace(5.0, 40, 200))
    layers.add("not", (1, 64), np.random.default_rng(1).integers(-127, 128, (40, 64)).astype(np.int8))
    model = layers.net.model()
    found = {goal: compile_model(model, "nrf52840", CompileOptions(optimize=goal)) for goal in ("flash", "balanced")}
    kernels = {goal: [i.kernel for i in c.program.instrs if i.kernel.startswith("dense")] for goal, c in found.items()}
    assert kernels["flash"].count("dense_coded") == 1 and "dense_coded" not in kernels["balanced"]
    assert found["flash"].program.weights_size < found["balanced"].program.weights_size - 2000
