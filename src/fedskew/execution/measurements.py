"""Compute the measurements of a round, as rows for the store, from the round's outcome and the models' scores."""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fedskew.core.contract import Metric
from fedskew.core.errors import Diverged, require, suggestion
from fedskew.core.records import Server
from fedskew.core.rows import counts, odds, opportunity, parity
from fedskew.core.seeding import stream
from fedskew.core.task import Categorised
from fedskew.execution.build import Assembly, adaptation_of
from fedskew.execution.site import Site
from fedskew.experiment.config import Experiment, row_of
from fedskew.loop.evaluate import RowValues, mean_of, outputs_of, over_rows, per_row, row_values, scored
from fedskew.loop.federation import Federation
from fedskew.loop.inexactness import inexactness
from fedskew.loop.limits import client_cause, server_cause
from fedskew.loop.personal import adaptation_curve
from fedskew.loop.work import Engine, Outcome, States
from fedskew.measure.history import recovery
from fedskew.measure.privacy import epsilon
from fedskew.measure.updates import cosines, signal_to_noise
from fedskew.skew.concept import Concept
from fedskew.skew.partition import Ints
from fedskew.store.runs import Row, RunStore


def at_most(clients: Ints, assembly: Assembly) -> Ints:
    """Return the clients on whose rows models are measured: all of these, or a fixed random choice of ``max_clients``."""
    limit = assembly.experiment.evaluation.max_clients
    if len(clients) <= limit:
        return clients
    return np.sort(stream(assembly.federation.seed, "evaluate").choice(clients, size=limit, replace=False))


SHARE = 0.05
"""Largest share of a run's work for measuring models, for ``every = "auto"``. With the other measures it is below a tenth."""


POINTS = 20
"""Minimum number of measured rounds for ``every = "auto"``. Shorter runs are measured after every round."""


def measured_every(assembly: Assembly) -> int:
    """Return n, where models are measured after every n-th round, and always before the first and after the last round.

    For ``auto`` it is the smallest power of two that keeps the work of measuring within `SHARE`, or else the largest that
    leaves `POINTS` measured rounds. A row's forward pass counts 1; a row in a training step counts 3, since the backward pass
    costs twice as much.
    """
    evaluation, local, fed = assembly.experiment.evaluation, assembly.experiment.local, assembly.federation
    if evaluation.every != "auto":
        return evaluation.every
    part, clients = fed.partition, max(len(fed.clients), 1)
    rows = int(part.offsets[-1])
    measured = rows if part.held_out is None else len(part.held_out[0])
    cohort = max(len(fed.selection.select(fed.clients, stream(fed.seed, "select", 0))), 1)
    batch = rows / clients if local.batch_size == "all" else local.batch_size
    training = 3 * cohort * (rows / clients * local.epochs if local.steps is None else local.steps * batch)
    passes = min(1, evaluation.max_clients / clients) + evaluation.local_models * cohort / clients
    measuring = len(assembly.y_test) + measured * passes
    rounds = assembly.experiment.training.rounds
    times = SHARE / (1 - SHARE) * rounds * training / measuring
    powers = [2**i for i in range(rounds.bit_length()) if i == 0 or rounds >= POINTS * 2**i]
    return next((every for every in powers if 1 + math.ceil(rounds / every) <= times), powers[-1])


def model_rows(assembly: Assembly, site: Site, server: Server, states: States, clients: Ints) -> list[Row]:
    """Measure the global model on the test set and on each client's rows, and personal models if the method has any.

    After the last round it adds `unseen_rows`, unless a run with patience will add them. Raises `Diverged` if a loss is not
    finite.
    """
    fed, w = assembly.federation, server.x
    y_test = assembly.test_targets(server.round)
    rows_scores, pooled = scored(fed.task, w, assembly.x_test, y_test)
    tested = over_rows(fed.task, rows_scores, pooled)
    rows: list[Row] = [(None, "test", name, value) for name, value in tested.items() if not math.isnan(value)]
    if assembly.experiment.evaluation.classes:
        rows += class_rows(assembly, outputs_of(fed.task, w, assembly.x_test), y_test)
    if assembly.dataset.sensitive:
        rows += group_rows(assembly, w, y_test)
    rows += own_rows(assembly, "test", lambda metric: (outputs_of(fed.task, w, assembly.x_test), y_test))
    scores = site.client_scores(fed, server, states, clients)
    check_losses(fed, server, scores.clients, tested["loss"], scores.model)
    if len(scores.clients):
        rows += client_rows(assembly, "clients", scores.clients, fed.task.measured(scores.model))
    if scores.personal:
        check_personal(fed, server, scores.clients, scores.personal)
        rows += client_rows(assembly, "personal", scores.clients, fed.task.measured(scores.personal))
    training = assembly.experiment.training
    if server.round == training.rounds and training.patience is None:
        rows += unseen_rows(assembly, site.engine, server)
    return rows


