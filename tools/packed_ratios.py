# SPDX-License-Identifier: Apache-2.0
"""Instructions of layers with weights of 4 bits, two a byte, beside those of the kernels that come first for a byte.

python tools/packed_ratios.py rp2040 corstone300 … prints the table. Kernels that transform weights (Winograd's), codes
of variable length and short forms for little flash are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import onnx
import typer
from measure_costs import FOUR_BITS, convolutions, four_bit_layers, kernels_that_fit, random_inputs, roomy

from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model

WINDOWS = (
    *((12, 12, 16, 16, 3, 3, 1, 1), (8, 8, 64, 64, 3, 3, 1, 1), (16, 16, 3, 16, 3, 3, 1, 1)),
    *((49, 10, 1, 64, 10, 4, 2, 1), (25, 5, 64, 64, 1, 1, 1, 1), (24, 24, 16, 32, 1, 1, 1, 1)),
    (6, 6, 128, 128, 1, 1, 1, 1),
)
FILTERS = ((25, 5, 64, 64, 3, 3, 1, 64), (24, 24, 32, 32, 3, 3, 2, 32), (16, 16, 16, 16, 5, 5, 1, 16))
"""Convolutions, and depthwise ones, as measure_costs has them."""


def instructions(model: onnx.ModelProto, board: str, packed: bool) -> dict[str, int]:
    """Return the instructions by layer, with the preferred kernels for 4-bit or 8-bit weights."""
    others = ("winograd", "coded", "transpose", "short")
    named = [k for k in kernels_that_fit(model, board) if not any(other in k for other in others)]
    kernels = tuple(k for k in named if ("s4" in k) == packed)
    compiled = compile_model(model, roomy(board), CompileOptions(kernels=kernels, optimize="speed"))
    counted = compiled.simulate([random_inputs(compiled)], per_layer=True).layer_instructions or ()
    heads = [compiled.program.head(layer) for layer in compiled.program.layers()]
    return {h.name: n for h, n in zip(heads, counted, strict=True) if h.kernel in kernels}


def ratios(model: onnx.ModelProto, board: str) -> Iterator[str]:
    """Yield the smallest and largest ratio of layers with 8-bit results, and of layers with 16-bit results."""
    packed, plain = (instructions(model, board, few) for few in (True, False))
    wide = {value.name for value in model.graph.output if value.type.tensor_type.elem_type == onnx.TensorProto.INT16}
    found = {name: packed[name] / count for name, count in plain.items() if name in packed}
    for names in (found.keys() - wide, found.keys() & wide):
        if names:
            yield f"{min(found[n] for n in names):.2f} to {max(found[n] for n in names):.2f}"


def main(boards: Annotated[list[str], typer.Argument(help="one of each CPU")]) -> None:
    """Print a row for each board."""
    models = [convolutions("int8", shapes, FOUR_BITS) for shapes in (WINDOWS, FILTERS)]
    models.insert(1, four_bit_layers()[1])
    for board in boards:
        cells = [cell for model in models for cell in ratios(model, board)]
        print(f"| {roomy(board).cpu} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    typer.run(main)
