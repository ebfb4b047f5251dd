# SPDX-License-Identifier: Apache-2.0
"""`--precision auto`: what is raised, what is lowered again, and that the result holds what was asked for."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from float_models import normal_samples, random_weights
from onnx_models import Net, onnxruntime_outputs
from rich.console import Console

from mcugen.api.compilation import Compilation
from mcugen.autotuning.latency import DeadlineCheck
from mcugen.autotuning.precision import AccuracyDemand, Answer, LayerQuestion, PrecisionSearch
from mcugen.autotuning.simulated import SimulatedCostModel
from mcugen.core.board import load_board
from mcugen.core.errors import ConstraintError, DoesNotFitError, UsageError
from mcugen.core.options import MIXED, CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.driver.tasks import Judging, Quantizing
from mcugen.evaluation.accuracy import run_onnxruntime
from mcugen.evaluation.metrics import METRICS, Judged, chance
from mcugen.evaluation.samples import Samples, graph_endpoints, load_samples
from mcugen.frontend.onnx.load import load
from mcugen.hir.layer_names import name_results_of
from mcugen.hir.types import Array, DType
from mcugen.quantization.estimate import split_samples
from mcugen.quantization.few_bits import best_subsets, bytes_per_weight
from mcugen.quantization.quantize import Quantization, create_quantizer, import_float_model
from mcugen.quantization.samples import sort_samples, split_in_halves
from mcugen.quantization.scheme import Scheme
from mcugen.reporting.figures import Report
from mcugen.reporting.text import print_tradeoffs
from mcugen.reporting.tradeoffs import Goal
from mcugen.search.objective import Deadline
from mcugen.search.trace import SearchTrace

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits"


def search(
    model: onnx.ModelProto | Path,
    samples: Samples | None,
    demand: AccuracyDemand,
    scheme: Scheme | None = None,
    fixed: Mapping[str, DType] | None = None,
) -> PrecisionSearch:
    source, scheme = load(model), scheme or Scheme(optimize_rounding=False)
    fused = import_float_model(source, CompileOptions(), scheme, wide=True)
    if samples is None:
        data = [load_samples(DIGITS / f"{f}.npz", graph_endpoints(fused.graph)) for f in ("calibration", "eval")]
        known, samples = data[0].inputs[:40], Samples(data[1].inputs[:60], data[1].labels[:60])  # type: ignore[index]
    else:
        known = samples.inputs
    maker = create_quantizer(source, fused, scheme, known)
    return PrecisionSearch(maker, load_board("host"), CompileOptions(), samples, demand, fixed or {})


def sensitive_net() -> onnx.ModelProto:
    """Four layers; one channel of the second's output is 1000 times larger than the others, and weighs nothing."""
    net = Net()
    y = net.input("x", 1, 4, 6, 6)
    for index, name in enumerate(("a", "b", "c", "d")):
        weights = random_weights(index, 4, 4, 3, 3)
        weights[0] *= 1000 if name == "b" else 1
        weights[:, 0] *= 1e-6 if name == "c" else 1
        y = net.op("Conv", y, net.const(weights), pads=[1, 1, 1, 1], out=f"{name}.conv")
        y = net.op("Relu", y, out=name) if name != "d" else y
    net.output(y)
    return net.model()


def sqnr_of(found: Quantization, samples: Samples) -> float:
    """Of the generated code against the float model as it was."""
    compiled = compile_model(found)
    outputs = compiled.simulate(samples.inputs, measure=False).outputs
    return METRICS["sqnr"].compute(Judged(outputs, compiled.quantization.model.reference(samples.inputs).outputs))


def raised(found: Quantization) -> set[str]:
    return {name for name, dtype in found.assignment.precision.items() if dtype is not DType.INT8}


def test_int8_is_kept_where_it_is_good_enough() -> None:
    walk = search(DIGITS / "digits_f32.onnx", None, AccuracyDemand(METRICS["top1"]))
    assert raised(walk.run()) == set()
    (step,) = walk.steps
    assert step.holds and step.confirmed == step.value and (step.layer, step.precision) == ("", "int8")
    assert walk.goal.float32 - step.value <= 0.005


