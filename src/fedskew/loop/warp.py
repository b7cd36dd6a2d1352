"""Shifted and mirrored images, by one gather: the same numbers for one client and for many."""

import torch
from torch import Tensor


def warped(x: Tensor, warp: Tensor) -> Tensor:
    """Images (..., channels, height, width), shifted and mirrored by ``warp`` (..., 3).

    ``warp`` holds the row and the column of the old pixel at the new origin, and 1 for a mirrored image. Pixels beyond the border
    are reflected at it.
    """
    images, change = x.flatten(0, -4), warp.flatten(0, -2)
    height, width = x.shape[-2:]
    rows = reflected(torch.arange(height, device=x.device) + change[:, :1], height)
    columns = reflected(torch.arange(width, device=x.device) + change[:, 1:2], width)
    columns = torch.where(change[:, 2:] == 1, columns.flip(1), columns)
    n, channels = (torch.arange(size, device=x.device) for size in images.shape[:2])
    moved = images[n[:, None, None, None], channels[:, None, None], rows[:, None, :, None], columns[:, None, None, :]]
    return moved.view(x.shape)


def reflected(at: Tensor, size: int) -> Tensor:
    """Positions beyond 0..size-1, reflected at the border pixel."""
    at = at.abs()
    return torch.where(at > size - 1, 2 * (size - 1) - at, at)
