# SPDX-License-Identifier: Apache-2.0
"""`mcugen monitor`: snapshots of firmware are read and compared; damaged ones give one clear error each."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from command_line import mcugen
from monitored_device import write_monitored

from mcugen.core.errors import ConstraintError, UsageError
from mcugen.deploy.monitoring.fleet import fleet_schema


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
