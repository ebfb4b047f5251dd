# SPDX-License-Identifier: Apache-2.0
"""Each option of the table is on its commands, in settings and in the reference, and sets its field; and conflicts."""

from __future__ import annotations

import re
from dataclasses import fields
from inspect import signature, unwrap
from operator import attrgetter
from pathlib import Path
from typing import get_type_hints

import pytest
import typer
from command_line import mcugen
from markers import replace_between_markers
from option_texts import NEEDED, text_of, title

from mcugen.cli.app import app
from mcugen.core.errors import UsageError
from mcugen.core.options import CompileOptions
from mcugen.driver.option_conflicts import CONFLICTS, DEADLINE, FIRMWARE, RANGES, USES, Conflict, require_compatible
from mcugen.driver.option_conflicts import FILE as WEIGHTS_FILE
from mcugen.driver.tasks import Judging, Quantizing
from mcugen.options.arguments import TARGETS, Arguments
from mcugen.options.option import REQUIRED, Option
from mcugen.options.reference import option_reference
from mcugen.options.settings import FILE, read_settings, settings_kinds
from mcugen.options.settings import MODEL as MODEL_KEY
from mcugen.options.table import MAX_COMMON_OPTIONS, OPTIONS, find_option, option_of_parameter, options_that_set

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "options.md"
MODEL = ROOT / "examples" / "digits" / "digits_int8.onnx"

DERIVED = {"by_rows", "most_instructions", "copy_price", "times", "throughput"}
"""Fields of CompileOptions that follow from others."""


SETTING = [option for option in OPTIONS if option.field]


def built(target: type, command: str, texts: dict[str, list[str]]) -> object:
    """What the options of a class become."""
    options = options_that_set(target, command)
    arguments = Arguments(target, options, {option.name: option.initial for option in options})
    return arguments.overridden(texts).build()


def test_commands_have_the_options_of_the_table() -> None:
    root = typer.main.get_command(app)
    commands = {**root.commands, **root.commands["boards"].commands}
    real = {
        (name, " ".join(parameter.opts + parameter.secondary_opts))
        for name, command in commands.items()
        for parameter in command.params
        if isinstance(parameter, typer.core.TyperOption)
    }
    assert real == {(name, option.flags.replace("/", " ")) for option in OPTIONS for name in option.commands}


def command_name(info: typer.models.CommandInfo) -> str:
    return info.name or info.callback.__name__.replace("_", "-")


def test_commands_declare_the_types_of_the_table() -> None:
    """So that what mypy checks of a command is what it is given."""
    checked = 0
    for info in (*app.registered_commands, *app.registered_groups[0].typer_instance.registered_commands):
        hints = {p.name: p.annotation for p in signature(unwrap(info.callback), eval_str=True).parameters.values()}
        groups = [hint for hint in hints.values() if isinstance(hint, type) and hint not in TARGETS.values()]
        hints |= {name: kind for group in groups for name, kind in get_type_hints(group).items()}
        for parameter_name, kind in hints.items():
            name = parameter_name.rstrip("_").replace("_", "-")
            own = [o for o in OPTIONS if o.name == name and command_name(info) in o.commands]
            for option in own:
                is_certain = option.base is list or option.initial is not None
                assert option.parse or kind == (option.kind if is_certain else option.kind | None)
                checked += 1
    assert checked > 60


def test_the_name_of_an_option_is_one_on_a_command() -> None:
    names = [(command, option.name) for option in OPTIONS for command in option.commands]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("option", SETTING, ids=title)
