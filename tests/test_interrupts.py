# SPDX-License-Identifier: Apache-2.0
"""Interrupts at any place of generated code, whose handlers use flags, FPU, vectors and stack, change no bit.

Under QEMU, whose clock follows the instructions: a timer interrupts again and again while models of all kernels run.
What this cannot show is what QEMU does not play: instructions that a real CPU takes up again in the middle.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from bundle_batch import combine
from compressible_models import compressible_network
from elftools.elf.elffile import ELFFile
from onnx_models import Net, random_feeds
from portable_models import POOL, net_of, portable_models
from shared_models import roomy

from mcugen.codegen.bundle import Bundle, Port
from mcugen.core.errors import VerificationError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.kernels.portable.packed import DENSE_PACKED_TILE
from mcugen.simulation.build import build_target
from mcugen.simulation.execute import execute, qemu_program
from mcugen.simulation.machines import MemoryRange, find_machine
from mcugen.simulation.toolchain import ARM, RISCV

CPUS = [
    *(pytest.param(board, marks=pytest.mark.qemu) for board in ("rp2040", "nrf52840", "corstone300")),
    *(pytest.param(board, marks=pytest.mark.riscv) for board in ("rv32imc", "rv32imafc")),
]
EVERY_CPU = [
    *(pytest.param(board, marks=pytest.mark.qemu) for board in ("stm32f103", "rt1060", "nrf5340")),
    *CPUS,
]
KINDS = ("s8", "s16", "f32", "s4")
LAYERS = tuple(layer for part in POOL for layer in part)
TICKS = {ARM.name: 300, RISCV.name: 1}
"""Of the timer, from the end of a handler to the next interrupt: some 20 instructions on Arm, 100 on RISC-V."""
MASKS = re.compile(r"\t(cpsi[de]\b.*|msr\s+(primask|basepri\w*|faultmask).*|csr\w+.*\b(mstatus|mie|mideleg)\b.*)", re.I)


@dataclass(frozen=True)
class Storm:
    """What a program gave that ran under interrupts, and where in its code these came."""

    image: Path
    outputs: dict[str, np.ndarray]
    places: np.ndarray
    """Whether an interrupt came, for each two bytes of code from `code` on."""
    code: int

    def missed(self, names: Set[str]) -> set[str]:
        """Functions of these names that were interrupted in no model; parts that the compiler made of one
        (`name.part.0`) count as it."""
        found, seen = set[str](), set[str]()
        with self.image.open("rb") as file:
            for symbol in ELFFile(file).get_section_by_name(".symtab").iter_symbols():
                name = symbol.name.partition(".")[0]
                if symbol["st_info"]["type"] == "STT_FUNC" and name in names:
                    begin = (symbol["st_value"] - self.code) // 2
                    seen.add(name)
                    found |= {name} if self.places[begin : begin + symbol["st_size"] // 2].any() else set()
        return seen - found


def stormy(batch: Bundle, ticks: int, code: MemoryRange, seed: int = 0) -> Bundle:
    """Models that run one after the other, under interrupts from beginning to end; with a seed they may be few."""
    source = (Path(__file__).parent / "interrupts.c").read_text()
    header = f"""#include "batch.h"
