# SPDX-License-Identifier: Apache-2.0
"""Writes the generated passages of ARCHITECTURE.md: a model's way through the stages, and the imports of packages."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import onnx

from mcugen.api.compilation import Compilation
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.tasks import Quantizing
from mcugen.frontend.onnx import import_model
from mcugen.frontend.onnx.load import load
from mcugen.hir.printer import print_graph
from mcugen.lir.printer import print_program

ROOT = Path(__file__).resolve().parents[1]

MODEL = """<ir_version: 10, opset_import: ["": 21]>
walk (float[1, 4] x) => (float[1, 2] y)
<float[4, 2] w = {0.1, 0.2, 0.3, -0.4, 0.5, 0.6, -0.7, 0.8}, float[2] b = {0.5, -0.5}> {
  p = MatMul(x, w)
  s = Add(p, b)
  y = Relu(s)
}"""


def walk() -> str:
    """Return what each stage makes of a layer with an activation, in float and in int8."""
    model = onnx.parser.parse_model(MODEL)
    samples = np.random.default_rng(0).uniform(-1, 1, (64, 1, 4)).astype(np.float32)
    quantized = Compilation(model, "nrf52840", quantizing=Quantizing(calibration={"x": samples})).compiled
    stages = (
        ("ONNX (as text)", MODEL),
        (
            "imported: HIR, each node with the types of its results",
            print_graph(import_model(load(model).proto, "walk")),
        ),
        ("optimized: one layer, whose weights are transposed and which clamps", _graph(Compilation(model).compiled)),
        ("the same, quantized by 64 samples: types have scales, and the layer is an integer one", _graph(quantized)),
        ("lowered and planned: LIR, kernels on addresses (options of templates left out)", _program(quantized)),
        ("rendered: what the run function calls", _run(quantized)),
    )
    return "\n".join(f"{title}:\n\n```\n{text.strip()}\n```\n" for title, text in stages)


def _graph(compiled: CompiledModel) -> str:
    return print_graph(compiled.graph)


def _program(compiled: CompiledModel) -> str:
    """Return the program as text, with only the numbers among the members of parameter structs."""
    return re.sub(r", \w+=(?:[a-z_]+[,}]).*\}", ", …}", print_program(compiled.program))


def _run(compiled: CompiledModel) -> str:
    code = compiled.bundle.files["walk.c"]
    calls = re.findall(r"^    \w+\(&.*;$", code[code.index("int walk_run(") :], re.M)
    return "\n".join(calls)


def rooms() -> str:
    """Return a line for each package, the lowest first: its share of all lines, and the packages that it imports.

    `core` is left out of the imports, since every package imports it.
    """
    lines, uses = _rooms()
    total = sum(lines.values())
    order: list[str] = []
    while len(order) < len(lines):
        order += sorted(room for room in lines if room not in order and uses[room] <= set(order))
    rows = [
        f"{room:<12} {round(100 * lines[room] / total):2} %  {' '.join(sorted(uses[room] - {'core'}, key=order.index))}"
        for room in order
    ]
    return "```\n" + "\n".join(row.rstrip() for row in rows) + "\n```"


def _rooms() -> tuple[dict[str, int], dict[str, set[str]]]:
    """Return lines of code and imports of each package; modules beside the packages count as `mcugen`."""
    lines, uses = defaultdict[str, int](int), defaultdict[str, set[str]](set)
    for path in sorted((ROOT / "mcugen").rglob("*.py")):
        room = _room(path.relative_to(ROOT / "mcugen").parts)
        text = path.read_text()
        lines[room] += len(text.splitlines())
        names = (n.module for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ImportFrom) and n.module)
        others = {name.split(".")[1] for name in names if name.startswith("mcugen.")}
        uses[room] |= {other for other in others if (ROOT / "mcugen" / other).is_dir()} - {room}
    return dict(lines), uses


def _room(parts: tuple[str, ...]) -> str:
    return parts[0] if len(parts) > 1 else "(beside)"


if __name__ == "__main__":
    print(walk())
    print(rooms())
