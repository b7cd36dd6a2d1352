"""Per-FedAvg, first-order and Hessian-free, on split and on whole batches."""

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call, grad

from fedskew.algorithms import PerFedAvg
from fedskew.engine.sequential import Sequential
from fedskew.engine.stacked import Stacked
from fedskew.loop.plan import Local
from fedskew.slots import Sgd
from tests.reference import assert_close, local_models, ragged, real_batches
from tests.small import NET, TASK, X0, Quadratic, exact_clients, play

FORMS = ["first-order", "hessian-free"]
THREE = [[1.0, 0.0], [4.0, 3.0], [2.0, 1.0], [1.0, 0.0]]
"""Rows (h, b) of h/2 (w - b)^2: the first three are one client's, the last is another's only row."""

# golden rounds: x = 1, alpha = beta = 0.1, full batches in the order of the rows, two steps
#
# first-order    b1 = rows 0 and 2, b2 = row 1
#   w = 1        g = (1 + 0) / 2 = 0.5         w~ = 0.95    g = 4 (0.95 - 3) = -8.2     w = 1.82
#   w = 1.82     g = (1.82 + 1.64) / 2 = 1.73  w~ = 1.647   g = -5.412                  w = 2.3612
#   single row   w~ = 0.9 w, g = 0.9 w: w = 0.91, then 0.8281
# hessian-free   b1 = row 0, b2 = row 1, b3 = row 2 with curvature 2
#   w = 1        w~ = 0.9      v = -8.4      d = -16.8      w = 1 + 0.1 (8.4 - 1.68) = 1.672
#   w = 1.672    w~ = 1.5048   v = -5.9808   d = -11.9616   w = 1.672 + 0.1 (5.9808 - 1.19616) = 2.150464
#   single row   v = d = 0.9 w: w = w - 0.1 (0.9 w - 0.09 w) = 0.919 w: 0.919, then 0.844561
# the server takes the uniform mean, although the clients hold 3 rows and 1

GOLDEN = {"first-order": [2.3612, 0.8281], "hessian-free": [2.150464, 0.844561]}


@pytest.mark.parametrize("engine", [Sequential(), Stacked()], ids=repr)
@pytest.mark.parametrize("form", FORMS)
def test_golden_round(engine, form: str) -> None:
    fed = exact_clients(Quadratic(), THREE, (2, 2), PerFedAvg(alpha=0.1, form=form), lr=0.1, sizes=[3, 1])
    outcome = play(fed, [1.0], 1, engine)[0]
    # a finite difference of a linear gradient loses digits only; delta = 1e-3 leaves about twelve
    tol = 1e-12 if form == "first-order" else 1e-11
    assert_close(local_models(outcome)[:, 0], GOLDEN[form], tol)
    assert_close(outcome.server.x, [sum(GOLDEN[form]) / 2], tol)


def loss(w: torch.Tensor, x: torch.Tensor, y: torch.Tensor, decay: float) -> torch.Tensor:
    logits = functional_call(NET, TASK.space.unflatten(w), (x,))[1]
    return F.cross_entropy(logits, y) + decay / 2 * w.square().sum()


@pytest.mark.parametrize("engine", [Sequential(), Stacked()], ids=repr)
@pytest.mark.parametrize("batches", ["split", "same"])
@pytest.mark.parametrize("form", FORMS)
def test_against_an_ordinary_loop_on_parts_of_each_batch(engine, form: str, batches: str) -> None:
    """On a network, with weight decay in F_k, and with a Hessian-vector product in place of the finite difference."""
    alpha, solver = 0.2, Sgd(lr=0.1, weight_decay=0.1)
    method = PerFedAvg(alpha=alpha, form=form, batches=batches, delta=1e-4)
    fed = ragged(method, solver=solver, local=Local(epochs=2, batch_size=7))
    outcome = play(fed, X0, 1, engine)[0]
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
