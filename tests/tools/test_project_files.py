# SPDX-License-Identifier: Apache-2.0
"""The files by which forges and contributors know the project are valid, and name commands that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "README.md")
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z][a-z-]*)(?:: | [a-z-]+: )?", (ROOT / "Makefile").read_text(), re.M))


def commands() -> list[str]:
    """The shell lines of all workflows."""
    steps = [
        step.get("run", "")
        for path in WORKFLOWS
        for job in yaml.safe_load(path.read_text())["jobs"].values()
        for step in job["steps"]
    ]
    jobs = yaml.safe_load((ROOT / ".gitlab-ci.yml").read_text())
    return [*steps, *(line for job in jobs.values() if "script" in job for line in job["script"])]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_has_jobs_with_limits(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow[True]  # YAML 1.1 reads the key `on` so.
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 90
        assert all(set(step) & {"run", "uses"} for step in job["steps"])


def test_workflows_run_what_exists() -> None:
    lines = commands()
    assert "make test" in lines
    assert any("hatchling build" in line for line in lines)
    for line in lines:
        for target in re.findall(r"\bmake ([a-z-]+)", line):
            assert target in TARGETS
        for name in re.findall(r"\b(?:tools|examples)/[\w./-]+", line):
            assert (ROOT / name).exists(), name


@pytest.mark.parametrize("page", PAGES)
def test_links_and_targets_of_a_page_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (ROOT / link).exists(), link
    for target in re.findall(r"`make ([a-z-]+)`", text):
        assert target in TARGETS, target


def test_issue_forms_ask_for_what_a_repair_needs() -> None:
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml").read_text())
    required = {entry["id"] for entry in form["body"] if entry.get("validations", {}).get("required")}
    assert required == {"command", "expected", "model", "doctor"}


def test_hooks_are_the_projects_own_programs() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    hooks = [hook for repo in config["repos"] for hook in repo["hooks"]]
    assert {hook["id"] for hook in hooks} == {"ruff-check", "ruff-format", "mypy", "codespell"}
    assert all(hook["entry"].startswith(".venv/bin/") for hook in hooks)


def test_the_citation_names_the_licence() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["license"] == "Apache-2.0"
