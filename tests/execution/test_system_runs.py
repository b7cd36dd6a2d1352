"""Experiments with slow, failing and absent clients: described, stored, resumed, reported."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedskew as fs
from fedskew.api.functions import run
from fedskew.cli.main import main
from fedskew.cli.train import described
from fedskew.core.errors import BadInput, TooFew
from fedskew.execution.build import assemble
from fedskew.experiment.config import Experiment, from_toml
from fedskew.loop.plan import System
from fedskew.slots import DayNight, Random
from fedskew.store.runs import RunStore
from tests.blobs import DATA, assert_resumes_exactly, small
from tests.commands import line_of, output_of

torch.set_num_threads(1)

HARSH: dict[str, Any] = {
    "system": {"stragglers": 0.5, "dropout": 0.3, "epochs": "2-4", "batch_sizes": [4, 8]},
    "availability": "day-night:period=4",
}


def harsh(method: str = "fedavg", **changes: Any) -> Experiment:
    return small(method, rounds=6, **(HARSH | changes))


def by_round(runs: Any, name: str, split: str = "round") -> dict[int, float]:
    frame = runs.measurements().query("split == @split and name == @name")
    return dict(zip(frame["round"], frame["value"], strict=True))


# description


def test_a_straggler_without_epochs_to_spare_is_refused_before_anything_is_stored(tmp_path) -> None:
    experiment = small(local={"epochs": 1}, system={"stragglers": 0.5})
    with pytest.raises(BadInput, match=r"system: a straggler.*local\.epochs.*drop_stragglers"):
        run(experiment, data=DATA, runs=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_the_command_line_reaches_the_system(tmp_path, capsys) -> None:
    words = ["run", "--rounds", "2", "--epochs", "2", "--runs", str(tmp_path), "--engine", "stacked"]
    words += ["--system", "stragglers=0.5,dropout=0.2,batch_sizes=[8,16]", "--availability", "random:p=0.8"]
    assert main([*words, "--set", "system.dropout=0.1"]) == 0
    experiment = from_toml((tmp_path / "1" / "experiment.toml").read_text())
    assert experiment.system == System(stragglers=0.5, dropout=0.1, batch_sizes=(8, 16))
    assert experiment.availability == Random(p=0.8)
    head = capsys.readouterr().err
    assert "system:stragglers=0.5,dropout=0.1,batch_sizes=[8,16], random:p=0.8" in head
    assert described(Experiment()) == described(Experiment(system={"stragglers": 0.0}))
    page = (tmp_path / "1.html").read_text()
    assert "stragglers = 0.5" in page
    assert "random (p = 0.8)" in page


# numbers


def test_turnout_of_each_round_is_stored(tmp_path) -> None:
    experiment = harsh()
    assembly = assemble(experiment, DATA)
    fed = assembly.federation
    runs = run(experiment, data=DATA, runs=tmp_path)
    steps = runs.measurements().query("split == 'client' and name == 'steps'")
    stored = {name: by_round(runs, name) for name in ("available", "selected", "answered", "stragglers", "clients")}
    for t in range(6):
        there = DayNight(period=4).available(fed.info, t, fed.seed)
        assert stored["available"][t + 1] == there.sum()
        assert stored["selected"][t + 1] == min(4, there.sum())
        assert stored["answered"][t + 1] == stored["clients"][t + 1] <= stored["selected"][t + 1]
        cohort = steps.query("round == @t + 1")["client"].to_numpy(dtype=np.int64)
        late = fed.system.late(cohort, len(fed.partition), t, fed.seed)
        assert stored["stragglers"][t + 1] == len(late)
    own = fed.planner.by_client
    for k, value in zip(steps["client"], steps["value"], strict=True):
        per_epoch = -(-assembly.partition.sizes[k] // own[k].batch_size)
        assert value % per_epoch == 0
        assert per_epoch <= value <= own[k].epochs * per_epoch
    assert by_round(runs, "local_steps") == {t + 1: steps.query("round == @t + 1")["value"].sum() for t in range(6)}


@pytest.mark.first
@pytest.mark.parametrize("method", ["scaffold", "fedavgm:beta=0.5"])
def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(tmp_path, method: str) -> None:
    assert_resumes_exactly(harsh(method), tmp_path)


# rounds without clients, from the store to the page


def test_rounds_without_clients_are_stored_without_drift_and_change_nothing(tmp_path) -> None:
    experiment = small(rounds=12, selection="uniform:clients=1", system={"dropout": 0.5})
    runs = run(experiment, data=DATA, runs=tmp_path)
    clients, drift = by_round(runs, "clients"), by_round(runs, "drift")
    empty = {t for t, count in clients.items() if count == 0}
    assert empty
    assert set(clients) == set(range(1, 13))
    assert set(drift) == set(clients) - empty
    loss = by_round(runs, "loss", "test")
    assert all((loss[t] == loss[t - 1]) == (t in empty) for t in clients)
    assert float(runs.table()["drift"].iloc[0]) == pytest.approx(np.mean(list(drift.values())))


def test_a_run_without_any_answers_has_no_result(tmp_path) -> None:
    words = ["--rounds", "2", "--epochs", "1", "--runs", str(tmp_path), "--seeds", "2", "--jobs", "1"]
    out = line_of("compare", "--algorithms", "fedavg", "scaffold", "--system", "dropout=1.0", *words, code=1)
    assert "no client took part in any of 2 rounds, mostly because none answered. The model was never trained" in out
    assert "try a lower system.dropout" in out
    methods = json.loads(output_of("show", "c1", "--json", "--runs", tmp_path))["methods"]
    assert [(row["accuracy"], row["drift"]) for row in methods] == [(None, None)] * 2
    assert "The model was never trained" in (tmp_path / "c1.html").read_text(encoding="utf-8")


def deaf(**settings) -> Experiment:
    return small(**{"rounds": 3, "method": settings.pop("algorithm", "fedavg"), "selection": "everyone", **settings})


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        ({"selection": "poisson:rate=1e-9"}, "none was selected. .* a selection with a higher rate"),
        ({"system": {"dropout": 1.0}}, "none answered. .* a lower system.dropout"),
        ({"system": {"stragglers": 1.0, "drop_stragglers": True}}, "none was in time. .*system.drop_stragglers=false"),
        ({"availability": "random:p=1e-9"}, "none was online. .* a higher probability of being online"),
        ({"algorithm": "dp-fedavg:q=1e-9", "selection": "poisson:rate=1e-9"}, "none was selected"),
        ({"algorithm": "ditto", "system": {"dropout": 1.0}}, "none answered"),
        ({"clients": {"number": 6, "unseen": 0.8, "held_out": 0.2}, "system": {"dropout": 1.0}}, "none answered"),
    ],
    ids=str,
)
def test_a_run_in_which_nobody_takes_part_is_an_error_with_the_cause(tmp_path, settings, cause: str) -> None:
    with pytest.raises(TooFew, match=f"no client took part in any of 3 rounds, mostly because {cause}"):
        run(deaf(**settings), data=DATA, runs=tmp_path)
    store = RunStore(tmp_path)
    assert (store.run(1).status, store.run(1).rounds_done) == ("failed", 3)
    with pytest.raises(BadInput, match="no client took part in any round, so its model was never trained"):
        fs.open(tmp_path)[1].predict(np.zeros((1, 4)))
    with pytest.raises(TooFew, match="no client took part"):
        fs.resume(1, data=DATA, runs=tmp_path)


def test_a_run_with_some_empty_rounds_warns_in_every_view(tmp_path) -> None:
    runs = run(deaf(selection="poisson:rate=0.1", rounds=12), data=DATA, runs=tmp_path)
    empty = sum(count == 0 for count in by_round(runs, "clients").values())
    line = f"no client took part in {empty} of 12 rounds, mostly because none was selected"
    assert 0 < empty < 12
    [warned] = [one for one in runs.records[0].facts["warnings"] if one["kind"] == "no clients"]
    assert (warned["measured"], warned["round"]) == (line, 12)
    assert line in line_of("show", "1", "--runs", tmp_path)
    assert line in Path(runs.report(tmp_path / "report.html")).read_text(encoding="utf-8")


def test_a_resumed_run_counts_the_rounds_before(tmp_path) -> None:
    stopped = []

    def stop(progress) -> None:
        if progress.round == 6 and not stopped:
            stopped.append(progress)
            raise KeyboardInterrupt

    experiment = deaf(selection="poisson:rate=0.1", rounds=12, checkpoint={"every": 3})
    with pytest.raises(KeyboardInterrupt):
        run(experiment, data=DATA, runs=tmp_path / "two", listener=stop)
    fs.resume(1, data=DATA, runs=tmp_path / "two")
    run(experiment, data=DATA, runs=tmp_path / "one")
    texts = [
        [one["line"] for one in RunStore(tmp_path / name).run(1).facts["warnings"] if one["kind"] == "no clients"]
        for name in ("one", "two")
    ]
    assert texts[0] == texts[1] != []


def test_refused_updates_end_a_run_too(tmp_path) -> None:
    with pytest.raises(TooFew, match=r"0 of .* clients gave a usable answer"):
        run(deaf(faults={"share": 1.0, "kinds": ["missing"]}), data=DATA, runs=tmp_path)
