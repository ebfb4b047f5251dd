# SPDX-License-Identifier: Apache-2.0
"""--monitor: generated C keeps the statistics of the numpy specification, to the last bit, at little cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from c_programs import build_and_run, check_compiles, write
from model_variants import MODELS, OF_FILES_AND_RAW_DATA, floats, quantized, stateful
from onnx_models import Net
from shared_models import MODELS as SHARED_MODELS
from shared_models import SHARED, dataset

from mcugen.api.compilation import Compilation
from mcugen.codegen.bundle import Bundle
from mcugen.codegen.monitor import MonitoredTensor, observed_elements
from mcugen.core.errors import UsageError
from mcugen.core.options import CompileOptions
from mcugen.deploy.linking.linking import Linking
from mcugen.deploy.monitoring.snapshots import MonitoredModel, Snapshot, decode_snapshots
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.tasks import Judging
from mcugen.evaluation.samples import as_stored, random_samples
from mcugen.hir.types import DType
from mcugen.measurement.monitoring import interpret_layers, observable_layers, predictions, with_monitor
from mcugen.measurement.observations import Gauge, Observation, balanced_edges, bins_of, codes_of
from mcugen.simulation import simulate

MONITORED = CompileOptions("net", monitor=True)
ALL_LAYERS = ("*",)
"""Stands for the names of all layers that can be observed."""
RUNS = 12
"""Number of samples of the reference, and of runs of the C program."""


def compiled_with(net: Net, data: Mapping[str, np.ndarray], options: CompileOptions = MONITORED) -> CompiledModel:
    if options.monitor_layers == ALL_LAYERS:
        plain = Compilation(net.model(), "host", replace(options, monitor=False, monitor_layers=(), steps=True))
        options = replace(options, monitor_layers=tuple(observable_layers(plain.compiled)))
        assert len(options.monitor_layers) > 1
    return Compilation(net.model(), "host", options, judging=Judging(data=data)).compiled


def samples_of(net: Net, seed: int = 3) -> dict[str, np.ndarray]:
    """Return random samples of all inputs, with a leading axis of samples."""
    random = np.random.default_rng(seed)
    arrays = {}
    for info in net.model().graph.input:
        shape = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
        values = random.normal(size=(RUNS, *shape)) * (60 if dtype.kind in "iu" else 1.0)
        arrays[info.name] = np.abs(values).astype(dtype) if dtype.kind in "ub" else values.astype(dtype)
    return arrays


def snapshot_of(compiled: CompiledModel, data: Mapping[str, np.ndarray], folder: Path) -> Snapshot:
    """Return the snapshot of a C program that runs the model once on each sample."""
    bundle, monitor = compiled.bundle, compiled.report.monitor
    assert monitor is not None
    stored = [as_stored({name: array[i] for name, array in data.items()}, compiled.program.inputs) for i in range(RUNS)]
    (folder / "given").mkdir(parents=True)
    lines, copies, arguments = [], [], ["&monitor", "net_default_arena()"]
    for port in bundle.inputs:
        path = folder / "given" / f"{port.accessor}.bin"
        path.write_bytes(b"".join(np.ascontiguousarray(s[port.name]).tobytes() for s in stored))
        lines.append(f'    FILE *const from_{port.accessor} = fopen("{path}", "rb");')
        place = f"{port.accessor}_buffer" if port.is_lent else f"{port.accessor}(net_default_arena())"
        copies.append(f"        (void)!fread({place}, 1, {port.nbytes}u, from_{port.accessor});")
    for port in (*bundle.inputs, *bundle.outputs):
        if port.is_lent:
            lines.append(f"    static MCUGEN_ALIGN(8) {port.ctype} {port.accessor}_buffer[{port.nbytes}];")
            arguments.append(f"{port.accessor}_buffer")
    if bundle.has_state:
        lines += ["    static net_state state;", "    net_reset(&state);"]
        arguments.append("&state")
    program = "\n".join(
        [
            '#include <stdio.h>\n#include "net_monitor.h"\nint main(void)\n{',
            "    static net_monitor monitor, sent;\n    uint32_t i;",
            *lines,
            f"    net_monitor_reset(&monitor, 7);\n    for (i = 0; i < {RUNS}; ++i) {{",
            *copies,
            f"        if (net_run_monitored({', '.join(arguments)}) != MCUGEN_OK) {{ return 1; }}",
            "    }\n    if (net_monitor_snapshot(&monitor, 11, &sent) != MCUGEN_OK) { return 2; }",
            '    for (i = 0; i < NET_MONITOR_SIZE; ++i) { printf("%02x", ((unsigned char *)&sent)[i]); }',
            "    return 0;\n}\n",
        ]
    )
    text = build_and_run(program, write(bundle, folder), *bundle.sources)
    return next(decode_snapshots(bytes.fromhex(text), "sent", {monitor.model: MonitoredModel("net", "", monitor)}))


def gauge(tensor: MonitoredTensor) -> Gauge:
    return Gauge(tensor.center, tensor.edges, tensor.clip_low, tensor.clip_high, tensor.elements)


def added(observations: Sequence[Observation]) -> Observation:
    """Return the sum of the observations of several runs."""
    sums: dict[str, Any] = {}
    for name in (field.name for field in fields(Observation)):
        values = [getattr(one, name) for one in observations]
        if name in ("low", "high"):
            sums[name] = min(values) if name == "low" else max(values)
        else:
            is_tuple = isinstance(values[0], tuple)
            sums[name] = tuple(map(sum, zip(*values, strict=True))) if is_tuple else sum(values)
    return Observation(**sums)


def expected(compiled: CompiledModel, data: Mapping[str, np.ndarray]) -> tuple[list[Observation], list[list[int]]]:
    """Return the observations, and the counters of classes and confidence, by the numpy specification."""
    monitor = compiled.report.monitor
    assert monitor is not None
    stored = [as_stored({name: array[i] for name, array in data.items()}, compiled.program.inputs) for i in range(RUNS)]
    chosen = {name: observable_layers(compiled)[name] for name in compiled.options.monitor_layers}
    results, layers = interpret_layers(compiled, stored, chosen)
    runs = {"input": stored, "output": results, "layer": layers}

    def seen(tensor: MonitoredTensor) -> Observation:
        name = chosen[tensor.name][1].name if tensor.kind == "layer" else tensor.name
        arrays = [run[name] for run in runs[tensor.kind]]
        codes = [codes_of(np.asarray(array), DType(tensor.dtype), tensor.unit) for array in arrays]
        return added([gauge(tensor).observe(array, run) for run, array in enumerate(codes)])

    counters = []
    for output in monitor.outputs:
        scores = np.stack([run[output.name] for run in results]).reshape(-1, output.classes)
        classes, margins = predictions(scores, DType(output.dtype), output.unit)
        counters += [np.bincount(classes // output.classes_per_bin, minlength=output.bins).tolist()]
        counters += [bins_of(margins, output.edges).tolist()]
    return [seen(tensor) for tensor in monitor.tensors], counters


def typed(dtype: type, *shape: int) -> Callable[[], Net]:
    """Return a function that builds a network with an input of a type, and an output that is no scores."""

    def build() -> Net:
        net = Net()
        x = net.op("Cast", net.input("x", *shape, dtype=dtype), to=1)
        net.output(net.op("Mul", x, net.const([0.25])))
        return net

    return build


def several() -> Net:
    """Return a network with inputs of three types and batches, and two outputs with scores of classes."""
    net = Net()
    a, b = net.input("a", 3, 2, 5, 7), net.input("b", 3, 9, dtype=np.int8)
    net.input("c", 1, dtype=np.int16)
    c = net.op("Cast", "c", to=1)
    sums = net.op("ReduceSum", a, net.const([2, 3], np.int64), keepdims=0)
    net.output(net.op("Add", sums, c), net.op("Mul", net.op("Cast", b, to=1), net.const([0.5])))
    return net


def many_classes() -> Net:
    """Return a network with more classes than counters."""
    net = Net()
    net.output(net.op("MatMul", net.input("x", 4, 6), net.const(np.random.default_rng(1).normal(size=(6, 77)))))
    return net


CASES: Mapping[str, tuple[Callable[[], Net], CompileOptions]] = {
    "float32": (typed(np.float32, 1, 3, 4, 5), MONITORED),
    "channels last": (typed(np.float32, 2, 4, 5, 3), MONITORED),
    "int8": (typed(np.int8, 1, 50), MONITORED),
    "uint8": (typed(np.uint8, 1, 3, 4, 5), MONITORED),
    "int16": (typed(np.int16, 1, 9), MONITORED),
    "uint16": (typed(np.uint16, 1, 8), MONITORED),
    "int32": (typed(np.int32, 7), MONITORED),
    "bool": (typed(np.bool_, 2, 6), MONITORED),
    "one element": (typed(np.float32, 1), MONITORED),
    "quantized": (quantized, MONITORED),
    "quantized values": (quantized, replace(MONITORED, integer_io=True)),
    "buffers of the caller": (quantized, replace(MONITORED, integer_io=True, external_io=True)),
    "several inputs, batches": (several, replace(MONITORED, monitor_bytes=700)),
    "more classes than counters": (many_classes, MONITORED),
    "states": (stateful, replace(MONITORED, states={"after": next(iter(stateful().model().graph.input)).name})),
    "layers": (quantized, replace(MONITORED, monitor_layers=ALL_LAYERS, monitor_bytes=2000)),
    "layers of buffers of the caller": (
        quantized,
        replace(MONITORED, monitor_layers=ALL_LAYERS, monitor_bytes=2000, external_io=True),
    ),
    "layers of a stream": (
        quantized,
        replace(MONITORED, monitor_layers=ALL_LAYERS, monitor_bytes=2000, optimize="ram"),
    ),
    "several outputs": (floats, replace(MONITORED, monitor_bytes=1000)),
}


@pytest.mark.parametrize("case", CASES)
def test_statistics_are_those_of_the_specification(case: str, tmp_path: Path):
    make, options = CASES[case]
    data = {n: array for n, array in samples_of(make()).items() if n not in options.states.values()}
    compiled = compiled_with(make(), data, options)
    snapshot = snapshot_of(compiled, data, tmp_path)
    tensors, counters = expected(compiled, data)
    assert (snapshot.device, snapshot.time, snapshot.runs, snapshot.errors) == (7, 11, RUNS, 0)
    assert list(snapshot.tensors) == tensors
    pairs = zip(snapshot.predictions, snapshot.confidence, strict=True)
    assert [list(counts) for pair in pairs for counts in pair] == counters


def test_numbers_that_are_none_and_infinities_are_counted(tmp_path: Path):
    make, options = CASES["float32"]
    data = samples_of(make())
    compiled = compiled_with(make(), data, options)
    strange = {"x": data["x"].copy()}
    strange["x"].reshape(RUNS, -1)[:, :5] = [np.nan, np.inf, -np.inf, -0.0, 1e-40]
    tensors, _ = expected(compiled, strange)
    assert snapshot_of(compiled, strange, tmp_path).tensors[0] == tensors[0]


CALLS = """    static net_monitor monitor, sent;
    const int before = net_monitor_snapshot(&monitor, 0, &sent);
    printf("%d %d", before, net_monitor_snapshot(NULL, 0, &sent));
    net_monitor_reset(NULL, 1);
    net_monitor_inputs(&monitor, net_default_arena()); /* before the first reset: nothing happens */
    net_monitor_reset(&monitor, 1);
    net_monitor_inputs(&monitor, NULL);
    printf(" %u", (unsigned)monitor.tensors[0].count);
    (void)net_monitor_status(&monitor, MCUGEN_ERROR_MISMATCH);
    (void)net_monitor_status(&monitor, MCUGEN_ERROR_CHECKSUM);
    (void)net_monitor_status(&monitor, net_selftest(net_default_arena()));
    printf(" %d", net_run_monitored(&monitor, NULL));
    printf(" %d", net_run_monitored(&monitor, (unsigned char *)net_default_arena() + 1));
    printf(" %u %u %u %u", (unsigned)monitor.head.self_tests, (unsigned)monitor.head.checksums,
        (unsigned)monitor.head.errors, (unsigned)monitor.head.runs);
    monitor.head.sequence += 1u; /* an update is under way */
    printf(" %d", net_monitor_snapshot(&monitor, 0, &sent));
    monitor.head.sequence += 1u;
    monitor.head.runs = 0xffffffffu;
    monitor.tensors[0].count = 0xfffffff0u;
    net_monitor_outputs(&monitor, net_run(net_default_arena()), 5, net_default_arena());
    net_monitor_inputs(&monitor, net_default_arena());
    printf(" %x %x", (unsigned)monitor.head.runs, (unsigned)monitor.tensors[0].count);
    printf(" %u", (unsigned)monitor.head.longest);
    printf(" %d", net_monitor_snapshot(&monitor, 0, &sent));
