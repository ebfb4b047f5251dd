# SPDX-License-Identifier: Apache-2.0
"""Samples of calibration and evaluation: every kind of file, and what is said about wrong ones."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx_models import Net
from PIL import Image

from mcugen.core.errors import UsageError
from mcugen.evaluation.python_samples import sample_source
from mcugen.evaluation.samples import Samples, graph_endpoints, load_samples
from mcugen.frontend.onnx import import_model
from mcugen.hir.types import Array, DType
from mcugen.lir.formula import Atom, Polynomial
from mcugen.lir.program import Endpoint


def endpoints(*shape: int, **more: tuple[int, ...]) -> list[Endpoint]:
    """Of a model with input `x` of that shape, and others."""
    net = Net()
    for name, extent in {"x": shape, **more}.items():
        net.output(net.op("Relu", net.input(name, *extent)))
    return graph_endpoints(import_model(net.model(), "net"))


def loaded(samples: Samples, name: str = "x") -> Array:
    return np.stack([sample[name] for sample in samples.inputs])


IMAGE = endpoints(1, 3, 4, 6)
PIXELS = np.random.default_rng(0).integers(0, 256, (2, 4, 6, 3), dtype=np.uint8)
REALS = np.random.default_rng(1).standard_normal((2, 3, 4, 6)).astype(np.float32)
CHANNELS_FIRST = np.moveaxis(PIXELS, -1, 1)[:, None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of nothing."""
    path = tmp_path / "samples"
    path.mkdir()
    return path


@pytest.fixture
def pictures(folder: Path) -> Path:
    """Two; the second comes first in the folder's own order."""
    for index in (1, 0):
        Image.fromarray(PIXELS[index]).save(folder / f"{index}.png")
    return folder


def test_one_file_of_all_samples(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", REALS)
    np.savez(tmp_path / "x.npz", x=REALS, y=np.array([1, 0]))
    arrays, archive = (load_samples(tmp_path / name, IMAGE) for name in ("x.npy", "x.npz"))
    assert (loaded(arrays) == REALS[:, None]).all() and (loaded(archive) == REALS[:, None]).all()
    assert arrays.labels is None and archive.labels is not None and archive.labels.tolist() == [1, 0]


def test_the_only_array_may_have_no_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "one.npz", REALS)
    assert (loaded(load_samples(tmp_path / "one.npz", IMAGE)) == REALS[:, None]).all()
    np.savez(tmp_path / "two.npz", REALS, REALS)
    with pytest.raises(UsageError, match=r"found: 'arr_0' and 'arr_1'|found: 'arr_0', 'arr_1'"):
        load_samples(tmp_path / "two.npz", IMAGE)


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
def test_inputs_of_16_bits_take_bfloat16_and_refuse_infinities(dtype: DType) -> None:
    inputs = [replace(e, dtype=dtype) for e in endpoints(1, 6)]
    values = np.arange(6, dtype=np.float32)[None].astype(DType.BFLOAT16.numpy)
    (sample,) = load_samples(sample_source(values), inputs).inputs
    assert sample["x"].dtype == dtype.numpy and (sample["x"].astype(np.float32) == np.arange(6)).all()
    with pytest.raises(UsageError, match="must be finite"):
        load_samples({"x": np.full((1, 6), np.inf, np.float32)}, inputs)


def test_an_input_of_a_labels_name_is_no_label(tmp_path: Path) -> None:
    pairs = {"x": np.ones((3, 1, 6)), "y": np.arange(12.0).reshape(3, 1, 4)}
    np.savez(tmp_path / "pairs.npz", **pairs)  # type: ignore[arg-type]
    found = load_samples(tmp_path / "pairs.npz", endpoints(1, 6, y=(1, 4)))
    assert found.labels is None and (found.inputs[2]["y"] == pairs["y"][2]).all()
    np.savez(tmp_path / "pairs.npz", **pairs, labels=np.array([0, 1, 0]))  # type: ignore[arg-type]
    labels = load_samples(tmp_path / "pairs.npz", endpoints(1, 6, y=(1, 4))).labels
    assert labels is not None and labels.tolist() == [0, 1, 0]


