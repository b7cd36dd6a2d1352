"""One client's steps from a record: those of the loop, for a network of any kind, and the loop itself where none can be made."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedskew.algorithms import FedAvg
from fedskew.core.task import Classification
from fedskew.core.vectors import ParameterSpace
from fedskew.engine import sequential
from fedskew.engine.sequential import Sequential, traced
from fedskew.engine.states import ClientStates
from fedskew.loop.federation import Federation
from fedskew.loop.plan import Local, SeededPlanner
from fedskew.loop.round import play_round, start
from fedskew.models.cnn import Cnn
from fedskew.skew.partition import Partition, evenly, offsets
from fedskew.slots import AdamW, ServerSgd, Sgd, Uniform

ROWS = 23


def federation(net: nn.Module, bf16: bool = False, solver: object = None) -> Federation:
    """Three clients with images of 8 x 8; the last batch of an epoch is short."""
    rng = np.random.default_rng(0)
    dealt = evenly(np.arange(3 * ROWS), 3)
    return Federation(
        algorithm=FedAvg(),
        task=Classification(net, ParameterSpace(net), 4, bf16),
        solver=solver or Sgd(lr=0.1, momentum=0.9),
        server_optimiser=ServerSgd(),
        selection=Uniform(clients=3),
        planner=SeededPlanner(Local(epochs=2, batch_size=10), 0),
        x=torch.as_tensor(rng.standard_normal((3 * ROWS, 1, 8, 8), dtype=np.float32)),
        y=torch.as_tensor(rng.integers(0, 4, 3 * ROWS)),
        partition=Partition(np.concatenate(dealt), offsets(dealt), ("a", "b", "c"), 0, 0),
        seed=0,
    )


def cnn() -> nn.Module:
    return Cnn(hidden=16).build((1, 8, 8), 4, torch.Generator().manual_seed(0))


def two_rounds(fed: Federation, monkeypatch: pytest.MonkeyPatch, large: int) -> Tensor:
    monkeypatch.setattr(sequential, "MODEL", large)
    server, states = start(fed, fed.task.space.flatten(fed.task.model)), ClientStates()
    for _ in range(2):
        server = play_round(fed, Sequential(), server, states).server
    return server.x


@pytest.mark.parametrize("solver", [Sgd(lr=0.1), Sgd(lr=0.05, momentum=0.9, weight_decay=0.01), AdamW(lr=0.001)])
@pytest.mark.parametrize("bf16", [False, True])
def test_a_network_learns_the_same_from_a_record(monkeypatch, solver, bf16):
    fed = federation(cnn(), bf16, solver)
    by_loop = two_rounds(fed, monkeypatch, 1 << 62)
    assert not traced(fed.program).graphs
    by_record = two_rounds(fed, monkeypatch, 0)
    assert traced(fed.program).graphs
    moved = (by_loop - fed.task.space.flatten(fed.task.model)).norm()
    assert (by_record - by_loop).norm() < (1e-2 if bf16 else 1e-5) * moved
    assert torch.equal(by_record, two_rounds(fed, monkeypatch, 0))  # and to the bit when it is repeated


class Reads(nn.Module):
    """Its result depends on a value that only a run knows."""

    stacks = True

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(64, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = x.flatten(1)
        return z, self.out(z) * (2.0 if bool(z.detach().sum() > 0) else 1.0)


class Alone(Reads):
    stacks = False


@pytest.mark.parametrize("kind", [Reads, Alone])
def test_what_cannot_be_recorded_takes_the_loop(monkeypatch, kind):
    torch.manual_seed(0)
    fed = federation(kind(), solver=Sgd(lr=0.1))
    by_loop = two_rounds(fed, monkeypatch, 1 << 62)
    assert torch.equal(two_rounds(fed, monkeypatch, 0), by_loop)
    record = traced(fed.program)
    assert (not record.graphs, record.refused) == (True, kind is Reads)


def test_a_small_model_takes_the_loop(monkeypatch):
    fed = federation(cnn())
    two_rounds(fed, monkeypatch, fed.task.space.size + 1)
    assert not traced(fed.program).graphs
    two_rounds(fed, monkeypatch, fed.task.space.size)
    assert traced(fed.program).graphs
