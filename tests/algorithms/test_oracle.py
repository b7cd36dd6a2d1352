"""The local loop, the plans and every method against plain `nn.Module` training with autograd and `torch.optim`.

Ragged clients, shorter last batches, several rounds, all clients or three of seven.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedskew.algorithms import FedAvg, FedDyn, FedNova, FedProx, Moon, Scaffold
from fedskew.loop.plan import Local
from fedskew.slots import Adam as AdamServer, AdamW, Everyone, ServerSgd, Sgd, Uniform
from tests.reference import (
    assert_close,
    f64,
    full_gradient,
    local_models,
    network,
    ragged,
    real_batches,
    square_distance,
    torch_sgd,
    train_plain,
)
from tests.small import RAGGED, X0, play

K = len(RAGGED)
COHORTS = pytest.mark.parametrize("selection", [Everyone(), Uniform(clients=3)], ids=["all", "three"])


def weights(weighting: str, cohort: list[int]) -> Tensor:
    n = f64([RAGGED[k] for k in cohort])
    if weighting == "uniform":
        return torch.ones_like(n) / len(n)
    if weighting == "unbiased":
        return K / len(n) * n / sum(RAGGED)
    return n / n.sum()


def compare(fed, train, step, rounds: int = 3) -> None:
    """Follow ``play``: ``train(t, k, x)`` gives client k's model, ``step(x, cohort, models)`` the next global one."""
    x = X0
    for t, outcome in enumerate(play(fed, X0, rounds)):
        cohort = outcome.work.clients.tolist()
        models = torch.stack([train(t, k, x) for k in cohort])
        assert_close(local_models(outcome), models)
        x = step(x, cohort, models)
        assert_close(outcome.server.x, x)


SOLVERS = {
    "sgd": Sgd(lr=0.1),
    "decaying rate": Sgd(lr=0.2, lr_decay=0.5),
    "momentum": Sgd(lr=0.05, momentum=0.9, weight_decay=0.1),
    "adamw": AdamW(lr=0.01, weight_decay=0.2, lr_decay=0.7),
    "adam": AdamW(lr=0.01, weight_decay=0.0),
}


WORK = [
    (Everyone(), Local(epochs=2, batch_size=7)),
    (Uniform(clients=3), Local(steps=5, batch_size=4)),
]


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(("selection", "local"), WORK, ids=["epochs", "steps"])
def test_fedavg_with_every_solver(solver: str, local: Local, selection) -> None:
    """Each round has a new optimiser. The loss of a batch is the mean over its rows."""
    s = SOLVERS[solver]
    fed = ragged(FedAvg(), solver=s, local=local, selection=selection)

    def train(t: int, k: int, x: Tensor) -> Tensor:
        optimiser = torch_sgd(s, t)
        if isinstance(s, AdamW):

            def optimiser(p):
                return torch.optim.AdamW(p, lr=s.lr * s.lr_decay**t, weight_decay=s.weight_decay)

        return train_plain(x, real_batches(fed, t, k), optimiser)[0]

    compare(fed, train, lambda x, cohort, models: weights("samples", cohort) @ models)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("decay", [0.0, 0.2])
