# SPDX-License-Identifier: Apache-2.0
"""Structs of the caller's that nobody has begun: they are refused, or zeros are what a beginning makes of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from c_programs import build_and_run, check_compiles
from onnx_models import Net
from test_steps import MODELS, samples_of

from mcugen.codegen.bundle import Bundle
from mcugen.core.options import CompileOptions, Training
from mcugen.driver.compiler import compile_model

OK, NULL, STEP = 0, 1, 9
MAIN = """
    #include "net.h"
    #include <stdio.h>
    {globals}
    int main(void)
    {{
        {statements}
        return 0;
    }}
"""


def printed(bundle: Bundle, folder: Path, statements: str, globals_: str = "", *flags: str) -> list[int]:
    """Build a program under the sanitizers, and return the numbers that it prints."""
    check_compiles(bundle, folder, "gcc")
    main = MAIN.format(statements=statements, globals=globals_)
    sources = [name for name in bundle.files if name.endswith(".c") and "selftest" not in name]
    return [int(word) for word in build_and_run(main, folder, *sources, flags=flags).split()]


def told(*calls: str) -> str:
    return "\n".join(f'printf("%d ", (int)({call}));' for call in calls)


@pytest.mark.spread(4)
@pytest.mark.parametrize("checked", [False, True], ids=["plain", "checked"])
@pytest.mark.parametrize("kind", MODELS)
def test_a_step_of_a_run_that_has_not_begun(kind: str, checked: bool, tmp_path: Path):
    """Whatever a run is given: a struct of zeros, or of all ones, has no step."""
    make, options = MODELS[kind]
    options = CompileOptions(**{**vars(options), "steps": True, "checked_arena": checked})
    bundle = compile_model(make().model(), options=options).bundle
    statements = told("net_step(&zeros)", "net_step(&zeros)", "net_step(NULL)", "net_step(&ones)")
    fill = "memset(&ones, 255, sizeof ones);"
    found = printed(bundle, tmp_path, fill + statements, "static net_steps zeros, ones;")
    assert found == [STEP, STEP, NULL, STEP]


def integer_state() -> onnx.ModelProto:
    """A stream whose state is kept as int8, zero at 5."""
    net = Net(17)
    x, kept = net.input("x", 1, 8), net.input("kept", 1, 8, dtype=np.int8)
    total = net.op("Add", net.fake(x, 0.05, 3), net.dequantize(kept, 0.05, 5))
    codes = net.quantize(total, 0.05, 5, out="after")
    net.output(net.dequantize(codes, 0.05, 5, out="y"), shape=[1, 8])
    net.output("after", dtype=np.int8, shape=[1, 8])
    return net.plain_model()


def float_state() -> onnx.ModelProto:
    net = Net(17)
    x, kept = net.input("x", 1, 8), net.input("kept", 1, 8)
    net.output(net.op("Add", x, kept, out="after"), shape=[1, 8])
    net.output(net.op("Exp", "after", out="y"), shape=[1, 8])
    return net.plain_model()


@pytest.mark.parametrize("steps", [False, True])
def test_a_state_of_zeros_that_is_none(steps: bool, tmp_path: Path):
    """Codes of zero are other reals; what reset makes is taken."""
    options = CompileOptions("net", states={"after": "kept"}, steps=steps)
    compiled = compile_model(integer_state(), options=options)
    calls = ["net_run(net_default_arena(), &state)", "net_run(net_default_arena(), NULL)"]
    calls += ["net_begin(&begun, net_default_arena(), &state)", "net_step(&begun)"] * steps
    after = "(net_reset(NULL), net_reset(&state), net_run(net_default_arena(), &state))"
    globals_ = "static net_state state;" + "static net_steps begun;" * steps
    size = "sizeof state"
    found = printed(compiled.bundle, tmp_path, told(*calls, after, size), globals_)
    assert found == [STEP, NULL, *[STEP, STEP] * steps, OK, compiled.program.state_size]


def test_a_state_of_zeros_that_is_one(tmp_path: Path):
    """Reals: reset leaves zeros, so that nothing is refused, and no byte is spent."""
    compiled = compile_model(float_state(), options=CompileOptions("net", states={"after": "kept"}))
    same = "(net_reset(&other), memcmp(&state, &other, sizeof state))"
    calls = (same, "net_run(net_default_arena(), &state)", "sizeof state")
    found = printed(compiled.bundle, tmp_path, told(*calls), "static net_state state, other;")
    assert found == [0, OK, compiled.program.state_size]
    assert "begun" not in compiled.bundle.files["net.h"]


@pytest.mark.qemu
@pytest.mark.parametrize("steps", [False, True])
def test_marked_states_and_steps_on_a_board(steps: bool):
    """A stream on a Cortex-M4 has the results of this computer's."""
    options = CompileOptions("net", states={"after": "kept"}, steps=steps)
    xs = np.random.default_rng(0).normal(size=(4, 1, 8)).astype(np.float32)
    found, wanted = (compile_model(integer_state(), board, options).run({"x": xs}) for board in ("nrf52840", "host"))
    np.testing.assert_array_equal(found["y"], wanted["y"])
    assert len(np.unique(wanted["y"], axis=0)) == len(xs)


