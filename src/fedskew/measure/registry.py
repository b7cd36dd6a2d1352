"""The registry: one row for each number that a run stores, with how it is computed, reduced and shown.

The store, the terminal, the report, tables for a paper, sinks, claims, budgets and the reference page all read `MEASURES`. A new
measure is a function in a file of this folder, and a row here. Norms are Euclidean over the trainable parameters.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from fedskew.core.errors import BadInput, require, suggestion
from fedskew.core.metrics import TaskMetric
from fedskew.measure.measure import ALL as ALL
from fedskew.measure.measure import PLACES as PLACES
from fedskew.measure.measure import Measure as Measure
from fedskew.measure.measure import View as View
from fedskew.measure.of_metrics import (
    PRIMARY,
    of_clients,
    of_each_client,
    of_personal_models,
    of_unseen_clients,
    on_test_rows,
)
from fedskew.tasks.metrics import METRICS

P = ParamSpec("P")
Store = TypeVar("Store")
Shown = TypeVar("Shown")
Runs = TypeVar("Runs", bound="Iterable[Recorded]")

OF_MODELS = ("test", "clients", "personal", "unseen")
"""Splits of measures of models. Models are not measured after every round."""

FAIR = "fedskew.measure.fairness:"
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


COMPARED_BY: ContextVar[str] = ContextVar("COMPARED_BY", default="")
"""The metric that compares the runs of the current view; empty: `PRIMARY`."""


def primary(metric: str = "") -> Measure:
    """Return the measure by which methods are compared and tuned: a ``metric`` on the test set.

    By default it is the metric of the current view (`compared_by`). Raises `BadInput` for an unknown metric.
    """
    name = metric or COMPARED_BY.get() or PRIMARY
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


@contextmanager
def compared_by(metric: str) -> Iterator[None]:
    """Within this context, `primary` returns the measure of this metric."""
    token = COMPARED_BY.set(metric)
    try:
        yield
    finally:
        COMPARED_BY.reset(token)


def by_primary_metric(
    view: Callable[Concatenate[Store, Runs, P], Shown],
) -> Callable[Concatenate[Store, Runs, P], Shown]:
    """Decorate a view of a store and records: within it, `primary` returns the measure of these runs."""

    @wraps(view)
    def compared(store: Store, records: Runs, /, *args: P.args, **kwargs: P.kwargs) -> Shown:
        with compared_by(primary_of(records).name):
            return view(store, records, *args, **kwargs)

    return compared


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
