# SPDX-License-Identifier: Apache-2.0
"""docs/reference/figures/gallery.md: a chapter for each model, by the command that it names."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import gallery
import pytest

TEXT = gallery.DOCUMENT.read_text()


def chapter(name: str) -> str:
    return TEXT.partition(f"<!-- {name}:begin -->\n")[2].partition(f"<!-- {name}:end -->")[0]


@pytest.mark.parametrize("subject", gallery.SUBJECTS, ids=lambda subject: subject.name)
def test_a_chapter_has_its_command_and_a_line_for_each_board(subject: gallery.Subject) -> None:
    text = chapter(subject.name)
    command = text.split("```")[1].replace("\\\n", " ")
    assert shlex.split(command) == subject.command
    assert [line.split("`")[1] for line in text.splitlines() if line.startswith("| `")] == list(gallery.BOARDS)


def test_what_explore_says_becomes_a_chapter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gallery, "SHARED", Path("examples"))
    monkeypatch.setattr(gallery, "BOARDS", ("nrf52840", "rp2040"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    subject = gallery.Subject(
        "digits/digits_int8.onnx", "digits", options="--no-simulate --data examples/digits/eval.npz"
    )
    found = gallery.explore_subject(subject, 1)
    text = gallery.chapter(subject, found)
    assert "Digits, 113,248 multiply-accumulates, 5,362 parameters; top1 99." in text
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    assert [line.split(" | ")[1] for line in lines] == ["cortex-m4", "cortex-m0plus"]
    assert f"{found['points'][1]['ram']:,} | {found['points'][1]['flash']:,}" in lines[1]


def test_what_does_not_fit_says_so() -> None:
    point = {"board": "rp2040", "refusal": None, "misses": ["RAM", "accuracy"], "by_instructions": True}
    point |= {"ms": 12.345, "ram": 1000, "flash": 2000, "microjoules": 1234.5}
    assert gallery.row(point)[2:] == ["≥ 12.3 (too large: RAM)", "1,000", "2,000", "1,234"]
    refused = {"board": "rp2040", "refusal": {"message": "must | fit. found: 1. try: 2\nby far"}}
    assert gallery.row(refused)[2:] == ["must / fit", "", "", ""]


def test_the_language_model_has_a_table_for_each_precision() -> None:
    """By commands that its README has, too."""

    def run(words: Sequence[str]) -> str:
        return {"mcugen": "note\nquantized: 30 dB\n"}.get(words[0], "| board |\n| --- |\ntext\n| `rp2350` |\n")

    text = gallery.language_chapter(run)
    assert (
        text.count("| board |\n| --- |\n| `rp2350` |") == len(gallery.PRECISIONS) and "int8; quantized: 30 dB" in text
    )
    written = chapter(gallery.LANGUAGE_MODEL)
    readme = (gallery.ROOT / "examples" / gallery.LANGUAGE_MODEL / "README.md").read_text()
    for precision in gallery.PRECISIONS:
        train, quantize, simulate = gallery.language_commands(precision)
        for place in (written, readme) if precision == "int8" else (written,):
            text = " ".join(place.replace("\\\n", " ").split())
            assert shlex.join(train) in text and shlex.join(quantize) in text
        assert shlex.join(simulate) in written
    assert written.count("| `rp2350` |") == written.count("| `nrf52840` |") == len(gallery.PRECISIONS)
