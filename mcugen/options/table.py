# SPDX-License-Identifier: Apache-2.0
"""The table of all options of all commands; see mcugen.options.option for its columns.

The command line, shell completion, `mcugen.toml`, `mcugen link --set` and docs/reference/options.md follow from it.
Conflicts between options are in mcugen.driver.option_conflicts, as Python code that sets fields meets them too.
"""

from __future__ import annotations

from pathlib import Path

from mcugen.codegen.libraries import LIBRARIES
from mcugen.core.board import board_names
from mcugen.core.options import (
    CMSIS_NN,
    DIVERGED_DB,
    FAMILIES,
    FOUR_BIT_GROUP_SIZES,
    GOALS,
    INPUT_TYPES,
    LOSS_NAMES,
    MATCH_STATISTICS,
    MATCHES,
    MAX_KS,
    MAX_PSI,
    METRIC_TITLES,
    MIXED,
    MONITOR_BYTES,
    NPU_USES,
    OPTIMIZER_NAMES,
    OWN,
    PRECISIONS,
    RANGE_METHODS,
    STATISTICS_MODES,
    THROUGHPUT,
    TRAINED_PRECISIONS,
)
from mcugen.core.version import __version__
from mcugen.export.formats import FORMATS
from mcugen.options import values
from mcugen.options.arguments import TARGETS, Ir
from mcugen.options.option import REQUIRED, Option, OutputKind

CODE = ("init", "compile", "report", "export", "link", "update", "evidence", "validate")
"""Commands that write generated code, or figures about it, and so have options on what the code contains."""
RUN = (*CODE, "explore", "run", "inspect", "calibrate-board")
"""Commands that compile a model, and so have the options of code generation."""
READ = (*RUN, "quantize", "profile")
"""Commands that read a model, and so have the options of the importer."""
QUANTIZE = (*CODE, "explore", "run", "inspect", "quantize")
"""Commands that quantize a model and measure its accuracy."""
LEARN = ("compile", "report")
"""Commands that can train a model on samples."""
SHARE = ("report", "explore", "quantize", "ui")
"""Commands that can divide their work between processes or computers."""
JSON = (
    "compile",
    "report",
    "explore",
    "export",
    "link",
    "update",
    "evidence",
    "quantize",
    "inspect",
    "validate",
    "monitor",
)
"""Commands that have --json for a report as JSON."""
QUIET = (*JSON, "run", "profile", "calibrate-board", "view", "diff")
"""Commands that have --quiet, as they show progress or a summary."""

TABLES = ("report", "explore", "link", "inspect", "validate", "diff", "monitor")
"""Commands that have --wide, as they print tables that may be wider than a terminal."""

MAX_COMMON_OPTIONS = 10
"""Largest number of options in the short help of a command, besides --help."""


def _except(commands: tuple[str, ...], *others: str) -> tuple[str, ...]:
    """Return the commands without some others."""
    return tuple(command for command in commands if command not in others)


READING, QUANTIZATION, SAMPLES = "How the model is read", "Quantization", "Samples"
"""Titles of panels of options in --help: import, quantization, and evaluation samples."""
MEMORY, APART, TIME = "Memory", "Weights apart from the code", "Time"
"""Titles of panels of options in --help: memory, weights in a file, and execution time."""
LEARNING, CODE_FUNCTIONS, SAFETY = "Learning on the device", "What the code offers", "Safety"
"""Titles of panels of options in --help: on-device training, functions of the code, and safety."""
KERNELS, PARALLEL_WORK, DEVELOPERS = "Kernels", "Computers", "For developers"
"""Titles of panels of options in --help: choice of kernels, parallel work, and debugging."""

_LIMITED = ("init", "compile", "report")
"""Commands whose short help shows the limits of memory."""
_BOARD = "a name or part number of `mcugen boards`, or a .toml file"
_HEADERS, _ARCHIVE = LIBRARIES[CMSIS_NN].options
_HEADERS_VARIABLE, _ARCHIVE_VARIABLE = LIBRARIES[CMSIS_NN].variables

