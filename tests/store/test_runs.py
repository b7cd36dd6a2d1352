"""Runs and measurements: a round is written whole or not at all, by several processes, and read back exactly."""

import math
import os
import sqlite3
import subprocess
import sys
import time

import pytest

from fedskew.core.errors import BadInput, FedskewError
from fedskew.store.runs import RunStore
from tests.store import ROUND, add, refused


def rows_of(store: RunStore, run: int) -> list[tuple]:
    query = "SELECT round, client, split, name, value FROM measurements WHERE run=? ORDER BY rowid"
    return store.db.execute(query, (run,)).fetchall()


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


@pytest.fixture
def measured(store):
    """Two runs. Models are measured before round 1, after round 2 and after round 3; in the last round there is no value."""
    first, second = add(store), add(store)
    for run, offset in ((first, 0), (second, 10)):
        store.write_round(
            run, 0, [(None, "test", "accuracy", offset + 0.5), (0, "global-model", "accuracy", offset + 0.4)]
        )
        store.write_round(run, 1, [(None, "round", "drift", offset + 1.0), (0, "client", "steps", 9.0)])
        rows = [(None, "test", "accuracy", offset + 2.5), (None, "round", "drift", offset + 2.0)]
        store.write_round(run, 2, [*rows, *((k, "global-model", "accuracy", offset + 2.0 + k) for k in (0, 1))])
    store.write_round(first, 3, [(None, "test", "accuracy", math.nan), (None, "round", "drift", 3.0)])
    store.write_round(second, 3, [(None, "round", "drift", 13.0)])
    return first, second


def test_the_last_value_of_a_measure(store, measured):
    first, second = measured
    found = {
        (m.run, m.split, m.name): (m.round, m.value)
        for m in store.last(measured, ["test/accuracy", "round/drift", "test/f1"])
    }
    assert math.isnan(found.pop((first, "test", "accuracy"))[1])
    assert found == {
        (first, "round", "drift"): (3, 3.0),
        (second, "test", "accuracy"): (2, 12.5),
        (second, "round", "drift"): (3, 13.0),
    }
    assert [m.value for m in store.last([first], ["test/accuracy"], until={first: 2, second: 0})] == [2.5]
    assert [m.value for m in store.last([first], ["round/drift"], until={first: 1})] == [1.0]
    assert store.last([second], ["test/f1", "client/steps"]) == store.last([], ["test/accuracy"]) == []


def test_the_last_value_of_each_client(store, measured):
    first, second = measured
    found = store.last(measured, ["global-model/accuracy"], per_client=True, until={first: 1})
    assert [tuple(m) for m in found] == [
        (first, 0, 0, "global-model", "accuracy", 0.4),
        (second, 2, 0, "global-model", "accuracy", 12.0),
        (second, 2, 1, "global-model", "accuracy", 13.0),
    ]


def test_the_curve_of_a_measure(store, measured):
    first, second = measured
    drift = store.curves(measured, ["round/drift"])
    assert [(m.run, m.round, m.value) for m in drift] == [
        *((first, r, r) for r in (1, 2, 3)),
        *((second, r, 10 + r) for r in (1, 2, 3)),
    ]
    assert store.curves(measured, ["round/drift"], after={first: 2, second: 3}) == [drift[2]]
    assert len(store.curves([first])) == 6
    assert [m[1:4] for m in store.curves([first], per_client=True)] == [
        (0, 0, "global-model"),
        (1, 0, "client"),
        (2, 0, "global-model"),
        (2, 1, "global-model"),
    ]


def test_a_damaged_value_is_no_number(store):
    run = add(store)
    store.write_round(run, 1, ROUND)
    store.db.execute("UPDATE measurements SET value='much' WHERE name='accuracy'")
    assert math.isnan(store.last([run], ["test/accuracy"])[0].value)


def test_names_of_clients_and_comparisons(store):
    run, other = add(store), add(store, comparison=store.add_comparison("two methods"))
    store.set_partition(run, [(0, "anna", "walking", 5), (0, "anna", "sitting", 7), (1, "ben", "sitting", 7)])
    store.set_partition(other, [(0, "carl", "laying", 1)])
    assert store.client_names([run]) == {(run, 0): "anna", (run, 1): "ben"}
    assert store.titles() == {1: "two methods"}


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


def test_writing_a_round_again_removes_all_later_rounds(store):
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
    """Like KeyboardInterrupt, this is no subclass of Exception."""


def dying(rows, error):
    yield from rows
    raise error


