"""Scores of a model on the test set, and on each client's rows."""

import math
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from fedskew.core.records import channels_last
from fedskew.core.sites import Floats
from fedskew.core.task import PoolingWithout, Task
from fedskew.core.trees import Tree
from fedskew.skew.partition import Ints, Partition

CHUNK = 1024
"""Maximum number of rows in a forward pass."""

VALUES = 1 << 20
"""Maximum number of input values in a forward pass of several rows. More of them leave a processor's cache."""


RowValues = tuple[Floats, Ints | None]
"""One value of a metric for each row (rows,), or for each unit, and the units or None."""


def outputs_in_parts(task: Task, w: Tensor, x: Tensor) -> Iterator[Tensor]:
    """Yield the outputs (rows, ...) of a model on rows (n, ...), some rows at a time."""
    rows = min(CHUNK, max(1, VALUES // max(1, math.prod(x.shape[1:]))))
    return (task.logits(w, channels_last(part)) for part in x.split(rows))


def outputs_of(task: Task, w: Tensor, x: Tensor) -> Tensor:
    """Return the outputs (n, ...) of a model on rows (n, ...)."""
    with torch.no_grad():
        return torch.cat([*outputs_in_parts(task, w, x)])


def per_row(task: Task, w: Tensor, x: Tensor, y: Tensor) -> Tree:
    """Return the scores of each row by name, (n,) or (n, J), in float64."""
    return scored(task, w, x, y, pool=False)[0]


def scored(task: Task, w: Tensor, x: Tensor, y: Tensor, pool: bool = True) -> tuple[Tree, dict[str, float]]:
    """Return the scores of each row; if ``pool``, also the metrics that are computed from all rows together."""
    return scored_outputs(task, outputs_in_parts(task, w, x), y, pool)


def scored_outputs(
    task: Task, outputs: Iterable[Tensor], y: Tensor, pool: bool = True
) -> tuple[Tree, dict[str, float]]:
    """Do what `scored` does, from the outputs for some rows at a time; they are computed one after the other."""
    parts, outputs_so_far, done = [], [], 0
    pool = pool and bool(task.pooled_names) and len(y) > 0
    with torch.no_grad():
        for of_rows in outputs:
            if task.joint or pool:
                outputs_so_far.append(of_rows)
            if not task.joint:
                parts.append(task.scores(of_rows, y[done : done + len(of_rows)]))
            done += len(of_rows)
        every = torch.cat(outputs_so_far) if outputs_so_far else None
        parts = [task.scores(every, y)] if every is not None and task.joint else parts
        pooled = task.pooled(every, y) if pool and every is not None else {}
    return {name: torch.cat([part[name] for part in parts]).double() for name in parts[0]}, pooled


def evaluate(task: Task, w: Tensor, x: Tensor, y: Tensor) -> dict[str, float]:
    """Return the model's loss and metrics on the rows."""
    return over_rows(task, *scored(task, w, x, y))


def evaluate_constant(task: Task, outputs: Tensor, y: Tensor) -> dict[str, float]:
    """Return the loss and the metrics if all rows have the same outputs (K,) or (T, K)."""
    every = outputs.to(y.device).expand(len(y), *outputs.shape)
    return over_rows(task, *scored_outputs(task, every.split(CHUNK), y))


def over_rows(task: Task, scores: Tree, pooled: Mapping[str, float]) -> dict[str, float]:
    """Return the loss and the metrics over rows, from the result of `scored`."""
    means = task.measured({name: values.mean(0) for name, values in scores.items()})
    return {name: float(value) for name, value in means.items()} | dict(pooled)


def mean_of(sums: Tensor, rows: Tensor) -> Tensor:
    """Divide sums (clients, ...) by each client's number of ``rows`` (clients,); NaN for a client without rows."""
    counts = rows.double().masked_fill(rows == 0, math.nan)
    return sums / counts.reshape(-1, *[1] * (sums.dim() - 1))


def by_row(task: Task, metric: str, scores: Tree) -> Tensor | None:
    """Return each row's contribution to a metric, (n,): n times the metric, minus n - 1 times the metric without the row.

    If the metric is a mean over rows, this is the row's score. In general it is the jackknife's pseudo-value (Tukey 1958). None for
    fewer than two rows, and if `Task.measured` does not return the metric.
    """
    means = {name: values.mean(0) for name, values in scores.items()}
    n = len(scores["loss"])
    if n < 2 or metric not in task.measured(means):
        return None
    without = {name: (n * means[name] - values) / (n - 1) for name, values in scores.items()}
    return n * task.measured(means)[metric] - (n - 1) * task.measured(without)[metric]


GROUPS = 200
"""Maximum number of groups of rows in `pooled_by_row`, for tasks that are no `PoolingWithout`."""


def pooled_by_row(task: Task, metric: str, outputs: Tensor, y: Tensor, units: Ints | None = None) -> RowValues:
    """Do what `by_row` does, for a pooled metric of n > 1 rows with these outputs; also return ``units``. Undefined values are NaN.

    For a task that is no `PoolingWithout`, there is one value for each of at most `GROUPS` groups of rows, and the groups' numbers
    are the new ``units``. Without ``units`` (n,), each row is a unit. If there are more units than `GROUPS`, a row's group is its
    unit modulo `GROUPS`. So a person's rows are in one group.
    """
    whole, count = task.pooled(outputs, y).get(metric, math.nan), len(y)
    if math.isnan(whole) or (units is not None and len(np.unique(units)) < 2):
        return np.array([math.nan]), None
    if isinstance(task.kind, PoolingWithout):
        without = task.kind.pooled_without(metric, outputs, y)
    else:
        of_rows = np.arange(count) if units is None else units
        of_rows = of_rows % GROUPS if len(np.unique(of_rows)) > GROUPS else of_rows
        names, group = np.unique(of_rows, return_inverse=True)
        count, units = len(names), None if units is None else names
        others = (torch.as_tensor(group != number, device=y.device) for number in range(count))
        without = np.array([task.pooled(outputs[rows], y[rows]).get(metric, math.nan) for rows in others])
    return count * whole - (count - 1) * without, units


def row_values(
    task: Task, metric: str, scores: Tree, outputs: Tensor | None, y: Tensor, units: Ints | None
) -> RowValues | None:
    """Return one value of the metric for each row, from `by_row` or `pooled_by_row`, and the rows' units.

    The mean of the values is the metric. A task with a pooled primary metric needs ``outputs``. Returns None if a row has no value.
    """
    if task.pooled_primary and len(y) > 1:
        assert outputs is not None
        values, units = pooled_by_row(task, metric, outputs, y, units)
    else:
        by_rows = by_row(task, metric, scores)
        values = np.array([np.nan]) if by_rows is None else by_rows.cpu().numpy()
    return (values, units) if np.isfinite(values).all() else None


def evaluate_clients(
    task: Task, w: Tensor, x: Tensor, y: Tensor, partition: Partition, clients: Ints
) -> dict[str, Tensor]:
    """Return one model's mean scores (clients, ...) on each client's measured rows; NaN for a client without such rows.

    The rows of all clients pass through the model together. For a joint task, or a pooled primary metric, each client's rows pass
    separately; the result then includes this metric.
    """
    rows = [partition.measured_rows(k) for k in clients]
    if task.joint or task.pooled_primary:
        return stacked_means([client_means(task, w, x, y, torch.as_tensor(r, device=x.device)) for r in rows])
    sizes = torch.tensor([len(r) for r in rows])
    owner = torch.repeat_interleave(torch.arange(len(rows)), sizes)
    index = torch.cat([torch.as_tensor(r) for r in rows])
    sums: dict[str, Tensor] = {}
    for lo in range(0, max(len(index), 1), CHUNK * 16):
        part = index[lo : lo + CHUNK * 16].to(x.device)
        for name, values in per_row(task, w, x[part], y[part]).items():
            total = sums.setdefault(name, torch.zeros(len(rows), *values.shape[1:], dtype=torch.float64))
            total.index_add_(0, owner[lo : lo + CHUNK * 16], values.cpu())
    return {name: mean_of(total, sizes) for name, total in sums.items()}


def client_means(task: Task, w: Tensor, x: Tensor, y: Tensor, rows: Tensor) -> Tree:
    """Return the mean scores of a model on one client's rows; also the primary metric, if it is pooled."""
    primary = task.pooled_primary
    scores, pooled = scored(task, w, x[rows], y[rows], bool(primary))
    means = {name: values.mean(0).cpu() for name, values in scores.items()}
    return means | {name: torch.tensor(pooled[name], dtype=torch.float64) for name in (primary,) if name in pooled}


def stacked_means(clients: list[Tree]) -> dict[str, Tensor]:
    """Stack the clients' means on a leading axis. A pooled metric that a client does not have is NaN."""
    names = dict.fromkeys(name for means in clients for name in means)
    missing = torch.tensor(math.nan, dtype=torch.float64)
    return {name: torch.stack([means.get(name, missing) for means in clients]) for name in names}
