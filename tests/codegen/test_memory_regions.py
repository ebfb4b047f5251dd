# SPDX-License-Identifier: Apache-2.0
"""Models whose parts lie in several memories, or whose weights are a file of their own."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import zlib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from c_programs import build_and_run, check_compiles, write
from compilers import COMPILERS, command, run
from elftools.elf.elffile import ELFFile
from onnx_models import Net

from mcugen.codegen.write import write_folder
from mcugen.core.board import Board, Memory, ParallelTiming, load_board
from mcugen.core.errors import DoesNotFitError, UsageError
from mcugen.core.options import CompileOptions, Places
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.lir.program import Space, aligned
from mcugen.memory.place import hottest
from mcugen.search.ram_placement import AUTO_PLACES
from mcugen.simulation import Setup, simulate
from mcugen.simulation.build import HARNESS_DIR, build_target
from mcugen.simulation.execute import qemu_program
from mcugen.simulation.machines import find_machine
from mcugen.simulation.toolchain import Compiler, Unit, find_program

OK, NULL, ALIGNMENT, MISMATCH, WEIGHTS = 0, 1, 2, 3, 6
EACH_CPU = [
    *("rp2040", "stm32f103", "nrf52840", "rt1060", "nrf5340", "corstone300"),
    pytest.param("esp32c3", marks=pytest.mark.riscv),
]

SPLIT = Places(("fast", "slow"), hot_weights=("mid", 1024))


def board(cpu: str = "nrf52840", fast: int = 1024) -> Board:
    """A board with that one's CPU; `zero` lies at address 0."""
    memories = (
        Memory("zero", "ram", 0, 4096, 1),
        Memory("fast", "ram", 0x2000_0000, fast, 1),
        Memory("mid", "ram", 0x2400_0000, 4096, 2),
        Memory("slow", "ram", 0x3000_0000, 65536, 4),
        Memory("flash", "flash", 0x0800_0000, 65536, 3),
        Memory("qspi", "flash", 0x9000_0000, 1 << 20, 9),
    )
    return replace(load_board(cpu), name="toy", memories=memories, arena_memory="slow", weights_memory="flash")


def network(seed: int = 0) -> Net:
    """Two convolutions and a matrix in int8, with two outputs."""
    random = np.random.default_rng(seed)
    net = Net()
    x = net.dequantize(net.input("x", 1, 3, 12, 12, dtype=np.int8), 0.05, 3)
    for inputs, stride in ((3, 1), (8, 2)):
        weights = net.dequantize(net.const(random.integers(-127, 128, (8, inputs, 3, 3)), np.int8), 0.003)
        x = net.fake(net.op("Relu", net.op("Conv", x, weights, pads=[1] * 4, strides=[stride] * 2)), 0.03, -128)
    net.output(net.quantize(net.op("Tanh", x), 0.01, 0, out="map"), dtype=np.int8)
    matrix = net.dequantize(net.const(random.integers(-127, 128, (288, 10)), np.int8), 0.003)
    flat = net.op("Reshape", x, net.const([1, -1], np.int64))
    net.output(net.quantize(net.op("MatMul", flat, matrix), 0.1, 0, out="scores"), dtype=np.int8)
    return net


def compiled(target: Board | None = None, seed: int = 0, **options: object) -> CompiledModel:
    return compile_model(network(seed).model(), target or board(), CompileOptions(name="net", **options))  # type: ignore[arg-type]


def sample(model: CompiledModel) -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    return {p.name: random.integers(-128, 128, p.shape).astype(p.dtype) for p in model.bundle.inputs}


def assert_right(model: CompiledModel, outputs: dict[str, np.ndarray], given: dict[str, np.ndarray]) -> None:
    for name, wanted in model.interpret(given).items():
        np.testing.assert_array_equal(outputs[name], wanted, err_msg=name)


def c_text(model: CompiledModel) -> str:
    """All C files, with the macros of places as what they stand for."""
    texts = [text for name, text in model.bundle.files.items() if name.startswith("net") and name.endswith(".c")]
    return "".join(map(_expanded, texts))


