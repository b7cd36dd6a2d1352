"""The stacked engine: many clients train as one batch of models, by `torch.func.vmap` over the local loop.

The cohort is sorted by number of steps and divided into blocks. Within a block, steps and rows are padded with a mask of 0. The
carry of a finished client no longer changes. Blocks of large models get narrower as clients finish.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap

from fedskew.core.contract import Setup
from fedskew.core.limits import NonNegativeInt
from fedskew.core.machine import span
from fedskew.core.privacy import alone
from fedskew.core.records import OWN, Batch, BatchPlan, Carry, View
from fedskew.core.task import without_padding
from fedskew.core.trees import Tree, concatenate, map_leaves, num_bytes, pick
from fedskew.engine.trace import Traced, live
from fedskew.loop.work import Done, Program, T, Work, members_of, warped
from fedskew.skew.partition import Ints

SHARED = View(**{part: 0 if part in OWN else None for part in View._fields})  # type: ignore[arg-type]
"""Batch axes of a stacked view, for `vmap`: 0 for parts with one row for each client, None for shared parts."""

SMALL = 1 << 18
"""If a block's carry has fewer bytes than this, a narrower block would not be faster, because dispatch dominates."""


class StackedProgram:
    """The vectorised functions of one program."""

    def __init__(self, program: Program) -> None:
        self.before = vmap(program.before, (SHARED, 0)) if program.before else None
        self.answer = vmap(program.answer, (SHARED,))
        self.init = vmap(program.init, (SHARED,))
        self.live = Traced(vmap(live(program), (SHARED, 0, 0, 0, 0)))
        self.masked = Traced(vmap(masked(program), (SHARED, 0, 0, 0, 0, 0)))
        self.after = vmap(program.after, (SHARED, 0, 0)) if program.after else None
        self.score = vmap(program.score, (0, 0))
        self.final = vmap(program.final, (SHARED, 0, 0))


vectorised = lru_cache(maxsize=16)(StackedProgram)
"""The vectorised functions of a program. Runs of the same method and model share them and their recorded steps."""


def masked(program: Program) -> Callable[..., Carry]:
    """Return a step that leaves the carry of finished clients unchanged. Its argument ``on`` is False for finished clients."""

    def step(view: View, carry: Carry, x: Tensor, y: Tensor, mask: Tensor, on: Tensor) -> Carry:
        new = live(program)(view, carry, x, y, mask)
        return map_leaves(lambda a, b: torch.where(on, a, b), new, carry)

    return step


