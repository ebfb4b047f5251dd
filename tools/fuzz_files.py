# SPDX-License-Identifier: Apache-2.0
"""Makers of files that mcugen writes and reads again, damaged, and of texts: inputs, classes, settings, what learns."""

from __future__ import annotations

import functools
import json
import shutil
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx.parser
from fuzz_values import DIGITS, INTS, VALUES, WORDS, Maker
from sandbox import run_mcugen

from mcugen.calibration.files import FORMAT, VERSION
from mcugen.core.resources import resource_dir

_HEAD = '<ir_version: 10, opset_import: ["": 17]>'
_CLASSIFIER = "g (float[1,6] x) => (float[1,2] y) <float[6,2] w = {{{}}}> {{ h = MatMul(x, w) y = Softmax(h) }}"
_PICTURE = "g (float[1,1,4,4] x) => (float[1,1,4,4] y) { y = Relu(x) }"
_WINDOW = "g (float[1,4,5] x) => (float[1,4,5] y) { y = Relu(x) }"
_WHOLE = (
    *(b"", b"null", b"{}", b"[]", b"[" * 100_000, b'{"runs":' * 3000, b"1" * 10_000, b"\xff\xfe{\x00", b"{}" * 9),
    *(b"\xef\xbb\xbf{}", b"NaN", b"-", b'"' + b"\\u" * 99),
)
"""In the place of a JSON file."""


def _model(text: str) -> bytes:
    data: bytes = onnx.parser.parse_model(_HEAD + text).SerializeToString()
    return data


@functools.cache
def classifier(seed: int = 0) -> bytes:
    """Return a model of one layer and two classes; the seed determines its weights."""
    return _model(_CLASSIFIER.format(",".join(str((i * 7 + seed) % 5) for i in range(12))))


@functools.cache
def _folder(*options: str) -> Mapping[str, bytes]:
    """Write the files of `mcugen compile` for the classifier, and its report as report.json."""
    with tempfile.TemporaryDirectory() as name:
        model, out, report = Path(name) / "net.onnx", Path(name) / "out", Path(name) / "out" / "report.json"
        model.write_bytes(classifier())
        out.mkdir()
        code = run_mcugen(("compile", str(model), "-q", "-o", str(out), *options))
        assert code == 0, "the model is in order"
        run_mcugen(("compile", str(model), "-q", "-o", str(Path(name) / "again"), "--json", str(report), *options))
        return {path.name: path.read_bytes() for path in sorted(out.iterdir()) if path.is_file()}


def _json(make: Maker, suffix: str, tree: Any) -> str:
    """Write a damaged JSON file: with changed values, changed bytes, or other contents."""
    kind = make.random.randrange(10)
    if kind == 0:
        return make.write(suffix, make.random.choice(_WHOLE))
    data = json.dumps(tree if kind < 3 else make.changed(tree)).encode()
    return make.write(suffix, make.damaged(data) if kind < 3 else data)


# -------------------------------------------------------------------------------------------------- results


def runs(make: Maker) -> tuple[str, ...]:
    """Return a command with measured runs, for a new board or with one run to be added; nothing is simulated."""
    layer = {"name": "h", "op": "dense", "kernel": "dense_f32", "macs": 12, "cycles": 1000}
    run = {
        "board": "rt1060",
        "clock_hz": 600_000_000,
        "model": "net",
        "sha256": "0" * 64,
        "options": "",
        "cycles": 2000,
    }
    run |= {"cpu": "cortex-m7", "counter": "dwt", "compiler": "gcc", "flags": "-O2", "layers": [layer, layer]}
    file = _json(make, ".json", {"format": FORMAT, "version": VERSION, "runs": [run, dict(run)]})
    model = make.write(".onnx", classifier())
    if make.random.random() < 0.5:
        return ("validate", model, "-b", "rt1060", "--port", "/dev/null/none", "--runs", file)
    return ("calibrate-board", "rt1060", "--from", file, "--model", model, "-o", f"{make.name}.toml")


def reports(make: Maker) -> tuple[str, ...]:
    """Return a command that compares two damaged reports."""
    random = make.random
    tree = json.loads(_folder("-b", random.choice(("host", "rt1060", "esp32c3")))["report.json"])
    files = [_json(make, ".a.json", tree), _json(make, ".b.json", tree)]
    if random.random() < 0.5:
        files[random.randrange(2)] = make.write(".c.json", json.dumps(tree).encode())
    limits = (
        "cycles=+2%",
        "ram=+0",
        "accuracy=-0.005",
        "ram=-1",
        f"ram=+{random.choice(DIGITS)}",
        random.choice(WORDS),
    )
    shown = (("--html", f"{make.name}.html"), ("--markdown", f"{make.name}.md"), ("--json", "-"), ())
    return ("diff", *files, *random.choice(shown), *random.choice(((), ("--limit", random.choice(limits)))))


