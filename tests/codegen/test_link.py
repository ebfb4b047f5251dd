# SPDX-License-Identifier: Apache-2.0
"""mcugen link: several models, one firmware. The bits are those of the models apart, the bytes are fewer."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np
import onnx
import pytest
from c_programs import build_and_run, check_compiles, write
from onnx_models import Net
from test_format import STYLE
from test_streaming import script
from typer.testing import CliRunner

from mcugen.api.compilation import Compilation
from mcugen.cli.app import app
from mcugen.core.errors import DoesNotFitError, McugenError, UsageError, VerificationError
from mcugen.core.options import CompileOptions, Places
from mcugen.deploy.linking import Linking
from mcugen.memory.shared_arena import SharedArena, join, verify_shared_arena
from mcugen.simulation import simulate

EXAMPLES = Path(__file__).parents[2] / "examples"
DIGITS = EXAMPLES / "digits" / "digits_int8.onnx"
FORMAT = ["clang-format", f"--style=file:{STYLE}", "--dry-run", "--Werror"]


@cache
def words() -> tuple[onnx.ModelProto, dict[str, str]]:
    """The keyword spotter that takes a frame a call, and its states."""
    return script("make_streaming").make_streaming(onnx.load(EXAMPLES / "streaming" / "window.onnx"), 2)


def keyword_net(board: str) -> Compilation:
    model, states = words()
    return Compilation(model, board, CompileOptions(name="words", states=states))


def linking(board: str = "host", **changes: object) -> Linking:
    """Digits and the keyword example, which never run together."""
    nets = [Compilation(DIGITS, board, CompileOptions(name="digits")), keyword_net(board)]
    return replace(Linking(nets, "fw", exclusive=[("digits", "words")]), **changes)


def layer(scale: float = 0.03, seed: int = 0) -> onnx.ModelProto:
    """A convolution of codes."""
    net, draw = Net(), np.random.default_rng(seed)
    x = net.fake(net.input("x", 1, 3, 6, 6), 0.05, 3)
    w = net.dequantize(net.const(draw.integers(-127, 128, (8, 3, 3, 3)), np.int8), 0.003)
    net.output(net.fake(net.op("Conv", x, w, pads=[1] * 4), scale, 0, out="y"))
    return net.model()


def named(model: onnx.ModelProto, name: str, board: str = "host", **options: object) -> Compilation:
    return Compilation(model, board, CompileOptions(name=name, **options))


def c_array(name: str, data: np.ndarray) -> str:
    kinds = {"float32": "float", "int8": "int8_t"}
    values = ", ".join(float(v).hex() + "f" if data.dtype.kind == "f" else str(v) for v in data.reshape(-1))
    return f"static const {kinds[data.dtype.name]} {name}[] = {{{values}}};"


def test_interleaved_calls_of_models_that_share_memory(tmp_path: Path):
    """Each sees what it would see alone: inputs are written and outputs read before the other's turn, states stay."""
    firmware = linking()
    digits, keywords = firmware.models
    draw, count = np.random.default_rng(0), 6
    (image,), (frame,) = digits.program.inputs, keywords.program.inputs
    images = draw.random((count, *image.shape), np.float32)
    frames = draw.integers(-100, 100, (count, *frame.shape)).astype(frame.dtype.numpy)
    (scores,), (spotted,) = (
        list(m.run(x).values()) for m, x in ((digits, {image.name: images}), (keywords, {frame.name: frames}))
    )
    arrays = [("images", images), ("frames", frames), ("scores", scores), ("spotted", spotted)]
    main = "\n".join(
        [
            '#include "fw.h"',
            "#include <stdio.h>",
            *(c_array(name, data) for name, data in arrays),
            "int main(void)",
            "{",
            "    static words_state state;",
            "    void *a = digits_default_arena(), *b = words_default_arena();",
            "    int i;",
            "    words_reset(&state);",
            f"    for (i = 0; i < {count}; ++i) {{",
            "        memcpy(digits_input(a), (const char *)images + i * (int)DIGITS_INPUT_BYTES, DIGITS_INPUT_BYTES);",
            "        if (digits_run(a) != MCUGEN_OK) return 1;",
            "        if (memcmp(digits_output(a), (const char *)scores + i * (int)DIGITS_OUTPUT_BYTES,",
            "                   DIGITS_OUTPUT_BYTES) != 0) return 2;",
            "        memcpy(words_input(b), (const char *)frames + i * (int)WORDS_INPUT_BYTES, WORDS_INPUT_BYTES);",
            "        if (words_run(b, &state) != MCUGEN_OK) return 3;",
            "        if (memcmp(words_output(b), (const char *)spotted + i * (int)WORDS_OUTPUT_BYTES,",
            "                   WORDS_OUTPUT_BYTES) != 0) return 4;",
            "    }",
            "    if (digits_selftest(a) != MCUGEN_OK || words_selftest(b) != MCUGEN_OK) return 5;",
            '    printf("%d %u", a == b, FW_ARENA_SIZE);',
            "    return 0;",
            "}",
        ]
    )
    folder = firmware.write(tmp_path / "fw")
    sources = sorted(file.name for file in folder.glob("*.c"))
    arenas = [model.program.arena_size for model in firmware.models]
    assert build_and_run(main, folder, *sources) == f"1 {max(arenas)}"


