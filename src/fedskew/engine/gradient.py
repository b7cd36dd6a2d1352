"""The gradient inside `vmap`: `torch.func.grad_and_value` without its import of the compiler, longer than many a small run."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch._functorch import eager_transforms as functorch
from torch.func import grad_and_value as by_torch

PARTS = ("grad_increment_nesting", "_wrap_tensor_for_grad", "_create_differentiable", "_undo_create_differentiable")
OWN = all(hasattr(functorch, part) for part in PARTS)
"""Whether this version of PyTorch has the parts; the public function does the same, only later."""


def grad_and_value(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """From a function of the parameters (P,) to () to its gradient and value, which can be differentiated and stacked."""
    if not OWN:
        return by_torch(function)

    def grad_fn(w: Tensor) -> tuple[Tensor, Tensor]:
        with functorch.grad_increment_nesting() as level, torch.enable_grad():
            leaf = functorch._create_differentiable(functorch._wrap_tensor_for_grad(w, level), level)
            value = function(leaf)
            g = (
                torch.autograd.grad(value, leaf, create_graph=True, allow_unused=True)[0]
                if value.requires_grad
                else None
            )
            g = torch.zeros_like(leaf) if g is None else g
            return functorch._undo_create_differentiable(g, level), functorch._undo_create_differentiable(value, level)

    return grad_fn
