"""Shift and mirror images with one gather. The numbers are the same for one client and for stacked clients."""

import torch
from torch import Tensor


def warped(x: Tensor, warp: Tensor) -> Tensor:
    """Shift and mirror images (..., channels, height, width) by ``warp`` (..., 3).

    ``warp`` holds three numbers: row and column of the pixel that moves to the origin, and 1 for a mirrored image. Pixels beyond
    the border are reflected at it.
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
    """Reflect positions outside 0..size - 1 at the border pixel."""
    at = at.abs()
    return torch.where(at > size - 1, 2 * (size - 1) - at, at)
