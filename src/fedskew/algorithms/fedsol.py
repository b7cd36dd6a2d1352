"""FedSOL (Lee et al. 2024, arXiv:2308.12532).

    client   w_k <- x;  each step, on one batch b:
             g_p = grad L_p(w_k; b),   epsilon = rho Lambda * g_p / ||g_p||,   w_k <- w_k - eta_l grad F_k(w_k + epsilon; b)
             L_p   kl: KL( softmax(z_glob / T) || softmax(z / T) ), mean over the batch, z the logits
                   l2: ||w_k - x||^2 / 2
    server   as FedAvg

With ``scale="fixed"`` Lambda is 1. With ``scale="adaptive"`` it is |w_k - x|, normalised within each tensor: entries that share
all indices but the first form a vector of norm 1. epsilon is 0 as long as w_k equals x exactly. There the gradient of the KL term
is 0, and its rounding error would give epsilon a random direction at full length rho.

Departures: weight decay belongs to F_k, so its gradient, too, is taken at w_k + epsilon.

Elsewhere: some implementations add weight decay at w_k. Some can restrict the perturbation to the classifier, or to the layers
before it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedskew.core.algorithm import Algorithm, Contract, GradFn
from fedskew.core.contract import classes
from fedskew.core.limits import NonNegativeFloat, PositiveOrInf
from fedskew.core.records import Batch, View
from fedskew.core.task import Task
from fedskew.core.trees import Tree, unit


@dataclass(frozen=True, kw_only=True)
class FedSol(Algorithm):
    rho: NonNegativeFloat = 1.0
    proximal: Literal["kl", "l2"] = "kl"
    temperature: PositiveOrInf = 3.0
    scale: Literal["adaptive", "fixed"] = "adaptive"

    idea: ClassVar[str] = (
        "take each local gradient farther away from the global model, so that steps preserve its knowledge"
    )
    changes: ClassVar[str] = "update path"
    cites: ClassVar[tuple[str, ...]] = ("fedsol",)
    ranges: ClassVar[Mapping[str, str]] = {"rho": "0.5, 1, 2"}
    reduces_to: ClassVar[Mapping[str, str]] = {"rho=0": "fedavg"}

    def contract(self) -> Contract:
        return Contract(needs=(classes,))

    def proximal_loss(self, task: Task, view: View, w: Tensor, batch: Batch) -> Tensor:
        """L_p, ()."""
        if self.proximal == "l2":
            return (w - view.x).square().sum() / 2
        log_p = F.log_softmax(task.logits(w, batch.x) / self.temperature, dim=-1)
        log_p_glob = F.log_softmax(task.logits(view.x, batch.x) / self.temperature, dim=-1)
        return batch.mean((log_p_glob.exp() * (log_p_glob - log_p)).sum(-1))

    def lengths(self, task: Task, view: View, w: Tensor, batch: Batch) -> Tensor:
        """Return the sum () of ||u|| over all columns u of w - x. Its gradient in u is u / ||u||, or 0 for u = 0."""
        columns = task.space.unflatten(w - view.x).values()
        return torch.stack([torch.linalg.vector_norm(u, dim=0).sum() for u in columns]).sum()

    def direction(self, grad_fn: GradFn, view: View, w: Tensor, scratch: Tree) -> tuple[Tensor, Tree]:
        if not self.rho:
            return grad_fn(w)[0], scratch
        epsilon = self.rho * unit(grad_fn(w, self.proximal_loss)[0])
        if self.scale == "adaptive":
            epsilon = epsilon * grad_fn(w, self.lengths)[0].abs()
        epsilon = torch.where((w != view.x).any(), epsilon, 0.0)
        return grad_fn(w + epsilon)[0], scratch
