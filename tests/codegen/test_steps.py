# SPDX-License-Identifier: Apache-2.0
"""--steps: a run in parts that the caller asks for, with the bits of a whole one; and a hook that stops a run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from c_programs import build_and_run, check_compiles
from model_variants import branching, floats, quantized, sized, stateful
from onnx_models import Net
from typer.testing import CliRunner

from mcugen.api.compilation import Compilation
from mcugen.autotuning.step_latency import compile_in_short_steps
from mcugen.cli.app import app
from mcugen.core.errors import DoesNotFitError, McugenError, UsageError
from mcugen.core.options import CompileOptions, Places
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.lir.program import Control
from mcugen.search.trace import SearchTrace

PATH = "StatefulPartitionedCall/functional_1/block_12_depthwise/batch_normalization_37/FusedBatchNormV3;block_12"
DIM = "a_dimension_with_a_name_that_explains_everything"
MODELS: Mapping[str, tuple[object, CompileOptions]] = {
    "layers": (quantized, CompileOptions(name="net")),
    "row by row": (quantized, CompileOptions(name="net", optimize="ram")),
    "input row by row": (quantized, CompileOptions(name="net", optimize="ram", stream_input=True)),
    "buffers of the caller's": (quantized, CompileOptions(name="net", external_io=True)),
    "a file of weights": (quantized, CompileOptions(name="net", weights_blob=True)),
    "floats": (floats, CompileOptions(name="net")),
    "sizes": (sized, CompileOptions(name="net", dims={DIM: (1, 37)})),
    "state": (stateful, CompileOptions(name="net", states={"after": f"{PATH}/state"})),
    "loops and branches": (branching, CompileOptions(name="net")),
}


def samples_of(compiled: CompiledModel, count: int = 3) -> list[dict[str, np.ndarray]]:
    draw = np.random.default_rng(2)
    return [
        {
            e.name: draw.integers(0, 2 if e.dtype.value == "bool" else 9, e.shape).astype(e.dtype.numpy)
            for e in compiled.program.inputs
        }
        for _ in range(count)
    ]


@pytest.mark.spread(4)
@pytest.mark.parametrize("kind", MODELS)
def test_steps_have_the_bits_of_a_run(kind: str, tmp_path: Path):
    """The run function is all steps; without --steps it is what it was."""
    make, options = MODELS[kind]
    model = make().model()
    whole = compile_model(model, options=options)
    stepped = compile_model(model, options=replace(options, steps=True))
    check_compiles(stepped.bundle, tmp_path, "gcc")
    samples = samples_of(whole)
    wanted, found = whole.simulate(samples).outputs, stepped.simulate(samples).outputs
    for ours, theirs in zip(found, wanted, strict=True):
        for name in theirs:
            np.testing.assert_array_equal(ours[name], theirs[name])
    assert len(stepped.bundle.steps) >= len(whole.bundle.layers)
    assert set(stepped.bundle.steps) == set(range(len(whole.bundle.layers)))


def test_each_row_of_a_group_is_a_step():
    options = CompileOptions("net", optimize="ram", steps=True)
    stepped = compile_model(quantized().model(), options=options)
    program = stepped.program
    events = sum(len(i.events) for i in program.instrs if i.control is Control.STREAM)
    assert events > 20
    assert len(stepped.bundle.steps) >= events
    assert f"#define NET_STEPS {len(stepped.bundle.steps)} " in stepped.bundle.files["net.h"]


@pytest.mark.parametrize("optimize", ["balanced", "ram"])
def test_beginning_stepping_and_aborting(optimize: str, tmp_path: Path):
    """Runs of two arenas, step by step in turns; one is aborted halfway, and begins anew."""
    bundle = compile_model(quantized().model(), options=CompileOptions("net", optimize=optimize, steps=True)).bundle
    check_compiles(bundle, tmp_path)
    main = """
        #include "net.h"
        #include <stdio.h>
        #define CHECK(what) if (!(what)) { printf("line %d", __LINE__); return 1; }
        static _Alignas(16) unsigned char arenas[2][NET_ARENA_SIZE];
        static void fill(void *arena, float value)
        {
            uint32_t i;
            for (i = 0; i < NET_INPUT_COUNT; ++i) net_input(arena)[i] = value * (float)(i % 7);
        }
        int main(void)
        {
            static float wanted[2][NET_OUTPUT_COUNT];
            net_steps steps[2];
            int32_t i, k, calls = 0;
            for (k = 0; k < 2; ++k) {
                fill(arenas[k], 0.1f + 0.2f * (float)k);
                CHECK(net_run(arenas[k]) == MCUGEN_OK);
                memcpy(wanted[k], net_output(arenas[k]), sizeof wanted[k]);
            }
            CHECK(memcmp(wanted[0], wanted[1], sizeof wanted[0]) != 0);
            CHECK(net_begin(NULL, arenas[0]) == MCUGEN_ERROR_NULL && net_step(NULL) == MCUGEN_ERROR_NULL);
            CHECK(net_begin(&steps[0], NULL) == MCUGEN_ERROR_NULL && net_step(&steps[0]) == MCUGEN_ERROR_STEP);
            CHECK(net_begin(&steps[0], arenas[0] + 1) == MCUGEN_ERROR_ALIGNMENT);
            CHECK(net_step(&steps[0]) == MCUGEN_ERROR_STEP);
            for (i = 0; i < NET_STEPS / 2; ++i) {
                if (i == 0) { fill(arenas[0], 9.0f); CHECK(net_begin(&steps[0], arenas[0]) == MCUGEN_OK); }
                CHECK(net_step(&steps[0]) == MCUGEN_AGAIN);
            }
            for (k = 0; k < 2; ++k) {
                fill(arenas[k], 0.1f + 0.2f * (float)k);
                CHECK(net_begin(&steps[k], arenas[k]) == MCUGEN_OK);
            }
            for (i = 0; i < NET_STEPS; ++i) {
                for (k = 0; k < 2; ++k, ++calls) {
                    CHECK(net_step(&steps[k]) == (i + 1 < NET_STEPS ? MCUGEN_AGAIN : MCUGEN_DONE));
                }
            }
            for (k = 0; k < 2; ++k) {
                CHECK(memcmp(wanted[k], net_output(arenas[k]), sizeof wanted[k]) == 0);
                CHECK(net_step(&steps[k]) == MCUGEN_ERROR_STEP);
            }
            CHECK(net_selftest(arenas[0]) == MCUGEN_OK);
            printf("%d", calls);
            return 0;
        }
        """
    printed = build_and_run(main, tmp_path, "net.c", "net_weights.c", "net_selftest.c", flags=("-std=c11",))
    assert printed == str(2 * len(bundle.steps))


def test_a_step_that_fails_ends_the_run(tmp_path: Path):
    """Rows that do not come: no further step is taken."""
    options = CompileOptions("net", optimize="ram", stream_input=True, steps=True)
    bundle = compile_model(quantized().model(), options=options).bundle
    check_compiles(bundle, tmp_path, "gcc")
    main = """
        #include "net.h"
        #include <stdio.h>
        static int read_rows(void *context, int32_t first_row, float *rows)
        {
            memset(rows, 0, NET_INPUT_ROWS * NET_INPUT_ROW_BYTES);
            return first_row >= *(int *)context;
        }
        int main(void)
        {
            int rows = 0, status, more;
            net_steps steps;
            status = net_begin(&steps, net_default_arena(), read_rows, &rows);
            do { status = net_step(&steps); } while (status == MCUGEN_AGAIN);
            more = net_step(&steps);
            printf("%d %d %d", status, more, net_run(net_default_arena(), read_rows, &rows));
            return 0;
        }
        """
    assert build_and_run(main, tmp_path, "net.c", "net_weights.c") == "5 9 5"


@pytest.mark.parametrize("length", [0, -1, 38, 2**31 - 1])
def test_a_size_that_was_overwritten_ends_the_run(length: int, tmp_path: Path):
    """The struct is the caller's: no step reads or writes beyond its tensors because of what stands there."""
    options = CompileOptions("net", dims={DIM: (1, 37)}, steps=True)
    bundle = compile_model(sized().model(), options=options).bundle
    check_compiles(bundle, tmp_path, "gcc")
    size = re.search(r"steps->(a_dimension\w*) = ", bundle.files["net.c"])
    assert size
    main = f"""
        #include "net.h"
        #include <stdio.h>
        int main(void)
        {{
            int begun, first, overwritten, more;
            net_steps steps;
            begun = net_begin(&steps, net_default_arena(), 37);
            first = net_step(&steps);
            steps.{size[1]} = {length};
            overwritten = net_step(&steps);
            more = net_step(&steps);
            printf("%d %d %d", begun == MCUGEN_OK && first == MCUGEN_AGAIN, overwritten == MCUGEN_ERROR_SIZE,
                more == MCUGEN_ERROR_STEP);
            return 0;
        }}
        """
    assert build_and_run(main, tmp_path, "net.c", "net_weights.c") == "1 1 1"