def weights(make: Maker) -> tuple[str, ...]:
    """Return a command that updates the weights of a folder from another model."""
    random, name = make.random, f"{make.name}.folder"
    files = dict(_folder("--updatable", "-b", "rt1060"))
    for _ in range(random.choice((0, 1, 1, 2))):
        chosen = random.choice([file for file in files if file.startswith("net") and not file.endswith("_validate.c")])
        kind = random.randrange(5)
        if kind == 0:
            del files[chosen]
        elif kind == 1:
            files[random.choice(("other_weights.bin", "net_weights.bin", "x" * 200))] = files[chosen]
        else:
            files[chosen] = random.choice(_WHOLE) if kind == 2 else make.damaged(files[chosen])
    folder = make.folder / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for file, data in files.items():
        (folder / file).write_bytes(data)
    model = random.choice((classifier(1), classifier(1), _model(_PICTURE), make.damaged(classifier(1))))
    version = random.choice((*[()] * 8, ("--weights-version", random.choice(DIGITS))))
    given = ("update", make.write(".onnx", model), "-b", "rt1060", "--for", random.choice((*[name] * 20, ".")))
    return (*given, "-o", f"{make.name}.bin", *version)


# ------------------------------------------------------------------------------------------------- described

_PARTS = (
    *("image=rgb565", "image=gray", "image=yuyv", "crop=center", "crop=4x4", "crop=99999x1+0+0", "resize=4x4"),
    *("resize=8192x8192", "nearest", "bilinear", "rgb", "bgr", "gray", "scale=1/255", "scale=1/0", "scale=1e-44"),
    *("mean=0.5", "mean=1;2;3", "std=0", "std=1e30", "layout=chw", "layout=hwc", "sound=16000", "sound=1"),
    *("vibration=100x2", "vibration=100x9999999", "frame=8/4", "frame=8192/1", "frame=1/8192", "window=hann"),
    *("fft=8", "fft=7", "fft=8192", "spectrum=magnitude", "mel=4:20:4000", "mel=256:0:1e30", "slaney=5:10:50"),
    *("bins=4:0:50", "bins=256:0:0.001", "log=db", "log=ln", "floor=1e-10", "floor=1e6", "dct=4", "dct=256"),
    *("stats=mean;rms", "stats=mean;mean", "stats=kurtosis", "stack=5", "stack=5/5", "stack=4096/1", "features-first"),
    *("# remark", "=", ",", "image", "mel"),
)
_PIPELINES = (
    ("image=gray", "crop=center", "resize=4x4", "gray", "scale=1/255", "mean=0.5", "std=0.5"),
    ("sound=100", "frame=8/4", "fft=8", "mel=4:5:50", "log=ln", "stack=5", "features-first"),
    ("vibration=100x2", "frame=8/4", "stats=mean;rms", "stack=5", "features-first"),
)


def pipeline(make: Maker) -> tuple[str, ...]:
    """Return a command with a damaged description of the input pipeline, as text or as a file."""
    random = make.random
    at = random.randrange(len(_PIPELINES))
    parts = list(_PIPELINES[at])
    for _ in range(random.choice((0, 1, 1, 2, 4))):
        place = random.randrange(len(parts))
        word = parts[place].partition("=")[0]
        other = (
            *_PARTS,
            f"{word}={random.choice((*DIGITS, *WORDS))}",
            f"{word}={random.choice(INTS)}x{random.choice(INTS)}",
        )
        parts[place : place + (random.random() < 0.8)] = [random.choice(other)]
    text = random.choice((", ", "\n", ",")).join(parts)
    if random.random() < 0.5:
        data = text.encode()
        text = make.write(".txt", data if random.random() < 0.5 else make.damaged(data))
    model = make.write(".onnx", _model(_WINDOW if at else _PICTURE))
    board = ("-b", random.choice(("host", "rp2040")))
    return ("compile", model, "-q", *board, "-o", f"{make.name}.out", "--input-pipeline", text.replace("\0", ""))


def labels(make: Maker) -> tuple[str, ...]:
    """Return a command with damaged class names."""
    random = make.random
    names = (*WORDS, "cat", "dog", '"; int x; //', "??/", "\\", "*/", "\x00", "\x7f", "\ud7ff", "\u2028")
    lines = [random.choice(names) for _ in range(random.choice((2, 2, 2, 1, 0, 3, 300)))]
    data = random.choice(("\n", "\n", "\r\n", "\r")).join(lines).encode()
    data = random.choice((data, data, make.damaged(data), b"\xef\xbb\xbf" + data, data.decode().encode("utf-16")))
    model = make.write(".onnx", classifier())
    return ("compile", model, "-q", "-b", "host", "-o", f"{make.name}.out", "--labels", make.write(".txt", data))


