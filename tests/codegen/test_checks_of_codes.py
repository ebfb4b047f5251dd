# SPDX-License-Identifier: Apache-2.0
"""--check-weights of weights stored by a code, which is read bit after bit, without a look at where it ends."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from c_programs import build_and_run, write
from onnx_models import Net

from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.lir.program import DECODE_WEIGHTS

CHECK = """#include <stdio.h>
#include "net.h"
int main(void)
{
    printf("%d", net_check_weights());
    return 0;
}
"""


def coarse_weights() -> onnx.ModelProto:
    """A convolution of which a code takes far less than eight bits a weight."""
    net, random = Net(21), np.random.default_rng(0)
    codes = np.rint(random.laplace(0, 3, (32, 32, 3, 3))).clip(-127, 127)
    x = net.fake(net.input("x", 1, 32, 6, 6), 0.05, 3)
    net.output(net.fake(net.op("Conv", x, net.dequantize(net.const(codes, np.int8), 0.01), out="y"), 0.3))
    return net.model()


def test_damaged_codes_are_told(tmp_path: Path) -> None:
    compiled = compile_model(coarse_weights(), "host", CompileOptions("net", optimize="flash", check_weights=True))
    assert any(instr.kernel == DECODE_WEIGHTS for instr in compiled.program.instrs)
    files = dict(compiled.bundle.files)
    text = files["net_weights.c"]
    begin = re.search(r"\w*coded\w*\[\d*\][^;]*?= \{\s*", text)
    assert begin
    first = re.compile(r"\w+").match(text, begin.end())
    assert first
    files["net_weights.c"] = f"{text[: first.start()]}{int(first[0], 0) ^ 1}{text[first.end() :]}"
    for bundle, told in ((compiled.bundle, "0"), (replace(compiled.bundle, files=files), "17")):
        folder = write(bundle, tmp_path / told)
        assert build_and_run(CHECK, folder, "net.c", "net_weights.c") == told
