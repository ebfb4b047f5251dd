# SPDX-License-Identifier: Apache-2.0
"""Simulation under QEMU: results, faults and measurements on each CPU."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile
from tiny_models import add_one, counted, port, random_samples, tiny, weights_file

from mcugen.core.board import Board, load_board
from mcugen.core.errors import ToolMissingError, UsageError, VerificationError
from mcugen.simulation import FirmwareSizes, Setup, simulate
from mcugen.simulation.toolchain import RISCV

pytestmark = pytest.mark.qemu

MICROBIT = dataclasses.replace(
    load_board("rp2040"), name="microbit", cflags=("-mcpu=cortex-m0", "-mthumb"), qemu="microbit"
)
M4 = load_board("nrf52840")
EACH_CPU = [
    pytest.param(MICROBIT, id="m0"),
    pytest.param(load_board("rp2040"), id="m0plus"),
    pytest.param(load_board("stm32f103"), id="m3"),
    pytest.param(M4, id="m4"),
    pytest.param(load_board("rt1060"), id="m7"),
    pytest.param(load_board("nrf5340"), id="m33"),
    pytest.param(load_board("corstone300"), id="m55"),
    pytest.param(load_board("esp32c3"), id="rv32imc", marks=pytest.mark.riscv),
    pytest.param(load_board("gd32vf103"), id="rv32imac", marks=pytest.mark.riscv),
    pytest.param(load_board("rv32imafc"), id="rv32imafc", marks=pytest.mark.riscv),
]
ONE = [{"x": np.arange(16, dtype=np.int8)}]

HELPERS = """
#ifdef __riscv
#define SPIN(count) do { uint32_t n = (count); \\
    __asm__ volatile("1: addi %0, %0, -1\\n bnez %0, 1b" : "+r"(n)); } while (0)
#else
#define SPIN(count) do { uint32_t n = (count); \\
    __asm__ volatile(".syntax unified\\n 1: subs %0, %0, #1\\n bne 1b" : "+l"(n) : : "cc"); } while (0)
