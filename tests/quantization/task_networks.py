# SPDX-License-Identifier: Apache-2.0
"""Small trained networks for tasks other than classification, with their data and metrics, all by seed.

`TASKS` names them. Data are computed or come with scikit-learn; `gradient_descent` or scikit-learn trains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import onnx
from gradient_descent import Builder, Parameters, cross_entropy, squared_error, train
from onnx_models import Net
from sklearn.cluster import KMeans
from sklearn.datasets import load_breast_cancer, load_digits, make_friedman1
from sklearn.metrics import r2_score, roc_auc_score
from sklearn.mixture import GaussianMixture

from mcugen.evaluation.boxes import MAP_IOU_THRESHOLDS, mean_average_precision
from mcugen.evaluation.positions import mean_iou
from mcugen.hir.types import Array

CALIBRATION = 200
"""Number of calibration samples of each task."""

Arrays = Mapping[str, Array]
"""Arrays by the name of a model's input or output, with a leading axis of samples."""
Score = Callable[[Arrays], float]
"""A metric: a function of all outputs on the evaluation samples, by name."""


@dataclass(frozen=True)
class Trial:
    """A trained network with samples of its inputs, and the metric on the evaluation samples.

    `labels` belong to the calibration samples, if the task has labels. `states` maps outputs to the inputs that carry
    them to the next sample: samples of such a network are the steps of one stream.
    """

    model: onnx.ModelProto
    calibration: Arrays
    evaluation: Arrays
    score: Score
    labels: Array | None = None
    states: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """A task: its name, the name and unit of its metric, and a function that trains a network for it."""

    name: str
    metric: str
    make: Callable[[], Trial]
    unit: str = ""
    lower_is_better: bool = False

    def show(self, value: float) -> str:
        """Return a value of the metric as the table shows it."""
        if self.unit == "%":
            return f"{100 * value:.1f} %"
        return f"{value:.2f} {self.unit}" if self.unit else f"{value:.4f}"


def _only(outputs: Arrays) -> Array:
    (array,) = outputs.values()
    return array


# ------------------------------------------------------------------------------------------------ regression


def regression() -> Trial:
    """Train an MLP on Friedman's first function of ten features, of which five matter."""
    x, y = (np.asarray(array, np.float32) for array in make_friedman1(3000, noise=0.1, random_state=0))
    mean, deviation = y.mean(), y.std()

    def forward(build: Builder, tensors: Mapping[str, str], _batch: int) -> str:
        hidden = build.net.op("Relu", build.dense(tensors["x"], "first", 10, 32))
        hidden = build.net.op("Relu", build.dense(hidden, "second", 32, 16))
        return build.dense(hidden, "last", 16, 1)

    parts = {"x": x[:2000]}
    found = train(forward, parts, ((y[:2000, None] - mean) / deviation), squared_error, steps=3000, rate=0.01)
    found.arrays["last_w"] *= deviation
    found.arrays["last_b"] = found.arrays["last_b"] * deviation + mean
    model = inference(forward, found, {"x": (10,)})
    return Trial(
        model, {"x": x[:CALIBRATION]}, {"x": x[2000:]}, lambda outputs: r2_score(y[2000:], _only(outputs).ravel())
    )


def inference(
    forward: Callable[[Builder, Mapping[str, str], int], str],
    parameters: Parameters,
    shapes: Mapping[str, tuple[int, ...]],
) -> onnx.ModelProto:
    """Return the network with constant weights, for one sample."""
    net = Net(18)
    inputs = {name: net.input(name, 1, *shape) for name, shape in shapes.items()}
    net.output(forward(Builder(net, parameters), inputs, 1))
    return net.model()


# ------------------------------------------------------------------------------------------------ anomalies


def anomaly_trial(net: Net, score: str, normal: Array, held: Array, odd: Array) -> Trial:
    """Return a trial that is calibrated on normal samples; its metric is the AUC of held-out ones against `odd`."""
    net.output(score)
    truth = np.repeat([0, 1], [len(held), len(odd)])
    evaluation = {"x": np.concatenate([held, odd])}
    return Trial(
        net.model(),
        {"x": normal[:CALIBRATION]},
        evaluation,
        lambda outputs: roc_auc_score(truth, np.nan_to_num(_only(outputs).ravel())),
    )


