"""Errors that end a round: divergence, or too few usable answers. Each message has a likely cause and a remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from fedskew.core.errors import Diverged, TooFew
from fedskew.core.records import Server
from fedskew.core.trees import leaves

if TYPE_CHECKING:
    from fedskew.loop.federation import Federation
    from fedskew.loop.work import Done, Work


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


def check_enough(fed: Federation, round_: int, usable: int, selected: int, wanted: int = 1, cure: str = "") -> None:
    """Raise `TooFew` if there are fewer than ``wanted`` usable answers, or fewer than the method needs.

    ``selected`` is the number of selected clients. ``cure`` is advice at the end of the message.
    """
    needed = fed.contract.updates_needed(usable)
    if usable >= max(wanted, needed):
        return
    parts = [
        f"round {round_ + 1}: {usable} of {selected} clients gave a usable answer, but {max(wanted, needed)} are needed"
    ]
    if usable < needed:
        parts.append("select more clients, or let the method assume fewer broken ones")
    raise TooFew("; ".join([*parts, cure] if cure else parts))


def client_cause(fed: Federation, round_: int) -> str:
    """Return the most likely cause of divergence in local training, and a remedy."""
    lr, momentum = fed.rate(round_), getattr(fed.solver, "momentum", 0.0)
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
