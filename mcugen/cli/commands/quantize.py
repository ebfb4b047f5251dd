# SPDX-License-Identifier: Apache-2.0
"""The command `mcugen quantize`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mcugen.cli.command import Model, takes_options
from mcugen.cli.commands.console import tell, tell_notes, tell_quantization, tell_warnings, watched, write_json
from mcugen.distributed.sharing import Workers
from mcugen.options.arguments import CompilationTask, OutputOptions


@takes_options
def quantize(
    model: Model,
    *,
    output: Path,
    task: CompilationTask,
    sharing: Workers,
    finetune: int,
    output_options: OutputOptions,
) -> None:
    """Write the quantized model as standard ONNX, which ONNX Runtime runs with the same results."""
    from mcugen.api.compilation import Compilation
    from mcugen.codegen.write import replace_file
    from mcugen.quantization.summary import QuantizationSummary

    task = replace(task, quantizing=replace(task.quantizing, finetune=finetune))
    net = Compilation.of(model, "host", task, workers=sharing)
    with watched(net, output_options.quiet):
        quantized = net.quantized
    data = quantized.proto.SerializeToString(deterministic=True)
    replace_file(output, lambda file: file.write(data))
    write_json(output_options.json_, QuantizationSummary(quantized, output, len(data)))
    tell_warnings(quantized.warnings)
    if not output_options.quiet:
        tell_notes(quantized.notes)
        tell(f"{output}: {quantized.describe()}")
        tell_quantization(quantized)
