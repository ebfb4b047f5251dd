# SPDX-License-Identifier: Apache-2.0
"""`mcugen quantize`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from mcugen.cli_options import Model, Optimize, Quiet, takes_options
from mcugen.commands.console import tell, tell_notes, tell_quantization, tell_warnings, watched
from mcugen.options import GOALS, CompileOptions
from mcugen.tasks import Judging, Quantizing
from mcugen.workers.sharing import Workers


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
    quiet: Quiet = False,
) -> None:
    """Writes the quantized model as standard ONNX, which ONNX Runtime runs with the same result."""
    from mcugen.codegen.write import replace_file
    from mcugen.compilation import Compilation

    quantizing = replace(quantizing, finetune=finetune)
    net = Compilation(model, "host", replace(reading, optimize=optimize), quantizing, judging, workers=sharing)
    with watched(net, quiet):
        quantized = net.quantized
    data = quantized.proto.SerializeToString(deterministic=True)
    replace_file(output, lambda file: file.write(data))
    tell_warnings(quantized.warnings)
    if not quiet:
        tell_notes(quantized.notes)
        tell(f"{output}: {quantized.describe()}")
        tell_quantization(quantized)
