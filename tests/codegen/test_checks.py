# SPDX-License-Identifier: Apache-2.0
"""--check-weights, --checked-arena and --checked-indices: damage is told, and code without them is as it was."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from c_programs import build_and_run, check_compiles, write
from command_line import mcugen
from compilers import command, run
from flip_constants import campaign
from model_variants import floats, quantized, sized, stateful
from onnx_models import Net

from mcugen.codegen.bundle import Bundle
from mcugen.codegen.checks import struct_entry
from mcugen.core.board import load_board
from mcugen.core.errors import UsageError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.lir.kernel import CHECKED
from mcugen.lir.program import Double, Wide

PATH = "StatefulPartitionedCall/functional_1/block_12_depthwise/batch_normalization_37/FusedBatchNormV3;block_12"
DIM = "a_dimension_with_a_name_that_explains_everything"
BOTH = CompileOptions(name="net", check_weights=True, checked_arena=True)
FORMS: Mapping[str, tuple[object, CompileOptions]] = {
    "layers": (quantized, BOTH),
    "row by row": (quantized, replace(BOTH, optimize="ram")),
    "input row by row": (quantized, replace(BOTH, optimize="ram", stream_input=True)),
    "buffers of the caller's": (quantized, replace(BOTH, external_io=True)),
    "steps": (quantized, replace(BOTH, steps=True)),
    "floats": (floats, BOTH),
    "sizes": (sized, replace(BOTH, dims={DIM: (1, 37)})),
    "state": (stateful, replace(BOTH, states={"after": f"{PATH}/state"})),
}
WHOLE = """#include <stdio.h>
#include "net.h"
int main(void)
{
    net_check check = {0, 0, 0};
    int status, calls = 0;
    do {
        status = net_check_some(&check, 7);
        ++calls;
    } while (status == MCUGEN_AGAIN);
    printf("%d %d %d %u", net_check_weights(), status, calls > 1, (unsigned)check.entry);
    return 0;
}
"""
GUARDS = """#include <stdio.h>
#include "net.h"
static MCUGEN_ALIGN(16) unsigned char block[NET_GUARDED_SIZE];
int main(void)
{
    void *const arena = net_guarded_arena(block, sizeof block);
    const unsigned char before = block[3];
    if (net_guarded_arena(block, sizeof block - 1u) != NULL || net_guarded_arena(block + 1, sizeof block) != NULL) {
        return 1;
    }
    printf("%d %d", net_run_sized(arena, NET_ARENA_SIZE - 1u), net_run_sized(arena, NET_ARENA_SIZE));
    printf(" %d", net_run_guarded(arena));
    block[3] = 0;
    printf(" %d", net_run_guarded(arena));
    block[3] = before;
    block[sizeof block - 1u] = 0;
    printf(" %d", net_run_guarded(arena));
    return 0;
}
"""


def printed(bundle: Bundle, folder: Path, program: str) -> str:
    """By a program with the model's files."""
    return build_and_run(program, write(bundle, folder), "net.c", "net_weights.c")


@pytest.mark.spread(3)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_intact_constants_pass_in_steps_and_at_once(form: str, compiler: str, tmp_path: Path):
    make, options = FORMS[form]
    compiled = compile_model(make().model(), options=options)
    check_compiles(compiled.bundle, tmp_path, compiler)
    if compiler == "gcc":
        assert printed(compiled.bundle, tmp_path, WHOLE) == "0 0 1 0"


def test_every_flip_is_told():
    compiled = compile_model(quantized().model(), options=CompileOptions(name="net", check_weights=True))
    found = campaign(compiled, 20, checks=True)
    assert found.count("c") == len(found.ended)


def test_parameters_have_checksums_too(tmp_path: Path):
    """Each struct of parameters is told of as long as it is what the compiler lays out, and a changed one is found."""
    compiled = compile_model(quantized().model(), options=BOTH)
    text = compiled.bundle.files["net.c"]
    told = re.findall(r"\{&(\w+_params\w*), sizeof \1 == (\d+)u \? \2u : 0u", text)
    assert told
    lengths = "".join(f'    printf("%d", (int)sizeof {name} == {n});\n' for name, n in told)
    program = f'#include <stdio.h>\n#include "net.c"\nint main(void)\n{{\n{lengths}    return 0;\n}}\n'
    folder = write(compiled.bundle, tmp_path)
    assert build_and_run(program, folder, "net_weights.c") == "1" * len(told)
    member = re.search(r"\.outer = (\d+),|\.\w+ = (\d+),", text)
    assert member
    damaged = text[: member.start()] + member[0].replace(" = ", " = 1 + ") + text[member.end() :]
    changed = replace(compiled.bundle, files={**compiled.bundle.files, "net.c": damaged})
    assert printed(changed, tmp_path / "changed", WHOLE).split()[:2] == ["17", "17"]


TABLES = {"row by row": r"static const uint8_t (\w+_events)\[", "sizes": r"static const \w+ (\w+_table\w*)\["}


