"""The store: a round is written whole or not at all, by several processes; checkpoints are exact and never half a file."""

from __future__ import annotations

import math
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch

from fedskew.cli.main import main
from fedskew.core.errors import BadInput, FedskewError
from fedskew.core.trees import leaves
from fedskew.store import checkpoints
from fedskew.store.runs import RunStore

torch.set_num_threads(1)


@pytest.fixture
def store(tmp_path):
    made = RunStore(tmp_path / "runs")
    yield made
    made.close()


def add(store: RunStore, name: str = "fedavg", **changes) -> int:
    facts = {"experiment": "a = 1\n", "experiment_hash": "f00", "seed": 3, "partition_seed": 4, "rounds": 9}
    return store.add_run(name=name, **(facts | changes))


def rows_of(store: RunStore, run: int) -> list[tuple]:
    query = "SELECT round, client, split, name, value FROM measurements WHERE run=? ORDER BY rowid"
    return store.db.execute(query, (run,)).fetchall()


def one_line(error: pytest.ExceptionInfo[FedskewError], *words: str) -> None:
    text = str(error.value)
    assert "\n" not in text
    for word in words:
        assert word in text


ROUND = [(None, "test", "accuracy", 0.5), (2, "client", "steps", 7.0), (0, "client", "steps", 3.0)]


# runs and measurements


def test_a_run_is_read_back_as_it_was_written(store):
    comparison = store.add_comparison("two methods")
    run = add(store, comparison=comparison, experiment='name = "ümlaut"\n')
    record = store.run(run)
    assert (record.id, record.comparison, record.name) == (run, comparison, "fedavg")
    assert (record.experiment, record.experiment_hash) == ('name = "ümlaut"\n', "f00")
    assert (record.seed, record.partition_seed, record.rounds, record.rounds_done) == (3, 4, 9, 0)
    assert (record.status, record.message, record.facts) == ("planned", "", {})
    assert record.created <= record.updated


def test_status_message_experiment_and_facts_are_updated(store):
    run, other = add(store), add(store, "other")
    store.update(run, status="running")
    assert (store.run(run).status, store.run(run).experiment) == ("running", "a = 1\n")
    store.update(run, status="diverged", message="too fast", experiment="b = 2\n")
    record = store.run(run)
    assert (record.status, record.message, record.experiment) == ("diverged", "too fast", "b = 2\n")
    store.add_facts(run, {"versions": {"torch": "2"}, "parameters": 5})
    store.add_facts(run, {"parameters": 6, "engine": {"name": "stacked"}})
    assert store.run(run).facts == {"versions": {"torch": "2"}, "parameters": 6, "engine": {"name": "stacked"}}
    assert (store.run(other).status, store.run(other).facts) == ("planned", {})


def test_another_process_sees_what_was_written(store):
    run = add(store)
    store.write_round(run, 1, ROUND)
    again = RunStore(store.folder)
    assert again.run(run) == store.run(run)
    assert rows_of(again, run) == rows_of(store, run)
    again.close()


def test_measurements_as_a_table(store):
    run, other = add(store), add(store)
    store.write_round(run, 0, [(None, "test", "loss", 2.5)])
    store.write_round(run, 1, ROUND)
    store.write_round(other, 1, [(None, "test", "loss", 1.0), (1, "client", "steps", 2.0)])
    frame = store.measurements([run])
    assert list(frame.columns) == ["run", "round", "client", "split", "name", "value"]
    assert len(frame) == 4
    assert set(frame["run"]) == {run}
    assert str(frame["client"].dtype) == "Int64"
    assert frame["value"].dtype == float
    per_client = store.measurements([run], per_client=True)
    assert sorted(zip(per_client["client"], per_client["value"], strict=True)) == [(0, 3.0), (2, 7.0)]
    overall = store.measurements([run, other], per_client=False)
    assert overall["client"].isna().all()
    assert sorted(overall["value"]) == [0.5, 1.0, 2.5]
    assert len(store.measurements([run, other])) == 6
    assert store.measurements([]).empty