def digits_of(kinds: Sequence[int]) -> Array:
    """Return scikit-learn's 8x8 images of some digits, from 0 to 1."""
    images, labels = load_digits(return_X_y=True)
    return np.asarray(images[np.isin(labels, kinds)] / 16, np.float32)


def autoencoder_error() -> Trial:
    """Train an autoencoder on digits below 5; its mean squared error is the anomaly score.

    Digits from 5 on are the anomalies.
    """
    normal, odd = digits_of(range(5)), digits_of(range(5, 10))
    sizes = (64, 32, 8, 32, 64)

    def rebuilt(build: Builder, tensors: Mapping[str, str], _batch: int) -> str:
        y = tensors["x"]
        for index, (ins, outs) in enumerate(pairwise(sizes)):
            y = build.dense(y, f"layer{index}", ins, outs)
            y = y if index == len(sizes) - 2 else build.net.op("Relu", y)
        return y

    found = train(rebuilt, {"x": normal[:600]}, normal[:600], squared_error, steps=4000, rate=0.005)
    net = Net(18)
    x = net.input("x", 1, 64)
    y = rebuilt(Builder(net, found), {"x": x}, 1)
    error = net.op("Sub", x, y)
    score = net.op("ReduceMean", net.op("Mul", error, error), net.const([1], np.int64), keepdims=0)
    return anomaly_trial(net, score, normal[:600], normal[600:], odd)


def measurements() -> tuple[Array, Array]:
    """Return scikit-learn's breast cancer measurements, benign and malignant; features differ in size 10^5 times."""
    x, y = load_breast_cancer(return_X_y=True)
    return np.asarray(x[y == 1], np.float32), np.asarray(x[y == 0], np.float32)


def standardized(net: Net, x: str, normal: Array) -> str:
    """Add the standardization of features by the statistics of normal samples."""
    return net.op("Div", net.op("Sub", x, net.const(normal.mean(0))), net.const(normal.std(0)))


def cluster_distance() -> Trial:
    """Fit k-means to standardized measurements; the distance from the nearest of eight centres is the anomaly score."""
    benign, malignant = measurements()
    normal = benign[:200]
    scaled = (normal - normal.mean(0)) / normal.std(0)
    centres = KMeans(8, n_init=4, random_state=0).fit(scaled).cluster_centers_
    net = Net(18)
    x, axes = net.input("x", 1, normal.shape[1]), net.const([1], np.int64)
    z = standardized(net, x, normal)
    products = net.op("Gemm", z, net.const(-2 * centres.T), net.const((centres**2).sum(1)))
    squares = net.op("Add", products, net.op("ReduceSumSquare", z, axes))
    score = net.op("Sqrt", net.op("Relu", net.op("ReduceMin", squares, axes)))
    return anomaly_trial(net, score, normal, benign[200:], malignant)


def mixture_likelihood() -> Trial:
    """Fit four Gaussians to principal components of digits below 5.

    The negative log-likelihood is the anomaly score.
    """
    normal, odd = digits_of(range(5)), digits_of(range(5, 10))
    mean = normal[:600].mean(0)
    components = np.linalg.svd(normal[:600] - mean, full_matrices=False)[2][:10].T
    mixture = GaussianMixture(4, reg_covar=1e-3, random_state=0).fit((normal[:600] - mean) @ components)
    net = Net(18)
    x, axes = net.input("x", 1, 64), net.const([1], np.int64)
    reduced = net.op("Gemm", x, net.const(components), net.const(-mean @ components))
    logs = []
    for weight, centre, factor in zip(mixture.weights_, mixture.means_, mixture.precisions_cholesky_, strict=True):
        whitened = net.op("Gemm", reduced, net.const(factor), net.const(-centre @ factor))
        half = net.op("Mul", net.op("ReduceSumSquare", whitened, axes), net.const(-0.5))
        logs.append(net.op("Add", half, net.const(np.log(weight) + np.log(np.diag(factor)).sum())))
    score = net.op("Neg", net.op("ReduceLogSumExp", net.op("Concat", *logs, axis=1), axes))
    return anomaly_trial(net, score, normal[:600], normal[600:], odd)


