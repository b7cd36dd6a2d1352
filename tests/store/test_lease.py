"""Only one process at a time executes a run. The run of an ended process is free; a process that lost its lease stops."""

import os
import subprocess
import sys
import time
from dataclasses import astuple, replace
from pathlib import Path

import pytest

from fedskew.core.errors import BadInput
from fedskew.experiment.results import run
from fedskew.experiment.run import execute, register
from fedskew.store import lease
from fedskew.store.lease import held
from fedskew.store.owner import Owner, TakenOver, alive, began, machine
from fedskew.store.runs import RunStore
from tests.experiment.test_experiment import DATA, numbers, small

HERE = Owner("t", "this-host", machine(), os.getppid(), began(os.getppid()), time.time() + 1e6)


def registered(folder: Path) -> tuple[RunStore, int]:
    store = RunStore(folder)
    return store, store.add_run(name="fedavg", experiment="", experiment_hash="", seed=0, partition_seed=0, rounds=3)


def give(store: RunStore, number: int, owner: Owner) -> None:
    store.db.execute("INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?, ?, ?, ?)", (number, *astuple(owner)))


@pytest.mark.parametrize(
    ("owner", "free"),
    [
        (HERE, False),
        (replace(HERE, expires=0), False),  # asleep, but there
        (replace(HERE, began="another start"), True),
        (replace(HERE, process=2**22 + 1), True),
        (replace(HERE, process=os.getpid(), began=began(os.getpid())), True),  # this process holds no such lease
        (replace(HERE, machine="elsewhere"), False),
        (replace(HERE, machine="elsewhere", process=2**22 + 1), False),
        (replace(HERE, machine="elsewhere", expires=time.time() - 1), True),
        (replace(HERE, began=""), False),
        (replace(HERE, began="", expires=0), True),
    ],
)
def test_a_run_is_free_when_its_owner_is_gone(tmp_path: Path, owner: Owner, free: bool) -> None:
    store, number = registered(tmp_path)
    give(store, number, owner)
    if free:
        with held(store, number):
            assert store.owner(number).process == os.getpid()
        assert store.owner(number) is None
    else:
        with pytest.raises(BadInput, match=f"run 1: process {owner.process} on this-host is executing it"):
            held(store, number).__enter__()
        assert store.owner(number) == owner


def test_a_process_that_ended_and_was_not_waited_for_is_gone() -> None:
    with subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE) as ended:
        start = began(ended.pid)
        assert ended.stdout
        ended.stdout.read()
        end = time.monotonic() + 10
        while alive(ended.pid, start) and time.monotonic() < end:
            time.sleep(0.01)
        assert not alive(ended.pid, start)


def test_a_number_that_another_users_process_has_now_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(process: int, signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refused)
    assert not alive(os.getppid(), "")
    assert not alive(os.getppid(), "another start")
    assert alive(os.getppid(), began(os.getppid()))


def test_two_at_the_same_moment_give_one_owner(tmp_path: Path) -> None:
    store, number = registered(tmp_path)
    other = RunStore(tmp_path)
    with held(store, number), pytest.raises(BadInput, match="is executing it"):
        held(other, number).__enter__()
    with held(other, number):
        pass


def test_a_lease_is_renewed_while_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "RENEWAL", 0.01)
    store, number = registered(tmp_path)
    with held(store, number):
        first, end = store.owner(number), time.monotonic() + 10
        while store.owner(number).expires <= first.expires and time.monotonic() < end:
            time.sleep(0.01)
        assert store.owner(number).expires > first.expires


def test_a_process_whose_run_was_taken_over_writes_nothing_more(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "two")
    number = register(store, small(rounds=6), None)
    store.db.execute("UPDATE runs SET experiment=? WHERE id=?", (own_data(tmp_path), number))

    def taken(progress: object) -> None:
        if progress.round == 3:
            give(RunStore(store.folder), number, replace(HERE, process=4711))

    with pytest.raises(TakenOver, match="run 1: process 4711 on this-host has taken it over"):
        execute(store, number, DATA, listener=taken)
    assert (store.run(number).rounds_done, store.run(number).status) == (3, "running")
    store.db.execute("DELETE FROM leases")
    execute(store, number, DATA)
    frame = store.measurements([number])
    assert set(frame["round"]) == set(range(7))
    assert len(numbers(Store(store, number))) == len(numbers(run(small(rounds=6), data=DATA, runs=tmp_path / "w")))


class Store:
    """The part of `Runs` that `numbers` uses."""

    def __init__(self, store: RunStore, number: int) -> None:
        self.store, self.number = store, number

    def measurements(self):
        return self.store.measurements([self.number])


def own_data(folder: Path) -> str:
    """Return the experiment in the form that a run on `DATA` stores."""
    return run(small(rounds=6), data=DATA, runs=folder / "model").records[0].experiment
