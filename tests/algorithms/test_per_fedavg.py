"""Per-FedAvg, first-order and Hessian-free, on split and on whole batches."""

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call, grad

from fedskew.algorithms import PerFedAvg
from fedskew.loop.plan import Local
from fedskew.slots import Sgd
from tests.reference import assert_close, local_models, ragged, real_batches
from tests.small import NET, TASK, X0, play

FORMS = ["first-order", "hessian-free"]


def loss(w: torch.Tensor, x: torch.Tensor, y: torch.Tensor, decay: float) -> torch.Tensor:
    logits = functional_call(NET, TASK.space.unflatten(w), (x,))[1]
    return F.cross_entropy(logits, y) + decay / 2 * w.square().sum()


@pytest.mark.parametrize("batches", ["split", "same"])
@pytest.mark.parametrize("form", FORMS)
def test_against_an_ordinary_loop_on_parts_of_each_batch(form: str, batches: str) -> None:
    """On a network, with weight decay in F_k, and with a Hessian-vector product in place of the finite difference."""
    alpha, solver = 0.2, Sgd(lr=0.1, weight_decay=0.1)
    method = PerFedAvg(alpha=alpha, form=form, batches=batches, delta=1e-4)
    fed = ragged(method, solver=solver, local=Local(epochs=2, batch_size=7))
    outcome = play(fed, X0, 1)[0]
    parts = 2 if form == "first-order" else 3
    for k in (0, 3, 4):
        w = X0
        for x, y in real_batches(fed, 0, k):

            def g(w, number, x=x, y=y):
                own = slice(number, None, parts) if batches == "split" and number < len(y) else slice(None)
                return grad(lambda w: loss(w, x[own], y[own], 0.1))(w)

            v = g(w - alpha * g(w, 0), 1)
            if form == "hessian-free":
                v = v - alpha * grad(lambda w, g=g, v=v: (g(w, 2) * v).sum())(w)
            w = w - 0.1 * v
        assert_close(local_models(outcome)[k], w, 1e-12 if form == "first-order" else 1e-7)
