# SPDX-License-Identifier: Apache-2.0
"""Recorded figures: TensorFlow Lite Micro with CMSIS-NN (tflm.json), and the kernel study (kernels.md)."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmark.figures import Figures, LayerFigures
from benchmark.subjects import ROOT

ANCHORS = ROOT.parent / "shared" / "anchors"

TFLM = "TensorFlow Lite Micro with CMSIS-NN (TFLM, recorded)"
TFLM_HARNESS_CODE = 1_600
"""Bytes of the recorded `flash_code` that are test firmware; ours is subtracted already."""

_FAMILIES = {
    "ADD": "add",
    "AVERAGE_POOL_2D": "average",
    "SOFTMAX": "softmax",
    "avgpool": "average",
    "avg": "average",
    "reduce_mean": "average",
    "average_pool": "average",
    "global_average_pool": "average",
}
"""One name for what TFLM, the study and mcugen call an operator without multiplications."""

_STUDY_MODELS = {
    "resnet8_cifar10": "ResNet8",
    "ds_cnn_kws": "DS-CNN",
    "mobilenet_v1_025_vww": "VWW",
    "autoencoder_ad": "AD",
}
_STUDY_COLUMNS = {**dict.fromkeys(("cortex-m4", "cortex-m7", "cortex-m33"), "ours m4"), "cortex-m55": "ours m55"}

Key = tuple[str | int, ...]
"""What a layer is recognized by."""


def base_name(model: str) -> str:
    """Return the name of the trained network, without the suffix of its precision."""
    return re.sub(r"_(int8_qdq|int8|f32)$", "", model)


def _family(op: str) -> str:
    return _FAMILIES.get(op, op.lower())


@dataclass(frozen=True)
class Tflm:
    """The recorded figures of TensorFlow Lite Micro, as in the file."""

    models: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path = ANCHORS) -> Tflm:
        """Read tflm.json; empty if the file is absent."""
        path = folder / "tflm.json"
        return cls(json.loads(path.read_text()) if path.is_file() else {})

    def figures(self, model: str, cpu: str) -> Figures | None:
        """Return the figures of an int8 model on a CPU; None if they were not recorded."""
        found = self._found(model, cpu)
        return found and Figures(
            instructions=found["instructions"],
            code=found["flash_code"] - TFLM_HARNESS_CODE,
            weights=found["model_bytes"],
            arena=found["arena"],
            static=found["ram_static"] - found["arena"],
            stack=found["stack"],
            error=None,
        )

    def layers(self, model: str, cpu: str, ours: Iterable[LayerFigures]) -> list[int | None]:
        """Return the recorded instructions for each of our layers, None where there are none.

        Layers are matched by multiply-accumulates, others by operator, in order.
        """
        found = self._found(model, cpu) or {}
        waiting: dict[Key, list[int]] = defaultdict(list)
        for layer in found.get("layers", ()):
            waiting[self._key(layer["op"], layer["macs"])].append(layer["instructions"])
        keys = (self._key(layer.op, layer.macs) for layer in ours)
        return [waiting[key].pop(0) if waiting[key] else None for key in keys]

    def _found(self, model: str, cpu: str) -> Any:
        return self.models.get(base_name(model), {}).get(cpu.removesuffix("plus"))

    @staticmethod
    def _key(op: str, macs: int) -> Key:
        return ("macs", macs) if macs else (_family(op),)


@dataclass(frozen=True)
class Study:
    """The recorded kernel study: table cells by column, for layers by key and for models by name."""

    layer_cells: Mapping[Key, Mapping[str, str]] = field(default_factory=dict)
    model_cells: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path = ANCHORS) -> Study:
        """Read kernels.md; empty if the file is absent."""
        path = folder / "kernels.md"
        return cls.parse(path.read_text()) if path.is_file() else cls()

    @classmethod
    def parse(cls, text: str) -> Study:
        """Return the study in a Markdown text: the tables whose first columns are `layer` and `model`."""
        layers = {_study_key(row): row for row in tables(text, "layer")}
        return cls(layers, {row["model"]: row for row in tables(text, "model")})

    def layer(self, layer: LayerFigures, cpu: str) -> float | None:
        """Return the instructions of a layer on a CPU; None if unknown."""
        key = ("macs", layer.macs, layer.channels) if layer.macs else (_family(layer.op), layer.elements)
        row = self.layer_cells.get(key)
        each = _number(row, _STUDY_COLUMNS.get(cpu)) if row else None
        return None if each is None else each * (layer.macs or layer.elements)

    def instructions(self, model: str, cpu: str) -> float | None:
        """Return the instructions of a whole model on a CPU; None if unknown."""
        millions = _number(self._model(model), _STUDY_COLUMNS.get(cpu))
        return None if millions is None else 1e6 * millions

    def cycles(self, model: str) -> tuple[float | None, float | None]:
        """Return the estimated Cortex-M4 cycles of a model: by CMSIS-NN, and by the study's kernels."""
        found = _numbers(self._model(model), "est. Mcycles M4")
        return (1e6 * found[0], 1e6 * found[1]) if len(found) > 1 else (None, None)

    def _model(self, model: str) -> Mapping[str, str]:
        return self.model_cells.get(_STUDY_MODELS.get(base_name(model), ""), {})


def _study_key(row: Mapping[str, str]) -> Key:
    """Return the key of a row.

    Names are like c3x3_16_16_32x32, pw_8_16_48x48, dw3x3_64_25x5, add_16x32x32, with or without a model's letter.
    """
    kind, *sizes = re.sub(r"^[rdva]_", "", row["layer"]).split("_")
    count = int(row["MACs"])
    if re.fullmatch(r"c\d+x\d+|pw|fc", kind):
        return ("macs", count, int(sizes[1]))
    if kind.startswith("dw"):
        return ("macs", count, int(sizes[0]))
    return (_family(kind), count)


def tables(text: str, first: str) -> list[dict[str, str]]:
    """Return the rows of the Markdown tables whose first column has this title, by column, without emphasis."""
    rows, titles = [], []
    for line in text.splitlines():
        cells = [cell.strip(" *") for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            titles = []
        elif not titles:
            titles = cells
        elif titles[0] == first and not cells[0].startswith("---"):
            rows.append(dict(zip(titles, cells, strict=False)))
    return rows


def _number(row: Mapping[str, str], column: str | None) -> float | None:
    found = _numbers(row, column) if column else ()
    return found[0] if found else None


def _numbers(row: Mapping[str, str], column: str) -> Sequence[float]:
    """Return the numbers in the cell of the first column whose title begins with `column`."""
    cell = next((cell for title, cell in row.items() if title.startswith(column)), "")
    return [float(number) for number in re.findall(r"\d+\.\d+", cell)]
