"""The registry: one row for each number that a run stores, with how it is computed, reduced and shown.

The store, the terminal, the report, tables for a paper, sinks, claims, budgets and the reference page all read `MEASURES`. A new
measure is a function in a file of this folder, and a row in `measures.toml`. Norms are Euclidean over the trainable parameters.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from importlib import import_module
from importlib.resources import files
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, Protocol

from fedskew.core.errors import BadInput, require, suggestion
from fedskew.core.metrics import TaskMetric
from fedskew.tasks.metrics import METRICS

if TYPE_CHECKING:
    from torch import Tensor


View = Literal["table", "page", "curve", "live"]
ALL: tuple[View, ...] = ("table", "page", "curve", "live")
PLACES = {"last": "last round", "mean": "round mean", "max": "", "sum": ""}
"""Ways to reduce the rounds of a run to one number, and their text in headings. The text is empty if titles say it."""


@dataclass(frozen=True)
class Measure:
    """One number of a round. If it has ``views``, it is a column in the tables of runs.

    split: what it is measured on; see `fedskew.measure.registry.MEASURES`.
    name: its name in the store. A row with ``of`` stores nothing: it adds up those names of its split.
    note: its meaning, range and source, as the reference and the captions of figures say it.
    compute: ``module:function`` of a function in this folder. For the splits ``round`` and ``client`` it takes the updates (C, P)
        and the clients' numbers of rows (C,) and returns a tensor () or (C,). For ``clients`` and ``personal`` it takes the
        clients' values of ``score`` (K,), from worst to best, and returns ().
        If empty, `fedskew.execution.measurements` computes it.
    views: the views that have it. ``table``: terminal, LaTeX and Markdown; ``page``: the report's table; ``curve``: a figure
        over the rounds and the table of one run; ``live``: progress and ``watch``.
    key: its column in a summary; by default its name. Times ``factor`` in there.
    title, label: its heading in tables (by default the key in words) and in figures (by default the title).
    unit: ``%`` for shares in 0..1, which are shown times 100; anything else is shown after the title.
    reduce: how the rounds of a run become one number. ``interval``: whether views show the 95 % interval over seeds.
    low, high: its range, at which intervals are cut off. better: which values are better, empty if neither.
    budget: the budget that it counts for. counted: whether it follows from the settings, without chance.
    remark: a sentence below tables that show it.
    """

    split: str
    name: str
    note: str
    _: KW_ONLY
    compute: str = ""
    score: str = ""
    of: tuple[str, ...] = ()
    views: tuple[View, ...] = ()
    key: str = ""
    factor: float = 1.0
    title: str = ""
    label: str = ""
    unit: str = ""
    reduce: Literal["last", "mean", "max", "sum"] = "mean"
    interval: bool = True
    low: float = 0.0
    high: float = math.inf
    better: Literal["higher", "lower", ""] = ""
    budget: str = ""
    counted: bool = False
    remark: str = ""

    def __post_init__(self) -> None:
        key = self.key or self.name
        for field, value in (
            ("key", key),
            ("title", self.title or key.replace("_", " ")),
            ("of", self.of or (self.name,)),
        ):
            object.__setattr__(self, field, value)
        object.__setattr__(self, "label", self.label or self.title)

    @property
    def stored(self) -> bool:
        """True if a run stores it under its own name."""
        return self.name in self.of

    @property
    def figure(self) -> str:
        """Its name as a figure, and in claims."""
        return self.key.replace("_", "-")

    @property
    def of_clients(self) -> bool:
        """True if it is measured on the clients' rows."""
        return self.split in ("clients", "personal")

    @property
    def ahead(self) -> str:
        """The verdict on a method that is better in this measure."""
        return "lower" if self.better == "lower" else "higher"

    @property
    def behind(self) -> str:
        """The verdict on a method that is worse in this measure."""
        return "higher" if self.better == "lower" else "lower"

    @property
    def place(self) -> str:
        """The text in headings that says how rounds are reduced."""
        return PLACES[self.reduce]

    def function(self) -> Callable[..., Tensor]:
        """Import and return the function that computes it. Views do not call this, and so need no PyTorch."""
        module, _, name = self.compute.partition(":")
        function: Callable[..., Tensor] = getattr(import_module(module), name)
        return function


PRIMARY = "accuracy"
"""The default metric by which methods are compared. The keys of its columns do not contain its name."""

Row = Mapping[str, Any]
"""A row of the table of measures."""

ROWS: tuple[Row, ...] = tuple(
    tomllib.loads(files("fedskew.measure").joinpath("measures.toml").read_text(encoding="utf-8"))["measure"]
)

METRICS_OF: dict[str, Callable[[TaskMetric], bool]] = {
    "primary": lambda metric: not metric.aside,
    "aside": lambda metric: metric.aside and not metric.pooled,
    "pooled aside": lambda metric: metric.aside and metric.pooled,
    "share": lambda metric: not metric.aside and metric.unit == "%",
    "mean": lambda metric: not metric.pooled,
    "primary or mean": lambda metric: not (metric.aside and metric.pooled),
}
"""By the word in a row's ``metrics``: whether the row has a measure of a metric."""


