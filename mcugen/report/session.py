# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime for many runs of one model, of which only what the caller keeps is kept.

This is the one place that makes its sessions, for our tests and tools too: integers that come out of it are exact on
every CPU, and floats differ from one CPU to another by rounding alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx

from mcugen.errors import VerificationError
from mcugen.hir.types import Array
from mcugen.report.exact_products import with_exact_products


class Session:
    """A model that is ready to run. `literal` computes node by node as written, else nodes may be fused.

    `rule` begins the message of the VerificationError that a model gets which does not run.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        literal: bool = True,
        threads: int = 0,
        rule: str = "ONNX Runtime must run the float model",
    ) -> None:
        import onnxruntime  # half as long as all else that is imported, and only what quantizes or compares needs it

        levels = onnxruntime.GraphOptimizationLevel
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = levels.ORT_DISABLE_ALL if literal else levels.ORT_ENABLE_ALL
        options.intra_op_num_threads = threads
        options.log_severity_level = 4  # errors are raised
        options.add_session_config_entry("session.disable_quant_qdq", "1")  # fused, it mixes uint8 and int8
        self._rule = rule
        try:
            self._session = onnxruntime.InferenceSession(
                with_exact_products(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime's exceptions share no base class
            raise self._refused(error) from error

    @property
    def outputs(self) -> list[str]:
        """The model's, in order."""
        return [output.name for output in self._session.get_outputs()]

    def run(self, outputs: Sequence[str], inputs: Mapping[str, Array]) -> dict[str, Any]:
        """The named tensors for one sample (of ai.onnx.ml also lists of dictionaries)."""
        if not outputs:  # to ONNX Runtime, no names are all names
            return {}
        try:
            return dict(zip(outputs, self._session.run(list(outputs), dict(inputs)), strict=True))
        except Exception as error:
            raise self._refused(error) from error

    def _refused(self, error: Exception) -> VerificationError:
        return VerificationError(self._rule, str(error).split("\n")[0][:200])
