"""FedSOL with both proximal losses and both scales."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedskew.algorithms import FedAvg, FedSol
from fedskew.engine.sequential import Sequential
from fedskew.engine.stacked import Stacked
from fedskew.loop.plan import Local
from fedskew.loop.round import start
from fedskew.slots import Sgd, Uniform
from tests.reference import apart, assert_close, f64, full_gradient, local_models, network, ragged, real_batches
from tests.small import X0, OneLayer, classifier, exact_clients, play


def labelled(rows, labels, steps: int, algorithm, lr: float):
    """Return clients with one labelled row each. The parameters are the weights (3, 2) by rows, then the biases."""
    fed = exact_clients(classifier(OneLayer(nn.Linear(2, 3)).double(), 3), rows, [steps] * len(rows), algorithm, lr=lr)
    return replace(fed, y=torch.tensor(labels))


def plain_client(fed, t: int, k: int, x: Tensor) -> Tensor:
    algorithm, solver = fed.algorithm, fed.solver
    w, velocity = x, torch.zeros_like(x)
    for rows, labels in real_batches(fed, t, k):
        net, anchor = network(w), network(x)
        if algorithm.proximal == "l2":
            both = zip(net.parameters(), anchor.parameters(), strict=True)
            loss = sum((p - q.detach()).square().sum() / 2 for p, q in both)
        else:
            target = F.softmax(anchor(rows)[1] / algorithm.temperature, dim=1).detach()
            logits = net(rows)[1]
            loss = F.kl_div(F.log_softmax(logits / algorithm.temperature, dim=1), target, reduction="batchmean")
        loss.backward()
        length = torch.sqrt(sum(p.grad.square().sum() for p in net.parameters()))
        up = []
        for p, q in zip(net.parameters(), anchor.parameters(), strict=True):
            size = F.normalize((p - q).abs(), p=2, dim=0) if algorithm.scale == "adaptive" else 1.0
            up.append((algorithm.rho * size * p.grad / length).detach().reshape(-1))
        w_up = w if torch.equal(w, x) else w + torch.cat(up)
        velocity = solver.momentum * velocity + full_gradient(w_up, rows, labels) + solver.weight_decay * w_up
        w = w - solver.lr * velocity
    return w


@pytest.mark.parametrize("proximal", ["kl", "l2"])
@pytest.mark.parametrize("scale", ["adaptive", "fixed"])
@pytest.mark.parametrize("solver", [Sgd(lr=0.1), Sgd(lr=0.05, momentum=0.9, weight_decay=0.1)], ids=repr)
def test_against_a_plain_loop(proximal: str, scale: str, solver: Sgd) -> None:
    algorithm = FedSol(rho=0.4, proximal=proximal, scale=scale, temperature=2.0)
    fed = ragged(algorithm, solver=solver, selection=Uniform(clients=4), local=Local(epochs=2, batch_size=7))
    x = X0
    for t, outcome in enumerate(play(fed, X0, 2)):
        cohort = outcome.work.clients.tolist()
        models = torch.stack([plain_client(fed, t, k, x) for k in cohort])
        assert_close(local_models(outcome), models, 1e-11)
        n = outcome.work.view.info.num_examples
        x = n / n.sum() @ models
        assert_close(outcome.server.x, x, 1e-11)


# the first step


def in_float32(fed):
    return replace(fed, x=fed.x.float())


@pytest.mark.parametrize("engine", [Sequential(), Stacked()], ids=["sequential", "stacked"])
@pytest.mark.parametrize("proximal", ["kl", "l2"])
@pytest.mark.parametrize("scale", ["adaptive", "fixed"])
def test_the_first_step_of_a_round_is_fedavgs_in_single_precision_too(proximal: str, scale: str, engine) -> None:
    """At x the perturbation is exactly 0. A rounding error must not become a direction."""
    ends = []
    for algorithm in (FedSol(rho=2.0, proximal=proximal, scale=scale), FedAvg()):
        fed = in_float32(ragged(algorithm, local=Local(steps=1, batch_size=8)))
        ends.append(play(fed, None, 3, engine, server=start(fed, X0.float()))[-1].server.x)
    assert ends[0].dtype == torch.float32
    assert torch.equal(*ends)


def test_a_tensor_that_does_not_move_is_not_perturbed() -> None:
    """A constant feature column of zeros: its weights get no gradient, so their scale is 0 over 0, which must be 0."""
    fed = labelled([[1.0, 0.0], [-1.0, 0.0]], [0, 1], 4, FedSol(rho=2.0), 0.5)
    x = f64([0.3, -0.2, 0.1, 0.4, -0.5, 0.6, 0.2, -0.1, 0.0])
    end = play(fed, x, 3)[-1].server.x
    assert end.isfinite().all()
    assert torch.equal(end[[1, 3, 5]], x[[1, 3, 5]])
    assert apart(end[[0, 2, 4]], x[[0, 2, 4]], 1e-3)
