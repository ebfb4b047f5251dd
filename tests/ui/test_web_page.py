# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser: from a dropped model to a package that builds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from browser import Page, chromium, needs_chromium
from command_line import mcugen
from PIL import Image
from shared_models import DATA, MODELS
from ui_server import Server, choose_board, drop, needs_nicegui, open_page, press, serving, shows

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
    address = page.wait("return (document.querySelector('#download') || {}).href", 200)
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
    status, text = server.request("/upload/model/large.onnx", headers, "PUT")
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
        assert server.request("/upload/model/a.onnx", {**cookie, **origin}, "PUT", b"x")[0] == 403
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
    """Return the processes of running jobs."""
    children = Path(f"/proc/{server.process.pid}/task").glob("*/children")
    pids = [int(pid) for task in children for pid in task.read_text().split()]
    return [pid for pid in pids if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


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
        press(other, "explore", "Cancel")
        for tab in (other, page):
            shows(tab, "explore", "This job was cancelled")
        assert other.run("return document.documentElement.scrollWidth") == 400
        assert other.errors == []


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.qemu
def test_keywords_from_dropped_files_to_a_package_that_builds(tmp_path: Path) -> None:
    with serving(tmp_path / "project") as server, chromium() as page:
        open_page(page, server)
        samples = (DATA / "kws_calib.npz", DATA / "kws_eval.npz")
        whole_way(page, server, MODELS / "ds_cnn_kws_f32.onnx", samples, tmp_path / "package")
        assert page.errors == []
        press(page, "explore", "Explore")
        shows(page, "explore", "on the Pareto front", 400)
        page.wait("return document.querySelector('#pareto').dataset.points == '12'")
        page.run(CHOOSE, 2)
        shows(page, "explore", "Full report")


CHOOSE = """const list = document.querySelector('#pareto select'); list.selectedIndex = arguments[0];
list.dispatchEvent(new Event('change', {bubbles: true}));"""
