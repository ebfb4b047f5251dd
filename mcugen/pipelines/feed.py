# SPDX-License-Identifier: Apache-2.0
"""A pipeline bound to a model: it converts raw samples for calibration and evaluation, and generates the C code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mcugen.codegen.bundle import InputCode
from mcugen.codegen.checks import array_entry
from mcugen.codegen.literals import c_rows
from mcugen.core.errors import UsageError
from mcugen.evaluation.preprocess import parse_preprocessing
from mcugen.evaluation.sample_files import read_samples
from mcugen.evaluation.samples import Samples, labels_of
from mcugen.hir.types import Array
from mcugen.lir.program import Endpoint
from mcugen.numerics.fixedpoint import quantize
from mcugen.pipelines.grammar import Stages, parse_pipeline, read_pipeline
from mcugen.pipelines.image import ImageStages


@dataclass(frozen=True)
class Feed:
    """An input pipeline bound to a model: it computes the model's only input from raw data.

    Attributes:
        text: The text that describes the pipeline (docs/how-to/pipelines.md).
        stages: The parsed pipeline.
        endpoint: The model's input.
    """

    text: str
    stages: Stages
    endpoint: Endpoint

    def sample(self, place: str, raw: Array) -> Array:
        """Convert a raw sample to the model's input, which is float32 or quantized.

        Args:
            place: Name of the sample for messages.
            raw: The raw data: pixels, or int16 samples of a signal.

        Raises:
            UsageError: The sample cannot be used; the message names it.
        """
        return self._stored(self.stages.reals(place, raw, self.endpoint.shape))

    def _stored(self, real: Array) -> Array:
        quant = self.endpoint.quant
        return real if quant is None else quantize(real, quant, self.endpoint.dtype)

    def samples(self, source: Path | Mapping[str, Array]) -> Samples:
        """Read raw data from a file, a folder or arrays, and convert them to samples of the model's input.

        Raises:
            UsageError: The data cannot be used.
        """
        name = self.endpoint.name
        raw_samples, arrays = read_samples(source, [name], parse_preprocessing(""))
        raw = [np.ascontiguousarray(sample[name].array) for sample in raw_samples]
        inputs = [
            {name: self.sample(sample[name].place, array)} for sample, array in zip(raw_samples, raw, strict=True)
        ]
        path = source if isinstance(source, Path) else Path("samples")
        stored_inputs = tuple(self.stages.stored(array) for array in raw)
        return Samples(inputs, labels_of(path, arrays, raw_samples), raw=stored_inputs)

    def random(self) -> Samples:
        """Return one random sample, equal in every run, for measurements that do not depend on the data."""
        info = np.iinfo(self.stages.raw_dtype)
        shape = self.stages.min_raw_shape(self.endpoint.shape)
        raw = np.random.default_rng(0).integers(info.min, info.max, shape, self.stages.raw_dtype, endpoint=True)
        return replace(self.samples({"x": raw[None]}), is_random=True)

    def code(self, accessor: str, encode: str) -> InputCode:
        """Return the C code of the pipeline.

        Args:
            accessor: Name of the C function that returns the address of the model's input.
            encode: Name of the C function that quantizes a real number; "" for float inputs.
        """
        dtype, stages = self.endpoint.dtype, self.stages
        context = {
            "text": self.text,
            "ctype": dtype.c,
            "accessor": accessor,
            "encode": encode,
            **stages.context(self.endpoint.shape),
        }
        if isinstance(stages, ImageStages):
            table = self._stored(stages.table())
            context |= {"kind": "image", "table_count": len(table), "table": list(c_rows(table))}
            tables = {"color_codes": table}
        else:
            context |= {"kind": "stream", "state_bytes": self.state_bytes}
            tables = stages.tables()
        checked = tuple(array_entry(name, data) for name, data in tables.items())
        return InputCode(str(context["kind"]), stages.template, context, str(stages.raw_dtype), checked)

    @property
    def state_bytes(self) -> int:
        """Return the bytes of RAM that the pipeline keeps between calls for one stream of samples."""
        return self.stages.state_bytes_of(self.endpoint.dtype.nbytes)

    @property
    def table_bytes(self) -> int:
        """Return the bytes of the pipeline's constant tables in flash."""
        return self.stages.table_bytes_of(self.endpoint.dtype.nbytes)


_ELEMENTS = ("float32", "int8", "uint8", "int16", "uint16")


def bind_pipeline(text: str, endpoints: Sequence[Endpoint]) -> Feed:
    """Parse a pipeline, and bind it to a model.

    Args:
        text: The text of the pipeline, or the name of a file that contains it.
        endpoints: The inputs of the model; there must be exactly one.

    Raises:
        UsageError: The pipeline cannot compute the inputs.
    """
    read = read_pipeline(text)
    stages = parse_pipeline(read)
    if len(endpoints) != 1:
        fault = f"{len(endpoints)} inputs"
        raise UsageError(
            "a model with --input-pipeline must have one input besides states", fault, "see --bind, --state"
        )
    (endpoint,) = endpoints
    real = endpoint.dtype.value == "float32"
    coded = endpoint.quant is not None and len(endpoint.quant.scale) == 1 and endpoint.dtype.value in _ELEMENTS
    if endpoint.sizes or not (real or coded):
        fault = f"{endpoint.dtype.value}{' of sizes that vary' * bool(endpoint.sizes)}, '{endpoint.name}'"
        raise UsageError("--input-pipeline must make an input of float32, or of codes with one scale", fault)
    stages.require(endpoint.shape)
    return Feed(read, stages, endpoint)
