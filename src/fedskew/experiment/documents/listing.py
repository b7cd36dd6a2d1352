"""Listing 14.4.1 of the textbook section 'Non-IID Data' (14.4), executed by our engine on the listing's data and batches.

30 clients, softmax regression without bias from zero, learning rate 1.5, batches of 32, 30 rounds, weights by size. One
random generator with seed 0 draws the data, the IID permutation and the batches of the four runs, in the listing's order.
Drift is averaged over the rounds; accuracy is measured on the training rows.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from fedskew.algorithms import FedAvg
from fedskew.core.records import Plan
from fedskew.core.task import ModelTask
from fedskew.core.vectors import ParameterSpace
from fedskew.data.dataset import Dataset
from fedskew.data.datasets.synthetic_softmax import SyntheticSoftmax
from fedskew.engine.stacked import Stacked
from fedskew.engine.states import ClientStates
from fedskew.experiment.documents.extra import Extra
from fedskew.loop.evaluate import evaluate
from fedskew.loop.federation import Federation
from fedskew.loop.plan import in_batches
from fedskew.loop.round import play_round, start
from fedskew.models import Softmax
from fedskew.skew.partition import Ints, Partition, offsets
from fedskew.slots import Everyone, ServerSgd, Sgd
from fedskew.tasks.classification import Classification

CLIENTS, ROUNDS, BATCH, RATE = 30, 30, 32, 1.5


class Run(NamedTuple):
    """A run of the listing, with its drift and accuracy: the document's numbers, or ours."""

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


@dataclass(frozen=True, eq=False)
class SharedStream:
    """Batches drawn from the listing's one generator, client after client, round after round."""

    rng: np.random.Generator
    epochs: int

    def batch_sizes(self, sizes: Ints) -> Ints:
        return np.minimum(BATCH, sizes)

    def parts(self, client: int) -> int:
        return self.epochs

    def train(self, round_: int, client: int, rows: Ints) -> Plan:
        return in_batches(np.stack([self.rng.permutation(rows) for _ in range(self.epochs)]), min(BATCH, len(rows)))


def dealt_data(rng: np.random.Generator) -> tuple[Dataset, dict[str, list[Ints]]]:
    """Draw the listing's data; return them and the rows of each client in the two partitions."""
    data = SyntheticSoftmax(test="train").draw(rng)
    iid = np.array_split(rng.permutation(len(data.y)), CLIENTS)
    return data, {"IID": iid, "sorted by label": np.array_split(np.argsort(data.y, kind="stable"), CLIENTS)}


def drift_demo(on_progress: Callable[[float], None] = lambda _: None) -> Iterator[Run]:
    """Execute the listing's four runs in order; yield our numbers. `on_progress(fraction)` is called as work completes."""
    rng = np.random.default_rng(0)
    data, dealt = dealt_data(rng)
    net = Softmax(bias=False).build(data.shape, data.num_classes, torch.Generator()).double()
    space = ParameterSpace(net)
    for number, printed in enumerate(DOCUMENT):
        rows = dealt[printed.skew]
        fed = Federation(
            algorithm=FedAvg(),
            task=ModelTask(Classification(), net, space, data.num_classes),
            solver=Sgd(lr=RATE),
            server_optimiser=ServerSgd(),
            selection=Everyone(),
            planner=SharedStream(rng, printed.epochs),
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


def repeat_listing(on_progress: Callable[[float], None]) -> Extra:
    """Compare our numbers with the listing's. They agree if they are equal after rounding to the document's digits."""
    values, rows = [], []
    for printed, ours in zip(DOCUMENT, drift_demo(on_progress), strict=True):
        agrees = (round(ours.drift, 3), round(ours.accuracy, 3)) == printed[2:]
        shown = (f"{x:.3f}" for x in (ours.drift, printed.drift, ours.accuracy, printed.accuracy))
        rows.append((ours.skew, str(ours.epochs), *shown, "same" if agrees else "differs"))
        document = {"drift_in_document": printed.drift, "accuracy_in_document": printed.accuracy}
        values.append({**ours._asdict(), **document, "agrees": agrees})
    return Extra(
        title="Listing 14.4.1 on its own random numbers",
        columns=("partition", "epochs", "drift", "document", "accuracy", "document", ""),
        rows=rows,
        note="drift: mean over 30 rounds; accuracy: on the training rows, as the document measures it",
        values={"listing": values},
        export={"listing": values},
        agrees=all(run["agrees"] for run in values),
    )
