"""Squared norms of single rows' gradients, without computing these gradients.

The gradient of a linear layer's weights on a row is the outer product of its inputs and of the gradient at its outputs. Its norm is
the product of their norms (Goodfellow 2015, arXiv:1510.01799). For a convolution it is a sum of such products over positions. One
backward pass gives the gradients at all outputs: zeros are added to each layer's outputs, and the pass differentiates by them.

For 128 rows this takes 4 ms instead of 186 on an MLP of 36,000 parameters, 0.8 s instead of 4.4 on a CNN of 1.7 million.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad

from fedskew.core.records import Batch
from fedskew.core.task import Task

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
    model = getattr(task, "model", None)
    if not isinstance(model, nn.Module):
        return {}
    layers = {name: m for name, m in model.named_modules() if next(m.parameters(recurse=False), None) is not None}
    known = all(
        type(m) in OF_LAYER and getattr(m, "groups", 1) == 1 and not isinstance(getattr(m, "padding", 0), str)
        for m in layers.values()
    )
    return layers if known and all(p.requires_grad for p in model.parameters()) else {}


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
        model: nn.Module = task.model  # type: ignore[attr-defined]
        w, rows = (torch.zeros(shape, dtype=dtype, device=device) for shape in ((task.space.size,), x))
        with_hooks(lambda: functional_call(model, task.space.unflatten(w), (rows,)), layers, on_layer)
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
        taken: dict[str, Tensor] = {}

        def on_layer(name: str, inputs: Tensor, outputs: Tensor) -> Tensor:
            taken[name] = inputs.to(w.dtype)
            return outputs + added[name]

        logits = with_hooks(lambda: task.logits(w, batch.x), layers, on_layer)
        return (batch.mask * task.loss(logits, batch.y)).sum(), taken

    zeros = {name: w.new_zeros(shape) for name, shape in shapes.items()}
    (total, slopes), taken = grad(loss, argnums=(0, 1), has_aux=True)(w, zeros)
    squares = [OF_LAYER[type(layer)](layer, taken[name], slopes[name]) for name, layer in layers.items()]
    return total, torch.stack(squares).sum(0)
