"""Several processes as one: each trains its share of the cohort, and all of them then do the same with what every client sent.

Every process runs the same rounds on the same server, so that measures and aggregation are those of one process. What clients tell
travels once a round, in the cohort's order; of their updates only sums do, as long as a round asks for no more than that (`Apart`);
and what is kept of them stays where it is (`fedskew.engine.homes`).
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

NOBODY: Ints = np.zeros(0, dtype=np.int64)

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

    def swap(self, rows: Tensor, leaving: Sequence[int], arriving: Sequence[int]) -> Tensor:
        """Rows for this process, ``arriving`` from each, for ``rows`` of its own, ``leaving`` for each."""
        row = rows.shape[1:].numel() * rows.element_size()
        # through the processor's memory: not every back end sends what is on a card
        got = torch.empty(sum(arriving) * row, dtype=torch.uint8)
        sent = rows.cpu().contiguous().view(-1).view(torch.uint8)
        with together():
            dist.all_to_all_single(got, sent, [n * row for n in arriving], [n * row for n in leaving])
        return got.view(rows.dtype).view(sum(arriving), *rows.shape[1:]).to(rows.device)

    def gather(self, mine: Tensor, shares: Sequence[Ints]) -> Tensor:
        """Rows of which each process has its share of the positions, as all of them in every one."""
        result = mine.new_empty(sum(len(at) for at in shares), *mine.shape[1:])
        for source, at in enumerate(shares):
            part = mine.contiguous() if source == self.rank else mine.new_empty(len(at), *mine.shape[1:])
            result[torch.as_tensor(at, device=mine.device)] = self.share(part, source)
        return result

    def share_of(self, tree: Any, shares: Sequence[Ints]) -> Any:
        """This process's rows of a tree that has all of them, here or apart."""
        at = shares[self.rank]
        return map_leaves(lambda leaf: leaf.moved(shares).mine if isinstance(leaf, Apart) else leaf[at], tree)


class Apart(Tensor):
    """Rows (C, ...), each in the process that trained its client.

    How they add up and lie about their mean is worked out where they are, and one sum over the processes is exchanged. They can be
    moved from one process to another. Whatever else is done with them brings all rows to every process first, where they then are.
    All processes ask for the same, in the same order.
    """

    group: Group
    shares: Sequence[Ints]
    mine: Tensor
    gathered: Tensor | None
    elsewhere: Apart | None

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, group: Group, shares: Sequence[Ints], mine: Tensor) -> Apart:
        shape = (sum(len(at) for at in shares), *mine.shape[1:])
        rows: Apart = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=mine.dtype, device=mine.device)
        rows.group, rows.shares, rows.mine, rows.gathered, rows.elsewhere = group, shares, mine, None, None
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

    def moved(self, shares: Sequence[Ints]) -> Apart:
        """The same rows, each in the process that ``shares`` say; moved once, if they are asked for there again."""
        for known in (self, self.elsewhere):
            if known is not None and all(map(np.array_equal, known.shares, shares)):
                return known
        rank, at = self.group.rank, range(self.group.size)
        old, new = self.shares[rank], shares[rank]
        if self.gathered is not None:
            return Apart(self.group, shares, self.gathered[torch.as_tensor(new, device=self.device)])
        leaving, arriving = (
            [np.intersect1d(one, other[process]) if process != rank else NOBODY for process in at]
            for one, other in ((old, shares), (new, self.shares))
        )
        go, come = np.concatenate(leaving), np.concatenate(arriving)
        rows = self.group.swap(
            self.mine[np.searchsorted(old, go)], [len(some) for some in leaving], [len(some) for some in arriving]
        )
        if len(come) < len(new):
            # any row for those that come first: one pass over memory for the others
            place = np.where(np.isin(new, come), 0, np.searchsorted(old, new))
            mine = self.mine.index_select(0, torch.as_tensor(place, device=self.device))
            mine[np.searchsorted(new, come)] = rows
        else:
            mine = rows[np.argsort(come)]
        self.elsewhere = Apart(self.group, shares, mine)
        return self.elsewhere

    def by_row(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        return self.group.gather(function(self.mine), self.shares) if self.gathered is None else function(self.gathered)

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
            mine, states = members_of(rest, shares[self.group.rank]), self.group.share_of(states, shares)
        return act(mine._replace(view=mine.view._replace(state=states))), shares

    def everywhere(self, mine: Any, shares: list[Ints], stay: Callable[[Tensor, int], bool] = lambda *_: False) -> Any:
        """Trees with a leading axis of the whole cohort; leaves that are to ``stay``, of so many clients, are left apart."""
        clients = sum(len(at) for at in shares)

        def whole(leaf: Tensor) -> Tensor:
            return Apart(self.group, shares, leaf) if stay(leaf, clients) else self.group.gather(leaf, shares)

        return map_leaves(whole, mine) if shares else mine


def scattered(tree: Any) -> list[Apart]:
    """The leaves that are apart."""
    return [leaf for _, leaf in leaves(tree) if isinstance(leaf, Apart)]


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
