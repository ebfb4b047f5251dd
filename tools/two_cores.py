# SPDX-License-Identifier: Apache-2.0
"""Models on both cores of Arm's SSE-200 under QEMU, beside one: the table of docs/two_cores.md (`make two-cores`)."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from markers import replace_between_markers

from mcugen.board import load_board
from mcugen.compiler import compile_model
from mcugen.errors import VerificationError
from mcugen.options import CompileOptions
from mcugen.simulate import simulate
from mcugen.simulate.both_cores import run_on_both_cores

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "two_cores.md"
MODELS = ROOT.parent / "shared" / "models"

NAMES = {
    "ResNet8": "resnet8_cifar10_int8_qdq",
    "DS-CNN": "ds_cnn_kws_int8_qdq",
    "MobileNetV1": "mobilenet_v1_025_vww_int8_qdq",
    "autoencoder": "autoencoder_ad_int8_qdq",
}
BOARDS = ("rp2040", "rp2350")
HEADINGS = ("model", "board", "one core", "slower core of two", "times", "arena, times", "forks", "a barrier")


def main() -> None:
    """Measures, and writes the table."""
    rows = [HEADINGS, *(measured(title, name, board) for title, name in NAMES.items() for board in BOARDS)]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|---|---|" + "--:|" * (len(HEADINGS) - 2))
    DOCUMENT.write_text(replace_between_markers(DOCUMENT.read_text(), "measured", "\n".join(lines) + "\n"))


def measured(title: str, name: str, board: str) -> tuple[str, ...]:
    """A row of the table."""
    one, two = (compile_model(MODELS / f"{name}.onnx", board, CompileOptions("net", cores=n)) for n in (1, 2))
    sample = {
        port.name: np.random.default_rng(0).integers(-128, 128, port.shape).astype(port.dtype)
        for port in two.bundle.inputs
    }
    alone = simulate(one.bundle, load_board(board), [sample]).instructions
    with tempfile.TemporaryDirectory() as folder:
        run = run_on_both_cores(two.bundle, load_board(board), sample, Path(folder))
    if alone is None or not all(np.array_equal(run.together[key], run.alone[key]) for key in run.alone):
        raise VerificationError("two cores must give the bits of one", f"{name} on {board}", "report this as a bug")
    arena = two.program.arena_size / one.program.arena_size
    time = (f"{alone:,}", f"{run.slower:,}", f"{run.slower / alone:.3f}")
    return (title, board, *time, f"{arena:.3f}", str(len(run.forks)), f"{run.barrier:.0f}")


if __name__ == "__main__":
    main()
