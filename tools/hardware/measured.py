# SPDX-License-Identifier: Apache-2.0
"""What others measured on boards and published, in cycles of the CPU.

Programs: the repository raws-labs/tigris-bench, cortex-m-deployability (README.md, results/summary.json, June 2026):
TensorFlow Lite Micro and TiGrIS with CMSIS-NN at commit 6d9d61d8, and TiGrIS with kernels in plain C; gcc -O2, weights
in flash, median of 30 runs, DWT cycle counter (RP2350: its timer). Marks: MLPerf Tiny v1.1 to v1.3, closed division,
clock / inferences a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Network = Literal["ds_cnn", "ad", "ts", "ic", "vww"]
Kernels = Literal["cmsis_nn", "plain"]
Interpreter = Literal["TiGrIS", "TFLM", "ONNC"]


@dataclass(frozen=True)
class Measured:
    """Cycles of one inference of a program on a board."""

    kit: str
    network: Network
    kernels: Kernels
    cycles: int
    interpreter: Interpreter = "TiGrIS"

    @property
    def program(self) -> str:
        """Return a title for the program, such as "TiGrIS, plain C"."""
        return f"{self.interpreter}, {'CMSIS-NN' if self.kernels == 'cmsis_nn' else 'plain C'}"


def _measured(
    kit: str, kernels: Kernels, ds_cnn: float, ad: float, ts: float, interpreter: Interpreter = "TiGrIS"
) -> tuple[Measured, ...]:
    found: dict[Network, float] = {"ds_cnn": ds_cnn, "ad": ad, "ts": ts}
    return tuple(Measured(kit, net, kernels, round(cycles * 1e6), interpreter) for net, cycles in found.items())


PROGRAMS = (
    *_measured("nucleo-f446re", "cmsis_nn", 12.249, 0.865, 0.324, "TFLM"),
    *_measured("nucleo-f446re", "cmsis_nn", 10.779, 0.894, 0.281),
    *_measured("nucleo-f446re", "plain", 105.39, 2.962, 1.943),
    *_measured("nucleo-h753zi", "cmsis_nn", 6.141, 0.562, 0.166, "TFLM"),
    *_measured("nucleo-h753zi", "cmsis_nn", 5.361, 0.567, 0.143),
    *_measured("nucleo-h753zi", "plain", 32.06, 1.437, 0.545),
    *_measured("pico2", "cmsis_nn", 9.472, 5.226, 0.395),
    *_measured("pico2", "plain", 70.00, 6.666, 1.417),
)

_ONNC: Mapping[Network, float] = {"ic": 35.8, "ds_cnn": 9.84, "vww": 20.7, "ad": 0.969}
SUBMISSIONS = tuple(
    Measured("nucleo-l4r5zi", network, "cmsis_nn", round(cycles * 1e6), "ONNC") for network, cycles in _ONNC.items()
)
"""MLPerf Tiny v1.1, closed division: ONNC's code with CMSIS-NN of CMSIS 5 on mbed OS, gcc -O3."""

MODELS = {
    "IC": "resnet8_cifar10_int8_qdq",
    "KWS": "ds_cnn_kws_int8_qdq",
    "VWW": "mobilenet_v1_025_vww_int8_qdq",
    "AD": "autoencoder_ad_int8_qdq",
}
"""MLPerf Tiny's, by file of ../shared/models."""

MARKS: Mapping[str, tuple[float, ...]] = {
    "nucleo-l4r5zi": (19.8, 5.18, 10.7, 0.486),
    "nucleo-h7a3zi-q": (11.4, 3.17, 6.67, 0.303),
    "nucleo-u575zi-q": (16.7, 4.64, 9.48, 0.495),
    "nucleo-g0b1re": (97.4, 30.4, 90.5, 2.62),
    "ek-ra8d1": (4.07, 1.66, 6.43, 0.255),
}
"""The least cycles of a board's submissions, in millions, in the order of MODELS."""

TARGETS: Mapping[str, tuple[float, ...]] = {
    "nucleo-l4r5zi": (13.0, 4.2, 7.5, 0.45),
    "nucleo-h7a3zi-q": (7.6, 2.5, 4.6, 0.29),
    "nucleo-u575zi-q": (12.5, 4.1, 7.2, 0.43),
    "nucleo-g0b1re": (48, 15, 27, 1.7),
    "ek-ra8d1": (3.0, 1.1, 2.4, 0.20),
}
"""What we aim at, likewise."""
