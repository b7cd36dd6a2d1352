"""FedMD: clients of one architecture or several that exchange scores on public rows."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedskew.algorithms import FedMd
from fedskew.core.task import Task
from fedskew.core.trees import ParameterSpace
from fedskew.engine.sequential import Sequential
from fedskew.engine.stacked import Stacked
from fedskew.engine.states import ClientStates
from fedskew.loop.federation import Federation
from fedskew.loop.personal import evaluate_personal
from fedskew.loop.plan import Local
from fedskew.loop.round import play_round, start
from fedskew.loop.sharing import PART
from fedskew.models.mixed import MixedNet
from fedskew.slots import Everyone, Uniform
from fedskew.tasks.classification import Classification
from tests.reference import assert_close
from tests.small import TASK, X0, OneLayer, TinyNet, own_rows, play, ragged


def own(states: ClientStates) -> Tensor:
    """Return the clients' models, sorted by id, (K, P)."""
    ids, kept = states.export()
    return kept[PART][torch.as_tensor(np.argsort(ids))]


def mixed_tasks(*nets: nn.Module) -> tuple[Task, ...]:
    net = MixedNet(list(nets))
    space = ParameterSpace(net)
    return tuple(Task(Classification(), net.using(g), space, 3) for g in range(len(nets)))


def two_architectures(algorithm) -> tuple[Federation, Tensor, list[nn.Module]]:
    """The ragged clients. Every other one has a linear model of its own."""
    flat = nn.Linear(6, 3).double()
    nets = [TinyNet().double(), OneLayer(flat)]
    first, *others = mixed_tasks(*nets)
    generator = torch.Generator().manual_seed(5)
    x0 = torch.randn(first.space.size, generator=generator, dtype=torch.float64) / 2
    fed = ragged(algorithm, local=Local(epochs=1, batch_size="all"))
    return replace(fed, task=first, others=tuple(others)), x0, nets


def by_plain_torch(fed: Federation, x0: Tensor, nets: list[nn.Module], method: FedMd, rounds: int) -> list[Tensor]:
    """The clients' models after the rounds, by modules and `torch.optim`; each is the vector of its own architecture."""
    sizes = [sum(p.numel() for p in net.parameters()) for net in nets]
    starts = x0.split(sizes)
    models = []
    for k in range(len(fed.partition)):
        net = TinyNet().double() if k % 2 == 0 else OneLayer(nn.Linear(6, 3).double())
        nn.utils.vector_to_parameters(starts[k % 2].clone(), net.parameters())
        models.append(net)
    consensus, server = None, play(fed, x0, 1)[0].server
    public = fed.server_data.x
    for t in range(rounds):
        rows, next_rows = (method.drawn(fed.view(server), r) for r in (t, t + 1))
        answers = []
        for k, net in enumerate(models):
            optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
            for step in range(method.steps if consensus is not None else 0):
                order = [(step * method.batch_size + i) % len(rows) for i in range(method.batch_size)]
                difference = net(public[rows][order])[1] - consensus[order]
                optimiser.zero_grad()
                (difference.abs() if method.distance == "absolute" else difference**2).mean().backward()
                optimiser.step()
            at = torch.as_tensor(fed.partition.rows(k))
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(fed.x[at])[1], fed.y[at]).backward()
            optimiser.step()
            answers.append(net(public[next_rows])[1].detach())
        consensus = torch.stack(answers).mean(0)
    return [nn.utils.parameters_to_vector(net.parameters()).detach() for net in models]


@pytest.mark.parametrize(("engine", "distance"), [(Sequential(), "absolute"), (Stacked(width=2), "squared")], ids=repr)
def test_architectures_learn_from_each_other_as_in_plain_torch(engine, distance) -> None:
    method = FedMd(rows=11, steps=3, batch_size=7, distance=distance)
    fed, x0, nets = two_architectures(method)
    expected = by_plain_torch(fed, x0, nets, method, rounds=3)
    states = ClientStates()
    assert torch.equal(play(fed, x0, 3, engine, states=states)[-1].server.x, x0), "no model reaches the server"
    first = TASK.space.size
    for k, model in enumerate(own(states)):
        mine, foreign = (slice(None, first), slice(first, None))[:: 1 if k % 2 == 0 else -1]
        assert_close(model[mine], expected[k], 1e-11)
        assert torch.equal(model[foreign], x0[foreign]), "the other architecture's place is untouched"


def test_measures_are_each_clients_own_architectures() -> None:
    fed, x0, _ = two_architectures(FedMd(rows=11, steps=3))
    states = ClientStates()
    outcome = play(fed, x0, 2, states=states)[-1]
    losses = evaluate_personal(fed, Stacked(), outcome.server, states, np.arange(7))["loss"]
    for k, model in enumerate(own(states)):
        at = torch.as_tensor(fed.partition.rows(k))
        expected = nn.functional.cross_entropy(fed.tasks[k % 2].logits(model, fed.x[at]), fed.y[at])
        assert_close(losses[k], expected)
        assert_close(outcome.done.scores["loss"][k] / len(at), expected)


@pytest.mark.parametrize("distance", ["absolute", "squared"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_single_client_agrees_with_itself(distance, dtype) -> None:
    """Its digest loss is 0 up to rounding. With an absolute error, the gradient would follow the sign of the rounding."""
    ends = []
    for steps in (0, 20):
        fed = ragged(FedMd(steps=steps, distance=distance), sizes=[23])
        public = own_rows(30)
        fed = replace(fed, x=fed.x.to(dtype), server_data=public._replace(x=public.x.to(dtype)))
        states = ClientStates()
        server = start(fed, X0.to(dtype))
        for _ in range(3):
            server = play_round(fed, Sequential(), server, states).server
        ends.append(own(states))
    torch.testing.assert_close(ends[1], ends[0], rtol=0, atol=1e-12 if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize("rows", [7, 5000])
def test_upload_contains_only_scores(rows) -> None:
    outcomes = play(ragged(FedMd(rows=rows), selection=Uniform(clients=4)), X0, 3)
    scores = 4 * min(rows, 30) * 3 * 8  # clients, public rows, classes, bytes of a number
    assert [o.bytes_up for o in outcomes] == [scores] * 3
    assert [o.bytes_down for o in outcomes] == [0, scores, scores]


class NoClients:
    """In one round."""

    def __init__(self, missing: int = 1) -> None:
        self.missing = missing

    def available(self, info, round_, seed):
        return np.full(7, round_ != self.missing)


def test_scores_and_rows_belong_together_after_a_round_without_answers() -> None:
    fed = replace(ragged(FedMd(rows=9), selection=Everyone()), availability=NoClients())
    outcomes = play(fed, X0, 3)
    digested = outcomes[2].work.view.extras["public"]["digested"]
    assert torch.equal(digested, outcomes[0].work.view.extras["public"]["asked"])
    assert torch.equal(outcomes[2].work.view.extras["scores"], outcomes[0].server.state["scores"])
    later = outcomes[2].work.view.extras["public"]["asked"]
    assert torch.equal(later, fed.server_data.x[outcomes[2].server.state["rows"]])


def test_after_an_empty_first_round_clients_do_not_digest() -> None:
    """The scores of the initial model contain no knowledge. Clients of other architectures would learn its random outputs."""
    fed = replace(ragged(FedMd(rows=9), selection=Everyone()), availability=NoClients(0))
    _, second, third = play(fed, X0, 3)
    assert second.work.view.extras.keys() == {"public"}
    assert torch.equal(third.work.view.extras["scores"], second.server.state["scores"])
