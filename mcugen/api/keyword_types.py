# SPDX-License-Identifier: Apache-2.0
"""Types of the keywords of the Python interface, which tools/keyword_types.py writes from the option table."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypedDict

from mcugen.evaluation.python_samples import SampleInput

FileName: TypeAlias = str | os.PathLike[str]
"""Type of a path."""


class CompileKeywords(TypedDict, total=False):
    """Keywords of `mcugen.compile`; None stands for an option that is not given."""

    validation: bool | None
    """add the firmware's part of `mcugen validate` (docs/how-to/validate.md)."""

    dim: str | Sequence[str] | Mapping[str, Any] | None
    """fix a symbolic dimension: N=1; or give the range of its sizes at run time: T=1..64."""

    bind: str | Sequence[str] | Mapping[str, Any] | None
    """fix an input at compile time: NAME=[1, 2] or NAME=file.npy."""

    input_type: str | Sequence[str] | Mapping[str, Any] | None
    """pass whole numbers for a float input, unscaled: NAME=uint8 (uint8, int8, uint16, int16)."""

    match: str | None
    """compute a quantized .tflite model with the bits of TensorFlow Lite Micro's kernels: tflite (docs/how-
    to/tflite.md)."""

    keep_states: bool | None
    """keep the states of all recurrent layers of a .tflite model between calls, as TensorFlow Lite Micro does."""

    signature: str | None
    """compile the subgraph with this signature of a .tflite model instead of the first one."""

    state: str | Sequence[str] | Mapping[str, Any] | None
    """keep an output as an input of the next call, OUTPUT:INPUT: h_out:h_in."""

    stream_steps: int | None
    """turn a network over a window of time into one that takes this many new steps a call, and keeps the others
    (docs/how-to/streams.md)."""

    stream_axis: int | None
    """axis of the first input that counts time steps, for stream_steps."""

    input_pipeline: FileName | None
    """generate code that converts raw data to the input, and convert samples alike: 'image=rgb565, rgb,
    scale=1/255', or a file (docs/how-to/pipelines.md)."""

    plugin: FileName | Sequence[FileName] | None
    """Python file with operators of your own."""

    float16_weights: bool | None
    """round weights of float layers to 16 bits, which halves their flash."""

    optimize: str | None
    """goal of the optimization: balanced, speed, ram, flash; with cores 2 also throughput."""

    kernels: str | None
    """family of kernels: own, portable, cmsis-nn, auto (docs/how-to/cmsis_nn.md)."""

    kernel: str | Sequence[str] | None
    """use this kernel wherever it fits, instead of the kernel that serves the goal."""

    stream_input: bool | None
    """read the first input row by row with a function of yours, so that it takes no memory."""

    external_io: bool | None
    """use buffers of yours for inputs and outputs, so that they take no memory of the arena."""

    max_ram: str | float | None
    """largest number of bytes of RAM: 20000, or 20KB."""

    max_flash: str | float | None
    """largest number of bytes of flash, weights and code: 100000, or 100KB."""

    max_latency: str | float | None
    """longest time of a call on the board: 20ms (docs/how-to/memory.md)."""

    max_cycles: str | float | None
    """largest number of estimated cycles of a call: 1500000."""

    tune: int | None
    """number of kernels of each layer to simulate, to choose by simulated cycles (docs/how-to/memory.md)."""

    place: str | Sequence[str] | Mapping[str, Any] | None
    """memories of the board for data: auto, or arena=dtcm+ocram, weights=flash, hot-weights=dtcm:32768 (docs/how-
    to/memory.md)."""

    weights_blob: bool | None
    """write the weights to a file, whose address the run function takes."""

    updatable: bool | None
    """weights_blob with all data that training changes: a retrained model is a new file (docs/how-to/memory.md)."""

    weights_version: int | None
    """version number in the file of updatable, which the firmware may compare."""

    weights_reader: bool | None
    """weights_blob for memory without addresses: a function of yours reads a layer's weights into the arena."""

    copy_ahead: bool | None
    """copy the weights of the next layer to RAM while a layer runs, by DMA with functions of yours:
    MCUGEN_STAGE_BEGIN and MCUGEN_STAGE_END."""

    check_weights: bool | None
    """add functions that compare weights and tables with checksums, at once or in steps."""

    check_parameters: bool | None
    """add functions that compare parameters and tables with checksums, if weights are in a file."""

    checked_arena: bool | None
    """add run functions that take the arena's size, or check canaries around it."""

    checked_indices: bool | None
    """use no kernels whose constants hold addresses, so that damaged constants never lead out of memory."""

    checked_steps: bool | None
    """protect the arena with a checksum between steps; implies steps."""

    steps: bool | None
    """add NAME_begin and NAME_step, which run one layer or group of rows in each call."""

    max_step_cycles: int | None
    """largest number of cycles of a step on the board, as simulated; implies steps."""

    cores: int | None
    """with 2, add code that shares layers between two cores (docs/how-to/two_cores.md)."""

    npu: str | None
    """use of the board's NPU: off, auto, exact, only (docs/how-to/npu.md)."""

    train: str | None
    """train on the device: last:N layers, names of layers, bias or bias:N, adapter:RANK or adapter:RANK:N, with
    commas between them; or a head that remembers samples: centroids:CLASSES, nearest:CLASSES:SAMPLES:K, statistics,
    optionally with @LAYER; or auto (docs/how-to/training.md)."""

    loss: str | None
    """loss of the training: cross-entropy, mse, mae, huber, contrastive."""

    optimizer: str | None
    """optimizer of the training: sgd, momentum, adam."""

    train_weights: str | None
    """type of trained weights: float32, int8 (not with adam), or auto: int8 if float32 does not fit."""

    statistics: str | None
    """means and variances of batch normalization behind the first trained layer: frozen, or updated by samples."""

    batch: int | None
    """number of samples of a training step."""

    cmsis_nn_include: FileName | None
    """folder of CMSIS-NN's headers, to run code that calls the library."""

    cmsis_nn_lib: FileName | None
    """the library, built for the board's CPU; {cpu} in the file's name stands for the CPU."""

    name: str | None
    """prefix of all C symbols; by default the name of the model's file."""

    helpers: bool | None
    """add functions to the header that write pixels, samples and reals, and read classes."""

    labels: FileName | Sequence[str] | None
    """file with the names of an output's classes, one on each line, for strings in C; implies helpers."""

    stack_bound: bool | None
    """state in the header the largest stack of a run, as built by the board's compiler."""

    self_test: int | None
    """largest number of samples of the self-test, chosen from yours (data, calibration) and synthetic ones for the
    flipped bits of constants that they detect."""

    plausible: str | Sequence[str] | Mapping[str, Any] | None
    """add NAME_check_outputs, which detects outputs outside of a range: NAME=LOW..HIGH; or 'samples' for the ranges
    that all outputs have on your samples."""

    monitor: bool | None
    """add functions that keep statistics of inputs and outputs in the field, for `mcugen monitor` (docs/how-
    to/monitor.md)."""

    monitor_layers: str | Sequence[str] | Mapping[str, Any] | None
    """keep statistics of the results of these layers too, named as in the report: NAME,NAME; implies monitor, and
    code in steps."""

    monitor_bytes: int | None
    """largest number of bytes of RAM of these statistics."""

    precision: str | None
    """precision of the arithmetic: float32, int8, int16x8, w4a8, w4a8g32, w4a8g64, w4a8g128, auto; int8 if samples
    are given."""

    calibration: SampleInput | None
    """samples for the ranges of quantization: .npz, .npy, or a folder of .npy, .npz, .png."""

    profile: FileName | None
    """profile by `mcugen profile`, instead of samples or in addition."""

    synthetic: str | None
    """generate samples: inputs in LOW..HIGH, or inputs of the statistics of batch normalizations."""

    preprocess: str | None
    """preprocessing of each sample: 'resize=96x96, gray, scale=1/255, mean=0.5, std=0.25' (docs/how-
    to/quantize.md)."""

    method: str | float | None
    """method to choose ranges: minmax, extrapolated, moving_average, percentile, percentile99.9, percentile99.5,
    entropy, mse; by default the one of least measured error."""

    symmetric: bool | None
    """use zero point 0 for activations."""

    power_of_two: bool | None
    """use scales that are powers of two."""

    per_tensor: bool | None
    """use one scale for all weights of a layer."""

    integer_io: bool | None
    """use integers as inputs and outputs, instead of reals."""

    without: str | Sequence[str] | None
    """leave out a technique: equalization, bias-correction, rounding."""

    layer: str | Sequence[str] | Mapping[str, Any] | None
    """precision of one layer: NAME=float32."""

    data: SampleInput | None
    """evaluation samples, .npz; labels in `labels` or `y`, or boxes in `boxes`."""

    pixel_scale: float | None
    """factor from `x_uint8` samples to a float input."""

    metric: str | None
    """top1, top5, auc, f1, pixels, iou, error, perplexity, map50, map, mse, mae, cosine, max_abs_error, sqnr,
    agreement, or your own: FILE.py:FUNCTION; by default one that suits the labels (docs/reference/reports.md)."""

    max_accuracy_drop: float | None
    """limit of precision auto, in percentage points below float32; by default 0.5."""

    min_sqnr: float | None
    """limit of precision auto in dB, instead of accuracy or in addition."""

    max_weights: str | float | None
    """limit of precision auto: 60% of the bytes of int8 weights, by compression or 4 bits. optimize flash stores
    weights in that size; kernels for other goals may widen them, which max_flash counts."""

    lesson: SampleInput | None
    """samples with labels that a model with train is trained on, one by one."""

    rate: float | None
    """learning rate."""

    epochs: int | None
    """number of passes over the samples of lesson."""