def _expanded(text: str) -> str:
    places = dict(re.findall(r"^#define (\w+) (MCUGEN_ALIGN.*)$", text, re.M))
    text = re.sub(r"^#define \w+ MCUGEN_ALIGN.*\n", "", text, flags=re.M)
    return re.sub(r"\b\w+\b", lambda word: places.get(word[0], word[0]), text)


# ---------------------------------------------------------------------------------------------- several memories


def test_nothing_is_said_of_default_memories():
    model = compiled()
    assert "MCUGEN_SECTION" not in c_text(model)
    assert not model.bundle.sections
    assert not model.bundle.linker_scripts
    assert "int net_run(void *arena);" in model.bundle.files["net.h"]


def test_an_arena_elsewhere_is_one_arena_with_a_section():
    model = compiled(place=Places(("mid",)))
    assert c_text(model).count("MCUGEN_SECTION") == 1
    assert 'MCUGEN_SECTION(".bss.mcugen.mid.net") unsigned char default_arena[NET_ARENA_SIZE]' in c_text(model)
    assert "int net_run(void *arena);" in model.bundle.files["net.h"]
    assert "mid (rwx) : ORIGIN = 0x24000000, LENGTH = 0x1000" in model.bundle.files["net_memory.ld"]
    assert "net_memory.ld" in model.bundle.files["CMakeLists.txt"]


@pytest.mark.spread(4)
@pytest.mark.qemu
@pytest.mark.parametrize("cpu", EACH_CPU)
def test_everything_lies_where_it_was_asked_for(tmp_path: Path, cpu: str):
    target = board(cpu)
    model = compiled(target, place=SPLIT)
    given = sample(model)
    execution = simulate(model.bundle, target, [given, given], setup=Setup(workdir=tmp_path))
    for outputs in execution.outputs:
        assert_right(model, outputs, given)

    machine = find_machine(target)
    regions = {r.name: r for r in machine.with_memories({"fast": 1024, "slow": 65536, "mid": 4096})}
    starts = sorted((r.origin, r.origin + r.size) for r in regions.values())
    assert all(end <= start for (_, end), (start, _) in pairwise(starts))
    with (tmp_path / "model.elf").open("rb") as file:
        elf = ELFFile(file)
        symbols = {s.name: s for s in elf.get_section_by_name(".symtab").iter_symbols()}
        sections = {s.name: s for s in elf.iter_sections()}
    copied = re.findall(r'MCUGEN_SECTION\("\.data\.mcugen\.mid\.net"\) const \w+ (\w+)\[', c_text(model))
    assert copied
    expected = {"default_arena0": "fast", "default_arena1": "slow", **dict.fromkeys(copied, "mid")}
    for name, region in expected.items():
        start, size = symbols[name]["st_value"], symbols[name]["st_size"]
        assert regions[region].origin <= start, name
        assert start + size <= regions[region].origin + regions[region].size, name
    sizes = [symbols[f"default_arena{i}"]["st_size"] for i in range(2)]
    assert sizes == model.program.area_sizes
    assert sections[".arena.fast.net"]["sh_type"] == "SHT_NOBITS"
    assert sum(symbols[name]["st_size"] for name in copied) <= sections[".copies.mid.net"]["sh_size"] <= 1024
    assert execution.sizes is not None
    assert execution.sizes.static_ram == 0
    assert execution.sizes.weights >= model.program.weights_size


def test_an_area_of_the_arena_is_no_larger_than_its_memory():
    model = compiled(place=Places(("fast", "slow")))
    assert len(model.program.area_sizes) == 2
    assert model.program.area_sizes[0] <= 1024
    header = model.bundle.files["net.h"]
    assert re.findall(r"#define NET_ARENA(\d)_SIZE (\d+)u", header) == [
        (str(i), str(size)) for i, size in enumerate(model.program.area_sizes)
    ]
    assert "NET_ARENA_SIZE" not in header


def test_where_one_memory_suffices_there_is_one_arena():
    model = compiled(board(fast=65536), place=Places(("auto",)))
    assert len(model.program.area_sizes) == 1
    assert [m.name for m in model.report.memories] == ["fast", "flash"]


