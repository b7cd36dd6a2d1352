"""DRFA: a round by hand for every draw, the draws themselves, the snapshot, and clients that do not answer."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedskew.algorithms import Drfa
from fedskew.core.trees import pick, project_onto_simplex
from fedskew.engine.sequential import Sequential
from fedskew.engine.states import ClientStates
from fedskew.loop.plan import System
from fedskew.loop.round import call, close_round, prepare, start, work_of_round
from fedskew.loop.work import members_of
from fedskew.slots import Uniform
from tests.reference import PAIR, Only, apart, assert_close, f64, ragged, sized_pair
from tests.small import X0, Quadratic, exact_clients, play

# golden rounds: gradients w and 4 (w - 3), x = 1, eta = 0.1, two steps, both clients proposed
#
# client 1: 1 -> 0.9 -> 0.81,  client 2: 1 -> 1.8 -> 2.28

PATHS = f64([[0.9, 0.81], [1.8, 2.28]])


def losses(x: float) -> torch.Tensor:
    return f64([x * x / 2, 2 * (x - 3) ** 2])


def projected(v: torch.Tensor) -> torch.Tensor:
    """Project two numbers onto the simplex: subtract half of the excess from both, or return a corner."""
    first = float((v[0] - v[1] + 1) / 2)
    return f64([min(max(first, 0.0), 1.0), 1 - min(max(first, 0.0), 1.0)])


def test_golden_round_for_every_draw() -> None:
    """With m = K = 2 the set of drawn clients shows how often each was drawn. All six cases occur."""
    seen = set()
    for seed in range(100):
        fed = replace(sized_pair(Drfa(gamma=0.005)), seed=seed)
        first, second = play(fed, [1.0], 2)
        members = first.work.clients.tolist()
        t = 1 if float(first.server.state["share"]) < 0.5 else 2
        p = f64([0.5, 0.5]) if members == [0, 1] else f64([1.0 - members[0], float(members[0])])
        assert_close(first.server.x[0], p @ PATHS[:, 1])
        snapshot = p @ PATHS[:, t - 1]
        assert_close(first.server.state["w"][0], snapshot)
        # lambda + tau gamma (F_1, F_2) at the snapshot: K / m = 1, tau = 2
        expected = projected(0.5 + 2 * 0.005 * losses(float(snapshot)))
        assert_close(first.server.state["lambda"], [0.5, 0.5])
        assert_close(second.server.state["lambda"], expected)
        seen.add((*members, "t'", t))
    assert len(seen) == 6


# the draws


def convened(mixture, proposed, *, round_=1, seed=0, gamma=0.0, tau=0.0, answers=None):
    """Return the state after the server has received the answers of the proposed clients."""
    k = len(mixture)
    method = Drfa(gamma=gamma)
    fed = exact_clients(Quadratic(), [[1.0, 0.0]] * k, (1,) * k, method, lr=0.1)
    server = fed.view(start(fed, f64([0.0])))
    state = {**server.state, "lambda": f64(mixture), "tau": f64(tau)}
    server = server._replace(round=round_, seed=seed, state=state)
    at = torch.tensor(proposed)
    return method.convene(server, pick(server.clients, at), {"F": f64(answers or [0.0] * len(proposed))})


def test_clients_are_drawn_by_lambda_with_replacement() -> None:
    mixture = [0.5, 0.3, 0.0, 0.2]
    copies, shares = [], []
    for round_ in range(600):
        state, ids = convened(mixture, [0, 2, 3], round_=round_)
        assert float(state["copies"].sum()) == 3
        assert ids.tolist() == state["copies"].nonzero()[:, 0].tolist()
        copies.append(state["copies"])
        shares.append(float(state["share"]))
    table = torch.stack(copies)
    assert float(table[:, 2].max()) == 0
    assert float(table.max()) == 3
    # binomial: mean m lambda, variance m lambda (1 - lambda); four standard errors
    expected = 3 * f64(mixture)
    error = (expected * (1 - f64(mixture)) / 600).sqrt()
    assert ((table.mean(0) - expected).abs() <= 4 * error).all()
    counts = np.histogram(shares, bins=10, range=(0, 1))[0]
    assert ((counts - 60) ** 2 / 60).sum() < 33.8  # chi-square, 9 degrees of freedom, 0.01 %


def test_losses_of_a_uniform_cohort_are_unbiased() -> None:
    """Over all single clients, and all pairs, of four: inside the simplex the projection only subtracts the mean."""
    mixture, f = [0.4, 0.3, 0.2, 0.1], [1.0, 5.0, 2.0, 4.0]
    expected = project_onto_simplex(f64(mixture) + 3 * 0.001 * f64(f))
    for cohorts in ([[k] for k in range(4)], [[j, k] for k in range(4) for j in range(k)]):
        found = [convened(mixture, c, gamma=0.001, tau=3.0, answers=[f[k] for k in c])[0]["lambda"] for c in cohorts]
        assert_close(torch.stack(found).mean(0), expected)
    only = convened(mixture, [1], gamma=0.001, tau=3.0, answers=[5.0])[0]["lambda"]
    assert_close(only, project_onto_simplex(f64(mixture) + f64([0, 3 * 0.001 * 4 * 5.0, 0, 0])))
    assert_close(only.sum(), 1.0)


# the snapshot


def test_the_snapshot_is_the_model_after_a_common_share_of_the_steps() -> None:
    """After t steps a quadratic client is at b + (1 - eta h)^t (x - b); t = floor(share tau) + 1."""
    steps, seen = (2, 5), set()
    for seed in range(80):
        outcome = play(replace(sized_pair(Drfa(), steps), seed=seed), [1.0], 1)[0]
        share = float(outcome.server.state["share"])
        for i, k in enumerate(outcome.work.clients):
            h, b = PAIR[k]
            t = int(share * steps[k]) + 1
            seen.add((int(k), t))
            expected = b + (1 - 0.1 * h) ** t * (1.0 - b) - 1.0
            assert_close(outcome.done.uploads.extras["w'"][i, 0], expected)
    assert seen == {(0, 1), (0, 2), *((1, t) for t in range(1, 6))}


def test_proposed_clients_answer_and_drawn_clients_train() -> None:
    fed = replace(sized_pair(Drfa(gamma=1e-4, weighting="samples"), sizes=(1, 3)), selection=Only((1,)))
    outcomes = play(fed, [1.0], 60)
    assert {tuple(o.work.clients.tolist()) for o in outcomes} == {(0,), (1,)}
    assert_close(outcomes[0].server.state["lambda"], [0.25, 0.75])
    expected = projected(f64([0.25, 0.75]) + f64([0.0, 2 * 1e-4 * 2 * losses(float(outcomes[0].server.state["w"]))[1]]))
    assert_close(outcomes[1].server.state["lambda"], expected)


def test_bytes_sent_down_and_up() -> None:
    """Down: model and snapshot to surveyed clients, a number to training ones, the model to those not surveyed."""
    fed = ragged(Drfa(), selection=Uniform(clients=3))
    outcome, asked = play(fed, X0, 1)[0], call(fed, 0)[0]
    model, m, trained = 8 * len(X0), 3, len(outcome.work.clients)
    new = len(set(outcome.work.clients) - set(asked))
    assert new > 0
    assert outcome.bytes_down == m * 2 * model + new * model + trained * 8
    assert outcome.bytes_up == m * 8 + trained * (2 * model + 8)


def test_a_round_whose_drawn_clients_all_fail_is_followed_by_another_survey() -> None:
    """The server's model and snapshot stay, and the candidates of the next round get the snapshot."""
    fed = replace(ragged(Drfa(), selection=Uniform(clients=2)), system=System(dropout=0.5))
    outcomes = play(fed, X0, 12)
    lost = [o for o in outcomes if o.work.turnout.answered and not len(o.work.clients)]
    assert lost
    assert lost[0].server.round < 12
    later = outcomes[lost[0].server.round]
    assert torch.equal(later.work.view.x, lost[0].server.x)