class QuantizeKeywords(TypedDict, total=False):
    """Keywords of `mcugen.quantize`; None stands for an option that is not given."""

    dim: str | Sequence[str] | Mapping[str, Any] | None
    """fix a symbolic dimension: N=1; or give the range of its sizes at run time: T=1..64."""

    bind: str | Sequence[str] | Mapping[str, Any] | None
    """fix an input at compile time: NAME=[1, 2] or NAME=file.npy."""

    input_type: str | Sequence[str] | Mapping[str, Any] | None
    """pass whole numbers for a float input, unscaled: NAME=uint8 (uint8, int8, uint16, int16)."""

    keep_states: bool | None
    """keep the states of all recurrent layers of a .tflite model between calls, as TensorFlow Lite Micro does."""

    signature: str | None
    """compile the subgraph with this signature of a .tflite model instead of the first one."""

    state: str | Sequence[str] | Mapping[str, Any] | None
    """keep an output as an input of the next call, OUTPUT:INPUT: h_out:h_in."""

    input_pipeline: FileName | None
    """generate code that converts raw data to the input, and convert samples alike: 'image=rgb565, rgb,
    scale=1/255', or a file (docs/how-to/pipelines.md)."""

    plugin: FileName | Sequence[FileName] | None
    """Python file with operators of your own."""

    optimize: str | None
    """goal of the optimization: balanced, speed, ram, flash; with cores 2 also throughput."""

    precision: str | None
    """precision of the arithmetic: float32, int8, int16x8, w4a8, w4a8g32, w4a8g64, w4a8g128, auto; int8 if samples
    are given."""

    calibration: SampleInput | None
    """samples for the ranges of quantization: .npz, .npy, or a folder of .npy, .npz, .png."""

    profile: FileName | None
    """profile by `mcugen profile`, instead of samples or in addition."""

    synthetic: str | None
    """generate samples: inputs in LOW..HIGH, or inputs of the statistics of batch normalizations."""

    preprocess: str | None
    """preprocessing of each sample: 'resize=96x96, gray, scale=1/255, mean=0.5, std=0.25' (docs/how-
    to/quantize.md)."""

    method: str | float | None
    """method to choose ranges: minmax, extrapolated, moving_average, percentile, percentile99.9, percentile99.5,
    entropy, mse; by default the one of least measured error."""

    symmetric: bool | None
    """use zero point 0 for activations."""

    power_of_two: bool | None
    """use scales that are powers of two."""

    per_tensor: bool | None
    """use one scale for all weights of a layer."""

    integer_io: bool | None
    """use integers as inputs and outputs, instead of reals."""

    without: str | Sequence[str] | None
    """leave out a technique: equalization, bias-correction, rounding."""

    layer: str | Sequence[str] | Mapping[str, Any] | None
    """precision of one layer: NAME=float32."""

    data: SampleInput | None
    """evaluation samples, .npz; labels in `labels` or `y`, or boxes in `boxes`."""

    pixel_scale: float | None
    """factor from `x_uint8` samples to a float input."""

    metric: str | None
    """top1, top5, auc, f1, pixels, iou, error, perplexity, map50, map, mse, mae, cosine, max_abs_error, sqnr,
    agreement, or your own: FILE.py:FUNCTION; by default one that suits the labels (docs/reference/reports.md)."""

    max_accuracy_drop: float | None
    """limit of precision auto, in percentage points below float32; by default 0.5."""

    min_sqnr: float | None
    """limit of precision auto in dB, instead of accuracy or in addition."""

    max_weights: str | float | None
    """limit of precision auto: 60% of the bytes of int8 weights, by compression or 4 bits. optimize flash stores
    weights in that size; kernels for other goals may widen them, which max_flash counts."""
