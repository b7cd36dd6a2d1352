"""Where the clients of a run are: in this process, or elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

from torch import Tensor

from fedskew.core.records import Server
from fedskew.engine.states import ClientStates
from fedskew.loop.evaluate import evaluate_clients
from fedskew.loop.federation import Federation
from fedskew.loop.personal import evaluate_personal, measures_personal
from fedskew.loop.round import Engine, Outcome, States, play_round
from fedskew.skew.partition import Ints
from fedskew.store.runs import Row


class ClientScores(NamedTuple):
    """Mean scores (clients,) of models on these clients' measured rows; NaN for a client without any."""

    clients: Ints
    model: dict[str, Tensor]  # the global one
    personal: dict[str, Tensor] | None  # each client's own, where it has one


class Site(Protocol):
    """What depends on where the clients are."""

    states: ClassVar[type[ClientStates]]

    @property
    def engine(self) -> Engine: ...

    def play_round(self, fed: Federation, server: Server, states: States, measure_local: bool) -> Outcome: ...

    def client_scores(self, fed: Federation, server: Server, states: States, clients: Ints) -> ClientScores: ...

    def fault_rows(self) -> list[Row]:
        """What went wrong at clients since it was last asked."""
        ...


@dataclass(frozen=True)
class Here:
    """Clients whose rows this process holds."""

    engine: Engine

    states: ClassVar[type[ClientStates]] = ClientStates

    def play_round(self, fed: Federation, server: Server, states: States, measure_local: bool) -> Outcome:
        return play_round(fed, self.engine, server, states, measure_local)

    def client_scores(self, fed: Federation, server: Server, states: States, clients: Ints) -> ClientScores:
        model = evaluate_clients(fed.task, server.x, fed.x, fed.targets(server.round), fed.partition, clients)
        personal = evaluate_personal(fed, self.engine, server, states, clients) if measures_personal(fed) else None
        return ClientScores(clients, model, personal)

    def fault_rows(self) -> list[Row]:
        return []
