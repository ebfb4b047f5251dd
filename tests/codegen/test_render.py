# SPDX-License-Identifier: Apache-2.0
"""The generated folder: the same bytes everywhere, correct by its own self-test, tolerant of nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from c_programs import build_and_run, check_compiles, write
from onnx_models import Net
from threadpoolctl import threadpool_limits

from mcugen.codegen.render import ABI_VERSION
from mcugen.core.options import CompileOptions
from mcugen.core.version import RELEASE_DATE
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model

OK, NULL, ALIGNMENT, MISMATCH = range(4)


def network(dtype: type = np.float32) -> Net:
    """Two convolutions of equal shape, an addition, a function, two outputs."""
    random = np.random.default_rng(0)
    net = Net()
    if dtype is np.int8:
        x = net.dequantize(net.input("x", 1, 3, 6, 6, dtype=np.int8), 0.05, 3)
    else:
        x = net.input("x", 1, 3, 6, 6)

    def layer(x: str) -> str:
        weights = random.integers(-127, 128, (3, 3, 3, 3))
        if dtype is np.int8:
            real = net.op("Conv", x, net.dequantize(net.const(weights, np.int8), 0.003), pads=[1] * 4)
            return net.fake(net.op("Relu", real), 0.03, -128)
        return net.op("Relu", net.op("Conv", x, net.const(weights / 300), pads=[1] * 4))

    a = layer(x)
    b = net.op("Add", a, layer(a))
    for name, value in (("sum", b), ("function", net.op("Tanh", a))):
        if dtype is np.int8:
            net.output(net.quantize(value, 0.05, 0, out=name), dtype=np.int8)
        else:
            net.output(net.op("Identity", value, out=name))
    return net


@pytest.fixture(scope="module", params=[np.float32, np.int8], ids=["float32", "int8"])
def compiled(request: pytest.FixtureRequest) -> CompiledModel:
    return compile_model(network(request.param).model(), "host", CompileOptions(name="net"))


# --------------------------------------------------------------------------------------------- the same


def test_two_compilations_give_the_same_bytes(compiled: CompiledModel):
    again = compile_model(compiled.model, "host", CompileOptions(name="net"))
    assert dict(again.bundle.files) == dict(compiled.bundle.files)


@pytest.mark.parametrize("updatable", [False, True])
def test_layers_that_are_alike_share_their_parameters(updatable: bool):
    """Unless another image of weights may make them differ."""
    net, random = Net(), np.random.default_rng(0)
    y = net.input("x", 1, 16)
    for _ in range(4):
        y = net.op("Relu", net.op("Gemm", y, net.const(random.standard_normal((16, 16)))))
    net.output(y)
    made = compile_model(net.model(), "host", CompileOptions(updatable=updatable))
    text = str(made.bundle.files["net.c"])
    passed = re.findall(r"dense_f32\w*\(&(\w+_params)", text)
    assert len(passed) == 4
    assert len(set(passed)) == (4 if updatable else 1)
    assert text.count("_params = {") == len(set(passed))


def test_two_processes_give_the_same_bytes(tmp_path: Path):
    model = tmp_path / "model.onnx"
    onnx.save(network(np.int8).model(), model)
    code = (
        "import sys; from mcugen.driver.compiler import compile_model; "
        "compile_model(sys.argv[1], 'rt1060').write(sys.argv[2])"
    )
    folders = []
    for seed in ("1", "2"):
        cwd = tmp_path / f"cwd{seed}"
        cwd.mkdir()
        root = Path(__file__).parents[2]
        env = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(root)}
        path = model if seed == "1" else Path("..") / "model.onnx"
        subprocess.run([sys.executable, "-c", code, str(path), "out"], cwd=cwd, env=env, check=True)
        folders.append({file.name: file.read_bytes() for file in (cwd / "out").iterdir()})
    assert folders[0] == folders[1]
    assert len(folders[0]) == 11


def test_no_path_user_or_time_in_the_output(tmp_path: Path):
    path = tmp_path / "model.onnx"
    onnx.save(network().model(), path)
    files = compile_model(path).bundle.files
    for name, text in files.items():
        for secret in (str(tmp_path), str(Path.home()), str(Path.cwd()), os.environ.get("USER") or "/home/"):
            assert secret not in text or secret in ("/", "root"), name
        text = text.replace(RELEASE_DATE, "")  # the date of mcugen's own version
        assert not re.search(r"\b20\d\d-\d\d-\d\d\b|\b\d\d:\d\d:\d\d\b", text), name
        assert "\r" not in text


# ------------------------------------------------------------------------------------------- what is in it


def test_files_and_banner(compiled: CompiledModel):
    files = compiled.bundle.files
    assert set(files) == {
        *("net.c", "net.h", "net_kernels.h", "net_weights.c", "net_weights.h", "net_selftest.c"),
        *("mcugen.h", "CMakeLists.txt", "mcugen.net.pdsc", "net_report.json"),
    }
    for name in ("net.c", "net.h", "net_kernels.h", "net_weights.c", "net_selftest.c"):
        head = files[name][:700]
        assert "Generated by mcugen" in head
        assert re.search(r"SHA-256 [0-9a-f]{64}", head)
        assert f"Arena {compiled.program.arena_size} bytes" in head
    assert json.loads(files["net_report.json"])["board"] == "host"


def test_equal_layers_share_one_kernel(compiled: CompiledModel):
    text = compiled.bundle.files["net.c"]
    calls = re.findall(r"^    (conv2d_\w+)\(&", text, re.M)
    assert len(calls) == 2
    assert len(set(calls)) == 1
    assert len(re.findall(rf"^static void {calls[0]}\(", compiled.bundle.files["net_kernels.h"], re.M)) == 1


def test_calls_are_annotated_with_the_onnx_nodes(compiled: CompiledModel):
    text = compiled.bundle.files["net.c"]
    assert re.search(r"/\* \d+: conv (?:Conv_)?t\d+\n     \* ONNX: Conv_t\d+, Relu_t\d+", text)
    assert len(compiled.bundle.layers) == text.count("MCUGEN_ON_LAYER(")


def test_all_compilers_accept_it(compiled: CompiledModel, tmp_path: Path):
    check_compiles(compiled.bundle, tmp_path)


def test_another_runtime_version_is_refused_by_the_compiler(compiled: CompiledModel, tmp_path: Path):
    write(compiled.bundle, tmp_path)
    header = tmp_path / "mcugen.h"
    header.write_text(header.read_text().replace(f"ABI_VERSION {ABI_VERSION}", f"ABI_VERSION {ABI_VERSION + 1}"))
    done = subprocess.run(["gcc", "-fsyntax-only", "net.c"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0
    assert "was generated for another version of mcugen.h" in done.stderr


# ------------------------------------------------------------------------------------------- it runs

MAIN = """
#include "net.h"
#include <stdio.h>
static MCUGEN_ALIGN(16) unsigned char mine[NET_ARENA_SIZE + 16];
int main(void)
{
    printf("%d\\n", net_selftest(net_default_arena()));
    printf("%d\\n", net_selftest(mine));
    printf("%d %d\\n", net_run(NULL), net_selftest(NULL));
    printf("%d %d\\n", net_run(mine + 1), net_run(mine + 8));
    return 0;
}
"""


def statuses(folder: Path, flags: tuple[str, ...] = ()) -> list[int]:
    sources = ("net.c", "net_weights.c", "net_selftest.c")
    return [int(word) for word in build_and_run(MAIN, folder, *sources, flags=flags).split()]


def test_selftest_and_unusable_arenas(compiled: CompiledModel, tmp_path: Path):
    write(compiled.bundle, tmp_path)
    assert statuses(tmp_path) == [OK, OK, NULL, NULL, ALIGNMENT, ALIGNMENT]


@pytest.mark.parametrize("output", ["sum", "function"])
def test_selftest_finds_a_wrong_result(compiled: CompiledModel, tmp_path: Path, output: str):
    write(compiled.bundle, tmp_path)
    path = tmp_path / "net_selftest.c"
    pattern = rf"(golden_net_output_{output}\[\d+\] = {{\s*)(-?[\d.e-]+)(f?,)"
    changed, count = re.subn(
        pattern, lambda m: f"{m[1]}{float(m[2]) + 3 if m[3] == 'f,' else 99}{m[3]}", path.read_text()
    )
    assert count == 1
    path.write_text(changed)
    assert statuses(tmp_path)[:2] == [MISMATCH, MISMATCH]


def test_selftest_finds_a_wrong_weight(compiled: CompiledModel, tmp_path: Path):
    write(compiled.bundle, tmp_path)
    path = tmp_path / "net_weights.c"
    changed, count = re.subn(r"(_bias\[\d+\] = {\s*)[^,]+,", r"\g<1>20000,", path.read_text(), count=1)
    assert count == 1
    path.write_text(changed)
    assert statuses(tmp_path)[0] == MISMATCH


def test_the_default_arena_can_be_left_out(compiled: CompiledModel, tmp_path: Path):
    write(compiled.bundle, tmp_path)
    main = (
        '#include "net.h"\nstatic MCUGEN_ALIGN(16) unsigned char mine[NET_ARENA_SIZE];\n'
        "int main(void) { return net_selftest(mine); }\n"
    )
    build_and_run(main, tmp_path, "net.c", "net_weights.c", "net_selftest.c", flags=("-DNET_NO_DEFAULT_ARENA",))


def test_header_describes_the_tensors(compiled: CompiledModel):
    header = compiled.bundle.files["net.h"]
    assert "#define NET_INPUT_SHAPE {1, 3, 6, 6}" in header
    assert "#define NET_INPUT_COUNT 108u" in header
    assert "#define NET_OUTPUT_SUM_RANK 4" in header
    quantized = compiled.program.inputs[0].quant is not None
    assert ("#define NET_INPUT_SCALE 0.05f" in header) == quantized
    assert ("#define NET_INPUT_ZERO_POINT (3)" in header) == quantized


@pytest.mark.spread(3)
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint64, bool, np.float64])
def test_selftest_of_every_element_type(tmp_path: Path, dtype: type):
    net = Net()
    net.input("x", 2, 3, dtype=dtype)
    net.output(net.op("Transpose", "x", out="sum"), net.op("Concat", "x", "x", axis=0, out="function"), dtype=dtype)
    bundle = compile_model(net.model(), options=CompileOptions(name="net")).bundle
    check_compiles(bundle, tmp_path)
    assert statuses(tmp_path)[:2] == [OK, OK]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
def test_selftest_compares_halves_as_reals(tmp_path: Path, dtype: type):
    net = Net()
    net.input("x", 40, dtype=dtype)
    net.output(net.op("Tanh", "x", out="sum"), net.op("Exp", "x", out="function"), dtype=dtype)
    bundle = compile_model(net.model(), options=CompileOptions(name="net")).bundle
    check_compiles(bundle, tmp_path)
    assert statuses(tmp_path)[:2] == [OK, OK]
    path = tmp_path / "net_selftest.c"
    changed, count = re.subn(r"(golden_net_output_sum\[40\] = {\s*)\d+", r"\g<1>12345", path.read_text())
    assert count == 1
    path.write_text(changed)
    assert statuses(tmp_path)[:2] == [MISMATCH, MISMATCH]


def test_a_model_without_layers(tmp_path: Path):
    net = Net()
    net.input("x", 3)
    net.output(net.op("Identity", "x", out="sum"))
    net.output(net.op("Identity", net.const([1.0, np.nan, np.inf]), out="function"))
    bundle = compile_model(net.model(), options=CompileOptions(name="net")).bundle
    check_compiles(bundle, tmp_path)


# ------------------------------------------------------------------------------------ outputs, empty memory


def test_bytes_do_not_depend_on_the_number_of_threads():
    """The self-test's outputs are sums, which many threads take in another order."""
    net = Net()
    weights = np.random.default_rng(0).standard_normal((1024, 256))
    net.output(net.op("MatMul", net.input("x", 16, 1024), net.const(weights)))
    found = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            found.append(compile_model(net.model()).bundle.files)
    assert found[0] == found[1]


