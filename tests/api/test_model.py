# SPDX-License-Identifier: Apache-2.0
"""`mcugen.compile` and `mcugen.quantize`: what they take, what their results show, and names of earlier versions."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from command_line import mcugen as command

import mcugen
from mcugen.api import model as model_module
from mcugen.api import quantized as quantized_module
from mcugen.core import board as board_module

DIGITS = Path(__file__).parents[2] / "examples" / "digits"
FILE, CALIBRATION, EVAL = (DIGITS / name for name in ("digits_f32.onnx", "calibration.npz", "eval.npz"))

SMALL = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
small (float[1, 4] data) => (float[1, 2] y)
<float[4, 2] w = {0.1, 0.2, 0.3, -0.4, 0.5, 0.6, -0.7, 0.8}> { y = MatMul(data, w) }""")
TWO = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
two (float[1, 4] a, float[1, 4] b) => (float[1, 4] y) { y = Add(a, b) }""")

SAMPLES = np.random.default_rng(0).uniform(-1, 1, (32, 4)).astype(np.float32)
LABELS = np.arange(32) % 2


def saved(folder: Path) -> Path:
    """Return the file of the small model, whose name is not that of its graph."""
    path = folder / "file.onnx"
    onnx.save(SMALL, path)
    return path


MODELS: dict[str, Callable[[Path], Any]] = {
    "text": lambda folder: str(saved(folder)),
    "path": saved,
    "bytes": lambda folder: saved(folder).read_bytes(),
    "bytearray": lambda folder: bytearray(saved(folder).read_bytes()),
    "proto": lambda folder: SMALL,
}


class Convertible:
    """A tensor of another library."""

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        return SAMPLES


def file_of(folder: Path, name: str, **arrays: np.ndarray) -> Path:
    np.savez(folder / name, **arrays)
    return folder / name


def npy_of(folder: Path) -> Path:
    np.save(folder / "samples.npy", SAMPLES)
    return folder / "samples.npy"


def folder_of(folder: Path) -> Path:
    (folder / "samples").mkdir()
    for number, sample in enumerate(SAMPLES):
        np.save(folder / "samples" / f"{number:02}.npy", sample)
    return folder / "samples"


KINDS: dict[str, Callable[[Path], Any]] = {
    "array": lambda folder: SAMPLES,
    "array of float64": lambda folder: SAMPLES.astype(np.float64),
    "array of the model's rank": lambda folder: SAMPLES[:, None],
    "another library's array": lambda folder: Convertible(),
    "list of arrays": lambda folder: list(SAMPLES),
    "list of lists": lambda folder: SAMPLES.tolist(),
    "arrays by name": lambda folder: {"data": SAMPLES},
    "lists by name": lambda folder: {"data": SAMPLES.tolist()},
    "list of dictionaries": lambda folder: [{"data": sample} for sample in SAMPLES],
    "samples and labels": lambda folder: (SAMPLES, LABELS),
    "samples and no labels": lambda folder: (list(SAMPLES), None),
    "samples by name and labels": lambda folder: ({"data": SAMPLES}, LABELS.tolist()),
    ".npz": lambda folder: str(file_of(folder, "samples.npz", data=SAMPLES)),
    ".npz of x": lambda folder: file_of(folder, "samples.npz", x=SAMPLES),
    ".npy": npy_of,
    "folder": folder_of,
}


@pytest.fixture(scope="module")
def small() -> mcugen.Model:
    """The small model, quantized for a board."""
    return mcugen.compile(SMALL, "rp2040", calibration=SAMPLES, name="net")


def code_of(net: mcugen.Model) -> dict[str, str]:
    """The files, without the digest of the model's bytes, which differ by their origin."""
    return {name: re.sub(r"[0-9a-f]{64}", "", text) for name, text in net.files.items()}