def test_what_may_run_together_lies_apart():
    report = linking(exclusive=()).report(build=False)
    assert report.arena.linked == report.arena.apart == report.arena_bound
    shared = linking().report(build=False)
    assert shared.arena.linked == max(model.ram.arena for model in shared.models)
    assert shared.state == keyword_net("host").compiled.program.state_size > 0


def test_each_model_of_the_folder_runs_as_it_does_alone():
    firmware = linking()
    for model, bundle in zip(firmware.models, firmware.firmware.models, strict=True):
        sample = {e.name: np.full(e.shape, 3, e.dtype.numpy) for e in model.program.inputs}
        linked = simulate(bundle, model.board, [sample] * 3, measure=False).outputs
        alone = model.simulate([sample] * 3, measure=False).outputs
        for found, wanted in zip(linked, alone, strict=True):
            for name in wanted:
                np.testing.assert_array_equal(found[name], wanted[name])


def test_equal_kernels_and_arrays_exist_once(tmp_path: Path):
    """Two models of the same weights: the arrays that differ are those that scales are part of."""
    firmware = Linking([named(layer(), "a"), named(layer(0.04), "b")], "both").firmware
    files = firmware.bundle.files
    assert "static" in files["both_kernels.c"]
    assert "static void" not in files["a_kernels.h"] + files["b_kernels.h"]
    assert "_weights[" in files["both_weights.c"]
    assert "_weights[" not in files["a_weights.c"] + files["b_weights.c"]
    assert "_multiplier[" in files["a_weights.c"]
    check_compiles(firmware.bundle, tmp_path)


def test_one_model_twice_in_one_firmware():
    """All that is left of the second are its parameters."""
    report = Linking([named(layer(), "a"), named(layer(), "b")], "both").report(build=False)
    assert report.weights.linked * 2 == report.weights.apart
    assert report.kernels.linked * 2 == report.kernels.apart


