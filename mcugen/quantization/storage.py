# SPDX-License-Identifier: Apache-2.0
"""How each layer's weights are stored within a budget of bytes: as they are, coarser and by a code, or in 4 bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mcugen.hir.graph import Node
from mcugen.hir.types import DType
from mcugen.kernels.portable.compressed_weights import LEAST_SAVED
from mcugen.quantization.few_bits import LEAST_BITS, counted
from mcugen.quantization.plan import Codes, Plan
from mcugen.quantization.weights import stored_bits

STEP = 1 / 16
"""Bits of a weight by which codes are told apart."""

HALVINGS = 60
"""Of the price of a byte, which is sought."""


@dataclass(frozen=True)
class Storage:
    """Of all layers: which have other types than the model as such, and what a code takes of a weight of others."""

    wanted: Mapping[str, DType] = field(default_factory=dict)
    bits: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Option:
    """To store the weights of a layer, by a code of so many `bits` on average if that is not None.

    `noise` is what it alone adds to the outputs relative to their signal, `time` its instructions beyond those of
    weights of 8 bits; bytes are those in flash.
    """

    dtype: DType
    bits: float | None
    nbytes: float
    noise: float
    time: float


@dataclass(frozen=True)
class Known:
    """Of a layer: its weights in flash, and what these take of a code as int8; the noise that `bits` of a code add,
    and that 4 bits do, None where it cannot have these.
    """

    size: int
    plain_bits: float
    bits: float
    noise: float
    few_noise: float | None

    @classmethod
    def of(cls, node: Node, plan: Plan, plain: Codes, noise: float, few_noise: float | None) -> Known:
        """By a plan in which the layer has a code, and its codes without one."""
        bits = plan.code_bits_of(node)
        assert bits is not None
        return cls(counted(node, plan), stored_bits(plain), bits, noise, few_noise)


@dataclass(frozen=True)
class Times:
    """Instructions by estimate, in all and by layer: what weights of 4 bits take beside 8, and what decoding does."""

    whole: float
    few: Mapping[str, float]
    decoding: Mapping[str, float]

    def of(self, storage: Storage) -> float:
        """In all."""
        few = sum(self.few.get(name, 0.0) for name, dtype in storage.wanted.items() if dtype is DType.INT4)
        coded = [n for n in storage.bits if storage.wanted.get(n) not in (DType.INT4, DType.INT2)]
        return max(self.whole + few + sum(self.decoding.get(n, 0.0) for n in coded), 1.0)


def options_of(name: str, known: Known, times: Times) -> list[Option]:
    """As 8 bits; by codes of ever fewer bits, of which each makes noise four times; and in 4 bits, if it can.

    A code must save LEAST_SAVED bytes.
    """

    def noise(bits: float) -> float:
        return known.noise * float(4.0 ** (known.bits - bits))

    size, most = known.size, known.plain_bits
    found = [Option(DType.INT8, None, size, noise(most), 0.0)]
    for bits in np.append(np.arange(LEAST_BITS, min(most, 8.0), STEP), most):
        nbytes = size * float(bits) / 8
        if nbytes + LEAST_SAVED < size:
            found.append(Option(DType.INT8, float(bits), nbytes, noise(float(bits)), times.decoding.get(name, 0.0)))
    if known.few_noise is not None:
        found.append(Option(DType.INT4, None, size / 2, known.few_noise, times.few.get(name, 0.0)))
    return found


def cheapest(options: Mapping[str, Sequence[Option]], room: float, price: float) -> dict[str, Option] | None:
    """One of each layer within so many bytes, of least noise and `price` for each instruction together; None where
    there is no room.

    By the price of a byte (Lagrange's multiplier, Everett 1963) that leaves just the room: with as many options as
    codes have it comes near the best.
    """

    def taken(per_byte: float) -> dict[str, Option]:
        return {
            name: min(each, key=lambda o: (o.noise + price * o.time + per_byte * o.nbytes, o.nbytes))
            for name, each in options.items()
        }

    def nbytes(found: Mapping[str, Option]) -> float:
        return sum(option.nbytes for option in found.values())

    least = {name: min(each, key=lambda o: (o.nbytes, o.noise)) for name, each in options.items()}
    if nbytes(least) > room:
        return None
    if nbytes(taken(0.0)) <= room:
        return taken(0.0)
    low, high = -60.0, 20.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if nbytes(taken(2.0**middle)) > room else (low, middle)
    return taken(2.0**high)
