"""MOON."""

from dataclasses import dataclass, replace
from math import exp, log

import pytest
import torch
from torch import Tensor
from torch.func import grad

from fedskew.algorithms import FedAvg, Moon
from fedskew.core.algorithm import local_loss
from fedskew.core.records import Batch, Info, View
from fedskew.core.task import ModelTask
from fedskew.engine.states import ClientStates
from fedskew.slots import Uniform
from tests.reference import (
    apart,
    assert_close,
    f64,
    ragged,
    real_batches,
    run,
    state_of,
    torch_sgd,
    train_plain,
    trajectory,
)
from tests.small import RAGGED, TASK, X0, Linear, exact_clients, play


@dataclass(frozen=True)
class Direct(Linear):
    """Loss <g, w> for a row g; the features of every row are the parameters themselves."""

    def outputs(self, w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return w.expand(len(x), -1), super().outputs(w, x)[1]


@dataclass(frozen=True)
class Scaled(ModelTask):
    """The same network. Its features are multiplied by a factor, but its logits are not."""

    factor: float = 1.0

    def outputs(self, w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        z, logits = super().outputs(w, x)
        return self.factor * z, logits


def contrastive(
    algorithm: Moon, w: Tensor, x: Tensor, previous: Tensor, rows: int = 6, task=TASK
) -> tuple[Tensor, Tensor]:
    """mu l_con and its gradient at w: the objective less the plain loss."""
    g = torch.Generator().manual_seed(0)
    batch = Batch(torch.randn(rows, 6, generator=g).double(), torch.arange(rows) % 3, torch.ones(rows).double())
    info = Info(*(f64(1.0) for _ in Info._fields))
    view = View(x, {}, {"previous": previous}, info, {}, f64(0.1), f64(1.0))

    def value(w: Tensor) -> Tensor:
        return algorithm.objective(task, view, w, batch) - local_loss(task, w, batch)

    return value(w), grad(value)(w)


def other(i: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(len(X0), generator=torch.Generator().manual_seed(i), dtype=torch.float64)


def test_golden_two_rounds() -> None:
    # features z = w, loss <g, w>, g = (1, -5) and (-3, -1), eta = 1, one step, T = 1/2, x = (1, 2), p = 1/4, 3/4
    # round 0: the stored model is x itself, so w_1 = (0, 7), w_2 = (4, 3) and x = (0.25 * 0 + 3, 1.75 + 2.25) = (3, 4)
    # round 1: at w = x the similarity to z_glob is 1 and stationary; that to z_prev has the gradient
    #          (u_prev - s u) / |w|, u = (0.6, 0.8), |w| = 5, and l_con that times sigmoid(2 (s - 1)) * 2
    #   client 1: u_prev = (0, 1),     s = 0.8:   (0 - 0.48, 1 - 0.64) / 5        = (-0.096, 0.072),   2 (s - 1) = -0.4
    #   client 2: u_prev = (0.8, 0.6), s = 0.96:  (0.8 - 0.576, 0.6 - 0.768) / 5  = (0.0448, -0.0336), 2 (s - 1) = -0.08
    #   w_1 = (3, 4) - (1, -5) - c_1 (-0.096, 0.072),    w_2 = (3, 4) - (-3, -1) - c_2 (0.0448, -0.0336)
    c_1, c_2 = 2 / (1 + exp(0.4)), 2 / (1 + exp(0.08))
    w_1 = f64([2 + 0.096 * c_1, 9 - 0.072 * c_1])
    w_2 = f64([6 - 0.0448 * c_2, 5 + 0.0336 * c_2])
    rows = [[1.0, -5.0], *[[-3.0, -1.0]] * 3]
    fed = exact_clients(Direct(), rows, (1, 1), Moon(mu=1.0, temperature=0.5), lr=1.0, sizes=[1, 3])
    outcomes, states = run(fed, [1.0, 2.0], 2)
    assert_close(outcomes[0].server.x, [3.0, 4.0])
    assert_close(outcomes[1].server.x, 0.25 * w_1 + 0.75 * w_2)
    assert_close(state_of(states, "previous", 2, f64([0.0, 0.0])), torch.stack([w_1, w_2]))


def test_the_first_round_is_fedavg_and_the_second_is_not() -> None:
    ours, fedavg = (play(ragged(a), X0, 2) for a in (Moon(mu=5.0), FedAvg()))
    assert_close(ours[0].server.x, fedavg[0].server.x)
    assert apart(ours[1].server.x, fedavg[1].server.x)


def test_a_clients_first_participation_is_plain_training_in_any_round() -> None:
    fed = ragged(Moon(mu=5.0), selection=Uniform(clients=2))
    states, server, seen, late, again = ClientStates(), None, set(), 0, 0
    for t in range(6):
        outcome = play(fed, X0, t + 1, server=server, states=states)[-1]
        server, x = outcome.server, outcome.work.view.x
        for i, k in enumerate(outcome.work.clients.tolist()):
            plain, _ = train_plain(x, real_batches(fed, t, k), torch_sgd(fed.solver))
            if k in seen:
                assert apart(x + outcome.done.uploads.delta[i], plain, 1e-9)
                again += 1
            else:
                assert_close(x + outcome.done.uploads.delta[i], plain)
                late += t > 0
            assert_close(state_of(states, "previous", len(RAGGED), X0)[k], x + outcome.done.uploads.delta[i])
            seen.add(k)
    assert late
    assert again


def test_equal_reference_models_give_the_constant_log_two() -> None:
    """This holds for any local model. The gradient is 0."""
    for mu in (1.0, 3.0):
        value, gradient = contrastive(Moon(mu=mu), other(1), X0, X0)
        assert_close(value, mu * log(2))
        assert_close(gradient, torch.zeros_like(X0))


@pytest.mark.parametrize("temperature", [0.05, 0.5, 3.0])
def test_bounds_for_one_stored_model(temperature: float) -> None:
    """log(1 + e^(-2/T)) <= l_con <= log(1 + e^(2/T)), reached where the similarities are 1 and -1."""
    moon = Moon(mu=1.0, temperature=temperature)
    low, high = log(1 + exp(-2 / temperature)), log(1 + exp(2 / temperature))
    for i in range(5):
        value = float(contrastive(moon, other(i), other(i + 50), other(i + 99))[0])
        assert low < value < high
    # tanh is odd: the opposite parameters of the first layer give the opposite features
    first = sum(TASK.space.sizes[:2])
    opposite = torch.cat([-X0[:first], X0[first:]])
    assert_close(contrastive(moon, X0, X0, opposite)[0], low)
    assert_close(contrastive(moon, X0, opposite, X0)[0], high)


def test_the_term_in_its_textbook_form() -> None:
    moon, w, x, previous = Moon(mu=2.0, temperature=0.7), other(1), other(2), other(3)
    inputs = torch.randn(6, 6, generator=torch.Generator().manual_seed(0)).double()
    z, z_glob, z_prev = (TASK.outputs(v, inputs)[0] for v in (w, x, previous))

    def similarity(a: Tensor, b: Tensor) -> Tensor:
        return (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))

    p, n = (similarity(z, reference) / 0.7 for reference in (z_glob, z_prev))
    assert_close(contrastive(moon, w, x, previous)[0], 2.0 * (-torch.log(p.exp() / (p.exp() + n.exp()))).mean())


def test_a_high_temperature_silences_the_term() -> None:
    value, gradient = contrastive(Moon(mu=1.0, temperature=1e12), other(1), other(2), other(3))
    assert_close(value, log(2), 1e-11)
    assert_close(gradient, torch.zeros_like(X0), 1e-11)


def test_a_low_temperature_does_not_overflow() -> None:
    value, gradient = contrastive(Moon(mu=1.0, temperature=1e-4), other(1), other(2), other(3))
    assert value.isfinite()
    assert gradient.isfinite().all()


def test_the_length_of_the_features_does_not_matter() -> None:
    fed = ragged(Moon(mu=5.0))
    scaled = replace(fed, task=Scaled(TASK.kind, TASK.model, TASK.space, 3, factor=7.0))
    assert_close(trajectory(play(scaled, X0, 3)), trajectory(play(fed, X0, 3)), 1e-11)


def test_the_reference_models_are_frozen() -> None:
    """The gradient of l_con flows only through z, the features of the local model."""
    w, previous = other(1), other(2)
    _, gradient = contrastive(Moon(mu=1.0), w, w, previous)
    # at w = x the positive similarity is stationary, so finite differences of the rest must agree
    moved, eps = other(5), 1e-6
    up, down = (contrastive(Moon(mu=1.0), w + s * eps * moved, w, previous)[0] for s in (1, -1))
    assert_close(gradient @ moved, (up - down) / (2 * eps), 1e-6)
