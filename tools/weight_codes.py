# SPDX-License-Identifier: Apache-2.0
"""Print what codes of variable length would save of int8 weights, layer by layer, as a table.

python tools/weight_codes.py ../shared/models/autoencoder_ad_int8_qdq.onnx …
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from mcugen.driver.compiler import compile_model
from mcugen.hir.traits import weight_axes
from mcugen.hir.types import Array
from mcugen.kernels.portable.compressed_weights import choose_remainder_bits

LONGEST = 10
"""Bits of a Huffman code, whose table of decoding has two bytes for each combination of so many."""


def entropy(codes: Array) -> float:
    """Return the bits that an ideal entropy code of single values takes."""
    counts = np.unique(codes, return_counts=True)[1]
    return float(-(counts * np.log2(counts / codes.size)).sum())


def huffman(codes: Array, longest: int = LONGEST) -> int:
    """Return the bits of the best prefix code of limited length (package-merge), without its table."""
    leaves = sorted(np.unique(codes, return_counts=True)[1].tolist())
    packages: list[int] = []
    for _ in range(longest):
        merged = sorted([*leaves, *packages])
        packages = [a + b for a, b in zip(merged[0::2], merged[1::2], strict=False)]
    return sum(packages[: len(leaves) - 1])


def main(models: Annotated[list[Path], typer.Argument(help="quantized models")]) -> None:
    """Print the bytes of weights, and the share that a code leaves of them."""
    for path in models:
        graph = compile_model(path).graph
        found = [node.input(i).data for node in graph.nodes for i in weight_axes(node.op)]
        weights = [w for w in found if w is not None and w.dtype == np.int8 and len(np.unique(w)) > 1]
        total = 8 * sum(w.size for w in weights)
        shares = [sum(map(bits, weights)) / total for bits in (entropy, huffman, lambda w: choose_remainder_bits(w)[1])]
        print(f"| {path.stem} | {total // 8:,} | {' | '.join(f'{share:.1%}' for share in shares)} |")


if __name__ == "__main__":
    typer.run(main)
