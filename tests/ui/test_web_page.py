# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser: from a dropped model to a package that builds."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import time
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest
from browser import Page, chromium, needs_chromium
from command_line import mcugen
from dask_cluster import running_cluster
from model_variants import floats, quantized
from monitored_device import write_monitored
from PIL import Image
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from serial_lines import on_terminal
from shared_models import DATA, MODELS
from tflite_models import LiteModel, f32
from ui_server import Server, choose, choose_board, drop, needs_nicegui, open_page, press, serving, shows

from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.simulation.build import Checks, build_wire_host
from mcugen.simulation.execute import host_program

pytestmark = [needs_chromium, needs_nicegui]

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits"
HOSTILE = '"><img src=x onerror="document.title=\'owned\'">{{7*7}}${7*7}</script>'
BOARD = "rt1060"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("ui") / "project", "--max-upload", "1MB", "--jobs", "2") as running:
        yield running


@pytest.fixture(scope="module")
def page(server: Server) -> Iterator[Page]:
    """A page that requests nothing from elsewhere, and that logs no error."""
    with chromium() as opened:
        open_page(opened, server)
        yield opened
        assert [url for url in opened.requests if f"//{server.host}/" not in url] == []
        assert [error for error in opened.errors if "413" not in error] == []


FETCH = """const [address, done] = arguments;
fetch(address).then(answer => answer.arrayBuffer()).then(bytes => done([...new Uint8Array(bytes)]));"""


def take_package(page: Page, server: Server, target: Path) -> None:
    """Download the package, unpack it, and build its example with CMake."""
    address = page.wait("return (document.querySelector('#package a.download') || {}).href", 200)
    status, _ = server.request(address.partition(server.host)[2], {})
    assert status == 403  # not without the cookie
    data = bytes(page.driver.execute_async_script(FETCH, address))
    target.mkdir()
    (target / "package.zip").write_bytes(data)
    with zipfile.ZipFile(target / "package.zip") as archive:
        archive.extractall(target)
    (folder,) = (path for path in target.iterdir() if path.is_dir())
    for command in (
        ["cmake", "-S", str(folder / "example"), "-B", str(target / "b")],
        ["cmake", "--build", str(target / "b")],
    ):
        subprocess.run(command, check=True, capture_output=True)


def whole_way(page: Page, server: Server, model: Path, samples: tuple[Path, Path], target: Path) -> None:
    """Drop a model and samples, choose a board, compile and simulate, and take the package."""
    drop(page, "model", model)
    shows(page, "model", "Multiply-accumulates")
    shows(page, "model", "boards so far")
    press(page, "model", "Cancel")
    for file, role in zip(samples, ("Calibration", "Evaluation"), strict=True):
        drop(page, "samples", file)
        shows(page, "samples", f"{role} samples: samples/{file.name}")
    choose_board(page, BOARD)
    shows(page, "choices", "Cortex-M7")
    press(page, "report", "Compile and simulate")
    page.wait("return !!document.querySelector('#verdict')", 200)
    shows(page, "report", "bytes of RAM")
    press(page, "package", "Make the package")
    take_package(page, server, target)


@pytest.mark.qemu
def test_digits_from_dropped_files_to_a_package_that_builds(page: Page, server: Server, tmp_path: Path) -> None:
    samples = (DIGITS / "calibration.npz", DIGITS / "eval.npz")
    whole_way(page, server, DIGITS / "digits_f32.onnx", samples, tmp_path / "package")
    shows(page, "report", "top-1 99.33 % on 300 samples")
    open_page(page, server)  # a reload keeps it all
    shows(page, "report", "top-1 99.33 % on 300 samples")
    assert page.run("return document.querySelectorAll('#samples img').length") >= 12
    # The command line reads what was clicked.
    settings = (server.project / "mcugen.toml").read_text()
    assert f'board = "{BOARD}"' in settings and 'data = "samples/eval.npz"' in settings
    (report,) = server.project.glob("results/*/report.json")
    assert json.loads(report.read_text())["board"] == BOARD
    assert mcugen("view", report, "-o", tmp_path / "page.html").code == 0


