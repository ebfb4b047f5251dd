# SPDX-License-Identifier: Apache-2.0
"""`mcugen diff`: what changed between two reports, why, and whether that is too much."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import yaml
from command_line import mcugen

from mcugen.api.compilation import Compilation
from mcugen.core.options import CompileOptions
from mcugen.reporting.stored import read_report

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "examples" / "digits"
HOSTILE = "<script>|`[x](y)*\n\x1b[31m"


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The digits network for least flash and for most speed, as simulated."""
    folder = tmp_path_factory.mktemp("reports")
    return tuple(_report(folder / f"{goal}.json", goal) for goal in ("flash", "speed"))  # type: ignore[return-value]


def _report(path: Path, goal: str) -> Path:
    net = Compilation(DIGITS / "digits_int8.onnx", "nrf52840", CompileOptions(optimize=goal))
    path.write_text(json.dumps(net.report().to_json()))
    return path


def diff(*arguments: object) -> dict[str, dict[str, dict[str, float]]]:
    done = mcugen("diff", *arguments, "--json", "-")
    assert done.code == 0, done.err
    return json.loads(done.out)  # type: ignore[no-any-return]


@pytest.mark.qemu
def test_reports_say_what_they_rest_on(reports: tuple[Path, Path]) -> None:
    basis = json.loads(reports[0].read_text())["basis"]
    assert basis["mcugen"] and "gcc" in basis["compiler"] and "QEMU" in basis["simulator"]
    assert basis["options"].endswith("optimize flash")
    assert all(re.fullmatch("[0-9a-f]{64}", basis[key]) for key in ("board_sha256", "data_sha256"))
    assert basis["calibration_sha256"] is None
    other = json.loads(reports[1].read_text())["basis"]
    assert {key for key in basis if basis[key] != other[key]} == {"options"}


@pytest.mark.qemu
def test_what_changed_and_why(reports: tuple[Path, Path]) -> None:
    small, fast = (json.loads(path.read_text()) for path in reports)
    found = diff(*reports)
    assert found["figures"]["instructions"] == {"before": small["instructions"], "after": fast["instructions"]}
    assert found["figures"]["flash"] == {"before": small["flash"]["total"], "after": fast["flash"]["total"]}
    assert [cause["what"] for cause in found["causes"]] == ["options"]  # type: ignore[index, call-overload]
    was, now = ({layer["name"]: layer["kernel"] for layer in report["layers"]} for report in (small, fast))
    changed = [name for name in was if was[name] != now[name]]
    assert len(found["layers"]) >= len(changed) > 0
    shown = mcugen("diff", *reports)
    assert f"{small['instructions']:,}" in shown.out and "better" in shown.out and "worse" in shown.out
    assert f"Layers that changed: {len(found['layers'])}" in shown.out
    assert found["layers"][0]["what"].count(" -> ") == 1  # type: ignore[index, call-overload]


@pytest.mark.qemu
def test_equal_reports_have_no_differences(reports: tuple[Path, Path]) -> None:
    found = diff(reports[0], reports[0], "--limit", "cycles=+0", "--limit", "ram=+0%", "--limit", "agreement=-0")
    assert not found["causes"] and not found["layers"]
    assert all(f["before"] == f["after"] for f in found["figures"].values())


@pytest.mark.qemu
@pytest.mark.parametrize(
    ("limits", "code"),
    [
        (("flash=+100%", "instructions=+0"), 0),
        (("flash=+0",), 6),
        (("flash=+1%", "instructions=+0"), 6),
        (("weights=+1000000",), 0),
        (("macs=+0", "agreement=-0"), 0),
    ],
)
def test_limits(reports: tuple[Path, Path], limits: tuple[str, ...], code: int, tmp_path: Path) -> None:
    """Of the least flash against the most speed; what was asked to be written is written all the same."""
    options = [part for limit in limits for part in ("--limit", limit)]
    done = mcugen("diff", *reports, *options, "--markdown", tmp_path / "diff.md")
    assert done.code == code, done.err
    assert ("flash, bytes" in done.err) == (code == 6)
    assert (tmp_path / "diff.md").is_file()


@pytest.mark.qemu
@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ("speed=+1", "must name a figure"),
        ("cycles", "must read"),
        ("cycles=-3%", "may grow"),
        ("accuracy=+0.1", "may fall"),
        ("cycles=+1e9", "must read"),
        ("accuracy=-0.1", "needs figures"),
    ],
)
def test_limits_that_cannot_be_kept_are_refused(reports: tuple[Path, Path], limit: str, said: str) -> None:
    done = mcugen("diff", *reports, "--limit", limit)
    assert done.code == 2
    assert said in " ".join(done.err.split())


@pytest.mark.qemu
def test_pages_and_tables_keep_hostile_names_as_text(reports: tuple[Path, Path], tmp_path: Path) -> None:
    data = json.loads(reports[1].read_text())
    data["model"]["name"] = HOSTILE
    for layer in data["layers"]:
        layer["origin"], layer["kernel"] = [HOSTILE], HOSTILE
    (tmp_path / "hostile.json").write_text(json.dumps(data))
    page, text = tmp_path / "diff.html", tmp_path / "diff.md"
    done = mcugen("diff", reports[0], tmp_path / "hostile.json", "--html", page, "--markdown", text)
    assert done.code == 0 and "\x1b" not in done.out
    tree = ElementTree.parse(page)
    assert not [e for e in tree.iter() if e.tag.endswith("script")]
    assert "<script>" in "".join(tree.getroot().itertext())
    assert not re.search(r"[<`\x1b]|\]\(", text.read_text())
    rows = [line for line in text.read_text().splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} <= {4, 6}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "must be JSON"),
        ("[" * 100_000, "must be JSON"),
        ("[]", "no version"),
        ('{"basis": {"schema": 99}}', "version 99"),
        ('{"basis": {"schema": 1}}', "must keep its schema"),
        ('{"basis": 7}', "no version"),
    ],
)
def test_what_is_no_report_is_refused(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)
    done = mcugen("diff", path, path)
    assert done.code == 2
    assert said in " ".join(done.err.split())
    assert mcugen("diff", tmp_path / "none.json", path).code == 2


@pytest.mark.qemu
def test_a_report_is_read_as_it_was_written(reports: tuple[Path, Path]) -> None:
    read = read_report(reports[0])
    assert json.loads(json.dumps(read.to_json())) == json.loads(reports[0].read_text())


@pytest.mark.qemu
def test_the_documented_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both examples for continuous integration are YAML; what they run of mcugen is run here, on the digits."""
    text = (ROOT / "docs" / "reference" / "reports.md").read_text()
    github, gitlab = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL))
    scripts = [[step["run"] for step in github["jobs"]["model"]["steps"] if "run" in step], gitlab["model"]["script"]]
    monkeypatch.chdir(tmp_path)
    Path("reports").mkdir()
    Path("model.onnx").write_bytes((DIGITS / "digits_int8.onnx").read_bytes())
    Path("eval.npz").write_bytes((DIGITS / "eval.npz").read_bytes())
    for number, script in enumerate(scripts):
        report, compare = ([*line.split()][1:] for line in script if line.startswith("mcugen "))
        if number == 0:
            assert mcugen(*report).code == 0
            Path("after.json").rename("reports/main.json")
            Path("after.json").write_bytes(Path("reports/main.json").read_bytes())
        assert report[0] == "report" and "after.json" in report
        assert mcugen(*compare).code == 0
        assert "| cycles, estimate |" in Path("diff.md").read_text()
