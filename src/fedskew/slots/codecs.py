"""Codecs: updates compressed on their way to the server, and what that saves.

A codec takes a cohort's updates (C, P) and returns what the server decodes, each client's memory, and the bytes of each
message (C,). ``draws`` are numbers uniform in [0, 1), (C, P), where it asks for them (``random``). A number costs what it costs in
the model's type. Only the update is compressed: what a method sends besides travels as it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.linalg import vector_norm

from fedskew.core.errors import require
from fedskew.core.trees import Tree
from fedskew.core.vectors import ParameterSpace


class Model(Protocol):
    """What the numbers of an update belong to: a task, or the part of its model that clients share."""

    @property
    def space(self) -> ParameterSpace: ...


def messages(rows: Tensor, bits: int) -> Tensor:
    """The bytes (C,) of messages of so many bits each."""
    return torch.full((rows.shape[0],), -(-bits // 8))


def bits_of(rows: Tensor) -> int:
    """Bits of one number."""
    return 8 * rows.element_size()


@dataclass(frozen=True, kw_only=True)
class Uncompressed:
    """Every number of the update, as it is."""

    idea: ClassVar[str] = "updates travel as they are"
    random: ClassVar[bool] = False

    def init(self, x: Tensor) -> Tree:
        return {}

    def encode(self, rows: Tensor, memory: Tree, draws: Tensor | None, model: Model) -> tuple[Tensor, Tree, Tensor]:
        return rows, memory, messages(rows, bits_of(rows) * rows.shape[1])


@dataclass(frozen=True, kw_only=True)
class Clip(Uncompressed):
    """An update longer than ``norm`` is shortened to it."""

    norm: float = 1.0

    idea: ClassVar[str] = "updates longer than norm are shortened to it; saves nothing, bounds what one client can do"

    def __post_init__(self) -> None:
        require(0 < self.norm < math.inf, f"norm must be a finite number above 0, got {self.norm}")

    def encode(self, rows: Tensor, memory: Tree, draws: Tensor | None, model: Model) -> tuple[Tensor, Tree, Tensor]:
        length = vector_norm(rows, dim=1, keepdim=True, dtype=torch.float64)
        clipped = rows * (self.norm / length).clamp(max=1).to(rows.dtype)
        return clipped, memory, messages(rows, bits_of(rows) * rows.shape[1])


@dataclass(frozen=True, kw_only=True)
class _Lossy:
    """With error feedback a client adds to its next update what the server has not received of the earlier ones."""

    error_feedback: bool = False

    @property
    def random(self) -> bool:
        return False

    def init(self, x: Tensor) -> Tree:
        return {"error": torch.zeros_like(x)} if self.error_feedback else {}

    def encode(self, rows: Tensor, memory: Tree, draws: Tensor | None, model: Model) -> tuple[Tensor, Tree, Tensor]:
        wanted = rows + memory["error"] if self.error_feedback else rows
        decoded, bits = self.compress(wanted, draws, model)
        left = {"error": wanted - decoded} if self.error_feedback else memory
        return decoded, left, messages(rows, bits)

    def compress(self, rows: Tensor, draws: Tensor | None, model: Model) -> tuple[Tensor, int]:
        """What is decoded (C, P), and the bits of one message."""
        raise TypeError("use TopK, Qsgd or Int8")


@dataclass(frozen=True, kw_only=True)
class TopK(_Lossy):
    """The ``share`` of the numbers that are largest in size, of the whole model or of each layer; of equals the first.

    At least one is kept. A message holds their values, and their places as indices or as a bitmap, whichever is shorter.
    """

    error_feedback: bool = True
    share: float = 0.01
    scope: Literal["model", "layer"] = "model"

    idea: ClassVar[str] = "the largest numbers of each update, the rest is added to the next one"
    paper: ClassVar[str] = "Stich, Cordonnier, Jaggi 2018, arXiv:1809.07599; Karimireddy et al. 2019, arXiv:1901.09847"
    cites: ClassVar[tuple[str, ...]] = ("top-k", "error-feedback")

    def __post_init__(self) -> None:
        require(0 < self.share <= 1, f"share must be above 0 and at most 1, got {self.share}")

    def compress(self, rows: Tensor, draws: Tensor | None, model: Model) -> tuple[Tensor, int]:
        sizes = layer_sizes(model) if self.scope == "layer" else [rows.shape[1]]
        parts, bits = [], 0
        for part in rows.split(sizes, dim=1):
            d = part.shape[1]
            # the floor of the decimal that was written: 0.29 * 100 is 28.999... in floating point
            k = max(int(self.share * d + 1e-9), 1)
            parts.append(largest(part, k))
            bits += k * bits_of(rows) + (min(k * (d - 1).bit_length(), d) if k < d else 0)
        return torch.cat(parts, dim=1), bits


def layer_sizes(model: Model) -> Sequence[int]:
    """Parameters of each layer, in the order of the vector."""
    return [sum(place.stop - place.start for place in places) for places in model.space.layers().values()]


def largest(rows: Tensor, k: int) -> Tensor:
    """The rows (C, d) with all but the k entries of largest size set to 0; among equals the first ones stay."""
    size = rows.abs()
    least = size.topk(k, dim=1).values[:, -1:]
    above, tied = size > least, size == least
    room = k - above.sum(1, keepdim=True)
    if bool((tied.sum(1, keepdim=True) > room).any()):
        tied &= tied.cumsum(1) <= room
    return torch.where(above | tied, rows, 0.0)


@dataclass(frozen=True, kw_only=True)
class Qsgd(_Lossy):
    """Each number is rounded at random, without bias, to one of ``levels`` steps of the length of its ``bucket`` of numbers.

    A message holds a length a bucket, and a sign and a level a number, without entropy coding.
    """

    levels: int = 15
    bucket: int | Literal["all"] = 512

    idea: ClassVar[str] = "numbers rounded at random, without bias, to a few levels of their bucket's length"
    paper: ClassVar[str] = "Alistarh et al. 2017, arXiv:1610.02132"
    cites: ClassVar[tuple[str, ...]] = ("qsgd",)

    def __post_init__(self) -> None:
        require(self.levels >= 1, f"levels must be at least 1, got {self.levels}")
        require(self.bucket == "all" or self.bucket >= 1, f"bucket must be at least 1, or all, got {self.bucket}")

    @property
    def random(self) -> bool:
        return True

    def compress(self, rows: Tensor, draws: Tensor | None, model: Model) -> tuple[Tensor, int]:
        assert draws is not None
        d = rows.shape[1]
        width = d if self.bucket == "all" else min(self.bucket, d)
        count = -(-d // width)

        def bucketed(values: Tensor) -> Tensor:
            return F.pad(values, (0, count * width - d)).view(-1, count, width)

        v = bucketed(rows)
        length = vector_norm(v, dim=2, keepdim=True, dtype=torch.float64).to(v.dtype)
        a = torch.where(length > 0, v.abs() / length, 0.0).clamp(max=1) * self.levels
        low = a.floor()
        level = low + (bucketed(draws) < a - low)
        decoded = (length * v.sign() * (level / self.levels)).view(-1, count * width)[:, :d]
        return decoded, count * bits_of(rows) + d * (1 + self.levels.bit_length())


@dataclass(frozen=True, kw_only=True)
class Int8(_Lossy):
    """Each parameter tensor in whole steps of a 127th of its largest number; ``nearest`` rounds halves to even."""

    rounding: Literal["nearest", "stochastic"] = "nearest"

    idea: ClassVar[str] = "numbers as signed bytes, one scale for each parameter tensor"

    @property
    def random(self) -> bool:
        return self.rounding == "stochastic"

    def compress(self, rows: Tensor, draws: Tensor | None, model: Model) -> tuple[Tensor, int]:
        sizes = model.space.sizes
        scales = torch.stack([part.abs().amax(1) for part in rows.split(sizes, dim=1)], dim=1) / 127
        scale = scales.repeat_interleave(torch.tensor(sizes, device=rows.device), dim=1)
        steps = torch.where(scale > 0, rows / scale, 0.0)
        steps = steps.round() if draws is None else (steps + draws).floor()
        return steps.clamp(-127, 127) * scale, 8 * rows.shape[1] + bits_of(rows) * len(sizes)
