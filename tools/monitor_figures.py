# SPDX-License-Identifier: Apache-2.0
"""What `--monitor` costs and detects with the MLPerf Tiny models: tables of docs/how-to/monitor.md.

`python tools/monitor_figures.py --write-docs` measures under QEMU, as tests/codegen/test_monitor.py does, and changes
inputs as tests/deploy/monitoring/test_drift.py does.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from markers import markdown_table, rewrite_passage

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "how-to" / "monitor.md"
sys.path += [str(ROOT / "tests" / folder) for folder in (".", "codegen", "deploy/monitoring")]

import test_drift  # noqa: E402
import test_monitor  # noqa: E402

KINDS = (*test_drift.DRIFTS, "stronger", "reversed", "permuted")
"""Changes of inputs."""


def cost_table() -> str:
    """Return the table of the shares of instructions and cycles of a run on an nRF52840."""
    rows = [("model", "board", "layers", "bytes", "instructions", "cycles")]
    for model, board, num_layers in test_monitor.TINY_RUNS:
        nbytes, instructions, cycles = test_monitor.costs_of(model, board, num_layers)
        rows.append((model, board, str(num_layers), str(nbytes), f"{instructions:.2%}", f"{cycles:.2%}"))
    return markdown_table(rows, 2)


def drift_table() -> str:
    """Return the table of names of drift, and of false alarms among 100 resamplings."""
    rows = [("model", *KINDS, "false alarms")]
    for model in test_drift.ORDERS:
        names = [", ".join(test_drift.changed(model, kind).tensors[0].names) for kind in KINDS]
        rows.append((model.removesuffix("_int8_qdq"), *names, str(len(test_drift.false_alarms(model)))))
    return markdown_table(rows, len(KINDS) + 1)


def main(write_docs: Annotated[bool, typer.Option(help="rewrite the tables of the document")] = False) -> None:
    """Print both tables."""
    for name, table in (("monitor-drift", drift_table()), ("monitor-cost", cost_table())):
        print(table)
        if write_docs:
            rewrite_passage(DOCUMENT, name, table)


if __name__ == "__main__":
    typer.run(main)