def test_an_upload_over_the_limit_is_refused_twice(page: Page, server: Server, tmp_path: Path) -> None:
    large = tmp_path / "large.onnx"
    large.write_bytes(bytes(1 << 20) + b"x")
    drop(page, "model", large)
    page.wait("return document.querySelector('#upload-status').innerText.includes('1,048,576 bytes')")
    declared = {"content-length": str(large.stat().st_size)}  # The server answers before it gets the content.
    headers = {"cookie": server.cookie(), "origin": f"http://{server.host}", **declared}
    status, text = server.request("/upload/models/large.onnx", headers, "PUT")
    assert status == 413 and "at most 1,048,576 bytes" in text
    assert not (server.project / "models" / "large.onnx").exists()


def test_other_pages_and_programs_are_refused(server: Server) -> None:
    cookie = {"cookie": server.cookie()}
    assert server.request("/", cookie)[0] == 200
    for path in ("/", "/mcugen.toml", "/_nicegui_ws/socket.io/?EIO=4&transport=polling"):
        assert server.request(path)[0] == 403
        assert server.request(path, {**cookie, "origin": "http://evil.example"})[0] == 403
        assert server.request(path, {**cookie, "host": "evil.example"})[0] == 421
    for origin in ({}, {"origin": "http://evil.example"}, {"origin": "null"}):
        assert server.request("/upload/models/a.onnx", {**cookie, **origin}, "PUT", b"x")[0] == 403
    for path in ("/results/..%2f..%2fmcugen.toml/x", "/results/x/job.json", "/docs", "/openapi.json"):
        assert "calibration =" not in server.request(path, cookie)[1]


def test_hostile_names_are_text(page: Page, server: Server, tmp_path: Path) -> None:
    node = onnx.helper.make_node("Relu", [HOSTILE], ["y"], HOSTILE)
    ends = [onnx.helper.make_tensor_value_info(name, 1, [1, 4]) for name in (HOSTILE, "y")]
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], HOSTILE, ends[:1], ends[1:]),
        opset_imports=[onnx.helper.make_opsetid("", 18)],
        ir_version=8,
    )
    file = tmp_path / "'; alert(1); '<img src=x onerror=alert(1)>.onnx"
    onnx.save(model, file)
    drop(page, "model", file)
    shows(page, "model", "onerror=")
    page.driver.find_element("css selector", "#model .q-expansion-item").click()
    time.sleep(1)
    assert page.driver.title == "mcugen"
    assert page.run("return document.querySelectorAll('main img[src=x]').length") == 0
    assert {path.name for path in (server.project / "models").iterdir()} <= {
        "digits_f32.onnx",
        "_alert_1_img_src_x_onerror_alert_1_.onnx",
    }


def test_an_operator_that_is_not_supported_has_a_remedy(page: Page, tmp_path: Path) -> None:
    node = onnx.helper.make_node("Frobnicate", ["x"], ["y"], "strange", domain="org.example")
    ends = [onnx.helper.make_tensor_value_info(name, 1, [1, 4]) for name in "xy"]
    imports = [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid("org.example", 1)]
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "g", ends[:1], ends[1:]), opset_imports=imports, ir_version=8
    )
    onnx.save(model, tmp_path / "strange.onnx")
    drop(page, "model", tmp_path / "strange.onnx")
    shows(page, "model", "Frobnicate")
    shows(page, "model", "try: replace it by supported operators")


def test_a_folder_of_images_becomes_samples_with_labels(page: Page, server: Server, tmp_path: Path) -> None:
    press(page, "model", "Take the example")
    shows(page, "model", "Multiply-accumulates")
    for label in ("one", "two"):
        (tmp_path / "shapes" / label).mkdir(parents=True)
        for number in range(4):
            pixels = np.random.default_rng(number).integers(0, 256, (8, 8), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "shapes" / label / f"{label}{number}.png")
    drop(page, "samples", tmp_path / "shapes", kind="folder")
    shows(page, "samples", "Evaluation samples: samples/shapes.npz")
    shows(page, "samples", "0 (4), 1 (4)")
    shows(page, "samples", "Warning: there are only 8 samples")
    assert 'data = "samples/shapes.npz"' in (server.project / "mcugen.toml").read_text()
    assert not list((server.project / "samples" / ".incoming").iterdir())


