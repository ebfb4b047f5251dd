# SPDX-License-Identifier: Apache-2.0
"""A value for each option of the table that is not the default, as text of the command line."""

from __future__ import annotations

from mcugen.options.option import Option

TEXTS = {
    **{"dim": "N=1..4", "bind": "x=[1, 2]", "input-type": "x=uint8", "state": "h_out:h_in", "place": "arena=dtcm"},
    **{"max-ram": "20KB", "max-flash": "1M", "max-latency": "20ms", "max-cycles": "1500000", "plausible": "y=0..1"},
    **{"train": "last:2", "without": "rounding", "layer": "y=float32", "max-weights": "60%", "method": "minmax"},
    **{"precision": "int16x8", "synthetic": "0..1", "metric": "top5", "labels": "labels.txt", "loss": "mse"},
    "board": "rp2040",
}
"""Values of options that do not take any text."""
NEEDED = {
    **{"training": {"train": ["last:1"]}, "Teaching": {"lesson": ["lesson.npz"]}},
    "library": {"cmsis-nn-include": ["include"], "cmsis-nn-lib": ["lib"]},
    **{"scheme": {"calibration": ["s.npz"]}, "precision": {"calibration": ["s.npz"]}, "layers": {"profile": ["p"]}},
}
"""Other options without which an option has no effect, or is an error, by part, class or field."""


def title(option: Option) -> str:
    return f"{option.name} of {option.commands[0]}"


def text_of(option: Option) -> str:
    """A value that is not the default."""
    if option.kind is bool:
        return ""
    if option.name in TEXTS:
        return TEXTS[option.name]
    if option.choices:
        return list(option.choices)[-1]
    return {int: "3", float: "2.5"}.get(option.kind, "text")
