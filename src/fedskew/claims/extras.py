"""Parts of documents that need no run store: listings and exercises."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedskew.algorithms import FedAvg
from fedskew.claims import exhibits, landscapes
from fedskew.core.records import BatchPlan
from fedskew.core.task import Task
from fedskew.core.trees import ParameterSpace
from fedskew.data.dataset import Dataset
from fedskew.data.datasets.synthetic import SyntheticSoftmax
from fedskew.engine.stacked import Stacked
from fedskew.engine.states import ClientStates
from fedskew.loop.evaluate import evaluate
from fedskew.loop.federation import Federation
from fedskew.loop.plan import Local, SeededPlanner, in_batches
from fedskew.loop.round import play_round, start
from fedskew.models import Softmax
from fedskew.report.draw import logarithmic_axis
from fedskew.report.style import SERIES, blank, finish
from fedskew.skew.partition import Ints, Partition, offsets
from fedskew.slots import Everyone, ServerSgd, Sgd
from fedskew.tasks.classification import Classification

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Numbers = Any
"""Plain values of a part, as JSON has them."""


@dataclass(frozen=True)
class Extra:
    """A part of a document that needs no run store. All but ``compute`` read the numbers that ``compute(on_progress)`` returns.

    ``rows`` makes the rows of its table, of ``words`` if they are read like prose. ``draw(numbers, name)`` draws a figure for each
    name in the numbers. ``agrees`` is False if a number differs from the document's.
    """

    compute: Callable[[exhibits.Progress], Numbers]
    rows: Callable[[Numbers], Sequence[tuple[str, ...]]]
    draw: Callable[[Numbers, str], Figure] | None = None
    agrees: Callable[[Numbers], bool] = lambda _: True
    words: bool = False


CLIENTS, ROUNDS, BATCH, RATE = 30, 30, 32, 1.5


class Run(NamedTuple):
    """A run of the listing, with its drift and accuracy: the document's numbers, or fedskew's."""

    skew: str
    epochs: int
    drift: float
    accuracy: float


DOCUMENT = (
    Run("IID", 1, 2.107, 0.825),
    Run("IID", 10, 4.932, 0.824),
    Run("sorted by label", 1, 2.632, 0.818),
    Run("sorted by label", 10, 4.971, 0.805),
)


@dataclass(frozen=True, eq=False, kw_only=True)
class SharedStream(SeededPlanner):
    """Batches drawn from the listing's one generator, client after client, round after round."""

    rng: np.random.Generator

    def train(self, round_: int, client: int, rows: Ints) -> BatchPlan:
        orders = [self.rng.permutation(rows) for _ in range(self.parts(client))]
        return in_batches(np.stack(orders), self.batch_size(client, len(rows)))


def dealt_data(rng: np.random.Generator) -> tuple[Dataset, dict[str, list[Ints]]]:
    """Draw the listing's data; return them and the rows of each client in the two partitions."""
    data = SyntheticSoftmax(test="train").draw(rng)
    iid = np.array_split(rng.permutation(len(data.y)), CLIENTS)
    return data, {"IID": iid, "sorted by label": np.array_split(np.argsort(data.y, kind="stable"), CLIENTS)}


def drift_demo(on_progress: exhibits.Progress = lambda _: None) -> Iterator[Run]:
    """Execute the document's four runs in order; yield fedskew's numbers. `on_progress(fraction)` is called as work completes."""
    rng = np.random.default_rng(0)
    data, dealt = dealt_data(rng)
    net = Softmax(bias=False).build(data.shape, data.num_classes, torch.Generator()).double()
    space = ParameterSpace(net)
    for number, printed in enumerate(DOCUMENT):
        rows = dealt[printed.skew]
        fed = Federation(
            algorithm=FedAvg(),
            task=Task(Classification(), net, space, data.num_classes),
            solver=Sgd(lr=RATE),
            server_optimiser=ServerSgd(),
            selection=Everyone(),
            planner=SharedStream(Local(epochs=printed.epochs, batch_size=BATCH), seed=0, rng=rng),
            x=torch.as_tensor(data.x),
            y=torch.as_tensor(data.y),
            partition=Partition(np.concatenate(rows), offsets(rows), tuple(map(str, range(CLIENTS))), 0, 0),
            seed=0,
        )
        server, states, engine, drifts = start(fed, space.flatten(net)), ClientStates(), Stacked(), []
        while server.round < ROUNDS:
            outcome = play_round(fed, engine, server, states, measure_local=False)
            server = outcome.server
            drifts.append(float(outcome.measures["drift"]))
            on_progress((number + server.round / ROUNDS) / len(DOCUMENT))
        accuracy = evaluate(fed.task, server.x, fed.x, fed.y)["accuracy"]
        yield printed._replace(drift=float(np.mean(drifts)), accuracy=accuracy)


