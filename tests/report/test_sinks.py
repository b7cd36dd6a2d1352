"""Each round of a followed run reaches a sink once. TensorBoard's files are read back; the other sinks' calls are recorded."""

import importlib.util
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, call

import pytest

import fedskew as fs
from fedskew.api import functions
from fedskew.cli import watch
from fedskew.cli.main import main
from fedskew.core.component import build
from fedskew.core.errors import BadInput, FedskewError
from fedskew.report import sinks
from fedskew.report.sinks import SINKS, Feed
from fedskew.store.lock import held
from fedskew.store.runs import RunRecord, RunStore
from tests.waiting import wait_until

EXPERIMENT = '[solver]\nname = "sgd"\nlr = 0.1\n'


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    """Return a store. Run 1 has finished round 2 of 3. Run 2 diverged after round 1."""
    made = RunStore(tmp_path / "runs")
    for name, rounds, status in (("fedprox:mu=0.1", 2, "running"), ("scaffold", 1, "diverged")):
        run = made.add_run(name=name, experiment=EXPERIMENT, experiment_hash="h", seed=4, partition_seed=4, rounds=3)
        for round_ in range(rounds + 1):
            made.write_round(run, round_, rows_of(round_))
        made.update(run, status=status)
    return made


def rows_of(round_: int) -> list[Any]:
    return [
        (None, "test", "accuracy", 0.25 * round_),
        (None, "round", "drift", math.nan if round_ == 1 else 2.0),
        (3, "client", "distance", 9.0),
    ]


class Recorder:
    """A sink that stores what it receives."""

    def __init__(self) -> None:
        self.received: list[tuple[str, int, Any]] = []

    def open(self, record: RunRecord) -> Any:
        self.received.append((record.name, -1, "opened"))
        return SimpleNamespace(
            write=lambda round_, values: self.received.append((record.name, round_, values)),
            end=lambda status: self.received.append((record.name, 99, status)),
        )


def test_every_round_is_sent_once_and_every_run_is_ended(store: RunStore) -> None:
    sink = Recorder()
    with Feed(store, [sink]) as feed:
        feed.send(store.runs())
        feed.send(store.runs())
        store.write_round(1, 3, rows_of(3))
        feed.send(store.runs())
    own = [(round_, what) for name, round_, what in sink.received if name.startswith("fedprox")]
    assert own == [
        (-1, "opened"),
        (0, {"test/accuracy": 0.0, "round/drift": 2.0}),
        (1, {"test/accuracy": 0.25}),
        (2, {"test/accuracy": 0.5, "round/drift": 2.0}),
        (3, {"test/accuracy": 0.75, "round/drift": 2.0}),
        (99, "interrupted"),
    ]
    other = [(round_, what) for name, round_, what in sink.received if name == "scaffold"]
    assert [round_ for round_, _ in other] == [-1, 0, 1, 99]
    assert other[-1] == (99, "diverged")


def test_numbers_of_a_model_that_is_not_trained_are_not_sent(store: RunStore) -> None:
    store.add_facts(1, {"shares_model": False})
    sink = Recorder()
    with Feed(store, [sink]) as feed:
        feed.send([store.run(1)])
    sent = [values for _, round_, values in sink.received if 0 <= round_ < 99]
    assert sent == [{"round/drift": 2.0}, {}, {"round/drift": 2.0}]


