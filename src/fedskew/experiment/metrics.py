"""A user's own metrics: their names, and the description that a run stores. Reports need no code of the user."""

import re
from dataclasses import replace

from fedskew.core.catalogue import Catalogue
from fedskew.core.component import build, label
from fedskew.core.contract import Metric
from fedskew.core.errors import require, suggestion
from fedskew.core.metrics import TaskMetric
from fedskew.core.own import MARK
from fedskew.core.task import TaskKind
from fedskew.measure.registry import DECLARED, MEASURES, PLACES
from fedskew.tasks.metrics import METRICS

KNOWN = Catalogue("metrics", {}, Metric, optional=tuple(DECLARED))

SPLITS = ("test", "clients", "personal", "round")
"""Splits on which a user's metric may be measured."""


def metrics_of(spec: object) -> tuple[Metric, ...]:
    """Build metrics from a compact string, a table, a class, an object, or a list of these."""
    specs = spec if isinstance(spec, list | tuple) else [spec]
    made: tuple[Metric, ...] = tuple(build("metric", KNOWN, one) for one in specs)
    names = [str(row_of(metric)["name"]) for metric in made]
    for name in names:
        require(names.count(name) == 1, f"metric: {name} is given twice")
        require(
            name not in {m.key for m in MEASURES},
            f"metric: {name} is a measure of fedskew; give the class another name",
        )
    return made


def own_metrics(task: TaskKind) -> list[dict[str, object]]:
    """Return what a run stores about the metrics of a user's own task."""
    return [metric.given() for metric in judged(task) if metric not in METRICS]


def judged(task: TaskKind) -> tuple[TaskMetric, ...]:
    """Return the metrics of a task. The primary metric is never ``aside``, so that it is measured on clients, too."""
    return tuple(replace(metric, aside=metric.aside and metric.name != task.primary) for metric in task.metrics)


def row_of(metric: Metric) -> dict[str, str | float]:
    """Return the metric's fields for `fedskew.measure.registry.Measure`. ``Gini:weight=2`` gets the name ``gini_weight_2``."""
    short = label(metric, KNOWN).rpartition(MARK)[2]
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", re.sub(r"\W+", "_", short)).strip("_").lower()
    given = {key: kind(getattr(metric, key)) for key, kind in DECLARED.items() if hasattr(metric, key)}
    row = {"split": metric.split, "name": words, "note": getattr(metric, "idea", "") or words.replace("_", " ")}
    row |= {"reduce": "mean" if metric.split == "round" else "last", **given}
    for key, known in (("split", SPLITS), ("reduce", PLACES), ("better", ("", "higher", "lower"))):
        value = str(row.get(key, known and next(iter(known))))
        require(value in known, f"metric {short}: {key} cannot be {value!r}; {suggestion(value, known)}")
    return row
