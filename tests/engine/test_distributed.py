"""Several ranks equal one process: the conformance table on two ranks, the balance of work, and the collectives."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, strategies as st
from torch import Tensor

from fedskew.algorithms import FedMd
from fedskew.core.trees import leaves
from fedskew.engine.group import Distributed, Group, Lost, balanced
from fedskew.engine.sequential import Sequential
from fedskew.engine.stacked import Stacked
from fedskew.engine.states import ClientStates
from fedskew.loop.federation import Federation
from fedskew.loop.round import call
from fedskew.loop.sharing import OwnPart
from fedskew.loop.work import Engine
from fedskew.slots import Poisson, TopK, Uniform
from tests import methods as table
from tests.algorithms.test_fedmd import two_architectures
from tests.ranks import check_on_ranks
from tests.small import X0, play

START = torch.as_tensor(X0, dtype=torch.float64)

Recipe = Callable[[], tuple[Federation, Tensor]]
"""Makes a federation and where its training starts, the same on every rank."""


def by_table(spec: str, **changes: Any) -> tuple[Federation, Tensor]:
    return replace(table.federation(spec), **changes), START


CASES: dict[str, tuple[Recipe, Engine]] = {
    **{spec: (partial(by_table, spec), Sequential()) for spec in table.SPECS},
    "fedavg stacked": (partial(by_table, "fedavg"), Stacked()),
    "scaffold stacked": (partial(by_table, "scaffold"), Stacked()),
    "error feedback": (partial(by_table, "scaffold", codec=TopK(share=0.2)), Sequential()),
    "a part kept": (partial(by_table, "scaffold", own_part=OwnPart.of(torch.arange(5), len(X0))), Sequential()),
    "fewer than ranks": (partial(by_table, "scaffold", selection=Uniform(clients=1)), Sequential()),
    "rounds without clients": (partial(by_table, "scaffold", selection=Poisson(rate=0.1)), Sequential()),
    "two architectures": (lambda: two_architectures(FedMd(rows=11, steps=3))[:2], Sequential()),
}

SAMPLE = [
    *("scaffold", "ditto:lam=0.5", "median", "drfa:gamma=0.1", "dp-fedavg:clip=0.3,noise=0.5,q=0.5", "fedavg stacked"),
    *("error feedback", "a part kept", "fewer than ranks", "rounds without clients", "two architectures"),
]
"""States, personal models, methods that need each update, drawn cohorts and empty ones, codecs with memory."""


def equals_one_process(case: str, group: Group) -> None:
    """Compare up to the last bits. These may depend on where a client's row begins in memory, and on the width of a stack."""
    (recipe, engine), records = CASES[case], []
    for driver in (Distributed(engine, group), engine):
        (fed, x0), states = recipe(), ClientStates()
        records.append(table.record(play(fed, x0, table.ROUNDS, driver, states=states), states))
    table.assert_close(*records)


ROWS: dict[str, Tensor] = {
    "numbers": torch.arange(7.0),
    "flags": torch.arange(7) % 2 == 0,
    "nothing": torch.zeros(7, 0),
    "half": torch.randn(7, 3, generator=torch.Generator().manual_seed(5)).to(torch.bfloat16),
    "more axes": torch.randn(7, 5, 2, generator=torch.Generator().manual_seed(5), dtype=torch.float64),
    "columns first": torch.arange(21).view(3, 7).T,
}


def gathers(group: Group) -> None:
    shares = [np.array([0, 2, 3]), np.array([1, 4, 5, 6])]
    mine = [rows[shares[group.rank]] for rows in ROWS.values()]
    for (name, whole), found in zip(ROWS.items(), group.gather(mine, shares), strict=True):
        torch.testing.assert_close(found, whole, rtol=0, atol=0, msg=lambda m, name=name: f"{name}: {m}")
    assert group.gather([], shares) == []
    assert [found.shape for found in group.gather([torch.zeros(len(shares[group.rank]), 0)], shares)] == [(7, 0)]


def broadcasts(group: Group) -> None:
    first = group.rank == 0
    assert group.broadcast_text("grüße" if first else "") == "grüße"
    assert group.broadcast_flag(first)
    tree = {"a": {"b": torch.tensor([True, False])}, "c": torch.arange(6).view(2, 3).T, "d": torch.zeros(0, 3)}
    found = group.broadcast_tree(tree if first else None)
    for (path, ours), (same, theirs) in zip(leaves(found), leaves(tree), strict=True):
        assert path == same
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)
    assert group.broadcast_tree({}) == {}


def misses_a_rank(group: Group) -> None:
    if group.rank == 0:
        with pytest.raises(Lost, match="another rank has ended or does not answer"):
            group.gather([torch.zeros(1)], [np.array([0]), np.array([1])])


CHECKS: dict[str, Callable[[Group], None]] = {
    **{case: partial(equals_one_process, case) for case in CASES},
    "gathers": gathers,
    "broadcasts": broadcasts,
    "misses a rank": misses_a_rank,
}
"""What `tests.ranks` runs in every rank."""


def test_two_ranks_equal_one_process() -> None:
    check_on_ranks(["gathers", "broadcasts", *SAMPLE, "misses a rank"])


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_all_methods_on_ranks_equal_one_process(size: int) -> None:
    check_on_ranks(list(CASES), size, seconds=300)


def test_empty_rounds_case_contains_an_empty_round() -> None:
    fed, _ = CASES["rounds without clients"][0]()
    assert 0 in [len(call(fed, round_)[0]) for round_ in range(table.ROUNDS)]


@pytest.mark.slow
def test_a_failed_check_on_a_rank_shows_its_output() -> None:
    with pytest.raises(AssertionError, match=r"(?s)rank 0:.*unheard of"):
        check_on_ranks(["unheard of"], size=1)


def test_a_rank_that_does_not_answer_in_time_raises_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*_: object, **__: object) -> None:
        raise RuntimeError("[/a/pair.cc:1] Timed out waiting 1800000ms for recv operation. More.\nAt length")

    monkeypatch.setattr(dist, "broadcast", late)
    with pytest.raises(
        Lost, match=r"another rank has ended or does not answer \(Timed out waiting 1800000ms for recv operation\)$"
    ):
        Group(0, 2).broadcast_flag()


@given(st.lists(st.integers(0, 50), min_size=1, max_size=30), st.integers(1, 6))
def test_shares_are_disjoint_complete_and_balanced(costs: list[int], size: int) -> None:
    shares = balanced(costs, size)
    assert sorted(np.concatenate(shares).tolist()) == list(range(len(costs)))
    assert all((np.diff(share) > 0).all() for share in shares)
    assert len(costs) < size or all(len(share) for share in shares)
    loads = [sum(costs[i] + 1 for i in share) for share in shares]
    # a greedy schedule: no rank has more than the least busy but for its last piece of work
    assert max(loads) - min(loads) <= max(costs) + 1


def test_shares_by_hand() -> None:
    """8 to the first; 5 to the second, 4 to the second (5 < 8), then 3 to the first (9 > 9 after one unit each)."""
    assert [share.tolist() for share in balanced([3, 5, 8, 4], 2)] == [[0, 2], [1, 3]]
