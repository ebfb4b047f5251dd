# SPDX-License-Identifier: Apache-2.0
"""Keywords of the Python interface: each option is one, gives what the command line gives, and is checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keyword_types
import numpy as np
import pytest
from command_line import mcugen
from option_texts import NEEDED, text_of, title

from mcugen.api.compilation import Compilation
from mcugen.core.errors import UsageError
from mcugen.driver.tasks import Teaching
from mcugen.options.arguments import TARGETS, CompilationTask
from mcugen.options.keywords import Keywords, keyword_options
from mcugen.options.option import Option
from mcugen.options.table import OPTIONS

MODEL = Path(__file__).resolve().parents[2] / "examples" / "digits" / "digits_int8.onnx"

NATIVE: dict[str, Any] = {
    **{"dim": {"N": (1, 4)}, "bind": {"x": np.array([1, 2])}, "input-type": {"x": "uint8"}, "state": {"h_out": "h_in"}},
    **{"place": {"arena": "dtcm"}, "plausible": {"y": (0, 1.0)}, "layer": {"y": "float32"}, "max-cycles": 1_500_000},
    **{"labels": Path("labels.txt"), "plugin": Path("text"), "without": "rounding"},
}
"""Values in Python of options that take more than a text or a number."""

KEYWORDS = list(keyword_options("compile").values())


def native(option: Option) -> Any:
    """Return a value as a Python program gives it."""
    if option.kind is bool:
        return True
    return NATIVE.get(option.name, option.kind(text_of(option)) if option.kind in (int, float) else text_of(option))


def needed_by(option: Option) -> dict[str, list[str]]:
    """Return the texts of other options without which an option is an error, or has no effect."""
    part, _, field = option.path.rpartition(".")
    needed = NEEDED.get(part) or NEEDED.get(option.target) or NEEDED.get(field) or {}
    learning = {"train": ["auto"]} if option.target == "Teaching" else {}
    return {name: texts for name, texts in {**needed, **learning}.items() if name != option.name}


class Captured(UsageError):
    """The end of a command that only reads its options."""


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[CompilationTask, Teaching | None]]:
    """Return a list that gets what a command is told, instead of compiling; files of options exist."""
    tasks: list[tuple[CompilationTask, Teaching | None]] = []

    def of(model: Path, board: str, task: CompilationTask, *, teaching: Teaching | None, trace: object) -> None:
        tasks.append((task, teaching))
        raise Captured("read")

    monkeypatch.chdir(tmp_path)
    Path("labels.txt").write_text("cat\ndog\n")
    monkeypatch.setattr(Compilation, "of", of)
    return tasks


@pytest.mark.parametrize("option", KEYWORDS, ids=title)
def test_a_keyword_gives_what_the_command_line_gives(
    option: Option, told: list[tuple[CompilationTask, Teaching | None]]
) -> None:
    needed = needed_by(option)
    flags = [f"--{name}={text}" for name, texts in needed.items() for text in texts]
    flags.append(option.flag if option.kind is bool else f"{option.flag}={text_of(option)}")
    assert mcugen("compile", MODEL, "-b", "host", *flags).code == 2
    values = {name.replace("-", "_"): texts[0] for name, texts in needed.items()}
    keywords = Keywords("compile", {**values, option.parameter_name: native(option)})
    assert repr(told) == repr([(keywords.task, keywords.teaching)])
    without = Keywords("compile", {} if option.path.startswith("library.") else values)
    assert repr(told) != repr([(without.task, without.teaching)])


def test_all_options_that_set_fields_are_keywords() -> None:
    targets = {name for name in TARGETS if name not in ("OutputOptions", "Workers")}
    for command in ("compile", "quantize"):
        options = {o.name for o in OPTIONS if command in o.commands and o.target in targets}
        assert {option.name for option in keyword_options(command).values()} == options


def test_the_types_of_keywords_are_current() -> None:
    assert keyword_types.FILE.read_text() == keyword_types.keyword_types(), "run `python tools/keyword_types.py`"


@pytest.mark.parametrize("option", KEYWORDS, ids=title)
def test_none_is_an_option_that_is_not_given(option: Option) -> None:
    assert repr(Keywords("compile", {option.parameter_name: None}).task) == repr(Keywords("compile", {}).task)


@pytest.mark.parametrize("option", KEYWORDS, ids=title)
@pytest.mark.parametrize("wrong", [object(), b"bytes", 1 + 2j], ids=["object", "bytes", "complex"])
def test_a_value_of_a_wrong_type_is_an_error_that_names_the_keyword(option: Option, wrong: object) -> None:
    with pytest.raises(UsageError) as caught:
        _ = Keywords("compile", {option.parameter_name: wrong}).task
    assert str(caught.value).startswith((option.parameter_name, "samples"))


@pytest.mark.parametrize(
    ("keyword", "value", "message"),
    [
        ("steps", 1, "steps must be True or False"),
        ("tune", True, "tune must be a whole number"),
        ("tune", 2.0, "tune must be a whole number"),
        ("tune", "2", "tune must be a whole number"),
        ("batch", 0, "batch must be at least 1 and at most 1e+06"),
        ("rate", -0.5, "rate must be at least 0"),
        ("max_ram", 20000.5, "--max-ram must be a positive number of bytes"),
        ("max_latency", 0.02, "--max-latency must be a positive time with its unit"),
        ("layer", {"y": "int3"}, "--layer must read NAME=PRECISION"),
        ("dim", {"N": (4, "x")}, "dim must be a text"),
        ("plausible", {"y": (2, 1)}, "--plausible must read NAME=LOW..HIGH"),
        ("bind", {"x": ["a"]}, "--bind must read NAME=VALUE"),
        ("labels", [], "--labels must name a class"),
        ("precision", "int3", "--precision must be known"),
    ],
)
def test_a_wrong_value_is_an_error(keyword: str, value: object, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        _ = Keywords("compile", {keyword: value}).task
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("keyword", "remedy"),
    [
        ("max_rom", "max_ram=…"),
        ("Max_Ram", "max_ram=…"),
        ("dims", "dim=…"),
        ("max_drop", "max_accuracy_drop=…"),
        ("family", "kernels=…"),
        ("output", "call .write(FOLDER)"),
        ("zzzz", "help(mcugen.compile)"),
    ],
)
def test_an_unknown_keyword_names_the_nearest(keyword: str, remedy: str) -> None:
    with pytest.raises(UsageError) as caught:
        Keywords("compile", {keyword: 1})
    assert f"no keyword '{keyword}'" in str(caught.value) and remedy in str(caught.value)


def test_numbers_of_numpy_are_numbers() -> None:
    given = {"tune": np.int32(2), "pixel_scale": np.float32(0.5), "steps": np.bool_(True), "max_ram": np.int64(20000)}
    task = Keywords("compile", given).task
    assert (task.options.tune, task.options.steps, task.options.max_ram) == (2, True, 20000)
    assert task.judging.pixel_scale == 0.5


@pytest.mark.parametrize("value", [np.array([0.1, -3e-30]), np.float32(0.1), np.array([[2**62, -1]]), [1, 2], 7])
def test_bound_arrays_keep_every_bit(value: Any) -> None:
    bound = Keywords("compile", {"bind": {"x": value}}).task.options.bound["x"]
    assert np.array_equal(bound, value) and np.shape(bound) == np.shape(value)


def test_ranges_keep_every_bit() -> None:
    low, high = 0.1 + 0.2, np.float64(1e30) / 3
    assert Keywords("compile", {"plausible": {"y": (low, high)}}).task.options.plausible == {"y": (low, high)}


def test_names_of_classes_may_be_a_list(tmp_path: Path) -> None:
    file = tmp_path / "labels.txt"
    file.write_text("cat\ndog\n")
    by_file, by_list = (Keywords("compile", {"labels": labels}).task for labels in (file, ["cat", "dog"]))
    assert by_file.options == by_list.options
    assert by_list.options.labels == ("cat", "dog") and by_list.options.helpers


def test_the_environment_names_a_library_as_for_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    options = [option for option in KEYWORDS if option.envvar]
    assert len(options) == 2
    for option in options:
        monkeypatch.setenv(str(option.envvar), f"/opt/{option.parameter_name}")
    library = Keywords("compile", {}).task.options.library
    assert library is not None
    assert {str(library.include), str(library.archive)} == {f"/opt/{option.parameter_name}" for option in options}
