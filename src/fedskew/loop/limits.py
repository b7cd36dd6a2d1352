"""Reject updates that are longer than a fixed limit, or far longer than the other clients' updates."""

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
"""Default of ``longest_ratio``. Updates of honest clients on digits, with label skew or very unequal sizes, are below a quarter
of this limit: ``python -m pytest -m slow tests/loop/test_faults.py -k honest``."""

MIN_UPDATES = 3
"""Minimum number of updates for a median. With fewer, a single client could determine it."""


class Options(Protocol):
    """Options that simulated and deployed rounds have in common."""

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
    """Say why an update (P,) is too long; empty if it is not. ``longest`` 0 means no limit, except that squares may overflow."""
    length = float(update.double().norm())
    limit = min(longest or inf, sqrt(torch.finfo(update.dtype).max))
    return f"an update of length {length:.3g}; the limit is {limit:.3g}" if length > limit else ""


def too_far(fed: Federation, work: Work, at: Ints, uploads: Tree, ratio: float) -> dict[int, str]:
    """Return the `outliers` among ``uploads`` of the clients at positions ``at`` of the cohort; none for a private method.

    Privacy requires that one client changes the sum by at most its own update. A rule by which one client's update removes
    another's would break this.
    """
    if fed.contract.privacy:
        return {}
    steps = np.asarray([len(work.plans[i].index) for i in at])
    return outliers(uploads, steps, fed.kept.sent(work.view.x) if fed.kept else work.view.x, ratio)


def outliers(uploads: Tree, steps: Ints, x: Tensor, ratio: float) -> dict[int, str]:
    """Return the positions of clients whose vectors are far longer than the others', each with the reason.

    ``uploads`` are the vectors of a cohort, with a leading axis C. ``steps`` (C,) are the clients' local steps. ``x`` is the model
    that they received. A vector is an outlier if it is longer than the model, and longer than ``ratio`` times the median length.
    For a client with m times the median number of steps, the limit is m times as large. With ``ratio`` 0 there are no outliers.
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
        median = lengths.median()  # for an even number, PyTorch takes the lower middle value
        limits = torch.maximum(ratio * more * median, x.double().norm().cpu())
        for i in torch.nonzero((lengths > limits) & (median > 0))[:, 0].tolist():
            reason = f"{name} has length {lengths[i]:.3g}, the median of the round is {median:.3g}; the limit is {limits[i]:.3g}"
            found.setdefault(i, reason)
    return found
