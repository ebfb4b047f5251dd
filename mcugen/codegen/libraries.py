# SPDX-License-Identifier: Apache-2.0
"""The libraries that generated code may call, with the data that a project needs to use them."""

from __future__ import annotations

from dataclasses import dataclass

from mcugen.core.options import CMSIS_NN


@dataclass(frozen=True)
class Library:
    """A library that the user provides, and that generated code calls."""

    key: str
    """Name of the family of kernels that call the library, and of the library's CMake target."""
    title: str
    """Name of the library in messages."""
    header: str
    """The header that generated code includes."""
    first_version: str
    """The oldest supported version; later versions with the same major number are compatible."""
    pack: tuple[str, str]
    """Vendor and name of the CMSIS-Pack that contains the library."""
    component: tuple[str, str]
    """Class and group of the library's component in that pack."""
    zephyr_parts: tuple[str, ...]
    """Kconfig options of Zephyr, without the prefix in `word`, that build the functions which generated code calls."""
    marker: tuple[str, str]
    """Name of a header of the library, and a word that this header contains from `first_version` on."""

    @property
    def versions(self) -> str:
        """Return the title with the supported versions, such as "CMSIS-NN 7.x"."""
        return f"{self.title} {self._major}.x"

    @property
    def pack_range(self) -> str:
        """Return the accepted versions as packs write them: "7.0.0:7.99.99"."""
        return f"{self.first_version}:{self._major}.99.99"

    @property
    def next_major(self) -> str:
        """Return the first version with the next major number, which may be incompatible and is excluded."""
        return f"{self._major + 1}"

    @property
    def _major(self) -> int:
        return int(self.first_version.partition(".")[0])

    @property
    def word(self) -> str:
        """Return the library's prefix in names of CMake and environment variables: "CMSIS_NN"."""
        return self.key.upper().replace("-", "_")

    @property
    def options(self) -> tuple[str, str]:
        """Return two command-line options: for the folder of the library's headers, and for its archive (.a file)."""
        return f"--{self.key}-include", f"--{self.key}-lib"

    @property
    def variables(self) -> tuple[str, str]:
        """Return two environment variables: for the folder of the library's headers, and for its archive (.a file)."""
        return f"MCUGEN_{self.word}_INCLUDE", f"MCUGEN_{self.word}_LIB"


LIBRARIES = {
    library.key: library
    for library in (
        Library(
            CMSIS_NN,
            title="CMSIS-NN",
            header="arm_nnfunctions.h",
            first_version="7.0.0",
            pack=("ARM", "CMSIS-NN"),
            component=("CMSIS", "NN Lib"),
            zephyr_parts=(
                "ACTIVATION",
                "BASICMATH",
                "CONVOLUTION",
                "FULLYCONNECTED",
                "NNSUPPORT",
                "POOLING",
                "SOFTMAX",
            ),
            marker=("arm_nn_types.h", "cmsis_nn_quant_params"),
        ),
    )
}
"""Libraries by the name of their kernel family."""
