"""FedProx, explicit and implicit."""

import pytest

from fedskew.algorithms import FedProx
from fedskew.core.records import Cohort, Upload
from fedskew.experiment.config import Experiment
from fedskew.loop.round import start
from fedskew.slots import Sgd
from tests.reference import assert_close, f64, sized_pair
from tests.small import Quadratic, exact_clients, play

FORMS = ["explicit", "implicit"]


@pytest.mark.parametrize("form", FORMS)
def test_weight_decay_belongs_to_the_local_loss(form: str) -> None:
    """The local limit solves h (w - b) + lambda w + mu (w - x) = 0: decay must not change its weight with the form."""
    fed = exact_clients(
        Quadratic(),
        [[2.0, 3.0]],
        (200,),
        FedProx(mu=4.0, step=form),
        lr=0.1,
        solver=Sgd(lr=0.1, weight_decay=0.5),
    )
    assert_close(play(fed, [1.0], 1)[0].server.x, [(2 * 3 + 4 * 1) / (2 + 0.5 + 4)])


# the paper's own rule for mu


def test_mu_rises_with_the_loss_and_falls_after_five_falls_in_a_row() -> None:
    """Both clients report the same loss F. The first loss has none before it."""
    fed = sized_pair(FedProx(mu=0.15, mu_step=0.1))
    server, mus = start(fed, f64([1.0])), []
    losses = [5.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.9, 0.8, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.04, 0.03]
    for loss in losses:
        uploads = Upload(f64([[0.0], [0.0]]), {}, {"F": f64([loss, loss])})
        _, state = fed.algorithm.aggregate(fed.view(server), Cohort(fed.info, uploads))
        server = server._replace(state=state)
        mus.append(round(float(state["mu"]), 12))
    # a rise, five falls to 1.0, two more, an equal loss, five falls to 0.3, five to 0.03: below 0 it stays 0
    assert mus == [0.15, 0.25, 0.25, 0.25, 0.25, 0.25, 0.15, 0.15, 0.15, 0.15, *[0.15] * 4, 0.05, *[0.05] * 4, 0.0]


@pytest.mark.parametrize("form", FORMS)
def test_the_rule_measures_the_received_model_and_moves_the_next_round(form: str) -> None:
    """Losses w^2 / 2 and 2 (w - 3)^2, weights 1/4 and 3/4; at eta = 1 the model overshoots, so that the loss rises."""
    outcomes = play(sized_pair(FedProx(mu=0.0, mu_step=0.5, step=form), (1, 1), lr=1.0), [1.0], 3)
    first, second, third = outcomes
    assert_close(first.server.state["loss"], 0.25 * 0.5 + 0.75 * 8)
    # 1 - 1 = 0 and 1 + 8 = 9: x = 6.75, loss 0.25 * 6.75^2 / 2 + 0.75 * 2 * 3.75^2
    assert_close(first.server.x, [6.75])
    assert_close(second.server.state["loss"], 6.75**2 / 8 + 1.5 * 3.75**2)
    assert [float(o.decisions["round/mu"]) for o in outcomes] == [0.0, 0.0, 0.5]
    assert float(third.work.view.extras["mu"]) == 0.5


def test_a_fixed_mu_costs_nothing_and_keeps_its_hash() -> None:
    outcome = play(sized_pair(FedProx(mu=2.0)), [1.0], 1)[0]
    assert (outcome.bytes_down, outcome.bytes_up) == (16, 16)
    assert outcome.decisions["round/mu"].isnan()
    assert sized_pair(FedProx()).program.before is None
    assert "mu_step" not in Experiment(algorithm="fedprox").toml()
