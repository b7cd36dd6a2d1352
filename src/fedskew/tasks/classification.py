"""Classification: one of several classes for each row."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedskew.core.metrics import TaskMetric
from fedskew.core.task import one_hot
from fedskew.core.trees import Tree
from fedskew.tasks.metrics import CLASSIFICATION


@dataclass(frozen=True, kw_only=True)
class Classification:
    """Cross-entropy, in nats; the model has one output a class."""

    idea: ClassVar[str] = "one of several classes for each row, by cross-entropy"
    target: ClassVar[str] = "classes"
    metrics: ClassVar[tuple[TaskMetric, ...]] = CLASSIFICATION
    primary: ClassVar[str] = "accuracy"

    def num_outputs(self, num_categories: int) -> int:
        return num_categories

    def fitted(self, y: NDArray[np.generic]) -> Self:
        return self

    def predictions(self, outputs: Tensor) -> Tensor:
        return outputs

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        log_p = outputs.log_softmax(-1)
        return -(log_p * one_hot(y, outputs.shape[-1], log_p.dtype)).sum(-1)

    def scores(self, outputs: Tensor, y: Tensor) -> Tree:
        return {"loss": self.loss(outputs, y), "accuracy": (outputs.argmax(-1) == y).to(outputs.dtype)}

    def measured(self, means: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(means)