@pytest.mark.qemu
@pytest.mark.parametrize("board", ["rp2040", "nrf52840"])
@pytest.mark.parametrize("optimize", ["speed", "flash"])
def test_layers_over_any_length_in_steps(board: str, optimize: str):
    """Compilers know no bounds of a size that they read from a struct, and warn of copies of negative lengths."""
    numbers, net = np.random.default_rng(0), Net(opset=17)
    x = net.fake(net.input("x", 1, 8, "T"), 0.05)
    for kind in ("depthwise", "conv", "max", "average", "pad"):
        weights = numbers.integers(-127, 128, (8, 1 if kind == "depthwise" else 8, 3))
        if kind in ("depthwise", "conv"):
            w = net.dequantize(net.const(weights, np.int8), 0.01)
            x = net.op("Conv", x, w, pads=[1, 1], group=8 if kind == "depthwise" else 1)
        elif kind == "pad":
            x = net.op(
                "Pad",
                net.op("Slice", x, *(net.const([n], np.int64) for n in (1, 2**31, 2))),
                net.const([0, 0, 1, 0, 0, 0], np.int64),
            )
        else:
            op = {"max": "MaxPool", "average": "AveragePool"}[kind]
            x = net.op(op, x, kernel_shape=[3], pads=[1, 1])
        x = net.fake(x, 0.05)
    net.output(net.op("Identity", x, out="y"))
    options = CompileOptions("net", dims={"T": (2, 17)}, steps=True, optimize=optimize)
    model = compile_model(net.model(), board, options)
    samples = [{"x": numbers.normal(size=(1, 8, length)).astype(np.float32)} for length in (2, 9, 17)]
    for found, sample in zip(model.simulate(samples).outputs, samples, strict=True):
        np.testing.assert_allclose(found["y"], model.interpret(sample)["y"], atol=0.051)


