# SPDX-License-Identifier: Apache-2.0
"""The command `mcugen profile`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mcugen.cli.commands.console import tell_notes, tell_warnings, watched
from mcugen.cli.options import Model, PixelScale, Preprocess, Quiet, Without, takes_options, techniques
from mcugen.core.options import CompileOptions
from mcugen.driver.tasks import Judging, Quantizing


@takes_options
def profile(
    model: Model,
    *,
    calibration: Annotated[Path, typer.Option(help="samples, as for compile", show_default=False)],
    output: Annotated[Path, typer.Option("-o", "--output", help="the profile, .json", show_default=False)],
    reading: CompileOptions,
    preprocess: Preprocess = "",
    pixel_scale: PixelScale = 1.0,
    without: Without = None,
    quiet: Quiet = False,
) -> None:
    """Write a profile of all tensors on samples, for --profile; one profile serves every precision and scheme."""
    from mcugen.api.compilation import Compilation
    from mcugen.quantization.profile_file import write_profile
    from mcugen.quantization.scheme import Scheme

    scheme = Scheme(equalize=techniques(without)["equalize"])
    quantizing = Quantizing(calibration=calibration, preprocess=preprocess, scheme=scheme)
    net = Compilation(model, "host", reading, quantizing, Judging(pixel_scale=pixel_scale))
    with watched(net, quiet):
        tensor_profile, notes = net.profile()
    tell_warnings(net.warnings)
    if not quiet:
        tell_notes(notes)
    write_profile(tensor_profile, output)
