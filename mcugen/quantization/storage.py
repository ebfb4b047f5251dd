# SPDX-License-Identifier: Apache-2.0
"""Storage of each layer's weights within a budget of bytes: plain, coarser and compressed, or in 4 bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mcugen.hir.graph import Node
from mcugen.hir.types import DType
from mcugen.kernels.portable.compressed_weights import MIN_SAVED_CODE_BYTES
from mcugen.quantization.few_bits import MIN_AVERAGE_BITS, num_stored_weights
from mcugen.quantization.plan import Plan, QuantizedWeights
from mcugen.quantization.weights import stored_bits

COMPRESSION_STEP_BITS = 1 / 16
"""Difference between two successive compression options of a layer, in bits per weight."""

NUM_BYTE_COST_HALVINGS = 60
"""Number of bisection steps in the search for the cost of a byte (Lagrange multiplier) that just meets the budget."""


@dataclass(frozen=True)
class Storage:
    """The storage of all layers' weights, by the names of the layers' outputs.

    Attributes:
        requested: The precisions of single layers, such as INT4 for 4-bit weights; all other layers have int8 weights.
        bits: The average bits per weight of compressed layers.
    """

    requested: Mapping[str, DType] = field(default_factory=dict)
    bits: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class StorageOption:
    """One way to store the weights of a layer.

    Attributes:
        dtype: The type of the weights.
        bits: The average bits per weight if they are compressed, else None.
        nbytes: The bytes in flash.
        noise: The noise power that this storage alone adds to the outputs, relative to their signal.
        time: The estimated instructions of an inference beyond those with plain 8-bit weights.
    """

    dtype: DType
    bits: float | None
    nbytes: float
    noise: float
    time: float


@dataclass(frozen=True)
class StoredLayer:
    """A layer's number of weights, and the noise power at the model's outputs if they are stored in fewer bits.

    Attributes:
        size: The number of weights in flash.
        plain_bits: The bits per weight of int8 weights that are compressed without a change of their scales.
        bits: A smaller number of bits per weight, reached by larger scales, for which the noise is known.
        noise: The noise power of compression to `bits`, relative to the signal.
        few_noise: The noise power of 4-bit weights; None if the layer cannot have them.
    """

    size: int
    plain_bits: float
    bits: float
    noise: float
    few_noise: float | None

    @classmethod
    def of(cls, node: Node, plan: Plan, plain: QuantizedWeights, noise: float, few_noise: float | None) -> StoredLayer:
        """Return the numbers of bits and the noise of a layer's weights.

        Args:
            node: The layer.
            plan: A plan in which the layer is compressed.
            plain: Its quantized weights without compression.
            noise: The noise of compression in `plan`.
            few_noise: The noise of 4-bit weights; None if the layer cannot have them.
        """
        bits = plan.code_bits_of(node)
        assert bits is not None
        return cls(num_stored_weights(node, plan), stored_bits(plain), bits, noise, few_noise)


@dataclass(frozen=True)
class InstructionEstimates:
    """Estimated instructions of one inference.

    Attributes:
        whole: The instructions of the model if all weights are plain (not compressed) int8.
        few: The additional instructions of a layer with 4-bit weights, by the name of its output.
        decoding: The additional instructions of a layer for decompression of its weights, by the name of its output.
    """

    whole: float
    few: Mapping[str, float]
    decoding: Mapping[str, float]

    def of(self, storage: Storage) -> float:
        """Return the estimated instructions of one inference with this storage of the weights."""
        few = sum(self.few.get(name, 0.0) for name, dtype in storage.requested.items() if dtype is DType.INT4)
        coded = [n for n in storage.bits if storage.requested.get(n) not in (DType.INT4, DType.INT2)]
        return max(self.whole + few + sum(self.decoding.get(n, 0.0) for n in coded), 1.0)


def storage_options(name: str, known: StoredLayer, times: InstructionEstimates) -> list[StorageOption]:
    """Return the options to store a layer's weights: plain 8 bits, compression to ever fewer bits, 4 bits if possible.

    Each bit less makes the noise of compression four times as large. A compression that saves fewer than
    MIN_SAVED_CODE_BYTES bytes is no option.

    Args:
        name: The name of the layer's output.
        known: The layer's number of weights, and the noise of storing them in fewer bits.
        times: The estimated instructions.
    """

    def noise(bits: float) -> float:
        return known.noise * float(4.0 ** (known.bits - bits))

    size, plain_bits = known.size, known.plain_bits
    options = [StorageOption(DType.INT8, None, size, noise(plain_bits), 0.0)]
    for bits in np.append(np.arange(MIN_AVERAGE_BITS, min(plain_bits, 8.0), COMPRESSION_STEP_BITS), plain_bits):
        nbytes = size * float(bits) / 8
        if nbytes + MIN_SAVED_CODE_BYTES < size:
            options.append(
                StorageOption(DType.INT8, float(bits), nbytes, noise(float(bits)), times.decoding.get(name, 0.0))
            )
    if known.few_noise is not None:
        options.append(StorageOption(DType.INT4, None, size / 2, known.few_noise, times.few.get(name, 0.0)))
    return options


def choose_storage_options(
    options: Mapping[str, Sequence[StorageOption]], room: float, price: float
) -> dict[str, StorageOption] | None:
    """Choose one storage option for each layer, of least total cost within a budget of bytes.

    The cost is the noise plus `price` for each instruction. A cost per byte (Lagrange multiplier, Everett 1963) is
    searched that just meets the budget. With as many options as compression has, the result is near the optimum.

    Args:
        options: The options by the name of the layer's output.
        room: The budget in bytes of flash.
        price: The noise that counts as much as one instruction.

    Returns:
        The option by the name of the layer's output; None if even the smallest options exceed the budget.
    """

    def taken(per_byte: float) -> dict[str, StorageOption]:
        return {
            name: min(layer_options, key=lambda o: (o.noise + price * o.time + per_byte * o.nbytes, o.nbytes))
            for name, layer_options in options.items()
        }

    def nbytes(chosen: Mapping[str, StorageOption]) -> float:
        return sum(option.nbytes for option in chosen.values())

    smallest = {name: min(layer_options, key=lambda o: (o.nbytes, o.noise)) for name, layer_options in options.items()}
    if nbytes(smallest) > room:
        return None
    if nbytes(taken(0.0)) <= room:
        return taken(0.0)
    low, high = -60.0, 20.0
    for _ in range(NUM_BYTE_COST_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if nbytes(taken(2.0**middle)) > room else (low, middle)
    return taken(2.0**high)