def test_an_output_that_is_listed_twice_is_one(tmp_path: Path):
    net = Net()
    net.output(net.op("Relu", net.input("x", 4), out="y"), "y")
    model = compile_model(net.model(), options=CompileOptions(name="net"))
    assert [port.name for port in model.bundle.outputs] == ["y"]
    assert model.report.notes == ("output 'y' is listed 2 times: it is one",)
    check_compiles(model.bundle, tmp_path)
    x = np.asarray([[-1, 2, -3, 4]], np.float32)
    np.testing.assert_array_equal(model.run({"x": x})["y"], np.maximum(x, 0))


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(
    ("kernel", "board", "dtype"),
    [("depthwise_s8_3x3", "rp2040", np.int8), ("depthwise_f32_fpu", "nrf52840", np.float32)],
)
def test_no_kernel_gets_a_null_for_memory_that_it_does_not_need(
    kernel: str, board: str, dtype: type, stride: int, tmp_path: Path
):
    """A depthwise convolution without padding keeps no rows."""
    net = Net()
    x = net.input("x", 1, 8, 9, 9, dtype=dtype)
    weights = np.arange(72).reshape(8, 1, 3, 3) - 36
    if dtype is np.int8:
        real, weights = net.dequantize(x, 0.02, 3), net.dequantize(net.const(weights, np.int8), 0.01)
    else:
        real, weights = x, net.const(weights / 36)
    y = net.op("Conv", real, weights, group=8, strides=[stride] * 2)
    net.output(net.quantize(y, 0.05, -1, out="y") if dtype is np.int8 else y, dtype=dtype)
    model = compile_model(net.model(), board, CompileOptions(name="net", kernels=(kernel,)))
    (instr,) = (i for i in model.program.instrs if i.kernel == kernel)
    assert instr.operand("rows").buffer.count == 0
    calls = [line for line in model.bundle.files["net.c"].splitlines() if re.search(rf"^ +{kernel}_\w+\(", line)]
    assert calls
    assert not [call for call in calls if "NULL" in call]
    check_compiles(model.bundle, tmp_path)
