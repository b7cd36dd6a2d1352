"""The processes that carry one run out together, and what they tell one another."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fedskew.core.errors import FedskewError
from fedskew.core.spans import span
from fedskew.core.trees import Tree, from_leaves, leaves
from fedskew.skew.partition import Ints


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
