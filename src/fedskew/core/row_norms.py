"""The squared norms of the rows' gradients without the gradients, which are each as large as a model.

The gradient of a linear layer's weights on a row is the outer product of the slope at its outputs and its inputs, whose norm is
the product of theirs (Goodfellow 2015, arXiv:1510.01799). That of a convolution is such a sum over its places, small enough to be
made. One backward pass over a batch gives the slopes of all its rows and layers, as those of a zero added to each layer's outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad

from fedskew.core.records import Batch
from fedskew.core.task import Task

Hear = Callable[[str, Tensor, Tensor], Tensor]
"""Told a layer's name, inputs and outputs; gives the outputs with which the pass goes on."""


def of_linear(layer: nn.Linear, inputs: Tensor, slopes: Tensor) -> Tensor:
    """Inputs (B, I) and slopes at the outputs (B, O) to (B,)."""
    squares = slopes.square().sum(1)
    return squares * (inputs.square().sum(1) + (layer.bias is not None))


def of_convolution(layer: nn.Conv2d, inputs: Tensor, slopes: Tensor) -> Tensor:
    patches = F.unfold(inputs, layer.kernel_size, layer.dilation, layer.padding, layer.stride)  # type: ignore[arg-type]
    slopes = slopes.flatten(2)
    squares = (slopes @ patches.transpose(1, 2)).square().sum((1, 2))
    return squares if layer.bias is None else squares + slopes.sum(2).square().sum(1)


def layers_of(task: Task) -> dict[str, nn.Module]:
    """The layers that hold the model's parameters, by name; none if one of them is of another kind, or frozen."""
    model = getattr(task, "model", None)
    if not isinstance(model, nn.Module):
        return {}
    layers = {name: m for name, m in model.named_modules() if next(m.parameters(recurse=False), None) is not None}
    known = all(
        type(m) is nn.Linear or (type(m) is nn.Conv2d and m.groups == 1 and not isinstance(m.padding, str))
        for m in layers.values()
    )
    return layers if known and all(p.requires_grad for p in model.parameters()) else {}


def heard(task: Task, layers: dict[str, nn.Module], w: Tensor, x: Tensor, hear: Hear) -> Tensor:
    """The logits, where each layer is heard and may be changed."""

    def hook(name: str) -> Any:
        return lambda layer, given, outputs: hear(name, given[0], outputs)

    hooks = [layer.register_forward_hook(hook(name)) for name, layer in layers.items()]
    try:
        return task.logits(w, x)
    finally:
        for handle in hooks:
            handle.remove()


def row_norms(task: Task, w: Tensor, batch: Batch) -> Tensor | None:
    """||grad l_i(w)||^2 of each row, (B,); none if the model has a layer for which only the gradients themselves tell.

    A layer must be passed once, as (B, I) if it is linear.
    """
    layers = layers_of(task)
    zeros: list[tuple[str, Tensor]] = []
    flat: list[bool] = []

    def shape(name: str, inputs: Tensor, outputs: Tensor) -> Tensor:
        zeros.append((name, torch.zeros_like(outputs)))
        flat.append(inputs.dim() == (2 if isinstance(layers[name], nn.Linear) else 4))
        return outputs

    if layers:
        with torch.no_grad():
            heard(task, layers, w, batch.x, shape)
    if not layers or sorted(name for name, _ in zeros) != sorted(layers) or not all(flat):
        return None

    def loss(added: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        taken: dict[str, Tensor] = {}

        def hear(name: str, inputs: Tensor, outputs: Tensor) -> Tensor:
            taken[name] = inputs
            return outputs + added[name]

        logits = heard(task, layers, w, batch.x, hear)
        return task.loss(logits, batch.y).sum(), taken

    slopes, taken = grad(loss, has_aux=True)(dict(zeros))
    squares = [
        of_linear(layer, taken[name].to(w.dtype), slopes[name].to(w.dtype))
        if isinstance(layer, nn.Linear)
        else of_convolution(layer, taken[name].to(w.dtype), slopes[name].to(w.dtype))  # type: ignore[arg-type]
        for name, layer in layers.items()
    ]
    return torch.stack(squares).sum(0)
