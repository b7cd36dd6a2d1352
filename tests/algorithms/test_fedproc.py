"""FedProc: class prototypes on the server, towards which clients pull their features."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad

from fedskew.algorithms import FedProc
from fedskew.loop.round import start
from fedskew.slots import Sgd
from tests.bias import Bias, client_view, labelled, rows_of
from tests.reference import Only, assert_close, f64, local_models, ragged, real_batches, torch_sgd, train_plain
from tests.small import RAGGED, TASK, X0, play


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


@pytest.mark.parametrize(("alpha", "weight"), [(None, 1 - 2 / 5), (0.2, 0.2)])
def test_whole_local_training_in_its_textbook_form(alpha: float | None, weight: float) -> None:
    fed = replace(ragged(FedProc(alpha=alpha)), rounds=5)
    outcomes = play(fed, X0, 3)
    x, c = outcomes[1].server.x, outcomes[1].server.state["c"]
    assert (c.norm(dim=1) > 0).all()
    for k in range(len(RAGGED)):
        batches = real_batches(fed, 2, k)
        labels = iter([y for _, y in batches])

        def hybrid(net, inputs: Tensor, labels=labels) -> Tensor:
            (z, logits), y = net(inputs), next(labels)
            gpc = F.cross_entropy(z @ (c / c.norm(dim=1, keepdim=True)).T, y)
            return weight * (gpc - F.cross_entropy(logits, y))

        plain, _ = train_plain(x, batches, torch_sgd(fed.solver), extra=hybrid)
        assert_close(x + outcomes[2].done.uploads.delta[k], plain, 1e-11)


def test_the_weight_falls_to_zero_over_the_planned_rounds() -> None:
    fed = replace(ragged(FedProc()), rounds=4)
    server = fed.view(start(fed, X0))
    sent = [float(FedProc().broadcast(server._replace(round=t))["alpha"]) for t in range(6)]
    assert sent == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    assert float(FedProc(alpha=0.3).broadcast(server._replace(round=3))["alpha"]) == pytest.approx(0.3)


# prototypes


def test_one_clients_prototypes_are_its_class_means(monkeypatch) -> None:
    """They are computed with the model after training, over all rows, also if a pass takes several batches."""
    monkeypatch.setattr("fedskew.loop.plan.PASS_ROWS", 4)
    fed = ragged(FedProc(alpha=0.5), sizes=[13])
    for outcome in play(fed, X0, 2):
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
