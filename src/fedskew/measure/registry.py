"""The registry: one row for each number that a run stores, with how it is computed, reduced and shown.

The store, the terminal, the report, tables for a paper, sinks, claims, budgets and the reference page all read `MEASURES`. A new
measure is a function in a file of this folder, and a row here. Norms are Euclidean over the trainable parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from importlib import import_module
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
    """One number of a round. If it is ``shown``, it is a column in the tables of runs.

    split: what it is measured on; see `fedskew.measure.registry.MEASURES`.
    name: its name in the store. A row with ``of`` stores nothing: it adds up those names of its split.
    note: its meaning, range and source, as the reference and the captions of figures say it.
    compute: ``module:function`` of a function in this folder. For the splits ``round`` and ``client`` it takes the updates (C, P)
        and the clients' numbers of rows (C,) and returns a tensor () or (C,). For ``clients`` and ``personal`` it takes the
        clients' values of ``score`` (K,), from worst to best, and returns ().
        If empty, `fedskew.execution.measurements` computes it.
    shown: the views that have it. ``table``: terminal, LaTeX and Markdown; ``page``: the report's table; ``curve``: a figure
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
    shown: tuple[View, ...] = ()
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
        found: Callable[..., Tensor] = getattr(import_module(module), name)
        return found


PRIMARY = "accuracy"
"""The default metric by which methods are compared. The keys of its columns do not contain its name."""

FAIR = "fedskew.measure.fairness:"
PERSONAL_REMARK = (
    "personal: each client's own model after the round; test {} belongs to the server's model, "
    "which means little if a method keeps much of the model on the clients"
)
UNSEEN_REMARK = (
    "unseen: clients that took no part in training, on their held-out rows; adapted: after a round of local work on all "
    "their other rows, or the steps of `evaluation.adapt_steps`, from the model that the method gives a new client"
)
BESIDE: tuple[View, ...] = ("table", "page", "curve")


def on_test_rows(metric: TaskMetric) -> Measure:
    """Return the measure of the global model on the test set."""
    return Measure(
        "test",
        metric.name,
        f"{metric.title} of the global model on the test set, which no client has seen{metric.meaning}",
        shown=("page",) if metric.aside and metric.pooled else BESIDE if metric.aside else ALL,
        title=metric.title,
        label=f"test {metric.title}",
        unit=metric.unit,
        reduce="last",
        low=metric.low,
        high=metric.high,
        better=metric.better,
    )


def of_clients(metric: TaskMetric) -> Iterator[Measure]:
    """Yield measures of the global model, over the clients."""
    if metric.aside:
        return
    found = over_clients(metric, "clients", "the global model", "a client's rows: mean over the clients")
    for measure in found:
        if measure.name.endswith("_worst"):
            label = f"{metric.title} of the worst client"
            measure = shown_as(metric, measure, "worst_client", label, ALL)
        yield measure


def of_personal_models(metric: TaskMetric) -> Iterator[Measure]:
    """Yield measures of the personal models, over the clients."""
    if metric.aside:
        return
    for measure in over_clients(metric, "personal", "the personal models", ""):
        if measure.name.endswith("_mean"):
            note = (
                f"{metric.title} of each client’s own model after the round and `evaluation.adapt_steps` steps of fine-tuning: "
                f"mean over the clients"
            )
            label = f"{metric.title} of the personal models"
            measure = shown_as(metric, measure, "personal", label, BESIDE)
            measure = replace(measure, note=note, remark=PERSONAL_REMARK.format(metric.title))
        elif measure.name.endswith("_worst"):
            label = f"{metric.title} of the worst personal model"
            measure = shown_as(metric, measure, "worst_personal", label, ("page", "curve"))
        yield measure


def of_unseen_clients(metric: TaskMetric) -> Iterator[Measure]:
    """Yield measures on clients that took no part in training, before and after they adapted the model."""
    if metric.aside:
        return
    wide = {"unit": metric.unit, "low": metric.low, "high": metric.high, "better": metric.better, "reduce": "last"}
    models = {
        "before": ("unseen", "the server's model"),
        "adapted": ("unseen_adapted", "the model that each of them adapted on all its training rows"),
    }
    for name, (key, of) in models.items():
        note = f"{metric.title} of {of} on the held-out rows of clients that took no part in training: mean over them"
        measure = Measure("unseen", f"{metric.name}_{name}", note, remark=UNSEEN_REMARK, **wide)  # type: ignore[arg-type]
        yield shown_as(metric, measure, key, f"{metric.title} on {key.replace('_', ' ')} clients", ("table", "page"))
    note = f"per number of rows to adapt on: {metric.title} on the held-out rows of unseen clients, mean over them"
    yield Measure("adaptation", metric.name, note, label=f"{metric.title} by rows to adapt on", **wide)  # type: ignore[arg-type]