@pytest.mark.parametrize("kind", MODELS)
def test_kinds_of_models_give_the_same_code(kind: str, tmp_path: Path) -> None:
    net = mcugen.compile(MODELS[kind](tmp_path), board="rp2040", name="net", data=SAMPLES)
    assert net.name == "net" and net.board.name == "rp2040" and net.quantization is None
    in_memory = mcugen.compile(SMALL, "rp2040", name="net", data=SAMPLES)
    assert {n: re.sub(r"small|file", "", t) for n, t in code_of(net).items()} == {
        n: re.sub(r"small|file", "", t) for n, t in code_of(in_memory).items()
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", ["path", "proto"])
def test_kinds_of_samples_give_the_same_quantized_model(
    model: str, kind: str, tmp_path: Path, small: mcugen.Model
) -> None:
    quantized = mcugen.quantize(MODELS[model](tmp_path), KINDS[kind](tmp_path))
    assert small.quantization is not None
    assert quantized.proto == small.quantization.proto


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_samples_are_run_alike(kind: str, tmp_path: Path, small: mcugen.Model) -> None:
    assert np.array_equal(small.run(KINDS[kind](tmp_path))["y"], small.run(SAMPLES)["y"])


def test_models_of_several_inputs_take_names() -> None:
    net = mcugen.compile(TWO, "rp2040")
    by_name = net.run({"a": SAMPLES, "b": 2 * SAMPLES})["y"]
    assert np.allclose(by_name.reshape(32, 4), 3 * SAMPLES)
    assert np.array_equal(by_name, net.run([{"a": sample, "b": 2 * sample} for sample in SAMPLES])["y"])
    with pytest.raises(mcugen.McugenError, match="there must be an array 'a'"):
        net.run(SAMPLES)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([SAMPLES[0], SAMPLES[0, :2]], "numbers in arrays of one shape"),
        ([{"data": SAMPLES[0]}, {"date": SAMPLES[0]}], "the same names. found: sample 0 has data, sample 1 has date"),
        (("a", "b", "c"), "a tuple of samples must be arrays and their labels. found: a tuple of 3"),
        (("samples.npz", LABELS), "a path in a tuple"),
        (["cat", "dog"], "numbers in arrays of one shape"),
        (3, "numbers in arrays of one shape"),
        ([], "leading axis of samples"),
        (np.zeros((4, 5)), "samples of the input's shape"),
        ("missing.npz", "missing.npz"),
    ],
)
def test_wrong_samples_are_an_error(samples: object, message: str, small: mcugen.Model) -> None:
    with pytest.raises(mcugen.McugenError, match=re.escape(message)):
        small.run(samples)
    with pytest.raises(mcugen.McugenError, match=re.escape(message)):
        mcugen.quantize(SMALL, samples)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (3, "model must be a path, an ONNX model, or a model of PyTorch, Keras or scikit-learn"),
        (b"no model", "must be an ONNX, .tflite, .pt2 or .keras model"),
        (b"", "no graph in it"),
        ("missing.onnx", "missing.onnx: the model must be a readable file"),
    ],
)
def test_a_wrong_model_is_an_error(model: Any, message: str) -> None:
    for function in (mcugen.compile, mcugen.quantize):
        with pytest.raises(mcugen.McugenError, match=message):
            function(model, **({"samples": SAMPLES} if function is mcugen.quantize else {}))


@pytest.mark.parametrize(
    ("board", "message"),
    [
        ("rt1061", "the board must exist. found: 'rt1061'. try: choose a name"),
        (1060, "board must be a name of `mcugen boards`"),
        ("missing.toml", "missing.toml"),
    ],
)
def test_a_wrong_board_is_an_error(board: Any, message: str) -> None:
    with pytest.raises(mcugen.McugenError, match=re.escape(message)):
        mcugen.compile(SMALL, board)


def test_a_board_may_be_in_memory() -> None:
    board = mcugen.Board.load("RP2040")
    assert mcugen.compile(SMALL, board).board is board


def test_samples_are_given_once() -> None:
    with pytest.raises(mcugen.McugenError, match="samples must be given once"):
        mcugen.quantize(SMALL, SAMPLES, calibration=SAMPLES)
    with pytest.raises(mcugen.McugenError, match="quantization needs samples"):
        mcugen.quantize(SMALL)


