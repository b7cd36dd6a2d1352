"""Several processes equal one: the conformance table in two processes, the balance of work, and what they tell each other."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedskew.core.vectors import spread, weighted_sum
from fedskew.engine import distributed
from fedskew.engine.distributed import Apart, Distributed, Group, balanced
from fedskew.engine.sequential import Sequential
from fedskew.engine.stacked import Stacked
from fedskew.experiment.processes import work
from fedskew.loop.round import Engine
from fedskew.skew.partition import Ints
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


def always_apart(patch: pytest.MonkeyPatch) -> None:
    """Also for the small models and cohorts here."""
    patch.setattr(distributed, "SUMS", 0)
    patch.setattr(distributed, "LONG", 1)


def played(spec: str, engine: Engine) -> dict[str, Tensor]:
    """Everything known of some rounds, with all rows here; both processes ask for them."""
    return {name: torch.clone(value) for name, value in table.run(table.federation(spec), engine).items()}


ROWS = [
    torch.randn(7, 50, generator=torch.Generator().manual_seed(5), dtype=kind)
    for kind in (torch.float32, torch.float64)
]
ROWS += [ROWS[1].index_fill(0, torch.tensor(3), torch.inf), ROWS[1].reshape(7, 5, 10)]


def answers(group: Group, rows: Tensor) -> dict[str, Tensor]:
    """What rows tell of which each process has some."""
    shares = [np.array([0, 2, 3]), np.array([1, 4, 5, 6])]
    apart, weights = Apart(group, shares, rows[shares[group.rank]]), torch.arange(1.0, 8)
    found = {"sum": weighted_sum(weights, apart)}
    if rows.dim() == 2:
        found |= spread(weights, apart)._asdict()
    found["everywhere"] = group.gather(found["sum"][None], [np.array([0]), np.array([1])])
    assert apart.gathered is None
    found |= {
        "one": apart[4].clone(),
        "more": 2 * apart,
        "joined": torch.cat([apart, apart]),
        "rows": torch.stack(list(apart)),
    }
    assert apart.gathered is not None
    apart.mul_(2)
    return found | {"changed": weighted_sum(weights, apart)}


def other(group: Group) -> None:
    """The second process: the same rounds."""
    torch.set_num_threads(1)
    always_apart(pytest.MonkeyPatch())
    for spec, engine in CASES:
        played(spec, Distributed(engine, group))
    for spec in ("fedavg", "median"):
        table.run(table.federation(spec), Distributed(Sequential(), group))
    for rows in ROWS:
        answers(group, rows)
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
def test_two_processes_equal_one(group: Group, spec: str, engine: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last bits, which may depend on where in memory a client's row begins, and on the width of a stack."""
    always_apart(monkeypatch)
    ours, alone = played(spec, Distributed(engine, group)), played(spec, engine)
    table.assert_close(ours, alone)


@pytest.mark.parametrize(("spec", "brought"), [("fedavg", 0), ("median", 1)])
def test_updates_travel_only_where_a_method_looks_at_them(
    group: Group, spec: str, brought: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it is their sums; the other process notices as well as this one, or both would wait for ever."""
    always_apart(monkeypatch)
    seen, gather = [], Group.gather

    def heard(self: Group, mine: Tensor, shares: Sequence[Ints]) -> Tensor:
        seen.append(mine.shape)
        return gather(self, mine, shares)

    monkeypatch.setattr(Group, "gather", heard)
    fed = table.federation(spec)
    table.run(fed, Distributed(Sequential(), group))
    assert seen
    assert sum(shape[-1:] == (fed.task.space.size,) for shape in seen) == brought * table.ROUNDS


@pytest.mark.parametrize("rows", ROWS, ids=["float32", "float64", "broken", "more axes"])
def test_rows_apart_are_as_rows_together(group: Group, rows: Tensor) -> None:
    got, weights = answers(group, rows), torch.arange(1.0, 8)
    assert torch.equal(got["everywhere"][0].nan_to_num(), got["everywhere"][1].nan_to_num())
    expected = {"sum": weighted_sum(weights, rows), "one": rows[4], "more": 2 * rows, "joined": torch.cat([rows, rows])}
    expected["changed"] = 2 * expected["sum"]
    if rows.dim() == 2:
        expected |= spread(weights, rows)._asdict()
    for name, value in expected.items():
        exact = 1e-12 if value.dtype == torch.float64 else 1e-6
        torch.testing.assert_close(
            got[name], value, rtol=exact, atol=exact, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize(("clients", "row", "kind"), [(9, 1024, torch.float32), (5, 1024, torch.float64)])
def test_sums_travel_where_they_are_less_than_the_rows(clients: int, row: int, kind: torch.dtype) -> None:
    """Two sums of float64 go there and back: 32 bytes a parameter, which nine rows of float32 exceed."""
    alone = Distributed(Sequential(), Group(0, 1))

    def apart(clients: int, row: int, kind: torch.dtype) -> bool:
        rows = torch.zeros(clients, row, dtype=kind)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Group, "gather", lambda self, mine, shares: mine)
            return isinstance(alone.everywhere(rows, [np.arange(clients)], apart=True), Apart)

    assert apart(clients, row, kind)
    assert not apart(clients - 1, row, kind)
    assert not apart(clients, row - 1, kind)
    assert not apart(clients, row, torch.int64)


@pytest.mark.parametrize(
    ("cards", "processes", "nccl", "expected"),
    [(0, 2, True, "gloo"), (1, 2, True, "gloo"), (2, 2, True, "cpu:gloo,cuda:nccl"), (4, 2, False, "gloo")],
)
def test_each_process_with_a_gpu_of_its_own_talks_through_nccl(
    cards: int, processes: int, nccl: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cards)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: nccl)
    assert distributed.back_end(processes) == expected


def test_what_processes_tell_each_other(group: Group) -> None:
    assert group.share_text("grüße") == "grüße"
    assert group.agree(True)
    tree = {"a": {"b": torch.tensor([True, False])}, "c": torch.arange(6).view(2, 3).T, "d": torch.zeros(0, 3)}
    group.share_tree(tree)
    assert group.share_tree({}) == {}
