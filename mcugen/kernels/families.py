# SPDX-License-Identifier: Apache-2.0
"""Registry of kernel families that call a library; a family's package is imported where the family is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module

from mcugen.core.errors import UsageError
from mcugen.core.options import AUTO, CMSIS_NN, OWN, OWN_FAMILIES
from mcugen.hir.graph import Node
from mcugen.lir.kernel import Kernel
from mcugen.lir.spec import spec_of

FAMILY_PACKAGES: Mapping[str, str] = {
    CMSIS_NN: "mcugen.kernels.cmsis_nn",
}
"""Name of the Python package of each family of library kernels. The package's LAYERS are the layers that the library
computes."""


@dataclass(frozen=True)
class LibraryLayer:
    """A kind of layer that a library of kernels, such as CMSIS-NN, computes.

    Attributes:
        operators: Names of the operators that are such layers.
        spec: Class of the layer's specification, by which an operator describes itself to kernels; nodes with other
            specifications are not such layers.
        kernels: Kernels that call the library for such layers, the preferred ones first.
    """

    operators: tuple[str, ...]
    spec: type
    kernels: tuple[Kernel, ...]


def load_families(family: str) -> tuple[LibraryLayer, ...]:
    """Return the kinds of layers that the libraries of a kernel family compute, after importing the family's package.

    Args:
        family: Name of the family. The result is empty for families of mcugen's own kernels (OWN_FAMILIES), which use
            no library; AUTO stands for all libraries.

    Raises:
        UsageError: The package of a library cannot be imported.
    """
    if family in OWN_FAMILIES:
        return ()
    return tuple(layer for name in (FAMILY_PACKAGES if family == AUTO else [family]) for layer in _layers_of(name))


def _layers_of(name: str) -> tuple[LibraryLayer, ...]:
    try:
        layers: tuple[LibraryLayer, ...] = import_module(FAMILY_PACKAGES[name]).LAYERS
    except ImportError as error:
        remedy = f"install all of mcugen, or give --kernels {OWN}"
        raise UsageError(f"--kernels {name} needs the package {FAMILY_PACKAGES[name]}", str(error), remedy) from error
    return layers


def library_kernels_of(node: Node, family: str) -> tuple[Kernel, ...]:
    """Return the kernels of a family's libraries for a node's kind of layer, the preferred ones first.

    Their conditions on shapes, types and CPU are not checked (Kernel.fits).

    Args:
        node: The node.
        family: Name of the family, or AUTO for all libraries.
    """
    layers = [layer for layer in load_families(family) if node.op.name in layer.operators]
    return tuple(k for layer in layers if isinstance(spec_of(node), layer.spec) for k in layer.kernels)
