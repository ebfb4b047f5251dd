# SPDX-License-Identifier: Apache-2.0
"""Folders and zip files of images, sounds and arrays become one file of samples with labels."""

from __future__ import annotations

import wave
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mcugen.core.errors import UsageError
from mcugen.evaluation.array_files import read_npz
from mcugen.evaluation.sample_import import ImportedSamples, import_samples


def write_image(path: Path, value: int, size: tuple[int, int] = (6, 4), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode == "L" else (value, 0, 0)).save(path)


def write_sound(path: Path, samples: list[int], channels: int = 1, width: int = 2) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as sound:
        sound.setparams((channels, width, 16_000, 0, "NONE", ""))
        sound.writeframes(np.array(samples, f"<i{width}").tobytes())


def imported(folder: Path, shape: tuple[int, ...] = ()) -> tuple[ImportedSamples, dict[str, np.ndarray]]:
    result = import_samples(folder, folder.with_suffix(".npz"), shape)
    assert not folder.exists()
    return result, dict(read_npz(result.file))


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((), (2, 4, 6, 3)),
        ((1, 4, 6, 3), (2, 4, 6, 3)),
        ((1, 3, 4, 6), (2, 4, 6, 3)),
        ((1, 4, 6, 1), (2, 4, 6, 1)),
        ((1, 1, 8, 9), (2, 8, 9, 1)),
        ((1, 24), (2, 4, 6, 1)),
    ],
)
def test_images_by_folder(tmp_path: Path, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    for name, value in (("cat", 10), ("dog", 20)):
        write_image(tmp_path / "s" / name / "0.png", value)
    result, arrays = imported(tmp_path / "s", shape)
    assert arrays["x_uint8"].shape == expected and arrays["x_uint8"].dtype == np.uint8
    assert arrays["labels"].tolist() == [0, 1] and list(result.classes) == ["cat", "dog"]
    assert any("resized" in note for note in result.notes) == (expected[1:3] != (4, 6))


def test_images_of_several_sizes_are_resized_and_told(tmp_path: Path) -> None:
    write_image(tmp_path / "s" / "a.png", 1)
    write_image(tmp_path / "s" / "b.jpg", 1, (3, 3))
    result, arrays = imported(tmp_path / "s", (1, 3, 2, 2))
    assert arrays["x_uint8"].shape == (2, 2, 2, 3)
    assert "labels" not in arrays
    assert any("resized from" in note for note in result.notes)


def test_labels_of_a_table_come_first(tmp_path: Path) -> None:
    for name in "abc":
        write_image(tmp_path / "s" / "one" / f"{name}.png", 1)
    (tmp_path / "s" / "labels.csv").write_text("\ufefffile,label\na.png,7\nb.png,5\nc.png,7\n")
    _, arrays = imported(tmp_path / "s")
    assert arrays["labels"].tolist() == [7, 5, 7]


def test_a_sample_without_a_row_is_named(tmp_path: Path) -> None:
    write_image(tmp_path / "s" / "a.png", 1)
    write_image(tmp_path / "s" / "b.png", 1)
    (tmp_path / "s" / "labels.csv").write_text("a.png,1\n")
    with pytest.raises(UsageError, match=r"labels.csv: each sample must have a label. found: none of 'b.png'"):
        import_samples(tmp_path / "s", tmp_path / "s.npz", ())


def test_sounds_become_reals_for_a_model_of_sound_and_integers_for_a_pipeline(tmp_path: Path) -> None:
    for shape, dtype in (((1, 4), np.float32), ((1, 49, 10), np.int16)):
        folder = tmp_path / "s"
        write_sound(folder / "no" / "0.wav", [0, 16_384, -32_768, 32_767])
        write_sound(folder / "yes" / "1.wav", [1, 9, 2, 9, 3, 9, 4, 9], channels=2)
        write_sound(folder / "yes" / "2.wav", [1, 2])
        _, arrays = imported(folder, shape)
        scale = 32_768 if dtype is np.float32 else 1
        assert arrays["x"].dtype == dtype
        expected = np.array([[0, 16_384, -32_768, 32_767], [1, 2, 3, 4], [1, 2, 0, 0]]) / scale
        np.testing.assert_array_equal(arrays["x"], expected)
        assert arrays["labels"].tolist() == [0, 1, 1]


def test_a_zip_file_is_unpacked_below_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    folder.mkdir()
    np.save(tmp_path / "a.npy", np.arange(3, dtype=np.float32))
    with zipfile.ZipFile(folder / "s.zip", "w") as archive:
        for name in ("../../evil/0.npy", "/abs/1.npy", "b/2.npy", "__MACOSX/b/3.npy", "b/.4.npy"):
            archive.write(tmp_path / "a.npy", name)
        archive.writestr("b/", "")
    _, arrays = imported(folder)
    assert arrays["x"].shape == (3, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npy", "s.npz"]


@pytest.mark.parametrize("name", ["a.png", "a.wav", "a.npy", "a.zip", "labels.csv"])
def test_a_damaged_file_is_named_or_explained(tmp_path: Path, name: str) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / name).write_bytes(b"\x00damaged")
    with pytest.raises(UsageError, match=r"found: "):
        import_samples(tmp_path / "s", tmp_path / "s.npz", ())


def test_files_of_two_kinds_are_refused(tmp_path: Path) -> None:
    write_image(tmp_path / "s" / "a.png", 1)
    write_sound(tmp_path / "s" / "b.wav", [1])
    with pytest.raises(UsageError, match=r"all of one kind. found: 'a.png' and 'b.wav'"):
        import_samples(tmp_path / "s", tmp_path / "s.npz", ())


def test_a_sound_of_other_samples_is_refused(tmp_path: Path) -> None:
    write_sound(tmp_path / "s" / "a.wav", [1, 2], width=4)
    with pytest.raises(UsageError, match=r"a.wav: must have samples of 16 bits. found: 32 bits"):
        import_samples(tmp_path / "s", tmp_path / "s.npz", ())
