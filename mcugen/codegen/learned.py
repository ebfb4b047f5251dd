# SPDX-License-Identifier: Apache-2.0
"""Descriptions of trainable models: parameter names, and the identity of a stored state."""

from __future__ import annotations

import hashlib
import json

import numpy as np

from mcugen.codegen.bundle import Port, TrainingArguments
from mcugen.codegen.run import Renderer
from mcugen.lir.program import STOP, Program


def lesson_context(renderer: Renderer, model: str) -> dict[str, object] | None:
    """Return the template variables of the C code that trains the model; None for a model that is not trainable.

    Args:
        renderer: The C names and functions of the model.
        model: Hash of the model's file.
    """
    lesson = renderer.program.lesson
    if lesson is None:
        return None
    target = lesson.target
    return {
        "target": renderer.names[target.buffer],
        "ctype": target.dtype.c,
        "shape": [str(s) for s in target.shape],
        "classes": lesson.classes,
        "layers": list(lesson.layers),
        "rate": renderer.names[lesson.rate.buffer],
        "loss": renderer.names[lesson.loss.buffer],
        "what": lesson.what,
        "learning": lesson.learning,
        "model": _identity(renderer.program, model),
    }


def _identity(program: Program, model: str) -> list[str]:
    """Return two C literals of a hash of the model and its states, which depend on trained tensors and optimizer."""
    states = [(e.name, e.dtype.value, list(e.shape)) for e in program.states]
    text = json.dumps([model, states])
    return [f"0x{int(word):08x}u" for word in np.frombuffer(hashlib.sha256(text.encode()).digest()[:8], "<u4")]


def lesson_ports(program: Program) -> TrainingArguments | None:
    """Return the arguments of the generated training function, or None for a model that is not trainable."""
    lesson = program.lesson
    if lesson is None:
        return None
    target, rate, loss = (
        Port(e.name, role, e.dtype.numpy.name, e.shape, e.buffer.nbytes, is_lent=True)
        for role, e in (("target", lesson.target), ("rate", lesson.rate), ("loss", lesson.loss))
    )
    ends = [any(program.instrs[i].kernel == STOP for i in layer) for layer in program.layers()]
    return TrainingArguments(target, rate, loss, lesson.classes, ends.index(True) + 1)
