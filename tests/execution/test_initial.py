"""Runs that start from another run's model, or go on after one of its rounds; more rounds for a finished run."""

import contextlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file

from fedskew.api.functions import compare, resume, run
from fedskew.core.errors import BadInput, Interrupted
from fedskew.execution.build import assemble
from fedskew.execution.run import execute, register
from fedskew.experiment.config import from_toml
from fedskew.serving.export import trained
from fedskew.store import checkpoints
from fedskew.store.runs import RunStore
from tests.blobs import DATA, numbers, small


def later(runs, after: int) -> list[tuple]:
    return [row for row in numbers(runs) if row[0] > after]


def last_state(runs, round_: int) -> dict[str, torch.Tensor]:
    return load_file(runs.store.run_folder(runs.ids[0]) / checkpoints.file_name(round_))


def assert_same_state(ours, theirs, round_: int) -> None:
    one, two = last_state(ours, round_), last_state(theirs, round_)
    assert one.keys() == two.keys()
    places = ("clients/slots", "clients/checksums")  # of records on disk
    assert all(torch.equal(one[name], two[name]) for name in one if name not in places)


@pytest.mark.parametrize("method", ["scaffold", "ditto", "fedadam:lr=0.1"])
def test_a_run_that_goes_on_after_a_round_equals_the_undisturbed_one(method: str, tmp_path: Path) -> None:
    """Server and client states are in the checkpoint, and all random draws depend on the round's number."""
    whole = run(small(method, 5, checkpoint__every=1), data=DATA, runs=tmp_path)
    first = run(small(method, 3, checkpoint__every=1), data=DATA, runs=tmp_path)
    goes_on = run(small(method, 5), data=DATA, runs=tmp_path, init=f"{first.ids[0]}:3")
    assert later(goes_on, 3) == later(whole, 3) != []
    assert {row for row in numbers(goes_on) if row[0] == 3} <= {row for row in numbers(whole) if row[0] == 3}
    assert min(row[0] for row in numbers(goes_on)) == 3
    assert_same_state(goes_on, whole, 5)
    assert goes_on.records[0].status == "finished"


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_it_goes_on_with_a_codec_and_states_on_disk_and_is_resumed(engine: str, tmp_path: Path) -> None:
    settings = {"codec": "top-k:share=0.2", "engine": engine, "checkpoint__every": 1}
    whole = run(small("scaffold", 5, **settings), data=DATA, runs=tmp_path)
    run(small("scaffold", 2, **settings), data=DATA, runs=tmp_path)
    goes_on = run(small("scaffold", 5, training__states="disk", **settings), data=DATA, runs=tmp_path, init="2:2")
    assert later(goes_on, 2) == later(whole, 2)
    store = RunStore(tmp_path / "parts")
    number = register(store, from_toml(goes_on.records[0].experiment))
    while store.run(number).status != "finished":
        with contextlib.suppress(Interrupted):
            execute(store, number, DATA, stop=lambda: True)
    assert numbers(replace(goes_on, store=store, ids=(number,))) == numbers(goes_on)


def test_a_run_starts_from_the_model_of_another(tmp_path: Path) -> None:
    """With another method, other data rows and fewer rounds: only the model is taken."""
    first = run(small("scaffold", 3), data=DATA, runs=tmp_path)
    second = run(small("fedprox:mu=0.1", 2, training__seed=9), data=DATA, runs=tmp_path, init=1)
    experiment = from_toml(second.records[0].experiment)
    assert torch.equal(assemble(experiment, DATA).x0, trained(first.store, 1, dataset=DATA).w)
    tested = [m.value for m in first.store.curves([1, 2], ["test/accuracy"]) if (m.run, m.round) in ((1, 3), (2, 0))]
    assert tested[0] == tested[1]
    file = first.store.run_folder(1) / "model-000003.safetensors"
    third = run(small("fedprox:mu=0.1", 2, training__seed=9), data=DATA, runs=tmp_path, init=str(file))
    assert third.records[0].experiment_hash == second.records[0].experiment_hash
    assert numbers(third) == numbers(second)


def test_the_hash_tells_models_apart_and_none_is_in_the_file_by_default(tmp_path: Path) -> None:
    run(small("fedavg", 2), data=DATA, runs=tmp_path)
    run(small("fedavg", 2, lr=0.2), data=DATA, runs=tmp_path)
    runs = [run(small("fedavg", 1), data=DATA, runs=tmp_path, **init) for init in ({}, {"init": 1}, {"init": 2})]
    assert len({r.records[0].experiment_hash for r in runs}) == 3
    assert "init =" not in runs[0].records[0].experiment
    again = from_toml(runs[1].records[0].experiment)
    assert again.toml() == runs[1].records[0].experiment


