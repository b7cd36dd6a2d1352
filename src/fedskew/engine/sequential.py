"""The sequential engine: one client after the other on each thread. It is the reference, and the fastest for large models."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedskew.core.machine import keep_freed_memory, span
from fedskew.core.privacy import alone
from fedskew.core.records import Batch, BatchPlan, Upload, channels_last
from fedskew.core.task import without_padding
from fedskew.core.trees import Tree, map_leaves, stack
from fedskew.loop.work import Done, Program, T, Work, differentiate, warped


@dataclass(frozen=True, kw_only=True)
class Sequential:
    """The local loop for one client at a time, on each of PyTorch's threads."""

    idea: ClassVar[str] = (
        "one client after the other: the reference, and fastest where models are large or convolutional"
    )
    private = alone

    def survey(self, program: Program, work: Work, x: Tensor, y: Tensor) -> tuple[Tree, Tree]:
        return stack(each(lambda i: self.candidate(program, work, i, x, y), work))

    def candidate(self, program: Program, work: Work, i: int, x: Tensor, y: Tensor) -> tuple[Tree, Tree]:
        """Return, for client i, the sums over its data at the received model, and its answer to the survey."""
        view = work.view.of(i)
        if program.before:
            view = view._replace(before=total(partial(program.before, view), work.passes[i], x, y, view.x))
        return view.before, program.answer(view)

    def run(self, program: Program, work: Work, x: Tensor, y: Tensor) -> Done:
        keep_freed_memory()
        return Done(*stack(each(lambda i: self.client(program, work, i, x, y), work)))

    def client(self, program: Program, work: Work, i: int, x: Tensor, y: Tensor) -> tuple[Upload, Tree, Tree]:
        """Train client i of the cohort; return its upload, its new state, and the scores of its local model."""
        view = work.view.of(i)
        carry = program.init(view)
        for batch in batches(work.plans[i], x, y, view.x):
            carry = program.step(differentiate, view, carry, batch)
        sums = total(partial(program.after, view, carry.w), work.passes[i], x, y, view.x) if program.after else {}
        upload, state = program.final(view, carry, sums)
        with span("scores of local models"):
            scores = total(partial(program.score, carry.w), work.measured[i], x, y, view.x) if work.measured else {}
        return upload, state, scores


def each(act: Callable[[int], T], work: Work) -> list[T]:
    """Call ``act(i)`` for each client i of the cohort; return the results in order.

    With several threads, each thread takes one client at a time. This is faster than several threads in one operation, and gives
    the same numbers as one thread. A single client, or a GPU, gets all threads.
    """
    threads, clients = torch.get_num_threads(), len(work.clients)
    if min(threads, clients) == 1 or work.view.x.is_cuda:
        with torch.no_grad():
            return [act(i) for i in range(clients)]

    order = np.argsort([-len(plan.index) for plan in work.plans], kind="stable").tolist()
    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
    try:
        done = dict(zip(order, pool.map(torch.no_grad()(act), order), strict=True))
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)
    return [done[i] for i in range(clients)]


def batches(plan: BatchPlan, x: Tensor, y: Tensor, model: Tensor) -> Iterator[Batch]:
    """Yield the batches of a plan. Masks have the model's type, because rows may be integers."""
    index = torch.as_tensor(plan.index, device=x.device)
    mask = torch.as_tensor(plan.mask, dtype=model.dtype, device=x.device)
    warp = None if plan.warp is None else torch.as_tensor(plan.warp, device=x.device)
    for t, (rows, m) in enumerate(zip(index, mask, strict=True)):
        inputs = x.index_select(0, rows)
        inputs = inputs if warp is None else warped(inputs, warp[t])
        yield Batch(channels_last(inputs), without_padding(y.index_select(0, rows), m), m)


def total(function: Callable[[Batch], Tree], plan: BatchPlan, x: Tensor, y: Tensor, model: Tensor) -> Tree:
    """Return the sum of ``function(batch)`` over all batches. If the function returns {}, stop and return {}."""
    sums: Tree = {}
    for batch in batches(plan, x, y, model):
        part = function(batch)
        if not part:
            return {}
        sums = map_leaves(torch.add, sums, part) if sums else part
    return sums
