# SPDX-License-Identifier: Apache-2.0
"""The check that compiled commands stay in their memory and compute the bits of the numpy specification."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mcugen.backends.npu.ethos_u.command_stream import CommandStreamError, check, decode, run
from mcugen.backends.npu.ethos_u.vela import CompiledTosa, Place
from mcugen.hir.graph import Graph, Value
from mcugen.hir.interpreter import run as evaluate
from mcugen.hir.types import Array

SEED = 62
"""Seed of the random inputs."""
UNDEFINED = 0xA5
"""Bytes of working memory and outputs before the commands run: results do not depend on them."""


def commands_fault(body: Graph, compiled: CompiledTosa) -> str:
    """Return what is wrong with the commands of a segment, as a phrase; "" if nothing is.

    The commands are executed in numpy, on random inputs and on random extremes of the inputs' types.

    Args:
        body: The segment as a graph.
        compiled: What Vela made of it.
    """
    random = np.random.default_rng(SEED)
    try:
        stream = decode(compiled.commands.tobytes())
        memory = _memory(compiled)
        check(stream, {number: region.size for number, region in memory.items()})
        for draw in (_random_values, _random_extremes):
            arrays = [draw(random, value) for value in body.inputs]
            for array, place in zip(arrays, compiled.inputs, strict=True):
                _bytes_at(memory, place)[:] = np.frombuffer(array.tobytes(), np.uint8)
            run(stream, memory)
            for expected, place in zip(evaluate(body, arrays), compiled.outputs, strict=True):
                if _bytes_at(memory, place).tobytes() != expected.tobytes():
                    return "Vela's commands compute other bits"
    except CommandStreamError as error:
        return f"its commands cannot be verified: {error.rule}"
    return ""


def execute_commands(compiled: CompiledTosa, commands: bytes, contents: Mapping[int, bytes]) -> bytes:
    """Return the bytes of the region with the outputs, after commands were executed in numpy.

    Args:
        compiled: The segment, for the sizes of the regions.
        commands: The commands as they lie in memory.
        contents: The bytes of the regions that the NPU reads, by number; the other regions hold UNDEFINED.
    """
    memory = {number: np.full(region.size, UNDEFINED, np.uint8) for number, region in _memory(compiled).items()}
    memory |= {number: np.frombuffer(data, np.uint8).copy() for number, data in contents.items()}
    stream = decode(commands)
    check(stream, {number: region.size for number, region in memory.items()})
    run(stream, memory)
    return memory[compiled.outputs[0].region].tobytes()


def _memory(compiled: CompiledTosa) -> dict[int, Array]:
    """Return the bytes of each region: weights, and zeros in the others."""
    sizes = {compiled.scratch.region: compiled.scratch.nbytes} if compiled.scratch.nbytes else {}
    for place in (*compiled.inputs, *compiled.outputs):
        sizes[place.region] = max(sizes.get(place.region, 0), place.offset + place.nbytes)
    memory: dict[int, Array] = {number: np.zeros(size, np.uint8) for number, size in sizes.items()}
    if compiled.weights.size:
        memory[compiled.weights_region] = np.frombuffer(compiled.weights.tobytes(), np.uint8).copy()
    return memory


def _bytes_at(memory: dict[int, Array], place: Place) -> Array:
    part: Array = memory[place.region][place.offset : place.offset + place.nbytes]
    return part


def _random_values(random: np.random.Generator, value: Value) -> Array:
    low, high = value.type.dtype.limits
    return random.integers(low, high + 1, value.type.shape).astype(value.type.dtype.numpy)


def _random_extremes(random: np.random.Generator, value: Value) -> Array:
    ends: Array = random.choice(np.array(value.type.dtype.limits), value.type.shape).astype(value.type.dtype.numpy)
    return ends