@pytest.mark.parametrize("steps", [False, True])
def test_a_hook_that_stops_a_run(steps: bool, tmp_path: Path):
    """It is told the model, the layer's number, and by these its name; other layers are not run."""
    net, names = Net(), ("Exp_first", "MatMul_second", "ReduceSum_y")
    x = net.op("Exp", net.input("x", 64), out="first")
    x = net.op("MatMul", x, net.const(np.ones((64, 64))), out="second")
    net.output(net.op("ReduceSum", x, keepdims=0, out="y"))
    bundle = compile_model(net.model(), options=CompileOptions("net", steps=steps)).bundle
    (tmp_path / "hook.h").write_text("int hook(const void *model, int32_t layer);\n")
    check_compiles(bundle, tmp_path, "gcc")
    main = """
        #include "net.h"
        #include <stdio.h>
        static int32_t last;
        int hook(const void *told, int32_t layer)
        {
            const mcugen_model *model = (const mcugen_model *)told;
            printf("%s %d %s, ", model->name, (int)layer, model->layer_names[layer]);
            return layer == last;
        }
        int main(void)
        {
            for (last = 0; last <= NET_LAYERS; ++last) printf("%d; ", net_run(net_default_arena()));
            return 0;
        }
        """
    runs = [[f"net {i} {name}, " for i, name in enumerate(names[: last + 1])] for last in (0, 1, 2, 2)]
    flags = ("-DMCUGEN_STOP_AFTER_LAYER=hook", "-include", "stdint.h", "-include", "hook.h")
    printed = build_and_run(main, tmp_path, "net.c", "net_weights.c", flags=flags)
    assert printed == "".join(f"{''.join(run)}{status}; " for run, status in zip(runs, (8, 8, 8, 0), strict=True))


@pytest.mark.qemu
def test_steps_in_several_memories():
    options = CompileOptions("net", place=Places(arena=("dtcm", "sram")), steps=True)
    stepped = compile_model(quantized().model(), "stm32f746", options)
    samples = samples_of(stepped, 1)
    wanted = compile_model(quantized().model(), "stm32f746").simulate(samples, measure=False).outputs
    found = stepped.simulate(samples, measure=False).outputs
    for name in wanted[0]:
        np.testing.assert_array_equal(found[0][name], wanted[0][name])


