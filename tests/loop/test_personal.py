"""Evaluation of personal models: their view, their tuning, their rows. Engines agree."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from fedskew.algorithms import FedAvg, Scaffold
from fedskew.api.functions import run
from fedskew.core.algorithm import Algorithm
from fedskew.core.errors import Diverged
from fedskew.core.records import Batch, Carry, ServerView, Upload, View
from fedskew.engine.sequential import Sequential
from fedskew.engine.stacked import Stacked
from fedskew.engine.states import ClientStates
from fedskew.execution.build import assemble
from fedskew.loop.evaluate import evaluate, evaluate_clients
from fedskew.loop.federation import Federation, PersonalTuning
from fedskew.loop.personal import adaptation_curve, evaluate_personal, measures_personal, personal_models
from fedskew.loop.plan import Local, SeededPlanner, System
from fedskew.loop.round import start
from fedskew.loop.sharing import Intercepts
from fedskew.slots import Random, Sgd, TopK, Uniform
from fedskew.tasks.classification import Classification
from tests.blobs import DATA, numbers, small
from tests.reference import PAIR, apart, assert_close, f64, network, torch_sgd, train_plain
from tests.small import RAGGED, TASK, X0, Quadratic, StepsOf, exact_clients, play, ragged

ENGINES = [Sequential(), Stacked(), Stacked(width=2)]
EVERYBODY = np.arange(len(RAGGED))


@dataclass(frozen=True, kw_only=True)
class Counted(Algorithm):
    """The personal model is the global one, plus how often the client took part, a number from the server, and its rows."""

    def server_init(self, server: ServerView) -> Any:
        return {"rounds": server.x.new_zeros(())}

    def broadcast(self, server: ServerView) -> Any:
        return {"rounds": server.state["rounds"]}

    def client_init(self, x: Tensor) -> Any:
        return {"times": x.new_zeros(())}

    def before(self, task: Any, view: View, batch: Batch) -> Any:
        # the sum sees the model, too: at another one it would be another
        return {"rows": batch.mask.sum() * view.x[0]}

    def local_final(self, solver: Any, view: View, carry: Carry, after: Any) -> Any:
        return Upload(carry.w - view.x, {}, {}), {"times": view.state["times"] + 1}

    def aggregate(self, server: ServerView, cohort: Any) -> Any:
        return self.mean_delta(server, cohort), {"rounds": server.state["rounds"] + 1}

    def personal(self, view: View) -> Tensor:
        return view.x + 0.1 * view.state["times"] + 0.01 * view.extras["rounds"] + 0.001 * view.before["rows"]


def loss_of(fed: Federation, w: Tensor, client: int) -> float:
    rows = torch.as_tensor(fed.partition.measured_rows(client))
    return evaluate(fed.task, w, fed.x[rows], fed.y[rows])["loss"]


@pytest.mark.parametrize("engine", ENGINES, ids=repr)
def test_personal_models_see_the_new_global_model(monkeypatch, engine) -> None:
    """They also get the new broadcast, the client's state or a new one, and the sums over the data at the new model."""
    monkeypatch.setattr("fedskew.loop.personal.CLIENTS", 3)
    fed = ragged(Counted(), selection=Uniform(clients=4))
    states = ClientStates()
    outcomes = play(fed, X0, 3, engine, states=states)
    times = np.bincount(np.concatenate([o.work.clients for o in outcomes]), minlength=7)
    assert times.min() == 0
    server = outcomes[-1].server
    expected = [loss_of(fed, server.x + 0.1 * times[k] + 0.03 + 0.001 * RAGGED[k] * server.x[0], k) for k in EVERYBODY]
    scores = evaluate_personal(fed, engine, server, states, EVERYBODY)
    assert_close(scores["loss"], expected)
    some = evaluate_personal(fed, engine, server, states, np.array([2, 5]))
    assert_close(some["loss"], [expected[2], expected[5]])


@pytest.mark.parametrize("engine", ENGINES, ids=repr)
def test_tuning_matches_the_numbers_by_hand(engine) -> None:
    """f = h/2 (w - b)^2 with h = (1, 4), b = (0, 3) from x = 1: two steps at 0.1 give 0.81, and 3 - 2 * 0.6^2 = 2.28."""
    fed = exact_clients(Quadratic(), PAIR, (3, 3), FedAvg(), lr=0.5)
    fed = replace(fed, tuning=PersonalTuning(StepsOf((2, 2)), 0.1))
    scores = evaluate_personal(fed, engine, start(fed, f64([1.0])), ClientStates(), np.arange(2))
    assert_close(scores["loss"], [0.81**2 / 2, 2 * 0.72**2])
    fed = replace(fed, tuning=PersonalTuning(StepsOf((1, 1)), None), solver=Sgd(lr=0.2, lr_decay=0.5))
    server = start(fed, f64([1.0]))._replace(round=1)  # the rate of round 1 is 0.1: 0.9 and 1 + 0.8
    scores = evaluate_personal(fed, engine, server, ClientStates(), np.arange(2))
    assert_close(scores["loss"], [0.9**2 / 2, 2 * 1.2**2])


