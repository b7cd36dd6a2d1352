"""All numbers of a run by name, and how two of them differ, in a few words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedskew.core.trees import leaves
from fedskew.engine.states import ClientStates
from fedskew.loop.work import Outcome, Work

Record = dict[str, Tensor]

TOLERANCE = 1e-12


class Broken(Exception):
    """A promise is not kept; the message says how."""


def record(outcomes: Sequence[Outcome], states: ClientStates) -> Record:
    """Every number of the rounds, and the client states that are left."""
    flat = {f"round {o.server.round}: {name}": value for o in outcomes for name, value in facts(o).items()}
    ids, rows = states.export()
    order = torch.as_tensor(np.argsort(ids))
    return flat | {f"client states: {name}": value[order] for name, value in leaves(rows)}


def facts(outcome: Outcome) -> Record:
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
    """Raise `Broken` at the first value that differs by more than ``tolerance``, relative and absolute; 0 means to the last bit."""
    for name in [*theirs, *ours]:
        if name not in ours or name not in theirs:
            raise Broken(f"{name} is there only once")
    for name, value in theirs.items():
        other = ours[name]
        if (other.shape, other.dtype) != (value.shape, value.dtype):
            raise Broken(f"{name}: {tuple(other.shape)} {other.dtype} and {tuple(value.shape)} {value.dtype}")
        one, two = other.double(), value.double()
        if not torch.allclose(one, two, rtol=tolerance, atol=tolerance, equal_nan=True):
            raise Broken(f"{name} differs by {float((one - two).abs().max()):.1e}")


def snapshot(*things: Any) -> Record:
    """Copies of every tensor and array in trees and works."""
    found: Record = {}
    for i, thing in enumerate(things):
        parts = thing.view if isinstance(thing, Work) else thing
        found |= {f"{i}/{name}": torch.as_tensor(leaf).clone() for name, leaf in leaves(parts)}
        if isinstance(thing, Work):
            plans = [*thing.plans, *thing.passes, *thing.measured]
            found |= {f"{i}/plan {j}": torch.as_tensor(plan.index).clone() for j, plan in enumerate(plans)}
    return found


def shapes(tree: Any) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    return {name: (tuple(leaf.shape), leaf.dtype) for name, leaf in leaves(tree)}
