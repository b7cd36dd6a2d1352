"""FedPBS: who is steady, rounds by hand, and the thresholds."""

from math import exp

import torch

from fedskew.algorithms import FedPBS
from tests.reference import Only, assert_close, f64, ragged
from tests.small import X0, Quadratic, exact_clients, play

# rows h/2 (w - b)^2, eta = 0.1, two full-batch steps
#
# client 0: h = 1, b = 0, 2       grad w - 1
# client 1: h = 1, b = 1, 5       grad w - 3
# client 2: h = 2, b = 2, 2, 3    grad 2 (w - 7/3)

ROWS = [[[1.0, 0.0], [1.0, 2.0]], [[1.0, 1.0], [1.0, 5.0]], [[2.0, 2.0], [2.0, 2.0], [2.0, 3.0]]]
NEVER = {"batch_threshold": 0.0}  # no batch is too small


def three(method, **rest):
    rows = [row for client in ROWS for row in client]
    return exact_clients(Quadratic(), rows, (2, 2, 2), method, lr=0.1, sizes=[2, 2, 3], **rest)


def loss_variance(k: int, x: float) -> float:
    losses = [h / 2 * (x - b) ** 2 for h, b in ROWS[k]]
    mean = sum(losses) / len(losses)
    return sum((loss - mean) ** 2 for loss in losses) / len(losses)


def two_steps(k: int, x: float, mu: float) -> float:
    """w <- w - eta (grad F(w) + mu (w - x)), twice."""
    h, b = ROWS[k][0][0], sum(row[1] for row in ROWS[k]) / len(ROWS[k])
    w = x
    for _ in range(2):
        w -= 0.1 * (h * (w - b) + mu * (w - x))
    return w


def test_golden_two_rounds() -> None:
    """At x = 1 the losses (1/2, 1/2), (0, 8), (1, 1, 4) have variances 0, 16, 2. In the next round, those below 2 are steady."""
    mu = 0.5
    first, second = play(three(FedPBS(mu=mu, **NEVER)), [1.0], 2)
    assert_close(first.done.uploads.report["V"], [0.0, 16.0, 2.0])
    # client 1: 1.2, then 1.2 + 0.1 (1.8 - 0.1) = 1.37;  client 2: 1 + 4/15, then + 0.1 (32/15 - 2/15) = 1.46666...
    assert_close(first.server.x, [(1.0 + 1.37 + (1 + 4 / 15 + 0.2)) / 3])
    assert_close(first.server.state["V_th"], 2.0)
    x = (1.0 + 1.37 + 22 / 15) / 3
    variances = [loss_variance(k, x) for k in range(3)]
    steady = [v < 2.0 for v in variances]
    assert steady == [True, False, True]
    moved = [two_steps(k, x, 0.0 if steady[k] else mu) for k in range(3)]
    assert_close(second.done.uploads.report["mu"], [0.0, mu, 0.0])
    assert_close(second.server.x, [sum(moved) / 3])
    assert_close(second.server.state["V_th"], sorted(variances)[1])


def test_golden_round_with_soft_weights() -> None:
    """tau = 4: e^0, e^(-16/4), e^(-2/4), with and without n_q before them."""
    for weighting, n in (("uniform", [1, 1, 1]), ("samples", [2, 2, 3])):
        method = FedPBS(mu=0.5, aggregation="softmax", tau=4.0, tau_scale="absolute", weighting=weighting)
        x = float(play(three(method), [1.0], 1)[0].server.x)
        weights = [n[0], n[1] * exp(-4.0), n[2] * exp(-0.5)]
        models = [two_steps(k, 1.0, 0.5) for k in range(3)]
        assert_close(f64(x), sum(w * m for w, m in zip(weights, models, strict=True)) / sum(weights))


def mu_of(x: float = 1.0, **options) -> list[float]:
    """Return the mu of each client in the first round."""
    return play(three(FedPBS(mu=0.5, **options)), [x], 1)[0].done.uploads.report["mu"].tolist()