@pytest.mark.parametrize("engine", ENGINES, ids=repr)
@pytest.mark.parametrize("solver", [Sgd(lr=0.1), Sgd(lr=0.05, momentum=0.9, weight_decay=0.1)], ids=["sgd", "momentum"])
def test_tuning_is_plain_training_from_the_global_model(engine, solver) -> None:
    """Also for SCAFFOLD, without its control variates."""
    planner = SeededPlanner(Local(steps=3, batch_size=7), 7, purpose="tuning")
    fed = replace(ragged(Scaffold(), solver=solver), tuning=PersonalTuning(planner, None))
    states = ClientStates()
    server = play(fed, X0, 2, states=states)[-1].server
    expected = []
    for k in EVERYBODY:
        plan = planner.train(server.round, int(k), fed.partition.rows(int(k)))
        batches = [torch.as_tensor(rows[mask == 1]) for rows, mask in zip(plan.index, plan.mask, strict=True)]
        w, _ = train_plain(server.x, [(fed.x[b], fed.y[b]) for b in batches], torch_sgd(solver))
        expected.append(loss_of(fed, w, int(k)))
    scores = evaluate_personal(fed, engine, server, states, EVERYBODY)
    assert_close(scores["loss"], expected)
    assert apart(scores["loss"], [loss_of(fed, server.x, int(k)) for k in EVERYBODY], 1e-3)


def test_personal_models_are_the_tuned_ones(monkeypatch) -> None:
    """Three clients at a time, at the learning rate of the round."""
    monkeypatch.setattr("fedskew.loop.personal.CLIENTS", 3)
    planner = SeededPlanner(Local(steps=1, batch_size="all"), 7, purpose="tuning")
    fed = replace(ragged(FedAvg(), solver=Sgd(lr=0.1, lr_decay=0.5)), tuning=PersonalTuning(planner, None))
    server = start(fed, X0)._replace(round=2)
    models = personal_models(fed, Sequential(), server, ClientStates(), EVERYBODY)
    assert_close(models, torch.stack([stepped(fed, X0, k, 0.025) for k in EVERYBODY]))


def stepped(fed: Federation, w: Tensor, client: int, lr: float) -> Tensor:
    """The model after one step on all rows of a client."""
    rows = torch.as_tensor(fed.partition.rows(client))
    return train_plain(w, [(fed.x[rows], fed.y[rows])], torch_sgd(Sgd(lr=lr)))[0]


class Balanced(Classification):
    primary: ClassVar[str] = "balanced_accuracy"


@dataclass(frozen=True)
class Turning:
    """Targets that move on by one class each round."""

    y: Tensor

    def at(self, round_: int) -> Tensor:
        return (self.y + round_) % 3


@pytest.mark.parametrize("kind", [Classification(), Balanced()], ids=["accuracy", "pooled metric"])
def test_personal_models_are_tuned_and_measured_on_the_targets_of_the_round(kind) -> None:
    tuning = PersonalTuning(SeededPlanner(Local(steps=3, batch_size=7), 7, purpose="tuning"), None)
    fed = replace(ragged(FedAvg()), tuning=tuning, task=replace(TASK, kind=kind))
    server = start(fed, X0)._replace(round=1)
    ours, theirs = (
        evaluate_personal(of, Sequential(), server, ClientStates(), EVERYBODY)
        for of in (replace(fed, moving=Turning(fed.y)), replace(fed, y=(fed.y + 1) % 3))
    )
    assert kind.primary in ours
    for name, values in theirs.items():
        assert_close(ours[name], values)


@dataclass(frozen=True, kw_only=True)
class Offset(Algorithm):
    """The personal model is the global one, plus a number that depends on the rows of all clients that train."""

    def broadcast(self, server: ServerView) -> Any:
        return {"rows": server.clients.num_examples.sum()}

    def personal(self, view: View) -> Tensor:
        return view.x + 0.001 * view.extras["rows"]


def test_unseen_clients_adapt_what_clients_in_training_receive(monkeypatch) -> None:
    """Two at a time, at the learning rate of the round, without intercepts."""
    monkeypatch.setattr("fedskew.loop.personal.CLIENTS", 2)
    fed = replace(
        ragged(Offset(), solver=Sgd(lr=0.1, lr_decay=0.5)), intercepts=Intercepts(torch.arange(3), f64([[9.0] * 3] * 7))
    )
    server, clients = start(fed, X0)._replace(round=2), np.array([1, 2, 6])
    tuning = PersonalTuning(SeededPlanner(Local(steps=1, batch_size="all"), 7), None)
    curve = adaptation_curve(fed, Sequential(), server, fed.partition.only(clients), tuning, np.arange(3))
    models = [stepped(fed, X0 + 0.001 * sum(RAGGED), k, 0.025) for k in clients]
    assert_close(curve[-1]["loss"], [loss_of(fed, w, k) for w, k in zip(models, clients, strict=True)])