# ------------------------------------------------------------------------------------------------ images

CELL, GRID = 4, 8
"""Pixels of a cell's side, and cells of a side of the detector's output."""

SIDE, SMALL_SIDE = CELL * GRID, 16
"""Pixels of an image's side, and of one that is segmented."""


@dataclass(frozen=True)
class Scenes:
    """Images of discs and squares on noise: pixels, the class of each pixel, and boxes (class and corners)."""

    images: Array
    classes: Array
    boxes: Array


def scenes(count: int, seed: int, side: int = SIDE) -> Scenes:
    """Draw images of one to three shapes, as far as they do not overlap, of any brightness and contrast."""
    random = np.random.default_rng(seed)
    rows, columns = np.mgrid[:side, :side] + 0.5
    images = np.zeros((count, 1, side, side), np.float32)
    classes = np.zeros((count, side, side), np.int64)
    boxes = np.full((count, 3, 5), -1.0, np.float32)
    for n in range(count):
        images[n, 0] = random.uniform(0.1, 0.5) + random.normal(0, 0.04, (side, side))
        for place in range(random.integers(1, 4)):
            kind, half = int(random.integers(0, 2)), random.uniform(3, 6)
            y, x = random.uniform(half, side - half, 2)
            away = np.hypot(rows - y, columns - x) if kind == 0 else np.maximum(abs(rows - y), abs(columns - x))
            inside = away <= half
            if (classes[n][inside] > 0).any():
                continue
            images[n, 0][inside] += random.uniform(0.2, 0.5)
            classes[n][inside] = kind + 1
            boxes[n, place] = kind, x - half, y - half, x + half, y + half
    return Scenes(images, classes, boxes)


def backbone(build: Builder, x: str) -> str:
    """Add the layers of the detector up to its head: 16 channels of 8x8."""
    y = build.net.op("Relu", build.conv(x, "stem", (1, 8), (3, 3), strides=[2, 2], pads=[1, 1, 1, 1]))
    y = build.net.op("Relu", build.conv(y, "down", (8, 16), (3, 3), strides=[2, 2], pads=[1, 1, 1, 1]))
    for name in ("third", "fourth"):
        y = build.net.op("Relu", build.conv(y, name, (16, 16), (3, 3), pads=[1, 1, 1, 1]))
    return y


def cell_targets(drawn: Scenes) -> Array:
    """Return the expected outputs of the detector's head.

    For each cell these are two classes, then the distances of the box's sides, in cells.
    """
    target = np.zeros((len(drawn.boxes), 7, GRID, GRID), np.float32)
    for n, rows in enumerate(drawn.boxes):
        for kind, left, top, right, bottom in rows[rows[:, 0] >= 0]:
            for row in range(GRID):
                for column in range(GRID):
                    x, y = (column + 0.5) * CELL, (row + 0.5) * CELL
                    if max(abs(x - (left + right) / 2), abs(y - (top + bottom) / 2)) <= CELL * 0.75:
                        distances = [(x - left) / CELL, (y - top) / CELL, (right - x) / CELL, (bottom - y) / CELL]
                        target[n, int(kind), row, column] = 1
                        target[n, 2:, row, column] = [*distances, 1]
    return target


def detection_loss(net: Net, found: str, target: str) -> str:
    """Add the squared error of the classes' probabilities and, where an object is, of the distances."""
    sizes = net.const([2, 4, 1], np.int64)
    kinds, wanted_sides, mask = net.ops("Split", target, sizes, outs=["wanted", "wanted_sides", "mask"], axis=1)
    scores, sides = net.ops("Split", found, net.const([2, 4], np.int64), outs=["scores", "sides"], axis=1)
    first = squared_error(net, net.op("Sigmoid", scores), kinds)
    error = net.op("Mul", net.op("Sub", sides, wanted_sides), mask)
    second = net.op("ReduceMean", net.op("Mul", error, error), keepdims=0)
    return net.op("Add", net.op("Mul", first, net.const(4.0)), second)


