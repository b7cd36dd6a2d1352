"""Multi-label classification: a row can have any number of labels."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import softplus

from fedskew.core.metrics import TaskMetric
from fedskew.core.task import TaskKind
from fedskew.core.trees import Tree
from fedskew.tasks.metrics import MULTI_LABEL
from fedskew.tasks.ranking import Floats, areas, areas_without, f1, f1_without, log_shares, mean_of_defined


@dataclass(frozen=True, kw_only=True)
class MultiLabel(TaskKind):
    """Binary cross-entropy in nats, averaged over the labels. The model has one output for each label: at least 0 means yes."""

    idea: ClassVar[str] = "any number of labels for each row, by binary cross-entropy"
    target: ClassVar[str] = "labels"
    metrics: ClassVar[tuple[TaskMetric, ...]] = MULTI_LABEL
    primary: ClassVar[str] = "f1_micro"

    def constant(self, y: NDArray[np.generic], num_outputs: int) -> Tensor:
        yes = np.count_nonzero(y, axis=0)
        return log_shares(yes, len(y)) - log_shares(len(y) - yes, len(y))

    def probabilities(self, outputs: Tensor) -> Tensor:
        return outputs.sigmoid()

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        return (softplus(outputs) - y.to(outputs) * outputs).mean(-1)

    def scores(self, outputs: Tensor, y: Tensor) -> Tree:
        yes, true = (outputs >= 0).to(outputs), y.to(outputs)
        return {"loss": self.loss(outputs, y), "right": (yes * true).sum(-1), "both": (yes + true).sum(-1)}

    def measured(self, means: Mapping[str, Tensor]) -> dict[str, Tensor]:
        both = means["both"]
        return {"loss": means["loss"], "f1_micro": 2 * means["right"] / both.where(both > 0, float("nan"))}

    def pooled(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        found = self.by_category(outputs, y)
        return {"auc": float(mean_of_defined(found["auc"])), "f1_macro": float(mean_of_defined(found["f1"]))}

    def by_category(self, outputs: Tensor, y: Tensor) -> dict[str, NDArray[np.floating]]:
        """Return AUC and F1 of each label, each (L,)."""
        scores, true = outputs.double().cpu().numpy(), y.cpu().numpy() > 0
        yes = scores >= 0
        return {"auc": areas(scores, true), "f1": f1((yes & true).sum(0), yes.sum(0), true.sum(0))}

    def pooled_without(self, metric: str, outputs: Tensor, y: Tensor) -> Floats:
        scores, true = outputs.double().cpu().numpy(), y.cpu().numpy() > 0
        return mean_of_defined(areas_without(scores, true) if metric == "auc" else f1_without(scores >= 0, true))
