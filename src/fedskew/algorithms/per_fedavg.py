"""Per-FedAvg (Fallah, Mokhtari, Ozdaglar 2020, arXiv:2002.07948, Algorithm 1).

The objective is the mean over clients of F_k(w - alpha grad F_k(w)): a model that is good after one local gradient step.

    client   w~ <- w - alpha g(w; b1)
             first-order    w <- w - beta g(w~; b2)
             hessian-free   w <- w - beta [v - alpha d],  v = g(w~; b2),  d = [g(w + delta v; b3) - g(w - delta v; b3)] / (2 delta)
    server   uniform mean

beta is the local solver's rate. A client uses the global model after a few steps of size alpha on its own rows. Measure this
model with ``evaluation.adapt_steps``, the same for every method compared, and ``adapt_lr`` equal to alpha.

Departures: the paper's batches b1, b2 and b3 are independent. Here they are the rows of one batch, dealt out in turn, so that a
step reads as many rows as any other method's. A part without rows takes the whole batch. With ``batches="same"`` every part is
the whole batch, so that alpha = 0 is exactly local SGD.

Elsewhere: one implementation calls single steps local epochs. Others take one batch for b1 and b2.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedskew.core.algorithm import Algorithm, Contract, GradFn, Loss, Solver, Weighting, local_loss
from fedskew.core.limits import NonNegativeFloat, PositiveFloat
from fedskew.core.records import Batch, View
from fedskew.core.task import Task, without_padding
from fedskew.core.trees import Tree


@dataclass(frozen=True, kw_only=True)
class PerFedAvg(Algorithm):
    weighting: Weighting = "uniform"
    alpha: NonNegativeFloat = 0.01
    form: Literal["first-order", "hessian-free"] = "first-order"
    delta: PositiveFloat = 1e-3
    batches: Literal["split", "same"] = "split"

    idea: ClassVar[str] = "train an initial model that is good after a local gradient step"
    changes: ClassVar[str] = "personalisation"
    cites: ClassVar[tuple[str, ...]] = ("per-fedavg",)
    ranges: ClassVar[Mapping[str, str]] = {"alpha": "0.001 to 0.01", "delta": "0.001"}
    reduces_to: ClassVar[Mapping[str, str]] = {"alpha=0.0,batches=same": "fedavg:weighting=uniform"}

    def contract(self) -> Contract:
        return Contract(hazard=self.overshoot)

    def overshoot(self, lr: float) -> str:
        if self.alpha <= lr:
            return ""
        return (
            f"alpha {self.alpha:g} is above the local rate {lr:g}: where alpha times the curvature exceeds 1 the outer step "
            f"goes uphill; lower alpha below {lr:g}"
        )

    def local_init(self, task: Task, solver: Solver, view: View) -> tuple[Tensor, Tree]:
        # weight decay belongs to F_k, but the local loop adds it only to the gradient of the whole batch
        return view.x, {"decay": view.x.new_full((), solver.weight_decay if solver.linear else 0.0)}

    def direction(self, grad_fn: GradFn, view: View, w: Tensor, scratch: Tree) -> tuple[Tensor, Tree]:
        def g(w: Tensor, number: int) -> Tensor:
            if self.batches == "same":
                return grad_fn(w)[0]
            return grad_fn(w, on_part(number, 2 if self.form == "first-order" else 3))[0] + scratch["decay"] * w

        v = g(w - self.alpha * g(w, 0), 1)
        if self.form == "first-order":
            return v, scratch
        d = (g(w + self.delta * v, 2) - g(w - self.delta * v, 2)) / (2 * self.delta)
        return v - self.alpha * d, scratch


def on_part(number: int, parts: int) -> Loss:
    """Return the local loss on every ``parts``-th real row of a batch, from row ``number`` on.

    If there is no such row, the loss is on all rows.
    """

    def loss(task: Task, view: View, w: Tensor, batch: Batch) -> Tensor:
        position = batch.mask.cumsum(0) - 1
        part_mask = batch.mask * (position.remainder(parts) == number)
        mask = torch.where(part_mask.sum() > 0, part_mask, batch.mask)
        return local_loss(task, w, Batch(batch.x, without_padding(batch.y, mask), mask))

    return loss
