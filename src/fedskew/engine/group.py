"""The ranks of PyTorch's process group, their collectives, and several ranks as one engine.

Every rank plays the same rounds, and keeps the server and all client states. Measures and aggregation therefore give the same
numbers as in one process.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from fedskew.core.errors import FedskewError
from fedskew.core.machine import span
from fedskew.core.trees import Tree, from_leaves, leaves, map_leaves
from fedskew.loop.work import Done, Engine, Program, T, Work, members_of
from fedskew.skew.partition import Ints

TIME_LIMIT = timedelta(minutes=30)
"""Maximum time that a rank waits for the others in a collective."""


class Lost(FedskewError):
    """Another rank has ended or does not answer."""


@contextmanager
def collective() -> Iterator[None]:
    """Context of a collective operation, which needs all ranks. Raises `Lost` if one does not take part."""
    try:
        with span("exchange and waiting"):
            yield
    except RuntimeError as error:
        reason = str(error).splitlines()[0].rpartition("] ")[2].partition(". ")[0]
        raise Lost(f"another rank has ended or does not answer ({reason})") from None


@dataclass(frozen=True)
class Group:
    """This rank and the number of ranks. Tensors are sent from and received in main memory."""

    rank: int
    size: int

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Return rank 0's tensor. It overwrites ``tensor``, which must have the same shape and type, in main memory."""
        if tensor.numel():
            with collective():
                # sent as bytes, because gloo does not support all types
                dist.broadcast(tensor.reshape(-1).view(torch.uint8), src=0)
        return tensor

    def broadcast_flag(self, flag: bool = False) -> bool:
        """Return rank 0's flag."""
        return bool(self.broadcast(torch.tensor([flag])))

    def broadcast_text(self, text: str = "") -> str:
        """Return rank 0's text."""
        data = torch.tensor(list(text.encode()), dtype=torch.uint8)
        length = self.broadcast(torch.tensor([len(data)]))
        return bytes(self.broadcast(data if self.rank == 0 else data.new_empty(int(length))).tolist()).decode()

    def broadcast_tree(self, tree: Tree | None = None) -> Tree:
        """Return rank 0's tree, in main memory."""
        flat = {path: leaf.cpu().contiguous() for path, leaf in leaves(tree or {})}
        layout = {path: (str(leaf.dtype).partition(".")[2], list(leaf.shape)) for path, leaf in flat.items()}
        received = {}
        for path, (dtype, shape) in json.loads(self.broadcast_text(json.dumps(layout))).items():
            leaf = flat[path] if self.rank == 0 else torch.empty(shape, dtype=getattr(torch, dtype))
            received[path] = self.broadcast(leaf)
        return from_leaves(received)

    def gather(self, mine: Sequence[Tensor], shares: Sequence[Ints]) -> list[Tensor]:
        """Gather the rows of several tensors from all ranks, in one collective operation.

        ``mine`` has this rank's rows (n, ...) of each tensor; the result has all rows (C, ...). ``shares`` has, for each rank, the
        positions of its rows in the result.
        """
        rows, positions, places = max(map(len, shares)), sum(map(len, shares)), list[slice]()
        for leaf in mine:
            begin = places[-1].stop if places else 0
            places.append(slice(begin, begin + leaf.shape[1:].numel() * leaf.element_size()))
        sent = torch.zeros(rows, places[-1].stop if places else 0, dtype=torch.uint8)
        for leaf, place in zip(mine, places, strict=True):
            if leaf.numel():
                flat = leaf.detach().cpu().reshape(len(leaf), -1).contiguous()
                sent[: len(leaf), place] = flat.view(torch.uint8)
        received = sent.new_empty(self.size, *sent.shape)
        if sent.numel():
            with collective():
                dist.all_gather(list(received), sent)
        row_of = torch.empty(positions, dtype=torch.long)
        for rank, share in enumerate(shares):
            row_of[torch.as_tensor(share)] = rank * rows + torch.arange(len(share))
        return [
            (received.flatten(0, 1)[:, place][row_of].view(leaf.dtype) if leaf.numel() else leaf)
            .reshape(positions, *leaf.shape[1:])
            .to(leaf.device)
            for leaf, place in zip(mine, places, strict=True)
        ]


@dataclass(frozen=True)
class Distributed:
    """Wraps another engine. On each rank it trains a share of the cohort; all shares have about equal work."""

    inner: Engine
    group: Group

    def survey(self, program: Program, work: Work, x: Tensor, y: Tensor) -> tuple[Tree, Tree]:
        costs = [plan.index.size for plan in work.passes]
        return self.shared(work, costs, lambda share: self.inner.survey(program, share, x, y))

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
        return map_leaves(lambda _: next(gathered), mine)


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
