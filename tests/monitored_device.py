# SPDX-License-Identifier: Apache-2.0
"""A model with a monitor, and snapshots of two devices that run it; the second one's inputs are shifted."""

from __future__ import annotations

from pathlib import Path

import compilers
import numpy as np
import onnx
from command_line import mcugen
from model_variants import quantized

DATA = {"image": np.random.default_rng(3).normal(size=(24, 1, 3, 9, 9)).astype(np.float32)}

MAIN = """#include <stdio.h>
#include "net_monitor.h"
int main(void)
{
    static net_monitor monitor, sent;
    uint32_t run, i, device;
    for (device = 1; device <= 2; ++device) {
        const float level = device == 2 ? 9.0f : 1.25f;
        net_monitor_reset(&monitor, device);
        for (run = 0; run < 20; ++run) {
            for (i = 0; i < NET_INPUT_COUNT; ++i) {
                net_input(net_default_arena())[i] = (float)((run * 7 + i * 13) % 11) / 4.0f - level;
            }
            (void)net_run_monitored(&monitor, net_default_arena());
        }
        (void)net_monitor_snapshot(&monitor, 60 * device, &sent);
        for (i = 0; i < sizeof sent; ++i) {
            printf("%02x", ((unsigned char *)&sent)[i]);
        }
    }
    return 0;
}
"""


def write_monitored(folder: Path) -> None:
    """Write the model and its code in `net`, and snapshots: both.bin, first.bin and second.bin."""
    onnx.save(quantized().model(), folder / "net.onnx")
    np.savez(folder / "data.npz", **DATA)
    command = ("compile", folder / "net.onnx", "-b", "host", "-o", folder / "net", "--data", folder / "data.npz")
    done = mcugen(*command, "--monitor")
    assert done.code == 0, done.err
    (folder / "net" / "main.c").write_text(MAIN)
    sources = ("main.c", "net.c", "net_weights.c", "net_monitor.c")
    compilers.run([*compilers.command("gcc"), *sources, "-lm", "-o", "main"], folder / "net")
    both = bytes.fromhex(compilers.run(["./main"], folder / "net"))
    (folder / "both.bin").write_bytes(both)
    (folder / "first.bin").write_bytes(both[: len(both) // 2])
    (folder / "second.bin").write_bytes(both[len(both) // 2 :])
