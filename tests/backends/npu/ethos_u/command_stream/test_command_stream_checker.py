# SPDX-License-Identifier: Apache-2.0
"""The checker: corrupted addresses, shapes and waits are caught, and hostile bytes give one kind of error."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ethos_u_streams import Assembler, Compiled, TosaGraph, compile_network, max_pooling
from test_command_stream_tosa import CASES

from mcugen.backends.npu.ethos_u.command_stream import CommandStream, CommandStreamError, check, decode, format_stream
from mcugen.backends.npu.ethos_u.command_stream.interpreter import run
from mcugen.backends.npu.ethos_u.command_stream.operations import (
    ConvolutionOperation,
    KernelOperation,
    Operation,
    TransferCommand,
    WaitCommand,
    WeightRanges,
)

NPUS = ["u55-128", "u65-256", "u85-256"]


def compiled(case: str, npu: str, *, is_dedicated: bool = False) -> Compiled:
    graph = TosaGraph()
    CASES[case](graph, np.random.default_rng(8))
    return compile_network(graph.finish(), "TOSA", npu, is_dedicated=is_dedicated)


def changed(stream: CommandStream, index: int, operation: Operation | None) -> CommandStream:
    """Return a stream with another operation at an index, or without one there."""
    operations = list(stream.operations)
    operations[index : index + 1] = [operation] if operation is not None else []
    return replace(stream, operations=tuple(operations))


def moved(address: int) -> Callable[[Any], Any]:
    return lambda part: replace(part, addresses=(address, *part.addresses[1:]))


MAP_MUTATIONS: dict[str, Callable[[Any], Any]] = {
    "address": moved(1 << 30),
    "height": lambda part: replace(part, shape=(part.shape[0] + 4096, *part.shape[1:]), split=(8192,) * 3),
    "width": lambda part: replace(part, shape=(part.shape[0], part.shape[1] + 4096, part.shape[2]), split=(8192,) * 3),
    "depth": lambda part: replace(part, shape=(*part.shape[:2], part.shape[2] + 40960)),
    "row stride": lambda part: replace(part, strides=(1 << 24, *part.strides[1:])),
    "negative stride": lambda part: replace(part, strides=(-(1 << 24), *part.strides[1:])),
    "column stride": lambda part: replace(part, strides=(part.strides[0], 1 << 24, part.strides[2])),
    "lower tile": lambda part: replace(part, addresses=(part.addresses[0], 0, 1 << 30, 0), split=(1, 1, 8192)),
    "right tile": lambda part: replace(part, addresses=(part.addresses[0], 1 << 30, 0, 0), split=(8192, 8192, 1)),
    "region": lambda part: replace(part, region=7),
}


@pytest.mark.parametrize("operand", ["ifm", "ifm2", "ofm"])
@pytest.mark.parametrize("mutation", MAP_MUTATIONS)
def test_a_feature_map_outside_of_its_region_is_caught(mutation: str, operand: str) -> None:
    caught = 0
    for npu in NPUS:
        model = compiled("add", npu)
        stream = decode(model.payload)
        check(stream, model.region_bytes)
        for index, operation in enumerate(stream.operations):
            part = getattr(operation, operand, None)
            if part is None or not part.is_in_memory:
                continue
            if part.shape[0] < 2 or part.shape[1] < 2:
                continue
            broken = replace(operation, **{operand: MAP_MUTATIONS[mutation](part)})
            with pytest.raises(CommandStreamError):
                check(changed(stream, index, broken), model.region_bytes)
            caught += 1
    assert caught >= len(NPUS)


def corrupt_weights(weights: WeightRanges, field: str, mutation: str) -> WeightRanges:
    parts = getattr(weights, field)
    changes = {
        "address": {"address": 1 << 30},
        "length": {"length": 1 << 24},
        "alignment": {"address": parts[0].address + 1},
        "region": {"region": 7},
    }
    return replace(weights, **{field: (replace(parts[0], **changes[mutation]), *parts[1:])})


@pytest.mark.parametrize("npu", NPUS)
@pytest.mark.parametrize("field", ["weights", "scales"])
@pytest.mark.parametrize("mutation", ["address", "length", "alignment", "region"])
def test_weights_and_scales_outside_of_their_region_are_caught(mutation: str, field: str, npu: str) -> None:
    model = compiled("conv", npu)
    stream = decode(model.payload)
    index = next(i for i, operation in enumerate(stream.operations) if isinstance(operation, ConvolutionOperation))
    operation = stream.operations[index]
    assert isinstance(operation, ConvolutionOperation) and operation.weights is not None
    broken = replace(operation, weights=corrupt_weights(operation.weights, field, mutation))
    with pytest.raises(CommandStreamError):
        check(changed(stream, index, broken), model.region_bytes)


@pytest.mark.parametrize("npu", NPUS)
@pytest.mark.parametrize(
    "changes", [{"source": 1 << 30}, {"target": 1 << 20}, {"length": 1 << 24}, {"source_region": 7}]
)
def test_a_transfer_outside_of_its_region_is_caught(changes: dict[str, int], npu: str) -> None:
    model = compiled("table", npu)
    stream = decode(model.payload)
    index = next(i for i, operation in enumerate(stream.operations) if isinstance(operation, TransferCommand))
    with pytest.raises(CommandStreamError):
        check(changed(stream, index, replace(stream.operations[index], **changes)), model.region_bytes)


@pytest.mark.parametrize("npu", NPUS)
def test_a_table_outside_of_its_memory_is_caught(npu: str) -> None:
    model = compiled("table", npu)
    stream = decode(model.payload)
    index = next(i for i, operation in enumerate(stream.operations) if isinstance(operation, KernelOperation))
    operation = stream.operations[index]
    assert isinstance(operation, KernelOperation)
    broken = replace(operation, activation=replace(operation.activation, table=8))
    with pytest.raises(CommandStreamError, match="inside of their region"):
        check(changed(stream, index, broken), model.region_bytes)


@pytest.mark.parametrize("npu", NPUS)
@pytest.mark.parametrize("case", ["table", "conv"])
def test_a_missing_wait_is_caught(case: str, npu: str) -> None:
    model = compiled(case, npu, is_dedicated=case == "conv")
    stream = decode(model.payload)
    waits = [i for i, operation in enumerate(stream.operations) if isinstance(operation, WaitCommand)]
    if not waits:
        pytest.skip("the stream has no transfers")
    for index in waits:
        with pytest.raises(CommandStreamError, match="wait for what they depend on"):
            check(changed(stream, index, None), model.region_bytes)


def test_a_transfer_waits_for_the_kernels_that_read_its_target() -> None:
    def transfer(stream: Assembler) -> Assembler:
        return stream.short((0x130, 0), (0x131, 1)).long((0x30, 0), (0x31, 0), (0x32, 16)).short((16, 0))

    for wait, is_allowed in (([], False), ([(18, 0)], True), ([(18, 1)], False)):
        stream = max_pooling()
        stream.words.pop()
        payload = transfer(stream.short(*wait)).short((0, 0)).payload()
        if is_allowed:
            check(decode(payload), {0: 16, 1: 80})
            continue
        with pytest.raises(CommandStreamError, match="can be unfinished"):
            check(decode(payload), {0: 16, 1: 80})


@pytest.mark.parametrize("size", [75, 10, 0])
def test_the_interpreter_checks_by_itself(size: int) -> None:
    with pytest.raises(CommandStreamError):
        run(decode(max_pooling().payload()), {1: np.zeros(size, np.uint8)})
    with pytest.raises(CommandStreamError, match="regions that exist"):
        run(decode(max_pooling().payload()), {})


def mutate(payload: bytes, rng: random.Random) -> bytes:
    """Return a payload with some bytes changed, words removed or replaced, or its end cut off."""
    data = bytearray(payload)
    kind = rng.randrange(8)
    word = rng.randrange(len(data) // 4) * 4
    if kind == 0:
        del data[rng.randrange(len(data)) :]
    elif kind == 1:
        del data[word : word + 4 * rng.randrange(1, 4)]
    elif kind == 2:
        data[word : word + 4] = rng.randbytes(4)
    elif kind == 3:
        data = bytearray(rng.randbytes(rng.randrange(200)))
    else:
        for _ in range(rng.randrange(1, 5)):
            data[rng.randrange(len(data))] = rng.choice((0, 1, 2, 255, rng.randrange(256)))
    return bytes(data)


def fuzz(models: list[tuple[bytes, dict[int, int]]], count: int, *, runs: bool) -> int:
    """Decode, print, check and perhaps run mutated streams; return how many passed."""
    rng, passed = random.Random(9), 0
    for _ in range(count):
        payload, regions = rng.choice(models)
        try:
            stream = decode(mutate(payload, rng))
            format_stream(stream)
            check(stream, regions)
            if runs:
                run(stream, {number: np.zeros(size, np.uint8) for number, size in regions.items()})
            passed += 1
        except CommandStreamError as error:
            assert str(error)
    return passed


FUZZED = ["add", "mul", "table", "table-int16", "average-padded", "sum-channels", "transposed-3x3", "conv"]


def fuzzed_models(*, with_weights: bool) -> list[tuple[bytes, dict[int, int]]]:
    models = [compiled(case, npu) for case in FUZZED if case in CASES for npu in NPUS]
    kept = [
        m
        for m in models
        if with_weights or not any(isinstance(o, ConvolutionOperation) for o in decode(m.payload).operations)
    ]
    return [(model.payload, model.region_bytes) for model in kept] + [(max_pooling().payload(), {1: 80})]


@pytest.mark.parametrize("count", [1500, pytest.param(20000, marks=pytest.mark.slow)])
def test_hostile_streams_give_one_kind_of_error(count: int) -> None:
    assert 0 < fuzz(fuzzed_models(with_weights=True), count, runs=False) < count


@pytest.mark.parametrize("count", [500, pytest.param(5000, marks=pytest.mark.slow)])
def test_running_hostile_streams_gives_one_kind_of_error(count: int) -> None:
    """Streams without weights: Vela's codec ends the process if weights are cut off."""
    assert 0 < fuzz(fuzzed_models(with_weights=False), count, runs=True) < count
