# SPDX-License-Identifier: Apache-2.0
"""Options that cannot go together are refused before a model is quantized, which may take minutes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import mcugen

from mcugen.api.compilation import Compilation
from mcugen.core.errors import OutputError, UsageError
from mcugen.core.options import CompileOptions, Places, Training
from mcugen.driver.tasks import Judging, Quantizing, Teaching
from mcugen.export.task import Packaging
from mcugen.options.option import REQUIRED, Option, OutputKind
from mcugen.options.table import OPTIONS

DIGITS = Path(__file__).parents[1] / "examples" / "digits"
MODEL, CALIBRATION, EVAL = (DIGITS / name for name in ("digits_f32.onnx", "calibration.npz", "eval.npz"))


@pytest.fixture(autouse=True)
def _no_quantization(monkeypatch: pytest.MonkeyPatch) -> None:
    """The float model is the first step of a quantization."""

    def begun(*_: object) -> None:
        raise AssertionError("quantization began")

    monkeypatch.setattr("mcugen.api.compilation.import_float_model", begun)


def compilation(board: str = "nrf52840", **options: object) -> Compilation:
    return Compilation(MODEL, board, CompileOptions(**options), Quantizing(calibration=CALIBRATION))  # type: ignore[arg-type]


def test_options_that_suit_begin_a_quantization() -> None:
    with pytest.raises(AssertionError, match="quantization began"):
        _ = compilation().compiled


@pytest.mark.parametrize(
    ("board", "options", "message"),
    [
        ("rp2040", {"cores": 3}, "--cores must be 1 or 2"),
        ("nrf52840", {"cores": 2}, "--cores 2: the board must list a second core"),
        ("rp2040", {"cores": 2, "steps": True}, "layers are shared by two cores only where each is one call"),
        ("rp2040", {"optimize": "throughput"}, "give --cores 2"),
        ("nrf52840", {"optimize": "beauty"}, "--optimize must name a goal"),
        ("nrf52840", {"max_ram": 0}, "--max-ram must be a positive number"),
        ("nrf52840", {"kernels": ("conv_s9",)}, "--kernel must name a kernel. found: 'conv_s9'"),
        ("nrf52840", {"kernels": ("dense_s8", "dens_s8")}, "found: 'dens_s8'. try: one of: dense_s8"),
        ("nrf52840", {"max_cycles": 1, "max_latency": 1.0}, "only one deadline can be given"),
        ("nrf52840", {"dims": {"N": (5, 2)}}, "must be a range of sizes"),
        ("nrf52840", {"place": Places(arena=("nowhere",))}, "has no memory 'nowhere'"),
        ("nrf52840", {"place": Places(arena=("flash",))}, "--place arena must name RAM"),
        ("nrf52840", {"place": Places(hot_weights=("flash", 64))}, "--place hot-weights must name RAM"),
        (
            "nrf52840",
            {"place": Places(weights="sram"), "weights_blob": True},
            "a file of weights cannot be copied to RAM",
        ),
        ("nrf52840", {"copy_ahead": True}, "a DMA controller must read the memory of the weights"),
        ("nrf52840", {"weights_reader": True, "stream_input": True}, "layers are computed one after the other"),
        (
            "nrf52840",
            {"input_pipeline": "smell=strong"},
            "an input pipeline must begin with the format of the raw data",
        ),
        ("nrf52840", {"input_pipeline": "image=rgb565", "stream_input": True}, "raw data must lie in memory"),
        ("nrf52840", {"updatable": True, "self_test": 2}, "--self-test flips constants of the code"),
        ("nrf52840", {"dims": {"N": (1, 2)}, "plausible": {"scores": (0.0, 1.0)}}, "outputs of one size"),
        ("host", {"stack_bound": True}, "--stack-bound needs the compiler of a board"),
        ("host", {"tune": 2}, "--tune needs a timing model"),
        ("nrf52840", {"tune": 2, "max_latency": 1.0}, "--tune measures one kernel after the other"),
        ("nrf52840", {"training": Training("last:1"), "steps": True}, "--train does not go together"),
        ("nrf52840", {"training": Training("last:1", optimizer="adam", precision="int8")}, "int8 learns by sgd"),
        ("nrf52840", {"training": Training("auto")}, "--train auto needs samples to compare layers"),
    ],
)
def test_options_are_checked_before_quantization(board: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        _ = compilation(board, **options).compiled


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda net: net.report(EVAL), "--cores must be 1 or 2"),
        (lambda net: net.run(EVAL), "--cores must be 1 or 2"),
        (lambda net: net.export("cmake"), "--cores must be 1 or 2"),
        (lambda net: net.export("nothing"), "--format must be known"),
        (lambda net: net.export("make", packaging=Packaging(zipped=True)), "--zip is for formats"),
        (lambda net: net.export("make", packaging=Packaging("1.0")), "--package-version must read"),
    ],
)
def test_uses_of_code_check_options_first(use: Callable[[Compilation], object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        use(compilation("rp2040", cores=3))


def test_a_format_is_for_the_board() -> None:
    with pytest.raises(UsageError, match="--format keil is for Keil MDK"):
        compilation("esp32c3").export("keil")
    with pytest.raises(UsageError, match="must have its weights in memory"):
        compilation(weights_reader=True).export("cmake")


def test_lessons_and_metrics_are_checked_before_quantization() -> None:
    quantizing, training = Quantizing(calibration=CALIBRATION), CompileOptions(training=Training("last:1"))
    for options, teaching, message in (
        (CompileOptions(), Teaching(EVAL), "--lesson is for models that learn"),
        (training, Teaching(EVAL, rate=0.0), "--rate must be a positive number"),
    ):
        with pytest.raises(UsageError, match=message):
            _ = Compilation(MODEL, "host", options, quantizing, teaching=teaching).compiled
    with pytest.raises(UsageError, match="--metric must be known"):
        _ = Compilation(MODEL, quantizing=quantizing, judging=Judging(EVAL, metric="beauty")).quantized


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        ("compile", ("--cores", "3"), "--cores must be 1 or 2"),
        ("compile", ("--kernel", "none_such"), "--kernel must name a kernel"),
        ("compile", ("-o", EVAL / "out"), "the output must be writable"),
        ("compile", ("-o", EVAL), "is a file. try: give --output FOLDER"),
        ("export", ("--format", "cmake", "-o", EVAL / "out"), "the output must be writable"),
        ("validate", ("--write", EVAL / "out"), "the output must be writable"),
        ("report", ("--cores", "3"), "--cores must be 1 or 2"),
        ("report", ("--board", "host", "--extreme-inputs"), "--extreme-inputs needs the simulator"),
        ("report", ("--lesson", EVAL), "--lesson is for models that learn"),
        ("inspect", ("--cores", "3"), "--cores must be 1 or 2"),
        ("export", ("--format", "cmake", "--place", "arena=nowhere"), "has no memory 'nowhere'"),
        ("validate", ("--port", "simulator", "--weights-reader"), "validation on the target reads weights"),
        ("quantize", ("--metric", "beauty", "-o", "never.onnx"), "--metric must be known"),
    ],
)
def test_commands_check_options_first(command: str, arguments: tuple[object, ...], message: str) -> None:
    board = () if "--board" in arguments or command == "quantize" else ("--board", "rp2040")
    done = mcugen(command, MODEL, "--calibration", CALIBRATION, *board, *arguments)
    assert done.code in (UsageError.exit_code, OutputError.exit_code), done.err
    assert "quantization began" not in done.err
    assert message in " ".join(done.err.split())


OUTPUTS = [(option, command) for option in OPTIONS if option.writes for command in option.commands]
"""All options that name an output, with each command that has them."""
WANTED_OUTPUTS = {
    "--output": "calibrate-board compile evidence export link profile quantize run update view",
    "--json": "compile diff evidence explore export inspect link monitor quantize report update validate",
    "--html": "diff explore inspect measured monitor report validate",
    "--svg": "inspect",
    "--markdown": "diff",
    "--runs": "validate",
    "--write": "validate",
}


def test_all_options_that_name_an_output_are_checked() -> None:
    checked = {flag: {command for option, command in OUTPUTS if option.flag == flag} for flag in WANTED_OUTPUTS}
    assert checked == {flag: set(commands.split()) for flag, commands in WANTED_OUTPUTS.items()}
    words = re.compile(r"\b(write|file for|folder for|page)\b")
    paths = [option for option in OPTIONS if option.kind is Path and option.target == ""]
    assert [option.flag for option in paths if words.search(option.help.split(",")[0]) and not option.writes] == []


def arguments_of(command: str, folder: Path) -> list[object]:
    """Return the least arguments of a command whose options are in order but for outputs."""
    report = Path(__file__).parent / "golden" / "v0.1.0" / "report.json"
    first = {"diff": [report, report], "view": [report], "calibrate-board": ["nrf52840"]}.get(command, [MODEL])
    needed = {
        "calibrate-board": ["--from", report, "--model", MODEL],
        "export": ["--format", "cmake"],
        "profile": ["--calibration", CALIBRATION],
        "run": ["--inputs", EVAL],
        "update": ["--for", folder],
        "validate": ["--port", "simulator"],
        "explore": ["--boards", "nrf52840"],
    }.get(command, [])
    has_board = any(o.name == "board" and command in o.commands and o.default is REQUIRED for o in OPTIONS)
    return [*first, *needed, *(["--board", "nrf52840"] if has_board else [])]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("missing", "must be writable. found: no folder"),
        ("kind", "the output must be"),
        ("read-only", "no permission to write to"),
        ("below-a-file", "the output must be writable.*is a file|no folder|is a file"),
    ],
)
@pytest.mark.parametrize(("option", "command"), OUTPUTS, ids=lambda case: getattr(case, "flag", case))
def test_outputs_are_checked_before_any_work(
    option: Option, command: str, fault: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each command and option that writes: no such folder, a folder for a file or the reverse, no permission."""
    is_file = option.writes is OutputKind.FILE
    if fault == "missing" and not is_file:
        pytest.skip("folders are created")
    if fault == "kind" and not is_file:
        (tmp_path / "taken").write_text("")
    bad = {
        "missing": tmp_path / "no" / "such" / "out",
        "kind": tmp_path if is_file else tmp_path / "taken",
        "read-only": tmp_path / "out",
        "below-a-file": EVAL / "out",
    }[fault]
    if fault == "read-only":
        monkeypatch.setattr("os.access", lambda path, mode: not (mode & os.W_OK and Path(path) == tmp_path))
    monkeypatch.chdir(tmp_path)
    outputs = [other for other in OPTIONS if other.name == "output" and command in other.commands and other != option]
    own = ["-o", tmp_path / "new.toml"] if any(other.default is REQUIRED for other in outputs) else []
    before = sorted(tmp_path.rglob("*"))
    words = ["boards", command] if command == "measured" else [command, *arguments_of(command, tmp_path)]
    done = mcugen(*words, *own, option.flag, bad)
    said = " ".join(done.err.split())
    assert done.code in (OutputError.exit_code, UsageError.exit_code), said
    assert str(bad) in said and re.search(message, said), said
    assert "quantization began" not in said and sorted(tmp_path.rglob("*")) == before


