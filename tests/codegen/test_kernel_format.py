# SPDX-License-Identifier: Apache-2.0
"""Generated kernels look alike: clang-format changes nothing, no line is too long, assembly keeps its comments."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cmsis_layers import WIDE, int4_dense, quantized_conv, quantized_dense
from onnx_models import Net
from portable_models import M0, M4, M55, POOL, WEIGHTS, learning_model, net_of, portable_models, quantized_operators
from shared_models import roomy
from test_overlaps import Layer

from mcugen.codegen.bundle import Bundle
from mcugen.codegen.environment import _assembly
from mcugen.codegen.folding import break_long_lines
from mcugen.codegen.identifiers import MAX_C_LINE_COLUMNS
from mcugen.core.options import CMSIS_NN, CompileOptions
from mcugen.core.resources import resource_dir
from mcugen.driver.compiler import compile_model

_PATH = f"{Path(sys.executable).parent}"
CLANG_FORMAT = shutil.which("clang-format", path=_PATH) or shutil.which("clang-format")


# -------------------------------------------------------------------------------------------------------- kernels


def bundles() -> Iterator[Bundle]:
    """Models that take nearly all kernels, and those that have fast paths for several CPUs once more for each."""
    yield from (portable.model.bundle for portable in (*portable_models(), *map(learning_model, WEIGHTS)))
    for board in (M0, M4, M55):
        for name, net in quantized_operators():
            yield compiled(net, f"{name}_{board}", board)
    for number, layers in enumerate(pool for pool in POOL if all(isinstance(layer, Layer) for layer in pool)):
        yield compiled(net_of("f32", layers), f"reals_{number}_{M55}", M55)
    yield compiled(library_layers(), "library", M55, family=CMSIS_NN)
    for name, net in quantized_operators():
        yield compiled(net, f"{name}_library", M4, family=CMSIS_NN)


def compiled(net: Net, name: str, board: str, **options: object) -> Bundle:
    return compile_model(net.model(), roomy(board), CompileOptions(name=name, **options)).bundle  # type: ignore[arg-type]


def library_layers() -> Net:
    net = Net()
    quantized_dense(net, "dense", (1,), 16, 4, True, WIDE)
    quantized_conv(net, "conv", ((1, 4, 7, 6), 5, (3, 3), {"pads": [1, 1, 1, 1]}), True)
    quantized_conv(net, "depthwise", ((1, 4, 7, 6), 4, (3, 3), {"group": 4}), True)
    int4_dense(net, "few bits", 1, 16, 4, unsigned=False)
    return net


def kernels_of(bundle: Bundle) -> str:
    """The C of a model's kernels, without what calls them."""
    return bundle.files[f"{bundle.name}_kernels.h"]


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """The C of the kernels of models, by file name."""
    return {f"{bundle.name}.c": kernels_of(bundle) for bundle in bundles()}


def test_lines_are_not_too_long(texts: dict[str, str]):
    assert len(texts) > 250
    long = [
        f"{file}: {line}"
        for file, text in texts.items()
        for line in text.splitlines()
        if len(line) > MAX_C_LINE_COLUMNS
    ]
    assert not long, "\n".join(long[:20])


@pytest.mark.skipif(CLANG_FORMAT is None, reason="needs clang-format")
def test_clang_format_changes_nothing(texts: dict[str, str], tmp_path: Path):
    shutil.copy(resource_dir("templates") / ".clang-format", tmp_path)
    for file, text in texts.items():
        (tmp_path / file).write_text(text)
    command = [str(CLANG_FORMAT), "-style=file", "--dry-run", "-Werror", *texts]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:2000]


# -------------------------------------------------------------------------------------------------------- assembly


FUNCTION = re.compile(r"^(static [^;#]*?)\n\{\n(.*?)^\}$", re.M | re.S)
DIRECTIVE = re.compile(r"^#.*$", re.M)
CONTROL = re.compile(r"\b(for|while|do|if|switch|goto)\b")
MAX_INTRINSIC_LINES = 9
"""Lines of a function, or of a branch of the preprocessor in it, that is a name for instructions."""