def detection() -> Trial:
    """Train a detector without anchors for discs and squares; boxes and scores are decoded in the graph."""
    taught, judged = scenes(1200, 1), scenes(300, 2)

    def head(build: Builder, tensors: Mapping[str, str], _batch: int) -> str:
        return build.conv(backbone(build, tensors["x"]), "head", (16, 6), (1, 1))

    found = train(head, {"x": taught.images}, cell_targets(taught), detection_loss, steps=2000, rate=0.01)
    net = Net(18)
    cells = head(Builder(net, found), {"x": net.input("x", 1, 1, SIDE, SIDE)}, 1)
    rows = net.op("Transpose", net.op("Reshape", cells, net.const([1, 6, GRID**2], np.int64)), perm=[0, 2, 1])
    scores, sides = net.ops("Split", rows, net.const([2, 4], np.int64), outs=["logits", "sides"], axis=2)
    y, x = ((np.mgrid[:GRID, :GRID].reshape(2, -1) + 0.5) * CELL).astype(np.float32)
    centres = np.stack([x, y, x, y], 1)[None]
    moved = net.op("Mul", sides, net.const(np.array([-CELL, -CELL, CELL, CELL])))
    net.output(net.op("Add", moved, net.const(centres), out="boxes"), net.op("Sigmoid", scores, out="scores"))

    def score(outputs: Arrays) -> float:
        samples = [{name: array[n] for name, array in outputs.items()} for n in range(len(judged.images))]
        return mean_average_precision(samples, judged.boxes, MAP_IOU_THRESHOLDS)

    calibration = taught.images[:CALIBRATION]
    return Trial(net.model(), {"x": calibration}, {"x": judged.images}, score, taught.boxes[:CALIBRATION])


def segmentation() -> Trial:
    """Train a U-Net of two levels on discs and squares; its output is the class of each pixel."""
    taught, judged = scenes(1200, 3, SMALL_SIDE), scenes(300, 4, SMALL_SIDE)

    def forward(build: Builder, tensors: Mapping[str, str], _batch: int) -> str:
        net, same = build.net, {"pads": [1, 1, 1, 1]}
        fine = net.op("Relu", build.conv(tensors["x"], "fine", (1, 8), (3, 3), **same))
        middle = net.op("Relu", build.conv(fine, "middle", (8, 12), (3, 3), strides=[2, 2], **same))
        coarse = net.op("Relu", build.conv(middle, "coarse", (12, 16), (3, 3), strides=[2, 2], **same))
        coarse = net.op("Relu", build.conv(coarse, "bottom", (16, 16), (3, 3), **same))
        middle = net.op("Concat", doubled(net, coarse), middle, axis=1)
        middle = net.op("Relu", build.conv(middle, "up", (28, 12), (3, 3), **same))
        fine = net.op("Concat", doubled(net, middle), fine, axis=1)
        fine = net.op("Relu", build.conv(fine, "last", (20, 8), (3, 3), **same))
        return build.conv(fine, "classes", (8, 3), (1, 1))

    wanted = np.moveaxis(np.eye(3, dtype=np.float32)[taught.classes], -1, 1)
    found = train(forward, {"x": taught.images}, wanted, cross_entropy, steps=1200, rate=0.01)
    model = inference(forward, found, {"x": (1, SMALL_SIDE, SMALL_SIDE)})

    def score(outputs: Arrays) -> float:
        (name,) = outputs
        return mean_iou([{name: array} for array in outputs[name]], judged.classes)

    calibration = {"x": taught.images[:CALIBRATION]}
    return Trial(model, calibration, {"x": judged.images}, score, taught.classes[:CALIBRATION])


def doubled(net: Net, x: str) -> str:
    """Add an upsampling by two, nearest neighbour."""
    scales = net.const([1.0, 1.0, 2.0, 2.0])
    return net.op(
        "Resize", x, "", scales, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"
    )


# ------------------------------------------------------------------------------------------------ sound

RATE, LENGTH = 4000, 2048
"""Samples a second, and samples of a word."""

FRAME, HOP, BANDS = 128, 64, 20
"""Samples of a frame, between frames, and bands of the mel scale."""

WORDS = ((300, 900), (900, 300), (500, 1500), (1500, 500), (700, 700), (1300, 1300))
"""Frequencies in Hz at which the formant of each word begins and ends."""


