"""Errors that end a round, and limits on the length of updates. Each message has a likely cause and a remedy."""

from math import inf, sqrt

import numpy as np
import torch
from torch import Tensor

from fedskew.core.errors import Diverged, TooFew
from fedskew.core.records import Server
from fedskew.core.trees import Tree, leaves
from fedskew.loop.federation import Federation
from fedskew.loop.work import Done, Work
from fedskew.skew.partition import Ints


def check_finite(fed: Federation, server: Server, work: Work, done: Done, norms: Tensor) -> None:
    """Raise `Diverged` if updates or scores are not finite, and the method cannot aggregate without these clients.

    ``norms`` (C,) are the lengths of the updates. Personal models are checked, too. The error names the round, the first client and
    the most likely cause.
    """
    bad = ~norms.isfinite()
    for sums in done.scores.values():
        bad = bad | ~sums.isfinite().reshape(len(bad), -1).all(1)
    what = "the loss or the update"
    if fed.program.personal and not bool(bad.any()):
        what = "its own model"
        for _, leaf in leaves(done.states):
            bad = bad | ~leaf.isfinite().reshape(len(leaf), -1).all(1)
    if not bool(bad.any()) or int((~bad).sum()) >= fed.contract.updates_needed(len(bad)):
        return
    position = int(bad.nonzero()[0, 0])
    name = fed.partition.names[int(work.clients[position])]
    others = f" and {int(bad.sum()) - 1} more" if int(bad.sum()) > 1 else ""
    raise Diverged(
        f"round {server.round + 1}, client {name}{others}: {what} is no longer finite; "
        f"{client_cause(fed, server.round)}; client {name} took {len(work.plans[position].index)} local steps"
    )


def check_enough(fed: Federation, round_: int, usable: int, selected: int, fewest: int = 1, cure: str = "") -> None:
    """Raise `TooFew` if there are fewer than ``fewest`` usable answers, or fewer than the method needs.

    ``selected`` is the number of selected clients. ``cure`` is advice at the end of the message.
    """
    needed = fed.contract.updates_needed(usable)
    fewest = max(fewest, needed)
    if usable >= fewest:
        return
    text = f"round {round_ + 1}: {usable} of {selected} clients gave a usable answer, but {fewest} are needed"
    advice = "select more clients, or let the method assume fewer broken ones" if usable < needed else ""
    raise TooFew("; ".join(filter(None, [text, advice, cure])))


def client_cause(fed: Federation, round_: int) -> str:
    """Return the most likely cause of divergence in local training, and a remedy."""
    rates, momentum = fed.rates_in(round_), getattr(fed.solver, "momentum", 0.0)
    lr = fed.rate(round_) if rates is None else float(rates.max())
    cause = fed.contract.hazard(lr)
    if not cause:
        step = (
            f" (with momentum {momentum:g} a step is up to {lr / (1 - momentum):g} gradients long)" if momentum else ""
        )
        cause = f"the client learning rate {lr:g} is too large{step}; try lr {lr / 5:.1g}, or fewer local steps"
    return f"most likely cause: {cause}"


def server_cause(fed: Federation, round_: int) -> str:
    """Return the most likely cause of divergence in the server's step, and a remedy."""
    cause = fed.contract.hazard(fed.rate(round_)) or "the step of the server optimiser; lower its lr, or its momentum"
    if fed.refinement.needs_data:
        cause += "; or the steps of the refinement; lower refine.lr"
    return f"most likely cause: {cause}"


RATIO = 20.0
"""Default of ``longest_ratio``. Updates of honest clients on digits, with label skew or very unequal sizes, are below a quarter
of this limit: ``python -m pytest -m slow tests/loop/test_faults.py -k honest``."""

MIN_UPDATES = 3
"""Minimum number of updates for a median. With fewer, a single client could determine it."""


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
    return outliers(uploads, steps, fed.sent(work.view.x), ratio)


def outliers(uploads: Tree, steps: Ints, x: Tensor, ratio: float) -> dict[int, str]:
    """Return the positions of clients whose vectors are far longer than the others', each with the reason.

    ``uploads`` are the vectors of a cohort, with a leading axis C. ``steps`` (C,) are the clients' local steps. ``x`` is the model
    that they received. A vector is an outlier if it is longer than the model, and longer than ``ratio`` times the median length.
    For a client with m times the median number of steps, the limit is m times as large. With ``ratio`` 0 there are no outliers.
    """
    reasons: dict[int, str] = {}
    if not ratio or len(steps) < MIN_UPDATES:
        return reasons
    steps_done = torch.as_tensor(steps, dtype=torch.float64)
    more = (steps_done / steps_done.median().clamp(min=1)).clamp(min=1)
    for name, leaf in leaves(uploads):
        if not leaf.is_floating_point() or leaf[0].numel() < 2:
            continue
        lengths = torch.stack([leaf[i].double().norm().cpu() for i in range(len(leaf))])
        median = lengths.median()  # for an even number, PyTorch takes the lower middle value
        limits = torch.maximum(ratio * more * median, x.double().norm().cpu())
        for i in torch.nonzero((lengths > limits) & (median > 0))[:, 0].tolist():
            reason = f"{name} has length {lengths[i]:.3g}, the median of the round is {median:.3g}; the limit is {limits[i]:.3g}"
            reasons.setdefault(i, reason)
    return reasons