def job_processes(server: Server) -> list[int]:
    """Return the processes of running jobs: children of the process that they are copied from."""
    children = psutil.Process(server.process.pid).children()
    servers = [child for child in children if any("forkserver" in word for word in child.cmdline())]
    return [job.pid for server in servers for job in server.children()]


@pytest.mark.qemu
def test_two_tabs_a_lost_worker_and_cancel(page: Page, server: Server) -> None:
    press(page, "model", "Take the example")
    shows(page, "samples", "Evaluation samples: samples/eval.npz")
    press(page, "explore", "Explore")
    shows(page, "explore", "Simulating")
    for pid in job_processes(server):
        os.kill(pid, signal.SIGKILL)
    shows(page, "explore", "A process of this job was lost. It was started again.")
    with chromium(400, dark=True) as other:
        open_page(other, server)
        shows(other, "explore", "It was started again.")
        cancel = "document.activeElement.getAttribute('aria-label') == 'Cancel: explore'"
        other.run("document.querySelector('#explore [aria-label^=Cancel]').focus()")
        time.sleep(2)  # The panel is drawn again, and the focus stays.
        assert other.run(f"return {cancel}")
        other.driver.switch_to.active_element.send_keys(Keys.ENTER)
        for tab in (other, page):
            shows(tab, "explore", "This job was cancelled")
        assert other.run("return document.documentElement.scrollWidth") == 400
        assert other.errors == []


def test_snapshots_of_devices_show_drift(page: Page, server: Server, tmp_path: Path) -> None:
    write_monitored(tmp_path)
    drop(page, "watch", tmp_path / "first.bin", tmp_path / "second.bin")
    shows(page, "watch", "No report is of a monitored model")
    drop(page, "watch", tmp_path / "net" / "net_report.json")
    shows(page, "watch", "in 2 snapshots of 2 devices")
    shows(page, "watch", "shifted by -")
    address = page.run("return document.querySelector('#watch iframe').src")
    status, text = server.request(address.partition(server.host)[2], {"cookie": server.cookie()})
    assert status == 200 and "PSI over time, by device" in text
    (tmp_path / "bad.bin").write_bytes(b"no snapshot" * 9)
    drop(page, "watch", tmp_path / "bad.bin")
    shows(page, "watch", "a snapshot must begin with 'MMON'")
    press(page, "watch", "Remove all")
    page.wait("return !document.querySelector('#watch').innerText.includes('MMON')")
    assert not list((server.project / "snapshots").iterdir())


def test_a_board_on_a_serial_port_is_validated_layer_by_layer(page: Page, server: Server, tmp_path: Path) -> None:
    (server.project / "mcugen.toml").write_text("")  # without samples of other models
    onnx.save(quantized().model(), tmp_path / "net.onnx")
    images = np.random.default_rng(1).normal(size=(24, 1, 3, 9, 9)).astype(np.float32)
    np.savez(tmp_path / "eval.npz", image=images)
    drop(page, "model", tmp_path / "net.onnx")
    shows(page, "model", "models/net.onnx")
    shows(page, "model", "First estimate")
    choose_board(page, "host")
    drop(page, "samples", tmp_path / "eval.npz")
    shows(page, "samples", "1 x 3 x 9 x 9")
    press(page, "validate", "Make the code")
    shows(page, "validate", "Download net-validation.zip")
    compiled = compile_model(tmp_path / "net.onnx", "host", CompileOptions(validation=True))
    device = host_program(build_wire_host(compiled.bundle, tmp_path / "device", Checks.NONE)).command
    with on_terminal(list(device)) as port:
        choose(page, "validate", "Port", port)
        press(page, "validate", "Validate")
        shows(page, "validate", "bit-exact of 24 samples")
        shows(page, "validate", "Validation as a page")
    layers = page.run("return [...document.querySelectorAll('#validate tbody tr')].map(row => row.innerText)")
    assert len(layers) == len(compiled.report.layers) and all("bit-exact" in layer for layer in layers)
    choose(page, "validate", "Port", "spy:///dev/null?file=/tmp/written")
    press(page, "validate", "Validate")
    shows(page, "validate", "the port must be a serial port or socket://HOST:PORT")


