# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime for many runs of one model, of which only what the caller keeps is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
import onnxruntime

from mcugen.errors import VerificationError
from mcugen.hir.types import Array


class Session:
    """A model that is ready to run. `literal` computes node by node as written, else nodes may be fused."""

    def __init__(self, model: onnx.ModelProto, literal: bool = True, threads: int = 0) -> None:
        levels = onnxruntime.GraphOptimizationLevel
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = levels.ORT_DISABLE_ALL if literal else levels.ORT_ENABLE_ALL
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        try:
            self._session = onnxruntime.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime's exceptions share no base class
            raise _refused(error) from error

    def run(self, outputs: Sequence[str], inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The named tensors for one sample."""
        if not outputs:  # to ONNX Runtime, no names are all names
            return {}
        try:
            return dict(zip(outputs, self._session.run(list(outputs), dict(inputs)), strict=True))
        except Exception as error:
            raise _refused(error) from error


def _refused(error: Exception) -> VerificationError:
    return VerificationError("ONNX Runtime must run the float model", str(error).split("\n")[0][:200])
