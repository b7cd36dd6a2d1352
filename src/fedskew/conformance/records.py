"""Record all numbers of a run by name, and find the first difference between two records."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedskew.core.trees import leaves
from fedskew.engine.states import ClientStates
from fedskew.loop.work import Outcome, Work

Record = dict[str, Tensor]

TOLERANCE = 1e-12


class Broken(Exception):
    """A promise is broken; the message says how."""


def record(outcomes: Sequence[Outcome], states: ClientStates) -> Record:
    """Return all numbers of the rounds, and the last client states, by name."""
    flat = {f"round {o.server.round}: {name}": value for o in outcomes for name, value in facts(o).items()}
    ids, rows = states.export()
    order = torch.as_tensor(np.argsort(ids))
    return flat | {f"client states: {name}": value[order] for name, value in leaves(rows)}


def facts(outcome: Outcome) -> Record:
    """Return all numbers of a round, by name."""
    server, done = outcome.server, outcome.done
    tree = {
        "x": server.x,
        "server optimiser": server.opt,
        "server state": server.state,
        "uploads": done.uploads,
        "states": done.states,
        "scores": done.scores,
        "clients": torch.as_tensor(outcome.work.clients),
        "bytes": torch.tensor([outcome.bytes_down, outcome.bytes_up]),
    }
    return dict(leaves(tree))


def expect_same(ours: Record, theirs: Record, tolerance: float = TOLERANCE) -> None:
    """Raise `Broken` for the first value that differs by more than ``tolerance`` (relative and absolute); 0 means bit-identical."""
    for name in [*theirs, *ours]:
        if name not in ours or name not in theirs:
            raise Broken(f"{name} is missing in one of the runs")
    for name, value in theirs.items():
        other = ours[name]
        if (other.shape, other.dtype) != (value.shape, value.dtype):
            raise Broken(f"{name}: {tuple(other.shape)} {other.dtype} and {tuple(value.shape)} {value.dtype}")
        one, two = other.double(), value.double()
        if not torch.allclose(one, two, rtol=tolerance, atol=tolerance, equal_nan=True):
            raise Broken(f"{name} differs by {float((one - two).abs().max()):.1e}")


def snapshot(*things: object) -> Record:
    """Copy every tensor and array in trees and `Work`."""
    found: Record = {}
    for i, thing in enumerate(things):
        parts = thing.view if isinstance(thing, Work) else thing
        found |= {f"{i}/{name}": torch.as_tensor(leaf).clone() for name, leaf in leaves(parts)}
        if isinstance(thing, Work):
            plans = [*thing.plans, *thing.passes, *thing.measured]
            found |= {f"{i}/plan {j}": torch.as_tensor(plan.index).clone() for j, plan in enumerate(plans)}
    return found


def shapes(tree: object) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Return the shape and type of each leaf."""
    return {name: (tuple(leaf.shape), leaf.dtype) for name, leaf in leaves(tree)}