def astray(text: str) -> list[str]:
    """Where assembly stands among C (MISRA C:2012, Dir 4.3): heads of functions, or the line if that is in none."""
    wrong = [line for line in FUNCTION.sub("", text).splitlines() if re.search(r"__asm__( volatile)?\(", line)]
    for head, body in FUNCTION.findall(text):
        for part in DIRECTIVE.split(body) if "MCUGEN_NAKED" not in head else ():
            if "__asm__" in part and (CONTROL.search(part) or part.count("\n") > MAX_INTRINSIC_LINES):
                wrong.append(head)
    return wrong


def test_assembly_stands_in_functions_of_its_own(texts: dict[str, str]):
    ports = {path.name: path.read_text() for path in resource_dir("runtime_c").rglob("*.h")}
    validating = (resource_dir("templates") / "validate" / "validate.c.j2").read_text()
    some = {file: text for file, text in {**texts, **ports, "validate.c": validating}.items() if "__asm__" in text}
    assert len(some) > 50
    assert {file: found for file, text in some.items() if (found := astray(text))} == {}


@pytest.mark.parametrize(
    "body",
    [
        '    for (; n > 0; --n) {\n        __asm__("nop");\n    }\n',
        '    if (n > 0) {\n        return n;\n    }\n    __asm__ volatile("nop");\n',
        "    f();\n" * 9 + '    __asm__("nop");\n',
    ],
)
def test_assembly_among_c_is_found(body: str):
    assert astray(f"static int32_t f(int32_t n)\n{{\n{body}}}\n") == ["static int32_t f(int32_t n)"]
    assert astray(f"static MCUGEN_NAKED int32_t f(int32_t n)\n{{\n{body}}}\n") == []
    assert len(astray(f"int32_t f(int32_t n)\n{{\n{body}}}\n")) == 1


def test_comments_of_assembly_become_comments_of_c():
    assert _assembly(
        "push {r4, lr} @ saved\n  1:  @ a row\n@ alone\n@ on lines\n.endr MCUGEN_SIZE(1)\nbx lr"
    ) == "\n".join(
        [
            '        "push {r4,lr}\\n" /* saved */',
            '        "1:\\n"           /* a row */',
            "        /* alone on lines */",
            '        ".endr\\n" MCUGEN_SIZE(1)',
            '        "bx lr\\n"',
        ]
    )


# --------------------------------------------------------------------------------------------------------- folding


def test_short_lines_stay():
    text = "static void f(int a)\n{\n    g(a, 1);\n}\n\n#define " + "X" * 200
    assert break_long_lines(text) == text


@pytest.mark.parametrize(
    ("line", "lines"),
    [
        (f"static void {'f' * 90}(const int32_t *x, int32_t *y, int32_t count)",
         [f"static void {'f' * 90}(const int32_t *x,", "    int32_t *y, int32_t count)"]),
        (f"    /* {'word ' * 25}*/", ["    /* " + " ".join(["word"] * 22), "     * word word word */"]),
        (f"    const int32_t a = {'b' * 60}, c = {'d' * 60};",
         [f"    const int32_t a = {'b' * 60};", f"    const int32_t c = {'d' * 60};"]),
        (f"    y = {'a' * 50} ? {'b' * 40} : {'c' * 40};",
         [f"    y = {'a' * 50}", f"        ? {'b' * 40}", f"        : {'c' * 40};"]),
        (f"    f(g({'a' * 60}, {'b' * 60}), {'c' * 10});",
         ["    f(", f"        g({'a' * 60},", f"            {'b' * 60}),", f"        {'c' * 10});"]),
    ],
)  # fmt: skip
def test_long_lines_break_where_clang_format_lets_them(line: str, lines: list[str]):
    assert break_long_lines(line).split("\n") == lines
