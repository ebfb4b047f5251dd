# SPDX-License-Identifier: Apache-2.0
"""A keyword network with 4-bit weights gains accuracy by fine-tuning, and the device computes the trained bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from shared_models import MODELS

import mcugen

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install 'mcugen[torch]')")

from keyword_network import keyword_network  # noqa: E402 - it needs PyTorch.

NUM_TRAINED = 400
"""Number of samples for training: all of the calibration split, and the first of the evaluation split."""
EPOCHS = 6


def samples() -> tuple[Any, Any]:
    """Return inputs and labels, first those for training."""
    splits = [np.load(MODELS.parent / "data" / f"kws_{split}.npz") for split in ("calib", "eval")]
    x, y = (torch.from_numpy(np.concatenate([split[key] for split in splits])) for key in ("x", "y"))
    return x.float(), y


def percent(outputs: Any, labels: Any) -> float:
    """Return the percentage of samples whose largest output is that of the label."""
    return 100 * float(
        (torch.as_tensor(np.asarray(outputs)).reshape(len(labels), -1).argmax(1) == labels).float().mean()
    )


@pytest.mark.shared
@pytest.mark.qemu
@pytest.mark.slow
def test_a_keyword_network_of_four_bits() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net, (x, y) = keyword_network(MODELS / "ds_cnn_kws_f32.onnx"), samples()
    x_train, y_train, x_test, y_test = x[:NUM_TRAINED], y[:NUM_TRAINED], x[NUM_TRAINED:], y[NUM_TRAINED:]
    with torch.no_grad():
        accuracies = {"float32": percent(net(x_test), y_test)}
    calibrated = mcugen.compile(net, "host", calibration=x_train[:200].numpy(), precision="w4a8")
    accuracies["w4a8 without training"] = percent(calibrated.run(x_test.numpy())["output"], y_test)
    qat = mcugen.torch.prepare_qat(net, x_train[:200], weight_bits=4)
    with torch.no_grad():
        accuracies["w4a8 before training"] = percent(qat(x_test), y_test)
    optimizer = torch.optim.Adam(qat.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    generator = torch.Generator().manual_seed(0)
    for _ in range(EPOCHS):
        for batch in torch.randperm(NUM_TRAINED, generator=generator).split(40):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(qat(x_train[batch]), y_train[batch]).backward()
            optimizer.step()
        schedule.step()
    with torch.no_grad():
        outputs = qat(x_test).numpy()
    accuracies["w4a8 fine-tuned"] = percent(outputs, y_test)
    print(accuracies)
    host = mcugen.compile(qat, "host").run(x_test.numpy(), simulate=True)["output"]
    assert np.array_equal(host.reshape(outputs.shape), outputs)
    model = mcugen.compile(qat, "nrf52840")
    device = model.run(x_test[:8].numpy(), simulate=True)["output"]
    assert np.array_equal(device.reshape(8, -1), outputs[:8])
    report = model.report(x_test[:1].numpy())
    print(report.instructions, report.ram.total, report.flash.total)
    assert accuracies["w4a8 fine-tuned"] > accuracies["w4a8 without training"]
    assert accuracies["w4a8 fine-tuned"] > accuracies["w4a8 before training"]