def test_adamw_with_zero_and_almost_zero_gradients(dtype: torch.dtype, decay: float) -> None:
    """Weights without a gradient stay or decay. Squared gradients below the smallest normal number cause no error."""
    tiny = torch.finfo(dtype).tiny
    scale = torch.tensor([0.0, tiny, tiny**0.5 / 8, 1e-15, 1e-8, 1e-3, 10.0], dtype=dtype)
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(len(scale), generator=generator, dtype=dtype)
    theirs, solver = w.clone().requires_grad_(), AdamW(lr=0.01, weight_decay=decay)
    optimiser = torch.optim.AdamW([theirs], lr=solver.lr, weight_decay=decay)
    state = solver.init(w)
    for _ in range(20):
        g = scale * torch.randn(len(scale), generator=generator, dtype=dtype)
        theirs.grad = g
        optimiser.step()
        w, state = solver.update(g, state, w, torch.tensor(solver.lr, dtype=dtype))
    torch.testing.assert_close(w, theirs.detach(), rtol=8 * torch.finfo(dtype).eps, atol=8 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("beta", [0.0, 0.9, 0.999999, 0.99999999])
@pytest.mark.parametrize(
    "solver",
    [
        lambda beta: AdamW(lr=0.01, beta2=beta, weight_decay=0.0),
        lambda beta: AdamServer(lr=0.01, beta2=beta, tau=1e-8, initial_v="zero", bias_correction=True),
    ],
)
def test_steps_are_corrected_up_to_the_longest_memory(solver, beta: float) -> None:
    """Ten gradients of 1 move each weight by ten times the rate, in float32, too."""
    optimiser, w, lr = solver(beta), torch.zeros(3), torch.tensor(0.01)
    state = optimiser.init(w)
    for _ in range(10):
        if isinstance(optimiser, AdamW):
            w, state = optimiser.update(torch.ones(3), state, w, lr)
        else:
            w, state = optimiser.update(torch.ones(3), state, w)
    torch.testing.assert_close(w, torch.full((3,), -0.1), rtol=2e-3, atol=0)


@COHORTS
@pytest.mark.parametrize("weighting", ["samples", "uniform", "unbiased"])
def test_fedavg_with_every_weighting_and_a_server_rate(weighting: str, selection) -> None:
    fed = ragged(FedAvg(weighting=weighting), selection=selection, server=ServerSgd(lr=0.6))
    compare(
        fed,
        lambda t, k, x: train_plain(x, real_batches(fed, t, k), torch_sgd(fed.solver))[0],
        lambda x, cohort, models: x + 0.6 * (weights(weighting, cohort) @ (models - x)),
    )


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@COHORTS
def test_fedprox(momentum: float, selection) -> None:
    solver = Sgd(lr=0.05, momentum=momentum, weight_decay=0.1)
    fed = ragged(FedProx(mu=0.8), solver=solver, selection=selection)

    def train(t: int, k: int, x: Tensor) -> Tensor:
        def extra(net, rows):
            return 0.4 * square_distance(net, x)

        return train_plain(x, real_batches(fed, t, k), torch_sgd(solver), extra=extra)[0]

    compare(fed, train, lambda x, cohort, models: weights("samples", cohort) @ models)


@COHORTS
def test_fedprox_implicit(selection) -> None:
    """w <- (w - eta g + eta mu x) / (1 + eta mu)."""
    fed = ragged(FedProx(mu=3.0, step="implicit"), selection=selection, solver=Sgd(lr=0.1, lr_decay=0.5))

    def train(t: int, k: int, x: Tensor) -> Tensor:
        w, lr = x, 0.1 * 0.5**t
        for batch in real_batches(fed, t, k):
            w = (w - lr * full_gradient(w, *batch) + lr * 3.0 * x) / (1 + lr * 3.0)
        return w

    compare(fed, train, lambda x, cohort, models: weights("samples", cohort) @ models)


@pytest.mark.parametrize(("momentum", "mu"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.8), (0.7, 0.8)])
@pytest.mark.parametrize(
    ("weighting", "selection", "tau_eff"),
    [
        ("samples", Uniform(clients=3), "response"),
        ("uniform", Everyone(), "response"),
        ("samples", Everyone(), "steps"),
    ],
)
def test_fednova(momentum: float, mu: float, weighting: str, selection, tau_eff: str) -> None:
    """d_k = -Delta_k / (eta ||a_k||), x <- x - eta_g tau_eff eta sum p d; tau_eff is sum p ||a_k||, or sum p tau_k."""
    solver, rate = Sgd(lr=0.05, momentum=momentum, lr_decay=0.5), 0.8
    method = FedNova(mu=mu, weighting=weighting, tau_eff=tau_eff)
    fed = ragged(method, solver=solver, selection=selection, server=ServerSgd(lr=rate))
    norms: dict[tuple[int, int], float] = {}
    now = [0]

    def train(t: int, k: int, x: Tensor) -> Tensor:
        batches, lr = real_batches(fed, t, k), 0.05 * 0.5**t
        position, velocity = 0.0, 0.0
        for _ in batches:
            velocity = momentum * velocity + 1 + mu * position
            position -= lr * velocity
        norms[t, k] = -position / lr
        now[0] = t

        def extra(net, rows):
            return mu / 2 * square_distance(net, x)

        return train_plain(x, batches, torch_sgd(solver, t), extra=extra)[0]

    def step(x: Tensor, cohort: list[int], models: Tensor) -> Tensor:
        p, a, lr = weights(weighting, cohort), f64([norms[now[0], k] for k in cohort]), 0.05 * 0.5 ** now[0]
        d = -(models - x) / (lr * a[:, None])
        tau = a if tau_eff == "response" else f64([len(real_batches(fed, now[0], k)) for k in cohort])
        return x - rate * (p @ tau) * lr * (p @ d)

    compare(fed, train, step)


