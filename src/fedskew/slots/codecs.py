"""Codecs: updates compressed on their way to the server, and what that saves.

A codec takes a cohort's updates (C, P) and returns what the server decodes, each client's memory, and the bytes of each
message (C,). ``draws`` are numbers uniform in [0, 1), (C, P), where it asks for them (``random``). A number costs what it costs in
the model's type. Only the update is compressed: what a method sends besides travels as it is.

Between machines a node sends the ``message`` of its update (P,), and the server's ``read`` of it gives what `encode` decodes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.linalg import vector_norm

from fedskew.core.errors import require
from fedskew.core.privacy import alone
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
    private = alone

    def init(self, x: Tensor) -> Tree:
        return {}

    def encode(self, rows: Tensor, memory: Tree, draws: Tensor | None, model: Model) -> tuple[Tensor, Tree, Tensor]:
        return rows, memory, messages(rows, bits_of(rows) * rows.shape[1])

    def message(self, row: Tensor, memory: Tree, draws: Tensor | None, model: Model) -> Tree:
        """What travels of one client's update (P,), whose memory and draws have no leading axis."""
        memories = {name: leaf[None] for name, leaf in memory.items()}
        return {"values": self.encode(row[None], memories, None, model)[0][0]}

    def read(self, message: Tree, model: Model) -> Tensor:
        """The update (P,) of a message; raises `ValueError` if it is none of this codec's."""
        return message["values"]