@pytest.mark.parametrize("form", TABLES)
def test_tables_of_streams_and_sizes_have_checksums(form: str, tmp_path: Path):
    """Of events, and of parameters by sizes; the tables are right, and a changed element is found."""
    make, options = FORMS[form] if form != "sizes" else (sized_tables, replace(BOTH, dims={DIM: (4, 37)}))
    bundle = compile_model(make().model(), options=options).bundle
    text = bundle.files["net.c"]
    names = re.findall(TABLES[form], text)
    assert names
    assert all(f"{{{name}, sizeof {name}, 0x" in text for name in names)
    assert printed(bundle, tmp_path, WHOLE).split()[:2] == ["0", "0"]
    begin = text.index("= {\n", re.search(TABLES[form], text).start()) + 4  # type: ignore[union-attr]
    damaged = text[:begin] + re.sub(r"\d+", lambda m: str(int(m[0]) ^ 1), text[begin:], count=1)
    changed = replace(bundle, files={**bundle.files, "net.c": damaged})
    assert printed(changed, tmp_path / "changed", WHOLE).split()[:2] == ["17", "17"]


DAMAGED = """#define const
#include "{file}"
#undef const
#include <stdio.h>
int main(void)
{{
    unsigned char *tables[] = {{(unsigned char *)checked, (unsigned char *)checked_again}};
    unsigned long bit, told = 0;
    int table;
    for (table = 0; table < 2; ++table) {{
        for (bit = 0; bit < 8u * sizeof checked; ++bit) {{
            tables[table][bit / 8u] ^= (unsigned char)(1u << bit % 8u);
            told += {check}() == MCUGEN_ERROR_CHECKSUM;
            tables[table][bit / 8u] ^= (unsigned char)(1u << bit % 8u);
        }}
    }}
    printf("%d %d %d", told == 16u * sizeof checked, sizeof checked == sizeof checked_again, {check}());
    return 0;
}}
"""


def test_every_flip_of_the_addresses_is_told(tmp_path: Path):
    """And of sizes and checksums: none is followed, as the sanitizers would say."""
    bundle = compile_model(quantized().model(), options=BOTH).bundle
    folder = write(bundle, tmp_path)
    assert build_and_run(DAMAGED.format(file="net.c", check="net_check_weights"), folder, "net_weights.c") == "1 1 0"


PIPELINES = {
    "image": ("image=rgb565, scale=1/255", (1, 3, 6, 8), ["color_codes"]),
    "stream": (
        "sound=16000, frame=64/32, window=hann, mel=4:80:4000, dct=3, stack=3",
        (1, 3, 3),
        ["feature_zeros", "feature_scales", "window_half", "turns", "bands", "weights", "logarithms", "cosines"],
    ),
}


@pytest.mark.parametrize("kind", PIPELINES)
def test_tables_that_make_the_input_have_checksums(kind: str, tmp_path: Path):
    """Every flip in any of them is told, and every flip of their addresses."""
    pipeline, shape, names = PIPELINES[kind]
    net = Net()
    net.output(net.op("Add", net.input("x", *shape), net.const(np.ones(shape))))
    options = CompileOptions(name="net", input_pipeline=pipeline, check_weights=True)
    bundle = compile_model(net.model(), options=options).bundle
    program = DAMAGED.format(file="net_input.c", check="net_check_input")
    sizes = " + ".join(f"sizeof {name}" for name in names)
    flips = "".join(
        f"""
    for (at = 0; at < 8u * sizeof {name}; ++at) {{
        ((unsigned char *){name})[at / 8u] ^= (unsigned char)(1u << at % 8u);
        found += net_check_input() == MCUGEN_ERROR_CHECKSUM;
        ((unsigned char *){name})[at / 8u] ^= (unsigned char)(1u << at % 8u);
    }}"""
        for name in names
    )
    counted = f'unsigned long at, found = 0;{flips}\n    printf("%d ", found == 8u * ({sizes}));\n    for (table'
    program = program.replace("int table;\n    for (table", f"int table;\n    {counted}", 1)
    folder = write(bundle, tmp_path)
    assert build_and_run(program, folder, "net_weights.c", "net.c") == "1 1 1 0"
    check_compiles(bundle, tmp_path, "clang")


def test_parameters_beside_a_file_of_weights_have_checksums(tmp_path: Path):
    """What NAME_check_weights cannot see, which looks at the file."""
    options = replace(BOTH, check_weights=False, check_parameters=True, weights_blob=True)
    bundle = compile_model(quantized().model(), options=options).bundle
    text = bundle.files["net.c"]
    assert re.search(r"\{&\w+_params\w*, sizeof", text)
    program = WHOLE.replace("net_check_weights()", "net_check_parameters()")
    assert printed(bundle, tmp_path, program) == "0 0 1 0"
    member = re.search(r"\.outer = (\d+),|\.\w+ = (\d+),", text)
    assert member
    damaged = text[: member.start()] + member[0].replace(" = ", " = 1 + ") + text[member.end() :]
    changed = replace(bundle, files={**bundle.files, "net.c": damaged})
    assert printed(changed, tmp_path / "changed", program).split()[:2] == ["17", "17"]
    check_compiles(bundle, tmp_path, "clang")


