# SPDX-License-Identifier: Apache-2.0
"""The report as text: tables on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.markup import escape

from mcugen.core.errors import printable
from mcugen.evaluation.accuracy import Accuracy, MetricValues
from mcugen.evaluation.layers import COMPUTED, LayerComparison, LayerError, precision_lines
from mcugen.evaluation.metrics import described
from mcugen.lir.program import MOVE
from mcugen.reporting.figures import MemoryUse, ModelFigures, Ram, Report, ReportedLayer, copies_text, stalled_share
from mcugen.reporting.tables import CellKind, TableColumn, TextTable, print_facts, print_table
from mcugen.reporting.tradeoffs import Goal, Tradeoff

NUM_SHOWN_ERROR_LAYERS = 10
"""Number of layers whose quantization errors a report shows by default, the worst ones."""


def print_report(report: Report, console: Console, all_layers: bool = False, wide: bool = False) -> None:
    """Print a report: totals, one line for each layer, and the errors of the worst layers of a quantized model.

    Args:
        report: The report.
        console: Where to print.
        all_layers: Whether to print the errors of all layers, in order.
        wide: Whether to print all columns of tables, however wide the console is.
    """
    print_facts(title(report), totals(report), console)
    print_table(layer_table(report), console, wide)
    if report.quantization is not None:
        print_comparison(report.quantization, console, all_layers, wide)
    for line in precision_lines(report.other_precisions):
        console.print(escape(printable(line)), highlight=False, soft_wrap=True)


def names_layers(note: str) -> bool:
    """Return whether a note is a line of `precision_lines`, which names layers and must not be shortened."""
    return note.startswith(COMPUTED)


def print_comparison(comparison: LayerComparison, console: Console, all_layers: bool, wide: bool = False) -> None:
    """Print the errors of layers against the float model, and the layers at which the error arises.

    Args:
        comparison: The errors.
        console: Where to print.
        all_layers: Whether to print all layers, in order, instead of the worst ones.
        wide: Whether to print all columns, however wide the console is.
    """
    print_table(error_table(comparison, all_layers), console, wide)
    for line in findings(comparison):
        console.print(escape(printable(line)), highlight=False, soft_wrap=True)


def findings(comparison: LayerComparison) -> list[str]:
    """Return sentences that name the layers at which the quantization error begins and grows most."""
    threshold = f"{comparison.threshold_db:g} dB"
    first = f"first layer with an SQNR below {threshold}: {comparison.first_diverging}"
    lines = [first if comparison.first_diverging is not None else f"no layer has an SQNR below {threshold}"]
    lines += [f"steepest fall: {comparison.steepest_fall}"] * (comparison.steepest_fall is not None)
    return lines


def print_tradeoffs(goal: Goal, steps: Sequence[Tradeoff], console: Console) -> None:
    """Print the steps of a search for the lowest sufficient precision, one line each; undone steps are dim.

    Args:
        goal: The accuracy goal of the search.
        steps: The steps in order.
        console: Where to print.
    """
    console.print(f"goal: {escape(printable(str(goal)))}", highlight=False, soft_wrap=True)
    print_table(tradeoff_table(goal, steps), console, hint="")


def tradeoff_table(goal: Goal, steps: Sequence[Tradeoff]) -> TextTable:
    """Return the table of the steps of a search for the lowest sufficient precision.

    Args:
        goal: The accuracy goal of the search.
        steps: The steps in order.
    """
    columns = (
        TableColumn("layer", CellKind.NAME),
        TableColumn("becomes", CellKind.WORD),
        TableColumn(goal.metric.title),
        TableColumn("arena", rank=1),
        TableColumn("weights", rank=1),
        TableColumn("instructions", rank=2),
        TableColumn("goal", CellKind.WORD),
    )
    rows = [(step.layer or "(all)", *_step_figures(goal, step)) for step in steps]
    return TextTable(columns, rows, styles=[None if step.kept else "dim" for step in steps])


def _step_figures(goal: Goal, step: Tradeoff) -> tuple[str, ...]:
    figures = (step.arena, step.weights, step.instructions)
    arena, weights, instructions = ("" if figure is None else f"{figure:,}" for figure in figures)
    shown_instructions = f"{'~' * (step.is_estimate and bool(instructions))}{instructions}"
    return (step.precision, step.shown(goal.metric), arena, weights, shown_instructions, _verdict(step))


def _verdict(step: Tradeoff) -> str:
    if step.holds:
        return "met"
    missed = "missed" if step.confirmed is None else "missed in C"
    return missed if step.kept else "undone"


class FactList:
    """A growing list of facts, each with a label, a value and a note as plain text."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, str]] = []

    def add_row(self, label: str, value: str, note: str) -> None:
        """Append a fact.

        Args:
            label: What the fact is about.
            value: Its value as text.
            note: An explanation; "" for none.
        """
        self.rows.append((label, value, note))


