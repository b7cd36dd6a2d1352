"""Next token: predict the next symbol at each place of a row."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedskew.core.metrics import TaskMetric
from fedskew.core.task import TaskKind
from fedskew.core.trees import Tree
from fedskew.tasks.metrics import NEXT_TOKEN
from fedskew.tasks.ranking import log_shares


@dataclass(frozen=True, kw_only=True)
class NextToken(TaskKind):
    """Cross-entropy in nats at each place (B, T) with a next symbol. The model has outputs (B, T, V), one for each symbol.

    The loss of a row is the mean over its places, so that all rows have the same weight in training. In accuracy and perplexity
    all symbols have the same weight: perplexity is exp(sum of cross-entropies / number of symbols).
    """

    idea: ClassVar[str] = "the next symbol at each place of a row, by cross-entropy: characters, word pieces"
    target: ClassVar[str] = "symbols"
    metrics: ClassVar[tuple[TaskMetric, ...]] = NEXT_TOKEN
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
