"""Several processes equal one: the conformance table in two processes, the balance of work, and what they tell each other."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedskew.algorithms import FedMd
from fedskew.core.vectors import spread, weighted_sum
from fedskew.engine import distributed, homes
from fedskew.engine.apart import Apart
from fedskew.engine.distributed import Distributed, balanced, sums_are_less
from fedskew.engine.group import Group, back_end
from fedskew.engine.homes import HomeStates
from fedskew.engine.sequential import Sequential
from fedskew.engine.stacked import Stacked
from fedskew.engine.states import ClientStates
from fedskew.experiment.processes import work
from fedskew.loop.federation import Federation
from fedskew.loop.round import Engine, Outcome, fresh
from fedskew.loop.sharing import Kept
from fedskew.skew.partition import Ints
from fedskew.slots import TopK, Uniform
from tests import test_conformance as table
from tests.small import X0, play
from tests.test_methods_fedmd import two_architectures

T = TypeVar("T")

START = torch.as_tensor(X0, dtype=torch.float64)

Recipe = Callable[[], tuple[Federation, Tensor]]
"""Makes a federation and where its training starts, the same in both processes."""


def by_table(spec: str, **changes: Any) -> tuple[Federation, Tensor]:
    return replace(table.federation(spec), **changes), START


CASES: dict[str, tuple[Recipe, Engine]] = {
    **{spec: (partial(by_table, spec), Sequential()) for spec in table.FIRST},
    "fedavg stacked": (partial(by_table, "fedavg"), Stacked()),
    "scaffold stacked": (partial(by_table, "scaffold"), Stacked()),
    "error feedback": (partial(by_table, "scaffold", codec=TopK(share=0.2)), Sequential()),
    "a part kept": (partial(by_table, "scaffold", kept=Kept.of(torch.arange(5), len(X0))), Sequential()),
    "fewer than processes": (partial(by_table, "scaffold", selection=Uniform(clients=1)), Sequential()),
    "two architectures": (lambda: two_architectures(FedMd(rows=11, steps=3))[:2], Sequential()),
}


@given(st.lists(st.integers(0, 50), min_size=1, max_size=30), st.integers(1, 6))
def test_shares_are_disjoint_complete_and_balanced(costs: list[int], size: int) -> None:
    shares = balanced(costs, size)
    assert sorted(np.concatenate(shares).tolist()) == list(range(len(costs)))
    assert all((np.diff(share) > 0).all() for share in shares)
    assert len(costs) < size or all(len(share) for share in shares)
    loads = [sum(costs[i] + 1 for i in share) for share in shares]
    # a greedy schedule: nobody has more than the least busy but for its last piece of work
    assert max(loads) - min(loads) <= max(costs) + 1


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), min_size=1, max_size=30), st.integers(1, 6))
def test_shares_near_home_are_as_balanced(clients: list[tuple[int, int]], size: int) -> None:
    costs, lives = [cost for cost, _ in clients], np.array([home % size for _, home in clients])
    shares = balanced(costs, size, [np.flatnonzero(lives == process) for process in range(size)])
    assert sorted(np.concatenate(shares).tolist()) == list(range(len(costs)))
    assert all((np.diff(share) > 0).all() for share in shares)
    assert len(costs) < size or all(len(share) for share in shares)
    loads, without = ([sum(costs[i] + 1 for i in at) for at in some] for some in (shares, balanced(costs, size)))
    assert max(loads) <= max(max(without), sum(loads) / size + max(costs) + 1)


def test_shares_by_hand() -> None:
    """8 to the first; 5 to the second, 4 to the second (5 < 8), then 3 to the first (9 > 9 after one unit each)."""
    assert [share.tolist() for share in balanced([3, 5, 8, 4], 2)] == [[0, 2], [1, 3]]


def test_shares_near_home_by_hand() -> None:
    """All at home with as much to do as anybody: nobody moves. All in the first: 5 would give it 15, with one more for each client,
    where 13 is the most without homes; so would 4, 14; and 3 gives it 13.
    """
    nobody = np.zeros(0, dtype=np.int64)
    for costs, lives, expected in (
        ([5, 5, 5, 5], [[0, 3], [1, 2]], [[0, 3], [1, 2]]),
        ([6, 5], [[1], [0]], [[1], [0]]),
        ([8, 5, 4, 3], [[0, 1, 2, 3], nobody], [[0, 3], [1, 2]]),
    ):
        assert [share.tolist() for share in balanced(costs, 2, [np.asarray(at) for at in lives])] == expected


def test_nobody_is_idle_when_many_live_together() -> None:
    """One huge client, and two of no work in one home."""
    assert [len(share) for share in balanced([100, 0, 0], 3, [np.array([0]), np.array([1, 2]), np.zeros(0, int)])] == [
        1,
        1,
        1,
    ]


def always_apart(patch: pytest.MonkeyPatch) -> None:
    """Also for the small models and cohorts here; and few client states travel at a time."""
    patch.setattr(distributed, "SUMS", 0)
    patch.setattr(distributed, "LONG", 1)
    patch.setattr(homes, "PART", 40)


def played(recipe: Recipe, engine: Engine) -> dict[str, Tensor]:
    """Everything known of some rounds, with all rows here; both processes ask for them."""
    (fed, x0), kept = recipe(), ClientStates()
    if isinstance(engine, Distributed):
        states = HomeStates(engine.group, kept, partial(fresh, fed, x0))
        outcomes = play(fed, x0, table.ROUNDS, engine, states=states)
        states.collect()
    else:
        outcomes = play(fed, x0, table.ROUNDS, engine, states=kept)
    return {name: torch.clone(value) for name, value in table.record(outcomes, kept).items()}


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
    for recipe, engine in CASES.values():
        played(recipe, Distributed(engine, group))
    for spec in ("fedavg", "median", "scaffold", "ditto:lam=0.5"):
        without_records(spec, group)
    for rows in MOVED:
        there_and_back(group, rows)
    kept_and_collected(group)
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


@pytest.mark.parametrize("case", CASES)
def test_two_processes_equal_one(group: Group, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last bits, which may depend on where in memory a client's row begins, and on the width of a stack."""
    always_apart(monkeypatch)
    recipe, engine = CASES[case]
    table.assert_close(played(recipe, Distributed(engine, group)), played(recipe, engine))


