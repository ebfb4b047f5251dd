# SPDX-License-Identifier: Apache-2.0
"""The command line: results on stdout, everything else on stderr, an exit code for each kind of failure."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import onnx
import pytest
from command_line import Done, mcugen
from onnx_models import Net, onnxruntime_outputs, random_feeds
from rich.console import Console

from mcugen import __version__
from mcugen.api import compilation
from mcugen.codegen.install import MANIFEST
from mcugen.core.board import board_names, load_board
from mcugen.core.errors import ConstraintError, VerificationError
from mcugen.core.resources import resource_dir
from mcugen.driver import parameters
from mcugen.quantization import quantize


def network() -> Net:
    net = Net()
    weights = np.random.default_rng(0).standard_normal((6, 4))
    net.output(net.op("Tanh", net.op("MatMul", net.input("x", 1, 6), net.const(weights)), out="scores"))
    return net


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "tiny net.onnx"
    onnx.save(network().model(), path)
    return path


def save(path: Path, net: Net) -> Path:
    onnx.save(net.model(), path)
    return path


# --------------------------------------------------------------------------------------------- results


def test_version():
    assert mcugen("version") == mcugen("--version") == Done(0, f"{__version__}\n", "")


def test_help_names_every_command():
    done = mcugen("--help")
    assert done.code == 0
    for command in ("compile", "report", "run", "inspect", "boards", "version"):
        assert re.search(rf"\b{command}\b", done.out)


def test_compile_writes_the_folder(model: Path, tmp_path: Path):
    done = mcugen("compile", model, "-b", "rt1060", "-o", tmp_path / "out")
    assert (done.code, done.out) == (0, "")
    assert re.search(r"10 files, arena [\d,]+ bytes, weights [\d,]+ bytes, 24 MACs", done.err)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *(
            "tiny_net.c",
            "tiny_net.h",
            "tiny_net_kernels.h",
            "tiny_net_weights.c",
            "tiny_net_weights.h",
            "tiny_net_selftest.c",
        ),
        *("tiny_net_report.json", "CMakeLists.txt", "mcugen.tiny_net.pdsc", "mcugen.h", MANIFEST),
    }


def test_compile_into_a_folder_of_the_models_name(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert mcugen("compile", model, "--board", "host", "--name", "Mine", "--quiet") == Done(0, "", "")
    assert (tmp_path / "mine" / "mine.h").is_file()


def test_compile_json(model: Path, tmp_path: Path):
    done = mcugen("compile", model, "-b", "rt1060", "-o", tmp_path / "out", "--json", "-")
    report = json.loads(done.out)
    assert (report["board"], report["model"]["macs"], report["instructions"]) == ("rt1060", 24, None)
    mcugen("compile", model, "-b", "rt1060", "-o", tmp_path / "out", "--json", tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text()) == report


def test_dumps_and_times_go_to_stderr(model: Path, tmp_path: Path):
    done = mcugen(
        "compile",
        model,
        "-b",
        "host",
        "-o",
        tmp_path / "out",
        "--dump-after",
        "fuse_dense",
        "--time-passes",
        "-q",
    )
    assert (done.code, done.out) == (0, "")
    assert "after fuse_dense:\ngraph tiny_net {" in done.err
    assert re.search(r"0\.\d{4} s  fuse_dense", done.err)


@pytest.mark.parametrize(
    ("ir", "first", "word"), [("hir", "graph tiny_net {", "dense"), ("lir", "program tiny_net {", "arena")]
)
def test_inspect_dumps(model: Path, ir: str, first: str, word: str):
    done = mcugen("inspect", model, "--ir", ir)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[0] == first
    assert done.out.splitlines()[-1] == "}"
    assert word in done.out


def test_inspect_shows_the_model(model: Path):
    done = mcugen("inspect", model)
    assert done.code == 0
    for word in ("x: float32 1x6", "scores", "MACs", "24", "dense"):
        assert word in done.out


def test_inspect_json(model: Path):
    assert json.loads(mcugen("inspect", model, "--json", "-").out)["model"]["macs"] == 24


def test_inspect_shows_what_passes_did(model: Path):
    done = mcugen("inspect", model, "--passes", "fuse_dense, fold_clamp")
    assert done.code == 0
    assert "fuse_dense: MatMul(x, W) with constant W [K, N] → Dense(x, Wᵀ)." in done.out
    assert "--- before fuse_dense" in done.out and "+++ after fuse_dense" in done.out
    assert "fold_clamp of graph" in done.out


def test_inspect_passes_as_data(model: Path):
    runs = json.loads(mcugen("inspect", model, "--passes", "simplify", "--json", "-").out)["passes"]
    assert {run["name"] for run in runs} == {"simplify"}
    assert all({"because", "laws", "before", "after", "diff", "refusals"} <= run.keys() for run in runs)


@pytest.mark.parametrize("names", [",", "simplify,", " "])
def test_passes_without_a_name(model: Path, names: str):
    assert_failed(mcugen("inspect", model, "--passes", names), 2, "--passes must name passes")


def test_what_passes_did_to_a_model_that_is_refused(model: Path):
    done = mcugen("inspect", model, "--passes", "fuse_dense", "--max-ram", "8")
    assert done.code != 0
    assert "fuse_dense: MatMul(x, W)" in done.out


def test_passes_that_do_not_exist(model: Path):
    assert_failed(
        mcugen("inspect", model, "--passes", "simplify,fold_clmp"),
        2,
        "--passes must name passes. found: 'fold_clmp'. try: one of: fold_clamp",
    )
    assert_failed(
        mcugen("inspect", model, "--passes", "simplify", "--ir", "hir"), 2, "only one result can go to stdout"
    )


def test_inspect_memory(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mcugen.cli.commands.inspect.stdout", Console(width=100))
    done = mcugen("inspect", model, "--memory", "--svg", tmp_path / "map.svg")
    assert (done.code, done.err) == (0, "")
    for word in ("arena", "least possible", "peak", "scores", "offset"):
        assert word in done.out
    assert max(map(len, done.out.splitlines())) <= 100
    svg = (tmp_path / "map.svg").read_text()
    assert ElementTree.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
    mcugen("inspect", model, "--svg", tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_text() == svg


def test_inspect_memory_json(model: Path):
    found = json.loads(mcugen("inspect", model, "--memory", "--json", "-").out)
    report = json.loads(mcugen("inspect", model, "--json", "-").out)
    assert found["arena"] == report["ram"]["arena"]
    assert [layer["kernel"] for layer in found["layers"]] == [layer["kernel"] for layer in report["layers"]]


def test_inspect_shows_why_a_program_was_chosen(model: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mcugen.cli.commands.inspect.stdout", Console(width=80))
    done = mcugen("inspect", model, "--search", "-b", "nrf52840")
    assert (done.code, done.err) == (0, "")
    assert max(map(len, done.out.splitlines())) <= 80
    for word in ("search: balanced", "as asked (requested program)", "* marks the chosen program"):
        assert word in done.out
    assert done.out.count("Chosen: ") == 1 and len(re.findall(r"^ *\d+\* ", done.out, re.M)) == 1


def test_inspect_shows_why_no_program_fits(model: Path):
    done = mcugen("inspect", model, "--search", "--max-ram", "8")
    assert done.code == 5 and "must fit --max-ram 8" in done.err
    assert "as asked (requested program)" in done.out
    assert "of RAM exceed the limit" in " ".join(done.out.split()) and "Chosen" not in done.out


def test_inspect_search_json(model: Path):
    entries = json.loads(mcugen("inspect", model, "--search", "--json", "-").out)["search"]
    assert [entry["number"] for entry in entries] == [*range(1, len(entries) + 1)]
    (chosen,) = [entry for entry in entries if entry["chosen"]]
    report = json.loads(mcugen("inspect", model, "--json", "-").out)
    assert (chosen["candidate"], chosen["ram"]) == ("as asked", report["ram"]["arena"])
    assert {row["kernel"] for row in chosen["plan"]["kernels"]} == {row["kernel"] for row in report["layers"]}
    assert_failed(mcugen("inspect", model, "--search", "--memory"), 2, "only one result can go to stdout")


def test_one_result_on_stdout(model: Path):
    for other in (("--memory",), ("--json", "-")):
        assert_failed(mcugen("inspect", model, "--ir", "lir", *other), 2, "only one result can go to stdout")


def test_report_html(model: Path, tmp_path: Path):
    done = mcugen("report", model, "-b", "host", "-q", "--html", tmp_path / "report.html")
    assert done.code == 0 and "RAM: arena" in done.out
    page = (tmp_path / "report.html").read_text()
    for word in ("tiny_net on host", "agreement", "same class as ONNX Runtime", "RAM: arena", "mcugen report "):
        assert word in page


def test_budgets(model: Path, tmp_path: Path):
    options = ("-b", "rt1060", "-o", tmp_path / "out")
    done = mcugen("compile", model, *options, "--max-ram", "1KB", "--max-flash", "20 KiB", "--json", "-")
    found = json.loads(done.out)["budget"]
    assert (found["max_ram"], found["max_flash"], found["step"]) == (1024, 20480, "as asked")
    assert "--max-ram 1,024 and --max-flash 20,480: as asked" in done.err
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    done = mcugen("compile", model, *options, "--max-ram", "16")
    assert_failed(done, 5, r"must fit --max-ram 16\. found: the least is 32 bytes of RAM \(layer '[^']+': 'x' 24")
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


@pytest.mark.parametrize("option", ["--max-ram", "--max-flash"])
@pytest.mark.parametrize("size", ["0", "-1", "1.5", "x", "KB", "10GB", "1e4", "٣", "0KB", " "])
def test_usage_2_of_budgets(tmp_path: Path, option: str, size: str):
    done = mcugen("inspect", tmp_path / "none.onnx", f"{option}={size}")
    assert_failed(done, 2, f"{option} must be a positive number of bytes")


@pytest.mark.parametrize(("size", "nbytes"), [("20000", 20000), ("20k", 20480), ("20kb", 20480), ("1MiB", 1 << 20)])
def test_sizes_in_bytes(model: Path, size: str, nbytes: int):
    report = json.loads(mcugen("inspect", model, "--max-ram", size, "--json", "-").out)
    assert report["budget"]["max_ram"] == nbytes


def test_symbolic_dimensions_are_bound(tmp_path: Path):
    net = Net()
    net.output(net.op("Relu", net.input("x", "batch=size", 3)))
    path = save(tmp_path / "m.onnx", net)
    assert "input %x : 2x3" in mcugen("inspect", path, "--ir", "hir", "--dim", "batch=size=2").out


def test_run_writes_the_outputs(model: Path, tmp_path: Path):
    samples = np.random.default_rng(1).standard_normal((3, 6)).astype(np.float32)
    np.savez(tmp_path / "in.npz", x=samples)
    done = mcugen("run", model, "-b", "host", "--inputs", tmp_path / "in.npz", "-o", tmp_path / "out.npz", "-q")
    assert done == Done(0, "", "")
    with np.load(tmp_path / "out.npz") as found:
        assert list(found) == ["scores"]
        scores = found["scores"]
    proto = network().model()
    expected = np.stack([onnxruntime_outputs(proto, {"x": sample[None]})["scores"] for sample in samples])
    assert scores.shape == (3, 1, 4)
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-6)


def test_report_of_the_host(model: Path, tmp_path: Path):
    done = mcugen("report", model, "-b", "host", "--json", "-", "-q")
    report = json.loads(done.out)
    assert done.code == 0
    assert report["accuracy"]["samples"] == 1
    assert report["accuracy"]["max_abs_error"] < 1e-5


@pytest.mark.qemu
def test_report_estimates_cycles(model: Path):
    options = ("report", model, "-b", "stm32l4r5", "-q")
    report, slow = (json.loads(mcugen(*options, "--json", "-", *more).out) for more in ((), ("--wait-states", 30)))
    assert report["instructions"] < report["cycles_estimate"] < slow["cycles_estimate"]
    assert abs(sum(layer["cycles_estimate"] for layer in report["layers"]) / report["cycles_estimate"] - 1) < 0.1
    assert report["milliseconds_estimate"] == pytest.approx(report["cycles_estimate"] / 120e3, abs=1e-3)
    assert (report["cycles"], report["ms"]) == (report["cycles_estimate"], report["milliseconds_estimate"])
    ((waits,), (slower,)) = report["stalls"], slow["stalls"]
    assert waits["memory"] == "flash" and slower["data"] > waits["data"]
    unwaited = [r["cycles"] - r["stalls"][0]["instructions"] - r["stalls"][0]["data"] for r in (report, slow)]
    assert unwaited[0] == unwaited[1]
    energy = load_board("stm32l4r5").energy
    assert energy is not None
    assert report["microjoules_estimate"] == pytest.approx(energy.microjoules(report["cycles"]), abs=1e-3)
    for layer in report["layers"]:
        assert sum(s["instructions"] + s["data"] for s in layer["stalls"]) < layer["cycles"]
        assert layer["ms"] == pytest.approx(layer["cycles"] / 120e3, abs=1e-3)
    assert "stm32l4r5" in report["cycles_note"]
    shown = mcugen(*options).out
    for words in (f"{report['cycles']:,}", "at 120 MHz", "waits for memory", "flash: ", "microjoules"):
        assert words in shown


@pytest.mark.qemu
def test_report_says_of_which_memories_no_wait_states_are_known(model: Path, tmp_path: Path):
    text = (resource_dir("boards") / "stm32l4r5.toml").read_text()
    untimed = re.sub(r"wait_states.*? }", "speed = 1 }", text.partition("\ncaches")[0])
    (tmp_path / "mine.toml").write_text(untimed)
    report = json.loads(mcugen("report", model, "-b", tmp_path / "mine.toml", "--json", "-", "-q").out)
    assert "no wait states known of flash, sram" in report["cycles_note"]
    assert report["stalls"] == [] and report["cycles"] > 0


# ---------------------------------------------------------------------------------------------- boards


def test_boards_are_listed():
    done = mcugen("boards")
    assert done.code == 0
    assert all(name in done.out for name in board_names())
    assert [board["name"] for board in json.loads(mcugen("boards", "--json").out)] == board_names()


def test_boards_fit_a_narrow_terminal_and_can_be_filtered():
    """A line a board but for its kits, none wider than 80 columns."""
    lines = mcugen("boards").out.splitlines()
    assert max(map(len, lines)) <= 80
    found = json.loads(mcugen("boards", "--like", "Cortex-M33", "--json").out)
    assert found and {board["cpu"] for board in found} == {"cortex-m33"}
    assert [b["name"] for b in json.loads(mcugen("boards", "--like", "nucleo-l4r5zi", "--json").out)] == ["stm32l4r5"]
    assert mcugen("boards", "--like", "z80").code == 2


def test_one_board():
    done = mcugen("boards", "show", "rt1060")
    assert done.code == 0
    for word in ("rt1060", "cortex-m7", "600 MHz"):
        assert word in done.out
    assert json.loads(mcugen("boards", "show", "rt1060", "--json").out)["cpu"] == "cortex-m7"


def test_a_board_says_where_its_figures_come_from():
    done = mcugen("boards", "show", "nucleo-l4r5zi")
    for word in ("stm32l4r5", "5 / 16 bytes", "art_data", "RM0432"):
        assert word in done.out
    assert json.loads(mcugen("boards", "show", "nucleo-l4r5zi", "--json").out)["kits"] == ["nucleo-l4r5zi"]


def test_kits_are_listed():
    assert "nucleo-l4r5zi" in mcugen("boards").out


@pytest.mark.parametrize("command", [("boards", "show"), ("inspect", "MODEL", "-b")])
def test_unknown_board_suggests_its_neighbours(model: Path, command: tuple[str, ...]):
    arguments = [model if word == "MODEL" else word for word in command]
    done = mcugen(*arguments, "nuclo-f446re")
    assert (done.code, done.out) == (2, "")
    assert re.search(r"found: 'nuclo-f446re'\. try: one of nucleo-f446re", done.err)


# ------------------------------------------------------------------------------------------- exit codes


def assert_failed(done: Done, code: int, message: str) -> None:
    assert (done.code, done.out) == (code, "")
    assert re.search(message, done.err), done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("compile",),
        ("compile", "MODEL"),
        ("fly",),
        ("inspect", "MODEL", "--ir", "mir"),
        ("inspect", "MODEL", "--speed"),
        ("run", "MODEL", "-b", "host"),
    ],
    ids=" ".join,
)
def test_usage_2_by_the_parser(model: Path, arguments: tuple[str, ...]):
    done = mcugen(*(model if word == "MODEL" else word for word in arguments))
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ")
    assert done.err.splitlines()[-1].startswith("    mcugen ")


@pytest.mark.parametrize("dim", ["N", "N=", "=3", "N=0", "N=-1", "N=x", "N=1.5", "N=٣"])
def test_usage_2_of_dim(model: Path, dim: str):
    assert_failed(mcugen("inspect", model, "--dim", dim), 2, r"--dim")


@pytest.mark.parametrize(
    ("option", "values"), [("--dim", ("N=1", "N=2")), ("--bind", ("x=1", "x=2")), ("--state", ("y:x", "y:z"))]
)
def test_usage_2_of_options_given_twice(model: Path, option: str, values: tuple[str, str]):
    done = mcugen("inspect", model, option, values[0], option, values[1])
    assert_failed(done, 2, f"{option} must be given once for each name")


@pytest.mark.parametrize("option", ["--json", "--data", "--dim"])
def test_usage_2_of_an_option_where_a_value_belongs(
    model: Path, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    assert_failed(mcugen("report", model, option, "--quiet"), 2, f"{option} must be given a value")
    assert not (tmp_path / "--quiet").exists()


def test_a_misspelt_dim_is_told_before_those_that_are_missing(sequence_model: Path):
    assert_failed(mcugen("inspect", sequence_model, "--dim", "S=4"), 2, "found: 'S'. try: one of: T")


def test_usage_2_of_kernel(model: Path):
    assert_failed(mcugen("inspect", model, "--kernel", "nonsense"), 2, "--kernel must name a kernel")
    assert_failed(mcugen("inspect", model, "--kernel", "log_softmax_f64"), 2, "--kernel must suit a layer of the model")


def test_usage_2_of_optimize(model: Path):
    assert_failed(mcugen("inspect", model, "--optimize", "size"), 2, "one of: balanced, speed, ram, flash")


def test_files_of_the_user_in_the_output_folder_are_kept(model: Path, tmp_path: Path):
    """A stray file, such as the model, does not block; a file that the user edited is overwritten by --force alone."""
    command = ("compile", model, "-b", "host", "-o", tmp_path, "-q")
    assert mcugen(*command).code == 0
    assert model.exists()
    code = tmp_path / "tiny_net.c"
    written = code.read_text()
    code.write_text("mine")
    done = mcugen(*command)
    assert_failed(done, 9, "or that were edited, are not overwritten. found: tiny_net.c")
    assert done.err.rstrip().endswith("--output FOLDER") and "--force" in done.err
    assert code.read_text() == "mine"
    assert mcugen(*command, "--force").code == 0
    assert code.read_text() == written


def test_bad_model_3(tmp_path: Path):
    (tmp_path / "bad.onnx").write_text("no model")
    assert_failed(
        mcugen("inspect", tmp_path / "bad.onnx"),
        3,
        r"bad\.onnx: the file must be an ONNX, .tflite, .pt2 or .keras model",
    )
    assert_failed(mcugen("inspect", tmp_path / "none.onnx"), 3, "No such file")


def test_unsupported_4(tmp_path: Path):
    net = Net()
    net.output(net.op("RandomNormalLike", net.input("x", 3, 3)))
    assert_failed(
        mcugen("inspect", save(tmp_path / "m.onnx", net)),
        4,
        r"RandomNormalLike 'RandomNormalLike_t0': operator not supported",
    )


def test_what_cannot_fit_is_not_quantized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    net, random = Net(), np.random.default_rng(0)
    net.output(net.op("MatMul", net.input("x", 1, 256), net.const(random.standard_normal((256, 320)))))
    np.savez(tmp_path / "samples.npz", x=random.standard_normal((8, 1, 256)).astype(np.float32))
    assert parameters.create_quantizer is quantize.create_quantizer  # drafts are made by the first
    monkeypatch.setattr(compilation, "create_quantizer", None)
    done = mcugen(
        *("compile", save(tmp_path / "net.onnx", net), "--calibration", tmp_path / "samples.npz"),
        *("-b", "stm32f103", "-o", tmp_path / "out"),
    )
    assert_failed(
        done, 5, r"must fit in one flash memory of board 'stm32f103'\. found: 73,728 bytes of parameters alone"
    )
    assert "a board with room: " in done.err and "rt1060" in done.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        *((("-b", "host", "-b", "rt1060"), "--board"), (("-b", "host", "--board", "host"), "--board")),
        *(
            (("-b", "host", "-o", "a", "--output=b"), "--output"),
            (("-b", "host", "--max-ram", "1", "--max-ram", "2"), ""),
        ),
    ],
)
def test_an_option_with_one_value_is_given_once(model: Path, arguments: tuple[str, ...], name: str):
    """Of two boards, say, the last was compiled for in silence."""
    assert_failed(mcugen("compile", model, *arguments), 2, f"{name}.* must be given once. found: 2 times")


def test_every_command_takes_options_once(model: Path):
    for command in ("report", "inspect", "run", "quantize", "profile"):
        twice = ("--input-pipeline", "a", "--input-pipeline", "b")
        assert_failed(mcugen(command, model, *twice), 2, "--input-pipeline must be given once")
    assert mcugen("inspect", model, "-q", "--quiet", "--weights-blob", "--weights-blob").code == 0  # flags


def test_does_not_fit_5(tmp_path: Path):
    net = Net()
    net.output(net.op("Relu", net.input("x", 100_000)))
    done = mcugen("inspect", save(tmp_path / "m.onnx", net), "-b", "stm32f103")
    assert_failed(done, 5, r"more than there are beside the stack \(layer .*'x' 400,000")


def test_constraint_6_and_verification_7(model: Path, monkeypatch: pytest.MonkeyPatch):
    for error in (ConstraintError("accuracy"), VerificationError("plan")):

        def fail(*arguments: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(compilation, "compile_model", fail)
        assert_failed(mcugen("inspect", model), error.exit_code, f"error: {error.rule}")
    assert (ConstraintError.exit_code, VerificationError.exit_code) == (6, 7)


def test_missing_tool_8(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    np.savez(tmp_path / "in.npz", x=np.zeros((1, 6), np.float32))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    done = mcugen("run", model, "-b", "host", "--inputs", tmp_path / "in.npz", "-o", tmp_path / "out.npz", "-q")
    assert_failed(done, 8, "'gcc' must be installed")
    assert not (tmp_path / "out.npz").exists()


def test_output_9(model: Path, tmp_path: Path):
    (tmp_path / "file").write_text("")
    assert_failed(mcugen("compile", model, "-b", "host", "-o", tmp_path / "file" / "out"), 9, "must be writable")
    done = mcugen("inspect", model, "--json", tmp_path / "nowhere" / "report.json")
    assert_failed(done, 9, "must be writable")


def test_internal_error_1(model: Path):
    """What is no McugenError is a bug: it is shown whole."""
    code = (
        "import sys; from mcugen import cli; from mcugen.driver import compiler\n"
        f"compiler.compile_model = lambda *a: 1 / 0\nsys.argv = ['mcugen', 'inspect', {str(model)!r}]\ncli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert "ZeroDivisionError" in done.stderr


def test_messages_show_brackets_of_names(tmp_path: Path):
    net = Net()
    net.output(net.op("RandomNormalLike", net.input("x", 3, 3), out="[bold]y[/bold]"))
    assert "[bold]y[/bold]" in mcugen("inspect", save(tmp_path / "m.onnx", net)).err


@pytest.mark.parametrize("listing", ["boards --json", "boards", "operators"])
def test_a_closed_pipe_is_no_error(listing: str):
    """A reader that leaves at once, before the command has said a word."""
    command = f"{sys.executable} -c 'from mcugen.cli.app import main; main()' {listing} | true"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0
    assert done.stderr == ""


# ------------------------------------------------------------------------------------------- wrong samples


def npz(**arrays: object) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


GOOD = np.zeros((2, 6), np.float32)
WRONG: dict[str, tuple[bytes, str]] = {
    "missing array": (npz(z=GOOD), r"there must be an array 'x'.* found: 'z'"),
    "no arrays": (npz(), r"there must be an array 'x'.* found: nothing"),
    "wrong size": (
        npz(x=np.zeros((2, 5), np.float32)),
        r"samples of the input's shape\. found: \(5,\), the input is \(1, 6\)",
    ),
    "no samples": (npz(x=np.zeros((0, 6), np.float32)), "must have a leading axis of samples"),
    "a scalar": (npz(x=np.float32(1)), "must have a leading axis of samples"),
    "more than a float32 holds": (npz(x=np.full((2, 6), 1e300)), "must be finite"),
    "text": (npz(x=np.full((2, 6), "one")), "must be numeric"),
    "complex": (npz(x=np.full((2, 6), 1j)), "must be numeric"),
    "pickled object": (
        npz(x=np.array([[None] * 6] * 2)),
        r"samples must be in an \.npz file.*[Oo]bject arrays",
    ),
    "not a zip": (b"x,y\n1,2\n", r"samples must be in an? .*\.npz file"),
    "empty": (b"", r"samples must be in an? .*\.npz file"),
    "cut off": (npz(x=GOOD)[:-40], r"samples must be in an? .*\.npz file"),
    "damaged": (npz(x=GOOD).replace(b"NUMPY", b"NUMPU"), r"samples must be in an? .*\.npz file"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_samples_are_refused(model: Path, tmp_path: Path, name: str):
    data, message = WRONG[name]
    path = tmp_path / "in.npz"
    path.write_bytes(data)
    done = mcugen("run", model, "-b", "host", "--inputs", path, "-o", tmp_path / "out.npz", "-q")
    assert_failed(done, 2, message)
    assert "in.npz" in done.err
    assert not (tmp_path / "out.npz").exists()


def test_single_array_and_missing_file(model: Path, tmp_path: Path):
    np.save(tmp_path / "in.npy", GOOD)
    out = tmp_path / "out.npz"
    assert mcugen("run", model, "-b", "host", "--inputs", tmp_path / "in.npy", "-o", out, "-q").code == 0
    assert np.load(out)["scores"].shape == (len(GOOD), 1, 4)
    done = mcugen("run", model, "-b", "host", "--inputs", tmp_path / "none.npz", "-o", out, "-q")
    assert_failed(done, 2, "none.npz")


def test_labels_must_match_the_samples(model: Path, tmp_path: Path):
    np.savez(tmp_path / "in.npz", x=GOOD, labels=np.array([1, 2, 3]))
    done = mcugen("report", model, "-b", "host", "--data", tmp_path / "in.npz", "-q")
    assert_failed(done, 2, "'labels' must hold one class number a sample")


def test_integer_inputs_take_whole_numbers_only(tmp_path: Path):
    net = Net()
    net.output(net.op("Neg", net.input("x", 4, dtype=np.int8)), dtype=np.int8)
    path = save(tmp_path / "m.onnx", net)
    for values, code in (([1, 2, 3, 4], 0), ([1, 2, 3, 300], 2), ([0.5, 1, 2, 3], 2)):
        np.savez(tmp_path / "in.npz", x=np.array([values]))
        done = mcugen("run", path, "-b", "host", "--inputs", tmp_path / "in.npz", "-o", tmp_path / "out.npz", "-q")
        assert done.code == code, done.err
    feeds = random_feeds(net.model())
    assert feeds["x"].dtype == np.int8


@pytest.mark.parametrize("arguments", [[], ["--ir", "hir"], ["--ir", "lir"]], ids=["table", "hir", "lir"])
def test_names_cannot_command_the_terminal(tmp_path: Path, arguments: list[str]):
    net = Net()
    net.output(net.op("Relu", net.input("x\x1b[31m", 1, 4), out="y\x1b]0;title\x07"))
    done = mcugen("inspect", save(tmp_path / "model.onnx", net), *arguments)
    assert done.code == 0 and "31m" in done.out and "\x1b" not in done.out


def test_refused_names_cannot_command_the_terminal(tmp_path: Path):
    net = Net()
    net.output(net.op("Exp", net.op("NoSuchOperator", net.input("x", 1, 4), out="y\x1b[31m"), out="z"), shape=(1, 4))
    path = tmp_path / "model.onnx"
    onnx.save(net.plain_model(), path)
    done = mcugen("inspect", path)
    assert done.code in (3, 4) and "\x1b" not in done.err


# ------------------------------------------------------------------------------------- sizes known at run time


@pytest.fixture
def sequence_model(tmp_path: Path) -> Path:
    net = Net()
    x = net.input("x", 1, "T", 4)
    net.output(net.op("Softmax", net.op("MatMul", x, net.const(np.ones((4, 3)))), out="y"))
    onnx.save(net.plain_model(), tmp_path / "sequence.onnx")
    return tmp_path / "sequence.onnx"


@pytest.mark.parametrize("dim", ["T=1..", "T=..4", "T=1..2..3", "T=1...4", "T=0..4", "T=4..2", "T=1..5000", "T=1..-4"])
def test_usage_2_of_ranges(sequence_model: Path, dim: str):
    assert_failed(mcugen("inspect", sequence_model, "--dim", dim), 2, r"--dim")


def test_inspect_tells_the_range(sequence_model: Path):
    assert "T: 1 to 8, an argument of the run function" in mcugen("inspect", sequence_model, "--dim", "T=1..8").out


def test_run_with_a_range_takes_the_samples_length(sequence_model: Path, tmp_path: Path):
    for length, name in ((3, "x"), (8, "x")):
        np.savez(tmp_path / "in.npz", **{name: np.ones((2, length, 4), np.float32)})
        options = ("-b", "host", "--dim", "T=1..8", "--inputs", tmp_path / "in.npz", "-o", tmp_path / "out.npz")
        assert mcugen("run", sequence_model, *options, "--quiet") == Done(0, "", "")
        np.testing.assert_allclose(np.load(tmp_path / "out.npz")["y"], np.full((2, 1, length, 3), 1 / 3), rtol=1e-6)
    np.savez(tmp_path / "in.npz", x=np.ones((2, 9, 4), np.float32))
    assert_failed(mcugen("run", sequence_model, *options), 2, "at most")


@pytest.mark.qemu
def test_report_with_a_range(sequence_model: Path, tmp_path: Path):
    np.savez(tmp_path / "in.npz", x=np.ones((2, 5, 4), np.float32))
    options = ("-b", "stm32f411", "--dim", "T=1..8", "--data", tmp_path / "in.npz", "--json", "-", "--quiet")
    report = json.loads(mcugen("report", sequence_model, *options).out)
    assert report["accuracy"]["max_abs_error"] < 1e-6
    assert report["instructions"] > 0


# ------------------------------------------------------------------------------------- quantized by mcugen

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits"
QUANTIZED = ("--calibration", DIGITS / "calibration.npz", "--without", "rounding", "-b", "host", "-q")


@pytest.fixture
def few(tmp_path: Path) -> Path:
    """Some of the evaluation samples."""
    with np.load(DIGITS / "eval.npz") as data:
        np.savez(tmp_path / "few.npz", image=data["image"][:40], labels=data["labels"][:40])
    return tmp_path / "few.npz"


def test_report_judges_float_quantized_and_target(few: Path):
    done = mcugen("report", DIGITS / "digits_f32.onnx", *QUANTIZED, "--data", few, "--json", "-")
    report = json.loads(done.out)
    accuracy = report["accuracy"]
    assert (accuracy["metric"], accuracy["reference"], accuracy["samples"]) == ("top1", "float32", 40)
    assert all(0.9 <= accuracy[key] <= 1 for key in ("float32", "quantized", "target"))
    assert 20 < accuracy["sqnr_db"] < 80 and accuracy["max_abs_error"] > 0
    layers = report["quantization"]["layers"]
    assert [layers[0]["op"], layers[-1]["op"]] == ["input", "softmax"]
    assert all(layer["precision"] == "int8" and layer["sqnr_db"] > 20 for layer in layers)
    assert report["quantization"]["first_diverging"] is None


def test_report_of_a_model_as_it_is_has_no_layers_to_compare(model: Path):
    done = mcugen("report", model, "-b", "host", "--json", "-", "-q")
    report = json.loads(done.out)
    assert (report["quantization"], report["accuracy"]["quantized"], report["accuracy"]["float32"]) == (None,) * 3
    assert report["accuracy"]["metric"] == "sqnr" and report["accuracy"]["target"] > 100
    refused = mcugen("report", model, "-b", "host", "--compare-layers", "-q")
    assert refused.code == 2 and "--compare-layers needs a model that mcugen quantizes" in refused.err


def test_compare_layers_prints_all_in_order(few: Path):
    arguments = ("report", DIGITS / "digits_f32.onnx", *QUANTIZED, "--data", few)
    worst, every = mcugen(*arguments).out, mcugen(*arguments, "--compare-layers", "--diverged", 60).out
    assert "worst 10 of 11" in worst and "no layer has an SQNR below 20 dB" in worst
    assert "in order" in every and "first layer with an SQNR below 60 dB: image" in every


def test_metrics_of_ones_own(few: Path, tmp_path: Path):
    (tmp_path / "mine.py").write_text("def least(outputs, labels):\n    return outputs['scores'].min() - len(labels)\n")
    metric = f"{tmp_path / 'mine.py'}:least"
    done = mcugen("report", DIGITS / "digits_f32.onnx", *QUANTIZED, "--data", few, "--metric", metric, "--json", "-")
    accuracy = json.loads(done.out)["accuracy"]
    assert accuracy["metric"] == metric
    assert -40 <= accuracy["float32"] < -39.9 and -40 <= accuracy["target"] < -39.9
    unknown = mcugen("report", DIGITS / "digits_f32.onnx", "-b", "host", "--metric", "top2", "-q")
    assert unknown.code == 2 and "top1, top5, auc" in unknown.err


def test_auto_prints_the_trade_offs(model: Path, tmp_path: Path):
    random, samples = np.random.default_rng(0), tmp_path / "samples.npz"
    np.savez(samples, x=random.standard_normal((40, 1, 6)).astype(np.float32), labels=random.integers(0, 4, 40))
    auto = ("compile", model, "-b", "host", "--calibration", samples, "--data", samples, "--precision", "auto")
    done = mcugen(*auto, "-o", tmp_path / "out", "--max-accuracy-drop", 100)
    assert done.code == 0 and "top-1 at most 100 percentage points worse than" in done.err
    assert re.search(r"\(all\) +int8 .* met", done.err)
    missed = mcugen(*auto, "-o", tmp_path / "other", "--min-sqnr", 999)
    assert missed.code == 6 and "SQNR of 999.00 dB or better" in missed.err and "missed" in missed.err
    assert not (tmp_path / "other").exists()
    both = mcugen(*auto, "-o", tmp_path / "both", "--min-sqnr", 30, "--max-accuracy-drop", 100)
    assert both.code == 0 and "of float32; and SQNR of 30.00 dB or better" in both.err
    neither = mcugen(*auto, "-o", tmp_path / "other", "--min-sqnr", 999, "--max-accuracy-drop", 100)
    assert neither.code == 6 and not (tmp_path / "other").exists()


# ------------------------------------------------------------------------------------------------------- memories


def test_place_and_a_file_of_weights(model: Path, tmp_path: Path):
    folder = tmp_path / "out"
    options = (
        "--board",
        "stm32h743",
        "-o",
        folder,
        "--place",
        "arena=dtcm",
        "--place",
        "weights=flash",
        "--weights-blob",
    )
    done = mcugen("compile", model, *options)
    assert done.code == 0, done.err
    assert re.search(r"dtcm: [\d,]+ of 131,072 bytes: arena", done.err)
    assert {"tiny_net_memory.ld", "tiny_net_weights.bin"} <= {path.name for path in folder.iterdir()}


def test_report_says_what_lies_where(model: Path):
    done = mcugen("report", model, "--board", "host", "--place", "auto", "--json", "-", "-q")
    assert done.code == 0, done.err
    assert {m["name"]: m["kind"] for m in json.loads(done.out)["memories"]} == {"ram": "ram", "flash": "flash"}


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("dtcm", r"--place must read WHAT=MEMORY.*found: 'dtcm'"),
        ("stack=dtcm", r"--place must read WHAT=MEMORY of arena, weights and hot-weights.*'stack=dtcm'"),
        ("arena=", r"--place must read WHAT=MEMORY.*'arena='"),
        ("arena=dtcm++itcm", r"--place must read WHAT=MEMORY"),
        ("arena=dtcm,arena=itcm", r"--place must be given once for each name.*'arena' twice"),
        ("auto,arena=itcm", r"'arena' twice"),
        ("hot-weights=dtcm", r"--place hot-weights must read MEMORY:BYTES.*'dtcm'"),
        ("hot-weights=dtcm:x", r"--place hot-weights must read MEMORY:BYTES"),
        ("arena=dtmc", r"no memory 'dtmc'.*one of dtcm"),
    ],
)
def test_usage_2_of_place(model: Path, place: str, message: str):
    assert_failed(mcugen("compile", model, "--board", "stm32h743", "--place", place), 2, message)
