# SPDX-License-Identifier: Apache-2.0
"""Modules that a quantizer of PyTorch has prepared or converted, in the form that can be exported."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from torch import fx

from mcugen.core.errors import ModelError
from mcugen.frontend.conversion import conversion_error

_PT2E_REMEDY = (
    "quantize by prepare_pt2e and convert_pt2e of torchao.quantization.pt2e, or give the float module and `calibration`"
)

_PACKED_PACKAGES = (
    "torch.ao.nn.quantized",
    "torch.ao.nn.intrinsic.quantized",
    "torch.ao.nn.sparse.quantized",
    "torch.nn.quantized",
)
"""Packages of layers with weights in a form of their CPU library, which torch.export cannot read."""
_OLD_PACKAGES = ("torch.ao.quantization", "torch.ao.nn.qat", "torch.ao.nn.intrinsic.qat", "torch.ao.nn.quantizable")
"""Packages of observers and layers of the eager mode and the FX mode of torch.ao."""
_PT2E_PACKAGE = "torchao.quantization.pt2e"


def converted_module(module: Any) -> Any:
    """Return a module without observers and fake quantizers: what a PT2E quantizer prepared is converted.

    Returns:
        A converted copy of a module of `prepare_pt2e` or `prepare_qat_pt2e`; any other module as it is.

    Raises:
        ModelError: The module was quantized or prepared by the eager mode or the FX mode of torch.ao, or torchao cannot
            convert it.
    """
    parts = {type(part).__module__: name or type(part).__name__ for name, part in module.named_modules()}
    for package, name in parts.items():
        if package.startswith(_PACKED_PACKAGES) or package.startswith(_OLD_PACKAGES):
            rule = (
                "a PyTorch module must not be quantized by the eager or FX mode of torch.ao, which cannot be exported"
            )
            raise ModelError(rule, f"'{name}' of {package}", _PT2E_REMEDY)
    if not isinstance(module, fx.GraphModule) or not any(package.startswith(_PT2E_PACKAGE) for package in parts):
        return module
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e

    try:
        return convert_pt2e(deepcopy(module))
    except Exception as error:  # torchao raises any type.
        raise conversion_error("a prepared PT2E module", error, "run it on samples before") from error
