"""Reject updates that no honest client sends: longer than a fixed limit, or far longer than the others."""

from math import inf, sqrt
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedskew.core.errors import require
from fedskew.core.trees import Tree, leaves
from fedskew.loop.federation import Federation
from fedskew.loop.work import Work
from fedskew.skew.partition import Ints

RATIO = 20.0
"""Default of ``longest_ratio``. Honest clients on digits, under label skew and with very unequal sizes, stay below a quarter of it:
``python -m pytest -m slow tests/loop/test_faults.py -k honest``."""

MIN_UPDATES = 3
"""With fewer updates, one client could choose the median."""


class Options(Protocol):
    """The options that simulated and deployed rounds share."""

    @property
    def longest(self) -> float: ...
    @property
    def longest_ratio(self) -> float: ...
    @property
    def fewest(self) -> float: ...
    @property
    def attempts(self) -> int: ...


def check_options(options: Options) -> None:
    """Raise `BadInput` for a value outside its range."""
    for name in ("longest", "longest_ratio"):
        require(getattr(options, name) >= 0, f"{name} must be at least 0, got {getattr(options, name)}")
    require(0 < options.fewest <= 1, f"fewest is a share, above 0 and at most 1, got {options.fewest}")
    require(options.attempts >= 1, f"attempts must be at least 1, got {options.attempts}")


def length_fault(update: Tensor, longest: float) -> str:
    """The reason why an update (P,) is too long, or "". The limit is ``longest`` (0: none); a square must not overflow."""
    length = float(update.double().norm())
    limit = min(longest or inf, sqrt(torch.finfo(update.dtype).max))
    return f"an update of length {length:.3g}; the limit is {limit:.3g}" if length > limit else ""


def too_far(fed: Federation, work: Work, at: Ints, uploads: Tree, ratio: float) -> dict[int, str]:
    """The `outliers` among ``uploads`` of the clients at positions ``at`` of the cohort. A private method has none.

    If one client's update removed another's, the sum would change by more than one update, which breaks the privacy guarantee.
    """
    if fed.contract.privacy:
        return {}
    steps = np.asarray([len(work.plans[i].index) for i in at])
    return outliers(uploads, steps, fed.kept.sent(work.view.x) if fed.kept else work.view.x, ratio)


def outliers(uploads: Tree, steps: Ints, x: Tensor, ratio: float) -> dict[int, str]:
    """The positions of clients that sent a far longer vector than the others, each with the reason.

    ``uploads`` are the vectors of a cohort, with a leading axis C. ``steps`` (C,) are the clients' local steps. ``x`` is the model
    that they received. A vector is an outlier if it is longer than the model, and longer than ``ratio`` times the median length. A
    client that takes m times the median number of steps may send m times as much. With ``ratio`` 0 there are no outliers.
    """
    found: dict[int, str] = {}
    if not ratio or len(steps) < MIN_UPDATES:
        return found
    taken = torch.as_tensor(steps, dtype=torch.float64)
    more = (taken / taken.median().clamp(min=1)).clamp(min=1)
    for name, leaf in leaves(uploads):
        if not leaf.is_floating_point() or leaf[0].numel() < 2:
            continue
        lengths = torch.stack([leaf[i].double().norm().cpu() for i in range(len(leaf))])
        median = lengths.median()  # the lower of the two middle values
        limits = torch.maximum(ratio * more * median, x.double().norm().cpu())
        for i in torch.nonzero((lengths > limits) & (median > 0))[:, 0].tolist():
            reason = f"{name} has length {lengths[i]:.3g}, the median of the round is {median:.3g}; the limit is {limits[i]:.3g}"
            found.setdefault(i, reason)
    return found
