# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime sessions for many runs of one model.

All sessions, also those of tests and tools, are created here. They compute integers exactly on every CPU; floats differ
between CPUs by rounding only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from mcugen.core.errors import VerificationError
from mcugen.core.packages import optional_package
from mcugen.evaluation.exact_products import with_exact_products
from mcugen.hir.types import Array

if TYPE_CHECKING:
    import onnxruntime

_ONLY_EXTENDED = 21
"""Opset whose successors define operators anew for more element types only, and leave existing meanings as they are."""


class Session:
    """A model that is ready to run in ONNX Runtime.

    Args:
        literal: Whether nodes are computed one by one as written; otherwise ONNX Runtime may fuse them.
        threads: The number of threads; 0 leaves it to ONNX Runtime.
        rule: The beginning of the message of the VerificationError for a model that does not run.
        relabels: Whether a model of an opset that ONNX Runtime has no kernels for is run as one of an older opset.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        literal: bool = True,
        threads: int = 0,
        rule: str = "ONNX Runtime must run the float model",
        *,
        relabels: bool = True,
    ) -> None:
        with optional_package("quantize", "a comparison with ONNX Runtime, or a quantization,"):
            import onnxruntime  # Its import takes half as long as all others together.

        levels = onnxruntime.GraphOptimizationLevel
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 4  # errors are raised
        options.add_session_config_entry("session.disable_quant_qdq", "1")  # fused, it mixes uint8 and int8
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # it takes thrice the CPU of the work
        self._rule = rule
        exact = with_exact_products(model)
        for level in [levels.ORT_DISABLE_ALL] if literal else [levels.ORT_ENABLE_ALL, levels.ORT_DISABLE_ALL]:
            options.graph_optimization_level = level
            try:
                self._session = _session(exact, options, relabels=relabels)
                break
            except Exception as error:  # onnxruntime's exceptions share no base class
                if level is levels.ORT_DISABLE_ALL:  # fusions of 1.32 lost an output
                    raise self._refused(error) from error

    @property
    def outputs(self) -> list[str]:
        """Return the names of the model's outputs, in order."""
        return [output.name for output in self._session.get_outputs()]

    def run(self, outputs: Sequence[str], inputs: Mapping[str, Array]) -> dict[str, Any]:
        """Run one sample, and return the named tensors.

        Operators of ai.onnx.ml may give lists of dictionaries instead of arrays.

        Args:
            outputs: Names of the outputs to return.
            inputs: The inputs of the sample, by name.
        """
        if not outputs:  # to ONNX Runtime, no names are all names
            return {}
        arrays = {name: np.asarray(array) for name, array in inputs.items()}  # it takes no numpy scalars
        try:
            return dict(zip(outputs, self._session.run(list(outputs), arrays), strict=True))
        except Exception as error:
            raise self._refused(error) from error

    def _refused(self, error: Exception) -> VerificationError:
        return VerificationError(self._rule, str(error).split("\n")[0][:200])


def _session(
    model: onnx.ModelProto, options: onnxruntime.SessionOptions, *, relabels: bool
) -> onnxruntime.InferenceSession:
    """Return a session for the model's opset, or for the newest opset that ONNX Runtime has kernels for.

    ONNX Runtime takes an opset that it has not heard of for the newest it has; one that it has heard of, and has no
    kernels for yet, it refuses (1.32 does so for QuantizeLinear of opset 28).
    """
    from onnxruntime import InferenceSession
    from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernel

    def session(declared: onnx.ModelProto) -> onnxruntime.InferenceSession:
        data = declared.SerializeToString()
        return InferenceSession(data, options, providers=["CPUExecutionProvider"], enable_fallback=0)

    try:
        return session(model)
    except NoKernel:
        if not relabels:
            raise
        older = onnx.ModelProto()
        older.CopyFrom(model)
        for entry in older.opset_import:
            while entry.domain in ("", "ai.onnx") and entry.version > _ONLY_EXTENDED:
                entry.version -= 1
                with contextlib.suppress(Exception):  # what is told is why the model does not run as it is
                    return session(older)
        raise
