"""SCAFFOLD, options I and II, uniform and sample weights."""

from dataclasses import replace

import pytest
import torch

from fedskew.algorithms import FedAvg, Scaffold
from fedskew.core.records import Server
from fedskew.engine.states import ClientStates
from fedskew.loop.plan import Local
from fedskew.loop.round import start
from fedskew.slots import Everyone, ServerSgd, Sgd, Uniform
from tests.reference import (
    SameForAll,
    apart,
    assert_close,
    f64,
    full_gradient,
    matrices,
    matrix_clients,
    optimum,
    ragged,
    real_batches,
    run,
    sized_pair,
    state_of,
    torch_sgd,
    train_plain,
    trajectory,
)
from tests.small import RAGGED, X0, Linear, exact_clients, play

OPTIONS = ["I", "II"]
WEIGHTINGS = ["uniform", "samples"]


# golden rounds: gradients w and 4 (w - 3), x = 1, eta = 0.1, two steps, sizes 1 and 3
#
# Round 0 has no variates: client 1 goes 1 -> 0.9 -> 0.81 (-0.19), client 2 goes 1 -> 1.8 -> 2.28 (+1.28).
# Option II  c_1 = 0.19 / 0.2 = 0.95,  c_2 = -1.28 / 0.2 = -6.4;   option I  c_1 = 1,  c_2 = -8, the gradients at x = 1.

GOLDEN = {
    # x = 1 + (1.28 - 0.19) / 2 = 1.545,  c = (0.95 - 6.4) / 2 = -2.725,  c - c_1 = -3.675,  c - c_2 = 3.675
    # client 1: d = 1.545 - 3.675 = -2.13 -> 1.758;   d = 1.758 - 3.675 = -1.917 -> 1.9497      delta 0.4047
    #           c_1 = 0.95 + 2.725 - 0.4047 / 0.2 = 1.6515
    # client 2: d = -5.82 + 3.675 = -2.145 -> 1.7595; d = -4.962 + 3.675 = -1.287 -> 1.8882     delta 0.3432
    #           c_2 = -6.4 + 2.725 - 0.3432 / 0.2 = -5.391
    # x = 1.545 + (0.4047 + 0.3432) / 2,  c = (1.6515 - 5.391) / 2
    ("II", "uniform"): ([1.545, 1.91895], [-2.725, -1.86975], [1.6515, -5.391]),
    # x = 1 + 0.25 * -0.19 + 0.75 * 1.28 = 1.9125,  c = 0.25 * 0.95 - 0.75 * 6.4 = -4.5625
    # client 1: c - c_1 = -5.5125:  d = -3.6 -> 2.2725;      d = -3.24 -> 2.5965       delta 0.684
    #           c_1 = 0.95 + 4.5625 - 0.684 / 0.2 = 2.0925
    # client 2: c - c_2 = 1.8375:   d = -4.35 + 1.8375 = -2.5125 -> 2.16375
    #                               d = -3.345 + 1.8375 = -1.5075 -> 2.3145            delta 0.402
    #           c_2 = -6.4 + 4.5625 - 0.402 / 0.2 = -3.8475
    # x = 1.9125 + 0.25 * 0.684 + 0.75 * 0.402,  c = 0.25 * 2.0925 - 0.75 * 3.8475
    ("II", "samples"): ([1.9125, 2.385], [-4.5625, -2.3625], [2.0925, -3.8475]),
    # x = 1.545,  c = (1 - 8) / 2 = -3.5
    # client 1: c - c_1 = -4.5:  d = -2.955 -> 1.8405;          d = -2.6595 -> 2.10645         delta 0.56145
    # client 2: c - c_2 = 4.5:   d = -5.82 + 4.5 -> 1.677;      d = -5.292 + 4.5 -> 1.7562     delta 0.2112
    # x = 1.545 + (0.56145 + 0.2112) / 2,  c_1 = 1.545,  c_2 = 4 (1.545 - 3) = -5.82,  c = -4.275 / 2
    ("I", "uniform"): ([1.545, 1.931325], [-3.5, -2.1375], [1.545, -5.82]),
    # x = 1.9125,  c = 0.25 - 6 = -5.75
    # client 1: c - c_1 = -6.75: d = -4.8375 -> 2.39625;        d = -4.35375 -> 2.831625       delta 0.919125
    # client 2: c - c_2 = 2.25:  d = -4.35 + 2.25 -> 2.1225;    d = -3.51 + 2.25 -> 2.2485     delta 0.336
    # x = 1.9125 + 0.25 * 0.919125 + 0.75 * 0.336,  c_1 = 1.9125,  c_2 = -4.35,  c = 0.478125 - 3.2625
    ("I", "samples"): ([1.9125, 2.39428125], [-5.75, -2.784375], [1.9125, -4.35]),
}


