"""FedPA: samples along the local path, and an update preconditioned by their covariance."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

from fedskew.algorithms import FedAvg, FedPa
from fedskew.core.errors import Diverged
from fedskew.core.records import Carry, Info, View
from fedskew.loop.plan import Local
from fedskew.slots import Sgd, Uniform
from tests.reference import (
    apart,
    assert_close,
    f64,
    flat,
    ragged,
    real_batches,
    sized_pair,
    torch_sgd,
    train_plain,
    trajectory,
)
from tests.small import X0, play


def sent(algorithm: FedPa, x: Tensor, samples: Tensor) -> Tensor:
    """Return the delta of a client at x. Its windows had these means (l, P)."""
    number, one = len(samples), x.new_ones(())
    view = View(x, {}, {}, Info(*(one for _ in Info._fields)), {}, one, number * one)
    scratch = {"sums": 3 * (samples - x), "counts": x.new_full((number,), 3.0)}
    carry = Carry(samples[-1], {}, scratch, view.steps)
    return algorithm.local_final(Sgd(lr=0.1), view, carry, {})[0].delta


def dense(x: np.ndarray, samples: np.ndarray, rho: float) -> np.ndarray:
    """Sigma^-1 (x_bar - x) with the shrunk covariance as a matrix."""
    number, size = samples.shape
    rho_l = 1 / (1 + (number - 1) * rho)
    s = np.cov(samples.T, ddof=1).reshape(size, size) if number > 1 else np.zeros((size, size))
    return np.linalg.solve(rho_l * np.eye(size) + (1 - rho_l) * s, samples.mean(0) - x)


@pytest.mark.parametrize("rho", [0.0, 0.01, 1.0, 10.0])
@pytest.mark.parametrize(("number", "size"), [(1, 3), (2, 1), (2, 20), (5, 20), (30, 4), (30, 20)])
def test_the_closed_form_is_the_dense_inverse(number: int, size: int, rho: float) -> None:
    rng = np.random.default_rng(number + size)
    x, samples = rng.standard_normal(size), rng.standard_normal((number, size)) * np.linspace(0.1, 2, size) + 0.5
    ours = sent(FedPa(samples=number, rho=rho), torch.tensor(x), torch.tensor(samples))
    assert_close(ours, dense(x, samples, rho), 1e-9)


def test_single_precision_stays_single_and_close() -> None:
    rng = np.random.default_rng(1)
    x, samples = rng.standard_normal(20), rng.standard_normal((5, 20)) / 10 + 0.5
    delta = sent(FedPa(samples=5, rho=1.0), *(torch.tensor(v, dtype=torch.float32) for v in (x, samples)))
    assert delta.dtype is torch.float32
    torch.testing.assert_close(delta.double(), torch.tensor(dense(x, samples, 1.0)), rtol=1e-4, atol=1e-5)


# the samples


def burnt(steps: int, share: str) -> int:
    return int(Fraction(share) * steps)


@pytest.mark.parametrize("share", ["0", "0.29", "0.5", "0.99"])
@pytest.mark.parametrize("number", [1, 2, 4, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_windows_divide_the_steps_after_the_burn_in(share: str, number: int, dtype: torch.dtype) -> None:
    """In step t the model is the unit vector e_t, so a sample shows the steps of its mean."""
    algorithm = FedPa(samples=number, burn_in=float(share))
    for steps in (*range(1, 13), 100):
        x = torch.zeros(steps, dtype=dtype)
        view = View(
            x, {}, {}, Info(*(x.new_zeros(()) for _ in Info._fields)), {}, x.new_tensor(0.1), x.new_tensor(steps)
        )
        scratch = algorithm.local_init(None, None, view)[1]
        for t in range(steps):
            carry = Carry(torch.eye(steps, dtype=dtype)[t], {}, scratch, x.new_tensor(t + 1.0))
            scratch = algorithm.after_step(Sgd(lr=0.1), view, carry)
        windows = [row.nonzero()[:, 0].tolist() for row in scratch["sums"] if row.any()]
        assert [t for window in windows for t in window] == list(range(burnt(steps, share), steps))
        assert len(windows) == min(number, steps - burnt(steps, share))
        assert max(map(len, windows)) - min(map(len, windows)) <= 1
        assert sorted(scratch["counts"].tolist()) == sorted(
            [0.0] * (number - len(windows)) + [*map(float, map(len, windows))]
        )


def path(fed, round_: int, client: int, x: Tensor) -> np.ndarray:
    """Return the iterates (T, P) of an ordinary training loop."""
    seen: list[Tensor] = []

    def remember(net, inputs: Tensor) -> Tensor:
        seen.append(flat(net))
        return torch.zeros((), dtype=torch.float64)

    last, _ = train_plain(x, real_batches(fed, round_, client), torch_sgd(fed.solver, round_), extra=remember)
    return torch.stack([*seen[1:], last]).numpy()


@pytest.mark.parametrize("local", [Local(epochs=5, batch_size=7), Local(epochs=1, batch_size=7)], ids=["long", "short"])
def test_whole_rounds_against_ordinary_training(local: Local) -> None:
    """Clients take 1 to 30 steps. A client with fewer steps than samples makes only as many samples as it has steps."""
    algorithm = FedPa(rho=0.7, samples=4, burn_in=0.2, weighting="uniform")
    solver = Sgd(lr=0.2, momentum=0.5, weight_decay=0.01)
    fed = ragged(algorithm, local=local, solver=solver)
    numbers = set()
    for outcome in play(fed, X0, 2):
        x, deltas = outcome.work.view.x, []
        for k, steps in enumerate(outcome.steps):
            kept = path(fed, outcome.server.round - 1, k, x)[burnt(int(steps), "0.2") :]
            number = min(4, len(kept))
            # equal windows up to one step: the i-th begins at the first step s with 4 s / N >= i
            starts = [-(-i * len(kept) // 4) for i in range(4)] if number == 4 else range(number)
            samples = np.stack([part.mean(0) for part in np.split(kept, list(starts)[1:])])
            deltas.append(dense(x.numpy(), samples, 0.7))
            numbers.add(number)
        assert_close(outcome.done.uploads.delta, np.stack(deltas), 1e-9)
        assert_close(outcome.server.x, x.numpy() + np.mean(deltas, axis=0), 1e-9)
    assert numbers == ({4, 1, 2, 3} if local.epochs == 1 else {4})


def test_the_burn_in_rounds_are_fedavg() -> None:
    ours, fedavg = (
        trajectory(play(ragged(a, solver=Sgd(lr=0.1, momentum=0.9), selection=Uniform(clients=4)), X0, 4))
        for a in (FedPa(rho=0.5, burn_in_rounds=3), FedAvg())
    )
    assert_close(ours[:3], fedavg[:3])
    assert apart(ours[3], fedavg[3], 1e-3)


def test_divergence_is_reported() -> None:
    with pytest.raises(Diverged, match="learning rate"):
        play(sized_pair(FedPa(), (50, 50), lr=1e9), [1.0], 3)
    # a covariance beside which the identity is lost is not finite rather than an exception from the solver
    assert not sent(FedPa(samples=2), f64([1.0]), f64([[1e30], [-1e30]])).isfinite().any()


def test_only_updates_of_twice_the_length_are_a_hazard() -> None:
    assert FedPa(samples=1, rho=100.0).contract().hazard(0.1) == ""
    assert FedPa(samples=4, rho=0.3).contract().hazard(0.1) == ""
    assert "rho below 0.33" in FedPa(samples=4, rho=0.4).contract().hazard(0.1)