@pytest.mark.parametrize("board", ["stm32f411", "corstone300"])
def test_the_files_are_as_clang_format_has_them(board: str, tmp_path: Path):
    bundle = linking(board).firmware.bundle
    command = [str(Path(sys.executable).parent / FORMAT[0]), *FORMAT[1:]]
    sources = sorted(name for name in write(bundle, tmp_path / "c").iterdir() if name.suffix in (".c", ".h"))
    done = subprocess.run([*command, *map(str, sources)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:3000]
    assert max(len(line) for name in sources for line in name.read_text().split("\n")) <= 120


@pytest.mark.qemu
def test_less_flash_than_apart_on_a_cortex_m4():
    """In programs that are really linked; and the shared arena is no more than the larger one and both states."""
    firmware = linking("stm32f411")
    report = firmware.report()
    assert report.flash is not None and report.code is not None and report.model_code is not None
    assert report.flash.linked < report.flash.apart
    assert report.code.apart == sum(report.model_code)
    assert report.arena.linked <= max(model.ram.arena for model in report.models) + report.state


@pytest.mark.qemu
def test_several_memories():
    """Arenas and weights where each model asks for them; start-up copies what is to lie in RAM."""
    places = Places(arena=("dtcm", "ocram2"), weights="flash", hot_weights=("dtcm", 512))
    nets = [named(layer(), "a", "rt1060", place=places), named(layer(0.04, 1), "b", "rt1060", place=places)]
    firmware = Linking(nets, "both", exclusive=[("a", "b")])
    sample = {"x": np.random.default_rng(0).random((1, 3, 6, 6), np.float32)}
    for model, bundle in zip(firmware.models, firmware.firmware.models, strict=True):
        found, wanted = (
            simulate(b, model.board, [sample], measure=False).outputs[0]["y"] for b in (bundle, model.bundle)
        )
        np.testing.assert_array_equal(found, wanted)
    assert {m.name for m in firmware.report(build=False).memories} == {"dtcm", "flash"}


@pytest.mark.parametrize("options", [{"weights_blob": True}, {"external_io": True}, {"stream_input": True}])
def test_options_of_one_model(options: dict[str, bool]):
    nets = [named(layer(), "a", optimize="ram", **options), named(layer(0.04), "b")]
    firmware = Linking(nets, "both", exclusive=[("a", "b")])
    sample = {"x": np.random.default_rng(0).random((1, 3, 6, 6), np.float32)}
    for model, bundle in zip(firmware.models, firmware.firmware.models, strict=True):
        found = simulate(bundle, model.board, [sample], measure=False).outputs[0]["y"]
        np.testing.assert_array_equal(found, model.interpret(sample)["y"])


def test_kernels_of_a_library_that_is_not_there():
    """The folder can be written; what it takes is not measured, and a note says why."""
    nets = [named(layer(seed=seed), name, "stm32f411", family="cmsis-nn") for seed, name in enumerate("ab")]
    firmware = Linking(nets, "both")
    files = firmware.firmware.bundle.files
    assert '#include "arm_nnfunctions.h"' in files["both_kernels.c"]
    assert "int both_cmsis_convolve_s8(" in files["both_kernels.h"]
    assert "CMSIS_NN_INCLUDE" in files["CMakeLists.txt"]
    report = firmware.report()
    assert report.flash is None
    assert "CMSIS-NN is not given" in report.notes[-1]


def test_models_with_steps_helpers_and_labels_of_their_own(tmp_path: Path):
    labels = tuple(f"class {number}" for number in range(288))
    nets = [named(layer(), "a", steps=True, labels=labels, helpers=True), named(layer(0.04), "a_b", steps=True)]
    bundle = Linking(nets, "fw").firmware.bundle
    check_compiles(bundle, tmp_path)
    main = """
        #include "fw.h"
        #include <stdio.h>
        int main(void)
        {
            a_steps a;
            a_b_steps b;
            int first = a_begin(&a, a_default_arena()) || a_b_begin(&b, a_b_default_arena());
            while (a_step(&a) == MCUGEN_AGAIN && a_b_step(&b) == MCUGEN_AGAIN) ++first;
            printf("%d %s", first, a_labels[a_class_of_output(a_output(a_default_arena())) > 0]);
            return 0;
        }
        """
    sources = [name for name in bundle.files if name.endswith(".c")]
    assert build_and_run(main, tmp_path, *sources).partition(" class ")[2] in ("0", "1")


# ---------------------------------------------------------------------------------------------------- shared arenas


def test_joint_arenas_are_proven_and_least():
    """As large as the heaviest models that may all run at once, where the search is done."""
    draw = random.Random(1)
    for _ in range(100):
        sizes = [16 * draw.randint(1, 20) for _ in range(draw.randint(1, 5))]
        exclusive = {pair for pair in combinations(range(len(sizes)), 2) if draw.random() < 0.5}
        shared_arena = join(sizes, exclusive)
        verify_shared_arena(shared_arena, sizes, exclusive)
        cliques = [
            sum(sizes[i] for i in group)
            for n in range(1, len(sizes) + 1)
            for group in combinations(range(len(sizes)), n)
            if not exclusive & set(combinations(group, 2))
        ]
        assert max(cliques) <= shared_arena.nbytes == shared_arena.bound <= sum(sizes)


@pytest.mark.parametrize("offsets", [(0, 16), (0, 40), (0, 64), (-16, 32)])
def test_a_wrong_joint_arena_is_found(offsets: tuple[int, int]):
    with pytest.raises(VerificationError):
        verify_shared_arena(SharedArena(offsets, 64, 64), (32, 32), set())
    verify_shared_arena(SharedArena((0, 32), 64, 64), (32, 32), set())


# -------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("names", "firmware", "found"),
    [
        (("a", "a"), "fw", "'a' twice"),
        (("a", "fw"), "fw", "'fw' twice"),
        (("fw_kernels", "a"), "fw", "define FW_KERNELS_"),
        (("net", "net_output"), "fw", "define"),
    ],
)
def test_names_that_would_be_the_same_in_c(names: tuple[str, str], firmware: str, found: str):
    net = Net()
    x = net.input("x", 4)
    net.output(net.op("Relu", x, out="count"), shape=(4,))
    net.output(net.op("Neg", x, out="output"), shape=(4,))
    other = Net()
    other.output(other.op("Relu", other.input("x", 4), out="y"), shape=(4,))
    other.output(other.op("Neg", "x", out="count"), shape=(4,))
    nets = [named(model.model(), name) for model, name in zip((net, other), names, strict=True)]
    if found == "define":  # names that begin with another's are no harm in themselves
        assert Linking(nets, firmware).firmware.bundle.files
        return
    with pytest.raises(UsageError, match=found):
        _ = Linking(nets, firmware).firmware


