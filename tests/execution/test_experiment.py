"""Experiments from assembly to stored numbers: refusals, exact repeats and resumes, failures."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from fedskew.api.functions import compare, run
from fedskew.core.errors import BadInput, Diverged
from fedskew.data.dataset import Dataset
from fedskew.execution.build import assemble
from fedskew.execution.run import execute, register
from fedskew.experiment.config import Experiment, from_toml
from fedskew.models.mlp import MlpNet
from fedskew.store.runs import RunStore
from tests.blobs import DATA, assert_resumes_exactly, blobs, numbers, small

# assembly


@pytest.mark.parametrize(
    ("experiment", "words"),
    [
        (small(clients={"number": 500}), ["500 clients", "120 rows"]),
        (small(selection="uniform:clients=7"), ["draws 7 clients", "only 6 have data"]),
        (small("moon").replace(model="softmax"), ["moon", "features", "mlp"]),
        (small("scaffold").replace(solver="adamw"), ["scaffold", "linear", "sgd"]),
        (small("fedprox:step=implicit").replace(solver="adamw"), ["fedprox", "linear"]),
        (small(model="cnn"), ["cnn", "(channels, height, width)", "(5,)"]),
        (small(training={"device": "cuda:77"}), ["cuda:77", "cpu"]),
        (small(training={"device": "gpu"}), ["gpu", "cpu"]),
    ],
)
def test_a_wrong_experiment_is_refused_before_anything_is_stored(
    tmp_path, experiment: Experiment, words: list[str]
) -> None:
    with pytest.raises(BadInput) as caught:
        run(experiment, data=DATA, runs=tmp_path / "runs")
    assert all(word in str(caught.value) for word in words), caught.value
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "runs").exists()


def test_a_client_without_rows_never_enters_a_cohort_and_is_counted(tmp_path) -> None:
    experiment = small(
        skew="label-dirichlet-per-class:alpha=0.01,min_size=0", clients={"number": 12}, selection="everyone"
    )
    assembly = assemble(experiment, DATA)
    assert assembly.partition.empty > 0
    assert assembly.partition.sizes.min() > 0
    runs = run(experiment, data=DATA, runs=tmp_path)
    assert runs.records[0].facts["partition"]["empty"] == assembly.partition.empty
    cohort = runs.measurements().query("split == 'round' and name == 'clients'")["value"]
    assert set(cohort) == {12 - assembly.partition.empty}


# numbers


def test_the_servers_images_have_the_fastest_memory_format() -> None:
    """The channels of a pixel are neighbours in memory."""
    numbers = np.random.default_rng(0).random((12, 3, 4, 4))
    images = Dataset(x=numbers, y=np.arange(12) % 2, x_test=numbers, y_test=np.arange(12) % 2, classes=("a", "b"))
    settings = {"model": "cnn:hidden=4", "skew": "iid", "clients": {"number": 2}, "server_data": {"share": 0.5}}
    own = assemble(Experiment(**settings), images).federation.server_data
    assert own is not None
    assert own.x.stride() == (48, 1, 12, 3)


@pytest.mark.parametrize("method", ["scaffold", "fedadam:lr=0.03", "ditto", "ifca", "fedper", "feddf:steps=5"])
def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(tmp_path, method: str) -> None:
    assert_resumes_exactly(small(method, rounds=5, server_data={"share": 0.2}, evaluation={"classes": True}), tmp_path)


def test_a_crash_between_checkpoints_loses_nothing_that_matters(tmp_path) -> None:
    whole = run(small("scaffold", rounds=5), data=DATA, runs=tmp_path / "whole")
    store = RunStore(tmp_path / "crash")
    number = register(store, from_toml(whole.records[0].experiment))

    def fail_after_round_3(progress) -> None:
        if progress.round == 3:
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        execute(store, number, DATA, fail_after_round_3)
    record = store.run(number)
    assert (record.status, record.rounds_done) == ("failed", 3)
    assert "power cut" in record.message
    execute(store, number, DATA)
    assert numbers(dataclasses.replace(whole, store=store, ids=(number,))) == numbers(whole)


def test_the_stored_toml_repeats_a_run_to_the_last_bit(tmp_path) -> None:
    first = run(small("scaffold").replace(engine="auto"), data=DATA, runs=tmp_path / "a")
    stored = (tmp_path / "a" / "1" / "experiment.toml").read_text()
    assert 'name = "auto"' not in stored
    assert from_toml(stored).training.threads > 0
    again = run(from_toml(stored), data=DATA, runs=tmp_path / "b")
    assert numbers(again) == numbers(first)
    assert {"sequential", "stacked"} == set(first.records[0].facts["engine"]["estimated_seconds_a_round"])


def test_processes_side_by_side_give_the_numbers_of_one(tmp_path) -> None:
    alone = compare(small(), ["fedavg", "scaffold"], seeds=2, data=DATA, runs=tmp_path / "a")
    together = compare(small(), ["fedavg", "scaffold"], seeds=2, data=DATA, runs=tmp_path / "b", jobs=2)
    assert [r.status for r in together.records] == ["finished"] * 4
    assert numbers(together) == numbers(alone)


def test_partition_and_training_seeds_are_separate(tmp_path) -> None:
    base = small(selection="everyone")
    same_split = base.replace(training__seed=5)
    same_training = base.replace(clients__partition_seed=5)
    one, two, three = (assemble(e, DATA) for e in (base, same_split, same_training))
    assert np.array_equal(one.partition.indices, two.partition.indices)
    assert not torch.equal(one.x0, two.x0)
    assert not np.array_equal(one.partition.indices, three.partition.indices)
    assert torch.equal(one.x0, three.x0)


def test_round_0_is_the_untrained_model_and_every_round_is_measured(tmp_path) -> None:
    runs = run(small(rounds=3), data=DATA, runs=tmp_path)
    accuracy = runs.measurements().query("split == 'test' and name == 'accuracy'")
    assert list(accuracy["round"]) == [0, 1, 2, 3]
    sparse = run(small(rounds=3, evaluation={"every": 2}), data=DATA, runs=tmp_path / "sparse").measurements()
    assert list(sparse.query("split == 'test' and name == 'accuracy'")["round"]) == [0, 2, 3]
    assert list(sparse.query("split == 'round' and name == 'drift'")["round"]) == [1, 2, 3]


# failures


def test_divergence_stops_with_round_client_and_cause_and_keeps_what_was_finished(tmp_path) -> None:
    store = RunStore(tmp_path)
    hopeless = small(solver="sgd:lr=1e12,momentum=0.9", rounds=30)
    assembly = assemble(hopeless, DATA)
    from fedskew.data.datasets.own import OwnData

    number = register(store, hopeless.replace(dataset=OwnData(fingerprint=DATA.fingerprint())))
    with pytest.raises(Diverged) as caught:
        execute(store, number, DATA)
    record = store.run(number)
    assert record.status == "diverged"
    assert record.message == str(caught.value)
    assert f"round {record.rounds_done + 1}, client " in record.message
    assert "learning rate 1e+12" in record.message
    assert "momentum 0.9" in record.message
    assert any(f"client {name}" in record.message for name in assembly.partition.names)
    assert set(store.measurements([number])["round"]) == set(range(record.rounds_done + 1))


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory: you tried"),
        MemoryError(),
    ],
    ids=["gpu", "cpu", "python"],
)
def test_exhausted_memory_names_the_batch_size_and_the_remedies(monkeypatch, tmp_path, error: Exception) -> None:
    def full(*_) -> None:
        raise error

    monkeypatch.setattr(MlpNet, "forward", full)
    remedy = r"^out of memory with --batch-size 8 \(.+\); use a smaller one, --engine sequential"
    with pytest.raises(BadInput, match=remedy) as caught:
        run(small(), data=DATA, runs=tmp_path)
    assert "\n" not in str(caught.value)
    assert RunStore(tmp_path).run(1).status == "failed"


def test_an_overshooting_proximal_step_is_named_as_the_cause(tmp_path) -> None:
    with pytest.raises(Diverged, match=r"lr x mu = 30"):
        run(small("fedprox:mu=300.0", rounds=30), data=DATA, runs=tmp_path)


def test_a_server_step_that_explodes_is_named_as_the_cause(tmp_path) -> None:
    with pytest.raises(Diverged, match=r"server"):
        run(small(server="sgd:lr=1e38", rounds=5), data=DATA, runs=tmp_path)


def test_one_diverging_method_does_not_stop_a_comparison(tmp_path) -> None:
    runs = compare(small(rounds=6), ["fedprox:mu=300.0", "fedavg"], seeds=2, data=DATA, runs=tmp_path)
    assert [r.status for r in runs.records] == ["diverged", "finished"] * 2
    table = runs.table().set_index("method")
    assert table.loc["fedavg", "finished"] == 2
    assert table.loc["fedprox:mu=300.0", "unfinished"] == 2


def test_other_data_are_refused_on_resume(tmp_path) -> None:
    runs = run(small(rounds=2), data=DATA, runs=tmp_path)
    other = blobs(rows=130)
    with pytest.raises(BadInput, match="have changed since it began"):
        execute(runs.store, runs.ids[0], other)
    with pytest.raises(BadInput, match="given from Python"):
        execute(runs.store, runs.ids[0])


@pytest.mark.parametrize("changed", [{}, {"local__epochs": 2}])
def test_a_checkpoint_of_another_run_is_not_taken_up(tmp_path, changed) -> None:
    """After a store was deleted or a folder copied, a new run with the same number refuses the old checkpoint in its folder."""
    whole = run(small(rounds=2), data=DATA, runs=tmp_path / "one")
    old = next((tmp_path / "one" / "1").glob("*.safetensors"))
    store = RunStore(tmp_path / "two")
    number = register(store, from_toml(whole.records[0].experiment).replace(**changed))
    shutil.copy(old, store.run_folder(number))
    with pytest.raises(
        BadInput, match=r"run 1: the checkpoint of round 2 in .*1 is of another run; move that folder"
    ) as error:
        execute(store, number, DATA)
    assert "\n" not in str(error.value)
    assert store.measurements([number]).empty
    (store.run_folder(number) / old.name).unlink()
    execute(store, number, DATA)
    # begun, and then another's checkpoint in the place of its own
    other = tmp_path / "three"
    run(small(rounds=2).replace(local__epochs=3), data=DATA, runs=other)
    shutil.copy(other / "1" / old.name, store.run_folder(number))
    with pytest.raises(BadInput, match="is of another run"):
        execute(store, number, DATA)


def test_forgetting_is_the_fall_of_each_class_below_its_highest_so_far(tmp_path) -> None:
    """This also holds for a resumed run, because the store has the earlier rounds."""
    experiment = small(
        rounds=6,
        evaluation={"classes": True},
        solver={"name": "sgd", "lr": 1.0},
        selection={"name": "uniform", "clients": 1},
    )
    whole = run(experiment, data=DATA, runs=tmp_path / "whole")
    frame = whole.measurements()
    accuracy = frame[(frame["split"] == "class") & (frame["name"] == "accuracy")].pivot(
        index="round", columns="client", values="value"
    )
    stored = frame[(frame["split"] == "class") & (frame["name"] == "forgetting")].pivot(
        index="round", columns="client", values="value"
    )
    expected = (accuracy.cummax() - accuracy).loc[1:]
    assert float(expected.to_numpy().max()) > 0.1
    assert np.allclose(stored.to_numpy(), expected.to_numpy(), atol=1e-15)
    mean = frame[(frame["split"] == "test") & (frame["name"] == "forgetting")].set_index("round")["value"]
    assert np.allclose(mean, expected.mean(axis=1), atol=1e-15)


def test_targets_that_float32_would_round_away_are_refused(tmp_path: Path) -> None:
    """Times in seconds since 1970: float32 knows every 128th of them."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 2)).astype(np.float32)
    y = 1.6e9 + 1000 * (x[:, 0].astype(np.float64) + 0.1 * rng.standard_normal(60))
    data = Dataset(x=x, y=y, x_test=x, y_test=y)
    options = {"clients": 2, "rounds": 1, "runs": tmp_path, "progress": False}
    with pytest.raises(
        BadInput, match=r"about 1\d{9} and deviate by .*, which float32 would round away; .*--dtype float64"
    ):
        run(data=data, **options)
    precise = run(data=data, dtype="float64", **options).measurements()
    near = run(data=dataclasses.replace(data, y=y - 1.6e9, y_test=y - 1.6e9), dtype="float64", **options).measurements()
    rmse = [rows.query("split == 'test' and name == 'rmse' and round == 1")["value"].item() for rows in (precise, near)]
    assert rmse[0] == pytest.approx(rmse[1], rel=1e-6)
