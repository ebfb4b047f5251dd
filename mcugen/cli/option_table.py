# SPDX-License-Identifier: Apache-2.0
"""The table of all options of all commands; see mcugen.cli.option for its columns.

The command line, shell completion, `mcugen.toml`, `mcugen link --set` and docs/options.md follow from it. Conflicts
between options are in mcugen.driver.option_conflicts, as Python code that sets fields meets them too.
"""

from __future__ import annotations

from pathlib import Path

from mcugen.cli import option_values as values
from mcugen.cli.arguments import TARGETS, Ir
from mcugen.cli.option import REQUIRED, Option
from mcugen.cli.settings import MODEL, Kinds
from mcugen.codegen.libraries import LIBRARIES
from mcugen.core.board import board_names
from mcugen.core.options import (
    CMSIS_NN,
    DIVERGED_DB,
    FAMILIES,
    FEW_BITS,
    GOALS,
    INPUT_TYPES,
    LOSSES,
    METHODS,
    METRICS,
    MIXED,
    OPTIMIZERS,
    OWN,
    PRECISIONS,
    RUNNING,
    STATISTICS,
    THROUGHPUT,
    TRAINED_AS,
)
from mcugen.core.version import __version__
from mcugen.export.formats import FORMATS

CODE = ("init", "compile", "report", "export", "link", "update", "evidence", "validate")
"""Commands whose generated code people read."""
RUN = (*CODE, "explore", "run", "inspect", "calibrate-board")
"""Commands that compile."""
READ = (*RUN, "quantize", "profile")
"""Commands that read a model."""
QUANTIZE = (*CODE, "explore", "run", "inspect", "quantize")
"""Commands that quantize a model and measure its accuracy."""
LEARN = ("compile", "report")
"""Commands that train a model on samples."""
SHARE = ("report", "explore", "quantize")
"""Commands whose work is shared by processes or computers."""
JSON = ("compile", "report", "explore", "export", "link", "update", "evidence", "quantize", "inspect", "validate")
"""Commands that write a report as JSON to a file."""
QUIET = (*JSON, "run", "profile", "calibrate-board", "view", "diff")
"""Commands that show progress or a summary."""

READING, QUANTIZATION, SAMPLES = "How the model is read", "Quantization", "Samples"
MEMORY, APART, TIME = "Memory", "Weights apart from the code", "Time"
LEARNING, OFFERS, SAFETY = "Learning on the device", "What the code offers", "Safety"
KERNELS, COMPUTERS, DEVELOPERS = "Kernels", "Computers", "For developers"

_BOARD = "a name of `mcugen boards`, or a .toml file"
_HEADERS, _ARCHIVE = LIBRARIES[CMSIS_NN].options
_HEADERS_VARIABLE, _ARCHIVE_VARIABLE = LIBRARIES[CMSIS_NN].variables

