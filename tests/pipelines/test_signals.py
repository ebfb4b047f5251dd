# SPDX-License-Identifier: Apache-2.0
"""Pipelines of sound and vibration: C against numpy to the bit, and numpy against floats by other means."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import scipy.fft
import scipy.signal
import scipy.stats
from folder_programs import build_and_run
from narrow_int import overflows
from pipeline_models import assert_same_bits, fed, feed_of
from test_portability import AVR_GCC, WARNINGS

from mcugen.core.errors import UsageError
from mcugen.hir.types import Array
from mcugen.pipelines import parse_pipeline
from mcugen.pipelines.spectrum import (
    BANDS,
    LOG_TABLE,
    LOGARITHMS,
    WINDOWS,
    base2_logarithms,
    half_window_function,
    integer_square_roots,
    power_spectra,
)
from mcugen.pipelines.statistics import STATISTICS
from mcugen.pipelines.stream import StreamStages


def stages(text: str) -> StreamStages:
    made = parse_pipeline(text)
    assert isinstance(made, StreamStages)
    return made


def sounds(count: int, axes: int = 1) -> list[Array]:
    """Noise, silence, the extremes, a tone at full scale and at the last bit, one click."""
    random, t = np.random.default_rng(0), np.arange(count)
    made = [
        random.integers(-32768, 32768, (count, axes)),
        random.normal(0, 200, (count, axes)),
        np.zeros((count, axes)),
        np.full((count, axes), -32768),
        np.full((count, axes), 32767),
        np.where(t[:, None] % 2 == 0, 32767, -32768) * np.ones((1, axes)),
        32767 * np.sin(0.1 * t)[:, None] * np.ones((1, axes)),
        np.sin(0.1 * t)[:, None] * np.ones((1, axes)),
        (t[:, None] == 17) * np.ones((1, axes)),
    ]
    return [np.rint(raw).astype(np.int16) for raw in made]


SPECTRA = [
    "sound=16000, frame=30/20, window=hann, fft=32, mel=6:20:8000, dct=4, stack=5/2, mean=-3;1;0;2, std=2",
    "sound=8000, frame=16/16, window=rectangle, fft=128, slaney=9:0:4000, log=db, floor=1e-4, stack=3",
    "sound=16000, frame=65/31, window=hamming, bins=7:100:7000, spectrum=magnitude, log=log10, stack=4, features-first",
    "sound=400, frame=4/7, bins=2:0:200, log=log2, scale=0.1, stack=6/6",
    "vibration=1000x3, frame=33/11, mel=5:10:500, stats=rms;kurtosis, stack=2",
]


@pytest.mark.parametrize("text", SPECTRA)
@pytest.mark.parametrize("coded", [False, True])
def test_spectra_are_the_same_in_c_and_numpy(text: str, coded: bool):
    stage = stages(text)
    assert_same_bits(fed(text, stage.frames, stage.features, coded=coded), sounds(200, stage.axes))


@pytest.mark.parametrize("names", [tuple(STATISTICS), *((name,) for name in STATISTICS)])
def test_statistics_are_the_same_in_c_and_numpy(names: tuple[str, ...]):
    text = f"vibration=3200x2, frame=50/60, stats={';'.join(names)}, stack=3"
    assert_same_bits(fed(text, 3, 2 * len(names)), sounds(173, 2))


def test_a_frame_of_the_largest_size_overflows_nothing():
    text = f"vibration=3200, frame=8192/8192, stats={';'.join(STATISTICS)}, bins=3:0:1600"
    assert_same_bits(fed(text, 1, 11), sounds(8192))


# ----------------------------------------------------------------------------------------------- how good it is


def speech_like(seconds: float = 1.0) -> Array:
    """A gliding voice with pauses and noise, at 16 kHz."""
    random, t = np.random.default_rng(3), np.arange(int(16000 * seconds)) / 16000
    voice = sum(np.sin(2 * np.pi * k * (110 * t + 30 * t * t)) / k for k in range(1, 20))
    envelope = np.clip(np.sin(2 * np.pi * 2.3 * t), 0, None) ** 2
    return np.rint(3000 * voice * envelope + random.normal(0, 5, len(t))).astype(np.int16)


def mel_filters(bands: int, low: float, high: float, fft: int, rate: int) -> Array:
    """Triangles on HTK's mel scale, by interpolation between their corners."""
    mel = np.linspace(*(1127 * np.log1p(np.array([low, high]) / 700)), bands + 2)
    hertz = 700 * np.expm1(mel / 1127)
    frequencies = np.arange(fft // 2 + 1) * rate / fft
    return np.array([np.interp(frequencies, hertz[i : i + 3], [0, 1, 0], 0, 0) for i in range(bands)])


def log_mel(samples: Array, floor: float = 1e-10) -> Array:
    """[frames, 40] in float64."""
    frames = np.lib.stride_tricks.sliding_window_view(samples / 32768, 640)[::320]
    spectrum = scipy.fft.rfft(frames * scipy.signal.get_window("hann", 640), 1024)
    return np.log(np.maximum(np.abs(spectrum) ** 2 @ mel_filters(40, 20, 4000, 1024, 16000).T, floor))


LOG_MEL = "sound=16000, frame=640/320, window=hann, fft=1024, mel=40:20:4000, log=ln, stack=49"


@pytest.mark.parametrize("amplitude", ["speech", 32767, 1000, 10, 1])
def test_log_mel_is_within_two_hundredths_of_floats(amplitude: str | int):
    """Also 150 dB below a tone of full scale; where no band is that far down, within 2e-4."""
    tone = np.sin(2 * np.pi * 440 * np.arange(16000) / 16000)
    samples = speech_like() if isinstance(amplitude, str) else np.rint(amplitude * tone).astype(np.int16)
    found, expected = stages(LOG_MEL).reals("raw", samples, (49, 40)), log_mel(samples)
    assert np.abs(found - expected).max() < 0.02
    if amplitude in ("speech", 10, 1):
        assert np.abs(found - expected).max() < 2e-4


def test_cepstra_are_those_of_scipy():
    found = stages(f"{LOG_MEL}, dct=10").reals("raw", speech_like(), (49, 10))
    expected = scipy.fft.dct(log_mel(speech_like()), norm="ortho", axis=-1)[:, :10]
    assert np.abs(found - expected).max() < 5e-4


def test_silence_is_the_floor():
    found = stages(f"{LOG_MEL}, floor=1e-6").reals("raw", np.zeros(16000, np.int16), (49, 40))
    np.testing.assert_allclose(found, np.log(1e-6), rtol=1e-6)


def test_a_spectrum_has_140_db():
    """Bins of a fixed transform against one of floats: signal to error of a tone at full scale."""
    samples = np.rint(32767 * np.sin(0.3 * np.arange(1024))).astype(np.int16)[None]
    squares, shift = power_spectra(samples, half_window_function("hann", 1024), 1024)
    magnitudes = np.sqrt(squares.astype(float)) * 512 / 2 ** (29.0 + shift)
    expected = np.abs(np.fft.rfft(samples / 32768 * scipy.signal.get_window("hann", 1024)))
    error = magnitudes - expected
    assert 10 * np.log10((expected**2).sum() / (error**2).sum()) > 140
    assert 20 * np.log10(expected.max() / np.abs(error).max()) > 145


@pytest.mark.parametrize("kind", BANDS)
def test_bands_are_those_of_their_definitions(kind: str):
    stage = stages(f"sound=16000, frame=512/512, {kind}=20:100:7000")
    real = stage.filters.real
    stored = stage.filters.weights * 2.0 ** (stage.filters.offsets[:, None] / 65536)
    np.testing.assert_allclose(stored, real, atol=2e-5 * real.max())
    if kind == "mel":
        np.testing.assert_allclose(real, mel_filters(20, 100, 7000, 512, 16000), atol=1e-3)
    if kind == "slaney":  # triangles of area 1 in Hz, up to how they fall on bins
        np.testing.assert_allclose(real[5:].sum(axis=1) * 16000 / 512, 1, atol=0.1)
    if kind == "bins":
        np.testing.assert_allclose(real.sum(axis=1), 1)


def test_logarithms_and_roots():
    values = np.array([1, 2, 3, 2**32 - 1, 2**32, 2**61, 2**64 - 1, 12345678901234567], np.uint64)
    found = base2_logarithms(np.zeros_like(values), values, -1) / 65536
    np.testing.assert_allclose(found, np.log2(values.astype(float)), atol=1e-4)
    np.testing.assert_allclose(base2_logarithms(values, np.zeros_like(values), -1) / 65536, found + 32, atol=1e-4)
    assert base2_logarithms(np.zeros(1, np.uint64), np.zeros(1, np.uint64), -7) == [-7]
    squares = np.array([0, 1, 3, 4, (2**31 - 1) ** 2, (2**31 - 1) ** 2 - 1, 2**61], np.uint64)
    assert integer_square_roots(squares).tolist() == [0, 1, 1, 2, 2**31 - 1, 2**31 - 2, 1518500249]
    assert LOG_TABLE[-1] == 65536


def test_units_of_logarithms():
    samples = speech_like()
    natural = stages(LOG_MEL).reals("raw", samples, (49, 40))
    for name, factor in {"log2": 1 / np.log(2), "log10": 1 / np.log(10), "db": 10 / np.log(10)}.items():
        found = stages(LOG_MEL.replace("log=ln", f"log={name}")).reals("raw", samples, (49, 40))
        np.testing.assert_allclose(found, natural * factor, rtol=1e-5, atol=1e-5)
    assert set(LOGARITHMS) == {"ln", "log2", "log10", "db"}
    assert set(WINDOWS) == {"hann", "hamming", "rectangle"}


def test_statistics_are_those_of_scipy():
    random = np.random.default_rng(4)
    x = np.rint(random.gamma(2, 900, 2000) - 500).astype(np.int16)
    text = f"vibration=3200, frame=2000/2000, stats={';'.join(STATISTICS)}"
    found = stages(text).reals("raw", x, (8,))
    real = x / 32768
    rms, peak = np.sqrt((real**2).mean()), np.abs(real).max()
    expected = [real.mean(), rms, real.std(), peak, np.ptp(real), peak / rms]
    np.testing.assert_allclose(found[:6], expected, rtol=1e-4)
    np.testing.assert_allclose(found[6:], [scipy.stats.skew(x), scipy.stats.kurtosis(x, fisher=False)], rtol=5e-3)


# ------------------------------------------------------------------------------------------------------- streams

PROGRAM = """
    #include <stdio.h>
    #include "net_input.h"

    int main(void)
    {
        static net_input_state state;
        static int16_t samples[200];
        static float x[NET_INPUT_COUNT];
        int32_t i, at, taken, piece;
        for (i = 0; i < 200; ++i) {
            samples[i] = (int16_t)(100 * i);
        }
        printf("%d %d\\n", (int)sizeof state, (int)NET_INPUT_STATE_BYTES);
        for (piece = 1; piece < 200; piece += 66) {
            net_reset_input(&state);
            for (at = 0; at < 200; at += taken) {
                taken = net_put_samples(&state, samples + at, at + piece > 200 ? 200 - at : piece);
                if (net_get_window(&state, x)) {
                    printf("%d:%d,%d,%d ", (int)(at + taken), (int)(x[0] * 32768.0f / 100.0f),
                        (int)(x[1] * 32768.0f / 100.0f), (int)(x[2] * 32768.0f / 100.0f));
                }
            }
            printf("%d\\n", net_get_window(&state, x));
        }
        return 0;
    }
    """


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        # the peak of each frame is its last sample: 9, 14, 19, and windows begin three frames apart, or one
        ("frame=10/5, stack=3", [(i, i - 11, i - 6, i - 1) for i in range(20, 201, 15)]),
        ("frame=10/5, stack=3/1", [(i, i - 11, i - 6, i - 1) for i in range(20, 201, 5)]),
        ("frame=10/25, stack=3/2", [(i, i - 51, i - 26, i - 1) for i in range(60, 201, 50)]),
    ],
)
def test_windows_come_when_they_are_complete(frames: str, expected: list[tuple[int, ...]], tmp_path: Path):
    """However the samples are cut into pieces; the state is as large as the header says."""
    model = fed(f"vibration=100, {frames}, stats=peak", 3, 1)
    size, *lines = build_and_run(PROGRAM, model.write(tmp_path / "net")).splitlines()
    assert len(set(size.split())) == 1
    told = " ".join(f"{at}:{a},{b},{c}" for at, a, b, c in expected)
    assert lines == [f"{told} 0"] * 4


