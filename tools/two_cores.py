# SPDX-License-Identifier: Apache-2.0
"""Models on two cores beside one: the tables of docs/reference/figures/two_cores.md (`make two-cores`).

Equal cores are Arm's SSE-200 under QEMU; unlike ones are simulated one after the other, and joined by time.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import onnx
import typer
import zoo
from markers import between_markers, markdown_table, rewrite_passage

from mcugen.core.board import load_board
from mcugen.core.errors import VerificationError
from mcugen.core.options import GOALS, CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.lir.program import MOVE
from mcugen.measurement.evaluate import as_stored, measure_once, random_samples, render_for_helper, sample_endpoints
from mcugen.reporting.two_cores import OTHER
from mcugen.simulation import simulate
from mcugen.simulation.both_cores import run_on_both_cores

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "reference" / "figures" / "two_cores.md"
MODELS = ROOT.parent / "shared" / "models"

NAMES = {
    "ResNet8": "resnet8_cifar10_int8_qdq",
    "DS-CNN": "ds_cnn_kws_int8_qdq",
    "MobileNetV1": "mobilenet_v1_025_vww_int8_qdq",
    "autoencoder": "autoencoder_ad_int8_qdq",
}
ZOO = (
    *("esp_tcn_stream", "deeploy_tinyvit", "dory_tcn_int", "dory_eegnet_int", "mnist_cntk", "pt_resnet_s_legacy"),
    *("pt_tcn_legacy", "st_mobilenet_v2_035_128"),
)
"""CNNs that nobody tuned for, as `make zoo` quantizes them."""
BOARDS = ("rp2040", "rp2350")
UNLIKE = ("rt1170", "stm32h745", "nrf5340")
UNLIKE_HEADINGS = (
    *("model", "board", "one core, ms", "both, ms", "times", "at best", "pace", "cores wait, %", "arena, times"),
)
HEADINGS = (
    *("model", "board", "one core", "slower core of two", "times", "arena, times", "forks", "a barrier"),
    *("in whole layers, %", "waiting at barriers, %"),
)


Rows = list[tuple[str, ...]]
MIN_MEASURED_INSTRUCTIONS = 20_000
"""Instructions of a kernel from which on its pace is told."""


def main(
    tables: Annotated[str, typer.Option(help="measured, unlike, zoo and paces, by commas")] = "measured,unlike",
    boards: Annotated[str, typer.Option(help="of the zoo's table, and of paces, by commas")] = ",".join(BOARDS),
    models: Annotated[str, typer.Option(help="of the zoo's table, by commas: it keeps others")] = ",".join(ZOO),
    optimize: Annotated[str, typer.Option(help="of the zoo's table: another goal than balanced is told")] = GOALS[0],
) -> None:
    """Measure the models and write the tables."""
    wanted, paths = tables.split(","), {title: MODELS / f"{name}.onnx" for title, name in NAMES.items()}
    if "measured" in wanted:
        write_table("measured", HEADINGS, [equal_cores_row(*each, board) for each in paths.items() for board in BOARDS])
    if "unlike" in wanted:
        write_table(
            "unlike", UNLIKE_HEADINGS, [unlike_cores_row(*each, board) for each in paths.items() for board in UNLIKE]
        )
    if "paces" in wanted:
        for board in boards.split(","):
            for key, found in zip(("first_paces", "paces"), kernel_paces(list(paths.values()), board), strict=True):
                each = ", ".join(f"{kernel} = {pace:.2f}" for kernel, pace in found.items())
                typer.echo(f"{board}: {key} = {{ {each} }}")
    if "zoo" in wanted:
        for name in models.split(","):
            write_table("zoo", HEADINGS, merge_zoo_rows(zoo_rows(name, boards.split(","), optimize)))


def write_table(marker: str, headings: tuple[str, ...], rows: Rows) -> None:
    """Write a table of the document."""
    table = markdown_table([headings, *rows], 2)
    rewrite_passage(DOCUMENT, marker, table)


def merge_zoo_rows(rows: Rows) -> Rows:
    """Return the rows together with the document's rows of other models and boards."""
    lines = between_markers(DOCUMENT.read_text(), "zoo").splitlines()[2:]
    known = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines]
    return sorted({row[:2]: row for row in (*known, *rows)}.values())


