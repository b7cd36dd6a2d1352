"""Nodes in this process, for tests of the server and the nodes without Flower between them."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from fedskew.core.records import Info
from fedskew.engine.sequential import Sequential
from fedskew.engine.states import ClientStates
from fedskew.execution.build import assemble
from fedskew.experiment.config import Experiment
from fedskew.flower.node import Node
from fedskew.flower.server import serve
from fedskew.flower.tables import rows_of, write_rows
from fedskew.flower.wire import Kind, Request
from fedskew.loop.round import play_round, start
from fedskew.store import checkpoints
from fedskew.store.runs import RunStore

Spoil = Callable[[int, Kind, int, bytes], bytes | None]
"""From client, kind, round and reply to the bytes that arrive, or None for no reply."""

RUN = "0" * 32
VERSIONS = {"flwr": "none"}


def unspoilt(client: int, kind: Kind, round_: int, data: bytes) -> bytes:
    return data


@dataclass
class Direct:
    """A channel whose nodes, with numbers 100, 101, ..., reply at once. ``waited``: seconds spent on those that do not."""

    clients: Sequence[Node]
    spoil: Spoil = unspoilt
    seen: list[tuple[int, Kind, bytes, bytes]] = field(default_factory=list)
    sent: dict[int, bytes] = field(default_factory=dict)
    waited: float = 0.0

    def nodes(self) -> Sequence[int]:
        return [100 + i for i in range(len(self.clients))]

    def ask(self, requests: Mapping[int, bytes], kind: Kind, round_: int, timeout: float) -> dict[int, bytes]:
        replies = {}
        # the last one first: the server must not depend on the order of arrival
        for node, request in reversed(requests.items()):
            client = self.clients[node - 100]
            reply = self.spoil(client.client, kind, round_, client.answer(request))
            if reply is not None:
                self.seen.append((client.client, kind, request, reply))
                replies[node] = reply
        self.waited += timeout * (len(replies) < len(requests))
        return replies

    def send(self, requests: Mapping[int, bytes], kind: Kind, timeout: float) -> None:
        self.sent |= self.ask(requests, kind, 0, 0.0)

    def received(self) -> dict[int, bytes]:
        replies, self.sent = self.sent, {}
        return replies


def small(algorithm: Any = "fedavg", rounds: int = 3, **sections: Any) -> Experiment:
    """Digits, four clients, softmax regression, one epoch; everything that is measured is measured."""
    base = Experiment(**{"algorithm": algorithm, "model": "softmax", "engine": "sequential", **sections})
    return base.replace(
        clients__number=4, local__epochs=1, training__rounds=rounds, training__threads=1, clients__held_out=0.2
    )


def request(recipe: Experiment | str, kind: Kind = "meet", client: int = 0, round_: int = 0, **facts: Any) -> Request:
    """A request of a run of four clients on the digits."""
    toml = recipe if isinstance(recipe, str) else recipe.toml()
    run = {"run": RUN, "clients": 4, "recipe": toml, "classes": 10, "shape": (64,), **facts}
    return Request(kind=kind, client=client, round=round_, **run)


def nodes_of(experiment: Experiment, folder: Path) -> list[Node]:
    """One node for each simulated client, with the client's rows in a file of its own."""
    assembly = assemble(experiment.replace(harmonisation="none"), experiment.dataset.load())
    made = []
    for k in range(len(assembly.partition)):
        path = folder / f"node-{k}" / "rows.npz"
        write_rows(path, rows_of(assembly, k))
        made.append(Node(k, path, path.parent / "states"))
    return made


def configuration(experiment: Experiment, folder: Path, **options: Any) -> dict[str, Any]:
    deployment = {f"deployment.{key}": value for key, value in {"wait": 1.0, **options}.items()}
    return {"recipe": experiment.toml(), "runs": str(folder / "runs"), "resume": 0, **deployment}


def served(experiment: Experiment, folder: Path, spoil: Spoil = unspoilt, **options: Any) -> tuple[Direct, RunStore]:
    """Serve run 1 of a store to a node for each client; return the channel and the store."""
    channel = Direct(nodes_of(experiment, folder), spoil)
    serve(channel, configuration(experiment, folder, **options), VERSIONS)
    return channel, RunStore(folder / "runs")


@dataclass(frozen=True)
class Away:
    """An availability that leaves out given clients in each round."""

    gone: Sequence[Collection[int]]

    def available(self, clients: Info, round_: int, seed: int) -> np.ndarray:
        return ~np.isin(np.asarray(clients.index), list(self.gone[round_]))


def without(experiment: Experiment, gone: Sequence[Collection[int]]) -> Tensor:
    """The model after rounds in the simulator in which these clients are away."""
    assembly = assemble(experiment, experiment.dataset.load())
    fed = replace(assembly.federation, availability=Away(gone))
    server, states = start(fed, assembly.x0), ClientStates()
    for _ in gone:
        server = play_round(fed, Sequential(), server, states).server
    return server.x


def restarted(channel: Direct, options: dict[str, Any], round_: int) -> None:
    """Serve until the server dies as an answer of this round arrives, and go on from its last checkpoint."""

    def dying(client: int, kind: Kind, at: int, data: bytes) -> bytes:
        if at == round_:
            raise KeyboardInterrupt
        return data

    channel.spoil = dying
    with pytest.raises(KeyboardInterrupt):
        serve(channel, options, VERSIONS)
    channel.spoil = unspoilt
    serve(channel, {**options, "resume": 1}, VERSIONS)


def final(store: RunStore, number: int = 1) -> dict[str, Tensor]:
    """The tensors of a run's last checkpoint."""
    path = checkpoints.latest(store.run_folder(number))
    assert path
    return checkpoints.load(path)[0]


def clients_of(store: RunStore) -> list[float]:
    """The number of clients in each round of run 1."""
    return store.measurements([1]).query("split == 'round' and name == 'clients'")["value"].tolist()