def test_models_that_the_board_has_no_room_for_together():
    net = Net()
    net.output(net.op("Exp", net.input("x", 3000), out="y"))
    nets = [named(net.model(), name, "stm32f103") for name in "abc"]
    with pytest.raises(DoesNotFitError, match="--exclusive"):
        _ = Linking(nets, "fw").firmware
    assert Linking(nets, "fw", exclusive=[("a", "b", "c")]).firmware.bundle.arena_size < 20_480


def test_a_group_of_what_is_no_model():
    with pytest.raises(UsageError, match="they are digits, words"):
        _ = linking(exclusive=[("digits", "x")]).firmware


def test_boards_of_their_own():
    nets = [named(layer(), "a"), named(layer(), "b", "rp2040")]
    with pytest.raises(UsageError, match="one board"):
        _ = Linking(nets, "fw").models


def test_weights_that_a_function_reads():
    """Of one of the models: the other has the same in its files, where they lie."""
    reads = Compilation(layer(), "host", CompileOptions("a", weights_reader=True))
    firmware = Linking([reads, named(layer(), "b")], "fw").firmware
    assert list(firmware.bundle.blobs) == ["a_weights.bin"]
    assert "mcugen_reader" in firmware.bundle.files["a.h"] and "mcugen_reader" not in firmware.bundle.files["b.h"]
    sample = {"x": np.random.default_rng(0).standard_normal((1, 3, 6, 6)).astype(np.float32)}
    bundles = (*firmware.models, reads.compiled.bundle)
    outputs = [simulate(one, reads.compiled.board, [sample]).outputs[0]["y"].tobytes() for one in bundles]
    assert len(set(outputs)) == 1


