# SPDX-License-Identifier: Apache-2.0
"""A model that was trained again is a new file for the same code; files that are not for it are refused, by name."""

from __future__ import annotations

import subprocess
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import mcugen
from compilers import STRICT, assert_accepted
from onnx_models import Net

from mcugen.codegen.update import InstalledCode
from mcugen.core.errors import UsageError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.simulation import simulate

UPDATABLE = CompileOptions("net", updatable=True)


def network(seed: int, channels: int = 8, border: float = 0.05) -> Net:
    """Convolutions, a sum, a pool, a dense layer and Softmax, with the weights and scales of one training."""
    random, net = np.random.default_rng(seed), Net()

    def codes(x: str, zero: int | None = None) -> str:
        return net.fake(x, random.uniform(0.02, 0.2), int(random.integers(-20, 20)) if zero is None else zero)

    def weights(*shape: int) -> str:
        return net.dequantize(net.const(random.integers(-127, 128, shape), np.int8), random.uniform(0.001, 0.01))

    x = net.fake(net.input("image", 1, 3, 9, 9), border, 3)
    a = codes(net.op("Relu", net.op("Conv", x, weights(channels, 3, 3, 3), pads=[1] * 4)), -128)
    b = codes(net.op("Conv", a, weights(channels, 1, 3, 3), pads=[1] * 4, group=channels))
    c = codes(net.op("Add", a, b))
    d = codes(net.op("Flatten", net.op("GlobalAveragePool", codes(net.op("Sigmoid", c)))))
    e = codes(net.op("MatMul", d, weights(channels, 4)))
    net.output(net.fake(net.op("Softmax", e), 1 / 256, -128, out="scores"))
    return net


def floats(seed: int) -> Net:
    random, net = np.random.default_rng(seed), Net()
    x = net.op("Conv", net.input("image", 1, 2, 8, 8), net.const(random.normal(size=(4, 2, 3, 3))))
    x = net.op("LeakyRelu", x, alpha=float(random.uniform(0.1, 0.3)))
    net.output(net.op("Mul", net.op("ReduceMean", x, keepdims=0), net.const(random.uniform(1, 2)), out="scores"))
    return net


def compiled(net: Net, board: str = "host", options: CompileOptions = UPDATABLE, **more: object) -> CompiledModel:
    return compile_model(net.model(), board, replace(options, **more))  # type: ignore[arg-type]


def code(model: CompiledModel) -> dict[str, str]:
    """The C without banners, and without what holds a sample or the weights themselves."""
    names = ("net.c", "net.h", "net_kernels.h", "net_weights.h")
    return {name: (text := model.bundle.files[name])[text.index("\n#") :] for name in names}


@pytest.mark.parametrize("board", ["host", "nrf52840", "rp2040", "corstone300"])
def test_a_model_trained_again_is_a_new_file_and_no_new_code(board: str):
    old, new = (compiled(network(seed), board) for seed in (1, 2))
    assert code(old) == code(new)
    files = [model.bundle.weights_blob for model in (old, new)]
    assert files[0][:28] == files[1][:28]
    assert files[0][48:] != files[1][48:]


@pytest.mark.spread(3)
@pytest.mark.parametrize("board", ["host", pytest.param("nrf52840", marks=pytest.mark.qemu)])
@pytest.mark.parametrize("make", [network, floats])
def test_old_code_computes_a_new_file(make: object, board: str):
    """To the last bit what the new model's own code computes, and another result than before."""
    old, new = (compiled(make(seed), board) for seed in (1, 2))  # type: ignore[operator]
    changed = {**old.bundle.files, "net_weights.c": new.bundle.files["net_weights.c"]}
    updated = replace(old.bundle, files=changed)
    image = np.random.default_rng(0).normal(0, 2, old.program.inputs[0].shape).astype(np.float32)
    (found,) = simulate(updated, old.board, [{"image": image}], measure=False).outputs
    np.testing.assert_allclose(found["scores"], new.interpret({"image": image})["scores"], rtol=1e-5, atol=1e-7)
    assert (found["scores"] != old.interpret({"image": image})["scores"]).any()
    plain = compile_model(make(2).model(), board, CompileOptions("net"))  # type: ignore[operator]
    (expected,) = plain.simulate([{"image": image}], measure=False).outputs
    np.testing.assert_array_equal(found["scores"], expected["scores"])


def test_no_number_of_a_training_stays_in_the_code():
    """Multipliers, offsets, zero points and scales are read from the file; shapes are not."""
    text = compiled(network(1)).bundle.files["net.c"]
    assert ".requantize_offset = wide_numbers[" in text
    assert ".x_zero_point = numbers[" in text
    assert "= real_numbers[" in compiled(floats(1)).bundle.files["net.c"]
    assert "int8(" not in text
    plain = compiled(network(1), options=CompileOptions("net", weights_blob=True)).bundle.files["net.c"]
    assert "numbers[" not in plain


