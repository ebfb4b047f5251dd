# SPDX-License-Identifier: Apache-2.0
"""What compiling costs in seconds of CPU, and how that grows with the number of nodes.

Each model is compiled by a process of its own, imports included, from bytecode as installed packages have it. The
exponent is that between a size and the one before
it: 1 is linear.
"""

from __future__ import annotations

import compileall
import math
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import numpy as np
import onnx
import typer
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console
from rich.table import Table

import mcugen

SIZES = (200, 800, 3200)


def model(nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray], shape: list[int]) -> onnx.ModelProto:
    """Return a model from tensor "x" to the last node's result, both of one shape."""
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)] for name in ("x", str(nodes[-1].output[0]))]
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "generated", *ends, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def residual(count: int) -> onnx.ModelProto:
    """Return convolutions, each followed by the sum with its input."""
    random, nodes, constants, x = np.random.default_rng(0), [], {}, "x"
    for number in range(count // 2):
        constants[f"w{number}"] = (random.standard_normal((4, 4, 3, 3)) / 10).astype(np.float32)
        nodes.append(helper.make_node("Conv", [x, f"w{number}"], [f"c{number}"], pads=[1] * 4))
        nodes.append(helper.make_node("Add", [f"c{number}", x], [f"a{number}"]))
        x = f"a{number}"
    return model(nodes, constants, [1, 4, 8, 8])


def chain(count: int) -> onnx.ModelProto:
    """Return a chain of operators that no pass merges."""
    names = ["x", *(f"t{number}" for number in range(count))]
    nodes = [helper.make_node("Softmax", [a], [b]) for a, b in pairwise(names)]
    return model(nodes, {}, [1, 16])


def fan_out(count: int) -> onnx.ModelProto:
    """Return one tensor with many readers, and one sum of all their results."""
    names = [f"t{number}" for number in range(count - 1)]
    nodes = [helper.make_node("LeakyRelu", ["x"], [name], alpha=0.1 + i / count) for i, name in enumerate(names)]
    return model([*nodes, helper.make_node("Sum", names, ["y"])], {}, [1, 8])


def ladder(count: int) -> onnx.ModelProto:
    """Return pairs of tensors, each pair computed from the two tensors before."""
    a, b, nodes = "x", "x", []
    for number in range(count // 4):
        for left, function in enumerate(("Add", "Mul")):
            nodes.append(helper.make_node(function, [a, b], [f"p{number}.{left}"]))
            nodes.append(helper.make_node("Softmax", [f"p{number}.{left}"], [f"s{number}.{left}"]))
        a, b = f"s{number}.0", f"s{number}.1"
    return model(nodes, {}, [1, 8])


MODELS: dict[str, Callable[[int], onnx.ModelProto]] = {f.__name__: f for f in (residual, chain, fan_out, ladder)}


def cpu_seconds(command: list[str]) -> float:
    """Return user and system time of a program, which must succeed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def mcugen_seconds(*arguments: str) -> float:
    """Return the CPU seconds of a command line of mcugen."""
    return cpu_seconds([sys.executable, "-c", "from mcugen.cli.app import main; main()", *arguments])


def compile_seconds(path: Path, board: str, *options: str) -> float:
    """Return the CPU seconds of `mcugen compile`."""
    with tempfile.TemporaryDirectory() as folder:
        return mcugen_seconds("compile", str(path), "--board", board, "--quiet", "-o", f"{folder}/out", *options)


def exponent(sizes: tuple[int, int], seconds: tuple[float, float]) -> float:
    """Return the exponent of the power law by which the seconds grow with the size."""
    return math.log(seconds[1] / seconds[0]) / math.log(sizes[1] / sizes[0])


def main(
    files: Annotated[list[Path] | None, typer.Argument(help="models besides the generated ones")] = None,
    board: Annotated[str, typer.Option(help="for which all are compiled")] = "host",
    sizes: Annotated[str, typer.Option(help="nodes of the generated models, by commas")] = ",".join(map(str, SIZES)),
) -> None:
    """Print the CPU seconds that compiling takes, by number of nodes."""
    compileall.compile_dir(Path(mcugen.__file__).parent, quiet=1)
    table = Table("model", "nodes", "CPU s", "exponent")
    with tempfile.TemporaryDirectory() as folder:
        table.add_row("(help)", "", f"{mcugen_seconds('--help'):.2f}", "")
        idle = cpu_seconds([sys.executable, "-c", "import mcugen.driver.compiler"])
        table.add_row("(imports alone)", "", f"{idle:.2f}", "")
        for name, make in MODELS.items():
            before: tuple[int, float] | None = None
            for size in map(int, filter(None, sizes.split(","))):
                path = Path(folder) / f"{name}.onnx"
                onnx.save(make(size), path)
                try:
                    seconds = compile_seconds(path, board)
                except subprocess.CalledProcessError:  # beyond mcugen.core.limits
                    table.add_row(name, str(size), "refused", "")
                    break
                grown = before and f"{exponent((before[0], size), (before[1] - idle, seconds - idle)):.2f}"
                table.add_row(name, str(size), f"{seconds:.2f}", grown or "")
                before = size, seconds
        for file in files or ():
            nodes = len(onnx.load(file, load_external_data=False).graph.node)
            table.add_row(file.stem, str(nodes), f"{compile_seconds(file, board):.2f}", "")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
