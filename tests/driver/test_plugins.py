# SPDX-License-Identifier: Apache-2.0
"""Operators from a user's own file: `--plugin`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from mcugen.core.errors import UnsupportedError, UsageError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.driver.plugins import registry_of
from mcugen.ops.onnx_node import BUILT_IN

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugin"
PLUGIN = EXAMPLE / "softclip.py"
TEMPLATE = EXAMPLE / "kernels" / "soft_clip.c.j2"
MODEL = EXAMPLE / "limiter.onnx"


def expected(xs: np.ndarray) -> np.ndarray:
    """The example's model by its definition."""
    model = onnx.load(MODEL)
    weights, limit = (onnx.numpy_helper.to_array(t) for t in model.graph.initializer)
    total = xs @ weights
    return limit * total / np.hypot(limit, total)


@pytest.mark.parametrize("board", ["host", pytest.param("stm32f411", marks=pytest.mark.qemu)])
def test_the_example_computes_its_definition(board: str):
    xs = np.random.default_rng(2).standard_normal((3, 4, 8)).astype(np.float32) * 3
    compiled = compile_model(MODEL, board, CompileOptions(plugins=(PLUGIN,)))
    found = compiled.run({"x": xs}, sanitize=board == "host")["y"]
    np.testing.assert_allclose(found, expected(xs), rtol=1e-5, atol=1e-6)
    assert "soft_clip" in compiled.bundle.files["limiter.c"]
    assert "plugins softclip.py" in compiled.bundle.files["limiter.c"]


def test_the_model_is_what_its_script_writes(tmp_path: Path):
    script = tmp_path / "make_model.py"
    script.write_text((EXAMPLE / "make_model.py").read_text())
    subprocess.run([sys.executable, script], check=True)
    assert (tmp_path / "limiter.onnx").read_bytes() == MODEL.read_bytes()


def test_the_command_line(tmp_path: Path):
    from typer.testing import CliRunner

    from mcugen.cli.app import app

    options = ["--board", "host", "-o", str(tmp_path / "out"), "--plugin", str(PLUGIN)]
    result = CliRunner().invoke(app, ["compile", str(MODEL), *options])
    assert result.exit_code == 0, result.output
    assert "soft_clip" in (tmp_path / "out" / "limiter.c").read_text()


def test_one_compilation_knows_nothing_of_the_plugins_of_another():
    compile_model(MODEL, options=CompileOptions(plugins=(PLUGIN,)))
    with pytest.raises(UnsupportedError, match=r"(?s)SoftClip 'limiter': operator not supported.*--plugin"):
        compile_model(MODEL)
    assert compile_model(MODEL, options=CompileOptions(plugins=(PLUGIN, PLUGIN)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1 +", "the file must run. found: SyntaxError"),
        ("raise RuntimeError('no')", "the file must run. found: RuntimeError: no"),
        ("x = 1", "must register new operators. found: none"),
        (
            "from mcugen.ops.onnx_node import onnx_operator\n@onnx_operator('Relu')\ndef f(node): return []\n",
            "must register new operators. found: Relu of domain 'ai.onnx'",
        ),
    ],
)
def test_unusable_files_are_refused_and_leave_nothing(tmp_path: Path, text: str, message: str):
    before = dict(BUILT_IN.importers)
    file = tmp_path / "plugin.py"
    file.write_text(text)
    with pytest.raises(UsageError, match=message):
        registry_of((file,))
    assert before == BUILT_IN.importers


@pytest.mark.parametrize(
    ("text", "template", "found"),
    [
        ("", "p->rows", "reads p->rows, which soft_clip does not declare"),
        (
            "columns: Annotated[int, 'of a row']",
            "p->rows",
            "declares the parameter columns, which its template does not",
        ),
        ("", "{{ fast }}", "reads fast, which is no option"),
        ("", "{% if %}", "line 1 of kernels/soft_clip.c.j2: "),
        ("", None, "there is no template kernels/soft_clip.c.j2"),
    ],
)
def test_a_template_must_read_what_its_kernel_declares(tmp_path: Path, text: str, template: str | None, found: str):
    before = dict(BUILT_IN.importers)
    file = tmp_path / "plugin.py"
    plugin = PLUGIN.read_text()
    start, end = plugin.index("    rows: Annotated"), plugin.index("SOFT_CLIP = ")
    file.write_text(f"{plugin[:start]}    {text}\n\n{plugin[end:]}")
    if template is not None:
        (tmp_path / "kernels").mkdir()
        (tmp_path / "kernels" / "soft_clip.c.j2").write_text(template)
    with pytest.raises(UsageError) as error:
        registry_of((file,))
    assert found in str(error.value)
    assert f"--plugin {file}: kernels and their templates must read the same names" in str(error.value)
    assert before == BUILT_IN.importers


def a_plugin_like_it(folder: Path, operator: str, kernel: str) -> Path:
    """The example under other names, in a folder of its own."""
    (folder / "kernels").mkdir(parents=True)
    names = {'"SoftClip"': f'"{operator}"', '"soft_clip"': f'"{kernel}"'}
    for path, target in ((PLUGIN, folder / "it.py"), (TEMPLATE, folder / "kernels" / f"{kernel}.c.j2")):
        text = path.read_text()
        for before, after in names.items():
            text = text.replace(before, after)
        target.write_text(text)
    return folder / "it.py"


@pytest.mark.parametrize("taken", ["soft_clip", "dense_f32"])
def test_a_kernel_called_like_another_is_refused(taken: str, tmp_path: Path):
    """Templates are found by kernels' names: the first would be taken for both."""
    other = a_plugin_like_it(tmp_path / "other", "HardClip", taken)
    with pytest.raises(UsageError, match=f"it.py: kernels must have names of their own.*{taken}.c.j2 is another's"):
        registry_of((PLUGIN, other))


def test_two_plugins_for_one_compilation(tmp_path: Path):
    other = a_plugin_like_it(tmp_path / "other", "HardClip", "hard_clip")
    both = registry_of((PLUGIN, other))
    assert len(both.templates) == 2
    assert len(both.importers) == len(BUILT_IN.importers) + 2


def test_a_file_that_is_not_there(tmp_path: Path):
    with pytest.raises(UsageError, match=r"nothing\.py: there must be such a file"):
        registry_of((tmp_path / "nothing.py",))


def test_its_refusals_are_listed(tmp_path: Path):
    model = onnx.load(MODEL)
    model.graph.initializer[1].CopyFrom(onnx.numpy_helper.from_array(np.ones(2, np.float32), "limit"))
    with pytest.raises(UnsupportedError, match=r"SoftClip 'limiter': .*a limit for each channel"):
        compile_model(model, options=CompileOptions(plugins=(PLUGIN,)))
