"""What hooks must return, a search for the first one with a wrong value, and a run's numbers by name to compare two runs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedskew.conformance.miniature import play, start_of
from fedskew.core.algorithm import Algorithm
from fedskew.core.records import Upload
from fedskew.core.trees import leaves
from fedskew.engine.sequential import Sequential
from fedskew.engine.states import ClientStates
from fedskew.loop.federation import Federation
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
        "decisions": outcome.decisions,
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
        before, after = other.double(), value.double()
        if not torch.allclose(before, after, rtol=tolerance, atol=tolerance, equal_nan=True):
            raise Broken(f"{name} differs by {float((before - after).abs().max()):.1e}")


def snapshot(*things: object) -> Record:
    """Copy every tensor and array in trees and `Work`."""
    copies: Record = {}
    for i, thing in enumerate(things):
        parts = thing.view if isinstance(thing, Work) else thing
        copies |= {f"{i}/{name}": torch.as_tensor(leaf).clone() for name, leaf in leaves(parts)}
        if isinstance(thing, Work):
            plans = [*thing.plans, *thing.passes, *thing.measured]
            copies |= {f"{i}/plan {j}": torch.as_tensor(plan.index).clone() for j, plan in enumerate(plans)}
    return copies


VECTOR, SCALAR, IDS, TREE, UPLOAD = "a tensor (P,)", "a tensor ()", "a tensor of client ids (m,)", "a dict", "an Upload"

RETURNS = {
    **dict.fromkeys(("aggregate", "local_init", "direction"), (VECTOR, TREE)),
    "convene": (TREE, IDS),
    "decided": (TREE,),
    "local_final": (UPLOAD, TREE),
    "objective": (SCALAR,),
    **dict.fromkeys(("local_gradient", "personal"), (VECTOR,)),
    **dict.fromkeys(("server_init", "broadcast", "client_init", "before", "answer", "after_step", "after"), (TREE,)),
}
"""What each hook returns; P is the number of parameters."""


def kind_of(value: object, size: int) -> str:
    """Return the value's kind as in `RETURNS`, or a description of the value."""
    if isinstance(value, Upload):
        return UPLOAD
    if isinstance(value, dict):
        return TREE
    if isinstance(value, Tensor):
        ids = value.dim() == 1 and value.dtype == torch.int64
        kind = {(size,): VECTOR, (): SCALAR}.get(tuple(value.shape), f"a tensor {tuple(value.shape)}")
        return IDS if ids else kind
    if isinstance(value, tuple):
        return f"({', '.join(kind_of(part, size) for part in value)})"
    return repr(value) if value is None else type(value).__name__


def place_of(method: type, hook: str) -> str:
    """Return the place of the hook's code: ``mine.py, line 12``."""
    code = getattr(getattr(method, hook), "__code__", None)
    return f"{Path(code.co_filename).name}, line {code.co_firstlineno}" if code else method.__name__


def strict(algorithm: Algorithm, size: int) -> Algorithm:
    """Return the method with checked hooks: a hook that the method defines raises `Broken` for a wrong return value."""
    cls = type(algorithm)

    def watched(hook: str, function: Callable[..., object]) -> Callable[..., object]:
        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> object:
            value, returns = function(*args, **kwargs), RETURNS[hook]
            expected = returns[0] if len(returns) == 1 else f"({', '.join(returns)})"
            returned = kind_of(value, size)
            if returned != expected:
                words = f"{hook} must return {expected}; it returns {returned}".replace("(P,)", f"({size},)")
                raise Broken(f"{place_of(cls, hook)}: {words}")
            return value

        return called

    hooks = {
        hook: watched(hook, getattr(cls, hook))
        for hook in RETURNS
        if getattr(cls, hook) is not getattr(Algorithm, hook)
    }
    return type(cls.__name__, (cls,), hooks)(**{key: getattr(algorithm, key) for key in vars(algorithm)})


def wrong_return(fed: Federation) -> str:
    """Describe the first hook of the federation's method with a wrong return value, and its place; empty if there is none."""
    try:
        play(replace(fed, algorithm=strict(fed.algorithm, len(start_of(fed)))), Sequential())
    except Broken as broken:
        return str(broken)
    except Exception:  # the promise that failed has reported it already
        return ""
    return ""
