"""Early stopping and the best round: what is stored, used and read; resume; refusals."""

import contextlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedskew.api.functions import run
from fedskew.core.errors import BadInput, Interrupted
from fedskew.execution.patience import Patience
from fedskew.execution.run import execute, register
from fedskew.experiment.config import from_toml
from fedskew.report.budgets import Budget
from fedskew.report.series import Results
from fedskew.serving.export import trained
from fedskew.store import checkpoints, test_rows
from fedskew.store.runs import RunStore
from fedskew.studies.evidence import values_of
from tests.blobs import DATA, numbers, small

HELD_OUT = {"held_out": 0.4, "number": 6}


def early(method: str = "fedavg", patience: int = 3, rounds: int = 12, **changes):
    """A run on a rate so high that its best round comes early."""
    settings = {"clients": HELD_OUT, "lr": 1.5, "training__patience": patience, **changes}
    return small(method, rounds, **settings)


def curve(runs, name: str = "clients/accuracy_mean") -> dict[int, float]:
    return {m.round: m.value for m in runs.store.curves(runs.ids, [name])}


def first_highest(curve: dict[int, float]) -> int:
    return max((r for r in curve if r), key=lambda r: (curve[r], -r))


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_training_ends_after_patience_rounds_without_a_better_one(engine: str, tmp_path: Path) -> None:
    whole = run(early(patience=100, engine=engine), data=DATA, runs=tmp_path / "whole")
    stopped = run(early(engine=engine), data=DATA, runs=tmp_path / "stopped")
    values, record = curve(stopped), stopped.records[0]
    best = first_highest(values)
    assert record.status == "finished"
    assert record.rounds_done == best + 3 < 12
    assert record.facts["best_round"] == record.used_round == best
    assert {r: v for r, v in curve(whole).items() if r <= record.rounds_done} == values


def test_the_best_rounds_model_is_used_and_read(tmp_path: Path) -> None:
    runs = run(early(), data=DATA, runs=tmp_path)
    best, store = runs.records[0].used_round, runs.store
    until = run(small("fedavg", best, clients=HELD_OUT, lr=1.5), data=DATA, runs=tmp_path / "until")
    assert torch.equal(trained(store, 1, dataset=DATA).w, trained(until.store, 1, dataset=DATA).w)
    x = torch.as_tensor(DATA.x_test)
    assert torch.equal(runs.model()(x), until.model()(x))
    ours, theirs = runs.table(), until.table()
    for column in ("accuracy", "worst_client", "accuracy_std"):
        np.testing.assert_equal(ours[column].to_numpy(), theirs[column].to_numpy())
    assert ours["after_round"].tolist() == [str(best)]
    stored = test_rows.read(store, [1])[1]
    assert stored.round == best
    np.testing.assert_array_equal(stored.values, test_rows.read(until.store, [1])[1].values)
    assert values_of(store, runs.records[0], "accuracy") == values_of(until.store, until.records[0], "accuracy")
    assert "at the best round" in Results(store, runs.records).read_after()
    # costs count all rounds
    assert ours["megabytes"].item() > theirs["megabytes"].item()


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "ditto"])
def test_a_run_that_is_stopped_after_each_round_ends_like_an_uninterrupted_one(method: str, tmp_path: Path) -> None:
    experiment = early(method)
    whole = run(experiment, data=DATA, runs=tmp_path / "whole")
    store = RunStore(tmp_path / "parts")
    number = register(store, from_toml(whole.records[0].experiment))
    while store.run(number).status != "finished":
        with contextlib.suppress(Interrupted):
            execute(store, number, DATA, stop=lambda: True)
    assert store.run(number).facts["best_round"] == whole.records[0].facts["best_round"]
    assert numbers(whole) == numbers(replace(whole, store=store))
    kept = [
        [checkpoints.rounds_in(p) for p in checkpoints.checkpoints_in(each.run_folder(1))]
        for each in (store, whole.store)
    ]
    assert all(whole.records[0].used_round in rounds and len(rounds) <= 3 for rounds in kept)
    client = 2 if method == "ditto" else None
    ours, theirs = (trained(each, 1, dataset=DATA, client=client).w for each in (store, whole.store))
    assert torch.equal(ours, theirs)


