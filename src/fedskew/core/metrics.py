"""The metrics of all tasks, from the table `metrics.toml`. This file does not import PyTorch, because views do not need it."""

import math
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

import msgspec


@dataclass(frozen=True, kw_only=True)
class TaskMetric:
    """One metric of a task: a number that says how good a model is on some rows.

    name: its name in the store. title: its name in headings. unit: ``%`` for shares in 0..1, which are shown times 100.
    better: which values are better. low, high: its range. note: further information for readers. aside: True if it is only shown in
    addition to the primary metric; tables then have no columns of it for the worst client and for personal models. pooled: True if
    it is no mean over rows, but is computed from the outputs of all rows together (`fedskew.core.task.Pooling`).
    """

    name: str
    title: str
    better: Literal["higher", "lower"]
    unit: str = ""
    low: float = -math.inf
    high: float = math.inf
    note: str = ""
    aside: bool = False
    pooled: bool = False

    def given(self) -> dict[str, object]:
        """Return the fields that are not defaults, as values for JSON."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}

    @property
    def meaning(self) -> str:
        """Range and note, formatted as the end of a sentence."""
        span = f", {self.low:g}..{self.high:g}" if math.isfinite(self.low) and math.isfinite(self.high) else ""
        notes = [self.note, "computed from the outputs of all rows together" if self.pooled else ""]
        return span + "".join(f"; {note}" for note in notes if note)


TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
METRICS = msgspec.convert([{"name": name, **row} for name, row in TABLE["metrics"].items()], tuple[TaskMetric, ...])


def metrics_of(task: str) -> tuple[TaskMetric, ...]:
    """Return the metrics of a task, in the order of the table."""
    return tuple(next(metric for metric in METRICS if metric.name == name) for name in TABLE["tasks"][task])
