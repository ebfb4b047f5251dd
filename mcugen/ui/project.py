# SPDX-License-Identifier: Apache-2.0
"""The project folder of the web page: mcugen.toml, models, samples and results, which the command line reads, too."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcugen.codegen.write import write_text
from mcugen.core.limits import read_bounded
from mcugen.options.settings import (
    FILE,
    MAX_SETTINGS_BYTES,
    read_settings,
    settings_command,
    settings_kinds,
    settings_text,
)

MODELS, SAMPLES, SNAPSHOTS, RESULTS = "models", "samples", "snapshots", "results"
"""Names of the folders of a project."""

SUFFIXES = {MODELS: (".onnx", ".tflite", ".pt2"), SAMPLES: (".npz", ".npy"), SNAPSHOTS: (".bin", ".dat", ".json")}
"""Ends of the names of models, of files that hold all samples, and of snapshots with reports, by folder."""


@dataclass(frozen=True)
class Project:
    """A project folder; its path `root` exists."""

    root: Path

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
        """Set options in mcugen.toml; None and "" remove an option.

        Raises:
            UsageError: A value is not printable.
            OutputError: The file cannot be written.
        """
        merged = {**self.settings(), **values}
        write_text(self.settings_file, settings_text({k: v for k, v in merged.items() if v not in (None, "")}))

    def files(self, folder: str) -> list[str]:
        """Return the paths of the files that belong in MODELS, SAMPLES or SNAPSHOTS, relative to the project."""
        place = self.root / folder
        known = sorted(place.iterdir()) if place.is_dir() else []
        return [f"{folder}/{path.name}" for path in known if path.suffix.lower() in SUFFIXES[folder]]

    def command(self, name: str, changes: Mapping[str, str]) -> str:
        """Return the command for a shell in the project folder that takes the settings, with some changes."""
        return settings_command(name, {**self.settings(), **changes})
