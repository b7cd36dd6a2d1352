"""Exercise 14.4.3 of the book section 'Non-IID Data' on the section's own data: the bound on drift against the drift."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedskew.data.datasets.synthetic_softmax import SyntheticSoftmax
from fedskew.experiment.drift_demo import CLIENTS
from fedskew.measure.bound import Bound, bound
from fedskew.skew.partition import Ints


def drift_bound(rate: float = 0.1, steps: int = 50) -> dict[str, Bound]:
    """Full-batch steps of softmax regression from zero, 30 clients, in the listing's two partitions.

    Softmax regression is convex and L-smooth with half the largest eigenvalue of X'X / n (the Hessian of the log-sum-exp is at most
    one half): with a rate up to 2 / L both bounds apply. The order of random numbers is the listing's.
    """
    rng = np.random.default_rng(0)
    data = SyntheticSoftmax(test="train").draw(rng)
    dealt = {
        "IID": np.array_split(rng.permutation(len(data.y)), CLIENTS),
        "sorted by label": np.array_split(np.argsort(data.y, kind="stable"), CLIENTS),
    }
    x = torch.as_tensor(data.x, dtype=torch.float64)
    y = torch.nn.functional.one_hot(torch.as_tensor(data.y), data.num_classes).double()
    smooth = float(torch.linalg.eigvalsh(x.T @ x / len(x))[-1]) / 2
    w = x.new_zeros(x.shape[1] * y.shape[1])

    def whole(models: Tensor) -> Tensor:
        return gradient(models, x.expand(len(models), -1, -1), y.expand(len(models), -1, -1))

    def bounded(rows: Ints) -> Bound:
        own_x, own_y = x[rows], y[rows]
        return bound(lambda models: gradient(models, own_x, own_y), whole, w, CLIENTS, rate, steps, smooth)

    # 12,000 rows are 30 times 400
    return {name: bounded(np.stack(rows)) for name, rows in dealt.items()}


def gradient(models: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Of the mean cross-entropy of models (K, features * classes) on x (K, n, features) and one-hot y (K, n, classes)."""
    w = models.view(len(models), x.shape[2], y.shape[2])
    error = (x @ w).softmax(-1) - y
    return (x.mT @ error / x.shape[1]).flatten(1)