def test_only_the_sensitive_layer_is_raised() -> None:
    model = sensitive_net()
    samples = Samples(normal_samples(model, 12), None)
    walk = search(
        model, samples, AccuracyDemand(METRICS["sqnr"], min_sqnr=22), Scheme(equalize=False, optimize_rounding=False)
    )
    found = walk.run()
    assert raised(found) == {"c"}
    assert [(step.layer, step.precision) for step in walk.steps] == [("", "int8"), ("Conv_c.conv", "int16")]
    assert walk.steps[0].value < 10 and not walk.steps[0].holds
    assert sqnr_of(found, samples) >= 22
    walked = [step for step in walk.steps if step.kept and step.holds]
    assert walked[-1].instructions > walk.steps[0].instructions


def test_only_layers_whose_noise_matters_are_compiled_for_their_cost() -> None:
    model = sensitive_net()
    samples = Samples(normal_samples(model, 12), None)
    walk = search(
        model, samples, AccuracyDemand(METRICS["sqnr"], min_sqnr=22), Scheme(equalize=False, optimize_rounding=False)
    )
    asked: list[LayerQuestion] = []
    told: list[tuple[str, int, int]] = []

    def share(questions: Sequence[LayerQuestion]) -> Iterator[tuple[LayerQuestion, Answer]]:
        asked.extend(questions)
        yield from ((each, walk.answer(each)) for each in reversed(questions))

    walk.share = share
    walk.progress = lambda *step: told.append(step)
    walk.run()
    assert [q.layer for q in asked if not q.asks_cost] == ["a", "b", "c", "d.conv"]
    assert [q.layer for q in asked if q.asks_cost] == ["c"]
    steps = [("sensitivity to int16", n, 4) for n in range(1, 5)]
    assert [step for step in told if step[0] != "all assignments"][-6:] == [
        *steps,
        ("cost of int16", 1, 1),
        ("raising layers to int16", 0, 4),
    ]


def test_a_demand_between_int8_and_float_is_met_with_some_layers() -> None:
    walk = search(DIGITS / "digits_f32.onnx", None, AccuracyDemand(METRICS["top1"], min_sqnr=55))
    found = walk.run()
    assert walk.steps[0].value < 55 <= sqnr_of(found, walk.samples)
    assert 0 < len(raised(found)) < len(found.assignment.precision)
    kept = {step.layer: step.precision for step in walk.steps if step.kept and step.layer}
    names = name_results_of(found.model.graph)
    assert {n for n, p in kept.items() if p != "int8"} <= {names[result] for result in raised(found)}


def test_layers_that_the_user_decided_stay() -> None:
    fixed = {"scores": DType.FLOAT32}
    walk = search(DIGITS / "digits_f32.onnx", None, AccuracyDemand(METRICS["top1"], min_sqnr=42), fixed=fixed)
    assert "scores" in raised(walk.run())
    assert "scores" not in {step.layer for step in walk.steps}


def test_what_cannot_be_met_is_refused_after_all_was_tried() -> None:
    walk = search(
        sensitive_net(), Samples(normal_samples(sensitive_net(), 4), None), AccuracyDemand(METRICS["sqnr"], None, 500)
    )
    with pytest.raises(ConstraintError, match=r"500\.00 dB or better"):
        walk.run()
    assert {step.layer for step in walk.steps} == {"", "Conv_a.conv", "Conv_b.conv", "Conv_c.conv", "Conv_d.conv"}
    assert walk.steps[-1].precision == "float32" and not any(step.holds for step in walk.steps)


# ----------------------------------------------------------------------------------------------- within budgets


def chain(*widths: int, seed: int = 0, loud: np.random.Generator | None = None) -> onnx.ModelProto:
    """Layers of different sizes, one after another, some with a `loud` channel."""
    net = Net(21)
    y = net.input("x", 1, widths[0])
    for index, (depth, count) in enumerate(pairwise(widths)):
        weights = random_weights(seed + index, count, depth)
        weights[0] *= loud.choice([1, 8, 30]) if loud else 1
        bias = random_weights(99 + index, count)
        y = net.op("Gemm", y, net.const(weights), net.const(bias), transB=1, out=f"l{index}")
        y = net.op("Relu", y, out=f"r{index}") if index < len(widths) - 2 else y
    net.output(y)
    return net.model()


