"""What is stored of a round: the rows of the store, from the round's outcome and the models' scores."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from fedskew.core.errors import Diverged
from fedskew.core.fairness import counts, odds, opportunity, parity
from fedskew.core.records import Server
from fedskew.core.seeding import stream
from fedskew.experiment.build import Assembly
from fedskew.loop.evaluate import CHUNK, evaluate, evaluate_clients
from fedskew.loop.inexactness import inexactness
from fedskew.loop.round import Federation, Outcome, client_cause, server_cause
from fedskew.measure.privacy import epsilon
from fedskew.skew.partition import Ints
from fedskew.store.runs import Row


def measured_clients(assembly: Assembly) -> Ints:
    """The clients whose data are measured under the global model: all, or a fixed random choice of ``max_clients``."""
    clients = assembly.federation.clients
    limit = assembly.experiment.evaluation.max_clients
    if len(clients) <= limit:
        return clients
    return np.sort(stream(assembly.federation.seed, "evaluate").choice(clients, size=limit, replace=False))


def model_rows(assembly: Assembly, server: Server, clients: Ints) -> list[Row]:
    """The global model on the test set and on each client's data. Raises `Diverged` if a loss is not finite."""
    fed, w = assembly.federation, server.x
    tested = evaluate(fed.task, w, assembly.x_test, assembly.y_test)
    rows: list[Row] = [(None, "test", name, value) for name, value in tested.items()]
    if assembly.dataset.sensitive:
        rows += group_rows(assembly, w)
    scores = evaluate_clients(fed.task, w, fed.x, fed.y, fed.partition, clients)
    check_losses(fed, server, clients, tested["loss"], scores)
    for name, values in scores.items():
        rows += per_client("global-model", name, clients, values)
    rows += [(None, "clients", name, value) for name, value in over_clients(scores).items()]
    return rows


def group_rows(assembly: Assembly, w: Tensor) -> list[Row]:
    """The gaps between the two groups on the test set; one that is undefined there is left out."""
    x, y = assembly.x_test, assembly.y_test
    predicted = torch.cat([assembly.federation.task.logits(w, part).argmax(-1) for part in x.split(CHUNK)])
    cells = counts(predicted, y, x[:, -1], torch.ones_like(y, dtype=torch.float64))
    gaps = {"opportunity": opportunity(cells), "parity": parity(cells), "odds": odds(cells)}
    return [(None, "test", name, float(gap)) for name, gap in gaps.items() if bool(gap.isfinite())]


def check_losses(fed: Federation, server: Server, clients: Ints, tested: float, scores: dict[str, Tensor]) -> None:
    """Raise `Diverged` naming the round and where the global model's loss is no longer finite."""
    bad = (~scores["loss"].isfinite() & ~scores["accuracy"].isnan()).nonzero()
    if math.isfinite(tested) and not len(bad):
        return
    where = f"client {fed.partition.names[int(clients[int(bad[0])])]}'s data" if len(bad) else "the test set"
    cause = client_cause if fed.server_optimiser.lr <= 1 else server_cause
    raise Diverged(
        f"round {server.round}: the global model's loss on {where} is no longer finite; {cause(fed, server.round - 1)}"
    )


def over_clients(scores: dict[str, Tensor]) -> dict[str, float]:
    """The global model over the clients; a client without measured rows does not count."""
    held = ~scores["accuracy"].isnan()
    accuracy = scores["accuracy"][held].sort().values
    decile = math.ceil(0.1 * len(accuracy) - 1e-9)
    return {
        "accuracy_mean": float(accuracy.mean()),
        "accuracy_worst": float(accuracy[0]),
        "accuracy_worst_decile": float(accuracy[:decile].mean()),
        "accuracy_std": float(accuracy.std(correction=0)),
        "loss_mean": float(scores["loss"][held].mean()),
    }


def round_rows(assembly: Assembly, outcome: Outcome, seconds: float) -> list[Row]:
    """The round's updates, its cost, and the local models on their own clients' data; nothing for what is undefined."""
    work, measures = outcome.work, outcome.measures
    updates = ("divergence", "drift", "relative_drift", "update_norm") if measures else ()
    values = {
        **{name: float(measures[name].mean()) for name in updates},
        "local_steps": float(outcome.steps.sum()),
        "clients": float(len(work.clients)),
        **{name: float(count) for name, count in work.turnout._asdict().items()},
        "bytes_down": float(outcome.bytes_down),
        "bytes_up": float(outcome.bytes_up),
        "seconds": seconds,
    }
    rows: list[Row] = [(None, "round", name, value) for name, value in values.items() if not math.isnan(value)]
    rows += per_client("client", "steps", work.clients, torch.as_tensor(outcome.steps))
    for name in ("distance", "update_norm") if measures else ():
        rows += per_client("client", name, work.clients, measures[name])
    sizes = torch.tensor([len(assembly.partition.measured_rows(int(k))) for k in work.clients])
    for name, sums in outcome.done.scores.items():
        rows += per_client("local-model", name, work.clients, sums.double().cpu() / sizes)
    return rows + privacy_rows(assembly, outcome.server)


def privacy_rows(assembly: Assembly, server: Server) -> list[Row]:
    """The privacy loss of all rounds so far, where the method bounds it."""
    privacy = assembly.federation.algorithm.privacy()
    loss = epsilon(privacy, server.round) if privacy else math.inf
    return [(None, "round", "epsilon", loss)] if math.isfinite(loss) else []


def inexactness_rows(assembly: Assembly, outcome: Outcome) -> list[Row]:
    """How exactly the clients solved their local problems, where that is wanted and somebody took part."""
    experiment, clients = assembly.experiment, outcome.work.clients
    if not experiment.evaluation.inexactness or not len(clients):
        return []
    gamma = inexactness(assembly.federation, experiment.engine, outcome)
    mean = float(gamma.nanmean())
    rows: list[Row] = [] if math.isnan(mean) else [(None, "round", "inexactness", mean)]
    return rows + per_client("client", "inexactness", clients, gamma)


def per_client(split: str, name: str, clients: Ints, values: Tensor) -> list[Row]:
    return [
        (int(k), split, name, value) for k, value in zip(clients, values.tolist(), strict=True) if not math.isnan(value)
    ]