@pytest.mark.parametrize(("option", "weighting"), GOLDEN)
def test_golden_two_rounds(option: str, weighting: str) -> None:
    x, c, c_k = GOLDEN[option, weighting]
    outcomes, states = run(sized_pair(Scaffold(option=option, weighting=weighting)), [1.0], 2)
    assert_close(trajectory(outcomes)[:, 0], x)
    assert_close(torch.cat([o.server.state["c"] for o in outcomes]), c)
    assert_close(state_of(states, "c_k", 2, f64([0.0]))[:, 0], c_k)


# identities of the variates


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("selection", [Everyone(), Uniform(clients=3)], ids=["all", "three"])
def test_option_two_variate_is_the_mean_of_the_rounds_stochastic_gradients(weighting: str, selection) -> None:
    fed = ragged(Scaffold(weighting=weighting), selection=selection, solver=Sgd(lr=0.1, lr_decay=0.8))
    states, server = ClientStates(), None
    for t in range(3):
        before = state_of(states, "c_k", len(RAGGED), X0) if t else torch.zeros(len(RAGGED), len(X0)).double()
        c = server.state["c"] if t else torch.zeros_like(X0)
        outcome = play(fed, X0, t + 1, server=server, states=states)[-1]
        now = state_of(states, "c_k", len(RAGGED), X0)
        for k in outcome.work.clients:
            batches = real_batches(fed, t, int(k))
            x = outcome.work.view.x
            end, gradients = train_plain(x, batches, torch_sgd(fed.solver, t), correction=c - before[k])
            assert_close(now[k], gradients.mean(0))
            assert_close(x + outcome.done.uploads.delta[list(outcome.work.clients).index(k)], end)
        server = outcome.server


def test_option_one_variate_is_the_full_gradient_at_the_server_model() -> None:
    # 400 rows take two passes of at most 256
    fed = ragged(Scaffold(option="I"), sizes=[400, 17, 3], selection=Uniform(clients=2))
    states, server, seen = ClientStates(), None, {}
    for t in range(3):
        outcome = play(fed, X0, t + 1, server=server, states=states)[-1]
        for k in outcome.work.clients:
            rows = fed.partition.rows(int(k))
            seen[int(k)] = full_gradient(outcome.work.view.x, fed.x[rows], fed.y[rows])
        server = outcome.server
        table = state_of(states, "c_k", 3, X0)
        for k, gradient in seen.items():
            assert_close(table[k], gradient)


# reductions


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("rate", [1.0, 0.6])
def test_the_first_round_is_fedavgs(option: str, rate: float) -> None:
    server = ServerSgd(lr=rate)
    for weighting in WEIGHTINGS:
        ours = play(ragged(Scaffold(option=option, weighting=weighting), server=server), X0, 2)
        fedavg = play(ragged(FedAvg(weighting=weighting), server=server), X0, 2)
        assert_close(ours[0].server.x, fedavg[0].server.x)
        assert apart(ours[1].server.x, fedavg[1].server.x)


@pytest.mark.parametrize("option", OPTIONS)
def test_identical_clients_are_fedavg_only_with_full_participation(option: str) -> None:
    """With partial participation the stale variates of the absent do not cancel."""
    results = {}
    for algorithm in (Scaffold(option=option), FedAvg()):
        for selection in (Everyone(), Uniform(clients=2)):
            one = ragged(algorithm, sizes=[13] * 4, selection=selection)
            fed = replace(one, x=one.x[:13].repeat(4, 1), y=one.y[:13].repeat(4), planner=SameForAll(one.planner))
            results[type(algorithm), type(selection)] = trajectory(play(fed, X0, 4))
    assert_close(results[Scaffold, Everyone], results[FedAvg, Everyone])
    assert apart(results[Scaffold, Uniform], results[FedAvg, Uniform])


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("rate", [1.0, 1.6])
def test_one_full_batch_step_with_everyone_is_fedsgd(option: str, weighting: str, rate: float) -> None:
    """-eta (mean g + c - mean c_k) = -eta mean g."""
    local, server = Local(epochs=1, batch_size="all"), ServerSgd(lr=rate)
    ours = ragged(Scaffold(option=option, weighting=weighting), local=local, server=server)
    fedsgd = ragged(FedAvg(weighting=weighting), local=local, server=server)
    assert_close(trajectory(play(ours, X0, 4)), trajectory(play(fedsgd, X0, 4)))


# fixed points and limits