# clients that do not answer


def drawn(copies) -> tuple:
    """A federation of quadratics with 2, 5 and 9 steps, its server after a draw of these copies, and the work."""
    fed = exact_clients(Quadratic(), [*PAIR, [2.0, -1.0]], (2, 5, 9), Drfa(gamma=0.005), lr=0.1)
    server, *_ = prepare(fed, Sequential(), start(fed, f64([1.0])), ClientStates(), False)
    state = {**server.state, "copies": f64(copies), "share": f64(0.0)}
    server = server._replace(state=state)
    return fed, server, work_of_round(fed, server, ClientStates(), False, np.arange(3), {})


@pytest.mark.parametrize(
    ("copies", "answered", "weights"),
    [([2, 1, 1], [0, 2], [2 / 3, 1 / 3]), ([2, 1, 0], [1], [1.0]), ([1, 1, 1], [0, 1, 2], [1 / 3] * 3)],
)
def test_golden_round_of_those_who_answered(copies, answered, weights) -> None:
    """Client k is at b + (1 - 0.1 h)^t (1 - b) after t steps; share 0 takes the snapshot after the first."""
    fed, server, work = drawn(copies)
    work = members_of(work, np.asarray(answered))
    done = Sequential().run(fed.program, work, fed.x, fed.y)
    rows, steps = [[*PAIR, [2.0, -1.0]][k] for k in answered], [(2, 5, 9)[k] for k in answered]
    last = f64([b + (1 - 0.1 * h) ** t * (1 - b) for (h, b), t in zip(rows, steps, strict=True)])
    first = f64([b + (1 - 0.1 * h) * (1 - b) for h, b in rows])
    after = close_round(fed, server, work, done)
    p = f64(weights)
    assert_close(after.x[0], p @ last)
    assert_close(after.state["w"][0], p @ first)
    assert_close(after.state["tau"], p @ f64(steps))


def test_a_snapshot_moves_the_mixture_once() -> None:
    """No client trains in round 2, so in round 3 there are no new steps that could move lambda."""
    fed = sized_pair(Drfa(gamma=0.005))
    first, second = play(fed, [1.0], 2)
    states = ClientStates()
    server, _, _ = prepare(fed, Sequential(), first.server, states, False)
    assert_close(server.state["lambda"], second.server.state["lambda"])
    assert apart(server.state["lambda"], first.server.state["lambda"])
    server, _, _ = prepare(fed, Sequential(), server._replace(round=2), states, False)
    assert_close(server.state["lambda"], second.server.state["lambda"])
