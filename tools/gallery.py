# SPDX-License-Identifier: Apache-2.0
"""The models of ../shared on some boards, by `mcugen explore`: docs/reference/figures/gallery.md (`make gallery`).

Models with data are quantized to int8 and judged on held-out samples; those of ../shared/zoo are taken as they come.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from markers import rewrite_passage

from mcugen.core.board import load_board
from mcugen.core.errors import ConstraintError
from mcugen.evaluation.metrics import described

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "reference" / "figures" / "gallery.md"
SHARED = Path("../shared")
"""From the project's folder, as the document's commands have it."""

BOARDS = ("rp2040", "nrf52840", "stm32h743", "alif_e7", "esp32c3")
HEADINGS = ("board", "CPU", "ms", "RAM", "flash", "µJ")


@dataclass(frozen=True)
class Subject:
    """A model of ../shared: its purpose, the data for quantization and evaluation, and further options."""

    path: str
    purpose: str
    data: str = ""
    options: str = ""

    @property
    def name(self) -> str:
        """Return the name of the model file without its suffix."""
        return Path(self.path).stem

    @property
    def command(self) -> list[str]:
        """Return the words of the `mcugen explore` command for the model."""
        words = ["mcugen", "explore", str(SHARED / self.path), "--boards", ",".join(BOARDS), *shlex.split(self.options)]
        if not self.data:
            return words
        calibration, held = (str(SHARED / "data" / f"{self.data}_{split}.npz") for split in ("calib", "eval"))
        return [*words, "--precision", "int8", "--calibration", calibration, "--data", held]


SUBJECTS = (
    Subject("models/ds_cnn_kws_f32.onnx", "twelve keywords in a second of sound", "kws"),
    Subject("models/mobilenet_v1_025_vww_f32.onnx", "persons in 96x96 pixels", "vww", "--pixel-scale 0.00392157"),
    Subject("models/resnet8_cifar10_f32.onnx", "ten kinds of things in 32x32 pixels", "cifar10"),
    Subject("models/autoencoder_ad_f32.onnx", "whether a machine sounds as it did", "ad"),
    Subject("models/streaming_wakeword_f32.onnx", "one wake word", "sww"),
    Subject("models/mnist_cntk.onnx", "a handwritten digit of 28x28 pixels", "mnist"),
    Subject("zoo/esp_tcn_stream.onnx", "temporal convolutions, from ESP-DL"),
    Subject("zoo/deeploy_cct_1_32.onnx", "a compact transformer for 32x32 pixels"),
    Subject("zoo/deeploy_tinyvit.onnx", "a small vision transformer"),
    Subject("zoo/dory_frontnet_int.onnx", "where a person is, seen from a small drone"),
)


LANGUAGE_MODEL = "language_model"
"""Name of the chapter of the language model in examples/, and of its folder in build/."""
PRECISIONS = ("int8", "w4a8")
"""Precisions of the language model."""


def main(
    models: Annotated[str, typer.Option(help="parts of model names, by commas; all if empty")] = "",
    jobs: Annotated[int, typer.Option(min=0, help="combinations at once; 0: one for each CPU")] = 0,
) -> None:
    """Explore the models, and write a chapter of docs/reference/figures/gallery.md for each."""
    for subject in SUBJECTS:
        if any(name in subject.name for name in models.split(",")):
            rewrite_passage(DOCUMENT, subject.name, chapter(subject, explore_subject(subject, jobs)))
    if any(name in LANGUAGE_MODEL for name in models.split(",")):
        rewrite_passage(DOCUMENT, LANGUAGE_MODEL, language_chapter(run_language_model))


def language_commands(precision: str) -> list[list[str]]:
    """Return the words of the commands that train the language model, quantize it, and simulate its token loop."""
    folder, example = f"build/{LANGUAGE_MODEL}", f"examples/{LANGUAGE_MODEL}"
    states = [f"{name}{layer}_out:{name}{layer}" for layer in range(2) for name in "kv"]
    quantize = f"mcugen quantize {folder}/model.onnx -o {folder}/model_{precision}.onnx --precision {precision}"
    samples = f"--calibration {folder}/calibration.npz --data {folder}/held_out.npz"
    simulate = f"python {example}/simulate.py {folder} --model model_{precision}.onnx --temperature 0.7 --top-k 20"
    options = [word for state in states for word in ("--state", state)]
    return [
        ["python", f"{example}/make_model.py", folder],
        [*quantize.split(), *samples.split(), *options],
        simulate.split(),
    ]


def run_language_model(words: Sequence[str]) -> str:
    """Run a command of the language model and return what it prints; a model that exists is not trained again."""
    if words[1].endswith("make_model.py") and (ROOT / words[2] / "model.onnx").is_file():
        return ""
    program = Path(sys.executable).with_name(words[0])
    done = subprocess.run([program, *words[1:]], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout + done.stderr


def language_chapter(run: Callable[[Sequence[str]], str]) -> str:
    """Return the chapter of the language model: commands, and a table of each precision as the simulation prints it.

    Args:
        run: Runs a command and returns what it prints.
    """
    title = "Text, token by token, by a network that the example trains; figures are averages of the steps"
    lines = [f"### {LANGUAGE_MODEL}", "", f"{title} (each token equals the Python reference's).", ""]
    for precision in PRECISIONS:
        commands = language_commands(precision)
        printed = [run(words) for words in commands]
        quality = next((line for line in printed[1].splitlines() if line.startswith("quantized: ")), "")
        shown = "\n".join(" \\\n    ".join(_broken(words)) for words in commands)
        table = "\n".join(line for line in printed[2].splitlines() if line.startswith("| "))
        lines += [f"{precision}; {quality}", "", "```", shown, "```", "", table, ""]
    return "\n".join(lines).rstrip()


def explore_subject(subject: Subject, jobs: int) -> Mapping[str, Any]:
    """Return the JSON report of `mcugen explore` for a model."""
    program = Path(sys.executable).with_name("mcugen")
    words = [program, *subject.command[1:], "--quiet", "--json", "-", "--jobs", str(jobs)]
    environment = {**os.environ, "COLUMNS": "80"}
    done = subprocess.run(words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode not in (0, ConstraintError.exit_code):  # where it fits no board, that is the chapter
        raise SystemExit(done.returncode)
    found: Mapping[str, Any] = json.loads(done.stdout)
    return found


def chapter(subject: Subject, found: Mapping[str, Any]) -> str:
    """Return a chapter: heading, command, accuracy of the model, and a table with a row for each board."""
    models = [point["report"]["model"] for point in found["points"] if point["report"]]
    size = f", {models[0]['macs']:,} multiply-accumulates, {models[0]['parameters']:,} parameters" if models else ""
    lines = [f"### {subject.name}", "", f"{_capital(subject.purpose)}{size}{accuracy_text(found)}.", ""]
    lines += ["```", " \\\n    ".join(_broken(subject.command)), "```", ""]
    rows = [HEADINGS, ["---"] * 2 + ["---:"] * (len(HEADINGS) - 2), *map(row, found["points"])]
    return "\n".join([*lines, *(f"| {' | '.join(cells)} |" for cells in rows)])


def accuracy_text(found: Mapping[str, Any]) -> str:
    """Return the int8 model's metric beside the float model's; "" for models without data."""
    metric = found["metric"]
    values = [point["accuracy"] for point in found["points"] if point.get("accuracy") is not None]
    if not metric or not values:
        return ""
    show = described(metric["metric"]).show
    beside = "" if metric["metric"] == "sqnr" else f" ({show(metric['float32'])} in float32)"
    return f"; {metric['metric']} {show(values[0])}{beside} on {metric['samples']} samples"


def row(point: Mapping[str, Any]) -> Sequence[str]:
    """Return the cells of a board; for a model that does not fit, the reason."""
    board = load_board(point["board"])
    named = [f"`{board.name}`", board.cpu]
    if point["refusal"]:
        return [*named, _rule(point["refusal"]["message"]), "", "", ""]
    missed = ", ".join(what for what in point["misses"] if what in ("RAM", "flash"))
    energy = "" if point["microjoules"] is None else f"{point['microjoules']:,.0f}"
    time = "" if point["ms"] is None else f"{'≥ ' * point['by_instructions']}{point['ms']:.3g}"
    return [
        *named,
        f"{time} (too large: {missed})" if missed else time,
        f"{point['ram']:,}",
        f"{point['flash']:,}",
        energy,
    ]


def _rule(message: str) -> str:
    """Return the violated rule of an error message, without the value that was found."""
    return message.splitlines()[0].partition(". found:")[0].replace("|", "/")


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _broken(words: Sequence[str]) -> list[str]:
    """Return the command in lines, broken before --precision and before the first --state."""
    cuts = sorted({0, len(words), *(words.index(word) for word in ("--precision", "--state") if word in words)})
    return [shlex.join(words[start:end]) for start, end in pairwise(cuts)]


if __name__ == "__main__":
    typer.run(main)
