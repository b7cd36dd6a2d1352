"""Several ranks as one engine: each trains its share of the cohort, then one gather sends all results to every rank.

Every rank plays the same rounds and keeps the server and all client states, so measures and aggregation give the same numbers as in
one process.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from torch import Tensor

from fedskew.core.trees import Tree, map_leaves
from fedskew.engine.group import Group
from fedskew.loop.local import Program
from fedskew.loop.work import Done, Engine, Work, members_of
from fedskew.skew.partition import Ints

T = TypeVar("T")


@dataclass(frozen=True)
class Distributed:
    """Another engine, which trains on each rank a share of the cohort of about equal work."""

    inner: Engine
    group: Group

    def survey(self, program: Program, work: Work, x: Tensor, y: Tensor) -> tuple[Tree, Tree]:
        def surveyed(share: Work) -> Tree:
            before, answers = self.inner.survey(program, share, x, y)
            return {"before": before, "answers": answers}

        found = self.shared(work, [plan.index.size for plan in work.passes], surveyed)
        return found["before"], found["answers"]

    def run(self, program: Program, work: Work, x: Tensor, y: Tensor) -> Done:
        costs = [plan.index.size for plan in work.plans]
        return self.shared(work, costs, lambda share: self.inner.run(program, share, x, y))

    def shared(self, work: Work, costs: Sequence[int], act: Callable[[Work], T]) -> T:
        """Call ``act`` with this rank's share and gather the results (leading axis C).

        If there are fewer clients than ranks, every rank trains all of them.
        """
        if len(work.clients) < self.group.size:
            return act(work)
        shares = balanced(costs, self.group.size)
        mine = act(members_of(work, shares[self.group.rank]))
        rows: list[Tensor] = []
        map_leaves(rows.append, mine)
        gathered = iter(self.group.gather(rows, shares))
        whole: T = map_leaves(lambda _: next(gathered), mine)
        return whole


def balanced(costs: Sequence[int], size: int) -> list[Ints]:
    """Positions of ``costs`` for each of ``size`` ranks, ascending.

    The largest cost is dealt first, each to the rank with the smallest load. With enough costs no rank stays empty.
    """
    loads, shares = np.zeros(size), [list[int]() for _ in range(size)]
    for i in np.argsort([-cost for cost in costs], kind="stable"):
        rank = int(loads.argmin())
        # an empty plan costs 1, so that no rank gets all of them
        loads[rank] += costs[i] + 1
        shares[rank].append(int(i))
    return [np.sort(np.asarray(share, dtype=np.int64)) for share in shares]
