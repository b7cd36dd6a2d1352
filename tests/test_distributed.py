"""Several processes equal one: the conformance table in two processes, the balance of work, and what they tell each other."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from fedskew.engine.distributed import Distributed, Group, balanced
from fedskew.engine.sequential import Sequential
from fedskew.engine.stacked import Stacked
from fedskew.experiment.processes import work
from tests import test_conformance as table

CASES = [*((spec, Sequential()) for spec in table.FIRST), ("fedavg", Stacked()), ("scaffold", Stacked())]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=30), st.integers(1, 6))
def test_shares_are_disjoint_complete_and_balanced(costs: list[int], size: int) -> None:
    shares = balanced(costs, size)
    assert sorted(np.concatenate(shares).tolist()) == list(range(len(costs)))
    assert all((np.diff(share) > 0).all() for share in shares)
    assert len(costs) < size or all(len(share) for share in shares)
    loads = [sum(costs[i] + 1 for i in share) for share in shares]
    # a greedy schedule: nobody has more than the least busy but for its last piece of work
    assert max(loads) - min(loads) <= max(costs) + 1


def test_shares_by_hand() -> None:
    """8 to the first; 5 to the second, 4 to the second (5 < 8), then 3 to the first (9 > 9 after one unit each)."""
    assert [share.tolist() for share in balanced([3, 5, 8, 4], 2)] == [[0, 2], [1, 3]]


def other(group: Group) -> None:
    """The second process: the same rounds."""
    torch.set_num_threads(1)
    for spec, engine in CASES:
        table.run(table.federation(spec), Distributed(engine, group))
    assert group.share_text() == "grüße"
    assert group.agree(False)
    tree = group.share_tree()
    assert tree["a"]["b"].dtype == torch.bool
    group.share_tree({})


def second(place: str) -> None:
    """A group whose threads are still there when its process ends has that process aborted, some of the time."""
    work(place, 1, 2, other)
    left = [name for thread in Path("/proc/self/task").glob("*") if "gloo" in (name := (thread / "comm").read_text())]
    assert not left


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    place = str(tmp_path_factory.mktemp("group") / "store")
    process = multiprocessing.get_context("spawn").Process(target=second, args=(place,), daemon=True)
    process.start()
    dist.init_process_group("gloo", store=dist.FileStore(place, 2), rank=0, world_size=2)
    yield Group(0, 2)
    process.join(30)
    dist.destroy_process_group()
    assert process.exitcode == 0


@pytest.mark.parametrize(("spec", "engine"), CASES, ids=[f"{s}-{type(e).__name__}" for s, e in CASES])
def test_two_processes_equal_one(group: Group, spec: str, engine: object) -> None:
    """To the last bits, which may depend on where in memory a client's row begins, and on the width of a stack."""
    ours = table.run(table.federation(spec), Distributed(engine, group))
    alone = table.run(table.federation(spec), engine)
    table.assert_close(ours, alone)


def test_what_processes_tell_each_other(group: Group) -> None:
    assert group.share_text("grüße") == "grüße"
    assert group.agree(True)
    tree = {"a": {"b": torch.tensor([True, False])}, "c": torch.arange(6).view(2, 3).T, "d": torch.zeros(0, 3)}
    group.share_tree(tree)
    assert group.share_tree({}) == {}
