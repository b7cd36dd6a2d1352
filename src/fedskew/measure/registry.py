"""The registry: one row for each number that a run stores, with how it is computed, reduced and shown.

The store, the terminal, the report, tables for a paper, sinks, claims, budgets and the reference page all read `MEASURES`. A new
measure is a function in a file of this folder, and a row in `measures.toml`. Norms are Euclidean over the trainable parameters.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from fedskew.core.errors import BadInput, require, suggestion
from fedskew.core.metrics import METRICS, TaskMetric

if TYPE_CHECKING:
    import pandas as pd
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
    key: its column in a summary; by default its name. Values in a summary are multiplied by ``factor``.
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
        object.__setattr__(self, "key", self.key or self.name)
        object.__setattr__(self, "title", self.title or self.key.replace("_", " "))
        object.__setattr__(self, "of", self.of or (self.name,))
        object.__setattr__(self, "label", self.label or self.title)

    @property
    def stored(self) -> bool:
        """True if a run stores it under its own name."""
        return self.name in self.of

    def rows_in(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of measurements that hold it."""
        return frame[(frame["split"] == self.split) & frame["name"].isin(self.of)]

    @property
    def figure(self) -> str:
        """Its name as a figure, and in claims."""
        return self.key.replace("_", "-")

    @property
    def of_clients(self) -> bool:
        """True if it is measured on the clients' rows."""
        return self.split in ("clients", "personal")

    @property
    def sign(self) -> int:
        """-1 if lower values are better, else 1. The better of two values times it is the higher one."""
        return -1 if self.better == "lower" else 1

    @property
    def ahead(self) -> str:
        """The verdict on a method that is better in this measure."""
        return "higher" if self.sign > 0 else "lower"

    @property
    def behind(self) -> str:
        """The verdict on a method that is worse in this measure."""
        return "lower" if self.sign > 0 else "higher"

    @property
    def place(self) -> str:
        """The text in headings that says how rounds are reduced."""
        return PLACES[self.reduce]

    def function(self) -> Callable[..., Tensor]:
        """Import and return the function that computes it. Views do not call this, and so need no PyTorch."""
        module, _, name = self.compute.partition(":")
        return getattr(import_module(module), name)


PRIMARY = "accuracy"
"""The default metric by which methods are compared. The keys of its columns do not contain its name."""

Row = Mapping[str, Any]
"""A row of the table of measures."""

ROWS: tuple[Row, ...] = tuple(tomllib.loads(Path(__file__).with_name("measures.toml").read_text("utf-8"))["measure"])

