"""Local solvers: one step of a flat vector of parameters. Their state is new in every round."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedskew.core.errors import require
from fedskew.core.privacy import alone
from fedskew.core.trees import Tree


def check_rate(lr: float, decay: float) -> None:
    require(math.isfinite(lr) and lr > 0, f"lr must be a finite number above 0, got {lr}")
    require(0 < decay <= 1, f"lr_decay is the factor per round, above 0 and at most 1, got {decay}")


def gathered(beta: float, t: Tensor) -> Tensor:
    """Return ``1 - beta**t``, the total weight of t values in an exponential mean. It is accurate for ``beta`` near 1, too."""
    return -torch.expm1(t * (math.log(beta) if beta else -math.inf))


@dataclass(frozen=True, kw_only=True)
class Sgd:
    """SGD as in `torch.optim.SGD` with dampening 0. The learning rate is ``lr * lr_decay ** round``.

    Weight decay is part of the local loss: the local loop adds ``weight_decay * w`` to each gradient.
    """

    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    lr_decay: float = 1.0
    private = alone

    def __post_init__(self) -> None:
        check_rate(self.lr, self.lr_decay)
        require(0 <= self.momentum < 1, f"momentum must be at least 0 and below 1, got {self.momentum}")
        require(0 <= self.weight_decay < math.inf, f"weight_decay must be at least 0, got {self.weight_decay}")

    linear: ClassVar[bool] = True

    @property
    def plain(self) -> bool:
        return not self.momentum

    def init(self, w: Tensor) -> Tree:
        return {"momentum": torch.zeros_like(w)} if self.momentum else {}

    def update(self, g: Tensor, opt: Tree, w: Tensor, lr: Tensor) -> tuple[Tensor, Tree]:
        if self.momentum:
            g = torch.add(g, opt["momentum"], alpha=self.momentum)
            opt = {"momentum": g}
        return torch.addcmul(w, g, lr, value=-1), opt

    def unit_response(self, steps: Tensor) -> Tensor:
        """Return the displacement divided by -lr after ``steps`` steps with constant gradient 1 (FedNova's ||a||_1)."""
        r = self.momentum
        return (steps - r * (1 - r**steps) / (1 - r)) / (1 - r) if r else steps

    def respond(self, g: Tensor, momentum: Tensor, position: Tensor, lr: Tensor) -> tuple[Tensor, Tensor]:
        """Take one step on scalars; return the new position and momentum."""
        momentum = self.momentum * momentum + g
        return position - lr * momentum, momentum


@dataclass(frozen=True, kw_only=True)
class AdamW:
    """AdamW as in `torch.optim.AdamW`: bias-corrected, decoupled weight decay."""

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01
    lr_decay: float = 1.0

    paper: ClassVar[str] = "Loshchilov, Hutter 2019, arXiv:1711.05101"
    cites: ClassVar[tuple[str, ...]] = ("adamw",)
    private = alone

    def __post_init__(self) -> None:
        check_rate(self.lr, self.lr_decay)
        require(0 <= self.beta1 < 1 and 0 <= self.beta2 < 1, "beta1 and beta2 must be at least 0 and below 1")
        require(self.eps > 0, f"eps must be above 0, got {self.eps}")

    # The step is not linear in the gradients, so there is no unit response. Methods that need one are refused.
    linear: ClassVar[bool] = False
    plain: ClassVar[bool] = False

    def init(self, w: Tensor) -> Tree:
        return {"m": torch.zeros_like(w), "v": torch.zeros_like(w), "t": w.new_zeros(())}

    def update(self, g: Tensor, opt: Tree, w: Tensor, lr: Tensor) -> tuple[Tensor, Tree]:
        t = opt["t"] + 1
        m = torch.lerp(opt["m"], g, 1 - self.beta1)
        v = torch.lerp(opt["v"], g * g, 1 - self.beta2)
        if self.weight_decay:
            w = w * (1 - lr * self.weight_decay)
        # Correcting scalars instead of m and v saves two passes. `clamp` avoids roots of numbers near 0, which are slow.
        correction = gathered(self.beta2, t).sqrt()
        root = v.clamp(min=torch.finfo(v.dtype).tiny).sqrt()
        step = m / (root + self.eps * correction)
        return torch.addcmul(w, step, lr * correction / gathered(self.beta1, t), value=-1), {"m": m, "v": v, "t": t}
