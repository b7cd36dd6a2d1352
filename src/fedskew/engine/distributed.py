"""Several processes as one: each trains its share of the cohort, and all of them then know what every client sent.

Every process runs the same rounds on the same server, so that states, measures and aggregation are those of one process, and a
process that is lost takes nothing with it. What travels is what clients send and keep, once a round, in the cohort's order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from fedskew.core.errors import FedskewError
from fedskew.core.spans import span
from fedskew.core.trees import Tree, from_leaves, leaves, map_leaves
from fedskew.loop.local import Program
from fedskew.loop.round import Done, Engine, Work, members_of
from fedskew.skew.partition import Ints


class Lost(FedskewError):
    """A process of the group is gone."""


@contextmanager
def together() -> Iterator[None]:
    """Something that all processes of the group do at the same time. Raises `Lost` when one of them cannot."""
    try:
        yield
    except RuntimeError as error:
        raise Lost(f"a worker process is gone ({str(error).splitlines()[0][:100]})") from None


@dataclass(frozen=True)
class Group:
    """The processes of PyTorch's default group, as one of them sees it; rank 0 owns the store."""

    rank: int
    size: int

    def share(self, tensor: Tensor, source: int = 0) -> Tensor:
        """The tensor of process ``source``, in place of one of the same shape and type."""
        if tensor.numel():
            with together():
                # as bytes, since not every back end knows every type
                dist.broadcast(tensor.reshape(-1).view(torch.uint8), src=source)
        return tensor

    def share_text(self, text: str = "") -> str:
        """The text of rank 0."""
        data = torch.tensor(list(text.encode()), dtype=torch.uint8)
        length = self.share(torch.tensor([len(data)]))
        received = self.share(data if self.rank == 0 else data.new_empty(int(length)))
        return bytes(received.tolist()).decode()

    def share_tree(self, tree: Tree | None = None) -> Tree:
        """The tree of rank 0."""
        flat = dict(leaves(tree or {}))
        kinds = {path: (str(leaf.dtype).partition(".")[2], list(leaf.shape)) for path, leaf in flat.items()}
        told = json.loads(self.share_text(json.dumps(kinds)))
        result = {}
        for path, (kind, shape) in told.items():
            empty = torch.empty(shape, dtype=getattr(torch, kind))
            result[path] = self.share(flat[path].cpu().contiguous() if self.rank == 0 else empty)
        return from_leaves(result)

    def agree(self, wanted: bool) -> bool:
        """Whether rank 0 wants it."""
        return bool(self.share(torch.tensor([wanted])))

    def gather(self, mine: Any, shares: Sequence[Ints]) -> Any:
        """Trees with a leading axis, of which each process has its share of the positions, as one on all of them."""
        total = sum(len(at) for at in shares)

        def whole(leaf: Tensor) -> Tensor:
            result = leaf.new_empty(total, *leaf.shape[1:])
            for source, at in enumerate(shares):
                part = leaf.contiguous() if source == self.rank else leaf.new_empty(len(at), *leaf.shape[1:])
                result[torch.as_tensor(at, device=leaf.device)] = self.share(part, source)
            return result

        return map_leaves(whole, mine)


@contextmanager
def member(**options: Any) -> Iterator[Group]:
    """This process in PyTorch's default group, which ends with the block; ``options`` are those of `init_process_group`."""
    # Something in a run imports it, and its functions keep, as a default, the group that is there at that time. Such a group is not
    # destroyed: its threads live on, and one that lets go of a tensor while Python ends has the process aborted.
    import_module("torch.distributed.nn")
    dist.init_process_group("gloo", **options)
    try:
        yield Group(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()


@dataclass(frozen=True)
class Distributed:
    """Another engine, in each process on a share of the cohort of about equal work."""

    inner: Engine
    group: Group

    def survey(self, program: Program, work: Work, x: Tensor, y: Tensor) -> tuple[Tree, Tree]:
        costs = [plan.index.size for plan in work.passes]
        before, answers = self.divided(work, costs, lambda share: self.inner.survey(program, share, x, y))
        return before, answers

    def run(self, program: Program, work: Work, x: Tensor, y: Tensor) -> Done:
        costs = [plan.index.size for plan in work.plans]
        return Done(*self.divided(work, costs, lambda share: self.inner.run(program, share, x, y)))

    def divided(self, work: Work, costs: Sequence[int], act: Callable[[Work], tuple[Any, ...]]) -> tuple[Any, ...]:
        """What ``act`` gives for the whole cohort; one of fewer clients than processes is everybody's."""
        if len(work.clients) < self.group.size:
            return act(work)
        shares = balanced(costs, self.group.size)
        mine = act(members_of(work, shares[self.group.rank]))
        with span("exchange and waiting"):
            return tuple(self.group.gather(part, shares) for part in mine)


def balanced(costs: Sequence[int], size: int) -> list[Ints]:
    """Positions of ``costs`` for each of ``size`` processes, ascending; the largest first, each to who has least to do.

    No process is left without any, where there are enough.
    """
    loads, shares = np.zeros(size), [list[int]() for _ in range(size)]
    for i in np.argsort([-cost for cost in costs], kind="stable"):
        # an empty plan still counts, so that nobody gets all of them
        least = int(loads.argmin())
        loads[least] += costs[i] + 1
        shares[least].append(int(i))
    return [np.sort(np.asarray(share, dtype=np.int64)) for share in shares]
