"""Group fairness of a binary classifier between two groups of people.

Every measure uses ``counts`` (..., 2, 2, 2): numbers of rows by group, label and prediction. Label and prediction 1 are the
favourable outcome. A gap is NaN if one of its rates is 0 / 0.
"""

import torch
from torch import Tensor

from fedskew.core.errors import require
from fedskew.core.records import Batch


def counts(predicted: Tensor, y: Tensor, group: Tensor, mask: Tensor) -> Tensor:
    """Count rows (2, 2, 2) by group, label and prediction, from zeros and ones (B,). Rows with mask 0 do not count."""
    cell = 4 * group.long() + 2 * y.long() + predicted.long()
    hit = (cell[..., None] == torch.arange(8, device=y.device)).to(mask.dtype)
    return (hit * mask[..., None]).sum(-2).unflatten(-1, (2, 2, 2))


def opportunity(cells: Tensor) -> Tensor:
    """Return the equal-opportunity difference P(1 | group 0, label 1) - P(1 | group 1, label 1)."""
    rate = favoured(cells[..., 1, :])
    return rate[..., 0] - rate[..., 1]


def parity(cells: Tensor) -> Tensor:
    """Return the statistical parity difference P(1 | group 0) - P(1 | group 1)."""
    rate = favoured(cells.sum(-2))
    return rate[..., 0] - rate[..., 1]


def odds(cells: Tensor) -> Tensor:
    """Return the equalised-odds gap: the larger of the absolute gaps in true and in false positive rate."""
    rate = favoured(cells)
    return (rate[..., 0, :] - rate[..., 1, :]).abs().amax(-1)


def accuracy(cells: Tensor) -> Tensor:
    """Return the share of correct predictions."""
    return torch.diagonal(cells, dim1=-2, dim2=-1).sum((-2, -1)) / cells.sum((-3, -2, -1))


def favoured(cells: Tensor) -> Tensor:
    """Return the share of favourable predictions along the last axis."""
    return cells[..., 1] / cells.sum(-1)


def check_groups(data: Batch | None, column: int) -> None:
    """Raise `BadInput` unless the server's rows contain both classes of both groups."""
    cells = counts(torch.zeros_like(data.y), data.y, data.x[:, column], data.mask).sum(-1) if data else torch.zeros(1)
    require(bool((cells > 0).all()), "server_data: needs rows of both classes in both groups; raise its share")
