# SPDX-License-Identifier: Apache-2.0
"""The bound of the stack: never below what a run takes, and told of code that no sample reaches."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path

import onnx
import pytest
from command_line import mcugen as mcugen_
from model_variants import quantized
from shared_models import MODELS, NAMES, options, roomy
from tiny_models import tiny

from mcugen.core.board import load_board
from mcugen.core.errors import UsageError
from mcugen.core.options import GOALS
from mcugen.driver.compiler import compile_model
from mcugen.evaluation.samples import random_samples
from mcugen.simulation.build import build_parts
from mcugen.simulation.machines import find_machine
from mcugen.simulation.stack import StackBound, _Walk, stack_bound
from mcugen.simulation.stack_steps import StackStep, _Arm, _Line

pytestmark = pytest.mark.qemu


def is_twin(name: str) -> bool:
    """Whether the network is there in another layout or by another exporter, too."""
    return name.endswith(("_nhwc", "_legacy", "_original"))


BOARDS = ("rp2040", "nrf52840", "corstone300", "esp32c3")
BEFORE = """
__attribute__((noinline)) static int callee(volatile char *bytes) { return bytes[0]; }
"""


def bound_of(body: str, folder: Path, board: str, before: str = BEFORE) -> StackBound:
    """Of a function with this body."""
    target = load_board(board)
    image, _ = build_parts(tiny(body, before=before), target, folder, ["tiny_run"])
    return stack_bound(image, "tiny_run", find_machine(target).toolchain)


@pytest.mark.parametrize("board", BOARDS)
def test_what_no_sample_reaches_counts(board: str, tmp_path: Path):
    """Frames of a few bytes, of more than an immediate operand holds, and of a call that is not made."""
    taken = {}
    for nbytes in (64, 5000):
        body = f"char bytes[{nbytes}]; if (*(char *)arena == 77) {{ return callee(bytes); }} return 0;"
        found = bound_of(body, tmp_path / str(nbytes), board)
        assert found.bytes is not None, found.reason
        taken[nbytes] = found.bytes
    assert 64 <= taken[64] <= 128
    assert 5000 <= taken[5000] <= 5064


@pytest.mark.parametrize("board", BOARDS)
def test_what_assembly_pushes_counts(board: str, tmp_path: Path):
    """gcc's own figures (-fstack-usage) say 0 of a naked function."""
    push, pop = (
        ("addi sp, sp, -48", "addi sp, sp, 48\\n ret")
        if board == "esp32c3"
        else ("push {r0-r7}\\n push {r0-r3}", "pop {r0-r3}\\n pop {r0-r7}\\n bx lr")
    )
    naked = f'__attribute__((naked, noinline)) static int pushes(void) {{ __asm__("{push}\\n {pop}"); }}'
    found = bound_of("(void)arena; return pushes() + 1;", tmp_path, board, naked)
    assert found.bytes is not None
    assert found.path[-1] == ("pushes", 48)
    assert found.bytes == sum(nbytes for _, nbytes in found.path)


@pytest.mark.parametrize("board", BOARDS)
def test_tables_of_jumps_hide_nothing(board: str, tmp_path: Path):
    cases = " ".join(f"case {i}: return callee(bytes + {i}) * {i + 3};" for i in range(9))
    body = (
        f"char bytes[200]; const char *at = arena; switch (*at) {{ {cases} case 9: {{ char more[600]; return "
        "callee(more) + callee(bytes); } } return at[1];"
    )
    found = bound_of(body, tmp_path, board)
    assert found.bytes is not None, found.reason
    assert 800 <= found.bytes <= 900


@pytest.mark.parametrize("board", ["nrf52840", "esp32c3"])
def test_without_a_bound_the_reason_is_told(board: str, tmp_path: Path):
    recursion = "__attribute__((noinline)) static int f(int n) { return n > 1 ? f(n - 1) * n + f(n - 2) : 1; }"
    found = bound_of("return f(*(char *)arena);", tmp_path / "recursion", board, recursion)
    assert (found.bytes, found.reason) == (None, "f calls itself")
    body = "char bytes[*(unsigned char *)arena]; return callee(bytes);"
    found = bound_of(body, tmp_path / "variable", board)
    assert found.bytes is None
    assert "takes what a register says" in found.reason
    found = bound_of("return (*(int (**)(void))arena)() + 1;", tmp_path / "pointer", board, "")
    assert found.bytes is not None
    assert found.pointers == ("tiny_run",)


