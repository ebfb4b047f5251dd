# SPDX-License-Identifier: Apache-2.0
"""The type of trained weights where the user leaves it open: float32, or int8 if float32 does not fit the board."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mcugen.core.errors import ConstraintError, DoesNotFitError, UsageError
from mcugen.core.options import INTEGER_OPTIMIZER_NAMES, TRAINED_PRECISIONS, CompileOptions
from mcugen.driver.compiled import CompiledModel

Compile = Callable[[CompileOptions], CompiledModel]
"""Type of a function that compiles a fixed model for a fixed board with the options that it gets."""


def compile_with_trained_weights(options: CompileOptions, compile_once: Compile) -> CompiledModel:
    """Compile a model with trainable weights in float32, or in int8 if float32 does not fit the board.

    The choice is made for models that are trained on the device, unless the options fix the type of weights; other
    models are compiled once. A note in the report names the change to int8.

    Args:
        options: The options of the compilation.
        compile_once: Compiles the model with given options.

    Raises:
        McugenError: The model cannot be compiled. If the weights fit in neither type, the error of float32 is raised.
    """
    if not _may_train_int8(options):
        return compile_once(options)
    try:
        return compile_once(_with_precision(options, "float32"))
    except (DoesNotFitError, ConstraintError) as error:
        refusal = error
    try:
        compiled = compile_once(_with_precision(options, "int8"))
    except (DoesNotFitError, ConstraintError, UsageError):
        raise refusal from None
    note = f"trained weights are int8, as float32 did not fit ({refusal.found}); --train-weights float32 insists"
    return replace(compiled, report=replace(compiled.report, notes=(*compiled.report.notes, note)))


def _may_train_int8(options: CompileOptions) -> bool:
    """Return whether the user leaves the type of trained weights open, and the training works with int8 too."""
    training = options.training
    if (
        training is None
        or training.precision != TRAINED_PRECISIONS[0]
        or training.is_head
        or training.updates_statistics
    ):
        return False
    return training.optimizer in INTEGER_OPTIMIZER_NAMES


def _with_precision(options: CompileOptions, precision: str) -> CompileOptions:
    """Return the options with another type of trained weights: "float32" or "int8"."""
    assert options.training is not None
    return replace(options, training=replace(options.training, precision=precision))
