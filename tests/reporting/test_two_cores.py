# SPDX-License-Identifier: Apache-2.0
"""What two cores do when, and what keeps them from being twice as fast."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from shared_models import MODELS

from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.reporting.figures import Stall
from mcugen.reporting.layer_charts import charts_of
from mcugen.reporting.text import totals
from mcugen.reporting.two_cores import LayerSpan, Memories, SecondCoreMeasurements, two_cores
from mcugen.search.core_partition import BARRIER_INSTRUCTIONS


@dataclass(frozen=True)
class Done:
    """A layer that ran."""

    core: int | None
    instructions: int | None
    cycles_estimate: int | None = None
    stalls: tuple[Stall, ...] = ()


LAYERS = [Done(None, 1000), Done(0, 5000), Done(1, 4000), Done(None, 500), Done(0, 2000), Done(1, 3000)]


def test_a_timeline_of_both_cores():
    found = two_cores(LAYERS)
    assert found is not None
    assert found.spans == [
        LayerSpan(0, 0, 0, 1000),
        LayerSpan(1, 0, 1000, 6000),
        LayerSpan(2, 1, 1000, 5000),
        LayerSpan(3, 0, 6000 + BARRIER_INSTRUCTIONS, 6500 + BARRIER_INSTRUCTIONS),
        LayerSpan(4, 0, 6500 + BARRIER_INSTRUCTIONS, 8500 + BARRIER_INSTRUCTIONS),
        LayerSpan(5, 1, 6500 + BARRIER_INSTRUCTIONS, 9500 + BARRIER_INSTRUCTIONS),
    ]
    assert (found.total, found.alone, found.unit) == (9500 + 2 * BARRIER_INSTRUCTIONS, 15500, "instructions")
    assert found.slowest == [0, 3]
    assert found.waiting[0] == pytest.approx(1000 / found.total)
    assert found.waiting[1] == pytest.approx(2500 / found.total)


def test_what_is_lost_is_what_twice_the_speed_would_save():
    found = two_cores(LAYERS)
    assert found is not None
    lost = (found.whole + found.uneven + found.barriers) * found.total
    assert lost == pytest.approx(found.total - found.alone / 2)
    assert found.limits.startswith("of the time lost to uneven portions")


def test_cycles_count_where_they_are_known():
    found = two_cores([replace(layer, cycles_estimate=2 * (layer.instructions or 0)) for layer in LAYERS])
    assert found is not None
    assert (found.unit, found.total) == ("cycles", 2 * (9500 + 2 * BARRIER_INSTRUCTIONS))


def test_unlike_cores_are_joined_by_time():
    """The other core takes three times the cycles at half the clock."""
    first = [replace(layer, cycles_estimate=layer.instructions) for layer in LAYERS]
    other = [replace(layer, cycles_estimate=3 * (layer.instructions or 0)) for layer in LAYERS]
    found = two_cores(first, SecondCoreMeasurements(other, (1_000_000, 500_000)))
    assert found is not None
    assert (found.unit, found.pace, found.alone) == ("microseconds", 6, 15500)
    assert found.total == 1500 + 6 * 4000 + 6 * 3000 + 2 * 6 * BARRIER_INSTRUCTIONS
    lost = (found.whole + found.uneven + found.barriers) * found.total
    assert lost == pytest.approx(found.total - found.alone * 6 / 7)
    assert found.limits.startswith("of at most 1.167, of the time lost to uneven portions")


def test_cores_wait_for_each_other_in_memory():
    """By use times use, by twice the banks, as long as both compute."""
    waits = (Stall("flash", 0, 2000),)
    layers = [Done(0, 4000, 4000, waits), Done(1, 4000, 4000, waits)]
    alone = two_cores(layers)
    together = two_cores(layers, memories=Memories({"flash": 2}, 0.01))
    assert alone is not None and together is not None
    assert together.total - alone.total == pytest.approx(4000 * (0.01 + 0.5 * 0.5 / 4))
    assert together.contention == pytest.approx(1 - alone.total / together.total)
    assert "waits for each other in memory" in together.limits
    assert "memory" not in alone.limits
    lost = (together.whole + together.uneven + together.barriers + together.contention) * together.total
    assert lost == pytest.approx(together.total - together.alone / 2)


def test_a_pipeline_has_throughput_and_latency():
    """Each frame takes the time of the slower part; its result comes with the next one."""
    layers = [Done(0, 3000, 3000), Done(0, 1000, 1000), Done(1, 2500, 2500), Done(1, 500, 500)]
    found = two_cores(layers, first_part=2)
    assert found is not None
    assert found.total == 4000 + BARRIER_INSTRUCTIONS * 1.0
    assert found.latency == 2 * found.total
    assert found.alone == 7000
    assert [span.begin for span in found.spans] == [0, 3000, 0, 2500]
    lost = (found.whole + found.uneven + found.barriers) * found.total
    assert lost == pytest.approx(found.total - found.alone / 2)


def test_unlike_cores_need_cycles():
    assert two_cores(LAYERS, SecondCoreMeasurements(LAYERS, (2, 1))) is None


@pytest.mark.parametrize("layers", [[], LAYERS[:1], [Done(0, None), Done(1, None)]])
def test_one_core_has_no_timeline(layers: list[Done]):
    assert two_cores(layers) is None


@pytest.mark.shared
def test_a_report_tells_of_both_cores():
    report = compile_model(MODELS / "ds_cnn_kws_int8_qdq.onnx", "rp2040", CompileOptions(cores=2)).report
    cores = [layer.core for layer in report.layers if layer.core is not None]
    assert len(cores) > 10
    assert cores == [0, 1] * (len(cores) // 2)
    layers = [replace(layer, instructions=100_000) for layer in report.layers]
    ran = replace(report, layers=layers, two_cores=two_cores(layers))
    assert len(charts_of(ran)["cores"]["data"]["values"]) == len(layers)
    assert any(label == "two cores: speed-up" for label, _, _ in totals(ran))
    assert "cores" not in charts_of(report)