#endif
#ifdef MCUGEN_ON_LAYER
#define HOOK(i) MCUGEN_ON_LAYER(0, i)
#else
#define HOOK(i) (void)0
#endif
"""


@pytest.mark.spread(2)
@pytest.mark.parametrize("board", EACH_CPU)
def test_int8_outputs_and_measurements(board: Board):
    model = add_one()
    samples = random_samples(model, 4)
    execution = simulate(model, board, samples)
    for sample, outputs in zip(samples, execution.outputs, strict=True):
        np.testing.assert_array_equal(outputs["y"], sample["x"] + 1)
    assert execution.instructions is not None
    assert 5 < execution.instructions <= 16 * 8 + 8
    assert execution.stack is not None
    assert execution.stack <= 32
    assert execution.sizes is not None
    assert 8 <= execution.sizes.code <= 80
    assert (execution.sizes.weights, execution.sizes.static_ram) == (0, 0)
    assert execution.layer_instructions is None


def test_flags_of_the_board_overrule_the_optimization_level():
    model = tiny(
        """
        #ifdef __OPTIMIZE_SIZE__
        *((int8_t *)arena + 16) = 1;
        #else
        *((int8_t *)arena + 16) = 2;
        #endif
        return 0;
        """
    )
    small = dataclasses.replace(M4, cflags=(*M4.cflags, "-Os"))
    found = [int(simulate(model, b, ONE, measure=False).outputs[0]["y"][0]) for b in (small, M4)]
    assert found == [1, 2]


@pytest.mark.spread(2)
@pytest.mark.parametrize("board", EACH_CPU)
def test_float_outputs_of_several_inputs(board: Board):
    model = tiny(
        """
        const float *a = tiny_a(arena), *b = tiny_b(arena);
        float *sum = (float *)arena + 12, *ratio = (float *)arena + 16;
        for (int i = 0; i < 3; i++) {
            sum[i] = a[i] + b[i];
        }
        ratio[0] = sqrtf(a[0]) / b[0];
        return 0;
        """,
        inputs=[port("a", "float32", 3), port("k", "int8", 5), port("b", "float32", 1, 3)],
        outputs=[port("sum", "float32", 3), port("ratio", "float32", 1)],
        before="#include <math.h>",
    )
    a, b = np.array([9, -2, 0.5], np.float32), np.array([[2, 1, 4]], np.float32)
    outputs = simulate(model, board, [{"a": a, "k": np.zeros(5, np.int8), "b": b}], measure=False).outputs[0]
    np.testing.assert_array_equal(outputs["sum"], a + b[0])
    np.testing.assert_array_equal(outputs["ratio"], np.float32([1.5]))


@pytest.mark.spread(4)
@pytest.mark.parametrize("board", EACH_CPU)
@pytest.mark.parametrize("instructions", [8, 1004, 5_000_000])
def test_instructions_are_counted_exactly(board: Board, instructions: int):
    """The longest makes the timer wrap several times."""
    assert simulate(counted(instructions, board), board, ONE).instructions == instructions


@pytest.mark.spread(2)
@pytest.mark.parametrize("board", EACH_CPU)
def test_layers_are_counted_without_their_hooks(board: Board):
    model = tiny(
        """
        SPIN(1000); /* 2000 instructions */
        HOOK(0);
        SPIN(50);
        HOOK(1);
        SPIN(1500000);
        HOOK(2);
        (void)arena;
        return 0;
        """,
        before=HELPERS,
        layers=("a", "b", "c"),
    )
    execution = simulate(model, board, ONE, per_layer=True)
    assert execution.layer_instructions is not None
    np.testing.assert_allclose(execution.layer_instructions, [2000, 100, 3_000_000], rtol=0, atol=2)
    np.testing.assert_allclose(execution.instructions, 3_002_100, rtol=0, atol=10)


def test_a_layer_without_hook_is_refused():
    with pytest.raises(VerificationError, match=r"each layer must call MCUGEN_ON_LAYER.*layer 0"):
        simulate(add_one(layers=("only",)), M4, ONE, per_layer=True)


@pytest.mark.spread(2)
@pytest.mark.parametrize("board", EACH_CPU)
def test_peak_stack_is_seen(board: Board):
    model = tiny(
        "volatile char deep[600]; for (int i = 0; i < 600; i++) { deep[i] = 1; }(void)arena; return deep[9] - 1;"
    )
    stack = simulate(model, board, ONE).stack
    assert stack is not None
    assert 600 <= stack <= 640


@pytest.mark.spread(2)
@pytest.mark.parametrize("board", EACH_CPU)
def test_fault_is_reported_with_its_function(board: Board):
    undefined = "unimp" if board.toolchain == RISCV.name else "udf #0"
    model = tiny(f'(void)arena; __asm__ volatile("{undefined}"); return 0;')
    with pytest.raises(VerificationError, match=r"must not fault\. found: exception \d+ in tiny_run \(pc 0x"):
        simulate(model, board, ONE)


@pytest.mark.parametrize(("board", "faults"), [("rp2040", True), ("stm32f103", False)])
def test_unaligned_access_faults_on_cortex_m0plus(board: str, faults: bool):
    model = tiny("return *(volatile int *)(void *)((char *)arena + 1) * 0;")
    if not faults:
        simulate(model, load_board(board), ONE)
        return
    with pytest.raises(VerificationError, match="must not fault"):
        simulate(model, load_board(board), ONE)


def test_error_status_is_reported():
    with pytest.raises(VerificationError, match=r"must return 0\. found: 7 for sample 0"):
        simulate(tiny("(void)arena; return 7;"), M4, ONE)


def test_a_hang_ends():
    with pytest.raises(VerificationError, match=r"sample 0 is not finished after 0\.3 s"):
        simulate(tiny("for (;;) { *(volatile char *)arena = 1; }"), M4, ONE, setup=Setup(timeout=0.3))


def test_a_thousand_samples():
    model = add_one()
    samples = random_samples(model, 1000)
    seen: list[int] = []
    execution = simulate(model, M4, samples, setup=Setup(progress=seen.append))
    np.testing.assert_array_equal([o["y"] for o in execution.outputs], [s["x"] + 1 for s in samples])
    assert seen == sorted(seen)
    assert seen[-1] == 1000


@pytest.mark.spread(2)
@pytest.mark.parametrize("board", EACH_CPU[3:])
def test_arena_and_weights_of_many_megabytes(board: Board):
    model = tiny(
        "int8_t *y = (int8_t *)arena + 16; y[0] = (int8_t)(tiny_w[0] + tiny_x(arena)[1]);"
        "((char *)arena)[7999999] = 1; return 0;",
        before="extern const int8_t tiny_w[];",
        weights=weights_file({"tiny_w": 6_000_000}, first=9),
        arena_size=8_000_000,
    )
    execution = simulate(model, board, ONE)
    assert execution.outputs[0]["y"][0] == 10
    assert execution.sizes is not None
    assert execution.sizes.weights == 6_000_000
    assert execution.sizes.static_ram == 0


def test_sizes_tell_weights_static_data_and_library_functions():
    def sizes(value: str) -> FirmwareSizes | None:
        model = tiny(
            f"state[1] += tiny_w[tiny_x(arena)[0]]; return {value} * 0;",
            before="#include <math.h>\nextern const int8_t tiny_w[];\nstatic volatile int state[25] = {1};\n",
            weights=weights_file({"tiny_w": 100, "tiny_unused": 500}),
        )
        return simulate(model, M4, ONE).sizes

    plain, library = sizes("state[1]"), sizes("(int)expf((float)state[1])")
    assert plain is not None
    assert library is not None
    assert plain.weights == 100  # what nobody refers to is not linked
    assert plain.static_ram == 100
    assert 100 + 20 <= plain.code <= 200  # initial values of the state lie in flash
    assert library.code > plain.code + 200


@pytest.mark.spread(2)
@pytest.mark.parametrize("board", EACH_CPU)
def test_harness_uses_no_library_function(board: Board, tmp_path: Path):
    """What it used would not be counted when the model uses it too."""
    simulate(add_one(), board, ONE, setup=Setup(workdir=tmp_path))
    with (tmp_path / "empty.elf").open("rb") as file:
        names = {symbol.name for symbol in ELFFile(file).get_section_by_name(".symtab").iter_symbols()}
    library = ("mem", "__aeabi", "__gnu", "_impure", "__udiv", "__mul", "__clz", "__riscv")
    assert not [n for n in names if n.startswith(library)]


@pytest.mark.usefixtures("objects_are_compiled_anew")
def test_builds_are_the_same_wherever_they_are_made(tmp_path: Path):
    for place in ("a", "b/c"):
        simulate(add_one(), M4, ONE, setup=Setup(workdir=tmp_path / place))
    assert (tmp_path / "a/model.elf").read_bytes() == (tmp_path / "b/c/model.elf").read_bytes()
    assert str(tmp_path).encode() not in (tmp_path / "a/model.elf").read_bytes()


def test_unknown_machine_is_refused():
    with pytest.raises(UsageError, match=r"must be a machine mcugen knows\. found: 'mps2-an387'"):
        simulate(add_one(), dataclasses.replace(M4, qemu="mps2-an387"), ONE)


def test_a_machine_of_another_toolchain_is_refused():
    wrong = dataclasses.replace(M4, qemu="virt-rv32imc")
    with pytest.raises(UsageError, match=r"must be that of its machine 'virt-rv32imc'\. found: 'arm-none-eabi'"):
        simulate(add_one(), wrong, ONE)


@pytest.mark.parametrize(("board", "tool"), [("nrf52840", "arm-none-eabi"), ("esp32c3", "riscv64-unknown-elf")])
def test_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch, board: str, tool: str):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ToolMissingError, match=rf"'{tool}-gcc' must be installed.*gcc-{tool}"):
        simulate(add_one(), load_board(board), ONE)
