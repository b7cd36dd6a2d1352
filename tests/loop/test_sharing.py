"""Clients that keep a part of the model: FedPer, FedBN, local-only, and parts between them."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedskew.algorithms import FedAvg, FedProx
from fedskew.core.algorithm import Algorithm
from fedskew.core.component import build
from fedskew.core.records import Upload
from fedskew.core.seeding import torch_stream
from fedskew.engine.sequential import Sequential
from fedskew.engine.stacked import Stacked
from fedskew.engine.states import ClientStates
from fedskew.loop.evaluate import evaluate
from fedskew.loop.federation import Federation
from fedskew.loop.inexactness import inexactness
from fedskew.loop.personal import evaluate_personal
from fedskew.loop.sharing import PART, OwnPart
from fedskew.slots import CODECS, Personal, Sgd, Uniform
from fedskew.slots.codecs import encode
from tests.reference import (
    assert_close,
    f64,
    matrix_clients,
    ragged,
    real_batches,
    square_distance,
    state_of,
    torch_sgd,
    train_plain,
)
from tests.small import NET, RAGGED, TASK, X0, classifier, play

ENGINES = [Sequential(), Stacked(), Stacked(width=2)]
P = len(X0)
HEAD = Personal().kept(NET, TASK.space)
EVERYBODY = np.arange(len(RAGGED))


def keeping(fed: Federation, at) -> Federation:
    return replace(fed, own_part=OwnPart.of(torch.as_tensor(at, dtype=torch.long), P if fed.task is TASK else 2))


@pytest.mark.parametrize("engine", [Sequential(), Stacked()], ids=repr)
@pytest.mark.parametrize("solver", [Sgd(lr=0.1), Sgd(lr=0.05, momentum=0.9, weight_decay=0.1)], ids=["sgd", "momentum"])
def test_if_all_parameters_are_kept_clients_train_alone_and_send_nothing(engine, solver) -> None:
    fed = keeping(ragged(FedAvg(), solver=solver, selection=Uniform(clients=4)), range(P))
    states = ClientStates()
    outcomes = play(fed, X0, 3, engine, states=states)
    alone = {int(k): X0 for k in EVERYBODY}
    for t, outcome in enumerate(outcomes):
        assert torch.equal(outcome.server.x, X0)
        assert outcome.bytes_down == outcome.bytes_up == 0
        for k in map(int, outcome.work.clients):
            alone[k], _ = train_plain(alone[k], real_batches(fed, t, k), torch_sgd(solver, t))
    table = state_of(states, PART, 7, X0)
    for k in states.place:
        assert_close(table[k], alone[k])


@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_a_client_starts_from_the_shared_part_and_its_own_part_and_trains_both(mu: float) -> None:
    """Against an ordinary loop. FedProx pulls the own part towards its value at the start of the round."""
    fed = keeping(ragged(FedProx(mu=mu), selection=Uniform(clients=4)), HEAD)
    outcomes = play(fed, X0, 3)
    own, x = {int(k): X0[HEAD] for k in EVERYBODY}, X0
    for t, outcome in enumerate(outcomes):
        shared = []
        for k in map(int, outcome.work.clients):
            start = x.index_copy(0, HEAD, own[k])
            extra = lambda net, _, start=start: mu / 2 * square_distance(net, start)  # noqa: E731
            w, _ = train_plain(start, real_batches(fed, t, k), torch_sgd(fed.solver), extra=extra)
            own[k], shared = w[HEAD], [*shared, w]
        p = f64([RAGGED[k] for k in outcome.work.clients])
        x = (p / p.sum() @ torch.stack(shared)).index_copy(0, HEAD, X0[HEAD])
        assert_close(outcome.server.x, x)
        vector = 8 * (P - len(HEAD))
        assert outcome.bytes_down == outcome.bytes_up == 4 * vector


@dataclass(frozen=True, kw_only=True)
class Probing(Algorithm):
    """Every hook reports the squared norm of its model. The server's step is nowhere 0."""

    def server_init(self, server: Any) -> Any:
        return {"squares": server.x.new_zeros(server.num_clients)}

    def convene(self, server: Any, candidates: Any, answers: Any) -> Any:
        return {"squares": answers["square"]}, candidates.index

    def answer(self, view: Any) -> Any:
        return {"square": view.x.square().sum()}

    def before(self, task: Any, view: Any, batch: Any) -> Any:
        return {"square": batch.mask.sum() * view.x.square().sum()}

    def after(self, task: Any, view: Any, w: Any, batch: Any) -> Any:
        return {"square": batch.mask.sum() * view.x.square().sum()}

    def local_final(self, solver: Any, view: Any, carry: Any, after: Any) -> Any:
        n = view.info.num_examples
        report = {"before": view.before["square"] / n, "after": after["square"] / n, "final": view.x.square().sum()}
        return Upload(carry.w - view.x, {}, report), view.state

    def aggregate(self, server: Any, cohort: Any) -> Any:
        return self.mean_delta(server, cohort) + 1, server.state

    def personal(self, view: Any) -> Any:
        return view.x + view.before["square"] / view.info.num_examples


