"""Classification: one of several classes for each row."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedskew.core.task import one_hot
from fedskew.core.trees import Tree


@dataclass(frozen=True, kw_only=True)
class Classification:
    """Cross-entropy, in nats; the model has one output a class."""

    idea: ClassVar[str] = "one of several classes for each row, by cross-entropy"
    has_classes: ClassVar[bool] = True

    def num_outputs(self, num_classes: int) -> int:
        return num_classes

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        log_p = outputs.log_softmax(-1)
        return -(log_p * one_hot(y, outputs.shape[-1], log_p.dtype)).sum(-1)

    def scores(self, outputs: Tensor, y: Tensor) -> Tree:
        return {"loss": self.loss(outputs, y), "accuracy": (outputs.argmax(-1) == y).to(outputs.dtype)}