def shown_as(metric: TaskMetric, measure: Measure, key: str, label: str, shown: tuple[View, ...]) -> Measure:
    """Return the measure as a column with this key and label in these views."""
    own = key if metric.name == PRIMARY else f"{key}_{metric.name}"
    return replace(measure, key=own, title=key.replace("_", " "), label=label, shown=shown)


def over_clients(metric: TaskMetric, split: str, of: str, where: str) -> Iterator[Measure]:
    """Yield mean and worst over the clients; for shares also worst tenth, standard deviation, Jain's index and entropy."""
    worst = "lowest" if metric.better == "higher" else "highest"
    what = f"{metric.title} of {of}"
    wide = {"unit": metric.unit, "low": metric.low, "high": metric.high, "better": metric.better, "reduce": "last"}

    def one(name: str, note: str, function: str, **more: object) -> Measure:
        return Measure(split, f"{metric.name}_{name}", note, compute=FAIR + function, score=metric.name, **more)  # type: ignore[arg-type]

    yield one("mean", f"{what} on {where}{metric.meaning}", "mean", **wide)
    yield one("worst", f"{what} on the client where it is {worst}", "worst", **wide)
    if metric.unit == "%":
        yield one("worst_decile", f"{what}: mean of the {worst} tenth of the clients", "worst_decile", low=metric.low)
        yield one("std", f"{what}: standard deviation over the clients (population)", "deviation")
        yield one("jain", f"{what}: Jain's index over the clients, 1 if all are alike", "jain")
        yield one(
            "entropy",
            f"{what}: entropy of the clients' shares, divided by the entropy of equal shares, 0..1",
            "entropy",
        )


def of_each_client(metric: TaskMetric) -> Iterator[Measure]:
    """Yield measures of single clients: of the global model, of the local model, and of the personal model.

    A pooled metric is computed for clients only if it is the primary one, and never for local models.
    """
    if metric.pooled and metric.aside:
        return
    places = {
        "global-model": "of the global model on the client's rows",
        "local-model": "of its local model on its rows, before aggregation",
        "personal-model": "of its personal model on its rows, after `evaluation.adapt_steps` steps",
    }
    if metric.pooled:
        del places["local-model"]
    for split, where in places.items():
        better = metric.better if split == "global-model" else ""
        yield Measure(split, metric.name, f"per client: {metric.title} {where}", better=better, low=metric.low)


OF_MODELS = ("test", "clients", "personal", "unseen")
"""Splits of measures of models. Models are not measured after every round."""

BYTES_REMARK = "bytes and time are for a whole run, all clients together; 1 MB is 10⁶ bytes"