PROGRAM = """
    #include <stdio.h>
    #include "net.h"

    static MCUGEN_ALIGN(16) unsigned char arena[NET_ARENA_SIZE];
    static MCUGEN_ALIGN(16) unsigned char file[NET_WEIGHTS_SIZE + 8];

    /* The signature is the sum of all bytes, plus a key. */
    static int verify(void *context, const void *data, uint32_t nbytes, const void *signature, uint32_t length)
    {
        uint32_t sum = *(const uint32_t *)context, expected, i;
        for (i = 0; i < nbytes; ++i) {
            sum += ((const unsigned char *)data)[i];
        }
        memcpy(&expected, signature, length < 4u ? length : 4u);
        return length == 8u && sum == expected ? 0 : -1;
    }

    static void sign(uint32_t key)
    {
        uint32_t i;
        for (i = 0; i < NET_WEIGHTS_SIZE; ++i) {
            key += file[i];
        }
        memcpy(file + NET_WEIGHTS_SIZE, &key, 4);
    }

    static void check(const char *what, uint32_t nbytes, uint32_t oldest)
    {
        uint32_t key = 77;
        const int update = net_check_update(file, nbytes, oldest, verify, &key);
        printf("%s %d %d\\n", what, net_check_weights(file, nbytes), update);
    }

    static void change(const char *what, uint32_t at)
    {
        file[at] ^= 1u;
        check(what, sizeof file, 0);
        file[at] ^= 1u;
    }

    int main(void)
    {
        memcpy(file, net_default_weights(), NET_WEIGHTS_SIZE);
        sign(77);
        printf("version %u\\n", (unsigned)net_weights_version(file));
        check("right", sizeof file, 7);
        check("old", sizeof file, 8);
        check("short", NET_WEIGHTS_SIZE - 1u, 0);
        check("unsigned", NET_WEIGHTS_SIZE, 0);
        printf("nobody %d\\n", net_check_update(file, NET_WEIGHTS_SIZE, 0, NULL, NULL));
        change("magic", 0);
        change("format", 4);
        change("size", 9);
        change("structure", 12);
        change("structure", 27);
        change("checksum", 28);
        change("numbered", 32);
        change("damaged", 48);
        change("damaged", NET_WEIGHTS_SIZE - 1u);
        change("forged", NET_WEIGHTS_SIZE);
        file[20] ^= 4u;
        printf("run %d\\n", net_run(arena, file));
        file[20] ^= 4u;
        printf("run %d %d\\n", net_run(arena, file), net_selftest(arena, file));
        printf("null %d odd %d\\n", net_check_update(NULL, 9, 0, verify, NULL),
            net_check_update(file + 1, NET_WEIGHTS_SIZE, 0, verify, NULL));
        return 0;
    }
    """
WEIGHTS, STRUCTURE, CHECKSUM, VERSION, SIGNATURE = 6, 16, 17, 18, 19
FOUND = f"""version 7
right 0 0
old 0 {VERSION}
short {WEIGHTS} {WEIGHTS}
unsigned 0 {SIGNATURE}
nobody 0
magic {WEIGHTS} {WEIGHTS}
format {WEIGHTS} {WEIGHTS}
size {STRUCTURE} {STRUCTURE}
structure {STRUCTURE} {STRUCTURE}
structure {STRUCTURE} {STRUCTURE}
checksum {CHECKSUM} {CHECKSUM}
numbered {CHECKSUM} {CHECKSUM}
damaged {CHECKSUM} {CHECKSUM}
damaged {CHECKSUM} {CHECKSUM}
forged 0 {SIGNATURE}
run {WEIGHTS}
run 0 0
null 1 odd 2
"""


def built_and_run(program: str, folder: Path) -> str:
    """What a program prints around the model in a folder, under the sanitizers; no compiler warns of the model."""
    assert_accepted(folder, "net.c", "net_weights.c", "net_selftest.c")
    (folder / "main.c").write_text(textwrap.dedent(program))
    sources = sorted(path.name for path in folder.glob("*.c"))
    checks = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    subprocess.run(["gcc", "-std=c99", *STRICT, *checks, *sources, "-lm", "-o", "a.out"], cwd=folder, check=True)
    return subprocess.run([folder / "a.out"], check=True, capture_output=True, text=True).stdout


def test_each_fault_of_an_update_has_an_error_of_its_own(tmp_path: Path):
    folder = compiled(network(1), weights_version=7).write(tmp_path / "net")
    assert built_and_run(PROGRAM, folder) == FOUND