@pytest.mark.parametrize("engine", [Sequential(), Stacked()], ids=repr)
def test_every_hook_sees_the_clients_own_model(engine) -> None:
    fed = keeping(ragged(Probing()), HEAD)
    states = ClientStates()
    first = play(fed, X0, 1, engine, states=states)[0]
    own = state_of(states, PART, 7, X0[HEAD])
    starts = torch.stack([first.server.x.index_copy(0, HEAD, own[k]) for k in EVERYBODY])
    second = play(fed, X0, 2, engine, server=first.server, states=states)[-1]
    for squares in (*second.done.uploads.report.values(), second.server.state["squares"]):
        assert_close(squares, starts.square().sum(1))
    assert torch.equal(second.server.x[HEAD], X0[HEAD]), "the server moved a kept entry"
    kept = 8 * (P - len(HEAD))
    assert (second.bytes_down, second.bytes_up) == (7 * kept, 7 * (kept + 3 * 8) + 7 * 8)
    own = state_of(states, PART, 7, X0[HEAD])
    after = torch.stack([second.server.x.index_copy(0, HEAD, own[k]) for k in EVERYBODY])
    scores = evaluate_personal(fed, engine, second.server, states, EVERYBODY)
    expected = []
    for k in EVERYBODY:
        rows = torch.as_tensor(fed.partition.rows(k))
        expected.append(evaluate(TASK, after[k] + after[k].square().sum(), fed.x[rows], fed.y[rows])["loss"])
    assert_close(scores["loss"], expected)


CODED = ["top-k:share=0.1", "top-k:share=0.2,scope=layer", "qsgd:levels=3,bucket=16", "int8", "clip:norm=0.05"]


def coded(spec: str, at, **options) -> Federation:
    fed = keeping(ragged(FedAvg(), selection=Uniform(clients=4), **options), at)
    return replace(fed, codec=build("codec", CODECS, spec))


@pytest.mark.parametrize("spec", [*CODED, "int8:rounding=stochastic,error_feedback=true"])
@pytest.mark.parametrize("at", [HEAD, list(range(56))], ids=["head", "body"])
def test_a_codec_encodes_only_the_shared_entries(spec: str, at) -> None:
    """Against the codec on the shared layer of a one-layer model, over two rounds with its memory."""
    fed = coded(spec, at)
    alone = nn.Sequential(nn.Linear(*((6, 8) if len(at) == len(HEAD) else (8, 3))))
    model = classifier(alone, 3)
    states, shared = ClientStates(), torch.tensor([i for i in range(P) if i not in torch.as_tensor(at).tolist()])
    memories: dict[int, Tensor] = {}
    x = X0
    server = None
    for t in range(2):
        outcome = play(fed, X0, t + 1, server=server, states=states)[-1]
        server, clients = outcome.server, list(map(int, outcome.work.clients))
        rows = outcome.done.uploads.delta[:, shared]
        draws = torch.stack(
            [torch.rand(len(shared), generator=torch_stream(7, "codec", t, k), dtype=torch.float64) for k in clients]
        )
        memory = {"error": torch.stack([memories.get(k, torch.zeros(len(shared)).double()) for k in clients])}
        memory = memory if fed.codec.init(X0) else {}
        _, sent, left, size = encode(fed.codec, rows, memory, draws if fed.codec.random else None, model)
        memories |= dict(zip(clients, left["error"], strict=True)) if left else {}
        p = f64([RAGGED[k] for k in clients])
        x = x.index_add(0, shared, p / p.sum() @ sent)
        assert_close(server.x, x)
        assert outcome.bytes_up == 4 * size
        assert outcome.bytes_down == 4 * 8 * len(shared)
    if fed.codec.init(X0):
        kept = states.export()[1]
        assert set(kept) == {"algorithm", "codec"}
        assert kept["algorithm"][PART].shape == (len(states.place), P - len(shared))
        assert_close(kept["codec"]["error"], torch.stack([memories[k] for k in states.place]))


@pytest.mark.parametrize("spec", CODED)
def test_a_codec_sends_nothing_if_nothing_is_shared(spec: str) -> None:
    outcomes = play(coded(spec, range(P)), X0, 3)
    assert [(o.bytes_down, o.bytes_up) for o in outcomes] == [(0, 0)] * 3
    assert torch.equal(outcomes[-1].server.x, X0)


@pytest.mark.parametrize("engine", [Sequential(), Stacked()], ids=repr)
def test_inexactness_is_measured_at_the_models_that_clients_train(engine) -> None:
    """A quadratic in two numbers, the second kept: in round 1 client 1 goes from (1.85, 0.1) to (1.77, 0.195)."""
    a, b = f64([[[1, 0], [0, 1]], [[2, 1], [1, 2]]]), f64([[0, 0], [1, 1]])
    fed = keeping(matrix_clients(a, b, (1, 1), FedAvg(), lr=0.1), [1])
    gamma = inexactness(fed, engine, play(fed, [2.0, 0.0], 2, engine)[1])
    start, end = f64([0.8, -0.95]), a[1] @ f64([0.77, -0.805])
    assert_close(gamma, [0.9, float(end.norm() / start.norm())])
