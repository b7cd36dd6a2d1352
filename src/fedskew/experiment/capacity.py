"""When memory does not suffice: which batch size would fit."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from fedskew.core.errors import BadInput
from fedskew.core.records import Plan
from fedskew.engine.choose import next_work, shortened
from fedskew.engine.sequential import Sequential
from fedskew.experiment.build import Assembly
from fedskew.loop.round import Work, start, train


@contextmanager
def explained(assembly: Assembly) -> Iterator[None]:
    """Turn the exhaustion of memory, on a GPU or not, into `BadInput` that says what would fit."""
    try:
        yield
        return
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not is_exhaustion(error):
            raise
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
    # only here, after the exception and the tensors of its frames are gone
    raise BadInput(f"out of memory: {advice(assembly)} ({reason})")


def is_exhaustion(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "allocate memory" in str(error)


def advice(assembly: Assembly) -> str:
    """The largest halving of the batch size at which one client's step fits, by trying; an engine that takes one client."""
    fed = assembly.federation
    work = next_work(fed, start(fed, assembly.x0), measure_local=False)
    if work is None:
        return "even without clients"
    size = max(plan.index.shape[1] for plan in work.plans)
    at = np.asarray([int(np.argmax([plan.index.shape[1] for plan in work.plans]))])
    one = shortened(work, at, limit=1)
    fits = size
    while fits >= 1 and not runs(assembly, narrowed(one, fits)):
        fits //= 2
    if fits == size:
        return f"a single client's batches of {size} rows fit; use --engine sequential, or fewer clients at a time"
    if fits:
        return f"batches of {size} rows do not fit, batches of {fits} do; use --batch-size {fits}"
    return "not even a batch of one row fits; use a smaller model"


def narrowed(work: Work, size: int) -> Work:
    """The work with the first rows of each batch alone."""
    return work._replace(
        plans=[Plan(plan.index[:, :size], plan.mask[:, :size]) for plan in work.plans],
        passes=[Plan(plan.index[:, :size], plan.mask[:, :size]) for plan in work.passes],
    )


def runs(assembly: Assembly, work: Work) -> bool:
    """Whether this work finds the memory that it needs."""
    fed = assembly.federation
    try:
        train(fed, Sequential(), work)
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not is_exhaustion(error):
            raise
        fitted = False
    else:
        fitted = True
    gc.collect()
    if fed.x.is_cuda:
        torch.cuda.empty_cache()
    return fitted