@pytest.mark.parametrize(
    "error", [Killed(), KeyboardInterrupt(), RuntimeError("bug"), sqlite3.OperationalError("disk")]
)
def test_an_interrupted_round_leaves_no_trace(store, error):
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


def test_interrupted_writes_leave_no_partial_partition_or_facts(store):
    run = add(store)
    store.set_partition(run, [(0, "anna", "walking", 5)])
    with pytest.raises(Killed):
        store.set_partition(run, dying([(0, "ben", "sitting", 1)], Killed()))
    assert store.partition(run)["client_name"].tolist() == ["anna"]
    with pytest.raises(TypeError):
        store.add_facts(run, {"thing": object()})
    assert store.run(run).facts == {}
    assert not store.db.in_transaction


def test_wrong_rows_leave_the_store_as_it_was(store):
    """A row without a value, and a round of no run."""
    run = add(store)
    store.write_round(run, 1, ROUND)
    for number, rows in ((run, [*ROUND, (None, "test", "accuracy")]), (99, ROUND)):
        with refused(FedskewError):
            store.write_round(number, 2, rows)
    assert [row[0] for row in rows_of(store, run)] == [1, 1, 1]


def test_a_full_disk_is_one_line_and_keeps_the_finished_rounds(store):
    run = add(store)
    store.write_round(run, 1, ROUND)
    pages = store.db.execute("PRAGMA page_count").fetchone()[0]
    store.db.execute(f"PRAGMA max_page_count={pages + 2}")
    with refused(FedskewError, str(store.folder), "full"):
        store.write_round(run, 2, [(k, "client", "steps", 1.0) for k in range(20_000)])
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
    store.write_round(run, r, [(k, "client", "steps", ord(name[0]) * 1e6 + r * 1e3 + k) for k in range(30)])
    store.add_facts(run, {f"fact{r}": r})
store.update(run, status="finished")
print(run)
"""


def test_processes_make_one_store_at_the_same_moment_and_write_to_it(tmp_path):
    for attempt, rounds in enumerate((1, 1, 25)):
        at, names = time.time() + 0.4, ("one", "two", "three", "four")
        writers = [start(WRITER, tmp_path / str(attempt), name, at, rounds) for name in names]
        ended = [writer.communicate(timeout=60) for writer in writers]
        assert [writer.returncode for writer in writers] == [0] * 4, ended
        store = RunStore(tmp_path / str(attempt))
        assert sorted(record.name for record in store.runs()) == sorted(names)
        for record in store.runs():
            assert (record.status, record.rounds_done, len(record.facts)) == ("finished", rounds, rounds + 1)
            number = ord(record.name[0]) * 1e6
            expected = [(r, k, "client", "steps", number + r * 1e3 + k) for r in range(rounds + 1) for k in range(30)]
            assert rows_of(store, record.id) == expected
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
    """Return a store. Runs 3 and 4 are in comparison 1, runs 6 and 7 in comparison 2. Runs 1, 2 and 5 are in none."""
    one, two = store.add_comparison("x"), store.add_comparison("y")
    for comparison in (None, None, one, one, None, two, two):
        add(store, comparison=comparison)
    return lambda *tokens: [record.id for record in store.select(tokens)]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (["2"], [2]),
        (["2-4"], [2, 3, 4]),
        (["5-5"], [5]),
        (["c1"], [3, 4]),
        (["c2"], [6, 7]),
        (["latest"], [6, 7]),
        ([], [6, 7]),
        (["5", "1"], [5, 1]),
        (["c1", "4", "2-3"], [3, 4, 2]),
        (["1", "1"], [1]),
    ],
)
def test_runs_by_the_words_of_the_command_line(chosen, tokens, expected):
    assert chosen(*tokens) == expected


HUGE = "9" * 20
MISSING = ["8", "c3", "5-8", "5-3", "", "-2", "1-2-3", "c1-2", "²", "1;DROP TABLE runs", HUGE, f"c{HUGE}", f"1-{HUGE}"]


@pytest.mark.parametrize("token", MISSING)
def test_missing_runs_give_one_line(chosen, token):
    with refused(BadInput):
        chosen(token)
    with pytest.raises(BadInput):
        chosen("1", token)


def test_an_empty_store_says_so(store):
    for tokens in ([], ["latest"]):
        with refused(BadInput, "no runs yet"):
            store.select(tokens)
    assert store.runs() == []
    assert [record.id for record in store.select(["latest"] if add(store) else [])] == [1]  # of no comparison
