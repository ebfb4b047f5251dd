# SPDX-License-Identifier: Apache-2.0
"""`mcugen inspect --npu-stream`: the commands of segments, and of files that Vela wrote."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from command_line import mcugen
from ethos_u_streams import max_pooling
from onnx_models import Net
from shared_models import SHARED

from mcugen.backends.npu.ethos_u import vela
from mcugen.backends.npu.ethos_u.command_stream import listing_of

needs_vela = pytest.mark.skipif(not vela.is_installed(), reason="needs ethos-u-vela (pip install 'mcugen[ethos-u]')")


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    """Return a model of one maximum pooling."""
    net = Net()
    x = net.dequantize(net.input("x", 1, 3, 4, 4, dtype=np.int8), 0.05, 3)
    pooled = net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    net.output(net.quantize(pooled, 0.05, 3, out="y"), dtype=np.int8)
    path = tmp_path / "pool.onnx"
    onnx.save(net.model(), path)
    return path


def raw_file(folder: Path, payload: bytes) -> Path:
    """Return a file as `vela --output-format raw` writes it."""
    path = folder / "net_vela.npz"
    np.savez(path, cmd_data=np.frombuffer(payload, np.uint8), weight_data=np.zeros(4, np.uint8))
    return path


def test_a_raw_file_of_vela(tmp_path: Path):
    done = mcugen("inspect", raw_file(tmp_path, max_pooling().payload()), "--npu-stream")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0] == "segment 0: net_vela.npz, cmd_data"
    assert lines[1].startswith("ethos-u55-128") and lines[1].endswith("1 operations, 0 transfers")
    assert "pooling.max ifm 4x4x3 int8 NHWC @1:0x0 strides=[12, 3, 1] zp=0 ofm 2x2x3 int8 NHWC @1:0x40" in lines[2]


def test_json_has_all_fields(tmp_path: Path):
    path = tmp_path / "commands.json"
    done = mcugen("inspect", raw_file(tmp_path, max_pooling().payload()), "--npu-stream", "--json", path)
    assert done.code == 0 and "pooling.max" in done.out
    (segment,) = json.loads(path.read_text())["segments"]
    assert (segment["layer"], segment["accelerator"]) == ("net_vela.npz, cmd_data", "ethos-u55-128")
    pooling, stop = segment["operations"]
    assert (pooling["operation"], stop["operation"]) == ("pooling.max", "stop")
    assert pooling["ifm"]["shape"] == [4, 4, 3] and pooling["ifm"]["type"] == "int8"
    assert pooling["ofm"]["addresses"] == [0x40, 0, 0, 0] and pooling["ofm"]["region"] == 1
    assert pooling["kernel"] == {
        "height": 2, "width": 2, "stride_y": 2, "stride_x": 2, "dilation_y": 1, "dilation_x": 1, "pad_top": 0,
        "pad_left": 0, "pad_bottom": 0, "pad_right": 0, "is_part_kernel_first": False,
    }  # fmt: skip
    assert pooling["scaling"] == {"multiplier": 1, "shift": 0, "rounding": "double_symmetric", "left_shift": 0}
    assert pooling["activation"]["minimum"] == -128 and pooling["upscale"] == "none"


def test_json_is_json_for_every_operation():
    data = listing_of(max_pooling("u85-256").payload()).data
    assert json.loads(json.dumps(data)) == data


@pytest.mark.parametrize("payload", [b"COP1", b"COP2" + bytes(60), max_pooling().payload()[:-8]])
def test_damaged_commands_are_refused_by_the_name_of_the_file(tmp_path: Path, payload: bytes):
    done = mcugen("inspect", raw_file(tmp_path, payload), "--npu-stream")
    assert done.code == 7 and "net_vela.npz: " in done.err and "vela" in done.err and not done.out


def test_a_file_that_is_no_archive(tmp_path: Path):
    path = tmp_path / "net.npz"
    path.write_bytes(b"no archive")
    done = mcugen("inspect", path, "--npu-stream")
    assert done.code == 2 and "net.npz" in done.err


def test_without_the_npu_there_are_no_commands(pool: Path):
    done = mcugen("inspect", pool, "--npu-stream", "--board", "corstone300")
    assert done.code == 2 and "--npu auto" in done.err
    done = mcugen("inspect", pool, "--npu-stream", "--memory")
    assert done.code == 2 and "only one result can go to stdout" in done.err


@needs_vela
def test_segments_of_a_model(pool: Path):
    options = ("--board", "corstone300", "--npu", "only", "--npu-stream")
    done = mcugen("inspect", pool, *options)
    assert done.code == 0
    assert re.search(r"^segment 0: MaxPool_t1\nethos-u55-128 ", done.out)
    assert re.search(r"pooling\.max ifm 4x4x3 int8 .* ofm 2x2x3 int8 ", done.out)
    data = json.loads(mcugen("inspect", pool, *options, "--json", "-").out)
    report = json.loads(mcugen("inspect", pool, *options[:-1], "--json", "-").out)
    assert [s["layer"] for s in data["segments"]] == [s["layer"] for s in report["accelerator"]["segments"]]


@pytest.mark.shared
@needs_vela
def test_a_tflite_file_of_vela(tmp_path: Path):
    model = SHARED / "tflite" / "tflm_hello_world_int8.tflite"
    command = [Path(sys.executable).with_name("vela"), model, "--accelerator-config", "ethos-u55-64"]
    subprocess.run([*command, "--output-dir", tmp_path], check=True, capture_output=True)
    done = mcugen("inspect", tmp_path / "tflm_hello_world_int8_vela.tflite", "--npu-stream")
    assert done.code == 0
    assert done.out.startswith("segment 0: tflm_hello_world_int8_vela.tflite, operator 0\nethos-u55-64 ")
    assert done.out.count(": conv ifm") == 3
