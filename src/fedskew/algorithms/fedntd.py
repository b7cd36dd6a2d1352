"""FedNTD (Lee et al. 2022, arXiv:2106.03097).

    client   minimise  CE(q, y) + beta tau^2 KL(q~_g || q~),
             q~ = softmax of z / tau over the classes other than y, z the logits at w;  q~_g the same at x
    server   as FedAvg

The distillation leaves out the true class. It preserves what the global model knows of the other classes, and the cross-entropy
alone trains the true one. With two classes in all, the distillation term is 0.

Elsewhere: the authors' code had no tau^2 at first. Its default is tau = 3; its configurations say 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedskew.core.algorithm import Algorithm, Contract
from fedskew.core.contract import classes
from fedskew.core.limits import NonNegativeFloat, PositiveFloat
from fedskew.core.records import Batch, View
from fedskew.core.task import Task, one_hot


@dataclass(frozen=True, kw_only=True)
class FedNtd(Algorithm):
    beta: NonNegativeFloat = 1.0
    tau: PositiveFloat = 1.0

    idea: ClassVar[str] = "distil the global model's predictions for all classes but the true one"
    changes: ClassVar[str] = "loss landscape"
    cites: ClassVar[tuple[str, ...]] = ("fedntd",)
    ranges: ClassVar[Mapping[str, str]] = {"beta": "0.1 to 3", "tau": "1, 3, 5"}
    reduces_to: ClassVar[Mapping[str, str]] = {"beta=0": "fedavg"}

    def contract(self) -> Contract:
        return Contract(needs=(classes,), hazard=self.overshoot)

    def overshoot(self, lr: float) -> str:
        strength = self.beta * self.tau
        if strength <= 1:
            return ""
        return (
            f"beta x tau = {strength:g}: the distillation's gradient grows to that many times the cross-entropy's; "
            f"lower beta to {1 / self.tau:.2g}, or the client learning rate"
        )

    def objective(self, task: Task, view: View, w: Tensor, batch: Batch) -> Tensor:
        logits = task.logits(w, batch.x)
        true = one_hot(batch.y, task.num_classes, torch.bool)
        log_q, log_q_g = (not_true(z / self.tau, true).log_softmax(-1) for z in (logits, task.logits(view.x, batch.x)))
        kl = (log_q_g.exp() * (log_q_g - log_q)).sum(-1)
        return batch.mean(task.loss(logits, batch.y) + self.beta * self.tau**2 * kl)


def not_true(z: Tensor, true: Tensor) -> Tensor:
    """Replace the logits (B, K) of the true classes by the lowest finite number. -infinity would give NaN in a product with 0."""
    return torch.where(true, torch.finfo(z.dtype).min, z)
