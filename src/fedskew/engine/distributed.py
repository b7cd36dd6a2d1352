"""Several processes as one: each trains its share of the cohort, and all of them then do the same with what every client sent.

Every process runs the same rounds on the same server, so that measures and aggregation are those of one process. What clients tell
travels once a round, in the cohort's order; of their updates only sums do, as long as a round asks for no more than that (`Apart`);
and what is kept of them stays where it is (`fedskew.engine.homes`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from fedskew.core.records import Upload
from fedskew.core.trees import Tree, map_leaves
from fedskew.engine.apart import Apart, scattered, share_of
from fedskew.engine.group import Group
from fedskew.loop.local import Program
from fedskew.loop.round import Done, Engine, Work, members_of
from fedskew.skew.partition import Ints

T = TypeVar("T")

SUMS = 32
"""Bytes a parameter that the sums of a round cost on their way: two of float64, there and back."""

LONG = 1024
"""Numbers in a row from which on its bytes take longer than the asking."""


@dataclass(frozen=True)
class Distributed:
    """Another engine, in each process on a share of the cohort of about equal work."""

    inner: Engine
    group: Group

    def survey(self, program: Program, work: Work, x: Tensor, y: Tensor) -> tuple[Tree, Tree]:
        costs = [plan.index.size for plan in work.passes]
        found, shares = self.divided(work, costs, lambda share: self.inner.survey(program, share, x, y))
        before, answers = (self.everywhere(part, shares) for part in found)
        return before, answers

    def run(self, program: Program, work: Work, x: Tensor, y: Tensor) -> Done:
        costs = [plan.index.size for plan in work.plans]
        done, shares = self.divided(work, costs, lambda share: self.inner.run(program, share, x, y))
        report, scores = (self.everywhere(p, shares) for p in (done.uploads.report, done.scores))
        delta, extras = (self.everywhere(p, shares, sums_are_less) for p in (done.uploads.delta, done.uploads.extras))
        states = self.everywhere(done.states, shares, lambda *_: bool(scattered(work.view.state)))
        return Done(Upload(delta, extras, report), states, scores)

    def divided(self, work: Work, costs: Sequence[int], act: Callable[[Work], T]) -> tuple[T, list[Ints]]:
        """What ``act`` gives of this process's clients, and which clients each process has; none: this one has them all.

        A cohort of fewer clients than processes is everybody's. Clients whose states are apart are trained where these are, as far
        as that leaves everybody as much to do.
        """
        states, kept = work.view.state, scattered(work.view.state)
        rest = work._replace(view=work.view._replace(state={}), memory={})
        if len(work.clients) < self.group.size:
            shares, mine = list[Ints](), rest
            states = map_leaves(lambda leaf: leaf.whole() if isinstance(leaf, Apart) else leaf, states)
        else:
            shares = balanced(costs, self.group.size, kept[0].shares if kept else ())
            mine, states = members_of(rest, shares[self.group.rank]), share_of(states, shares, self.group.rank)
        return act(mine._replace(view=mine.view._replace(state=states))), shares

    def everywhere(self, mine: Any, shares: list[Ints], stay: Callable[[Tensor, int], bool] = lambda *_: False) -> Any:
        """Trees with a leading axis of the whole cohort; leaves that are to ``stay``, of so many clients, are left apart."""
        clients = sum(len(at) for at in shares)

        def whole(leaf: Tensor) -> Tensor:
            return Apart(self.group, shares, leaf) if stay(leaf, clients) else self.group.gather(leaf, shares)

        return map_leaves(whole, mine) if shares else mine


def sums_are_less(mine: Tensor, clients: int) -> bool:
    """Whether two sums over so many clients' rows, of which some are here, are less to tell than all rows."""
    row = mine.shape[1:].numel() if mine.dim() > 1 else 1
    return mine.is_floating_point() and row >= LONG and clients * mine.element_size() > SUMS


def balanced(costs: Sequence[int], size: int, homes: Sequence[Ints] = ()) -> list[Ints]:
    """Positions of ``costs`` for each of ``size`` processes, ascending; the largest first, each to who has least to do.

    A position stays in that of ``homes`` in which it is, as long as that one then has no more to do than the busiest would have
    without homes. No process is left without any, where there are enough.
    """
    loads, shares = np.zeros(size), [list[int]() for _ in range(size)]
    home = {int(i): process for process, at in enumerate(homes) for i in at}
    # an empty plan still counts, so that nobody gets all of them
    most = max(sum(costs[i] + 1 for i in at) for at in balanced(costs, size)) if homes else 0
    for done, i in enumerate(np.argsort([-cost for cost in costs], kind="stable")):
        process = home.get(int(i), -1)
        needed = len(costs) - done <= (loads == 0).sum() and loads[process] > 0
        if process < 0 or needed or loads[process] + costs[i] + 1 > most:
            process = int(loads.argmin())
        loads[process] += costs[i] + 1
        shares[process].append(int(i))
    return [np.sort(np.asarray(share, dtype=np.int64)) for share in shares]