def at_fixed_point(fed, x, gradients) -> tuple[Server, ClientStates]:
    """The server at x with c = 0 and c_k = grad F_k(x)."""
    states = ClientStates()
    states.put(range(len(gradients)), {"c_k": gradients})
    return start(fed, x), states


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_the_optimum_with_its_gradients_does_not_move(option: str, weighting: str) -> None:
    """For any curvatures and step counts; FedAvg from there does move."""
    a, b = matrices(3)
    steps, sizes = (3, 5, 8), (1, 2, 4)
    pi = f64(sizes) / 7 if weighting == "samples" else f64([1, 1, 1]) / 3
    x = optimum(a, b, pi)
    fed = matrix_clients(a, b, steps, Scaffold(option=option, weighting=weighting), lr=0.2, sizes=sizes)
    server, states = at_fixed_point(fed, x, torch.einsum("kij,kj->ki", a, x - b))
    assert_close(play(fed, x, 3, server=server, states=states)[-1].server.x, x, 1e-13)
    fedavg = matrix_clients(a, b, steps, FedAvg(weighting=weighting), lr=0.2, sizes=sizes)
    assert apart(play(fedavg, x, 1)[0].server.x, x, 1e-3)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize(("rate", "lr", "steps"), [(1.0, 0.1, (2, 5)), (0.5, 0.2, (3, 3)), (1.3, 0.1, (3, 3))])
def test_reaches_the_uniform_optimum_at_any_server_rate_and_sizes(option, rate, lr, steps) -> None:
    """2.4 for h = (1, 4), b = (0, 3), although the samples optimum would be 36/13."""
    fed = sized_pair(Scaffold(option=option), steps, lr=lr, server=ServerSgd(lr=rate))
    assert_close(play(fed, [-1.0], 35)[-1].server.x, [2.4], 1e-8)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_sample_weights_reach_the_weighted_optimum(option: str, rate: float) -> None:
    # (1 * 1 * 0 + 3 * 4 * 3) / (1 * 1 + 3 * 4)
    fed = sized_pair(Scaffold(option=option, weighting="samples"), (3, 3), lr=0.1, server=ServerSgd(lr=rate))
    assert_close(play(fed, [-1.0], 50)[-1].server.x, [36 / 13], 1e-8)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_partial_participation_reaches_the_same_optimum(option: str, weighting: str) -> None:
    a, b = matrices(4)
    sizes = (1, 2, 4, 2)
    pi = f64(sizes) / 9 if weighting == "samples" else f64([1] * 4) / 4
    fed = matrix_clients(a, b, (2,) * 4, Scaffold(option=option, weighting=weighting), lr=0.2, sizes=sizes)
    fed = replace(fed, selection=Uniform(clients=2))
    assert_close(play(fed, [2.0, -1.0], 60)[-1].server.x, optimum(a, b, pi), 1e-8)


# solvers other than plain SGD


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_variates_on_linear_losses_are_the_gradients_at_any_momentum_and_rate(momentum: float) -> None:
    """The displacement is divided by eta_t ||a||_1; by eta_t tau it would diverge at momentum 0.9 from 4 steps on."""
    g = f64([[1.0, -2.0], [0.5, 3.0], [4.0, 0.0]])
    solver = Sgd(lr=0.1, momentum=momentum, lr_decay=0.5)
    fed = exact_clients(Linear(), g.tolist(), (2, 4, 10), Scaffold(), lr=None, solver=solver)
    states, server = ClientStates(), None
    for t in range(4):
        server = play(fed, [0.0, 0.0], t + 1, server=server, states=states)[-1].server
        assert_close(state_of(states, "c_k", 3, f64([0.0, 0.0])), g)
        assert_close(server.state["c"], g.mean(0))


def test_with_momentum_it_still_reaches_the_uniform_optimum() -> None:
    fed = sized_pair(Scaffold(), (10, 10), solver=Sgd(lr=0.01, momentum=0.9))
    assert_close(play(fed, [-1.0], 22)[-1].server.x, [2.4], 1e-8)


def test_weight_decay_enters_the_variate() -> None:
    """c_k is the mean of g + lambda y over the local path."""
    fed = exact_clients(Linear(), [[1.0], [3.0]], (3, 3), Scaffold(), lr=None, solver=Sgd(lr=0.1, weight_decay=0.5))
    _, states = run(fed, [2.0], 1)
    expected = []
    for g in (1.0, 3.0):
        y, seen = 2.0, []
        for _ in range(3):
            seen.append(g + 0.5 * y)
            y -= 0.1 * seen[-1]
        expected.append(sum(seen) / 3)
    assert_close(state_of(states, "c_k", 2, f64([0.0]))[:, 0], expected)