def title(report: Report) -> str:
    """Return the title of a report: model, board, CPU and precision."""
    return f"{report.model.name} on {report.board} ({report.cpu}), {report.precision}"


def totals(report: Report) -> list[tuple[str, str, str]]:
    """Return the label, value and note of each figure of the whole model that the text report shows."""
    table = FactList()
    _add_time(table, report)
    _add_memory(table, report)
    _add_choices(table, report)
    _add_learning(table, report)
    return table.rows


def _add_time(table: FactList, report: Report) -> None:
    """Add accuracy, work, and the time it takes."""
    model = report.model
    if report.accuracy is not None:
        table.rows += accuracy_rows(report.accuracy, "run under simulation")
    table.add_row("MACs", _number(model.macs), f"{model.parameters:,} parameters")
    if model.dropped_macs:
        table.add_row("MACs dropped", _number(model.dropped_macs), dropped_text(model))
    table.add_row("instructions", _number(report.instructions), "retired, one inference")
    known = report.instruction_range
    if known is not None and known.best != known.worst:
        table.add_row(
            "  best and worst",
            f"{known.best:,} to {known.worst:,}",
            f"of {known.inputs} inputs; "
            + (f"any takes at most {known.bound:,}" if known.bound else f"unbounded: {known.unbounded}"),
        )
    table.add_row("  for other inputs", "" if report.varies else "the same", _varying(report))
    if report.instructions_per_mac is not None:
        table.add_row("instructions/MAC", f"{report.instructions_per_mac:.3f}", "")
    if report.cycles_note:
        table.add_row("cycles, estimate", _number(report.cycles_estimate), report.cycles_note)
    if report.milliseconds_estimate is not None:
        clock = f"{report.clock_hz / 1e6:g} MHz"
        table.add_row("milliseconds, estimate", f"{report.milliseconds_estimate:,.3f}", f"at {clock}")
    if report.stalls:
        table.add_row("waits for memory", _share(report.stalled_share), _stall_text(report))
    cores = report.two_cores
    if cores is not None:
        waiting = " and ".join(f"{100 * share:.1f}" for share in cores.waiting)
        table.add_row(
            f"two cores: {cores.unit}", _number(round(cores.total)), f"the cores wait {waiting} % of the time"
        )
        if report.first_part is not None:
            held = f"to a frame's result, which the next call gives; {_number(round(cores.total))} a frame"
            table.add_row("two cores: latency", _number(round(cores.latency)), held)
        table.add_row("two cores: speed-up", f"{cores.speedup:.3f}", f"over this code on one core; {cores.limits}")
        slowest = [report.layers[i] for i in cores.slowest]
        names = [layer.name + " (copied)" * (layer.kernel == MOVE) for layer in slowest]
        table.add_row("  by one core alone", "", ", ".join(names))
    if report.microjoules_estimate is not None:
        table.add_row("microjoules, estimate", f"{report.microjoules_estimate:,.1f}", "of the whole chip while it runs")