@pytest.mark.spread(2)
@pytest.mark.parametrize("blob", [False, True])
def test_the_folder_of_several_arenas_compiles_everywhere_and_passes_its_self_test(tmp_path: Path, blob: bool):
    places = Places(("fast", "slow")) if blob else SPLIT
    model = compiled(place=places, weights_blob=blob)
    check_compiles(model.bundle, tmp_path)
    weights = ", net_default_weights()" if blob else ""
    text = f"""
        #include <stdio.h>
        #include "net.h"
        int main(void)
        {{
            void *const *own = net_default_arenas();
            void *const none[NET_ARENAS] = {{ own[0], NULL }};
            void *const odd[NET_ARENAS] = {{ own[0], (char *)own[1] + 8 }};
            printf("%d %d %d %d", net_selftest(own{weights}), net_run(NULL{weights}), net_run(none{weights}),
                net_run(odd{weights}));
            return 0;
        }}
        """
    sources = [name for name in model.bundle.files if name.endswith(".c")]
    assert build_and_run(text, tmp_path, *sources) == f"{OK} {NULL} {NULL} {ALIGNMENT}"
    assert build_and_run(text, tmp_path, *sources, flags=("-DMCUGEN_SECTION(name)=", "-O3")).startswith("0 1 1 2")


@pytest.mark.parametrize("compiler", COMPILERS)
def test_the_user_may_say_what_a_section_is(tmp_path: Path, compiler: str):
    write(compiled(place=SPLIT).bundle, tmp_path)

    def sections(*flags: str) -> set[str]:
        run([*command(compiler), *flags, "-c", "net.c", "-o", "net.o"], tmp_path)
        with (tmp_path / "net.o").open("rb") as file:
            return {s.name for s in ELFFile(file).iter_sections()}

    assert {".bss.mcugen.fast.net", ".bss.mcugen.slow.net"} <= sections()
    assert not [name for name in sections("-DMCUGEN_SECTION(name)=") if "mcugen" in name]
    assert ".mine" in sections('-DMCUGEN_SECTION(name)=__attribute__((section(".mine")))')


@pytest.mark.qemu
def test_nothing_lies_at_address_0(tmp_path: Path):
    model = compiled(place=Places(("zero", "slow"), hot_weights=("zero", 512)))
    assert "nothing lies at address 0" in model.bundle.files["net_memory.ld"]
    used = next(m for m in model.report.memories if m.name == "zero")
    assert used.arena > 0
    assert 0 < used.copies <= 512
    assert used.used <= 4096 - 16
    given = sample(model)
    assert_right(model, simulate(model.bundle, model.board, [given], measure=False).outputs[0], given)


@pytest.mark.qemu
def test_all_weights_in_ram():
    model = compiled(place=Places(weights="slow"))
    assert model.report.ram.copies >= model.program.weights_size
    assert all("MCUGEN_SECTION" in line for line in c_text(model).splitlines() if " const int8_t net_" in line)
    given = sample(model)
    execution = simulate(model.bundle, model.board, [given])
    assert_right(model, execution.outputs[0], given)


@pytest.mark.qemu
def test_weights_in_another_flash():
    model = compiled(place=Places(weights="qspi"))
    assert 'MCUGEN_SECTION(".rodata.mcugen.qspi.net") const' in c_text(model)
    given = sample(model)
    assert_right(model, simulate(model.bundle, model.board, [given], measure=False).outputs[0], given)


@pytest.mark.qemu
def test_states_and_sizes_besides_several_arenas_and_a_file_of_weights():
    net = Net()
    x, h = net.input("x", "T", 64), net.input("h", 1, 64)
    matrix = net.const(np.random.default_rng(0).integers(-3, 4, (64, 64)) / 8)
    y = net.op("Relu", net.op("MatMul", net.op("Add", x, h), matrix), out="y")
    net.op("ReduceMean", y, axes=[0], keepdims=1, out="h_out")
    net.output("y", shape=("T", 64))  # type: ignore[arg-type]
    net.output("h_out", shape=(1, 64))
    options = CompileOptions(
        "net", {"T": (1, 8)}, states={"h_out": "h"}, weights_blob=True, place=Places(("fast", "slow"))
    )
    model = compile_model(net.model(), board(fast=2048), options)
    assert len(model.program.area_sizes) == 2
    samples = [{"x": np.full((length, 64), length / 4, np.float32)} for length in (8, 3)]
    outputs = simulate(model.bundle, model.board, samples, measure=False).outputs
    for found, wanted in zip(outputs, model.reference(samples), strict=True):
        np.testing.assert_allclose(found["y"], wanted["y"], rtol=1e-5, atol=1e-5)


