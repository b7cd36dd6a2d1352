"""A batch of B rows of one client, as losses and hooks get it."""

from typing import NamedTuple

import torch
from torch import Tensor


def without_padding(y: Tensor, mask: Tensor) -> Tensor:
    """Return the targets (..., B, ...), with 0 for padded rows if they are floating point. Integers do not change.

    A loss that compares rows, such as one for survival times, recognises padded rows by a time of 0.
    """
    return y * mask.reshape(*mask.shape, *[1] * (y.dim() - mask.dim())) if y.is_floating_point() else y


class Batch(NamedTuple):
    """Rows with a mask of 0 and 1. Padding has mask 0 and never changes a result."""

    x: Tensor  # (B, ...)
    y: Tensor  # (B, ...)
    mask: Tensor  # (B,)

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of ``values`` (B, ...) over the rows that are no padding."""
        if values.dim() == 1:
            return (self.mask * values).sum()
        return torch.tensordot(self.mask, values, dims=1)

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean of ``values`` (B, ...) over the rows that are no padding."""
        return self.sum(values) / self.mask.sum().clamp(min=1)
