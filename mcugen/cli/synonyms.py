# SPDX-License-Identifier: Apache-2.0
"""Other words for commands, options and values, by which hints find what a user meant.

Keys are compared without case and separators (mcugen.core.nearest.folded). A word of several meanings is left out, or
has the empty meaning where it resembles a name: a wrong hint costs more than none.
"""

from __future__ import annotations

from collections.abc import Mapping


def _by_word(meanings: Mapping[str, str]) -> dict[str, str]:
    """Return the meaning of each word, from the words for each meaning."""
    return {word: meaning for meaning, words in meanings.items() for word in words.split()}


COMMANDS = _by_word(
    {
        "compile": "build convert generate gen codegen make translate transpile create emit cc",
        "report": "bench benchmark measure simulate sim test eval evaluate analyze analyse estimate",
        "inspect": "info summary dump describe graph print",
        "export": "deploy package pack project ide",
        "quantize": "quantise quant ptq",
        "run": "infer predict exec execute inference",
        "boards": "targets devices mcus chips list list-boards ls",
        "operators": "ops layers",
        "explore": "tune search pareto sweep",
        "doctor": "setup diagnose",
        "diff": "compare",
        "link": "merge combine",
        "view": "html page open",
        "init": "config configure new start",
        "version": "ver",
        "": "calibrate check",  # calibrate-board or --calibration; doctor or validate.
    }
)
"""Name of a command by each synonym for it; "" if a synonym fits several commands."""

POSITIONAL = "MODEL"
"""Value in OPTION_WORDS for words such as `--model`, whose value is the positional argument of the command."""

OPTION_WORDS = _by_word(
    {
        "board": "target mcu chip device platform hw hardware",
        "output": "out outdir output-dir output-folder output-file dest destination",
        "optimize": "opt goal optimise optimize-for optimization objective",
        "precision": "quant quantization quantise quantize dtype datatype",
        "calibration": "calib calib-data calibration-data calibration-set samples representative-dataset",
        "data": "eval eval-data test-data testset validation-data dataset",
        "max-ram": "ram ram-limit max-memory ram-budget max-sram",
        "max-flash": "flash flash-limit rom max-rom flash-budget",
        "max-latency": "latency deadline max-time time-limit latency-limit",
        "force": "overwrite replace f y yes",
        "name": "prefix model-name symbol-prefix namespace",
        "quiet": "silent no-progress s",
        "format": "export-format ide",
        "jobs": "threads workers processes parallel",
        "html": "html-report page",
        "help": "h",
        "version": "ver v",
        POSITIONAL: "model onnx m i input model-file",
    }
)
"""Name of an option, without dashes, by each synonym for it."""

OPTIONS_WITH_VALUES = {
    **dict.fromkeys(("int8", "i8", "8bit"), ("precision", "int8")),
    **dict.fromkeys(("float32", "fp32", "float", "f32"), ("precision", "float32")),
    **dict.fromkeys(("int16x8", "int16", "16x8"), ("precision", "int16x8")),
    **dict.fromkeys(("speed", "fast", "o3", "o2"), ("optimize", "speed")),
    **dict.fromkeys(("os", "size"), ("optimize", "flash")),
}
"""Option and value that a user means by a flag such as `--int8`, by the name of the flag without dashes."""

VALUES: Mapping[str, Mapping[str, str]] = {
    "optimize": _by_word(
        {
            "flash": "size small smallest space code code-size os s oz rom",
            "speed": "fast fastest performance perf time latency cycles o3 o2 ofast",
            "ram": "sram",
            "balanced": "default both o1",
            "throughput": "fps",
        }
    ),
    "precision": _by_word(
        {
            "float32": "float fp32 f32 single",
            "int8": "i8 s8 8bit 8 w8a8 qint8",
            "int16x8": "int16 i16 16bit 16x8 w8a16 a16w8",
            "w4a8": "int4 4bit w4",
            "auto": "mixed",
            "": "w4a8g",
        }
    ),
    "format": _by_word(
        {
            "stm32cube": "cubeide stm32cubeide cubemx stm32cubemx cube st",
            "mcuxpresso": "mcuxpressoide mcux nxp",
            "pico-sdk": "pico rp2040 rpi raspberrypi",
            "esp-idf": "idf espressif esp32",
            "platformio": "pio",
            "make": "makefile gnumake",
            "cmake": "cmakelists",
            "zephyr": "west ncs nrfconnect",
            "arduino": "ino arduinoide",
            "cmsis-pack": "cmsis csolution",
            "iar": "ewarm iarew",
            "keil": "uvision mdk mdkarm keilmdk",
            "micropython": "upython mpy usermod",
        }
    ),
    "metric": _by_word({"top1": "accuracy acc", "sqnr": "snr", "f1": "f1score", "map": "meanap"}),
    "kernels": _by_word({"cmsis-nn": "cmsis arm", "own": "mcugen native default"}),
    "loss": _by_word({"cross-entropy": "ce crossentropyloss softmax", "mse": "l2", "mae": "l1"}),
    "optimizer": _by_word({"momentum": "nesterov"}),
    "without": _by_word({"bias-correction": "bias", "rounding": "adaround"}),
    "ir": _by_word({"hir": "graph", "lir": "program"}),
}
"""Values of options by synonyms for them, by the name of the option."""
