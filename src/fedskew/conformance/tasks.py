"""The promises of tasks. Each is a function that tests the task on example rows of its kind of target."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import grad

from fedskew.conformance.hooks import expect_same
from fedskew.conformance.miniature import CLASSES, LENGTH, normal, targets
from fedskew.conformance.slots import holds
from fedskew.core.task import Pooling, TaskKind

TASK_ROWS = 6
"""Number of example rows."""


def example(task: TaskKind, rows: int = TASK_ROWS) -> tuple[TaskKind, Tensor, Tensor]:
    """Return the fitted task, outputs (rows, ..., K) and targets (rows, ...)."""
    y = targets(task.target, rows)
    sizes = (rows, LENGTH) if task.target == "symbols" else (rows,)
    count = task.num_outputs(CLASSES if task.target in ("classes", "labels", "symbols") else 0)
    return task.fitted(y.numpy()), normal(1, *sizes, count), y


def task_scores_rows(task: TaskKind) -> None:
    """gives each row a finite loss with a finite gradient; the loss is among the scores, which have one or more values a row"""
    task, outputs, y = example(task)
    losses = task.loss(outputs, y)
    holds(losses.shape == (TASK_ROWS,) and bool(losses.isfinite().all()), f"the losses of {TASK_ROWS} rows are {losses.tolist()}")
    slope = grad(lambda outputs: task.loss(outputs, y).sum())(outputs)
    holds(bool(slope.isfinite().all()), "a gradient is not finite")
    scores = task.scores(outputs, y)
    wrong = [name for name, values in scores.items() if values.dim() not in (1, 2) or len(values) != TASK_ROWS]
    holds("loss" in scores and not wrong, f"scores are {', '.join(scores)}; each needs one or more values a row")


def task_ignores_other_rows(task: TaskKind) -> None:
    """gives a row the same loss whatever the other rows are, unless it declares `joint = True`; padded rows never change one"""
    task, outputs, y = example(task)
    losses = task.loss(outputs, y)
    if not getattr(task, "joint", False):
        expect_same({"loss of one row": task.loss(outputs[2:3], y[2:3])[0]}, {"loss of one row": losses[2]})
    padding = torch.zeros_like(y) if y.is_floating_point() else y
    padded = task.loss(torch.cat([outputs, 1 + outputs]), torch.cat([y, padding]))[:TASK_ROWS]
    expect_same({"losses with padded rows": padded}, {"losses with padded rows": losses})


def task_measures_its_metrics(task: TaskKind) -> None:
    """computes each of its metrics, the primary one among them, from means of scores, or from all outputs if it is pooled"""
    task, outputs, y = example(task, 40)
    names = {metric.name: metric.pooled for metric in task.metrics}
    holds(task.primary in names, f"primary is {task.primary!r}, and the metrics are {', '.join(names)}")
    measured = task.measured({name: values.mean(0) for name, values in task.scores(outputs, y).items()})
    pooled = dict(task.pooled(outputs, y)) if isinstance(task, Pooling) else {}
    odd = sorted({*measured, *pooled} - {"loss", *names})
    holds(
        "loss" in measured and not odd,
        f"measured gives {', '.join(measured)}; name {', '.join(odd) or 'the loss'} in metrics",
    )
    holds(task.primary in (pooled if names[task.primary] else measured), f"{task.primary} is not computed")
    wrong = [name for name, value in measured.items() if value.shape != ()]
    holds(not wrong, f"{', '.join(wrong)} of all rows must be one number")


TASK_PROMISES: tuple[Callable[[TaskKind], None], ...] = (
    task_scores_rows,
    task_ignores_other_rows,
    task_measures_its_metrics,
)