def unseen_rows(assembly: Assembly, engine: Engine, server: Server) -> list[Row]:
    """Measure the primary metric on the unseen clients, by the number of rows on which they adapt the model.

    Returns an empty list if there are no unseen clients, or if clients share nothing, so that a new client gets no model.
    """
    fed, unseen, name = assembly.federation, assembly.data.unseen, assembly.experiment.task.primary
    if unseen is None or fed.shares_nothing:
        return []
    clients = at_most(np.arange(len(unseen)), assembly)
    curve = adaptation_curve(fed, engine, server, unseen, adaptation_of(assembly.experiment), clients)
    means = [float(fed.task.measured(scores)[name].nanmean()) for scores in curve]
    rows: list[Row] = [(place, "adaptation", name, value) for place, value in enumerate(means)]
    rows += [(None, "unseen", f"{name}_before", means[0]), (None, "unseen", f"{name}_adapted", means[-1])]
    return [row for row in rows if math.isfinite(row[3])]


def test_row_values(assembly: Assembly, server: Server) -> RowValues | None:
    """Return the values of the test rows, see `row_values`."""
    task, y, x = assembly.federation.task, assembly.test_targets(server.round), assembly.x_test
    outputs = outputs_of(task, server.x, x) if task.pooled_primary else None
    scores, units = per_row(task, server.x, x, y), assembly.dataset.test_units
    return row_values(task, assembly.experiment.task.primary, scores, outputs, y, units)


def own_rows(assembly: Assembly, split: str, inputs: Callable[[Metric], tuple[Tensor, Tensor]]) -> list[Row]:
    """Compute the user's own metrics of a split. ``inputs(metric)`` gives their arguments. Only finite values are returned."""
    rows: list[Row] = []
    for metric in assembly.experiment.metric:
        if metric.split == split and math.isfinite(value := float(metric.compute(*inputs(metric)))):
            rows.append((None, split, str(row_of(metric)["name"]), value))
    return rows


def worst_first(
    assembly: Assembly, clients: Ints, scores: dict[str, Tensor]
) -> Callable[[Metric], tuple[Tensor, Tensor]]:
    """Return a function that gives a metric its inputs: the clients' scores from worst to best, and their numbers of rows."""
    sizes = torch.tensor([len(assembly.partition.measured_rows(int(k))) for k in clients])

    def inputs(metric: Metric) -> tuple[Tensor, Tensor]:
        name = getattr(metric, "score", assembly.experiment.task.primary)
        require(name in scores, f"metric {type(metric).__name__}: no score {name!r}; {suggestion(name, scores)}")
        measured = ~scores[name].isnan()
        lower = assembly.experiment.measures.stored["global-model", name].better == "lower"
        values, order = scores[name][measured].sort(descending=lower)
        return values, sizes[measured][order]

    return inputs


def class_rows(assembly: Assembly, outputs: Tensor, y: Tensor) -> list[Row]:
    """Compute the metrics of each class or label on the test rows. The row's client column holds the class number."""
    task = assembly.experiment.task
    by_metric = task.by_category(outputs, y) if isinstance(task, Categorised) else {}
    values = [
        (k, "class", name, float(value)) for name, of_each in by_metric.items() for k, value in enumerate(of_each)
    ]
    return [row for row in values if math.isfinite(row[3])]


def update_rows(assembly: Assembly, outcome: Outcome) -> list[Row]:
    """Compute the registered measures of the round's updates. Returns an empty list if no client took part."""
    if not outcome.measures:
        return []
    work, deltas = outcome.work, outcome.done.uploads.delta
    rows: list[Row] = layer_rows(assembly, deltas) if assembly.experiment.evaluation.layers else []
    rows += own_rows(assembly, "round", lambda metric: (deltas, work.view.info.num_examples))
    measures = assembly.experiment.measures
    for measure in (*measures.computed("round"), *measures.computed("client")):
        value = measure.function()(deltas, work.view.info.num_examples)
        if measure.split == "client":
            rows += per_client("client", measure.name, work.clients, value)
        else:
            rows.append((None, "round", measure.name, float(value)))
    return [row for row in rows if math.isfinite(row[3])]


