"""Which updates cannot be an honest client's: too long to compute with, longer than was agreed, or far longer than the others'."""

from __future__ import annotations

from math import inf, sqrt

import numpy as np
import torch
from torch import Tensor

from fedskew.core.trees import Tree, leaves
from fedskew.loop.federation import Federation
from fedskew.loop.round import Work
from fedskew.skew.partition import Ints

RATIO = 20.0
"""Default of ``longest_ratio``. Honest clients stay below a quarter of it, on digits under label skew and with very unequal sizes:
``python -m pytest -m slow tests/loop/test_faults.py -k honest``."""

FEWEST = 3
"""Fewer updates have no median that one of them could not choose."""


def length_fault(update: Tensor, longest: float) -> str:
    """Why an update (P,) is too long, or nothing: longer than ``longest`` (0: no limit), or its square overflows."""
    length = float(update.double().norm())
    limit = min(longest or inf, sqrt(torch.finfo(update.dtype).max))
    return f"an update of length {length:.3g}; the limit is {limit:.3g}" if length > limit else ""


def too_far(fed: Federation, work: Work, at: Ints, uploads: Tree, ratio: float) -> dict[int, str]:
    """The `outliers` among the clients at these positions of the cohort, who sent ``uploads``; of a private method none.

    A client that is left out because of what others sent changes a sum by more than one update, which breaks the guarantee.
    """
    if fed.contract.privacy:
        return {}
    steps = np.asarray([len(work.plans[i].index) for i in at])
    return outliers(uploads, steps, fed.kept.sent(work.view.x) if fed.kept else work.view.x, ratio)


def outliers(uploads: Tree, steps: Ints, x: Tensor, ratio: float) -> dict[int, str]:
    """The positions of clients that sent a far longer vector than the others, with the reason.

    ``uploads`` are the vectors of a cohort, with a leading axis C; ``steps`` (C,) are the clients' local steps, ``x`` is the model
    that they received. A vector is an outlier if it is longer than the model, and longer than ``ratio`` times the cohort's median
    length; a client that takes m times the median number of steps may send m times as much. ``ratio`` 0 finds none.
    """
    found: dict[int, str] = {}
    if not ratio or len(steps) < FEWEST:
        return found
    taken = torch.as_tensor(steps, dtype=torch.float64)
    more = (taken / taken.median().clamp(min=1)).clamp(min=1)
    for name, leaf in leaves(uploads):
        if not leaf.is_floating_point() or leaf[0].numel() < 2:
            continue
        lengths = torch.stack([leaf[i].double().norm().cpu() for i in range(len(leaf))])
        median = lengths.median()  # of an even number the lower one
        limits = torch.maximum(ratio * more * median, x.double().norm().cpu())
        for i in torch.nonzero((lengths > limits) & (median > 0))[:, 0].tolist():
            reason = f"{name} has length {lengths[i]:.3g}, the median of the round is {median:.3g}; the limit is {limits[i]:.3g}"
            found.setdefault(i, reason)
    return found
