"""Every number that a run stores, one row each: what it is, how it is computed, reduced and shown.

The store, the terminal, the report, tables for a paper, sinks, claims, budgets and the reference page read `MEASURES` when they
are used. A new measure is a function in a file of this folder and a row here. Norms are Euclidean over the trainable parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor

View = Literal["table", "page", "curve", "live"]
ALL: tuple[View, ...] = ("table", "page", "curve", "live")
PLACES = {"last": "last round", "mean": "round mean", "max": "", "sum": ""}
"""Ways to reduce the rounds of a run to one number, as headings say them; the others stand in titles and remarks."""


@dataclass(frozen=True)
class Measure:
    """One number of a round, and its column in the tables of runs if it is ``shown``.

    split: what it is measured on; see `MEASURES`.
    name: its name in the store. A row with ``of`` stores nothing: it adds up those names of its split.
    note: its meaning, range and source, as the reference and the captions of figures say it.
    compute: ``module:function`` of a function in this folder. For the splits ``round`` and ``client`` it takes the updates (C, P)
        and the clients' numbers of rows (C,) and returns a tensor () or (C,). For ``clients`` and ``personal`` it takes the
        clients' values of ``score`` (K,), from worst to best, and returns ().
        If empty, `fedskew.experiment.measurements` computes it.
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
        """Its name among the figures, and in claims."""
        return self.key.replace("_", "-")

    @property
    def of_clients(self) -> bool:
        """True if it is measured on the clients' rows."""
        return self.split in ("clients", "personal")

    @property
    def ahead(self) -> str:
        """The verdict on a difference in which this measure is better."""
        return "lower" if self.better == "lower" else "higher"

    @property
    def behind(self) -> str:
        """The verdict on a difference in which this measure is worse."""
        return "higher" if self.better == "lower" else "lower"

    @property
    def place(self) -> str:
        """The way to reduce the rounds of a run, as a heading says it."""
        return PLACES[self.reduce]

    def function(self) -> Callable[..., Tensor]:
        """The function that computes it; imported here, so that views do not need PyTorch."""
        module, _, name = self.compute.partition(":")
        found: Callable[..., Tensor] = getattr(import_module(module), name)
        return found


OF_MODELS = ("test", "clients", "personal")
"""Splits of measures of models, which are not made after every round."""

PRIMARY = "accuracy"
"""Key of the measure by which methods are compared and tuned."""

FAIR = "fedskew.measure.fairness:"
BYTES_REMARK = "bytes and time are those of a whole run, all clients together; 1 MB is 10⁶ bytes"