def test_only_unsteady_clients_use_the_proximal_term() -> None:
    # variances 0, 16, 2; batches 2, 2, 3
    assert mu_of(variance_threshold=2.0, **NEVER) == [0.0, 0.5, 0.5]  # V = V_th is not below it
    assert mu_of(variance_threshold=2.0000001, **NEVER) == [0.0, 0.5, 0.0]
    assert mu_of(variance_threshold=17.0, **NEVER) == [0.0, 0.0, 0.0]
    assert mu_of(variance_threshold=float("inf"), batch_threshold=0.5) == [0.0, 0.0, 0.0]  # B_th = 1.5
    assert mu_of(variance_threshold=float("inf"), batch_threshold=2 / 3) == [0.5, 0.5, 0.0]  # 2 is not above 2
    assert mu_of(variance_threshold=float("inf"), batch_threshold=1.0) == [0.5, 0.5, 0.5]
    assert mu_of(variance_threshold=2.0000001, batch_threshold=0.7) == [0.5, 0.5, 0.0]
    assert mu_of(**NEVER) == [0.5, 0.5, 0.5]  # no median so far


def test_the_variance_of_the_gradients() -> None:
    """1, 4 and 8/9 at any x."""
    for x in (1.0, -3.0):
        assert mu_of(x, variance="gradient", variance_threshold=0.9, **NEVER) == [0.5, 0.5, 0.0]
        report = play(three(FedPBS(variance="gradient")), [x], 1)[0].done.uploads.report
        assert_close(report["V"], [1.0, 4.0, 8 / 9])


def test_the_threshold_is_the_median_of_the_last_cohort() -> None:
    fed = three(FedPBS(mu=0.5, variance="gradient", **NEVER))
    outcomes = []
    for members in ((0, 1), (1, 2), (0, 1, 2)):
        object.__setattr__(fed, "selection", Only(members))
        server = outcomes[-1].server if outcomes else None
        outcomes += play(fed, [1.0], len(outcomes) + 1, server=server)
    assert_close(torch.stack([o.server.state["V_th"] for o in outcomes]), [2.5, (4 + 8 / 9) / 2, 1.0])
    assert [o.done.uploads.report["mu"].tolist() for o in outcomes] == [[0.5, 0.5], [0.5, 0.0], [0.0, 0.5, 0.0]]


def test_a_scaled_mu() -> None:
    """mu V / V_th between mu / 10 and 10 mu; everybody is unsteady by the size of the batch."""
    scaled = {"mu_scale": "variance", "batch_threshold": 1.0}
    assert_close(f64(mu_of(variance_threshold=4.0, **scaled)), [0.05, 2.0, 0.25])
    assert_close(f64(mu_of(variance_threshold=0.1, **scaled)), [0.05, 5.0, 5.0])
    assert mu_of(**scaled) == [0.5, 0.5, 0.5]  # no median so far
    assert mu_of(variance_threshold=0.0, **scaled) == [0.5, 0.5, 0.5]


def test_batch_threshold_is_a_share_of_the_largest_batch() -> None:
    """Batches of min(7, n): 5, 7, 7, 3, 1, 7, 7; half of 7 is 3.5, whichever clients are proposed."""
    fed = ragged(FedPBS(mu=0.5, variance_threshold=float("inf"), selection="random"))
    assert play(fed, X0, 1)[0].done.uploads.report["mu"].tolist() == [0, 0, 0, 0.5, 0.5, 0, 0]
    object.__setattr__(fed, "selection", Only((0, 3)))
    assert play(fed, X0, 1)[0].done.uploads.report["mu"].tolist() == [0, 0.5]


def test_the_steadiest_may_be_chosen() -> None:
    def chosen(**options) -> list[int]:
        return play(three(FedPBS(**options)), [1.0], 1)[0].work.clients.tolist()

    assert chosen() == [0, 1, 2]
    assert chosen(selection="stable") == [0, 2]
    assert chosen(selection="stable", cohort=0.2) == [0]
    assert chosen(selection="stable", cohort=0.2, variance="gradient") == [2]


def test_the_hazard_names_the_largest_mu() -> None:
    assert "lr x mu = 2" in FedPBS(mu=20.0).contract().hazard(0.1)
    assert "lr x 10 mu = 2" in FedPBS(mu=2.0, mu_scale="variance").contract().hazard(0.1)
    assert FedPBS(mu=2.0).contract().hazard(0.1) == ""
