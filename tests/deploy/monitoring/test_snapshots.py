# SPDX-License-Identifier: Apache-2.0
"""`mcugen monitor`: snapshots of firmware are read and compared; damaged ones give one clear error each."""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from command_line import mcugen
from monitored_device import DATA, write_monitored
from serial_lines import Noise, on_socket, on_terminal

from mcugen.api.compilation import Compilation
from mcugen.core.errors import BoardError, ConstraintError, UsageError
from mcugen.core.options import CompileOptions
from mcugen.deploy.monitoring.fleet import fleet_schema
from mcugen.driver.compiler import compile_model
from mcugen.driver.tasks import Judging
from mcugen.simulation.build import Checks, build_wire_host
from mcugen.simulation.execute import host_program


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the code of a monitored model in `net`, and two snapshots of it."""
    folder = tmp_path_factory.mktemp("monitored")
    write_monitored(folder)
    return folder


def run(folder: Path, *arguments: object):
    return mcugen("monitor", *arguments, "--report", folder / "net" / "net_report.json")


@pytest.mark.parametrize("files", [("both.bin",), ("second.bin", "first.bin")])
def test_devices_are_compared(folder: Path, files: tuple[str, ...]):
    done = run(folder, *(folder / name for name in files), "--json", folder / "fleet.json", "--html", folder / "p.html")
    assert done.code == 0, done.err
    fleet = json.loads((folder / "fleet.json").read_text())
    assert [(s["device"], s["time"], s["runs"]) for s in fleet["snapshots"]] == [(1, 60, 20), (2, 120, 20)]
    second = fleet["snapshots"][1]
    assert any("shifted by -" in alarm for alarm in second["alarms"])
    assert "alarm: " in done.err and "device" in done.out
    page = (folder / "p.html").read_text()
    assert "2 snapshots of 2 devices" in page and '"device 2"' in page


def test_the_json_keeps_its_schema(folder: Path):
    jsonschema = pytest.importorskip("jsonschema")
    done = run(folder, folder / "both.bin", "--json", "-")
    jsonschema.validate(json.loads(done.out), fleet_schema())


def test_an_alarm_is_an_error_if_that_is_asked_for(folder: Path):
    done = run(folder, folder / "second.bin", "--check")
    assert done.code == ConstraintError.exit_code and "without alarms" in done.err
    assert run(folder, folder / "second.bin", "--check", "--max-psi", "99", "--max-ks", "1").code in (0, 6)


def sealed(data: bytearray) -> bytes:
    """Return a snapshot with a right checksum."""
    data[-4:] = struct.pack("<I", zlib.crc32(bytes(data[:-4])))
    return bytes(data)


def changed(at: int, value: int) -> Callable[[bytes], bytes]:
    """Return a function that changes one word of a snapshot, and makes the checksum right again."""

    def change(data: bytes) -> bytes:
        words = bytearray(data)
        struct.pack_into("<I", words, at, value)
        return sealed(words)

    return change


DAMAGED: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda data: b"", "at least 64 bytes"),
    "a few bytes": (lambda data: data[:63], "at least 64 bytes"),
    "truncated": (lambda data: data[:-1], "must be complete"),
    "more behind it": (lambda data: data + b"x", "at least 64 bytes"),
    "no snapshot": (lambda data: b"\x89PNG" + data[4:], "must begin with"),
    "of a newer format": (changed(4, 2), "format must be 1"),
    "of no size": (changed(8, 0), "must be complete"),
    "of a huge size": (changed(8, 0xFFFFFFFF), "must be complete"),
    "of another model": (changed(12, 1), "must be of a reported model"),
    "a damaged byte": (lambda data: data[:99] + bytes([data[99] ^ 1]) + data[100:], "checksum must be right"),
    "counts that disagree": (changed(64 + 48, 1), "must agree"),
    "of another size": (lambda data: sealed(bytearray(data[:8] + struct.pack("<I", 72) + data[12:72])), "must have"),
    "a huge file": (lambda data: data * 99_999, "must have at most"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_snapshot_gives_one_clear_error(kind: str, folder: Path, tmp_path: Path):
    change, rule = DAMAGED[kind]
    (tmp_path / "s.bin").write_bytes(change((folder / "first.bin").read_bytes()))
    done = run(folder, tmp_path / "s.bin")
    assert done.code == UsageError.exit_code
    assert rule in " ".join(done.err.split()) and done.err.count("error:") == 1


def test_random_bytes_are_refused(folder: Path, tmp_path: Path):
    random = np.random.default_rng(0)
    good = (folder / "first.bin").read_bytes()
    for _ in range(30):
        data = bytearray(good)
        for at in random.integers(0, len(data), 3):
            data[at] = int(random.integers(256))
        (tmp_path / "s.bin").write_bytes(bytes(data) if random.random() < 0.5 else sealed(data))
        assert run(folder, tmp_path / "s.bin", "--quiet").code in (0, UsageError.exit_code)


def test_a_snapshot_of_the_other_byte_order_is_read(folder: Path, tmp_path: Path):
    data = bytearray((folder / "first.bin").read_bytes())
    words = struct.unpack(f"<{len(data) // 4}I", data)
    swapped = bytearray(struct.pack(f">{len(words)}I", *words))
    for tensor in range((len(data) - 64) // 96):
        at = 64 + 96 * tensor
        if at + 48 <= 64 + 96:
            for place in range(at, at + 48, 8):
                swapped[place : place + 8] = data[place : place + 8][::-1]
    swapped[-4:] = struct.pack(">I", zlib.crc32(bytes(swapped[:-4])))
    (tmp_path / "s.bin").write_bytes(bytes(swapped))
    texts = [run(folder, path, "--json", "-").out for path in (tmp_path / "s.bin", folder / "first.bin")]
    first, second = (json.loads(text)["snapshots"][0] for text in texts)
    assert first["tensors"] == second["tensors"] and first["outputs"] == second["outputs"]


def test_reports_of_other_models_are_refused(folder: Path, tmp_path: Path):
    assert "give --report" in mcugen("monitor", folder / "first.bin").err
    done = mcugen("compile", folder / "net.onnx", "-b", "host", "-o", tmp_path / "net")
    assert done.code == 0
    done = mcugen("monitor", folder / "first.bin", "--report", tmp_path / "net" / "net_report.json")
    assert done.code == UsageError.exit_code and "compile with --monitor" in done.err
    assert mcugen("monitor", folder / "none.bin", "--report", folder / "net" / "net_report.json").code == 2


@pytest.fixture(scope="module")
def device(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Path]:
    """Return the command of a device whose firmware keeps statistics, and the report of its model."""
    compiled = Compilation(
        folder / "net.onnx",
        "host",
        CompileOptions(name="net", validation=True, monitor=True),
        judging=Judging(data=DATA),
    ).compiled
    place = tmp_path_factory.mktemp("device")
    (place / "report.json").write_text(compiled.bundle.files["net_report.json"])
    return host_program(build_wire_host(compiled.bundle, place / "build", Checks.TELL)).command, place / "report.json"


def test_a_device_is_read_over_the_validation_protocol(device: tuple[list[str], Path], folder: Path):
    """The runs of `mcugen validate` are observed; a snapshot can be kept for later."""
    command, report = device
    monitor = ("monitor", "--report", report, "--timeout", "30", "--json", "-")
    with on_terminal(command) as port:
        before = mcugen(*monitor, "--port", port)
        data = ("--monitor", "--data", folder / "data.npz", "--timeout", "30")
        done = mcugen("validate", folder / "net.onnx", "-b", "host", "--name", "net", *data, "--port", port)
        after = mcugen(*monitor, "--port", port, "--save", folder / "saved.bin")
    assert (before.code, done.code, after.code) == (0, 0, 0), before.err + done.err + after.err
    (first,), (second,) = (json.loads(text.out)["snapshots"] for text in (before, after))
    assert (first["runs"], second["runs"] >= 24, second["source"]) == (0, True, port)
    saved = mcugen("monitor", folder / "saved.bin", "--report", report, "--json", "-")
    assert json.loads(saved.out)["snapshots"][0]["tensors"] == second["tensors"]


def test_a_noisy_line_gives_the_same_snapshot(device: tuple[list[str], Path]):
    command, report = device
    noise = Noise(lambda random, byte: [byte ^ 1 << random.randrange(8)], 200)
    with on_socket(command, noise) as port:
        done = mcugen("monitor", "--report", report, "--port", port, "--timeout", "60", "--json", "-")
    assert done.code == 0, done.err
    assert noise.count and json.loads(done.out)["snapshots"][0]["runs"] == 0


def test_firmware_without_statistics_is_named(folder: Path, tmp_path: Path):
    bundle = compile_model(folder / "net.onnx", "host", CompileOptions("net", validation=True)).bundle
    command = host_program(build_wire_host(bundle, tmp_path, Checks.NONE)).command
    with on_socket(command) as port:
        done = mcugen("monitor", "--report", folder / "net" / "net_report.json", "--port", port)
    assert done.code == BoardError.exit_code
    assert "must keep statistics" in done.err and "--monitor --validation" in done.err and done.err.count("error:") == 1


def test_what_is_read_must_be_named(folder: Path):
    report = ("--report", folder / "net" / "net_report.json")
    done = mcugen("monitor", *report)
    assert done.code == UsageError.exit_code and "give files, or --port PORT" in done.err
    done = mcugen("monitor", folder / "both.bin", *report, "--save", folder / "x")
    assert done.code == UsageError.exit_code and "--save is for a snapshot of --port" in done.err


def test_the_page_tells_which_device_runs_what(folder: Path, tmp_path: Path):
    """Of each device, the last snapshot counts: device 2 ran the first file of weights before."""
    first = (folder / "first.bin").read_bytes()
    snapshots = []
    for device, time, weights, version in ((1, 60, 0xA1, 1), (2, 50, 0xA1, 1), (2, 70, 0xB2, 2), (3, 70, 0xB2, 2)):
        data = first
        for at, value in ((20, weights), (24, version), (28, device), (32, time)):
            data = changed(at, value)(data)
        snapshots.append(data)
    (tmp_path / "fleet.bin").write_bytes(b"".join(snapshots))
    done = run(folder, tmp_path / "fleet.bin", "--html", tmp_path / "fleet.html")
    assert done.code == 0, done.err
    rows = [re.findall(r"\S+", line) for line in done.out.splitlines()]
    told = [[cell for cell in row if cell not in "│|"] for row in rows]
    assert any(row[2:] == ["000000a1", "1", "1"] for row in told), done.out
    assert any(row[2:] == ["000000b2", "2", "2,", "3"] for row in told), done.out
    assert "What devices run" in (tmp_path / "fleet.html").read_text()
