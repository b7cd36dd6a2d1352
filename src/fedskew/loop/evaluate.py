"""Scores of a model on the test set, and on the rows of each client."""

import torch
from torch import Tensor

from fedskew.core.records import channels_last
from fedskew.core.task import Task
from fedskew.core.trees import Tree
from fedskew.skew.partition import Ints, Partition

CHUNK = 1024
"""Rows of a forward pass."""


def per_row(task: Task, w: Tensor, x: Tensor, y: Tensor) -> Tree:
    """The scores of each row, (n,) each, in float64."""
    parts = []
    with torch.no_grad():
        for lo in range(0, max(len(y), 1), CHUNK):
            logits = task.logits(w, channels_last(x[lo : lo + CHUNK]))
            parts.append(task.scores(logits, y[lo : lo + CHUNK]))
    return {name: torch.cat([part[name] for part in parts]).double() for name in parts[0]}


def evaluate(task: Task, w: Tensor, x: Tensor, y: Tensor) -> dict[str, float]:
    """The loss and the metrics over the rows."""
    return over_rows(task, per_row(task, w, x, y))


def over_rows(task: Task, scores: Tree) -> dict[str, float]:
    """The loss and the metrics over the rows that have these scores, (n,) each."""
    found = task.measured({name: values.mean() for name, values in scores.items()})
    return {name: float(value) for name, value in found.items()}


def by_row(task: Task, metric: str, scores: Tree) -> Tensor | None:
    """What each of n > 1 rows adds to a metric, (n,): n times the metric less n - 1 times the metric without the row.

    For a mean over rows this is the row's score; in general the jackknife's pseudo-value (Tukey 1958). None if `Task.measured`
    does not give the metric.
    """
    means = {name: values.mean(0) for name, values in scores.items()}
    n = len(scores["loss"])
    if n < 2 or metric not in task.measured(means):
        return None
    without = {name: (n * means[name] - values) / (n - 1) for name, values in scores.items()}
    return n * task.measured(means)[metric] - (n - 1) * task.measured(without)[metric]


def evaluate_clients(
    task: Task, w: Tensor, x: Tensor, y: Tensor, partition: Partition, clients: Ints
) -> dict[str, Tensor]:
    """Mean scores (clients,) of one model on each client's measured rows; NaN for a client without any.

    The model is the same for all, so their rows go through it together.
    """
    rows = [partition.measured_rows(k) for k in clients]
    sizes = torch.tensor([len(r) for r in rows])
    owner = torch.repeat_interleave(torch.arange(len(rows)), sizes)
    index = torch.cat([torch.as_tensor(r) for r in rows])
    sums: dict[str, Tensor] = {}
    for lo in range(0, max(len(index), 1), CHUNK * 16):
        part = index[lo : lo + CHUNK * 16].to(x.device)
        for name, values in per_row(task, w, x[part], y[part]).items():
            total = sums.setdefault(name, torch.zeros(len(rows), dtype=torch.float64))
            total.index_add_(0, owner[lo : lo + CHUNK * 16], values.cpu())
    return {name: total / sizes for name, total in sums.items()}
