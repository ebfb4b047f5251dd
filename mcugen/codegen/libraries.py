# SPDX-License-Identifier: Apache-2.0
"""The libraries that generated code may call, with the data that a project needs to use them."""

from __future__ import annotations

from dataclasses import dataclass

from mcugen.core.board import Board
from mcugen.core.options import CMSIS_NN, ETHOS_U_DRIVER


@dataclass(frozen=True)
class ZephyrModule:
    """A library as a module of a Zephyr workspace.

    Attributes:
        name: Name of the module in west.yml.
        option: Kconfig option that builds it, without "CONFIG_".
        include: Folder of its headers.
    """

    name: str
    option: str
    include: str

    @property
    def directory(self) -> str:
        """Return the CMake variable with the module's folder."""
        return f"ZEPHYR_{self.name.upper().replace('-', '_')}_MODULE_DIR"


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
    component: tuple[str, ...]
    """Class, group and, if there is one, subgroup of the library's component in that pack."""
    zephyr: ZephyrModule
    """The library as a module of Zephyr."""
    zephyr_parts: tuple[str, ...]
    """Kconfig options of Zephyr, without the prefix `zephyr.option`, that build the functions which generated code
    calls."""
    marker: tuple[str, str]
    """Name of a header of the library, and a word that this header contains from `first_version` on."""

    stand_in: str = ""
    """Folder of the harness with a header and a source that take the library's place in simulations, as QEMU has no
    such hardware; "" to link the user's copy of the library."""

    variant: str = ""
    """Variant of the component, with {npu} for the product of the board's NPU, such as U55; "" for none."""
    setup: str = ""
    """What the user's program does before the first call of the model, as a phrase; "" for nothing."""

    def component_for(self, board: Board) -> str:
        """Return the component as csolution projects name it, such as "CMSIS:NN Lib"."""
        product = board.npu.kind.split("-")[1].upper() if board.npu else ""
        variant = f"&{self.variant.format(npu=product)}" if self.variant else ""
        return ":".join(self.component) + variant

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
            zephyr=ZephyrModule("cmsis-nn", "CMSIS_NN", "Include"),
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
        Library(
            ETHOS_U_DRIVER,
            title="Ethos-U core driver",
            header="ethosu_driver.h",
            first_version="1.22.2",
            pack=("ARM", "ethos-u-core-driver"),
            component=("Machine Learning", "NPU Support", "Ethos-U Driver"),
            zephyr=ZephyrModule("hal_ethos_u", "ETHOS_U", "include"),
            zephyr_parts=(),
            marker=("ethosu_driver.h", "ethosu_invoke_v3"),
            stand_in="ethos_u",
            variant="Generic {npu}",
            setup="initialize it by ethosu_init before the first call",
        ),
    )
}
"""Libraries by the name of their kernel family."""