"""


def test_failures_are_counted_and_counters_saturate(tmp_path: Path):
    data = samples_of(quantized())
    bundle = compiled_with(quantized(), data, MONITORED).bundle
    main = f'#include <stdio.h>\n#include "net_monitor.h"\nint main(void)\n{{\n{CALLS}    return 0;\n}}\n'
    text = build_and_run(main, write(bundle, tmp_path), *bundle.sources, "net_selftest.c")
    assert text == "9 1 0 1 2 1 1 2 0 -1 ffffffff fffffff0 5 0"


FORMS = {
    form: parts
    for form, parts in {**MODELS, **OF_FILES_AND_RAW_DATA}.items()
    if not (parts[2].stream_input or parts[2].ranges)
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_compiles(form: str, tmp_path: Path):
    make, board, options = FORMS[form]
    compiled = Compilation(make().model(), board, replace(options, monitor_bytes=4096)).compiled
    samples = random_samples(compiled.program.inputs).inputs * RUNS
    check_compiles(with_monitor(compiled, samples).bundle, tmp_path)


@pytest.mark.parametrize("external_io", [False, True])
def test_firmware_that_tells_statistics_compiles(external_io: bool, tmp_path: Path):
    options = replace(MONITORED, validation=True, monitor_layers=ALL_LAYERS, monitor_bytes=2000)
    compiled = compiled_with(quantized(), samples_of(quantized()), replace(options, external_io=external_io))
    check_compiles(compiled.bundle, tmp_path)


def test_models_of_one_firmware_have_monitors_of_their_own(tmp_path: Path):
    nets = [
        Compilation(
            make().model(), "host", CompileOptions(name, monitor=True), judging=Judging(data=samples_of(make()))
        )
        for name, make in (("first", quantized), ("second", typed(np.int8, 1, 50)))
    ]
    linking = Linking(nets, "both")
    bundle = linking.firmware.bundle
    check_compiles(bundle, tmp_path)
    assert {"first_monitor.c", "second_monitor.h", "mcugen_monitor.h"} <= bundle.files.keys()
    hashes = {model.report.monitor.model for model in linking.models if model.report.monitor}
    assert len(hashes) == 2


REFUSED: Mapping[str, tuple[Callable[[], Net], CompileOptions, int]] = {
    "8 samples of the inputs or more": (quantized, MONITORED, 7),
    "must fit in 100 bytes": (quantized, replace(MONITORED, monitor_bytes=100), RUNS),
    "observes inputs of one size": (quantized, replace(MONITORED, stream_input=True), RUNS),
    "--monitor observes float32": (typed(np.float64, 1, 4), MONITORED, RUNS),
    "--monitor-layers must name layers.*'none' is no layer": (
        quantized,
        replace(MONITORED, monitor_layers=("none",)),
        RUNS,
    ),
}


@pytest.mark.parametrize("rule", REFUSED)
def test_what_cannot_be_observed_is_refused(rule: str):
    make, options, count = REFUSED[rule]
    data = {name: array[:count] for name, array in samples_of(make()).items()}
    with pytest.raises(UsageError, match=rule):
        compiled_with(make(), data, options)


def test_a_monitor_needs_samples():
    with pytest.raises(UsageError, match="give --data or --calibration"):
        _ = Compilation(quantized().model(), "host", MONITORED).compiled


def test_edges_divide_values_evenly_and_never_one_value():
    random = np.random.default_rng(5)
    for values in (random.normal(size=9000) * 50, np.zeros(9), np.repeat([1, 2, 3], [900, 50, 50])):
        codes = np.rint(values).astype(np.int64)
        edges = balanced_edges(codes)
        counts = bins_of(codes, edges)
        assert len(edges) == 7 and list(edges) == sorted(edges)
        assert np.count_nonzero(counts) == min(8, len(np.unique(codes)))
        assert counts.max() <= max(len(codes) // 4, np.unique(codes, return_counts=True)[1].max())


@pytest.mark.parametrize("shape", [(1,), (7,), (1, 8), (2, 3, 4, 5), (2, 4, 5, 3), (1, 2, 9), (5, 6, 7)])
@pytest.mark.parametrize("stride", [1, 3])
def test_runs_observe_each_element_once_in_turn(shape: tuple[int, ...], stride: int):
    codes = np.arange(np.prod(shape))
    for grid in observed_elements(shape):
        gauge = Gauge(0, tuple(range(100, 107)), -1, 10**6, replace(grid, stride=stride))
        seen = added([gauge.observe(codes, run) for run in range(stride)])
        assert (seen.count, sum(seen.sums)) == (codes.size, codes.sum())


def with_monitored_run(bundle: Bundle) -> Bundle:
    """Return C files whose run function is the monitored one, for the harness, which calls no other."""
    files = dict(bundle.files)
    assert "int net_run(void *arena)\n{" in files["net.c"]
    files["net.c"] = files["net.c"].replace("int net_run(", "int net_plain(")
    monitor = files["net_monitor.c"].replace("net_run(arena)", "net_plain(arena)")
    include = '#include "net_monitor.h"'
    files["net_monitor.c"] = monitor.replace(include, f"{include}\nint net_plain(void *arena);") + MONITORED_RUN
    return replace(bundle, files=files)


MONITORED_RUN = """
int net_run(void *arena)
{
    static net_monitor monitor;
    net_monitor_reset(&monitor, 1); /* each run takes the same instructions, and more than without a reset */
    return net_run_monitored(&monitor, arena);
}
"""

MAX_COST_SHARE = 0.02
"""Largest share of the cycles of a run of an MLPerf Tiny model that observing it may take."""
TINY = ("autoencoder_ad", "ds_cnn_kws", "streaming_wakeword", "resnet8_cifar10", "mobilenet_v1_025_vww")


TINY_RUNS = [
    *((model, "nrf52840", layers) for model in TINY for layers in (0, 2)),
    ("autoencoder_ad", "rp2040", 0),
    ("ds_cnn_kws", "esp32c3", 0),
]
"""Models, boards, and numbers of observed layers: each model on Cortex-M4, and one each on Cortex-M0+ and RISC-V."""


def costs_of(model: str, board: str, num_layers: int) -> tuple[int, float, float]:
    """Return the bytes of a monitor, and the shares of instructions and cycles of a run that it adds."""
    name = f"{model}_int8_qdq"
    judging = Judging(data=dataset(name, "calib"), pixel_scale=1 / 255 if "vww" in model else 1.0)
    path, options = SHARED_MODELS / f"{name}.onnx", MONITORED
    if num_layers:
        plain_code = Compilation(path, board, CompileOptions("net", steps=True)).compiled
        options = replace(options, monitor_layers=tuple(observable_layers(plain_code))[1::4][:num_layers])
    net = Compilation(path, board, options, judging=judging)
    compiled = net.compiled
    assert compiled.report.monitor is not None
    data = net.samples(dataset(name, "eval"), compiled.program.inputs).inputs[:1]
    samples = [as_stored(sample, compiled.program.inputs) for sample in data]
    plain, observed = (
        simulate(bundle, compiled.board, samples, cycles=True)
        for bundle in (compiled.bundle, with_monitored_run(compiled.bundle))
    )
    assert plain.instructions and observed.instructions and plain.cycles and observed.cycles
    shares = (observed.instructions / plain.instructions - 1, observed.cycles.total / plain.cycles.total - 1)
    return compiled.report.monitor.nbytes, *shares


@pytest.mark.qemu
@pytest.mark.slow
@pytest.mark.parametrize(("model", "board", "num_layers"), TINY_RUNS)
def test_observing_takes_few_cycles(model: str, board: str, num_layers: int):
    if not SHARED.is_dir():
        pytest.skip("needs ../shared")
    nbytes, *shares = costs_of(model, board, num_layers)
    assert nbytes <= 512
    assert min(shares) > 0 and max(shares) < MAX_COST_SHARE