@pytest.mark.parametrize("layers", ["last:1", "last:2", "bias"])
def test_a_model_that_learns_from_nothing(layers: str, tmp_path: Path):
    """Trained weights of zeros are no weights: runs, lessons and storage refuse them until reset made some."""
    net = Net(17)
    hidden = net.op("Relu", net.op("MatMul", net.input("x", 1, 6), net.const(np.eye(6) + 0.1)))
    net.output(net.op("Softmax", net.op("MatMul", hidden, net.const(np.ones((6, 3)))), out="y"), shape=[1, 3])
    compiled = compile_model(net.plain_model(), options=CompileOptions("net", training=Training(layers)))
    if not compiled.program.marks_state:
        pytest.skip("its state begins with zeros")
    storage = """
        static net_state state;
        static unsigned char cells[2][4096];
        static int read_cells(void *context, uint32_t at, void *to, uint32_t nbytes)
        {
            (void)context;
            memcpy(to, &cells[0][0] + at, nbytes);
            return 0;
        }
        static int write_cells(void *context, uint32_t at, const void *from, uint32_t nbytes)
        {
            (void)context;
            memcpy(&cells[0][0] + at, from, nbytes);
            return 0;
        }
        static const mcugen_storage storage = {read_cells, NULL, write_cells, NULL, sizeof cells[0]};
        static mcugen_storage nothing;
        static float loss;
    """
    arena = "net_default_arena(), &state"
    calls = [f"net_run({arena})", f"net_loss({arena}, 1, &loss)", f"net_train({arena}, 1, 0.1f, NULL, &loss)"]
    calls += ["net_store(&storage, &state)", "net_store(&nothing, &state)", "net_load(&nothing, &state)"]
    found = printed(compiled.bundle, tmp_path, told(*calls, *calls[:4], "net_load(&storage, &state)"), storage)
    assert found == [STEP] * 4 + [STEP, NULL] + [OK] * 5


@pytest.mark.parametrize("updatable", [False, True])
def test_a_reader_of_nothing(updatable: bool, tmp_path: Path):
    make, options = MODELS["layers"]
    options = CompileOptions(**{**vars(options), "weights_reader": True, "updatable": updatable})
    bundle = compile_model(make().model(), options=options).bundle
    calls = ["net_run(net_default_arena(), &reader)", "net_run(net_default_arena(), NULL)"]
    calls += ["net_check_weights(&reader, NET_WEIGHTS_SIZE)", "net_check_weights(NULL, NET_WEIGHTS_SIZE)"]
    assert printed(bundle, tmp_path, told(*calls), "static mcugen_reader reader;") == [NULL] * 4


