"""Rows of one client, as the loss and the hooks see them. B rows of a batch."""

from typing import NamedTuple

import torch
from torch import Tensor


class Batch(NamedTuple):
    """Rows with a mask of 0 and 1. Padding has mask 0 and never changes a result."""

    x: Tensor  # (B, ...)
    y: Tensor  # (B,)
    mask: Tensor  # (B,)

    def sum(self, values: Tensor) -> Tensor:
        """Sum of (B, ...) over the real rows."""
        if values.dim() == 1:
            return (self.mask * values).sum()
        return torch.tensordot(self.mask, values, dims=1)

    def mean(self, values: Tensor) -> Tensor:
        """Mean of (B, ...) over the real rows."""
        return self.sum(values) / self.mask.sum().clamp(min=1)