def test_without_tuning_or_personal_models_the_global_model_is_measured_once() -> None:
    fed = ragged(FedAvg())
    assert not measures_personal(fed)
    assert measures_personal(replace(fed, tuning=PersonalTuning(fed.planner, None)))
    assert measures_personal(ragged(Counted()))
    server = play(fed, X0, 1)[-1].server
    ours = evaluate_personal(fed, Sequential(), server, ClientStates(), EVERYBODY)
    theirs = evaluate_clients(fed.task, server.x, fed.x, fed.y, fed.partition, EVERYBODY)
    for name in theirs:
        assert_close(ours[name], theirs[name])


@pytest.mark.parametrize("engine", ENGINES, ids=repr)
def test_stragglers_dropouts_and_devices_do_not_affect_evaluation(engine) -> None:
    """All personal models are measured after the same number of steps."""
    plain = replace(ragged(Counted()), tuning=PersonalTuning(SeededPlanner(Local(steps=3), 7, purpose="tuning"), None))
    bad = System(stragglers=1.0, drop_stragglers=True, dropout=0.9)
    states = ClientStates()
    server = play(plain, X0, 2, states=states)[-1].server
    expected = evaluate_personal(plain, engine, server, states, EVERYBODY)
    for system in (bad, replace(bad, drop_stragglers=False, dropout=0.0)):
        fed = replace(plain, system=system, availability=Random(p=0.05), codec=TopK(share=0.1))
        beside = ClientStates()
        beside.put(*known_with_a_memory(states))
        scores = evaluate_personal(fed, engine, server, beside, EVERYBODY)
        assert all(torch.equal(scores[name], value) for name, value in expected.items())


def known_with_a_memory(states: ClientStates) -> tuple[Any, Any]:
    """The clients' states, with the memory of a codec beside them."""
    ids, rows = states.export()
    return ids, {"algorithm": rows, "codec": {"error": torch.ones(len(ids), len(X0), dtype=torch.float64)}}


def test_the_tuning_of_a_run_is_the_same_on_every_device() -> None:
    options = {"evaluation": {"adapt_steps": 2}, "system": {"batch_sizes": "2-6", "epochs": "1-3"}}
    tuning = assemble(small(**options), DATA).federation.tuning
    plain = assemble(small(evaluation={"adapt_steps": 2}), DATA).federation.tuning
    assert tuning == plain


def test_clients_without_held_out_rows_are_nan() -> None:
    fed = ragged(Counted())
    offsets = np.array([0, 0, 2, 5, 5, 6, 8, 9])
    fed = replace(fed, partition=replace(fed.partition, held_out=(np.arange(9), offsets)))
    server = start(fed, X0)
    for engine in ENGINES:
        scores = evaluate_personal(fed, engine, server, ClientStates(), EVERYBODY)
        assert scores["loss"].isnan().tolist() == [True, False, False, True, False, False, False]
        w = X0 + 0.001 * RAGGED[1] * X0[0]
        correct = network(w)(fed.x[:2])[1].argmax(1) == fed.y[:2]
        assert_close(scores["accuracy"][1], correct.double().mean().item())


# stored runs


def test_a_run_stores_tuned_models_of_every_client_and_their_summary(tmp_path) -> None:
    tuned = {"adapt_steps": 20, "adapt_lr": 0.2}
    runs = run(small(evaluation=tuned, clients={"number": 6, "held_out": 0.3}), data=DATA, runs=tmp_path)
    frame = runs.measurements().query("round == 4")
    rows = frame.query("split == 'personal-model' and name == 'accuracy'")["value"].sort_values().to_numpy()
    assert len(rows) == 6
    summary = frame.query("split == 'personal'").set_index("name")["value"]
    assert summary["accuracy_mean"] == pytest.approx(rows.mean())
    assert summary["accuracy_worst"] == summary["accuracy_worst_decile"] == rows[0]
    first = runs.measurements().query("round == 0 and client.isna()").set_index(["split", "name"])["value"]
    assert first["personal", "accuracy_mean"] > first["clients", "accuracy_mean"] + 0.2, "from the untrained model"
    table = runs.table()
    assert table["personal"][0] == pytest.approx(rows.mean())
    assert set(runs.measurements().query("split == 'personal'")["round"]) == {0, 1, 2, 3, 4}


def test_tuning_changes_nothing_else(tmp_path) -> None:
    bare = run(small("scaffold"), data=DATA, runs=tmp_path / "bare")
    tuned = run(small("scaffold", evaluation={"adapt_steps": 2}), data=DATA, runs=tmp_path / "tuned")
    assert [row for row in numbers(tuned) if not row[2].startswith("personal")] == numbers(bare)
    assert len(numbers(tuned)) > len(numbers(bare))


def test_a_tuning_that_diverges_is_reported(tmp_path) -> None:
    with pytest.raises(Diverged, match="personal model is no longer finite; most likely cause: adapt_lr 1e\\+30"):
        run(small(evaluation={"adapt_steps": 8, "adapt_lr": 1e30}), data=DATA, runs=tmp_path)
