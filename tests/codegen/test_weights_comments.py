# SPDX-License-Identifier: Apache-2.0
"""The weights file names what each array holds, begins lines at rows, and no C name has a tail made by a machine."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
import pytest
from compressible_models import compressible_network
from onnx_models import Net

from mcugen import Compilation
from mcugen.codegen.constants import MIN_ROW_ELEMENTS, natural_row_size
from mcugen.codegen.literals import c_rows
from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.driver.tasks import Quantizing

ARRAY = re.compile(r"/\* ((?:(?!\*/).)*?) \*/\n\S+ const (\w+) (\w+)\[(\d+)\] = \{\n(.*?)\};", re.DOTALL)


@dataclass(frozen=True)
class WrittenArray:
    """An array of constants, as the C file shows it."""

    comment: str
    name: str
    count: int
    lines: list[str]

    @property
    def numbers_by_line(self) -> list[list[str]]:
        lines = [re.sub(r"/\* \d+ \*/", "", line).strip() for line in self.lines]
        return [[text for text in re.split(r",\s*", line) if text] for line in lines]

    @property
    def row_starts(self) -> list[int]:
        """Indices of the elements that begin a row: at a row's number, or each line if no row has a number."""
        starts, at, are_numbered = [], 0, "/* " in self.lines[0]
        for line, numbers in zip(self.lines, self.numbers_by_line, strict=True):
            if not are_numbered or line.startswith(f"    /* {len(starts)} */ "):
                starts.append(at)
            at += len(numbers)
        return starts


def arrays_of(model: onnx.ModelProto, board: str, **options: object) -> list[WrittenArray]:
    bundle = compile_model(model, board, CompileOptions(name="net", **options)).bundle
    return parse(bundle.files["net_weights.c"])


def parse(text: str) -> list[WrittenArray]:
    found = []
    for comment, _, name, count, body in ARRAY.findall(text):
        plain = re.sub(r"\s*\n \* ?", " ", comment)
        found.append(WrittenArray(plain, name, int(count), body.split("\n")))
    for array in found:
        assert sum(map(len, array.numbers_by_line)) == array.count, array.name
        assert max(map(len, array.lines)) <= 120
    return found


def assert_rows(array: WrittenArray, row_size: int) -> None:
    """Require that lines begin at multiples of the row size, and that each row begins a line."""
    assert array.row_starts == list(range(0, array.count, row_size)), array.name


RANDOM = np.random.default_rng(0)
SCALES = np.linspace(0.001, 0.004, 16).astype(np.float32)


def int8_layer(shape: tuple[int, ...], op: str = "Conv", **attributes: object) -> onnx.ModelProto:
    """An int8 layer with per-channel weights "stem.weight" and a bias "stem.bias"."""
    net = Net(21)
    channels = shape[1] * attributes.get("group", 1)  # type: ignore[operator]
    size = (1, channels) if op == "Gemm" else (1, channels, 8, 8)
    x = net.fake(net.input("x", *size), 0.05, 3)
    scales = SCALES[: shape[0]]
    codes = net.const(RANDOM.integers(-127, 128, shape), np.int8, "stem.weight")
    weights = net.op("DequantizeLinear", codes, net.const(scales, name="stem.scale"), axis=0)
    sums = net.const(RANDOM.integers(-99, 99, shape[0]), np.int32, "stem.bias")
    bias = net.op("DequantizeLinear", sums, net.const(scales * np.float32(0.05)), axis=0)
    net.output(net.fake(net.op(op, x, weights, bias, **attributes), 0.1, 0))
    return net.model()


def float_conv(name: str = "stem.weight") -> onnx.ModelProto:
    net = Net()
    x, w = net.input("x", 1, 3, 8, 8), net.const(RANDOM.normal(size=(8, 3, 3, 3)), name=name)
    net.output(net.op("Conv", x, w, net.const(RANDOM.normal(size=8), name="stem.bias"), pads=[1] * 4))
    return net.model()


def folded_batch_norm() -> onnx.ModelProto:
    net = Net()
    x, w = net.input("x", 1, 3, 8, 8), net.const(RANDOM.normal(size=(8, 3, 3, 3)), name="stem.weight")
    statistics = [net.const(RANDOM.uniform(0.5, 2, 8), name=f"bn.{k}") for k in ("gamma", "beta", "mean", "var")]
    net.output(net.op("BatchNormalization", net.op("Conv", x, w, pads=[1] * 4), *statistics))
    return net.model()


def lstm() -> onnx.ModelProto:
    net = Net()
    x = net.input("x", 5, 1, 6)
    w, r = (net.const(RANDOM.normal(size=(1, 32, k)), name=f"lstm.{n}") for n, k in (("W", 6), ("R", 8)))
    b = net.const(RANDOM.normal(size=(1, 64)), name="lstm.B")
    net.ops("LSTM", x, w, r, b, outs=["y", "yh"], hidden_size=8)
    net.output("y", "yh")
    return net.model()