def test_an_option_sets_its_field(option: Option, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("labels.txt").write_text("cat\ndog\n")
    target, command = TARGETS[option.target], option.commands[0]
    part, _, field = option.path.rpartition(".")
    needed = NEEDED.get(part) or NEEDED.get(option.target) or NEEDED.get(field) or {}
    without = {name: texts for name, texts in needed.items() if name != option.name}
    before = built(target, command, {} if part == "library" else without)
    after = built(target, command, {**needed, option.name: [text_of(option)]})
    if field == "without":  # It stands for several fields.
        assert (before.scheme.optimize_rounding, after.scheme.optimize_rounding) == (True, False)
    elif before is None or getattr(before, part or field) is None:
        assert attrgetter(option.path)(after) is not None
    else:
        assert attrgetter(option.path)(before) != attrgetter(option.path)(after)
    if option.implies:
        assert (getattr(before, option.implies), getattr(after, option.implies)) == (False, True)


RENAMED = {
    **{"dim": "dims", "bind": "bound", "input-type": "input_types", "state": "states", "plugin": "plugins"},
    **{"kernels": "family", "kernel": "kernels", "train": "layers", "train-weights": "precision", "json": "json_"},
    **{"cmsis-nn-include": "include", "cmsis-nn-lib": "archive", "layer": "layers", "max-accuracy-drop": "max_drop"},
    **{"per-tensor": "per_channel", "keep-states": "keeps_states"},
}
"""Fields whose names are not those of their options."""


def test_an_option_has_the_name_of_its_field() -> None:
    renamed = {o.name: o.path.split(".")[-1] for o in SETTING if o.path.split(".")[-1] != o.parameter_name}
    assert renamed == RENAMED


@pytest.mark.parametrize("target", [CompileOptions, Quantizing, Judging])
def test_each_field_has_an_option(target: type) -> None:
    known = {option.path.partition(".")[0] for option in OPTIONS if option.target == target.__name__}
    missing = {field.name for field in fields(target)} - known
    assert missing == {CompileOptions: {*DERIVED, "integer_io"}, Quantizing: {"finetune"}, Judging: set()}[target]


@pytest.mark.parametrize("option", OPTIONS, ids=title)
def test_a_settings_file_gives_what_the_table_says(option: Option, tmp_path: Path) -> None:
    value = text_of(option)
    shown = {bool: "true", int: value, float: value, list: f"['{value}']"}.get(option.base, f"'{value}'")
    (tmp_path / FILE).write_text(f"{option.name} = {shown}\n")
    kinds = settings_kinds()
    if not option.is_in_settings:
        others = [o for o in OPTIONS if o.name == option.name and o.is_in_settings]
        assert option.name not in kinds or others or option.name == MODEL_KEY
        return
    settings = read_settings(tmp_path / FILE, kinds)
    assert [argument.partition("=")[0] for argument in settings.arguments] == [f"--{option.name}"]


def test_the_reference_is_current() -> None:
    text = PAGE.read_text()
    assert replace_between_markers(text, "options", option_reference()) == text, "run `make docs`"


@pytest.mark.parametrize("option", OPTIONS, ids=title)
def test_an_option_is_in_the_reference(option: Option) -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith(f"| `{', '.join(option.flags.split())}")]
    is_keyword = option.target in ("CompileOptions", "Quantizing", "Judging", "Teaching")
    keyword = f"| `{option.parameter_name}` |" if is_keyword else ""
    assert any(option.description.replace("|", "/") in row and keyword in row for row in rows)


COMMANDS = {command: [o for o in OPTIONS if command in o.commands] for option in OPTIONS for command in option.commands}
"""The options of each command."""


def help_of(command: str, flag: str) -> set[str]:
    """Return the long flags that the help of a command shows at the beginning of a row."""
    words = ["boards", command] if command in ("show", "measured") else [command]
    rows = mcugen(*words, flag).out.splitlines()
    return {flag for row in rows for flag in re.findall(r"^│ \*? *(--[a-z0-9-]+)", row)}


