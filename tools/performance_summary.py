# SPDX-License-Identifier: Apache-2.0
"""The table that docs/performance.md opens with: what its long tables say, in one row a CPU."""

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


def summary(document: str) -> str:
    """Return geometric means over the networks that both compilers have; `document` holds the tables."""
    table = document.split(INT8, 1)[1].split("\n### ", 1)[0]
    ratios: dict[str, list[list[float]]] = defaultdict(list)
    for row in re.findall(r"^\| [a-z]\w+_qdq \|(.*)\|$", table, re.M):
        cells = [cell.strip() for cell in row.split("|")]
        found = [float(text) for cell in cells if (text := cell.strip("*").removesuffix("x")) != cell]
        if len(found) == 5:
            ratios[cells[0]].append(found)
    lines = ["| int8, against TFLM | instructions | arena | code | flash | why |", "|---|--:|--:|--:|--:|---|"]
    for cpu, rows in ratios.items():
        means = [geometric_mean(column) for column in zip(*rows, strict=True)]
        shown = " | ".join(f"{means[i]:.2f}x" for i in (0, 1, 3, 4))
        lines.append(f"| {cpu} ({len(rows)} networks) | {shown} | {WORDS.get(cpu, '')} |")
    return "\n".join(lines)