@pytest.mark.parametrize("value", [0.1 + 0.2, 1e-308, -1e300, math.inf, math.nan, 0.0])
def test_values_are_stored_to_the_last_bit(store, value):
    run = add(store)
    store.write_round(run, 1, [(None, "test", "loss", value)])
    read = store.measurements([run])["value"][0]
    assert read == value or (math.isnan(read) and math.isnan(value))


def test_partitions_are_replaced_whole(store):
    run, other = add(store), add(store)
    store.set_partition(run, [(0, "anna", "walking", 5), (1, "ben", "sitting", 7)])
    store.set_partition(other, [(0, "carl", "laying", 1)])
    store.set_partition(run, [(1, "ben", "sitting", 8), (0, "anna", "laying", 2)])
    frame = store.partition(run)
    assert frame.values.tolist() == [[0, "anna", "laying", 2], [1, "ben", "sitting", 8]]
    assert list(frame.columns) == ["client", "client_name", "label", "rows"]
    assert len(store.partition(other)) == 1


def test_a_round_written_again_is_replaced_with_all_later_ones(store):
    run, other = add(store), add(store)
    for round_ in range(4):
        store.write_round(run, round_, [(None, "test", "accuracy", round_ / 10)])
        store.write_round(other, round_, [(None, "test", "accuracy", 0.9)])
    assert store.run(run).rounds_done == 3
    store.write_round(run, 2, [(None, "test", "accuracy", 0.77)])
    assert [(row[0], row[4]) for row in rows_of(store, run)] == [(0, 0.0), (1, 0.1), (2, 0.77)]
    assert store.run(run).rounds_done == 2
    assert len(rows_of(store, other)) == 4


# one transaction a round


class Killed(BaseException):
    """Not an Exception, as KeyboardInterrupt is not."""


def dying(rows, error):
    yield from rows
    raise error


@pytest.mark.parametrize(
    "error", [Killed(), KeyboardInterrupt(), RuntimeError("bug"), sqlite3.OperationalError("disk")]
)
def test_nothing_remains_of_a_round_that_was_cut_short(store, error):
    run = add(store)
    store.write_round(run, 1, ROUND)
    store.write_round(run, 2, ROUND)
    before, record = rows_of(store, run), store.run(run)
    expected = FedskewError if isinstance(error, sqlite3.Error) else type(error)
    with pytest.raises(expected):
        store.write_round(run, 2, dying([(None, "test", "accuracy", 0.9)] * 5, error))
    assert rows_of(store, run) == before
    assert store.run(run) == record
    store.write_round(run, 3, ROUND)
    assert store.run(run).rounds_done == 3


def test_nothing_remains_of_a_partition_or_facts_that_were_cut_short(store):
    run = add(store)
    store.set_partition(run, [(0, "anna", "walking", 5)])
    with pytest.raises(Killed):
        store.set_partition(run, dying([(0, "ben", "sitting", 1)], Killed()))
    assert store.partition(run)["client_name"].tolist() == ["anna"]
    with pytest.raises(TypeError):
        store.add_facts(run, {"thing": object()})
    assert store.run(run).facts == {}
    assert not store.db.in_transaction


def test_a_row_of_the_wrong_form_leaves_the_store_as_it_was(store):
    run = add(store)
    store.write_round(run, 1, ROUND)
    with pytest.raises(FedskewError) as error:
        store.write_round(run, 2, [*ROUND, (None, "test", "accuracy")])
    one_line(error, str(store.folder), "last finished round")
    assert [row[0] for row in rows_of(store, run)] == [1, 1, 1]


def test_a_round_of_no_run_is_refused(store):
    with pytest.raises(FedskewError) as error:
        store.write_round(99, 1, ROUND)
    one_line(error, str(store.folder))


def test_a_full_disk_is_one_line_and_keeps_the_finished_rounds(store):
    run = add(store)
    store.write_round(run, 1, ROUND)
    pages = store.db.execute("PRAGMA page_count").fetchone()[0]
    store.db.execute(f"PRAGMA max_page_count={pages + 2}")
    with pytest.raises(FedskewError) as error:
        store.write_round(run, 2, [(k, "client", "steps", 1.0) for k in range(20_000)])
    one_line(error, str(store.folder), "full")
    assert not isinstance(error.value, BadInput)
    assert [row[0] for row in rows_of(store, run)] == [1, 1, 1]
    assert store.run(run).rounds_done == 1
    store.db.execute("PRAGMA max_page_count=1000000")
    store.write_round(run, 2, ROUND)
    assert store.run(run).rounds_done == 2