@dataclass(frozen=True, kw_only=True)
class Clip(Uncompressed):
    """An update longer than ``norm`` is shortened to it."""

    norm: float = 1.0

    idea: ClassVar[str] = "updates longer than norm are shortened to it; saves nothing, bounds what one client can do"
    private = alone

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
        wanted = self.wanted(rows, memory)
        decoded, bits = self.compress(wanted, draws, model)
        left = {"error": wanted - decoded} if self.error_feedback else memory
        return decoded, left, messages(rows, bits)

    def wanted(self, rows: Tensor, memory: Tree) -> Tensor:
        """What would be sent without compression."""
        return rows + memory["error"] if self.error_feedback else rows

    def compress(self, rows: Tensor, draws: Tensor | None, model: Model) -> tuple[Tensor, int]:
        """What is decoded (C, P), and the bits of one message."""
        raise TypeError("use TopK, Qsgd or Int8")

    def message(self, row: Tensor, memory: Tree, draws: Tensor | None, model: Model) -> Tree:
        return self.packed(self.wanted(row, memory)[None], None if draws is None else draws[None], model)

    def packed(self, rows: Tensor, draws: Tensor | None, model: Model) -> Tree:
        """The message of what is wanted (1, P)."""
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
    private = alone

    def __post_init__(self) -> None:
        require(0 < self.share <= 1, f"share must be above 0 and at most 1, got {self.share}")

    def sizes(self, d: int, model: Model) -> list[int]:
        """Numbers of each part of which the largest are kept."""
        return layer_sizes(model) if self.scope == "layer" else [d]

    def number(self, d: int) -> int:
        """How many of d numbers are kept."""
        # the floor of the decimal that was written: 0.29 * 100 is 28.999... in floating point
        return max(int(self.share * d + 1e-9), 1)

    def compress(self, rows: Tensor, draws: Tensor | None, model: Model) -> tuple[Tensor, int]:
        parts, bits = [], 0
        for part in rows.split(self.sizes(rows.shape[1], model), dim=1):
            d = part.shape[1]
            k = self.number(d)
            parts.append(torch.where(largest(part, k), part, 0.0))
            bits += k * bits_of(rows) + place_bits(k, d)
        return torch.cat(parts, dim=1), bits

    def packed(self, rows: Tensor, draws: Tensor | None, model: Model) -> Tree:
        values, places = [], []
        for part in rows.split(self.sizes(rows.shape[1], model), dim=1):
            d = part.shape[1]
            kept = largest(part, k := self.number(d))[0]
            values.append(part[0][kept])
            if indexed(k, d):
                places.append(pack_bits(kept.nonzero()[:, 0], (d - 1).bit_length()))
            elif k < d:
                places.append(pack_bits(kept, 1))
        return {"values": torch.cat(values), "places": torch.cat([rows.new_empty(0, dtype=torch.uint8), *places])}

    def read(self, message: Tree, model: Model) -> Tensor:
        values, places, parts = message["values"], message["places"], []
        for d in self.sizes(model.space.size, model):
            k = self.number(d)
            part = values.new_zeros(d)
            if k == d:
                at = torch.arange(d)
            else:
                size = -(-place_bits(k, d) // 8)
                own, places = places[:size], places[size:]
                at = (
                    unpack_bits(own, (d - 1).bit_length(), k)
                    if indexed(k, d)
                    else unpack_bits(own, 1, d).nonzero()[:, 0]
                )
            if len(at) != k or int(at.max()) >= d:
                raise ValueError("places that the model does not have")
            part[at], values = values[:k], values[k:]
            parts.append(part)
        return torch.cat(parts)


def indexed(k: int, d: int) -> bool:
    """Whether the places of k of d numbers are shorter as indices than as a bitmap."""
    return k < d and k * (d - 1).bit_length() < d


def place_bits(k: int, d: int) -> int:
    """Bits that say where k of d numbers are."""
    return min(k * (d - 1).bit_length(), d) if k < d else 0


def pack_bits(values: Tensor, width: int) -> Tensor:
    """Whole numbers (n,) from 0, each in so many bits, as bytes."""
    bits = (values.cpu().numpy().astype(np.int64)[:, None] >> np.arange(width)) & 1
    return torch.from_numpy(np.packbits(bits.astype(np.uint8).reshape(-1)))


def unpack_bits(data: Tensor, width: int, count: int) -> Tensor:
    """Inverse of `pack_bits`."""
    bits = np.unpackbits(data.numpy(), count=width * count).reshape(count, width)
    return torch.from_numpy(bits.astype(np.int64) @ (1 << np.arange(width)))


def layer_sizes(model: Model) -> list[int]:
    """Parameters of each layer, in the order of the vector."""
    return [sum(place.stop - place.start for place in places) for places in model.space.layers().values()]


def largest(rows: Tensor, k: int) -> Tensor:
    """Which k entries of each row (C, d) are of largest size; of equals the first ones."""
    size = rows.abs()
    least = size.topk(k, dim=1).values[:, -1:]
    above, tied = size > least, size == least
    room = k - above.sum(1, keepdim=True)
    if bool((tied.sum(1, keepdim=True) > room).any()):
        tied &= tied.cumsum(1) <= room
    return above | tied


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
    private = alone

    def __post_init__(self) -> None:
        require(self.levels >= 1, f"levels must be at least 1, got {self.levels}")
        require(self.bucket == "all" or self.bucket >= 1, f"bucket must be at least 1, or all, got {self.bucket}")

    @property
    def random(self) -> bool:
        return True

    def width(self, d: int) -> int:
        """Numbers of a bucket."""
        return d if self.bucket == "all" else min(self.bucket, d)

    def steps(self, rows: Tensor, draws: Tensor | None) -> tuple[Tensor, Tensor]:
        """Signed levels (C, buckets, width), with zeros at the end, and the buckets' lengths (C, buckets, 1)."""
        assert draws is not None
        d, width = rows.shape[1], self.width(rows.shape[1])
        count = -(-d // width)

        def bucketed(values: Tensor) -> Tensor:
            return F.pad(values, (0, count * width - d)).view(-1, count, width)

        v = bucketed(rows)
        length = vector_norm(v, dim=2, keepdim=True, dtype=torch.float64).to(v.dtype)
        a = torch.where(length > 0, v.abs() / length, 0.0).clamp(max=1) * self.levels
        low = a.floor()
        level = low + (bucketed(draws) < a - low)
        return v.sign() * level, length

    def decoded(self, steps: Tensor, length: Tensor, d: int) -> Tensor:
        """Inverse of `steps`, up to rounding: (C, d)."""
        return (length * steps.sign() * (steps.abs() / self.levels)).view(len(steps), -1)[:, :d]

    def compress(self, rows: Tensor, draws: Tensor | None, model: Model) -> tuple[Tensor, int]:
        steps, length = self.steps(rows, draws)
        d = rows.shape[1]
        return self.decoded(steps, length, d), length.shape[1] * bits_of(rows) + d * (1 + self.levels.bit_length())

    def packed(self, rows: Tensor, draws: Tensor | None, model: Model) -> Tree:
        steps, length = self.steps(rows, draws)
        codes = steps.view(-1)[: rows.shape[1]] + self.levels
        return {"lengths": length.view(-1), "steps": pack_bits(codes, 1 + self.levels.bit_length())}

    def read(self, message: Tree, model: Model) -> Tensor:
        d, lengths = model.space.size, message["lengths"]
        codes = unpack_bits(message["steps"], 1 + self.levels.bit_length(), d)
        if int(codes.max()) > 2 * self.levels:
            raise ValueError("levels that this codec does not have")
        steps = F.pad(codes - self.levels, (0, len(lengths) * self.width(d) - d)).to(lengths.dtype)
        return self.decoded(steps.view(1, -1, self.width(d)), lengths.view(1, -1, 1), d)[0]


@dataclass(frozen=True, kw_only=True)
class Int8(_Lossy):
    """Each parameter tensor in whole steps of a 127th of its largest number; ``nearest`` rounds halves to even."""

    rounding: Literal["nearest", "stochastic"] = "nearest"

    idea: ClassVar[str] = "numbers as signed bytes, one scale for each parameter tensor"
    private = alone

    @property
    def random(self) -> bool:
        return self.rounding == "stochastic"

    def steps(self, rows: Tensor, draws: Tensor | None, model: Model) -> tuple[Tensor, Tensor]:
        """Whole steps (C, P), and how large one is in each tensor (C, tensors)."""
        scales = torch.stack([part.abs().amax(1) for part in rows.split(model.space.sizes, dim=1)], dim=1) / 127
        scale = spread(scales, model)
        steps = torch.where(scale > 0, rows / scale, 0.0)
        steps = steps.round() if draws is None else (steps + draws).floor()
        return steps.clamp(-127, 127), scales

    def compress(self, rows: Tensor, draws: Tensor | None, model: Model) -> tuple[Tensor, int]:
        steps, scales = self.steps(rows, draws, model)
        return steps * spread(scales, model), 8 * rows.shape[1] + bits_of(rows) * scales.shape[1]

    def packed(self, rows: Tensor, draws: Tensor | None, model: Model) -> Tree:
        steps, scales = self.steps(rows, draws, model)
        return {"steps": steps[0].to(torch.int8), "scales": scales[0]}

    def read(self, message: Tree, model: Model) -> Tensor:
        scales = message["scales"][None]
        return message["steps"].to(scales.dtype) * spread(scales, model)[0]


def spread(scales: Tensor, model: Model) -> Tensor:
    """Each tensor's scale (C, tensors) at all of its parameters, (C, P)."""
    return scales.repeat_interleave(torch.tensor(model.space.sizes, device=scales.device), dim=1)
