# SPDX-License-Identifier: Apache-2.0
"""Generated code of every variant, for tools/lint_models.py: each kernel, each option, each port of the runtime.

The models of ../shared alone would show the lint only the kernels that they happen to use. `python lint_variants.py
FOLDER`, in this folder with the paths of pyproject.toml, writes the code to FOLDER/CPU/NAME.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
from lint_models import KERNEL, PLAIN, VARIANT
from model_variants import MODELS, OF_FILES_AND_RAW_DATA, PATH, floats, quantized
from onnx_models import Net
from portable_models import WEIGHTS, learning_model, portable_models
from shared_models import MODELS as SHARED
from shared_models import roomy
from two_core_boards import two_cores

from mcugen.api.compilation import Compilation
from mcugen.codegen.bundle import Bundle
from mcugen.codegen.runtime_functions import with_runtime_functions
from mcugen.core.board import Board, load_board
from mcugen.core.options import CompileOptions, Training
from mcugen.core.resources import runtime_headers
from mcugen.deploy.linking import Linking
from mcugen.search import core_assignment, two_core_program

RANGES = {"scores": (0.0, 1.0)}
CHECKED = CompileOptions(
    check_weights=True, checked_arena=True, checked_indices=True, plausible=RANGES, validation=True
)
OPTIONS: Mapping[str, tuple[Callable[[], Net], str, CompileOptions]] = {
    "checked": (quantized, "host", CHECKED),
    "checked floats": (floats, "host", CompileOptions(check_weights=True, checked_arena=True, validation=True)),
    "checked steps": (quantized, "host", CompileOptions(steps=True, checked_steps=True, check_weights=True)),
    "checked rows": (quantized, "host", CompileOptions(optimize="ram", check_weights=True, validation=True)),
    "checked images": (
        quantized,
        "host",
        CompileOptions(check_weights=True, input_pipeline="image=rgb565, crop=center, nearest"),
    ),
    "checked beside a file": (
        quantized,
        "host",
        CompileOptions(check_parameters=True, weights_blob=True, validation=True),
    ),
    "self-test": (quantized, "host", CompileOptions(self_test=3)),
    "buffers of the caller's": (quantized, "host", CompileOptions(external_io=True)),
    "validated weights of their own": (quantized, "nrf52840", CompileOptions(weights_blob=True, validation=True)),
}
"""Models with options that model_variants.MODELS does not have: builder, board and options by name."""
LESSONS: Mapping[str, Training] = {
    "adam": Training("last:1", "mse", "adam", batch=2),
    "momentum": Training("last:1", "cross-entropy", "momentum"),
    "huber": Training("last:1", "huber"),
    "contrastive": Training("last:1", "contrastive"),
    "centroids": Training("centroids:3"),
    "nearest": Training("nearest:3:4:2"),
    "statistics": Training("statistics"),
}
PORTS = {"m4": ("SEV", "MU", "HSEM"), PLAIN: ("POSIX",)}
"""Ports of mcugen_cores.h by the CPU whose C library has the headers that they include.

The port of FreeRTOS needs headers that are not installed.
"""


def embedding() -> Net:
    """Return a fully connected layer in float."""
    draw, net = np.random.default_rng(5), Net()
    net.output(net.op("Gemm", net.input("x", 1, 6), net.const(draw.normal(size=(6, 4))), net.const(np.ones(4))))
    return net


def variants() -> Iterator[tuple[str, Board, Bundle]]:
    """Yield the name of a folder, the board and the generated code of each variant."""
    for portable in portable_models():
        yield f"{KERNEL}{portable.name}", portable.model.board, portable.model.bundle
    for name, board, bundle in forms():
        yield f"{VARIANT}{name.replace(' ', '_')}", board, bundle


def forms() -> Iterator[tuple[str, Board, Bundle]]:
    """Yield the code of all models in model_variants and OPTIONS."""
    for form, (make, board, options) in {**MODELS, **OF_FILES_AND_RAW_DATA, **OPTIONS}.items():
        yield form, *_compiled(make, roomy(board), options)
    yield from lessons()
    yield from several()


def lessons() -> Iterator[tuple[str, Board, Bundle]]:
    """Yield the code of trainable models."""
    for precision in WEIGHTS:
        model = learning_model(precision).model
        yield f"lesson {precision}", model.board, model.bundle
    for name, training in LESSONS.items():
        yield f"lesson {name}", *_compiled(embedding, load_board("host"), CompileOptions(training=training))


def several() -> Iterator[tuple[str, Board, Bundle]]:
    """Yield the code of models on two cores, and of two models in one firmware."""
    for board in ("rp2040", "nrf52840"):
        options = CompileOptions("net", cores=2)
        net = Compilation(SHARED / "ds_cnn_kws_int8_qdq.onnx", two_cores(board), options)
        yield f"two cores {board}", net.target, net.compiled.bundle
    shared = core_assignment.share_layers
    # Portions take longer.
    with patch.object(two_core_program, "share_layers", lambda *args: (shared(*args)[0], float("inf"))):
        options = CompileOptions("net", cores=2, optimize="throughput")
        net = Compilation(quantized().model(), two_cores("rp2040"), options)
        yield "frame by frame", net.target, net.compiled.bundle
    for board in ("host", "nrf52840"):
        nets = [
            Compilation(make().model(), board, CompileOptions(name))
            for name, make in (("first", quantized), ("second", lambda: quantized(PATH)))
        ]
        yield f"firmware {board}", load_board(board), Linking(nets, "firmware").firmware.bundle


def _compiled(make: Callable[[], Net], board: Board, options: CompileOptions) -> tuple[Board, Bundle]:
    options = options if options.name else replace(options, name="net")
    return board, Compilation(make().model(), board, options).compiled.bundle


def cpu_of(board: Board) -> str:
    """Return the name that tools/lint_c.py uses for the CPU of a board's compiler."""
    cpus = {"mve": "m55", "dsp": "m4", "thumb2": "m4", "thumb1": "m0", "rv32": "rv32"}
    return next((cpu for feature, cpu in cpus.items() if feature in board.features), PLAIN)


def write_headers(folder: Path, ports: Sequence[str]) -> None:
    """Write a C file that includes the runtime headers once with each port, since no model includes all of them."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {name: path.read_text() for name, path in runtime_headers().items()}
    for name, text in with_runtime_functions(texts).items():
        (folder / name).write_text(text)
    (folder / "store.c").write_text('#include "mcugen_store.h"\n')
    for port in ports:
        cache = "#define MCUGEN_CORES_CACHE\n" if port in ("MU", "HSEM") else ""
        (folder / f"port_{port.lower()}.c").write_text(
            f'#define MCUGEN_CORES_{port}\n{cache}#include "mcugen_cores.h"\n'
        )


def main() -> None:
    """Write the code of all variants to folders."""
    place = Path(sys.argv[1])
    for name, board, bundle in variants():
        folder = place / cpu_of(board) / name
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in bundle.files.items():
            if file.endswith((".c", ".h")):
                (folder / file).write_text(text)
    for cpu, ports in PORTS.items():
        write_headers(place / cpu / f"{VARIANT}headers", ports)


if __name__ == "__main__":
    main()