def words(count: int, seed: int) -> tuple[Array, Array]:
    """Return sounds and classes: harmonics of a voice whose formant glides, at levels over 40 dB, in noise."""
    random = np.random.default_rng(seed)
    time = np.arange(LENGTH) / RATE
    sounds, kinds = np.zeros((count, 1, LENGTH), np.float32), random.integers(0, len(WORDS), count)
    for n, kind in enumerate(kinds):
        begin, span = random.uniform(0.02, 0.15), random.uniform(0.2, 0.3)
        part = np.clip((time - begin) / span, 0, 1)
        low, high = np.array(WORDS[kind]) * random.uniform(0.8, 1.25)
        formant, pitch = low + (high - low) * part, random.uniform(90, 220)
        voiced = np.sin(np.pi * part)
        sound = np.zeros(LENGTH)
        for harmonic in range(1, int(RATE / 2 / pitch)):
            gain = np.exp(-(((harmonic * pitch - formant) / 200) ** 2)) + 0.05 / harmonic
            sound += gain * np.sin(2 * np.pi * (harmonic * pitch * time + random.uniform()))
        sound = voiced * sound / 3 + random.normal(0, random.choice([0.05, 0.15, 0.4]), LENGTH)
        sounds[n, 0] = sound * 10 ** random.uniform(-2, 0)
    return np.clip(sounds, -1, 1), kinds


