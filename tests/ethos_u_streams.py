# SPDX-License-Identifier: Apache-2.0
"""Command streams for tests: written word by word, or compiled by Vela from TOSA graphs and .tflite files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mcugen.backends.npu.ethos_u.command_stream import check, decode, run

Array = npt.NDArray[Any]
VELA = "needs Arm's compiler Vela (the extra ethos-u)"
TOSA = "needs the wheel tosa-tools (TOSA's serializer and reference model)"

CONFIGS = {"u55-128": 0x00001807, "u55-256": 0x00003008, "u65-256": 0x10003008, "u85-256": 0x20007118}
"""Configuration words of some NPUs."""


# ------------------------------------------------------------------------------------------------ streams by hand


@dataclass
class Assembler:
    """Writes a driver payload command by command; the numbers are those of Arm's register description."""

    npu: str = "u55-128"
    words: list[int] = field(default_factory=list)

    def short(self, *commands: tuple[int, int]) -> Assembler:
        """Append commands of one word: key and parameter."""
        self.words += [key | (parameter & 0xFFFF) << 16 for key, parameter in commands]
        return self

    def long(self, *commands: tuple[int, int] | tuple[int, int, int]) -> Assembler:
        """Append commands of two words: key, payload, and parameter if it is not 0."""
        for key, payload, *parameter in commands:
            self.words += [key | 0x4000 | (parameter[0] if parameter else 0) << 16, payload & 0xFFFFFFFF]
        return self

    def payload(self) -> bytes:
        """Return the payload with the driver's header."""
        count = len(self.words)
        header = [
            0x31504F43,
            1,
            CONFIGS[self.npu],
            0x10066001,
            5,
            5,
            5,
            2 | (count >> 16) << 8 | (count & 0xFFFF) << 16,
        ]
        return np.array(header + self.words, "<u4").tobytes()


def max_pooling(npu: str = "u55-128") -> Assembler:
    """Return a stream of one 2x2 maximum pooling: 4x4x3 int8 values at 0 of region 1 become 2x2x3 at 0x40."""
    stream = Assembler(npu)
    stream.short((0x10F, 1), (0x10B, 3), (0x10C, 3), (0x10A, 3), (0x104, 2), (0x109, 0), (0x105, 1), (0x107, 0))
    stream.long((0x00, 0), (0x01, 0), (0x02, 0), (0x03, 0), (0x05, 12), (0x04, 3), (0x06, 1))
    stream.short((0x100, 0), (0x101, 0), (0x102, 0), (0x103, 0))
    stream.short((0x11F, 1), (0x112, 1), (0x111, 1), (0x11B, 1), (0x11C, 1), (0x11A, 1), (0x113, 2), (0x118, 0))
    stream.long((0x10, 0x40), (0x11, 0), (0x12, 0), (0x13, 0), (0x15, 6), (0x14, 3), (0x16, 1), (0x24, 1))
    stream.short((0x114, 0x101), (0x120, 1), (0x121, 1), (0x122, 3), (0x125, 0), (0x126, -128), (0x127, 127))
    stream.short((0x116, 1), (0x115, 1), (0x117, 7), (0x124, 0), (0x12F, 0), (5, 0), (0, 0xFFFF))
    return stream


# ------------------------------------------------------------------------------------------------ Vela's streams

SYSTEM = """[architecture]
macs={macs}
cores={cores}
[vela]
system_config_name=test
memory_mode_name=test
[System_Config.test]
core_clock=500000000
axi0_port=Sram
axi1_port=Dram
Sram_clock_scale=1.0
Dram_clock_scale=0.125
[Memory_Mode.test]
const_mem_area=Axi1
arena_mem_area={arena}
cache_mem_area=Axi0
arena_cache_size=2097152
"""
"""Configuration of the compiler."""


@dataclass(frozen=True)
class Place:
    """Region and offset of a tensor."""

    region: int
    offset: int


@dataclass(frozen=True)
class Compiled:
    """What Vela made of a network.

    Attributes:
        payload: The command stream with its header.
        regions: Initial bytes of all regions.
        inputs, outputs: Places of the tensors.
    """

    payload: bytes
    regions: Mapping[int, Array]
    inputs: tuple[Place, ...]
    outputs: tuple[Place, ...]

    @property
    def region_bytes(self) -> dict[int, int]:
        """Return the size of each region."""
        return {number: memory.size for number, memory in self.regions.items()}

    def execute(self, inputs: Sequence[Array], outputs: Iterable[Array]) -> list[Array]:
        """Check the stream, run it, and return results of the shapes and types of `outputs`."""
        stream = decode(self.payload)
        check(stream, self.region_bytes)
        memory = {number: data.copy() for number, data in self.regions.items()}
        for place, array in zip(self.inputs, inputs, strict=True):
            data = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
            memory[place.region][place.offset : place.offset + data.size] = data
        run(stream, memory)
        results = []
        for place, like in zip(self.outputs, outputs, strict=True):
            data = memory[place.region][place.offset : place.offset + like.nbytes]
            results.append(np.frombuffer(data.tobytes(), like.dtype).reshape(like.shape))
        return results