def test_a_file_may_lie_in_the_folder_that_the_command_writes(tmp_path: Path) -> None:
    model = Path(__file__).parent / "golden" / "v0.1.0" / "tiny.onnx"
    folder = tmp_path / "new"
    done = mcugen("compile", model, "--board", "host", "-o", folder, "--json", folder / "all.json")
    assert done.code == 0, done.err
    assert f"kept in {folder}, as mcugen did not write them or they were edited: all.json" in " ".join(done.err.split())
    assert mcugen("compile", model, "--board", "host", "-o", folder, "--json", "/dev/null", "--quiet").err == ""


@pytest.mark.parametrize("command", ["compile", "link"])
def test_commands_name_the_files_that_they_kept(command: str, tmp_path: Path) -> None:
    model = Path(__file__).parent / "golden" / "v0.1.0" / "tiny.onnx"
    folder = tmp_path / "firmware"
    build = ("--no-build",) if command == "link" else ()

    def run(*more: str) -> str:
        done = mcugen(command, model, "--board", "host", "-o", folder, *build, *more)
        assert done.code == 0, done.err
        return " ".join(done.err.split())

    assert "kept in" not in run()
    (folder / "main.c").write_text("int main(void) { return 0; }\n")
    (folder / "board").mkdir()
    assert run().endswith("kept in " + f"{folder}, as mcugen did not write them or they were edited: board/, main.c")


@pytest.mark.parametrize(
    ("setting", "message"), [("2:cores=3", "--cores must be 1 or 2"), ("2:train=last:1", "do not learn yet")]
)
def test_options_of_all_models_are_checked_before_the_first_is_quantized(setting: str, message: str) -> None:
    models = (MODEL, DIGITS / "digits_f32.onnx")
    arguments = ("--board", "rp2040", "--calibration", CALIBRATION, "--set", "2:name=other", "--set", setting)
    done = mcugen("link", *models, *arguments, "-o", "never")
    assert done.code == UsageError.exit_code, done.err
    assert message in " ".join(done.err.split())