MEASURES: tuple[Measure, ...] = (
    # test: the global model on the test set
    *map(on_test_rows, METRICS),
    Measure(
        "test", "best_accuracy", "the highest test accuracy of any measured round, 0..1", of=("accuracy",), shown=("page",),
        title="best round", unit="%", reduce="max", interval=False, high=1.0, better="higher",
        remark="the best round is picked on the test set itself, so it flatters",
    ),
    Measure(
        "test", "loss", "mean loss of the global model on the test set, which no client has seen; cross-entropy in nats",
        shown=("curve",), label="test loss", reduce="last", better="lower",
    ),
    Measure("test", "forgetting", "mean of the classes' forgetting, if `evaluation.classes` asks for it", shown=("curve",),
            unit="%", reduce="last", high=1.0, better="lower"),
    Measure("test", "recovery", "rounds from a change of the concept until accuracy is 95 % of its mean over the ten measurements "
            "before; stored in the round in which it is"),
    Measure("test", "opportunity", "difference of true positive rates between the two groups of a sensitive attribute",
            shown=("page", "curve"), title="gap in opportunity", reduce="last", low=-1.0, high=1.0),
    Measure("test", "parity", "difference of the rates of positive predictions between these groups",
            shown=("page", "curve"), title="gap in parity", reduce="last", low=-1.0, high=1.0),
    Measure("test", "odds", "the larger of the gaps in true and in false positive rate between these groups",
            shown=("page", "curve"), title="gap in odds", reduce="last", low=-1.0, high=1.0),
    # clients: the global model on each client's rows, over the clients
    *(m for metric in METRICS for m in of_clients(metric)),
    Measure("clients", "loss_mean", "loss of the global model on a client's rows: mean over the clients",
            compute=FAIR + "mean", score="loss", better="lower"),
    # personal: each client's personal model on its rows, over the clients
    *(m for metric in METRICS for m in of_personal_models(metric)),
    Measure("personal", "loss_mean", "loss of the personal models: mean over the clients",
            compute=FAIR + "mean", score="loss", better="lower"),
    # unseen: clients that took no part in training; adaptation: its number stands in the column of the client
    *(m for metric in METRICS for m in of_unseen_clients(metric)),
    # round: the updates of a round, before a codec, and what it cost
    Measure(
        "round", "drift", "mean distance of the clients’ local models from their example-weighted mean, which FedAvg takes for the "
        "next model (textbook section ‘Non-IID Data’)", shown=ALL,
    ),
    Measure(
        "round", "divergence", "mean distance of the clients’ local models from their uniform mean, in which a small client counts "
        "as much as a large one (Goel, Srivastava, Shah, eq. 4)", shown=("page", "curve"),
    ),
    Measure("round", "relative_drift", "weighted mean square distance over weighted mean square update, 0 (all agree) to 1"),
    Measure("round", "signal_to_noise", "square length of the mean update over the mean square distance to it: (1 - R) / R of "
            "relative drift R"),
    Measure("round", "update_norm", "mean length of the clients' updates"),
    Measure("round", "alignment", "mean cosine of the clients' updates with their example-weighted mean, -1..1"),
    Measure("round", "cosine", "mean cosine over all pairs of updates, if `evaluation.layers` asks for it",
            shown=("curve",), label="agreement of the updates", low=-1.0, high=1.0),
    Measure("round", "inexactness", "mean over the clients of their inexactness, if `evaluation.inexactness` asks for it: "
            "0 solved, 1 no nearer", shown=("curve",)),
    Measure("round", "local_steps", "local steps of all clients", reduce="sum", budget="steps"),
    Measure("round", "update_amount", "learning rate times local steps, mean over the clients by their rows (u of 'From IID to "
            "Non-IID', eq. 3)", reduce="sum", budget="u", counted=True),
    Measure("round", "clients", "clients that took part: they trained, and the server received their updates"),
    Measure("round", "available", "clients that were available"),
    Measure("round", "selected", "available clients that the server asked"),
    Measure("round", "answered", "asked clients that answered"),
    Measure("round", "stragglers", "clients that finished a part of their work only, or were dropped for it"),
    Measure("round", "bytes_up", "bytes that the whole cohort sent, in the codec's messages", reduce="sum", budget="bytes"),
    Measure("round", "bytes_down", "bytes sent to the whole cohort, to dropped stragglers too", reduce="sum", budget="bytes"),
    Measure("round", "megabytes", "bytes up and down", of=("bytes_up", "bytes_down"), shown=("table",), factor=1e-6, title="MB",
            reduce="sum", interval=False, counted=True, remark=BYTES_REMARK),
    Measure("round", "megabytes_up", "bytes up", of=("bytes_up",), shown=("page",), factor=1e-6, title="up", unit="MB",
            reduce="sum", interval=False, remark=BYTES_REMARK),
    Measure("round", "megabytes_down", "bytes down", of=("bytes_down",), shown=("page",), factor=1e-6, title="down", unit="MB",
            reduce="sum", interval=False),
    Measure("round", "rejected", "answers that were not usable or came too late, in deployed runs and where `faults` are declared"),
    Measure("round", "seconds", "seconds of the round: training, evaluation and measures", shown=("page",), title="time", unit="s",
            reduce="sum", interval=False, budget="seconds"),
    Measure(
        "round", "epsilon", "privacy loss of any client in all rounds, repeated ones too, at the method's delta; where the method "
        "bounds it", shown=("table", "page"), reduce="last", interval=False,
        remark="epsilon bounds what the models of all rounds reveal about any one client, at the method's delta: differential "
        "privacy for adding or removing a client; it covers no other number here, and nothing settled before the first round",
    ),
    # per client: each client's number stands in the column of the client
    *(m for metric in METRICS for m in of_each_client(metric)),
    Measure("global-model", "loss", "per client: mean loss of the global model on the client's rows", better="lower"),
    Measure("local-model", "loss", "per client: mean loss of its local model on its rows, before aggregation"),
    Measure("personal-model", "loss", "per client: mean loss of its personal model on its rows"),
    Measure("client", "steps", "per client: local steps"),
    Measure("client", "inexactness", "per client: norm of its local problem's gradient at its local model over that at the global "
            "model, on all its rows: 0 solved, 1 no nearer (the gamma of the FedProx paper)"),
    Measure("client", "distance", "per client: distance of its local model to the example-weighted mean"),
    Measure("client", "update_norm", "per client: length of its update"),
    Measure("client", "alignment", "per client: cosine of its update with the example-weighted mean update, -1..1"),
    Measure("client", "cluster", "per client: the cluster whose model it trained, from 0, where the method has clusters"),
    # faults of deployed clients, counted per client
    Measure("fault", "missing", "per client: times that it was away or did not answer in time"),
    Measure("fault", "refused", "per client: times that the node said why it could not answer"),
    Measure("fault", "garbage", "per client: messages that could not be read, or claimed to be another client's"),
    Measure("fault", "other_round", "per client: answers of another round or run"),
    Measure("fault", "wrong_shape", "per client: answers whose tensors had other names, shapes or types"),
    Measure("fault", "not_finite", "per client: answers with values that were not finite"),
    Measure("fault", "out_of_range", "per client: answers with impossible numbers, such as an accuracy above 1"),
    Measure("fault", "too_long", "per client: updates longer than the limit, or far longer than the other clients'"),
    # per layer and per class: their number stands in the column of the client
    Measure("layer", "cosine", "per layer: mean cosine over all pairs of updates", label="agreement by layer", low=-1.0, high=1.0),
    Measure("class", "accuracy", "per class: accuracy of the global model on the test rows of the class, 0..1",
            label="accuracy by class", unit="%", high=1.0),
    Measure("class", "f1", "per class or label: F1 of the global model on the test rows, 0..1", label="F1 by class or label",
            unit="%", high=1.0),
    Measure("class", "auc", "per class or label: area under the ROC curve of the global model on the test rows, against the "
            "other classes, or the rows without the label", high=1.0),
    Measure("class", "forgetting", "per class: its highest accuracy in any measured round minus the one now (Lee et al. 2022)",
            unit="%"),
)  # fmt: skip


