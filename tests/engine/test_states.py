"""Client states in memory and on disk: the same, and a checkpoint's are never overwritten before the next."""

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from fedskew.api.functions import run
from fedskew.core.errors import FedskewError
from fedskew.engine.states import ClientStates, DiskStates, opened
from fedskew.execution.run import execute, register
from fedskew.experiment.config import Experiment
from fedskew.store.runs import RunStore
from fedskew.studies.landscape import Grid, landscape
from tests.invariants import same
from tests.stored import numbers

CLIENTS = 9
COHORTS = st.lists(st.lists(st.integers(0, CLIENTS - 1), unique=True), max_size=8)


def fresh() -> dict:
    """Return one client's state: numbers of several types and shapes, not sorted by alignment."""
    return {
        "flag": torch.tensor(True),
        "half": torch.zeros(3, dtype=torch.bfloat16),
        "none": torch.zeros(0),
        "inner": {"c": torch.full((2, 2), 0.5, dtype=torch.float64)},
        "seen": torch.tensor(7),
    }


def states_of(clients: np.ndarray, draw: int) -> dict:
    """Return new states of a cohort, which are all different."""
    n, base = len(clients), torch.as_tensor(clients) + 100 * draw
    return {
        "flag": base % 2 == 0,
        "none": torch.zeros(n, 0),
        "half": (base[:, None] + torch.arange(3)).to(torch.bfloat16),
        "inner": {"c": base.double()[:, None, None] / 7 + torch.arange(4).view(1, 2, 2)},
        "seen": base.clone().view(n),
    }


EVERYBODY = np.arange(CLIENTS)


@settings(max_examples=40, deadline=None)
@given(COHORTS, COHORTS)
def test_disk_equals_memory_and_goes_back_to_its_checkpoint(tmp_path_factory, first: list, then: list) -> None:
    path = tmp_path_factory.mktemp("states") / "states.bin"
    memory, disk = ClientStates(), opened(path, CLIENTS)

    def play(cohorts: list, draw: int) -> None:
        for i, cohort in enumerate(cohorts):
            clients = np.sort(np.asarray(cohort, dtype=np.int64))
            assert same(disk.get(clients, fresh), memory.get(clients, fresh))
            for states in (memory, disk):
                states.put(clients, states_of(clients, draw + i))

    play(first, 1)
    tree = disk.checkpoint()
    disk.saved()
    at_checkpoint = memory.get(EVERYBODY, fresh)
    play(then, 50)
    assert same(disk.get(EVERYBODY, fresh), memory.get(EVERYBODY, fresh))
    # a run that ends here takes up what the checkpoint has, whatever was written after it
    assert same(opened(path, CLIENTS, tree).get(EVERYBODY, fresh), at_checkpoint)


def test_returned_states_are_copies():
    states = ClientStates()
    given = {"a": torch.ones(2, 3)}
    states.put(np.array([4, 7]), given)
    given["a"].zero_()
    returned = states.get(np.array([4, 7]), lambda: {"a": torch.zeros(3)})
    assert (returned["a"] == 1).all()
    returned["a"].zero_()
    assert (states.get(np.array([7]), lambda: {"a": torch.zeros(3)})["a"] == 1).all()
    x = torch.ones(3)
    states.get(np.array([9]), lambda: {"a": x})["a"].zero_()
    assert (x == 1).all(), "a fresh state is a copy too"


def test_the_file_holds_at_most_two_checkpoints_of_records(tmp_path: Path) -> None:
    """The size of the file is at most the records of two checkpoints."""
    disk, clients = DiskStates((tmp_path / "s").open("w+b"), 1000), np.arange(1000)
    for draw in range(20):
        disk.put(clients, {"v": torch.full((1000, 4), float(draw))})
        disk.put(clients, {"v": torch.full((1000, 4), float(draw))})
        disk.checkpoint()
        disk.saved()
    assert (tmp_path / "s").stat().st_size <= 3 * 1000 * 16
    assert (disk.get(clients, lambda: {"v": torch.zeros(4)})["v"] == 19).all()


