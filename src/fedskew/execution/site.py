"""The site of a run's clients: where they train. It is this process, or other machines."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Protocol

from torch import Tensor

from fedskew.core.records import Server
from fedskew.engine.states import ClientStates
from fedskew.loop.evaluate import evaluate_clients
from fedskew.loop.faults import Faults, Faulty
from fedskew.loop.federation import Federation
from fedskew.loop.personal import evaluate_personal, measures_personal
from fedskew.loop.round import play_round
from fedskew.loop.work import Engine, Outcome, States
from fedskew.skew.partition import Ints
from fedskew.store.runs import Row


class ClientScores(NamedTuple):
    """Mean scores (clients,) of models on each client's measured rows, by score; NaN for a client without such rows."""

    clients: Ints
    model: dict[str, Tensor]  # scores of the global model
    personal: dict[str, Tensor] | None  # scores of the personal models; None if there are none


class Site(Protocol):
    """Plays rounds with the clients, and measures models on their rows."""

    states: ClassVar[type[ClientStates]]

    @property
    def engine(self) -> Engine: ...

    def play_round(self, fed: Federation, server: Server, states: States, measure_local: bool) -> Outcome: ...

    def client_scores(self, fed: Federation, server: Server, states: States, clients: Ints) -> ClientScores: ...

    def fault_rows(self) -> list[Row]:
        """Return the clients' faults since the last call, as rows."""


@dataclass(frozen=True)
class LocalClients:
    """The site of clients whose rows are in this process."""

    engine: Engine
    faults: Faults = field(default_factory=Faults)
    rejected: list[tuple[int, str]] = field(default_factory=list)  # faults since the last call of fault_rows

    states: ClassVar[type[ClientStates]] = ClientStates

    def play_round(self, fed: Federation, server: Server, states: States, measure_local: bool) -> Outcome:
        if not self.faults.some:
            return play_round(fed, self.engine, server, states, measure_local)
        faulty = Faulty(self.engine, self.faults, fed, self.rejected)
        return play_round(fed, self.engine, server, states, measure_local, faulty.received)

    def client_scores(self, fed: Federation, server: Server, states: States, clients: Ints) -> ClientScores:
        model = evaluate_clients(fed.task, server.x, fed.x, fed.targets(server.round), fed.partition, clients)
        personal = evaluate_personal(fed, self.engine, server, states, clients) if measures_personal(fed) else None
        return ClientScores(clients, model, personal)

    def fault_rows(self) -> list[Row]:
        rejected = list(self.rejected)
        self.rejected.clear()
        return faults_as_rows(rejected) if self.faults.some else []


def faults_as_rows(faults: Sequence[tuple[int, str]]) -> list[Row]:
    """Count each client's faults by kind, and all faults together, as rows. ``faults`` holds (client, kind).

    A client below 0 is unknown.
    """
    rows: list[Row] = [
        (None if client < 0 else client, "fault", fault, float(n))
        for (client, fault), n in sorted(Counter(faults).items())
    ]
    return [*rows, (None, "round", "rejected", float(len(faults)))]
