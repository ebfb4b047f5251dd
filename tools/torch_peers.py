# SPDX-License-Identifier: Apache-2.0
"""Compiles the PyTorch networks of the comparison with ExecuTorch, each by one call, and writes their table.

`python tools/torch_peers.py` needs PyTorch and QEMU. It writes the passage of docs/reference/figures/performance.md.
Weights are random, so only the sizes and the arithmetic compare. ExecuTorch's figures are recorded (November 2026).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from markers import markdown_table, rewrite_passage

import mcugen

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from torch_networks import NETWORKS, seeded  # noqa: E402 - the path is known only now.

DOCUMENT = ROOT / "docs" / "reference" / "figures" / "performance.md"
PASSAGE = "torch"
BOARD = "nrf52840"
"""Board with a Cortex-M4 and enough RAM and flash for all networks."""
NUM_CALIBRATED, NUM_JUDGED = 16, 8
"""Numbers of samples for the ranges, and of other samples for the SQNR."""


@dataclass(frozen=True)
class Figures:
    """Instructions of one inference, bytes of RAM and flash, and SQNR in dB."""

    instructions: float
    ram: float
    flash: float
    sqnr: float


EXECUTORCH = {
    "resnet8": Figures(30.05e6, 65_404, 147e3, 22.7),
    "ds_cnn": Figures(8.69e6, 29_984, 104e3, 31.5),
    "mobilenet_v1": Figures(26.17e6, 172_072, 366e3, 34.4),
    "autoencoder": Figures(0.62e6, 9_989, 304e3, 30.7),
    "mobilenet_v2": Figures(46.98e6, 197_392, 686e3, 5),
    "gru": Figures(2.52e6, 153_017, 314e3, 40.5),
    "lstm": Figures(3.03e6, 147_769, 289e3, 41.1),
    "tcn": Figures(42.73e6, 32_364, 161e3, 41.7),
    "transformer": Figures(7.71e6, 139_288, 179e3, 35.3),
}
"""Recorded figures of ExecuTorch 1.5.1 with CMSIS-NN on a Cortex-M4."""


@dataclass(frozen=True)
class Row:
    """A compiled network: its figures, and the number of its layers that do not compute in int8."""

    figures: Figures
    num_widened: int


def measure(name: str) -> list[Row]:
    """Compile a network with all layers in int8, and as by default if that widens some; measure both in the simulator.

    Each is one call of `mcugen.compile`.
    """
    module, samples = seeded(name, NUM_CALIBRATED + NUM_JUDGED)
    known, judged = samples[:NUM_CALIBRATED].numpy(), samples[NUM_CALIBRATED:]
    compile_with = partial(mcugen.compile, module, BOARD, example_inputs=samples[:1], calibration=known)
    models = [compile_with()]
    if widened := _widened(models[0]):
        models.insert(0, compile_with(layer=dict.fromkeys(widened, "int8")))
    assert not _widened(models[0]), "All layers must compute in int8."
    return [Row(_figures(model, module, judged), len(_widened(model))) for model in models]


def _widened(model: mcugen.Model) -> list[str]:
    """Return the names of the layers that do not compute in int8."""
    assert model.quantization is not None
    return [layer["name"] for layer in model.quantization.layers if layer["precision"] != "int8"]


def _figures(model: mcugen.Model, module: Any, judged: Any) -> Figures:
    report = model.report(judged[:1].numpy())
    with torch.no_grad():
        expected = module(judged).numpy()
    error = model.run(judged.numpy())["output"].reshape(expected.shape) - expected
    sqnr = 10 * np.log10((expected**2).mean() / (error**2).mean())
    assert report.instructions is not None and report.ram.total is not None and report.flash.total is not None
    return Figures(report.instructions, report.ram.total, report.flash.total, float(sqnr))


def table(rows: dict[str, list[Row]]) -> str:
    """Return the table of figures, with ratios of int8 rows to ExecuTorch's for networks of equal sizes."""
    lines = [
        [
            "network",
            "wider layers",
            "instructions",
            "ratio",
            "RAM, bytes",
            "ratio",
            "flash, bytes",
            "ratio",
            "SQNR, dB",
        ]
    ]
    for name, row in ((name, row) for name, each in rows.items() for row in each):
        network, other, own = NETWORKS[name], EXECUTORCH[name], row.figures
        cells = [network.title, str(row.num_widened or "none")]
        for key in ("instructions", "ram", "flash"):
            value, peer = getattr(own, key), getattr(other, key)
            cells += [f"{value:,.0f}", f"{value / peer:.2f}" if network.is_same and not row.num_widened else "-"]
        lines.append([*cells, f"{own.sqnr:.1f} ({other.sqnr:g})"])
    return markdown_table(lines, 2)


def main(
    names: Annotated[
        list[str] | None, typer.Argument(help="networks; by default all, which writes the document")
    ] = None,
) -> None:
    """Measure networks and print their table."""
    figures = {}
    for name in names or NETWORKS:
        figures[name] = measure(name)
        print("\n".join(table({name: figures[name]}).splitlines()[2:]), flush=True)
    if not names:
        rewrite_passage(DOCUMENT, PASSAGE, table(figures))


if __name__ == "__main__":
    typer.run(main)