# several processes


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


WRITER = """
import sys, time
from fedskew.store.runs import RunStore
folder, name, at, rounds = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
time.sleep(max(0, at - time.time()))
store = RunStore(folder)
run = store.add_run(name=name, experiment="", experiment_hash="", seed=0, partition_seed=0, rounds=rounds)
for r in range(rounds + 1):
    store.write_round(run, r, [(k, "client", name, r * 1000.0 + k) for k in range(30)])
    store.add_facts(run, {f"fact{r}": r})
store.update(run, status="finished")
print(run)
"""


def test_two_processes_write_to_one_store(tmp_path):
    RunStore(tmp_path).close()
    at, rounds = time.time() + 0.5, 25
    writers = [start(WRITER, tmp_path, name, at, rounds) for name in ("one", "two")]
    ended = [writer.communicate(timeout=60) for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0], ended
    store = RunStore(tmp_path)
    found = {record.name: record for record in store.runs()}
    assert set(found) == {"one", "two"}
    for name, record in found.items():
        assert (record.status, record.rounds_done, len(record.facts)) == ("finished", rounds, rounds + 1)
        expected = [(r, k, "client", name, r * 1000.0 + k) for r in range(rounds + 1) for k in range(30)]
        assert rows_of(store, record.id) == expected
    store.close()


def test_several_processes_may_make_the_store_at_the_same_moment(tmp_path):
    """Whoever comes first makes it; nobody is refused."""
    for attempt in range(3):
        at = time.time() + 0.4
        writers = [start(WRITER, tmp_path / str(attempt), name, at, 1) for name in "abcd"]
        ended = [writer.communicate(timeout=60) for writer in writers]
        assert [writer.returncode for writer in writers] == [0] * 4, ended
        store = RunStore(tmp_path / str(attempt))
        assert sorted(record.name for record in store.runs()) == list("abcd")
        store.close()


def test_a_killed_process_loses_only_the_round_in_flight(tmp_path):
    script = """
import os, signal, sys
from fedskew.store.runs import RunStore
store = RunStore(sys.argv[1])
run = store.add_run(name="a", experiment="", experiment_hash="", seed=0, partition_seed=0, rounds=9)
store.write_round(run, 1, [(None, "test", "accuracy", 0.1)])
def rows():
    yield from [(k, "client", "steps", 1.0) for k in range(50_000)]
    os.kill(os.getpid(), signal.SIGKILL)
store.write_round(run, 2, rows())
"""
    killed = start(script, tmp_path)
    killed.communicate(timeout=60)
    assert killed.returncode == -9
    store = RunStore(tmp_path)
    assert rows_of(store, 1) == [(1, None, "test", "accuracy", 0.1)]
    assert store.run(1).rounds_done == 1
    store.write_round(1, 2, ROUND)
    assert store.run(1).rounds_done == 2
    store.close()


def test_readers_see_whole_rounds_while_one_is_written(store):
    run = add(store)
    store.write_round(run, 1, ROUND)
    reader, seen = RunStore(store.folder), []

    def watched():
        for row in ROUND:
            seen.append(len(rows_of(reader, run)))
            yield row

    store.write_round(run, 2, watched())
    assert seen == [3, 3, 3]
    assert len(rows_of(reader, run)) == 6
    reader.close()


# choosing runs


