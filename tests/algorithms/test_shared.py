"""Facts of every method: identical clients, zero server rate, the same clients and batches for every method."""

from dataclasses import replace

import pytest
import torch

from fedskew.algorithms import FedAvg, FedDyn, FedLc, FedNova, FedNtd, FedPa, FedProc, FedProx, Moon, Scaffold
from fedskew.slots import ServerSgd, Uniform
from tests.reference import SameForAll, apart, assert_close, ragged, trajectory
from tests.small import X0, play

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


@EVERY
def test_the_same_clients_and_batches_for_every_method(name: str) -> None:
    ours, fedavg = (play(ragged(a, selection=Uniform(clients=2)), X0, 2) for a in (METHODS[name], FedAvg()))
    for a, b in zip(ours, fedavg, strict=True):
        assert a.work.clients.tolist() == b.work.clients.tolist()
        for mine, theirs in zip(a.work.plans, b.work.plans, strict=True):
            assert (mine.index == theirs.index).all()
            assert (mine.mask == theirs.mask).all()