METRICS_OF: dict[str, Callable[[TaskMetric], bool]] = {
    "primary": lambda metric: not metric.aside,
    "aside": lambda metric: metric.aside and not metric.pooled,
    "pooled aside": lambda metric: metric.aside and metric.pooled,
    "any aside": lambda metric: metric.aside,
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
    texts = {name: getattr(metric, name) for name in ("name", "title", "meaning")}
    texts["worst"] = "lowest" if metric.better == "higher" else "highest"
    texts["suffix"] = "" if metric.name == PRIMARY else f"_{metric.name}"
    for row in rows:
        if METRICS_OF[row["metrics"]](metric):
            fields = {key: row[key] for key in row.keys() - {"metrics", "scale"}}
            fields = {key: value.format(**texts) if isinstance(value, str) else value for key, value in fields.items()}
            yield measure_of({**fields, **{key: getattr(metric, key) for key in row.get("scale", ())}})


def measures_of_rows(rows: Iterable[Row]) -> Iterator[Measure]:
    """Yield the measures of the rows in their order. Neighbouring rows for metrics are made metric by metric."""
    for for_metrics, group in groupby(rows, key=lambda row: "metrics" in row):
        together = [*group]
        if for_metrics:
            yield from (measure for metric in METRICS for measure in of_metric(together, metric))
        else:
            yield from map(measure_of, together)


MEASURES: tuple[Measure, ...] = tuple(measures_of_rows(ROWS))


OF_MODELS = ("test", "clients", "personal", "sites", "unseen")
"""Splits of measures of models. Models are not measured after every round."""

DECLARED = {"title": str, "unit": str, "better": str, "score": str, "reduce": str, "low": float, "high": float}
"""The fields that a user's measure may set."""


@dataclass(frozen=True)
class Measures:
    """The measures of some runs: fedskew's, then ``of_users``."""

    of_users: tuple[Measure, ...] = ()

    @cached_property
    def all(self) -> tuple[Measure, ...]:
        return (*MEASURES, *self.of_users)

    @cached_property
    def stored(self) -> dict[tuple[str, str], Measure]:
        """The measures that a run may store, by split and name."""
        return {(m.split, m.name): m for m in self.all if m.stored}

    @cached_property
    def decided(self) -> list[Measure]:
        """What methods decide about clients."""
        return [m for m in self.of_users if m.split == "client"]

    def shown(self, *views: View) -> list[Measure]:
        """Return the measures that one of these ``views`` shows; without views, those that any view shows."""
        return [m for m in self.all if (set(m.views) & set(views) if views else m.views)]

    def computed(self, split: str) -> list[Measure]:
        """Return the measures of the split that name a function."""
        return [m for m in self.all if m.split == split and m.compute]

    def primary(self, metric: str = PRIMARY, split: str = "test") -> Measure:
        """Return the measure by which methods are compared and tuned: a ``metric`` on the test set, or on another ``split``.

        Raises `BadInput` for an unknown metric.
        """
        if ("test", metric) not in self.stored:
            names = {name for split, name in self.stored if split == "test"}
            raise BadInput(f"unknown metric {metric!r}; {suggestion(metric, names)}")
        return self.stored[split, metric]


USUAL = Measures()
"""The measures of runs without any of the user, as most are; a list of thousands of runs makes them once."""


def measures_of(facts: Iterable[Mapping[str, Any]]) -> Measures:
    """Return the measures of runs with these facts. No code of a user is imported.

    ``measures`` has a user's own, and what methods decide; ``metrics`` has the metrics in a task by the user. If two runs declare
    one in different ways, the later run counts. A measure with a name of fedskew's is left out. Raises an error for facts of
    another form.
    """
    of_users: dict[tuple[str, str], Measure] = {}
    for of_run in facts:
        for row in of_run.get("measures", ()):
            fields = {key: kind(row[key]) for key, kind in DECLARED.items() if key in row}
            split, name, views = str(row["split"]), str(row["name"]), tuple(row.get("views", ALL))
            if split == "client":  # its name may be a measure's of another split
                fields |= {"key": f"{name}_by_client", "title": name.replace("_", " ")}
            measure = Measure(split, name, str(row["note"]), views=views, **{"low": -math.inf, **fields})
            if measure.reduce in PLACES and measure.key not in {m.key for m in MEASURES}:
                of_users[measure.split, measure.name] = measure
        for metric in msgspec.convert(of_run.get("metrics", ()), tuple[TaskMetric, ...]):
            measures = of_metric((row for row in ROWS if "metrics" in row), metric)
            of_users |= {(m.split, m.name): m for m in measures if (m.split, m.name) not in USUAL.stored}
    return Measures(tuple(of_users.values())) if of_users else USUAL


class Recorded(Protocol):
    """A run that has facts."""

    @property
    def facts(self) -> Mapping[str, Any]: ...


def primary_of(records: Iterable[Recorded], split: str = "test") -> Measure:
    """Return the measure of the ``split`` by which these runs are compared. Raises `BadInput` if they have different ones."""
    facts = [record.facts for record in records]
    metrics = list(dict.fromkeys(str(of_run["primary"]) for of_run in facts if "primary" in of_run)) or [PRIMARY]
    require(len(metrics) == 1, f"these runs are compared by {' and by '.join(metrics)}; name runs of one task")
    return measures_of(facts).primary(metrics[0], split)


def budgets() -> dict[str, tuple[str, ...]]:
    """Return, by budget, the names of the measures that are summed over the rounds.

    The budget ``rounds`` counts rounds with local steps.
    """
    kinds = dict.fromkeys(m.budget for m in MEASURES if m.budget)
    names = {kind: tuple(m.name for m in MEASURES if m.budget == kind) for kind in kinds}
    return {"rounds": names["steps"], **names}