def test_models_of_other_frameworks(page: Page, tmp_path: Path) -> None:
    model = LiteModel()
    x, y = model.graph.input(1, 4), model.graph.tensor(1, 4, name="scores")
    model.graph.op("SOFTMAX", [x], [y], 9, {0: f32(1.0)})
    model.graph.output(y)
    (tmp_path / "lite.tflite").write_bytes(model.data())
    drop(page, "model", tmp_path / "lite.tflite")
    shows(page, "model", "1 Softmax")
    (tmp_path / "program.pt2").write_bytes(pt2())
    drop(page, "model", tmp_path / "program.pt2")
    if find_spec("torch") is None:
        shows(page, "model", "needs the package 'torch'")
        shows(page, "model", "To do: pip install 'mcugen[torch]'")
    else:
        shows(page, "model", "1 Relu")


def pt2() -> bytes:
    """Return a .pt2 file: of PyTorch's if it is installed, or else an archive that looks like one."""
    if find_spec("torch") is None:
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as archive:
            archive.writestr("program/models/model.json", "{}")
        return stream.getvalue()
    import torch

    stream = io.BytesIO()
    torch.export.save(torch.export.export(torch.nn.ReLU(), (torch.zeros(1, 4),)), stream)
    return stream.getvalue()


def test_all_controls_are_reached_by_the_keyboard(page: Page) -> None:
    press(page, "model", "Take the example")
    shows(page, "model", "models/digits_f32.onnx")
    shows(page, "model", "First estimate")
    wanted = set(page.run(f"return {VISIBLE_CONTROLS}"))
    assert len(wanted) > 30
    page.run("document.activeElement.blur(); window.scrollTo(0, 0)")
    reached: set[str] = set()
    for _ in range(3 * len(wanted)):
        ActionChains(page.driver).send_keys(Keys.TAB).perform()
        reached.add(page.run(f"return ({NAME})(document.activeElement)"))
        if wanted <= reached:
            break
    assert wanted - reached == set()
    dark = "return document.body.classList.contains('body--dark')"
    was_dark = page.run(dark)
    page.driver.find_element("css selector", "header button").send_keys(Keys.ENTER)
    page.wait(f"{dark} != {str(was_dark).lower()}")


NAME = "e => e.getAttribute('aria-label') || e.innerText.trim() || e.tagName"
CONTROLS = "button, a[href], input:not([tabindex='-1']), [role=combobox], select"
VISIBLE_CONTROLS = f"""[...document.querySelectorAll("{CONTROLS}")]
    .filter(e => e.offsetParent && e.tabIndex >= 0).map({NAME})"""


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.qemu
def test_keywords_from_dropped_files_to_a_package_that_builds(tmp_path: Path) -> None:
    with serving(tmp_path / "project") as server, chromium() as page:
        open_page(page, server)
        samples = (DATA / "kws_calib.npz", DATA / "kws_eval.npz")
        whole_way(page, server, MODELS / "ds_cnn_kws_f32.onnx", samples, tmp_path / "package")
        press(page, "validate", "Validate")
        shows(page, "validate", "Validation as a page", 300)
        assert "peak stack" in (figures := page.run("return document.querySelector('#validate').innerText"))
        assert "different" not in figures and "instructions" in figures
        assert page.errors == []
        press(page, "explore", "Explore")
        shows(page, "explore", "on the Pareto front", 400)
        page.wait("return document.querySelector('#pareto').dataset.points == '12'")
        page.run(CHOOSE, 2)
        shows(page, "explore", "Full report")


CHOOSE = """const list = document.querySelector('#pareto select'); list.selectedIndex = arguments[0];
list.dispatchEvent(new Event('change', {bubbles: true}));"""


@pytest.mark.slow
def test_jobs_on_a_cluster_survive_a_lost_worker(tmp_path: Path) -> None:
    with (
        running_cluster(tmp_path) as cluster,
        serving(tmp_path / "project", "--cluster", cluster.address) as server,
        chromium() as page,
    ):
        open_page(page, server)
        onnx.save(floats().model(), tmp_path / "floats.onnx")
        drop(page, "model", tmp_path / "floats.onnx")
        shows(page, "model", "boards so far", 120)
        cluster.kill(next(iter(cluster.workers)))
        shows(page, "model", "of 95 boards as it is", 300)
        assert page.errors == []