def test_tensorboard_has_the_numbers_of_the_store_even_if_they_are_sent_twice(store: RunStore, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = tmp_path / "logs"
    for _ in range(2):
        with Feed(store, [build("sink", SINKS, f"tensorboard:folder={folder}")]) as feed:
            feed.send(store.runs())
    assert sorted(path.name for path in folder.iterdir()) == ["1-fedprox-mu=0.1", "2-scaffold"]
    read = EventAccumulator(str(folder / "1-fedprox-mu=0.1"))
    read.Reload()
    assert set(read.Tags()["scalars"]) == {"round/drift", "test/accuracy"}
    assert [(e.step, e.value) for e in read.Scalars("test/accuracy")] == [(0, 0.0), (1, 0.25), (2, 0.5)]
    assert [e.step for e in read.Scalars("round/drift")] == [0, 2]
    assert b"lr = 0.1" in read.Tensors("experiment/text_summary")[0].tensor_proto.string_val[0]


def test_watch_follows_into_a_sink_until_all_have_ended(store: RunStore, tmp_path: Path, monkeypatch, capsys) -> None:
    sink = Recorder()
    monkeypatch.setitem(watch.__dict__, "sinks_from", lambda *_: [sink])

    def sleep(_: float) -> None:
        store.write_round(1, 3, rows_of(3))
        store.update(1, status="finished")

    monkeypatch.setattr(watch.time, "sleep", sleep)
    with held(store, 1):
        assert main(["watch", "1-2", "--to", "tensorboard", "--runs", str(store.folder)]) == 0
    assert [r for n, r, _ in sink.received if n.startswith("fedprox")] == [-1, 0, 1, 2, 3, 99]
    assert capsys.readouterr().out.count("3/3") == 1


def test_mlflow_receives_settings_and_measurements(store: RunStore, monkeypatch) -> None:
    made, client = MagicMock(), MagicMock()
    client.get_experiment_by_name.return_value, client.create_experiment.return_value = None, "7"
    client.create_run.return_value.info.run_id = "r"
    made.MlflowClient.return_value, made.Metric = client, lambda name, value, time, step: (name, value, step)
    monkeypatch.setattr(sinks, "import_module", lambda name: made)
    with Feed(store, [build("sink", SINKS, "mlflow:uri=sqlite:///x.db")]) as feed:
        feed.send([store.run(2)])
    made.MlflowClient.assert_called_once_with("sqlite:///x.db")
    assert client.mock_calls == [
        call.get_experiment_by_name("fedskew"),
        call.create_experiment("fedskew"),
        call.create_run("7", run_name="scaffold", tags={"fedskew.run": "2", "fedskew.hash": "h"}),
        call.log_param("r", "solver.name", "sgd"),
        call.log_param("r", "solver.lr", "0.1"),
        call.log_batch("r", metrics=[("test/accuracy", 0.0, 0), ("round/drift", 2.0, 0)]),
        call.log_batch("r", metrics=[("test/accuracy", 0.25, 1)]),
        call.set_terminated("r", status="FAILED"),
    ]


def test_wandb_receives_settings_and_measurements(store: RunStore, monkeypatch) -> None:
    package = MagicMock()
    monkeypatch.setattr(sinks, "import_module", lambda name: package)
    with Feed(store, [build("sink", SINKS, "wandb:mode=offline,project=p")]) as feed:
        feed.send([store.run(2)])
    options = {"project": "p", "mode": "offline", "config": {"solver": {"name": "sgd", "lr": 0.1}}}
    assert options.items() <= package.init.call_args.kwargs.items()
    assert package.init.return_value.mock_calls == [
        call.log({"test/accuracy": 0.0, "round/drift": 2.0}, step=0),
        call.log({"test/accuracy": 0.25}, step=1),
        call.summary.__setitem__("status", "diverged"),
        call.finish(exit_code=1),
    ]


def test_sink_that_fails_at_the_end_is_one_line_and_the_other_sinks_end(store: RunStore) -> None:
    class Lost(Recorder):
        def open(self, record: RunRecord) -> Any:
            def end(status: str) -> None:
                raise ConnectionError("nobody answers\nat length")

            return SimpleNamespace(write=lambda round_, values: None, end=end)

    last = Recorder()
    store.update(2, status="running")
    with (
        pytest.raises(FedskewError, match=r"^sink Lost: nobody answers$"),
        Feed(store, [Lost(), last]) as feed,
    ):
        feed.send(store.runs())
    assert [(name, status) for name, round_, status in last.received if round_ == 99] == [
        ("scaffold", "interrupted"),
        ("fedprox:mu=0.1", "interrupted"),
    ]


def test_a_run_that_goes_on_after_its_end_gets_a_page_with_all_its_rounds(store: RunStore) -> None:
    """TensorBoard would hide the rounds in the run's earlier page."""
    sink = Recorder()
    with Feed(store, [sink]) as feed:
        feed.send([store.run(2)])
        feed.send([store.run(2)])
        store.update(2, status="running")
        store.write_round(2, 2, rows_of(2))
        feed.send([store.run(2)])
        feed.send([store.run(2)])
    assert [round_ for _, round_, _ in sink.received] == [-1, 0, 1, 99, -1, 0, 1, 2, 99]


TINY: dict[str, Any] = {
    "dataset": "digits",
    "skew": "iid",
    "clients": 3,
    "model": "softmax",
    "steps": 1,
    "progress": False,
}


def test_each_round_of_a_run_from_python_reaches_a_tracker_while_it_trains(tmp_path: Path, monkeypatch) -> None:
    sink, at_round = Recorder(), list[int]()
    monkeypatch.setitem(functions.__dict__, "sinks_from", lambda *_: [sink])

    def listener(progress: Any) -> None:
        at_round.append(sum(number >= 0 for _, number, _ in sink.received))

    runs = fs.run(**TINY, rounds=2, runs=tmp_path, listener=listener, to="wandb")
    assert [number for _, number, _ in sink.received] == [-1, 0, 1, 2, 99]
    assert at_round == [0, 1, 2]
    stored = runs.measurements().query("split == 'test' and name == 'accuracy'")["value"].tolist()
    assert [values["test/accuracy"] for _, _, values in sink.received[1:-1]] == stored
    sink.received.clear()
    fs.compare(["fedavg", "fedprox"], **TINY, rounds=1, seeds=1, runs=tmp_path, to="wandb")
    assert [(name, number) for name, number, _ in sink.received if number in (1, 99)] == [
        ("fedavg", 1), ("fedavg", 99), ("fedprox", 1), ("fedprox", 99),
    ]  # fmt: skip


def test_a_tracker_that_fails_stops_no_training(tmp_path: Path, monkeypatch, capsys) -> None:
    class Away(Recorder):
        def open(self, record: RunRecord) -> Any:
            raise ConnectionError("nobody answers")

    monkeypatch.setitem(functions.__dict__, "sinks_from", lambda *_: [Away()])
    runs = fs.run(**{**TINY, "progress": True}, rounds=2, runs=tmp_path, to="mlflow")
    assert runs.records[0].status == "finished"
    warned = capsys.readouterr().err
    says = "sink Away: nobody answers; the runs go on, and `fedskew watch --to` sends all their rounds again"
    assert warned.count(says) == 1


@pytest.mark.parametrize("to", ["wandb", ["tensorboard", "wandb"]])
def test_a_missing_tracker_is_refused_before_anything_is_stored(tmp_path: Path, monkeypatch, to: Any) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(BadInput, match=r"sink wandb: needs the package wandb; pip install '.\[wandb\]' in the clone"):
        fs.compare(["fedavg"], **TINY, rounds=1, runs=tmp_path / "runs", to=to)
    with pytest.raises(BadInput, match="to: unknown"):
        fs.run(**TINY, runs=tmp_path / "runs", to="parsec")
    assert not (tmp_path / "runs").exists()


def test_a_password_in_an_address_is_refused() -> None:
    with pytest.raises(BadInput, match="MLFLOW_TRACKING_USERNAME"):
        build("sink", SINKS, "mlflow:uri=https://me:secret@example.org", "--to")


@pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="needs mlflow-skinny (pip install '.[mlflow]')")
def test_mlflow_has_the_numbers_of_the_store(store: RunStore, tmp_path: Path, monkeypatch) -> None:
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlruns").as_uri()
    with Feed(store, [build("sink", SINKS, {"name": "mlflow", "uri": uri})]) as feed:
        feed.send(store.runs())
    client = MlflowClient(uri)
    found = client.search_runs([client.get_experiment_by_name("fedskew").experiment_id])
    runs = {run.data.tags["fedskew.run"]: run for run in found}
    history = client.get_metric_history(runs["1"].info.run_id, "test/accuracy")
    assert [(m.step, m.value) for m in sorted(history, key=lambda m: m.step)] == [(0, 0.0), (1, 0.25), (2, 0.5)]
    assert runs["1"].data.params["solver.lr"] == "0.1"
    assert (runs["1"].info.status, runs["2"].info.status) == ("KILLED", "FAILED")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="needs wandb (pip install '.[wandb]')")
def test_wandb_offline_has_the_numbers_of_the_store(store: RunStore, tmp_path: Path) -> None:
    with Feed(store, [build("sink", SINKS, f"wandb:mode=offline,folder={tmp_path}")]) as feed:
        feed.send([store.run(1)])
    # its own process writes the file, a little later
    wait_until(lambda: histories(tmp_path)[-1:] == ["exit"], 20)
    assert histories(tmp_path) == [(0, 0.0), (1, 0.25), (2, 0.5), "exit"]


def histories(folder: Path) -> list[Any]:
    """(step, test accuracy) of each round in the one file below the folder, then its end."""
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    [path] = folder.glob("wandb/offline-run-*/run-*.wandb")
    scan, found = DataStore(), []
    if not path.stat().st_size:
        return []
    scan.open_for_scan(str(path))
    while (data := scan.scan_data()) is not None:
        record = Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "history":
            items = {"/".join(item.nested_key): item.value_json for item in record.history.item}
            found.append((int(items["_step"]), float(items["test/accuracy"])))
        elif kind == "exit":
            found.append("exit")
    return found
