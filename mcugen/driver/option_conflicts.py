# SPDX-License-Identifier: Apache-2.0
"""The table of options that exclude each other, on the command line as in CompileOptions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mcugen.core.errors import UsageError
from mcugen.core.options import NPU_OFF, OWN_FAMILIES, STATISTICS_MODES, CompileOptions

RANGES, FILE, FIRMWARE = "a range of sizes (--dim)", "a file of weights", "weights in the firmware"
"""Names, in messages, of settings that no single flag stands for: a range of sizes, and where weights are stored."""
DEADLINE = "a deadline (--max-cycles, --max-latency)"
"""Name, in messages, of a limit on the time of a call."""

USES: Mapping[str, Callable[[CompileOptions], bool]] = {
    "--check-parameters": lambda o: o.check_parameters,
    "--check-weights": lambda o: o.check_weights,
    "--checked-arena": lambda o: o.checked_arena,
    "--copy-ahead": lambda o: o.copy_ahead,
    "--cores": lambda o: o.cores > 1,
    "--cores 1": lambda o: o.cores == 1,
    "--external-io": lambda o: o.external_io,
    "--input-pipeline": lambda o: bool(o.input_pipeline),
    "--kernels": lambda o: o.family not in OWN_FAMILIES,
    "--monitor": lambda o: o.monitor,
    "--monitor-layers": lambda o: bool(o.monitor_layers),
    "--npu": lambda o: o.npu != NPU_OFF,
    "--optimize flash": lambda o: o.optimize == "flash",
    "--optimize ram": lambda o: o.optimize == "ram",
    "--optimize throughput": lambda o: o.throughput,
    "--plausible": lambda o: bool(o.plausible),
    "--self-test": lambda o: bool(o.self_test),
    f"--statistics {STATISTICS_MODES[1]}": lambda o: o.training is not None and o.training.updates_statistics,
    "--state": lambda o: bool(o.states),
    "--steps": lambda o: o.steps,
    "--stream-input": lambda o: o.stream_input,
    "--stream-steps": lambda o: o.stream_steps is not None,
    "--train": lambda o: o.training is not None,
    "--train-weights int8": lambda o: o.training is not None and o.training.precision == "int8",
    "--tune": lambda o: bool(o.tune),
    "--validation": lambda o: o.validation,
    "--weights-reader": lambda o: o.weights_reader,
    DEADLINE: lambda o: o.max_cycles is not None or o.max_latency is not None,
    RANGES: lambda o: bool(o.ranges),
    FILE: lambda o: o.weights_in_file,
    FIRMWARE: lambda o: not o.weights_in_file,
}
"""For each option or setting, by its name in messages, a function that returns whether options use it."""


@dataclass(frozen=True)
class Conflict:
    """An option that cannot be used together with certain others, and the message that says so."""

    option: str
    """The option as messages write it, such as "--copy-ahead"; a key of USES, which tells whether it is in use."""
    others: tuple[str, ...]
    """The options that it excludes, as messages write them; keys of USES, too."""
    rule: str
    """First part of the message: why the options exclude each other."""
    remedy: str = "leave one out"
    """Last part of the message: what the user can do."""

    def error(self, options: CompileOptions) -> UsageError | None:
        """Return the error that names the first of `others` that is in use; None if none is.

        The method does not check whether `option` itself is in use.
        """
        other = next((other for other in self.others if USES[other](options)), None)
        return None if other is None else UsageError(self.rule, other, self.remedy)


# fmt: off
# A row has an option, the others that it excludes, and the rule; a remedy where it is not to leave one of them out.
COPY_AHEAD = Conflict("--copy-ahead", ("--steps", "--monitor-layers", "--train", "--weights-reader", "--optimize flash",
                                       RANGES),
                      "--copy-ahead does not go together with everything")
"""The conflict of --copy-ahead with the options that it excludes; an element of CONFLICTS."""
CONFLICTS = (
    Conflict("--weights-reader", ("--stream-input", "--optimize ram"),
             "with --weights-reader layers are computed one after the other"),
    Conflict("--npu", ("--weights-reader",), "--npu: the NPU reads weights where they lie"),
    Conflict("--npu", ("--stream-input",), "--npu: an input that is passed row by row is computed by the CPU"),
    Conflict("--validation", ("--weights-reader",), "validation on the target reads weights where they lie"),
    Conflict("--check-weights", (FILE,), "--check-weights is for weights in the firmware",
             "it has such a function, and --check-parameters one for what lies beside it"),
    Conflict("--check-parameters", (FIRMWARE,), "--check-parameters is for what lies beside a file of weights",
             "give --check-weights, which looks at parameters, too"),
    Conflict("--optimize throughput", ("--cores 1",), "--optimize throughput shares frames between two cores",
             "give --cores 2"),
    Conflict("--optimize throughput", ("--external-io",),
             "--optimize throughput keeps what a frame needs in the arena"),
    Conflict("--cores", ("--steps", "--monitor-layers", "--stream-input", "--weights-reader", "--kernels", RANGES),
             "layers are shared by two cores only where each is one call"),
    Conflict(f"--statistics {STATISTICS_MODES[1]}", ("--train-weights int8",),
             "--statistics updated: trained weights must be float32, as what is learned from is normalized in reals",
             "--train-weights float32, or --statistics frozen"),
    Conflict("--train", ("--state", "--steps", "--cores", "--stream-input", "--external-io", FILE, "--validation",
                         "--checked-arena", "--input-pipeline", RANGES),
             "--train does not go together with everything yet"),
    Conflict("--self-test", (FILE, "--stream-input", "--train", RANGES),
             "--self-test flips constants of the code, which runs on this computer"),
    Conflict("--plausible", (RANGES,), "--plausible is for outputs of one size"),
    Conflict("--monitor", ("--stream-input", "--train", RANGES),
             "--monitor observes inputs of one size where they lie, of a model that does not learn"),
    Conflict("--input-pipeline", ("--stream-input",), "an input that is made of raw data must lie in memory"),
    Conflict("--stream-steps", ("--stream-input", "--input-pipeline", "--train", RANGES),
             "--stream-steps: the first input is new steps of fixed size"),
    Conflict("--tune", ("--cores", "--train", "--kernels", "--weights-reader", "--copy-ahead", "--stream-input",
                        DEADLINE, RANGES),
             "--tune measures one kernel after the other"),
    COPY_AHEAD,
)
"""All options that exclude others, in the order in which they are checked."""
# fmt: on


def require_compatible(options: CompileOptions) -> None:
    """Check that no options exclude each other.

    Raises:
        UsageError: If two options in use exclude each other; the message is that of the first conflict in CONFLICTS.
    """
    for conflict in CONFLICTS:
        error = conflict.error(options) if USES[conflict.option](options) else None
        if error is not None:
            raise error