def zoo_rows(name: str, boards: list[str], goal: str) -> Rows:
    """Return the rows of a quantized model of the zoo."""
    path = next(folder / f"{name}.onnx" for folder in zoo.FOLDERS if (folder / f"{name}.onnx").is_file())
    model = zoo.quantized(path, boards[0])
    title = name if goal == GOALS[0] else f"{name}, {goal}"
    return [equal_cores_row(title, model, board, goal) for board in boards]


def unlike_cores_row(title: str, model: Path, board: str) -> tuple[str, ...]:
    """Return a row of the table of unlike cores; "at best" follows from the pace of the second core."""
    one, two = (compile_model(model, board, CompileOptions("net", cores=n)) for n in (1, 2))
    alone, cores = measure_once(one).milliseconds_estimate, measure_once(two).two_cores
    if alone is None or cores is None:
        return (title, board, "", "", "not shared", "", "", "", "")
    arena = two.program.arena_size / one.program.arena_size
    waiting = " and ".join(f"{abs(100 * share):.0f}" for share in cores.waiting)
    time = (f"{alone:.3f}", f"{cores.total / 1e3:.3f}", f"{cores.total / 1e3 / alone:.3f}")
    return (title, board, *time, f"{cores.pace / (1 + cores.pace):.3f}", f"{cores.pace:.2f}", waiting, f"{arena:.3f}")


def kernel_paces(models: Sequence[Path], board: str) -> list[dict[str, float]]:
    """Return the time of an instruction of each kernel, for each core, relative to the first core's average.

    The second core is measured on its shards of layers.
    """
    cores = [defaultdict[str, list[float]](lambda: [0.0, 0.0]) for _ in range(2)]
    for model in models:
        compiled = compile_model(model, board, CompileOptions("net", cores=2))
        (sample,) = random_samples(sample_endpoints(compiled)).inputs
        stored = [as_stored(sample, compiled.program.inputs)]
        firmware = render_for_helper(compiled)
        assert firmware is not None
        for core, (bundle, side) in enumerate(((compiled.bundle, compiled.board), firmware)):
            run = simulate(bundle, side, stored, per_layer=True, cycles=True)
            assert run.cycles is not None and run.cycles.layers is not None and run.layer_instructions is not None
            each = zip(compiled.report.layers, run.cycles.layers, run.layer_instructions, strict=True)
            for layer, cycles, instructions in each:
                if core != OTHER or layer.core == OTHER:  # its image has the constants of no others
                    cores[core][layer.kernel][0] += cycles / side.clock_hz
                    cores[core][layer.kernel][1] += instructions
    long = [
        {name: sums[name] for name in sorted(sums) if sums[name][1] >= MIN_MEASURED_INSTRUCTIONS and name != MOVE}
        for sums in cores
    ]
    unit = sum(seconds for seconds, _ in long[0].values()) / sum(count for _, count in long[0].values())
    return [{name: seconds / count / unit for name, (seconds, count) in each.items()} for each in long]


def equal_cores_row(title: str, model: Path | onnx.ModelProto, board: str, goal: str = GOALS[0]) -> tuple[str, ...]:
    """Return a row of the table of equal cores."""
    one, two = (compile_model(model, board, CompileOptions("net", cores=n, optimize=goal)) for n in (1, 2))
    sample = {
        port.name: np.random.default_rng(0).integers(-128, 128, port.shape).astype(port.dtype)
        for port in two.bundle.inputs
    }
    alone = simulate(one.bundle, load_board(board), [sample]).instructions
    with tempfile.TemporaryDirectory() as folder:
        run = run_on_both_cores(two.bundle, load_board(board), sample, Path(folder))
    if alone is None or not all(np.array_equal(run.together[key], run.alone[key]) for key in run.alone):
        raise VerificationError("two cores must give the bits of one", f"{title} on {board}", "report this as a bug")
    arena = two.program.arena_size / one.program.arena_size
    time = (f"{alone:,}", f"{run.slower:,}", f"{run.slower / alone:.3f}")
    whole = run.slower - sum(fork.instructions for fork in run.forks)
    uneven = sum(abs(fork.first - fork.other) for fork in run.forks)
    shares = (f"{100 * part / run.slower:.1f}" for part in (whole, uneven))
    return (title, board, *time, f"{arena:.3f}", str(len(run.forks)), f"{run.barrier:.0f}", *shares)


if __name__ == "__main__":
    typer.run(main)
