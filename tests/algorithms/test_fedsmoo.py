"""FedSMOO, uniform and sample weights."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedskew.algorithms import FedSmoo
from fedskew.engine.states import ClientStates
from fedskew.loop.plan import Local
from fedskew.loop.round import start
from fedskew.slots import Everyone, Sgd, Uniform
from tests.reference import assert_close, f64, full_gradient, local_models, ragged, real_batches, state_of
from tests.small import RAGGED, X0, play

K = len(RAGGED)


def unit(v: Tensor) -> Tensor:
    return v / v.norm() if float(v.norm()) else v


@pytest.mark.parametrize("solver", [Sgd(lr=0.1), Sgd(lr=0.05, momentum=0.9, weight_decay=0.1)], ids=repr)
@pytest.mark.parametrize(
    ("weighting", "selection"),
    [("uniform", Uniform(clients=3)), ("samples", Uniform(clients=3)), ("uniform", Everyone())],
)
def test_against_a_plain_loop(weighting: str, selection, solver: Sgd) -> None:
    rho, beta = 0.3, 4.0
    fed = ragged(FedSmoo(rho=rho, beta=beta, weighting=weighting), solver=solver, selection=selection)
    mu_k, lambda_k = torch.zeros(K, len(X0)).double(), torch.zeros(K, len(X0)).double()
    x, s, dual = X0, torch.zeros_like(X0), torch.zeros_like(X0)
    states, server = ClientStates(), None
    for t in range(3):
        outcome = play(fed, X0, t + 1, server=server, states=states)[-1]
        server, cohort = outcome.server, outcome.work.clients.tolist()
        models, sent = [], []
        for k in cohort:
            w, velocity, up = x, torch.zeros_like(x), torch.zeros_like(x)
            for batch in real_batches(fed, t, k):
                up = rho * unit(full_gradient(w, *batch) + solver.weight_decay * w - mu_k[k] - s)
                mu_k[k] += up - s
                g = full_gradient(w + up, *batch) + solver.weight_decay * (w + up)
                velocity = solver.momentum * velocity + g - lambda_k[k] + (w - x) / beta
                w = w - solver.lr * velocity
            models.append(w)
            sent.append(mu_k[k] - up)
            lambda_k[k] -= (w - x) / beta
        n = f64(RAGGED)
        p = n[cohort] / n[cohort].sum() if weighting == "samples" else torch.ones(len(cohort)).double() / len(cohort)
        pi = n[cohort] / n.sum() if weighting == "samples" else torch.ones(len(cohort)).double() / K
        assert_close(local_models(outcome), torch.stack(models))
        dual = dual - pi @ (torch.stack(models) - x) / beta
        s = rho * unit(p @ torch.stack(sent))
        x = p @ torch.stack(models) - beta * dual
        assert_close(server.x, x)
        assert_close(server.state["s"], s)
        assert_close(server.state["lambda"], dual)
        assert_close(state_of(states, "mu_k", K, X0), mu_k)
        assert_close(state_of(states, "lambda_k", K, X0), lambda_k)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_step_sends_no_perturbation_in_round_zero(dtype: torch.dtype) -> None:
    """s~ = mu - s^ = 0 to the last bit, so that s stays 0 where its length would be divided by; s^ itself has length rho."""
    fed = ragged(FedSmoo(rho=0.3), local=Local(steps=1, batch_size=8))
    fed = replace(fed, x=fed.x.to(dtype))
    outcome, *_ = play(fed, None, 1, server=start(fed, X0.to(dtype)))
    assert not outcome.done.uploads.extras["s"].any()
    assert not outcome.server.state["s"].any()
    assert_close(outcome.done.states["mu_k"].double().norm(dim=1), [0.3] * K, 1e-6 if dtype == torch.float32 else 1e-12)


def test_a_strong_penalty_at_a_large_rate_is_named_as_a_hazard() -> None:
    assert "lr x 1/beta = 5: an explicit proximal step overshoots" in FedSmoo(beta=0.1).contract().hazard(0.5)
    assert FedSmoo().contract().hazard(0.5) == ""