def layers_of(walk: PrecisionSearch) -> list[str]:
    """Names of the layers with weights."""
    made = walk.quantizer.quantize()
    return walk.quantizer.four_bit_candidates(made.plan)


@pytest.mark.parametrize("seed", range(5))
def test_what_is_most_valuable_is_the_best_of_all_choices(seed: int) -> None:
    random = np.random.default_rng(seed)
    values, sizes = random.exponential(1, 9), [int(s) for s in random.integers(1, 400, 9)]
    room = sum(sizes) * random.uniform(0, 1)
    found = best_subsets(values.tolist(), sizes, room, 1 + seed % 2)[0]
    choices = [[i for i in range(9) if bits >> i & 1] for bits in range(2**9)]
    best = max(sum(values[i] for i in c) for c in choices if sum(sizes[i] for i in c) <= room)
    assert sum(sizes[i] for i in found) <= room
    assert sum(values[i] for i in found) == pytest.approx(best)


@pytest.mark.spread(2)
@pytest.mark.parametrize("share", [0.6, 0.75])
def test_weights_of_four_bits_are_those_of_the_best_assignment(share: float) -> None:
    """Of all assignments within the budget, by their true noise."""
    model = chain(12, 40, 24, 32, 16, 6)
    samples = Samples(normal_samples(model, 24), None)
    walk = search(model, samples, AccuracyDemand(METRICS["sqnr"], min_sqnr=5, max_weights=share))
    layers, noise = layers_of(walk), {}
    exact = [onnxruntime_outputs(model, s) for s in samples.inputs]
    for few in chain_of_sets(layers):
        made = walk.quantizer.quantize(dict.fromkeys(few, DType.INT4))
        if bytes_per_weight(made.model, made.plan) <= share:
            noise[few] = METRICS["mse"].compute(Judged(run_onnxruntime(made.proto, samples.inputs), exact))
    found = walk.run()
    assert bytes_per_weight(found.model, found.plan) <= share
    assert noise[tuple(n for n in layers if n in found.plan.few_bits)] <= 1.05 * min(noise.values())


def cost_of(walk: PrecisionSearch, wide: Sequence[str]) -> float:
    """Growth against int8."""
    first, trial = (walk.trial(dict.fromkeys(names, DType.INT16)) for names in ((), wide))
    return trial.metrics.growth(first.metrics)