def test_a_check_of_nothing(tmp_path: Path):
    make, options = MODELS["layers"]
    bundle = compile_model(make().model(), options=CompileOptions(**{**vars(options), "check_weights": True})).bundle
    name = next(line.split("(")[0].split()[-1] for line in bundle.files["net.h"].splitlines() if "net_check *" in line)
    assert printed(
        bundle, tmp_path, told(f"{name}(NULL, 1000000)", f"{name}(&check, 1000000)"), "static net_check check;"
    ) == [NULL, OK]


def test_cores_that_nobody_has_begun(tmp_path: Path):
    """A link of zeros has no worker; NULL is told of."""
    bundle = compile_model(MODELS["layers"][0]().model(), options=CompileOptions("net")).bundle
    headers = compile_model(MODELS["layers"][0]().model(), "rp2040", CompileOptions("net", cores=2)).bundle.files
    (tmp_path / "mcugen_cores.h").write_text(headers["mcugen_cores.h"])
    globals_ = '#define MCUGEN_CORES_POSIX\n#include "mcugen_cores.h"\nstatic mcugen_cores cores;'
    calls = [
        "mcugen_cores_join(NULL)",
        "(mcugen_cores_stop(NULL), mcugen_cores_join(&cores))",
        "mcugen_cores_ready(&cores)",
    ]
    assert printed(bundle, tmp_path, told(*calls), globals_, "-D_POSIX_C_SOURCE=200809L") == [NULL, OK, -1]


def test_a_stream_of_samples_that_nobody_has_begun(tmp_path: Path):
    """A struct of zeros is the beginning of a stream: it gives the windows that follow a reset."""
    net = Net(17)
    net.output(net.op("ReduceMean", net.input("x", 1, 3, 2), keepdims=0, axes=[1, 2], out="y"), shape=[1])
    options = CompileOptions("net", input_pipeline="vibration=100, frame=16/8, stats=rms;mean, stack=3")
    bundle = compile_model(net.plain_model(), options=options).bundle
    statements = """
        int32_t k, at, windows[2] = {0, 0}, same = 1;
        static float x[2][6];
        net_reset_input(NULL);
        net_reset_input(&streams[1]);
        for (at = 0; at < 200; ++at) {
            const int16_t sample = (int16_t)(37 * at % 101);
            for (k = 0; k < 2; ++k) {
                (void)net_put_samples(&streams[k], &sample, 1);
                windows[k] += net_get_window(&streams[k], x[k]);
            }
            same = same && memcmp(x[0], x[1], sizeof x[0]) == 0;
        }
    """
    calls = ["net_get_window(NULL, x[0])", "net_get_window(&streams[0], NULL)"]
    calls += [
        "net_put_samples(NULL, &some, 1)",
        "net_put_samples(&streams[0], NULL, 1)",
        "net_put_samples(NULL, NULL, 1)",
    ]
    statements += told("same", "windows[0]", "windows[1]", *calls, "net_put_samples(&streams[0], &some, 1)")
    header = '#include "net_input.h"\nstatic net_input_state streams[2];\nstatic const int16_t some = 3;'
    same, first, second, *none, one = printed(bundle, tmp_path, statements, header)
    assert (same, none, one) == (1, [0] * len(calls), 1)
    assert first == second > 3


def test_stepped_runs_still_have_their_bits():
    """What begins at step 1 computes all layers."""
    make, options = MODELS["row by row"]
    whole = compile_model(make().model(), options=options)
    stepped = compile_model(make().model(), options=CompileOptions(**{**vars(options), "steps": True}))
    samples = samples_of(whole, 2)
    for ours, theirs in zip(stepped.simulate(samples).outputs, whole.simulate(samples).outputs, strict=True):
        for name in theirs:
            np.testing.assert_array_equal(ours[name], theirs[name])
