# SPDX-License-Identifier: Apache-2.0
"""`--self-test N`: samples that are chosen for what they find, and what is said of that."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from c_programs import build_and_run, check_compiles, write
from command_line import mcugen
from model_variants import PATH, floats, quantized, sized, stateful
from onnx_models import Net

from mcugen.api.compilation import Compilation
from mcugen.core.errors import UsageError
from mcugen.core.options import CompileOptions, Places
from mcugen.measurement.selftests import choose_samples
from mcugen.reporting.html import report_page
from mcugen.simulation.flips import SAME, Flips, run_flips

FORMS: dict[str, tuple[Callable[[], Net], str, CompileOptions]] = {
    "int8": (quantized, "host", CompileOptions()),
    "for a Cortex-M4": (quantized, "nrf52840", CompileOptions()),
    "floats, infinite ones among them": (floats, "host", CompileOptions()),
    "buffers of the caller's": (quantized, "host", CompileOptions(external_io=True)),
    "a state": (stateful, "host", CompileOptions(states={"after": f"{PATH}/state"})),
    "steps, checksums, guards": (quantized, "host", CompileOptions(steps=True, check_weights=True, checked_arena=True)),
    "an arena in two memories": (quantized, "stm32h753", CompileOptions(place=Places(arena=("dtcm", "axi_sram")))),
}


def made(form: str, samples: int) -> Compilation:
    make, board, options = FORMS[form]
    return Compilation(make().model(), board, replace(options, name="net", self_test=samples))


@pytest.mark.parametrize("form", FORMS)
def test_several_samples_pass_and_find_what_is_told(form: str, tmp_path: Path):
    compiled = made(form, 3).compiled
    figures = compiled.report.self_test
    assert figures is not None
    assert 1 <= figures.samples <= 3
    assert figures.found <= figures.significant <= figures.flips
    assert sum(layer.found for layer in figures.layers) == figures.found
    check_compiles(compiled.bundle, tmp_path, "clang")
    arena = "net_default_arenas()" if len(compiled.bundle.arena_sizes) > 1 else "net_default_arena()"
    main = (
        f'#include <stdio.h>\n#include "net.h"\nint main(void) {{ printf("%d", net_selftest({arena})); return 0; }}\n'
    )
    folder = write(compiled.bundle, tmp_path)
    sources = (*compiled.bundle.sources, "net_selftest.c")
    assert build_and_run(main, folder, *sources, flags=("-DMCUGEN_SECTION(name)=",)) == "0"


def test_chosen_samples_find_more_than_a_random_one():
    chosen = made("int8", 2).compiled
    alone = made("int8", 0).compiled
    places = [(number, at) for number, array in enumerate(alone.bundle.constants) for at in range(0, array.nbytes, 17)]
    flips = [Flips(((number, at, 32),)) for number, at in places]
    counts = [
        sum(ends != SAME * len(ends) for ends in run_flips(model.bundle, samples, flips))
        for model, samples in ((alone, 1), (chosen, 2))
    ]
    assert counts[0] < counts[1]


def test_the_best_sample_comes_first_then_what_it_does_not_find():
    found = np.array([[1, 0, 1], [1, 0, 1], [1, 1, 0], [0, 1, 0], [0, 0, 0]], bool)
    assert choose_samples(found, 3) == [0, 1]
    assert choose_samples(found, 1) == [0]
    assert choose_samples(found[4:], 3) == [0]


def test_samples_are_exchanged_for_those_that_find_more_together():
    """The first one finds most by itself, and not the most beside any other."""
    found = np.array([[1, 1, 0], [1, 1, 0], [1, 0, 1], [1, 0, 1], [0, 1, 0], [0, 1, 0], [0, 0, 1]], bool)
    assert choose_samples(found, 1) == [0]
    assert sorted(choose_samples(found, 2)) == [1, 2]


def test_header_report_and_page_tell_it(tmp_path: Path):
    onnx.save(quantized().model(), tmp_path / "net.onnx")
    np.savez(tmp_path / "data.npz", image=np.random.default_rng(3).normal(size=(4, 1, 3, 9, 9)).astype(np.float32))
    command = ("compile", tmp_path / "net.onnx", "-b", "host", "-o", tmp_path / "net", "--data", tmp_path / "data.npz")
    done = mcugen(*command, "--self-test", "2", "--json", tmp_path / "report.json")
    assert done.code == 0, done.err
    report = json.loads((tmp_path / "report.json").read_text())
    told = report["self_test"]
    header = (tmp_path / "net" / "net.h").read_text().replace("\n * ", " ")
    assert f"runs {told['samples']} samples, which find" in header
    assert f"({told['found']} of {told['significant']}, of {told['flips']} tried)" in header
    by_layer = re.findall(r"(\d+) of (\d+) \((\d+)\)", header)
    assert [(int(found), int(all_)) for found, all_, _ in by_layer] == [
        (layer["found"], layer["significant"]) for layer in told["layers"]
    ]
    names = [layer["name"] for layer in report["layers"]]
    assert [names[int(number)] for *_, number in by_layer] == [layer["layer"] for layer in told["layers"]]
    page = report_page(made("int8", 2).compiled.report)
    assert "<h2>Self-test</h2>" in page


REFUSED = {
    "a file of weights": (quantized, CompileOptions(updatable=True)),
    "--stream-input": (quantized, CompileOptions(stream_input=True, optimize="ram")),
    "a range of sizes": (
        sized,
        CompileOptions(dims={"a_dimension_with_a_name_that_explains_everything": (1, 9)}),
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_code_whose_constants_cannot_be_flipped_is_refused(reason: str):
    make, options = REFUSED[reason]
    with pytest.raises(UsageError, match=reason):
        _ = Compilation(make().model(), "host", replace(options, self_test=2)).compiled


@pytest.mark.slow
@pytest.mark.shared
def test_two_samples_find_nine_tenths_in_a_keyword_model():
    """Where one random sample finds a tenth."""
    from shared_models import MODELS

    path = MODELS / "ds_cnn_kws_int8_qdq.onnx"
    figures = Compilation(path, "nrf52840", CompileOptions(self_test=2)).compiled.report.self_test
    assert figures is not None
    assert figures.found >= 0.9 * figures.significant >= 0.5 * figures.flips


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("name", ["resnet8_cifar10", "autoencoder_ad"])
def test_two_samples_find_nine_tenths_in_images_and_in_sounds(name: str):
    """Which one sample does not."""
    from shared_models import MODELS

    path = MODELS / f"{name}_int8_qdq.onnx"
    figures = Compilation(path, "nrf52840", CompileOptions(self_test=2)).compiled.report.self_test
    assert figures is not None
    assert figures.found >= 0.9 * figures.significant >= 0.5 * figures.flips


BITS = (12, 16, 20, 24)
"""Of a bias of 32 bits."""
SIGN = 31
"""Of a negative bias the high bits are set: without one of them it is less, which a Relu does not show where it gives 0
anyhow; without the sign it is much more."""


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "bits", "count"),
    [
        ("ds_cnn_kws_int8_qdq", BITS, 332),
        ("autoencoder_ad_int8_qdq", (*BITS, SIGN), 1672),
        ("resnet8_cifar10_int8_qdq", (*BITS, SIGN), 218),
    ],
)
def test_two_samples_see_each_channel(name: str, bits: tuple[int, ...], count: int):
    """A large change of any channel's bias is found."""
    from shared_models import MODELS

    compiled = Compilation(MODELS / f"{name}.onnx", "host", CompileOptions(self_test=2)).compiled
    assert compiled.report.self_test is not None
    samples, constants = compiled.report.self_test.samples, compiled.bundle.constants
    channels = [
        (array, channel)
        for array, constant in enumerate(constants)
        if constant.name.endswith("_bias")
        for channel in range(constant.nbytes // 4)
    ]
    flips = [Flips(((array, 4 * channel + bit // 8, 1 << bit % 8),)) for array, channel in channels for bit in bits]
    found = [ends != SAME * samples for ends in run_flips(compiled.bundle, samples, flips)]
    seen = [any(found[at : at + len(bits)]) for at in range(0, len(found), len(bits))]
    assert len(seen) == count
    assert all(seen)
