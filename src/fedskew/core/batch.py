"""Rows of one client, as the loss and the hooks see them. B rows of a batch."""

from typing import NamedTuple

import torch
from torch import Tensor


def without_padding(y: Tensor, mask: Tensor) -> Tensor:
    """The targets (..., B, ...) with numbers of padded rows set to 0; integers stay.

    A loss that compares rows, as of survival times, can tell padded rows by a time of 0.
    """
    return y * mask.reshape(*mask.shape, *[1] * (y.dim() - mask.dim())) if y.is_floating_point() else y


class Batch(NamedTuple):
    """Rows with a mask of 0 and 1. Padding has mask 0 and never changes a result."""

    x: Tensor  # (B, ...)
    y: Tensor  # (B, ...)
    mask: Tensor  # (B,)

    def sum(self, values: Tensor) -> Tensor:
        """Sum of (B, ...) over the real rows."""
        if values.dim() == 1:
            return (self.mask * values).sum()
        return torch.tensordot(self.mask, values, dims=1)

    def mean(self, values: Tensor) -> Tensor:
        """Mean of (B, ...) over the real rows."""
        return self.sum(values) / self.mask.sum().clamp(min=1)
