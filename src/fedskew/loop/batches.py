"""Batch sizes that follow the scatter of the clients' losses, for every method: each client of a round sends one number for it.

FedPBS (AbouNassar, Elshall, Abdulah 2026, arXiv:2603.13909, Fig. 2) gives clients of low variance large batches, and clients of
high variance small ones, without a formula. `fedskew.loop.plan.adapted` has ours.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fedskew.core.algorithm import Algorithm
from fedskew.core.records import Batch, View
from fedskew.core.rows import Of, moments, variance_of
from fedskew.core.task import Task
from fedskew.core.trees import Tree, num_bytes
from fedskew.loop.federation import Federation
from fedskew.loop.sharing import keeping
from fedskew.loop.work import Engine, Work, by_group, program


@dataclass(frozen=True, kw_only=True)
class Scatter(Algorithm):
    """The survey: each client's variance ``of`` its rows' losses or gradients at the received model."""

    of: Of = "loss"

    def before(self, task: Task, view: View, batch: Batch) -> Tree:
        return moments(self.of, task, view.x, batch)

    def answer(self, view: View) -> Tree:
        return {"V": variance_of(view.before, view.info.num_examples)}


def by_terciles(variance: Tensor) -> list[float]:
    """Return the factor of each client's batch: 2 in the lowest third of the variances (C,), 1 in the middle, 1/2 in the highest.

    A client's place is its share of clients below it, and half of its equals.
    """
    below, equal = (variance[None] < variance[:, None]).sum(1), (variance[None] == variance[:, None]).sum(1)
    places = (3 * (2 * below + equal)) // (2 * len(variance))
    return [(2.0, 1.0, 0.5)[place] for place in places.tolist()]


def batch_shares(fed: Federation, engine: Engine, work: Work) -> tuple[Mapping[int, float], int]:
    """Return the share of the local batch size that each of these clients gets, and the bytes of their answers.

    Both are empty if the sizes do not follow the variance.
    """
    if fed.system.variance is None or not len(work.clients):
        return {}, 0
    programs = tuple(program(Scatter(of=fed.system.variance), task, fed.solver) for task in fed.tasks)
    part = fed.own_part
    programs = tuple(keeping(p, part) for p in programs) if part else programs
    _, answers = by_group(programs, work, lambda p, some: engine.survey(p, some, fed.x, fed.targets(some.round)))
    resources, factors = fed.system.shares(len(fed.partition), fed.seed), by_terciles(answers["V"])
    shares = {int(k): resources[k] * factor for k, factor in zip(work.clients, factors, strict=True)}
    return shares, num_bytes(answers)
