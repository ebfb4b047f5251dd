# SPDX-License-Identifier: Apache-2.0
"""The architecture's rules, held by reading the code."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from code_size import find_functions

from mcugen import ops
from mcugen.reporting.kernels import declared_kernels

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "mcugen"

LAYERS = {
    "core": 0,
    "distributed": 1,
    "hir": 1,
    "expressions": 2,
    "lir": 2,
    "memory": 3,
    "numerics": 3,
    "kernels": 4,
    "ops": 5,
    "frontend": 6,
    "passes": 6,
    "codegen": 6,
    "evaluation": 6,
    "pipelines": 7,
    "simulation": 7,
    "backends": 7,
    "search": 8,
    "training": 8,
    "reporting": 9,
    "quantization": 10,
    "driver": 11,
    "measurement": 12,
    "autotuning": 13,
    "calibration": 13,
    "export": 13,
    "options": 14,
    "api": 15,
    "deploy": 16,
    "explore": 16,
    "ui": 17,
    "cli": 18,
}
"""A module imports from its own package or from lower layers."""


def room(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imports(path: Path) -> list[str]:
    tree = ast.parse(path.read_text())
    names = [n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module]
    return [name.split(".")[1] for name in names if name.startswith("mcugen.")]


MODULES = sorted(PACKAGE.rglob("*.py"))

REFUSED = """
import sys

class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[:{depth}] == {room!r}.split("."):
            raise ImportError(name)

sys.meta_path.insert(0, Refusing())
import numpy as np
from onnx import TensorProto, helper, numpy_helper
from mcugen.api.compilation import Compilation
from mcugen.cli import app
from mcugen.driver.tasks import Quantizing

weights = numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy"]
graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "net", ends[:1], ends[1:], [weights])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
samples = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
for quantizing in (Quantizing(), Quantizing(calibration={{"x": samples}})):
    print(len(Compilation(model, "nrf52840", quantizing=quantizing).compiled.bundle.files))
"""
"""A program that compiles a float and a quantized model while a package cannot be imported."""

LIBRARY = "mcugen.kernels.cmsis_nn"


def run_without(package: str, program: str) -> subprocess.CompletedProcess[str]:
    assert importlib.util.find_spec(package) is not None
    code = program.format(room=package, depth=package.count(".") + 1)
    return subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, cwd=ROOT)


@pytest.mark.parametrize("package", ["mcugen.training", "mcugen.distributed.cluster", "mcugen.deploy", LIBRARY])
def test_models_compile_without_packages_that_most_users_never_need(package: str) -> None:
    run = run_without(package, REFUSED)
    assert run.returncode == 0, run.stderr
    assert len(run.stdout.split()) == 2


@pytest.mark.parametrize("family", ["cmsis-nn", "auto"])
def test_a_family_of_kernels_whose_package_is_missing_is_one_error(family: str) -> None:
    options = f"""
from mcugen.core.errors import UsageError
from mcugen.core.options import CompileOptions

try:
    Compilation(model, "nrf52840", CompileOptions(family="{family}")).compiled
except UsageError as error:
    print(error)