@pytest.mark.parametrize("kind", ["npy", "npz"])
def test_a_folder_of_arrays(folder: Path, kind: str) -> None:
    for index, array in enumerate(REALS):
        if kind == "npy":
            np.save(folder / f"{index}.npy", array)
        else:
            np.savez(folder / f"{index}.npz", x=array[None], y=index)
    (folder / ".hidden").write_text("not a sample")
    assert (loaded(load_samples(folder, IMAGE)) == REALS[:, None]).all()


def test_several_inputs_have_an_archive_each_sample(folder: Path) -> None:
    np.savez(folder / "a.npz", x=np.ones(3), z=np.zeros(2))
    found = load_samples(folder, endpoints(1, 3, z=(2,)))
    assert loaded(found).tolist() == [[[1, 1, 1]]] and loaded(found, "z").tolist() == [[0, 0]]
    np.save(folder / "a.npy", np.ones(3))
    (folder / "a.npz").unlink()
    with pytest.raises(UsageError, match=r"several inputs must be in an \.npz file"):
        load_samples(folder, endpoints(1, 3, z=(2,)))


def test_pictures_are_raw_pixels_in_the_layout_of_the_input(pictures: Path) -> None:
    assert (loaded(load_samples(pictures, IMAGE)) == CHANNELS_FIRST).all()
    assert (loaded(load_samples(pictures, endpoints(1, 4, 6, 3))) == PIXELS[:, None]).all()
    scaled = loaded(load_samples(pictures, IMAGE, 1 / 255))
    np.testing.assert_allclose(scaled, CHANNELS_FIRST / 255, rtol=1e-6)


def test_pictures_give_the_same_as_an_archive_of_their_pixels(pictures: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x_uint8=np.moveaxis(PIXELS, -1, 1))
    line = "scale=1/255, mean=0.5;0.4;0.3, std=0.25;0.5;1"
    found, wanted = (loaded(load_samples(path, IMAGE, preprocess=line)) for path in (pictures, tmp_path / "x.npz"))
    assert (found == wanted).all()
    channel = [((PIXELS[..., c] / 255) - m) / s for c, (m, s) in enumerate([(0.5, 0.25), (0.4, 0.5), (0.3, 1)])]
    np.testing.assert_allclose(found[:, 0], np.stack(channel, 1), rtol=1e-5, atol=1e-6)


def test_pictures_become_gray_and_small(pictures: Path) -> None:
    found = loaded(load_samples(pictures, endpoints(1, 1, 2, 3), preprocess="resize=3x2,gray"))
    assert found.shape == (2, 1, 1, 2, 3)
    luma = PIXELS @ [0.299, 0.587, 0.114]
    np.testing.assert_allclose(found.mean((1, 2, 3, 4)), luma.mean((1, 2)), atol=12)
    Image.fromarray(PIXELS[0, ..., 0]).save(pictures / "0.png")
    assert (loaded(load_samples(pictures, IMAGE, preprocess="rgb"))[0, 0] == PIXELS[0, ..., 0]).all()


def test_channels_of_arrays(tmp_path: Path) -> None:
    """Those that have as many entries as there are means, or those that `layout` names."""
    square = endpoints(1, 3, 4, 3)
    np.savez(tmp_path / "x.npz", x=np.zeros((1, 3, 4, 3)))
    first, last = (
        loaded(load_samples(tmp_path / "x.npz", square, preprocess=f"mean=1;2;3, layout={layout}"))[0, 0]
        for layout in ("chw", "hwc")
    )
    assert first[:, 0, 0].tolist() == last[0, 0].tolist() == [-1, -2, -3]
    with pytest.raises(UsageError, match=r"mean must have a number for each channel.*layout=chw or layout=hwc"):
        load_samples(tmp_path / "x.npz", square, preprocess="mean=1;2;3")
    with pytest.raises(UsageError, match="std must have a number for each channel"):
        load_samples(tmp_path / "x.npz", square, preprocess="std=1;2")


