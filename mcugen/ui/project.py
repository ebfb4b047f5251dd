# SPDX-License-Identifier: Apache-2.0
"""The project folder of the web page: mcugen.toml, models, samples and results, which the command line reads, too."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcugen.codegen.write import write_text
from mcugen.core.limits import read_bounded
from mcugen.options.keywords import keyword_options
from mcugen.options.settings import FILE, MAX_SETTINGS_BYTES, MODEL, read_settings, settings_kinds, settings_text
from mcugen.options.table import OPTIONS

MODELS, SAMPLES, SNAPSHOTS, RESULTS = "models", "samples", "snapshots", "results"
"""Names of the folders of a project."""

SUFFIXES = {MODELS: (".onnx", ".tflite", ".pt2"), SAMPLES: (".npz", ".npy"), SNAPSHOTS: (".bin", ".dat", ".json")}
"""Ends of the names of models, of files that hold all samples, and of snapshots with reports, by folder."""

PREPARING = ("calibration", "input-pipeline", "preprocess", "pixel-scale")
"""Keys of options on samples, which are left out where a model is only looked at."""


@dataclass(frozen=True)
class Project:
    """A project folder.

    Attributes:
        root: The folder, which exists.
    """

    root: Path

    @property
    def results(self) -> Path:
        """Return the folder of results."""
        return self.root / RESULTS

    @property
    def settings_file(self) -> Path:
        """Return the path of the settings file, whether it exists or not."""
        return self.root / FILE

    def settings(self) -> dict[str, Any]:
        """Return the options in mcugen.toml, by name; empty if there is no such file.

        Raises:
            UsageError: The file is not valid.
        """
        if not self.settings_file.exists():
            return {}
        read_settings(self.settings_file, settings_kinds())
        return tomllib.loads(read_bounded(self.settings_file, MAX_SETTINGS_BYTES).decode())

    def change(self, values: Mapping[str, Any]) -> None:
        """Set options in mcugen.toml.

        Args:
            values: The values by name of the option; None and "" remove an option.

        Raises:
            UsageError: A value is not printable.
            OutputError: The file cannot be written.
        """
        merged = {**self.settings(), **values}
        write_text(self.settings_file, settings_text({k: v for k, v in merged.items() if v not in (None, "")}))

    def files(self, folder: str) -> list[str]:
        """Return the paths of the files that belong in a folder of the project, relative to the project.

        Args:
            folder: MODELS, SAMPLES or SNAPSHOTS.
        """
        place = self.root / folder
        known = sorted(place.iterdir()) if place.is_dir() else []
        return [f"{folder}/{path.name}" for path in known if path.suffix.lower() in SUFFIXES[folder]]

    def command(self, name: str, arguments: Mapping[str, str]) -> str:
        """Return a command for a shell in the project folder that takes the options of mcugen.toml, written in full.

        Args:
            name: Name of the command.
            arguments: Options that differ from mcugen.toml, by name; "" leaves an option out.
        """
        settings = self.settings()
        words = ["mcugen", name, *([settings[MODEL]] if MODEL in settings else [])]
        taken = {option.name for option in OPTIONS if name in option.commands}
        known = {key: value for key, value in settings.items() if key in taken}
        for key, value in {**known, **arguments}.items():
            for text in value if isinstance(value, list) else [value]:
                if text is True:
                    words.append(f"--{key}")
                elif text is not False and text != "":
                    words += [f"--{key}", str(text)]
        return shlex.join(words)


def compile_keywords(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a settings file that compile a model, as keywords of `mcugen.compile`.

    Args:
        settings: The options by name.
    """
    return {
        parameter: settings[option.name]
        for parameter, option in keyword_options("compile").items()
        if option.name in settings
    }


def without_samples(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without the options on samples or that need some, by which a model is only imported.

    Args:
        settings: The options by name.
    """
    return {key: value for key, value in settings.items() if key not in (*PREPARING, "data", "precision", "monitor")}