@pytest.mark.parametrize("command", COMMANDS)
def test_short_help_shows_ten_options_and_full_help_all(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    flags = {option.flag for option in COMMANDS[command]}
    common = {option.flag for option in COMMANDS[command] if option.is_common(command)}
    required = {option.flag for option in COMMANDS[command] if option.initial is REQUIRED}
    assert 1 <= len(common) <= MAX_COMMON_OPTIONS
    assert required <= common
    assert help_of(command, "--help") == {*common, "--help"}
    if command != "boards":  # A group of commands has no --help-all.
        assert help_of(command, "--help-all") == {*flags, "--help"}


@pytest.mark.parametrize("option", OPTIONS, ids=title)
def test_common_commands_have_the_option(option: Option) -> None:
    assert set(option.common or ()) <= set(option.commands)
    assert all(option_of_parameter(option.parameter_name, command) is option for command in option.commands)


FLAGS = {
    RANGES: {"dim": ["N=1..4"]},
    WEIGHTS_FILE: {"weights-blob": [""]},
    FIRMWARE: {},
    "--cores": {"cores": ["2"]},
    "--npu": {"npu": ["auto"]},
    "--state": {"state": ["a:b"]},
    "--train": {"train": ["last:1"]},
    "--stream-steps": {"stream-steps": ["1"]},
    "--monitor-layers": {"monitor-layers": ["conv"]},
    "--tune": {"tune": ["2"]},
    "--self-test": {"self-test": ["2"]},
    "--plausible": {"plausible": ["y=0..1"]},
    DEADLINE: {"max-cycles": ["1000"]},
    "--kernels": {"kernels": ["cmsis-nn"]},
    "--input-pipeline": {"input-pipeline": ["text"]},
    "--statistics updated": {"train": ["last:1"], "statistics": ["updated"]},
    "--train-weights int8": {"train": ["last:1"], "train-weights": ["int8"]},
}
"""Options that bring about a use, by its name in messages, where the name alone does not say them."""


def flags_of(use: str) -> dict[str, list[str]]:
    flag, _, value = use.removeprefix("--").partition(" ")
    return FLAGS.get(use, {flag: [value]})


def options_with(*uses: str) -> CompileOptions:
    texts = {flag: value for use in uses for flag, value in flags_of(use).items()}
    if texts.get("optimize") != ["throughput"]:
        return built(CompileOptions, "compile", texts)
    return CompileOptions(throughput=True, external_io="external-io" in texts)  # As compile_model reads that goal.


@pytest.mark.parametrize(
    ("conflict", "other"), [(c, other) for c in CONFLICTS for other in c.others], ids=lambda x: getattr(x, "option", x)
)
def test_two_conflicting_options_are_the_declared_error(conflict: Conflict, other: str) -> None:
    options = options_with(conflict.option, other)
    assert USES[conflict.option](options)
    assert USES[other](options)
    told = conflict.error(options)
    assert told is not None
    assert (told.rule, told.found, told.remedy) == (conflict.rule, other, conflict.remedy)
    with pytest.raises(UsageError):
        require_compatible(options)


def test_options_of_training_are_in_one_panel() -> None:
    options = [option for option in OPTIONS if option.field.startswith(("CompileOptions.training.", "Teaching."))]
    assert {option.panel for option in options} == {"Learning on the device"}


@pytest.mark.parametrize("use", [use for use in USES if use.startswith("--")])
def test_a_use_is_of_an_option(use: str) -> None:
    assert all(find_option(flag, "compile") for flag in flags_of(use))
    require_compatible(CompileOptions())


def test_the_command_line_tells_a_conflict() -> None:
    told = mcugen("compile", MODEL, "-b", "nrf52840", "--weights-reader", "--stream-input", "-o", "never")
    assert told.code == 2
    assert "with --weights-reader layers are computed one after the other" in told.err
    assert "--stream-input" in told.err


def test_numbers_of_one_model_are_numbers() -> None:
    """`mcugen link --set digits:tune=3` gave the text "3"."""
    assert built(CompileOptions, "link", {"tune": ["3"]}).tune == 3
    with pytest.raises(UsageError, match="--tune must be a whole number"):
        built(CompileOptions, "link", {"tune": ["three"]})
