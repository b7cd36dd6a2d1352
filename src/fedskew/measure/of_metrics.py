"""Make the measures of a task's metric: on the test set, over the clients, of personal models, and of each client."""

from collections.abc import Iterator
from dataclasses import replace

from fedskew.core.metrics import TaskMetric
from fedskew.measure.measure import ALL, Measure, View

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