def mel_bands() -> Array:
    """Return triangular filters from the bins of a spectrum to the bands."""
    mel = np.linspace(0, 2595 * np.log10(1 + RATE / 2 / 700), BANDS + 2)
    edges = 700 * (10 ** (mel / 2595) - 1)
    bins = np.linspace(0, RATE / 2, FRAME // 2 + 1)[:, None]
    rising, falling = (bins - edges[:-2]) / np.diff(edges)[:-1], (edges[2:] - bins) / np.diff(edges)[1:]
    return np.maximum(np.minimum(rising, falling), 0).astype(np.float32)


def spectrum_filters() -> Array:
    """Return the windowed cosines and sines of a Fourier transform, as filters of a convolution."""
    angle = 2 * np.pi * np.arange(FRAME // 2 + 1)[:, None] * np.arange(FRAME) / FRAME
    waves = np.concatenate([np.cos(angle), -np.sin(angle)]) * np.hanning(FRAME)
    return waves[:, None].astype(np.float32)


def log_mel(net: Net, sound: str) -> str:
    """Add the audio front end: convolution, power, mel bands, logarithm; 1 x 1 x bands x frames."""
    waves = net.op("Conv", sound, net.const(spectrum_filters()), strides=[HOP])
    half = FRAME // 2 + 1
    real, imaginary = net.ops("Split", waves, net.const([half, half], np.int64), outs=["real", "imaginary"], axis=1)
    power = net.op("Add", net.op("Mul", real, real), net.op("Mul", imaginary, imaginary))
    bands = net.op("MatMul", net.const(mel_bands().T), power)
    logs = net.op("Log", net.op("Add", bands, net.const(1e-5)))
    return net.op("Unsqueeze", logs, net.const([1], np.int64))


def features_of(sounds: Array) -> Array:
    """Return the features of sounds, as the audio front end computes them, by numpy."""
    filters, mel = spectrum_filters()[:, 0].astype(float), mel_bands().astype(float)
    frames = np.lib.stride_tricks.sliding_window_view(sounds[:, 0], FRAME, axis=1)[:, ::HOP]
    waves = frames @ filters.T
    half = FRAME // 2 + 1
    power = waves[..., :half] ** 2 + waves[..., half:] ** 2
    return np.log(power @ mel + 1e-5).transpose(0, 2, 1)[:, None].astype(np.float32)


def keyword_spotting() -> Trial:
    """Train a convolutional network to tell words apart, behind log-mel features that the graph computes from sound."""
    (taught, kinds), (judged, truth) = words(1500, 5), words(400, 6)
    features = features_of(taught)
    frames = features.shape[-1]

    def forward(build: Builder, tensors: Mapping[str, str], _batch: int) -> str:
        net, same = build.net, {"pads": [1, 1, 1, 1]}
        y = net.op("Mul", net.op("Add", tensors["features"], net.const(4.0)), net.const(0.25))
        y = net.op("Relu", build.conv(y, "first", (1, 8), (3, 3), strides=[2, 2], **same))
        y = net.op("Relu", build.conv(y, "second", (8, 16), (3, 3), strides=[2, 2], **same))
        y = net.op("Relu", build.conv(y, "third", (16, 16), (3, 3), **same))
        y = net.op("AveragePool", y, kernel_shape=[1, 2], strides=[1, 2])
        return build.dense(net.op("Flatten", y), "last", 16 * 5 * ((frames + 3) // 4 // 2), len(WORDS))

    found = train(
        forward,
        {"features": features},
        np.eye(len(WORDS), dtype=np.float32)[kinds],
        cross_entropy,
        steps=1000,
        rate=0.005,
    )
    net = Net(18)
    logits = forward(Builder(net, found), {"features": log_mel(net, net.input("x", 1, 1, LENGTH))}, 1)
    net.output(net.op("Softmax", logits))
    return Trial(
        net.model(),
        {"x": taught[:CALIBRATION]},
        {"x": judged},
        lambda outputs: float((_only(outputs).reshape(len(truth), -1).argmax(1) == truth).mean()),
        kinds[:CALIBRATION],
    )


HIDDEN, STEPS = 24, 10
"""Hidden units of the denoiser, and frames of a training sequence."""


def noisy_bands(count: int, seed: int) -> tuple[Array, Array]:
    """Return magnitudes of a stream's frames, noisy and clean; streams are words one after the other."""
    random = np.random.default_rng(seed)
    sounds, _ = words(-(-count * HOP // LENGTH) + 1, seed)
    clean = sounds.reshape(-1) / np.abs(sounds).max(axis=(1, 2)).repeat(LENGTH) * 0.5
    noise = np.convolve(random.normal(0, 0.1, clean.size), [0.5, 0.3, 0.2], "same")
    filters, mel = spectrum_filters()[:, 0].astype(float), mel_bands().astype(float)
    half, found = FRAME // 2 + 1, []
    for sound in (clean + noise, clean):
        frames = np.lib.stride_tricks.sliding_window_view(sound, FRAME)[::HOP][:count]
        waves = frames @ filters.T
        found.append(np.sqrt((waves[:, :half] ** 2 + waves[:, half:] ** 2) @ mel).astype(np.float32))
    return found[0], found[1]


def denoiser() -> Trial:
    """Train a GRU that estimates a mask for the bands of each frame; its state passes from frame to frame."""
    noisy, clean = noisy_bands(STEPS * 1000, 7)

    def masked(build: Builder, frames: str, state: str, shape: tuple[int, ...]) -> str:
        net = build.net
        logs = net.op("Log", net.op("Add", frames, net.const(1e-2)))
        hidden, _ = build.gru(logs, "gru", BANDS, HIDDEN, state)
        flat = net.op("Reshape", hidden, net.const([int(np.prod(shape[:2])), HIDDEN], np.int64))
        mask = net.op("Sigmoid", build.dense(flat, "mask", HIDDEN, BANDS))
        return net.op("Mul", frames, net.op("Reshape", mask, net.const(shape, np.int64)))

    def forward(build: Builder, tensors: Mapping[str, str], batch: int) -> str:
        frames = build.net.op("Transpose", tensors["x"], perm=[1, 0, 2])
        made = masked(build, frames, "", (STEPS, batch, BANDS))
        return build.net.op("Transpose", made, perm=[1, 0, 2])

    parts = [array.reshape(-1, STEPS, BANDS) for array in (noisy, clean)]
    found = train(forward, {"x": parts[0]}, parts[1], squared_error, steps=250, rate=0.02)
    net = Net(18)
    x, state = net.input("x", 1, 1, BANDS), net.input("h", 1, 1, HIDDEN)
    net.output(masked(Builder(net, found), x, state, (1, 1, BANDS)), "gru_last")
    held, truth = noisy_bands(1500, 8)

    def score(outputs: Arrays) -> float:
        (name,) = set(outputs) - {"gru_last"}
        error = np.square(outputs[name].reshape(-1, BANDS) - truth).sum()
        return float(10 * np.log10(np.square(held - truth).sum() / error))

    calibration = {"x": noisy[:400, None, None]}
    return Trial(net.model(), calibration, {"x": held[:, None, None]}, score, states={"gru_last": "h"})


# ------------------------------------------------------------------------------------------------ time series

WINDOW, HORIZON, SERIES = 64, 8, 3
"""Steps that the forecast reads, steps that it gives, and series that it reads."""


def series(count: int, seed: int) -> tuple[Array, Array]:
    """Return windows of a seasonal load with two correlates of other scales, and the next steps of the load."""
    random = np.random.default_rng(seed)
    steps = np.arange(count + WINDOW + HORIZON)
    weather = np.convolve(random.normal(0, 1, steps.size + 40), np.exp(-np.arange(41) / 10), "valid")
    daily = np.sin(2 * np.pi * steps / 24) + 0.4 * np.sin(2 * np.pi * steps / 12 + 1)
    load = 500 + 120 * daily + 40 * np.sin(2 * np.pi * steps / 168) - 10 * weather + random.normal(0, 5, steps.size)
    price = 0.05 + 0.0002 * (load - 500) + random.normal(0, 0.002, steps.size)
    every = np.stack([load, 15 + 3 * weather, price]).astype(np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(every, WINDOW, axis=1)[:, :count].transpose(1, 0, 2)
    wanted = np.lib.stride_tricks.sliding_window_view(every[0], HORIZON)[WINDOW : WINDOW + count]
    return windows.copy(), wanted.copy()


def scaled_series(net: Net, x: str) -> str:
    """Add the standardization of each series."""
    means, deviations = np.array([500, 15, 0.05]), np.array([110, 7, 0.03])
    return net.op("Div", net.op("Sub", x, net.const(means[:, None])), net.const(deviations[:, None]))


def convolutional(build: Builder, tensors: Mapping[str, str], _batch: int) -> str:
    """Add a temporal convolutional network: causal convolutions of growing dilation, then the last step."""
    net = build.net
    y = scaled_series(net, tensors["x"])
    y = net.op("Relu", build.conv(y, "first", (SERIES, 16), (3,), pads=[2, 0]))
    for dilation in (2, 4, 8):
        inner = build.conv(y, f"d{dilation}", (16, 16), (3,), pads=[2 * dilation, 0], dilations=[dilation])
        y = net.op("Add", y, net.op("Relu", inner))
    last = net.op("Slice", y, *(net.const(each, np.int64) for each in ([WINDOW - 1], [WINDOW], [2])))
    return build.dense(net.op("Flatten", last), "last", 16, HORIZON)


def forecast() -> Trial:
    """Train a network that predicts the next eight steps of a load from load, temperature and price of 64 steps."""
    (x, y), (held, truth) = series(4000, 9), series(2000, 10)
    found = train(convolutional, {"x": x}, (y - 500) / 110, squared_error, steps=1000, rate=0.01)
    found.arrays["last_w"] *= np.float32(110)
    found.arrays["last_b"] = found.arrays["last_b"] * np.float32(110) + np.float32(500)
    model = inference(convolutional, found, {"x": (SERIES, WINDOW)})
    chosen = np.random.default_rng(0).permutation(len(x))[:CALIBRATION]

    def score(outputs: Arrays) -> float:
        return float(np.abs(_only(outputs).reshape(truth.shape) - truth).mean())

    return Trial(model, {"x": x[chosen]}, {"x": held}, score)


TASKS = (
    Task("regression: MLP", "R²", regression),
    Task("anomalies: error of an autoencoder", "AUC", autoencoder_error),
    Task("anomalies: distance of k-means", "AUC", cluster_distance),
    Task("anomalies: likelihood of a Gaussian mixture", "AUC", mixture_likelihood),
    Task("detection: boxes without anchors", "mAP", detection, "%"),
    Task("segmentation: U-Net", "mean IoU", segmentation, "%"),
    Task("keyword spotting: log-mel in the graph", "accuracy", keyword_spotting, "%"),
    Task("denoiser: GRU with states", "SNR gain", denoiser, "dB"),
    Task("forecast: temporal convolutions", "MAE", forecast, lower_is_better=True),
)
"""All tasks other than classification."""
