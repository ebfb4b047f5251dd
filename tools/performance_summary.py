# SPDX-License-Identifier: Apache-2.0
"""Summaries of docs/reference/figures/performance.md: one row a CPU at its top, and one row a peer in README.md."""

from __future__ import annotations

import re
from collections import defaultdict
from statistics import geometric_mean

INT8 = "### int8: mcugen and TensorFlow Lite Micro"
WORDS = {
    "M0+": "one product an instruction, and few registers: loads decide",
    "M3": "one product an instruction",
    "M4": "two products an instruction",
    "M7": "the code of the M4: what the M7 gains is in cycles",
    "M55": "Helium: vectors of 16 bytes",
}
"""A sentence a CPU: where the ratio comes from."""
EXECUTORCH = "## Beside ExecuTorch"
FLOAT32 = "### float32: mcugen and emx-onnx-cgen (emx)"


def summary(document: str) -> str:
    """Return the geometric means of the ratios to TFLM by CPU, over the networks that both have.

    Args:
        document: The text of docs/reference/figures/performance.md.
    """
    ratios = _ratios_to_tflm(document)
    lines = ["| int8, against TFLM | instructions | arena | code | flash | why |", "|---|--:|--:|--:|--:|---|"]
    for cpu, rows in ratios.items():
        means = [geometric_mean(column) for column in zip(*rows, strict=True)]
        shown = " | ".join(f"{means[i]:.2f}x" for i in (0, 1, 3, 4))
        lines.append(f"| {cpu} ({len(rows)} networks) | {shown} | {WORDS.get(cpu, '')} |")
    return "\n".join(lines)


def peers(document: str) -> str:
    """Return the geometric means of the ratios to each peer on a Cortex-M4.

    Args:
        document: The text of docs/reference/figures/performance.md.
    """
    tflm = [geometric_mean(column) for column in zip(*_ratios_to_tflm(document)["M4"], strict=True)]
    emx = _table(document, FLOAT32)
    (means,) = (cells for cells in emx if cells[:2] == ["geometric mean", "M4"])
    networks = sum(cells[1] == "M4" for cells in emx) - 1
    recorded = [cells for cells in _table(document, EXECUTORCH) if cells[1].replace(",", "").isdecimal()]
    numbers = [[float(cell.replace(",", "")) for cell in cells[1:]] for cells in recorded]
    torch = [geometric_mean(row[i] / row[i + 1] for row in numbers) for i in (0, 2, 4)]
    rows = [
        ("TensorFlow Lite Micro + CMSIS-NN, int8", len(_ratios_to_tflm(document)["M4"]), tflm[0], tflm[1], tflm[4]),
        ("ExecuTorch 1.5.1 + CMSIS-NN, int8", len(recorded), *torch),
        ("emx-onnx-cgen 1.4.0, float32", networks, *(float(means[i].strip("*x")) for i in (4, 13, 10))),
    ]
    return "\n".join(
        [
            "What mcugen's code needs relative to other tools' code, for the same networks on a simulated Cortex-M4 "
            "(geometric means; 0.29 means 29 %):",
            "",
            "| compared with | networks | instructions | RAM | flash |",
            "|---|--:|--:|--:|--:|",
            *(f"| {name} | {count} | {a:.2f} | {b:.2f} | {c:.2f} |" for name, count, a, b, c in rows),
            "",
            "Against TensorFlow Lite Micro, RAM is the arena only; against emx-onnx-cgen, flash is mostly weights. "
            "[Performance](docs/reference/figures/performance.md) says how each figure was measured. `make bench` "
            "measures mcugen and emx-onnx-cgen again; the other tools' figures are recorded.",
        ]
    )


def _ratios_to_tflm(document: str) -> dict[str, list[list[float]]]:
    """Return by CPU, for each network, the ratios of instructions, arena, stack, code and flash."""
    ratios: dict[str, list[list[float]]] = defaultdict(list)
    for name, *cells in _table(document, INT8):
        numbers = [float(text) for cell in cells if (text := cell.strip("*").removesuffix("x")) != cell]
        if name.endswith("_qdq") and len(numbers) == 5:
            ratios[cells[0]].append(numbers)
    return ratios


def _table(document: str, heading: str) -> list[list[str]]:
    """Return the cells of the rows of tables below a heading."""
    section = re.split(r"\n##", document.split(heading, 1)[1], maxsplit=1)[0]
    return [[cell.strip() for cell in row.split("|")] for row in re.findall(r"^\|(.*)\|$", section, re.M)]