#define TICKS {ticks}u
#define SEED {seed}u
{"#define WANTED 1u" if seed else ""}
#define STORM_ARENA_SIZE {batch.arena_size}u
#define STORM_ARENA_ALIGN 16u
#define STORM_CODE {code.origin}u
#define STORM_CODE_SIZE {code.size}u
int storm_run(void *arena);
const uint8_t *storm_interrupted(const void *arena);
"""
    places = Port("interrupted", "storm_interrupted", "uint8", (code.size // 16,), code.size // 16)
    files = {"storm.h": header, "storm.c": source, "storm_weights.c": "typedef int none;\n"}
    return replace(batch, name="storm", files=batch.files | files, outputs=(*batch.outputs, places))


def run(bundle: Bundle, board: str, sample: dict[str, np.ndarray], folder: Path) -> tuple[dict[str, np.ndarray], Path]:
    """Outputs, and the program."""
    target = roomy(board)
    machine = find_machine(target)
    image = build_target(bundle, target, machine, folder, hooks=False).model
    program = qemu_program(image, machine, count_instructions=True)
    return execute(program, bundle, [sample], folder / "run", timeout=300).outputs[0], image


def under_storm(batch: Bundle, board: str, sample: dict[str, np.ndarray], folder: Path, seed: int = 0) -> Storm:
    code = code_of(board)
    outputs, image = run(stormy(batch, TICKS[roomy(board).toolchain], code, seed), board, sample, folder)
    places = np.unpackbits(outputs.pop("interrupted"), bitorder="little").astype(bool)
    return Storm(image, outputs, places, code.origin)


def code_of(board: str) -> MemoryRange:
    """Where the code lies."""
    return next(region for region in find_machine(roomy(board)).regions if region.name == "CODE")


def masking(image: Path, board: str) -> list[str]:
    """Instructions that mask interrupts, in functions of the models."""
    toolchain = find_machine(roomy(board)).toolchain
    text = subprocess.run([toolchain.objdump, "-d", str(image)], capture_output=True, text=True, check=True).stdout
    functions = re.findall(r"^[0-9a-f]+ <(.+)>:\n((?:.+\n)+)", text, re.M)
    return [f"{name}: {found[0]}" for name, body in functions for found in MASKS.findall(body) if name not in OWN]


OWN = ("read_counter", "reset_handler", "start", "stop", "storm_run")
"""Of the harness, and of interrupts.c."""


def model_of(kind: str, board: str) -> CompiledModel:
    return compile_model(net_of(kind, LAYERS).model(), roomy(board), CompileOptions(name="net", optimize="speed"))


@pytest.mark.spread(8)
@pytest.mark.parametrize("kind", [KINDS[0], *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS[1:])])
@pytest.mark.parametrize("board", CPUS)
def test_interrupts_change_no_bit(board: str, kind: str, tmp_path: Path):
    storm = compare([model_of(kind, board)], [random_feeds(net_of(kind, LAYERS).model(), seed=1)], board, tmp_path)
    assert storm.missed({"report_fault", "use_stack", "net_run"}) >= {"report_fault"}, "which never ran"


def compare(
    models: Sequence[CompiledModel], feeds: Sequence[dict[str, np.ndarray]], board: str, folder: Path, seed: int = 0
) -> Storm:
    """Under a storm as without, where integers are numpy's (other tests see to that)."""
    sample = {f"{m.bundle.name}/{n}": a for m, given in zip(models, feeds, strict=True) for n, a in given.items()}
    batch = combine([model.bundle for model in models])
    expected, _ = run(batch, board, sample, folder / "calm")
    storm = under_storm(batch, board, sample, folder / "storm", seed)
    assert storm.outputs.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(storm.outputs[name], array, err_msg=name)
    assert masking(storm.image, board) == []
    return storm


def limited_layer(op: str, *shape: int) -> onnx.ModelProto:
    """Of floats that are limited, which no portable model has."""
    net = Net()
    x = net.input("x", *((2, 8) if op == "Gemm" else (1, 8, 5, 5)))
    weights = np.random.default_rng(1).normal(size=shape)
    net.output(net.op("Relu", net.op(op, x, net.const(weights))))
    return net.model()


LONGER = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["" : 18]> g (int64[96] x) => (int64[n] y) { y = Unique<sorted = 1>(x) }'
)
"""A model whose portable form ends after two or three interrupts."""


def bordered_layer(channels: int) -> onnx.ModelProto:
    """Of floats, whose windows go over the border, more often than those of portable models."""
    net, random = Net(), np.random.default_rng(2)
    x = net.input("x", 1, channels, 16, 16)
    net.output(net.op("Conv", x, net.const(random.normal(size=(8, channels, 5, 5))), pads=[2, 2, 2, 2]))
    return net.model()


