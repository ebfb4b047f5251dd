# SPDX-License-Identifier: Apache-2.0
"""Weights of 4 bits by CMSIS-NN: the same bits as by our own kernels, in half the flash."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from cmsis_checks import assert_same, check_warnings
from cmsis_layers import SMALL, WIDE, int4_dense, quantized_conv, quantized_dense
from cmsis_nn_library import library
from onnx_models import Net, random_feeds
from test_conv import Case

from mcugen.board import load_board
from mcugen.compiled import CompiledModel
from mcugen.compiler import compile_model
from mcugen.options import CMSIS_NN, CompileOptions

pytestmark = pytest.mark.qemu