def layer_rows(assembly: Assembly, deltas: Tensor) -> list[Row]:
    """Compute the mean cosine of the updates (C, P) over all pairs of clients, for the whole model and for each layer."""
    rows: list[Row] = [(None, "round", "cosine", float(cosines(deltas, {"all": [slice(None)]})["all"]))]
    by_layer = cosines(deltas, assembly.federation.task.space.layers())
    return rows + [(i, "layer", "cosine", float(value)) for i, value in enumerate(by_layer.values())]


def group_rows(assembly: Assembly, w: Tensor, y: Tensor) -> list[Row]:
    """Compute the fairness gaps between the two groups on the test set. Undefined gaps are left out."""
    x = assembly.x_test
    predicted = outputs_of(assembly.federation.task, w, x).argmax(-1)
    cells = counts(predicted, y, x[:, -1], torch.ones_like(y, dtype=torch.float64))
    gaps = {"opportunity": opportunity(cells), "parity": parity(cells), "odds": odds(cells)}
    return [(None, "test", name, float(gap)) for name, gap in gaps.items() if bool(gap.isfinite())]


def check_losses(fed: Federation, server: Server, clients: Ints, tested: float, scores: dict[str, Tensor]) -> None:
    """Raise `Diverged` if the global model's loss is not finite on the test set or on a client's rows. It names both."""
    bad = first_bad(fed, clients, scores)
    if math.isfinite(tested) and not bad:
        return
    where = f"{bad}'s data" if bad else "the test set"
    cause = client_cause if fed.server_optimiser.lr <= 1 else server_cause
    raise Diverged(
        f"round {server.round}: the global model's loss on {where} is no longer finite; {cause(fed, server.round - 1)}"
    )


def check_personal(fed: Federation, server: Server, clients: Ints, scores: dict[str, Tensor]) -> None:
    """Raise `Diverged` if the loss of a client's personal model is not finite. It names round and client."""
    bad = first_bad(fed, clients, scores)
    if bad:
        cause = client_cause(fed, max(server.round - 1, 0))
        if fed.tuning is not None and fed.tuning.lr is not None:
            cause = f"most likely cause: adapt_lr {fed.tuning.lr:g} is too large"
        raise Diverged(f"round {server.round}, {bad}: the loss of its personal model is no longer finite; {cause}")


def first_bad(fed: Federation, clients: Ints, scores: dict[str, Tensor]) -> str:
    """Return the first client with measured rows and a loss that is not finite; empty if there is none."""
    measured = torch.tensor([len(fed.partition.measured_rows(int(k))) > 0 for k in clients], dtype=torch.bool)
    bad = (~scores["loss"].cpu().isfinite() & measured).nonzero()
    return f"client {fed.partition.names[int(clients[int(bad[0])])]}" if len(bad) else ""


def client_rows(assembly: Assembly, split: str, clients: Ints, scores: dict[str, Tensor]) -> list[Row]:
    """Return the scores of each client as rows, and the split's measures over the measured clients, the user's own among them."""
    experiment, rows, ordered = assembly.experiment, list[Row](), dict[str, Tensor]()
    measures = experiment.measures
    for name, values in scores.items():
        rows += per_client("personal-model" if split == "personal" else "global-model", name, clients, values)
        if name in ("loss", experiment.task.primary):
            lower = measures.stored["global-model", name].better == "lower"
            ordered[name] = values[~values.isnan()].sort(descending=lower).values
    of_all = [m for m in measures.computed(split) if len(ordered.get(m.score, ()))]
    rows += [(None, split, m.name, float(m.function()(ordered[m.score]))) for m in of_all]
    return rows + own_rows(assembly, split, worst_first(assembly, clients, scores))