def board_tables(make: Maker) -> tuple[str, ...]:
    """Return a command with a board whose tables of memories and caches are damaged."""
    random = make.random
    files = sorted(path for path in resource_dir("boards").glob("*.toml") if b"memories = [" in path.read_bytes())
    tree = make.changed(tomllib.loads(random.choice(files).read_text()))
    data = "".join(f"{_toml_key(key)} = {_toml(value)}\n" for key, value in tree.items()).encode("utf-8", "replace")
    file = make.write(".toml", data)
    if random.random() < 0.5:
        return ("boards", "show", file)
    placed = random.choice(((), ("--place", "auto"), ("--place", "arena=dtcm+ocram"), ("--place", "weights=flash")))
    return ("inspect", make.write(".onnx", classifier()), "-b", file, *placed)


def _toml(value: Any) -> str:
    """Return a value in TOML; values that TOML lacks become an empty text."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_toml_key(k)} = {_toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if value is None:
        return '""'
    if isinstance(value, float) and value != value:
        return "nan"
    if isinstance(value, float) and abs(value) == float("inf"):
        return "inf" if value > 0 else "-inf"
    return json.dumps(value)


def _toml_key(key: str) -> str:
    return json.dumps(key)


# ------------------------------------------------------------------------------------- settings and training

_SETTINGS: dict[str, Any] = {
    **{"model": "net.onnx", "board": "rp2040", "name": "net", "optimize": "ram", "place": ["arena=ram"]},
    **{"cores": 2, "weights-blob": True, "min-sqnr": 20.0, "dim": ["N=2"], "train": "last:1", "loss": "mse"},
    **{"float16-weights": True, "max-ram": "20KB", "precision": "int8", "helpers": False, "bind": ["x=[1]"]},
}


def settings(make: Maker) -> tuple[str, ...]:
    """Return a command that runs in a folder with a damaged mcugen.toml."""
    random, folder = make.random, make.folder / make.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "net.onnx").write_bytes(classifier())
    keys = random.sample(list(_SETTINGS), random.choice((1, 3, 5)))
    tree: Any = {key: _SETTINGS[key] for key in dict.fromkeys(("model", "board", *keys))}
    if random.random() < 0.3:
        tree[random.choice(("plugin", "json", "metric", "weights-version", "max-cycles", "calibration", *WORDS))] = (
            random.choice((*VALUES, *DIGITS))
        )
    tree = make.changed(tree)
    data = "".join(f"{_toml_key(key)} = {_toml(value)}\n" for key, value in tree.items()).encode("utf-8", "replace")
    (folder / "mcugen.toml").write_bytes(data if random.random() < 0.7 else make.damaged(data))
    commands = (("inspect",), ("compile", "-o", "out"), ("inspect", "net.onnx", "-b", "host"), ("boards",))
    return random.choice((*commands, ("init", "net.onnx", "-b", "host", "--force", "--name", random.choice(WORDS))))


_TRAINED = (
    *(
        *("last:1", "last:1", "last:1", "bias", "h", "last:2", "last:0", "last:-1", "last:99999", "last", "bias"),
        *("h", "h,h", "h,", ",", "net", "bias,h"),
    ),
    *("last:" + "9" * 5000, "y", "x", "last:1,bias"),
)


def learning(make: Maker) -> tuple[str, ...]:
    """Return a command that trains layers of a possibly damaged model, with random loss and optimizer."""
    random = make.random
    model = random.choice((classifier(), classifier(), _model(_PICTURE), make.damaged(classifier(random.randrange(5)))))
    given = ["compile", make.write(".onnx", model), "-q", "-b", random.choice(("host", "rp2040", "nrf52840"))]
    lessons = random.choice((_TRAINED, _TRAINED, _TRAINED, WORDS, DIGITS))
    given += ["-o", f"{make.name}.out", "--train", random.choice(lessons)]
    losses = ("cross-entropy", "mse", "mae", "huber")
    given += random.choice(((), ("--loss", random.choice((*losses * 4, *WORDS)))))
    given += random.choice(((), ("--optimizer", random.choice((*("sgd", "momentum", "adam") * 4, *WORDS)))))
    more = (("--cores", "2"), ("--cores", random.choice(DIGITS)), ("--steps",), ("--updatable",))
    given += random.choice((*((),) * 8, *more, ("--float16-weights",), ("--optimize", "flash")))
    return tuple(text.replace("\0", "") for text in given)


FILES: tuple[Callable[[Maker], tuple[str, ...]], ...] = (
    *(runs, reports, weights, pipeline, labels, board_tables, settings, learning),
)
WITHIN = (settings,)
"""Whose commands run in the folder that they made, which has the name of the input."""
