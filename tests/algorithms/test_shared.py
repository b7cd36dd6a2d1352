"""Facts of every method: order of clients, identical clients, zero server rate, lasting states, means of dual variables."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedskew.algorithms import FedAvg, FedDyn, FedLc, FedNova, FedNtd, FedPa, FedProc, FedProx, Moon, Scaffold
from fedskew.engine.states import ClientStates
from fedskew.loop.plan import Local
from fedskew.slots import Everyone, ServerSgd, Uniform
from tests.reference import SameForAll, apart, assert_close, f64, ragged, run, state_of, trajectory
from tests.small import RAGGED, X0, partition_of, play

METHODS = {
    "fedavg": FedAvg(),
    "fedavg uniform": FedAvg(weighting="uniform"),
    "fedavg unbiased": FedAvg(weighting="unbiased"),
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
    """Batches are full, so that no random number depends on a client's number."""
    fed = ragged(METHODS[name], local=Local(epochs=2, batch_size="all"))
    order = np.random.default_rng(1).permutation(len(RAGGED))
    rows = np.concatenate([fed.partition.rows(k) for k in order])
    other = replace(fed, x=fed.x[rows], y=fed.y[rows], partition=partition_of([RAGGED[k] for k in order]))
    (ours, states), (theirs, other_states) = run(fed, X0, 2), run(other, X0, 2)
    assert_close(trajectory(theirs), trajectory(ours))
    for key in states.export()[1]:
        tables = [state_of(s, key, len(RAGGED), X0) for s in (states, other_states)]
        assert_close(tables[1], tables[0][torch.as_tensor(order)])


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


@pytest.mark.parametrize(
    ("algorithm", "key", "own"),
    [
        *[(Scaffold(option=option, weighting=w), "c", "c_k") for option in ("I", "II") for w in ("uniform", "samples")],
        *[(FedDyn(alpha=0.3, weighting=w), "h", "g_k") for w in ("uniform", "samples", "unbiased")],
    ],
    ids=repr,
)
@pytest.mark.parametrize("selection", [Everyone(), Uniform(clients=1), Uniform(clients=3)], ids=["7", "1", "3"])
@pytest.mark.parametrize("rate", [1.0, 0.6])
def test_the_servers_variable_is_the_mean_over_all_clients(
    algorithm, key: str, own: str, selection, rate: float
) -> None:
    """sum_k pi_k v_k with pi = 1/K or n_k / n; v_k is 0 until client k takes part, and only its rounds change it."""
    fed = ragged(algorithm, selection=selection, server=ServerSgd(lr=rate))
    pi = f64([1] * 7) / 7 if algorithm.weighting == "uniform" else f64(RAGGED) / sum(RAGGED)
    states, server = ClientStates(), None
    for t in range(3):
        before = state_of(states, own, 7, X0) if t else torch.zeros(7, len(X0)).double()
        outcome = play(fed, X0, t + 1, server=server, states=states)[-1]
        now, server = state_of(states, own, 7, X0), outcome.server
        assert_close(server.state[key], pi @ now)
        assert apart(server.state[key], torch.zeros_like(X0))
        moved = (now - before).abs().amax(1) > 0
        assert moved.nonzero()[:, 0].tolist() == outcome.work.clients.tolist()
