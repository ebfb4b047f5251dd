# SPDX-License-Identifier: Apache-2.0
"""Input pipelines, which convert raw data (images, sound, vibration) to a model's input.

A pipeline is described by a text. It is computed by numpy and by generated C code, with equal results bit by bit.
"""

from mcugen.pipelines.feed import Feed, bind_pipeline
from mcugen.pipelines.grammar import parse_pipeline, read_pipeline, takes_preprocessing, with_preprocessing

__all__ = ["Feed", "bind_pipeline", "parse_pipeline", "read_pipeline", "takes_preprocessing", "with_preprocessing"]