# fmt: off
# A row has name, type, help; commands, field, group; and what is particular.
OPTIONS = (
    Option("--validation", bool, "adds the firmware's part of `mcugen validate` (docs/validate.md)",
           ("compile",), "CompileOptions.validation", by_hand=True),
    Option("--dim", list[str],
           "fixes a symbolic dimension: N=1; or gives the sizes that it may have when the code runs: T=1..64",
           READ, "CompileOptions.dims", READING, parse=values.dims),
    Option("--bind", list[str], "fixes an input at compile time: NAME=[1, 2] or NAME=file.npy",
           READ, "CompileOptions.bound", READING, parse=values.bound),
    Option("--input-type", list[str],
           f"the caller passes whole numbers, as they are, in place of reals: NAME=uint8 ({', '.join(INPUT_TYPES)})",
           READ, "CompileOptions.input_types", READING, parse=values.input_types),
    Option("--state", list[str], "keeps OUTPUT for the next call's INPUT: h_out:h_in",
           READ, "CompileOptions.states", READING, parse=values.states),
    Option("--input-pipeline", str,
           "how the input is made of raw data, for the firmware as for samples: 'image=rgb565, rgb, scale=1/255', or "
           "a file (docs/pipelines.md)",
           READ, "CompileOptions.input_pipeline", SAMPLES),
    Option("--plugin", list[Path], "Python file with operators of your own",
           READ, "CompileOptions.plugins", READING, parse=values.as_tuple, by_hand=True),
    Option("--float16-weights", bool, "rounds weights of float layers to 16 bits: half of their flash",
           RUN, "CompileOptions.float16_weights", QUANTIZATION),
    Option("--optimize", str, f"what matters most: {', '.join(GOALS)}; with --cores 2 also {THROUGHPUT}",
           (*RUN, "quantize"), "CompileOptions.optimize", default=GOALS[0], choices=(*GOALS, THROUGHPUT)),
    Option("--kernels", str, "whose kernels compute layers: {choices} (docs/kernels.md)",
           RUN, "CompileOptions.family", KERNELS, default=OWN, choices=FAMILIES),
    Option("--kernel", list[str], "takes this kernel wherever it fits; else they are chosen",
           RUN, "CompileOptions.kernels", KERNELS, parse=values.as_tuple),
    Option("--stream-input", bool, "the first input comes row by row, by a function of yours: no memory for it",
           RUN, "CompileOptions.stream_input", MEMORY),
    Option("--external-io", bool, "inputs and outputs lie in buffers of your own: no memory for them",
           RUN, "CompileOptions.external_io", MEMORY),
    Option("--max-ram", str, "the model must do with so many bytes of RAM: 20000, or 20KB",
           RUN, "CompileOptions.max_ram", MEMORY, parse=values.size),
    Option("--max-flash", str, "the same of flash, weights and code",
           RUN, "CompileOptions.max_flash", MEMORY, parse=values.size),
    Option("--max-latency", str, "a call must take no longer on the board: 20ms (docs/memory.md)",
           RUN, "CompileOptions.max_latency", TIME, parse=values.seconds),
    Option("--max-cycles", str, "the same in estimated cycles: 1500000",
           RUN, "CompileOptions.max_cycles", TIME, parse=values.cycles),
    Option("--tune", int, "chooses kernels by simulated cycles, of so many a layer (docs/memory.md)",
           RUN, "CompileOptions.tune", TIME, default=0, show_default=False),
    Option("--place", list[str],
           "what lies in which memory of the board: auto, or arena=dtcm+ocram, weights=flash, hot-weights=dtcm:32768 "
           "(docs/memory.md)",
           RUN, "CompileOptions.place", MEMORY, parse=values.places),
    Option("--weights-blob", bool, "the run function takes the weights, as a file apart from the code",
           RUN, "CompileOptions.weights_blob", APART),
    Option("--updatable", bool,
           "--weights-blob with all that training changes: a model trained again is a new file (docs/memory.md)",
           RUN, "CompileOptions.updatable", APART),
    Option("--weights-version", int, "of --updatable: what the firmware may compare",
           RUN, "CompileOptions.weights_version", APART, default=0, min=0),
    Option("--weights-reader", bool,
           "--weights-blob for memory without addresses: a function of yours reads a layer's weights into the arena",
           RUN, "CompileOptions.weights_reader", APART),
    Option("--copy-ahead", bool,
           "weights of the next layer are copied to RAM while one runs: by MCUGEN_STAGE_BEGIN and MCUGEN_STAGE_END, "
           "functions of yours for DMA",
           RUN, "CompileOptions.copy_ahead", MEMORY),
    Option("--check-weights", bool, "functions that compare weights and tables with checksums, also in steps",
           RUN, "CompileOptions.check_weights", SAFETY),
    Option("--check-parameters", bool, "the same of parameters and tables, where weights are a file of their own",
           RUN, "CompileOptions.check_parameters", SAFETY),
    Option("--checked-arena", bool,
           "besides NAME_run: ones that take the arena's size, or look at canaries around it",
           RUN, "CompileOptions.checked_arena", SAFETY),
    Option("--checked-indices", bool,
           "no kernels whose constants hold addresses: damaged ones never lead out of memory",
           RUN, "CompileOptions.checked_indices", SAFETY),
    Option("--checked-steps", bool, "a checksum of the arena between steps; implies --steps",
           RUN, "CompileOptions.checked_steps", SAFETY, implies="steps"),
    Option("--steps", bool, "besides NAME_run: NAME_begin and NAME_step, one layer or row group a call",
           RUN, "CompileOptions.steps", TIME),
    Option("--max-step-cycles", int, "no step takes longer on the board, as simulated; implies --steps",
           RUN, "CompileOptions.max_step_cycles", TIME, implies="steps"),
    Option("--cores", int, "2: besides NAME_run code that shares layers between two cores (docs/two_cores.md)",
           RUN, "CompileOptions.cores", TIME, default=1),
    Option("--train", str,
           "makes the model one that learns where it runs: last:N layers, names of layers, bias or bias:N, "
           "adapter:RANK or adapter:RANK:N, with commas between them; or a head that remembers samples: "
           "centroids:CLASSES, nearest:CLASSES:SAMPLES:K, statistics, perhaps @LAYER; or auto (docs/training.md)",
           RUN, "CompileOptions.training.layers", LEARNING),
    Option("--loss", str, "what learning lowers: {choices}",
           RUN, "CompileOptions.training.loss", LEARNING, default=LOSSES[0], choices=LOSSES),
    Option("--optimizer", str, "how it learns: {choices}",
           RUN, "CompileOptions.training.optimizer", LEARNING, default=OPTIMIZERS[0], choices=OPTIMIZERS),
    Option("--train-weights", str,
           "how trained weights are kept: float32, int8 (not with adam), or auto: int8 where float32 does not fit",
           RUN, "CompileOptions.training.precision", default=TRAINED_AS[0], choices=TRAINED_AS),
    Option("--statistics", str,
           "means and variances of batch normalization behind the first trained layer: frozen, or updated by samples",
           RUN, "CompileOptions.training.statistics", LEARNING, default=RUNNING[0], choices=RUNNING),
    Option("--batch", int, "how many samples make a step of learning",
           RUN, "CompileOptions.training.batch", LEARNING, default=1, min=1, max=1_000_000),
    Option(_HEADERS, Path, f"the folder of {LIBRARIES[CMSIS_NN].title}'s headers, where code runs that calls it",
           RUN, "CompileOptions.library.include", KERNELS, by_hand=True, envvar=_HEADERS_VARIABLE),
    Option(_ARCHIVE, Path, "the same library as built for the board's CPU; {cpu} in the name stands for that",
           RUN, "CompileOptions.library.archive", KERNELS, by_hand=True, envvar=_ARCHIVE_VARIABLE),
    Option("--name", str, "prefix of all C symbols; else the file's name",
           CODE, "CompileOptions.name", OFFERS),
    Option("--helpers", bool, "the header has functions that write pixels, samples, reals, and read classes",
           CODE, "CompileOptions.helpers", OFFERS),
    Option("--labels", Path, "names of an output's classes, one a line, as strings in C; implies --helpers",
           CODE, "CompileOptions.labels", OFFERS, parse=values.labels, implies="helpers"),
    Option("--stack-bound", bool,
           "the header tells the most stack that a run takes, as the board's compiler builds it",
           CODE, "CompileOptions.stack_bound", SAFETY),
    Option("--self-test", int,
           "the self-test has at most so many samples, of yours (--data, --calibration) and made ones, chosen for "
           "the flipped bits of constants that they find",
           CODE, "CompileOptions.self_test", SAFETY, default=0, min=0, max=16, show_default=False),
    Option("--plausible", list[str],
           "NAME_check_outputs tells outputs that lie outside of a range: NAME=LOW..HIGH, or 'samples' for all, as "
           "your samples have them",
           CODE, "CompileOptions.plausible", SAFETY, parse=values.plausible),

    Option("--precision", str, "of the arithmetic: {choices}; int8 where samples are given",
           QUANTIZE, "Quantizing.precision", choices=(*PRECISIONS, *FEW_BITS, MIXED)),
    Option("--calibration", Path, "samples to take ranges from: .npz, .npy, or a folder of .npy, .npz, .png",
           QUANTIZE, "Quantizing.calibration"),
    Option("--profile", Path, "ranges of `mcugen profile` instead of samples, or besides",
           QUANTIZE, "Quantizing.profile", QUANTIZATION),
    Option("--synthetic", str,
           f"without data: samples are made, of inputs LOW..HIGH or by the {STATISTICS} of batch normalizations",
           QUANTIZE, "Quantizing.synthetic", QUANTIZATION),
    Option("--preprocess", str,
           "of each sample: 'resize=96x96, gray, scale=1/255, mean=0.5, std=0.25' (docs/quantization.md)",
           (*QUANTIZE, "profile"), "Quantizing.preprocess", QUANTIZATION),
    Option("--method", str, "of choosing ranges: {choices}; else by measured error",
           QUANTIZE, "Quantizing.scheme.method", QUANTIZATION, parse=values.method, choices=METHODS),
    Option("--symmetric", bool, "activations with zero point 0",
           QUANTIZE, "Quantizing.scheme.symmetric", QUANTIZATION),
    Option("--power-of-two", bool, "scales that are powers of two",
           QUANTIZE, "Quantizing.scheme.power_of_two", QUANTIZATION),
    Option("--per-tensor", bool, "one scale for all weights of a layer",
           QUANTIZE, "Quantizing.scheme.per_channel", QUANTIZATION, parse=values.negated),
    Option("--integer-io", bool, "inputs and outputs are the integers, not reals",
           QUANTIZE, "Quantizing.scheme.integer_io", QUANTIZATION),
    Option("--without", list[str], "leaves out a technique: {choices}", (*QUANTIZE, "profile"),
           "Quantizing.scheme.without", QUANTIZATION, parse=values.techniques, choices=tuple(values.TECHNIQUES)),
    Option("--layer", list[str], "precision of one layer: NAME=float32",
           QUANTIZE, "Quantizing.layers", QUANTIZATION, parse=values.layers),

    Option("--data", Path, "evaluation samples, .npz; labels in `labels` or `y`, or boxes in `boxes`",
           QUANTIZE, "Judging.data"),
    Option("--pixel-scale", float, "factor of `x_uint8` samples for a float input",
           (*QUANTIZE, "profile"), "Judging.pixel_scale", SAMPLES, default=1.0),
    Option("--metric", str, "{choices}, or your own: FILE.py:FUNCTION; else what suits the labels (docs/reports.md)",
           QUANTIZE, "Judging.metric", SAMPLES, choices=tuple(METRICS)),
    Option("--max-accuracy-drop", float, "of --precision auto, in percentage points against float32; else 0.5",
           QUANTIZE, "Judging.max_drop", QUANTIZATION),
    Option("--min-sqnr", float, "of --precision auto, in dB, in place of accuracy or besides",
           QUANTIZE, "Judging.min_sqnr", QUANTIZATION),
    Option("--max-weights", str,
           "of --precision auto: 60% of the bytes of int8 weights, by a code or 4 bits; counted as the model has "
           "them, which --optimize flash stores so; kernels for other goals may widen them, which --max-flash counts",
           QUANTIZE, "Judging.max_weights", QUANTIZATION, parse=values.share),

    Option("--lesson", Path, "samples with labels, from which a model with --train learns one by one",
           LEARN, "Teaching.lesson", LEARNING),
    Option("--rate", float, "at which it learns", LEARN, "Teaching.rate", LEARNING, default=0.01, min=0.0),
    Option("--epochs", int, "how often it is shown the lesson", LEARN, "Teaching.epochs", LEARNING, default=1, min=1),
    Option("--jobs -j", int, "so many at once; 0: one for each CPU",
           SHARE, "Workers.jobs", COMPUTERS, default=0, min=0, parse=values.cpus),
    Option("--cluster", str, "a Dask scheduler whose workers do it: tcp://HOST:8786; or local (docs/cluster.md)",
           SHARE, "Workers.cluster", COMPUTERS),
    Option("--quiet -q", bool, "no progress, no summary", QUIET, "Telling.quiet"),
    Option("--json", str, "write the report as JSON to a file, or - for stdout", JSON, "Telling.json_"),

    # Options that their commands read themselves.
    Option("--board -b", str, _BOARD,
           ("compile", "report", "run", "export", "link", "update", "evidence", "validate"),
           default=REQUIRED, choices=board_names),
    Option("--board -b", str, _BOARD, ("inspect",), default="host", choices=board_names),
    Option("--board -b", str, _BOARD, ("init",)),
    Option("--board -b", str, "look for what this board needs; exit code 8 if it is not there", ("doctor",)),
    Option("-o --output", Path, "folder; else one called like the model", ("compile", "export")),
    Option("-o --output", Path, "folder; all its symbols begin with its name", ("link",), default=REQUIRED),
    Option("-o --output", Path, "folder of the evidence", ("evidence",), default=REQUIRED),
    Option("-o --output", Path, "the file of weights, .bin", ("update",), default=REQUIRED),
    Option("-o --output", Path, "where to write the outputs, .npz", ("run",), default=REQUIRED),
    Option("-o --output", Path, "the QDQ model, .onnx", ("quantize",), default=REQUIRED),
    Option("-o --output", Path, "the profile, .json", ("profile",), default=REQUIRED),
    Option("-o --output", Path, "the board file to write, .toml", ("calibrate-board",), default=REQUIRED),
    Option("--output -o", Path, "the page; else beside the report, .html", ("view",)),
    Option("--force", bool, "replaces the file that is there", ("init",)),
    Option("--force", bool, "overwrites files that were edited, or are not mcugen's", ("export",)),
    Option("--format", str, "who is to take it: {choices}", ("export",), default=REQUIRED, choices=tuple(FORMATS)),
    Option("--zip", bool, "one zipped file, where the tool takes that", ("export",)),
    Option("--package-version", str, "MAJOR.MINOR.PATCH", ("export",), default=__version__),
    Option("--exclusive", list[str], "A,B: models that are never in use together, and may share memory", ("link",)),
    Option("--set", list[str],
           "an option of one model, by its file's name or number: digits:calibration=a.npz, 2:name=words", ("link",)),
    Option("--build/--no-build", bool, "measure the flash of code, if the board's compiler is installed",
           ("link",), default=True),
    Option("--for", Path, "folder that `compile --updatable` wrote, as it is in the firmware",
           ("update",), default=REQUIRED),
    Option("--boards", str, "names of `mcugen boards` or .toml files, between commas; or all",
           ("explore",), default="all"),
    Option("--min-accuracy", float, "least value of the metric", ("explore",)),
    Option("--max-energy", float, "of a call, in microjoules", ("explore",)),
    Option("--price", list[str], "BOARD=PRICE; else a smaller board counts as cheaper", ("explore",)),
    Option("--simulate/--no-simulate", bool, "run combinations under QEMU, or estimate", ("explore",), default=True),
    Option("--most-runs", int, "of more combinations, only the most promising are simulated",
           ("explore",), default=120, min=1),
    Option("--cache", Path, "folder of earlier results; else that of the user (XDG)", ("explore",)),
    Option("--all", bool, "list all combinations, not the Pareto front alone", ("explore",)),
    Option("--html", Path, "write a page with linked charts", ("explore",)),
    Option("--dump-after", str, "print the graph after this pass (or `all`) to stderr",
           ("compile",), panel=DEVELOPERS),
    Option("--time-passes", bool, "print seconds per pass to stderr",
           ("compile",), panel=DEVELOPERS),
    Option("--compare-layers", bool, "all layers in order, float and integer side by side",
           ("report",), panel=DEVELOPERS),
    Option("--diverged", float, "SQNR in dB below which a layer has diverged",
           ("report",), panel=DEVELOPERS, default=DIVERGED_DB),
    Option("--wait-states", int, "of flash, for the estimate of cycles, instead of the board's",
           ("report",), panel=TIME, min=0),
    Option("--extreme-inputs", bool, "the best and worst of such, where data decides",
           ("report",), panel=TIME),
    Option("--html", Path, "write the report as one page with charts", ("report",)),
    Option("--ir", Ir, "dump an intermediate representation", ("inspect",)),
    Option("--memory", bool, "what lies where in the arena, layer by layer", ("inspect",)),
    Option("--svg", Path, "write a picture of the arena over time, .svg", ("inspect",)),
    Option("--html", Path, "write the graph as it came and as it is compiled, side by side",
           ("inspect",)),
    Option("--passes", str, "what these passes did: names, by commas", ("inspect",)),
    Option("--inputs", Path, "samples, .npz", ("run",), default=REQUIRED),
    Option("--limit", list[str],
           "how much worse a figure may become: cycles=+2%, ram=+0, accuracy=-0.005; else exit code 6", ("diff",)),
    Option("--markdown", Path, "write it for a pull request, .md", ("diff",)),
    Option("--html", Path, "write it as one page", ("diff",)),
    Option("--json", str, "write it as JSON to a file, or - for stdout", ("diff",)),
    Option("--json", bool, "as JSON", ("doctor", "boards", "show")),
    Option("--finetune", int, "epochs of fine-tuning on the samples, where outputs are below --min-sqnr (25 dB)",
           ("quantize",), default=0, min=0),
    Option("--calibration", Path, "samples, as for compile", ("profile",), default=REQUIRED),
    Option("--port", str,
           "where the board is: /dev/ttyACM0, COM3, socket://HOST:PORT, rtt:TARGET, semihosting:TARGET, or simulator",
           ("validate",)),
    Option("--baud", int, "of a serial port, as the firmware has it", ("validate",), default=115_200),
    Option("--timeout", float, "seconds of silence that are too many", ("validate",), default=20.0),
    Option("--layer-samples", int, "samples on which every layer is compared", ("validate",), default=8, min=0),
    Option("--simulate", bool, "the simulator's instructions, cycles and stack beside the board's", ("validate",)),
    Option("--write", Path, "only write the folder, as `mcugen compile --validation -o` does", ("validate",)),
    Option("--runs", Path, "add the cycles of layers to this file, .json, for calibration", ("validate",)),
    Option("--html", Path, "write the result as one page", ("validate",)),
    Option("--from", Path, "measured runs, as `mcugen validate --runs` writes them",
           ("calibrate-board",), default=REQUIRED),
    Option("--model", list[Path], "ONNX file that ran, once for each", ("calibrate-board",), default=REQUIRED),
    Option("--plugin", list[Path], "Python file with operators of your own", ("operators",)),
    Option("--like", str, "only those with this in name, CPU, kits or description", ("boards",)),
    Option("--fits", Path, "only those that this model fits, with what it takes there", ("boards",)),
)
# fmt: on


def find_option(name: str, command: str) -> Option:
    """Return the option of a command by its name without dashes."""
    return next(option for option in OPTIONS if option.name == name and command in option.commands)


def options_that_set(target: type, command: str) -> tuple[Option, ...]:
    """Return the options of a command that set fields of a class."""
    return tuple(o for o in OPTIONS if TARGETS.get(o.target) is target and command in o.commands)


def settings_kinds() -> Kinds:
    """Return the types of the options that `mcugen.toml` may give, by name."""
    return {MODEL: Path} | {option.name: option.base for option in OPTIONS if option.is_in_settings}
