# SPDX-License-Identifier: Apache-2.0
"""Training by PyTorch of the last two layers of test_statistics.py's network, and of the normalization between them.

python torch_statistics.py WEIGHTS.npz SAMPLES.npz LEARNED.npz; no code of mcugen is used. Needs PyTorch.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch.nn import functional

TRAINED = ("w2", "scale2", "shift2", "dense", "bias")
"""Names of the trained tensors."""


def main(weights: str, samples: str, result: str) -> None:
    """Write the weights and the statistics after training on the samples, in float64."""
    p = {name: torch.tensor(a.astype(np.float64)) for name, a in np.load(weights).items()}
    given = np.load(samples)
    epsilon, share, rate = (float(given[name]) for name in ("epsilon", "share", "rate"))
    for name in TRAINED:
        p[name].requires_grad_()
    optimizer = torch.optim.SGD([p[name] for name in TRAINED], rate)
    for index, x in enumerate(given["x"]):
        y = functional.conv2d(torch.tensor(x.astype(np.float64)), p["w1"][:, :, None, None])
        norm = [p[f"{role}1"] for role in ("mean", "variance", "scale", "shift")]
        y = functional.batch_norm(y, *norm, False, share, epsilon).relu()
        y = functional.conv2d(y, p["w2"][:, :, None, None], p["b2"])
        norm = [p[f"{role}2"] for role in ("mean", "variance", "scale", "shift")]
        y = functional.batch_norm(y, *norm, True, share, epsilon).relu().mean((2, 3))
        optimizer.zero_grad()
        scores = functional.linear(y, p["dense"], p["bias"])
        functional.cross_entropy(scores, torch.tensor([index % 3])).backward()
        optimizer.step()
    np.savez(result, **{name: value.detach().numpy() for name, value in p.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
