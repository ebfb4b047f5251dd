# SPDX-License-Identifier: Apache-2.0
"""The command `mcugen quantize`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from mcugen.cli.commands.console import tell, tell_notes, tell_quantization, tell_warnings, watched, write_json
from mcugen.cli.options import Json, Model, Optimize, Quiet, takes_options
from mcugen.core.options import GOALS, CompileOptions
from mcugen.distributed.sharing import Workers
from mcugen.driver.tasks import Judging, Quantizing


@takes_options
def quantize(
    model: Model,
    *,
    output: Annotated[Path, typer.Option("-o", "--output", help="the QDQ model, .onnx", show_default=False)],
    optimize: Optimize = GOALS[0],
    reading: CompileOptions,
    quantizing: Quantizing,
    judging: Judging,
    sharing: Workers,
    finetune: Annotated[
        int,
        typer.Option(help="epochs of fine-tuning on the samples, where outputs are below --min-sqnr (25 dB)", min=0),
    ] = 0,
    json_: Json = "",
    quiet: Quiet = False,
) -> None:
    """Write the quantized model as standard ONNX, which ONNX Runtime runs with the same results."""
    from mcugen.api.compilation import Compilation
    from mcugen.codegen.write import replace_file
    from mcugen.quantization.summary import QuantizationSummary

    quantizing = replace(quantizing, finetune=finetune)
    net = Compilation(model, "host", replace(reading, optimize=optimize), quantizing, judging, workers=sharing)
    with watched(net, quiet):
        quantized = net.quantized
    data = quantized.proto.SerializeToString(deterministic=True)
    replace_file(output, lambda file: file.write(data))
    write_json(json_, QuantizationSummary(quantized, output, len(data)))
    tell_warnings(quantized.warnings)
    if not quiet:
        tell_notes(quantized.notes)
        tell(f"{output}: {quantized.describe()}")
        tell_quantization(quantized)
