# SPDX-License-Identifier: Apache-2.0
"""The command `mcugen validate`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mcugen.cli.command import Model, takes_options
from mcugen.cli.commands.console import stdout, tell, tell_notes, tell_warnings, watched, write_json
from mcugen.core.errors import UsageError, VerificationError
from mcugen.options.arguments import CompilationTask, OutputOptions

if TYPE_CHECKING:
    from mcugen.deploy.validation.figures import ValidationReport
    from mcugen.deploy.validation.session import ValidationSetup


@dataclass(frozen=True)
class ConnectionOptions:
    """The options of `mcugen validate` on the connection to the board.

    Attributes:
        port: Link to the board: a serial port, a URL or a debug probe.
        baud: Bits per second of a serial port.
        timeout: Seconds of silence after which the board counts as lost.
        layer_samples: Number of samples for which the results of layers are compared.
        simulate: Whether to add the simulator's figures to the report.
    """

    port: str
    baud: int
    timeout: float
    layer_samples: int
    simulate: bool

    def wiring(self) -> ValidationSetup:
        """Check the options, and return them in the form that `validate_model` takes.

        Raises:
            UsageError: A number is not positive.
        """
        from mcugen.deploy.validation.session import ValidationSetup

        return ValidationSetup(self.port, self.baud, self.timeout, self.layer_samples, self.simulate)


@dataclass(frozen=True)
class ValidationFiles:
    """The files that `mcugen validate` writes.

    Attributes:
        write: Folder of the code; if it is given, nothing is run.
        runs: File that the measured cycles of layers are added to.
        share: File for the measured cycles, without names or paths.
        html: File for the result as a page.
    """

    write: Path | None
    runs: Path | None
    share: Path | None
    html: Path | None


@takes_options
def validate(
    model: Model,
    *,
    board: str,
    connection: ConnectionOptions,
    files: ValidationFiles,
    task: CompilationTask,
    output_options: OutputOptions,
) -> None:
    """Run the model on a connected board, and check accuracy, the bits of every layer, cycles and stack."""
    from mcugen.api.compilation import Compilation
    from mcugen.codegen.write import write_text
    from mcugen.deploy.measured.contribution import measurement_of, measurement_text, require_shareable
    from mcugen.deploy.validation.runs import RunsFile
    from mcugen.deploy.validation.session import validate_model
    from mcugen.deploy.validation.text import print_validation, validation_page

    net = Compilation.of(model, board, replace(task, options=replace(task.options, validation=True)))
    if files.write is not None:
        with watched(net, output_options.quiet):
            folder = net.write(files.write)
        if not output_options.quiet:
            tell(f"{folder}: add {net.compiled.bundle.name}_validate.c to your firmware, as its header says")
        return
    if not connection.port:
        remedy = "give the port of the board, or --port simulator; --write DIR writes the files for the firmware"
        raise UsageError("--port must name the port of the board", "none", remedy)
    known = None if files.runs is None else RunsFile.at(files.runs)
    wiring = connection.wiring()
    if files.share is not None:
        require_shareable(net.target, connection.port)
        wiring = replace(wiring, simulates=True)
    with watched(net, output_options.quiet):
        result = validate_model(net, wiring)
    write_json(output_options.json_, result)
    tell_warnings(net.compiled.report.warnings)
    if not output_options.quiet:
        tell_notes(result.notes)
    if files.html is not None:
        write_text(files.html, validation_page(result))
    if known is not None:
        known.add(result)
    if output_options.json_ != "-":
        print_validation(result, stdout, output_options.wide)
    _require_equal(result)
    if files.share is not None:
        write_text(files.share, measurement_text(measurement_of(result)))


def _require_equal(result: ValidationReport) -> None:
    """Raise VerificationError if the board's results differ from those of the generated code on this computer."""
    difference, wrong = result.difference, result.constants_differ
    if difference is None and not wrong and not result.different_samples:
        return
    mismatch = (
        str(difference) if difference else f"{result.different_samples} samples differ, {len(wrong)} constants do"
    )
    causes = difference.causes if difference else []
    rule = "the board must compute what the generated code computes on this computer"
    raise VerificationError(rule, mismatch, causes[0] if causes else "")