def test_hot_weights_of_several_memories():
    model = compiled(place=Places(hot_weights=(("fast", 700), ("mid", 3000))))
    copies, order = model.draft.placement.copies, hottest(model.program)
    places = [[order.index(b) for b, memory in copies.items() if memory.name == name] for name in ("fast", "mid")]
    assert min(places[0]) == 0 < min(places[1])
    assert sum(b.nbytes for b, memory in copies.items() if memory.name == "fast") <= 700
    for memory in ("fast", "mid"):
        assert f'MCUGEN_SECTION(".data.mcugen.{memory}.net")' in c_text(model)
    given = sample(model)
    assert_right(model, simulate(model.bundle, model.board, [given]).outputs[0], given)


def slow_to_read(fast: int = 12288) -> Board:
    """The same, but constants of its flash are waited for, and two RAMs have little room beside variables."""
    waits = {"fast": 0, "mid": 1, "slow": 2, "zero": 0, "flash": 8, "qspi": 20}
    toy = board(fast=fast)
    memories = (
        replace(
            m,
            access=ParallelTiming(waits[m.name], waits[m.name], toy.clock_hz),
            size=16384 if m.name == "mid" else m.size,
        )
        for m in toy.memories
    )
    return replace(toy, memories=tuple(memories))


def test_anywhere_weights_are_copied_to_the_fastest_memories_that_have_room():
    model = compiled(slow_to_read(fast=11264), place=AUTO_PLACES)
    copies = model.draft.placement.copies
    assert {memory.name for memory in copies.values()} == {"fast", "mid"}
    assert model.draft.placement.arenas[0].name == "fast"
    constants = {b for b in model.program.buffers if b.space is Space.CONST and b.nbytes}
    assert constants == set(copies)
    assert "start-up copies" in " ".join(model.report.notes)
    given = sample(model)
    assert_right(model, simulate(model.bundle, model.board, [given]).outputs[0], given)


@pytest.mark.parametrize(
    "options",
    [{"place": Places(("auto",), weights="flash")}, {"optimize": "ram"}, {"max_ram": 3000}, {"updatable": True}],
    ids=lambda each: "-".join(each),
)
def test_anywhere_but_not_where_that_is_not_wanted(options: dict[str, object]):
    model = compiled(slow_to_read(), **{"place": AUTO_PLACES, **options})
    held = sum(aligned(b.nbytes) for b in model.draft.placement.copies)
    assert held + model.program.arena_size <= options.get("max_ram", 0) if "max_ram" in options else not held


def test_anywhere_nothing_is_copied_that_saves_nothing():
    assert not compiled(place=AUTO_PLACES).draft.placement.copies


def test_hot_weights_are_those_read_most_often_for_their_size():
    """The matrix, for which there would be room too, is read once, filters at each pixel."""
    model = compiled(place=Places(hot_weights=("mid", 3000)))
    copied = re.findall(r'MCUGEN_SECTION\("\.data\.mcugen\.mid\.net"\) const \w+ net_\w+\[(\d+)\]', c_text(model))
    left = re.findall(r"MCUGEN_WEIGHTS_SECTION const \w+ net_\w+\[(\d+)\]", c_text(model))
    assert 2 * 8 * 3 * 9 <= sum(map(int, copied)) < 2880
    assert max(map(int, left)) >= 2880
    (used,) = (m for m in model.report.memories if m.name == "mid")
    assert used.copies <= 3000
    assert model.report.ram.copies == used.copies
    assert model.report.flash.weights == model.program.weights_size


def test_the_report_says_what_lies_where():
    model = compiled(place=SPLIT)
    found = {m["name"]: m for m in json.loads(model.bundle.files["net_report.json"])["memories"]}
    assert list(found) == ["fast", "slow", "mid", "flash"]
    assert [found[name]["arena"] for name in ("fast", "slow")] == model.program.area_sizes
    assert found["mid"]["copies"] == found["mid"]["used"] <= 1024
    assert found["flash"]["weights"] == model.program.weights_size
    assert json.loads(model.bundle.files["net_report.json"])["ram"]["arena"] == sum(model.program.area_sizes)


