"""What holds for every method: order of clients, one client, identical clients, zero server rate, lasting state."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedskew.algorithms import FedAvg, FedDyn, FedLc, FedNova, FedNtd, FedPa, FedProc, FedProx, Moon, Scaffold
from fedskew.engine.states import ClientStates
from fedskew.loop.plan import Local
from fedskew.slots import Adam, Momentum, ServerSgd, Sgd, Uniform
from tests.reference import SameForAll, apart, assert_close, ragged, run, state_of, trajectory
from tests.small import RAGGED, X0, partition_of, play

METHODS = {
    "fedavg": FedAvg(),
    "fedavg uniform": FedAvg(weighting="uniform"),
    "fedprox": FedProx(mu=0.5),
    "fedprox implicit": FedProx(mu=0.5, step="implicit"),
    "scaffold": Scaffold(),
    "scaffold samples": Scaffold(weighting="samples"),
    "scaffold I": Scaffold(option="I"),
    "fednova": FedNova(),
    "fednova prox": FedNova(mu=0.5),
    "feddyn": FedDyn(alpha=0.5),
    "feddyn samples": FedDyn(alpha=0.5, weighting="samples"),
    "moon": Moon(mu=2.0),
    "fedntd": FedNtd(tau=2.0),
    "fedlc": FedLc(tau=0.5),
    "fedproc": FedProc(alpha=0.5),
    "fedpa": FedPa(rho=0.5),
}
EVERY = pytest.mark.parametrize("name", METHODS)


@EVERY
def test_relabelling_clients_changes_nothing(name: str) -> None:
    """Full batches, so that no random stream depends on the name."""
    fed = ragged(METHODS[name], local=Local(epochs=2, batch_size="all"))
    order = np.random.default_rng(1).permutation(len(RAGGED))
    rows = np.concatenate([fed.partition.rows(k) for k in order])
    other = replace(fed, x=fed.x[rows], y=fed.y[rows], partition=partition_of([RAGGED[k] for k in order]))
    (ours, states), (theirs, other_states) = run(fed, X0, 2), run(other, X0, 2)
    assert_close(trajectory(theirs), trajectory(ours))
    for key in states.export()[1]:
        tables = [state_of(s, key, len(RAGGED), X0) for s in (states, other_states)]
        assert_close(tables[1], tables[0][torch.as_tensor(order)])


ONE_CLIENT = {
    "fedprox without mu": (FedProx(mu=0.0), FedAvg()),
    "scaffold": (Scaffold(), FedAvg()),
    "scaffold samples": (Scaffold(weighting="samples"), FedAvg()),
    "fednova": (FedNova(), FedAvg()),
    "fednova prox": (FedNova(mu=0.5), FedProx(mu=0.5)),
    "moon without mu": (Moon(mu=0.0), FedAvg()),
    "uniform": (FedAvg(weighting="uniform"), FedAvg()),
    "unbiased": (FedAvg(weighting="unbiased"), FedAvg()),
}


@pytest.mark.parametrize("pair", ONE_CLIENT)
@pytest.mark.parametrize("server", [ServerSgd(lr=0.4), Momentum(beta=0.5), Adam(lr=0.1)], ids=repr)
def test_one_client_collapses(pair: str, server) -> None:
    ours, plain = (ragged(a, sizes=[13], server=server, solver=Sgd(lr=0.1, lr_decay=0.8)) for a in ONE_CLIENT[pair])
    assert_close(trajectory(play(ours, X0, 3)), trajectory(play(plain, X0, 3)))


@EVERY
def test_identical_clients_are_one_client(name: str) -> None:
    one = ragged(METHODS[name], sizes=[13])
    many = ragged(METHODS[name], sizes=[13] * 3)
    many = replace(many, x=one.x.repeat(3, 1), y=one.y.repeat(3), planner=SameForAll(many.planner))
    assert_close(trajectory(play(many, X0, 2)), trajectory(play(one, X0, 2)))


@EVERY
def test_zero_server_rate_keeps_the_model(name: str) -> None:
    outcomes = play(ragged(METHODS[name], server=ServerSgd(lr=0.0), selection=Uniform(clients=2)), X0, 2)
    assert torch.equal(outcomes[-1].server.x, X0)
    assert apart(outcomes[-1].done.uploads.delta, torch.zeros_like(X0))


@pytest.mark.parametrize("name", ["scaffold", "scaffold I", "feddyn", "moon"])
def test_absent_clients_keep_their_state(name: str) -> None:
    fed = ragged(METHODS[name], selection=Uniform(clients=2))
    states, server, checked = ClientStates(), None, 0
    for t in range(4):
        ids, before = states.export()
        before = {key: table.clone() for key, table in before.items()}
        outcome = play(fed, X0, t + 1, server=server, states=states)[-1]
        server, after = outcome.server, states.export()[1]
        for key, table in before.items():
            absent = torch.as_tensor(~np.isin(ids, outcome.work.clients))
            assert torch.equal(after[key][: len(ids)][absent], table[absent])
            checked += int(absent.sum())
    assert checked


@EVERY
def test_the_same_clients_and_batches_for_every_method(name: str) -> None:
    ours, fedavg = (play(ragged(a, selection=Uniform(clients=2)), X0, 2) for a in (METHODS[name], FedAvg()))
    for a, b in zip(ours, fedavg, strict=True):
        assert a.work.clients.tolist() == b.work.clients.tolist()
        for mine, theirs in zip(a.work.plans, b.work.plans, strict=True):
            assert (mine.index == theirs.index).all()
            assert (mine.mask == theirs.mask).all()