@pytest.fixture
def chosen(store):
    """Runs 1, 2 alone; 3, 4 in comparison 1; 5 alone; 6 in comparison 2."""
    one, two = store.add_comparison("x"), store.add_comparison("y")
    for comparison in (None, None, one, one, None, two):
        add(store, comparison=comparison)
    return lambda *tokens: [record.id for record in store.select(tokens)]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (["2"], [2]),
        (["2-4"], [2, 3, 4]),
        (["5-5"], [5]),
        (["c1"], [3, 4]),
        (["c2"], [6]),
        (["latest"], [6]),
        ([], [6]),
        (["5", "1"], [5, 1]),
        (["c1", "4", "2-3"], [3, 4, 2]),
        (["1", "1"], [1]),
    ],
)
def test_runs_by_the_words_of_the_command_line(chosen, tokens, expected):
    assert chosen(*tokens) == expected


def test_latest_is_the_newest_run_or_its_whole_comparison(store):
    alone = add(store)
    assert [record.id for record in store.select([])] == [alone]
    comparison = store.add_comparison("x")
    members = [add(store, comparison=comparison) for _ in range(3)]
    assert [record.id for record in store.select(["latest"])] == members


@pytest.mark.parametrize("token", ["7", "0", "c3", "5-7", "5-3", "fedavg", "", "-2", "1-2-3", "c", "c1-2", "2.0", "²"])
def test_runs_that_are_not_there_are_one_line(chosen, token):
    with pytest.raises(BadInput) as error:
        chosen(token)
    one_line(error)
    with pytest.raises(BadInput):
        chosen("1", token)


def test_an_empty_store_says_so(store):
    for tokens in ([], ["latest"]):
        with pytest.raises(BadInput) as error:
            store.select(tokens)
        one_line(error, "no runs yet")
    assert store.runs() == []


# folders that cannot be used


def test_a_file_in_the_place_of_the_folder(tmp_path):
    (tmp_path / "runs").write_text("not a folder")
    for folder in (tmp_path / "runs", tmp_path / "runs" / "below"):
        with pytest.raises(BadInput) as error:
            RunStore(folder)
        one_line(error, str(folder))


def test_a_file_that_is_no_store(tmp_path):
    (tmp_path / "fedskew.db").write_bytes(b"something else entirely " * 500)
    with pytest.raises(BadInput) as error:
        RunStore(tmp_path)
    one_line(error, str(tmp_path))


def test_a_folder_in_the_place_of_the_file(tmp_path):
    (tmp_path / "fedskew.db").mkdir()
    with pytest.raises(BadInput) as error:
        RunStore(tmp_path)
    one_line(error, str(tmp_path))


def test_a_store_of_another_version(store):
    store.db.execute("PRAGMA user_version=99")
    with pytest.raises(BadInput) as error:
        RunStore(store.folder)
    one_line(error, str(store.folder), "99")


@pytest.mark.parametrize("ready", [False, True], ids=["new", "existing"])
def test_a_folder_that_may_not_be_written(ready):
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "runs"
        Path(place).chmod(0o755)
        if ready:
            RunStore(folder).close()
            (folder / "fedskew.db").chmod(0o444)
        else:
            folder.mkdir()
        folder.chmod(0o555)
        if os.geteuid() == 0:  # whom the rights of files do not bind
            assert as_nobody(folder) == f"BadInput run store {folder}"
        else:
            with pytest.raises(BadInput) as error:
                RunStore(folder)
            one_line(error, str(folder))
        folder.chmod(0o755)