def test_the_same_bytes_each_time():
    first, second = (compiled(place=SPLIT).bundle for _ in range(2))
    assert first.files == second.files


# ----------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("places", "message"),
    [
        (Places(("fats",)), "board 'toy' has no memory 'fats'. try: one of fast"),
        (Places(weights="qpsi"), "no memory 'qpsi'. try: one of qspi"),
        (Places(hot_weights=("mdi", 100)), "no memory 'mdi'. try: one of mid"),
        (Places(("flash",)), "--place arena must name RAM of board 'toy'. found: 'flash'. try: one of zero, fast, mid"),
        (Places(hot_weights=("qspi", 100)), "--place hot-weights must name RAM of board 'toy'"),
    ],
)
def test_a_wrong_memory(places: Places, message: str):
    with pytest.raises(UsageError, match=re.escape(message)):
        compiled(place=places)


@pytest.mark.parametrize(
    ("places", "message"),
    [
        (Places(("fast",)), r"model must fit board 'toy'\. found: .* bytes of RAM, [\d,]+ more than 'fast' can hold"),
        (Places(("fast", "zero")), r"found: .* bytes of RAM, [\d,]+ more than 'fast' and 'zero' can hold"),
        (Places(weights="fast"), r"found: .* bytes of RAM, [\d,]+ more than 'fast' can hold"),
    ],
)  # fmt: skip
def test_a_memory_that_is_too_small(places: Places, message: str):
    net = Net()
    net.output(net.op("MatMul", net.input("x", 9, 1024), net.const(np.ones((1024, 1))), out="y"))
    with pytest.raises(DoesNotFitError, match=message) as error:
        compile_model(net.model(), board(fast=64), CompileOptions(place=places))
    assert error.value.exit_code == 5


def test_a_file_of_weights_is_not_copied():
    with pytest.raises(UsageError, match="a file of weights cannot be copied to RAM"):
        compiled(place=SPLIT, weights_blob=True)


# ---------------------------------------------------------------------------------------------- file of weights


def test_the_file_of_weights(tmp_path: Path):
    model = compiled(weights_blob=True)
    folder = write_folder(model.bundle, tmp_path / "net")
    data = (folder / "net_weights.bin").read_bytes()
    magic, version, nbytes = struct.unpack_from("<4sII", data)
    (crc,) = struct.unpack_from("<I", data, 28)
    assert (magic, version, nbytes) == (b"MCUW", 1, len(data))
    assert crc == zlib.crc32(data[32:])
    assert model.report.flash.weights == len(data)
    for offset in re.findall(r"\(const unsigned char \*\)weights \+ (\d+)\)", model.bundle.files["net.c"]):
        assert int(offset) % 16 == 0
    assert "const int8_t net_" not in model.bundle.files["net_weights.c"]
    write_folder(model.bundle, tmp_path / "net")  # it may replace its own


PROGRAM = """
    #include <stdio.h>
    #include <string.h>
    #include "net.h"

    static MCUGEN_ALIGN(16) unsigned char weights[NET_WEIGHTS_SIZE + 16];

    static int status_with(uint32_t at, unsigned char change)
    {
        int status;
        weights[at] ^= change;
        status = net_check_weights(weights, NET_WEIGHTS_SIZE);
        weights[at] ^= change;
        return status;
    }

    int main(void)
    {
        uint32_t i, undetected = 0;
        void *arena = net_default_arena();
        FILE *file = fopen("net_weights.bin", "rb");
        if (file == NULL || fread(weights, 1, NET_WEIGHTS_SIZE, file) != NET_WEIGHTS_SIZE || fgetc(file) != EOF) {
            return 1;
        }
        fclose(file);
        printf("right %d %d %d\\n", net_check_weights(weights, NET_WEIGHTS_SIZE), net_selftest(arena, weights),
            memcmp(weights, net_default_weights(), NET_WEIGHTS_SIZE));
        for (i = 0; i < NET_WEIGHTS_SIZE; ++i) {
            undetected += status_with(i, 1) != MCUGEN_ERROR_WEIGHTS || status_with(i, 0x80) != MCUGEN_ERROR_WEIGHTS;
        }
        printf("undetected %u\\n", (unsigned)undetected);
        printf("null %d %d\\n", net_check_weights(NULL, NET_WEIGHTS_SIZE), net_run(arena, NULL));
        printf("short %d\\n", net_check_weights(weights, NET_WEIGHTS_SIZE - 1u));
        memmove(weights + 8, weights, NET_WEIGHTS_SIZE);
        printf("odd %d %d\\n", net_check_weights(weights + 8, NET_WEIGHTS_SIZE), net_run(arena, weights + 8));
        memset(weights, 0xff, sizeof weights);
        printf("erased %d %d\\n", net_check_weights(weights, NET_WEIGHTS_SIZE), net_run(arena, weights));
        return 0;
    }
    """
