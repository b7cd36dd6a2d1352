"""FedProc: class prototypes on the server, towards which clients pull their features."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad

from fedskew.algorithms import FedProc
from fedskew.core.contract import features
from fedskew.engine.sequential import Sequential
from fedskew.engine.stacked import Stacked
from fedskew.loop.round import start
from fedskew.slots import Sgd
from tests.bias import Bias, client_view, labelled, rows_of, softmax
from tests.reference import (
    Only,
    assert_close,
    f64,
    local_models,
    ragged,
    real_batches,
    torch_sgd,
    train_plain,
    trajectory,
)
from tests.small import RAGGED, TASK, X0, play


@pytest.mark.parametrize(("alpha", "weight"), [(None, 3 / 4), (0.2, 0.2)])
def test_golden_two_rounds(alpha: float | None, weight: float) -> None:
    # features and logits are w; x = (ln 1, ln 2, ln 3, ln 4), eta = 0.6, one full-batch step, T = 4
    # client 1 holds the labels 0, 0, 2, client 2 the labels 1, 2, no client holds 3; p = 3/5, 2/5
    # round 0: cross-entropy, q = (0.1, 0.2, 0.3, 0.4)
    x, eta = np.log([1.0, 2.0, 3.0, 4.0]), 0.6
    w_1 = x - eta * np.array([0.1 - 2 / 3, 0.2, 0.3 - 1 / 3, 0.4])
    w_2 = x - eta * np.array([0.1, -0.3, -0.2, 0.4])
    x_1 = 3 / 5 * w_1 + 2 / 5 * w_2
    # every row's features are its client's w: c_0 = w_1, c_1 = w_2, c_2 = (w_1 + w_2) / 2, c_3 unknown
    c = np.array([w_1, w_2, (w_1 + w_2) / 2])
    u = c / np.sqrt((c**2).sum(1, keepdims=True))
    # round 1: alpha = 1 - 1/4; the gradient of L_gpc for a row of class y is u' (softmax(u w) - e_y)
    s, q = softmax(u @ x_1), softmax(x_1)

    def step(share: list[float]) -> np.ndarray:
        ce, gpc = q - np.array([*share, 0]), u.T @ (s - np.array(share))
        return x_1 - eta * (weight * gpc + (1 - weight) * ce)

    v_1, v_2 = step([2 / 3, 0, 1 / 3]), step([0, 1 / 2, 1 / 2])
    fed = labelled(FedProc(alpha=alpha), [[0, 0, 2], [1, 2]], 1, eta, classes=4)
    outcomes = play(replace(fed, rounds=4), x, 2)
    assert_close(outcomes[0].server.state["c"], np.array([*c, np.zeros(4)]))
    assert_close(trajectory(outcomes), np.array([x_1, 3 / 5 * v_1 + 2 / 5 * v_2]))
    assert_close(outcomes[1].server.state["c"], np.array([v_1, v_2, (v_1 + v_2) / 2, np.zeros(4)]))


# the loss


def loss(z: Tensor, c: Tensor, y: list[int], alpha: float = 1.0) -> Tensor:
    """The objective at features and logits z, with prototypes c."""
    view = client_view(z, extras={"c": c, "alpha": f64(alpha)})
    return FedProc().objective(Bias(len(z)), view, z, rows_of(y))


Z = f64([0.3, -1.2, 2.0])
C = f64([[1.0, 2.0, 2.0], [-3.0, 0.0, 4.0], [0.5, 0.5, -1.0]])


def test_classes_never_seen_are_no_candidates() -> None:
    known = C * f64([[1.0], [0.0], [1.0]])
    e = np.exp((C / C.norm(dim=1, keepdim=True)).numpy() @ Z.numpy())
    assert_close(loss(Z, known, [2]), -np.log(e[2] / (e[0] + e[2])))


@pytest.mark.parametrize("alpha", [1.0, 0.3])
def test_rows_of_a_class_never_seen_train_on_cross_entropy_alone(alpha: float) -> None:
    known = C * f64([[1.0], [0.0], [1.0]])
    ce = F.cross_entropy(Z[None], torch.tensor([1]))
    assert_close(loss(Z, known, [1], alpha), ce)
    assert_close(loss(Z, known, [1, 0, 0], alpha), (ce + 2 * loss(Z, known, [0], alpha)) / 3)
    assert_close(loss(Z, 0 * C, [2], alpha), F.cross_entropy(Z[None], torch.tensor([2])))
    slope = grad(lambda z: loss(z, known, [1], alpha))(Z)
    assert_close(slope, torch.softmax(Z, 0) - f64([0.0, 1.0, 0.0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_long_features_stay_finite(dtype: torch.dtype) -> None:
    z, known = (1e4 * Z).to(dtype), (C * f64([[1.0], [0.0], [1.0]])).to(dtype)
    for y in range(3):
        assert loss(z, known, [y], 0.5).isfinite()
        assert grad(lambda z, y=y: loss(z, known, [y], 0.5))(z).isfinite().all()


def test_whole_local_training_in_its_textbook_form() -> None:
    fed = replace(ragged(FedProc()), rounds=5)
    outcomes = play(fed, X0, 3)
    x, c = outcomes[1].server.x, outcomes[1].server.state["c"]
    assert (c.norm(dim=1) > 0).all()
    for k in range(len(RAGGED)):
        batches = real_batches(fed, 2, k)
        labels = iter([y for _, y in batches])

        def hybrid(net, inputs: Tensor, labels=labels) -> Tensor:
            (z, logits), y = net(inputs), next(labels)
            gpc = F.cross_entropy(z @ (c / c.norm(dim=1, keepdim=True)).T, y)
            return (1 - 2 / 5) * (gpc - F.cross_entropy(logits, y))

        plain, _ = train_plain(x, batches, torch_sgd(fed.solver), extra=hybrid)
        assert_close(x + outcomes[2].done.uploads.delta[k], plain, 1e-11)


def test_the_weight_falls_to_zero_over_the_planned_rounds() -> None:
    fed = replace(ragged(FedProc()), rounds=4)
    server = fed.view(start(fed, X0))
    sent = [float(FedProc().broadcast(server._replace(round=t))["alpha"]) for t in range(6)]
    assert sent == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    assert float(FedProc(alpha=0.3).broadcast(server._replace(round=3))["alpha"]) == pytest.approx(0.3)


# prototypes


@pytest.mark.parametrize("engine", [Sequential(), Stacked()], ids=repr)
def test_one_clients_prototypes_are_its_class_means(monkeypatch, engine) -> None:
    """They are computed with the model after training, over all rows, also if a pass takes several batches."""
    monkeypatch.setattr("fedskew.loop.plan.PASS_ROWS", 4)
    fed = ragged(FedProc(alpha=0.5), sizes=[13])
    for outcome in play(fed, X0, 2, engine):
        z = TASK.outputs(local_models(outcome)[0], fed.x)[0]
        means = torch.stack([z[fed.y == j].mean(0) for j in range(3)])
        assert_close(outcome.server.state["c"], means)
        counts = torch.bincount(fed.y, minlength=3)[None].double()
        assert torch.equal(outcome.done.uploads.extras["rows"], counts)


def test_identical_models_give_the_pooled_class_means() -> None:
    """The clients have 1 to 40 rows and do not train. Each row has the same weight, not each client."""
    fed = ragged(FedProc(), solver=Sgd(lr=1e-30))
    z = TASK.outputs(X0, fed.x)[0]
    means = torch.stack([z[fed.y == j].mean(0) for j in range(3)])
    assert_close(play(fed, X0, 1)[0].server.state["c"], means)


def test_classes_missing_in_the_cohort_keep_their_prototype() -> None:
    fed = labelled(FedProc(), [[0, 0, 2], [1, 1]], 2, 0.4)
    first = play(replace(fed, selection=Only((0,))), np.log([1.0, 2.0, 3.0]), 1)[0].server
    assert (first.state["c"].norm(dim=1) > 0).tolist() == [True, False, True]
    second = play(replace(fed, selection=Only((1,))), None, 2, server=first)[0]
    assert torch.equal(second.server.state["c"][[0, 2]], first.state["c"][[0, 2]])
    assert_close(second.server.state["c"][1], local_models(second)[0])


def test_fedproc_needs_features() -> None:
    assert features in FedProc().contract().needs
