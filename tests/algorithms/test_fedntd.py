"""FedNTD: cross-entropy plus the divergence from the global model's not-true probabilities."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad

from fedskew.algorithms import FedNtd
from tests.bias import Bias, client_view, rows_of, softmax
from tests.reference import assert_close, f64, ragged, real_batches, torch_sgd, train_plain
from tests.small import TASK, X0, play


def term(algorithm: FedNtd, z: Tensor, z_g: Tensor, y: int) -> Tensor:
    """Return the objective minus the cross-entropy at logits z. The global model has logits z_g."""
    batch = rows_of([y])
    return algorithm.objective(Bias(len(z)), client_view(z_g), z, batch) - F.cross_entropy(z[None], batch.y)


LOGITS = [
    (f64([0.3, -1.2, 2.0, 0.5]), f64([-0.7, 0.4, 0.1, 1.5])),
    (f64([9.0, -9.0, 0.0, 3.0]), f64([-5.0, 7.0, 2.0, 2.0])),
]


@pytest.mark.parametrize(("z", "z_g"), LOGITS)
@pytest.mark.parametrize("tau", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("y", [0, 3])
def test_the_term_is_the_divergence_over_the_other_classes(z: Tensor, z_g: Tensor, tau: float, y: int) -> None:
    """Written out with the true class's logit left out, and in the direction global || local."""
    others = [c for c in range(4) if c != y]
    q, q_g = (softmax(v.numpy()[others] / tau) for v in (z, z_g))
    expected = 0.7 * tau**2 * (q_g * np.log(q_g / q)).sum()
    assert_close(term(FedNtd(beta=0.7, tau=tau), z, z_g, y), expected, 1e-11)
    slope = grad(lambda z: term(FedNtd(beta=0.7, tau=tau), z, z_g, y))(z)
    assert slope[y] == 0, "the true class's logit takes no part"
    assert_close(slope[others], 0.7 * tau * (q - q_g), 1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logits_far_apart_stay_finite(dtype: torch.dtype) -> None:
    z, z_g = f64([0.0, 1e4, -1e4]).to(dtype), f64([-1e4, 0.0, 1e4]).to(dtype)
    for y in range(3):
        batch = rows_of([y])

        def loss(z: Tensor, batch=batch) -> Tensor:
            return FedNtd(tau=0.5).objective(Bias(), client_view(z_g), z, batch)

        assert loss(z).isfinite()
        assert grad(loss)(z).isfinite().all()


def test_whole_local_training_in_its_textbook_form() -> None:
    """The run equals an ordinary training loop that gathers the not-true logits instead of masking the true ones."""
    fed, tau, beta = ragged(FedNtd(beta=0.8, tau=2.0)), 2.0, 0.8
    second = play(fed, X0, 2)[1]
    x = second.work.view.x
    for i, k in enumerate(second.work.clients.tolist()):
        batches = real_batches(fed, 1, k)
        labels = iter([y for _, y in batches])

        def distilled(net, inputs: Tensor, labels=labels) -> Tensor:
            y = next(labels)
            others = torch.stack([torch.tensor([c for c in range(3) if c != int(label)]) for label in y])
            q = F.log_softmax(net(inputs)[1].gather(1, others) / tau, dim=1)
            q_g = F.softmax(TASK.logits(x, inputs).gather(1, others) / tau, dim=1)
            return beta * tau**2 * F.kl_div(q, q_g, reduction="batchmean")

        plain, _ = train_plain(x, batches, torch_sgd(fed.solver), extra=distilled)
        assert_close(x + second.done.uploads.delta[i], plain, 1e-11)


def test_only_a_strong_term_is_a_hazard() -> None:
    assert FedNtd(beta=1.0, tau=1.0).contract().hazard(0.1) == ""
    assert "beta" in FedNtd(beta=100.0, tau=3.0).contract().hazard(0.1)