@pytest.mark.parametrize(
    ("init", "changes", "message"),
    [
        ("1:1", {}, "run 1 has no checkpoint of round 1; it has 2, 4 "),
        ("7", {}, "there is no run 7"),
        ("nothing.safetensors", {}, "init nothing.safetensors: there is no such file"),
        (
            "1",
            {"model": "mlp:hidden=[7]"},
            r"model-000004.safetensors: hidden.0.weight has shape \(6, 5\), but the model's \(7, 5\)",
        ),
        ("1:2", {"algorithm": "scaffold"}, "its method or codec had other states; start from its model"),
        ("1:2", {"server": "momentum"}, "its method or codec had other states"),
        ("1:2", {"partition_seed": 5}, "goes on with that run's clients, but clients differ"),
        ("1:4", {}, "4 of 4 rounds are done already; raise --rounds"),
        (
            "1",
            {"algorithm": "dp-fedavg", "selection": "poisson:rate=0.1"},
            "init is a model whose own training it does not",
        ),
    ],
)
def test_an_init_that_does_not_fit_is_refused(init: str, changes: dict, message: str, tmp_path: Path) -> None:
    run(small("fedavg", 4), data=DATA, runs=tmp_path)
    with pytest.raises(BadInput, match=message) as error:
        run(small("fedavg", 4), data=DATA, runs=tmp_path, init=init, **changes)
    assert "\n" not in str(error.value)


def test_a_file_that_has_changed_is_refused(tmp_path: Path) -> None:
    run(small("fedavg", 2), data=DATA, runs=tmp_path)
    begun = run(small("fedavg", 1), data=DATA, runs=tmp_path, init=1)
    experiment = from_toml(begun.records[0].experiment)
    file = Path(experiment.training.init)
    weights = load_file(file)
    save_file({name: value + 1 for name, value in weights.items()}, file)
    with pytest.raises(
        BadInput, match=r"its hash is [0-9a-f]{16}, but init_hash is [0-9a-f]{16}; name it again with --init"
    ):
        run(experiment, data=DATA, runs=tmp_path)
    run(experiment, data=DATA, runs=tmp_path, init=str(file))


def test_several_runs_start_from_a_model_but_go_on_from_none(tmp_path: Path) -> None:
    run(small("fedavg", 2), data=DATA, runs=tmp_path)
    runs = compare(small(rounds=1), ["fedavg", "scaffold"], seeds=2, data=DATA, runs=tmp_path, init=1)
    first = {m.value for m in runs.store.curves(runs.ids, ["test/accuracy"]) if m.round == 0}
    assert len(first) == 1
    with pytest.raises(BadInput, match="RUN:ROUND goes on with one run; write --init 1"):
        compare(small(rounds=3), ["fedavg"], seeds=2, data=DATA, runs=tmp_path, init="1:2")


@pytest.mark.parametrize("method", ["scaffold", "ditto"])
@pytest.mark.parametrize("states", ["memory", "disk"])
def test_a_finished_run_with_more_rounds_equals_a_long_one(method: str, states: str, tmp_path: Path) -> None:
    settings = {"training__states": states, "checkpoint__every": 2}
    whole = run(small(method, 5, **settings), data=DATA, runs=tmp_path / "whole")
    run(small(method, 3, **settings), data=DATA, runs=tmp_path)
    longer = resume(1, rounds=5, data=DATA, runs=tmp_path)
    assert numbers(longer) == numbers(whole)
    record, other = longer.records[0], whole.records[0]
    assert (record.status, record.rounds, record.experiment) == ("finished", 5, other.experiment)
    assert record.experiment_hash == from_toml(record.experiment).hash()
    assert_same_state(longer, whole, 5)
    assert longer.table()["after_round"].tolist() == ["5"]
    again = resume(1, rounds=6, data=DATA, runs=tmp_path)
    assert again.records[0].rounds_done == 6


@pytest.mark.parametrize(
    ("changes", "rounds", "message"),
    [
        ({}, 3, "run 1: it has 3 rounds; --rounds must be larger, got 3"),
        (
            {"lr_decay": "cosine"},
            5,
            r"its learning rate fell over 3 rounds \(cosine\); start a new run from its model, with --init 1",
        ),
        ({"algorithm": "fedproc"}, 5, r"its method, FedProc, computes with 3 planned rounds; start a new run"),
        (
            {"algorithm": "fedga-generalisation"},
            5,
            r"FedGAGeneralisation, computes with 3 planned rounds; start a new run",
        ),
        ({"patience": 9, "clients": {"number": 6, "held_out": 0.4}}, 5, "its held-out rows have ended it"),
    ],
)
def test_runs_that_cannot_go_on_say_why(changes: dict, rounds: int, message: str, tmp_path: Path) -> None:
    run(small("fedavg", 3, **changes), data=DATA, runs=tmp_path)
    with pytest.raises(BadInput, match=message):
        resume(1, rounds=rounds, data=DATA, runs=tmp_path)
    with pytest.raises(BadInput, match="name the runs that go on"):
        resume(rounds=rounds, data=DATA, runs=tmp_path)
    RunStore(tmp_path).update(1, status="diverged")
    with pytest.raises(BadInput, match="run 1: it is diverged; resume it first"):
        resume(1, rounds=rounds, data=DATA, runs=tmp_path)