OWN: dict[tuple[str, str], Measure] = {}
"""Users' own measures, by split and name, of all runs that this process has executed or read."""

DECLARED = {"title": str, "unit": str, "better": str, "score": str, "reduce": str, "low": float, "high": float}
"""The fields that a user's measure may set."""


def declare(rows: Iterable[Mapping[str, object]]) -> None:
    """Add users' own measures from the descriptions that a run stores. No code of the user is imported."""
    for row in rows:
        fields: dict[str, Any] = {key: kind(row[key]) for key, kind in DECLARED.items() if key in row}
        measure = Measure(
            str(row["split"]), str(row["name"]), str(row["note"]), shown=ALL, **{"low": -math.inf, **fields}
        )
        if measure.reduce in PLACES and measure.key not in {m.key for m in MEASURES}:
            OWN[measure.split, measure.name] = measure


def declare_metrics(metrics: Iterable[TaskMetric]) -> None:
    """Add the measures of a user's own task. Metrics of fedskew's tasks are known already."""
    for metric in metrics:
        if metric not in METRICS:
            for measure in (
                on_test_rows(metric),
                *of_clients(metric),
                *of_personal_models(metric),
                *of_unseen_clients(metric),
                *of_each_client(metric),
            ):
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
    return [m for m in measures() if (set(m.shown) & set(views) if views else m.shown)]


def primary(metric: str = "") -> Measure:
    """Return the measure by which methods are compared and tuned: a ``metric`` on the test set.

    Raises `BadInput` for an unknown metric.
    """
    name = metric or PRIMARY
    metrics = (m for m in measures() if m.split == "test" and m.stored)
    measure = next((m for m in metrics if m.name == name), None)
    if not measure:
        known = {m.name for m in measures() if m.split == "test" and m.stored}
        raise BadInput(f"unknown metric {name!r}; {suggestion(name, known)}")
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
    found = {kind: tuple(m.name for m in measures() if m.budget == kind) for kind in kinds}
    return {"rounds": found["steps"], **found}