# -------------------------------------------------------------------------------------------------- short steps


def cycles_by_name(made: CompiledModel, of: Mapping[str, int]) -> tuple[int, ...]:
    """Of each step: `of` the layer, or 100 for a row of one."""
    names = [made.program.head(layer).name for layer in made.program.layers()]
    layers = made.bundle.steps
    return tuple(of.get(names[n], 7) if layers.count(n) == 1 else 100 for n in layers)


def in_steps_of(
    limit: int, of: Mapping[str, int], make: Callable[[], Net] = quantized, trace: SearchTrace | None = None
) -> CompiledModel:
    """Compiled for such steps, where each layer takes so many cycles as is said of it."""
    options, model = CompileOptions("net", max_step_cycles=limit), make().model()
    return compile_in_short_steps(
        options, lambda o: compile_model(model, options=o), lambda made: cycles_by_name(made, of), trace
    )


def test_layers_that_take_too_long_are_computed_by_rows():
    whole = compile_model(quantized().model(), options=CompileOptions("net"))
    first = whole.program.head(whole.program.layers()[2]).name
    trace = SearchTrace()
    made = in_steps_of(500, {first: 501}, trace=trace)
    assert [entry.metrics.step_cycles for entry in trace.entries] == [501, 100]
    assert [entry.is_chosen for entry in trace.entries] == [False, True]
    assert made.report.steps is not None
    assert made.report.steps.by_rows == [whole.report.layers[2].name]
    assert made.report.steps.cycles_estimate == 100
    assert made.report.steps.count == len(made.bundle.steps) > len(whole.bundle.layers)
    header = made.bundle.files["net.h"]
    assert "#define NET_STEP_CYCLES 100\n" in header
    assert "1: 7, 2: 100, 3: 7" in header
    assert '"by_rows": [\n' in made.bundle.files["net_report.json"]
    samples = samples_of(whole)
    for ours, theirs in zip(made.simulate(samples).outputs, whole.simulate(samples).outputs, strict=True):
        for name in theirs:
            np.testing.assert_array_equal(ours[name], theirs[name])


def test_steps_that_are_short_as_they_are():
    made = in_steps_of(500, {})
    assert made.report.steps is not None
    assert made.report.steps.by_rows == []


@pytest.mark.parametrize(("limit", "found"), [(99, "takes 100: that is one row"), (0, "positive")])
def test_steps_that_cannot_be_so_short(limit: int, found: str):
    whole = compile_model(quantized().model(), options=CompileOptions("net"))
    first = whole.program.head(whole.program.layers()[2]).name
    with pytest.raises(McugenError, match=found):
        in_steps_of(limit, {first: 501})


def test_a_layer_whose_rows_lie_in_parts_is_named():
    whole = compile_model(quantized().model(), options=CompileOptions("net"))
    transposed = whole.program.head(whole.program.layers()[1]).name
    with pytest.raises(DoesNotFitError, match="takes 900: its rows lie in parts"):
        in_steps_of(500, {transposed: 900})


def test_a_layer_without_rows_is_named():
    def products() -> Net:
        net = Net()
        net.output(net.op("MatMul", net.input("x", 1, 64), net.const(np.ones((64, 64))), out="y"))
        return net

    with pytest.raises(DoesNotFitError, match=r"layer 'MatMul_y' takes 900: .* has no form by rows"):
        in_steps_of(500, {"y": 900}, products)


def test_time_that_nobody_knows():
    with pytest.raises(UsageError, match="'host' is not simulated"):
        _ = Compilation(quantized().model(), "host", CompileOptions("net", max_step_cycles=500)).compiled


@pytest.mark.qemu
def test_short_steps_on_a_cortex_m4(tmp_path: Path):
    """By the cycles of the simulator; the sum of all steps is about that of a run."""
    (tmp_path / "net.onnx").write_bytes(quantized().model().SerializeToString())
    line = ["compile", str(tmp_path / "net.onnx"), "-b", "nrf52840", "-o", str(tmp_path / "c"), "--json", "-", "-q"]
    report = json.loads(CliRunner().invoke(app, [*line, "--max-step-cycles", "12000"]).stdout)["steps"]
    assert 1000 < report["cycles_estimate"] == max(report["layers_estimate"]) <= 12000
    assert report["by_rows"]
    assert f"NET_STEP_CYCLES {report['cycles_estimate']}" in (tmp_path / "c" / "net.h").read_text()
