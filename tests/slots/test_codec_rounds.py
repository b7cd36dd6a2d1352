"""Whole rounds under a codec: what the server gets, what clients keep, what is resumed."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedskew.algorithms import FedDyn
from fedskew.core.seeding import torch_stream
from fedskew.engine.sequential import Sequential
from fedskew.engine.states import ClientStates
from fedskew.loop.round import transmit
from fedskew.slots import Qsgd, ServerSgd, TopK
from tests.methods import federation, halfway
from tests.reference import apart, assert_close, f64, trajectory
from tests.slots.test_codecs import LOSSY, codec
from tests.small import RAGGED, X0, Linear, exact_clients, play


def memories(states: ClientStates) -> Tensor:
    """Return the memories (K, P) of all seven clients. Clients that never took part have 0."""
    ids, tree = states.export()
    table = torch.zeros(7, len(X0), dtype=torch.float64)
    if len(ids):
        table[torch.as_tensor(ids)] = tree["codec"]["error"]
    return table


@pytest.mark.parametrize("method", ["fedavg", "feddyn:alpha=0.2"])
def test_memories_belong_to_clients_and_the_server_gets_what_is_decoded(method: str) -> None:
    """x moves by eta sum p (Delta + e_old - e_new). Weights apply after compression. Absent clients keep their memory."""
    fed = replace(federation(method, server=ServerSgd(lr=0.7)), codec=TopK(share=0.1))
    states, server = ClientStates(), None
    for t in range(4):
        before = memories(states)
        x = server.x if server else X0
        outcome = play(fed, X0, t + 1, server=server, states=states)[-1]
        server, clients = outcome.server, torch.as_tensor(outcome.work.clients)
        now = memories(states)
        sent = outcome.done.uploads.delta + (before - now)[clients]
        assert ((sent.abs() > 1e-14).sum(1) == 8).all()
        absent = [k for k in range(7) if k not in clients]
        assert torch.equal(now[absent], before[absent])
        if method == "fedavg":
            n = f64(RAGGED)[clients]
            assert_close(server.x, x + 0.7 * (n / n.sum()) @ sent)
    tree = states.export()[1]
    assert set(tree) == ({"codec"} if method == "fedavg" else {"algorithm", "codec"})
    assert method == "fedavg" or (tree["algorithm"]["g_k"].abs().amax(1) > 0).all()


def test_without_error_feedback_nothing_is_kept() -> None:
    states = ClientStates()
    play(replace(federation("fedavg"), codec=TopK(share=0.1, error_feedback=False)), X0, 2, states=states)
    assert states.export()[1] == {}
    states = ClientStates()
    play(replace(federation("feddyn"), codec=Qsgd()), X0, 2, states=states)
    assert set(states.export()[1]) == {"g_k"}


# whole rounds


@pytest.mark.first
@pytest.mark.parametrize(
    "spec",
    ["none", "top-k:share=1.0", "top-k:share=1.0,scope=layer", "clip:norm=1e9", "qsgd:levels=35184372088832"],
)
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "feddyn:alpha=0.2"])
def test_a_codec_that_loses_nothing_changes_nothing(spec: str, method: str) -> None:
    fed = federation(method)
    plain, coded = play(fed, X0, 3), play(replace(fed, codec=codec(spec)), X0, 3)
    assert_close(trajectory(coded), trajectory(plain), 1e-11)
    if not spec.startswith("qsgd"):
        assert [o.bytes_up for o in coded] == [o.bytes_up for o in plain]


@pytest.mark.parametrize("spec", LOSSY)
def test_a_codec_changes_the_server_and_not_the_clients_of_the_first_round(spec: str) -> None:
    """Drift, updates and local models are measured before compression."""
    fed = federation("fedavg")
    (plain,), (coded,) = play(fed, X0, 1), play(replace(fed, codec=codec(spec)), X0, 1)
    assert apart(coded.server.x, plain.server.x)
    assert torch.equal(coded.done.uploads.delta, plain.done.uploads.delta)
    assert all(torch.equal(value, plain.measures[name]) for name, value in coded.measures.items())
    assert coded.bytes_up <= plain.bytes_up
    assert coded.bytes_down == plain.bytes_down


@pytest.mark.parametrize("spec", LOSSY)
def test_a_message_does_not_depend_on_who_else_takes_part(spec: str) -> None:
    """Messages are bitwise equal, with memories from two rounds."""
    fed = replace(federation("fedavg"), codec=codec(spec))
    _, _, work = halfway(fed)
    done = Sequential().run(fed.program, work, fed.x, fed.y)
    sent, kept, size = (transmit(fed, work, done)[i] for i in (0, 3, 4))
    for i in range(4):
        alone = work._replace(clients=work.clients[[i]], memory={k: v[[i]] for k, v in work.memory.items()})
        one = done.uploads._replace(delta=done.uploads.delta[[i]])
        own, mine, part = (transmit(fed, alone, done._replace(uploads=one))[i] for i in (0, 3, 4))
        assert torch.equal(own.delta[0], sent.delta[i])
        assert part * 4 == size
        assert all(torch.equal(mine["codec"][name][0], value[i]) for name, value in kept.get("codec", {}).items())


def test_draws_are_the_clients_own() -> None:
    fed = replace(federation("fedavg"), codec=Qsgd(levels=1, bucket="all"))
    _, _, work = halfway(fed)
    done = Sequential().run(fed.program, work, fed.x, fed.y)
    sent = transmit(fed, work, done)[0].delta
    for i, k in enumerate(work.clients):
        u = torch.rand(83, generator=torch_stream(7, "codec", 2, int(k)), dtype=torch.float64)
        v = done.uploads.delta[i]
        assert_close(sent[i], torch.where(u < v.abs() / v.norm(), v.norm() * v.sign(), 0.0))


def test_golden_round_of_feddyn_under_a_codec() -> None:
    """Linear losses, alpha = 1, one step of 0.5 from 0.

    Client 1 moves by (1, -3) and sends (0, -3), client 2 by (-2, 1) and sends (-2, 0).
    g_k = -(what is sent), h = -sum / 2 = (1, 1.5), and x = (-1, -1.5) - h.
    """
    fed = exact_clients(Linear(), [[-2.0, 6.0], [4.0, -2.0]], (1, 1), FedDyn(alpha=1.0), lr=0.5)
    states = ClientStates()
    server = play(replace(fed, codec=TopK(share=0.5)), [0.0, 0.0], 1, states=states)[-1].server
    kept = states.export()[1]
    assert_close(kept["algorithm"]["g_k"], [[0, 3], [2, 0]])
    assert_close(kept["codec"]["error"], [[1, 0], [0, 1]])
    assert_close(server.state["h"], [1, 1.5])
    assert_close(server.x, [-2, -3])
