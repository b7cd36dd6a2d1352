"""The variance of a client's gradients or losses over its rows; selection and weights by such scores."""

import math
from typing import Literal

import torch
from torch import Tensor
from torch.func import grad, vmap

from fedskew.core.contract import Setup
from fedskew.core.records import Batch
from fedskew.core.row_norms import gradient_and_norms
from fedskew.core.task import Task, stackable
from fedskew.core.trees import Tree

Of = Literal["gradient", "loss"]

ROWS = 8
"""Number of rows with gradients in memory at a time. Each gradient is as large as the model."""


def single_rows(setup: Setup) -> str:
    if not setup.joint:
        return ""
    return "needs each row's gradient, but here a row's loss depends on other rows; use variance=loss, or --algorithms fedavg"


def moments(of: Of, task: Task, w: Tensor, batch: Batch) -> Tree:
    """Return two sums over the rows, in float64: of each row's gradient (P,) or loss () at ``w``, and of its squared norm ().

    Padding is left out.
    """
    if of == "loss":
        losses = task.loss(task.logits(w, batch.x), batch.y).double()
        return {"sum": (batch.mask * losses).sum(), "square": (batch.mask * losses.square()).sum()}

    found = gradient_and_norms(task, w, batch)
    if found is None:
        return row_by_row(task, w, batch)
    total, squares = found
    return {"sum": total.double(), "square": squares.double().sum()}


def row_by_row(task: Task, w: Tensor, batch: Batch) -> Tree:
    """Compute the `moments` of gradients for any model, from the gradient of each row."""

    def loss(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return task.loss(task.logits(w, x[None]), y[None])[0]

    total, square = torch.zeros_like(w, dtype=torch.float64), w.new_zeros((), dtype=torch.float64)
    for x, y, mask in zip(*(part.split(ROWS) for part in batch), strict=True):
        if stackable(task):
            g = vmap(grad(loss), (None, 0, 0))(w, x, y).double()
        else:
            g = torch.stack([grad(loss)(w, *row) for row in zip(x, y, strict=True)]).double()
        total = total + mask.double() @ g
        square = square + mask.double() @ torch.einsum("rp,rp->r", g, g)
    return {"sum": total, "square": square}


def variance_of(sums: Tree, n: Tensor) -> Tensor:
    """Return the variance 1/n sum ||v_i - v||^2, (), from the `moments` of n rows."""
    return (sums["square"] / n - (sums["sum"] / n).square().sum()).clamp(min=0)


def lowest(scores: Tensor, share: float) -> Tensor:
    """Return the positions, ascending, of the lowest ``share`` (rounded up) of the scores (C,). Equal scores: the first ones."""
    count = max(math.ceil(share * len(scores) - 1e-9), 1)
    return scores.sort(stable=True).indices[:count].sort().values


def soft_weights(p: Tensor, scores: Tensor, tau: float, scale: Literal["relative", "absolute"]) -> Tensor:
    """Return weights (C,) proportional to p e^(-scores / tau), with sum 1. A ``relative`` tau is in units of the median score.

    With tau = 0 only the lowest score has a weight. With infinite tau the weights are proportional to p.
    """
    gap = scores - scores.min()
    unit = torch.quantile(scores, 0.5) if scale == "relative" and tau < math.inf else scores.new_ones(())
    weights = p * torch.where(gap > 0, -gap / (tau * unit), 0.0).exp()
    return weights / weights.sum()