def _add_memory(table: FactList, report: Report) -> None:
    """Add flash and RAM, in all and by the board's memories."""
    flash, ram, model = report.flash, report.ram, report.model
    table.add_row("flash: code", _number(flash.code), "bytes, library functions included")
    table.add_row("flash: weights", _number(flash.weights), "bytes")
    table.add_row("flash: total", _number(flash.total), "bytes")
    table.add_row("RAM: arena", _number(ram.arena), f"bytes, {_optimality(ram)}: activations, scratch, inputs, outputs")
    if ram.state:
        table.add_row("RAM: state", _number(ram.state), "bytes, kept between calls")
    if ram.copies:
        table.add_row("RAM: copies", _number(ram.copies), "bytes of weights, copied at start-up")
    if report.weight_copies:
        nbytes = sum(copy.bytes for copy in report.weight_copies)
        table.add_row("copies at run time", _number(nbytes), f"bytes of weights {copies_text(report.weight_copies)}")
    if report.accelerator is not None:
        cycles = sum(segment.cycles_estimate for segment in report.accelerator.segments)
        table.add_row("NPU: cycles, estimate", _number(cycles), str(report.accelerator))
    table.add_row("RAM: static", _number(ram.static), "bytes besides the arena")
    table.add_row("RAM: peak stack", _number(ram.stack), "bytes below the caller's frame")
    bound = report.stack_bound
    if bound is not None:
        path = ", ".join(call.removeprefix(f"{model.name}_") for call in bound.path)
        table.add_row("RAM: stack bound", _number(bound.bytes), bound.note or f"bytes whatever the input: {path}")
    table.add_row("RAM: total", _number(ram.total), "bytes")
    test = report.self_test
    if test is not None:
        table.add_row(
            "self-test: samples", _number(test.samples), f"{test.given} of them given, which find {test.coverage}"
        )
    if report.self_test_input:
        table.add_row("self-test: input", "", report.self_test_input)
    for known in report.plausible:
        table.add_row(f"plausible: {known.output}", "", f"{known.low:.4g} to {known.high:.4g}")
    if report.monitor is not None:
        observed = ", ".join(report.monitor.names)
        table.add_row("RAM: monitor", _number(report.monitor.nbytes), f"bytes for statistics of {observed}")
    pipeline = report.input_pipeline
    if pipeline is not None:
        table.add_row(
            "input: instructions", _number(pipeline.instructions), f"retired, of the first sample; {pipeline.pipeline}"
        )
        table.add_row("input: state", _number(pipeline.state), "bytes of RAM, for each stream")
        table.add_row("input: tables", _number(pipeline.tables), "bytes of flash, part of the code's")
        table.add_row("input: bit-exact", _number(pipeline.verified), "samples, compared with numpy")
    for memory in report.memories:
        table.add_row(f"memory: {memory.name}", _number(memory.used), holds(memory))


def _add_learning(table: FactList, report: Report) -> None:
    """Add the results of learning, and the cost of a step."""
    learning = report.learning
    if learning is None:
        return
    for examined in learning.examinations:
        loss = "" if examined.loss is None else f"; mean loss of those since the last {examined.loss:.4g}"
        known = f"{100 * examined.accuracy:.2f} %"
        table.add_row(f"after {examined.steps:,} steps", known, f"of the samples{loss}")
    step, alone = learning.step, learning.inference
    for what, note, value, plain in (
        ("instructions", "retired, with the inference", step.instructions, alone.instructions),
        ("cycles, estimate", "with the inference", step.cycles_estimate, alone.cycles_estimate),
        ("peak stack", "bytes", step.stack, alone.stack),
        ("RAM", "bytes of arena and state", step.ram, alone.ram),
        ("flash", "bytes", step.flash, alone.flash),
    ):
        times = f" ({value / plain:.2f} times)" if value and plain else ""
        comparison = f"; {plain:,} where nothing learns{times}" if plain is not None else ""
        table.add_row(f"step: {what}", _number(value), note + comparison)
    table.add_row("RAM: learned", _number(learning.state), f"bytes of state; {learning.trained}")


def _add_choices(table: FactList, report: Report) -> None:
    """Add the compiler's choices and their limits."""
    if report.library_calls:
        table.add_row("kernels", report.kernels, report.library_calls)
    if report.rows is not None:
        table.add_row("layers", _number(report.rows.layers), str(report.rows))
    if report.budget is not None:
        budget = report.budget
        table.add_row("budget: RAM", _number(budget.ram), "bytes of arena, state, copies of weights")
        table.add_row("budget: flash, estimate", _number(budget.flash_estimate), "bytes of weights and code")
        table.add_row("budget: kept by", "", str(budget))
    if report.steps is not None:
        table.add_row("steps: cycles", _number(report.steps.cycles_estimate), str(report.steps))
    if report.tuning is not None:
        table.add_row("tuning: cycles", _number(report.tuning.cycles_estimate), str(report.tuning))
    if report.deadline is not None:
        table.add_row("deadline: cycles", _number(report.deadline.max_cycles), str(report.deadline))


