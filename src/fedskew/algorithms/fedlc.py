"""FedLC (Zhang et al. 2022, arXiv:2209.00189).

    client   minimise  -log [ e^(z_y - tau n_y^(-1/4)) / sum_c e^(z_c - tau n_c^(-1/4)) ],  n_c the client's rows of class c
    server   as FedAvg;  predictions use the logits z as they are

Rare classes need a larger margin. A class without local rows counts as ``n_min`` rows. With 1e-8 its logit falls by 100 tau. This
in effect removes the class from the softmax, so that local training does not push it down.

Departures: the paper's sum leaves out c = y. That loss has no lower bound: a client with one class can lower it forever.
Therefore the default sums over all classes. ``denominator="exclude"`` is the paper's form. The default loss is the softplus of
the paper's.

Elsewhere: most implementations sum over all classes, and some divide by zero for a class without rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedskew.core.algorithm import Algorithm, Contract
from fedskew.core.contract import classes
from fedskew.core.limits import NonNegativeFloat, PositiveShare
from fedskew.core.records import Batch, View
from fedskew.core.task import Task, one_hot


@dataclass(frozen=True, kw_only=True)
class FedLc(Algorithm):
    tau: NonNegativeFloat = 1.0
    denominator: Literal["include", "exclude"] = "include"
    n_min: PositiveShare = 1e-8

    idea: ClassVar[str] = "a larger margin in the local loss for classes with few local rows"
    changes: ClassVar[str] = "loss landscape"
    cites: ClassVar[tuple[str, ...]] = ("fedlc",)
    ranges: ClassVar[Mapping[str, str]] = {"tau": "0.1, 0.5, 1", "n_min": "1e-8, 1"}
    reduces_to: ClassVar[Mapping[str, str]] = {"tau=0": "fedavg"}

    def contract(self) -> Contract:
        if self.denominator == "include":
            return Contract(needs=(classes,))
        return Contract(
            needs=(classes,),
            hazard=lambda lr: "denominator=exclude makes a loss without a lower bound; use denominator=include",
        )

    def objective(self, task: Task, view: View, w: Tensor, batch: Batch) -> Tensor:
        n = view.info.label_counts.clamp(min=self.n_min)
        z = task.logits(w, batch.x) - self.tau * n**-0.25
        if self.denominator == "include":
            return batch.mean(task.loss(z, batch.y))
        true = one_hot(batch.y, task.num_classes, torch.bool)
        others = torch.where(true, torch.finfo(z.dtype).min, z).logsumexp(-1)
        return batch.mean(others - torch.where(true, z, 0).sum(-1))