def listing(on_progress: exhibits.Progress) -> list[dict[str, object]]:
    """Return fedskew's numbers of each run, and the document's. They agree if they are equal at the document's digits."""
    return [
        {
            **ours._asdict(),
            "drift_in_document": printed.drift,
            "accuracy_in_document": printed.accuracy,
            "agrees": (round(ours.drift, 3), round(ours.accuracy, 3)) == printed[2:],
        }
        for printed, ours in zip(DOCUMENT, drift_demo(on_progress), strict=True)
    ]


def rows_of_listing(runs: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    numbers = ("drift", "drift_in_document", "accuracy", "accuracy_in_document")
    agreement = ("differs", "same")
    return [
        (run["skew"], str(run["epochs"]), *(f"{run[name]:.3f}" for name in numbers), agreement[bool(run["agrees"])])
        for run in runs
    ]


EXERCISE_RATE = 0.1
Gradients = Callable[[Tensor], Tensor]


class Bound(NamedTuple):
    """Distances and their bounds after 1, 2, ..., E steps. Distances are Euclidean."""

    apart: Tensor  # (E,) mean over clients of the distance to the model after as many steps on the whole objective
    farthest: Tensor  # (E,) the largest of these distances
    drift: Tensor  # (E,) mean distance of the clients to their mean
    smooth: Tensor  # (E,) bound on `farthest`: zeta / L ((1 + rate L)^E - 1)
    convex: Tensor  # (E,) bound on `farthest` for convex objectives and a rate of at most 2 / L: E rate zeta
    zeta: Tensor  # () largest distance of a client's gradient to the whole gradient at the same model, over all steps


def bound(local: Gradients, whole: Gradients, w: Tensor, clients: int, rate: float, steps: int, smooth: float) -> Bound:
    """Take full-batch steps from ``w`` (P,); return the distances and their bounds ('Non-IID Data', exercise 14.4.3).

    ``local`` maps the models (K, P) of K clients to the gradients (K, P) of their objectives. ``whole`` maps models (M, P) to
    the gradients (M, P) of the whole objective, which are L-Lipschitz; ``smooth`` is L.

    Let a_e be a client's distance after e steps. Then a_(e+1) <= (1 + rate L) a_e + rate zeta. If the objective is convex and
    the rate is at most 2 / L, a gradient step never increases the distance of two models, so a_(e+1) <= a_e + rate zeta.
    """
    models, reference = w.expand(clients, -1), w[None]
    zeta, rows = w.new_zeros(()), []
    for _ in range(steps):
        gradients = local(models)
        zeta = torch.maximum(zeta, (gradients - whole(models)).norm(dim=1).max())
        models, reference = models - rate * gradients, reference - rate * whole(reference)
        distances = (models - reference).norm(dim=1)
        rows.append((distances.mean(), distances.max(), (models - models.mean(0)).norm(dim=1).mean()))
    apart, farthest, drift = map(torch.stack, zip(*rows, strict=True))
    count = torch.arange(1, steps + 1, dtype=w.dtype, device=w.device)
    bound_if_smooth = zeta / smooth * torch.expm1(count * torch.log1p(w.new_tensor(rate * smooth)))
    return Bound(apart, farthest, drift, bound_if_smooth, convex=count * rate * zeta, zeta=zeta)


def drift_bound(rate: float = EXERCISE_RATE, steps: int = 50) -> dict[str, Bound]:
    """Compute the bounds for softmax regression from zero, with 30 clients in each of the listing's two partitions.

    Softmax regression is convex. It is L-smooth with L half the largest eigenvalue of X'X / n, because the Hessian of the
    log-sum-exp is at most one half. With a rate up to 2 / L both bounds apply. Random numbers are drawn in the listing's order.
    """
    data, dealt = dealt_data(np.random.default_rng(0))
    x = torch.as_tensor(data.x, dtype=torch.float64)
    y = torch.nn.functional.one_hot(torch.as_tensor(data.y), data.num_classes).double()
    smooth = float(torch.linalg.eigvalsh(x.T @ x / len(x))[-1]) / 2
    w = x.new_zeros(x.shape[1] * y.shape[1])

    def whole(models: Tensor) -> Tensor:
        return gradient(models, x.expand(len(models), -1, -1), y.expand(len(models), -1, -1))

    def bounded(rows: Ints) -> Bound:
        own_x, own_y = x[rows], y[rows]
        return bound(lambda models: gradient(models, own_x, own_y), whole, w, CLIENTS, rate, steps, smooth)

    # 12,000 rows are 30 times 400
    return {name: bounded(np.stack(rows)) for name, rows in dealt.items()}


def gradient(models: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return the gradient (K, features * classes) of the mean cross-entropy of K models.

    Model k is measured on its own rows x[k] (n, features) and one-hot targets y[k] (n, classes).
    """
    w = models.view(len(models), x.shape[2], y.shape[2])
    error = (x @ w).softmax(-1) - y
    return (x.mT @ error / x.shape[1]).flatten(1)


LINES = {"bound, smooth": "smooth", "bound, convex": "convex", "farthest client": "farthest", "drift": "drift"}


def draw_bound(bounds: Mapping[str, Mapping[str, list[float]]], name: str) -> Figure:
    """Draw the distances and bounds of a partition over local steps, on a logarithmic axis that all partitions share."""
    part = bounds[name]
    with blank(260) as (figure, axes):
        for index, (label, field) in enumerate(LINES.items()):
            dashes = "--" if label.startswith("bound") else "-"
            axes.plot(range(1, len(part["drift"]) + 1), part[field], label=label, color=SERIES[index], linestyle=dashes)
        axes.set_xlabel("local steps on all rows")
        # the bound for smooth objectives grows beyond the axis
        least, most = min(p["drift"][0] for p in bounds.values()), max(p["convex"][-1] for p in bounds.values())
        axes.set_ylim(least / 1.5, 3 * most)
        logarithmic_axis(axes, most / least)
        finish(figure, axes, f"distance, rate {EXERCISE_RATE:g}")
    return figure


def exercise() -> dict[str, dict[str, object]]:
    """Compute the exercise: distances and their bounds after each step, by partition."""
    return {name: {k: v.tolist() for k, v in part._asdict().items()} for name, part in drift_bound().items()}


def rows_of_exercise(bounds: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, ...]]:
    last = ("farthest", "convex", "smooth")
    return [(name, str(len(p["drift"])), *(f"{p[key][-1]:.3g}" for key in last)) for name, p in bounds.items()]


EXTRAS = {
    "listing-14.4.1": Extra(listing, rows_of_listing, agrees=lambda runs: all(run["agrees"] for run in runs)),
    "exercise-14.4.3": Extra(lambda _: exercise(), rows_of_exercise, draw_bound),
    "figure-1": Extra(lambda _: landscapes.batch_sizes(), landscapes.rows_of, landscapes.draw_part),
    "figure-11": Extra(lambda _: landscapes.two_clients(), landscapes.rows_of, landscapes.draw_part),
    "table-5": Extra(lambda _: exhibits.class_counts(), exhibits.rows_of_counts, exhibits.draw_counts),
    "figure-14.4.1": Extra(lambda _: exhibits.pulls(), exhibits.rows_of_pulls, exhibits.draw_pulls),
    "exercise-14.4.1": Extra(exhibits.skews_to_name, exhibits.rows_of_skews, words=True),
}
"""Parts of documents by the names that a document's tables use. Their titles and notes stand in the document's file."""