def _varying(report: Report) -> str:
    """Return how many layers take more or fewer instructions for other inputs, and why."""
    reasons = dict.fromkeys(text.rpartition(": ")[2] for text in report.varies)
    counts = [(sum(text.endswith(reason) for text in report.varies), reason) for reason in reasons]
    return "; ".join(f"{n} layer{'s vary' if n > 1 else ' varies'}: {reason}" for n, reason in counts)


def holds(memory: MemoryUse) -> str:
    """Return a text on what a memory holds: its size, and the bytes of arena, code, weights and copies in it."""
    parts = (
        ("arena", memory.arena),
        ("code", memory.code),
        ("weights", memory.weights),
        ("copies of weights", memory.copies),
    )
    listing = ", ".join(f"{what} {nbytes:,}" for what, nbytes in parts if nbytes)
    return f"of {memory.size:,} bytes: {listing or 'nothing'}"


def _optimality(ram: Ram) -> str:
    """Return by how much another placement of buffers could make the arena smaller, at most, as text."""
    if ram.arena <= ram.arena_bound:
        return "proven optimal"
    excess = 100 * (ram.arena / ram.arena_bound - 1)
    return f"at most {excess:.1f} % above the least possible (lower bound {ram.arena_bound:,})"


def dropped_text(model: ModelFigures) -> str:
    """Return a text on the numbers of channels and elements that were removed as constant or unused."""
    channels = f"{model.dropped_channels:,} channels that are constant or that nobody reads"
    elements = f"{model.dropped_elements:,} elements, such as time steps, that no output depends on"
    return " and ".join([channels] * bool(model.dropped_channels) + [elements] * bool(model.dropped_elements))


def accuracy_rows(accuracy: Accuracy, ran: str) -> list[tuple[str, str, str]]:
    """Return the label, value and note of each figure of accuracy.

    Args:
        accuracy: The figures.
        ran: Where the generated code ran, as text.
    """
    samples = f"{accuracy.samples} sample{'s' * (accuracy.samples != 1)}"
    metric = described(accuracy.metric)
    rows = []
    if accuracy.target is not None and accuracy.metric not in ("sqnr", "agreement", "max_abs_error"):
        label = metric.title if metric.by_reference or metric.lower_is_better else "accuracy"
        rows.append((label, metric.show(accuracy.target), f"{metric.title} on {samples}, {ran}"))
        if accuracy.quantized is not None:
            rows.append(("  quantized", metric.show(accuracy.quantized), "in ONNX Runtime, the same samples"))
        if accuracy.float32 is not None:
            note = "the same model and samples" if accuracy.quantized is None else "in ONNX Runtime, the float model"
            rows.append((f"  {accuracy.reference}", metric.show(accuracy.float32), note))
    rows += [_metric_row(measure, accuracy.reference) for measure in accuracy.beside]
    noise = "exact" if accuracy.sqnr_db is None else f"SQNR {accuracy.sqnr_db:.1f} dB"
    if accuracy.agreement is not None:
        agreement = f"{100 * accuracy.agreement:.2f} %"
        rows.append(("agreement", agreement, f"same class as {accuracy.reference}, {samples}"))
    rows.append(("largest error", f"{accuracy.max_abs_error:.3g}", f"against {accuracy.reference}; {noise}"))
    return rows


def _metric_row(measure: MetricValues, reference: str) -> tuple[str, str, str]:
    """Return the row of a further metric: the generated code's value, and the reference's in the note."""
    metric = described(measure.metric)
    note = "" if measure.float32 is None else f"{metric.show(measure.float32)} of {reference}"
    return metric.title, metric.show(measure.target), note


