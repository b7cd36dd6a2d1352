"""The clients' values of a score such as accuracy, (K,) from worst to best, as one number: typical, worst, and how even."""

import math

import torch
from torch import Tensor


def mean(values: Tensor) -> Tensor:
    """Mean over the clients."""
    return values.mean()


def worst(values: Tensor) -> Tensor:
    """The worst client's value."""
    return values[0]


def worst_decile(values: Tensor) -> Tensor:
    """Mean over the worst tenth of the clients, rounded up."""
    return values[: math.ceil(0.1 * len(values) - 1e-9)].mean()


def deviation(values: Tensor) -> Tensor:
    """Population standard deviation over the clients."""
    return values.std(correction=0)


def jain(values: Tensor) -> Tensor:
    """Jain's index (sum a)^2 / (K sum a^2) = 1 / (1 + CV^2) of values (K,), in 1/K..1: 1 if all are equal, also if all are 0.

    Its square root is the cosine between the values and a constant vector.
    """
    squares = len(values) * values.square().sum()
    return torch.where(squares > 0, values.sum().square() / squares, 1.0)


def entropy(values: Tensor) -> Tensor:
    """Entropy of the shares a / sum a over log K, in 0..1: 1 if all are equal, for one client, and if all are 0."""
    total = values.sum()
    if len(values) < 2 or not bool(total > 0):
        return values.new_ones(())
    return torch.special.entr(values / total).sum() / math.log(len(values))