ACCEPTED = [
    ((1, 1, 49, 10), (49, 10)),
    ((1, 1, 49, 10), (1, 49, 10)),
    ((1, 1, 49, 10), (1, 1, 49, 10)),
    ((1, 1, 49, 10), (49, 10, 1)),
    ((1, 1, 49, 10), (490,)),
    ((1, 3, 4, 6), (72,)),
    ((1, 40, 30, 1), (40, 30)),
    ((6,), (1, 6)),
    ((1,), ()),
]
"""Shapes of an input, and of samples that hold the same numbers in the same order."""


@pytest.mark.parametrize(("wanted", "given"), ACCEPTED)
def test_axes_of_one_may_be_missing_and_rows_may_be_flat(
    wanted: tuple[int, ...], given: tuple[int, ...], tmp_path: Path
) -> None:
    data = np.random.default_rng(2).standard_normal((2, *given)).astype(np.float32)
    np.save(tmp_path / "x.npy", data)
    found = load_samples(tmp_path / "x.npy", endpoints(*wanted))
    assert loaded(found).shape == (2, *wanted) and (loaded(found).ravel() == data.ravel()).all()
    assert not found.notes


TURNED = [
    ((1, 3, 4, 6), (4, 6, 3), (-1, 0)),
    ((1, 3, 8, 8), (8, 8, 3), (-1, 0)),
    ((1, 3, 8, 8), (1, 8, 8, 3), (-1, 0)),
    ((1, 8, 8, 3), (3, 8, 8), (0, -1)),
    ((1, 30, 1, 40), (40, 30, 1), (0, -1)),
]
"""Shapes of an image's input, and of samples with their channels at the other end: from where to where they go."""


@pytest.mark.parametrize(("wanted", "given", "moved"), TURNED)
def test_channels_at_the_other_end_are_turned_and_told(
    wanted: tuple[int, ...], given: tuple[int, ...], moved: tuple[int, int], tmp_path: Path
) -> None:
    data = np.random.default_rng(3).standard_normal((2, *given)).astype(np.float32)
    np.save(tmp_path / "x.npy", data)
    found = load_samples(tmp_path / "x.npy", endpoints(*wanted))
    for sample, image in zip(found.inputs, data, strict=True):
        np.testing.assert_array_equal(sample["x"][0], np.moveaxis(image.reshape(given[-3:]), *moved))
    (note,) = found.notes
    assert str(given) in note and str(wanted) in note and "channels" in note


REFUSED = [
    ((1, 1, 49, 10), (10, 49)),
    ((1, 1, 49, 10), (5, 98)),
    ((1, 1, 49, 10), (1, 10, 49)),
    ((1, 3, 8, 8), (8, 3, 8)),
    ((1, 3, 8, 8), (3, 64)),
    ((1, 3, 8, 12), (12, 3, 8)),
    ((1, 3, 4, 6), (3, 6, 4)),
    ((1, 6, 64), (64, 6)),
    ((1, 784), (28, 28)),
    ((1, 40, 30, 1), (30, 40)),
]
"""Shapes of an input, and of samples with as many elements in another order."""


@pytest.mark.parametrize(("wanted", "given"), REFUSED)
def test_other_shapes_are_refused_with_both(wanted: tuple[int, ...], given: tuple[int, ...], tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, *given)))
    with pytest.raises(UsageError, match="must have samples of the input's shape") as caught:
        load_samples(tmp_path / "x.npy", endpoints(*wanted))
    assert str(given) in caught.value.found and str(wanted) in caught.value.found


def test_a_layout_that_was_named_is_not_guessed(tmp_path: Path) -> None:
    """Of an input that may be an image either way."""
    np.save(tmp_path / "x.npy", np.zeros((1, 6, 7, 5)))
    assert load_samples(tmp_path / "x.npy", endpoints(1, 5, 6, 7), preprocess="layout=hwc").notes
    with pytest.raises(UsageError, match="the input's shape"):
        load_samples(tmp_path / "x.npy", endpoints(1, 5, 6, 7), preprocess="layout=chw")


def test_pictures_are_not_told(pictures: Path) -> None:
    assert load_samples(pictures, IMAGE).notes == ()


def sized(shape: tuple[int, ...], *axes: int) -> list[Endpoint]:
    """An input some of whose axes may be shorter."""
    (endpoint,) = endpoints(*shape)
    return [replace(endpoint, sizes={axis: Polynomial(((1, (Atom(f"n{axis}"),)),)) for axis in axes})]


