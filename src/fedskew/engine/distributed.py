"""Several ranks as one engine: each rank trains its share of the cohort, then a gather sends all results to every rank.

Every rank plays the same rounds, and keeps the server and all client states. Measures and aggregation therefore give the same
numbers as in one process.
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
    """Wraps another engine. On each rank it trains a share of the cohort; all shares have about equal work."""

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
        """Call ``act`` with this rank's share; gather the results of all ranks (leading axis C).

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
    """Divide costs among ``size`` ranks; return each rank's positions in ``costs``, ascending.

    Costs are dealt in descending order, each to the rank with the smallest load. If there are enough costs, no rank is empty.
    """
    loads, shares = np.zeros(size), [list[int]() for _ in range(size)]
    for i in np.argsort([-cost for cost in costs], kind="stable"):
        rank = int(loads.argmin())
        # an empty plan counts 1, so that empty plans are spread over the ranks
        loads[rank] += costs[i] + 1
        shares[rank].append(int(i))
    return [np.sort(np.asarray(share, dtype=np.int64)) for share in shares]