@dataclass(frozen=True, kw_only=True)
class Stacked:
    """Trains ``width`` clients at a time. With ``width`` 0 it trains as many as `block_width` allows."""

    width: NonNegativeInt = 0

    idea: ClassVar[str] = "many clients as one batch of models; fastest where models are small"
    private = alone

    def accepts(self, setup: Setup) -> str:
        """Return why the model cannot be stacked; empty if it can."""
        if setup.stacks is not False:
            return ""
        return "computes many models as one batch, but this model does not support it; use --engine sequential"

    def survey(self, program: Program, work: Work, x: Tensor, y: Tensor) -> tuple[Tree, Tree]:
        steps = vectorised(program)

        def candidates(members: Ints) -> tuple[Tree, Tree]:
            view = work.view.of(members)
            if steps.before:
                passes = [work.passes[i] for i in members]
                view = view._replace(before=total(steps.before, (view,), passes, x, y, view.x))
            return view.before, steps.answer(view)

        return self.blocks(candidates, work)

    def run(self, program: Program, work: Work, x: Tensor, y: Tensor) -> Done:
        steps = vectorised(program)
        return self.blocks(lambda members: self.block(steps, members_of(work, members), x, y), work)

    def blocks(self, act: Callable[[Ints], T], work: Work) -> T:
        """Call ``act`` with the positions of each block's clients, those with the most steps first.

        Join the results in the cohort's order.
        """
        order = np.argsort([-len(plan.index) for plan in work.plans], kind="stable")
        width = self.width or block_width(work.view.x)
        with torch.no_grad():
            parts = [act(order[lo : lo + width]) for lo in range(0, len(order), width)]
        return pick(concatenate(parts), torch.as_tensor(np.argsort(order), device=work.view.x.device))

    def block(self, steps: StackedProgram, work: Work, x: Tensor, y: Tensor) -> Done:
        """Train one block. Its clients are in descending order of steps."""
        view = work.view
        carry = self.train(steps, view, work.plans, x, y)
        sums = total(steps.after, (view, carry.w), work.passes, x, y, view.x) if steps.after else {}
        uploads, states = steps.final(view, carry, sums)
        with span("scores of local models"):
            return Done(uploads, states, total(steps.score, (carry.w,), work.measured, x, y, view.x))

    def train(self, steps: StackedProgram, view: View, plans: list[BatchPlan], x: Tensor, y: Tensor) -> Carry:
        """Execute the local steps of a block; return the carries. Finished clients at its end leave the block."""
        carry = steps.init(view)
        lengths = np.asarray([len(plan.index) for plan in plans])
        with span("batching"):
            index, mask = batches(plans, view.x)
        warps = [plan.warp for plan in plans if plan.warp is not None]
        warp = packed(warps, x.device) if warps else None
        running = torch.as_tensor(lengths > np.arange(lengths[0])[:, None], device=x.device)

        def parts(begin: int, end: int) -> Iterator[Batch]:
            for t in range(begin, end):
                batch = batch_at(x, y, index[t, :width], mask[t, :width])
                yield batch if warp is None else batch._replace(x=warped(batch.x, warp[t, :width]))

        narrow = num_bytes(carry) > SMALL
        left: list[Carry] = []
        width, t = len(plans), 0
        while t < lengths[0]:
            still = int((lengths > t).sum())
            if narrow and still <= width // 2:
                left.append(pick(carry, slice(still, width)))
                carry, width = pick(carry, slice(0, still)), still
                view = view.of(slice(0, width))
            # the block keeps its width until half of its clients have finished
            end = int(lengths[width // 2]) if narrow and lengths[width // 2] > t else int(lengths[0])
            whole = min(max(t, int(lengths[width - 1])), end)
            carry = steps.live.repeat(view, carry, parts(t, whole))
            on = (running[s, :width] for s in range(whole, end))
            carry = steps.masked.repeat(
                view, carry, ((*part, o) for part, o in zip(parts(whole, end), on, strict=True))
            )
            t = end
        return concatenate([carry, *reversed(left)])


def block_width(model: Tensor) -> int:
    """Return the number of clients in a block: at most 256, and their models fit into 16 MiB, so that they stay in cache."""
    return max(1, min(256, (16 << 20) // num_bytes({"w": model})))


def packed(parts: Sequence[NDArray[Any]], device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Combine each client's part of its plan (t, b, ...), of different lengths and widths, to (T, C, B, ...); padding is 0."""
    steps, rows = (max(part.shape[axis] for part in parts) for axis in (0, 1))
    whole = np.zeros((steps, len(parts), rows, *parts[0].shape[2:]), dtype=parts[0].dtype)
    for c, part in enumerate(parts):
        whole[: part.shape[0], c, : part.shape[1]] = part
    return torch.as_tensor(whole, dtype=dtype, device=device)


def batches(plans: Sequence[BatchPlan], model: Tensor) -> tuple[Tensor, Tensor]:
    """Return the row indices and masks (T, C, B) of the plans. Masks have the model's type, because rows may be integers."""
    masks = packed([plan.mask for plan in plans], model.device, model.dtype)
    return packed([plan.index for plan in plans], model.device), masks


def batch_at(x: Tensor, y: Tensor, rows: Tensor, mask: Tensor) -> Batch:
    """Return a batch of these rows (C, B) of all clients, with its mask (C, B)."""
    return Batch(take(x, rows), without_padding(take(y, rows), mask), mask)


def take(data: Tensor, rows: Tensor) -> Tensor:
    """Return ``data[rows]`` for indices (C, B). One gather is faster than advanced indexing."""
    return data.index_select(0, rows.reshape(-1)).view(*rows.shape, *data.shape[1:])


def total(
    function: Callable[..., Tree],
    first: Sequence[View | Tensor],
    plans: list[BatchPlan],
    x: Tensor,
    y: Tensor,
    model: Tensor,
) -> Tree:
    """Sum what a stacked function returns over each client's batches. If it returns {}, return {}.

    Clients at the end of the block without batches left are skipped.
    """
    sums: Tree = {}
    if not plans:
        return sums
    index, mask = batches(plans, model)
    lengths = np.asarray([len(plan.index) for plan in plans])
    for t in range(len(index)):
        width = int(np.flatnonzero(lengths > t)[-1]) + 1 if t else len(plans)
        arguments = first if width == len(plans) else [leading(part, width) for part in first]
        part = function(*arguments, batch_at(x, y, index[t, :width], mask[t, :width]))
        if not part:
            return {}
        sums = map_leaves(added, sums, part) if sums else map_leaves(torch.clone, part)
    return sums


def leading(part: View | Tensor, width: int) -> View | Tensor:
    """Return the part of a view, or of a tensor (C, ...), for the first ``width`` clients."""
    return part.of(slice(0, width)) if isinstance(part, View) else part[:width]


def added(sums: Tensor, part: Tensor) -> Tensor:
    """Add ``part``, for the first clients, to ``sums`` in place."""
    sums[: len(part)] += part
    return sums