OPTIONS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "as it is": ({}, []),
    "quantized": (
        {"calibration": CALIBRATION, "precision": "int16x8", "layer": {"/stem/relu/Relu_output_0": "int8"}},
        [f"--calibration={CALIBRATION}", "--precision=int16x8", "--layer=/stem/relu/Relu_output_0=int8"],
    ),
    "functions and limits": (
        {"name": "net", "steps": True, "max_ram": 50_000, "labels": list("0123456789"), "optimize": "speed"},
        ["--name=net", "--steps", "--max-ram=50000", "--labels=labels.txt", "--optimize=speed"],
    ),
    "a profile of samples": (
        {"calibration": dict(np.load(CALIBRATION)), "data": EVAL, "without": ["rounding"]},
        [f"--calibration={CALIBRATION}", f"--data={EVAL}", "--without=rounding"],
    ),
}


@pytest.mark.parametrize("options", OPTIONS)
def test_files_are_those_of_the_command_line(options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("labels.txt").write_text("\n".join("0123456789"))
    keywords, flags = OPTIONS[options]
    written = mcugen.compile(FILE, "rp2040", **keywords).write("python")
    assert command("compile", FILE, "-b", "rp2040", *flags, "-o", "shell").code == 0
    assert {p.name: p.read_bytes() for p in written.iterdir()} == {
        p.name: p.read_bytes() for p in Path("shell").iterdir()
    }


def test_the_quantized_file_is_that_of_the_command_line(tmp_path: Path) -> None:
    written = mcugen.quantize(FILE, CALIBRATION, per_tensor=True).write(tmp_path / "python.onnx")
    flags = ("--calibration", CALIBRATION, "--per-tensor", "-o", tmp_path / "shell.onnx")
    assert command("quantize", FILE, *flags).code == 0
    assert written.read_bytes() == (tmp_path / "shell.onnx").read_bytes()


def test_a_quantized_model_is_a_model() -> None:
    quantized = mcugen.quantize(SMALL, SAMPLES)
    assert [layer["precision"] for layer in quantized.layers] == ["int8"]
    by_itself = mcugen.compile(quantized, "rp2040").run(SAMPLES)["y"]
    assert np.array_equal(by_itself, mcugen.compile(SMALL, "rp2040", calibration=SAMPLES).run(SAMPLES)["y"])


def test_numpy_computes_what_the_code_computes() -> None:
    """Integers to the last bit, with all that is computed from one call to the next."""
    net = mcugen.compile(FILE, calibration=CALIBRATION, integer_io=True)
    images = np.load(EVAL)["image"][:16]
    numbers = net.run(images)["scores"]
    assert numbers.dtype == np.int8 and np.array_equal(numbers, net.run(images, simulate=True)["scores"])


def test_states_go_from_sample_to_sample() -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
    sum (float[1, 4] x, float[1, 4] before) => (float[1, 4] after) { after = Add(x, before) }""")
    sums = mcugen.compile(model, state={"after": "before"}).run(SAMPLES)["after"].reshape(32, 4)
    assert np.allclose(sums, np.cumsum(SAMPLES, 0), atol=1e-5)


def test_a_report_has_labels_from_a_tuple_and_fills_the_figures() -> None:
    net = mcugen.compile(FILE, calibration=CALIBRATION)
    with np.load(EVAL) as arrays:
        images, labels = arrays["image"][:20], arrays["labels"][:20]
    assert net.run(images)["scores"].shape[0] == 20
    before = net.memory.flash.total
    report = net.report((images, labels))
    assert report.accuracy is not None and report.accuracy.metric == "top1" and report.accuracy.samples == 20
    by_name = net.report({"image": images, "labels": labels})
    assert by_name.accuracy == report.accuracy
    assert before is None and net.memory.flash == by_name.flash
    assert "100.00 %" in repr(report) and "accuracy" in report._repr_html_()


def test_progress_is_told() -> None:
    tasks: list[str] = []
    mcugen.quantize(SMALL, SAMPLES, progress=lambda task, finished, total: tasks.append(task))
    assert tasks


class Tags(HTMLParser):
    """The names of all elements in a page, and all text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


HOSTILE = '<script>alert("x")</script>'


def hostile_model() -> onnx.ModelProto:
    """Return a model whose names are HTML."""
    model = onnx.ModelProto()
    model.CopyFrom(SMALL)
    model.graph.node[0].name = HOSTILE
    return model


def test_tables_for_notebooks_have_figures_and_no_code_of_the_model() -> None:
    net = mcugen.compile(hostile_model(), "rp2040", calibration=SAMPLES)
    quantization = net.quantization
    assert quantization is not None
    arena, macs = f"{net.memory.ram.arena:,}", f"{net.layers[1].macs:,}"
    results = ((net, [arena, macs]), (net.memory, [arena]), (net.layers, [macs]), (quantization, ["int8"]))
    for result, figures in results:
        page = Tags(result._repr_html_())
        assert page.names <= {"table", "caption", "thead", "tbody", "tr", "th", "td"}
        assert all(figure in page.text for figure in figures)
    assert HOSTILE in Tags(net._repr_html_()).text and HOSTILE in repr(net.layers)


def test_results_are_readable() -> None:
    net = mcugen.compile(SMALL, "rp2040", calibration=SAMPLES)
    assert repr(net).startswith("<mcugen.Model: small on rp2040 (cortex-m0plus), int8, 3 layers, arena ")
    assert "RAM: arena" in repr(net.memory) and repr(net.layers).startswith("3 layers\n")
    assert repr(net.quantization).startswith("<mcugen.QuantizedModel: precision int8 by 32 samples")
    assert len(net.layers[1:]) == 2 and net.layers[-1].name == "y_dequantized"
    assert "object at 0x" not in "".join(map(repr, (net, net.memory, net.layers, net.quantization)))


DEPRECATED = [
    *("Compilation", "CompileOptions", "CompiledModel", "Judging", "LibraryFiles", "Places", "Quantizing"),
    *("compile_model", "load_board"),
]


@pytest.mark.parametrize("name", DEPRECATED)
def test_a_former_name_works_and_names_its_replacement(name: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"mcugen.{name} is deprecated: use .*(mcugen\.\w+)") as caught:
        value = getattr(mcugen, name)
    assert callable(value) and caught[0].filename == __file__
    replacement = re.findall(r"mcugen\.(\w+)", str(caught[0].message))[1]
    assert hasattr(mcugen, replacement)


def test_former_names_do_what_they_did() -> None:
    with pytest.warns(DeprecationWarning):
        net = mcugen.Compilation(SMALL, "rp2040", mcugen.CompileOptions(name="net"))
    assert net.compiled.bundle.files == mcugen.compile(SMALL, "rp2040", name="net").files


def test_public_names_do_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(hasattr(mcugen, name) for name in mcugen.__all__)
        assert set(dir(mcugen)) == set(mcugen.__all__)
    with pytest.raises(AttributeError):
        _ = mcugen.no_such_name


def test_importing_the_package_imports_no_compiler() -> None:
    code = "import sys, mcugen; print([name for name in ('numpy', 'onnx', 'mcugen.api') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


@pytest.mark.parametrize("module", [model_module, quantized_module, board_module], ids=lambda module: module.__name__)
def test_examples_in_docstrings_run(module: Any) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 0 and result.failed == 0


def test_public_functions_document_their_keywords() -> None:
    for function in (mcugen.compile, mcugen.quantize):
        assert "calibration: " in str(function.__doc__) and "--" not in str(function.__doc__).split("Keywords:")[1]


def test_the_page_of_the_python_interface_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Follow the page to the letter, with the example of digits as the model and its samples."""
    for name, file in {"model.onnx": FILE, "samples.npz": CALIBRATION, "eval.npz": EVAL}.items():
        (tmp_path / name).symlink_to(file)
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "reference" / "api.md").read_text()
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(block.replace('board="rt1060"', 'board="host"'), names)  # Needs no cross compiler and no simulator.
    assert names["report"].accuracy.samples == 300 and names["scores"].shape[0] == 10
    assert (tmp_path / "firmware" / "model" / "model.c").is_file()


def test_models_of_the_python_interface_are_linked() -> None:
    nets = [mcugen.compile(SMALL, "rp2040", name=name) for name in ("first", "second")]
    linked = mcugen.Linking(nets, "both")
    assert {"first.c", "second.c"} <= set(linked.firmware.bundle.files)