ERROR_COLUMNS: tuple[tuple[TableColumn, Callable[[LayerError], str]], ...] = (
    (TableColumn("op", CellKind.WORD, 7), lambda layer: layer.op),
    (TableColumn("type", CellKind.WORD, 4), lambda layer: layer.precision),
    (TableColumn("range", rank=3), lambda layer: _range(layer.low, layer.high)),
    (TableColumn("method", CellKind.WORD, 5), lambda layer: layer.method),
    (TableColumn("clipped", rank=2), lambda layer: _shown(layer.clipped, lambda share: f"{100 * share:.2f} %")),
    (TableColumn("weights", rank=1), lambda layer: _shown(layer.weights_sqnr_db, "{:.1f}".format)),
    (TableColumn("SQNR"), lambda layer: _sqnr(layer)),
    (TableColumn("cosine", rank=6), lambda layer: _shown(layer.cosine, "{:.5f}".format)),
    (TableColumn("max error", rank=1), lambda layer: _shown(layer.max_abs_error, "{:.3g}".format)),
)
"""Columns of the table of errors, each with the text that it shows for a layer."""


def error_table(comparison: LayerComparison, all_layers: bool) -> TextTable:
    """Return the table of the quantization errors of layers.

    Args:
        comparison: The errors.
        all_layers: Whether to include all layers, in order, instead of the worst ones.
    """
    layers = comparison.layers if all_layers else comparison.worst_first[:NUM_SHOWN_ERROR_LAYERS]
    samples = f"{comparison.samples} sample{'s' * (comparison.samples != 1)}"
    order = "in order" if all_layers else f"worst {len(layers)} of {len(comparison.layers)}"
    return TextTable(
        (TableColumn("layer", CellKind.NAME), *(column for column, _ in ERROR_COLUMNS)),
        [(layer.name, *(show(layer) for _, show in ERROR_COLUMNS)) for layer in layers],
        f"float and integer, {samples}, {order}; SQNR in dB",
        ["bold red" if layer.name == comparison.first_diverging else None for layer in layers],
    )


def _range(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{low:.3g}..{high:.3g}"


def _sqnr(layer: LayerError) -> str:
    if layer.cosine is None:
        return ""
    return "exact" if layer.sqnr_db is None else f"{layer.sqnr_db:.1f}"


def _shown(value: float | None, show: Callable[[float], str]) -> str:
    return "" if value is None else show(value)


def layer_table(report: Report) -> TextTable:
    """Return the table of the figures of all layers."""
    return TextTable(
        (TableColumn("#"), TableColumn("layer", CellKind.NAME), *(column for column, _ in LAYER_COLUMNS)),
        [(str(i), layer.name, *(show(layer) for _, show in LAYER_COLUMNS)) for i, layer in enumerate(report.layers)],
        "layers",
    )


def _share(part: float | None) -> str:
    return "-" if part is None else f"{100 * part:.1f} %"


def _stall_text(report: Report) -> str:
    """Return the memories that the CPU waits for, by instructions and data, as text."""
    kinds = [(s.memory, what, getattr(s, what)) for s in report.stalls or () for what in ("instructions", "data")]
    total = report.cycles_estimate or 1
    return ", ".join(f"{memory}: {what} {_share(n / total)}" for memory, what, n in kinds if n) or "none"


def _per_mac(layer: ReportedLayer) -> str:
    return f"{layer.instructions / layer.macs:.2f}" if layer.instructions and layer.macs else ""


LAYER_COLUMNS: tuple[tuple[TableColumn, Callable[[ReportedLayer], str]], ...] = (
    (TableColumn("kernel", CellKind.WORD, 3), lambda layer: layer.kernel),
    (TableColumn("MACs", rank=4), lambda layer: f"{layer.macs:,}" if layer.macs else ""),
    (TableColumn("instructions"), lambda layer: _number(layer.instructions)),
    (TableColumn("/MAC", rank=5), lambda layer: _per_mac(layer)),
    (TableColumn("cycles", rank=2), lambda layer: _shown(layer.cycles_estimate, "{:,}".format)),
    (
        TableColumn("waits", rank=6),
        lambda layer: _share(stalled_share(layer.cycles_estimate, layer.stalls)) if layer.stalls else "",
    ),
    (TableColumn("flash", rank=1), lambda layer: f"{layer.flash:,}"),
    (TableColumn("RAM", rank=1), lambda layer: f"{layer.ram:,}"),
)
"""Columns of the table of layers, each with the text that it shows for a layer."""


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
