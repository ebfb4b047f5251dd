# SPDX-License-Identifier: Apache-2.0
"""TensorFlow Lite Micro with kernels of CMSIS-NN: its programs in mcugen's harness.

A folder of checkouts is given: `tflite-micro` (of June 2026), `CMSIS-NN`, `flatbuffers` (25.9.23), `gemmlowp`, `ruy`,
and `tiny` (mlcommons/tiny), whose int8 autoencoder is the one that was measured but for its weights. The DS-CNN
is not there: it is another than MLPerf Tiny's, whose mean over the image goes by TensorFlow's reference code.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hardware.measured import Network
from hardware.programs import SYSTEM_CALLS, Shapes, built_archive, foreign_bundle, foreign_library, is_test
from mcugen.codegen.bundle import Bundle
from mcugen.core.board import Board
from mcugen.core.options import LibraryFiles
from mcugen.simulation.toolchain import Unit

FOLDERS = ("tflite-micro", "CMSIS-NN", "flatbuffers", "gemmlowp", "ruy", "tiny")
_MODELS: dict[Network, str] = {"ad": "benchmark/training/anomaly_detection/trained_models/ad01_int8.tflite"}
_ARENA = 32768
_LIBRARY = foreign_library("tflm", "TensorFlow Lite Micro", "network_tflm.h")
_KERNELS = ("conv", "depthwise_conv", "fully_connected", "pooling", "softmax")
_PLAIN_KERNELS = ("kernel_util", "reshape", "micro_tensor_utils")
_FOLDERS = (
    *("lite/core/api", "lite/core/c", "lite/kernels", "lite/kernels/internal", "lite/schema", "lite/micro"),
    *("lite/micro/arena_allocator", "lite/micro/memory_planner", "lite/micro/tflite_bridge"),
    *("compiler/mlir/lite/core/api", "compiler/mlir/lite/schema"),
)
_DEFINES = ("-DTF_LITE_STATIC_MEMORY", "-DTF_LITE_DISABLE_X86_NEON", "-DCMSIS_NN", "-DNDEBUG")
_CXX = ("-std=c++17", "-fno-rtti", "-fno-exceptions", "-fno-threadsafe-statics", "-fno-unwind-tables")

_HEADER = """\
void *tflm_input(const void *model, void *arena, unsigned size);
const void *tflm_output(void);
int tflm_invoke(void);
"""
_GLUE = """\
#include <new>
#include "tensorflow/lite/micro/micro_interpreter.h"
#include "tensorflow/lite/micro/micro_mutable_op_resolver.h"
#include "tensorflow/lite/schema/schema_generated.h"
namespace {
using Resolver = tflite::MicroMutableOpResolver<6>;
using Interpreter = tflite::MicroInterpreter;
alignas(16) unsigned char resolver_memory[sizeof(Resolver)], interpreter_memory[sizeof(Interpreter)];
Interpreter *interpreter;
}
extern "C" void *tflm_input(const void *model, void *arena, unsigned size) {
    Resolver *resolver = new (resolver_memory) Resolver();
    resolver->AddConv2D();
    resolver->AddDepthwiseConv2D();
    resolver->AddFullyConnected();
    resolver->AddAveragePool2D();
    resolver->AddReshape();
    resolver->AddSoftmax();
    interpreter = new (interpreter_memory)
        Interpreter(tflite::GetModel(model), *resolver, static_cast<uint8_t *>(arena), size);
    return interpreter->AllocateTensors() == kTfLiteOk ? interpreter->input(0)->data.raw : nullptr;
}
extern "C" const void *tflm_output(void) { return interpreter->output(0)->data.raw; }
extern "C" int tflm_invoke(void) { return interpreter->Invoke(); }
extern "C" void DebugLog(const char *, va_list) {}
extern "C" int DebugVsnprintf(char *, size_t, const char *, va_list) { return 0; }
"""
_SOURCE = """\
#pragma GCC system_header
extern const unsigned char network_plan[];
void *network_x(void *arena) {{ return tflm_input(network_plan, arena, {arena}u); }}
const void *network_y(const void *arena) {{ (void)arena; return tflm_output(); }}
int network_run(void *arena) {{ (void)arena; return tflm_invoke(); }}
"""


def has_public_model(network: Network) -> bool:
    """Return whether the model of a network is public."""
    return network in _MODELS


def tflm_bundle(network: Network, sources: Path, shapes: Shapes) -> Bundle:
    """Return a network as a bundle that calls TensorFlow Lite Micro."""
    model = (sources / "tiny" / _MODELS[network]).read_bytes()
    source = f'#include "network_tflm.h"\n{_SOURCE.format(arena=_ARENA)}'
    return foreign_bundle(_LIBRARY, source, model, _ARENA, shapes)


def tflm_archive(board: Board, sources: Path, folder: Path) -> LibraryFiles:
    """Build the interpreter and CMSIS-NN for a board's CPU, as the measured programs were built."""
    built = folder / f"tflm-{board.cpu}"
    include = built / "include"
    include.mkdir(parents=True, exist_ok=True)
    (include / "network_tflm.h").write_text(_HEADER)
    (built / "glue.cc").write_text(_GLUE + SYSTEM_CALLS)
    roots = ("tflite-micro", "flatbuffers/include", "gemmlowp", "ruy", "CMSIS-NN", "CMSIS-NN/Include")
    includes = [option for root in roots for option in ("-I", str(sources / root))]
    flags = ("-O2", "-w", *_DEFINES, *includes)
    return LibraryFiles(include, built_archive(board, list(_units(sources, built)), flags, built))


def _units(sources: Path, built: Path) -> Iterator[Unit]:
    tensorflow = sources / "tflite-micro" / "tensorflow"
    kernels = tensorflow / "lite" / "micro" / "kernels"
    files = [file for folder in _FOLDERS for file in sorted((tensorflow / folder).glob("*.cc"))]
    files += [file for name in (*_PLAIN_KERNELS, "*_common") for file in sorted(kernels.glob(f"{name}.cc"))]
    files += [kernels / "cmsis_nn" / f"{name}.cc" for name in _KERNELS]
    left_out = ("mock_", "fake_", "recording_", "debug_log", "hexdump", "system_setup")
    for number, file in enumerate([built / "glue.cc", *files]):
        if not is_test(file) and not file.name.startswith(left_out):
            yield Unit(str(file.resolve()), f"{number}-{file.stem}.o", _CXX)
    for file in sorted((sources / "CMSIS-NN" / "Source").rglob("*.c")):
        yield Unit(str(file.resolve()), f"{file.stem}.o", ("-std=gnu11",))
