# SPDX-License-Identifier: Apache-2.0
"""Networks on a board with an Ethos-U: what runs there, and the firmware with a driver that checks its arguments."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml
from command_line import mcugen
from onnx_models import Net
from segments import conv, dense
from shared_models import MODELS

from mcugen.backends.npu.ethos_u import vela
from mcugen.backends.npu.ethos_u.command_stream import CommandStreamError
from mcugen.codegen.bundle import Bundle
from mcugen.core.board import load_board
from mcugen.core.errors import UsageError, VerificationError
from mcugen.core.options import CompileOptions, Places
from mcugen.core.resources import resource_dir
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.ops.offload import Offloaded
from mcugen.simulation import simulate

pytestmark = pytest.mark.skipif(not vela.is_installed(), reason="needs ethos-u-vela (pip install 'mcugen[ethos-u]')")
BOARD = "corstone300"


def network(size: int = 24) -> onnx.ModelProto:
    """Return a network with a residual sum, a pool in the middle that stays on the CPU, and a softmax."""
    net = Net()
    x = net.dequantize(net.input("x", 1, 8, size, size, dtype=np.int8), 0.05, 3)
    first = net.fake(conv(16, (3, 3), channels=8, pads=[1, 1, 1, 1], relu=True)(net, x), 0.4, -128)
    second = net.fake(conv(16, (3, 3), channels=16, pads=[1, 1, 1, 1])(net, first), 2.0, 5)
    total = net.fake(net.op("Relu", net.op("Add", first, second)), 1.1, -128)
    pooled = net.fake(net.op("AveragePool", total, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]), 1.1, -128)
    third = net.fake(conv(32, (3, 3), channels=16, pads=[1, 1, 1, 1], relu=True)(net, pooled), 9.0, -128)
    mean = net.fake(net.op("GlobalAveragePool", third), 5.0, -128)
    flat = net.op("Flatten", mean)
    logits = net.fake(dense(10, 32)(net, flat), 12.0, 0)
    net.output(net.quantize(net.op("Softmax", logits), 1 / 256, -128, out="y"), dtype=np.int8)
    return net.model()


@pytest.fixture(scope="module")
def compiled() -> CompiledModel:
    """Return the network, compiled with its NPU."""
    return compile_model(network(), BOARD, CompileOptions(npu="auto", optimize="speed"))


def samples(count: int) -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(4)
    return [{"x": random.integers(-128, 128, (1, 8, 24, 24)).astype(np.int8)} for _ in range(count)]


def test_segments_around_what_stays_on_the_cpu(compiled: CompiledModel):
    kernels = [instr.kernel for instr in compiled.program.instrs if not instr.moves_nothing]
    assert kernels.count("ethos_u_invoke") == 2
    assert {"ethos_u_invoke", "softmax_s8"} <= set(kernels)
    assert not any(kernel.startswith("conv") for kernel in kernels)
    figures = compiled.report.accelerator
    assert figures is not None and len(figures.segments) == 2
    reasons = {p.operator: p.reason for p in figures.placements if p.runs_on == "CPU"}
    assert reasons["average_pool"] == "windows with different numbers of elements"
    plain = compile_model(network(), BOARD, CompileOptions(optimize="speed"))
    assert compiled.program.cycles_estimate < plain.program.cycles_estimate / 4


@pytest.mark.qemu
def test_the_firmware_passes_what_was_planned(compiled: CompiledModel):
    inputs = samples(2)
    run = compiled.simulate(inputs, measure=True, per_layer=True, cycles=True)
    for found, expected in zip(run.outputs, compiled.interpret_samples(inputs), strict=True):
        np.testing.assert_array_equal(found["y"], expected["y"])
    assert run.cycles is not None and run.cycles.layers is not None and run.cycles.total is not None
    times = [round(invocation.work.cpu_cycles) for invocation in compiled.bundle.invocations]
    layers = [invocation.layer for invocation in compiled.bundle.invocations]
    for layer, time in zip(layers, times, strict=True):
        assert time < run.cycles.layers[layer] < time + 200  # without the driver's stand-in
    assert sum(run.cycles.layers) >= run.cycles.total - 1000


@pytest.mark.qemu
@pytest.mark.parametrize("board", ["alif_e7", "ra8p1"])
def test_cycles_on_boards_with_data_caches(board: str):
    """The first call and later calls run the same instructions of the driver's stand-in."""
    compiled = compile_model(network(), board, CompileOptions(npu="auto", optimize="speed"))
    inputs = samples(2)
    run = compiled.simulate(inputs, cycles=True)
    np.testing.assert_equal([o["y"] for o in run.outputs], [o["y"] for o in compiled.interpret_samples(inputs)])
    assert run.cycles is not None and run.cycles.total is not None
    times = [invocation.work.cpu_cycles for invocation in compiled.bundle.invocations]
    assert times and sum(times) < run.cycles.total