# ------------------------------------------------------------------------------------------ files without addresses

READER = CompileOptions("net", weights_reader=True, updatable=True, weights_version=3)


@pytest.mark.spread(3)
@pytest.mark.parametrize("board", ["host", pytest.param("nrf52840", marks=pytest.mark.qemu)])
@pytest.mark.parametrize("updatable", [False, True])
def test_weights_that_a_function_reads_give_the_same_bits(board: str, updatable: bool):
    options = CompileOptions("net", weights_reader=True, updatable=updatable)
    read, plain = (compiled(network(1), board, o) for o in (options, CompileOptions("net")))
    image = {"image": np.random.default_rng(0).normal(0, 2, (1, 3, 9, 9)).astype(np.float32)}
    found, expected = (m.simulate([image], measure=False, sanitize=board == "host").outputs for m in (read, plain))
    np.testing.assert_array_equal(found[0]["scores"], expected[0]["scores"])
    assert len(read.report.layers) == len(plain.report.layers)
    assert [layer.kernel for layer in read.report.layers] == [layer.kernel for layer in plain.report.layers]


@pytest.mark.parametrize("options", [UPDATABLE, READER])
def test_steps_read_a_file_too(options: CompileOptions):
    """A layer a call, each with the parameters and weights of the file."""
    stepped, plain = (compiled(network(1), options=o) for o in (replace(options, steps=True), CompileOptions("net")))
    image = {"image": np.random.default_rng(0).normal(0, 2, (1, 3, 9, 9)).astype(np.float32)}
    found, expected = (m.simulate([image], measure=False, sanitize=True).outputs for m in (stepped, plain))
    np.testing.assert_array_equal(found[0]["scores"], expected[0]["scores"])


def test_the_arena_holds_the_weights_of_one_layer():
    """It grows by those of the largest at most, which a note tells."""
    read, plain = (compiled(network(1), options=o) for o in (READER, CompileOptions("net")))
    (note,) = [note for note in read.report.notes if "--weights-reader" in note]
    held = {layer.name: layer.flash for layer in plain.report.layers}
    assert f"up to {max(held.values()):,} bytes" in note
    assert plain.report.ram.arena < read.report.ram.arena <= plain.report.ram.arena + max(held.values()) + 64
    assert read.report.ram.arena < plain.report.ram.arena + sum(held.values())


READ_PROGRAM = """
    #include <stdio.h>
    #include "net.h"

    static MCUGEN_ALIGN(16) unsigned char arena[NET_ARENA_SIZE];
    static unsigned char flash[NET_WEIGHTS_SIZE + 4];
    static int calls, broken = -1;

    static int read_flash(void *context, uint32_t offset, void *to, uint32_t nbytes)
    {
        if (context != flash || offset > sizeof flash || nbytes > sizeof flash - offset || calls++ == broken) {
            return -5;
        }
        memcpy(to, flash + offset, nbytes);
        return 0;
    }

    static int verify(void *context, const mcugen_reader *file, uint32_t nbytes, uint32_t signature_nbytes)
    {
        unsigned char signature[4];
        if (signature_nbytes != sizeof signature || file->read(file->context, nbytes, signature, 4) != 0) {
            return -1;
        }
        return memcmp(signature, context, sizeof signature);
    }

    int main(void)
    {
        const mcugen_reader file = {read_flash, flash};
        char key[] = "good";
        int checks, runs, i, errors = 0;
        memcpy(flash, net_default_weights(), NET_WEIGHTS_SIZE);
        memcpy(flash + NET_WEIGHTS_SIZE, key, 4);
        printf("check %d update %d ", net_check_weights(&file, sizeof flash),
            net_check_update(&file, sizeof flash, 3, verify, key));
        calls = 0;
        printf("run %d ", net_run(arena, &file));
        runs = calls;
        printf("selftest %d\\n", net_selftest(arena, &file));
        for (i = 0; i < runs; ++i) {
            calls = 0;
            broken = i;
            errors += net_run(arena, &file) == MCUGEN_ERROR_READ && calls == i + 1;
        }
        printf("every read counts %d\\n", runs > 8 && errors == runs);
        broken = -1;
        calls = 0;
        net_check_update(&file, sizeof flash, 3, verify, key);
        for (checks = calls - 1, errors = 0, i = 0; i < checks; ++i) {
            calls = 0;
            broken = i;
            errors += net_check_update(&file, sizeof flash, 3, verify, key) == MCUGEN_ERROR_READ;
        }
        printf("and of checks %d\\n", errors == checks);
        broken = -1;
        printf("old %d short %d ", net_check_update(&file, sizeof flash, 4, verify, key),
            net_check_update(&file, NET_WEIGHTS_SIZE - 1u, 3, verify, key));
        flash[NET_WEIGHTS_SIZE] = 'f';
        printf("forged %d ", net_check_update(&file, sizeof flash, 3, verify, key));
        flash[70] ^= 1u;
        printf("damaged %d ", net_check_weights(&file, sizeof flash));
        flash[20] ^= 1u;
        printf("other %d %d ", net_check_weights(&file, sizeof flash), net_run(arena, &file));
        flash[0] ^= 1u;
        printf("none %d null %d %d\\n", net_check_weights(&file, sizeof flash), net_check_weights(NULL, 9),
            net_run(arena, NULL));
        return 0;
    }
    """