@COHORTS
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold(option: str, weighting: str, selection) -> None:
    fed = ragged(Scaffold(option=option, weighting=weighting), selection=selection, server=ServerSgd(lr=0.6))
    c_k, c, fresh = torch.zeros(K, len(X0)).double(), torch.zeros_like(X0), {}
    pi = f64(RAGGED) / sum(RAGGED) if weighting == "samples" else f64([1] * K) / K

    def train(t: int, k: int, x: Tensor) -> Tensor:
        batches = real_batches(fed, t, k)
        y, _ = train_plain(x, batches, torch_sgd(fed.solver), correction=c - c_k[k])
        rows = fed.partition.rows(k)
        fresh[k] = (
            full_gradient(x, fed.x[rows], fed.y[rows]) if option == "I" else c_k[k] - c + (x - y) / (len(batches) * 0.1)
        )
        return y

    def step(x: Tensor, cohort: list[int], models: Tensor) -> Tensor:
        for k in cohort:
            c.add_(pi[k] * (fresh[k] - c_k[k]))
            c_k[k] = fresh[k]
        return x + 0.6 * (weights(weighting, cohort) @ (models - x))

    compare(fed, train, step, rounds=4)


@COHORTS
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_feddyn(weighting: str, selection) -> None:
    alpha = 0.4
    fed = ragged(FedDyn(alpha=alpha, weighting=weighting), selection=selection, server=ServerSgd(lr=0.6))
    g_k, h = torch.zeros(K, len(X0)).double(), torch.zeros_like(X0)
    pi = f64(RAGGED) / sum(RAGGED) if weighting == "samples" else f64([1] * K) / K

    def train(t: int, k: int, x: Tensor) -> Tensor:
        def extra(net, rows):
            theta = torch.cat([p.reshape(-1) for p in net.parameters()])
            return -(g_k[k] @ theta) + alpha / 2 * square_distance(net, x)

        return train_plain(x, real_batches(fed, t, k), torch_sgd(fed.solver), extra=extra)[0]

    def step(x: Tensor, cohort: list[int], models: Tensor) -> Tensor:
        for k, model in zip(cohort, models, strict=True):
            g_k[k] -= alpha * (model - x)
            h.sub_(alpha * pi[k] * (model - x))
        return x + 0.6 * (weights(weighting, cohort) @ models - h / alpha - x)

    compare(fed, train, step, rounds=4)


@COHORTS
def test_moon(selection) -> None:
    mu, temperature = 3.0, 0.4
    fed = ragged(Moon(mu=mu, temperature=temperature), selection=selection)
    stored: dict[int, Tensor] = {}

    def train(t: int, k: int, x: Tensor) -> Tensor:
        frozen = [network(x), network(stored.get(k, x))]

        def extra(net, rows):
            with torch.no_grad():
                references = [other(rows)[0] for other in frozen]
            z = F.normalize(net(rows)[0], dim=1)
            logits = torch.stack([(z * F.normalize(r, dim=1)).sum(1) for r in references], dim=1) / temperature
            return mu * F.cross_entropy(logits, torch.zeros(len(rows), dtype=torch.long))

        stored[k], _ = train_plain(x, real_batches(fed, t, k), torch_sgd(fed.solver), extra=extra)
        return stored[k]

    compare(fed, train, lambda x, cohort, models: weights("samples", cohort) @ models, rounds=4)
