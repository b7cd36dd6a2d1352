"""The return values that hooks of a method must have, and a search for the first hook with a wrong one."""

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedskew.conformance.miniature import play, start_of
from fedskew.conformance.records import Broken
from fedskew.core.algorithm import Algorithm
from fedskew.core.records import Upload
from fedskew.engine.sequential import Sequential
from fedskew.loop.federation import Federation

VECTOR, SCALAR, IDS, TREE, UPLOAD = "a tensor (P,)", "a tensor ()", "a tensor of client ids (m,)", "a dict", "an Upload"

RETURNS = {
    **dict.fromkeys(("aggregate", "local_init", "direction"), (VECTOR, TREE)),
    "convene": (TREE, IDS),
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
        known = {(size,): VECTOR, (): SCALAR}.get(tuple(value.shape), f"a tensor {tuple(value.shape)}")
        return IDS if ids else known
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
            value, wanted = function(*args, **kwargs), RETURNS[hook]
            single = wanted[0] if len(wanted) == 1 else f"({', '.join(wanted)})"
            found = kind_of(value, size)
            if found != single:
                expected = single.replace("(P,)", f"({size},)")
                returned = found.replace("(P,)", f"({size},)")
                raise Broken(f"{place_of(cls, hook)}: {hook} must return {expected}; it returns {returned}")
            return value

        return called

    own = {
        hook: watched(hook, getattr(cls, hook))
        for hook in RETURNS
        if getattr(cls, hook) is not getattr(Algorithm, hook)
    }
    made: Algorithm = type(cls.__name__, (cls,), own)(**{key: getattr(algorithm, key) for key in vars(algorithm)})
    return made


def wrong_return(fed: Federation) -> str:
    """Describe the first hook of the federation's method with a wrong return value, and its place; empty if there is none."""
    try:
        play(replace(fed, algorithm=strict(fed.algorithm, len(start_of(fed)))), Sequential())
    except Broken as broken:
        return str(broken)
    except Exception:  # the promise that failed has reported it already
        return ""
    return ""
