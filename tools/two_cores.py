# SPDX-License-Identifier: Apache-2.0
"""Models on two cores beside one: the tables of docs/two_cores.md (`make two-cores`).

Equal cores are Arm's SSE-200 under QEMU; unlike ones are simulated one after the other, and joined by time.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from markers import replace_between_markers

from mcugen.board import load_board
from mcugen.compiler import compile_model
from mcugen.errors import VerificationError
from mcugen.evaluate import timed
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
UNLIKE = ("rt1170", "stm32h745", "nrf5340")
UNLIKE_HEADINGS = (
    "model",
    "board",
    "one core, ms",
    "both, ms",
    "times",
    "at best",
    "pace",
    "cores wait, %",
    "arena, times",
)
HEADINGS = ("model", "board", "one core", "slower core of two", "times", "arena, times", "forks", "a barrier")


def main() -> None:
    """Measures, and writes the tables."""
    pairs = [(HEADINGS, BOARDS, measured, "measured"), (UNLIKE_HEADINGS, UNLIKE, joined, "unlike")]
    for headings, boards, measure, marker in pairs:
        rows = [headings, *(measure(title, name, board) for title, name in NAMES.items() for board in boards)]
        lines = ["| " + " | ".join(row) + " |" for row in rows]
        lines.insert(1, "|---|---|" + "--:|" * (len(headings) - 2))
        DOCUMENT.write_text(replace_between_markers(DOCUMENT.read_text(), marker, "\n".join(lines) + "\n"))


def joined(title: str, name: str, board: str) -> tuple[str, ...]:
    """A row of the table of unlike cores: at best, the other one's pace allows what two such cores do together."""
    one, two = (compile_model(MODELS / f"{name}.onnx", board, CompileOptions("net", cores=n)) for n in (1, 2))
    alone, cores = timed(one).milliseconds_estimate, timed(two).two_cores
    if alone is None or cores is None:
        return (title, board, "", "", "not shared", "", "", "", "")
    arena = two.program.arena_size / one.program.arena_size
    waiting = " and ".join(f"{abs(100 * share):.0f}" for share in cores.waiting)
    time = (f"{alone:.3f}", f"{cores.total / 1e3:.3f}", f"{cores.total / 1e3 / alone:.3f}")
    return (title, board, *time, f"{cores.pace / (1 + cores.pace):.3f}", f"{cores.pace:.2f}", waiting, f"{arena:.3f}")


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
