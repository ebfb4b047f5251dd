# SPDX-License-Identifier: Apache-2.0
"""What learning takes beside inference: the table of docs/how-to/training.md, as JSON lines.

python tools/training_costs.py [MODEL ...]

Of models whose names have one of these words in them, or of all.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared" / "models"
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "ops")]

from mobile_networks import MOBILENET_V2_035, mobile_net  # noqa: E402

from mcugen.core.options import CompileOptions, Training  # noqa: E402
from mcugen.driver.compiler import compile_model  # noqa: E402
from mcugen.evaluation.samples import random_samples  # noqa: E402


@dataclass(frozen=True)
class Costs:
    """Bytes and retired instructions of training, beside those of a build for inference only."""

    arena: int
    arena_of_inference: int
    is_proven: bool
    """Whether no arena could be smaller."""
    state: int
    step: int
    inference: int


KB = 1024
LAST_BLOCK = "t273,t278,t282"
"""Expansion, depthwise convolution and projection of the last of MobileNetV2's blocks."""


def costs(model: Path | onnx.ModelProto, board: str, training: Training, max_ram: int | None = None) -> Costs:
    """Measure a training step that learns a class."""
    plain = compile_model(model, board)
    found = compile_model(model, board, CompileOptions(training=training, max_ram=max_ram))
    assert found.bundle.lesson is not None
    (sample,) = random_samples(plain.program.inputs).inputs
    lesson = {
        **sample,
        "target": np.ones(1, np.int32),
        "rate": np.full(found.bundle.lesson.rate.shape, 0.01, np.float32),
    }
    step, run = found.simulate([lesson]).instructions, plain.simulate([sample]).instructions
    assert step is not None and run is not None
    program = found.program
    proven = program.arena_size == program.arena_bound
    return Costs(program.arena_size, plain.program.arena_size, proven, program.state_size, step, run)


def cases() -> Iterator[tuple[str, Path | onnx.ModelProto, str, Training, int | None]]:
    """Yield name, model, board, training options and RAM limit of each case."""
    last, integers = Training("last:1"), Training("last:1", precision="int8")
    for training in (last, integers):
        yield "DS-CNN", SHARED / "ds_cnn_kws_int8_qdq.onnx", "nrf52840", training, None
    yield "examples/learning", ROOT / "examples" / "learning" / "learning.onnx", "nrf52840", last, None
    network = mobile_net((96, 96), MOBILENET_V2_035, head=1280)
    for training in (last, integers, Training("last:1,bias:12")):
        yield "MobileNetV2 0.35", network, "stm32h743", training, None
    yield "MobileNetV2 0.35", network, "stm32h743", Training(f"last:1,{LAST_BLOCK}", precision="int8"), 192 * KB


def main() -> None:
    """Print a JSON line for each case."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help="a word of its name; none: all models")
    asked_for = parser.parse_args().models
    for name, model, board, training, max_ram in cases():
        if asked_for and not any(word in name for word in asked_for):
            continue
        found = costs(model, board, training, max_ram)
        asked = {"trained": training.layers, "weights": training.precision, "max_ram": max_ram}
        print(json.dumps({"model": name, "board": board, **asked, **asdict(found)}), flush=True)


if __name__ == "__main__":
    main()
