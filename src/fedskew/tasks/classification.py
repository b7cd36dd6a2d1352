"""Classification: one of several classes for each row."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedskew.core.metrics import TaskMetric
from fedskew.core.task import TaskKind, one_hot
from fedskew.core.trees import Tree
from fedskew.tasks.metrics import CLASSIFICATION
from fedskew.tasks.ranking import (
    Floats,
    accuracies_without,
    areas,
    areas_without,
    calibration_error,
    calibration_error_without,
    f1,
    f1_without,
    log_shares,
    mean_of_defined,
)

LARGEST = 2_000_000
"""AUC is left out if rows x classes is larger, because sorting the scores takes longer than a round."""


@dataclass(frozen=True, kw_only=True)
class Classification(TaskKind):
    """Cross-entropy in nats. The model has one output for each class."""

    idea: ClassVar[str] = "one of several classes for each row, by cross-entropy"
    target: ClassVar[str] = "classes"
    metrics: ClassVar[tuple[TaskMetric, ...]] = CLASSIFICATION
    primary: ClassVar[str] = "accuracy"

    def constant(self, y: NDArray[np.generic], num_outputs: int) -> Tensor:
        return log_shares(np.bincount(y, minlength=num_outputs))

    def probabilities(self, outputs: Tensor) -> Tensor:
        return outputs.softmax(-1)

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        log_p = outputs.log_softmax(-1)
        return -(log_p * one_hot(y, outputs.shape[-1], log_p.dtype)).sum(-1)

    def scores(self, outputs: Tensor, y: Tensor) -> Tree:
        return {"loss": self.loss(outputs, y), "accuracy": (outputs.argmax(-1) == y).to(outputs.dtype)}

    def pooled(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        found = {name: float(mean_of_defined(values)) for name, values in self.by_category(outputs, y).items()}
        names = {"accuracy": "balanced_accuracy", "f1": "f1_macro"}
        means = {names.get(name, name): value for name, value in found.items()}
        if not means:
            return {}
        p, answer = outputs.double().softmax(-1).max(-1)
        return {**means, "ece": calibration_error(p.cpu().numpy(), (answer == y).cpu().numpy())}

    def by_category(self, outputs: Tensor, y: Tensor) -> dict[str, NDArray[np.floating]]:
        """Return accuracy, F1 and AUC of each class, each (K,). The result is empty if an output is not finite."""
        p, true = outputs.double().softmax(-1).cpu().numpy(), y.cpu().numpy()
        if not np.isfinite(p).all():
            return {}
        answer, classes = p.argmax(1), p.shape[1]
        table = np.bincount(true * classes + answer, minlength=classes**2).reshape(classes, classes)
        right, predicted, rows = table.diagonal(), table.sum(0), table.sum(1)
        found = {"accuracy": right / np.where(rows > 0, rows, np.nan), "f1": f1(right, predicted, rows)}
        if p.size <= LARGEST:
            found["auc"] = areas(p, true[:, None] == np.arange(classes))
        return found

    def pooled_without(self, metric: str, outputs: Tensor, y: Tensor) -> Floats:
        p, true = outputs.double().softmax(-1).cpu().numpy(), y.cpu().numpy()
        answer, classes = p.argmax(1), np.arange(p.shape[1])
        if metric == "ece":
            return calibration_error_without(p.max(1), answer == true)
        yes, positive = answer[:, None] == classes, true[:, None] == classes
        if metric == "auc":
            return mean_of_defined(areas_without(p, positive))
        return mean_of_defined((f1_without if metric == "f1_macro" else accuracies_without)(yes, positive))
