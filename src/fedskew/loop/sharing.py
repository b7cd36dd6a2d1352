"""Personal parts: each client keeps some entries of the model. This wraps the program of any method.

The method sees the client's complete initial model: the shared part as received, and the client's own part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from fedskew.core.records import Batch, Carry, Upload, View
from fedskew.core.task import Task
from fedskew.core.trees import ParameterSpace, Tree
from fedskew.loop.work import Differentiate, Program, T

PART = "own part"
"""Key of the kept entries in a client's state."""


@dataclass(frozen=True, eq=False)
class OwnPart:
    """The entries of the parameter vector that each client keeps."""

    at: Tensor  # (n,) positions, ascending
    mask: Tensor  # (P,) True at the kept positions
    others: Tensor  # (P - n,) the positions that are shared, ascending

    @classmethod
    def of(cls, at: Tensor, size: int) -> OwnPart:
        mask = torch.zeros(size, dtype=torch.bool, device=at.device).index_fill(0, at, True)
        return cls(at, mask, (~mask).nonzero()[:, 0])

    @staticmethod
    @lru_cache(maxsize=16)
    def everything(size: int, device: torch.device) -> OwnPart:
        """Return `OwnPart` with all entries of a model. It is cached, so that engines trace its program only once."""
        return OwnPart.of(torch.arange(size, device=device), size)

    def of_model(self, w: Tensor) -> Tensor:
        """Return the kept entries (n,) of a model (P,)."""
        return w.index_select(0, self.at)

    def own(self, view: View) -> View:
        """Return the view that a method sees: with the client's own part in the model, and not in the state."""
        state = {key: value for key, value in view.state.items() if key != PART}
        return view._replace(x=view.x.scatter(0, self.at, view.state[PART]), state=state)

    def without(self, step: Tensor) -> Tensor:
        """Return the step (P,) with 0 at the kept entries."""
        return torch.where(self.mask, 0.0, step)

    def sent(self, rows: Tensor) -> Tensor:
        """Return the shared entries (..., P - n) of vectors (..., P)."""
        return rows.index_select(-1, self.others)

    def received(self, rows: Tensor) -> Tensor:
        """Return vectors (C, P) with these shared entries (C, P - n), and 0 at the kept entries."""
        return rows.new_zeros(len(rows), len(self.mask)).index_copy(1, self.others, rows)


@dataclass(frozen=True, eq=False)
class Intercepts:
    """The intercept of each client's personal model. It is added where this model answers, not in training."""

    at: Tensor  # (n,) its positions in the parameter vector
    values: Tensor  # (K, n)


@lru_cache(maxsize=32)
def answering(method: Program, intercepts: Intercepts) -> Program:
    """Return the program of a method with these intercepts in the personal models."""

    def personal(view: View) -> Tensor:
        w = view.x if method.personal is None else method.personal(view)
        return w.scatter(0, intercepts.at, intercepts.values.index_select(0, view.info.index.reshape(1))[0])

    return method._replace(personal=personal)


@dataclass(frozen=True, eq=False)
class Shared:
    """The shared part of a task's model, for codecs."""

    task: Task
    part: OwnPart

    @property
    def space(self) -> ParameterSpace:
        return self.task.space.of_entries(~self.part.mask)


@lru_cache(maxsize=32)
def keeping(method: Program, part: OwnPart) -> Program:
    """Return the program of a method in which clients keep their own part. Their update is 0 there."""

    def own(hook: Callable[..., T]) -> Callable[..., T]:
        return lambda view, *others: hook(part.own(view), *others)

    def step(differentiate: Differentiate, view: View, carry: Carry, batch: Batch) -> Carry:
        return method.step(differentiate, part.own(view), carry, batch)

    def final(view: View, carry: Carry, sums: Tree) -> tuple[Upload, Tree]:
        upload, state = method.final(part.own(view), carry, sums)
        return upload._replace(delta=part.without(upload.delta)), state | {PART: part.of_model(carry.w)}

    return method._replace(
        before=own(method.before) if method.before else None,
        answer=own(method.answer),
        init=own(method.init),
        step=step,
        after=own(method.after) if method.after else None,
        final=final,
        personal=own(method.personal or (lambda view: view.x)),
    )
