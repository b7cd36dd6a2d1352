"""The squared norms of the rows' gradients without the gradients, which are each as large as a model.

The gradient of a linear layer's weights on a row is the outer product of the slope at its outputs and its inputs, whose norm is
the product of theirs (Goodfellow 2015, arXiv:1510.01799). That of a convolution is such a sum over its places, small enough to be
made. One backward pass over a batch gives the slopes of all its rows and layers, as those of a zero added to each layer's outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad

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


OF_LAYER: dict[type, Callable[..., Tensor]] = {nn.Linear: of_linear, nn.Conv2d: of_convolution}
"""A kind of layer -> the squared norms of its rows' gradients."""


def layers_of(task: Task) -> dict[str, nn.Module]:
    """The layers that hold the model's parameters, by name; none if one of them is of another kind, or frozen."""
    model = getattr(task, "model", None)
    if not isinstance(model, nn.Module):
        return {}
    layers = {name: m for name, m in model.named_modules() if next(m.parameters(recurse=False), None) is not None}
    known = all(
        type(m) in OF_LAYER and getattr(m, "groups", 1) == 1 and not isinstance(getattr(m, "padding", 0), str)
        for m in layers.values()
    )
    return layers if known and all(p.requires_grad for p in model.parameters()) else {}


def heard(forward: Callable[[], Any], layers: dict[str, nn.Module], hear: Hear) -> Any:
    """What a forward pass gives in which each layer is heard and may be changed."""

    def hook(name: str) -> Any:
        return lambda layer, given, outputs: hear(name, given[0], outputs)

    hooks = [layer.register_forward_hook(hook(name)) for name, layer in layers.items()]
    try:
        return forward()
    finally:
        for handle in hooks:
            handle.remove()


@lru_cache(maxsize=64)
def shapes_of(task: Task, x: torch.Size, dtype: torch.dtype, device: torch.device) -> dict[str, torch.Size]:
    """The shape of each layer's outputs on inputs of this shape; none if only the gradients themselves tell their norms.

    A layer must be passed once, with rows (B, I) if it is linear.
    """
    layers = layers_of(task)
    seen: list[tuple[str, torch.Size, int]] = []

    def hear(name: str, inputs: Tensor, outputs: Tensor) -> Tensor:
        seen.append((name, outputs.shape, inputs.dim()))
        return outputs

    if layers:
        model: Any = task.model  # type: ignore[attr-defined]
        w, rows = (torch.zeros(shape, dtype=dtype, device=device) for shape in ((task.space.size,), x))
        heard(lambda: functional_call(model, task.space.unflatten(w), (rows,)), layers, hear)
    once = sorted(name for name, _, _ in seen) == sorted(layers)
    rowwise = all(dim == (2 if isinstance(layers[name], nn.Linear) else 4) for name, _, dim in seen)
    return {name: shape for name, shape, _ in seen} if once and rowwise else {}


def gradient_and_norms(task: Task, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor] | None:
    """The gradient (P,) summed over the real rows at ``w``, and the squared norm of each row's own (B,), 0 for padding.

    None if the model has a layer for which only the gradients themselves tell.
    """
    shapes = shapes_of(task, batch.x.shape, w.dtype, w.device)
    if not shapes:
        return None
    layers = layers_of(task)

    def loss(w: Tensor, added: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        taken: dict[str, Tensor] = {}

        def hear(name: str, inputs: Tensor, outputs: Tensor) -> Tensor:
            taken[name] = inputs.to(w.dtype)
            return outputs + added[name]

        logits = heard(lambda: task.logits(w, batch.x), layers, hear)
        return (batch.mask * task.loss(logits, batch.y)).sum(), taken

    zeros = {name: w.new_zeros(shape) for name, shape in shapes.items()}
    (total, slopes), taken = grad(loss, argnums=(0, 1), has_aux=True)(w, zeros)
    squares = [OF_LAYER[type(layer)](layer, taken[name], slopes[name]) for name, layer in layers.items()]
    return total, torch.stack(squares).sum(0)
