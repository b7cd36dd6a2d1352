"""What methods compute from rows: group fairness, squared norms of single rows' gradients, the variance of gradients.

Every measure of group fairness uses ``counts`` (..., 2, 2, 2): numbers of rows by group, label and prediction. Label and prediction
1 are the favourable outcome. A gap is NaN if one of its rates is 0 / 0.

Squared norms of single rows' gradients need no such gradient. The gradient of a linear layer's weights on a row is the outer
product of its inputs and of the gradient at its outputs. Its norm is the product of their norms (Goodfellow 2015,
arXiv:1510.01799). For a convolution it is a sum of such products over positions. One backward pass gives the gradients at all
outputs: zeros are added to each layer's outputs, and the pass differentiates by them. For 128 rows this takes 4 ms instead of 186
on an MLP of 36,000 parameters, 0.8 s instead of 4.4 on a CNN of 1.7 million.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedskew.core.contract import Setup
from fedskew.core.errors import require
from fedskew.core.records import Batch
from fedskew.core.task import Task
from fedskew.core.trees import Tree


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


T = TypeVar("T")

OnLayer = Callable[[str, Tensor, Tensor], Tensor]
"""Takes a layer's name, inputs and outputs. Returns the outputs for the rest of the forward pass."""


def of_linear(layer: nn.Linear, inputs: Tensor, slopes: Tensor) -> Tensor:
    """Return squared norms (B,) from inputs (B, I) and gradients at the outputs (B, O)."""
    squares = slopes.square().sum(1)
    return squares * (inputs.square().sum(1) + (layer.bias is not None))


def of_convolution(layer: nn.Conv2d, inputs: Tensor, slopes: Tensor) -> Tensor:
    patches = F.unfold(inputs, layer.kernel_size, layer.dilation, layer.padding, layer.stride)  # type: ignore[arg-type]
    slopes = slopes.flatten(2)
    squares = (slopes @ patches.transpose(1, 2)).square().sum((1, 2))
    return squares if layer.bias is None else squares + slopes.sum(2).square().sum(1)


OF_LAYER: dict[type, Callable[..., Tensor]] = {nn.Linear: of_linear, nn.Conv2d: of_convolution}
"""By type of layer: the function that computes its squared norms."""


def layers_of(task: Task) -> dict[str, nn.Module]:
    """Return the layers with parameters, by name; empty if one of them is frozen or has a type that is not in `OF_LAYER`."""
    layers = {name: m for name, m in task.model.named_modules() if next(m.parameters(recurse=False), None) is not None}
    supported = all(
        type(m) in OF_LAYER and getattr(m, "groups", 1) == 1 and not isinstance(getattr(m, "padding", 0), str)
        for m in layers.values()
    )
    return layers if supported and all(p.requires_grad for p in task.model.parameters()) else {}


def with_hooks(forward: Callable[[], T], layers: dict[str, nn.Module], on_layer: OnLayer) -> T:
    """Call ``forward`` while ``on_layer`` replaces the outputs of each layer; return its result."""

    def hook(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
        return lambda layer, inputs, outputs: on_layer(name, inputs[0], outputs)

    hooks = [layer.register_forward_hook(hook(name)) for name, layer in layers.items()]
    try:
        return forward()
    finally:
        for handle in hooks:
            handle.remove()


@lru_cache(maxsize=64)
def shapes_of(task: Task, x: torch.Size, dtype: torch.dtype, device: torch.device) -> dict[str, torch.Size]:
    """Return the shape of each layer's outputs for inputs of shape ``x``; empty if this method cannot compute the norms.

    It cannot if a layer runs more than once, or if a linear layer gets inputs of another shape than (B, I).
    """
    layers = layers_of(task)
    seen: list[tuple[str, torch.Size, int]] = []

    def on_layer(name: str, inputs: Tensor, outputs: Tensor) -> Tensor:
        seen.append((name, outputs.shape, inputs.dim()))
        return outputs

    if layers:
        w, rows = (torch.zeros(shape, dtype=dtype, device=device) for shape in ((task.space.size,), x))
        with_hooks(lambda: functional_call(task.model, task.space.unflatten(w), (rows,)), layers, on_layer)
    once = sorted(name for name, _, _ in seen) == sorted(layers)
    rowwise = all(dim == (2 if isinstance(layers[name], nn.Linear) else 4) for name, _, dim in seen)
    return {name: shape for name, shape, _ in seen} if once and rowwise else {}


def gradient_and_norms(task: Task, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor] | None:
    """Return the gradient (P,) at ``w``, summed over the rows, and the squared norm (B,) of each row's gradient; 0 for padding.

    None if this method cannot compute the norms.
    """
    shapes = shapes_of(task, batch.x.shape, w.dtype, w.device)
    if not shapes:
        return None
    layers = layers_of(task)

    def loss(w: Tensor, added: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        layer_inputs: dict[str, Tensor] = {}

        def on_layer(name: str, inputs: Tensor, outputs: Tensor) -> Tensor:
            layer_inputs[name] = inputs.to(w.dtype)
            return outputs + added[name]

        logits = with_hooks(lambda: task.logits(w, batch.x), layers, on_layer)
        return (batch.mask * task.loss(logits, batch.y)).sum(), layer_inputs

    zeros = {name: w.new_zeros(shape) for name, shape in shapes.items()}
    (total, slopes), layer_inputs = grad(loss, argnums=(0, 1), has_aux=True)(w, zeros)
    squares = [OF_LAYER[type(layer)](layer, layer_inputs[name], slopes[name]) for name, layer in layers.items()]
    return total, torch.stack(squares).sum(0)


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

    gradient = gradient_and_norms(task, w, batch)
    if gradient is None:
        return row_by_row(task, w, batch)
    total, squares = gradient
    return {"sum": total.double(), "square": squares.double().sum()}


def row_by_row(task: Task, w: Tensor, batch: Batch) -> Tree:
    """Compute the `moments` of gradients for any model, from the gradient of each row."""

    def loss(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return task.loss(task.logits(w, x[None]), y[None])[0]

    total, square = torch.zeros_like(w, dtype=torch.float64), w.new_zeros((), dtype=torch.float64)
    for x, y, mask in zip(*(part.split(ROWS) for part in batch), strict=True):
        if task.stacks:
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
    """Return the positions, ascending, of the lowest ``share`` (rounded up) of the scores (C,).

    Of equal scores the first are taken.
    """
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
