# SPDX-License-Identifier: Apache-2.0
"""Which samples tell what quantization costs, and when the user is warned: by outputs that are given."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mcugen.evaluation.accuracy import QuantizationEstimate
from mcugen.evaluation.metrics import Judged
from mcugen.hir.types import Array
from mcugen.quantization import estimate

Outputs = list[dict[str, Array]]


@dataclass(frozen=True)
class Fake:
    """A quantization whose model has so many multiplications."""

    model: Any
    notes: tuple[str, ...] = ("first",)
    estimate: QuantizationEstimate | None = None


def quantization(macs: int = 10, *, is_stream: bool = False) -> Any:
    nodes = [SimpleNamespace(op=SimpleNamespace(macs=lambda sig: sig), sig=n) for n in (macs - macs // 4, macs // 4)]
    states = {"h_out": "h"} if is_stream else {}
    return Fake(SimpleNamespace(graph=SimpleNamespace(nodes=nodes), states=states))


@dataclass
class Runs:
    """What is asked of the models."""

    samples: Sequence[Mapping[str, Array]] = ()
    explained: list[int] = field(default_factory=list)


def estimated(
    monkeypatch: pytest.MonkeyPatch, found: Outputs, real: Outputs, note: str = "", count: int = 4, **options: Any
) -> tuple[Any, Runs]:
    runs = Runs()

    def output_pairs(quantized: object, samples: Sequence[Mapping[str, Array]]) -> tuple[Judged, str]:
        runs.samples = samples
        return Judged(found, real), note

    def warning(quantized: object, told: QuantizationEstimate, samples: Sequence[Mapping[str, Array]]) -> str:
        runs.explained = [int(s["i"]) for s in samples]
        return "warned"

    monkeypatch.setattr(estimate, "_output_pairs", output_pairs)
    monkeypatch.setattr(estimate, "_warning", warning)
    monkeypatch.setattr(estimate, "add_stream_states", lambda model, samples: samples)
    samples = [{"i": np.asarray(i)} for i in range(count)]
    return estimate.estimate_loss(quantization(**options), samples, "held out"), runs


def scores(*rows: Sequence[float]) -> Outputs:
    return [{"y": np.asarray([row], np.float64)} for row in rows]


def noisy(decibels: float, agreeing: int, count: int) -> tuple[Outputs, Outputs]:
    """Outputs of two classes with an SQNR, of which so many name the same class."""
    real = scores(*([[100.0, 99.0]] * count))
    signal, swapped = count * (100.0**2 + 99.0**2), count - agreeing
    noise = signal / 10 ** (decibels / 10)
    rest = math.sqrt((noise - 2 * swapped) / agreeing) if agreeing else 0.0
    return scores(*([[99.0, 100.0]] * swapped), *([[100.0 + rest, 99.0]] * agreeing)), real


@pytest.mark.parametrize(
    ("decibels", "agreeing", "is_warned"),
    [(19.9, 20, True), (20.1, 20, False), (30.0, 18, False), (30.0, 17, True), (30.0, 20, False)],
)
def test_warnings_begin_at_20_db_and_nine_of_ten_classes(
    decibels: float, agreeing: int, is_warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, runs = estimated(monkeypatch, *noisy(decibels, agreeing, 20), count=20)
    assert found.estimate == QuantizationEstimate(20, "held out", agreeing / 20, pytest.approx(decibels, abs=0.051))
    assert found.notes == (("first", "warned") if is_warned else ("first",))
    assert runs.explained == ([0, 1] if is_warned else [])


def test_figures_are_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = estimated(monkeypatch, *noisy(31.234, 2, 3), note="by another program", count=3)
    assert (found.estimate.agreement, found.estimate.sqnr_db) == (0.6667, 31.2)
    assert found.notes == ("first", "by another program", "warned")


def test_equal_outputs_have_no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    same = scores([1.0, 2.0], [3.0, 1.0])
    found, _ = estimated(monkeypatch, same, same, count=2)
    assert found.estimate == QuantizationEstimate(2, "held out", 1.0, None) and found.notes == ("first",)


def test_what_names_no_class_has_no_agreement(monkeypatch: pytest.MonkeyPatch) -> None:
    maps = [{"y": np.ones((1, 2, 2))}]
    found, _ = estimated(monkeypatch, [{"y": np.full((1, 2, 2), 1.01)}], maps, count=1)
    assert found.estimate == QuantizationEstimate(1, "held out", None, 40.0)


@pytest.mark.parametrize(
    ("found", "real"), [([{}], [{}]), (scores([1.0, 2.0]), scores([0.0, 0.0])), (scores([math.nan, 1]), scores([2, 1]))]
)
def test_without_figures_nothing_is_estimated(found: Outputs, real: Outputs, monkeypatch: pytest.MonkeyPatch) -> None:
    result, _ = estimated(monkeypatch, found, real, count=1)
    assert result == Fake(result.model)


@pytest.mark.parametrize(
    ("count", "macs", "judged"),
    [
        (100, 10, 64),
        (50, 10, 50),
        (100, 10**8, 20),
        (100, 10**9, 4),
        (100, 10**12, 4),
        (3, 10**12, 3),
        (100, 0, 64),
        (65, 31250000, 64),
        (65, 32000000, 62),
    ],
)
@pytest.mark.parametrize("is_stream", [False, True])
def test_as_many_samples_are_judged_as_cost_little(
    count: int, macs: int, judged: int, is_stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, runs = estimated(monkeypatch, *noisy(40.0, judged, judged), count=count, macs=macs, is_stream=is_stream)
    places = [int(s["i"]) for s in runs.samples]
    assert places == (list(range(judged)) if is_stream else [i * count // judged for i in range(judged)])
    assert result.estimate.samples == judged


def test_the_sqnr_of_outputs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for pairs, wanted in ((noisy(25.0, 4, 4), 25.0), (([{}], [{}]), math.inf)):
        monkeypatch.setattr(estimate, "_output_pairs", lambda *_, pairs=pairs: (Judged(*pairs), ""))
        assert estimate.output_sqnr_db(quantization(), []) == pytest.approx(wanted)
