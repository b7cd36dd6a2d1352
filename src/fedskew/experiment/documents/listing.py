"""The drift demo: listing 14.4.1 of the book section 'Non-IID Data', through our engine on the listing's data and batch order.

30 clients, softmax regression without bias from zero, learning rate 1.5, batches of 32, 30 rounds, weights by size; one
random generator with seed 0 is shared by the data, the IID permutation and the four runs, in the listing's order.
Drift is averaged over the rounds; accuracy is measured on the training rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from fedskew.algorithms import FedAvg
from fedskew.core.records import Plan
from fedskew.core.task import Classification
from fedskew.core.vectors import ParameterSpace
from fedskew.data.datasets.synthetic_softmax import SyntheticSoftmax
from fedskew.engine.stacked import Stacked
from fedskew.engine.states import ClientStates
from fedskew.experiment.documents.extra import Extra
from fedskew.loop.evaluate import evaluate
from fedskew.loop.federation import Federation
from fedskew.loop.plan import in_batches
from fedskew.loop.round import Engine, play_round, start
from fedskew.models import Softmax
from fedskew.skew.partition import Ints, Partition, offsets
from fedskew.slots import Everyone, ServerSgd, Sgd

CLIENTS, ROUNDS, BATCH, RATE = 30, 30, 32, 1.5


@dataclass(frozen=True)
class Printed:
    """A run of the listing with the numbers that the document prints."""

    skew: str
    epochs: int
    drift: float
    accuracy: float


DOCUMENT = (
    Printed("IID", 1, 2.107, 0.825),
    Printed("IID", 10, 4.932, 0.824),
    Printed("sorted by label", 1, 2.632, 0.818),
    Printed("sorted by label", 10, 4.971, 0.805),
)


@dataclass(frozen=True)
class Reproduced:
    """The document's numbers and ours."""

    printed: Printed
    drift: float
    accuracy: float

    @property
    def agrees(self) -> bool:
        """Whether ours, rounded to the document's last digit, are the document's."""
        return round(self.drift, 3) == self.printed.drift and round(self.accuracy, 3) == self.printed.accuracy


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


def drift_demo(
    engine: Engine | None = None, on_progress: Callable[[float], None] = lambda _: None
) -> Iterator[Reproduced]:
    """The four runs in the listing's order; `on_progress(fraction)` is called as work completes."""
    rng = np.random.default_rng(0)
    data = SyntheticSoftmax(test="train").draw(rng)
    dealt = {
        "IID": np.array_split(rng.permutation(len(data.y)), CLIENTS),
        "sorted by label": np.array_split(np.argsort(data.y, kind="stable"), CLIENTS),
    }
    net = Softmax(bias=False).build(data.shape, data.num_classes, torch.Generator()).double()
    space = ParameterSpace(net)
    for number, printed in enumerate(DOCUMENT):
        rows = dealt[printed.skew]
        fed = Federation(
            algorithm=FedAvg(),
            task=Classification(net, space, data.num_classes),
            solver=Sgd(lr=RATE),
            server_optimiser=ServerSgd(),
            selection=Everyone(),
            planner=SharedStream(rng, printed.epochs),
            x=torch.as_tensor(data.x),
            y=torch.as_tensor(data.y),
            partition=Partition(np.concatenate(rows), offsets(rows), tuple(str(k) for k in range(CLIENTS)), 0, 0),
            seed=0,
        )
        server, states, drifts = start(fed, space.flatten(net)), ClientStates(), []
        while server.round < ROUNDS:
            outcome = play_round(fed, engine or Stacked(), server, states, measure_local=False)
            server = outcome.server
            drifts.append(float(outcome.measures["drift"]))
            on_progress((number + server.round / ROUNDS) / len(DOCUMENT))
        accuracy = evaluate(fed.task, server.x, fed.x, fed.y)["accuracy"]
        yield Reproduced(printed, float(np.mean(drifts)), accuracy)


def repeat_listing(on_progress: Callable[[float], None]) -> Extra:
    """The listing on its own random numbers."""
    repeated = list(drift_demo(on_progress=on_progress))
    values = [
        {
            "skew": r.printed.skew,
            "epochs": r.printed.epochs,
            "drift": r.drift,
            "drift_in_document": r.printed.drift,
            "accuracy": r.accuracy,
            "accuracy_in_document": r.printed.accuracy,
            "agrees": r.agrees,
        }
        for r in repeated
    ]
    return Extra(
        title="Listing 14.4.1 on its own random numbers",
        columns=("partition", "epochs", "drift", "document", "accuracy", "document", ""),
        rows=[
            (
                r.printed.skew,
                str(r.printed.epochs),
                *(f"{x:.3f}" for x in (r.drift, r.printed.drift, r.accuracy, r.printed.accuracy)),
                "same" if r.agrees else "differs",
            )
            for r in repeated
        ],
        note="drift: mean over 30 rounds; accuracy: on the training rows, as the document measures it",
        values={"listing": values},
        export={"listing": values},
        agrees=all(r.agrees for r in repeated),
    )