def chain_of_sets(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for count in range(len(names) + 1):
        yield from combinations(names, count)


@pytest.mark.spread(2)
@pytest.mark.parametrize(("seed", "share"), [(0, 0.5), (5, 0.75)])
def test_what_is_raised_costs_as_little_as_in_the_best_assignment(seed: int, share: float) -> None:
    """Of all assignments of int8 and int16 with more SQNR than int8 and than a share of the others."""
    random = np.random.default_rng(seed)
    model = chain(*(int(width) for width in random.integers(8, 60, 5)), seed=seed * 10, loud=random)
    samples = Samples(normal_samples(model, 24), None)
    walk = search(model, samples, AccuracyDemand(METRICS["sqnr"]), Scheme(equalize=False))
    exact, sqnr = run_onnxruntime(walk.quantizer.model.proto, samples.inputs), dict[tuple[str, ...], float]()
    for wide in chain_of_sets(layers_of(walk)):
        made = walk.quantizer.quantize(dict.fromkeys(wide, DType.INT16))
        sqnr[wide] = METRICS["sqnr"].compute(Judged(run_onnxruntime(made.proto, samples.inputs), exact))
    above = sorted(value for value in sqnr.values() if value > sqnr[()])
    least = float(np.mean(above[int(share * len(above)) - 1 :][:2]))  # Between two of them.
    walk.demand = AccuracyDemand(METRICS["sqnr"], min_sqnr=least)
    found = walk.run()
    costs = [cost_of(walk, wide) for wide, value in sqnr.items() if value >= least]
    assert 0 < cost_of(walk, tuple(raised(found))) <= min(costs) + 1e-9
    assert sqnr_of(found, samples) >= least


def test_a_budget_too_small_is_refused() -> None:
    model = chain(8, 16, 4)
    walk = search(
        model, Samples(normal_samples(model, 12), None), AccuracyDemand(METRICS["sqnr"], None, 5, max_weights=0.4)
    )
    with pytest.raises(ConstraintError, match=r"50 % with 2 or 4 bits wherever that can be"):
        walk.run()


@pytest.mark.parametrize("share", [0.46, 0.4])
def test_two_bits_are_taken_where_four_are_too_many(share: float) -> None:
    """In as few layers as will do: one more with 4 bits would be too much."""
    model = chain(64, 128, 96, 8)
    samples = Samples(normal_samples(model, 24), None)
    walk = search(model, samples, AccuracyDemand(METRICS["sqnr"], min_sqnr=4, max_weights=share), Scheme())
    found = walk.run()
    assert found.plan.two_bits and not found.plan.two_bits & found.plan.few_bits
    assert bytes_per_weight(found.model, found.plan) <= share
    for name in found.plan.two_bits:
        wanted = dict.fromkeys(layers_of(walk), DType.INT4) | dict.fromkeys(found.plan.two_bits - {name}, DType.INT2)
        assert bytes_per_weight(found.model, walk.quantizer.quantize(wanted).plan) > share
    assert "with weights of 2 bits" in found.describe()


def test_flash_too_small_for_eight_bits_is_enough_for_four() -> None:
    model = chain(64, 128, 96, 8)
    samples = Samples(normal_samples(model, 12), None)
    walk = search(model, samples, AccuracyDemand(METRICS["sqnr"], min_sqnr=5))
    most = compile_model(walk.quantizer.quantize(), "nrf52840").report.flash.weights
    walk.board, walk.options = load_board("nrf52840"), CompileOptions(max_flash=most * 3 // 4)
    found = walk.run()
    assert found.plan.few_bits
    assert compile_model(found, walk.board, walk.options).report.flash.weights <= most * 3 // 4


def test_flash_too_small_for_any_weights_is_refused_before_these_are_rounded() -> None:
    """With the least that there is."""
    model = chain(64, 128, 96, 8)
    walk = search(
        model, Samples(normal_samples(model, 12), None), AccuracyDemand(METRICS["sqnr"], min_sqnr=5), Scheme()
    )
    walk.board, walk.options = load_board("nrf52840"), CompileOptions(max_flash=4000)
    rounded: list[str] = []
    walk.quantizer.progress = lambda what, *_: rounded.append(what)
    wide = walk.quantizer.quantize()
    before = len(rounded)
    with pytest.raises(DoesNotFitError, match="with weights of 2 or 4 bits wherever that can be") as refused:
        walk.run()
    assert "rounding weights" not in rounded[before:]
    with pytest.raises(DoesNotFitError) as of_wide:
        compile_model(wide, walk.board, walk.options)
    least, most = (int(error.value.found.split()[4].replace(",", "")) for error in (refused, of_wide))
    assert 4000 < least < 0.75 * most


def test_weights_that_fit_with_fewer_bits_are_not_refused_for_eight() -> None:
    model = chain(64, 256, 192, 8)
    samples = {"x": np.stack([sample["x"] for sample in normal_samples(model, 12)])}
    most = int(0.8 * (64 * 256 + 256 * 192 + 192 * 8))
    options = CompileOptions(max_flash=most)
    with pytest.raises(DoesNotFitError, match="bytes of parameters alone"):
        _ = Compilation(model, "nrf52840", options, Quantizing("int8", samples)).quantized
    net = Compilation(model, "nrf52840", options, Quantizing(MIXED, samples), Judging(min_sqnr=5))
    assert net.quantized.plan.few_bits and net.compiled.report.flash.weights < most


def test_what_misses_the_goal_is_not_compiled() -> None:
    """On the way up, but for the first, which tells what the others are compared with."""
    walk = search(DIGITS / "digits_f32.onnx", None, AccuracyDemand(METRICS["top1"], min_sqnr=55))
    walk.run()
    missed = [step for step in walk.steps if step.layer and step.kept and not step.holds and step.confirmed is None]
    assert missed and all(step.arena is step.weights is step.instructions is None for step in missed)
    assert all(step.arena for step in walk.steps if step.holds)


def outputs(right: int) -> Judged:
    """Of 10 samples, so many are classified right."""
    scores: list[Array] = [np.eye(2)[[int(i >= right)]] for i in range(10)]
    rows = [{"y": row} for row in scores]
    return Judged(rows, rows, labels=np.zeros(10, int))


def unseen(count: int = 70) -> Samples:
    """In an order of their own, each once."""
    return Samples([dict(each) for each in sort_samples(normal_samples(sensitive_net(), count))], None)


def test_a_half_is_held_out_whatever_the_order() -> None:
    samples, labels = unseen().inputs, np.arange(70)
    known, held = split_samples(samples, is_stream=False)
    assert len(known) == len(held) == 35
    assert not {id(s) for s in known} & {id(s) for s in held}
    shuffled = [samples[i] for i in np.random.default_rng(0).permutation(70)]
    again = split_samples(sort_samples(shuffled), is_stream=False)
    assert [list(map(id, part)) for part in again] == [list(map(id, part)) for part in (known, held)]
    places = [next(i for i, each in enumerate(samples) if each is s) for s in held]
    assert Samples(samples, labels).only(held).labels.tolist() == places  # type: ignore[union-attr]


def test_equal_samples_are_in_one_half() -> None:
    samples = unseen(40).inputs
    twice = sort_samples([*samples, *({name: array.copy() for name, array in s.items()} for s in samples)])
    known, held = ([next(iter(s.values())).tobytes() for s in part] for part in split_samples(twice, is_stream=False))
    assert len(known) == len(held) == 40 and not set(known) & set(held)


def test_a_stream_is_judged_by_its_end_and_few_samples_by_no_half() -> None:
    samples = unseen().inputs
    known, held = split_samples(samples, is_stream=True)
    assert [*map(id, known), *map(id, held)] == [*map(id, samples)] and len(held) == 35
    assert split_samples(samples[:60], is_stream=False) == (samples[:60], ())


def test_few_samples_are_judged_by_what_the_other_half_tells() -> None:
    """Each half's outputs are those of a model that has not seen it; so the goal is harder to reach."""
    samples = unseen(12)
    made = []
    for is_crossed in (False, True):
        walk = search(sensitive_net(), samples, AccuracyDemand(METRICS["sqnr"], min_sqnr=22))
        walk.is_crossed = is_crossed
        made.append(walk.run())
        assert ("each half" in walk.accuracy_note("calibration")) == is_crossed
        assert "12 samples" in walk.accuracy_note("calibration")
    first, second = (walk_of(samples, crossed).steps[0] for crossed in (False, True))
    assert first.value != second.value
    assert raised(made[0]) == {"c"} < raised(made[1])


def walk_of(samples: Samples, is_crossed: bool) -> PrecisionSearch:
    """One that ends with the first model."""
    walk = search(sensitive_net(), samples, AccuracyDemand(METRICS["sqnr"], min_sqnr=-50))
    walk.is_crossed = is_crossed
    walk.run()
    return walk


def test_a_half_is_judged_as_if_it_had_been_held_out() -> None:
    samples = unseen(12)
    even, odd = split_in_halves(samples.inputs)
    power, noise = 0.0, 0.0
    for known, held in ((even, odd), (odd, even)):
        source = load(sensitive_net())
        scheme = Scheme(optimize_rounding=False)
        fused = import_float_model(source, CompileOptions(), scheme, wide=True)
        maker = create_quantizer(source, fused, scheme, [samples.inputs[i] for i in known])
        some = [samples.inputs[i] for i in held]
        real, found = (run_onnxruntime(proto, some) for proto in (fused.proto, maker.quantize().proto))
        pairs = [(a[n].astype(float), b[n]) for a, b in zip(real, found, strict=True) for n in a]
        power += sum(float(np.square(a).sum()) for a, _ in pairs)
        noise += sum(float(np.square(a - b).sum()) for a, b in pairs)
    assert walk_of(samples, is_crossed=True).steps[0].value == pytest.approx(10 * math.log10(power / noise), abs=1e-6)


def test_goals() -> None:
    goal = AccuracyDemand(METRICS["top1"]).goal(outputs(9))
    assert (goal.float32, goal.drop) == (0.9, 0.5)
    assert goal.holds(0.8951) and goal.holds(0.95) and not goal.holds(0.8949)
    assert AccuracyDemand(METRICS["top1"], 2.0).goal(outputs(9)).holds(0.8801)
    least = AccuracyDemand(METRICS["top1"], None, 30.0).goal(outputs(9))
    assert least.metric is METRICS["sqnr"] and least.holds(30.0) and not least.holds(29.9)
    assert AccuracyDemand(METRICS["sqnr"]).goal(outputs(9)).holds(math.inf)
    assert not AccuracyDemand(METRICS["sqnr"]).goal(outputs(9)).holds(24.9)
    assert Goal(METRICS["mse"], 1.0, drop=0.5).holds(1.4) and not Goal(METRICS["mse"], 1.0, drop=0.5).holds(1.6)


def classified(count: int, lost: int, won: int) -> Judged:
    """Of so many samples, of which float32 has the first half right, some are lost and some won."""
    reference = [int(2 * i >= count) for i in range(count)]
    found = [int(wrong or i < lost) * int(i < count - won) for i, wrong in enumerate(reference)]
    rows = [[{"y": np.eye(2)[[c]]} for c in given] for given in (found, reference)]
    return Judged(*rows, labels=np.zeros(count, int))


@pytest.mark.parametrize(
    ("count", "lost", "won", "holds"),
    [
        (400, 2, 0, True),
        (400, 8, 0, False),
        (400, 3, 0, True),
        (400, 20, 14, True),
        (60, 1, 0, False),
        (60, 0, 0, True),
    ],
)
def test_a_drop_is_one_beyond_chance(count: int, lost: int, won: int, holds: bool) -> None:
    """Each sample counts where they are few."""
    judged = classified(count, lost, won)
    reference = classified(count, 0, 0)
    goal = AccuracyDemand(METRICS["top1"]).goal(reference)
    assert goal.met(judged) == holds
    assert goal.met(reference)


@pytest.mark.parametrize(("lost", "won", "is_told"), [(7, 2, True), (2, 1, False), (0, 0, False)])
def test_a_drop_that_chance_lets_pass_is_told_with_the_samples_that_would_show_it(
    lost: int, won: int, is_told: bool
) -> None:
    """Five points of 101 samples pass, but not in silence."""
    judged, goal = classified(101, lost, won), AccuracyDemand(METRICS["top1"]).goal(classified(101, 0, 0))
    assert goal.met(judged)
    told = goal.uncertainty_warning(goal.metric.compute(judged), chance(goal.metric, judged), 101)
    assert bool(told) == is_told
    if is_told:
        assert "4.95 points, -0.79 to 10.69" in told
        needed = int(re.search(r"about (\d+) samples", told)[1])
        lost_then, won_then = (round(n * needed / 101) for n in (lost, won))
        assert needed > 101 and not goal.met(classified(needed * 2, 2 * lost_then, 2 * won_then))
    assert not goal.uncertainty_warning(goal.metric.compute(judged), 0.0, 101)


def test_several_demands_hold_at_once() -> None:
    judged, exact = classified(400, 2, 0), classified(400, 0, 0)
    sqnr = METRICS["sqnr"].compute(judged)
    for least, holds in ((sqnr - 1, True), (sqnr + 1, False)):
        goal = AccuracyDemand(METRICS["top1"], 0.5, least).goal(exact)
        assert goal.met(judged) == holds
        assert str(goal).endswith(f"of float32; and SQNR of {least:.2f} dB or better")
    assert not AccuracyDemand(METRICS["top1"], 0.5, sqnr - 1).goal(exact).met(classified(400, 8, 0))


def test_a_drop_needs_something_to_drop_from() -> None:
    with pytest.raises(UsageError, match="add labels"):
        AccuracyDemand(METRICS["sqnr"], 1.0).goal(outputs(9))
    with pytest.raises(UsageError, match="add labels"):
        AccuracyDemand(METRICS["sqnr"], 1.0, 20.0).goal(outputs(9))


@pytest.mark.parametrize(("count", "lost", "holds"), [(400, 2, True), (400, 8, False), (60, 1, False), (60, 0, True)])
def test_agreement_may_fall_from_all_samples(count: int, lost: int, holds: bool) -> None:
    """Without labels: the float model agrees with itself, whatever is right."""
    judged = replace(classified(count, lost, 0), labels=None)
    goal = AccuracyDemand(METRICS["agreement"], 0.5).goal(replace(classified(count, 0, 0), labels=None))
    assert goal.metric is METRICS["agreement"] and goal.float32 == 1.0
    assert goal.met(judged) == holds


class Clock:
    """Times programs of the sensitive net by their estimate: two cycles an instruction."""

    def __init__(self, cycles: int) -> None:
        self.runs = 0
        self.check = DeadlineCheck(Deadline(cycles, f"--max-cycles {cycles:,}"), SimulatedCostModel(self.run))

    def run(self, compiled: CompiledModel) -> Report:
        self.runs += 1
        cycles = round(2 * (compiled.program.instructions_estimate or 0))
        layers = [replace(layer, cycles_estimate=cycles) for layer in compiled.report.layers]
        return replace(compiled.report, cycles_estimate=cycles, layers=layers)


def in_time(cycles: int) -> tuple[PrecisionSearch, Clock]:
    """A search on a board, of which c must be raised."""
    model = sensitive_net()
    samples = Samples(normal_samples(model, 12), None)
    walk = search(
        model, samples, AccuracyDemand(METRICS["sqnr"], min_sqnr=22), Scheme(equalize=False, optimize_rounding=False)
    )
    clock = Clock(cycles)
    walk.board, walk.deadline_check = load_board("nrf52840"), clock.check
    return walk, clock


def test_a_deadline_far_off_changes_nothing_and_costs_one_run() -> None:
    walk, clock = in_time(10_000_000)
    assert raised(walk.run()) == {"c"}
    assert clock.runs == 1


def test_a_deadline_refuses_what_takes_longer() -> None:
    walk, _ = in_time(10)
    with pytest.raises(DoesNotFitError, match=r"--max-cycles 10 .*the least is [\d,]+ cycles, .* of which"):
        walk.run()
    assert walk.deadline_check is not None and walk.deadline_check.missed is not None
    least = walk.deadline_check.missed.cycles_estimate
    assert least is not None
    walk, clock = in_time(least)
    with pytest.raises(DoesNotFitError, match=r"goal: SQNR.*--max-cycles .*in that time; with one more, the least is"):
        walk.run()
    assert clock.runs > 1
    assert {step.layer for step in walk.steps} == {""}


@pytest.mark.qemu
def test_all_demands_at_once() -> None:
    """Of RAM, flash, time, a drop and an SQNR, as the board runs it."""
    model = sensitive_net()
    samples = {"x": np.stack([sample["x"] for sample in normal_samples(model, 12)])}
    labelled = {**samples, "labels": np.zeros((12, 6, 6), int)}
    options = CompileOptions(max_cycles=200_000, max_ram=20_000, max_flash=20_000)
    quantizing = Quantizing(MIXED, samples, scheme=Scheme(equalize=False, optimize_rounding=False))
    judging = Judging(labelled, max_drop=50.0, min_sqnr=22)
    net = Compilation(model, "nrf52840", options, quantizing, judging)
    found = net.compiled.report
    assert net.search is not None and len(net.search.goal.others) == 1
    assert found.deadline is not None and found.deadline.cycles_estimate <= 200_000
    assert "int16" in {step.precision for step in net.search.steps if step.kept}


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    model = sensitive_net()
    walk = search(
        model,
        Samples(normal_samples(model, 4), None),
        AccuracyDemand(METRICS["sqnr"], None, 22),
        Scheme(equalize=False),
    )
    walk.trace = SearchTrace()
    walk.run()
    (chosen,) = [entry for entry in walk.trace.entries if entry.is_chosen]
    assert walk.trace.entries[0].candidate == "all layers: int8" and "misses the goal" in walk.trace.entries[0].verdict
    assert chosen.verdict == f"Chosen: the cheapest model that meets the goal, {walk.goal}."
    print_tradeoffs(walk.goal, walk.steps, Console(width=80))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "goal: SQNR of 22.00 dB or better"
    rows = [line.split() for line in lines if "int8" in line or "int16" in line or "float32" in line]
    assert len(rows) == len(walk.steps)
    assert rows[0][:2] == ["(all)", "int8"] and rows[0][-1] == "missed"
    assert all(len(line) <= 80 for line in lines)