@pytest.mark.parametrize(
    ("wanted", "axes", "given", "found"),
    [
        ((1, 9, 10), (1,), (7, 10), (1, 7, 10)),
        ((1, 9, 10), (1,), (1, 1, 7, 10), (1, 7, 10)),
        ((1, 9, 10, 1), (1,), (7, 10), (1, 7, 10, 1)),
        ((1, 9, 10), (1,), (10,), (1, 1, 10)),
        ((1, 3, 16, 16), (2, 3), (12, 10, 3), (1, 3, 12, 10)),
        ((1, 9, 10), (1,), (10, 7), None),
        ((1, 9, 10), (1,), (11, 10), None),
        ((1, 9, 10), (1,), (2, 7, 10), None),
        ((1, 9, 10), (1,), (90,), None),
    ],
)
def test_sizes_of_run_time(
    wanted: tuple[int, ...],
    axes: tuple[int, ...],
    given: tuple[int, ...],
    found: tuple[int, ...] | None,
    tmp_path: Path,
) -> None:
    np.save(tmp_path / "x.npy", np.zeros((1, *given)))
    if found is None:
        with pytest.raises(UsageError, match="at most"):
            load_samples(tmp_path / "x.npy", sized(wanted, *axes))
    else:
        assert load_samples(tmp_path / "x.npy", sized(wanted, *axes)).inputs[0]["x"].shape == found


def test_each_input_has_a_shape_of_its_own(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 8, 8, 3)), z=np.zeros((2, 5)))
    found = load_samples(tmp_path / "x.npz", endpoints(1, 3, 8, 8, z=(1, 5)))
    assert loaded(found).shape == (2, 1, 3, 8, 8) and len(found.notes) == 1 and "input 'x'" in found.notes[0]
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 3, 8, 8)), z=np.zeros((2, 6)))
    with pytest.raises(UsageError, match=r"'z'\[0\] must have samples of the input's shape"):
        load_samples(tmp_path / "x.npz", endpoints(1, 3, 8, 8, z=(1, 5)))


WRONG_ARRAYS: dict[str, tuple[dict[str, Array], str]] = {
    "NaN": ({"x": np.array([[0.0] * 6, [np.nan] * 6])}, r"'x'\[1\] must be finite"),
    "beyond float32": ({"x": np.full((1, 6), 1e300)}, r"'x'\[0\] must be finite"),
    "text": ({"x": np.full((1, 6), "1")}, "must be numeric"),
    "complex": ({"x": np.full((1, 6), 1j)}, "must be numeric"),
    "no such input": ({"image": np.zeros((1, 6))}, "there must be an array 'x'.*found: 'image'"),
    "few labels": ({"x": np.zeros((3, 6)), "y": np.arange(2)}, r"one class number a sample.*int64 of \(2,\) for 3"),
    "real labels": ({"x": np.zeros((3, 6)), "y": np.zeros(3)}, "one class number a sample.*float64"),
    "one-hot labels": ({"x": np.zeros((3, 6)), "y": np.eye(3, dtype=int)}, "one class number a sample"),
    "no axis of samples": ({"x": np.zeros(6)}, "the input's shape"),
}