"""
    run = run_without(LIBRARY, REFUSED[: REFUSED.index("for quantizing")] + options)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith(f"--kernels cmsis-nn needs the package {LIBRARY}. found: {LIBRARY}")


def test_one_line_names_the_package_of_a_library() -> None:
    others = [path for path in MODULES if PACKAGE / "kernels" / "cmsis_nn" not in path.parents]
    lines = [line for path in others for line in path.read_text().splitlines() if "kernels.cmsis_nn" in line]
    assert [line.strip() for line in lines] == [f'CMSIS_NN: "{LIBRARY}",']


def test_no_module_lies_beside_the_packages() -> None:
    assert {path.name for path in PACKAGE.glob("*.py")} == {"__init__.py", "__main__.py"}


def test_imports_go_one_way() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {other}"
        for path in MODULES
        if (own := room(path)) not in ("__init__", "__main__")
        for other in imports(path)
        if other != own and LAYERS[other] >= LAYERS[own]
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "folder", ["hir", "lir", "memory", "kernels", "codegen", "simulation", "evaluation", "reporting"]
)
def test_rooms_below_the_passes_know_no_operator(folder: str) -> None:
    for path in (PACKAGE / folder).rglob("*.py"):
        text = path.read_text()
        assert ".op.name ==" not in text and "from mcugen.ops" not in text.replace(
            "from mcugen.numerics.fixedpoint", ""
        ).replace("from mcugen.ops.onnx_node", ""), path


def test_templates_are_of_declared_kernels() -> None:
    templates = {path.name.removesuffix(".c.j2") for path in (ROOT / "templates" / "kernels").glob("*.c.j2")}
    assert templates == {kernel.name for kernel in declared_kernels()}


def test_every_file_names_its_licence() -> None:
    line = "# SPDX-License-Identifier: Apache-2.0\n"
    assert [path for path in MODULES if not path.read_text().startswith(line)] == []


def test_what_lands_in_firmware_is_0bsd() -> None:
    for header in (ROOT / "runtime_c").rglob("*.h"):
        assert header.read_text().startswith("/* SPDX-License-Identifier: 0BSD */"), header
    for name in ("banner.j2", "CMakeLists.txt.j2"):
        assert "SPDX-License-Identifier: 0BSD" in (ROOT / "templates" / name).read_text()


def test_every_kernel_says_why_it_is_taken() -> None:
    modules = [m for family in (ops, ops.ml) for m in vars(family).values() if isinstance(m, ModuleType)]
    classes = [c for module in modules for c in vars(module).values() if isinstance(c, type)]
    kernels = {kernel for c in classes for kernel in getattr(c, "kernels", ())}
    assert len(kernels) >= 8
    assert all(holds.__doc__ for kernel in kernels for holds in kernel.when)


SESSION = "InferenceSession"


def test_one_place_makes_the_sessions_of_onnxruntime() -> None:
    """So that nobody takes integers from it that depend on the CPU."""
    files = [p for folder in ("mcugen", "tests", "tools", "examples") for p in (ROOT / folder).rglob("*.py")]
    makers = {p.relative_to(ROOT).as_posix() for p in files if _makes_sessions(p.read_text())}
    assert makers == {"mcugen/evaluation/session.py"}


def _makes_sessions(text: str) -> bool:
    return SESSION in text and any(_name(node) == SESSION for node in ast.walk(ast.parse(text)))


def _name(node: ast.AST) -> object:
    return getattr(node, "attr", getattr(node, "id", getattr(node, "name", "")))


def test_functions_are_small() -> None:
    """Check for at most 60 lines of code and 8 parameters."""
    found = list(find_functions())
    assert len(found) > 1000
    assert [f.name for f in found if f.lines > 60] == []
    assert [f.name for f in found if f.parameters > 8] == []


def undocumented_fields(node: ast.ClassDef) -> list[str]:
    """Return the public fields that neither the class docstring, nor an annotation, nor a docstring below names.

    Tables of .tflite files have the fields of TensorFlow's public schema, by which its documents explain them.
    """
    if any(isinstance(base, ast.Name) and base.id == "TableBase" for base in node.bases):
        return []
    text, missing = ast.get_docstring(node) or "", []
    for i, field in enumerate(node.body):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        declaration = ast.unparse(field)
        is_explained = (
            "Annotated[" in declaration
            or "meaning=" in declaration
            or re.search(rf"\b{field.target.id}\b", text) is not None
        )
        has_docstring = i + 1 < len(node.body) and isinstance(node.body[i + 1], ast.Expr)
        if not (field.target.id.startswith("_") or "ClassVar" in declaration or is_explained or has_docstring):
            missing.append(field.target.id)
    return missing


def test_public_classes_explain_their_fields() -> None:
    unexplained = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}: {', '.join(fields)}"
        for path in MODULES
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and (fields := undocumented_fields(node))
    ]
    assert not unexplained, "\n".join(unexplained)


def test_files_of_tests_have_names_of_their_own() -> None:
    """Of two of one name in different folders, pytest does not collect the second."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) > 100 and len(names) == len(set(names))
