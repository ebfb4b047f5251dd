# SPDX-License-Identifier: Apache-2.0
"""--helpers and --labels: what the header does for the caller, and names of classes that nobody can break out of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from c_programs import build_and_run, check_compiles
from onnx_models import Net
from typer.testing import CliRunner

from mcugen.cli.app import app
from mcugen.core.errors import UsageError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model

HOSTILE = (
    'quote " backslash \\ both \\" end',
    "*/ int main(void) { return 1; } /*",
    "??/ ??' trigraphs ??=",
    "caf\u00e9 \u732b \U0001f408",
    "tab\tbell\a nul\0 123",
    "%s%n {{ 7 * 7 }} \\x41",
    "\u00e9" * 200,
    "",
)
SCALE, ZERO = 0.0375, 5


def coded() -> onnx.ModelProto:
    """Codes of int8 in, and codes of uint8 out."""
    net = Net()
    x = net.dequantize(net.input("x", 1, 300, dtype=np.int8), SCALE, ZERO)
    w = net.dequantize(net.const(np.random.default_rng(0).integers(-9, 9, (300, 8)), np.int8), 0.01)
    net.output(net.quantize(net.op("MatMul", x, w), 0.05, 0, out="y"), dtype=np.int8)
    return net.model()


def real(outputs: int = 8) -> onnx.ModelProto:
    net = Net()
    net.output(net.op("MatMul", net.input("x", 1, 4), net.const(np.ones((4, outputs))), out="y"), shape=(1, outputs))
    return net.model()


def helped(model: onnx.ModelProto, **options: object) -> dict[str, str]:
    return dict(compile_model(model, options=CompileOptions("net", helpers=True, **options)).bundle.files)


def test_pixels_samples_and_reals_become_the_codes_of_the_reference(tmp_path: Path):
    """Those of QuantizeLinear: to the nearest, even ones at ties, limited. Only what is asked for is written."""
    bundle = compile_model(coded(), options=CompileOptions("net", helpers=True)).bundle
    check_compiles(bundle, tmp_path)
    main = """
        #include "net.h"
        #include <stdio.h>
        int main(void)
        {
            static uint8_t pixels[300];
            static int16_t samples[300];
            static float reals[300];
            int8_t x[302] = {0};
            int i, kind;
            for (i = 0; i < 300; ++i) {
                pixels[i] = (uint8_t)i;
                samples[i] = (int16_t)(i * 219 - 32768);
                reals[i] = (float)(i - 150) * 0.01875f;
            }
            for (kind = 0; kind < 3; ++kind) {
                x[0] = x[301] = 99;
                if (kind == 0) net_write_pixels_input(x + 1, pixels, 300, 0.0375f, -1.5f);
                if (kind == 1) net_write_samples_input(x + 1, samples, 300, 0.0001f);
                if (kind == 2) net_write_reals_input(x + 1, reals, 300);
                for (i = 0; i < 302; ++i) printf("%d ", x[i]);
            }
            return 0;
        }
        """
    found = np.array(build_and_run(main, tmp_path, "net.c", "net_weights.c").split(), int).reshape(3, 302)
    numbers = np.arange(300)
    reals = [
        np.float32(0.0375) * (numbers % 256).astype(np.float32) + np.float32(-1.5),
        np.float32(0.0001) * (numbers * 219 - 32768).astype(np.float32),
        (numbers - 150).astype(np.float32) * np.float32(0.01875),
    ]
    for row, real_ in zip(found, reals, strict=True):
        codes = np.clip(np.rint(real_ / np.float32(SCALE)) + ZERO, -128, 127)
        np.testing.assert_array_equal(row, [99, *codes, 99])
    assert (found[2, 1:] != found[2, :-1]).any()


def test_classes_labels_and_reals_of_outputs(tmp_path: Path):
    """The first of equal ones; the bytes of the labels are those of the file."""
    bundle = compile_model(coded(), options=CompileOptions("net", helpers=True, labels=HOSTILE)).bundle
    check_compiles(bundle, tmp_path)
    main = """
        #include "net.h"
        #include <stdio.h>
        int main(void)
        {
            static const int8_t y[8] = {-128, -3, 7, -5, 7, 6, 0, -1};
            float reals[8];
            uint32_t i, k;
            net_read_reals_output(reals, y, 8);
            for (i = 0; i < 8; ++i) {
                int8_t one[8] = {0};
                one[i] = 1;
                printf("%u %a ", net_class_of_output(one), reals[i]);
                for (k = 0; k < 60; ++k) printf("%02x", (unsigned char)net_label_of_output(one)[k]);
                puts("");
            }
            printf("%u", net_class_of_output(y));
            return 0;
        }
        """.replace("k < 60", "k <= strlen(net_labels[i])")
    *lines, last = build_and_run(main, tmp_path, "net.c", "net_weights.c").splitlines()
    assert last == "2"
    for i, (line, label, code) in enumerate(zip(lines, HOSTILE, (-128, -3, 7, -5, 7, 6, 0, -1), strict=True)):
        number, value, text = line.split()
        assert int(number) == i
        assert float.fromhex(value) == np.float32(0.05) * np.float32(code)
        assert bytes.fromhex(text) == label.encode().partition(b"\0")[0] + b"\0"


def test_real_inputs_and_outputs(tmp_path: Path):
    bundle = compile_model(real(), options=CompileOptions("net", helpers=True, labels=tuple("abcdefgh"))).bundle
    check_compiles(bundle, tmp_path)
    main = """
        #include "net.h"
        #include <stdio.h>
        int main(void)
        {
            static const uint8_t pixels[4] = {0, 1, 128, 255};
            static const int16_t samples[4] = {-32768, -1, 0, 32767};
            static const float y[8] = {-2.0f, -1.0f, -3.0f, -1.0f, -9.0f, -9.0f, -9.0f, -9.0f};
            float x[8];
            int i;
            net_write_pixels_input(x, pixels, 4, 0.5f, -1.0f);
            net_write_samples_input(x + 4, samples, 4, 0.25f);
            for (i = 0; i < 8; ++i) printf("%g ", x[i]);
            printf("%s", net_label_of_output(y));
            return 0;
        }
        """
    printed = build_and_run(main, tmp_path, "net.c", "net_weights.c")
    assert printed == "-1 -0.5 63 126.5 -8192 -0.25 0 8191.75 b"


def test_nothing_of_it_unless_it_is_asked_for():
    plain = compile_model(coded(), options=CompileOptions("net")).bundle.files
    assert "net_write_" not in plain["net.h"]
    assert "labels" not in plain["net.c"]


def test_a_constant_that_is_called_like_a_function(tmp_path: Path):
    """Names of the header's functions are nobody else's."""
    net = Net()
    w = net.const(np.random.default_rng(0).random((4, 4)), name="encode_input")
    net.output(net.op("MatMul", net.input("x", 1, 4), w, out="y"), shape=(1, 4))
    check_compiles(compile_model(net.model(), options=CompileOptions("net", helpers=True)).bundle, tmp_path, "gcc")


@pytest.mark.parametrize("labels", [("a",) * 7, ("a",) * 9, ("a",)])
def test_labels_of_another_number(labels: tuple[str, ...]):
    with pytest.raises(UsageError, match="'y' has 8"):
        helped(real(), labels=labels)


# ----------------------------------------------------------------------------------------------------- the command


def compiled(tmp_path: Path, labels: bytes, outputs: int = 3) -> tuple[int, str]:
    onnx.save(real(outputs), tmp_path / "net.onnx")
    (tmp_path / "labels.txt").write_bytes(labels)
    line = ["compile", str(tmp_path / "net.onnx"), "-b", "host", "-o", str(tmp_path / "c")]
    done = CliRunner().invoke(app, [*line, "--labels", str(tmp_path / "labels.txt")])
    return done.exit_code, str(done.exception)


@pytest.mark.parametrize("text", [b"cat\ndog\nhen", b"\xef\xbb\xbfcat\r\ndog\r\nhen\r\n\r\n"])
def test_a_file_of_labels(text: bytes, tmp_path: Path):
    code, error = compiled(tmp_path, text)
    assert code == 0, error
    table = (tmp_path / "c" / "net.c").read_text().partition("net_labels[3] = {")[2].partition("}")[0]
    assert table.split() == ['"cat",', '"dog",', '"hen",']


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"", "nothing"),
        (b"\n\n", "nothing"),
        (b"\xff\xfe\n\n", "UTF-8"),
        (b"x" * 201 + b"\na\nb", "more than 200"),
        (b"x\n" * 600_000, "1,000,000 bytes"),
        (b"a\nb", "2 labels; 'y' has 3"),
    ],
)
def test_files_that_are_no_labels(text: bytes, found: str, tmp_path: Path):
    code, error = compiled(tmp_path, text)
    assert code != 0
    assert found in error
    assert not (tmp_path / "c").exists()