# fmt: off
# A row has name, type, help; commands, field, group; and what is particular.
OPTIONS = (
    Option("--validation", bool, "add the firmware's part of `mcugen validate` (docs/how-to/validate.md)",
           ("compile",), "CompileOptions.validation", common=(), by_hand=True),
    Option("--dim", list[str], "fix a symbolic dimension: N=1; or give the range of its sizes at run time: T=1..64",
           READ, "CompileOptions.dims", READING, parse=values.dims, from_python=values.texts_of_ranges),
    Option("--bind", list[str], "fix an input at compile time: NAME=[1, 2] or NAME=file.npy",
           READ, "CompileOptions.bound", READING, parse=values.bound, from_python=values.texts_of_arrays),
    Option("--input-type", list[str],
           f"pass whole numbers for a float input, unscaled: NAME=uint8 ({', '.join(INPUT_TYPES)})",
           READ, "CompileOptions.input_types", READING, parse=values.input_types,
           from_python=values.texts_of_pairs),
    Option("--match", str,
           "compute a quantized .tflite model with the bits of TensorFlow Lite Micro's kernels: {choices} "
           "(docs/how-to/tflite.md)",
           RUN, "CompileOptions.match", READING, default="", show_default=False, choices=MATCHES),
    Option("--keep-states", bool,
           "keep the states of all recurrent layers of a .tflite model between calls, as TensorFlow Lite Micro does",
           READ, "CompileOptions.keeps_states", READING),
    Option("--signature", str, "compile the subgraph with this signature of a .tflite model instead of the first one",
           READ, "CompileOptions.signature", READING, default="", show_default=False),
    Option("--state", list[str], "keep an output as an input of the next call, OUTPUT:INPUT: h_out:h_in",
           READ, "CompileOptions.states", READING, parse=values.states, from_python=values.texts_of_states),
    Option("--stream-steps", int,
           "turn a network over a window of time into one that takes this many new steps a call, and keeps the others "
           "(docs/how-to/streams.md)",
           _except(RUN, "explore"), "CompileOptions.stream_steps", READING),
    Option("--stream-axis", int, "axis of the first input that counts time steps, for --stream-steps",
           _except(RUN, "explore"), "CompileOptions.stream_axis", READING),
    Option("--input-pipeline", str,
           "generate code that converts raw data to the input, and convert samples alike: "
           "'image=rgb565, rgb, scale=1/255', or a file (docs/how-to/pipelines.md)",
           READ, "CompileOptions.input_pipeline", SAMPLES),
    Option("--plugin", list[Path], "Python file with operators of your own",
           READ, "CompileOptions.plugins", READING, parse=values.as_tuple, by_hand=True),
    Option("--float16-weights", bool, "round weights of float layers to 16 bits, which halves their flash",
           RUN, "CompileOptions.float16_weights", QUANTIZATION),
    Option("--optimize", str, f"goal of the optimization: {', '.join(GOALS)}; with --cores 2 also {THROUGHPUT}",
           (*RUN, "quantize"), "CompileOptions.optimize", common=(*_except(RUN, "validate", "explore"), "quantize"),
           default=GOALS[0], choices=(*GOALS, THROUGHPUT)),
    Option("--kernels", str, "family of kernels: {choices} (docs/how-to/cmsis_nn.md)",
           RUN, "CompileOptions.family", KERNELS, default=OWN, choices=FAMILIES),
    Option("--kernel", list[str], "use this kernel wherever it fits, instead of the kernel that serves the goal",
           RUN, "CompileOptions.kernels", KERNELS, parse=values.as_tuple),
    Option("--stream-input", bool,
           "read the first input row by row with a function of yours, so that it takes no memory",
           RUN, "CompileOptions.stream_input", MEMORY),
    Option("--external-io", bool,
           "use buffers of yours for inputs and outputs, so that they take no memory of the arena",
           RUN, "CompileOptions.external_io", MEMORY),
    Option("--max-ram", str, "largest number of bytes of RAM: 20000, or 20KB",
           RUN, "CompileOptions.max_ram", MEMORY, common=_LIMITED, parse=values.size),
    Option("--max-flash", str, "largest number of bytes of flash, weights and code: 100000, or 100KB",
           RUN, "CompileOptions.max_flash", MEMORY, common=_LIMITED, parse=values.size),
    Option("--max-latency", str, "longest time of a call on the board: 20ms (docs/how-to/memory.md)",
           RUN, "CompileOptions.max_latency", TIME, common=("explore",), parse=values.seconds),
    Option("--max-cycles", str, "largest number of estimated cycles of a call: 1500000",
           RUN, "CompileOptions.max_cycles", TIME, parse=values.cycles),
    Option("--tune", int,
           "number of kernels of each layer to simulate, to choose by simulated cycles (docs/how-to/memory.md)",
           RUN, "CompileOptions.tune", TIME, default=0, show_default=False),
    Option("--place", list[str],
           "memories of the board for data: auto, or arena=dtcm+ocram, weights=flash, hot-weights=dtcm:32768 "
           "(docs/how-to/memory.md)",
           RUN, "CompileOptions.place", MEMORY, parse=values.places, from_python=values.texts_of_pairs),
    Option("--weights-blob", bool, "write the weights to a file, whose address the run function takes",
           RUN, "CompileOptions.weights_blob", APART),
    Option("--updatable", bool,
           "--weights-blob with all data that training changes: a retrained model is a new file "
           "(docs/how-to/memory.md)",
           RUN, "CompileOptions.updatable", APART),
    Option("--weights-version", int, "version number in the file of --updatable, which the firmware may compare",
           RUN, "CompileOptions.weights_version", APART, default=0, min=0),
    Option("--weights-reader", bool,
           "--weights-blob for memory without addresses: a function of yours reads a layer's weights into the arena",
           RUN, "CompileOptions.weights_reader", APART),
    Option("--copy-ahead", bool,
           "copy the weights of the next layer to RAM while a layer runs, by DMA with functions of yours: "
           "MCUGEN_STAGE_BEGIN and MCUGEN_STAGE_END",
           RUN, "CompileOptions.copy_ahead", MEMORY),
    Option("--check-weights", bool, "add functions that compare weights and tables with checksums, at once or in steps",
           RUN, "CompileOptions.check_weights", SAFETY),
    Option("--check-parameters", bool,
           "add functions that compare parameters and tables with checksums, if weights are in a file",
           RUN, "CompileOptions.check_parameters", SAFETY),
    Option("--checked-arena", bool, "add run functions that take the arena's size, or check canaries around it",
           RUN, "CompileOptions.checked_arena", SAFETY),
    Option("--checked-indices", bool,
           "use no kernels whose constants hold addresses, so that damaged constants never lead out of memory",
           RUN, "CompileOptions.checked_indices", SAFETY),
    Option("--checked-steps", bool, "protect the arena with a checksum between steps; implies --steps",
           RUN, "CompileOptions.checked_steps", SAFETY, implies="steps"),
    Option("--steps", bool, "add NAME_begin and NAME_step, which run one layer or group of rows in each call",
           RUN, "CompileOptions.steps", TIME),
    Option("--max-step-cycles", int, "largest number of cycles of a step on the board, as simulated; implies --steps",
           RUN, "CompileOptions.max_step_cycles", TIME, implies="steps"),
    Option("--cores", int, "with 2, add code that shares layers between two cores (docs/how-to/two_cores.md)",
           RUN, "CompileOptions.cores", TIME, default=1),
    Option("--npu", str, "use of the board's NPU: {choices} (docs/how-to/npu.md)",
           RUN, "CompileOptions.npu", TIME, default=NPU_USES[0], choices=NPU_USES),
    Option("--train", str,
           "train on the device: last:N layers, names of layers, bias or bias:N, adapter:RANK or adapter:RANK:N, with "
           "commas between them; or a head that remembers samples: centroids:CLASSES, nearest:CLASSES:SAMPLES:K, "
           "statistics, optionally with @LAYER; or auto (docs/how-to/training.md)",
           RUN, "CompileOptions.training.layers", LEARNING),
    Option("--loss", str, "loss of the training: {choices}",
           RUN, "CompileOptions.training.loss", LEARNING, default=LOSS_NAMES[0], choices=LOSS_NAMES),
    Option("--optimizer", str, "optimizer of the training: {choices}",
           RUN, "CompileOptions.training.optimizer", LEARNING, default=OPTIMIZER_NAMES[0], choices=OPTIMIZER_NAMES),
    Option("--train-weights", str,
           "type of trained weights: float32, int8 (not with adam), or auto: int8 if float32 does not fit",
           RUN, "CompileOptions.training.precision", LEARNING,
           default=TRAINED_PRECISIONS[0], choices=TRAINED_PRECISIONS),
    Option("--statistics", str,
           "means and variances of batch normalization behind the first trained layer: frozen, or updated by samples",
           RUN, "CompileOptions.training.statistics", LEARNING, default=STATISTICS_MODES[0], choices=STATISTICS_MODES),
    Option("--batch", int, "number of samples of a training step",
           RUN, "CompileOptions.training.batch", LEARNING, default=1, min=1, max=1_000_000),
    Option(_HEADERS, Path, f"folder of {LIBRARIES[CMSIS_NN].title}'s headers, to run code that calls the library",
           RUN, "CompileOptions.library.include", KERNELS, by_hand=True, envvar=_HEADERS_VARIABLE),
    Option(_ARCHIVE, Path, "the library, built for the board's CPU; {cpu} in the file's name stands for the CPU",
           RUN, "CompileOptions.library.archive", KERNELS, by_hand=True, envvar=_ARCHIVE_VARIABLE),
    Option("--name", str, "prefix of all C symbols; by default the name of the model's file",
           CODE, "CompileOptions.name", CODE_FUNCTIONS),
    Option("--helpers", bool, "add functions to the header that write pixels, samples and reals, and read classes",
           CODE, "CompileOptions.helpers", CODE_FUNCTIONS),
    Option("--labels", Path,
           "file with the names of an output's classes, one on each line, for strings in C; implies --helpers",
           CODE, "CompileOptions.labels", CODE_FUNCTIONS, parse=values.labels, from_python=values.names,
           implies="helpers"),
    Option("--stack-bound", bool, "state in the header the largest stack of a run, as built by the board's compiler",
           CODE, "CompileOptions.stack_bound", SAFETY),
    Option("--self-test", int,
           "largest number of samples of the self-test, chosen from yours (--data, --calibration) and synthetic ones "
           "for the flipped bits of constants that they detect",
           CODE, "CompileOptions.self_test", SAFETY, default=0, min=0, max=16, show_default=False),
    Option("--plausible", list[str],
           "add NAME_check_outputs, which detects outputs outside of a range: NAME=LOW..HIGH; or 'samples' for the "
           "ranges that all outputs have on your samples",
           CODE, "CompileOptions.plausible", SAFETY, parse=values.plausible, from_python=values.texts_of_ranges),
    Option("--monitor", bool,
           "add functions that keep statistics of inputs and outputs in the field, for `mcugen monitor` "
           "(docs/how-to/monitor.md)",
           CODE, "CompileOptions.monitor", SAFETY),
    Option("--monitor-layers", list[str],
           "keep statistics of the results of these layers too, named as in the report: NAME,NAME; implies --monitor, "
           "and code in steps", CODE, "CompileOptions.monitor_layers", SAFETY, parse=values.listed_names,
           from_python=values.names, implies="monitor"),
    Option("--monitor-bytes", int, "largest number of bytes of RAM of these statistics",
           CODE, "CompileOptions.monitor_bytes", SAFETY, default=MONITOR_BYTES, min=1),

    Option("--precision", str, "precision of the arithmetic: {choices}; int8 if samples are given",
           QUANTIZE, "Quantizing.precision", choices=(*PRECISIONS, *FOUR_BIT_GROUP_SIZES, MIXED)),
    Option("--calibration", Path, "samples for the ranges of quantization: .npz, .npy, or a folder of .npy, .npz, .png",
           QUANTIZE, "Quantizing.calibration", from_python=values.samples),
    Option("--profile", Path, "profile by `mcugen profile`, instead of samples or in addition",
           QUANTIZE, "Quantizing.profile", QUANTIZATION),
    Option("--synthetic", str,
           f"generate samples: inputs in LOW..HIGH, or inputs of the {MATCH_STATISTICS} of batch normalizations",
           QUANTIZE, "Quantizing.synthetic", QUANTIZATION),
    Option("--preprocess", str,
           "preprocessing of each sample: 'resize=96x96, gray, scale=1/255, mean=0.5, std=0.25' "
           "(docs/how-to/quantize.md)",
           (*QUANTIZE, "profile"), "Quantizing.preprocess", QUANTIZATION),
    Option("--method", str, "method to choose ranges: {choices}; by default the one of least measured error",
           QUANTIZE, "Quantizing.scheme.method", QUANTIZATION, parse=values.method, choices=RANGE_METHODS),
    Option("--symmetric", bool, "use zero point 0 for activations",
           QUANTIZE, "Quantizing.scheme.symmetric", QUANTIZATION),
    Option("--power-of-two", bool, "use scales that are powers of two",
           QUANTIZE, "Quantizing.scheme.power_of_two", QUANTIZATION),
    Option("--per-tensor", bool, "use one scale for all weights of a layer",
           QUANTIZE, "Quantizing.scheme.per_channel", QUANTIZATION, parse=values.negated),
    Option("--integer-io", bool, "use integers as inputs and outputs, instead of reals",
           QUANTIZE, "Quantizing.scheme.integer_io", QUANTIZATION),
    Option("--without", list[str], "leave out a technique: {choices}", (*QUANTIZE, "profile"),
           "Quantizing.scheme.without", QUANTIZATION, parse=values.techniques, choices=tuple(values.TECHNIQUES)),
    Option("--layer", list[str], "precision of one layer: NAME=float32",
           QUANTIZE, "Quantizing.layers", QUANTIZATION, parse=values.layers, from_python=values.texts_of_pairs),

    Option("--data", Path, "evaluation samples, .npz; labels in `labels` or `y`, or boxes in `boxes`",
           QUANTIZE, "Judging.data", common=_except(QUANTIZE, "inspect"), from_python=values.samples),
    Option("--pixel-scale", float, "factor from `x_uint8` samples to a float input",
           (*QUANTIZE, "profile"), "Judging.pixel_scale", SAMPLES, default=1.0),
    Option("--metric", str,
           "{choices}, or your own: FILE.py:FUNCTION; by default one that suits the labels (docs/reference/reports.md)",
           QUANTIZE, "Judging.metric", SAMPLES, choices=tuple(METRIC_TITLES)),
    Option("--max-accuracy-drop", float,
           "limit of --precision auto, in percentage points below float32; by default 0.5",
           QUANTIZE, "Judging.max_drop", QUANTIZATION),
    Option("--min-sqnr", float, "limit of --precision auto in dB, instead of accuracy or in addition",
           QUANTIZE, "Judging.min_sqnr", QUANTIZATION),
    Option("--max-weights", str,
           "limit of --precision auto: 60% of the bytes of int8 weights, by compression or 4 bits. --optimize flash "
           "stores weights in that size; kernels for other goals may widen them, which --max-flash counts",
           QUANTIZE, "Judging.max_weights", QUANTIZATION, parse=values.share),

    Option("--lesson", Path, "samples with labels that a model with --train is trained on, one by one",
           LEARN, "Teaching.lesson", LEARNING, from_python=values.samples),
    Option("--rate", float, "learning rate", LEARN, "Teaching.rate", LEARNING, default=0.01, min=0.0),
    Option("--epochs", int, "number of passes over the samples of --lesson", LEARN, "Teaching.epochs",
           LEARNING, default=1, min=1),
    Option("--jobs -j", int, "number of processes; 0 is one for each CPU",
           SHARE, "Workers.jobs", PARALLEL_WORK, default=0, min=0, parse=values.cpus),
    Option("--cluster", str,
           "Dask scheduler whose workers share the work: tcp://HOST:8786; or local (docs/how-to/cluster.md)",
           SHARE, "Workers.cluster", PARALLEL_WORK),
    Option("--wide", bool, "print all columns of tables, however wide the terminal is", TABLES, "OutputOptions.wide",
           common=()),
    Option("--quiet -q", bool, "print no progress and no summary", QUIET, "OutputOptions.quiet",
           common=_except(QUIET, "export", "validate", "inspect")),
    Option("--json", str, "write the report as JSON to a file, or - for stdout", JSON, "OutputOptions.json_",
           writes=OutputKind.FILE),

    # Options that their commands read themselves.
    Option("--board -b", str, _BOARD, ("compile", "report", "run", "export", "link", "update", "evidence", "validate"),
           default=REQUIRED, choices=board_names),
    Option("--board -b", str, _BOARD, ("inspect",), default="host", choices=board_names),
    Option("--board -b", str, _BOARD, ("init",)),
    Option("--board -b", str, "check the tools that this board needs; exit code 8 if one is missing", ("doctor",)),
    Option("-o --output", Path, "folder; by default one with the name of the model", ("compile", "export"),
           writes=OutputKind.FOLDER),
    Option("-o --output", Path, "folder, whose name is the prefix of all symbols", ("link",), default=REQUIRED,
           writes=OutputKind.FOLDER),
    Option("-o --output", Path, "folder of the evidence", ("evidence",), default=REQUIRED, writes=OutputKind.FOLDER),
    Option("-o --output", Path, "file of weights, .bin", ("update",), default=REQUIRED, writes=OutputKind.FILE),
    Option("-o --output", Path, "file for the outputs, .npz", ("run",), default=REQUIRED, writes=OutputKind.FILE),
    Option("-o --output", Path, "file for the QDQ model, .onnx", ("quantize",), default=REQUIRED,
           writes=OutputKind.FILE),
    Option("-o --output", Path, "file for the profile, .json", ("profile",), default=REQUIRED, writes=OutputKind.FILE),
    Option("-o --output", Path, "file for the board, .toml", ("calibrate-board",), default=REQUIRED,
           writes=OutputKind.FILE),
    Option("--output -o", Path, "file for the page, .html; by default beside the report", ("view",),
           writes=OutputKind.FILE),
    Option("--force", bool, "replace an existing file", ("init",)),
    Option("--force", bool, "overwrite files that were edited, or that mcugen did not write",
           ("compile", "export", "link"), common=("export",)),
    Option("--format", str, "format of the package: {choices}", ("export",), default=REQUIRED, choices=tuple(FORMATS)),
    Option("--zip", bool, "write one zipped file, if the tool reads such files", ("export",)),
    Option("--package-version", str, "version of the package: MAJOR.MINOR.PATCH", ("export",), common=(),
           default=__version__),
    Option("--url", str, "web page of the package, for the metadata of package managers", ("export",), common=(),
           default=""),
    Option("--exclusive", list[str], "models that are never in use together, and may share memory: A,B", ("link",)),
    Option("--set", list[str],
           "give an option to one model, by its file's name or number: digits:calibration=a.npz, 2:name=words",
           ("link",)),
    Option("--build/--no-build", bool, "measure the flash of the code, if the board's compiler is installed",
           ("link",), common=(), default=True),
    Option("--for", Path, "folder that `compile --updatable` wrote, as it is in the firmware",
           ("update",), default=REQUIRED),
    Option("--slot", int, "write the image of a slot with this sequence number, for mcugen_slots.h",
           ("update",), common=(), min=0),
    Option("--signature-file", Path, "file with the signature of the file of weights, to be put behind it",
           ("update",), common=()),
    Option("--boards", str, "names of `mcugen boards` or .toml files, separated by commas; or all",
           ("explore",), default="all"),
    Option("--min-accuracy", float, "smallest value of the metric", ("explore",)),
    Option("--max-energy", float, "largest energy of a call, in microjoules", ("explore",), common=()),
    Option("--price", list[str], "price of a board, BOARD=PRICE; by default a smaller board counts as cheaper",
           ("explore",), common=()),
    Option("--simulate/--no-simulate", bool, "run combinations under QEMU, or only estimate",
           ("explore",), default=True),
    Option("--most-runs", int, "largest number of combinations to simulate: the most promising ones",
           ("explore",), common=(), default=120, min=1),
    Option("--cache", Path, "folder of earlier results; by default the user's cache folder (XDG)", ("explore",),
           common=()),
    Option("--all", bool, "list all combinations, not only the Pareto front", ("explore",), common=()),
    Option("--html", Path, "file for a page with linked charts", ("explore",), writes=OutputKind.FILE),
    Option("--dump-after", str, "print the graph after this pass (or `all`) to stderr", ("compile",), panel=DEVELOPERS),
    Option("--time-passes", bool, "print seconds per pass to stderr", ("compile",), panel=DEVELOPERS),
    Option("--compare-layers", bool, "print all layers in order, float and integer side by side",
           ("report",), panel=DEVELOPERS),
    Option("--diverged", float, "SQNR in dB below which a layer has diverged",
           ("report",), panel=DEVELOPERS, default=DIVERGED_DB),
    Option("--wait-states", int, "wait states of flash for the estimate of cycles, instead of the board's",
           ("report",), panel=TIME, min=0),
    Option("--extreme-inputs", bool,
           "run extreme inputs too, and report the fewest and most instructions, if these depend on data",
           ("report",), panel=TIME),
    Option("--html", Path, "file for the report as one page with charts", ("report",), writes=OutputKind.FILE),
    Option("--ir", Ir, "dump an intermediate representation", ("inspect",)),
    Option("--memory", bool, "print the contents of the arena, layer by layer", ("inspect",)),
    Option("--svg", Path, "file for a picture of the arena over time, .svg", ("inspect",), common=(),
           writes=OutputKind.FILE),
    Option("--html", Path, "file for a page with the graph as given and as compiled, side by side", ("inspect",),
           writes=OutputKind.FILE),
    Option("--passes", str, "print the effects of these passes, separated by commas", ("inspect",)),
    Option("--search", bool, "print which programs were tried, what they cost, and why one was chosen", ("inspect",)),
    Option("--npu-stream", bool, "print the commands of the NPU, or those in a file that Vela wrote", ("inspect",),
           common=()),
    Option("--inputs", Path, "samples, .npz", ("run",), default=REQUIRED),
    Option("--limit", list[str],
           "limit of the change of a figure: cycles=+2%, ram=+0, accuracy=-0.005; exit code 6 if exceeded", ("diff",)),
    Option("--markdown", Path, "file for the differences as text of a pull request, .md", ("diff",),
           writes=OutputKind.FILE),
    Option("--html", Path, "file for the differences as one page", ("diff",), writes=OutputKind.FILE),
    Option("--json", str, "write the differences as JSON to a file, or - for stdout", ("diff",),
           writes=OutputKind.FILE),
    Option("--json", bool, "print JSON", ("doctor", "boards", "show", "measured")),
    Option("--finetune", int, "epochs of fine-tuning on the samples, if outputs are below --min-sqnr (25 dB)",
           ("quantize",), default=0, min=0),
    Option("--calibration", Path, "samples, as for `mcugen compile`", ("profile",), default=REQUIRED),
    Option("--port", str,
           "port of the board: /dev/ttyACM0, COM3, socket://HOST:PORT, rtt:TARGET, semihosting:TARGET, or simulator",
           ("validate",)),
    Option("--port", str, "port of a device to read: /dev/ttyACM0, COM3, socket://HOST:PORT, rtt:TARGET, "
           "semihosting:TARGET", ("monitor",)),
    Option("--baud", int, "baud rate of a serial port, as in the firmware", ("validate", "monitor"), default=115_200),
    Option("--timeout", float, "longest silence of the board, in seconds", ("validate", "monitor"), common=(),
           default=20.0),
    Option("--save", Path, "file for the snapshot that was read from --port", ("monitor",), writes=OutputKind.FILE),
    Option("--layer-samples", int, "number of samples on which every layer is compared",
           ("validate",), common=(), default=8, min=0),
    Option("--simulate", bool, "show the simulator's instructions, cycles and stack beside the board's", ("validate",),
           common=()),
    Option("--write", Path, "only write a folder, like `mcugen compile --validation -o`", ("validate",),
           writes=OutputKind.FOLDER),
    Option("--runs", Path, "file that the cycles of layers are added to, .json, for calibration", ("validate",),
           common=(), writes=OutputKind.FILE),
    Option("--share", Path, "file for the measured cycles without names or paths, .json, for mcugen's table of boards",
           ("validate",), writes=OutputKind.FILE),
    Option("--html", Path, "file for the result as one page", ("validate",), writes=OutputKind.FILE),
    Option("--report", list[Path], "report of the firmware, as `mcugen compile --monitor` wrote it; one for each model",
           ("monitor",)),
    Option("--max-psi", float, "population stability index beyond chance that is an alarm",
           ("monitor",), default=MAX_PSI, min=0.0),
    Option("--max-ks", float, "Kolmogorov-Smirnov distance beyond chance that is an alarm",
           ("monitor",), default=MAX_KS, min=0.0),
    Option("--check", bool, "exit code 6 if there is an alarm", ("monitor",)),
    Option("--html", Path, "file for a page with charts of devices over time", ("monitor",), writes=OutputKind.FILE),
    Option("--from", Path, "measured runs, written by `mcugen validate --runs`",
           ("calibrate-board",), default=REQUIRED),
    Option("--model", list[Path], "ONNX or .tflite file of a measured model", ("calibrate-board",), default=REQUIRED),
    Option("--plugin", list[Path], "Python file with operators of your own", ("operators",)),
    Option("--host", str, "address to listen at; 0.0.0.0, for other computers, needs --password", ("ui",),
           default="127.0.0.1"),
    Option("--port", int, "port to listen at; 0 for any free one", ("ui",), default=0, min=0, max=65_535),
    Option("--password", str, "password of users on other computers; better given by MCUGEN_UI_PASSWORD", ("ui",),
           envvar="MCUGEN_UI_PASSWORD"),
    Option("--allow-host", list[str], "further name of this computer that browsers may use, as behind a proxy",
           ("ui",), common=()),
    Option("--browser/--no-browser", bool, "open a browser", ("ui",), default=True),
    Option("--max-upload", str, "largest size of an upload: 200MB", ("ui",), common=(), default="1024MB",
           parse=values.size),
    Option("--job-memory", str, "largest memory of each process of a job: 4096MB", ("ui",), common=(), default="8192MB",
           parse=values.size),
    Option("--job-minutes", float, "longest time of a job in minutes", ("ui",), common=(), default=60.0, min=0.01),
    Option("--like", str, "list only boards with this text in name, part number, CPU, kits or description",
           ("boards",)),
    Option("--html", Path, "file for a page that plots estimates against measured cycles", ("measured",),
           writes=OutputKind.FILE),
    Option("--fits", Path, "tell of each board whether this model fits, with the bytes needed and available",
           ("boards",)),
)
"""All options of all commands."""
# fmt: on


def find_option(name: str, command: str) -> Option:
    """Return the option of a command by its name without dashes."""
    return next(option for option in OPTIONS if option.name == name and command in option.commands)


def option_of_parameter(parameter_name: str, command: str) -> Option:
    """Return the option of a command by the name of its Python parameter, such as "max_ram"."""
    return next(option for option in OPTIONS if option.parameter_name == parameter_name and command in option.commands)


def options_that_set(target: type, command: str) -> tuple[Option, ...]:
    """Return the options of a command that set fields of a class."""
    return tuple(o for o in OPTIONS if TARGETS.get(o.target) is target and command in o.commands)