def test_firmware_that_is_validated_may_have_checks(tmp_path: Path):
    """The network's second copy there defines none of its functions again."""
    options = CompileOptions(name="net", check_weights=True, validation=True)
    write(compile_model(quantized().model(), options=options).bundle, tmp_path)
    for file in ("net", "net_validate"):
        run([*command("gcc"), "-c", "-I.", f"{file}.c", "-o", f"{file}.o"], tmp_path)
    run(["ld", "-r", "net.o", "net_validate.o", "-o", "both.o"], tmp_path)


def sized_tables() -> Net:
    """An integer mean over a sequence of any length, whose multiplier no formula tells."""
    net = Net()
    x = net.fake(net.input("x", DIM, 8), 0.05, 3)
    net.output(net.fake(net.op("ReduceMean", x, axes=[0]), 0.03, -5))
    return net


def test_structs_are_laid_out_as_c_does():
    entry = struct_entry("p", [1, Wide(2), 0.5, Double(0.25), 3])
    assert entry is not None
    assert entry.size == "sizeof p == 40u ? 40u : 0u"
    assert struct_entry("p", [1, float("nan")]) is None


def test_too_small_arenas_and_broken_canaries_are_told(tmp_path: Path):
    compiled = compile_model(quantized().model(), options=BOTH)
    assert printed(compiled.bundle, tmp_path, GUARDS) == "10 0 0 10 10"


def test_other_files_do_not_change():
    plain, checked = (compile_model(quantized().model(), options=o) for o in (CompileOptions(name="net"), BOTH))
    for file in ("net_kernels.h", "net_weights.c", "net_weights.h", "net_selftest.c"):
        first, second = (c.bundle.files[file].partition("*/")[2] for c in (plain, checked))
        assert first.partition("#include")[2] == second.partition("#include")[2]
    for word in ("_check", "canary", "run_sized"):
        assert not any(word in text for file, text in plain.bundle.files.items() if file != "mcugen.h")


BY_VALUE = {"conv2d_s8_thumb1", "conv2d_s8_thumb2", "conv2d_s8_rv32", "conv2d_s8_winograd", "conv2d_s8_winograd_dsp"}


def layer(largest: int = 100) -> Net:
    """A convolution for which kernels exist whose constants hold addresses; weights from -largest on, and below it."""
    draw = np.random.default_rng(0)
    net = Net()
    weights = net.const(draw.integers(-largest, largest, (16, 16, 3, 3)), np.int8)
    scale, zero = net.const(0.02), net.const(0, np.int8)
    x = net.op("DequantizeLinear", net.input("x", 1, 16, 8, 8, dtype=np.int8), scale, zero)
    w = net.op("DequantizeLinear", weights, scale, zero)
    y = net.op("Conv", x, w, pads=[1, 1, 1, 1])
    net.op("QuantizeLinear", y, net.const(0.5), zero, out="y")
    net.output("y", dtype=np.int8)
    return net


@pytest.mark.spread(3)
@pytest.mark.parametrize("board", ["rp2040", "nrf52840", "stm32f103", "esp32c3"])
def test_checked_indices_leave_out_kernels_whose_constants_hold_addresses(board: str):
    model, target = layer().model(), load_board(board).with_flash_waits(0)  # flash decides between kernels, too
    options = CompileOptions(name="net", optimize="speed")
    plain = compile_model(model, target, options)
    checked = compile_model(model, target, replace(options, checked_indices=True))
    before, after = ({i.kernel for i in compiled.program.instrs} for compiled in (plain, checked))
    assert before & BY_VALUE
    assert not after & BY_VALUE
    x = np.random.default_rng(1).integers(-128, 128, (2, 1, 16, 8, 8)).astype(np.int8)
    host = compile_model(model, options=replace(options, checked_indices=True))
    np.testing.assert_array_equal(host.run({"x": x})["y"], compile_model(model, options=options).run({"x": x})["y"])
    assert campaign(checked, 40).count("ot") == 0


@pytest.mark.parametrize(("board", "kind"), [("rp2040", "thumb1"), ("stm32f103", "thumb2"), ("esp32c3", "rv32")])
def test_checked_indices_leave_out_their_forms_of_four_bits(board: str, kind: str):
    model, target = layer(8).model(), load_board(board)
    options = CompileOptions(name="net", kernels=(f"conv2d_s4_{kind}",))
    assert f"conv2d_s4_{kind}" in {i.kernel for i in compile_model(model, target, options).program.instrs}
    with pytest.raises(UsageError, match="the kernel of --kernel must suit a layer of the model"):
        compile_model(model, target, replace(options, checked_indices=True))


def test_options_that_do_not_go_together_are_refused():
    model = quantized().model()
    with pytest.raises(UsageError, match="--check-weights is for weights in the firmware"):
        compile_model(model, options=CompileOptions(check_weights=True, weights_blob=True))
    with pytest.raises(UsageError, match="--check-parameters is for what lies beside a file of weights"):
        compile_model(model, options=CompileOptions(check_parameters=True))
    assert CHECKED == "checked-indices"
    assert "--check-weights" in mcugen("compile", "--help-all").out