def as_nobody(folder: Path) -> str:
    """What opening the store ends in for another user, without its reason."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgid(65534)
            os.setuid(65534)
            RunStore(folder)
            text = "opened"
        except BaseException as error:
            text = f"{type(error).__name__} {error}".partition(": ")[0] if "\n" not in str(error) else "several lines"
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as file:
        return file.read()


# checkpoints

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]


def tree() -> dict:
    g = torch.Generator().manual_seed(0)
    return {
        "x": torch.randn(7, generator=g, dtype=torch.float64),
        "opt": {"m": torch.randn(7, generator=g), "t": torch.tensor(3.0), "deep": {"er": torch.tensor([1, 2])}},
        "clients": {"ids": torch.tensor([4, 0, 2]), "states": {"c": torch.randn(3, 7, generator=g)}},
    }


def assert_same(one: dict, two: dict) -> None:
    flat, other = dict(leaves(one)), dict(leaves(two))
    assert list(flat) == list(other)
    for path, leaf in flat.items():
        assert leaf.dtype == other[path].dtype
        assert leaf.shape == other[path].shape
        assert torch.equal(leaf, other[path]) or leaf.isnan().any(), path
        assert leaf.isnan().equal(other[path].isnan()) if leaf.is_floating_point() else True


FACTS = {"round": 12, "num_clients": 5, "note": "ümlaut", "nested": {"a": [1, 2.5, None]}}


def test_a_checkpoint_is_read_back_exactly(tmp_path):
    path = checkpoints.save(tmp_path / "new" / "folder", 12, tree(), FACTS)
    assert path.name == "round-000012.safetensors"
    got, facts = checkpoints.load(path)
    assert_same(tree(), got)
    assert facts == FACTS
    assert_same(tree(), checkpoints.to_device(got, torch.device("cpu")))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_type_of_number_survives(tmp_path, dtype):
    values = torch.tensor([0, 1, 3, 200]).to(dtype)
    made = {
        "row": values,
        "scalar": values[3],
        "none": values[:0],
        "cube": values.view(2, 2, 1),
        "wide": values.new_zeros(0, 5),
    }
    assert_same(made, checkpoints.load(checkpoints.save(tmp_path, 1, made, {}))[0])


def test_special_numbers_survive(tmp_path):
    made = {"x": torch.tensor([math.inf, -math.inf, math.nan, -0.0, 5e-324, 1 / 3], dtype=torch.float64)}
    got = checkpoints.load(checkpoints.save(tmp_path, 1, made, {}))[0]
    assert made["x"].view(torch.int64).equal(got["x"].view(torch.int64))


def test_views_and_shared_memory_are_stored_as_what_they_show(tmp_path):
    base = torch.arange(12.0).view(3, 4)
    made = {"whole": base, "same": base, "column": base[:, 1], "turned": base.T, "rows": base[1:]}
    made["grad"] = base.clone().requires_grad_()
    got = checkpoints.load(checkpoints.save(tmp_path, 1, made, {}))[0]
    assert_same({**made, "grad": base}, got)
    assert not got["grad"].requires_grad
    got["whole"][0, 0] = 99
    assert got["same"][0, 0] == 0


def test_only_the_newest_checkpoint_is_kept(tmp_path):
    (tmp_path / "experiment.toml").write_text("kept")
    for round_ in (1, 2, 10):
        path = checkpoints.save(tmp_path, round_, tree(), {"round": round_})
        assert checkpoints.latest(tmp_path) == path
    assert sorted(p.name for p in tmp_path.iterdir()) == ["experiment.toml", "round-000010.safetensors"]
    assert checkpoints.load(path)[1] == {"round": 10}


def test_latest_takes_the_highest_round_and_nothing_else(tmp_path):
    assert checkpoints.latest(tmp_path) is None
    assert checkpoints.latest(tmp_path / "absent") is None
    for name in ("round-000009.safetensors", "round-000010.safetensors", "round-000011.partial", "round-x.safetensors"):
        (tmp_path / name).touch()
    assert checkpoints.latest(tmp_path) == tmp_path / "round-000010.safetensors"


@pytest.mark.parametrize("share", [0.0, 0.01, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_checkpoint_is_one_line(tmp_path, share):
    path = checkpoints.save(tmp_path, 1, tree(), FACTS)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(BadInput) as error:
        checkpoints.load(path)
    one_line(error, str(path))


def test_what_is_no_checkpoint_is_one_line(tmp_path):
    from safetensors.torch import save_file

    (tmp_path / "text").write_text("hello " * 100)
    (tmp_path / "zeros").write_bytes(bytes(1000))
    save_file({"a": torch.ones(2)}, tmp_path / "foreign")
    save_file({"a": torch.ones(2)}, tmp_path / "other", metadata={"format": "pt"})
    save_file({"a": torch.ones(2)}, tmp_path / "broken", metadata={"facts": "{not json"})
    for name in ("text", "zeros", "absent", ".", "foreign", "other", "broken"):
        with pytest.raises(BadInput) as error:
            checkpoints.load(tmp_path / name)
        one_line(error, str(tmp_path / name))


def full_disk(tensors, path, metadata=None):
    Path(path).write_bytes(b"half of it")
    raise OSError(28, "No space left on device")


def refused(*_, **__):
    raise OSError(5, "Input/output error")


@pytest.mark.parametrize(
    ("target", "replacement"),
    [
        ("fedskew.store.checkpoints.save_file", full_disk),
        ("fedskew.store.checkpoints.os.fsync", refused),
        ("pathlib.Path.rename", refused),
    ],
    ids=["writing", "syncing", "renaming"],
)
def test_a_failed_write_keeps_the_checkpoint_before(tmp_path, monkeypatch, target, replacement):
    before = checkpoints.save(tmp_path, 3, tree(), {"round": 3})
    with monkeypatch.context() as patched:
        patched.setattr(target, replacement)
        with pytest.raises(FedskewError) as error:
            checkpoints.save(tmp_path, 4, {"x": torch.ones(3)}, {"round": 4})
    one_line(error, "round-000004", "kept")
    assert [p.name for p in tmp_path.iterdir()] == [before.name]
    got, facts = checkpoints.load(before)
    assert_same(tree(), got)
    assert facts == {"round": 3}
    checkpoints.save(tmp_path, 4, tree(), {"round": 4})
    assert [p.name for p in tmp_path.iterdir()] == ["round-000004.safetensors"]


def test_a_checkpoint_written_again_is_whole_at_every_moment(tmp_path, monkeypatch):
    path = checkpoints.save(tmp_path, 3, tree(), {"round": 3})
    monkeypatch.setattr("fedskew.store.checkpoints.save_file", full_disk)
    with pytest.raises(FedskewError):
        checkpoints.save(tmp_path, 3, {"x": torch.ones(3)}, {})
    assert_same(tree(), checkpoints.load(path)[0])


@pytest.mark.parametrize("below", [False, True], ids=["file", "below-a-file"])
def test_a_file_in_the_place_of_the_checkpoint_folder_is_one_line(tmp_path, below):
    (tmp_path / "7").write_text("not a folder")
    folder = tmp_path / "7" / "deeper" if below else tmp_path / "7"
    with pytest.raises(FedskewError) as error:
        checkpoints.save(folder, 1, tree(), {})
    one_line(error, str(folder))


def test_an_interrupted_write_leaves_nothing_behind(tmp_path, monkeypatch):
    def interrupted(tensors, path, metadata=None):
        Path(path).write_bytes(b"half of it")
        raise KeyboardInterrupt

    before = checkpoints.save(tmp_path, 3, tree(), {})
    monkeypatch.setattr("fedskew.store.checkpoints.save_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.save(tmp_path, 4, tree(), {})
    assert checkpoints.latest(tmp_path) == before
    assert_same(tree(), checkpoints.load(before)[0])
    assert [p.name for p in tmp_path.iterdir()] == [before.name]


def test_what_a_killed_write_left_is_removed_by_the_next(tmp_path):
    (tmp_path / "round-000003.partial").write_bytes(b"half of it")
    checkpoints.save(tmp_path, 4, tree(), {})
    assert [p.name for p in tmp_path.iterdir()] == ["round-000004.safetensors"]


def test_a_damaged_checkpoint_is_noticed_and_the_one_before_is_used(tmp_path):
    """One flipped bit in the tensors' bytes, which safetensors itself does not notice; then a file cut short."""
    kept = checkpoints.save(tmp_path, 5, tree(), {"round": 5}, keep=2)
    path = checkpoints.save(tmp_path, 10, tree(), {"round": 10}, keep=2)
    assert checkpoints.newest(tmp_path)[1] == {"round": 10}
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(BadInput, match="checksum is another"):
        checkpoints.load(path)
    assert checkpoints.newest(tmp_path)[1] == {"round": 5}
    path.write_bytes(data[: len(data) // 2])
    assert checkpoints.newest(tmp_path)[1] == {"round": 5}
    assert_same(tree(), checkpoints.newest(tmp_path)[0])
    kept.unlink()
    with pytest.raises(BadInput, match="round-000010"):
        checkpoints.newest(tmp_path)
    path.unlink()
    assert checkpoints.newest(tmp_path) is None


def test_so_many_checkpoints_are_kept(tmp_path):
    for round_ in (1, 2, 3, 10):
        checkpoints.save(tmp_path, round_, tree(), {}, keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["round-000003.safetensors", "round-000010.safetensors"]


def test_a_checkpoint_may_hold_empty_arrays(tmp_path):
    """Before anybody took part there are no clients to keep."""
    checkpoints.save(tmp_path, 1, {"x": torch.ones(3), "ids": torch.zeros(0, dtype=torch.int64)}, {"round": 1})
    tree, facts = checkpoints.load(checkpoints.latest(tmp_path))
    assert facts["round"] == 1
    assert tree["ids"].shape == (0,)


def test_a_store_whose_tables_are_not_readable_is_one_line(tmp_path):
    """SQLite tells the whole statement that it cannot read, line by line."""
    store = RunStore(tmp_path)
    store.close()
    (place,) = (path for path in tmp_path.iterdir() if path.read_bytes()[:6] == b"SQLite")
    whole = place.read_bytes()
    assert whole.count(b"status TEXT NOT NULL") >= 1
    place.write_bytes(whole.replace(b"status TEXT NOT NULL", b'status TEXT NOT "ULL'))
    with pytest.raises(BadInput, match="malformed database schema") as caught:
        RunStore(tmp_path)
    assert "\n" not in str(caught.value)


def test_numbers_of_runs_whose_store_is_gone_are_not_given_again(tmp_path):
    """What the earlier runs have in their folders stays, and so do their pages."""
    (tmp_path / "7").mkdir()
    (tmp_path / "c3.html").write_text("a page")
    store = RunStore(tmp_path)
    assert (store.add_comparison("a vs b"), store.add_comparison("c vs d")) == (4, 5)
    assert [add(store), add(store)] == [8, 9]


DAMAGES = {
    "facts that are not JSON": "facts='{'",
    "facts that are a list": "facts='[]'",
    "facts of another shape": """facts='{"data": 5}'""",
    "a name that is bytes": "name=x'00ff'",
    "rounds that are text": "rounds='many'",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_one_damaged_record_leaves_the_others_to_be_read(store, capsys, damage):
    first, second = add(store), add(store, "scaffold")
    store.db.execute(f"UPDATE runs SET {damage} WHERE id=?", (first,))
    assert main(["list", "runs", "--runs", str(store.folder)]) == 0
    out = capsys.readouterr().out
    assert "damaged" in out
    assert "scaffold" in out
    assert store.run(second).name == "scaffold"
    assert main(["show", "1", "--runs", str(store.folder)]) == 1
    assert capsys.readouterr().err.startswith("fedskew: run 1: its record in the store is damaged: ")


AS_NOBODY = """
import os, sys
import pandas.core.indexes.base  # what reading needs: another user may not find it
from fedskew.store.runs import RunStore
if os.getuid() == 0:
    os.setuid(65534)
store = RunStore(sys.argv[1], read_only=True)
print([record.name for record in store.select(["latest"])], len(store.measurements([1])))
"""


@pytest.mark.parametrize("writer", ["has ended", "goes on"])
def test_a_store_that_may_not_be_written_can_be_read(writer):
    """As another user, where nothing else keeps this one from writing."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        store = RunStore(folder)
        store.write_round(add(store, "scaffold"), 1, ROUND)
        if writer == "has ended":
            store.close()
        for path in (*folder.iterdir(), folder):
            path.chmod(0o555 if path.is_dir() else 0o444)
        before = sorted(path.name for path in folder.iterdir())
        done = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, str(folder)], capture_output=True, text=True, timeout=100
        )
        assert done.stdout == "['scaffold'] 3\n", done.stderr
        assert sorted(path.name for path in folder.iterdir()) == before
        store.close()
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


def test_a_store_that_is_only_read_is_not_made(tmp_path, capsys):
    assert main(["list", "runs", "--runs", str(tmp_path / "none")]) == 0
    assert "no runs yet" in capsys.readouterr().out
    assert not (tmp_path / "none").exists()