LIMITED = (
    (limited_layer("Gemm", 8, 12), CompileOptions(name="limited_dense", optimize="speed")),
    (limited_layer("Conv", 8, 8, 3, 3), CompileOptions(name="limited_conv", optimize="speed")),
    (
        onnx.parser.parse_model(
            re.sub(r"(\w) = MatMul\((.*?)\)", r"\1m = MatMul(\2) \1 = Relu(\1m)", DENSE_PACKED_TILE.example)
        ),
        CompileOptions(name="limited_tile"),
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize("board", EVERY_CPU)
def test_interrupts_within_every_kernel(board: str, tmp_path: Path):
    """Whose instructions the CPU has: each function of a kernel is interrupted, and changes no bit."""
    target = roomy(board)
    limited = [(compile_model(net, roomy("nrf52840"), options), random_feeds(net, seed=1)) for net, options in LIMITED]
    longer = compile_model(LONGER, target, CompileOptions(name="longer_unique")), random_feeds(LONGER, seed=1)
    bordered = [
        (compile_model(net, target, CompileOptions(name=f"bordered_{n}_{half:d}", float16_weights=half)), feeds)
        for n in (1, 3, 8, 16)
        for net in [bordered_layer(n)]
        for feeds in [random_feeds(net, seed=1)]
        for half in (False, True)
    ]
    decoded = compile_model(compressible_network(), target, CompileOptions(name="decoded", optimize="flash"))
    turned = compile_model(turned_and_added(), target, CompileOptions(name="turned"))
    widths = compile_model(of_several_widths(), target, CompileOptions(name="widths"))
    nine = compile_model(of_nine_bits(), target, CompileOptions(name="nine_bits"))
    grouped = compile_model(row_of_groups(), target, CompileOptions(name="grouped"))
    interpolated = compile_model(interpolated_rows(), target, CompileOptions(name="interpolated"))
    made = (
        *((decoded, compressible_network()), (turned, turned_and_added()), (widths, of_several_widths())),
        *((nine, of_nine_bits()), (grouped, row_of_groups()), (interpolated, interpolated_rows())),
    )
    others = [(model, random_feeds(net, seed=1)) for model, net in made]
    candidates = [*((p.model, p.feeds) for p in portable_models()), *limited, *bordered, longer, *others]
    known = [(replace(m, board=target), given) for m, given in candidates if m.board.features <= target.features]
    missed = set().union(*(kernel_functions(model) for model, _ in known))
    assert len(missed) > 50
    for seed in range(40):
        storm = compare([m for m, _ in known], [given for _, given in known], board, tmp_path / str(seed), seed)
        missed = storm.missed(missed)
        known = [(model, given) for model, given in known if missed & kernel_functions(model)]
        if not known:
            break
    assert missed == set()


def turned_and_added() -> onnx.ModelProto:
    """A matrix of bytes, large enough for blocks, with rows and columns beside them; sums of int16 of one scale."""
    net = Net(21)
    net.output(net.op("Transpose", net.input("x", 2, 47, 18, dtype=np.int8), out="y", perm=[0, 2, 1]), dtype=np.int8)
    a, b = (net.dequantize(net.input(name, 31, dtype=np.int16), 0.001, 0, np.int16) for name in "ab")
    net.output(net.quantize(net.op("Add", a, b), 0.001, 0, np.int16, out="sum"), dtype=np.int16)
    return net.model()


def of_several_widths() -> onnx.ModelProto:
    """Dense layers of 8 and 16 channels for 128 tokens, which share one function where there is one for pixels; and
    means of 256 pixels, which take more than one part."""
    net, random = Net(21), np.random.default_rng(4)
    for width in (8, 16):
        x = net.dequantize(net.input(f"x{width}", 128, 8, dtype=np.int8), 0.05, 3, np.int8)
        w = net.dequantize(net.const(random.integers(-127, 128, (8, width)), np.int8), 0.01, 0, np.int8)
        net.output(net.quantize(net.op("MatMul", x, w), 0.4, 5, np.int8, out=f"y{width}"), dtype=np.int8)
    pixels = net.dequantize(net.input("pixels", 1, 8, 16, 16, dtype=np.int8), 0.05, 3, np.int8)
    net.output(net.quantize(net.op("GlobalAveragePool", pixels), 0.05, 3, np.int8, out="mean"), dtype=np.int8)
    return net.model()


def of_nine_bits() -> onnx.ModelProto:
    """Convolutions of each kind with uint8 weights about a zero point, of which int8 does not hold all."""
    net, random = Net(21), np.random.default_rng(6)
    x = net.dequantize(net.input("x", 1, 16, 12, 12, dtype=np.int8), 0.02, 5, np.int8)
    for layer, (kernel, group) in enumerate(((3, 1), (3, 16), (1, 1))):
        codes = random.integers(0, 256, (16, 16 // group, kernel, kernel))
        w = net.dequantize(net.const(codes, np.uint8), 0.01, 117, np.uint8)
        y = net.op("Conv", x, w, pads=[kernel // 2] * 4, group=group)
        net.output(net.quantize(y, 0.2, 3, np.int8, out=f"y{layer}"), dtype=np.int8)
    return net.model()


def row_of_groups() -> onnx.ModelProto:
    """Of a convolution whose windows leave the sides of its only row, again and again."""
    net, random = Net(21), np.random.default_rng(5)
    x = net.dequantize(net.input("x", 1, 32, 3, 9, dtype=np.int8), 0.05, 3, np.int8)
    w = net.dequantize(net.const(random.integers(-127, 128, (32, 8, 3, 3)), np.int8), 0.01, 0, np.int8)
    y = net.op("Conv", x, w, pads=[0, 4, 0, 4], group=4)
    net.output(net.quantize(y, 0.4, 5, np.int8, out="y"), dtype=np.int8)
    return net.model()


def interpolated_rows() -> onnx.ModelProto:
    """Images and lines of one to five channels, channels last, to other sizes."""
    net = Net(21)
    linear = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
    for channels in range(1, 6):
        for height in (1, 4):
            name = f"{channels}x{height}"
            x = net.dequantize(net.input(f"x{name}", 1, height, 9, channels, dtype=np.int8), 0.05, 3, np.int8)
            sizes = net.const([1, height if height == 1 else 9, 13, channels], np.int64)
            y = net.op("Resize", x, "", "", sizes, **linear)
            net.output(net.quantize(y, 0.07, -2, np.int8, out=f"y{name}"), dtype=np.int8)
    return net.model()


def kernel_functions(model: CompiledModel) -> set[str]:
    return set(HEAD.findall(model.bundle.files[f"{model.bundle.name}_kernels.h"]))


HEAD = re.compile(r"^static [^;={}]*?\b(\w+)\(", re.M)
"""Of a function."""


def sample_of_int8() -> dict[str, np.ndarray]:
    return {f"net/{name}": array for name, array in random_feeds(net_of("s8", LAYERS).model(), seed=1).items()}


@pytest.mark.qemu
def test_a_storm_that_does_not_come_is_told(tmp_path: Path):
    bundle = stormy(combine([model_of("s8", "nrf52840").bundle]), 0xFFFFFF, code_of("nrf52840"))
    with pytest.raises(VerificationError, match=r"must return 0\. found: (-1|4294967295)"):
        run(bundle, "nrf52840", sample_of_int8(), tmp_path)


@pytest.mark.slow
@pytest.mark.qemu
def test_a_handler_that_changes_a_register_is_seen(tmp_path: Path):
    model, sample = model_of("s8", "nrf52840"), sample_of_int8()
    bundle = stormy(combine([model.bundle]), TICKS[ARM.name], code_of("nrf52840"))
    spoiled = bundle.files["storm.c"].replace("use_stack();", 'use_stack(); __asm__ volatile("eor r6, r6, #4");')
    bundle = replace(bundle, files=bundle.files | {"storm.c": spoiled})
    try:
        found, _ = run(bundle, "nrf52840", sample, tmp_path)
    except VerificationError:
        return  # a fault, or an error
    expected = model.interpret({name.removeprefix("net/"): array for name, array in sample.items()})
    assert any(not np.array_equal(found[f"net/{name}"], array) for name, array in expected.items())


def test_instructions_that_mask_are_recognized():
    listing = " 8:\tb672      \tcpsid\ti\n a:\tf380 8810 \tmsr\tPRIMASK, r0\n c:\t30047073\tcsrci\tmstatus,8\n"
    assert len(MASKS.findall(listing)) == 3
    assert MASKS.findall(" 8:\tf3ef 8005\tmrs\tr0, IPSR\n e:\tf380 8c00\tmsr\tCPSR_s, r0\n") == []
