# SPDX-License-Identifier: Apache-2.0
"""mcugen: an ahead-of-time compiler from ONNX neural networks to C for microcontrollers."""



from mcugen.errors import McugenError
from mcugen.version import __version__

__all__ = ["McugenError", "__version__"]