def test_the_last_window_is_a_samples_input():
    stage = stages("vibration=100, frame=10/10, stats=peak, stack=2")
    samples = np.arange(59, dtype=np.int16)
    np.testing.assert_array_equal(stage.reals("raw", samples, (2,)) * 32768, [29, 39])
    with pytest.raises(UsageError, match="raw samples of a window at least"):
        stage.reals("raw", samples[:19], (2,))


def test_features_first():
    stage = stages("vibration=100, frame=10/10, stats=peak;range, stack=2")
    samples = np.arange(20, dtype=np.int16)
    turned = stages("vibration=100, frame=10/10, stats=peak;range, stack=2, features-first")
    np.testing.assert_array_equal(turned.reals("raw", samples, (2, 2)), stage.reals("raw", samples, (2, 2)).T)


@pytest.mark.skipif(shutil.which("avr-gcc") is None, reason="needs avr-gcc")
@pytest.mark.parametrize("text", [SPECTRA[0], SPECTRA[2], f"vibration=99, frame=9/9, stats={';'.join(STATISTICS)}"])
def test_an_int_of_16_bits_is_enough(text: str, tmp_path: Path):
    stage = stages(text)
    folder = fed(text, stage.frames, stage.features, coded=True).write(tmp_path / "net")
    command = [*AVR_GCC, *WARNINGS, "-fdump-tree-gimple-lineno=dump", "-c", "net_input.c"]
    subprocess.run(command, cwd=folder, check=True)
    lines = (folder / "net_input.c").read_text().splitlines()
    assert [lines[o.line - 1] for o in overflows(folder / "dump") if o.file == "net_input.c"] == []


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("sound=16000, mel=40:20:4000", "must be cut into frames"),
        ("sound=16000, frame=640/320", "must become features"),
        ("sound=16000, frame=640/320, stats=rms, dct=3", "dct must be of bands"),
        ("sound=16000, frame=640/320, mel=40:20:9000", "half of the rate"),
        ("sound=16000, frame=640/320, mel=40:20:4000, fft=512", "power of two"),
        ("sound=16000, frame=640/320, mel=40:20:4000, fft=1000", "power of two"),
        ("sound=16000, frame=640/320, mel=40:20:4000, dct=41", "must not exceed"),
        ("sound=16000, frame=640/320, mel=40:20:4000, mean=1;2", "one a feature"),
        ("sound=16000x2, frame=640/320, mel=40:20:4000", "'16000x2'"),
        ("sound=16000, frame=9000/320, stats=rms", "'9000/320'"),
        ("sound=16000, frame=640/320, stats=rms;rms", "'rms;rms'"),
        ("sound=16000, frame=640/320, mel=0:20:4000", "'0:20:4000'"),
        ("sound=16000, frame=640/320, mel=40:20:4000, floor=0", "'0'"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, rule: str):
    with pytest.raises(UsageError) as error:
        parse_pipeline(text)
    assert rule in str(error.value)


def test_windows_of_another_size_than_the_input_are_refused():
    with pytest.raises(UsageError, match="as many numbers"):
        fed("vibration=100, frame=10/10, stats=peak", 2)
    assert feed_of(fed("vibration=100, frame=10/10, stats=peak", 1)).state_bytes == 40
