"""Several processes as one: each trains its share of the cohort, and all of them then do the same with what every client sent.

Every process runs the same rounds on the same server, so that states, measures and aggregation are those of one process, and a
process that is lost takes nothing with it. What clients keep and tell travels once a round, in the cohort's order. Of their updates
only sums do, as long as a round asks for no more than that (`Apart`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_map_only

from fedskew.core.errors import FedskewError
from fedskew.core.records import Upload
from fedskew.core.spans import span
from fedskew.core.trees import Tree, from_leaves, leaves, map_leaves
from fedskew.core.vectors import Spread, column_chunks, spread, square_lengths, weighted_sum
from fedskew.loop.local import Program
from fedskew.loop.round import Done, Engine, Work, members_of
from fedskew.skew.partition import Ints

T = TypeVar("T")

SUMS = 32
"""Bytes a parameter that the sums of a round cost on their way: two of float64, there and back."""

LONG = 1024
"""Numbers in a row from which on its bytes take longer than the asking."""


class Lost(FedskewError):
    """A process of the group is gone."""


@contextmanager
def together() -> Iterator[None]:
    """Something that all processes of the group do at the same time. Raises `Lost` when one of them cannot."""
    try:
        with span("exchange and waiting"):
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

    def add_up(self, parts: Tensor) -> Tensor:
        """The sum of what all processes have, to the last bit the same in each; in place."""
        with together():
            dist.all_reduce(parts)
        return parts

    def gather(self, mine: Tensor, shares: Sequence[Ints]) -> Tensor:
        """Rows of which each process has its share of the positions, as all of them in every one."""
        result = mine.new_empty(sum(len(at) for at in shares), *mine.shape[1:])
        for source, at in enumerate(shares):
            part = mine.contiguous() if source == self.rank else mine.new_empty(len(at), *mine.shape[1:])
            result[torch.as_tensor(at, device=mine.device)] = self.share(part, source)
        return result


class Apart(Tensor):
    """Rows (C, ...), each in the process that trained its client.

    How they add up and lie about their mean is worked out where they are, and one sum over the processes is exchanged. Whatever
    else is done with them brings all rows to every process first, where they then are. All processes ask for the same, in the same
    order.
    """

    group: Group
    shares: Sequence[Ints]
    mine: Tensor
    gathered: Tensor | None

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, group: Group, shares: Sequence[Ints], mine: Tensor) -> Apart:
        shape = (sum(len(at) for at in shares), *mine.shape[1:])
        rows: Apart = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=mine.dtype, device=mine.device)
        rows.group, rows.shares, rows.mine, rows.gathered = group, shares, mine, None
        return rows

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:  # type: ignore[override]
        arguments, named = tree_map_only(cls, cls.whole, (arguments, named or {}))
        return operation(*arguments, **named)

    def whole(self) -> Tensor:
        """All rows, here too."""
        if self.gathered is None:
            self.gathered = self.group.gather(self.mine, self.shares)
        return self.gathered

    @property
    def own(self) -> Tensor:
        """Which rows are here."""
        return torch.as_tensor(self.shares[self.group.rank], device=self.device)

    def weighted_sum(self, weights: Tensor, kind: torch.dtype) -> Tensor:
        if self.gathered is not None:
            return weighted_sum(weights, self.gathered, kind)
        part = weighted_sum(weights[self.own], self.mine, torch.float64)
        return self.group.add_up(part).to(kind)

    def spread(self, weights: Tensor) -> Spread:
        if self.gathered is not None:
            return spread(weights, self.gathered)._replace(rows=self)
        own, equal = self.own, torch.full_like(weights, 1 / len(weights))
        total, middle = self.group.add_up(
            torch.stack([weighted_sum(w[own], self.mine, torch.float64) for w in (weights, equal)])
        )
        mean = total / weights.sum()
        found, done = weights.new_zeros(3, len(weights)), 0
        for part in column_chunks(self.mine):
            here = slice(done, done + part.shape[1])
            squares = torch.linalg.vector_norm(part, dim=1).square()
            part -= mean[here]
            found[:, own] += torch.stack([squares, *square_lengths(part, middle[here] - mean[here])])
            done = here.stop
        squares, to_weighted, to_uniform = self.group.add_up(found).clamp(min=0)
        return Spread(self, weights, total.to(self.dtype), squares, to_weighted, to_uniform, mean.square().sum())


@contextmanager
def member(**options: Any) -> Iterator[Group]:
    """This process in PyTorch's default group, which ends with the block; ``options`` are those of `init_process_group`.

    On a machine with GPUs each process takes the next one for its ``cuda``.
    """
    # Something in a run imports it, and its functions keep, as a default, the group that is there at that time. Such a group is not
    # destroyed: its threads live on, and one that lets go of a tensor while Python ends has the process aborted.
    import_module("torch.distributed.nn")
    rank, size = (options.get(name) or int(os.environ.get(name.upper(), 0)) for name in ("rank", "world_size"))
    dist.init_process_group(back_end(int(os.environ.get("LOCAL_WORLD_SIZE", size))), **options)
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank)) % torch.cuda.device_count())
    try:
        yield Group(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()


def back_end(processes: int) -> str:
    """NCCL between GPUs where each of the machine's ``processes`` has one of its own; gloo for the rest."""
    cards = torch.cuda.device_count() if dist.is_nccl_available() else 0
    return "cpu:gloo,cuda:nccl" if cards >= processes else "gloo"


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
        report, states, scores = (self.everywhere(p, shares) for p in (done.uploads.report, done.states, done.scores))
        delta, extras = (self.everywhere(p, shares, apart=True) for p in (done.uploads.delta, done.uploads.extras))
        return Done(Upload(delta, extras, report), states, scores)

    def divided(self, work: Work, costs: Sequence[int], act: Callable[[Work], T]) -> tuple[T, list[Ints]]:
        """What ``act`` gives of this process's clients, and which clients each process has; none: this one has them all.

        A cohort of fewer clients than processes is everybody's.
        """
        if len(work.clients) < self.group.size:
            return act(work), []
        shares = balanced(costs, self.group.size)
        return act(members_of(work, shares[self.group.rank])), shares

    def everywhere(self, mine: Any, shares: list[Ints], apart: bool = False) -> Any:
        """Trees with a leading axis of the whole cohort; long rows may be left ``apart``, where sums are less than all of them."""

        def whole(leaf: Tensor) -> Tensor:
            clients, row = sum(len(at) for at in shares), leaf.shape[1:].numel() if leaf.dim() > 1 else 1
            sums = apart and leaf.is_floating_point() and row >= LONG and clients * leaf.element_size() > SUMS
            return Apart(self.group, shares, leaf) if sums else self.group.gather(leaf, shares)

        return map_leaves(whole, mine) if shares else mine


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