FOUND = (
    f"right {OK} {OK} 0\nundetected 0\nnull {NULL} {NULL}\nshort {WEIGHTS}\nodd {ALIGNMENT} {ALIGNMENT}\n"
    f"erased {WEIGHTS} {WEIGHTS}\n"
)


def test_each_damage_to_the_weights_is_found(tmp_path: Path):
    model = compiled(weights_blob=True)
    check_compiles(model.bundle, tmp_path)
    (tmp_path / "net_weights.bin").write_bytes(model.bundle.blobs["net_weights.bin"])
    sources = [name for name in model.bundle.files if name.endswith(".c")]
    assert build_and_run(PROGRAM, tmp_path, *sources) == FOUND


def test_weights_of_other_code_are_refused_and_other_weights_of_the_same_code_are_taken(tmp_path: Path):
    """Trained again, a model may keep its code; another kernel, or another scale, makes other code."""
    net, model = network(), compiled(weights_blob=True)
    retrained = network()
    filters = next(c for c in retrained.constants if list(c.dims) == [8, 3, 3, 3])
    filters.raw_data = bytes(reversed(filters.raw_data))  # the same weights, elsewhere
    other = compile_model(net.model(), board("rp2040"), CompileOptions(name="net", weights_blob=True))
    options = CompileOptions(name="net", weights_blob=True)
    again = compile_model(retrained.model(), board(), options)
    heads = [m.bundle.blobs["net_weights.bin"][:28] for m in (model, again, other)]
    bodies = [m.bundle.blobs["net_weights.bin"][32:] for m in (model, again)]
    assert heads[0] == heads[1] != heads[2]
    assert bodies[0] != bodies[1]


def test_outputs_that_are_constants_stay_in_the_code(tmp_path: Path):
    net = Net()
    net.output(net.op("Relu", net.input("x", 4), out="y"))
    net.output(net.op("Identity", net.const([1.5, 2.5]), out="c"))
    model = compile_model(net.model(), "host", CompileOptions(name="net", weights_blob=True))
    given = {"x": np.float32([-1, 0, 1, 2])}
    (outputs,) = model.simulate([given], measure=False, sanitize=True).outputs
    np.testing.assert_array_equal(outputs["c"], np.float32([1.5, 2.5]))
    np.testing.assert_array_equal(outputs["y"], np.float32([0, 0, 1, 2]))


TARGET_PROGRAM = """
    #include "harness.h"
    #include "net.h"

    static MCUGEN_ALIGN(16) unsigned char arena[NET_ARENA_SIZE];
    static MCUGEN_ALIGN(16) unsigned char weights[NET_WEIGHTS_SIZE + 16];

    static void print(const char *key, int first, int second)
    {
        harness_print(key, (const uint32_t[]){ (uint32_t)first, (uint32_t)second }, 2);
    }

    int main(void)
    {
        memcpy(weights, net_default_weights(), NET_WEIGHTS_SIZE);
        print("right", net_check_weights(weights, NET_WEIGHTS_SIZE), net_selftest(arena, weights));
        weights[NET_WEIGHTS_SIZE - 1u] ^= 4;
        print("damaged", net_check_weights(weights, NET_WEIGHTS_SIZE), 0);
        weights[5] ^= 1;
        print("version", net_check_weights(weights, NET_WEIGHTS_SIZE), net_run(arena, weights));
        print("odd", net_check_weights(weights + 4, NET_WEIGHTS_SIZE), net_run(arena, weights + 4));
        return 0;
    }
    """