SCALE = "stored with scale 0.001 to 0.004 by channel (axis 0), zero point 0"
INT8_WEIGHTS = rf'Initializer "stem.weight", int8 \[16, .*\]; {re.escape(SCALE)}'
BIAS = r'Initializer "stem.bias", int32 \[16\]'
CONV, DENSE = (16, 4, 3, 3), (16, 24)

CASES: dict[str, tuple[Callable[[], onnx.ModelProto], str, dict[str, list[str]]]] = {
    "conv_dsp": (
        lambda: int8_layer(CONV, pads=[0] * 4),
        "nrf52840",
        {"w": [INT8_WEIGHTS, BIAS, r"Layout: by 2 output channels: .*; \[8\]\[\d+\]"]},
    ),
    "conv_thumb1": (
        lambda: int8_layer(CONV),
        "rp2040",
        {"w": [INT8_WEIGHTS, "Layout: weights by output channel, in chunks"], "tails": [BIAS, r"\[16\]\[2\]"]},
    ),
    "conv_helium": (
        lambda: int8_layer(CONV),
        "corstone300",
        {"w": [INT8_WEIGHTS, r"Layout: .*rows of \d+"], "table": [BIAS, "rows of 8"]},
    ),
    "conv_riscv": (lambda: int8_layer(CONV), "esp32c3", {"w": [INT8_WEIGHTS, "Layout: "], "bias": [BIAS]}),
    "dense_portable": (
        lambda: int8_layer(DENSE, "Gemm", transB=1),
        "host",
        {"w": [INT8_WEIGHTS, "Layout: .*by four output channels.*rows of 96"], "bias": [BIAS]},
    ),
    "dense_dsp": (
        lambda: int8_layer(DENSE, "Gemm", transB=1),
        "nrf52840",
        {"w": [INT8_WEIGHTS, BIAS, r"Layout: by 4 output channels: .*; \[4\]\[\d+\]"]},
    ),
    "depthwise_dsp": (
        lambda: int8_layer((16, 1, 3, 3), group=16, pads=[1] * 4),
        "nrf52840",
        {"w": [INT8_WEIGHTS, "Layout: "]},
    ),
    "conv_float": (
        float_conv,
        "nrf52840",
        {
            "w": [
                r'Initializer "stem.weight", float32 \[8, 3, 3, 3\] ',
                r'Initializer "stem.bias", float32 \[8\]',
                "Layout: by four channels: their biases, then their weights.*; rows of 112",
            ]
        },
    ),
    "batch_norm": (
        folded_batch_norm,
        "host",
        {
            "w": [
                r'Folded from initializer "stem.weight", float32 \[8, 3, 3, 3\], '
                r'initializer "bn.gamma", float32 \[8\], initializer "bn.var", float32 \[8\]'
            ],
            "bias": [r'Folded from initializer "bn.gamma".*"bn.var".*"bn.beta".*"bn.mean"'],
        },
    ),
    "lstm": (
        lstm,
        "host",
        {
            "w": [r'Initializer "lstm.W", float32 \[1, 32, 6\]', "Layout: weights of x .*rows of 24"],
            "r": [r'Initializer "lstm.R", float32 \[1, 32, 8\]'],
            "bias": [r'Initializer "lstm.B", float32 \[1, 64\]'],
        },
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_comments_name_initializers_scales_and_layout(case: str):
    make, board, expected = CASES[case]
    arrays = arrays_of(make(), board)
    for role, patterns in expected.items():
        names = {"w": ("weights", "w", "winograd")}.get(role, (role,))
        array = next(a for a in arrays if a.name.endswith(tuple(f"_{name}" for name in names)))
        for pattern in patterns:
            assert re.search(pattern, array.comment + " "), f"{array.name}: {array.comment}"


@pytest.mark.parametrize("case", CASES)
def test_lines_begin_at_the_rows_that_the_comment_states(case: str):
    make, board, _ = CASES[case]
    checked = 0
    for array in arrays_of(make(), board):
        rows = re.search(r"Layout: .*rows of (\d+)$", array.comment)
        axes = re.search(r"Layout: .*?((?:\[\d+\])+)$", array.comment)
        shape = tuple(int(n) for n in re.findall(r"\d+", axes.group(1))) if axes else ()
        stated = int(rows.group(1)) if rows else natural_row_size(shape)
        if 0 < stated < array.count:
            assert_rows(array, stated * -(-MIN_ROW_ELEMENTS // stated))
            checked += 1
    assert checked


def test_rows_of_packed_weights_are_blocks_of_channels():
    array = arrays_of(int8_layer(DENSE, "Gemm", transB=1), "host")[0]
    weights = np.asarray([int(n) for line in array.numbers_by_line for n in line]).reshape(4, 24, 4)
    assert array.row_starts == [0, 96, 192, 288]
    first_row = [int(n) for n in array.numbers_by_line[0][:4]]
    assert first_row == weights[0, 0].tolist()


def test_compressed_weights_name_their_initializer():
    arrays = arrays_of(compressible_network(), "nrf52840", optimize="flash")
    coded = [a for a in arrays if "Rice code" in a.comment]
    assert coded
    for array in coded:
        assert re.search(
            r'Initializer "const\d+", int8 \[[\d, ]+\]; stored with scale 0.01, zero point 0', array.comment
        )


@pytest.mark.parametrize("name", ["*/ int x; /*", "a\\\nb", "??/", "w" * 500, "gewicht_ä\x00\x1b[0m", '"quoted"', "//"])
def test_hostile_names_stay_within_the_comment(name: str):
    bundle = compile_model(float_conv(name), "host", CompileOptions(name="net")).bundle
    text = bundle.files["net_weights.c"]
    assert len(parse(text)) == len(re.findall(r"\] = \{", text))
    assert text.isascii() and "??/" not in text and "int x;" not in re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    assert max(map(len, text.split("\n"))) <= 120
    assert "Initializer" in text


def test_equal_arrays_name_the_tensors_of_all_their_layers():
    net, codes = Net(), RANDOM.normal(size=(4, 4, 3, 3))
    x = net.input("x", 1, 4, 8, 8)
    for number in range(2):
        x = net.op("Conv", x, net.const(codes, name=f"layer{number}.weight"), pads=[1] * 4)
    net.output(x)
    (weights,) = (a for a in arrays_of(net.model(), "host") if "weight" in a.name)
    assert 'Initializer "layer0.weight"' in weights.comment
    assert 'Initializer "layer1.weight"' in weights.comment


def test_constants_of_nodes_are_not_called_initializers():
    net = Net()
    value = onnx.numpy_helper.from_array(np.ones((8, 3, 3, 3), np.float32))
    w = net.op("Constant", out="made", value=value)
    net.output(net.op("Conv", net.input("x", 1, 3, 8, 8), w))
    comments = " ".join(a.comment for a in arrays_of(net.model(), "host"))
    assert 'Constant "made", float32 [8, 3, 3, 3]' in comments
    assert "nitializer" not in comments


@pytest.mark.parametrize("op", ["LSTM", "GRU"])
def test_quantized_recurrent_layers_have_names_without_machine_tails(op: str):
    gates = {"LSTM": 4, "GRU": 3}[op]
    net = Net()
    x = net.input("x", 5, 1, 6)
    w, r = (net.const(RANDOM.normal(0, 0.3, (2, gates * 8, k)), name=n) for n, k in (("W", 6), ("R", 8)))
    net.ops(op, x, w, r, outs=["y", "yh"], hidden_size=8, direction="bidirectional")
    net.output("y", "yh")
    model = net.model()
    model.graph.node[0].name = ""
    samples = {"x": RANDOM.normal(size=(4, 5, 1, 6)).astype(np.float32)}
    quantizing = Quantizing(calibration=samples, precision="int8")
    bundle = Compilation(model, "host", CompileOptions(name="net"), quantizing).compiled.bundle
    code = re.sub(r"/\*.*?\*/", "", bundle.files["net.c"] + bundle.files["net_weights.h"], flags=re.DOTALL)
    names = set(re.findall(r"\b[a-z]\w{5,}\b", code))
    assert not [n for n in names if re.search(r"integer|_\d\d+_[a-z]|(_[a-z]+_\d?_?)\1", n)], sorted(names)


@pytest.mark.parametrize(
    ("shape", "row_size"), [((10,), 0), ((16, 27), 27), ((16, 3, 3, 4), 12), ((8, 2, 2), 4), ((4, 2), 2)]
)
def test_rows_are_the_last_axes_that_fill_a_line(shape: tuple[int, ...], row_size: int):
    assert natural_row_size(shape) == row_size


def test_rows_of_a_literal_begin_lines():
    assert list(c_rows(np.arange(6, dtype=np.int32), width=40, row_size=3)) == ["0, 1, 2,", "3, 4, 5,"]


def test_rows_of_several_lines_have_numbers():
    lines = list(c_rows(np.arange(60, dtype=np.int32), width=40, row_size=20))
    assert max(map(len, lines)) <= 40
    assert [line for line in lines if "*" in line] == [
        line for line in lines if line.startswith(("/* 0 */ 0,", "/* 1 */ 20,", "/* 2 */ 40,"))
    ]
    assert [int(t) for t in re.sub(r"/\*.*?\*/", "", "".join(lines)).split(",") if t.strip()] == list(range(60))
