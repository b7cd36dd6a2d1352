"""Tasks with classes, labels or symbols: classification, multi-label classification, next token."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import softplus

from fedskew.core.errors import require
from fedskew.core.limits import PositiveFloat
from fedskew.core.metrics import TaskMetric, metrics_of
from fedskew.core.task import TaskKind, one_hot
from fedskew.core.trees import Tree
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
    """Cross-entropy in nats. The model has one output for each class.

    ``weights`` multiply the loss of a row by the weight of its class in training: a list, one for each class, or "balanced": n / (K
    n_c) for n_c of all n training rows in class c, where K classes occur. All metrics, and the measured loss, are without weights.
    """

    weights: tuple[PositiveFloat, ...] | Literal["balanced"] | None = None

    idea: ClassVar[str] = "one of several classes for each row, by cross-entropy"
    target: ClassVar[str] = "classes"
    metrics: ClassVar[tuple[TaskMetric, ...]] = metrics_of("classification")
    primary: ClassVar[str] = "accuracy"

    def num_outputs(self, num_categories: int) -> int:
        weights = self.weights if isinstance(self.weights, tuple) else ()
        require(
            len(weights) in (0, num_categories),
            f"task classification: {len(weights)} weights for {num_categories} classes; write one for each class",
        )
        return num_categories

    def fitted(self, y: NDArray[np.generic]) -> Self:
        if self.weights != "balanced":
            return self
        rows = np.bincount(y)
        return replace(self, weights=tuple((len(y) / np.count_nonzero(rows) / np.maximum(rows, 1)).tolist()))

    def constant(self, y: NDArray[np.generic], num_outputs: int) -> Tensor:
        return log_shares(np.bincount(y, minlength=num_outputs))

    def probabilities(self, outputs: Tensor) -> Tensor:
        return outputs.softmax(-1)

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        log_p = outputs.log_softmax(-1)
        true = one_hot(y, outputs.shape[-1], log_p.dtype)
        return -(log_p * (true if self.weights is None else true * true.new_tensor(self.weights))).sum(-1)

    def scores(self, outputs: Tensor, y: Tensor) -> Tree:
        return {"loss": Classification().loss(outputs, y), "accuracy": (outputs.argmax(-1) == y).to(outputs.dtype)}

    def pooled(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        category_means = {name: float(mean_of_defined(values)) for name, values in self.by_category(outputs, y).items()}
        names = {"accuracy": "balanced_accuracy", "f1": "f1_macro"}
        means = {names.get(name, name): value for name, value in category_means.items()}
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
        metrics = {"accuracy": right / np.where(rows > 0, rows, np.nan), "f1": f1(right, predicted, rows)}
        if p.size <= LARGEST:
            metrics["auc"] = areas(p, true[:, None] == np.arange(classes))
        return metrics

    def pooled_without(self, metric: str, outputs: Tensor, y: Tensor) -> Floats:
        p, true = outputs.double().softmax(-1).cpu().numpy(), y.cpu().numpy()
        answer, classes = p.argmax(1), np.arange(p.shape[1])
        if metric == "ece":
            return calibration_error_without(p.max(1), answer == true)
        yes, positive = answer[:, None] == classes, true[:, None] == classes
        if metric == "auc":
            return mean_of_defined(areas_without(p, positive))
        return mean_of_defined((f1_without if metric == "f1_macro" else accuracies_without)(yes, positive))


@dataclass(frozen=True, kw_only=True)
class MultiLabel(TaskKind):
    """Binary cross-entropy in nats, averaged over the labels. The model has one output for each label: at least 0 means yes."""

    idea: ClassVar[str] = "any number of labels for each row, by binary cross-entropy"
    target: ClassVar[str] = "labels"
    metrics: ClassVar[tuple[TaskMetric, ...]] = metrics_of("multi_label")
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
        metrics = self.by_category(outputs, y)
        return {"auc": float(mean_of_defined(metrics["auc"])), "f1_macro": float(mean_of_defined(metrics["f1"]))}

    def by_category(self, outputs: Tensor, y: Tensor) -> dict[str, NDArray[np.floating]]:
        """Return AUC and F1 of each label, each (L,)."""
        scores, true = outputs.double().cpu().numpy(), y.cpu().numpy() > 0
        yes = scores >= 0
        return {"auc": areas(scores, true), "f1": f1((yes & true).sum(0), yes.sum(0), true.sum(0))}

    def pooled_without(self, metric: str, outputs: Tensor, y: Tensor) -> Floats:
        scores, true = outputs.double().cpu().numpy(), y.cpu().numpy() > 0
        return mean_of_defined(areas_without(scores, true) if metric == "auc" else f1_without(scores >= 0, true))


@dataclass(frozen=True, kw_only=True)
class NextToken(TaskKind):
    """Cross-entropy in nats at each place (B, T) with a next symbol. The model has outputs (B, T, V), one for each symbol.

    The loss of a row is the mean over its places, so that all rows have the same weight in training. In accuracy and perplexity
    all symbols have the same weight: perplexity is exp(sum of cross-entropies / number of symbols).
    """

    idea: ClassVar[str] = "the next symbol at each place of a row, by cross-entropy: characters, word pieces"
    target: ClassVar[str] = "symbols"
    metrics: ClassVar[tuple[TaskMetric, ...]] = metrics_of("next_token")
    primary: ClassVar[str] = "accuracy"

    def constant(self, y: NDArray[np.generic], num_outputs: int) -> Tensor:
        symbols = y.astype(np.int64)
        return log_shares(np.bincount(symbols[symbols >= 0], minlength=num_outputs)).expand(y.shape[1], num_outputs)

    def probabilities(self, outputs: Tensor) -> Tensor:
        return outputs.softmax(-1)

    def sums(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return for each row the sum of cross-entropies (B,) and the number of places with a symbol (B,). Outputs: (B, T, V)."""
        real = y >= 0
        # `gather` needs a valid index at places without a symbol, too
        losses = -outputs.log_softmax(-1).gather(-1, y.clamp(min=0)[..., None])[..., 0]
        return losses.where(real, 0.0).sum(-1), real.to(outputs.dtype).sum(-1)

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        total, symbols = self.sums(outputs, y)
        return total / symbols.clamp(min=1)

    def scores(self, outputs: Tensor, y: Tensor) -> Tree:
        total, symbols = self.sums(outputs, y)
        # argmax is never -1, so a place without a symbol does not count as right
        right = (outputs.argmax(-1) == y).to(outputs.dtype).sum(-1)
        return {"loss": total / symbols.clamp(min=1), "cross_entropy": total, "right": right, "symbols": symbols}

    def measured(self, means: Mapping[str, Tensor]) -> dict[str, Tensor]:
        symbols = means["symbols"]
        perplexity = (means["cross_entropy"] / symbols).exp()
        return {"loss": means["loss"], "accuracy": means["right"] / symbols, "perplexity": perplexity}
