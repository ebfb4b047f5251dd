# SPDX-License-Identifier: Apache-2.0
"""The command `mcugen profile`."""

from __future__ import annotations

from pathlib import Path

from mcugen.cli.command import Model, takes_options
from mcugen.cli.commands.console import tell_notes, tell_warnings, watched
from mcugen.core.options import CompileOptions
from mcugen.driver.tasks import Judging, Quantizing


@takes_options
def profile(
    model: Model,
    *,
    calibration: Path,
    output: Path,
    options: CompileOptions,
    preprocess: str,
    judging: Judging,
    without: dict[str, bool],
    quiet: bool,
) -> None:
    """Write statistics of all tensors on samples to a file for --profile, which any precision and scheme can use."""
    from mcugen.api.compilation import Compilation
    from mcugen.quantization.profile_file import write_profile
    from mcugen.quantization.scheme import Scheme

    scheme = Scheme(equalize=without["equalize"])
    quantizing = Quantizing(calibration=calibration, preprocess=preprocess, scheme=scheme)
    net = Compilation(model, "host", options, quantizing, judging)
    with watched(net, quiet):
        tensor_profile, notes = net.profile()
    tell_warnings(net.warnings)
    if not quiet:
        tell_notes(notes)
    write_profile(tensor_profile, output)