def compile_network(data: bytes, form: str, npu: str, *, is_dedicated: bool = False) -> Compiled:
    """Return a network compiled by Vela's core; skip the test if it is absent.

    Args:
        data: The file.
        form: "TOSA" or "TFLITE".
        npu: NPU and size, such as u55-128.
        is_dedicated: Whether the arena lies in slow memory and a cache of its own in fast memory.
    """
    regor = pytest.importorskip("ethosu.regor", reason=VELA)
    family, macs = npu.split("-")
    cores = 2 if npu == "u65-512" else 1
    system = SYSTEM.format(macs=int(macs) // cores, cores=cores, arena="Axi1" if is_dedicated else "Axi0")
    model = regor.compile(f"Ethos{family.upper()}", data, form, system, options="[compiler]\noutput_format=Raw\n")
    regions = {model.read_only.region: np.frombuffer(bytes(model.read_only.data), np.uint8)}
    for scratch in (model.scratch, model.scratch_fast):
        if scratch.size:
            regions[scratch.region] = np.zeros(scratch.size, np.uint8)
    places = [tuple(Place(t.region, t.address) for t in tensors) for tensors in (model.inputs, model.outputs)]
    return Compiled(bytes(model.command_stream), regions, *places)


# ------------------------------------------------------------------------------------------------ TOSA graphs


class TosaGraph:
    """Builds a TOSA graph operator by operator, with its inputs and its last result as output."""

    def __init__(self) -> None:
        self.tosa = pytest.importorskip("tosa_serializer", reason=TOSA)
        t = self.tosa
        self.types = {np.int8: t.DType.INT8, np.int16: t.DType.INT16, np.int32: t.DType.INT32, np.int64: t.DType.INT48}
        self.graph = t.TosaSerializer("", t.ConstMode.EMBED, 1, 0, 0, False)
        self.inputs: list[tuple[tuple[int, ...], type]] = []
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.output: tuple[Any, type] | None = None

    def input(self, shape: tuple[int, ...], element: type = np.int8) -> str:
        name = f"x{len(self.inputs)}"
        self.graph.addInputTensor(self.tosa.TosaSerializerTensor(name, list(shape), self.types[element]))
        self.inputs.append((shape, element))
        self.shapes[name] = shape
        return name

    def const(self, values: Any, element: type = np.int8) -> str:
        array = np.asarray(values, element)
        name = f"c{len(self.shapes)}"
        self.shapes[name] = array.shape
        return str(self.graph.addConst(list(array.shape), self.types[element], array, name).name)

    def shape(self, values: Sequence[int]) -> str:
        name = f"s{len(self.shapes)}"
        self.shapes[name] = (len(values),)
        return str(self.graph.addConst([len(values)], self.tosa.DType.SHAPE, list(values), name).name)

    def op(self, name: str, inputs: Sequence[str], shape: Sequence[int], element: type, *arguments: Any) -> str:
        """Append an operator; its attribute is named like the operator."""
        result = self.graph.addIntermediate(list(shape), self.types[element])
        attribute = self.tosa.TosaSerializerAttribute()
        camel_case = "".join(part.capitalize() for part in name.split("_"))
        camel_case = {"Matmul": "MatMul", "Intdiv": "IntDiv"}.get(camel_case, camel_case)
        getattr(attribute, f"{camel_case}Attribute")(*arguments)
        self.graph.addOperator(getattr(self.tosa.Op, name), list(inputs), [result.name], attribute)
        self.shapes[result.name] = tuple(shape)
        self.output = (result, element)
        return str(result.name)

    def rescale(
        self,
        x: str,
        types: tuple[type, type],
        scale: tuple[Any, Any],
        zeros: tuple[int, int] = (0, 0),
        *,
        rounding: str = "SINGLE_ROUND",
    ) -> str:
        """Append a RESCALE by multiplier / 2^shift; lists of them stand for channels."""
        multipliers, shifts = (np.atleast_1d(part) for part in scale)
        is_wide = types[0] is not np.int64
        constants = [
            self.const(multipliers, np.int32 if is_wide else np.int16),
            self.const(shifts),
            self.const([zeros[0]], types[0]),
            self.const([zeros[1]], types[1]),
        ]
        mode = getattr(self.tosa.RoundingMode, rounding)
        arguments = (is_wide, mode, len(multipliers) > 1, False, False)
        return self.op("RESCALE", [x, *constants], self.shapes[x], types[1], *arguments)

    def finish(self) -> bytes:
        assert self.output is not None
        self.graph.addOutputTensor(self.output[0])
        return bytes(self.graph.serialize())

    def random_inputs(self, rng: np.random.Generator) -> list[Array]:
        limits = [np.iinfo(element) for _, element in self.inputs]
        return [
            rng.integers(limit.min, limit.max + 1, shape).astype(element)
            for (shape, element), limit in zip(self.inputs, limits, strict=True)
        ]


def reference_outputs(data: bytes, inputs: Sequence[Array]) -> list[Array]:
    """Return the outputs of a TOSA graph by TOSA's reference model."""
    model = pytest.importorskip("tosa_reference_model", reason=TOSA)
    outputs, _ = model.run(data, [np.ascontiguousarray(array) for array in inputs])
    return list(outputs)