@pytest.mark.parametrize(("spec", "brought"), [("fedavg", 0), ("median", 1), ("scaffold", 0), ("ditto:lam=0.5", 0)])
def test_updates_travel_only_where_a_method_looks_at_them(
    group: Group, spec: str, brought: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it is their sums; the other process notices as well as this one, or both would wait for ever.

    Of SCAFFOLD's states and Ditto's models, which are as long, those alone whose clients are not trained at home, there and back.
    """
    always_apart(monkeypatch)
    seen, swapped, gather, swap = list[torch.Size](), list[int](), Group.gather, Group.swap

    def heard(self: Group, mine: Tensor, shares: Sequence[Ints]) -> Tensor:
        seen.append(mine.shape)
        return gather(self, mine, shares)

    def noted(self: Group, rows: Tensor, leaving: Sequence[int], arriving: Sequence[int]) -> Tensor:
        swapped.append(len(rows) + sum(arriving))
        return swap(self, rows, leaving, arriving)

    monkeypatch.setattr(Group, "gather", heard)
    monkeypatch.setattr(Group, "swap", noted)
    outcomes = without_records(spec, group)
    assert seen
    assert sum(shape[-1:] == (len(START),) for shape in seen) == brought * table.ROUNDS
    away = 0
    for clients, plans in ((outcome.work.clients, outcome.work.plans) for outcome in outcomes):
        lives = [np.flatnonzero(clients % 2 == process) for process in range(2)]
        shares = balanced([plan.index.size for plan in plans], 2, lives)
        away += len(clients) - sum(len(np.intersect1d(*both)) for both in zip(lives, shares, strict=True))
    assert 0 < away < 2 * table.ROUNDS, "four take part in a round"
    assert sum(swapped) == (2 * away if spec in ("scaffold", "ditto:lam=0.5") else 0)


def without_records(spec: str, group: Group) -> list[Outcome]:
    """Some rounds, of which nothing else is asked than what they need themselves."""
    fed = table.federation(spec)
    states = HomeStates(group, ClientStates(), partial(fresh, fed, START))
    return play(fed, START, table.ROUNDS, Distributed(Sequential(), group), states=states)


MOVED = [
    torch.arange(7.0),
    torch.arange(7) % 2 == 0,
    torch.zeros(7, 0),
    ROWS[0].to(torch.bfloat16),
    ROWS[1].reshape(7, 5, 10),
]


def there_and_back(group: Group, rows: Tensor) -> tuple[Apart, Apart]:
    """Rows moved from everywhere to one process, and to other shares, once after all of them were asked for."""
    shares = [np.array([0, 2, 3]), np.array([1, 4, 5, 6])]
    begun = Apart(group, shares, rows[shares[group.rank]])
    assert begun.moved([part.copy() for part in shares]) is begun
    first = begun.moved([np.arange(7), np.zeros(0, dtype=np.int64)])
    second = first.moved([np.array([1, 2, 6]), np.array([0, 3, 4, 5])])
    assert second.gathered is None
    torch.testing.assert_close(second.clone(), rows, rtol=0, atol=0)
    return first, second.moved(shares)


@pytest.mark.parametrize("rows", MOVED, ids=["numbers", "flags", "nothing", "bfloat16", "more axes"])
def test_rows_move_between_processes(group: Group, rows: Tensor) -> None:
    first, second = there_and_back(group, rows)
    assert torch.equal(first.mine, rows)
    assert torch.equal(second.mine, rows[[0, 2, 3]])


class Threads:
    """A group of threads instead of processes, of which each sees its rank."""

    def __init__(self, size: int) -> None:
        self.size, self.here = size, threading.local()
        self.barrier, self.sent = threading.Barrier(size), dict[int, tuple[Tensor, ...]]()

    @property
    def rank(self) -> int:
        return self.here.rank  # type: ignore[no-any-return]

    def swap(self, rows: Tensor, leaving: Sequence[int], arriving: Sequence[int]) -> Tensor:
        self.sent[self.rank] = rows.split(list(leaving))
        self.barrier.wait(10)
        got = [self.sent[process][self.rank] for process in range(self.size)]
        self.barrier.wait(10)
        assert [len(part) for part in got] == list(arriving)
        return torch.cat(got)

    def play(self, act: Callable[[], T]) -> list[T]:
        def as_rank(rank: int) -> T:
            self.here.rank = rank
            return act()

        with ThreadPoolExecutor(self.size) as pool:
            return list(pool.map(as_rank, range(self.size)))


@given(st.integers(1, 4), st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), min_size=9, max_size=9))
def test_rows_move_among_many(size: int, ways: list[tuple[int, int]]) -> None:
    """Nine of them, each from any process to any."""
    before, after = ([np.flatnonzero(np.array(at) % size == p) for p in range(size)] for at in zip(*ways, strict=True))
    rows, group = torch.arange(18.0).view(9, 2), Threads(size)

    def act() -> tuple[bool, Tensor, Tensor]:
        begun = Apart(group, before, rows[before[group.rank]])
        moved = begun.moved(after)
        again = moved is begun.moved([at.copy() for at in after])
        moved.gathered, group.sent[group.rank] = rows, ()
        return again, moved.mine, moved.moved(before).mine

    for rank, (again, there, back) in enumerate(group.play(act)):
        assert again
        assert torch.equal(there, rows[after[rank]])
        assert torch.equal(back, rows[before[rank]])
        assert group.sent[rank] == (), "what is everywhere does not travel"


@pytest.mark.parametrize(
    ("clients", "numbers", "expected"), [(5, 2, [2, 2, 1]), (4, 2, [2, 2]), (2, 6, [1, 1]), (0, 2, []), (9, 0, [9])]
)
def test_states_travel_so_many_at_a_time(
    clients: int, numbers: int, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pieces of 40 bytes, of states of some numbers of eight."""
    monkeypatch.setattr(homes, "PART", 40)
    state = {"c": torch.zeros(numbers, dtype=torch.float64)} if numbers else {}
    found = list(homes.parts(np.arange(clients), state))
    assert [int(k) for part in found for k in part] == list(range(clients))
    assert [len(part) for part in found] == expected


def kept_and_collected(group: Group) -> tuple[ClientStates, list[set[int]], dict[str, Tensor]]:
    """What is in a process after two rounds, and what rank 0 then has; and which changes were waiting."""
    kept = ClientStates()
    states = HomeStates(group, kept, lambda: {"c": torch.zeros(3), "n": torch.tensor(0)})
    waiting = []
    for clients, shares in ((np.array([1, 2, 4]), [np.array([0, 1]), np.array([2])]), (np.array([3, 4]), None)):
        ids = torch.as_tensor(clients)
        new = {"c": ids[:, None] + torch.zeros(len(ids), 3), "n": ids}
        if shares:
            new = {name: Apart(group, shares, leaf[shares[group.rank]]) for name, leaf in new.items()}
        states.put(clients, new)
        waiting.append(set(states.changed))
    own = {k: kept.get(np.array([k]), states.like)["n"].item() for k in range(5)}
    assert own == {k: k if k in (1, 2, 3, 4) and k % 2 == group.rank else 0 for k in range(5)}
    asked = {name: leaf.clone() for name, leaf in states.get(np.arange(5), states.like).items()}
    states.collect()
    assert not states.changed
    return kept, waiting, asked


def test_each_process_keeps_its_own_clients_and_the_first_collects_the_rest(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients 1 and 3 live with rank 1; 0 never took part. A state of 20 bytes: two of them travel at a time."""
    always_apart(monkeypatch)
    kept, waiting, asked = kept_and_collected(group)
    assert waiting == [{1}, {1, 3}]
    assert asked["n"].tolist() == [0, 1, 2, 3, 4]
    assert asked["c"].tolist() == [[float(k)] * 3 for k in range(5)]
    assert sorted(kept.place) == [1, 2, 3, 4]
    assert kept.get(np.arange(5), lambda: {"c": torch.zeros(3), "n": torch.tensor(0)})["n"].tolist() == [0, 1, 2, 3, 4]


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
    rows = torch.zeros(2, row, dtype=kind)
    assert sums_are_less(rows, clients)
    assert not sums_are_less(rows, clients - 1)
    assert not sums_are_less(rows[:, 1:], clients)
    assert not sums_are_less(rows.long(), clients)


@pytest.mark.parametrize(
    ("cards", "processes", "nccl", "expected"),
    [(0, 2, True, "gloo"), (1, 2, True, "gloo"), (2, 2, True, "cpu:gloo,cuda:nccl"), (4, 2, False, "gloo")],
)
def test_each_process_with_a_gpu_of_its_own_talks_through_nccl(
    cards: int, processes: int, nccl: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cards)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: nccl)
    assert back_end(processes) == expected


def test_what_processes_tell_each_other(group: Group) -> None:
    assert group.share_text("grüße") == "grüße"
    assert group.agree(True)
    tree = {"a": {"b": torch.tensor([True, False])}, "c": torch.arange(6).view(2, 3).T, "d": torch.zeros(0, 3)}
    group.share_tree(tree)
    assert group.share_tree({}) == {}