def test_on_this_computer_with_sanitizers(compiled: CompiledModel):
    inputs = samples(2)
    host = compile_model(network(), replace(compiled.board, qemu=""), CompileOptions(npu="auto", family="portable"))
    run = host.simulate(inputs, sanitize=True)
    for found, expected in zip(run.outputs, host.interpret_samples(inputs), strict=True):
        np.testing.assert_array_equal(found["y"], expected["y"])


@pytest.mark.parametrize("fault", ["size", "place", "count", "commands"])
def test_the_driver_detects_wrong_arguments(compiled: CompiledModel, fault: str):
    first, *others = compiled.bundle.invocations
    x = first.operand("x")
    wrong = {
        "size": replace(x, nbytes=x.nbytes - 16),
        "place": replace(first.operand("y"), offset=first.operand("y").offset + 16),
        "commands": replace(first.operand("commands"), nbytes=64),
        "count": x,
    }[fault]
    operands = tuple(wrong if operand.role == wrong.role else operand for operand in first.operands)
    regions = (*first.regions, "x") if fault == "count" else first.regions
    bundle = replace(compiled.bundle, invocations=(replace(first, operands=operands, regions=regions), *others))
    with pytest.raises(VerificationError, match="driver"):
        simulate(bundle, replace(compiled.board, qemu=""), samples(1))


def with_text(bundle: Bundle, old: str, new: str) -> Bundle:
    """Return the files with one text replaced, which must occur exactly once."""
    (name,) = (name for name, text in bundle.files.items() if old in text and name.endswith((".c", ".h")))
    assert bundle.files[name].count(old) == 1
    return replace(bundle, files={**bundle.files, name: bundle.files[name].replace(old, new)})


@pytest.mark.parametrize(
    ("old", "new", "check"),
    [
        ("    MCUGEN_DCACHE_CLEAN(x, (uint32_t)p->region_bytes3);\n", "", "cleaned"),
        ("    MCUGEN_DCACHE_CLEAN(scratch, (uint32_t)p->region_bytes1);\n", "", "cleaned"),
        ("    MCUGEN_DCACHE_CLEAN(y, (uint32_t)p->region_bytes4);\n", "", "cleaned"),
        ("MCUGEN_DCACHE_CLEAN(x, (uint32_t)p->region_bytes3)", "MCUGEN_DCACHE_CLEAN(x, 16u)", "cleaned"),
        ("    MCUGEN_DCACHE_INVALIDATE(y, (uint32_t)p->region_bytes4);\n", "", "invalidated"),
        ("MCUGEN_DCACHE_INVALIDATE(y, (uint32_t)p->region_bytes4)", "MCUGEN_DCACHE_INVALIDATE(x, 16u)", "invalidated"),
        ("    result = ethosu_invoke_v3(", "    MCUGEN_DCACHE_INVALIDATE(y, 1u);\n    result = ethosu_invoke_v3(", ""),
    ],
)
def test_the_driver_checks_the_maintenance_of_caches(compiled: CompiledModel, old: str, new: str, check: str):
    bundle = with_text(compiled.bundle, old, new)
    if not check:  # Further calls are harmless.
        simulate(bundle, replace(compiled.board, qemu=""), samples(1))
        return
    with pytest.raises(VerificationError, match=check):
        simulate(bundle, replace(compiled.board, qemu=""), samples(1))


def test_outputs_invalidated_too_early_are_refused(compiled: CompiledModel):
    call = "    MCUGEN_DCACHE_INVALIDATE(y, (uint32_t)p->region_bytes4);\n"
    early = with_text(with_text(compiled.bundle, call, ""), "    result = ethosu", f"{call}    result = ethosu")
    with pytest.raises(VerificationError, match="invalidated"):
        simulate(early, replace(compiled.board, qemu=""), samples(1))