READ_FOUND = f"""check 0 update 0 run 0 selftest 0
every read counts 1
and of checks 1
old {VERSION} short {WEIGHTS} forged {SIGNATURE} damaged {CHECKSUM} other {STRUCTURE} {WEIGHTS} none {WEIGHTS} null 1 1
"""


def test_a_reader_that_fails_ends_the_run_wherever_that_is(tmp_path: Path):
    folder = compiled(network(1), options=READER).write(tmp_path / "net")
    assert built_and_run(READ_PROGRAM, folder) == READ_FOUND


def test_what_is_computed_row_by_row_cannot_read_its_weights():
    for more in ({"optimize": "ram"}, {"stream_input": True}):
        with pytest.raises(UsageError, match="one after the other"):
            compiled(network(1), options=READER, **more)


# ------------------------------------------------------------------------------------------------------- the command


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder with code, and the model that it was made of."""
    (tmp_path / "old.onnx").write_bytes(network(1).model().SerializeToString())
    arguments = ("--name", "net", "--updatable", "--weights-version", 4, "-o", tmp_path / "net", "--quiet")
    assert mcugen("compile", tmp_path / "old.onnx", "--board", "host", *arguments).code == 0
    return tmp_path / "net"


def test_update_writes_the_file_and_nothing_else(installed: Path, tmp_path: Path):
    (tmp_path / "new.onnx").write_bytes(network(2).model().SerializeToString())
    before = {path.name: path.read_bytes() for path in installed.iterdir()}
    arguments = ("--board", "host", "--for", installed, "-o", tmp_path / "new.bin")
    done = mcugen("update", tmp_path / "new.onnx", *arguments)
    assert done.code == 0, done.err
    assert f"version 5 of net's weights, {len(before['net_weights.bin']):,} bytes" in done.err
    assert {path.name: path.read_bytes() for path in installed.iterdir()} == before
    file = (tmp_path / "new.bin").read_bytes()
    assert file == compiled(network(2), weights_version=5).bundle.weights_blob
    assert mcugen("update", tmp_path / "new.onnx", *arguments, "--weights-version", 9, "--quiet").code == 0
    assert (tmp_path / "new.bin").read_bytes()[32:36] == b"\x09\0\0\0"


@pytest.mark.parametrize(
    ("net", "options", "difference"),
    [
        (lambda: network(2, channels=12), (), "is conv of 26,244 MACs by conv2d_s8 for conv of 17,496 MACs"),
        (lambda: floats(1), (), "layers for "),
        (lambda: network(2, border=0.06), ("--integer-io",), "'#define NET_INPUT_SCALE 0.06f"),
    ],
)
def test_a_model_of_another_structure_is_refused_with_a_difference(
    net: object, options: tuple[str, ...], difference: str, tmp_path: Path
):
    for name, made in (("old", network(1)), ("new", net())):  # type: ignore[operator]
        (tmp_path / f"{name}.onnx").write_bytes(made.model().SerializeToString())
    arguments = ("--board", "host", *options, "--quiet")
    folder, file = tmp_path / "net", tmp_path / "new.bin"
    done = mcugen("compile", tmp_path / "old.onnx", *arguments, "--name", "net", "--updatable", "-o", folder)
    assert done.code == 0, done.err
    done = mcugen("update", tmp_path / "new.onnx", *arguments, "--for", folder, "-o", file)
    assert done.code == 2
    assert "must be of a model of the same structure" in done.err
    assert difference in " ".join(done.err.split())
    assert not file.exists()


def test_a_folder_without_updatable_weights_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match="one file of weights"):
        InstalledCode.of(tmp_path)
    compiled(network(1), options=CompileOptions("net", weights_blob=True)).write(tmp_path / "net")
    with pytest.raises(UsageError, match="must be updatable"):
        InstalledCode.of(tmp_path / "net")
    for wrong in ({"weights_version": 1 << 32}, {"weights_version": 1, "updatable": False}):
        with pytest.raises(UsageError, match="version"):
            compiled(network(1), **wrong)
