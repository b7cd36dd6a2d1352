"""The metrics of all tasks, from the table `metrics.toml`. This file does not import PyTorch, because views do not need it."""

import tomllib
from pathlib import Path

import msgspec

from fedskew.core.metrics import TaskMetric

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
METRICS = msgspec.convert([{"name": name, **row} for name, row in TABLE["metrics"].items()], tuple[TaskMetric, ...])


def metrics_of(task: str) -> tuple[TaskMetric, ...]:
    """Return the metrics of a task, in the order of the table."""
    return tuple(next(metric for metric in METRICS if metric.name == name) for name in TABLE["tasks"][task])