@pytest.mark.parametrize("array", ["npu_weights", "commands"])
def test_outputs_follow_from_the_arrays_in_c(array: str):
    """A wrong number among the weights, or among the commands, changes the outputs or is refused."""
    net = Net()
    x = net.dequantize(net.input("x", 1, 8, 24, 24, dtype=np.int8), 0.05, 3)
    net.output(net.quantize(conv(16, (3, 3), channels=8)(net, x), 0.4, 0, out="y"), dtype=np.int8)
    compiled = compile_model(net.model(), replace(load_board(BOARD), qemu=""), CompileOptions(npu="only"))
    (inputs,) = samples(1)
    (expected,) = compiled.interpret_samples([inputs])
    np.testing.assert_array_equal(compiled.simulate([inputs]).outputs[0]["y"], expected["y"])
    files = compiled.bundle.files
    declared = re.compile(rf"{array}\[\d*\] .*= {{[^}}]*}}")
    ((name, match),) = ((name, m) for name, text in files.items() if (m := declared.search(text)))
    spots = list(re.finditer(r"(?<=[ {\n])(0x)?[0-9a-f]+u?(?=[,\s}])", match[0].partition("= ")[2]))
    start = match.start() + len(match[0].partition("= ")[0]) + 2
    spot = spots[len(spots) // 2]
    wrong = files[name][: start + spot.start()] + "77u" + files[name][start + spot.end() :]
    try:
        run = simulate(replace(compiled.bundle, files={**files, name: wrong}), compiled.board, [inputs])
    except (VerificationError, CommandStreamError):
        return
    assert not np.array_equal(run.outputs[0]["y"], expected["y"])


def test_an_arena_that_an_npu_shares_fills_whole_cache_lines(compiled: CompiledModel):
    header = compiled.bundle.files["net.h"]
    assert "#define NET_ARENA_ALIGN 32u" in header
    assert all(size % 32 == 0 for size in compiled.program.area_sizes)
    plain = compile_model(network(), BOARD, CompileOptions(optimize="speed"))
    assert "#define NET_ARENA_ALIGN 16u" in plain.bundle.files["net.h"]


def test_without_a_stand_in_kernels_maintain_caches_by_registers(compiled: CompiledModel, tmp_path: Path):
    """The code of a project, in which no macro is defined, compiles without warnings for a Cortex-M55."""
    gcc = shutil.which("arm-none-eabi-gcc")
    if gcc is None:
        pytest.skip("needs arm-none-eabi-gcc")
    for name, text in compiled.bundle.files.items():
        if name.endswith((".c", ".h")) and "/" not in name:
            (tmp_path / name).write_text(text)
    stand_in = (resource_dir("templates") / "harness/ethos_u/ethosu_driver.h").read_text()
    driver = re.sub(r"(?m)^(#define MCUGEN_DCACHE|void harness_).*\n", "", stand_in)
    assert "harness" not in driver.split("*/", 2)[-1]
    (tmp_path / "ethosu_driver.h").write_text(driver)
    flags = ["-mcpu=cortex-m55", "-std=c99", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Werror"]
    command = [gcc, *flags, "-O2", "-mfloat-abi=hard", "-S", "-o", "-", "net.c"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "dsb" in done.stdout


def test_exact_gives_the_results_of_the_cpu(compiled: CompiledModel):
    exact = compile_model(network(), BOARD, CompileOptions(npu="exact", optimize="speed"))
    plain = compile_model(network(), BOARD, CompileOptions(optimize="speed"))
    assert any(isinstance(node.op, Offloaded) for node in exact.graph.nodes)
    for ours, theirs in zip(*(c.interpret_samples(samples(3)) for c in (exact, plain)), strict=True):
        np.testing.assert_array_equal(ours["y"], theirs["y"])


def test_inputs_of_odd_sizes_lie_in_one_buffer():
    net = Net()
    a = net.dequantize(net.input("a", 3, 7, dtype=np.int8), 0.05, 3)
    b = net.dequantize(net.input("b", 3, 1, dtype=np.int8), 0.02, -4)
    net.output(net.quantize(net.op("Mul", a, b), 0.01, 5, out="y"), dtype=np.int8)
    mixed = compile_model(net.model(), replace(load_board(BOARD), qemu=""), CompileOptions(npu="only"))
    assert any(isinstance(node.op, Offloaded) for node in mixed.graph.nodes)
    random = np.random.default_rng(6)
    inputs = [{n: random.integers(-128, 128, s).astype(np.int8) for n, s in (("a", (3, 7)), ("b", (3, 1)))}]
    np.testing.assert_equal(mixed.simulate(inputs).outputs, mixed.interpret_samples(inputs))


def test_equal_models_give_equal_code(compiled: CompiledModel):
    again = compile_model(network(), BOARD, CompileOptions(npu="auto", optimize="speed"))
    assert again.bundle.files == compiled.bundle.files


def test_packages_name_the_driver(compiled: CompiledModel):
    files = compiled.bundle.files
    (pack,) = (text for name, text in files.items() if name.endswith(".pdsc"))
    assert 'name="ethos-u-core-driver"' in pack and 'Cgroup="NPU Support" Csub="Ethos-U Driver"' in pack
    assert "ethos-u-core-driver" in files["CMakeLists.txt"]
    assert "ethosu_driver.h" in files["net_kernels.h"]
    assert "MCUGEN_ERROR_ACCELERATOR" in files["net_kernels.h"]


def exported(folder: Path, form: str, board: str) -> dict[str, str]:
    """Return the texts of a package of the network, written by the command line."""
    model = folder / "net.onnx"
    onnx.save(network(), model)
    done = mcugen("export", model, "-b", board, "--format", form, "--npu", "only", "-o", folder / form)
    assert done.code == 0, done.err
    assert "ethosu_init" in done.err
    files = (path for path in (folder / form).rglob("*") if path.is_file() and path.suffix != ".pack")
    return {path.relative_to(folder / form).as_posix(): path.read_text() for path in files}


def test_a_zephyr_package_brings_the_driver_in(tmp_path: Path):
    files = exported(tmp_path, "zephyr", "ra8p1")
    assert yaml.safe_load(files["zephyr/module.yml"])["build"]["depends"] == ["hal_ethos_u"]
    assert "select ETHOS_U" in files["Kconfig"]
    build = files["CMakeLists.txt"]
    assert 'zephyr_library_include_directories("${ZEPHYR_HAL_ETHOS_U_MODULE_DIR}/include")' in build
    assert 'REGEX "ethosu_invoke_v3"' in build
    assert "ethosu_invoke_v3(" in files["src/net_kernels.h"]
    assert "0xE000EF68u" in files["src/net_kernels.h"] and "stand-in" not in "".join(files.values())


@pytest.mark.parametrize(("board", "variant"), [("ra8p1", "U55"), ("corstone320", "U85")])
def test_a_cmsis_pack_names_the_driver_for_the_npu(tmp_path: Path, board: str, variant: str):
    layer = yaml.safe_load(exported(tmp_path, "cmsis-pack", board)["net.clayer.yml"])["layer"]
    components = [entry["component"] for entry in layer["components"]]
    assert f"Machine Learning:NPU Support:Ethos-U Driver&Generic {variant}" in components
    assert any(entry["pack"].startswith("ARM::ethos-u-core-driver@") for entry in layer["packs"])


def test_small_layers_stay_on_the_cpu():
    net = Net()
    x = net.dequantize(net.input("x", 1, 64, dtype=np.int8), 0.05, 3)
    net.output(net.quantize(dense(16, 64)(net, x), 0.5, 0, out="y"), dtype=np.int8)
    compiled = compile_model(net.model(), BOARD, CompileOptions(npu="auto"))
    assert all(not instr.is_offloaded for instr in compiled.program.instrs)
    assert any("no layer runs there" in note for note in compiled.report.notes)
    assert any(i.is_offloaded for i in compile_model(net.model(), BOARD, CompileOptions(npu="only")).program.instrs)


def test_the_arena_lies_where_the_npu_reaches_it():
    assert compile_model(network(), "alif_e7", CompileOptions(npu="auto")).options.place.arena == ("sram0",)
    with pytest.raises(UsageError, match="sram0"):
        compile_model(network(), "alif_e7", CompileOptions(npu="only", place=Places(arena=("dtcm",))))


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.qemu
@pytest.mark.parametrize(
    ("name", "gain"),
    [
        ("resnet8_cifar10_int8_qdq_nhwc", 8),
        ("ds_cnn_kws_int8_qdq", 8),
        ("mobilenet_v1_025_vww_int8_qdq_nhwc", 8),
        ("autoencoder_ad_int8_qdq", 1),
    ],
)
def test_mlperf_tiny(name: str, gain: int):
    with_npu, without = (
        compile_model(MODELS / f"{name}.onnx", BOARD, CompileOptions(npu=use)) for use in ("auto", "off")
    )
    shape = {v.name: v.type for v in with_npu.graph.inputs}
    inputs = [{n: np.zeros(t.shape, t.dtype.numpy) for n, t in shape.items()}]
    ours, theirs = (c.simulate(inputs, cycles=True) for c in (with_npu, without))
    np.testing.assert_equal(ours.outputs, with_npu.interpret_samples(inputs))
    assert ours.cycles.total * gain <= theirs.cycles.total