QUICK = {
    ("ds_cnn_kws_int8_qdq", "nrf52840", "balanced"),
    ("ds_cnn_kws_int8_qdq", "corstone300", "ram"),
    ("autoencoder_ad_int8_qdq", "rp2040", "flash"),
    ("pt_mlp_dynbatch_dynamo", "rp2040", "speed"),
    ("streaming_wakeword_f32", "esp32c3", "balanced"),
}
SWEEP = [
    pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow, id="-".join(case))
    for case in itertools.product(NAMES, BOARDS, GOALS)
    if case in QUICK or not is_twin(case[0])
]


@pytest.mark.spread(2)
@pytest.mark.shared
@pytest.mark.parametrize(("name", "board", "goal"), SWEEP)
def test_no_run_takes_more(name: str, board: str, goal: str):
    """And the bound is not far from what is taken: the path that takes the most is in most models one that is run."""
    wanted = dataclasses.replace(options(name), optimize=goal)
    compiled = compile_model(MODELS / f"{name}.onnx", roomy(board), wanted)
    run = compiled.simulate(random_samples(compiled.program.inputs).inputs[:1])
    assert run.stack is not None
    assert run.stack_bound is not None
    assert run.stack_bound.bytes is not None, run.stack_bound.reason
    assert run.stack <= run.stack_bound.bytes <= run.stack + 256


def test_header_and_reports_tell_the_bound(tmp_path: Path):
    """What compile --stack-bound says is what report says; the code is the same without it."""
    onnx.save(quantized().model(), tmp_path / "net.onnx")
    common = (tmp_path / "net.onnx", "--board", "nrf52840", "--quiet")
    assert mcugen_("compile", *common, "-o", tmp_path / "plain").code == 0
    done = mcugen_("compile", *common, "--stack-bound", "-o", tmp_path / "net", "--json", tmp_path / "compiled.json")
    assert done.code == 0, done.err
    told = json.loads((tmp_path / "compiled.json").read_text())["stack_bound"]
    header = (tmp_path / "net" / "net.h").read_text()
    assert f"#define NET_STACK_SIZE {told['bytes']}u\n" in header
    assert "arm-none-eabi-gcc" in header
    assert told["path"][0].startswith("net_run ")
    for file in ("net.c", "net_kernels.h", "net_weights.c"):
        plain, other = ((tmp_path / folder / file).read_text().partition("#include")[2] for folder in ("plain", "net"))
        assert plain == other
    assert "STACK_SIZE" not in (tmp_path / "plain" / "net.h").read_text()
    assert mcugen_("report", *common, "--json", tmp_path / "report.json").code == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["stack_bound"] == told
    assert report["ram"]["stack"] <= told["bytes"]


def test_a_loop_that_pushes_is_walked_once():
    """As often as it goes round, it is known after one round: walks of a megabyte took seconds."""

    class Counted(dict[int, StackStep]):
        looked_up = 0

        def get(self, key: int, default: StackStep | None = None) -> StackStep | None:
            self.looked_up += 1
            return super().get(key, default)

    code = Counted({at: StackStep("nop", at + 2) for at in range(0, 400, 2)})
    code[100] = StackStep("push {r0, r1}", 102, 8)
    code[200] = StackStep("bne 100", 202, target=100)
    code[300] = StackStep("add sp, #8", 302, -8)
    code[398] = StackStep("bx lr", 400, falls=False)
    found = _Walk(code, {0: ("looping", 400)}).bound(0)
    assert found >= 8
    assert code.looked_up < 3 * len(code)


def test_a_board_without_a_cross_compiler_has_no_bound(tmp_path: Path):
    onnx.save(quantized().model(), tmp_path / "net.onnx")
    done = mcugen_("compile", tmp_path / "net.onnx", "--board", "host", "--stack-bound", "-o", tmp_path / "net")
    assert done.code == UsageError.exit_code
    assert "--stack-bound" in done.err


def test_a_jump_to_a_kept_address_is_no_return():
    def computed(text: str) -> bool:
        step = _Arm({}).step(_Line.of(f"  100:\t{text}"), 0x104)
        assert not step.falls
        return step.computed

    assert computed("ldr.w\tpc, [sp, #36]") and computed("bx\tr3") and computed("tbb\t[pc, r3]")
    assert not computed("ldr.w\tpc, [sp], #4") and not computed("pop\t{r4, pc}") and not computed("bx\tlr")
