"""FedGA, gradient alignment (Xiao, Zuo, Wang 2024, arXiv:2412.16582).

    client   minimise the mean over the batch of  -sum_c t_c log p_c,  p = softmax(logits),
             t = e_y + p r_y  with p held constant,  r_yc = (n_y - n_c) / n_y,  n_c: rows of class c in the batch
    server   as FedAvg

The gradient at the logits is p s - t with s = sum_c t_c = 1 + sum_c p_c r_yc. A batch with equally many rows of every class
gives r = 0 and cross-entropy. The targets may be negative and need not sum to 1, so the value of the loss may be negative.

Departures: the formulas come from the authors' code. That code also clips gradients at norm 5; here nothing is clipped.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from fedskew.core.algorithm import Algorithm, Contract
from fedskew.core.contract import classes
from fedskew.core.records import Batch, View
from fedskew.core.task import Task, one_hot


@dataclass(frozen=True, kw_only=True)
class FedGAAlignment(Algorithm):
    idea: ClassVar[str] = "targets that balance the pull of frequent and rare classes within a batch"
    changes: ClassVar[str] = "loss landscape"
    cites: ClassVar[tuple[str, ...]] = ("fedga-alignment",)

    def contract(self) -> Contract:
        return Contract(needs=(classes,))

    def objective(self, task: Task, view: View, w: Tensor, batch: Batch) -> Tensor:
        log_p = F.log_softmax(task.logits(w, batch.x), dim=-1)
        e_y = one_hot(batch.y, task.num_classes, log_p.dtype)
        n = batch.sum(e_y)
        n_y = (e_y @ n).clamp(min=1)  # a padded row may be of a class that no real row has
        r_y = (n_y[:, None] - n) / n_y[:, None]
        t = e_y + log_p.detach().exp() * r_y
        return batch.mean(-(t * log_p).sum(-1))
