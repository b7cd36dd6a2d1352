"""Summaries of the clients' values (K,) of a score such as accuracy. `execution.measurements.rows_of` sorts them, worst first."""

import math

import torch
from torch import Tensor


def mean(values: Tensor) -> Tensor:
    """Return the mean over the clients."""
    return values.mean()


def worst(values: Tensor) -> Tensor:
    """Return the worst client's value."""
    return values[0]


def worst_decile(values: Tensor) -> Tensor:
    """Return the mean over the worst tenth of the clients. Their number is rounded up."""
    return values[: math.ceil(0.1 * len(values) - 1e-9)].mean()


def deviation(values: Tensor) -> Tensor:
    """Return the population standard deviation over the clients."""
    return values.std(correction=0)


def jain(values: Tensor) -> Tensor:
    """Return Jain's index (sum a)^2 / (K sum a^2) = 1 / (1 + CV^2), in 1/K..1. It is 1 if all values are equal, even to 0.

    Its square root is the cosine between the values and a constant vector.
    """
    squares = len(values) * values.square().sum()
    return torch.where(squares > 0, values.sum().square() / squares, 1.0)


def entropy(values: Tensor) -> Tensor:
    """Return the entropy of the shares a / sum a, divided by log K, in 0..1. It is 1 if all values are equal, even to 0."""
    total = values.sum()
    if len(values) < 2 or not bool(total > 0):
        return values.new_ones(())
    return torch.special.entr(values / total).sum() / math.log(len(values))
