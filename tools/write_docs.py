# SPDX-License-Identifier: Apache-2.0
"""Rewrites the generated passages of the documents (`make docs`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import keyword_types
import tutorial
from architecture import rooms, walk
from lint_c import deviation_table
from markers import rewrite_passage
from performance_summary import peers, summary

from mcugen.backends.npu.ethos_u.command_stream.support import operations_table
from mcugen.core.resources import resource_dir
from mcugen.deploy.measured.contribution import measurement_schema, read_measurements
from mcugen.deploy.measured.table import measurement_table
from mcugen.deploy.monitoring.fleet import fleet_schema
from mcugen.export.formats import format_table
from mcugen.export.kits import kit_table
from mcugen.options.reference import option_reference
from mcugen.reporting.kernels import kernel_table
from mcugen.reporting.stored import report_schema
from mcugen.reporting.tflite_operators import tflite_operator_table

ROOT = Path(__file__).resolve().parents[1]
MCUGEN = Path(sys.executable).with_name("mcugen")
DEMO = (
    "report",
    "examples/digits/digits_f32.onnx",
    "--calibration",
    "examples/digits/calibration.npz",
    "--board",
    "rt1060",
    "--data",
    "examples/digits/eval.npz",
    "--quiet",
)

EVIDENCE = (
    "evidence",
    "examples/digits/digits_int8.onnx",
    "--board",
    "nrf52840",
    "--data",
    "examples/digits/calibration.npz",
    "-o",
    "examples/digits/evidence",
    "--quiet",
)


def output(*arguments: str, folder: Path = ROOT) -> str:
    """Return the output of a mcugen command on an 80-column terminal, without trailing spaces."""
    environment = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1"}
    done = subprocess.run([MCUGEN, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return "\n".join(line.rstrip() for line in done.stdout.splitlines()).strip("\n")


def in_folder(words: list[str], folder: Path) -> str:
    """Return the output of a command of the tutorial."""
    return output(*words, folder=folder)


def streaming() -> str:
    """Return what the streaming example saves."""
    folder = ROOT / "examples" / "streaming"
    with tempfile.TemporaryDirectory() as scratch:
        stream = Path(scratch) / "stream.onnx"
        command = [sys.executable, folder / "make_streaming.py", folder / "window.onnx", stream]
        states = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        rows = []
        for what, model, options in (("window", folder / "window.onnx", []), ("stream", stream, states)):
            report = json.loads(output("report", str(model), "--board", "rt1060", "--quiet", "--json", "-", *options))
            ram = report["ram"]
            rows.append(f"| {what} | {report['instructions']:,} | {ram['arena']:,} | {ram['state']:,} |")
    head = ["| rt1060 | instructions a call | arena, bytes | state, bytes |", "|---|---|---|---|"]
    return "\n".join([*head, *rows, "", "(`mcugen report` on both; written by `make docs`.)"])


def main() -> None:
    """Rewrite all generated passages."""
    rewrite_passage(ROOT / "examples" / "streaming" / "README.md", "streaming", streaming())
    demo = f"What `make demo` prints (`mcugen {' '.join(DEMO)}`):\n\n```\n{output(*DEMO)}\n```"
    rewrite_passage(ROOT / "docs" / "start" / "first_model.md", "demo", demo)
    rewrite_passage(ROOT / "docs" / "reference" / "operators.md", "operators", output("operators"))
    rewrite_passage(ROOT / "docs" / "reference" / "tflite_operators.md", "tflite", tflite_operator_table())
    rewrite_passage(ROOT / "docs" / "reference" / "kernels.md", "declared", kernel_table())
    rewrite_passage(ROOT / "docs" / "reference" / "options.md", "options", option_reference())
    keyword_types.main()
    rewrite_passage(ROOT / "docs" / "how-to" / "export.md", "formats", format_table())
    rewrite_passage(ROOT / "docs" / "explanation" / "npu_verification.md", "npu-operations", operations_table())
    rewrite_passage(ROOT / "docs" / "reference" / "misra.md", "deviations", deviation_table())
    for part, page in tutorial.PAGES.items():
        trained = tutorial.EXAMPLE / part if part in tutorial.COMMITTED else None
        page.write_text(tutorial.current(page.read_text(), trained, in_folder))
    output(*EVIDENCE)
    performance = ROOT / "docs" / "reference" / "figures" / "performance.md"
    rewrite_passage(performance, "summary", summary(performance.read_text()))
    rewrite_passage(ROOT / "README.md", "peers", peers(performance.read_text()))
    (ROOT / "docs" / "report.schema.json").write_text(json.dumps(report_schema(), indent=1) + "\n")
    (ROOT / "docs" / "monitor.schema.json").write_text(json.dumps(fleet_schema(), indent=1) + "\n")
    (ROOT / "docs" / "measurement.schema.json").write_text(json.dumps(measurement_schema(), indent=1) + "\n")
    kits_page = ROOT / "docs" / "how-to" / "kits.md"
    rewrite_passage(kits_page, "kits", kit_table())
    rewrite_passage(kits_page, "measured", measurement_table(read_measurements(resource_dir("boards") / "measured")))
    rewrite_passage(ROOT / "ARCHITECTURE.md", "walk", walk())
    rewrite_passage(ROOT / "ARCHITECTURE.md", "rooms", rooms())


if __name__ == "__main__":
    main()
