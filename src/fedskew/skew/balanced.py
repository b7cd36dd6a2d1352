"""Dirichlet label skew: with clients of equal size, and as in the code of Goel, Srivastava and Shah (Failure Modes)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedskew.skew.blocks import dealt_by_counts, fitted
from fedskew.skew.label import check_alpha, dirichlet, top_up
from fedskew.skew.partition import Ints
from fedskew.skew.plain import check_clients


@dataclass(frozen=True, kw_only=True)
class LabelDirichletBalanced:
    """Label skew without quantity skew: clients have equal size, and draw the class of each row from p_k ~ Dir(alpha).

    ``prior="data"`` draws p_k ~ Dir(alpha C p) around the class frequencies p of the data set. If a class runs out, clients draw
    from their other classes; if these run out, too, they take any rows that are left. All rows are assigned.
    """

    alpha: float = 0.1
    prior: Literal["even", "data"] = "even"

    idea: ClassVar[str] = "clients of equal size, each with class proportions from Dir(alpha)"
    cites: ClassVar[tuple[str, ...]] = ("feddyn",)

    def __post_init__(self) -> None:
        check_alpha(self.alpha)

    def proportions(self, labels: Ints, num_clients: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Draw the requested class proportions, (clients, classes)."""
        room = np.bincount(labels)
        held = room > 0
        weight = room[held] / len(labels) * held.sum() if self.prior == "data" else np.ones(int(held.sum()))
        p = np.zeros((num_clients, len(room)))
        p[:, held] = np.exp(dirichlet(self.alpha * weight, (num_clients, int(held.sum())), rng))
        return p

    def deal(self, labels: Ints, groups: Ints | None, num_clients: int, rng: np.random.Generator) -> list[Ints]:
        check_clients(num_clients, len(labels))
        p = self.proportions(labels, num_clients, rng)
        sizes = np.diff(np.arange(num_clients + 1) * len(labels) // num_clients)
        wanted = rng.multinomial(sizes, p / p.sum(1, keepdims=True))
        return dealt_by_counts(labels, fitted(wanted, p, np.bincount(labels), rng), rng)


@dataclass(frozen=True, kw_only=True)
class LabelDirichletTopUp:
    """Each class is divided among the clients in proportions q_c ~ Dir(alpha). Then small clients get rows of the largest one.

    This is the code of Goel, Srivastava and Shah; their text describes `LabelDirichlet`. Each client gets floor(n_c q_ck) rows of a
    class, and the last client the rest. Then random rows of the largest client move until all clients have
    max(1, n / (10 clients)) rows.
    """

    alpha: float = 0.1

    idea: ClassVar[str] = (
        "each class is cut by Dir(alpha), small clients get more rows (the code of Goel, Srivastava and Shah)"
    )
    cites: ClassVar[tuple[str, ...]] = ("failure-modes",)

    def __post_init__(self) -> None:
        check_alpha(self.alpha)

    def deal(self, labels: Ints, groups: Ints | None, num_clients: int, rng: np.random.Generator) -> list[Ints]:
        check_clients(num_clients, len(labels))
        room = np.bincount(labels)
        share = np.exp(dirichlet(self.alpha, (len(room), num_clients), rng))
        counts = np.floor(room[:, None] * share + 1e-9).astype(np.int64)
        counts[:, -1] = room - counts[:, :-1].sum(1)
        dealt = dealt_by_counts(labels, counts.T, rng)
        return top_up(dealt, max(1, len(labels) // (10 * num_clients)), rng)