@pytest.mark.qemu
def test_steps_take_what_they_take_in_the_firmware():
    """A kernel that two models share knows nothing of who calls it: a step is longer than that of the model alone."""

    def linked(limit: int) -> tuple[Compilation, Linking]:
        bounded = Compilation(layer(), "nrf52840", CompileOptions("a", max_step_cycles=limit))
        return bounded, Linking([bounded, named(layer(seed=1), "b", "nrf52840")], "fw")

    alone, firmware = linked(1 << 20)
    steps, before = firmware.models[0].report.steps, alone.compiled.report.steps
    assert steps is not None and before is not None
    assert steps.cycles_estimate > before.cycles_estimate
    assert f"#define A_STEP_CYCLES {steps.cycles_estimate}\n" in firmware.firmware.bundle.files["a.h"]
    _, tight = linked((steps.cycles_estimate + before.cycles_estimate) // 2)
    with pytest.raises(DoesNotFitError, match=f"{steps.cycles_estimate:,} in the firmware.*--set a:max-step-cycles="):
        _ = tight.firmware


# ----------------------------------------------------------------------------------------------------- the command


def run(*arguments: str, folder: Path) -> tuple[int, str, McugenError | None]:
    done = CliRunner().invoke(app, ["link", *arguments, "-b", "host", "-o", str(folder)])
    return done.exit_code, done.stdout, done.exception  # type: ignore[return-value]


def test_the_command(tmp_path: Path):
    """Options of one model, by its name or number; the report, and a folder that is replaced as a whole."""
    net, floats, folder, calibration = Net(), tmp_path / "dense.onnx", tmp_path / "fw", tmp_path / "samples.npz"
    net.output(net.op("MatMul", net.input("x", 1, 8), net.const(np.eye(8)[::-1] / 3), out="y"))
    onnx.save(net.model(), floats)
    np.savez(calibration, x=np.random.default_rng(0).random((8, 1, 8), np.float32))
    own = ["--set", f"dense:calibration={calibration}", "--set", "dense:name=a", "--set", "2:name=b"]
    more = ["--set", "1:integer-io", "--exclusive", "a,b", "--json", "-"]
    for _ in range(2):
        code, text, error = run(str(floats), str(DIGITS), *own, *more, folder=folder)
        assert code == 0, error
    report = json.loads(text)
    assert report["arena"]["linked"] < report["arena"]["apart"]
    assert json.loads((folder / "fw_report.json").read_text()) == report
    assert "int8_t *a_input" in (folder / "a.h").read_text()
    assert "a and b share memory" in " ".join((folder / "fw.h").read_text().split())
    code, text, _ = run(str(floats), str(DIGITS), *own, "-q", folder=folder)
    assert (code, text) == (0, "")
    (folder / "mine.txt").touch()
    assert run(str(DIGITS), folder=folder)[0] == 0
    assert (folder / "mine.txt").is_file(), "a file that mcugen did not write stays"


@pytest.mark.parametrize(
    ("setting", "found"),
    [
        ("digits_int8:colour=red", "an option"),
        ("other:name=x", "one model"),
        ("digits_int8:integer-io=1", "takes no value"),
        ("digits_int8:name", "must have a value"),
        ("digits_int8:pixel-scale=x", "must be a number"),
        ("digits_int8:max-ram=x", "must be a positive number of bytes"),
    ],
)
def test_settings_that_cannot_be(setting: str, found: str, tmp_path: Path):
    assert found in str(run(str(DIGITS), "--set", setting, folder=tmp_path / "fw")[2])


def test_a_setting_given_twice(tmp_path: Path):
    settings = ["--set", "1:name=x", "--set", "digits_int8:name=y"]
    assert "given once" in str(run(str(DIGITS), *settings, folder=tmp_path / "fw")[2])
