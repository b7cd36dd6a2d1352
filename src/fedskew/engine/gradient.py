"""The gradient inside `vmap`: `torch.func.grad_and_value` without its import of the compiler, which takes longer than a run."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import grad_and_value as by_torch

try:
    from torch._functorch.eager_transforms import (
        _create_differentiable,
        _undo_create_differentiable,
        _wrap_tensor_for_grad,
        grad_increment_nesting,
    )

    LIGHT = True
except ImportError:  # not there in every version of PyTorch: the public function does the same, only later
    LIGHT = False


def grad_and_value(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """From a function of the parameters (P,) to () to its gradient and value, which can be differentiated and stacked."""
    if not LIGHT:
        return by_torch(function)

    def grad_fn(w: Tensor) -> tuple[Tensor, Tensor]:
        with grad_increment_nesting() as level, torch.enable_grad():
            leaf = _create_differentiable(_wrap_tensor_for_grad(w, level), level)
            value = function(leaf)
            g = (
                torch.autograd.grad(value, leaf, create_graph=True, allow_unused=True)[0]
                if value.requires_grad
                else None
            )
            g = torch.zeros_like(leaf) if g is None else g
            return _undo_create_differentiable(g, level), _undo_create_differentiable(value, level)

    return grad_fn