def round_rows(assembly: Assembly, outcome: Outcome) -> list[Row]:
    """Return the measures of the round's updates, its cost, and the scores of local models. Undefined values are left out."""
    work, measures, registered = outcome.work, outcome.measures, assembly.experiment.measures.stored
    values = {
        **{name: float(value.mean()) for name, value in measures.items() if ("round", name) in registered},
        **({"signal_to_noise": float(signal_to_noise(measures["relative_drift"]))} if measures else {}),
        "local_steps": float(outcome.steps.sum()),
        "update_amount": update_amount(assembly.federation, outcome),
        "clients": float(len(work.clients)),
        **{name: float(count) for name, count in work.turnout._asdict().items()},
        "bytes_down": float(outcome.bytes_down),
        "bytes_up": float(outcome.bytes_up),
    }
    rows: list[Row] = [(None, "round", name, value) for name, value in values.items() if math.isfinite(value)]
    by_client = {
        "steps": torch.as_tensor(outcome.steps),
        **{name: value for name, value in measures.items() if value.dim()},
    }
    for name, of_client in by_client.items():
        if ("client", name) in registered:
            rows += per_client("client", name, work.clients, of_client)
    for key, decided in outcome.decisions.items():
        split, _, name = key.partition("/")
        if split == "client":
            rows += per_client(split, name, work.clients, decided)
        elif not math.isnan(value := float(decided)):
            rows.append((None, split, name, value))
    sizes = torch.tensor([len(assembly.partition.measured_rows(int(k))) for k in work.clients])
    means = {name: mean_of(sums.double().cpu(), sizes) for name, sums in outcome.done.scores.items()}
    for name, of_client in (assembly.federation.task.measured(means) if means else means).items():
        rows += per_client("local-model", name, work.clients, of_client)
    return rows + privacy_rows(assembly, outcome.server)


def update_amount(fed: Federation, outcome: Outcome) -> float:
    """Return learning rate times local steps, averaged over the cohort by rows (u of 'From IID to Non-IID', eq. 3)."""
    n, rate = outcome.work.view.info.num_examples.cpu().double().numpy(), fed.rate(outcome.server.round - 1)
    steps = outcome.steps if outcome.work.rates is None else outcome.steps * (outcome.work.rates / rate)
    return rate * float(n @ steps / n.sum()) if len(n) else 0.0


def privacy_rows(assembly: Assembly, server: Server) -> list[Row]:
    """Return the privacy loss of all rounds so far, including repeated rounds; an empty list if the method has no bound."""
    privacy = assembly.federation.contract.privacy
    loss = epsilon(privacy, server.round + assembly.repeated) if privacy else math.inf
    return [(None, "round", "epsilon", loss)] if math.isfinite(loss) else []


def inexactness_rows(assembly: Assembly, engine: Engine, outcome: Outcome) -> list[Row]:
    """Measure how exactly the clients solved their local problems, if ``evaluation.inexactness`` is set."""
    experiment, clients = assembly.experiment, outcome.work.clients
    if not experiment.evaluation.inexactness or not len(clients):
        return []
    gamma = inexactness(assembly.federation, engine, outcome)
    mean = float(gamma.nanmean())
    rows: list[Row] = [] if math.isnan(mean) else [(None, "round", "inexactness", mean)]
    return rows + per_client("client", "inexactness", clients, gamma)


def per_client(split: str, name: str, clients: Ints, values: Tensor) -> list[Row]:
    return [
        (int(k), split, name, value) for k, value in zip(clients, values.tolist(), strict=True) if not math.isnan(value)
    ]


def recovery_rows(store: RunStore, run: int, experiment: Experiment, round_: int, rows: list[Row]) -> list[Row]:
    """Return the number of rounds until the model recovered from the first concept change.

    It is returned once, in the round of the recovery; otherwise the list is empty.
    """
    changes = [(s.at_round, s.complete) for s in experiment.skew if isinstance(s, Concept) and s.at_round > 0]
    tested = [value for client, split, name, value in rows if (split, name) == ("test", "accuracy")]
    if not changes or not tested or round_ < min(changes)[1]:
        return []
    # a run that was killed has stored later rounds, too
    earlier = {m.round: m.value for m in store.curves([run], ["test/accuracy"]) if m.round < round_}
    before, now = (recovery(values, *min(changes)) for values in (earlier, earlier | {round_: tested[0]}))
    return [] if now is None or before is not None else [(None, "test", "recovery", float(now))]


def forgetting_rows(store: RunStore, run: int, round_: int, rows: list[Row]) -> list[Row]:
    """Return how far each class's accuracy fell below its highest in earlier rounds (0..1), and the mean over classes."""
    measured = {c: value for c, split, name, value in rows if (split, name) == ("class", "accuracy")}
    if not measured:
        return []
    highest: dict[int | None, float] = {}
    for m in store.curves([run], ["class/accuracy"], per_client=True):
        if m.round < round_:
            highest[m.client] = max(m.value, highest.get(m.client, 0.0))
    lost = {c: max(highest.get(c, 0.0) - value, 0.0) for c, value in measured.items()}
    mean = sum(lost.values()) / len(lost)
    return [*((c, "class", "forgetting", value) for c, value in lost.items()), (None, "test", "forgetting", mean)]