def test_personal_models_decide_and_the_best_rounds_are_used(tmp_path: Path) -> None:
    runs = run(early("ditto"), data=DATA, runs=tmp_path)
    best = first_highest(curve(runs, "personal/accuracy_mean"))
    assert runs.records[0].used_round == best
    until = run(small("ditto", best, clients=HELD_OUT, lr=1.5), data=DATA, runs=tmp_path / "until")
    ours, theirs = (trained(r.store, 1, dataset=DATA, client=2).w for r in (runs, until))
    assert torch.equal(ours, theirs)


def test_unseen_clients_measure_the_best_rounds_model(tmp_path: Path) -> None:
    clients = {"held_out": 0.4, "number": 6, "unseen": 0.4}
    settings = {"clients": clients, "selection": "everyone"}
    runs = run(early(**settings), data=DATA, runs=tmp_path)
    best = runs.records[0].used_round
    assert 0 < best < runs.records[0].rounds_done
    until = run(small("fedavg", best, lr=1.5, **settings), data=DATA, runs=tmp_path / "until")
    measured = [
        [(m.round, m.split, m.name, m.value) for m in r.store.curves([1], ["unseen/accuracy_adapted"])]
        for r in (runs, until)
    ]
    assert measured[0] == measured[1] != []


def test_a_budget_reads_the_last_round_within_it_or_the_best_before(tmp_path: Path) -> None:
    runs = run(early(), data=DATA, runs=tmp_path)
    best = runs.records[0].used_round
    for rounds in (best - 1, best + 2):
        table = Results(runs.store, runs.records, Budget("rounds", rounds)).summary
        assert table["after_round"].tolist() == [str(min(rounds, best))]


def test_lower_scores_are_better_where_the_metric_says_so_and_a_small_gain_is_none() -> None:
    scores = [3.0, 2.0, 1.9, 1.95, 1.0]
    rows = [[(None, "global-model", "rmse", 0.0), (3, "global-model", "rmse", score)] for score in scores]
    patience = Patience("global-model", "rmse", -1, 0.5, 2)
    assert [patience.after(r + 1, of_round) for r, of_round in enumerate(rows)] == [True, True, False, False, True]
    assert (patience.best, patience.scores, patience.ended) == (5, {3: -1.0}, False)
    assert Patience("global-model", "rmse", -1, 0.5, None).after(1, rows[0]) is False


def test_a_round_is_not_the_best_one_because_its_worst_client_did_not_answer() -> None:
    rounds = [{0: 0.9, 1: 0.1}, {0: 0.8}, {1: 0.2}, {2: 1.0}, {0: 0.1, 1: 0.9}]
    patience = Patience("global-model", "accuracy", 1, 0.0, 3)
    better = [
        patience.after(r + 1, [(k, "global-model", "accuracy", score) for k, score in scores.items()])
        for r, scores in enumerate(rounds)
    ]
    assert better == [True, False, True, False, True]
    assert patience.best == 5


def test_rounds_that_are_not_measured_do_not_count(tmp_path: Path) -> None:
    runs = run(early(patience=2, evaluation={"every": 2}), data=DATA, runs=tmp_path)
    best = first_highest(curve(runs))
    assert (best % 2, runs.records[0].rounds_done) == (0, best + 4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clients": {"number": 6, "held_out": 0.0}}, "patience needs rows that clients hold out"),
        ({"training__states": "disk"}, "set training.states to memory"),
        ({"skew": ("iid", "concept-swap:at_round=2,clusters=1")}, "a round before the change would be the best"),
        ({"algorithm": "dp-fedavg", "selection": {"name": "poisson", "rate": 0.1}}, "patience chooses a round by the"),
    ],
)
def test_settings_that_cannot_keep_a_best_round_are_refused(changes: dict, message: str, tmp_path: Path) -> None:
    method = changes.pop("algorithm", "fedavg")
    with pytest.raises(BadInput, match=message):
        run(early(method, **changes), data=DATA, runs=tmp_path)


def test_the_gain_needs_patience_and_neither_is_in_the_file_by_default() -> None:
    with pytest.raises(BadInput, match="least_gain has no effect without patience"):
        small(training__least_gain=0.5)
    assert "patience" not in small().toml()
    experiment = early(training__least_gain=0.5)
    assert from_toml(experiment.toml()) == experiment