def test_a_run_does_not_go_on_with_other_rows(tmp_path: Path) -> None:
    """The states of its clients belong to their rows: in a changed file these may be the rows of other clients."""
    frame = pd.DataFrame({"x": DATA.x[:, 0], "site": DATA.groups, "y": DATA.y})
    frame.to_csv(path := tmp_path / "rows.csv", index=False)
    options = {"dataset": f"table:{path},label=y,client=site", "skew": "natural", "engine": "sequential"}
    options |= {"model": "softmax", "algorithm": "scaffold", "runs": tmp_path / "runs", "progress": False}
    run(rounds=2, **options)
    assert run(rounds=3, init="1:2", **options).records[0].rounds_done == 3
    frame.assign(site=1 - frame["site"]).to_csv(path, index=False)
    with pytest.raises(BadInput, match=r"rows\.csv has changed since that run; start from its model, without :ROUND"):
        run(rounds=4, init="1:2", **options)
    assert run(rounds=3, init="1", **options).ids


def test_a_run_that_cannot_go_on_keeps_its_result(tmp_path: Path) -> None:
    """It was no longer finished, so that tables did not show it; runs before it already went on."""
    options = {"model": "softmax", "runs": tmp_path / "runs", "progress": False}
    data = visits(tmp_path / "rows.csv")
    compared = compare(["fedavg"], dataset=data, seeds=2, jobs=1, rounds=1, **options)
    before = compared.table()
    run(dataset=data, rounds=3, **options)
    for words, message in ((["1-3"], "run 3: it has 3 rounds"), (["1"], "has changed since the training")):
        with pytest.raises(BadInput, match=message):
            resume(words, rounds=2, runs=tmp_path / "runs")
        visits(tmp_path / "rows.csv", seed=2)
    store = RunStore(tmp_path / "runs")
    assert [(record.status, record.rounds) for record in store.runs()] == [("finished", 1)] * 2 + [("finished", 3)]
    assert replace(compared, store=store).table().equals(before)


def visits(path: Path, seed: int = 1) -> str:
    """Write rows of noise; return the data set."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({**{f"c{i}": rng.normal(size=90) for i in range(40)}, "site": [*"stu"] * 30})
    frame.assign(y=rng.permutation(["ill", "well"] * 45)).to_csv(path, index=False)
    return f"table:path={path},label=y,client=site"


def test_no_seed_tests_rows_on_which_the_first_model_has_trained(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Each seed drew its own test rows, most of them training rows of the first model: noise was predicted with 67 %."""
    options = {"runs": tmp_path / "runs", "progress": False, "rounds": 1, "model": "mlp"}
    data = visits(tmp_path / "rows.csv")
    first = run(dataset=data, **options | {"rounds": 20})
    runs = compare(["fedavg"], dataset=data, seeds=3, jobs=1, lr=1e-9, init=1, **options | {"progress": True})
    assert "it has trained on rows that other seeds hold out" in " ".join(capsys.readouterr().err.split())
    start = {m.value for m in runs.store.curves(runs.ids, ["test/accuracy"]) if m.round == 0}
    assert start == {m.value for m in first.store.curves([1], ["test/accuracy"]) if m.round == 20}
    for init in ("1", str(tmp_path / "runs" / "1" / "model-000020.safetensors")):
        with pytest.raises(BadInput, match="it has trained on rows that would test; write split_seed=0 in the data"):
            run(dataset=f"{data},split_seed=3", init=init, **options)
    whole = run(dataset=f"{data},whole=true", **options).ids[0]
    with pytest.raises(BadInput, match="it has trained on rows that would test; start from a run with test rows"):
        run(dataset=data, init=whole, **options)


def test_a_first_model_with_inputs_or_classes_in_another_order_is_refused(tmp_path: Path) -> None:
    """Shapes fit, so a model with 95 % began with 12 % if the file had its columns, or classes, in another order."""
    options = {"runs": tmp_path / "runs", "progress": False, "rounds": 1, "model": "softmax"}
    data = visits(tmp_path / "rows.csv")
    run(dataset=data, **options)
    frame = pd.read_csv(tmp_path / "rows.csv")
    for name, rows, says in (
        ("columns", frame[frame.columns[::-1]], "input 'c39'"),
        ("classes", frame.replace("ill", "zill"), "class 'well'"),
    ):
        rows.to_csv(tmp_path / f"{name}.csv", index=False)
        with pytest.raises(BadInput, match=f"{says} has another place there"):
            run(dataset=f"table:path={tmp_path / name}.csv,label=y,client=site", init=1, **options)