@pytest.mark.parametrize("wrong", WRONG_ARRAYS)
def test_wrong_arrays_get_a_clear_message(wrong: str, tmp_path: Path) -> None:
    arrays, message = WRONG_ARRAYS[wrong]
    np.savez(tmp_path / "x.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(UsageError) as caught:
        load_samples(tmp_path / "x.npz", endpoints(1, 6))
    assert re.search(message, " ".join(str(caught.value).split()))


WRONG_LINES = {
    "size=3x3": "must hold known keys.*found: 'size=3x3'.*resize=96x96",
    "resize": "must hold known keys.*found: 'resize'",
    "gray=1": "must hold known keys.*found: 'gray=1'",
    "resize=96": "'resize' must be as in resize=96x96.*found: '96'",
    "resize=0x3": "'resize' must be",
    "resize=90000x90000": "'resize' must be",
    "scale=0": "'scale' must be as in scale=1/255",
    "scale=1/0": "'scale' must be",
    "scale=nan": "'scale' must be.*found: 'nan'",
    "scale=1e999": "'scale' must be",
    "scale=1/2/3": "'scale' must be",
    "mean=1;": "'mean' must be",
    "std=1;0": "'std' must be",
    "layout=nchw": "'layout' must be as in layout=chw",
    "scale=2, scale=3": "'scale' must be given once",
    "gray, rgb": "'rgb' must be given once",
}


@pytest.mark.parametrize("line", WRONG_LINES)
def test_a_wrong_line_is_refused_by_its_key(pictures: Path, line: str) -> None:
    with pytest.raises(UsageError, match=WRONG_LINES[line]):
        load_samples(pictures, IMAGE, preprocess=line)


def test_what_contradicts_is_refused(pictures: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="must be scaled once"):
        load_samples(pictures, IMAGE, 1 / 255, "scale=1/255")
    np.save(tmp_path / "x.npy", REALS)
    with pytest.raises(UsageError, match=r"resize must be for images.*arrays in .*x\.npy"):
        load_samples(tmp_path / "x.npy", IMAGE, preprocess="resize=4x4")


def png(width: int, height: int, depth: int = 8, data: bytes = b"") -> bytes:
    """A gray image whose header says what it likes."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def _write(name: str, data: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(data)


def _save(name: str, array: Array) -> Callable[[Path], object]:
    return lambda folder: np.save(folder / name, array)


def _both(folder: Path) -> None:
    _save("a.npy", REALS[0])(folder)
    _write("b.png", png(6, 4, data=bytes(28)))(folder)


FOLDERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda folder: None, "must hold .npy, .npz or .png files.*found: nothing"),
    "foreign file": (_write("notes.txt", b"hello"), "must hold .*found: 'notes.txt'"),
    "folder in it": (lambda folder: (folder / "inner").mkdir(), "must hold .*found: 'inner'"),
    "mixed": (_both, "all of one kind.*'a.npy' and 'b.png'"),
    "wrong size": (_save("a.npy", REALS), "must have samples of the input's shape"),
    "NaN": (_save("a.npy", np.full((3, 4, 6), np.nan)), "must be finite"),
    "text": (_save("a.npy", np.full((3, 4, 6), "1")), "must be numeric"),
    "objects": (lambda folder: np.save(folder / "a.npy", np.array([None])), "readable .npy file.*Object arrays"),
    "no .npy": (_write("a.npy", b"hello"), "must be in a readable .npy file"),
    "cut .npy": (_write("a.npy", b"\x93NUMPY\x01\x00"), "must be in a readable .npy file"),
    "no .npz": (_write("a.npz", b"hello"), r"must be in an? .*\.npz file"),
    "no .png": (_write("a.png", b"hello"), "must be a readable PNG file.*found: no PNG"),
    "empty .png": (_write("a.png", b""), "must be a readable PNG file"),
    "cut .png": (_write("a.png", png(6, 4, data=bytes(28))[:-30]), "must be a readable PNG file"),
    "too few pixels": (_write("a.png", png(6, 4, data=bytes(8))), "must be a readable PNG file"),
    "bomb": (_write("a.png", png(60000, 60000)), "must be a readable PNG file"),
    "large": (_write("a.png", png(5000, 5000)), "must be a readable PNG file.*found: 5000 x 5000 pixels"),
    "16 bits": (_write("a.png", png(6, 4, 16, bytes(52))), "must be a readable PNG file.*more than 8 bits"),
    "wrong image": (_write("a.png", png(6, 4, data=bytes(28))), "must have samples of the input's shape"),
}


@pytest.mark.parametrize("wrong", FOLDERS)
def test_a_wrong_folder_is_refused(folder: Path, wrong: str) -> None:
    make, message = FOLDERS[wrong]
    make(folder)
    with pytest.raises(UsageError, match=message) as caught:
        load_samples(folder, IMAGE)
    assert caught.value.found


def test_no_samples_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", REALS[:0])
    with pytest.raises(UsageError, match="must have a leading axis of samples"):
        load_samples(tmp_path / "x.npy", IMAGE)
    with pytest.raises(UsageError, match="No such file"):
        load_samples(tmp_path / "missing.npy", IMAGE)