def measure_of(row: Row) -> Measure:
    """Return the measure of a row that is not made for metrics."""
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
    return Measure(**fields)


def of_metric(rows: Iterable[Row], metric: TaskMetric) -> Iterator[Measure]:
    """Yield the measures of a task's metric."""
    texts = {
        "name": metric.name,
        "title": metric.title,
        "meaning": metric.meaning,
        "worst": "lowest" if metric.better == "higher" else "highest",
        "suffix": "" if metric.name == PRIMARY else f"_{metric.name}",
    }
    for row in rows:
        if METRICS_OF[row["metrics"]](metric):
            fields = {key: row[key] for key in row.keys() - {"metrics", "scale"}}
            fields = {key: value.format(**texts) if isinstance(value, str) else value for key, value in fields.items()}
            yield measure_of({**fields, **{key: getattr(metric, key) for key in row.get("scale", ())}})


def measures_of(rows: Iterable[Row]) -> Iterator[Measure]:
    """Yield the measures of the rows in their order. Neighbouring rows for metrics are made metric by metric."""
    for for_metrics, group in groupby(rows, key=lambda row: "metrics" in row):
        together = [*group]
        if for_metrics:
            yield from (measure for metric in METRICS for measure in of_metric(together, metric))
        else:
            yield from map(measure_of, together)


MEASURES: tuple[Measure, ...] = tuple(measures_of(ROWS))


OF_MODELS = ("test", "clients", "personal", "unseen")
"""Splits of measures of models. Models are not measured after every round."""

OWN: dict[tuple[str, str], Measure] = {}
"""Users' own measures, by split and name, of all runs that this process has executed or read."""

DECLARED = {"title": str, "unit": str, "better": str, "score": str, "reduce": str, "low": float, "high": float}
"""The fields that a user's measure may set."""


def declare(rows: Iterable[Mapping[str, object]]) -> None:
    """Add users' own measures from the descriptions that a run stores. No code of the user is imported."""
    for row in rows:
        fields: dict[str, Any] = {key: kind(row[key]) for key, kind in DECLARED.items() if key in row}
        measure = Measure(
            str(row["split"]), str(row["name"]), str(row["note"]), views=ALL, **{"low": -math.inf, **fields}
        )
        if measure.reduce in PLACES and measure.key not in {m.key for m in MEASURES}:
            OWN[measure.split, measure.name] = measure


def declare_metrics(metrics: Iterable[TaskMetric]) -> None:
    """Add the measures of a user's own task. Metrics of fedskew's tasks are known already."""
    for metric in metrics:
        if metric not in METRICS:
            for measure in of_metric((row for row in ROWS if "metrics" in row), metric):
                if (measure.split, measure.name) not in {(m.split, m.name) for m in MEASURES}:
                    OWN[measure.split, measure.name] = measure


def measures() -> tuple[Measure, ...]:
    """Return the measures of fedskew, then the users'."""
    return (*MEASURES, *OWN.values())


def stored() -> dict[tuple[str, str], Measure]:
    """Return the measures that a run may store, by split and name."""
    return {(m.split, m.name): m for m in measures() if m.stored}


def shown(*views: View) -> list[Measure]:
    """Return the measures that one of these ``views`` shows; without views, those that any view shows."""
    return [m for m in measures() if (set(m.views) & set(views) if views else m.views)]


def primary(metric: str = "") -> Measure:
    """Return the measure by which methods are compared and tuned: a ``metric`` on the test set.

    Raises `BadInput` for an unknown metric.
    """
    name = metric or PRIMARY
    metrics = (m for m in measures() if m.split == "test" and m.stored)
    measure = next((m for m in metrics if m.name == name), None)
    if not measure:
        names = {m.name for m in measures() if m.split == "test" and m.stored}
        raise BadInput(f"unknown metric {name!r}; {suggestion(name, names)}")
    return measure


class Recorded(Protocol):
    """A run that has facts."""

    @property
    def facts(self) -> Mapping[str, object]: ...


def primary_of(records: Iterable[Recorded]) -> Measure:
    """Return the measure by which these runs are compared. Raises `BadInput` if they have different ones."""
    metrics = list(dict.fromkeys(str(r.facts["primary"]) for r in records if "primary" in r.facts)) or [PRIMARY]
    require(len(metrics) == 1, f"these runs are compared by {' and by '.join(metrics)}; name runs of one task")
    return primary(metrics[0])


def computed(split: str) -> list[Measure]:
    """Return the measures of the split that name a function."""
    return [m for m in measures() if m.split == split and m.compute]


def budgets() -> dict[str, tuple[str, ...]]:
    """Return, by budget, the names of the measures that are summed over the rounds.

    The budget ``rounds`` counts rounds with local steps.
    """
    kinds = dict.fromkeys(m.budget for m in measures() if m.budget)
    names = {kind: tuple(m.name for m in measures() if m.budget == kind) for kind in kinds}
    return {"rounds": names["steps"], **names}
