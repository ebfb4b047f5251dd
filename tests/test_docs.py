# SPDX-License-Identifier: Apache-2.0
"""What the documents say of the project is what the project says of itself."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from architecture import rooms, walk
from markers import replace_between_markers
from performance_summary import peers, summary

from mcugen.core.errors import McugenError
from mcugen.deploy.monitoring.fleet import fleet_schema
from mcugen.reporting.kernels import kernel_table
from mcugen.reporting.operators import operator_table
from mcugen.reporting.stored import report_schema
from mcugen.reporting.tflite_operators import tflite_operator_table

ROOT = Path(__file__).resolve().parents[1]


def test_files_that_documents_and_code_name_exist() -> None:
    """Check paths in documents, docstrings and comments; recipes name files that a reader writes."""
    sources = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    sources += [path for folder in ("mcugen", "tools") for path in (ROOT / folder).rglob("*.py")]
    sources.remove(ROOT / "docs" / "how-to" / "recipes.md")
    sources.remove(ROOT / "CHANGELOG.md")
    path_of_file = re.compile(r"(?<![\w/.])(?:mcugen|tests|tools)/[\w/]+\.(?:py|txt)\b")
    named = {(path.name, name) for path in sources for name in path_of_file.findall(path.read_text())}
    assert len(named) > 100
    folders = (ROOT, ROOT / "tests")  # Requirements name tests by their paths within tests/.
    assert [(file, name) for file, name in sorted(named) if not any((f / name).is_file() for f in folders)] == []


def test_operator_table_is_current() -> None:
    text = (ROOT / "docs" / "reference" / "operators.md").read_text()
    between = text.split("<!-- operators:begin -->\n")[1].split("<!-- operators:end -->")[0]
    assert between == operator_table(), "write the output of `mcugen operators` between the markers"


def test_tflite_operator_table_is_current() -> None:
    text = (ROOT / "docs" / "reference" / "tflite_operators.md").read_text()
    assert replace_between_markers(text, "tflite", tflite_operator_table()) == text, "run `make docs`"


def test_kernel_table_is_current() -> None:
    text = (ROOT / "docs" / "reference" / "kernels.md").read_text()
    assert replace_between_markers(text, "declared", kernel_table()) == text, "run `make docs`"
    row = next(line for line in text.splitlines() if line.startswith("| `trees_code` |"))
    assert row.endswith("|  | TreeEnsemble, TreeEnsembleClassifier, TreeEnsembleRegressor |")


def test_the_schema_of_reports_is_current() -> None:
    text = (ROOT / "docs" / "monitor.schema.json").read_text()
    assert json.loads(text) == fleet_schema(), "run `make docs`; a key that goes or changes needs a new FLEET_SCHEMA"
    text = (ROOT / "docs" / "report.schema.json").read_text()
    assert json.loads(text) == report_schema(), "run `make docs`; a key that goes or changes needs a new basis.SCHEMA"


def test_the_architecture_is_current() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    assert replace_between_markers(text, "walk", walk()) == text, "run `make docs`"
    drawn = text.split("<!-- rooms:begin -->\n")[1].split("<!-- rooms:end -->")[0]
    assert _without_shares(drawn) == _without_shares(rooms()), "run `make docs`"
    assert max(int(share) for share in re.findall(r"(\d+) %", rooms())) <= 33
    assert len(text.split()) <= 2500


def _without_shares(table: str) -> list[str]:
    """Imports by room: shares change with every line."""
    return [re.sub(r" +\d+ %", "", line) for line in table.strip().splitlines()]


def test_the_summary_is_of_the_tables() -> None:
    text = (ROOT / "docs" / "reference" / "figures" / "performance.md").read_text()
    assert replace_between_markers(text, "summary", summary(text)) == text, "run `make docs`"
    assert re.search(r"\| M4 \(5 networks\) \| 0\.[23]\dx \|", summary(text))


def test_readme_compares_by_the_tables() -> None:
    readme, table = (
        (ROOT / "README.md").read_text(),
        peers((ROOT / "docs" / "reference" / "figures" / "performance.md").read_text()),
    )
    assert replace_between_markers(readme, "peers", table) == readme, "run `make docs`"
    assert re.search(r"TensorFlow Lite Micro .*\| 5 \| 0\.[23]\d \|", table)
    assert re.search(r"ExecuTorch .*\| 9 \| 0\.[012]\d \|", table)


def test_readme_is_short_and_begins_with_what_it_does() -> None:
    readme = (ROOT / "README.md").read_text()
    assert len(readme.split()) <= 900
    assert readme.splitlines()[2].startswith(
        "mcugen compiles neural networks (ONNX, .tflite, PyTorch, Keras, scikit-learn)"
    )
    assert readme.index("pip install") < readme.index("```c") < readme.index("make demo")
    assert "make test" in readme


def test_documents_list_every_exit_code() -> None:
    readme = (ROOT / "docs" / "reference" / "commands.md").read_text()
    codes = {cls.exit_code for cls in McugenError.__subclasses__()}
    assert len(codes) >= 8
    for code in codes:
        assert f"| {code} |" in readme


def test_passage_is_rewritten_between_its_markers() -> None:
    text = "head\n<!-- a:begin -->\nold\n<!-- a:end -->\ntail\n"
    once = replace_between_markers(text, "a", "new\n")
    assert once == "head\n<!-- a:begin -->\nnew\n<!-- a:end -->\ntail\n"
    assert replace_between_markers(once, "a", "new\n") == once
    with pytest.raises(ValueError, match="b:begin"):
        replace_between_markers(text, "b", "new")


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("README.md", "peers"),
        ("docs/start/first_model.md", "demo"),
        ("docs/reference/operators.md", "operators"),
        ("docs/reference/figures/performance.md", "bench"),
        ("docs/reference/kernels.md", "kernels"),
    ],
)
def test_generated_passages_are_filled(file: str, name: str) -> None:
    text = (ROOT / file).read_text()
    assert len(text.split(f"<!-- {name}:begin -->")[1].split(f"<!-- {name}:end -->")[0]) > 200
