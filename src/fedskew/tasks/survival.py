"""Survival: predict the risk of an event. Some rows are censored (Cox 1972, doi:10.1111/j.2517-6161.1972.tb00899.x).

A target is (time, event). With event 1 the event came at this time. With event 0 the row is censored: it was observed until this
time, without the event. A model has one output o, the log of the row's hazard relative to other rows. The loss of row i is its
part of the negative log partial likelihood of the batch:

    l_i = event_i (log sum_{j: t_j >= t_i} exp(o_j) - o_i)

The sum is over the risk set: the rows that are still observed at t_i. Rows with the same time are in each other's risk sets
(Breslow 1974). A padded row has time 0, so it is in no other row's risk set.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedskew.core.metrics import TaskMetric, metrics_of
from fedskew.core.sites import Floats
from fedskew.core.task import TaskKind
from fedskew.core.trees import Tree

PAIRS = 2_000_000
"""Maximum number of pairs of rows that are compared at a time."""


@dataclass(frozen=True, kw_only=True)
class Survival(TaskKind):
    """Cox regression. A risk set contains only rows of one batch, so rows of different clients are never compared.

    Smaller batches have smaller risk sets. ``local.batch_size=all`` uses all rows of a client.
    """

    target: ClassVar[str] = "survival"
    idea: ClassVar[str] = "how soon an event comes, with censored rows, by Cox's partial likelihood"
    joint: ClassVar[bool] = True
    metrics: ClassVar[tuple[TaskMetric, ...]] = metrics_of("survival")
    primary: ClassVar[str] = "c_index"

    def num_outputs(self, num_categories: int) -> int:
        return 1

    def predictions(self, outputs: Tensor) -> Tensor:
        return outputs[..., 0]

    def constant(self, y: NDArray[np.generic], num_outputs: int) -> Tensor:
        return torch.zeros(num_outputs, dtype=torch.float64)

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        time, event = y[..., 0], y[..., 1]
        return event * (log_risk(outputs[..., 0], time) - outputs[..., 0])

    def scores(self, outputs: Tensor, y: Tensor) -> Tree:
        return {"loss": self.loss(outputs, y)}

    def pooled(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        risk, time, event = (part.cpu().numpy() for part in (outputs[..., 0], *y.unbind(-1)))
        return {"c_index": concordance(risk, time, event)}

    def pooled_without(self, metric: str, outputs: Tensor, y: Tensor) -> Floats:
        right, pairs = pairs_of_rows(*(part.cpu().numpy() for part in (outputs[..., 0], *y.unbind(-1))))
        others = pairs.sum() / 2 - pairs
        return (right.sum() / 2 - right) / np.where(others > 0, others, np.nan)


def log_risk(o: Tensor, time: Tensor) -> Tensor:
    """Return log sum_{j: t_j >= t_i} exp(o_j) for each row i, (B,)."""
    order = time.argsort(descending=True, stable=True)
    ordered, places = time[order], torch.arange(len(time), device=time.device)
    last = torch.cat([ordered[1:] != ordered[:-1], ordered.new_ones(1, dtype=torch.bool)])
    # a risk set ends at the last row with the same time
    end = torch.where(last, places, len(time)).flip(0).cummin(0).values.flip(0)
    return torch.zeros_like(o).scatter(0, order, o[order].logcumsumexp(0)[end])


def concordance(risk: Floats, time: Floats, event: Floats) -> float:
    """Return Harrell's C: the share of comparable pairs of rows in which the row with the higher risk has its event first.

    A pair is comparable if the event of one row came while the other row was still observed. If times are equal, a pair of an
    event and a censored row is comparable, and a pair of two events is not. Equal risks count one half. C is NaN without a
    comparable pair.
    """
    right, pairs = pairs_of_rows(risk, time, event)
    return float(right.sum() / pairs.sum()) if pairs.any() else math.nan


def pairs_of_rows(risk: Floats, time: Floats, event: Floats) -> tuple[Floats, Floats]:
    """Return for each row (n,) the number of its pairs that `concordance` counts as right, and of its comparable pairs."""
    right, pairs = np.zeros(len(risk)), np.zeros(len(risk))
    events = np.flatnonzero(event > 0)
    for rows in np.array_split(events, max(1, math.ceil(len(events) * len(risk) / PAIRS))):
        at, score = time[rows, None], risk[rows, None]
        outlives = (time > at) | ((time == at) & (event <= 0))
        ordered = outlives * ((risk < score) + (risk == score) / 2)
        right[rows] += ordered.sum(1)
        pairs[rows] += outlives.sum(1)
        # count the same pairs for the row that outlives the other
        right += ordered.sum(0)
        pairs += outlives.sum(0)
    return right, pairs