@pytest.mark.spread(4)
@pytest.mark.qemu
@pytest.mark.parametrize("cpu", EACH_CPU)
def test_the_file_of_weights_on_a_microcontroller(tmp_path: Path, cpu: str):
    target = board(cpu)
    model = compiled(target, weights_blob=True)
    given = sample(model)
    execution = simulate(model.bundle, target, [given])
    assert_right(model, execution.outputs[0], given)

    machine = find_machine(target)
    images = build_target(model.bundle, target, machine, tmp_path, hooks=False)
    (tmp_path / "harness" / "main.c").write_text(TARGET_PROGRAM)
    (tmp_path / "model" / "net_selftest.c").write_text(model.bundle.files["net_selftest.c"])
    toolchain, cpu_files = machine.toolchain, HARNESS_DIR / machine.harness
    folders = ("-I", "model", "-I", str(HARNESS_DIR), "-I", str(cpu_files))
    flags = (*toolchain.library, "-std=c99", "-O2", *folders, *target.cflags)
    compiler = Compiler((find_program(toolchain.gcc),), flags, tmp_path)
    compiler.compile([Unit("harness/main.c", "harness/main.o"), Unit("model/net_selftest.c", "model/net_selftest.o")])
    objects = [f"harness/{stem}.o" for stem in ("startup", "semihosting", "measure", "main")]
    objects += [f"harness/{machine.harness}/{stem}.o" for stem in ("reset", "counter")]
    objects += [f"model/{stem}.o" for stem in ("net", "net_weights", "net_selftest")]
    image = compiler.link("check.elf", objects, ("-nostartfiles", "-T", "link.ld"))
    assert images.model.is_file()
    done = subprocess.run(
        qemu_program(image, machine).command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    lines = re.findall(r"^(\w+) ([0-9a-f]{8}) ([0-9a-f]{8})$", done.stdout, re.MULTILINE)
    found = {key: [int(first, 16), int(second, 16)] for key, first, second in lines}
    assert found == {
        "right": [OK, OK],
        "damaged": [WEIGHTS, 0],
        "version": [WEIGHTS, WEIGHTS],
        "odd": [ALIGNMENT, ALIGNMENT],
    }


TOO_SMALL = replace(board(fast=512), arena_memory="fast")
"""The arena needs more than the board's memory for it."""
TOO_SMALL = replace(TOO_SMALL, memories=tuple(m for m in TOO_SMALL.memories if m.name not in ("zero", "mid")))


def spilled(model: CompiledModel) -> list[str]:
    """Notes on what lies in slower memory."""
    return [note for note in model.report.notes if "spill to 'slow'" in note or "slower than 'fast'" in note]


def test_by_default_what_the_boards_memory_has_no_room_for_spills():
    model = compiled(TOO_SMALL)
    areas = model.program.area_sizes
    (note,) = spilled(model)
    assert note.startswith(f"{areas[1]:,} bytes of the arena spill to 'slow', about ")
    assert areas[0] <= 512
    assert "#define NET_ARENAS 2" in model.bundle.files["net.h"]


@pytest.mark.parametrize(
    ("target", "options", "told"),
    [
        (TOO_SMALL, {"checked_arena": True}, 1),
        (TOO_SMALL, {"place": Places(("slow",))}, 0),
        (board(), {}, 0),  # the board's own memory is the slow one
    ],
    ids=["one-arena-only", "told-to", "fits"],
)
def test_nothing_spills_otherwise(target: Board, options: dict[str, object], told: int):
    model = compiled(target, **options)
    assert len(spilled(model)) == told
    assert len(model.program.area_sizes) == 1
    assert "NET_ARENAS" not in model.bundle.files["net.h"]


@pytest.mark.qemu
@pytest.mark.parametrize("cpu", ["host", "nrf52840"])
def test_spilling_changes_no_bit(cpu: str):
    there = load_board(cpu)
    target = replace(
        TOO_SMALL, **{key: getattr(there, key) for key in ("cpu", "features", "toolchain", "cflags", "qemu")}
    )
    model = compiled(target)
    given = sample(model)
    assert len(model.program.area_sizes) == 2
    assert_right(model, simulate(model.bundle, target, [given]).outputs[0], given)