def test_a_full_disk_raises_a_one_line_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    disk = opened(tmp_path / "s", 3)
    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(FedskewError, match=r"client states in .*: No space left on device; free some space"):
        disk.put(np.arange(3), {"v": torch.zeros(3, 4)})


def test_partial_reads_and_writes_are_completed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    disk, writing, reading = opened(tmp_path / "s", 3), os.pwritev, os.preadv
    monkeypatch.setattr(os, "pwritev", lambda file, parts, place: writing(file, [parts[0][:5]], place))
    monkeypatch.setattr(os, "preadv", lambda file, parts, place: reading(file, [parts[0][:3]], place))
    states = {"v": torch.arange(12.0).view(3, 4)}
    disk.put(np.arange(3), states)
    assert same(disk.get(np.arange(3), lambda: {"v": torch.zeros(4)}), states)


@pytest.mark.parametrize("damage", ["a bit", "the end", "everything", "another's record", "an older record"])
def test_a_damaged_state_is_refused_with_its_client(tmp_path: Path, damage: str) -> None:
    disk, path, size = opened(tmp_path / "s", 3), tmp_path / "s", 16
    disk.put(np.arange(3), {"v": torch.ones(3, 4)})
    disk.checkpoint()
    disk.saved()
    disk.put(np.arange(3), {"v": torch.arange(12.0).view(3, 4)})
    tree, contents = disk.checkpoint(), bytearray(path.read_bytes())
    assert tree["slots"].tolist() == [3, 4, 5]
    if damage == "a bit":
        contents[5 * size + 7] ^= 16
    elif damage == "another's record":
        contents[5 * size :] = contents[4 * size : 5 * size]
    elif damage == "an older record":
        contents[5 * size :] = contents[2 * size : 3 * size]
    path.write_bytes({"the end": contents[:-1], "everything": b""}.get(damage, contents))
    again = opened(path, 3, tree)
    with pytest.raises(FedskewError, match=r"client states in .*s: the state of client 2 is damaged .*start a new run"):
        again.get(np.array([2]), lambda: {"v": torch.zeros(4)})


def test_a_landscape_writes_no_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A landscape plays a round of a run, and another process may be carrying out this run."""
    monkeypatch.setattr("fedskew.studies.landscape.sharp", lambda *_: SimpleNamespace())
    made = Experiment(
        algorithm="scaffold",
        model="softmax",
        clients={"number": 3},
        local={"epochs": 1},
        engine="sequential",
        training={"rounds": 2, "threads": 1, "states": "disk"},
    )
    store = run(made, runs=tmp_path).store
    path = store.run_folder(1) / "client-states.bin"
    path.chmod(0o444)
    before = path.read_bytes(), path.stat().st_mtime_ns
    landscape(store, 1, Grid(points=3))
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    for checkpoint in store.run_folder(1).glob("*.safetensors"):
        checkpoint.unlink()
    with pytest.raises(FedskewError, match="run 1: it has no checkpoint yet"):
        landscape(store, 1, Grid(points=3))
    assert path.read_bytes() == before[0]


def test_a_run_with_states_on_disk_equals_one_in_memory_after_a_kill(tmp_path: Path) -> None:
    def made(states: str) -> Experiment:
        return Experiment(
            algorithm="scaffold",
            clients={"number": 20},
            selection="uniform:clients=5",
            local={"epochs": 1, "batch_size": 16},
            engine="sequential",
            training={"rounds": 6, "threads": 1, "states": states},
            checkpoint={"every": 2},
        )

    class Killed(BaseException):
        pass

    def kill(progress: object) -> None:
        if progress.round == 5:
            raise Killed

    memory = run(made("memory"), runs=tmp_path / "memory")
    store = RunStore(tmp_path / "disk")
    number = register(store, made("disk"))
    with pytest.raises(Killed):
        execute(store, number, listener=kill)
    execute(store, number)
    assert (store.run_folder(number) / "client-states.bin").stat().st_size > 0
    assert numbers(store, number) == numbers(memory.store, 1)
