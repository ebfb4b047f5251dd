# SPDX-License-Identifier: Apache-2.0
"""The public Python interface to quantization: `quantize` and the quantized model that it returns."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import onnx

from mcugen.api.compilation import Compilation
from mcugen.api.keyword_types import QuantizeKeywords
from mcugen.codegen.write import replace_file
from mcugen.core.errors import UsageError, shortened
from mcugen.distributed.sharing import Workers
from mcugen.driver.plugins import registry_of
from mcugen.evaluation.accuracy import QuantizationEstimate
from mcugen.evaluation.array_files import read_npy, read_npz
from mcugen.evaluation.python_samples import LABELS_NAME, SampleInput, sample_source
from mcugen.evaluation.sample_files import ONLY_INPUT_NAME
from mcugen.frontend.conversion import convert_object, framework_of, needs_examples, require_no_examples
from mcugen.frontend.onnx.load import parse_model
from mcugen.options.keywords import Keywords, takes_keywords
from mcugen.quantization.quantize import Progress, Quantization, no_progress
from mcugen.quantization.summary import layer_precisions
from mcugen.reporting.notebook import precision_table, tables_html

if TYPE_CHECKING:
    from typing import Unpack


_ARRAY_FILES = (".npz", ".npy")
"""Files of arrays that example inputs may come from."""

ModelInput: TypeAlias = Any
"""Type of a model as a user gives it: a file, bytes, or an object of ONNX, PyTorch, Keras or scikit-learn."""


class QuantizedModel:
    """A model that mcugen quantized: standard ONNX with integer weights, and what is known of its accuracy.

    Attributes:
        proto: The quantized model, which ONNX Runtime runs with the same results as the generated code.
        estimate: The accuracy against the float model on some samples; None if it is unknown.
        notes: Assumptions and remarks, one sentence each.
        warnings: Problems of the samples, one sentence each.
    """

    def __init__(self, quantization: Quantization) -> None:
        self._quantization = quantization
        self.proto: onnx.ModelProto = quantization.proto
        self.estimate: QuantizationEstimate | None = quantization.estimate
        self.notes: Sequence[str] = quantization.notes
        self.warnings: Sequence[str] = quantization.warnings

    @property
    def layers(self) -> list[Mapping[str, str]]:
        """Return the name, operator and precision of each layer, and the reason of a precision of its own."""
        return list(layer_precisions(self._quantization))

    def write(self, file: str | os.PathLike[str]) -> Path:
        """Write the quantized model to an .onnx file, and return its path.

        Raises:
            OutputError: The file cannot be written.
        """
        path, data = Path(file), self.proto.SerializeToString(deterministic=True)
        replace_file(path, lambda stream: stream.write(data))
        return path

    def _title(self) -> str:
        estimate = "accuracy unknown" if self.estimate is None else str(self.estimate)
        return f"{self._quantization.describe()}: {estimate}"

    def __repr__(self) -> str:
        """Return the precision and the estimated accuracy in one line."""
        return f"<mcugen.QuantizedModel: {self._title()}>"

    def _repr_html_(self) -> str:
        """Return the precision of each layer as a table for a notebook."""
        return tables_html([precision_table(self._title(), self.layers)])


@takes_keywords("quantize")
def quantize(
    model: ModelInput,
    samples: SampleInput | None = None,
    *,
    example_inputs: Any = None,
    finetune: int = 0,
    jobs: int = 1,
    cluster: str = "",
    progress: Progress = no_progress,
    **options: Unpack[QuantizeKeywords],
) -> QuantizedModel:
    """Quantize a float model with samples, and estimate its accuracy.

    Every option of `mcugen quantize` is a keyword, as for `mcugen.compile`.

    Args:
        model: The model, as for `mcugen.compile`.
        samples: The samples that ranges come from, which are also the keyword `calibration`: a path, an array with a
            leading axis of samples, a list of arrays, or a dictionary of these by the names of inputs.
        example_inputs: Inputs of one inference, as for `mcugen.compile`.
        finetune: Epochs of fine-tuning on the samples, if outputs are below `min_sqnr` (25 dB).
        jobs: Number of processes that evaluate candidates of `precision="auto"`.
        cluster: Address of a Dask scheduler whose workers do so; "" for none.
        progress: Called with the name of a task, the number of finished steps, and the number of all steps.
        **options: The options; docs/reference/options.md describes them.

    Returns:
        The quantized model, which `mcugen.compile` takes as a model.

    Raises:
        UsageError: A keyword, a value or a file of samples is wrong, or there are no samples.
        ModelError: The model is not valid ONNX.

    Example:
        >>> import mcugen, numpy as np, onnx
        >>> model = onnx.parser.parse_model('''
        ...     <ir_version: 10, opset_import: ["": 21]>
        ...     small (float[1, 4] x) => (float[1, 2] y)
        ...     <float[4, 2] w = {0.1, 0.2, 0.3, -0.4, 0.5, 0.6, -0.7, 0.8}> { y = MatMul(x, w) }''')
        >>> samples = np.random.default_rng(0).uniform(-1, 1, (64, 1, 4))
        >>> quantized = mcugen.quantize(model, samples)
        >>> quantized.layers[0]["precision"]
        'int8'
    """
    if samples is not None and options.get("calibration") is not None:
        raise UsageError("samples must be given once", "samples and calibration", "leave one out")
    known = options if samples is None else {**options, "calibration": samples}
    task = Keywords("quantize", known).task
    task = replace(task, quantizing=replace(task.quantizing, finetune=finetune))
    examples = example_inputs_for(model, example_inputs, known.get("calibration"))
    net = Compilation.of(
        resolve_model(model, examples, task.options.plugins), "host", task, workers=Workers(jobs, cluster)
    )
    net.progress = progress
    return QuantizedModel(net.quantized)


def resolve_model(model: Any, example_inputs: Any = None, plugins: Sequence[str | Path] = ()) -> Path | onnx.ModelProto:
    """Return a model that is given as a file, as bytes, or as an object of mcugen, ONNX or another framework.

    Args:
        model: The model.
        example_inputs: Inputs of one inference, for models whose inputs have no fixed shape.
        plugins: Files of plug-ins, whose operators bytes of a .tflite model may use.

    Raises:
        ModelError: The bytes are not an ONNX model, or a framework cannot convert its model.
        UsageError: The model is of another type.
        ToolMissingError: A package that converts the model is not installed.
    """
    if isinstance(model, onnx.ModelProto | QuantizedModel | bytes | bytearray | str | os.PathLike):
        require_no_examples(example_inputs, f"a model of type {type(model).__name__}")
    if isinstance(model, onnx.ModelProto):
        return model
    if isinstance(model, QuantizedModel):
        return model.proto
    if isinstance(model, bytes | bytearray):
        return parse_model(bytes(model), Path("the model"), registry_of(plugins))
    if isinstance(model, str | os.PathLike):
        return Path(model)
    converted = _trained_onnx(model) or convert_object(model, example_inputs)
    if converted is not None:
        return converted
    fault = f"{shortened(repr(model), 80)}, which is of type {type(model).__name__}"
    rule = "model must be a path, an ONNX model, or a model of PyTorch, Keras or scikit-learn"
    raise UsageError(rule, fault)


def _trained_onnx(model: Any) -> onnx.ModelProto | None:
    """Return the ONNX form of a module of `mcugen.torch.prepare_qat`, which knows its shapes; None for other models."""
    if framework_of(model) != "torch":
        return None
    from mcugen.quantization.qat.module import QatModule

    return model.to_onnx() if isinstance(model, QatModule) else None


def example_inputs_for(model: Any, example_inputs: Any, samples: Any) -> Any:
    """Return the example inputs of a model: those given, or else the first sample if the model needs some."""
    if isinstance(example_inputs, str | os.PathLike):
        return _arrays_of(Path(example_inputs))
    if example_inputs is not None or not needs_examples(model):
        return example_inputs
    return example_of(samples)


def _arrays_of(path: Path) -> Any:
    """Return the array of an .npy file, or of an .npz file with one array; else the arrays of an .npz file by name.

    Raises:
        UsageError: The file cannot be read, or is no such file.
    """
    if path.suffix == ".npy":
        return read_npy(path)
    arrays = dict(read_npz(path))
    return next(iter(arrays.values())) if len(arrays) == 1 else arrays


def example_of(samples: Any) -> Any:
    """Return the first sample of arrays, or of an .npz or .npy file, as an array with a leading axis of 1; else None.

    Args:
        samples: A SampleInput; a dictionary gives a dictionary.
    """
    if samples is None:
        return None
    if isinstance(samples, str | os.PathLike):
        path = Path(samples)
        if path.suffix not in _ARRAY_FILES or not path.is_file():
            return None
        samples = _arrays_of(path)
    source = sample_source(samples)
    assert not isinstance(source, Path)
    examples = {name: array[:1] for name, array in source.items() if name != LABELS_NAME}
    return examples.get(ONLY_INPUT_NAME, examples)