MEASURES: tuple[Measure, ...] = (
    # test: the global model on the test set
    Measure(
        "test", "accuracy", "accuracy of the global model on the test set, which no client has seen, 0..1",
        shown=ALL, label="test accuracy", unit="%", reduce="last", high=1.0, better="higher",
    ),
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
    Measure("clients", "accuracy_mean", "accuracy of the global model on a client's rows: mean over the clients, 0..1",
            compute=FAIR + "mean", score="accuracy", unit="%", reduce="last", high=1.0, better="higher"),
    Measure(
        "clients", "accuracy_worst", "accuracy of the global model on the client where it is lowest, 0..1",
        compute=FAIR + "worst", score="accuracy", shown=ALL, key="worst_client", label="accuracy of the worst client", unit="%",
        reduce="last", high=1.0, better="higher",
    ),
    Measure("clients", "accuracy_worst_decile", "accuracy of the global model: mean of the lowest tenth of the clients",
            compute=FAIR + "worst_decile", score="accuracy"),
    Measure("clients", "accuracy_std", "accuracy of the global model: standard deviation over the clients (population)",
            compute=FAIR + "deviation", score="accuracy"),
    Measure("clients", "accuracy_jain", "accuracy of the global model: Jain's index over the clients, 1 if all are alike",
            compute=FAIR + "jain", score="accuracy"),
    Measure("clients", "accuracy_entropy", "accuracy of the global model: entropy of the clients' shares, "
            "divided by the entropy of equal shares, 0..1",
            compute=FAIR + "entropy", score="accuracy"),
    Measure("clients", "loss_mean", "loss of the global model on a client's rows: mean over the clients",
            compute=FAIR + "mean", score="loss", better="lower"),
    # personal: each client's personal model on its rows, over the clients
    Measure(
        "personal", "accuracy_mean", "accuracy of each client’s own model after the round and `evaluation.adapt_steps` steps of "
        "fine-tuning: mean over the clients, 0..1",
        compute=FAIR + "mean", score="accuracy", shown=("table", "page", "curve"), key="personal",
        label="accuracy of the personal models", unit="%", reduce="last", high=1.0, better="higher",
        remark="personal: each client's own model after the round; test accuracy is that of the server's model, "
        "which means little if a method keeps much of the model on the clients",
    ),
    Measure(
        "personal", "accuracy_worst", "accuracy of the personal models on the client where it is lowest, 0..1",
        compute=FAIR + "worst", score="accuracy", shown=("page", "curve"), key="worst_personal",
        label="accuracy of the worst personal model", unit="%", reduce="last", high=1.0, better="higher",
    ),
    Measure("personal", "accuracy_worst_decile", "accuracy of the personal models: mean of the lowest tenth of the clients",
            compute=FAIR + "worst_decile", score="accuracy"),
    Measure("personal", "accuracy_std", "accuracy of the personal models: standard deviation over the clients (population)",
            compute=FAIR + "deviation", score="accuracy"),
    Measure("personal", "accuracy_jain", "accuracy of the personal models: Jain's index over the clients",
            compute=FAIR + "jain", score="accuracy"),
    Measure("personal", "accuracy_entropy", "accuracy of the personal models: entropy of the clients' shares, "
            "divided by the entropy of equal shares, 0..1",
            compute=FAIR + "entropy", score="accuracy"),
    Measure("personal", "loss_mean", "loss of the personal models: mean over the clients",
            compute=FAIR + "mean", score="loss", better="lower"),
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
    Measure("global-model", "accuracy", "per client: accuracy of the global model on the client's rows, 0..1", better="higher"),
    Measure("global-model", "loss", "per client: mean loss of the global model on the client's rows", better="lower"),
    Measure("local-model", "accuracy", "per client: accuracy of its local model on its rows, before aggregation, 0..1"),
    Measure("local-model", "loss", "per client: mean loss of its local model on its rows, before aggregation"),
    Measure("personal-model", "accuracy", "per client: accuracy of its personal model on its rows, after `evaluation.adapt_steps` "
            "steps, 0..1"),
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
    Measure("class", "forgetting", "per class: its highest accuracy in any measured round minus the one now (Lee et al. 2022)",
            unit="%"),
)  # fmt: skip


OWN: dict[tuple[str, str], Measure] = {}
"""Measures of users, by split and name, of the runs that this process carries out or has read."""

DECLARED = {"title": str, "unit": str, "better": str, "score": str, "reduce": str, "low": float, "high": float}
"""The fields that a user's measure may set."""


def declare(rows: Iterable[Mapping[str, object]]) -> None:
    """Add measures of users, as a run stores them; no code of theirs is imported."""
    for row in rows:
        fields: dict[str, Any] = {key: kind(row[key]) for key, kind in DECLARED.items() if key in row}
        measure = Measure(
            str(row["split"]), str(row["name"]), str(row["note"]), shown=ALL, **{"low": -math.inf, **fields}
        )
        if measure.reduce in PLACES and measure.key not in {m.key for m in MEASURES}:
            OWN[measure.split, measure.name] = measure


def measures() -> tuple[Measure, ...]:
    """The measures of fedskew, then those of users."""
    return (*MEASURES, *OWN.values())


def stored() -> dict[tuple[str, str], Measure]:
    """The measures that a run may store, by split and name."""
    return {(m.split, m.name): m for m in measures() if m.stored}


def shown(*views: View) -> list[Measure]:
    """The measures that one of the ``views`` has, or any view at all."""
    return [m for m in measures() if (set(m.shown) & set(views) if views else m.shown)]


def primary() -> Measure:
    """The measure by which methods are compared and tuned."""
    return next(m for m in shown() if m.key == PRIMARY)


def computed(split: str) -> list[Measure]:
    """The measures of the split that have a function."""
    return [m for m in measures() if m.split == split and m.compute]


def budgets() -> dict[str, tuple[str, ...]]:
    """By budget: the names that are added up over the rounds. ``rounds`` counts the rounds that have local steps."""
    kinds = dict.fromkeys(m.budget for m in measures() if m.budget)
    found = {kind: tuple(m.name for m in measures() if m.budget == kind) for kind in kinds}
    return {"rounds": found["steps"], **found}
