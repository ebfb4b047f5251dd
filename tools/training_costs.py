# SPDX-License-Identifier: Apache-2.0
"""What learning takes beside inference: the table of docs/training.md, as JSON lines.

python tools/training_costs.py
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "ops")]

from mobile_networks import MOBILENET_V2_035, mobile_net  # noqa: E402

from mcugen import CompileOptions, compile_model  # noqa: E402
from mcugen.evaluation.samples import random_samples  # noqa: E402
from mcugen.options import Training  # noqa: E402


def cases() -> Iterator[tuple[str, Path | onnx.ModelProto, str, tuple[str, ...]]]:
    """Name, model, board, and what is trained of it."""
    yield "DS-CNN", ROOT.parent / "shared" / "models" / "ds_cnn_kws_int8_qdq.onnx", "nrf52840", ("last:1",)
    yield "examples/learning", ROOT / "examples" / "learning" / "learning.onnx", "nrf52840", ("last:1",)
    network = mobile_net((96, 96), MOBILENET_V2_035, head=1280)
    yield "MobileNetV2 0.35", network, "stm32h743", ("last:1", "last:1,bias:12")


def main() -> None:
    """Prints a line a model and what is trained of it."""
    for name, model, board, trained in cases():
        plain = compile_model(model, board)
        (sample,) = random_samples(plain.program.inputs).inputs
        run = plain.simulate([sample]).instructions
        for layers in trained:
            found = compile_model(model, board, CompileOptions(training=Training(layers)))
            lesson = {**sample, "target": np.ones(1, np.int32), "rate": np.full(1, 0.01, np.float32)}
            step, program = found.simulate([lesson]).instructions, found.program
            assert run is not None and step is not None
            figures = {
                **{"model": name, "board": board, "trained": layers},
                **{"arena": program.arena_size, "arena_of_inference": plain.program.arena_size},
                **{"proven": program.arena_size == program.arena_bound, "state": program.state_size},
                **{"step": step, "inference": run, "times": round(step / run, 3)},
            }
            print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
