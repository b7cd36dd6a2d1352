"""Rows held out from training measure the clients; what is said where a client has too few."""

from pathlib import Path

import pytest

from fedskew.api.functions import run
from fedskew.execution.build import assemble
from fedskew.experiment.config import Experiment
from fedskew.report import experiments
from fedskew.report.answer import remarks
from fedskew.store.runs import RunStore
from tests.blobs import DATA, small
from tests.report import add


def test_held_out_rows_measure_clients_and_are_not_trained_on(tmp_path) -> None:
    experiment = small(
        clients={"number": 6, "held_out": 0.25}, selection="everyone", local={"epochs": 1, "batch_size": 1}
    )
    partition = assemble(experiment, DATA).partition
    steps = run(experiment, data=DATA, runs=tmp_path).measurements().query("name == 'steps' and round == 1")
    assert list(steps.sort_values("client")["value"]) == list(partition.sizes)
    assert all(not set(partition.rows(k)) & set(partition.measured_rows(k)) for k in range(6))


def test_clients_are_measured_on_a_fifth_of_their_rows_by_default() -> None:
    partition = assemble(Experiment(model="softmax", skew="iid"), DATA).partition
    assert (partition.sizes.tolist(), partition.unmeasured) == ([10] * 10, 0)
    assert [len(partition.measured_rows(k)) for k in range(10)] == [2] * 10


@pytest.mark.parametrize(("clients", "unmeasured"), [(25, 5), (60, 0), (120, 0)])
def test_clients_with_fewer_than_five_rows_train_on_all_of_them(clients: int, unmeasured: int) -> None:
    """25 clients hold 5 or 4 rows: those with 4 are not measured. Of 60 clients none has 5, and training rows measure all."""
    partition = assemble(Experiment(model="softmax", skew="iid", clients=clients), DATA).partition
    assert partition.unmeasured == unmeasured
    assert (partition.held_out is None) == (unmeasured == 0)
    sizes = partition.sizes.tolist()
    assert sizes == ([4] * 25 if unmeasured else [120 // clients] * clients)
    assert [len(partition.measured_rows(k)) for k in range(clients)] == ([1] * 20 + [0] * 5 if unmeasured else sizes)


def test_page_says_on_which_rows_clients_are_measured(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs")
    add(store, "a", 0, [0.1, 0.5], held_out=0.2)
    assert experiments.measured_rows(store.runs()) == "rows held out from its training"
    add(store, "a", 1, [0.1, 0.5])
    assert "held out from its training in some runs" in experiments.measured_rows(store.runs())


def test_views_trust_the_partition_more_than_the_setting(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs")
    for seed, (held_out, unmeasured) in enumerate([(0, 0), (40, 2), (40, 3)]):
        run = add(store, "a", seed, [0.1, 0.5], held_out=0.2)
        store.add_facts(run, {"partition": {"held_out": held_out, "unmeasured": unmeasured, "clients": 9}})
    none, two, three = ([record] for record in sorted(store.runs(), key=lambda r: r.id))
    assert experiments.measured_rows(none) == "own training rows"
    assert remarks(none) == []
    assert experiments.measured_rows(two) == "rows held out from its training"
    assert remarks(two) == ["2 of 9 clients hold too few rows to hold one out: they are not measured"]
    assert remarks(two + three)[0].startswith("up to 3 of 9 clients hold too few rows")


def test_views_say_that_only_some_clients_are_measured(tmp_path: Path) -> None:
    runs = run(small("fedavg", 1, clients={"number": 8}, evaluation={"max_clients": 3}), data=DATA, runs=tmp_path)
    assert len(runs.store.last([1], ["global-model/accuracy"], per_client=True)) == 3
    assert "3 of 8 clients, drawn at random, are measured" in remarks(runs.records)
